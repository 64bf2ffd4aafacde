"""Read a prepared TFDS folder as plain data, without importing any name that its files give.

TFDS's own reader imports the class that features.json names, and so runs the code of whoever wrote the folder. Here a
known name determines how a feature is stored, an unknown feature is not read, and shards are files of the folder
itself.
"""

import contextlib
import dataclasses
import operator
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from transformer.config import UserError
from transformer.data.datasets.local_files import is_hidden
from transformer.data.line_splitting import split_lines
from transformer.storage.json_reading import read_json_object

INFO = "dataset_info.json"
"""The file by which a folder is recognized as a prepared TFDS data set."""
FEATURES = "features.json"

_TFDS = "tensorflow_datasets.core.features."
_TEXT = f"{_TFDS}text_feature.Text"
_TRANSLATION = f"{_TFDS}translation_feature.Translation"
_IMAGE = f"{_TFDS}image_feature.Image"
_CLASS = f"{_TFDS}class_label_feature.ClassLabel"
_MOST_CLASSES = 2**20
_RECORDS = "array_record"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLE = re.compile(r"\{(\w+)\}")
_READ_AHEAD = 1024  # records that are read at once
_WORD = re.compile(r"\w[\w.+-]*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class TfdsFeatures:
    """The features of a data set's records.

    Attributes:
        feature_names: The names of all features.
        text_features: The names of text features.
        supervised_keys: The supervised keys.
        image_channels: The number of channels of each image feature.
        class_names: The class names of each class feature.
    """

    feature_names: tuple[str, ...]
    text_features: tuple[str, ...]
    supervised_keys: tuple[str, ...] = ()
    image_channels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    class_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, builder: Any) -> "TfdsFeatures":
        """Return the features that a TFDS builder declares in its code."""
        import tensorflow_datasets as tfds

        declared = builder.info.features
        texts = [name for name, feature in declared.items() if isinstance(feature, tfds.features.Text)]
        return cls(tuple(declared), tuple(texts), tuple(builder.info.supervised_keys or ()))


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of a split and its number of records, as array_record's reader takes it."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


@dataclasses.dataclass(frozen=True)
class PreparedDataset:
    """A prepared folder.

    Attributes:
        folder: Its path.
        features: The features of its records.
        splits: The files of each split.
        stored_as: The file format.
    """

    folder: pathlib.Path
    features: TfdsFeatures
    splits: Mapping[str, tuple[Shard, ...]]
    stored_as: str

    def records(self, split: str) -> "ShardRecords":
        """Return the stored records of a split, which are read on access.

        Raises:
            UserError: If the file format has no random access, or files are missing or damaged.
        """
        if self.stored_as != _RECORDS:
            raise UserError(
                f"{self.folder} is stored as {self.stored_as}, which has no random access: prepare it again by "
                "`tfds build --file_format=array_record`"
            )
        shards = self.splits[split]
        for shard in shards:
            if not pathlib.Path(shard.filename).is_file():
                raise UserError(f"{self.folder} cannot be read: it has no file {pathlib.Path(shard.filename).name}")
        return ShardRecords(self.folder, shards)

    def examples[T](self, split: str, decode: Callable[[bytes], T]) -> "DecodedRecords[T]":
        """Return the examples of a split, which `decode` makes of stored records on access."""
        records = self.records(split)
        return DecodedRecords(records, decode, 0, len(records))


class ShardRecords(Sequence[bytes]):
    """The records of several shards, one after another.

    Raises:
        IndexError: If an index is out of range.
        UserError: If a file is damaged.
    """

    def __init__(self, folder: pathlib.Path, shards: Sequence[Shard]):
        self._folder, self._count, self._source = folder, sum(shard.take for shard in shards), None
        if not self._count:
            return
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        with _reraise_read_errors(folder):
            self._source = ArrayRecordDataSource([shard for shard in shards if shard.take])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """Read many records at once, which costs a fraction of reading them one by one."""
        if not indices or self._source is None:
            return []
        with _reraise_read_errors(self._folder):
            return list(self._source.__getitems__(indices))


