"""Classification: loss and metrics against counts in NumPy, texts as they are fed, labels, answers, refusals."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.models.random_models import fresh_variables
from transformer.attention import Axis, Capture, Site
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.classification_metrics import classification_report, matthews_correlation
from transformer.tasks.labeled_text_task import LabeledTextTask
from transformer.tasks.registry import build_synthetic_task, build_task, task_config
from transformer.tasks.synthetic_data import abstract_batch
from transformer.tasks.task import PredictionRequest, StateView

SMALL = {
    "name": "classification",
    "dataset": "word_order/max_length=5,train=41,validation=9,test=6",
    "vocab_size": 300,
    "bucket_lengths": (8, 16),
    "batch_size": 4,
    "num_probe_examples": 3,
}
SITE = "classifier/attention"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LabeledTextTask:
    return task_of(tmp_path_factory.mktemp("classification"))


def task_of(folder: Path, **values: Any) -> Any:
    return build_task(task_config({**SMALL, **values}), folder)


@pytest.fixture(scope="module")
def view(task: LabeledTextTask) -> StateView:
    config = model_config({"family": "recurrent_classifier", "embedding_width": 4, "encoder": {"width": 3}})
    model = build_model(config, task.interface, Precision())
    return StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=False)


def test_matthews_and_f1_are_those_of_their_counts() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        (true_negative, false_positive), (false_negative, true_positive) = counts = random.integers(1, 40, (2, 2))
        sums = {"loss": 2.0 * counts.sum(), "confusion": counts}
        product = (true_positive + false_positive) * (true_positive + false_negative)
        product *= (true_negative + false_positive) * (true_negative + false_negative)
        found = classification_report(sums).scalars
        expected = (true_positive * true_negative - false_positive * false_negative) / math.sqrt(product)
        assert found["matthews"] == pytest.approx(expected)
        precision = true_positive / (true_positive + false_positive)
        recall = true_positive / (true_positive + false_negative)
        assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
        assert found["accuracy"] == pytest.approx((true_positive + true_negative) / counts.sum())
        assert found["loss"] == pytest.approx(2)


def test_matthews_of_several_classes_is_the_correlation_of_indicators() -> None:
    """Gorodkin's R_K: the covariance of one-hot answers and truths over the root of their own."""
    random = np.random.default_rng(1)
    true_N, answered_N = random.integers(0, 3, (2, 200))
    one_hot = [np.eye(3)[each] - np.eye(3)[each].mean(0) for each in (true_N, answered_N)]
    covariance = [[np.sum(a * b) for a in one_hot] for b in one_hot]
    expected = covariance[0][1] / math.sqrt(covariance[0][0] * covariance[1][1])
    confusion = np.array([[np.sum((true_N == t) & (answered_N == p)) for p in range(3)] for t in range(3)])
    assert matthews_correlation(confusion) == pytest.approx(expected)
    assert "f1" not in classification_report({"loss": 1.0, "confusion": confusion}).scalars


@pytest.mark.parametrize(
    ("confusion", "expected"),
    [
        ([[5, 0], [0, 3]], 1),
        ([[0, 5], [3, 0]], -1),
        ([[4, 0], [6, 0]], 0),
        ([[4, 2], [0, 0]], 0),
        ([[9, 0], [0, 0]], 0),
    ],
)
def test_matthews_at_its_bounds_and_where_a_class_is_missing(confusion: list[list[int]], expected: float) -> None:
    assert matthews_correlation(np.array(confusion, np.float64)) == pytest.approx(expected)
    assert math.isfinite(classification_report({"loss": 0.0, "confusion": np.array(confusion)}).scalars["f1"])


def alone(task: LabeledTextTask, view: StateView, text: str, **options: Any) -> Any:
    """What the model says of one text, whose tokens alone are those of its batch of one."""
    (row,) = task.head.encode_texts([text]).rows
    inputs = {"tokens": np.int32([row]), "lengths": np.int32([len(row)])}
    return programs.apply(view.model, view.variables, inputs, train=False, **options)


@pytest.mark.slow
def test_evaluations_measure_the_whole_split_in_batches_as_one_text_after_another(
    task: LabeledTextTask, view: StateView
) -> None:
    evaluation = task.evaluations[0]
    batches = [evaluation.batches[number] for number in range(len(evaluation.batches))]
    assert sum((batch["index"] < 0).sum() for batch in batches) > 0  # rows that only fill a batch
    step = jax.jit(lambda batch: evaluation.step(view, batch, jax.random.key(0))[0])
    sums = [jax.device_get(step(batch)) for batch in batches]
    found = evaluation.finish(jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *sums), None)
    nats, right, counts = 0.0, 0, np.zeros((2, 2))
    for text, label in task.splits["validation"].examples:
        logits = np.asarray(alone(task, view, text)[0], np.float64)[0]
        nats -= logits[label] - np.log(np.exp(logits).sum())
        right += logits.argmax() == label
        counts[label, logits.argmax()] += 1
    assert counts.sum() == 18
    assert found.scalars["loss"] == pytest.approx(nats / 18, rel=1e-5)
    assert found.scalars["accuracy"] == pytest.approx(right / 18)
    assert found.scalars["matthews"] == pytest.approx(matthews_correlation(counts))
    assert [(each.split, each.at_end) for each in task.evaluations] == [("validation", False), ("test", True)]


