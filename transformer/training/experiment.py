"""An experiment: every section of a config, checked, with its defaults filled in."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer.config import RunConfig, UserError, from_config, hash_of, to_config
from transformer.layers.module import Precision
from transformer.maps.tiers import MapsConfig
from transformer.models import registry as models
from transformer.tasks import registry as tasks
from transformer.training.averages import Average
from transformer.training.faults import Faults
from transformer.training.initialise_from import InitialiseFrom
from transformer.training.mesh import ShardingConfig
from transformer.training.optimizer import OptimizerConfig, Schedule


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Every section of a config, checked and with its defaults filled in."""

    run: RunConfig
    task: Any
    model: Any
    optimizer: OptimizerConfig
    optimizers: Mapping[str, OptimizerConfig]
    averages: Mapping[str, Average]
    precision: Precision
    maps: MapsConfig
    sharding: ShardingConfig
    initialise_from: InitialiseFrom = dataclasses.field(default_factory=InitialiseFrom)
    faults: Faults = dataclasses.field(default_factory=Faults)

    @property
    def evaluated_parameters(self) -> str:
        """The parameters that a run is judged by, and so shown and published: "raw", or the name of an average."""
        return getattr(self.task, "evaluated_parameters", "raw")

    def to_config(self) -> dict[str, Any]:
        """The resolved config as plain values: what `config.json` holds."""
        return {
            **to_config(self.run),
            "task": {"name": tasks.name_of(self.task), **to_config(self.task)},
            "model": {"family": models.name_of(self.model), **to_config(self.model)},
            "optimizer": to_config(self.optimizer),
            "optimizers": to_config(self.optimizers),
            "averages": to_config(self.averages),
            "precision": to_config(self.precision),
            "maps": to_config(self.maps),
            "sharding": to_config(self.sharding),
            "initialise_from": to_config(self.initialise_from),
            "faults": to_config(self.faults),
        }

    def optimizer_of(self, objective: str) -> OptimizerConfig:
        """The optimiser of one of the task's objectives."""
        return self.optimizers.get(objective, self.optimizer)


def resolve(values: Mapping[str, Any]) -> Experiment:
    """Check a nested config and fill in its defaults.

    A family or task given by a dotted path is imported as code: see `transformer.trust.check_trusted` for recorded
    configs.

    Errors: UserError naming the first unknown key, missing key, or invalid value.
    """
    run = from_config(RunConfig, values)
    optimizers = {
        name: from_config(OptimizerConfig, {**run.optimizer, **section}, f"config.optimizers.{name}")
        for name, section in run.optimizers.items()
    }
    averages = {
        name: from_config(Average, section, f"config.averages.{name}") for name, section in run.averages.items()
    }
    experiment = Experiment(
        run=run,
        task=tasks.task_config(run.task),
        model=models.model_config(run.model),
        optimizer=from_config(OptimizerConfig, run.optimizer, "config.optimizer"),
        optimizers=optimizers,
        averages=averages,
        precision=from_config(Precision, run.precision, "config.precision"),
        maps=from_config(MapsConfig, run.maps, "config.maps"),
        sharding=from_config(ShardingConfig, run.sharding, "config.sharding"),
        initialise_from=from_config(InitialiseFrom, run.initialise_from, "config.initialise_from"),
        faults=from_config(Faults, run.faults, "config.faults"),
    )
    wanted = experiment.evaluated_parameters
    if wanted != "raw" and wanted not in averages:
        raise UserError(
            f"config.task.evaluated_parameters={wanted!r} is no average of this run; say raw"
            + "".join(f" or {name}" for name in averages)
        )
    return experiment


def config_hash(experiment: Experiment) -> str:
    """The SHA-256 of the resolved config."""
    return hash_of(experiment.to_config())


def changeable(experiment: Experiment) -> tuple[str, ...]:
    """The keys that may differ when a run is resumed: of its devices, reports and length, not of its result."""
    often = ("log_every", "eval_every", "maps_every", "checkpoint_every", "keep", "milestone_every")
    keys = (*often, "task.data_dir", "sharding", "pod", "faults.stop_after")
    lasting = experiment.optimizer.schedule in (Schedule.CONSTANT, Schedule.INVERSE_SQUARE_ROOT)
    return (*keys, "steps") if lasting else keys
