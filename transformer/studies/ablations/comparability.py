"""Check that the arms of an ablation are comparable, as they see the same batches; compare their initial parameters."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.config import NonNegativeInt, UserError, config_differences
from transformer.models import registry as models
from transformer.models.model import count_parameters, leaves_by_path
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.run_plan import PlannedRun, equal_as_json
from transformer.tasks import registry as tasks
from transformer.tasks.task import Task
from transformer.training.build import jit_for_one_call
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.init_from import copy_source_tokenizer, load_variables_from_source
from transformer.training.partitioning import single_device_placement
from transformer.training.state import derive_key

COMPARED_BATCHES = 4  # batches of each source, from its beginning


class ArrayDigest(NamedTuple):
    """The shape, dtype and hash of an array."""

    shape: tuple[int, ...]
    dtype: str
    content: str


BatchDigests = Mapping[str, ArrayDigest | int]
"""Digests of the arrays of batches, and numbers of batches, by the training step or the evaluation that reads them."""


@dataclasses.dataclass(frozen=True)
class SharedParameters:
    """How many arrays of initial parameters of an arm equal the reference's.

    Attributes:
        num_equal_arrays: The number of arrays that are bit-identical to the reference's.
        num_arrays: The number of arrays.
        differing_paths: Paths of arrays with the same shape and other values.
        unmatched_paths: Paths of arrays without a counterpart of their shape.
    """

    num_equal_arrays: NonNegativeInt
    num_arrays: NonNegativeInt
    differing_paths: tuple[str, ...]
    unmatched_paths: tuple[str, ...]


def check_shared_data(planned: Sequence[PlannedRun], folder: Path, data_dir: str | None = None) -> dict[str, Task]:
    """Check that all arms see the same data.

    For the first seed of every task the first training batches, and the first batches of every evaluation and their
    number, must be equal bit for bit. The batches are a pure function of the task's config, the tokenizer that
    the arm takes from another run and the seed, so that runs in which these are equal are not compared.

    Args:
        planned: The planned runs.
        folder: Where tasks are built.
        data_dir: The directory of the data; by default the config's.

    Returns:
        The task of the first planned run of each arm.

    Raises:
        UserError: If two arms get different data, naming the keys in which they differ, or data are missing.
    """
    task_by_arm: dict[str, Task] = {}
    reference: dict[str, tuple[PlannedRun, BatchDigests]] = {}
    built: list[tuple[Mapping[str, Any], Task, BatchDigests]] = []
    for run in planned:
        if run.seed != planned[0].seed:
            continue
        config = _data_config(run.trial.config)
        task_and_digests = next(
            ((task, sums) for built_config, task, sums in built if equal_as_json(built_config, config)), None
        )
        if task_and_digests is None:
            task = _build_task(run.trial.config, folder / str(len(built)), data_dir)
            task_and_digests = task, _batch_digests(task, run.seed)
            built.append((config, *task_and_digests))
        task_by_arm.setdefault(run.arm_name, task_and_digests[0])
        first_run, expected = reference.setdefault(run.task_name, (run, task_and_digests[1]))
        _check_equal(first_run, expected, run, task_and_digests[1])
    return task_by_arm


def check_metric_splits(spec: Ablation, task: Task) -> None:
    """Check that every metric of the study is of a split that is evaluated.

    Args:
        spec: The ablation.
        task: The task of the reference arm.

    Raises:
        UserError: If a metric's split is never evaluated.
    """
    splits = sorted({"train", *(evaluation.split for evaluation in task.evaluations)})
    for metric in spec.metrics:
        split = metric.partition("/")[0]
        if split not in splits:
            raise UserError(f"ablation: metric {metric!r} is of a split that no run reports; say {' or '.join(splits)}")


def compare_initial_parameters(
    planned: Sequence[PlannedRun], reference: str, task_by_arm: Mapping[str, Task]
) -> dict[str, tuple[int, SharedParameters]]:
    """Compare the initial parameters of every arm with the reference's, for the first seed.

    Args:
        planned: The planned runs.
        reference: The reference arm.
        task_by_arm: The task of each arm.

    Returns:
        For each arm the number of parameters, and what it shares with the reference.
    """
    run_by_arm = {run.arm_name: run for run in reversed(planned)}
    sums: dict[str, dict[str, ArrayDigest]] = {}
    counts: dict[str, int] = {}
    for arm, task in task_by_arm.items():
        experiment = resolve_config(run_by_arm[arm].trial.config)
        params = compute_initial_parameters(experiment, task)
        counts[arm] = count_parameters(params)
        sums[arm] = {path: _array_digest(leaf) for path, leaf in leaves_by_path(params).items()}
    return {arm: (counts[arm], _compare_digests(sums[arm], sums[reference])) for arm in task_by_arm}


def compute_initial_parameters(experiment: ExperimentConfig, task: Task) -> Any:
    """Compute the parameters with which a run of the experiment starts, including those taken from another run.

    Args:
        experiment: The resolved config.
        task: Its task, which defines the model's inputs and vocabularies.

    Returns:
        The tree of parameters, without the optimizer's state.
    """
    model = models.build(experiment.model, task.interface, experiment.precision)
    key = jax.random.key(experiment.run.seed)
    make = jit_for_one_call(lambda key: model.init(derive_key(key, 0, "init")), single_device_placement())
    if not experiment.initialize_from.run:
        return make(key).params
    variables, _ = load_variables_from_source(
        experiment.initialize_from,
        model,
        model.shapes(),
        lambda: make(key),
        class_names=task.interface.class_names,
    )
    return variables.params


def _build_task(config: Mapping[str, Any], folder: Path, data_dir: str | None) -> Task:
    section = config["task"] if data_dir is None else {**config["task"], "data_dir": data_dir}
    folder.mkdir(parents=True, exist_ok=True)
    experiment = resolve_config({**config, "task": section})
    copy_source_tokenizer(experiment.initialize_from, folder)
    # Rows are not padded for a mesh or for accumulation: what is learned does not depend on how a batch is divided.
    return tasks.build_task(experiment.task, folder, 1)


def _data_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that determines the batches: the task, and the run whose tokenizer is taken."""
    initialization = resolve_config(config).initialize_from
    return {"task": config["task"]} | (
        {"initialize_from": {"run": initialization.run}} if initialization.copy_tokenizer else {}
    )