def test_a_training_loss_divides_by_the_texts_alone(task: LabeledTextTask, view: StateView) -> None:
    source = task.training_batches(0)
    batch = next(source[step] for step in range(100) if (source[step]["index"] < 0).any())
    (objective,) = task.objectives
    denominators = task.denominators(batch)
    assert float(denominators["examples"]) == np.sum(batch["index"] >= 0)
    loss_of = jax.jit(lambda batch: objective.loss_fn(view, batch, denominators, jax.random.key(0))[0])
    real = {name: values[batch["index"] >= 0] for name, values in batch.items()}
    np.testing.assert_allclose(loss_of(batch), loss_of(real), rtol=1e-6)


def test_texts_stand_between_begin_and_end_and_long_ones_are_cut(tmp_path: Path) -> None:
    task = task_of(tmp_path, tokenizer="bytes", bucket_lengths=(12,), dataset="word_order/train=20,validation=4,test=4")
    tokenizer, train = task.tokenizer, task.splits["train"]
    for (text, _), row in zip(train.examples, train.rows, strict=True):
        assert (row[0], row[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
        assert bytes(row[1:-1]).decode() == text[:10]
    assert train.num_truncated == sum(len(text) > 10 for text, _ in train.examples)
    assert task.interface.vocabularies == {"tokens": 258, "classes": 2}


def test_the_probe_is_labeled_by_tokens_and_true_classes(task: LabeledTextTask, view: StateView) -> None:
    site = Site(SITE, Axis("tokens"), Axis("tokens"), ("0",), ("0",))
    labels = task.axis_labels([site])
    held_out = task.splits["validation"].examples
    shown = [held_out[0], held_out[8], held_out[-1]]
    for (text, label), title, pieces in zip(shown, labels.titles, labels.tokens["tokens"], strict=True):
        assert title == f"{('cat', 'dog')[label]}: {text}"
        assert (pieces[0], pieces[-1]) == ("<begin>", "<end>")
        assert "".join(pieces[1:-1]).replace("▁", " ") == text
    aux = jax.jit(lambda: task.probe(view, Capture((SITE,)), jax.random.key(0)))()
    weights = aux.maps[SITE].weights
    assert weights.shape == (1, 3, 1, 1, task.probe_batch["tokens"].shape[1])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    for of_text, length in zip(weights[0, :, 0, 0], task.probe_batch["lengths"], strict=True):
        assert (of_text[length:] == 0).all()
        assert (of_text[:length] > 0).all()


def test_an_answer_is_the_class_with_its_probability_and_its_map(task: LabeledTextTask, view: StateView) -> None:
    texts = ["dog behind cat", "a cat stands behind the dog"]
    answers = task.predict(view, PredictionRequest(texts))
    for number, text in enumerate(texts):
        (row,) = task.head.encode_texts([text]).rows
        logits, aux = jax.device_get(alone(task, view, text, capture=Capture((SITE,))))
        probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
        name, said = answers.lines[number].split()
        assert name == ("cat", "dog")[probabilities.argmax()]
        assert float(said) == pytest.approx(probabilities.max(), abs=6e-4)
        weights = answers.capture_maps(Capture((SITE,)))[SITE].weights
        np.testing.assert_allclose(weights[0, number, 0, 0, : len(row)], aux.maps[SITE].weights[0, 0, 0, 0], atol=1e-6)
        assert len(answers.labels.tokens["tokens"][number]) == len(row)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (PredictionRequest(["dog"], language="de"), "--target_language=de is for runs that translate"),
        (
            PredictionRequest(["dog"], decoding={"num_beams": 2}),
            "--num_beams is for runs that generate; this one classifies",
        ),
        (
            PredictionRequest(["dog " * 20]),
            "tokens, more than 16, the greatest of config.task.bucket_lengths: shorten it",
        ),
    ],
    ids=["language", "num_beams", "long"],
)
def test_what_cannot_be_answered_is_refused(
    request_: PredictionRequest, says: str, task: LabeledTextTask, view: StateView
) -> None:
    with pytest.raises(UserError) as told:
        task.predict(view, request_)
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"dataset": "glue/SST"}, "config.task.dataset='glue/SST' is unknown: did you mean 'glue/SST-2'"),
        ({"batch_size": 0}, "config.task.batch_size=0 must be at least 1"),
        ({"num_probe_examples": 0}, "config.task.num_probe_examples=0 must be at least 1"),
        ({"bucket_lengths": ()}, "config.task.bucket_lengths=() must name lengths of at least 3 tokens"),
        ({"bucket_lengths": (2, 8)}, "config.task.bucket_lengths=(2, 8) must name lengths"),
        ({"validation_split": ""}, "config.task.validation_split='' must be the name of a split"),
        ({"validation_split": "dev"}, "has no labeled split 'dev'"),
        ({"tokenizer": "existing"}, "config.task.tokenizer=existing, but the run directory holds none"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        task_of(tmp_path, **values)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_rows_that_a_mesh_cannot_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.task.batch_size=4 cannot be cut into 3 equal parts"):
        build_task(task_config(SMALL), tmp_path, 3)


def test_made_up_texts_have_the_real_shapes_at_their_longest(task: LabeledTextTask) -> None:
    told = build_synthetic_task(task_config(SMALL | {"dataset": "glue/SST-2"}))
    assert {name: value.shape for name, value in abstract_batch(told).items()} == {
        "tokens": (4, 16),
        "lengths": (4,),
        "labels": (4,),
        "index": (4,),
    }
    assert (told.training_batches(0)[0]["lengths"] == 16).all()
    assert told.interface.inputs == task.interface.inputs
    assert told.interface.vocabularies == {"tokens": 300, "classes": 2}
