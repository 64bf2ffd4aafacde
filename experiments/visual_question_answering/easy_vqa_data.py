"""easy-VQA (Zhou 2019): questions about images of one colored shape, from the user's own files."""

import dataclasses
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from experiments.visual_question_answering.data import Question, QuestionVocabulary, tokenize_question
from transformer.config import UserError
from transformer.data.batches import Batch, Bucket, BucketPlan, OneEpoch, fingerprint
from transformer.data.datasets.image_files import MAX_IMAGE_BYTES, decode_image
from transformer.data.datasets.local_files import reraise_archive_errors
from transformer.storage.json_reading import read_json

_COLORS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
_SHAPES = ("circle", "rectangle", "triangle")
_KINDS = {"yes_no": ("no", "yes"), "color": _COLORS, "shape": _SHAPES}
_QUESTION_WORDS = tokenize_question("what color is the shape ? does the image not contain a there present in no of")
_LONGEST, _SIZE = 10, 64
# The last tenth of the images for training validate, with all that is asked about them.
_HELD_OUT = 10
QUESTION_VOCABULARY = QuestionVocabulary(
    tuple(sorted({*_QUESTION_WORDS, *_COLORS, *_SHAPES})),
    tuple(sorted(answer for answers in _KINDS.values() for answer in answers)),
    tuple(_KINDS),
    _LONGEST,
    _SIZE,
)
_HOW_TO_GET = (
    "give the folder that holds easy-VQA's data.zip, or what is in it (train/ and test/, each with questions.json and "
    "images/), by --data_dir"
)


@dataclasses.dataclass(frozen=True)
class Split:
    """The questions of a split, in the order of their file.

    Attributes:
        questions: The questions.
        image_index: The index of each question's image.
        images: The images.
    """

    questions: Sequence[Question]
    image_index: np.ndarray
    images: UInt8[np.ndarray, "P 64 64 3"]

    def select_images(self, first: int, last: int) -> "Split":
        """Return the questions about the images from `first` to before `last`."""
        (indices,) = np.nonzero((self.image_index >= first) & (self.image_index < last))
        questions = [self.questions[int(number)] for number in indices]
        return Split(questions, self.image_index[indices] - first, self.images[first:last])


@dataclasses.dataclass(frozen=True)
class EasyVqa:
    """The easy-VQA question set.

    Attributes:
        splits: The splits train, validation and test.
        question_vocabulary: The vocabulary.
    """

    splits: Mapping[str, Split]
    question_vocabulary: QuestionVocabulary = QUESTION_VOCABULARY

    @property
    def description(self) -> str:
        """A line on the number of questions of each split."""
        sizes = ", ".join(f"{len(split.questions):,} {name}" for name, split in self.splits.items())
        return (
            f"data easy_vqa: {sizes} questions; a tenth of the images for training, with all questions about them, "
            "validates"
        )

    def training_batches(self, rows: int, seed: int) -> "QuestionBatches":
        """Return an endless source with every question once an epoch."""
        return QuestionBatches(self.splits["train"], rows, seed)

    def held_out_batches(self, split: str, rows: int) -> Sequence[Batch]:
        """Return the questions of a split in the order of its file."""
        return OneEpoch(QuestionBatches(self.splits[split], rows, None))

    def split_questions(self, split: str) -> Sequence[Question]:
        """Return the questions of a split."""
        return self.splits[split].questions

    def test_image(self, number: int) -> UInt8[np.ndarray, "64 64 3"]:
        """Return an image of the test split.

        Raises:
            UserError: If there is no such image.
        """
        images = self.splits["test"].images
        if not 0 <= number < len(images):
            raise UserError(f"image {number}: the test split has images 0 to {len(images) - 1}")
        return images[number]

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of every split's questions, answers and images."""
        return {
            name: fingerprint(
                [*(" ".join((*question.words, question.answer)) for question in split.questions), split.images]
            )
            for name, split in self.splits.items()
        }


