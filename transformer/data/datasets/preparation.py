"""Preparing a data set: whatever its name stands for becomes a folder of array records, once.

TFDS writes to a temporary folder beside the last one and renames it, so that a folder is whole or absent.
"""

import contextlib
import dataclasses
import importlib
import io
import logging
import pathlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformer.config import UserError, choice

INFO = "dataset_info.json"
"""The file that makes a folder a prepared TFDS set."""


def prepared_under(folder: pathlib.Path) -> pathlib.Path | None:
    """The folder itself or its newest version, if that is prepared."""
    if (folder / INFO).is_file():
        return folder
    versions = {}
    for path in folder.glob(f"[0-9]*/{INFO}"):
        with contextlib.suppress(ValueError):
            versions[tuple(map(int, path.parent.name.split(".")))] = path.parent
    return versions[max(versions)] if versions else None


def prepare_phrases(name: str, options: str, prepared_dir: str, languages: tuple[str, str] | None) -> pathlib.Path:
    """The folder of the embedded phrases; `options` are fields of PhrasesConfig, as in "train=2000,test=200".

    Errors: UserError for an unknown option, a value that is no whole number, or an unknown language.
    """
    from transformer.data.datasets.phrases import Phrases, PhrasesConfig

    values: dict[str, Any] = {}
    for item in options.split(",") if options else ():
        key, _, number = item.partition("=")
        choice(key, dict.fromkeys(("train", "validation", "test", "seed", "rounded")), f"{name}: option")
        if not number.isdecimal():
            raise UserError(f"{name}: {key}={number!r} must be a whole number, as in phrases/train=2000")
        values[key] = int(number)
    if languages is not None:
        if languages[0] != "en":
            raise UserError(f"languages={languages}: the phrases are written in English, so 'en' comes first")
        values["languages"] = tuple(languages[1:])
    config, default = PhrasesConfig(**values), Phrases.BUILDER_CONFIGS[0]
    with quiet():
        # TFDS knows the default by name, and refuses an equal one under the same name.
        builder: Any = Phrases(
            data_dir=prepared_dir,
            config=default if config.name == default.name else config,
            file_format="array_record",
        )
    return _prepare(builder)


def prepare_multi30k(
    name: str, parts: list[str], data_dir: str | None, prepared_dir: str
) -> tuple[pathlib.Path, tuple[str, str]]:
    """The folder of Multi30k and its direction; `parts` are the text and "<source>-<target>".

    Each content of the files has a folder of its own, so that changed files are never taken for the old ones.

    Errors: UserError for an unknown text or direction, missing files, or files that are not parallel.
    """
    from transformer.data.datasets import multi30k

    known = [f"{text}/{'-'.join(pair)}" for text in multi30k.TEXTS for pair in multi30k.DIRECTIONS]
    choice("/".join(parts), dict.fromkeys(known), f"{name}: <text>/<source>-<target>")
    text, direction = parts
    source, target = direction.split("-")
    folder = multi30k.require_files(data_dir, text, (source, target))
    root = pathlib.Path(prepared_dir) / f"multi30k-{multi30k.fingerprint(folder, text, (source, target))}"
    with quiet():
        builder = multi30k.Multi30k(data_dir=root, config=f"{text}-{direction}", file_format="array_record")
    return _prepare(builder, str(folder)), (source, target)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data set, as messages call it, the names that this library gives, and TFDS's modules that hold more."""

    what: str
    names: str
    modules: tuple[str, ...]


TRANSLATION = Kind(
    "translation set",
    "phrases, copy, reversal, multi30k/<text>/<source>-<target>, a TFDS name such as wmt14_translate/de-en",
    ("translate",),
)


