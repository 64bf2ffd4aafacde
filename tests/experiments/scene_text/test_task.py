"""Images of text: their batches, places, evaluations and answers, and their measures by hand."""

import functools

import jax
import numpy as np
import pytest

from experiments.scene_text.model import FAMILY, AttentionInput, ShowAttendReadConfig
from experiments.scene_text.task import SceneText, SceneTextConfig
from transformer.attention import Axis, AxisKind, Capture, Site
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models.model import Model, Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.tasks.attention_mass import attention_mass_within
from transformer.tasks.sequence_generation_base import BEGIN, END, PAD
from transformer.tasks.string_metrics import edit_distance, glyph_mask, glyph_mass_report, string_report
from transformer.tasks.task import PredictionRequest, StateView

GRID = Axis("grid", AxisKind.GRID, shape=(8, 8), stride=4.0)
places_of_glyphs = jax.jit(glyph_mask, static_argnums=0)


@pytest.fixture(scope="module")
def task() -> SceneText:
    return SceneText(SceneTextConfig(image_size=32, batch_size=8, num_eval_examples=10, num_probe_examples=3))


def model_of(task: SceneText, attention: AttentionInput = AttentionInput.NEIGHBORS) -> Model:
    """Over 8 x 8 places, or 8 columns."""
    config = ShowAttendReadConfig(GridEncoderConfig((4,), (4,)), width=6, layers=1, attention_input=attention)
    return FAMILY.build(config, task.interface, Precision())


@functools.cache
def view_of(task: SceneText, *, train: bool = False) -> StateView:
    """A model that has learned nothing."""
    model, normal = model_of(task), np.random.default_rng(0).normal
    shapes = model.functional.shapes()
    variables = Variables(jax.tree.map(lambda leaf: 0.3 * normal(size=leaf.shape).astype(leaf.dtype), shapes), {})
    return StateView(model, variables, {}, {}, np.int32(0), train)