def _batch_digests(task: Task, seed: int) -> BatchDigests:
    digests: dict[str, ArrayDigest | int] = {}
    source = task.training_batches(seed)
    for number in range(COMPARED_BATCHES):
        digests |= _digests(f"training batch {number}", source[number])
    for evaluation in task.evaluations:
        what = f"evaluation {evaluation.name!r} of {evaluation.split}"
        digests[f"{what}: number of batches"] = len(evaluation.batches)
        for number in range(min(COMPARED_BATCHES, len(evaluation.batches))):
            digests |= _digests(f"{what}, batch {number}", evaluation.batches[number])
    return digests


def _digests(what: str, batch: Mapping[str, Any]) -> dict[str, ArrayDigest]:
    return {f"{what}: {name}": _array_digest(array) for name, array in batch.items()}


def _array_digest(leaf: Any) -> ArrayDigest:
    array = np.ascontiguousarray(leaf)
    return ArrayDigest(array.shape, str(array.dtype), hashlib.sha256(array).hexdigest())


def _check_equal(first: PlannedRun, expected: BatchDigests, second: PlannedRun, digests: BatchDigests) -> None:
    place = next((name for name in (*expected, *digests) if expected.get(name) != digests.get(name)), None)
    if place is None:
        return
    # Values of one arm can differ too, where what is tuned touches the data.
    who = [
        repr(run.arm_name) if first.arm_name != second.arm_name else f"({run.description})" for run in (first, second)
    ]
    keys = "; ".join(_differing_keys(*(_data_config(run.trial.config) for run in (first, second))))
    raise UserError(
        f"arms whose data differ: {who[0]} and {who[1]} get another {place.partition(':')[0]} ({keys}): arms are "
        "compared on the same data; let these keys agree, or make each a task of ablation.tasks"
    )


def _differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    for key, (ours, theirs) in config_differences(first, second).items():
        yield f"config.{key}={ours!r} against {theirs!r}"


def _compare_digests(own: Mapping[str, ArrayDigest], reference: Mapping[str, ArrayDigest]) -> SharedParameters:
    unmatched = tuple(path for path in own if path not in reference or own[path][:2] != reference[path][:2])
    differing = tuple(path for path in own if path not in unmatched and own[path] != reference[path])
    return SharedParameters(len(own) - len(differing) - len(unmatched), len(own), differing, unmatched)