@dataclasses.dataclass(frozen=True)
class DecodedRecords[T](Sequence[T]):
    """The prepared records `start` to `stop` - 1 of a split, read from disk and decoded on access; a Grain data source.

    Attributes:
        records: The stored records of the split.
        decode: A function from a record to an example.
        start: The first record.
        stop: The record after the last one.
    """

    records: ShardRecords
    decode: Callable[[bytes], T]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index])
        return self.decode(self.records[range(self.start, self.stop)[operator.index(index)]])

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Read many examples at once, which costs a fraction of reading them one by one."""
        return [self.decode(record) for record in self.records.__getitems__([self.start + at for at in indices])]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _READ_AHEAD):
            yield from self[start : start + _READ_AHEAD]


def newest_prepared_version(folder: pathlib.Path) -> pathlib.Path | None:
    """Return the folder itself or its newest version, if that is prepared; else None."""
    if (folder / INFO).is_file():
        return folder
    versions = {}
    for path in folder.glob(f"[0-9]*/{INFO}"):
        with contextlib.suppress(ValueError):
            versions[tuple(map(int, path.parent.name.split(".")))] = path.parent
    return versions[max(versions)] if versions else None


def open_prepared_folder(folder: pathlib.Path) -> PreparedDataset:
    """Open the data set in a prepared folder, or in its newest version.

    Raises:
        UserError: If the folder has no prepared data set, or its files do not describe one.
    """
    prepared = newest_prepared_version(folder)
    if prepared is None:
        raise UserError(f"{folder} is no prepared set: name a folder that holds {INFO}, such as <set>/<config>/1.0.0")
    info, features = read_json_object(prepared / INFO), read_json_object(prepared / FEATURES)
    try:
        read = _parse_features(prepared, features, _parse_supervised_keys(info))
        stored_as = _require_plain_name(info.get("fileFormat", "tfrecord"))
        name = _require_plain_name(info["name"])
        splits = {
            _require_plain_name(split["name"]): _list_shards(prepared, name, stored_as, split)
            for split in info["splits"]
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(
            f"{prepared} cannot be opened: {INFO} or {FEATURES} is not as TFDS writes it "
            f"({type(error).__name__}: {error}): prepare it again"
        ) from error
    _refuse_unlisted(prepared, stored_as, splits)
    return PreparedDataset(prepared, read, splits, stored_as)


def decode_texts(record: bytes, names: Sequence[str]) -> list[str]:
    """Decode the named text features of a record; TFDS's own decoding takes four times as long.

    Raises:
        UserError: If the record lacks such a text.
    """
    with _reraise_decode_errors(f"text in {' and '.join(names)}"):
        features = _parse_example(record)
        return [features[name].bytes_list.value[0].decode() for name in names]


def read_encoded_image_and_label(record: bytes, image: str, label: str) -> tuple[bytes, int]:
    """Return the image of a record, still encoded, and the number of its class.

    Raises:
        UserError: If the record lacks such an image or class.
    """
    with _reraise_decode_errors(f"image in {image} with a class in {label}"):
        features = _parse_example(record)
        return features[image].bytes_list.value[0], features[label].int64_list.value[0]


def _parse_example(record: bytes) -> Any:
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example.FromString(record).features.feature


@contextlib.contextmanager
def _reraise_decode_errors(what: str) -> Iterator[None]:
    from google.protobuf.message import DecodeError

    try:
        yield
    except (DecodeError, IndexError, UnicodeDecodeError) as error:
        raise UserError(f"a record of the data set holds no {what}: prepare it again") from error


def language_direction(name: str, features: TfdsFeatures, languages: tuple[str, str] | None) -> tuple[str, str]:
    """Return the source and the target of a data set whose features are texts in several languages.

    Args:
        name: The name of the data set, for messages.
        features: Its features.
        languages: (source, target); None takes the supervised keys, else the first two.

    Raises:
        UserError: If `languages` are not two of the data set's, or it does not have two.
    """
    codes = features.text_features
    if len(codes) < 2:
        raise UserError(f"{name} has no text in two languages: its features are {', '.join(features.feature_names)}")
    source, target = languages or features.supervised_keys[:2] or codes[:2]
    if source == target or not {source, target} <= set(codes):
        raise UserError(f"languages={(source, target)}: {name} has {', '.join(codes)}: name two of them")
    return source, target


def _parse_features(folder: pathlib.Path, description: Mapping[str, Any], supervised: tuple[str, ...]) -> TfdsFeatures:
    if description["pythonClassName"] == _TRANSLATION:
        languages = tuple(_require_text(language) for language in description["translation"]["languages"])
        return TfdsFeatures(languages, languages, supervised)
    features = description["featuresDict"]["features"]
    features_by_kind = {
        kind: {name: feature for name, feature in features.items() if feature["pythonClassName"] == kind}
        for kind in (_TEXT, _IMAGE, _CLASS)
    }
    images = {name: int(info["image"]["shape"]["dimensions"][-1]) for name, info in features_by_kind[_IMAGE].items()}
    classes = {
        name: _read_class_names(folder, name, info["classLabel"]) for name, info in features_by_kind[_CLASS].items()
    }
    return TfdsFeatures(tuple(features), tuple(features_by_kind[_TEXT]), supervised, images, classes)


def _read_class_names(folder: pathlib.Path, feature: str, class_info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of classes from the file next to the records, a line each; without a file, their numbers."""
    count = int(class_info["numClasses"])
    if not 0 < count <= _MOST_CLASSES:
        raise ValueError(f"{count} is no number of classes")
    file = folder / f"{_require_plain_name(feature)}.labels.txt"
    if not file.is_file():
        return tuple(map(str, range(count)))
    names = tuple(split_lines(file.read_bytes().decode()))
    if len(names) != count:
        raise ValueError(f"{file.name} has {len(names)} lines for {count} classes")
    return names