def prepare_named(
    name: str, kind: Kind, *, data_dir: str | None, prepared_dir: str, check: Callable[[Any], object]
) -> pathlib.Path:
    """The folder of any TFDS set: prepared under either folder, or downloaded to `prepared_dir`.

    `check` raises for a builder that is not fit, before a download that may take hours.

    Errors: UserError for an unknown name, and where the set is neither prepared nor can be downloaded.
    """
    import tensorflow_datasets as tfds

    for root in filter(None, (data_dir, prepared_dir)):
        if folder := prepared_under(pathlib.Path(root).expanduser() / name):
            return folder
    with quiet():
        for module in kind.modules:
            _import_builders(module)
        try:
            builder = tfds.builder(name, data_dir=prepared_dir, file_format="array_record")
        except tfds.core.DatasetNotFoundError as error:
            raise UserError(
                f"{name!r} is no {kind.what}: write {kind.names}, or the folder of a prepared set"
            ) from error
        except Exception as error:
            raise UserError(f"TFDS cannot build {name!r}: {one_line(error)}") from error
    check(builder)
    log = logging.getLogger(__name__)
    log.warning("%s: downloading and preparing under %s, which may take hours", name, prepared_dir)
    try:
        return _prepare(builder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name} is not prepared under {prepared_dir} and could not be downloaded ({one_line(error)}): "
            f"run `tfds build {name} --file_format=array_record` on a machine with a network, and give the "
            "folder that it wrote to by --data_dir"
        ) from error


def open_prepared(folder: pathlib.Path) -> Any:
    """The builder of a prepared folder, or of the newest version in it.

    Errors: UserError for a folder that holds no prepared set, or one that cannot be opened.
    """
    import tensorflow_datasets as tfds

    prepared = prepared_under(folder)
    if prepared is None:
        raise UserError(f"{folder} is no prepared set: name a folder that holds {INFO}, such as <set>/<config>/1.0.0")
    with quiet():
        try:
            return tfds.builder_from_directory(prepared)
        except Exception as error:
            raise UserError(f"{prepared} cannot be opened ({one_line(error)}): prepare it again") from error


def records_of(name: str, builder: Any, split: str) -> Any:
    """The records of a split as they are stored, read at random.

    Errors: UserError for a set whose files have no random access.
    """
    from tensorflow_datasets.core.decode import DeserializeMethod

    try:
        return builder.as_data_source(split, deserialize_method=DeserializeMethod.RAW_BYTES)
    except NotImplementedError as error:
        raise UserError(
            f"{name} in {builder.data_dir} is stored as {builder.info.file_format.value}, which has no "
            "random access: prepare it again by `tfds build --file_format=array_record`"
        ) from error


def texts_of(record: bytes, names: Sequence[str]) -> list[str]:
    """The named text features of a record; TFDS's own decoding takes four times as long."""
    from tensorflow_datasets.proto import tf_example_pb2

    features = tf_example_pb2.Example.FromString(record).features.feature
    return [features[name].bytes_list.value[0].decode() for name in names]


def direction_of(name: str, builder: Any, languages: tuple[str, str] | None) -> tuple[str, str]:
    """The source and the target of a set whose features are one text a language.

    Errors: UserError where `languages` are not two of the set's, or the set has no two.
    """
    import tensorflow_datasets as tfds

    features = builder.info.features
    codes = [code for code, feature in features.items() if isinstance(feature, tfds.features.Text)]
    if len(codes) < 2:
        raise UserError(f"{name} has no text in two languages: its features are {', '.join(features)}")
    source, target = languages or builder.info.supervised_keys or codes[:2]
    if source == target or not {source, target} <= set(codes):
        raise UserError(f"languages={(source, target)}: {name} has {', '.join(codes)}: name two of them")
    return source, target


def _import_builders(name: str) -> None:
    """Import the modules of one of TFDS's folders, each of which registers its builders.

    TFDS finds its older builders by importing every module it has, which needs TensorFlow; these do not.
    """
    package = importlib.import_module(f"tensorflow_datasets.{name}")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.endswith("_test"):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{package.__name__}.{module.name}")


def _prepare(builder: Any, manual_dir: str | None = None) -> pathlib.Path:
    import tensorflow_datasets as tfds

    folder = pathlib.Path(builder.data_dir)
    if (folder / INFO).is_file():
        return folder
    config = tfds.download.DownloadConfig(manual_dir=manual_dir, try_download_gcs=False)
    try:
        with quiet():
            builder.download_and_prepare(download_config=config)
    except Exception:
        # Another process that prepared the same set has finished first: its folder is as good.
        if not (folder / INFO).is_file():
            raise
    return folder


def one_line(error: BaseException) -> str:
    """The start of an error, fit for a message of one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep TFDS's progress bars, prints and log lines away from the console."""
    from absl import logging as absl_logging
    from tensorflow_datasets.core.utils import tqdm_utils

    tqdm_utils.disable_progress_bar()
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.FATAL)
    retries = logging.getLogger("urllib3")
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        absl_logging.set_verbosity(verbosity)
        retries.setLevel(level)
