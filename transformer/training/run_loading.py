"""Load trained runs: config, components and state of a checkpoint, ensembles, and parameter counts."""

import dataclasses
import functools
import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer.config import UserError
from transformer.costs.cache_memory import CacheMemory, cache_memory
from transformer.costs.model_sizes import count_active_parameters
from transformer.data.datasets.tfds_preparation import restrict_downloads
from transformer.data.tokenizers.load import tokenizer_digests
from transformer.decoding.ensemble import Ensemble, join_variables
from transformer.decoding.shallow_fusion import ShallowFusion
from transformer.models import registry as models
from transformer.models.model import PyTree, leaves_by_path, replace_with_averaged
from transformer.models.task_interface import LANGUAGE_MODELING
from transformer.runs.checkpoint import Checkpoints, StoredCheckpoint
from transformer.runs.run_directory import RunDirectory
from transformer.runs.trust import check_trusted, trust_flags
from transformer.system.command_invocation import shell_command
from transformer.tasks import registry as tasks
from transformer.tasks.sequence_generation_base import SymbolSequenceTask
from transformer.tasks.synthetic_data import abstract_batch
from transformer.tasks.text_task_base import TextTask
from transformer.training.build import TrainingComponents, build_components, flops_counter
from transformer.training.checkpoint_metadata import (
    check_metadata,
    describe_config_change,
    describe_tokenizer_change,
    refuse_change,
)
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.config import ExperimentConfig, apply_overrides, resolve_config
from transformer.training.finite_checks import find_non_finite
from transformer.training.parameter_averages import init_average
from transformer.training.partitioning import single_device_placement
from transformer.training.state import PARAMS, STATE, TrainState

LoadedRun = tuple[ExperimentConfig, TrainingComponents, TrainState]


_TASK_STATE = "task_state/"  # what a task keeps may be infinite, such as the best score so far


class RecordedRun(NamedTuple):
    """A run directory, and the experiment that its config.json describes."""

    directory: RunDirectory
    experiment: ExperimentConfig

    def read_checkpoint[T](self, step: int | None, read: Callable[[StoredCheckpoint], T]) -> tuple[int, T]:
        """Read a checkpoint after checking that the run's config and tokenizer are unchanged.

        Newer checkpoints that are damaged are announced.

        Args:
            step: The step; None is the newest valid checkpoint.
            read: A function from the checkpoint to what is restored of it.

        Returns:
            The step, and the result of `read`.

        Raises:
            UserError: If the run has no checkpoint, its config or tokenizer is no longer that of the checkpoint, or a
                parameter is not finite.
            DamagedCheckpoint: If the checkpoint of the step is damaged, or all are.
        """

        def read_checked(checkpoint: StoredCheckpoint) -> T:
            self._check_unchanged(checkpoint)
            value = read(checkpoint)
            arrays = {name: leaf for name, leaf in leaves_by_path(value).items() if not name.startswith(_TASK_STATE)}
            if (name := find_non_finite(arrays)) is not None:
                raise UserError(
                    f"checkpoint {checkpoint.step} of {self.directory.path} holds NaN or infinity in {name}: its "
                    "training diverged; name an earlier step"
                )
            return value

        if not self.directory.checkpoints_dir.is_dir():
            raise self._untrained()
        with Checkpoints.open_read_only(self.directory.checkpoints_dir) as checkpoints:
            if step is not None:
                return step, read_checked(checkpoints.read(step))
            sound = checkpoints.restore_newest_valid(read_checked)
            if sound is None:
                raise self._untrained()
            checkpoints.announce_damage(sound, set_aside=False)
            return sound.step, sound.value

    def _check_unchanged(self, checkpoint: StoredCheckpoint) -> None:
        path, metadata, step = self.directory.path, checkpoint.metadata, checkpoint.step
        check_metadata(metadata, path, step)
        refuse_change(
            path,
            describe_config_change(metadata, self.directory.config(), step)
            or describe_tokenizer_change(metadata, path, step),
        )

    def _untrained(self) -> UserError:
        path = self.directory.path
        words = [*shell_command("train"), f"--workdir={path}", *trust_flags(self.directory.config())]
        return UserError(f"{path} has no checkpoint yet; train it with {shlex.join(words)}")

    def restore_eval_parameters(self, checkpoint: StoredCheckpoint, shapes: PyTree) -> PyTree:
        """Restore the parameters by which the run is judged: raw, or those of an average.

        Args:
            checkpoint: The checkpoint.
            shapes: The parameters as shapes.

        Raises:
            UserError: If the checkpoint has other parameters than `shapes`.
            DamagedCheckpoint: If its bytes changed.
        """
        params = checkpoint.restore(shapes, ("variables", "params"))
        name = self.experiment.eval_parameters
        if name == "raw":
            return params
        average = jax.eval_shape(functools.partial(init_average, self.experiment.parameter_averages[name]), shapes)
        return replace_with_averaged(params, checkpoint.restore(average, ("averages", name)))


