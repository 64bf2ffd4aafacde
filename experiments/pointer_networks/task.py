"""Geometric problems answered by pointing: convex hulls, Delaunay triangulations and tours."""

import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from experiments.pointer_networks.data import (
    MAX_TOUR_POINTS,
    convex_hull,
    delaunay_triangulation,
    order_left_to_right,
    sample_points,
    shortest_tours,
)
from experiments.pointer_networks.decoding import Answer, Problem, decode_answers, decode_point_indices
from experiments.pointer_networks.metrics import geometry_metrics
from experiments.pointer_networks.signature import POINTER_END, POINTER_PREDICTION
from transformer.attention.sites import Site, sites_between
from transformer.config import (
    BatchSize,
    Config,
    NumBeams,
    NumDisplayedExamples,
    NumExamples,
    Range,
    TupleLimits,
    UserError,
)
from transformer.data.batches import VALIDATION_SEED, random_generator
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import (
    make_capture_function,
    refuse_text_options,
    report_means,
)
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import token_loss
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    EvaluationStep,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)


class PointOrder(enum.Enum):
    """The order in which a model reads the points, which determines their indices.

    drawn: random, as the points were sampled or given (Vinyals et al. 2015, Pointer networks).
    left_to_right: by rising x. A set has no order of its own, and the one in which it is read affects what a model
    learns (Vinyals et al. 2016, Order matters, section 5).
    """

    DRAWN = "drawn"
    LEFT_TO_RIGHT = "left_to_right"

    def order_points(
        self, points_BxNx2: Float[np.ndarray, "B N 2"], lengths_B: Int[np.ndarray, " B"]
    ) -> Int[np.ndarray, "B N"]:
        """Return the indices of each row's points in this order."""
        match self:
            case PointOrder.DRAWN:
                return np.broadcast_to(np.arange(points_BxNx2.shape[1]), points_BxNx2.shape[:2])
            case PointOrder.LEFT_TO_RIGHT:
                return order_left_to_right(points_BxNx2, lengths_B)


Points = Annotated[int, Range(3)]
"""A number of points, not all of which are on one line."""


@dataclasses.dataclass(frozen=True)
class GeometryConfig(Config, path="config.task"):
    """Geometric problems about points that are uniform in the unit square, sampled anew at every step.

    Attributes:
        problem: The problem.
        min_points: The fewest points of a training example.
        max_points: The most points of a training example.
        point_order: The order in which points are read.
        batch_size: Examples in a batch.
        eval_sizes: The numbers of points of evaluated examples, which may lie outside of the training range.
        num_eval_examples: Examples to evaluate of each size, decoded with and without the problem's constraints.
        num_beams: The beam size; 1 decodes greedily.
        num_probe_examples: Examples whose maps are stored.

    Raises:
        UserError: If a value is out of range, or optimal tours cannot be computed for so many points.
    """

    problem: Problem = Problem.HULL
    min_points: Points = 5
    max_points: int = 10
    point_order: PointOrder = PointOrder.DRAWN
    batch_size: BatchSize = 128
    eval_sizes: Annotated[tuple[Points, ...], TupleLimits(min_length=1, distinct=True)] = (5, 10)
    num_eval_examples: NumExamples = 1000
    num_beams: NumBeams = 1
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if self.min_points > self.max_points:
            raise UserError(f"config.task.min_points={self.min_points} and max_points={self.max_points} must rise")
        longest = max(self.max_points, *self.eval_sizes)
        if self.problem is Problem.TOUR and longest > MAX_TOUR_POINTS:
            raise UserError(
                f"config.task has tours of {longest} points (max_points, eval_sizes), but the shortest tour is "
                f"computed for at most {MAX_TOUR_POINTS}"
            )


