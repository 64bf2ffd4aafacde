"""A case of the contracts: a task and a model in their smallest configs, and what must come of training them."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tests.training.written_run import write_run
from transformer.logical_axes import Placement
from transformer.models.model import Variables
from transformer.tasks.registry import TASKS
from transformer.training.build import TrainingComponents, build_components
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.driver import train
from transformer.training.init_from import load_variables_from_source
from transformer.training.init_plan import InitializeFromConfig
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.state import TrainState

Section = Mapping[str, Any]  # of a config
# Of every task that has such a key and does not say otherwise.
TASK_DEFAULTS = {"batch_size": 16, "num_eval_examples": 16, "num_probe_examples": 3}


class Metric(NamedTuple):
    """A metric of a split, and what must hold of its first and last report."""

    split: str
    name: str
    improves: Callable[[float, float], bool]


def falls(name: str = "loss", to: float = 0.9) -> Metric:
    """A metric of the training batches falls below a part of what it was."""
    return Metric("train", name, lambda first, last: last < to * first)


LOSS_FALLS = falls()


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table: a task's and a family's smallest config, and what must come of it.

    `begins_from` is the config of a run whose parameters it takes by `rules` (config.initialize_from): trained where it
    says how, as drawn where it does not. `rates` are objectives whose learning rate is so many times the others'.
    `holds` asserts what else is true of the last state. `attends`: the share of queries that look where they should by
    the end. `sampled` says why accumulation cannot equal the large batch. `rounding`: how far, relatively, losses may
    drift apart over some steps that are computed in another order. `meshes`: those that `make test` takes. `daily`: the
    modes of test_contracts.py that it takes. `keeps_tree`: its parameters are not made one vector (flat_parameters.py).
    """

    name: str
    task: Section
    model: Section
    optimizer: Section = dataclasses.field(default_factory=dict)
    steps: int = 40
    learning_rate: float = 0.01
    metric: Metric = LOSS_FALLS
    averages: Section = dataclasses.field(default_factory=dict)
    begins_from: Section = dataclasses.field(default_factory=dict)
    rules: tuple[str, ...] = ()
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    holds: Callable[[TrainState], None] = lambda state: None
    attends: float = 0.0
    sampled: str = ""
    rounding: float = 1e-6
    meshes: tuple[str, ...] = ()
    daily: tuple[str, ...] = ("plain", "resumed", "mapped")
    keeps_tree: bool = False

    @functools.cached_property
    def config(self) -> Section:
        """The sections of its config that say what it is."""
        return {"task": with_defaults(self.task), "model": self.model, "optimizer": self.optimizer}

    def experiment(self, algorithm: OptimizerAlgorithm, rate: float, **changes: float) -> ExperimentConfig:
        """The case as an experiment, all of whose objectives descend alike but for their rates."""
        section = {"algorithm": algorithm, "learning_rate": rate, "schedule": "constant", "warmup_steps": 0}
        return resolve_config(
            {
                "name": "contract",
                "steps": self.steps,
                "parameter_averages": self.averages,
                **self.config,
                "optimizer": {**self.optimizer, **section, "beta1": 0.5, **changes},
                "optimizers": {name: {"learning_rate": factor * rate} for name, factor in self.rates.items()},
            }
        )

    def descending(self, rate: float) -> ExperimentConfig:
        """The case under plain gradient descent, by the program of Adam.

        Beside an epsilon of 1000 the root of the second moment is nothing: what is left is linear in the gradient,
        where Adam as it is would blow rounding up.
        """
        return self.experiment(OptimizerAlgorithm.ADAM, rate * 1000, beta1=0.0, epsilon=1000.0)

    def assemble(self, experiment: ExperimentConfig, folder: Path, placement: Placement) -> TrainingComponents:
        """Its task and model, where a placement puts them."""
        return build_components(experiment, folder, placement)

    def variables(self, setting: TrainingComponents, key: jax.Array) -> Variables | None:
        """What the first state is made of, where it is taken from another run; None where the key draws it all."""
        if not self.begins_from:
            return None
        origin = InitializeFromConfig(run=source_run(self).name, rules=self.rules)
        return load_variables_from_source(
            origin, setting.model, setting.abstract_state.variables, lambda: setting.init_state(key).variables
        )[0]


def with_defaults(task: Section) -> Section:
    """A task's section with those defaults of the table that it has a key for."""
    keys = {field.name for field in dataclasses.fields(TASKS[task["name"]].config_class)}
    return {**{key: value for key, value in TASK_DEFAULTS.items() if key in keys}, **task}


_SOURCE_RUNS: dict[str, tempfile.TemporaryDirectory] = {}


def source_run(case: Case) -> tempfile.TemporaryDirectory:
    """The run that a case begins from, made once."""
    if case.name not in _SOURCE_RUNS:
        folder = _SOURCE_RUNS[case.name] = tempfile.TemporaryDirectory()
        begins_from = {**case.begins_from, "task": with_defaults(case.begins_from["task"])}
        config = {"name": "source", "eval_every": 0, "maps_every": 0, "parameter_averages": {}, **begins_from}
        if "optimizer" in config:
            train(resolve_config(config), Path(folder.name))
        else:
            write_run(Path(folder.name), {"steps": 1, "optimizer": {}, **config}, lambda state: state)
    return _SOURCE_RUNS[case.name]
