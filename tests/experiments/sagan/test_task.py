"""Paired canvases: what is drawn, both losses, who trains what, judges on canvases by hand, a distance of features."""

import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.sagan.data import NearestNeighborClassifier, sample_pairs, split_halves
from experiments.sagan.metrics import HalfPredictions, frechet_distance, generation_metrics, is_consistent
from experiments.sagan.task import PairedDigits, PairedDigitsConfig, tile_images
from transformer.config import UserError
from transformer.data.synthetic_glyphs import DIGITS, draw_glyphs
from transformer.models.model import leaves_by_path
from transformer.tasks.task import PredictionRequest
from transformer.training.build import TrainingComponents, build_components
from transformer.training.compiled_evaluation import compile_evaluations, evaluation_view
from transformer.training.config import resolve_config
from transformer.training.partitioning import single_device_placement
from transformer.training.state import TrainState
from transformer.training.step import make_train_step

SMALL: dict[str, Any] = {
    "name": "small",
    "steps": 4,
    "parameter_averages": {"smooth": {"kind": "exponential", "decay": 0.5, "patterns": ("generator/*",)}},
    "task": {
        "name": "experiments.sagan.task",
        "digits": "0147",
        "image_height": 8,
        "noise_size": 4,
        "batch_size": 8,
        "num_eval_examples": 16,
        "eval_parameters": "smooth",
    },
    "model": {
        "family": "experiments.sagan.model",
        "channels": (4, 4),
        "attention_grids": (4,),
        "reduction": 2,
        "classifier_channels": (4,),
    },
    "optimizer": {"learning_rate": 0.02, "schedule": "constant", "warmup_steps": 0, "beta1": 0.0, "beta2": 0.9},
    "optimizers": {"generator": {"learning_rate": 0.005}},
}


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> TrainingComponents:
    return build_components(resolve_config(SMALL), tmp_path_factory.mktemp("run"), single_device_placement())


@pytest.fixture(scope="module")
def first(components: TrainingComponents) -> TrainState:
    return components.init_state(jax.random.key(3))


def test_canvases_have_one_digit_on_both_halves_drawn_differently() -> None:
    task = PairedDigits(PairedDigitsConfig(digits="38", image_height=16, batch_size=64))
    batch = task.training_batches(0)[0]
    assert batch["image"].shape == (64, 16, 32, 1)
    assert set(batch["labels"]) == {3, 8}
    assert (batch["image"].min(), batch["image"].max()) == (-1, 1)
    left, right = batch["image"][:, :, :16], batch["image"][:, :, 16:]
    assert np.abs(left - right).max(axis=(1, 2, 3)).min() > 0.1
    np.testing.assert_array_equal(batch["image"], task.training_batches(0)[0]["image"])
    assert np.any(batch["noise"] != task.training_batches(0)[1]["noise"])
    cut = np.asarray(split_halves(jnp.asarray(batch["image"])))
    np.testing.assert_array_equal(cut[::2], left)
    np.testing.assert_array_equal(cut[1::2], right)


def test_the_nearest_drawing_reads_drawn_digits_and_is_not_sure_of_anything_else() -> None:
    random = np.random.default_rng(5)
    names = list(DIGITS) * 20
    judge = NearestNeighborClassifier.from_glyphs(tuple(DIGITS), 16)
    images = 2 * draw_glyphs(names, 16, random)[..., None] - 1
    judge_all = jax.jit(lambda images: judge(images))
    reading = jax.device_get(judge_all(images))
    assert np.mean(np.asarray(reading.glyph_indices) == np.arange(200) % 10) > 0.97
    assert np.mean(reading.is_confident) > 0.96
    for other in (np.zeros_like(images[:3]), random.uniform(-1, 1, (3, 16, 16, 1)), -images[:3]):
        assert not np.any(judge_all(other).is_confident)
    distance = np.sqrt(np.mean((images[0].reshape(-1) - judge.drawings_GxKxP) ** 2, axis=-1)).min(axis=-1)
    np.testing.assert_allclose(reading.features[0], distance, atol=1e-4)


