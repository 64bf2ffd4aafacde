"""Open any translation data set: phrases, Multi30k, files of pairs, a TFDS data set, a prepared folder.

Generated data, Multi30k and files of pairs are held in memory; all else becomes a prepared TFDS folder in the
array_record format, which is read at random without TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets import help_desk
from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    canonical_split_names,
    describe_missing_headers,
    divide_into_splits,
    is_table_file,
    locate_file,
    read_fields,
    read_lines,
)
from transformer.data.datasets.multi30k import read_multi30k
from transformer.data.datasets.synthetic_symbols import SYMBOL_LANGUAGES as SYMBOLS
from transformer.data.datasets.synthetic_symbols import generate_symbol_pairs
from transformer.data.datasets.tfds_preparation import TRANSLATION, prepare_tfds_dataset
from transformer.data.datasets.tfds_records import (
    INFO,
    decode_texts,
    language_direction,
    newest_prepared_version,
    open_prepared_folder,
)
from transformer.data.phrases.generate import PHRASES, generate_phrases
from transformer.data.phrases.lexicon import PHRASE_LANGUAGES

_FIELDS = ("source", "target")
PAIR_FILES = "write FILE.en,FILE.de, FILE.tsv, FILE.csv or FILE.jsonl"


class SentencePair(NamedTuple):
    """A sentence pair.

    Attributes:
        source: The source sentence.
        target: The target sentence.
        language: The code of the target language.
        kind: The kind of sentence, if the data set has kinds.
        word_alignment: The word alignment, if it is known.
    """

    source: str
    target: str
    language: str
    kind: str | None = None
    word_alignment: WordAlignment | None = None


@dataclasses.dataclass(frozen=True)
class TranslationDataset:
    """A translation data set.

    Attributes:
        name: Its name.
        languages: The code of the source language, then those of all target languages.
        splits: The names of its splits.
        pairs: A function that opens a split.
    """

    name: str
    languages: tuple[str, ...]
    splits: tuple[str, ...]
    pairs: Callable[[str], Sequence[SentencePair]]

    def split(self, name: str) -> Sequence[SentencePair]:
        """Return the pairs of a split.

        Raises:
            UserError: If the data set does not have it, or it cannot be read at random.
        """
        if name not in self.splits:
            raise UserError(f"{self.name} has no split {name!r}: {suggest_nearest(name, self.splits)}")
        return self.pairs(name)


def open_translation_dataset(
    name: str,
    *,
    data_dir: str | None = None,
    prepared_dir: str,
    languages: tuple[str, str] | None = None,
    held_out: HeldOutFiles = NOTHING_HELD_OUT,
) -> TranslationDataset:
    """Open a translation data set; one of TFDS is prepared under `prepared_dir` at its first use.

    Args:
        name: One of: "phrases", with options as in "phrases/train=2000,validation=100,test=200,seed=1,rounded=50"
            (transformer.data.phrases.generate); "copy" or "reversal", also as "reversal/length=12,num_symbols=16"
            (transformer.data.datasets.synthetic_symbols); "help_desk", also as "help_desk/train=2000"
            (transformer.data.datasets.help_desk); "multi30k/<raw|tokenized>/<source>-<target>"; "FILE.en,FILE.de",
            "FILE.tsv", "FILE.csv" or "FILE.jsonl" (`read_pair_files`); the folder of a prepared TFDS data set, which
            has dataset_info.json; or a TFDS name such as "wmt14_translate/de-en".
        data_dir: The folder of the files of Multi30k or of pairs, or a TFDS root to search for a prepared data set.
        prepared_dir: The folder in which data sets are prepared.
        languages: (source, target). None reads phrases into all languages, and a TFDS data set in the direction of its
            supervised keys.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name or a language is unknown, files are missing or malformed, or the data set is neither
            prepared nor can be downloaded.

    Example:
        ```python
        from transformer.data.datasets.translation import open_translation_dataset

        pairs = open_translation_dataset("reversal/length=4,train=10", prepared_dir="data").split("train")
        pairs[0].source, pairs[0].target  # ("D A 8 4", "4 8 A D")
        ```
    """
    first, *parts = name.split("/")
    if is_pair_files(name):
        direction, splits = read_pair_files(name, data_dir=data_dir, languages=languages, held_out=held_out)
        return _in_memory(name, direction, splits)
    held_out.refuse(name)
    if first == PHRASES:
        return _open_phrases(name, "/".join(parts), languages)
    if first in SYMBOLS:
        return _open_symbols(name, first, "/".join(parts), languages)
    if first == help_desk.NAME:
        return _open_help_desk(name, "/".join(parts), languages)
    if first == "multi30k":
        direction, splits = read_multi30k(name, parts, data_dir)
        if languages not in (None, direction):
            raise UserError(f"languages={languages} contradicts {name}: say the direction in the name alone")
        return _in_memory(name, direction, splits)
    path = pathlib.Path(name).expanduser()
    if path.is_dir() or path.is_absolute() or first in (".", "..", "~"):
        if newest_prepared_version(path) is None:
            raise UserError(f"{path} is no prepared set, which holds {INFO}, and names no pairs: {PAIR_FILES}")
        return _open_folder(name, path, languages)
    folder = prepare_tfds_dataset(
        name,
        TRANSLATION,
        data_dir=data_dir,
        prepared_dir=prepared_dir,
        check=lambda features: language_direction(name, features, languages),
    )
    return _open_folder(name, folder, languages)


def is_synthetic(name: str) -> bool:
    """Whether a name is that of a data set whose pairs are generated."""
    return name.partition("/")[0] in (PHRASES, *SYMBOLS, help_desk.NAME)


def is_pair_files(name: str) -> bool:
    """Whether a name is that of a user's own files. Of other names only those of `is_synthetic` have commas."""
    return not is_synthetic(name) and ("," in name or is_table_file(name))