class Geometry(GeneratedTask):
    """Convex hulls, Delaunay triangulations and shortest tours by pointing: implements transformer.tasks.task.Task."""

    denominator = "tokens"

    def __init__(self, config: GeometryConfig, rows_multiple: int = 1):
        rows = config.batch_size
        inputs = {
            "points": InputSpec((rows, config.max_points, 2), jnp.float32, Modality.POINTS),
            "lengths": InputSpec((rows,)),
            "target": InputSpec((rows, config.problem.max_answer_steps(config.max_points))),
        }
        interface = TaskInterface(
            inputs,
            # The end and the indices of the points, for models whose vocabulary is fixed.
            {"target": config.max_points + 1},
            pad_id=POINTER_END,
            bos_id=POINTER_END,
            eos_id=POINTER_END,
            output=POINTER_PREDICTION.output,
        )
        super().__init__(config, interface, config.problem.value, rows_multiple)

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample a batch with all numbers of points."""
        config = self.config
        points_BxNx2 = sample_points(random, config.batch_size, config.max_points)
        lengths_B = random.integers(config.min_points, config.max_points + 1, config.batch_size)
        return self._order_and_answer(points_BxNx2, lengths_B)

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Sample held-out examples with the largest number of points of training."""
        return self._sample_size(self.config.max_points, self.config.num_probe_examples, (VALIDATION_SEED, 0, 0))

    def _sample_size(self, count: int, rows: int, seed: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Sample examples with one number of points."""
        return self._order_and_answer(sample_points(random_generator(*seed), rows, count), np.full(rows, count))

    def _order_and_answer(
        self, points_BxNx2: Float[np.ndarray, "B N 2"], lengths_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the points in the order in which the model reads them, and their answers."""
        places_BxN = self.config.point_order.order_points(points_BxNx2, lengths_B)
        return make_batch(self.config.problem, np.take_along_axis(points_BxNx2, places_BxN[..., None], 1), lengths_B)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of steps of all answers, including their ends."""
        return {"tokens": jnp.sum(_point_counts(batch)).astype(jnp.float32)}

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(next point) in nats and the points that are predicted correctly."""
        logits, aux = self.apply_model(view, batch, key)
        sums = token_loss(logits, jnp.asarray(batch["labels"]), _point_counts(batch), label_smoothing=0.0)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the loss, and of constrained and free answers for each number of points."""
        config, at_end = self.config, split == "test"
        longest = max(config.eval_sizes)
        batches = [
            pad_batch(
                self._sample_size(count, config.num_eval_examples, (seed, 1, count)),
                longest,
                config.problem.max_answer_steps(longest),
            )
            for count in config.eval_sizes
        ]
        return (
            Evaluation("loss", split, self.held_out_batches(seed), self.evaluation_step, report_means, at_end),
            self._answer_evaluation("constrained", split, batches, at_end),
            self._answer_evaluation("free", split, batches, at_end),
        )

    def _answer_evaluation(self, name: str, split: str, batches: Sequence[Batch], at_end: bool) -> Evaluation:
        config = self.config

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            scalars: dict[str, float] = {}
            tokens = rows["tokens"]
            for number, (count, batch) in enumerate(zip(config.eval_sizes, batches, strict=True)):
                decoded = [
                    decode_point_indices(row)
                    for row in tokens[number * config.num_eval_examples :][: config.num_eval_examples]
                ]
                answers = [answer if ended else None for answer, ended in decoded]
                truths = [decode_point_indices(row)[0] for row in np.asarray(batch["labels"])]
                metrics = geometry_metrics(
                    config.problem, list(np.asarray(batch["points"])[:, :count]), truths, answers
                )
                scalars |= {f"{name}/{what}/{count}": value for what, value in metrics.items()}
            return EvaluationReport(
                scalars, note=f"{config.num_eval_examples} examples of each number of points, {name} decoding"
            )

        return Evaluation(name, split, batches, self._decoding_steps[name == "constrained"], finish, at_end)

    @functools.cached_property
    def _decoding_steps(self) -> dict[bool, EvaluationStep]:
        """The steps that decode with and without constraints; those of both splits share their compilation."""
        return {constrained: self._decoding_step(constrained) for constrained in (True, False)}

    def _decoding_step(self, constrained: bool) -> EvaluationStep:
        config = self.config
        decoding = DecodingConfig(
            max_new_tokens=config.problem.max_answer_steps(max(config.eval_sizes)),
            num_beams=config.num_beams,
            length_penalty=0.0,
        )

        def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
            rollout = decode_answers(view, batch, config.problem, decoding, constrained=constrained)
            return {}, {"tokens": rollout.tokens[:, 0]}

        return step

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the points and answers of the probe, with gold alignments of each step."""
        points_BxNx2 = self.probe_batch["points"]
        return make_axis_labels(
            self.probe_batch, sites, PointOrder.DRAWN.order_points(points_BxNx2, self.probe_batch["lengths"])
        )

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Return the indices of the points of each text's answer, from 0; triangles are joined by commas.

        Decoding is constrained to valid answers.

        Raises:
            UserError: If a language, samples, stop strings or a coverage penalty is given, or a text is not points of
                the unit square.
        """
        config = self.config
        refuse_text_options(request, "points at points")
        examples = [parse_points(text) for text in request.texts]
        lengths_B = np.array([len(points_Nx2) for points_Nx2 in examples])
        longest = int(lengths_B.max())
        points_BxNx2 = np.zeros((len(examples), longest, 2), np.float32)
        for row, points_Nx2 in enumerate(examples):
            points_BxNx2[row, : len(points_Nx2)] = points_Nx2
        places_BxN = config.point_order.order_points(points_BxNx2, lengths_B)
        points_BxNx2 = np.take_along_axis(points_BxNx2, places_BxN[..., None], 1)
        batch = {"points": points_BxNx2, "lengths": lengths_B.astype(np.int32)}
        steps = config.problem.max_answer_steps(longest)
        decoding = DecodingConfig.with_request(
            request.decoding, max_new_tokens=steps, num_beams=config.num_beams, length_penalty=0.0
        )

        @jax.jit
        def run(variables: Any, batch: Batch) -> Array:
            run_view = view._replace(variables=variables)
            return decode_answers(run_view, batch, config.problem, decoding, constrained=True).tokens[:, 0]

        answers = [decode_point_indices(row)[0] for row in np.asarray(run(view.variables, batch))]
        predicted = batch | encode_answers(answers, steps)
        original_answers = [tuple(row[list(answer)].tolist()) for row, answer in zip(places_BxN, answers, strict=True)]
        lines = [format_answer(config.problem, answer) for answer in original_answers]
        return Predictions(
            lines, make_axis_labels(predicted, view.model.sites, places_BxN), make_capture_function(view, predicted)
        )


def make_batch(
    problem: Problem, points_BxNx2: Float[np.ndarray, "B N 2"], lengths_B: np.ndarray
) -> dict[str, np.ndarray]:
    """Return points with their answers: `target` is what the decoder reads, `labels` is one step ahead.

    Args:
        problem: The problem.
        points_BxNx2: The points.
        lengths_B: The number of points of each example.

    Returns:
        The batch.
    """
    match problem:
        case Problem.HULL:
            answers = [convex_hull(points[:count]) for points, count in zip(points_BxNx2, lengths_B, strict=True)]
        case Problem.DELAUNAY:
            triangulations = [
                delaunay_triangulation(points[:count]) for points, count in zip(points_BxNx2, lengths_B, strict=True)
            ]
            answers = [tuple(index for triangle in triangles for index in triangle) for triangles in triangulations]
        case Problem.TOUR:
            answers = [()] * len(lengths_B)
            for count in np.unique(lengths_B):
                (rows,) = np.nonzero(lengths_B == count)
                for row, tour in zip(rows, shortest_tours(points_BxNx2[rows, :count]), strict=True):
                    answers[row] = tuple(tour.tolist())
    points_BxNx2 = np.where((np.arange(points_BxNx2.shape[1]) < lengths_B[:, None])[..., None], points_BxNx2, 0)
    encoded = encode_answers(answers, problem.max_answer_steps(points_BxNx2.shape[1]))
    return {"points": points_BxNx2, "lengths": lengths_B.astype(np.int32), **encoded}


def encode_answers(answers: Sequence[Answer], steps: int) -> dict[str, np.ndarray]:
    """Encode answers as the decoder's inputs and labels, in which point i is i + 1 and END is 0.

    Args:
        answers: The indices of the points of each answer.
        steps: The number of steps T to pad to.

    Returns:
        `target` [B, T], which starts with END, and `labels` [B, T], which end with it.
    """
    target, labels = np.full((2, len(answers), steps), POINTER_END, np.int32)
    for row, answer in enumerate(answers):
        labels[row, : len(answer)] = np.add(answer, 1)
        read_points = answer[: steps - 1]
        target[row, 1 : len(read_points) + 1] = np.add(read_points, 1)
    return {"target": target, "labels": labels}


def pad_batch(batch: Batch, points: int, steps: int) -> dict[str, np.ndarray]:
    """Pad a batch.

    Args:
        batch: The batch.
        points: The number of points to pad to.
        steps: The number of steps to pad to.

    Returns:
        The padded batch.
    """
    room = {"points": points, "target": steps, "labels": steps}

    def wide(name: str, values: np.ndarray) -> np.ndarray:
        missing = room[name] - values.shape[1] if name in room else 0
        return np.pad(values, ((0, 0), (0, missing), *((0, 0),) * (values.ndim - 2))) if missing else values

    return {name: wide(name, np.asarray(values)) for name, values in batch.items()}


def parse_points(text: str) -> Float[np.ndarray, "N 2"]:
    """Parse the points of a text such as "0.1,0.2 0.5,0.9 0.7,0.3".

    Raises:
        UserError: If the text is not a list of at least three points of the unit square.
    """
    advice = "give at least 3 points of the unit square, such as 0.1,0.2 0.5,0.9 0.7,0.3"
    try:
        points_Nx2 = np.array([[float(number) for number in word.split(",")] for word in text.split()], np.float32)
    except ValueError:
        raise UserError(f"{text[:40]!r} is no list of points: {advice}") from None
    inside = points_Nx2.ndim == 2 and points_Nx2.shape[1:] == (2,) and np.all((points_Nx2 >= 0) & (points_Nx2 <= 1))
    if not inside or len(points_Nx2) < 3:
        raise UserError(f"{text[:40]!r} is no list of points: {advice}")
    return points_Nx2


def format_answer(problem: Problem, answer: Answer) -> str:
    """Format an answer as text.

    Args:
        problem: The problem, which decides whether the answer is a list of triangles.
        answer: The indices of the points.

    Returns:
        The indices, separated by spaces; those of one triangle by commas.
    """
    size = 3 if problem is Problem.DELAUNAY else 1
    return " ".join(",".join(map(str, answer[place : place + size])) for place in range(0, len(answer), size))


def make_axis_labels(batch: Batch, sites: Sequence[Site], names_BxN: Int[np.ndarray, "B N"]) -> AxisLabels:
    """Label the maps of a batch.

    Args:
        batch: The batch.
        sites: The attention modules of the model.
        names_BxN: The number by which the user knows each point.

    Returns:
        The points with number and coordinates, with the end in front where a model points at it, and the steps with the
        point that each should point at or, over the encoder's outputs, predict.
    """
    points, steps, links = [], [], []
    rows = zip(batch["points"], batch["lengths"], batch["target"], names_BxN, strict=True)
    for points_Nx2, length, row, names in rows:
        answer, _ = decode_point_indices([*row[1:], POINTER_END])
        real = zip(names[:length], points_Nx2[:length], strict=True)
        points.append(("end", *(f"{name} ({x:.2f}, {y:.2f})" for name, (x, y) in real)))
        steps.append((*(str(names[index]) for index in answer), "end"))
        keys = [*(index + 1 for index in answer), POINTER_END]
        links.append(tuple(GoldAlignment(step, key, True) for step, key in enumerate(keys)))
    titles = tuple(
        f"{len(names) - 1} points: {' '.join(step_names[:-1])}" for names, step_names in zip(points, steps, strict=True)
    )
    tokens = {"points": tuple(points), "target": tuple(steps)}
    gold = {site.name: tuple(links) for site in sites_between(sites, "target", "points")}
    for site in sites_between(sites, "target", "encoded points"):
        # The end is none of the encoder's outputs.
        tokens["encoded points"] = tuple(names[1:] for names in points)
        gold[site.name] = tuple(
            tuple(link._replace(key=link.key - 1) for link in row if link.key != POINTER_END) for row in links
        )
    return AxisLabels(tokens, titles, gold or None)


def _point_counts(batch: Batch) -> Array:
    """Return the steps that are scored: the first, and all that read a point."""
    target_BxT = jnp.asarray(batch["target"])
    return (target_BxT != POINTER_END).at[:, 0].set(True)


TASK = TaskSpec(GeometryConfig, Geometry)
