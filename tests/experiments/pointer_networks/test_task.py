"""Problems of points in the plane: batches, rules, measures, and what a run answers."""

import itertools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.pointer_networks import task as geometry
from experiments.pointer_networks.data import convex_hull, delaunay_triangulation, shortest_tours
from experiments.pointer_networks.decoding import Problem, decode_answers, decode_point_indices
from experiments.pointer_networks.metrics import geometry_metrics
from experiments.pointer_networks.model import ATTENTION_SITE, FAMILY, SITE, OutputKind, PointerNetworkConfig
from experiments.pointer_networks.signature import POINTER_END
from experiments.pointer_networks.task import Geometry, GeometryConfig, PointOrder, make_batch
from tests.models.random_models import fresh_variables
from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.recurrent import RecurrentConfig
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.task import PredictionRequest, StateView

# The longest answers, which take the longest; `make slow` takes them too.
ALL_BUT_TRIANGLES = [
    pytest.param(problem, marks=pytest.mark.slow if problem is Problem.DELAUNAY else ()) for problem in Problem
]
SQUARE = np.float32([[0, 0], [1, 1], [0, 1], [1, 0], [0.4, 0.3]])


def task_of(problem: Problem, **values: Any) -> Geometry:
    values = {
        "min_points": 4,
        "max_points": 6,
        "batch_size": 8,
        "eval_sizes": (4, 5),
        "num_eval_examples": 3,
        "num_probe_examples": 2,
    } | values
    return Geometry(GeometryConfig(problem, **values))


def view_of(task: Geometry, loudness: float = 3.0, output: OutputKind = OutputKind.POINTER) -> StateView:
    """A model that has learned nothing, but is sure of it."""
    config = PointerNetworkConfig(RecurrentConfig(width=6), output=output)
    model = FAMILY.build(config, task.interface, Precision())
    variables = fresh_variables(model)
    return StateView(model, jax.tree.map(lambda leaf: loudness * leaf, variables), {}, {}, np.int32(0), train=False)


@pytest.mark.parametrize("problem", Problem)
def test_a_batch_holds_the_answer_to_every_rows_own_points(problem: Problem) -> None:
    task = task_of(problem)
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    assert {name: batch[name].shape[1:] for name in task.interface.inputs} == {
        name: given.shape[1:] for name, given in task.interface.inputs.items()
    }
    assert set(batch["lengths"]) == {4, 5, 6}
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
        assert values.dtype == (np.float32 if name == "points" else np.int32)
    assert (task.training_batches(3)[8]["points"] != batch["points"]).any()
    assert (task.training_batches(4)[7]["points"] != batch["points"]).any()
    for row, length in enumerate(batch["lengths"]):
        points = batch["points"][row, :length]
        answer = {
            Problem.HULL: lambda points: convex_hull(points),
            Problem.DELAUNAY: lambda points: itertools.chain(*delaunay_triangulation(points)),
            Problem.TOUR: lambda points: shortest_tours(points[None])[0],
        }[problem](points)
        numbers = [int(index) + 1 for index in answer]
        room = batch["target"].shape[1] - len(numbers)
        assert batch["labels"][row].tolist() == [*numbers, POINTER_END, *[POINTER_END] * (room - 1)]
        assert batch["target"][row].tolist() == [POINTER_END, *numbers, *[POINTER_END] * (room - 1)]
        assert (batch["points"][row, length:] == 0).all()
    scored = task.denominators(batch)["tokens"]
    assert scored == sum(len(np.flatnonzero(row)) + 1 for row in batch["labels"])


