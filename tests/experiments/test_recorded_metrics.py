"""Every metric of a record is one that a run of its command reports today, so that it is compared."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.record_comparison import read_curve
from experiments.records import RecordedRun, list_records, read_record
from launch.command import split_override
from launch.config_files import load_config
from tests.experiments.first_steps import assembled
from tests.experiments.variants import CHECKOUT
from transformer.tasks.task import Evaluation
from transformer.training.build import TrainingComponents, make_jitted_train_step
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.config import apply_overrides, apply_text_overrides
from transformer.training.state import TrainState

DATA = CHECKOUT.parent / "shared" / "data"
RECORDS = {name: read_record(name, page) for name, page in list_records(CHECKOUT).items()}


def command_of(run: RecordedRun) -> tuple[str, ...]:
    """The words that determine a run's metrics: not its seed."""
    return tuple(word for word in run.words if word.startswith("--config") and not word.startswith("--config.seed="))


def metrics_by_command() -> dict[tuple[str, ...], set[str]]:
    """The metrics of the recorded runs of each command."""
    found: dict[tuple[str, ...], set[str]] = {}
    for record in RECORDS.values():
        for run in record.runs:
            if run.command == "train":
                curve = read_curve(run.lines())
                names = {f"{split}/{name}" for (split, _), metrics in curve.items() for name in metrics}
                found.setdefault(command_of(run), set()).update(names)
    return found


RECORDED = metrics_by_command()


def abstract(batch: Any) -> Any:
    return jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(np.shape(array), jax.dtypes.canonicalize_dtype(np.asarray(array).dtype)),
        batch,
    )


def evaluation_metrics(components: TrainingComponents, evaluation: Evaluation, state: TrainState) -> set[str]:
    """The metrics of an evaluation, of made-up results of the right shapes: nothing is compiled."""
    key = jax.eval_shape(lambda: jax.random.key(0))

    @functools.cache
    def results(structure: Any, leaves: tuple[Any, ...]) -> Any:
        def measure(state: TrainState, batch: Any, key: jax.Array) -> Any:
            return evaluation.step(evaluation_view(components.model, state, "raw"), batch, key)

        return jax.eval_shape(measure, state, jax.tree.unflatten(structure, leaves), key)

    found = []
    for number in range(len(evaluation.batches)):
        leaves, structure = jax.tree.flatten(abstract(evaluation.batches[number]))
        found.append(results(structure, tuple(leaves)))
    sums = jax.tree.map(lambda *leaves: np.ones(leaves[0].shape), *[sums for sums, _ in found])
    rows = jax.tree.map(
        lambda *leaves: np.zeros((sum(leaf.shape[0] for leaf in leaves), *leaves[0].shape[1:]), leaves[0].dtype),
        *[rows for _, rows in found],
    )
    return {f"{evaluation.split}/{name}" for name in evaluation.finish(sums, rows).scalars}


@pytest.mark.slow
@pytest.mark.parametrize("command", RECORDED, ids=" ".join)
def test_every_metric_of_a_record_is_reported_by_its_command(command: tuple[str, ...], tmp_path: Path) -> None:
    (file,) = (word.removeprefix("--config=") for word in command if word.startswith("--config="))
    overrides = [split_override(word) for word in command if word.startswith("--config.")]
    values = apply_text_overrides(load_config(str(CHECKOUT / file)).to_dict(), overrides)
    experiment, components, source = assembled(apply_overrides(values, {"initialize_from": {}}), DATA, tmp_path)
    if source != "its data":
        pytest.skip(source)
    state = components.abstract_state
    reported: set[str] = set()
    for evaluation in components.evaluations:
        reported |= evaluation_metrics(components, evaluation, state.without_optimizers())
    step, batch = make_jitted_train_step(experiment, components), components.task.training_batches(1)[0]
    trained = jax.eval_shape(step, state, abstract(batch))[1]
    reported |= {f"train/{name}" for name in trained.values}
    assert RECORDED[command] - reported == set()
