"""Token classification: labels of first tokens, scores of entities by counting, loss in NumPy, answers, refusals."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.tasks.fixed_model import view_with
from transformer.config import UserError
from transformer.tasks.labeled_text_task import LabeledTextTask
from transformer.tasks.registry import build_task, task_config
from transformer.tasks.task import PredictionRequest
from transformer.tasks.token_classification import bracket_labels, word_label_scores

SMALL = {
    "name": "token_classification",
    "dataset": "grammar/entities/train=12,validation=6,test=4",
    "vocab_size": 300,
    "bucket_lengths": (16, 64),
    "batch_size": 4,
    "num_probe_examples": 2,
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LabeledTextTask:
    return task_of(tmp_path_factory.mktemp("token_classification"))


@pytest.fixture(scope="module")
def task_of_xlnet(tmp_path_factory: pytest.TempPathFactory) -> LabeledTextTask:
    return task_of(tmp_path_factory.mktemp("token_classification_of_xlnet"), sequence_format="xlnet")


def task_of(folder: Path, **values: Any) -> Any:
    return build_task(task_config({**SMALL, **values}), folder)


@pytest.mark.parametrize(("name", "num_end_tokens"), [("task", 1), ("task_of_xlnet", 2)])
def test_the_first_token_of_a_word_has_its_label(
    name: str, num_end_tokens: int, request: pytest.FixtureRequest
) -> None:
    task = request.getfixturevalue(name)
    batch = task.head.batches("train", 0)[0]
    for row in np.flatnonzero(batch["index"] >= 0):
        text = task.splits["train"].examples[batch["index"][row]].text
        places = np.flatnonzero(batch["counts"][row])
        assert batch["labels"][row, places].tolist() == list(text.label)
        # Decoded from one place to the next, the tokens are the words.
        ends = [*places[1:], batch["lengths"][row] - num_end_tokens]
        pieces = [task.tokenizer.decode(batch["tokens"][row, a:b]) for a, b in zip(places, ends, strict=True)]
        assert [piece.strip() for piece in pieces] == list(text.words)


def test_a_word_with_a_no_break_space_has_one_label(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("New\u00a0York B-LOC\nsleeps O\n\n" * 2)
    (tmp_path / "run").mkdir()
    files = {"dataset": "train.conll", "validation_files": "train.conll", "test_files": "train.conll"}
    task = task_of(tmp_path / "run", **files, data_dir=str(tmp_path), classes=("O", "B-LOC"))
    batch = task.head.batches("validation", None)[0]
    assert batch["counts"][0].sum() == 2
    assert batch["labels"][0][batch["counts"][0]].tolist() == [1, 0]
    assert task.axis_labels([]).titles[0] == "[LOC New\u00a0York] sleeps"


def test_xlnet_tells_the_begin_token_apart_at_the_end(task_of_xlnet: LabeledTextTask) -> None:
    batch = task_of_xlnet.head.batches("train", 0)[0]
    real = np.flatnonzero(batch["index"] >= 0)
    assert len(real)
    for tokens, types, length in zip(*(batch[name][real] for name in ("tokens", "types", "lengths")), strict=True):
        assert tokens[length - 1] == task_of_xlnet.tokenizer.bos_id
        assert np.flatnonzero(types).tolist() == [length - 1]
        assert types[length - 1] == 2


def test_loss_and_accuracy_are_those_of_labeled_tokens(task: LabeledTextTask) -> None:
    batch = task.head.batches("train", 0)[1]
    logits_BxTxC = np.random.default_rng(0).normal(size=(*batch["tokens"].shape, 5)).astype(np.float32)

    def loss_and_accuracy(logits: Any, batch: Any) -> Any:
        loss, aux = task.head.loss(view_with(lambda _: logits), batch, task.denominators(batch), None)
        return loss, aux.metrics["accuracy"]

    loss, accuracy = jax.jit(loss_and_accuracy)(logits_BxTxC, batch)
    shares = np.exp(logits_BxTxC) / np.exp(logits_BxTxC).sum(axis=-1, keepdims=True)
    rows, places = np.nonzero(batch["counts"])
    labels = batch["labels"][rows, places]
    np.testing.assert_allclose(loss, -np.log(shares[rows, places, labels]).mean(), rtol=1e-6)
    np.testing.assert_allclose(accuracy, np.mean(logits_BxTxC[rows, places].argmax(axis=-1) == labels), rtol=1e-6)


def test_a_model_that_knows_every_label_has_all_entities(task: LabeledTextTask) -> None:
    (evaluation,) = (each for each in task.evaluations if each.split == "validation")
    sums: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    step = jax.jit(lambda logits, batch: evaluation.step(view_with(lambda _: logits), batch, None))
    for batch in evaluation.batches:
        of_batch, rows = step(20.0 * np.eye(5)[batch["labels"]], batch)
        sums = {name: sums.get(name, 0) + np.asarray(value) for name, value in of_batch.items()}
        found.append(rows)
    rows = {name: np.concatenate([np.asarray(each[name]) for each in found]) for name in found[0]}
    report = evaluation.finish(sums, rows)
    assert report.note == "6 texts"
    assert {name: round(value, 6) for name, value in report.scalars.items()} == {
        "loss": 0.0,
        "accuracy": 1.0,
        "precision": 1.0,
        "recall": 1.0,
        "f1": 1.0,
    }


def test_scores_count_whole_entities() -> None:
    true = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X"]]
    found = [["B-X", "I-X", "O", "B-X"], ["B-X", "B-X"]]
    # Of four entities found two are right; the three true ones have these two.
    scores = word_label_scores(true, found, entities=True)
    assert scores == pytest.approx({"accuracy": 4 / 6, "precision": 0.5, "recall": 2 / 3, "f1": 4 / 7})
    assert word_label_scores(true, found, entities=False) == pytest.approx({"accuracy": 4 / 6})
    assert word_label_scores([["O"]], [["O"]], entities=True)["f1"] == 0


def test_words_without_a_token_are_no_entities(task: LabeledTextTask, tmp_path: Path) -> None:
    short = task_of(tmp_path, bucket_lengths=(8,))
    assert "cut to 8 tokens" in short.data_summary[1]
    words = short.splits["train"].examples[0]
    assert len(words.row) == 8
    assert short.head.word_labels(words, np.full(8, 1))[-1] == "O"


def test_labels_are_written_in_brackets() -> None:
    words = ["ann", "lee", "left", "paris"]
    assert bracket_labels(words, ["B-PER", "I-PER", "O", "B-LOC"]) == "[PER ann lee] left [LOC paris]"
    assert bracket_labels(words, ["NN", "NN", "VB", "NN"]) == "ann/NN lee/NN left/VB paris/NN"


def test_a_text_is_answered_with_its_entities(task: LabeledTextTask) -> None:
    classes = task.head.class_names
    person = view_with(lambda inputs: np.tile(np.eye(5)[classes.index("B-PER")], (*inputs["tokens"].shape, 1)))
    answered = task.predict(person, PredictionRequest(["paris sings"]))
    assert answered.lines == ["[PER paris] [PER sings]"]
    assert answered.labels.titles == ("[PER paris] [PER sings]",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequence_format": "gpt"}, "sequence_format=gpt is for classes of texts: say plain for a decoder, bert"),
        ({"dataset": "glue/CoLA"}, "'glue/CoLA' is unknown: known: FILE.conll, grammar/entities"),
        ({"classes": ("O", "B-X")}, "goes with files of your own alone"),
        ({"dataset": "a.conll", "classes": ("O", "O")}, "must be the labels of a.conll, at least two, all different"),
    ],
)
def test_configs_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_config({**SMALL, **values})