def open_run(
    workdir: str | Path, trusted: Collection[str] = (), task_changes: Mapping[str, Any] | None = None
) -> RecordedRun:
    """Open a recorded run for reading.

    Args:
        workdir: The run directory.
        trusted: Dotted paths of code, and names of files outside of the run, that its config may name
            (transformer.runs.trust).
        task_changes: Fields of the task's config to replace, such as `num_beams` or "decoding.length_power".

    Raises:
        UserError: If the directory is not a run, the config names something that is not trusted, or its task does not
            have a field of `task_changes`.
    """
    directory = RunDirectory.open(workdir)
    config, changes = directory.config(), task_changes or {}
    check_trusted(config, trusted, source=[f"task.{name}" for name in changes])
    if changes:
        task = resolve_config(config).task
        unknown = sorted(name for name in changes if not _has_field(task, name))
        if unknown:
            name = config["task"]["name"]
            raise UserError(f"{workdir} is a run of the task {name!r}, which has no {' or '.join(unknown)} to change")
        config = apply_overrides(config, {f"task.{name}": value for name, value in changes.items()})
    return RecordedRun(directory, resolve_config(config))


def _has_field(config: Any, name: str) -> bool:
    """Whether a config has a field of this name, or its section that field, as in "decoding.length_power"."""
    first, _, rest = name.partition(".")
    names = {field.name for field in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set()
    return first in names and (not rest or _has_field(getattr(config, first), rest))


def load_run(
    workdir: str | Path,
    step: int | None = None,
    task_changes: Mapping[str, Any] | None = None,
    trusted: Collection[str] = (),
) -> tuple[ExperimentConfig, TrainingComponents, TrainState]:
    """Load a trained run to evaluate it.

    Args:
        workdir: The run directory.
        step: The step of the checkpoint; None is the newest valid one.
        task_changes: Fields of the task's config to replace, such as `num_beams` or "decoding.length_power".
        trusted: Dotted paths of code, and names of files outside of the run, that its config may name.

    Returns:
        The experiment, the components with the task's data, and the training state without optimizers.

    Raises:
        UserError: If the directory is not a run, has no such checkpoint, or its config names something that is not
            trusted.
        DamagedCheckpoint: If the checkpoint is damaged.

    Example:
        ```python
        from transformer.training.compiled_evaluation import evaluation_view
        from transformer.training.run_loading import load_run

        experiment, components, state = load_run("runs/demo")
        view = evaluation_view(components.model, state, experiment.eval_parameters)
        ```
    """
    run = open_run(workdir, trusted, task_changes)
    run.read_checkpoint(step, lambda checkpoint: checkpoint.leaves)  # before the data are read
    with restrict_downloads(trusted):
        components = build_components(run.experiment, run.directory.path, single_device_placement())
    return run.experiment, components, read_state(run, components, step)


def read_state(run: RecordedRun, components: TrainingComponents, step: int | None) -> TrainState:
    """Read the training state of a checkpoint, without optimizers.

    Args:
        run: The run.
        components: The run's components.
        step: The step of the checkpoint; None is the newest valid one.

    Raises:
        UserError: If the run has no such checkpoint, or its training diverged.
        DamagedCheckpoint: If the checkpoint is damaged.
    """

    def read(checkpoint: StoredCheckpoint) -> dict[str, Any]:
        return {
            name: checkpoint.restore(getattr(components.abstract_state, name), (name,))
            for name in TrainState._fields
            if name not in ("optimizers", "hyperparameters", "gradient_norms")
        }

    _, parts = run.read_checkpoint(step, read)
    return TrainState(**parts, optimizers={}, hyperparameters={})


def load_ensemble(
    workdirs: Sequence[str | Path],
    step: int | None = None,
    task_changes: Mapping[str, Any] | None = None,
    trusted: Collection[str] = (),
) -> tuple[ExperimentConfig, TrainingComponents, TrainState]:
    """Load several trained runs as one whose model is their ensemble (transformer.decoding.ensemble).

    Each run is read with the parameters by which it is judged.

    Args:
        workdirs: The run directories. Task and data are those of the first.
        step: The step of the first run's checkpoint; the others are read at their newest valid one.
        task_changes: Fields of the task's config to replace, as for `load_run`.
        trusted: Dotted paths of code, and names of files outside of the run, that the configs may name.

    Raises:
        UserError: If a run cannot be loaded, or has another interface or tokenizer than the first.
        DamagedCheckpoint: If a checkpoint is damaged.
    """
    steps = (step, *(None,) * (len(workdirs) - 1))
    runs = [
        load_run(workdir, run_step, task_changes, trusted) for workdir, run_step in zip(workdirs, steps, strict=True)
    ]
    (experiment, components, state), *other_runs = runs
    if not other_runs:
        return experiment, components, state
    first_tokenizer = tokenizer_digests(RunDirectory.open(workdirs[0]).path)
    for workdir, (_, other, _) in zip(workdirs[1:], other_runs, strict=True):
        if _model_interface(other) != _model_interface(components):
            raise UserError(
                f"{workdir} cannot join an ensemble with {workdirs[0]}: its vocabulary or inputs are others; an "
                "ensemble is of runs of one task and one tokenizer"
            )
        if other.class_names != components.class_names:
            raise UserError(
                f"{workdir} cannot join an ensemble with {workdirs[0]}: its classes are "
                f"{', '.join(other.class_names)}, and not {', '.join(components.class_names)} in this order"
            )
        if tokenizer_digests(RunDirectory.open(workdir).path) != first_tokenizer:
            raise UserError(
                f"{workdir} cannot join an ensemble with {workdirs[0]}: its tokenizer is another; train both with one, "
                "by config.initialize_from or a copy of its files"
            )
    members = [
        evaluation_view(run_components.model, run_state, run_experiment.eval_parameters).variables
        for run_experiment, run_components, run_state in runs
    ]
    # An empty average, so that evaluation keeps the chosen parameters.
    state = state._replace(variables=join_variables(members), averages={experiment.eval_parameters: {}})
    return experiment, components._replace(model=Ensemble.of([one.model for _, one, _ in runs])), state


def add_shallow_fusion(
    loaded: LoadedRun, workdir: str | Path | None, weight: float, trusted: Collection[str] = ()
) -> LoadedRun:
    """Let the language model of another run score the hypotheses of a run (transformer.decoding.shallow_fusion).

    The tokenizer of the language model must have one token for each symbol of the first run, and for a line feed, which
    stands for the end: a hypothesis is a line of its text.

    Args:
        loaded: The run.
        workdir: The run of the language model; None returns `loaded` unchanged.
        weight: The weight of the language model's log-probability.
        trusted: Dotted paths of code, and names of files outside of the run, that its config may name.

    Raises:
        UserError: If the language model's run cannot be loaded; the first run is an ensemble or does not generate
            symbols without separators; the other does not continue text, lacks a token for a symbol, or has too few
            positions; or the weight is negative or infinite.
        DamagedCheckpoint: If a checkpoint is damaged.
    """
    if workdir is None:
        return loaded
    if not 0 <= weight < math.inf:
        raise UserError(f"--language_model_weight={weight:g} must be a number of at least 0")
    experiment, components, state = loaded
    task, model = components.task, components.model
    if not isinstance(task, SymbolSequenceTask) or isinstance(model, Ensemble):
        raise UserError(f"--language_model={workdir} weighs what one run writes symbol by symbol, as from sound")
    if task.separator:
        raise UserError(
            f"--language_model={workdir} would read symbols without the {task.separator!r} that this run's lines have "
            "between them: say it of a run that writes letters"
        )
    language_experiment, language, language_state = load_run(workdir, trusted=trusted)
    if not isinstance(language.task, TextTask) or language.task.interface.output != LANGUAGE_MODELING.output:
        raise UserError(f"--language_model={workdir} does not continue text: name a run of language_modeling")
    most = language.model.max_length
    if most is not None and most < task.steps:
        raise UserError(
            f"--language_model={workdir} has {most} positions, and this run's strings have up to {task.steps}: train "
            "it with a greater config.model.max_length"
        )
    tokenizer = language.task.tokenizer

    def number(symbol: str) -> int:
        ids = tokenizer.encode([symbol])[0]
        if len(ids) != 1:
            raise UserError(f"--language_model={workdir} has {len(ids)} tokens for {symbol!r}: train it by characters")
        return ids[0]

    special = dict.fromkeys(_special_tokens(components), "\n")
    numbers = tuple(number(special.get(place, symbol)) for place, symbol in enumerate(task.symbols))
    members = [
        evaluation_view(member.model, run, member_experiment.eval_parameters).variables
        for member_experiment, member, run in (loaded, (language_experiment, language, language_state))
    ]
    state = state._replace(variables=join_variables(members), averages={experiment.eval_parameters: {}})
    return experiment, components._replace(model=ShallowFusion.of(model, language.model, numbers, weight)), state


def _special_tokens(components: TrainingComponents) -> tuple[int | None, ...]:
    """Return the pad, begin and end tokens."""
    interface = components.task.interface
    return interface.pad_id, interface.bos_id, interface.eos_id


def _model_interface(components: TrainingComponents) -> tuple[Any, ...]:
    """Return what the models of one ensemble must have in common."""
    interface = components.task.interface
    return interface.signature, dict(interface.vocabularies), _special_tokens(components)


class TrainedModelSize(NamedTuple):
    """The parameters of a run's checkpoint, and the FLOPs of a training step.

    Attributes:
        family_name: The model's family.
        task_name: The name of the task.
        step: The step of the checkpoint.
        num_parameters_by_part: The number of parameters by the first name of their path, such as "encoder".
        num_state_elements: The number of elements of the model's untrained state, such as batch-norm statistics.
        num_active_parameters: The number of parameters that one position uses: fewer than all with a mixture of
            experts.
        flops: The FLOPs of a training step over the largest batch that the config can make; None if they cannot be
            counted (transformer.costs.flops).
    """

    family_name: str
    task_name: str
    step: int
    num_parameters_by_part: Mapping[str, int]
    num_state_elements: int
    num_active_parameters: int
    flops: float | None

    @property
    def num_parameters(self) -> int:
        """The number of all parameters."""
        return sum(self.num_parameters_by_part.values())


def measure_trained_model_size(workdir: str | Path, trusted: Collection[str] = ()) -> TrainedModelSize:
    """Count the parameters of a run's newest checkpoint; neither its arrays nor its data are read.

    Args:
        workdir: The run directory.
        trusted: Dotted paths of code that its config may name.

    Raises:
        UserError: If the directory is not a run or has no checkpoint, or the config names something that is not
            trusted.
    """
    run = open_run(workdir, trusted)
    experiment = run.experiment
    step, leaves = run.read_checkpoint(None, lambda checkpoint: checkpoint.leaves)
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves.items() if path.startswith(PARAMS)}
    components = build_components(experiment, Path(), single_device_placement(), synthetic=True)
    return TrainedModelSize(
        family_name=models.family_name(experiment.model),
        task_name=tasks.task_name(experiment.task),
        step=step,
        num_parameters_by_part=_by_part(sizes),
        num_state_elements=sum(math.prod(leaf.shape) for path, leaf in leaves.items() if path.startswith(STATE)),
        num_active_parameters=count_active_parameters(experiment.model, sizes),
        flops=flops_counter(components)(abstract_batch(components.task)),
    )


def measure_run_cache(
    workdir: str | Path, batch_size: int, length: int, *, trusted: Collection[str] = ()
) -> CacheMemory | None:
    """Count the memory of the cache with which a run decodes; neither its arrays nor its data are read.

    Args:
        workdir: The run directory.
        batch_size: The number of texts that are decoded at once.
        length: The number of positions of each.
        trusted: Dotted paths of code that its config may name.

    Returns:
        The memory; None if the model does not decode.

    Raises:
        UserError: If the directory is not a run, the config names something that is not trusted, or the model has fewer
            positions.
    """
    experiment = open_run(workdir, trusted).experiment
    interface = tasks.build_synthetic_task(experiment.task).interface
    model = models.build(experiment.model, interface, experiment.precision)
    family = models.FAMILIES[models.family_name(experiment.model)]
    inputs = {name: spec for name, spec in interface.inputs.items() if name not in ("tokens", "target", "source")}
    return cache_memory(model, family, batch_size, length, inputs)


def _by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for path, size in sizes.items():
        part = path.removeprefix(PARAMS).split("/")[0]
        parts[part] = parts.get(part, 0) + size
    return parts
