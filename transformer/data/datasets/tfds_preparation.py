"""Prepare a data set: whatever its name stands for becomes a folder of array records, once.

TFDS writes to a temporary folder next to the final one and renames it, so that a folder is complete or absent.
"""

import contextlib
import contextvars
import dataclasses
import importlib
import io
import logging
import pathlib
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from transformer.config import UserError
from transformer.data.datasets.tfds_records import INFO, TfdsFeatures, newest_prepared_version

# TFDS names: name, config, version. A colon before the config would make TFDS contact another host.
_NAME = re.compile(r"([a-z]\w*)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?", re.ASCII)


# The data sets that may be downloaded; None allows all, since the user has named them.
_ALLOWED: contextvars.ContextVar[Collection[str] | None] = contextvars.ContextVar("allowed", default=None)


@contextlib.contextmanager
def restrict_downloads(allowed: Collection[str] | None) -> Iterator[None]:
    """Restrict downloads to the named data sets while the context lasts; None allows all.

    The name of a data set in a run's config.json may be a stranger's choice, and a download contacts another host.
    """
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


@dataclasses.dataclass(frozen=True)
class DatasetKind:
    """A kind of data set.

    Attributes:
        description: What messages call it.
        known_names: The names that this library knows, for messages.
        tfds_modules: The modules of TFDS that have more.
    """

    description: str
    known_names: str
    tfds_modules: tuple[str, ...]


TRANSLATION = DatasetKind(
    "translation set",
    "phrases, copy, reversal, help_desk, multi30k/<text>/<source>-<target>, FILE.en,FILE.de, FILE.tsv, FILE.csv, "
    "FILE.jsonl, a TFDS name such as wmt14_translate/de-en",
    ("translate",),
)


def prepare_tfds_dataset(
    name: str, kind: DatasetKind, *, data_dir: str | None, prepared_dir: str, check: Callable[[TfdsFeatures], object]
) -> pathlib.Path:
    """Return the folder of a TFDS data set: prepared under either folder, or downloaded to `prepared_dir`.

    Args:
        name: The TFDS name.
        kind: The kind of data set.
        data_dir: A folder that may have it prepared.
        prepared_dir: The folder in which data sets are prepared.
        check: A function that raises an error if the features are unsuitable, before a download that may take hours.

    Raises:
        UserError: If the name is unknown or that of another host's data set, or the data set is neither prepared nor
            can be downloaded.
    """
    parsed_name = parse_tfds_name(name, kind)
    if folder := find_prepared_folder(name, data_dir, prepared_dir):
        return folder
    allowed = _ALLOWED.get()
    if allowed is not None and name not in allowed:
        raise UserError(
            f"config.task.dataset={name!r} is not prepared here, and only the run's own config.json asks to download "
            f"it: add --trust={name} if you want that, or say by --data_dir where it is prepared"
        )
    import tensorflow_datasets as tfds

    dataset, config, version = parsed_name
    with silence_output():
        for module in kind.tfds_modules:
            _import_builders(module)
        try:
            # By class: by name, TFDS would also load a builder described by files in `prepared_dir`.
            builder = tfds.builder_cls(dataset)(
                data_dir=prepared_dir, config=config, version=version, file_format="array_record"
            )
        except tfds.core.DatasetNotFoundError as error:
            raise UserError(
                f"{name!r} is no {kind.description}: write {kind.known_names}, or the folder of a prepared set"
            ) from error
        except Exception as error:
            raise UserError(f"TFDS cannot build {name!r}: {describe_in_one_line(error)}") from error
    check(TfdsFeatures.of(builder))
    log = logging.getLogger(__name__)
    log.warning("%s: downloading and preparing under %s, which may take hours", name, prepared_dir)
    try:
        return _prepare_builder(builder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name} is not prepared under {prepared_dir} and could not be downloaded ({describe_in_one_line(error)}): "
            f"run `tfds build {name} --file_format=array_record` on a machine with a network, and give the "
            "folder that it wrote to by --data_dir"
        ) from error


def parse_tfds_name(name: str, kind: DatasetKind) -> tuple[str, str | None, str | None]:
    """Parse the name, the config and the version of a TFDS data set.

    Raises:
        UserError: If it is another name, such as that of another host's data set (huggingface:NAME).
    """
    match = _NAME.fullmatch(name)
    if match is None:
        why = "a set of another host, which is never asked" if ":" in name else f"no {kind.description}"
        raise UserError(f"{name!r} is {why}: write {kind.known_names}, or the folder of a prepared set")
    return match[1], match[2], match[3]


def find_prepared_folder(name: str, *roots: str | None) -> pathlib.Path | None:
    """Return the folder of a TFDS data set that is prepared under one of these folders; None if there is none."""
    folders = (pathlib.Path(root).expanduser() / name.replace(":", "/") for root in roots if root)
    return next(filter(None, map(newest_prepared_version, folders)), None)


def _import_builders(name: str) -> None:
    """Import the modules in one of TFDS's folders, each of which registers its builders.

    TFDS finds its older builders by importing all of its modules, which needs TensorFlow; these do not.
    """
    package = importlib.import_module(f"tensorflow_datasets.{name}")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.endswith("_test"):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{package.__name__}.{module.name}")


def _prepare_builder(builder: Any) -> pathlib.Path:
    import tensorflow_datasets as tfds

    folder = pathlib.Path(builder.data_dir)
    if (folder / INFO).is_file():
        return folder
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        with silence_output():
            builder.download_and_prepare(download_config=config)
    except Exception:
        # Another process may have prepared the same data set first: its folder is as good.
        if not (folder / INFO).is_file():
            raise
    return folder


def describe_in_one_line(error: BaseException) -> str:
    """Return the start of an error, for a message of one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextlib.contextmanager
def silence_output() -> Iterator[None]:
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
