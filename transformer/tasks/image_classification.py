"""Image classification: predict the class of an image."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt8

from transformer.attention.sites import AxisKind, Site
from transformer.config import (
    BatchSize,
    NonNegativeInt,
    PositiveInt,
    Rate,
    UserError,
)
from transformer.data.batches import BatchSource, OneEpoch, fingerprint
from transformer.data.datasets.image_datasets import ImageDataset, open_image_dataset, placeholder_image_dataset
from transformer.data.datasets.image_files import (
    MAX_IMAGE_BYTES,
    ResampleFilter,
    ResizeShape,
    Resizing,
    decode_image,
)
from transformer.data.datasets.local_files import SPLITS, join_notes
from transformer.data.images import (
    IMAGE_SPEC_FILE,
    Augmentation,
    ImageBatches,
    ImageSpec,
    LabeledImages,
    Normalization,
    shuffle_patches,
)
from transformer.models.task_interface import IMAGE_CLASSIFICATION, InputSpec, Modality, TaskInterface
from transformer.storage.json_reading import read_regular_file
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    BaseTask,
    check_batch_size,
    check_input_texts,
    describe_splits,
    describe_top_classes,
    make_capture_function,
    real_rows,
    refuse_decoding_options,
    report_means,
)
from transformer.tasks.dataset_config import DatasetConfig
from transformer.tasks.losses import class_loss
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    Evaluation,
    InputReader,
    InputTexts,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)


@dataclasses.dataclass(frozen=True)
class ImageClassificationConfig(DatasetConfig):
    """Labeled images, and the augmentation of those that train.

    Attributes:
        dataset: "digits" or "glyphs", which are generated, with options as in "digits/size=20,train=2000"; or, in
            `data_dir`, a folder of files, "omniglot", or "tfds/NAME", a data set that TFDS has prepared
            (transformer.data.datasets.image_datasets).
        image_size: The side in pixels to which images in files are resized. None keeps their size.
        resize_side: If set, images are resized to this side and the middle `image_size` pixels are cropped.
        resample: The filter of resizing, which a published model's preprocessing fixes.
        resize_shape: Whether images are resized to a square, or in proportion with that shorter side.
        shuffled_patch_size: The side of patches that are permuted, in all images alike and after augmentation, so that
            neighbors are far apart. 0 is none.
        batch_size: Images in a batch.
        augmentation: The augmentation of training images.
        normalization: The mean and the deviation of pixels.
        label_smoothing: The label smoothing of the training loss.

    Raises:
        UserError: If a value is out of range.
    """

    dataset: str = "digits"
    image_size: PositiveInt | None = None
    resize_side: int | None = None
    resample: ResampleFilter = ResampleFilter.BILINEAR
    resize_shape: ResizeShape = ResizeShape.SQUARE
    shuffled_patch_size: NonNegativeInt = 0
    batch_size: BatchSize = 64
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)
    normalization: Normalization = dataclasses.field(default_factory=Normalization)
    label_smoothing: Rate = 0.0

    def _check(self) -> None:
        _ = self.resizing  # which checks its values

    @property
    def resizing(self) -> Resizing:
        """How images in files are resized."""
        return Resizing(self.image_size, self.resize_side, self.resample, self.resize_shape)


class ImageClassification(BaseTask):
    """The task of image classification; implements transformer.tasks.task.Task."""

    def __init__(self, config: ImageClassificationConfig, dataset: ImageDataset, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.classes = config, dataset.classes
        unused_splits = [split for split in dataset.splits if split not in (*SPLITS, *config.eval_splits)]
        self.split_note = join_notes(
            (dataset.split_note, f"splits that are not used: {', '.join(unused_splits)}" if unused_splits else "")
        )
        self.splits = {name: dataset.split(name) for name in ("train", *config.eval_splits)}
        self.interface = make_task_interface(config, dataset.facts)
        self.objectives = (Objective("classification", self._loss),)
        self.evaluations = tuple(self._evaluation(split) for split in config.eval_splits)
        held_out = self.splits[config.validation_split]
        count = min(config.num_probe_examples, len(held_out.labels))
        probe_indices = np.linspace(0, len(held_out.labels) - 1, count).astype(int)
        self._probe_images = LabeledImages(
            shuffle_patches(held_out.pixels[probe_indices], config.shuffled_patch_size), held_out.labels[probe_indices]
        )
        self.probe_batch = {"image": config.normalization(self._probe_images.pixels)}

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every split's pixels and classes."""
        return {name: fingerprint(split) for name, split in self.splits.items()}

    @property
    def data_summary(self) -> tuple[str, ...]:
        """How many images each split has."""
        sizes = {name: len(split.labels) for name, split in self.splits.items()}
        return (describe_splits(self.config.dataset, sizes, "images", self.split_note),)

    def _batches(self, split: str, seed: int | None) -> ImageBatches:
        config, images = self.config, self.splits[split]
        augmentation, normalize = config.augmentation, config.normalization
        return ImageBatches(
            images,
            rows=config.batch_size,
            seed=seed,
            augmentation=augmentation,
            normalize=normalize,
            shuffled_by=config.shuffled_patch_size,
        )

    def training_batches(self, seed: int) -> BatchSource:
        """Return the training images, epoch after epoch, augmented anew each time."""
        return self._batches("train", seed)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of images, without rows that only fill up a batch."""
        return {"examples": jnp.sum(real_rows(batch)).astype(jnp.float32)}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the mean over the images of -sum_c t_c log p(c), in nats, where t are the mixed labels.

        `accuracy` is the share of images whose most probable class has the larger part of the mixture.
        """
        logits_BxC, aux = self._logits(view, batch, key)
        labels_B, others_B = jnp.asarray(batch["labels"]), jnp.asarray(batch["others"])
        share_B, real_B = jnp.asarray(batch["share"]), real_rows(batch)
        log_BxC = jax.nn.log_softmax(logits_BxC.astype(jnp.promote_types(logits_BxC.dtype, jnp.float32)))
        nats_B = share_B * _nats(log_BxC, labels_B) + (1 - share_B) * _nats(log_BxC, others_B)
        smoothing = self.config.label_smoothing
        smoothed_B = (1 - smoothing) * nats_B - smoothing * jnp.mean(log_BxC, axis=-1)
        right_B = jnp.argmax(log_BxC, axis=-1) == jnp.where(share_B >= 0.5, labels_B, others_B)
        metrics = {
            name: jnp.sum(jnp.where(real_B, values, 0)) / denominators["examples"]
            for name, values in (("loss", smoothed_B), ("cross_entropy", nats_B), ("accuracy", right_B))
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _logits(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[Float[Array, "B C"], Any]:
        inputs = {"image": jnp.asarray(batch["image"])}
        return view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)

    def _evaluation(self, split: str) -> Evaluation:
        return Evaluation(
            name="classification",
            split=split,
            batches=OneEpoch(self._batches(split, None)),
            step=self._sums,
            finish=functools.partial(report_means, by="examples"),
            at_end=split != self.config.validation_split,
            parameters=self.config.eval_parameters,
        )

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        logits_BxC, _ = self._logits(view, batch, None)
        sums = class_loss(logits_BxC, jnp.asarray(batch["labels"]), real_rows(batch))
        return {"loss": sums.cross_entropy, "accuracy": sums.correct, **self.denominators(batch)}, None

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the probe images, and their classes as titles."""
        titles = [f"{self.classes[label]} {number}" for number, label in enumerate(self._probe_images.labels, 1)]
        return image_axis_labels(sites, self._probe_images.pixels, titles)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Predict the most probable class of the image in each file, and its probability.

        Raises:
            UserError: If a target language or a decoding option is given, or a file is not an image.
        """
        refuse_decoding_options(request, "classifies")
        pixels = read_image_files(self.config, self.interface.inputs["image"].shape[1:], request.texts)
        inputs = {"image": jnp.asarray(self.config.normalization(pixels))}
        logits_BxC, _ = view.model.apply(view.variables, inputs, train=False)
        lines = describe_top_classes(logits_BxC, self.classes)
        titles = [f"{line}: {Path(text).name}" for line, text in zip(lines, request.texts, strict=True)]
        return Predictions(
            lines, image_axis_labels(view.model.sites, pixels, titles), make_capture_function(view, inputs)
        )


def make_task_interface(config: ImageClassificationConfig, facts: ImageSpec) -> TaskInterface:
    """Return what the task requires of a model: a logit for each class of the images."""
    return TaskInterface(
        {"image": InputSpec((config.batch_size, *facts.shape), jnp.float32, Modality.IMAGE)},
        {"classes": len(facts.classes)},
        output=IMAGE_CLASSIFICATION.output,
        class_names=facts.classes,
    )


def read_image_files(
    config: ImageClassificationConfig, shape: tuple[int, ...], names: Sequence[str]
) -> UInt8[np.ndarray, "B height width channels"]:
    """Read images from files and preprocess them like the task's: resized, gray if those are, patches permuted.

    Args:
        config: The task's config.
        shape: The shape of the task's images, [height, width, channels].
        names: The paths of the files.

    Raises:
        UserError: If a path is not a file, a file is not an image, or the task's images are not square.
    """
    height, width, channels = shape
    if height != width:
        raise UserError(f"this run's images are {width} x {height} pixels: only square ones are read from files")
    resizing = dataclasses.replace(config.resizing, image_size=height)
    pixels = []
    for name in names:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(f"{name[:200]!r} is no file: name a JPEG or PNG image, which this model reads")
        pixels.append(decode_image(read_regular_file(path, MAX_IMAGE_BYTES), str(path), resizing, gray=channels == 1))
    read = np.stack(pixels)
    return shuffle_patches(read, config.shuffled_patch_size)


def encode_inputs(
    config: ImageClassificationConfig, view: StateView, facts: ImageSpec, sentences: InputTexts
) -> EncodedInputs:
    """Read the images in the files that the texts name.

    Args:
        config: The task's config.
        view: The state.
        facts: The shape and the classes of the run's images.
        sentences: The paths of the files.

    Raises:
        UserError: If a path is not a file, a file is not an image, the task's images are not square, or a target or a
            language is given.
    """
    check_input_texts(sentences)
    pixels = read_image_files(config, facts.shape, sentences.texts)
    titles = [Path(text).name for text in sentences.texts]
    return EncodedInputs(
        {"image": config.normalization(pixels)}, "forward", image_axis_labels(view.model.sites, pixels, titles)
    )


def _nats(log_BxC: Float[Array, "B C"], labels_B: Array) -> Float[Array, " B"]:
    return -jnp.take_along_axis(log_BxC, labels_B[:, None], axis=-1)[:, 0]


def image_axis_labels(sites: Sequence[Site], pixels: UInt8[np.ndarray, "B Y X C"], titles: Sequence[str]) -> AxisLabels:
    """Return labels with a color image under the maps of all grid axes.

    Args:
        sites: The model's attention sites.
        pixels: The images, gray or RGB.
        titles: The name of each.
    """
    grids = {axis.name for site in sites for axis in (site.query, site.key) if axis.kind is AxisKind.GRID}
    colored = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels
    return AxisLabels({}, tuple(titles), images=dict.fromkeys(sorted(grids), colored))


def build_task(config: ImageClassificationConfig, directory: Path, rows_multiple: int = 1) -> ImageClassification:
    """Build the task over its data.

    The run directory keeps the shape and the classes of the images.

    Args:
        config: The config.
        directory: The run directory.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If data are missing, or have another shape or other classes than the run began with.
    """
    dataset = open_image_dataset(config.dataset, data_dir=config.data_dir, resizing=config.resizing)
    if (directory / IMAGE_SPEC_FILE).is_file():
        recorded = ImageSpec.load(directory)
        if recorded != dataset.facts:
            raise UserError(
                f"{config.dataset} has images of {dataset.facts.shape} in {len(dataset.classes)} classes, but the run "
                f"began with {recorded.shape} in {len(recorded.classes)}, as its {IMAGE_SPEC_FILE} says: give it its "
                "own data"
            )
    else:
        dataset.facts.save(directory)
    return ImageClassification(config, dataset, rows_multiple)


def build_synthetic_task(config: ImageClassificationConfig, rows_multiple: int = 1) -> ImageClassification:
    """Build the task over gray images of the data set's size; files without a `side` are taken to be 32 pixels wide."""
    dataset = placeholder_image_dataset(config.dataset, config.batch_size, resizing=config.resizing)
    splits = dict.fromkeys(("train", *config.eval_splits), dataset.split("train"))
    return ImageClassification(config, dataclasses.replace(dataset, splits=splits), rows_multiple)


READER = InputReader(make_task_interface, encode_inputs, ImageSpec.load)
TASK = TaskSpec(ImageClassificationConfig, build_synthetic_task, build_task, READER)