def places_by_hand(batch: dict, row: int, step: int) -> set[int]:
    """The places of a glyph, by the corners of its square: whose middle lies on the inner side of all four edges."""
    (x, y), turn, side = batch["middles"][row, step], batch["turns"][row, step], batch["sides"][row, step]
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    corners = [np.array([x, y]) + side / 2 * np.array(sign) @ axes for sign in signs]
    found = {8 * int(y // 4) + int(x // 4)}
    for place in range(64):
        middle = np.array([4 * (place % 8) + 2.0, 4 * (place // 8) + 2.0])
        turns = []
        for start, end in zip(corners, [*corners[1:], corners[0]], strict=True):
            edge, away = end - start, middle - start
            turns.append(edge[0] * away[1] - edge[1] * away[0])
        if min(turns) >= 0:
            found.add(place)
    return found


def test_a_batch_holds_strings_and_the_places_of_their_glyphs(task: SceneText) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    for other in (task.training_batches(3)[8], task.training_batches(4)[7]):
        assert (other["image"] != batch["image"]).any()
    for name, given in task.interface.inputs.items():
        assert (batch[name].shape, batch[name].dtype) == (given.shape, given.dtype)
    assert -1 <= batch["image"].min() < -0.3
    assert 0.3 < batch["image"].max() <= 1
    found = np.asarray(places_of_glyphs(GRID, batch))
    for row in range(8):
        labels = batch["labels"][row].tolist()
        length = labels.index(END)
        assert batch["target"][row].tolist() == [BEGIN, *labels[:length], *[PAD] * (5 - length)]
        assert set(labels[length + 1 :]) <= {PAD}
        assert min(labels[:length]) > END
        assert (batch["sides"][row] > 0).tolist() == [True] * length + [False] * (6 - length)
        for step in range(6):
            wanted = places_by_hand(batch, row, step) if step < length else set()
            assert set(np.flatnonzero(found[row, step]).tolist()) == wanted
    assert task.denominators(batch)["tokens"] == (batch["labels"] != PAD).sum()


@pytest.mark.parametrize(("share", "bent"), [(0.0, 0), (1.0, 8)])
def test_the_share_of_curved_strings_is_kept(share: float, bent: int) -> None:
    task = SceneText(SceneTextConfig(image_size=32, batch_size=8, num_eval_examples=1, curved_fraction=share))
    turns, sides = (task.training_batches(0)[0][name] for name in ("turns", "sides"))
    spread = [np.ptp(turn[side > 0]) for turn, side in zip(turns, sides, strict=True)]
    assert sum(each > 0 for each in spread) == bent


def test_each_line_is_evaluated_by_itself_on_strings_that_no_run_trains_on(task: SceneText) -> None:
    names = {(each.name, each.split, each.at_end) for each in task.evaluations}
    kinds = [f"{line}{what}" for line in ("curved", "straight") for what in ("", "_loss", "_looking")]
    assert names == {(kind, split, split == "test") for kind in kinds for split in ("validation", "test")}
    of = {(each.name, each.split): each for each in task.evaluations}
    for split in ("validation", "test"):
        for name, bent in (("curved", True), ("straight", False)):
            for batch in of[name, split].batches:
                for turns, sides in zip(batch["turns"], batch["sides"], strict=True):
                    assert (np.ptp(turns[sides > 0]) > 0) == bent
    images = [of[key].batches[0]["image"] for key in of if "_" not in key[0]]
    for number, one in enumerate(images):
        assert all((one != other).any() for other in images[:number])
    columns = model_of(task, AttentionInput.COLUMNS).sites
    assert {each.name for each in task.evaluations if each.applies(columns)} == {
        name for name in kinds if not name.endswith("_looking")
    }


def test_the_evaluation_of_looking_is_that_of_the_maps(task: SceneText) -> None:
    view = view_of(task)
    (evaluation,) = (each for each in task.evaluations if (each.name, each.split) == ("curved_looking", "validation"))
    step = jax.jit(lambda variables, batch: evaluation.step(view._replace(variables=variables), batch, None)[0])
    look = jax.jit(lambda given: view.model.apply(view.variables, given, train=False, capture=Capture((SITE,)))[1].maps)
    sums: dict = {}
    mass, glyphs = 0.0, 0
    for batch in evaluation.batches:
        for name, value in step(view.variables, batch).items():
            sums[name] = sums.get(name, 0) + np.asarray(value)
        weights = np.asarray(look({name: batch[name] for name in ("image", "target")})[SITE].weights)[0, :, 0]
        for row, at in np.argwhere(batch["sides"] > 0):
            mass += weights[row, at, sorted(places_by_hand(batch, row, at))].sum()
            glyphs += 1
    report = evaluation.finish(sums, None)
    assert report.scalars == {"glyph_mass": pytest.approx(mass / glyphs, rel=1e-5)}
    assert 0.02 < mass / glyphs < 0.3


def test_mass_of_maps_made_by_hand_is_of_the_head_that_has_most() -> None:
    weights = np.zeros((1, 1, 2, 3, 4), np.float32)
    weights[0, 0, :, 0] = [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]
    weights[0, 0, :, 1] = [[0.5, 0.5, 0, 0], [0, 0, 0.25, 0.75]]
    weights[0, 0, :, 2] = 0.25  # the end, which has no place
    found = np.array([[[True, False, False, False], [False, False, True, True], [False] * 4]])
    mass = np.asarray(attention_mass_within(weights, found))
    np.testing.assert_allclose(mass, [[0.1, 1.7]], rtol=1e-6)
    report = glyph_mass_report({"glyphs": np.array(2), "mass/a": mass, "mass/b": np.array([[1.0]])}, None)
    assert report.scalars == {"glyph_mass": pytest.approx(0.85)}
    assert report.note == "a, layer 0, head 1; 2 glyphs"


def test_a_class_token_has_no_glyph_and_only_grids_have_places() -> None:
    batch = {"middles": np.float32([[[2, 2]]]), "turns": np.float32([[0]]), "sides": np.float32([[4]])}
    with_class = Axis("grid", AxisKind.GRID, shape=(2, 2), stride=4.0, num_leading_positions=1)
    assert np.asarray(places_of_glyphs(with_class, batch)).ravel().tolist() == [False, True, False, False, False]
    # A small glyph between the middles of places is where its own middle is.
    batch = {"middles": np.float32([[[4.5, 3]]]), "turns": np.float32([[0.5]]), "sides": np.float32([[1]])}
    assert np.asarray(places_of_glyphs(with_class, batch)).ravel().tolist() == [False, False, True, False, False]
    with pytest.raises(ValueError, match="has no shape: it is no grid"):
        glyph_mask(Axis("columns", AxisKind.STEPS, num_positions=3), batch)


@pytest.mark.parametrize(
    ("output", "reference", "count"),
    [
        ("A4K", "A4K", 0),
        ("AK", "A4K", 1),
        ("A4KK", "A4K", 1),
        ("4AK", "A4K", 2),
        ("", "A4K", 3),
        ("KITTEN", "SITTING", 3),
    ],
)
def test_edits_are_levenshteins(output: str, reference: str, count: int) -> None:
    assert edit_distance(output, reference) == edit_distance(reference, output) == count


def test_the_report_counts_whole_strings_and_glyphs() -> None:
    report = string_report(["A4K", "AK", "TTTTT"], ["A4K", "A4K", "PPPP"], num_samples=1)
    assert report.scalars == {"exact_match": pytest.approx(1 / 3), "character_accuracy": pytest.approx(1 - 6 / 10)}
    assert list(report.samples) == [{"target": "A4K", "output": "A4K"}]


def test_glyphs_are_linked_to_their_places(task: SceneText) -> None:
    sites = model_of(task).sites
    labels = task.axis_labels(sites).with_axis_names(sites)
    assert labels.images["grid"].shape == (3, 32, 32, 3)
    assert labels.gold_alignments is not None
    for row, links in enumerate(labels.gold_alignments[SITE]):
        glyphs = labels.tokens["target"][row]
        assert glyphs[-1] == "<end>"
        assert labels.titles[row] == "".join(glyphs[:-1])
        assert not any(link.sure for link in links)
        for step in range(len(glyphs)):
            wanted = places_by_hand(task.probe_examples, row, step) if step < len(glyphs) - 1 else set()
            assert {link.key for link in links if link.query == step} == wanted
    columns = task.axis_labels(model_of(task, AttentionInput.COLUMNS).sites)
    assert columns.gold_alignments is None
    assert not columns.images


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3}, *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"temperature": 1.0, "seed": 3}))],
)
def test_a_given_string_is_painted_and_read(task: SceneText, options: dict) -> None:
    view = view_of(task)
    answers = task.predict(view, PredictionRequest(["A4K", "straight PT2", "curved JJJ"], decoding=options))
    assert len(answers.lines) == 3
    labels = answers.labels.with_axis_names(view.model.sites)
    assert labels.titles == tuple(answers.lines)
    maps = np.asarray(answers.capture_maps(Capture((SITE,)))[SITE].weights)
    for row, glyphs in enumerate(labels.tokens["target"]):
        np.testing.assert_allclose(maps[0, row, 0, : len(glyphs)].sum(-1), 1, rtol=1e-5)
    assert labels.images["grid"].shape == (3, 32, 32, 3)


