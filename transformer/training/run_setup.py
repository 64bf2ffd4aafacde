"""Set a run up: lock its directory, build and check its components, compile, and print its summary."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer.config import UserError
from transformer.data.batches import BatchSource
from transformer.maps.store import MapStore
from transformer.models.model import count_parameters, leaves_by_path
from transformer.runs.checkpoint import UNKNOWN_STEP, Checkpoints, last_saved_step, last_saved_step_file
from transformer.runs.distributed import claim_run_directory, is_primary, run_on_primary, run_on_primary_first
from transformer.runs.jsonl_reading import last_step, read_records
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import storage_of
from transformer.tasks import registry as tasks
from transformer.training.background_compile import Program, distinct_batch_shapes
from transformer.training.build import TrainingComponents, build_components, run_startup_checks
from transformer.training.checkpoint_metadata import collect_metadata
from transformer.training.compiled_evaluation import CompiledEvaluation
from transformer.training.compiled_probe import Probe, compile_probe
from transformer.training.config import ExperimentConfig, changeable_keys
from transformer.training.export_check import find_export_type
from transformer.training.init_from import check_lora_scale, copy_source_tokenizer, plan_initialization
from transformer.training.optimizer import describe_trainable
from transformer.training.startup_checks import describe_skipped_evaluations
from transformer.training.step import TrainStep

_logger = logging.getLogger(__name__)


class TrainingRun(NamedTuple):
    """A run that this process trains.

    Attributes:
        experiment: Its checked config.
        directory: Its locked directory.
        checkpoints: Its checkpoints.
        checkpoint_metadata: The metadata that is saved with every checkpoint
            (transformer.training.checkpoint_metadata).
    """

    experiment: ExperimentConfig
    directory: RunDirectory
    checkpoints: Checkpoints
    checkpoint_metadata: Mapping[str, Any]  # saved with every checkpoint (transformer.training.checkpoint_metadata)

    @property
    def latest(self) -> int | None:
        """The step of the latest checkpoint, or None.

        Raises:
            UserError: If it is beyond the last step of the config.
        """
        latest, steps = self.checkpoints.latest(), self.experiment.run.steps
        if latest is not None and latest > steps:
            raise UserError(
                f"config.steps={steps} is less than the step of the latest checkpoint, {latest}: set at least "
                f"{latest}, or "
                "choose another --workdir"
            )
        return latest


@contextlib.contextmanager
def set_up_runs(
    experiments: Sequence[ExperimentConfig],
    workdirs: Sequence[Path | RunDirectory],
    *,
    min_checkpoints: int = 1,
    check: Callable[[TrainingComponents], None] = lambda components: None,
) -> Iterator[tuple[TrainingComponents, list[TrainingRun]]]:
    """Lock the directories of runs, and build their components.

    A run that is refused before training leaves no files in a directory that was empty.

    Args:
        experiments: The checked config of each run.
        workdirs: The directory of each run: its path, or the directory that this process has locked.
        min_checkpoints: The least number of checkpoints that each run keeps.
        check: A function that may refuse the components.

    Yields:
        The components of the first experiment, which serve all, and the runs.

    Raises:
        UserError: If the user can correct what is wrong; raised before anything is compiled.
        RunFailed: At the end, if the last checkpoint could not be verified.
    """
    with contextlib.ExitStack() as stack:
        directories: list[RunDirectory] = []
        try:
            for experiment, workdir in zip(experiments, workdirs, strict=True):
                claim = claim_run_directory(workdir, experiment.to_config(), may_change=changeable_keys(experiment))
                directories.append(stack.enter_context(claim))
            components = _build_checked_components(experiments, directories, check)
        except UserError:
            for directory in directories:
                if directory.is_new and is_primary():
                    directory.abandon()
            raise
        runs = []
        for experiment, directory in zip(experiments, directories, strict=True):
            if is_primary():
                stack.enter_context(directory.log_to_file())
            run_on_primary(functools.partial(refuse_missing_checkpoints, directory))
            config = experiment.run
            # Of a branch the first checkpoint stays, since its config alone does not make that state again.
            origin_steps = run_on_primary(functools.partial(_origin_steps, directory))
            checkpoints = stack.enter_context(
                Checkpoints(
                    directory.checkpoints_dir,
                    max(config.keep_checkpoints, min_checkpoints),
                    config.permanent_checkpoint_every,
                    origin_steps,
                )
            )
            runs.append(
                TrainingRun(experiment, directory, checkpoints, collect_metadata(experiment, components, directory))
            )
        yield components, runs


def _origin_steps(directory: RunDirectory) -> list[int]:
    """Return the step at which a run was branched off another one; none if it was not."""
    origin = directory.branch_origin()
    return [] if origin is None else [origin.step]


def check_run(experiment: ExperimentConfig, workdir: Path, memory_bytes: float | None = None) -> TrainingComponents:
    """Check all that can be wrong with a run before its first step, and leave its directory as it was.

    The config, the data, the sizes of mesh, batch and state, parameters from elsewhere, and that the directory can be
    written, or holds this very run. Only the training step is not compiled.

    Args:
        experiment: The checked config.
        workdir: The directory of the run, new or not.
        memory_bytes: The memory of a device; by default that of this machine's devices.

    Returns:
        The components of the run.

    Raises:
        UserError: If the user can correct what is wrong.
    """
    config, may_change = experiment.to_config(), changeable_keys(experiment)
    directory = RunDirectory(workdir)
    if directory.is_run():
        directory.check_claim(config, may_change)
        refuse_missing_checkpoints(directory)
        return _build_checked_components([experiment], [directory], memory_bytes=memory_bytes)
    existed = workdir.exists()
    with RunDirectory.claim(workdir, config, may_change=may_change) as directory:
        try:
            return _build_checked_components([experiment], [directory], memory_bytes=memory_bytes)
        finally:
            directory.abandon()
            if not existed:
                storage_of(workdir).remove_tree(workdir)


def _build_checked_components(
    experiments: Sequence[ExperimentConfig],
    directories: Sequence[RunDirectory],
    check: Callable[[TrainingComponents], None] = lambda components: None,
    memory_bytes: float | None = None,
) -> TrainingComponents:
    # The first process prepares a tokenizer or a data set, which the others read.
    components = run_on_primary_first(lambda: _assemble_runs(experiments, directories))
    check(components)
    run_startup_checks(experiments[0], components, memory_bytes)
    for experiment, directory in zip(experiments, directories, strict=True):
        if directory.is_new and experiment.initialize_from.run:
            initialization = plan_initialization(
                experiment.initialize_from,
                components.model,
                components.abstract_state.variables,
                directory.path,
                components.class_names,
            )
            check_lora_scale(initialization, getattr(experiment.model, "lora", None))
    return components


def _assemble_runs(experiments: Sequence[ExperimentConfig], directories: Sequence[RunDirectory]) -> TrainingComponents:
    """Build the components of all runs; the task writes its files into each directory."""
    for experiment, directory in zip(experiments, directories, strict=True):
        copy_source_tokenizer(experiment.initialize_from, directory.path)
    components = build_components(experiments[0], directories[0].path)
    for experiment, directory in zip(experiments[1:], directories[1:], strict=True):
        tasks.build_task(experiment.task, directory.path, experiment.run.num_microbatches)
    return components


def refuse_missing_checkpoints(directory: RunDirectory) -> None:
    """Refuse to restart a run from step 0 whose checkpoints are missing.

    A run that was killed before its first save has an empty folder of checkpoints and no record of a save.

    Args:
        directory: The run directory.

    Raises:
        UserError: If the run has trained or was converted, and has no checkpoint.
    """
    path = directory.checkpoints_dir
    if directory.is_new or directory.saved_steps():
        return
    last_saved = last_saved_step(path)
    evidence = None
    if last_saved == UNKNOWN_STEP:
        evidence = f"it has saved one, by {last_saved_step_file(path)}, which is damaged"
    elif last_saved is not None:
        evidence = f"it has saved the checkpoint of step {last_saved}"
    elif "converted" in directory.facts():
        evidence = "it was converted, and its parameters were in its checkpoint"
    elif isinstance(path, Path) and not path.is_dir() and (reached := last_step(read_records(directory.metrics_file))):
        evidence = f"its metrics reach step {reached}"
    if evidence is not None:
        raise UserError(
            f"--workdir={directory.path} has lost its checkpoints: {evidence}, but {path} is empty; restore them, "
            "or choose another --workdir to start again; nothing was overwritten"
        )


def print_run_summary(components: TrainingComponents, run: TrainingRun, latest: int | None, complete: bool) -> None:
    """Print the size of a run, its devices, where it continues, its precision, its data, and the skipped evaluations.

    Args:
        components: The components.
        run: The run.
        latest: The step of the latest checkpoint, or None.
        complete: Whether nothing is left to train.
    """
    experiment, task = run.experiment, components.task
    params = components.abstract_state.variables.params
    parameters = count_parameters(params)
    run.directory.record(parameters=parameters)
    for line in task.data_summary:
        _logger.info("%s", line)

    steps = experiment.run.steps
    if latest is None:
        progress = f"training to step {steps}"
    elif complete:
        progress = f"complete at step {latest}: nothing to train"
    elif latest == steps:
        progress = f"trained to step {steps}: writing what its end lacks"
    else:
        progress = f"resuming from step {latest} to step {steps}"
    mesh = components.placement.mesh
    devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}"
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    leaves = leaves_by_path(params)
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    stored = " and ".join(sorted({str(leaf.dtype) for leaf in leaves.values()}))
    lines = [
        f"{experiment.run.name}: {parameters:,} parameters on {devices}{processes}, {progress}; run directory "
        f"{run.directory.path}",
        f"precision: {stored} parameters, {experiment.precision.compute} computation, "
        f"{experiment.precision.logits_dtype} logits",
        *task.data_summary,
    ]
    for objective in task.objectives:
        lines += describe_trainable(components.optimizers[objective.name], objective, shapes)
    if latest is None:
        with contextlib.suppress(UserError):  # nobody has asked for an export
            lines.append(f"exports as {find_export_type(experiment, task)} of Hugging Face")
    lines += _warmup_notes(experiment, components)
    lines += describe_skipped_evaluations(components.model, task.evaluations)
    if not complete:
        # Compilation is the longest wait of a run, so announce it.
        lines.append("compiling the train step; metrics follow after compilation")
    print("\n".join(lines), flush=True)


def _warmup_notes(experiment: ExperimentConfig, components: TrainingComponents) -> list[str]:
    """Warn of a learning-rate warmup that is longer than the run."""
    steps, names = experiment.run.steps, [objective.name for objective in components.task.objectives]
    keys = {f"optimizers.{name}" if name in experiment.optimizers else "optimizer": name for name in names}
    warmups = {key: experiment.optimizer_of(name).warmup_steps for key, name in keys.items()}
    return [
        f"warning: config.{key}.warmup_steps={warmup} is beyond config.steps={steps}: the learning rate never "
        "reaches its peak"
        for key, warmup in warmups.items()
        if warmup > steps
    ]


def programs_to_compile(
    experiment: ExperimentConfig,
    components: TrainingComponents,
    step: TrainStep,
    evaluations: Sequence[CompiledEvaluation],
    start: int,
    source: BatchSource,
) -> Iterator[Program]:
    """Yield the programs of a run: the step for each batch shape after `start`, and each evaluation.

    Args:
        experiment: The checked config.
        components: The components.
        step: The jitted train step.
        evaluations: The evaluations.
        start: The step that the run starts from.
        source: Training batches for this call alone: a source caches the plan of its epoch, which two threads must not
            share.
    """
    batches = distinct_batch_shapes(source, start, experiment.run.steps, components.placement)
    yield from (Program(step, (components.abstract_state, batch, False)) for batch in batches)
    for evaluation in evaluations:
        yield from evaluation.programs(components.abstract_state)


def compile_run_probe(components: TrainingComponents, run: TrainingRun) -> Probe:
    """Compile the probe of a run.

    A resumed run keeps the resolutions of its map store, even if `maps_every` or `steps` have changed.
    """
    return compile_probe(
        components.model,
        components.task,
        components.abstract_state,
        components.placement,
        config=run.experiment.maps,
        times=run.experiment.run.num_probe_steps,
        parameters=run.experiment.eval_parameters,
        resolutions=MapStore.resolutions_at(run.directory.maps_dir),
    )