def test_a_loss_scores_every_step_up_to_the_end_and_no_other() -> None:
    task = task_of(Problem.HULL)
    view, batch = view_of(task), task.training_batches(1)[0]
    denominators = task.denominators(batch)
    loss, aux = jax.jit(lambda key: task.objectives[0].loss_fn(view, batch, denominators, key))(jax.random.key(0))
    logits, _ = jax.jit(lambda batch: view.model.apply(view.variables, batch, train=False))(batch)
    logits = np.asarray(logits, np.float64)
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    terms = [
        -log_probability[row, step, label]
        for row, labels in enumerate(batch["labels"])
        for step, label in enumerate(labels[: np.count_nonzero(labels) + 1])
    ]
    assert loss == pytest.approx(np.mean(terms), rel=1e-5)
    assert float(denominators["tokens"]) == len(terms)
    assert aux.metrics["loss"] == loss


def valid(problem: Problem, answer: tuple[int, ...], ended: bool, points: int) -> bool:
    """Whether an answer keeps to the rules of its problem."""
    if not ended or not set(answer) <= set(range(points)):
        return False
    match problem:
        case Problem.HULL:
            return len(set(answer)) == len(answer) >= 3
        case Problem.TOUR:
            return sorted(answer) == list(range(points))
        case Problem.DELAUNAY:
            triangles = [answer[place : place + 3] for place in range(0, len(answer), 3)]
            return bool(triangles) and all(len(one) == 3 and one[0] < one[1] < one[2] for one in triangles)