def test_a_judge_of_canvases_by_hand() -> None:
    glyphs, sure = np.array([[3, 3], [3, 5], [4, 4], [5, 5]]), np.array([[1, 1], [1, 1], [1, 0], [1, 1]], bool)
    made = HalfPredictions(glyphs, sure, np.random.default_rng(0).normal(size=(4, 2)))
    assert is_consistent(made).tolist() == [True, False, False, True]
    numbers = generation_metrics(made, made, np.array([3, 3, 4, 4]))
    assert numbers["consistency"] == 0.5
    assert numbers["digit_match"] == 0.75
    assert numbers["confident"] == 7 / 8
    shares = np.array([3, 2, 3]) / 8
    assert numbers["effective_classes"] == pytest.approx(np.prod(shares**-shares))
    assert numbers["frechet_distance"] == pytest.approx(0, abs=1e-9)
    assert numbers["real/accuracy"] == 5 / 8
    assert numbers["real/consistency"] == 0.5


def test_drawn_canvases_are_consistent_and_mixed_ones_are_not() -> None:
    random = np.random.default_rng(1)
    judge = NearestNeighborClassifier.from_glyphs("0147", 16)
    canvases = sample_pairs(random, "0147", 40, 16)
    mixed = np.concatenate([canvases.images[:, :, :16], np.roll(canvases.images, 1, axis=0)[:, :, 16:]], axis=2)
    judge_halves = jax.jit(lambda images: judge(split_halves(images)))
    for images, expected in (
        (canvases.images, np.ones(40, bool)),
        (mixed, canvases.glyph_indices == np.roll(canvases.glyph_indices, 1)),
    ):
        reading = judge_halves(images)
        judged = HalfPredictions(*(np.asarray(part).reshape(40, 2, -1)[..., 0] for part in reading))
        assert np.mean(is_consistent(judged) == expected) > 0.9


def test_the_distance_of_known_normal_distributions() -> None:
    random, count = np.random.default_rng(0), 400
    # Features whose sample mean and covariance are exactly these.
    white = random.normal(size=(count, 3))
    white -= white.mean(axis=0)
    white @= np.linalg.inv(np.linalg.cholesky(np.cov(white, rowvar=False))).T
    scales, others, apart = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 0.5]), np.array([1.0, -2.0, 0.0])
    expected = np.sum(apart**2) + np.sum((scales - others) ** 2)  # of independent features
    assert frechet_distance(white * scales, white * others + apart) == pytest.approx(expected, rel=1e-9)
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    assert frechet_distance(white * scales @ turn, (white * others + apart) @ turn) == pytest.approx(expected, rel=1e-9)
    # Covariances that do not commute, against the eigenvalues of their product.
    one, other = white @ random.normal(size=(3, 3)), white @ random.normal(size=(3, 3))
    covariances = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    root = np.sqrt(np.linalg.eigvals(covariances[0] @ covariances[1]).real).sum()
    known = np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * root
    assert frechet_distance(one, other) == pytest.approx(known, rel=1e-8)
    # Fewer examples than features: the covariances are singular.
    few = random.normal(size=(4, 9))
    assert frechet_distance(few, few + 1) == pytest.approx(9, rel=1e-6)


@pytest.mark.slow
def test_losses_are_the_hinges_of_the_scores(components: TrainingComponents, first: TrainState) -> None:
    task, model, variables = components.task, components.model, first.variables
    batch = task.training_batches(1)[0]
    view = evaluation_view(model, first, "raw")
    params = jax.tree.map(jnp.array, variables.params)
    params["discriminator"]["last"]["bias"] += 0.5

    @jax.jit
    def run(params: Any) -> Any:
        seen = view._replace(variables=variables._replace(params=params))
        made, _ = model.apply(seen.variables, {"noise": batch["noise"]}, train=False)
        scores = [
            model.apply(seen.variables, {"image": x}, method="score", train=False)[0] for x in (batch["image"], made)
        ]
        denominators, key = task.denominators(batch), jax.random.key(0)
        losses = [objective.loss_fn(seen, batch, denominators, key) for objective in task.objectives]
        return scores, [(loss, aux.metrics) for loss, aux in losses]

    scores, (of_discriminator, of_generator) = run(params)
    scores = [np.asarray(each, np.float64) for each in scores]
    assert scores[0].min() < 1 or scores[1].max() > -1
    hinges = np.mean(np.maximum(0, 1 - scores[0])) + np.mean(np.maximum(0, 1 + scores[1]))
    assert float(of_discriminator[0]) == pytest.approx(hinges, rel=1e-5)
    assert float(of_discriminator[1]["real_score"]) == pytest.approx(scores[0].mean(), rel=1e-5)
    assert float(of_discriminator[1]["fake_score"]) == pytest.approx(scores[1].mean(), rel=1e-5)
    assert float(of_generator[0]) == pytest.approx(-scores[1].mean(), rel=1e-5)