def _parse_supervised_keys(info: Mapping[str, Any]) -> tuple[str, ...]:
    items = info.get("supervisedKeys", {}).get("tuple", {}).get("items", ())
    # An item that is itself a tuple or a dictionary is not a single feature.
    names = tuple(_require_text(item.get("featureKey", "")) for item in items)
    return names if all(names) else ()


def _list_shards(folder: pathlib.Path, name: str, stored_as: str, split: Mapping[str, Any]) -> tuple[Shard, ...]:
    """Return the files of a split, each a plain name in the folder whatever the template says."""
    lengths = [_require_count(length) for length in split.get("shardLengths", ())]
    template = split.get("filepathTemplate", _TEMPLATE)
    shards = []
    for number, length in enumerate(lengths):
        values = {
            "DATASET": name,
            "SPLIT": _require_plain_name(split["name"]),
            "FILEFORMAT": stored_as,
            "SHARD_X_OF_Y": f"{number:05d}-of-{len(lengths):05d}",
            "SHARD_INDEX": f"{number:05d}",
            "NUM_SHARDS": f"{len(lengths):05d}",
        }
        file = _require_plain_name("".join(values[part] if odd else part for part, odd in _split_template(template)))
        shards.append(Shard(str(folder / file), 0, length, length))
    return tuple(shards)


def _refuse_unlisted(folder: pathlib.Path, stored_as: str, splits: Mapping[str, Sequence[Shard]]) -> None:
    """Refuse record files in the folder that its description does not name, as they would be left out silently.

    Raises:
        UserError: If there are any.
    """
    listed = {shard.filename for listed_shards in splits.values() for shard in listed_shards}
    if not all(map(os.path.isfile, listed)):
        return  # Reading them reports which is missing.
    files = [file for file in sorted(folder.iterdir()) if f".{stored_as}-" in file.name and not is_hidden(file.name)]
    if unlisted := [file.name for file in files if str(file) not in listed]:
        raise UserError(
            f"{folder} holds {len(unlisted)} files of records that its {INFO} does not name, such as {unlisted[0]}: "
            "prepare it again, or remove them"
        )


def _split_template(template: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a template in order, each with whether it is the name of a variable."""
    return ((part, bool(number % 2)) for number, part in enumerate(_VARIABLE.split(template)))


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _require_plain_name(value: Any) -> str:
    """Check that a value can only be the name of a file in a folder."""
    if not _WORD.fullmatch(_require_text(value)):
        raise ValueError(f"{value!r} is no plain name")
    return value


def _require_count(value: Any) -> int:
    count = int(value)
    if not 0 <= count < 2**40:
        raise ValueError(f"{value!r} is no number of records")
    return count


@contextlib.contextmanager
def _reraise_read_errors(folder: pathlib.Path) -> Any:
    """Raise the errors of array_record's reader, which are of many kinds, as UserErrors."""
    try:
        yield
    except Exception as error:
        description = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{folder} cannot be read ({description}): prepare it again") from error