def read_pair_files(
    name: str, *, data_dir: str | None, languages: tuple[str, str] | None, held_out: HeldOutFiles
) -> tuple[tuple[str, str], dict[str, list[tuple[str, str]]]]:
    """Read the pairs of a user's own files.

    Args:
        name: "FILE.en,FILE.de", two files with a sentence per line whose endings are the languages, or one file,
            "FILE.tsv", "FILE.csv" or "FILE.jsonl", with the fields source and target, or those of `languages`.
        data_dir: The folder of the files.
        languages: (source, target), if given.
        held_out: The files of splits that have files of their own.

    Returns:
        The languages, source first, and the pairs of every split.

    Raises:
        UserError: If files are missing or malformed, have different numbers of lines, or have too few pairs.
    """
    direction = direction_of_files(name, languages)
    fields = languages or _FIELDS
    files = {**held_out.by_split, "train": name}
    pairs = {split: _read_pairs(own, data_dir, fields) for split, own in files.items()}
    return direction, divide_into_splits(name, pairs, lambda pair: pair[0])


def direction_of_files(name: str, languages: tuple[str, str] | None) -> tuple[str, str]:
    """Return the source and the target language of a user's own files.

    They are the endings of two files, else `languages`, else "source" and "target".

    Raises:
        UserError: If `languages` differ from the endings.
    """
    files = name.split(",")
    endings = tuple(pathlib.PurePath(file).suffix.removeprefix(".") for file in files)
    if len(endings) != 2 or not all(endings) or endings[0] == endings[1]:
        return languages or _FIELDS
    if languages not in (None, endings):
        raise UserError(f"languages={languages} contradicts {name}: the first file is the source, say it there alone")
    return endings[0], endings[1]


def describe_pair_headers(
    name: str, data_dir: str | None, languages: tuple[str, ...], held_out: HeldOutFiles = NOTHING_HELD_OUT
) -> str:
    """Describe which of a user's tables of pairs have no header, so that their first line is a pair; "" without any."""
    tables = [files for files in (name, *held_out.by_split.values()) if "," not in files]
    return describe_missing_headers(tables, languages or _FIELDS, data_dir)


