"""The task of bits: its batches, its loss and metrics against NumPy, its labels, and copies of texts."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.neural_turing_machine.task import Algorithms, parse_bits, size_report
from tests import programs
from tests.models.random_models import fresh_variables
from transformer.attention import Capture
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.registry import build_synthetic_task, build_task, task_config
from transformer.tasks.task import PredictionRequest, StateView

SMALL = {
    "num_bits": 3,
    "batch_size": 4,
    "max_size": 6,
    "bucket_lengths": (5, 9),
    "eval_sizes": (4, 8),
    "num_eval_examples": 6,
    "num_probe_examples": 3,
}


def task_of(**values: Any) -> Any:
    return build_task(task_config({"name": "experiments.neural_turing_machine.task", **SMALL, **values}), Path())


def view_of(task: Algorithms) -> StateView:
    config = model_config(
        {"family": "experiments.neural_turing_machine.ntm", "width": 6, "num_slots": 8, "slot_width": 4}
    )
    model = build_model(config, task.interface, Precision())
    return StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=False)


def test_a_batch_is_of_one_size_and_padded_to_the_first_length_that_holds_it() -> None:
    source = task_of().training_batches(3)
    batches = [source[step] for step in range(40)]
    lengths = [set(batch["lengths"]) for batch in batches]
    assert all(len(of_batch) == 1 for of_batch in lengths)
    sizes = {(int(next(iter(one))), len(batch["answer_mask"][0])) for one, batch in zip(lengths, batches, strict=True)}
    assert sizes == {(3, 5), (5, 5), (7, 9), (9, 9), (11, 13), (13, 13)}
    for batch in batches:
        assert not batch["answer_mask"][:, batch["lengths"][0] :].any()
        assert batch["vectors"].dtype == np.float32
    np.testing.assert_array_equal(batches[7]["vectors"], task_of().training_batches(3)[7]["vectors"])
    max_size = build_synthetic_task(
        task_config({"name": "experiments.neural_turing_machine.task", **SMALL})
    ).training_batches(0)
    assert {max_size[step]["vectors"].shape for step in range(5)} == {(4, 13, 4)}
    # A length beyond the longest sequence is what the model is told of.
    wide = task_of(bucket_lengths=(16,))
    assert wide.interface.inputs["vectors"].shape == wide.training_batches(3)[0]["vectors"].shape == (4, 16, 4)


def test_validation_test_and_probe_are_drawn_apart_and_the_probe_has_several_sizes() -> None:
    task = task_of()
    drawn = {(each.split, each.name): each.batches[0]["vectors"] for each in task.evaluations}
    assert [len(x[0]) for x in drawn.values()] == [9, 17, 9, 17]
    assert (drawn["validation", "size_4"] != drawn["test", "size_4"]).any()
    assert task.probe_batch["lengths"].tolist() == [13, 9, 3]
    labels = task.axis_labels(())
    assert [len(names) for names in labels.tokens["steps"]] == [13, 9, 3]


def test_the_loss_and_metrics_are_those_of_the_bits_that_are_asked_for() -> None:
    task = task_of()
    view, batch = view_of(task), task.training_batches(0)[2]
    denominators = task.denominators(batch)
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, denominators, jax.random.key(0)))()
    logits = np.float64(programs.apply(view.model, view.variables, batch, train=False)[0])
    nats, wrong, exact = 0.0, 0, 0
    for row, (mask, targets) in enumerate(zip(batch["answer_mask"], batch["targets"], strict=True)):
        faults = 0
        for step in np.flatnonzero(mask):
            for logit, bit in zip(logits[row, step], targets[step], strict=True):
                one = 1 / (1 + np.exp(-logit))
                nats -= np.log(one if bit else 1 - one)
                faults += (one > 0.5) != bit
        wrong, exact = wrong + faults, exact + (faults == 0)
    bits = batch["answer_mask"].sum() * 3
    assert {name: float(value) for name, value in denominators.items()} == {"bits": bits, "examples": 4}
    expected = {
        "loss": nats / bits,
        "bit_error_rate": wrong / bits,
        "bits_per_sequence": nats / np.log(2) / 4,
        "exact_match": exact / 4,
    }
    assert {name: float(value) for name, value in aux.metrics.items()} == pytest.approx(expected, rel=1e-5)
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-5)


def test_a_report_divides_by_bits_or_by_sequences() -> None:
    by_hand = {"loss": 6.0, "bit_error_rate": 3.0, "bits_per_sequence": 8.0, "exact_match": 1.0, "bits": 12.0}
    assert size_report(7, by_hand | {"optimal_bits_per_sequence": 4.0, "examples": 2.0}, None).scalars == {
        "loss/7": 0.5,
        "bit_error_rate/7": 0.25,
        "bits_per_sequence/7": 4,
        "optimal_bits_per_sequence/7": 2,
        "exact_match/7": 0.5,
        "optimality_gap/7": 1,
    }
    assert "optimality_gap/7" not in size_report(7, {"bits": 2.0, "examples": 1.0, "loss": 1.0}, None).scalars


@pytest.mark.slow
def test_n_grams_are_measured_above_the_optimum() -> None:
    task = task_of(problem="n_grams", num_bits=None, context_length=2, min_size=9, max_size=9, eval_sizes=(9, 20))
    evaluation = task.evaluations[1]
    view = view_of(task)
    sums, _ = jax.jit(lambda batch: evaluation.step(view, batch, jax.random.key(0)))(evaluation.batches[0])
    said = evaluation.finish({name: np.float64(value) for name, value in sums.items()}, None).scalars
    optimal = float(evaluation.batches[0]["optimal_nats"].sum() / np.log(2) / 6)
    assert said["optimal_bits_per_sequence/20"] == pytest.approx(optimal, rel=1e-6)
    assert said["optimality_gap/20"] == pytest.approx(said["bits_per_sequence/20"] / optimal - 1, rel=1e-6)


def test_a_text_of_bits_is_answered_by_as_many_words_with_maps_of_its_steps() -> None:
    task = task_of()
    view = view_of(task)
    answers = task.predict(view, PredictionRequest(["101 001", "110"], decoding={}))
    assert [len(line.split()) for line in answers.lines] == [2, 1]
    assert set("".join(answers.lines)) <= {"0", "1", " "}
    weights = answers.capture_maps(Capture(("memory/read",)))["memory/read"].weights
    assert weights.shape == (1, 2, 1, 5, 8)
    assert answers.labels.tokens["steps"][1] == ("110", "delimiter", "say 110")
    np.testing.assert_allclose(weights[0, 1, 0, :3].sum(-1), 1, atol=1e-5)


def test_what_cannot_be_copied_is_refused() -> None:
    task = task_of()
    for text in ("", "10", "102", "101 1"):
        with pytest.raises(UserError, match=r"cannot be copied: give words of 3 bits, such as '100 001'"):
            parse_bits(text, 3)
    with pytest.raises(UserError, match="problem=priority_sort does not answer texts: only copy does"):
        task_of(problem="priority_sort").predict(view_of(task), PredictionRequest(["101"], decoding={}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_size": 0}, r"min_size=0 and max_size=6 must rise, from at least 1"),
        ({"problem": "associative_recall"}, r"min_size=1 and max_size=6 must rise, from at least 2"),
        ({"eval_sizes": (4, 4)}, r"eval_sizes=\(4, 4\) must be different sizes of at least 1"),
        ({"num_probe_examples": 0}, r"num_probe_examples=0 must be at least 1"),
        ({"max_repeats": 3}, r"max_repeats=3 is nothing that problem=copy has"),
    ],
)
def test_impossible_sizes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_of(**values)
