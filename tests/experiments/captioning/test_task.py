"""The captions task: its batches, losses, answers and links, and its measures by hand."""

import collections
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.captioning.metrics import (
    attention_mass_report,
    caption_report,
    corpus_bleu,
    doubly_stochastic_penalty,
    named_cell_mask,
)
from experiments.captioning.model import FAMILY, AttentionKind, CaptionerConfig
from experiments.captioning.task import Captioning, CaptioningConfig
from tests.models.random_models import fresh_variables
from transformer.attention import Axis, AxisKind, Capture, Site
from transformer.attention.sites import MapValues
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models.model import Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.tasks.attention_mass import NO_CELL, attention_mass_within, cell_of_patch
from transformer.tasks.hard_attention_reinforce import estimate_reinforce_loss, token_log_likelihood
from transformer.tasks.sequence_generation_base import BEGIN, END, PAD
from transformer.tasks.task import PredictionRequest, StateView

PIXELS = 8


@pytest.fixture(scope="module")
def task() -> Captioning:
    return Captioning(CaptioningConfig(cell_pixels=PIXELS, batch_size=8, num_eval_examples=10, num_probe_examples=3))


@functools.cache
def view_of(task: Captioning, attention: AttentionKind = AttentionKind.SOFT, *, train: bool = False) -> StateView:
    """A model that has learned nothing, over 3 x 3 or 6 x 6 places."""
    stride = PIXELS if attention is AttentionKind.HARD else PIXELS // 2
    config = CaptionerConfig(GridEncoderConfig((4,), (stride,)), width=6, embedding_width=4, attention=attention)
    model = FAMILY.build(config, task.interface, Precision())
    extra = task.init_task_state(StateView(model, Variables({}, {}), {}, {}, np.int32(0), train), jax.random.key(0))
    return StateView(model, fresh_variables(model), {}, extra, np.int32(0), train)


def test_a_batch_shows_what_its_caption_says(task: Captioning) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    for other in (task.training_batches(3)[8], task.training_batches(4)[7]):
        assert (other["image"] != batch["image"]).any()
    for name, given in task.interface.inputs.items():
        assert (batch[name].shape, batch[name].dtype) == (given.shape, given.dtype)
    assert -1 <= batch["image"].min() < -0.3
    assert 0.3 < batch["image"].max() <= 1
    cells = batch["image"].reshape(8, 3, PIXELS, 3, PIXELS, 3).max(axis=(2, 4)).max(axis=-1).reshape(8, 9)
    for row in range(8):
        labels = batch["labels"][row].tolist()
        length = labels.index(END)
        assert batch["target"][row].tolist() == [BEGIN, *labels[:length], *[PAD] * (len(labels) - length - 1)]
        assert set(labels[length + 1 :]) <= {PAD}
        named = {step: int(cell) for step, cell in enumerate(batch["named"][row]) if cell != NO_CELL}
        assert list(named) == list(range(1, length, 5))
        for step, cell in named.items():
            row_said, column_said = (task.symbols[labels[step + 1 + which]] for which in (0, 1))
            assert task.scene_generator.place(cell) == f"{row_said} {column_said}"
        # Only what is named is there to be seen.
        assert set(np.argsort(-cells[row])[: len(named)]) == set(named.values())
    assert task.denominators(batch)["tokens"] == (batch["labels"] != PAD).sum()


def test_hard_attention_adds_what_its_draws_learn_from(task: Captioning) -> None:
    """The words' cross-entropy, and REINFORCE with the baseline of the view, which follows what a word was worth."""
    view, batch, key = (
        view_of(task, AttentionKind.HARD, train=True),
        task.training_batches(1)[0],
        jax.random.key(5),
    )
    view = view._replace(task_state={"baseline": jnp.float32(-2.0)})
    denominators = task.denominators(batch)
    counts = jnp.asarray(batch["labels"] != PAD)

    @jax.jit
    def both() -> Any:
        loss, aux = task.objectives[0].loss_fn(view, batch, denominators, key)
        inputs = {name: batch[name] for name in ("image", "target")}
        logits, of_model = view.model.apply(view.variables, inputs, train=True, key=key)
        told = token_log_likelihood(logits, jnp.asarray(batch["labels"]))
        estimate = estimate_reinforce_loss(told, counts, of_model.extras, jnp.float32(-2.0), task.config.entropy_weight)
        return loss, aux, jnp.sum(jnp.where(counts, told, 0)), estimate

    loss, aux, told, estimate = both()
    tokens = float(denominators["tokens"])
    assert float(loss) == pytest.approx(float(estimate.loss - told) / tokens, rel=1e-5)
    assert float(aux.metrics["loss"]) == pytest.approx(-float(told) / tokens, rel=1e-5)
    assert float(aux.task_state["baseline"]) == pytest.approx(0.9 * -2.0 + 0.1 * float(told) / tokens, rel=1e-5)


def test_the_loss_of_what_draws_nothing_is_the_words_alone(task: Captioning) -> None:
    view, batch = view_of(task, train=True), task.training_batches(1)[0]
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, task.denominators(batch), jax.random.key(0)))()
    assert view.task_state == aux.task_state == {}
    assert float(loss) == float(aux.metrics["loss"])
    assert set(aux.losses) == {"doubly_stochastic"}