def _read_pairs(files: str, data_dir: str | None, fields: tuple[str, str]) -> list[tuple[str, str]]:
    file_names = files.split(",")
    if len(file_names) > 2 or not all(map(str.strip, file_names)):
        raise UserError(f"{files!r} names no pairs: {PAIR_FILES}")
    paths = [locate_file(file_name, data_dir) for file_name in file_names]
    if len(paths) == 1:
        if not is_table_file(paths[0].name):
            raise UserError(f"{paths[0]} alone holds no pairs: {PAIR_FILES}")
        return [(source.strip(), target.strip()) for source, target in read_fields(paths[0], fields)]
    sources, targets = map(read_lines, paths)
    if len(sources) != len(targets):
        raise UserError(
            f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}: parallel files have a line of "
            "one for each line of the other"
        )
    return list(zip(sources, targets, strict=True))


def _open_phrases(name: str, options: str, languages: tuple[str, str] | None) -> TranslationDataset:
    source, *targets = languages or ("en", *PHRASE_LANGUAGES)
    if source != "en":
        raise UserError(f"languages={languages}: the phrases are written in English, so 'en' comes first")
    if not set(targets) <= set(PHRASE_LANGUAGES):
        raise UserError(f"languages={languages}: the second must be some of {', '.join(PHRASE_LANGUAGES)}")
    pairs_by_split = {
        split: [
            SentencePair(phrase.source, phrase.target, language, kind, phrase.word_alignment)
            for kind, language, phrase in phrase_pairs
        ]
        for split, phrase_pairs in generate_phrases(options, targets).items()
    }
    return TranslationDataset(name, (source, *targets), tuple(pairs_by_split), pairs_by_split.__getitem__)


def _open_symbols(name: str, kind: str, options: str, languages: tuple[str, str] | None) -> TranslationDataset:
    direction = SYMBOLS[kind]
    _check_direction(name, direction, languages)
    target = direction[1]
    pairs_by_split = {
        split: [
            SentencePair(phrase.source, phrase.target, target, word_alignment=phrase.word_alignment)
            for phrase in phrases
        ]
        for split, phrases in generate_symbol_pairs(kind, options).items()
    }
    return TranslationDataset(name, direction, tuple(pairs_by_split), pairs_by_split.__getitem__)


def _open_help_desk(name: str, options: str, languages: tuple[str, str] | None) -> TranslationDataset:
    direction = help_desk.LANGUAGES
    _check_direction(name, direction, languages)
    pairs_by_split = {
        split: [
            SentencePair(
                question.text, question.answer, direction[1], "new_pair" if question.new_pair else "known_pair"
            )
            for question in questions
        ]
        for split, questions in help_desk.generate_help_desk(options).items()
    }
    return TranslationDataset(name, direction, tuple(pairs_by_split), pairs_by_split.__getitem__)


def _check_direction(name: str, direction: tuple[str, str], languages: tuple[str, str] | None) -> None:
    """Refuse languages that a generated data set does not have.

    Raises:
        UserError: If there are any.
    """
    if languages not in (None, direction):
        raise UserError(f"languages={languages}: {name} goes from {direction[0]} to {direction[1]}: leave it out")


def _in_memory(
    name: str, direction: tuple[str, str], splits: Mapping[str, Sequence[tuple[str, str]]]
) -> TranslationDataset:
    read = {split: [SentencePair(*pair, direction[1]) for pair in pairs] for split, pairs in splits.items()}
    return TranslationDataset(name, direction, tuple(read), read.__getitem__)


def _open_folder(name: str, folder: pathlib.Path, languages: tuple[str, str] | None) -> TranslationDataset:
    prepared = open_prepared_folder(folder)
    source, target = language_direction(name, prepared.features, languages)
    splits = {own: split for split, own in canonical_split_names(prepared.splits).items()}

    def decode(record: bytes) -> SentencePair:
        source_text, target_text = decode_texts(record, (source, target))
        return SentencePair(source_text, target_text, target)

    return TranslationDataset(
        name, (source, target), tuple(splits), lambda split: prepared.examples(splits[split], decode)
    )
