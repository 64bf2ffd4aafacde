"""Image classification: loss and metrics against NumPy, labels, answers from files, refusals."""

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.models.random_models import fresh_variables
from transformer.attention import Capture
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.image_classification import ImageClassification
from transformer.tasks.registry import build_synthetic_task, build_task, task_config
from transformer.tasks.task import PredictionRequest, StateView

SMALL = {
    "name": "image_classification",
    "dataset": "digits/size=8,train=20,validation=10,test=10",
    "batch_size": 4,
    "num_probe_examples": 3,
}
VIT = {"family": "vit", "patch_size": 4, "layers": 1, "width": 8, "heads": 2, "feed_forward": 8}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task says in its directory, which is the working one of these tests, what its images are."""
    monkeypatch.chdir(tmp_path)


def task_of(**values: Any) -> ImageClassification:
    return build_task(task_config({**SMALL, **values}), Path())


def view_of(task: ImageClassification, *, train: bool = False) -> StateView:
    model = build_model(model_config(VIT), task.interface, Precision())
    return StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=train)


def test_loss_is_that_of_both_classes_by_their_shares_and_smoothed() -> None:
    task = task_of(augmentation={"mixup": 0.5}, label_smoothing=0.1)
    view, batch = view_of(task), dict(task.training_batches(0)[0])
    batch["index"] = np.array([0, 1, -1, 2])
    logits, _ = programs.apply(view.model, view.variables, {"image": batch["image"]}, train=False)
    wide = np.asarray(logits, np.float64)
    log = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    nats, right = [], []
    for row in (0, 1, 3):
        target = np.zeros(10)
        target[batch["labels"][row]] += batch["share"][row]
        target[batch["others"][row]] += 1 - batch["share"][row]
        nats.append(-np.sum((0.9 * target + 0.01) * log[row]))
        right.append(log[row].argmax() == target.argmax())
    denominators = task.denominators(batch)
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, denominators, jax.random.key(0)))()
    assert float(loss) == pytest.approx(np.mean(nats), rel=1e-5)
    assert float(aux.metrics["accuracy"]) == pytest.approx(np.mean(right))


def test_evaluation_counts_every_image_once() -> None:
    task = task_of(batch_size=4)
    view = view_of(task)
    (evaluation,) = [each for each in task.evaluations if each.split == "test"]
    step = jax.jit(lambda batch: evaluation.step(view, batch, jax.random.key(0)))
    results = [step(batch) for batch in evaluation.batches]
    sums = {name: sum(float(one[name]) for one, _ in results) for name in results[0][0]}
    report = evaluation.finish(sums, None)
    images = task.splits["test"]
    inputs = {"image": images.pixels / np.float32(127.5) - 1}
    logits = np.asarray(programs.apply(view.model, view.variables, inputs, train=False)[0], np.float64)
    assert len(images.labels) == 10
    assert report.scalars["accuracy"] == pytest.approx(np.mean(np.argmax(logits, -1) == images.labels))
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert report.scalars["loss"] == pytest.approx(-np.mean(log[np.arange(10), images.labels]), rel=1e-5)


def test_the_probe_shows_its_images_in_color() -> None:
    task = task_of()
    view = view_of(task)
    labels = task.axis_labels(view.model.sites)
    assert labels.images["patches"].shape == (3, 8, 8, 3)
    np.testing.assert_array_equal(labels.images["patches"][..., 0], task.splits["validation"].pixels[[0, 4, 9], ..., 0])
    assert labels.titles == ("0 1", "4 2", "9 3")


def test_a_file_is_answered_by_its_class(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    task = task_of()
    view, stream = view_of(task), io.BytesIO()
    image.fromarray(np.full((20, 20, 3), 200, np.uint8)).save(stream, "PNG")
    (tmp_path / "gray.png").write_bytes(stream.getvalue())
    answers = task.predict(view, PredictionRequest([str(tmp_path / "gray.png")], None, {}))
    inputs = {"image": np.full((1, 8, 8, 1), 200 / 127.5 - 1, np.float32)}
    logits = np.asarray(programs.apply(view.model, view.variables, inputs, train=False)[0], np.float64)[0]
    chances = np.exp(logits) / np.exp(logits).sum()
    assert answers.lines == [f"{chances.argmax()} {chances.max():.3f}"]
    assert answers.labels.images["patches"].shape == (1, 8, 8, 3)
    assert "encoder/self" in answers.capture_maps(Capture(sites=("encoder/self",)))
    (tmp_path / "no.png").write_bytes(b"text")
    for text, message in (("nothing.png", "is no file"), (str(tmp_path / "no.png"), "is no JPEG or PNG")):
        with pytest.raises(UserError, match=message):
            task.predict(view, PredictionRequest([text], None, {}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"label_smoothing": 1.0}, "label_smoothing=1"),
        ({"shuffled_patch_size": -1}, "shuffled_patch_size=-1"),
        ({"shuffled_patch_size": 3}, "does not divide"),
        ({"validation_split": ""}, "validation_split='' must be the name of a split"),
        ({"test_split": "tset"}, "has no split 'tset'"),
        ({"image_size": 0, "dataset": "x"}, "image_size=0"),
    ],
)
def test_unfit_values_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_of(**wrong)


def test_made_up_images_have_the_sets_size() -> None:
    for dataset, shape in (("digits/size=12", (12, 12, 1)), ("any", (24, 24, 3))):
        values = {**SMALL, "dataset": dataset} | ({"image_size": 24} if dataset.startswith("any") else {})
        assert build_synthetic_task(task_config(values)).interface.inputs["image"].shape == (4, *shape)