@pytest.mark.parametrize(
    ("problem", "num_beams"),
    [
        pytest.param(
            problem, num_beams, marks=() if (num_beams == 1) == (problem is Problem.TOUR) else pytest.mark.slow
        )
        for problem in Problem
        for num_beams in (1, 3)
    ],
)
def test_decoding_keeps_to_the_rules_where_it_is_constrained(problem: Problem, num_beams: int) -> None:
    task = task_of(problem)
    # An end that is always likely, so that a triangulation too is over at some time.
    view, batch = view_of(task, loudness=2.0), task.training_batches(9)[0]
    decoding = DecodingConfig(
        max_new_tokens=40 if problem is Problem.DELAUNAY else 7, num_beams=num_beams, length_penalty=0.0
    )
    found = {}
    for constrained in (True, False):
        rollout = jax.jit(
            lambda batch, constrained=constrained: decode_answers(
                view, batch, problem, decoding, constrained=constrained
            )
        )(batch)
        assert np.isfinite(rollout.scores[:, 0]).all()
        said = [decode_point_indices(row) for row in np.asarray(rollout.tokens[:, 0])]
        pairs = zip(said, batch["lengths"], strict=True)
        found[constrained] = [
            valid(problem, answer[: len(answer) // 3 * 3] if not ended else answer, True, points)
            if problem is Problem.DELAUNAY
            else valid(problem, answer, ended, points)
            for (answer, ended), points in pairs
        ]
    assert all(found[True])
    assert not all(found[False])


@pytest.mark.parametrize("problem", ALL_BUT_TRIANGLES)
def test_what_stands_behind_the_points_of_an_example_changes_no_beam(problem: Problem) -> None:
    """Beams that are short of hypotheses go on with impossible ones, which may be made of padding."""
    task = task_of(problem)
    view, batch = view_of(task), task.training_batches(2)[0]
    decoding = DecodingConfig(max_new_tokens=problem.max_answer_steps(6), num_beams=4, length_penalty=0.0)
    said = jax.jit(lambda batch: decode_answers(view, batch, problem, decoding, constrained=True))
    padding = np.arange(6) >= batch["lengths"][:, None]
    filled = batch | {"points": np.where(padding[..., None], np.float32(np.nan), batch["points"])}
    for ours, theirs in zip(said(batch), said(filled), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert not np.isnan(ours).any()


@pytest.mark.parametrize("problem", Problem)
def test_some_token_is_allowed_behind_whatever_tokens_came(problem: Problem) -> None:
    lengths = np.int32([3, 5])
    rule, tokens = problem.token_rule(lengths), np.random.default_rng(0).integers(0, 6, (12, 40))
    tokens[:, 20:] = np.maximum(tokens[:, 20:], 1)  # half of the rows never end
    state = rule.start(40, 6)
    for tokens_R in tokens:
        assert rule.allowed_tokens(state).any(axis=1).all()
        state = rule.advance(state, tokens_R)


def test_hulls_are_measured_by_corners_and_area() -> None:
    truth = convex_hull(SQUARE)
    assert truth == (0, 3, 1, 2)

    def found(answer: Any) -> dict[str, float]:
        return geometry_metrics(Problem.HULL, [SQUARE], [truth], [answer])

    whole = {"accuracy": 1, "area_ratio": 1, "invalid_fraction": 0}
    assert found((0, 3, 1, 2)) == found((1, 2, 0, 3)) == whole  # wherever it begins
    assert found((0, 3, 1)) == {"accuracy": 0, "area_ratio": 0.5, "invalid_fraction": 0}
    assert (
        found((0, 1, 3, 2)) == found((0, 1)) == found(None) == {"accuracy": 0, "area_ratio": 0, "invalid_fraction": 1}
    )
    both = geometry_metrics(Problem.HULL, [SQUARE] * 4, [truth] * 4, [truth, (0, 3, 1), (0, 1, 2, 3), truth])
    assert both == pytest.approx({"accuracy": 0.5, "area_ratio": (1 + 0.5 + 1) / 3, "invalid_fraction": 0.25})


def test_triangulations_are_measured_as_sets() -> None:
    truth = (0, 2, 4, 0, 3, 4, 1, 2, 4, 1, 3, 4)

    def found(answer: Any) -> dict[str, float]:
        return geometry_metrics(Problem.DELAUNAY, [SQUARE], [truth], [answer])

    assert set(itertools.batched(truth, 3)) == set(delaunay_triangulation(SQUARE))
    assert found(truth) == {"accuracy": 1, "triangle_coverage": 1}
    assert found((*truth[3:], 4, 2, 0)) == {"accuracy": 1, "triangle_coverage": 1}
    assert found(truth[:6]) == {"accuracy": 0, "triangle_coverage": 0.5}
    assert found((*truth, 0)) == found((*truth, *truth[:3])) == {"accuracy": 0, "triangle_coverage": 1}
    assert found(None) == {"accuracy": 0, "triangle_coverage": 0}


def test_tours_are_measured_by_their_length() -> None:
    points, truth = SQUARE[:4], (0, 3, 1, 2)

    def found(answer: Any) -> dict[str, float]:
        return geometry_metrics(Problem.TOUR, [points], [truth], [answer])

    whole = {"accuracy": 1, "tour_length": 4, "optimal_tour_length": 4, "optimality_gap": 0, "invalid_fraction": 0}
    assert found(truth) == found((0, 2, 1, 3)) == found((1, 2, 0, 3)) == whole
    crossed = found((0, 1, 2, 3))
    assert crossed == pytest.approx(
        {
            "accuracy": 0,
            "tour_length": 2 + 8**0.5,
            "optimal_tour_length": 4,
            "optimality_gap": 8**0.5 / 4 - 0.5,
            "invalid_fraction": 0,
        }
    )
    nothing = {"accuracy": 0, "tour_length": 0, "optimal_tour_length": 0, "optimality_gap": 0, "invalid_fraction": 1}
    assert found((0, 1, 2)) == found((0, 1, 1, 2)) == found(None) == nothing


@pytest.mark.parametrize("problem", ALL_BUT_TRIANGLES)
def test_evaluations_report_every_number_of_points_both_ways(problem: Problem) -> None:
    task = task_of(problem)
    view = view_of(task)
    assert [(each.name, each.split, each.at_end) for each in task.evaluations] == [
        (name, split, split == "test") for split in ("validation", "test") for name in ("loss", "constrained", "free")
    ]
    of_test = {each.name: each for each in task.evaluations if each.split == "test"}
    validation = task.evaluations[1].batches
    for name in ("constrained", "free"):
        batches = of_test[name].batches
        step = jax.jit(lambda batch, name=name: of_test[name].step(view, batch, None)[1]["tokens"])
        tokens = [step(batch) for batch in batches]
        scalars = of_test[name].finish({}, {"tokens": np.concatenate(tokens)}).scalars
        whats = {
            Problem.HULL: {"accuracy", "area_ratio", "invalid_fraction"},
            Problem.DELAUNAY: {"accuracy", "triangle_coverage"},
            Problem.TOUR: {"accuracy", "tour_length", "optimal_tour_length", "optimality_gap", "invalid_fraction"},
        }[problem]
        assert set(scalars) == {f"{name}/{what}/{count}" for what in whats for count in (4, 5)}
        # The labels themselves, as answers: all right, and each at its own number of points.
        perfect = of_test[name].finish({}, {"tokens": np.concatenate([batch["labels"] for batch in batches])}).scalars
        assert [perfect[f"{name}/accuracy/{count}"] for count in (4, 5)] == [1, 1]
        for batch, other, count in zip(batches, validation, (4, 5), strict=True):
            assert (np.asarray(batch["lengths"]) == count).all()
            assert (np.asarray(batch["points"])[:, :4] != np.asarray(other["points"])[:, :4]).all()
    assert of_test["constrained"].step is task.evaluations[1].step  # compiled once


def test_only_the_constrained_evaluation_constrains(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*given: Any, constrained: bool) -> Any:
        return SimpleNamespace(tokens=np.full((1, 1, 1), int(constrained)))

    monkeypatch.setattr(geometry, "decode_answers", decode)
    steps = {each.name: each.step for each in task_of(Problem.HULL).evaluations}
    for name, constrained in (("constrained", 1), ("free", 0)):
        assert steps[name](None, {}, None)[1]["tokens"].tolist() == [[constrained]]


@pytest.mark.parametrize("problem", ALL_BUT_TRIANGLES)
def test_texts_of_points_are_answered_by_their_indices(problem: Problem) -> None:
    text = " ".join(f"{x},{y}" for x, y in SQUARE)
    task = task_of(problem)
    view = view_of(task)
    answers = task.predict(view, PredictionRequest([text, "0.1,0.2 0.5,0.9 0.7,0.3"], decoding={"num_beams": 2}))
    first, second = answers.lines
    flat = [int(index) for index in first.replace(",", " ").split()]
    if problem is Problem.DELAUNAY:
        assert set(second.split()) == {"0,1,2"}
        assert all(len(triangle.split(",")) == 3 for triangle in first.split())
    else:
        assert valid(problem, tuple(flat), True, len(SQUARE))
        assert sorted(second.split()) == ["0", "1", "2"]
    labels = answers.labels.with_axis_names(view.model.sites)
    assert labels.tokens["points"][0][:2] == ("end", "0 (0.00, 0.00)")
    assert labels.tokens["points"][1][1:] == ("0 (0.10, 0.20)", "1 (0.50, 0.90)", "2 (0.70, 0.30)")
    assert labels.tokens["target"][0] == (*map(str, flat), "end")
    weights = answers.capture_maps(Capture((SITE,)))[SITE].weights
    assert weights.shape[1:4] == (2, 1, problem.max_answer_steps(5))
    np.testing.assert_allclose(weights[0, 0, 0, : len(flat) + 1].sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "text", ["", "0.1,0.2", "0.1 0.2 0.3", "a,b c,d e,f", "0,0 1,0 2,0", "0,0 1,0,1 0,1", "0,0 nan,0 0,1"]
)
def test_texts_that_are_no_points_are_refused(text: str) -> None:
    task = task_of(Problem.HULL)
    with pytest.raises(UserError, match="give at least 3 points of the unit square"):
        task.predict(view_of(task), PredictionRequest([text]))


def test_what_a_run_cannot_do_is_refused() -> None:
    task = task_of(Problem.HULL)
    for request in (
        PredictionRequest(["0,0 0,1 1,0"], "de"),
        PredictionRequest(["0,0 0,1 1,0"], decoding={"num_samples": 2, "top_k": 2}),
        PredictionRequest(["0,0 0,1 1,0"], decoding={"stop_sequences": ("0",)}),
        PredictionRequest(["0,0 0,1 1,0"], decoding={"num_beams": 2, "coverage_penalty": 0.2}),
    ):
        with pytest.raises(
            UserError, match="leave out --target_language, --num_samples, --stop and --coverage_penalty"
        ):
            task.predict(view_of(task), request)
    for values, says in (
        ({"min_points": 2}, "min_points=2"),
        ({"min_points": 7}, "min_points=7 and max_points=6"),
        ({"eval_sizes": ()}, r"eval_sizes=\(\)"),
        ({"eval_sizes": (5, 2)}, r"eval_sizes\[1\]=2"),
        ({"eval_sizes": (5, 5)}, r"eval_sizes=\(5, 5\)"),
        ({"batch_size": 0}, "batch_size=0"),
    ):
        with pytest.raises(UserError, match=says):
            task_of(Problem.HULL, **values)
    with pytest.raises(UserError, match="tours of 20 points"):
        task_of(Problem.TOUR, eval_sizes=(5, 20))
    with pytest.raises(UserError, match="batch_size=9 cannot be cut into 2 equal parts"):
        Geometry(GeometryConfig(batch_size=9), 2)


def test_gold_links_lie_where_each_step_points() -> None:
    task = task_of(Problem.HULL)
    view = view_of(task)
    labels = task.axis_labels(view.model.sites).with_axis_names(view.model.sites)
    assert labels.gold_alignments is not None
    for row, links in enumerate(labels.gold_alignments[SITE]):
        names = labels.tokens["points"][row]
        assert [names[link.key].split(" ")[0] for link in links] == list(labels.tokens["target"][row])
        assert [link.query for link in links] == list(range(len(links)))
    assert task.axis_labels(()).gold_alignments is None


def test_gold_links_of_attention_lie_on_the_point_that_each_step_predicts() -> None:
    task = task_of(Problem.HULL)
    view = view_of(task, output=OutputKind.FIXED_VOCABULARY_WITH_ATTENTION)
    labels = task.axis_labels(view.model.sites).with_axis_names(view.model.sites)
    assert labels.gold_alignments is not None
    for row, links in enumerate(labels.gold_alignments[ATTENTION_SITE]):
        names, steps = labels.tokens["encoded points"][row], labels.tokens["target"][row]
        assert [names[link.key].split(" ")[0] for link in links] == list(steps[:-1])  # the end is no point
        assert [link.query for link in links] == list(range(len(links)))


@pytest.mark.parametrize(
    "output",
    [pytest.param(OutputKind.FIXED_VOCABULARY, marks=pytest.mark.slow), OutputKind.FIXED_VOCABULARY_WITH_ATTENTION],
    ids=lambda output: output.value,
)
def test_a_fixed_vocabulary_answers_within_the_rules_and_about_no_more_points_than_it_has(output: OutputKind) -> None:
    task = task_of(Problem.HULL)
    view = view_of(task, output=output)
    answers = task.predict(
        view, PredictionRequest([" ".join(f"{x},{y}" for x, y in SQUARE), "0.1,0.2 0.5,0.9 0.7,0.3"])
    )
    first, second = (tuple(int(index) for index in line.split()) for line in answers.lines)
    assert valid(Problem.HULL, first, True, 5)
    assert valid(Problem.HULL, second, True, 3)
    labels = answers.labels.with_axis_names(view.model.sites)
    if output is OutputKind.FIXED_VOCABULARY_WITH_ATTENTION:
        assert labels.tokens["encoded points"][1] == ("0 (0.10, 0.20)", "1 (0.50, 0.90)", "2 (0.70, 0.30)")
        weights = answers.capture_maps(Capture((ATTENTION_SITE,)))[ATTENTION_SITE].weights
        assert weights.shape[1:] == (2, 1, 6, 5)
        np.testing.assert_allclose(weights[0, 1, 0, : len(second) + 1].sum(-1), 1, atol=1e-5)
    with pytest.raises(UserError, match=f"7 points are more than the 6 .* vocabulary of .*output={output.value}"):
        task.predict(view, PredictionRequest([" ".join(f"0.{place},0.{place**2}" for place in range(1, 8))]))
    larger = task_of(Problem.HULL, eval_sizes=(5, 7)).evaluations[1]
    with pytest.raises(UserError, match="7 points are more than the 6"):
        jax.eval_shape(lambda: larger.step(view, larger.batches[0], None))


def test_points_beyond_a_rows_own_are_no_part_of_its_answer() -> None:
    points = np.float32([[[0, 0], [1, 0], [0, 1], [1, 1]], [[0, 0], [1, 0], [0, 1], [1, 1]]])
    batch = make_batch(Problem.HULL, points, np.array([3, 4]))
    assert batch["labels"].tolist() == [[1, 2, 3, 0, 0], [1, 2, 4, 3, 0]]


def test_points_that_are_read_from_left_to_right_are_the_drawn_ones_in_another_order() -> None:
    ordered, drawn = (
        task_of(Problem.HULL, point_order=point_order).training_batches(3)[5] for point_order in reversed(PointOrder)
    )
    assert (ordered["lengths"] == drawn["lengths"]).all()
    for points_Nx2, others_Nx2, length, labels in zip(
        ordered["points"], drawn["points"], drawn["lengths"], ordered["labels"], strict=True
    ):
        assert points_Nx2[:length].tolist() == sorted(others_Nx2[:length].tolist())
        assert (points_Nx2[length:] == 0).all()
        assert labels[0] == 1  # the leftmost point is a corner, and the lowest
        assert labels.tolist() == make_batch(Problem.HULL, points_Nx2[None], np.array([length]))["labels"][0].tolist()


def test_an_answer_names_points_as_they_were_given_in_whatever_order_they_are_read() -> None:
    task = task_of(Problem.TOUR, point_order=PointOrder.LEFT_TO_RIGHT)
    shuffled = [3, 0, 4, 2, 1]
    view = view_of(task)
    asked = [SQUARE, SQUARE[shuffled], SQUARE[:3]]
    answers = task.predict(view, PredictionRequest([" ".join(f"{x},{y}" for x, y in points) for points in asked]))
    first, second, third = ([int(word) for word in line.split()] for line in answers.lines)
    # The two of x = 0 and of x = 1 are read in the order in which they are given: only for distinct x is the order one.
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert sorted(third) == [0, 1, 2]
    labels = answers.labels.with_axis_names(view.model.sites)
    assert labels.tokens["points"][0] == (
        "end",
        "0 (0.00, 0.00)",
        "2 (0.00, 1.00)",
        "4 (0.40, 0.30)",
        "1 (1.00, 1.00)",
        "3 (1.00, 0.00)",
    )
    assert labels.tokens["target"][0] == (*map(str, first), "end")
    distinct = np.float32([[0.3, 0.9], [0.8, 0.2], [0.1, 0.4], [0.6, 0.7]])
    texts = [" ".join(f"{x},{y}" for x, y in distinct[point_order]) for point_order in ([0, 1, 2, 3], [2, 0, 3, 1])]
    straight, turned = (
        [int(word) for word in line.split()] for line in task.predict(view, PredictionRequest(texts)).lines
    )
    assert distinct[straight].tolist() == distinct[[2, 0, 3, 1]][turned].tolist()