def test_each_objective_moves_its_player_alone_and_the_average_is_of_the_generator(
    components: TrainingComponents, first: TrainState
) -> None:
    experiment = resolve_config(SMALL)
    step = jax.jit(
        make_train_step(components.model, components.task, components.optimizers, experiment.parameter_averages)
    )
    state, metrics = step(first, components.task.training_batches(1)[0])
    state, metrics = step(state, components.task.training_batches(1)[1])
    before, after = leaves_by_path(first.variables.params), leaves_by_path(state.variables.params)
    still = {path for path in after if np.array_equal(before[path], after[path])}
    assert {path for path in after if path.startswith("classifier/")} <= still
    moved = set(after) - still
    for player in ("generator", "discriminator"):
        assert f"{player}/attention_4/gamma" in moved
        assert f"{player}/last/kernel" in moved
        of_optimizer = leaves_by_path(state.optimizers[player])
        assert all(player in path for path in of_optimizer if "kernel" in path)
        assert float(metrics.values[f"{player}/gamma_4"]) > 0
    assert set(state.averages["smooth"]) == {path for path in after if path.startswith("generator/")}
    path = "generator/last/kernel"
    assert np.any(np.asarray(state.averages["smooth"][path]) != after[path])
    rates = [float(metrics.values[f"{player}/learning_rate"]) for player in ("discriminator", "generator")]
    assert rates == pytest.approx([0.02, 0.005])


def test_an_evaluation_reports_by_every_judge_and_writes_its_samples(
    components: TrainingComponents, first: TrainState
) -> None:
    task = components.task
    (evaluate, _) = compile_evaluations(components.model, task.evaluations, components.placement)
    report = evaluate(first)
    names = (
        "consistency",
        "digit_match",
        "confident",
        "effective_classes",
        "frechet_distance",
        "real/accuracy",
        "real/consistency",
    )
    assert set(report.scalars) == {f"{judge}/{name}" for judge in ("nearest", "classifier") for name in names}
    assert report.scalars["nearest/real/accuracy"] > 0.9
    assert report.scalars["nearest/consistency"] < 0.1 < report.scalars["nearest/frechet_distance"]
    assert "16 samples" in report.note
    assert "samples/validation_0.png" in report.note
    (written,) = Path(task.directory / "samples").iterdir()
    content = written.read_bytes()
    assert content.startswith(b"\x89PNG")
    start = content.index(b"IDAT") + 4
    rows = zlib.decompress(content[start : content.index(b"IEND") - 8])
    assert len(rows) == 2 * 10 * (8 * 18 + 1)  # two rows of 8 canvases, a line around each
    assert report.samples[0]["source"] == "sample 1"
    assert {sample["image"] for sample in report.samples} == {"samples/validation_0.png"}


def test_a_wall_has_each_image_at_its_place() -> None:
    pixels = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    wall = tile_images(pixels, across=4)
    assert wall.shape == (3 * 4, 4 * 5)
    assert [[int(wall[4 * row + 1, 5 * column + 1]) for column in range(4)] for row in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 128, 128],
    ]
    assert np.all(wall[0] == 128)


def test_a_run_answers_by_canvases_of_seeds_and_refuses_all_else(
    components: TrainingComponents, first: TrainState
) -> None:
    view = evaluation_view(components.model, first, "smooth")
    answers = components.task.predict(view, PredictionRequest(["7", "8"]))
    assert [len(line.split()) for line in answers.lines] == [2, 2]
    assert set(answers.labels.images) == {"sample_4", "canvas_4"}
    assert answers.labels.images["sample_4"].shape == (2, 8, 16, 3)
    for wrong in (
        PredictionRequest(["seven"]),
        PredictionRequest(["7"], "de"),
        PredictionRequest(["7"], None, {"num_beams": 4}),
    ):
        with pytest.raises(UserError):
            components.task.predict(view, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"digits": "33"},
        {"digits": ""},
        {"digits": "3a"},
        {"image_height": 7},
        {"noise_size": 0},
        {"batch_size": 0},
        {"num_eval_examples": 1},
        {"confidence": 1.5},
        {"num_probe_examples": 0},
    ],
)
def test_unfit_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        PairedDigitsConfig(**wrong)
