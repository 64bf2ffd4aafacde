"""Open any text data set: Python's documentation, files, random symbols, a TFDS data set, a prepared folder."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.digit_words import generate_digit_lines
from transformer.data.datasets.local_files import (
    BY_PLACE,
    NOTHING_HELD_OUT,
    HeldOutFiles,
    canonical_split_names,
    describe_left_out,
    join_notes,
    locate_file,
)
from transformer.data.datasets.synthetic_symbols import generate_repeated_segments
from transformer.data.datasets.text_files import read_python_docs, read_text_splits, read_tinyshakespeare, read_wikitext
from transformer.data.datasets.tfds_preparation import DatasetKind, prepare_tfds_dataset
from transformer.data.datasets.tfds_records import (
    TfdsFeatures,
    decode_texts,
    newest_prepared_version,
    open_prepared_folder,
)

PYTHON_DOCS, TINYSHAKESPEARE, WIKITEXT, REPEATED = "python_docs", "tinyshakespeare", "wikitext-2", "repeated"
DIGIT_WORDS = "digit_words"
_KIND = DatasetKind(
    "text set",
    "python_docs, digit_words, tinyshakespeare, wikitext-2, repeated, a .txt or .jsonl file or a folder of them, a "
    "TFDS name such as lm1b",
    ("text", "summarization", "question_answering", "text_simplification"),
)
# The last 1 / 20 of training is held out from TFDS data sets without a validation split.
_HELD_OUT = 20


@dataclasses.dataclass(frozen=True)
class TextDataset:
    """A text data set.

    Attributes:
        name: Its name.
        splits: The documents of each split, a random-access sequence.
        source_description: The source of the text, such as a path or a seed.
        split_note: How the splits of a user's files were cut.
    """

    name: str
    splits: Mapping[str, Sequence[str]]
    source_description: str
    split_note: str = ""

    def split(self, name: str) -> Sequence[str]:
        """Return the documents of a split.

        Raises:
            UserError: If the data set does not have it.
        """
        if name not in self.splits:
            advice = f"; put {name}.txt into its folder" if self.name == WIKITEXT and name in ("train", "test") else ""
            raise UserError(
                f"{self.name} from {self.source_description} has no split {name!r}: "
                f"{suggest_nearest(name, self.splits)}{advice}"
            )
        return self.splits[name]


def open_text_dataset(
    name: str, *, data_dir: str | None = None, prepared_dir: str, held_out: HeldOutFiles = NOTHING_HELD_OUT
) -> TextDataset:
    """Open a text data set; one of TFDS is prepared under `prepared_dir` at its first use.

    Args:
        name: One of: "python_docs", the documentation inside Python; "digit_words", lines such as "three one four";
            "repeated" or "repeated/num_symbols=32,max_segment_length=16", random symbols that repeat
            (transformer.data.datasets.synthetic_symbols); "tinyshakespeare" or "wikitext-2", whose files are in
            `data_dir`; a text or .jsonl file, or a folder of them (transformer.data.datasets.text_files); the folder of
            a prepared TFDS data set; or a TFDS name such as "lm1b", which `data_dir` may hold prepared. Of TFDS records
            the input of the supervised keys is read, else the feature "text", else the first text feature; without a
            validation split the last twentieth of training is held out.
        data_dir: The folder of the data; None resolves names relative to here.
        prepared_dir: The folder in which data sets are prepared.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, files are missing or malformed, or the data set is neither prepared nor can
            be downloaded.

    Example:
        ```python
        from transformer.data.datasets.text import open_text_dataset

        text = open_text_dataset("repeated/num_symbols=8,max_segment_length=8", prepared_dir="data")
        len(text.split("validation"))  # 512 documents
        ```
    """
    if (files := _find_own_files(name, data_dir)) is not None:
        held_out_paths = {
            split: _require_existing(locate_file(file, data_dir)) for split, file in held_out.by_split.items()
        }
        texts = read_text_splits(files, held_out_paths)
        how = held_out.describe(BY_PLACE, texts.named_splits)
        return TextDataset(name, texts.splits, str(files), join_notes((how, describe_left_out(texts.left_out))))
    held_out.refuse(name)
    if name == PYTHON_DOCS:
        return TextDataset(name, *read_python_docs())
    if name == DIGIT_WORDS:
        return TextDataset(name, *generate_digit_lines())
    if name.partition("/")[0] == REPEATED:
        return TextDataset(name, *generate_repeated_segments(name.partition("/")[2]))
    if name in (TINYSHAKESPEARE, WIKITEXT):
        if data_dir is None:
            raise UserError(f"{name} needs its files: give their folder by config.task.data_dir")
        read = read_tinyshakespeare if name == TINYSHAKESPEARE else read_wikitext
        return TextDataset(name, read(pathlib.Path(data_dir).expanduser()), data_dir)
    path = pathlib.Path(name).expanduser()
    if path.is_dir() and newest_prepared_version(path):
        return _open_folder(name, path)
    folder = prepare_tfds_dataset(
        name,
        _KIND,
        data_dir=data_dir,
        prepared_dir=prepared_dir,
        check=lambda features: _find_text_feature(name, features),
    )
    return _open_folder(name, folder)


def _find_own_files(name: str, data_dir: str | None) -> pathlib.Path | None:
    """Return the path of the user's text file or folder that a name stands for; None for another kind of data set.

    Raises:
        UserError: If the path does not exist or leads out of `data_dir`.
    """
    if name in (PYTHON_DOCS, DIGIT_WORDS, TINYSHAKESPEARE, WIKITEXT) or name.partition("/")[0] == REPEATED:
        return None
    literal_path = pathlib.Path(name).expanduser()
    if literal_path.is_dir() and newest_prepared_version(literal_path):
        return None
    path = locate_file(name, data_dir)
    if path.exists() and not (path.is_dir() and newest_prepared_version(path)):
        return path
    if (
        literal_path.is_absolute()
        or literal_path.suffix in (".txt", ".jsonl")
        or name.split("/")[0] in (".", "..", "~")
    ):
        return _require_existing(path)
    return None


def _require_existing(path: pathlib.Path) -> pathlib.Path:
    if not path.exists():
        raise UserError(f"{path} does not exist: name a text or .jsonl file, or a folder of them or of a prepared set")
    return path


def _open_folder(name: str, folder: pathlib.Path) -> TextDataset:
    prepared = open_prepared_folder(folder)
    feature = _find_text_feature(name, prepared.features)
    splits = {
        own: prepared.examples(split, lambda record: decode_texts(record, [feature])[0])
        for split, own in canonical_split_names(prepared.splits).items()
    }
    if "train" in splits and "validation" not in splits:
        train_texts = splits["train"]
        cut = train_texts.stop - train_texts.stop // _HELD_OUT
        splits["train"] = dataclasses.replace(train_texts, stop=cut)
        splits["validation"] = dataclasses.replace(train_texts, start=cut)
    return TextDataset(name, splits, str(prepared.folder))


def _find_text_feature(name: str, features: TfdsFeatures) -> str:
    """Return the feature that holds the text of a data set.

    Raises:
        UserError: If it has no text.
    """
    if not features.text_features:
        raise UserError(f"{name} has no text: its features are {', '.join(features.feature_names)}")
    candidates = (*features.supervised_keys[:1], "text", features.text_features[0])
    return next(key for key in candidates if key in features.text_features)
