"""Questions about images: loss, shares by kind, where looks fall, gold alignments, and what a run answers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.visual_question_answering.metrics import (
    attention_report,
    attention_sums,
    cell_positions,
    question_report,
)
from experiments.visual_question_answering.task import VisualQuestionAnswering
from tests import programs
from tests.models.random_models import fresh_variables
from transformer.attention import Axis, AxisKind, Capture, Site
from transformer.attention.capture import CapturedAttention
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.model import Aux
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.registry import build_synthetic_task, build_task, task_config
from transformer.tasks.synthetic_data import abstract_batch
from transformer.tasks.task import PredictionRequest, StateView

SMALL = {
    "name": "experiments.visual_question_answering.task",
    "dataset": "scenes/cell_pixels=8,validation=10,test=6",
    "batch_size": 8,
    "num_probe_examples": 3,
}
MODEL = {
    "family": "experiments.visual_question_answering.smem_vqa",
    "width": 4,
    "image_encoder": {"channels": (4,), "strides": (4,)},
}
SITE = "answer/hops"


@pytest.fixture(scope="module")
def task() -> VisualQuestionAnswering:
    return build_task(task_config(SMALL), Path())


@pytest.fixture(scope="module")
def view(task: VisualQuestionAnswering) -> StateView:
    model = build_model(model_config(MODEL), task.interface, Precision())
    return StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=False)


def summed(step: Any, view: StateView, batches: Any) -> dict[str, np.ndarray]:
    run = jax.jit(lambda batch: step(view, batch, jax.random.key(0))[0])
    sums = [jax.device_get(run(batch)) for batch in batches]
    return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *sums)


def test_evaluations_measure_every_question_of_a_split_once(task: VisualQuestionAnswering, view: StateView) -> None:
    evaluation = task.evaluations[2]
    assert [(each.name, each.split, each.at_end) for each in task.evaluations] == [
        ("answers", "validation", False),
        ("looks", "validation", False),
        ("answers", "test", True),
        ("looks", "test", True),
    ]
    sums = summed(evaluation.step, view, evaluation.batches)
    nats, asked, right = 0.0, np.zeros(5), np.zeros(5)
    (batch,) = evaluation.batches
    for row in range(6):  # two more rows only fill the batch
        inputs = {name: batch[name][row : row + 1] for name in ("image", "tokens", "lengths")}
        logits = np.asarray(programs.apply(view.model, view.variables, inputs, train=False)[0], np.float64)[0]
        label, kind = batch["labels"][row], batch["kinds"][row]
        nats -= logits[label] - np.log(np.exp(logits).sum())
        asked[kind] += 1
        right[kind] += logits.argmax() == label
    np.testing.assert_array_equal(sums["num_questions"], asked)
    np.testing.assert_array_equal(sums["right"], right)
    assert sums["loss"] == pytest.approx(nats, rel=1e-5)
    assert float(task.denominators(batch)["examples"]) == 6


def test_a_training_loss_is_the_mean_over_questions_alone(task: VisualQuestionAnswering, view: StateView) -> None:
    (batch,) = task.evaluations[2].batches
    denominators = task.denominators(batch)
    loss, aux = jax.jit(lambda key: task.objectives[0].loss_fn(view, batch, denominators, key))(jax.random.key(0))
    sums = summed(task.evaluations[2].step, view, [batch])
    assert loss == pytest.approx(sums["loss"] / 6, rel=1e-5)
    assert aux.metrics["accuracy"] == pytest.approx(sums["right"].sum() / 6, rel=1e-6)


def test_shares_are_reported_by_kind_and_by_groups_of_kinds(task: VisualQuestionAnswering) -> None:
    sums = {"loss": 30.0, "num_questions": [4, 2, 0, 3, 1], "right": [1, 2, 0, 3, 0]}
    found = question_report(task.question_vocabulary, sums)
    assert found.scalars == pytest.approx(
        {
            "loss": 3.0,
            "accuracy": 0.6,
            "accuracy/color": 0.25,
            "accuracy/shape": 1.0,
            "accuracy/neighbor_color": 1.0,
            "accuracy/neighbor_shape": 0.0,
            "accuracy/one_hop": 0.5,
            "accuracy/relational": 0.75,
        }
    )
    assert found.note == "10 questions"
    questions = task.questions.split_questions("test")
    beside = question_report(
        task.question_vocabulary,
        {"loss": 0.0, "num_questions": [1, 1, 1, 1, 2], "right": [0] * 5},
        (questions, questions),
    )
    # Who has seen the very questions is right where no two with the same words differ.
    assert beside.scalars["question_only_accuracy"] > 0.6
    assert "question_only_accuracy/relational" in beside.scalars


def knowing(task: VisualQuestionAnswering, first: float, last: float) -> tuple[StateView, Site]:
    """A model that gives the cells of each question these weights, at its first and its second look."""
    answer, grid = (
        Axis("answer", AxisKind.SLOTS, num_positions=1),
        Axis("grid", AxisKind.GRID, shape=(6, 6), stride=4.0),
    )
    site = Site("any", answer, grid, layers=("0", "1"), heads=("0",))
    cells: dict[tuple[int, ...], Any] = {}
    for batch in task.evaluations[0].batches:
        cells |= zip(map(tuple, batch["tokens"].tolist()), batch["cells"], strict=True)
    places = cell_positions(site.key, task.question_vocabulary)

    class Knows:
        sites = (site,)

        def apply(self, variables: Any, inputs: Any, *, train: bool, capture: Capture) -> Any:
            maps = []
            for number, share in enumerate((first, last)):
                of_rows = []
                for row in np.asarray(inputs["tokens"]):
                    cell = cells[tuple(row.tolist())][number]
                    weights = np.where(places[cell], share / places[cell].sum(), 0)
                    others = np.isin(np.arange(36), np.flatnonzero(places[cell]), invert=True)
                    of_rows.append(weights + np.where(others, (1 - share) / others.sum(), 0))
                maps.append(np.array(of_rows)[:, None, None])
            return None, Aux({site.name: CapturedAttention(jnp.array(maps, jnp.float32), {}, {})}, {}, {})

    return StateView(Knows(), {}, {}, {}, jnp.int32(0), train=False), site  # type: ignore[arg-type]


def test_looks_are_measured_where_the_cells_of_a_question_are(task: VisualQuestionAnswering) -> None:
    view, _ = knowing(task, 0.75, 0.875)
    sums = [
        jax.device_get(attention_sums(view, batch, task.question_vocabulary)) for batch in task.evaluations[0].batches
    ]
    found = attention_report(jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *sums))
    assert found.note == "10 questions"
    assert found.scalars["attention_mass/hop_1/named"] == pytest.approx(0.75, abs=1e-5)
    assert found.scalars["attention_mass/hop_2/answer"] == pytest.approx(0.875, abs=1e-5)
    assert found.scalars["attention_mass/hop_1/one_hop"] == pytest.approx(0.75, abs=1e-5)
    assert found.scalars["attention_mass/hop_2/one_hop"] == pytest.approx(0.875, abs=1e-5)
    # What is left is spread over the other eight cells.
    assert found.scalars["attention_mass/hop_1/answer"] == pytest.approx(0.25 / 8, abs=1e-5)
    assert found.scalars["attention_mass/hop_2/named"] == pytest.approx(0.125 / 8, abs=1e-5)
    # A question whose cells nobody knows is not measured.
    (batch, _) = task.evaluations[0].batches
    unknown = {**batch, "cells": np.where(np.arange(len(batch["cells"]))[:, None] == 0, -1, batch["cells"])}
    fewer = jax.device_get(attention_sums(view, unknown, task.question_vocabulary))
    assert np.sum(fewer["num_questions"]) == np.sum(sums[0]["num_questions"]) - 1
    assert np.sum(fewer["answer"]) < np.sum(sums[0]["answer"]) - 0.1


def test_the_looks_of_a_real_model_are_those_of_its_maps(task: VisualQuestionAnswering, view: StateView) -> None:
    evaluation = task.evaluations[1]
    assert evaluation.applies(view.model.sites)
    found = evaluation.finish(summed(evaluation.step, view, evaluation.batches), None).scalars
    masses = []
    for batch in evaluation.batches:
        inputs = {name: batch[name] for name in ("image", "tokens", "lengths")}
        _, aux = programs.apply(view.model, view.variables, inputs, train=False, capture=Capture((SITE,)))
        grids = (
            np.asarray(aux.maps[SITE].weights)[:, :, 0, 0].reshape(2, -1, 3, 2, 3, 2).sum(axis=(3, 5)).reshape(2, -1, 9)
        )
        for row in np.flatnonzero((batch["index"] >= 0) & (batch["kinds"] >= 3)):
            masses.append(grids[1, row, batch["cells"][row, 1]])
    assert found["attention_mass/hop_2/answer"] == pytest.approx(np.mean(masses), rel=1e-5)


@pytest.mark.parametrize(("shape", "stride", "leading"), [((3, 3), 8.0, 0), ((6, 6), 4.0, 0), ((2, 2), 12.0, 1)])
def test_places_lie_in_the_cell_that_holds_their_middle(
    task: VisualQuestionAnswering, shape: tuple[int, int], stride: float, leading: int
) -> None:
    found = cell_positions(
        Axis("grid", AxisKind.GRID, shape=shape, stride=stride, num_leading_positions=leading), task.question_vocabulary
    )
    assert found.shape == (9, leading + shape[0] * shape[1])
    assert not found[:, :leading].any()
    for place in range(shape[0] * shape[1]):
        row, column = ((each + 0.5) * stride // 8 for each in divmod(place, shape[1]))
        assert np.flatnonzero(found[:, leading + place]).tolist() == [int(3 * row + column)]


def test_gold_links_are_the_places_of_the_cells_to_look_at(task: VisualQuestionAnswering, view: StateView) -> None:
    labels = task.axis_labels(view.model.sites)
    (batch, _) = task.evaluations[0].batches
    assert labels.gold_alignments is not None
    relational = 0
    for number, links in enumerate(labels.gold_alignments[SITE]):
        first, last = batch["cells"][number].tolist()
        relational += first != last
        found: dict[int, set[bool]] = {}
        for link in links:
            row, column = divmod(link.key, 6)
            found.setdefault(row // 2 * 3 + column // 2, set()).add(link.sure)
        assert found == ({last: {True}} if first == last else {first: {False}, last: {True}})
        assert len(links) == 4 * len(found)
        assert all(link.query == 0 for link in links)
    assert relational
    answers = [task.question_vocabulary.answers[label] for label in batch["labels"][:3]]
    assert all(title.endswith(f"? {answer}") for title, answer in zip(labels.titles, answers, strict=True))
    assert labels.images["grid"].shape == (3, 24, 24, 3)
    np.testing.assert_allclose(labels.images["grid"] / 127.5 - 1, batch["image"][:3], atol=1e-6)
    labels.with_axis_names(view.model.sites)
    assert task.axis_labels(()).gold_alignments is None  # a model that looks at nothing has no site


def test_a_run_answers_questions_about_numbered_images(task: VisualQuestionAnswering, view: StateView) -> None:
    request = PredictionRequest(["2: Where is the star?", "where is the star ?", "0: where is the star ?"])
    answers = task.predict(view, request)
    images = answers.labels.images["grid"]
    np.testing.assert_array_equal(images[0], task.questions.test_image(2))
    assert answers.lines[1] == answers.lines[2]
    for line in answers.lines:
        answer, _, share = line.rpartition(" ")
        assert answer in task.question_vocabulary.answers
        assert 1 / 23 <= float(share) <= 1
    assert answers.labels.titles[0] == f"where is the star ? {answers.lines[0]}"
    assert answers.capture_maps(Capture((SITE,)))[SITE].weights.shape == (2, 3, 1, 1, 36)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (PredictionRequest(["7: where is the star ?"]), "images 0 to 5"),
        (PredictionRequest(["where is the dog ?"]), "'dog' is no word of these questions"),
        (PredictionRequest(["0:"]), "has 0 words"),
        (PredictionRequest(["where is it ?"], decoding={"num_beams": 2}), "--num_beams is for runs that generate"),
        (PredictionRequest(["where is it ?"], "de"), "--target_language=de is for runs that translate"),
    ],
)
def test_what_a_run_cannot_answer_is_refused(
    task: VisualQuestionAnswering, view: StateView, request_: PredictionRequest, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        task.predict(view, request_)


def test_unfit_configs_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'scenes'"):
        task_config({**SMALL, "dataset": "scene"})
    with pytest.raises(UserError, match="batch_size=8 cannot be cut into 3 equal parts"):
        build_task(task_config(SMALL), Path(), 3)
    with pytest.raises(UserError, match="give the folder that holds easy-VQA"):
        build_task(task_config({**SMALL, "dataset": "easy_vqa"}), Path())


def test_a_task_without_its_files_has_the_shapes_of_the_real_one() -> None:
    task = build_synthetic_task(task_config({**SMALL, "dataset": "easy_vqa"}))
    assert {name: given.shape for name, given in task.interface.inputs.items()} == {
        name: abstract_batch(task)[name].shape for name in task.interface.inputs
    }
    assert task.interface.vocabularies == {"tokens": 28, "classes": 13}
    assert [each.name for each in task.evaluations] == ["answers", "answers"]  # nobody knows where to look
    assert task.axis_labels(()).titles == ("what color is the shape ? gray",)
