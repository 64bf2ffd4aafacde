"""The task of few shots: what is fed and asked, its loss by hand, its labels and images, what it refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.few_shot.data import RotationAugmentation
from experiments.few_shot.task import (
    EPISODE,
    SHOT,
    FewShotClassification,
    FewShotConfig,
    build_synthetic_task,
    build_task,
)
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.tasks.task import StateView

SMALL: dict[str, Any] = {
    "dataset": "strokes/train=4,validation=4,test=4,num_drawers=4",
    "image_size": 8,
    "ways": 3,
    "batch_size": 4,
}
SITE = Site("at", Axis(EPISODE, AxisKind.STEPS), Axis(SHOT, AxisKind.GRID, shape=(2, 4), stride=8.0), ("0",), ("0",))


@pytest.fixture(scope="module")
def task() -> FewShotClassification:
    return build_task(FewShotConfig(**SMALL, shots=(1, 2), num_eval_examples=6), Path())


def of_model(logits: Any) -> StateView:
    """A view of a model that gives these logits, whatever it reads."""
    aux = SimpleNamespace(state={}, maps={}, losses={})
    model: Any = SimpleNamespace(apply=lambda variables, inputs, **options: (logits(inputs), aux))
    return StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


def test_batches_are_of_seed_and_step_and_have_each_number_of_shots_in_turn(task: FewShotClassification) -> None:
    source = task.training_batches(3)
    assert [source[step]["shown"].shape for step in range(3)] == [(4, 7), (4, 4), (4, 7)]
    np.testing.assert_array_equal(source[5]["images"], task.training_batches(3)[5]["images"])
    assert all((other["images"] != source[5]["images"]).any() for other in (source[7], task.training_batches(4)[5]))
    for name, given in task.interface.inputs.items():
        assert (source[0][name].shape, source[0][name].dtype) == (given.shape, given.dtype)
    # Each is the batch of its own step, not the next of those with as many shots.
    single = build_task(FewShotConfig(**SMALL, shots=(1,), num_eval_examples=6), Path()).training_batches(3)
    for step in (1, 3):
        np.testing.assert_array_equal(source[step]["images"], single[step]["images"])
    assert source[0]["images"].min() == 0
    assert 0.5 < source[0]["images"].max() <= 1
    # The last one's class is asked for, not told.
    batch = source[0]
    assert not batch["shown"][:, -1].any()
    assert (np.sort(batch["shown"][:, :-1]) == [1, 1, 2, 2, 3, 3]).all()
    assert len(task.splits["train"]) == 16


def test_the_loss_is_that_of_the_last_step_alone(task: FewShotClassification) -> None:
    batch = task.training_batches(0)[0]
    logits = np.random.default_rng(1).standard_normal((4, 7, 3)).astype(np.float32)
    view = of_model(lambda inputs: logits)
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, task.denominators(batch), None))()
    last, labels = logits[:, -1].astype(np.float64), batch["labels"]
    nats = np.log(np.exp(last).sum(axis=-1)) - last[np.arange(4), labels]
    assert float(loss) == pytest.approx(nats.mean(), rel=1e-5)
    assert float(aux.metrics["accuracy"]) == np.mean(last.argmax(axis=-1) == labels)


def test_evaluations_are_of_held_out_characters_and_of_each_number_of_shots(task: FewShotClassification) -> None:
    assert [(each.split, each.name, each.at_end) for each in task.evaluations] == [
        ("validation", "1_shot", False),
        ("validation", "2_shot", False),
        ("test", "1_shot", True),
        ("test", "2_shot", True),
    ]
    drawn = {split: {each.tobytes() for each in task.splits[split].reshape(-1, 64)} for split in task.splits}
    for each in task.evaluations:
        assert len(each.batches) == 2
        images = np.round(np.concatenate([batch["images"] for batch in each.batches]) * 255).astype(np.uint8)
        assert {image.tobytes() for image in images.reshape(-1, 64)} <= drawn[each.split]
    evaluation = task.evaluations[-1]

    def knows(inputs: Any) -> np.ndarray:
        return 9 * np.eye(3, dtype=np.float32)[evaluation.batches[0]["labels"]][:, None]

    sums, _ = jax.jit(lambda: evaluation.step(of_model(knows), evaluation.batches[0], None))()
    report = evaluation.finish({name: float(value) for name, value in sums.items()}, None)
    assert report.scalars["accuracy_2_shot"] == 1
    assert report.scalars["loss_2_shot"] == pytest.approx(np.log1p(2 * np.exp(-9)), rel=1e-3)


def test_held_out_characters_are_turned_where_that_is_asked_for() -> None:
    rotation_augmentation = build_task(
        FewShotConfig(**SMALL, num_eval_examples=4, eval_rotation_augmentation=RotationAugmentation.ROTATIONS), Path()
    )
    assert {split: len(each) for split, each in rotation_augmentation.splits.items()} == dict.fromkeys(
        rotation_augmentation.splits, 16
    )
    np.testing.assert_array_equal(
        rotation_augmentation.splits["test"][4:8], np.rot90(rotation_augmentation.splits["test"][:4], axes=(2, 3))
    )


def test_what_is_mapped_is_not_what_validates() -> None:
    small = build_task(FewShotConfig(**SMALL, num_probe_examples=4, num_eval_examples=4), Path())
    assert (small.probe_batch["images"] != small.evaluations[0].batches[0]["images"]).any()


def test_labels_lay_the_drawings_out_and_link_the_last_with_its_class(task: FewShotClassification) -> None:
    labels = task.axis_labels((SITE,)).with_axis_names((SITE,))
    images = labels.images[SHOT]
    assert (images.shape, images.dtype) == ((2, 16, 32, 3), np.uint8)
    assert labels.gold_alignments is not None
    for row, links in enumerate(labels.gold_alignments["at"]):
        names = labels.tokens[SHOT][row]
        assert (len(names), names[-1]) == (7, "?")
        asked = labels.titles[row][-1]
        assert [names[link.key].split()[1] for link in links] == [asked] * 2
        assert {link.query for link in links} == {6}
        # The drawing of each step lies where the axis says, in the color of its class; the rest is paper.
        colors: dict[str, list[np.ndarray]] = {}
        for step in range(7):
            down, across = 8 * (step // 4), 8 * (step % 4)
            tile = images[row, down : down + 8, across : across + 8].astype(float)
            ink = task.probe_batch["images"][row, step]
            darkest = np.unravel_index(ink[..., 0].argmax(), (8, 8))
            taken = (1 - tile[darkest] / 255) / ink[darkest]
            np.testing.assert_allclose(tile, 255 * (1 - ink * taken), atol=2)
            colors.setdefault(names[step].split()[-1], []).append(taken)
        assert all(np.ptp(each, axis=0).max() < 0.02 for each in colors.values())
        means = np.array([np.mean(each, axis=0) for each in colors.values()])
        assert np.abs(means[:, None] - means).max(axis=-1)[~np.eye(4, dtype=bool)].min() > 0.2
        np.testing.assert_allclose(colors["?"][0], 1, atol=0.01)
        assert (images[row, 8:, 24:] == 255).all()
    assert task.axis_labels(()).images == {}


def test_it_is_made_up_in_the_same_shapes(task: FewShotClassification) -> None:
    made = build_synthetic_task(task.config)
    assert made.interface == task.interface
    assert made.training_batches(0)[0]["images"].shape == task.training_batches(0)[0]["images"].shape


@pytest.mark.parametrize(
    "wrong",
    [{"ways": 1}, {"shots": ()}, {"shots": (1, 1)}, {"shots": (0,)}, {"ways": 5}, {"shots": (4,)}, {"batch_size": 0}],
)
def test_unfit_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"{next(iter(wrong))}(\[0\])?="):
        build_task(FewShotConfig(**SMALL | wrong), Path())