def test_places_are_known_of_strings_that_were_read_right(task: SceneText, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {glyph: number for number, glyph in enumerate(task.symbols)}
    said = np.int32([[[*(numbers[glyph] for glyph in "A4K"), END, PAD, PAD]]] * 2)
    monkeypatch.setattr(task, "decode", lambda *given: said[:, 0])
    answers = task.predict(view_of(task), PredictionRequest(["A4K", "straight PT2"]))
    assert answers.lines == ["A4K", "A4K"]
    assert answers.labels.gold_alignments is not None
    right, wrong = answers.labels.gold_alignments[SITE]
    assert {link.query for link in right} == {0, 1, 2}
    assert not wrong


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("AK", {}, "'AK' has 2 glyphs: this run's strings have 3 to 5"),
        ("", {}, "'' has 0 glyphs"),
        ("AbK", {}, "'AbK' has \\['b'\\]: this run's glyphs are AEF"),
        ("round A4K", {}, "'round A4K' is no string: say 'A4K', or 'straight A4K'"),
        ("curved straight A4K", {}, "is no string: say 'A4K'"),
        ("A4K", {"num_samples": 2}, "leave out --target_language, --num_samples"),
        ("A4K", {"stop_sequences": ("x",)}, "leave out --target_language, --num_samples"),
        ("A4K", {"max_new_tokens": 7}, "--max_new_tokens=7: the longest string has 6 glyphs with its end"),
    ],
)
def test_what_cannot_be_read_is_refused(task: SceneText, text: str, options: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        task.predict(view_of(task), PredictionRequest([text], decoding=options))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min_length": 6}, "config.task: min_length=6 and max_length=5"),
        ({"alphabet": "ab"}, "config.task: alphabet='ab'"),
        ({"curved_fraction": 1.5}, "config.task.curved_fraction=1.5 must be at most 1"),
        ({"batch_size": 0}, "config.task.batch_size=0 must be at least 1"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        SceneTextConfig(**wrong)


def test_the_loss_is_the_mean_cross_entropy_of_glyphs_and_ends(task: SceneText) -> None:
    view, batch = view_of(task, train=True), task.training_batches(1)[0]
    denominators = task.denominators(batch)
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, denominators, jax.random.key(0)))()
    inputs = {name: batch[name] for name in ("image", "target")}
    logits = np.asarray(jax.jit(lambda: view.model.apply(view.variables, inputs, train=True)[0])(), np.float64)
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = [-log[row, step, batch["labels"][row, step]] for row, step in np.argwhere(batch["labels"] != PAD)]
    assert float(loss) == pytest.approx(np.mean(wanted), rel=1e-5)
    assert set(aux.metrics) == {"loss", "accuracy"}


def test_a_site_without_a_grid_is_not_linked(task: SceneText) -> None:
    text = Site(SITE, Axis("target"), Axis("source"), ("0",), ("0",))
    assert task.axis_labels([text]).gold_alignments is None