class QuestionBatches:
    """Endless batches of questions with their images, epoch after epoch, in an order sampled from (seed, epoch).

    Args:
        split: The questions.
        rows: The rows of a batch; those that fill up the last batch have the index -1.
        seed: The seed of the order; None for that of the split.
    """

    def __init__(self, split: Split, rows: int, seed: int | None):
        self._read_split = split
        self._plan = BucketPlan(
            [Bucket(QUESTION_VOCABULARY.max_question_length, rows, np.arange(len(split.questions)))], seed
        )
        self.batches_per_epoch = self._plan.batches_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        bucket, indices = self._plan[step]
        split = self._read_split
        return QUESTION_VOCABULARY.make_batch(
            [split.questions[int(number)] for number in indices],
            split.images[split.image_index[indices]],
            bucket.batch_size,
        )


def open_easy_vqa(data_dir: str | None) -> EasyVqa:
    """Open easy-VQA from data.zip in `data_dir`, or from the folders train/ and test/ there.

    Raises:
        UserError: If files are missing or not as published, or Pillow is not installed.
    """
    if data_dir is None:
        raise UserError(f"easy_vqa needs its files: {_HOW_TO_GET}")
    folder = pathlib.Path(data_dir).expanduser()
    archive = folder / "data.zip"
    if archive.is_file():
        with reraise_archive_errors(archive):
            train, test = _read_train_and_test(zipfile.Path(zipfile.ZipFile(archive)))
    else:
        train, test = _read_train_and_test(folder)
    cut = len(train.images) - max(len(train.images) // _HELD_OUT, 1)
    parts = {
        "train": train.select_images(0, cut),
        "validation": train.select_images(cut, len(train.images)),
        "test": test,
    }
    for name, split in parts.items():
        if not split.questions:
            raise UserError(f"easy_vqa: {folder} has no questions for {name}: {_HOW_TO_GET}")
    return EasyVqa(parts)


def make_placeholder_questions() -> EasyVqa:
    """Return a set with one question about one gray image in every split, without reading files."""
    question = Question(tokenize_question("what color is the shape?"), "gray", "color")
    split = Split([question], np.zeros(1, int), np.full((1, _SIZE, _SIZE, 3), 128, np.uint8))
    return EasyVqa(dict.fromkeys(("train", "validation", "test"), split))


def _read_train_and_test(root: Any) -> tuple[Split, Split]:
    return _read_split(root / "train"), _read_split(root / "test")


def _read_split(folder: Any) -> Split:
    file = folder / "questions.json"
    if not file.is_file():
        raise UserError(f"easy_vqa: no file {file}: {_HOW_TO_GET}")
    try:
        rows = read_json(file)
        questions = [_parse_question(*row) for row in rows]
        image_index = np.array([number for *_, number in rows], int)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"easy_vqa: {file} is not a list of [question, answer, image]: {error}") from None
    if len(image_index) and (image_index.min() < 0 or image_index.max() >= 10**6):
        raise UserError(
            f"easy_vqa: {file} names image {image_index.min()} or {image_index.max()}: they are counted from 0"
        )
    count = int(image_index.max()) + 1 if len(image_index) else 0
    images = [_read_image(folder / "images" / f"{number}.png") for number in range(count)]
    return Split(questions, image_index, np.stack(images) if images else np.zeros((0, _SIZE, _SIZE, 3), np.uint8))


def _parse_question(text: str, answer: str, _: int) -> Question:
    words = tokenize_question(text)
    QUESTION_VOCABULARY.encode(words)
    for kind, answers in _KINDS.items():
        if answer in answers:
            return Question(words, answer, kind)
    raise ValueError(f"{answer!r} is no answer of the set")


def _read_image(file: Any) -> UInt8[np.ndarray, "64 64 3"]:
    if not file.is_file():
        raise UserError(f"easy_vqa: no file {file}: {_HOW_TO_GET}")
    with file.open("rb") as opened:
        pixels = decode_image(opened.read(MAX_IMAGE_BYTES + 1), str(file))
    if pixels.shape[:2] != (_SIZE, _SIZE):
        raise UserError(f"easy_vqa: {file} has {pixels.shape[1]} x {pixels.shape[0]} pixels, not {_SIZE} x {_SIZE}")
    return pixels