def evaluated(task: Captioning, view: StateView, name: str) -> dict[str, float]:
    (evaluation,) = (each for each in task.evaluations if (each.name, each.split) == (name, "validation"))
    step = jax.jit(lambda variables, batch: evaluation.step(view._replace(variables=variables), batch, None))
    found = [jax.device_get(step(view.variables, batch)) for batch in evaluation.batches]
    sums = jax.tree.map(lambda *each: sum(each), *[sums for sums, _ in found])
    rows = None if found[0][1] is None else jax.tree.map(lambda *each: np.concatenate(each), *[r for _, r in found])
    return dict(evaluation.finish(sums, rows).scalars)


def test_the_evaluation_of_looking_is_that_of_the_maps(task: Captioning) -> None:
    view = view_of(task)
    found = evaluated(task, view, "looking")
    batches = next(each.batches for each in task.evaluations if each.name == "looking")
    mass, nouns, penalty, examples = 0.0, 0, 0.0, 0
    for batch in batches:
        inputs = {name: batch[name] for name in ("image", "target")}
        look = jax.jit(lambda given: view.model.apply(view.variables, given, train=False, capture=Capture((SITE,))))
        maps = np.asarray(look(inputs)[1].maps[SITE].weights)[0, :, 0]
        examples += len(maps)
        for row, weights in enumerate(maps):
            penalty += ((1 - weights.sum(axis=0)) ** 2).sum()
            for step, cell in enumerate(batch["named"][row]):
                if cell != NO_CELL:
                    down, across = 2 * (cell // 3), 2 * (cell % 3)
                    mass += weights[step].reshape(6, 6)[down : down + 2, across : across + 2].sum()
                    nouns += 1
    assert found["attention_mass/noun"] == pytest.approx(mass / nouns, rel=1e-5)
    assert found["doubly_stochastic"] == pytest.approx(penalty / examples, rel=1e-5)
    assert 0.05 < found["attention_mass/noun"] < 0.25  # of nine cells one


def test_a_model_that_looks_nowhere_is_not_asked_where(task: Captioning) -> None:
    none, soft = (view_of(task, attention).model.sites for attention in (AttentionKind.NONE, AttentionKind.SOFT))
    assert {each.name for each in task.evaluations if each.applies(none)} == {"loss", "captions"}
    assert {each.name for each in task.evaluations if each.applies(soft)} == {"loss", "captions", "looking"}


def test_mass_and_penalty_of_maps_made_by_hand() -> None:
    grid = Axis("grid", AxisKind.GRID, shape=(6, 6), stride=4.0, num_leading_positions=1)
    cells = cell_of_patch(grid, side=3, size=24)
    assert cells[0] == NO_CELL
    np.testing.assert_array_equal(cells[1:].reshape(6, 6), np.kron(np.arange(9).reshape(3, 3), np.ones((2, 2), int)))
    weights = np.zeros((1, 2, 1, 3, 37), np.float32)
    named = np.int32([[NO_CELL, 4, NO_CELL], [8, NO_CELL, 0]])
    weights[0, 0, 0, 0, 1:5] = 0.25  # no noun, nor the class token, which lies in no cell
    weights[0, 0, 0, 0, 0] = 0.5
    weights[0, 0, 0, 1, 1 + 2 * 6 + 2] = 0.3  # the first place of cell 4
    weights[0, 0, 0, 1, 1 + 3 * 6 + 3] = 0.4  # its last
    weights[0, 0, 0, 1, 1 + 3 * 6 + 4] = 0.3  # cell 5
    weights[0, 1, 0, 0, 36] = 1.0  # cell 8
    weights[0, 1, 0, 2, 0] = 1.0
    weights[0, 0, 0, 2, 20] = weights[0, 1, 0, 1, 20] = 0.5  # of words that do not count
    assert float(attention_mass_within(weights, named_cell_mask(named, cells))[0, 0]) == pytest.approx(0.3 + 0.4 + 1.0)
    counts = np.array([[True, True, False], [True, False, True]])
    first = 0.5**2 + 4 * 0.75**2 + 0.7**2 + 0.6**2 + 0.7**2 + (37 - 8)
    second = 35.0
    assert float(doubly_stochastic_penalty(weights, counts)[0, 0]) == pytest.approx(first + second)


def test_the_report_of_looking_is_of_the_head_with_most_mass() -> None:
    sums = {
        "nouns": np.array(10),
        "examples": np.array(4),
        "mass/a": np.array([[2.0, 7.0]]),
        "penalty/a": np.array([[3.0, 8.0]]),
        "mass/b": np.array([[6.0]]),
        "penalty/b": np.array([[1.0]]),
    }
    report = attention_mass_report(sums, None)
    assert report.scalars == {"attention_mass/noun": 0.7, "doubly_stochastic": 2.0}
    assert report.note == "a, layer 0, head 1; 10 nouns of 4 captions"


def counted_bleu(outputs: list[str], references: list[str], order: int) -> float:
    """Corpus BLEU from its definition."""
    logs, said, wanted = [], 0, 0
    for size in range(1, order + 1):
        right = total = 0
        for output, reference in zip(outputs, references, strict=True):
            grams = [
                collections.Counter(zip(*(text.split()[place:] for place in range(size)), strict=False))
                for text in (output, reference)
            ]
            right += sum((grams[0] & grams[1]).values())
            total += sum(grams[0].values())
        logs.append(math.log(right / total) if right else -math.inf)
    said = sum(len(output.split()) for output in outputs)
    wanted = sum(len(reference.split()) for reference in references)
    return 100 * min(1.0, math.exp(1 - wanted / said)) * math.exp(sum(logs) / order)


def test_bleu_is_that_of_its_definition() -> None:
    references = ["red circle top left , blue star bottom right", "pink moon top left , red bar middle right"]
    outputs = ["red circle top left , blue star bottom left", "pink moon top left , red"]
    scores, _ = corpus_bleu(outputs, references)
    assert scores == {
        f"bleu_{order}": pytest.approx(counted_bleu(outputs, references, order)) for order in (1, 2, 3, 4)
    }
    assert 30 < scores["bleu_4"] < scores["bleu_1"] < 90
    report = caption_report([references[0], outputs[1]], references, num_samples=1)
    assert report.scalars["exact_match"] == 0.5
    assert list(report.samples) == [{"target": references[0], "output": references[0]}]


def test_nouns_are_linked_to_the_places_of_their_cells(task: Captioning) -> None:
    fine = view_of(task).model.sites
    labels = task.axis_labels(fine).with_axis_names(fine)
    assert labels.images["grid"].shape == (3, 24, 24, 3)
    assert labels.gold_alignments is not None
    for example, links in enumerate(labels.gold_alignments[SITE]):
        words = labels.tokens["target"][example]
        assert words[-1] == "<end>"
        at = {step: [link for link in links if link.query == step] for step in {link.query for link in links}}
        assert sorted(at) == list(range(1, len(words) - 1, 5))
        for step, of_noun in at.items():
            cells = {(link.key // 6 // 2, link.key % 6 // 2) for link in of_noun}
            assert len(of_noun) == 4
            assert not any(link.sure for link in of_noun)
            ((row, column),) = cells
            assert task.scene_generator.place(3 * row + column) == " ".join(words[step + 1 : step + 3])
    coarse = Site(SITE, Axis("target"), Axis("grid", AxisKind.GRID, shape=(3, 3), stride=8.0), ("0",), ("0",))
    of_one = task.axis_labels([coarse]).gold_alignments
    assert of_one is not None
    assert all(link.sure for links in of_one[SITE] for link in links)


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3}, *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"temperature": 1.0, "seed": 3}))],
)
def test_a_described_scene_is_painted_and_captioned(task: Captioning, options: dict) -> None:
    view = view_of(task, AttentionKind.HARD)
    texts = ["red circle top left, blue star bottom right", "pink bar middle left , green moon top center"]
    answers = task.predict(view, PredictionRequest(texts, decoding=options))
    assert len(answers.lines) == 2
    known = set(task.symbols[END + 1 :])
    assert all(set(line.split()) <= known for line in answers.lines)
    labels = answers.labels.with_axis_names(view.model.sites)
    assert labels.titles == tuple(answers.lines)
    maps = np.asarray(answers.capture_maps(Capture((SITE,)))[SITE].weights)
    assert view.model.sites[0].values is MapValues.SAMPLE
    for row, words in enumerate(labels.tokens["target"]):
        np.testing.assert_array_equal(maps[0, row, 0, : len(words)].sum(-1), 1)
        np.testing.assert_array_equal(maps[0, row, 0, len(words) :], 0)
    # The image shows what the text says: red, and more of it than of what is green or blue.
    corner = labels.images["grid"][0, :8, :8].astype(int).reshape(-1, 3).max(axis=0)
    assert corner[0] > 150 > corner[1:].max()


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a red circle", {}, "'a red circle' describes no scene: 'a red circle' is no item.* say something like"),
        ("red circle top left", {}, "it has 1 items, and scenes have 2 to 3"),
        ("red bar top left, blue bar top right", {"num_samples": 2}, "leave out --target_language, --num_samples"),
        (
            "red bar top left, blue bar top right",
            {"stop_sequences": ("x",)},
            "leave out --target_language, --num_samples",
        ),
        (
            "red bar top left, blue bar top right",
            {"max_new_tokens": 16},
            "--max_new_tokens=16: the longest caption has 15 words",
        ),
    ],
)
def test_what_cannot_be_captioned_is_refused(task: Captioning, text: str, options: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        task.predict(view_of(task), PredictionRequest([text], decoding=options))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min_items": 4}, "min_items=4 and max_items=3 must rise"),
        ({"max_items": 10}, "max_items=10 must be at most 9"),
        ({"reinforce_weight": -1.0}, "reinforce_weight=-1.0 must be at least 0"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        CaptioningConfig(**wrong)
