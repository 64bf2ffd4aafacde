"""Generate images of two equal digits: a GAN's losses, and sample metrics by classifiers."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt8

from experiments.sagan.data import ClassifierPredictions, NearestNeighborClassifier, sample_pairs, split_halves
from experiments.sagan.metrics import HalfPredictions, generation_metrics
from experiments.sagan.signature import IMAGE_GENERATION
from transformer.attention.capture import Capture
from transformer.attention.sites import Site
from transformer.config import BatchSize, Config, Fraction, NumDisplayedExamples, PositiveInt, Range, UserError
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    first_batches,
)
from transformer.data.images import unscale_pixels
from transformer.data.png import encode_png
from transformer.data.synthetic_glyphs import DIGITS
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.storage.paths import storage_of
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, check_batch_size, refuse_decoding_options
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

_SAMPLES_IN_GRID = 32  # samples on the wall of images that an evaluation writes, 8 in a row
CLASSIFIER = "classifier"


@dataclasses.dataclass(frozen=True)
class PairedDigitsConfig(Config, path="config.task"):
    """Generation of images of `image_height` x 2 `image_height` that show one digit twice.

    Attributes:
        digits: The digits.
        image_height: The height of an image in pixels.
        noise_size: The dimensions of the latent noise.
        batch_size: Images in a batch.
        num_eval_examples: Samples to evaluate, rounded up to whole batches.
        confidence: The probability from which the model's own classifier is confident of a half's digit.
        num_probe_examples: Samples and images whose maps are stored.
        eval_parameters: "raw", or an average of the run, such as one of "generator/*".

    Raises:
        UserError: If a value is out of range.
    """

    digits: str = "0123456789"
    image_height: Annotated[int, Range(8, 2**12, ": smaller digits are not told apart")] = 16
    noise_size: PositiveInt = 32
    batch_size: BatchSize = 64
    num_eval_examples: Annotated[int, Range(2, 2**22, ": one has no covariance")] = 1024
    confidence: Fraction = 0.9
    num_probe_examples: NumDisplayedExamples = 4
    eval_parameters: str = "raw"

    def _check(self) -> None:
        if not self.digits or len(set(self.digits)) < len(self.digits) or not set(self.digits) <= set(DIGITS):
            raise UserError(f"config.task.digits={self.digits!r} must be different digits, at least one")


class PairedDigits(BaseTask):
    """Generation of digit pairs: implements transformer.tasks.task.Task.

    Args:
        config: The config.
        directory: The run directory, into which evaluations write their first samples as `samples/SPLIT_STEP.png`; None
            to write none.
        rows_multiple: The number that the rows of a batch must be a multiple of.
    """

    def __init__(self, config: PairedDigitsConfig, directory: Path | None = None, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.directory = config, directory
        self.nearest = NearestNeighborClassifier.from_glyphs(config.digits, config.image_height)
        inputs = {
            "noise": InputSpec((config.batch_size, config.noise_size), jnp.float32, Modality.POINTS),
            "image": InputSpec(
                (config.batch_size, config.image_height, 2 * config.image_height, 1), jnp.float32, Modality.IMAGE
            ),
        }
        # The classifier may be a run of image_classification, which knows all digits.
        self.interface = TaskInterface(inputs, {"classes": len(DIGITS)}, output=IMAGE_GENERATION.output)
        discriminator = Objective("discriminator", self._discriminator_loss, trainable=("discriminator/*",))
        self.objectives = (discriminator, Objective("generator", self._generator_loss, trainable=("generator/*",)))
        self.evaluations = (self._evaluation("validation", VALIDATION_SEED), self._evaluation("test", TEST_SEED))
        first = self.training_batches(PROBE_SEED)[0]
        self._probe_examples = {name: values[: config.num_probe_examples] for name, values in first.items()}
        self.probe_batch = {name: self._probe_examples[name] for name in ("noise", "image")}

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of images and noise that are sampled anew at every step."""
        return GeneratedBatches(self._draw, seed)

    def _draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        config = self.config
        canvases = sample_pairs(random, config.digits, config.batch_size, config.image_height)
        numbers = np.array([int(digit) for digit in config.digits], np.int32)
        noise = random.normal(size=(config.batch_size, config.noise_size)).astype(np.float32)
        return {"image": canvases.images, "noise": noise, "labels": numbers[canvases.glyph_indices]}

    def _discriminator_loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return E[max(0, 1 - D(x))] + E[max(0, 1 + D(G(z)))] (Zhang et al. 2019, equation 4).

        Images of both kinds are scored in one pass, so that the discriminator's state is updated once. `real_score`
        and `fake_score` are means.
        """
        generated, _ = self._generate(view, batch)
        real_and_generated = {"image": jnp.concatenate([jnp.asarray(batch["image"]), generated.astype(jnp.float32)])}
        capture = view.capture
        scores, aux = view.model.apply(
            view.variables, real_and_generated, method="score", train=view.train, capture=capture
        )
        real_B, fake_B = jnp.split(scores.astype(jnp.float32), 2)
        loss = jnp.sum(jax.nn.relu(1 - real_B) + jax.nn.relu(1 + fake_B)) / denominators["examples"]
        scores_by_kind = {"real_score": real_B, "fake_score": fake_B}
        means = {name: jnp.sum(scores_B) / denominators["examples"] for name, scores_B in scores_by_kind.items()}
        return loss, LossAux.from_aux(
            aux, view.task_state, {"loss": loss, **means, **_gammas(aux, len(real_B), denominators)}
        )

    def _generator_loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return -E[D(G(z))] (equation 4); the discriminator's state is not updated."""
        generated, aux = self._generate(view, batch)
        scores, _ = view.model.apply(view.variables, {"image": generated}, method="score", train=view.train)
        loss = -jnp.sum(scores.astype(jnp.float32)) / denominators["examples"]
        return loss, LossAux.from_aux(aux, view.task_state, {"loss": loss, **_gammas(aux, len(scores), denominators)})

    def _generate(self, view: StateView, batch: Batch) -> tuple[Float[Array, "B Y X 1"], Aux]:
        inputs = {"noise": jnp.asarray(batch["noise"])}
        return view.model.apply(view.variables, inputs, train=view.train, capture=view.capture)

    def _evaluation(self, split: str, seed: int) -> Evaluation:
        batches = first_batches(self.training_batches(seed), self.config.num_eval_examples, self.config.batch_size)

        def finish(sums: Mapping[str, float], rows: Mapping[str, Any]) -> EvaluationReport:
            return self._report(split, round(sums["step"] / sums["batches"]), rows)

        at_end, parameters = split == "test", self.config.eval_parameters
        return Evaluation("samples", split, batches, self._classify_samples, finish, at_end, parameters)

    def _classify_samples(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
        """Return samples, and every classifier's predictions of them and of real images."""
        generated = self._generate(view, batch)[0].astype(jnp.float32)
        rows: dict[str, Any] = {"made": generated, "labels": jnp.asarray(batch["labels"])}
        for kind, images in (("made", generated), ("drawn", jnp.asarray(batch["image"]))):
            for name, prediction in self._predictions(view, images).items():
                glyphs, is_confident, features = (part.reshape(len(generated), 2, -1) for part in prediction)
                parts = (glyphs[..., 0], is_confident[..., 0], features.reshape(len(generated), -1))
                rows[f"{name} of {kind}"] = dict(zip(HalfPredictions._fields, parts, strict=True))
        return {"step": view.step.astype(jnp.float32), "batches": jnp.float32(1)}, rows

    def _predictions(self, view: StateView, images: Float[Array, "B Y X 1"]) -> dict[str, ClassifierPredictions]:
        """Classify every half by the nearest drawing and, if the model has one, by its classifier."""
        halves = split_halves(images)
        nearest = self.nearest(halves)
        numbers = jnp.asarray([int(digit) for digit in self.config.digits])
        predictions = {"nearest": nearest._replace(glyph_indices=numbers[nearest.glyph_indices])}
        if CLASSIFIER in view.variables.params:
            outputs, _ = view.model.apply(view.variables, {"image": halves}, method="classify", train=False)
            shares = jax.nn.softmax(outputs["logits"].astype(jnp.float32))
            is_confident = jnp.max(shares, -1) >= self.config.confidence
            predictions[CLASSIFIER] = ClassifierPredictions(
                jnp.argmax(shares, -1), is_confident, outputs["features"].astype(jnp.float32)
            )
        return predictions

    def _report(self, split: str, step: int, rows: Mapping[str, Any]) -> EvaluationReport:
        classifiers = [name for name in ("nearest", CLASSIFIER) if f"{name} of made" in rows]
        scalars: dict[str, float] = {}
        for name in classifiers:
            generated, real = (HalfPredictions(**rows[f"{name} of {kind}"]) for kind in ("made", "drawn"))
            numbers = generation_metrics(generated, real, np.asarray(rows["labels"]))
            scalars |= {f"{name}/{what}": value for what, value in numbers.items()}
        note = f"{len(rows['made'])} samples; classified by {' and '.join(classifiers)}"
        images = unscale_pixels(np.asarray(rows["made"][:_SAMPLES_IN_GRID], np.float32))
        image: dict[str, str] = {}
        if self.directory is not None and jax.process_index() == 0:
            where = f"samples/{split}_{step}.png"
            (self.directory / "samples").mkdir(exist_ok=True)
            storage_of(self.directory).replace(self.directory / where, encode_png(tile_images(images)))
            note += f"; {where}"
            image = {"image": where}
        left_right = rows[f"{classifiers[-1]} of made"]["glyphs"][: len(images)]
        # The page compares what was said with its reference: here the right half with the left one.
        samples = [
            {"source": f"sample {number}", "target": str(left), "output": str(right)} | image
            for number, (left, right) in enumerate(left_right, 1)
        ]
        return EvaluationReport(scalars, samples, note)

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """Return the generator's maps for fixed noise, and the discriminator's for real images."""
        return _run_players(view, self.probe_batch, capture)

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the discriminator's maps with the real images; generated ones change during training."""
        titles = [
            f"noise {number}, canvas {label} {label}" for number, label in enumerate(self._probe_examples["labels"], 1)
        ]
        return label_player_maps(sites, "discriminator", self._probe_examples["image"], titles)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Generate an image for each text, a seed of its noise, and classify it by the nearest drawings.

        Maps of both players are for the generated images.

        Raises:
            UserError: If a language or a decoding option is given, or a text is no whole number.
        """
        refuse_decoding_options(request, "makes canvases from noise")
        seeds = [_seed(text) for text in request.texts]
        noise = np.stack([np.random.default_rng(seed).normal(size=self.config.noise_size) for seed in seeds])
        inputs = {"noise": noise.astype(np.float32)}
        generated, _ = jax.jit(lambda variables: view.model.apply(variables, inputs, train=False))(view.variables)
        prediction = self.nearest(split_halves(generated))
        digits = [self.config.digits[glyph] for glyph in np.asarray(prediction.glyph_indices)]
        names = [
            digit if is_confident else f"{digit}?"
            for digit, is_confident in zip(digits, np.asarray(prediction.is_confident), strict=True)
        ]
        lines = [f"{left} {right}" for left, right in zip(names[::2], names[1::2], strict=True)]
        titles = [f"noise {seed}: {line}" for seed, line in zip(seeds, lines, strict=True)]

        def look(capture: Capture) -> Mapping[str, Any]:
            player_inputs = {**inputs, "image": generated}
            return jax.jit(
                lambda variables: _run_players(view._replace(variables=variables), player_inputs, capture).maps
            )(view.variables)

        labels = label_player_maps(view.model.sites, "", np.asarray(generated), titles)
        return Predictions(lines, labels, look)


def _run_players(view: StateView, inputs: Batch, capture: Capture) -> Aux:
    """Run both players, each on its own input."""
    noise, image = ({name: jnp.asarray(inputs[name])} for name in ("noise", "image"))
    _, generator_aux = view.model.apply(view.variables, noise, train=False, capture=capture)
    _, aux = view.model.apply(view.variables, image, method="score", train=False, capture=capture)
    return aux._replace(maps={**generator_aux.maps, **aux.maps})


def _gammas(aux: Aux, rows: int, denominators: Mapping[str, Array]) -> dict[str, Array]:
    """Return |gamma| of every attention, weighted by this microbatch's fraction of the batch."""
    return {name: value.astype(jnp.float32) * rows / denominators["examples"] for name, value in aux.extras.items()}


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UserError(f"{text[:40]!r} is no whole number: give the seed of a sample's noise, such as --text=7")
    return int(text)


def tile_images(pixels: UInt8[np.ndarray, "B Y X 1"], across: int = 8) -> UInt8[np.ndarray, "height width"]:
    """Tile gray images, with a gray line around each.

    Args:
        pixels: The images.
        across: The number of images in a row.

    Returns:
        One image.
    """
    missing = -len(pixels) % across
    padded = np.pad(pixels[..., 0], ((0, missing), (1, 1), (1, 1)), constant_values=128)
    _, rows, columns = padded.shape
    return padded.reshape(-1, across, rows, columns).swapaxes(1, 2).reshape(-1, across * columns)


def label_player_maps(
    sites: Sequence[Site], player: str, images: Float[np.ndarray, "B Y X 1"], titles: Sequence[str]
) -> AxisLabels:
    """Label the maps of a player with images.

    Args:
        sites: The attention modules.
        player: The player whose maps are labeled, as the start of the names of its modules; "" for both.
        images: The images.
        titles: The title of each image.

    Returns:
        The labels.
    """
    colored = np.repeat(unscale_pixels(np.asarray(images, np.float32)), 3, axis=-1)
    grids = sorted({site.key.name for site in sites if site.name.startswith(player)})
    return AxisLabels({}, tuple(titles), images=dict.fromkeys(grids, colored))


def build_synthetic_task(config: PairedDigitsConfig, rows_multiple: int = 1) -> PairedDigits:
    """Build the task; its data are synthetic anyway."""
    return PairedDigits(config, None, rows_multiple)


TASK = TaskSpec(PairedDigitsConfig, build_synthetic_task, build=PairedDigits)
