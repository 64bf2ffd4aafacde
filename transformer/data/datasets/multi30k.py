"""Multi30k, image captions in English, German and French, from files that its user already has.

Elliott et al. 2016 and 2017. The folder holds `raw/<split>.<language>.gz`, cased and untokenized, and
`tok/<split>.lc.norm.tok.<language>`, lower-cased, normalized and tokenized; the lines are parallel.
"""

import dataclasses
import gzip
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from transformer.config import UserError
from transformer.data.line_splitting import split_lines

FILES = {
    "train": "train",
    "validation": "val",
    "test_2016_flickr": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
}
"""The name of each split in file names."""

TEXTS = ("raw", "tokenized")
DIRECTIONS = (("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en"))


def locate_split_file(folder: pathlib.Path, text: str, split: str, language: str) -> pathlib.Path:
    """Return the path of one split in one language."""
    if text == "raw":
        return folder / "raw" / f"{FILES[split]}.{language}.gz"
    return folder / "tok" / f"{FILES[split]}.lc.norm.tok.{language}"


def require_files(data_dir: str | None, text: str, languages: tuple[str, str]) -> pathlib.Path:
    """Return the folder of the data, after checking that all files of a direction exist.

    Raises:
        UserError: If a file is missing; the message says which files are expected where.
    """
    how = (
        "obtain task 1 of the multi30k project and give its folder by --data_dir, holding "
        "raw/<split>.<language>.gz and tok/<split>.lc.norm.tok.<language> for the splits "
        f"{', '.join(FILES.values())} and the languages en, de, fr"
    )
    if data_dir is None:
        raise UserError(f"multi30k needs its files: {how}")
    folder = pathlib.Path(data_dir).expanduser()
    for split in FILES:
        for language in languages:
            path = locate_split_file(folder, text, split, language)
            if not path.is_file():
                raise UserError(f"multi30k: no file {path}: {how}")
    return folder


def fingerprint(folder: pathlib.Path, text: str, languages: tuple[str, str]) -> str:
    """Return twelve characters that identify the content of the files, whatever the direction."""
    digest = hashlib.sha256()
    for split in FILES:
        for language in sorted(languages):
            digest.update(hashlib.sha256(locate_split_file(folder, text, split, language).read_bytes()).digest())
    return digest.hexdigest()[:12]


def read_lines(path: pathlib.Path) -> list[str]:
    """Read the lines of a UTF-8 file, gzipped if its name ends in .gz.

    Raises:
        UserError: If the file is damaged or not UTF-8.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"multi30k: cannot read {path} ({error}): obtain the file again") from error
    return [line.strip() for line in split_lines(text)]


@dataclasses.dataclass(eq=False, kw_only=True)
class Multi30kConfig(tfds.core.BuilderConfig):
    """Which text and which direction; `languages` is (source, target)."""

    text: str
    languages: tuple[str, str]


class Multi30k(tfds.core.GeneratorBasedBuilder):
    """Multi30k by config "<text>-<source>-<target>"; its folder is the download manager's `manual_dir`."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = __doc__
    BUILDER_CONFIGS: ClassVar = [
        Multi30kConfig(name=f"{text}-{source}-{target}", text=text, languages=(source, target))
        for text in TEXTS
        for source, target in DIRECTIONS
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.Translation(languages=self.builder_config.languages),
            supervised_keys=self.builder_config.languages,
            # Published scores use the test sentences in the order of their file.
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        folder = pathlib.Path(dl_manager.manual_dir)
        return {split: self._generate_examples(folder, split) for split in FILES}

    def _generate_examples(self, folder: pathlib.Path, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        config = self.builder_config
        source, target = config.languages
        paths = [locate_split_file(folder, config.text, split, language) for language in config.languages]
        source_lines, target_lines = (read_lines(path) for path in paths)
        if len(source_lines) != len(target_lines):
            raise UserError(
                f"multi30k: {paths[0]} has {len(source_lines)} lines and {paths[1]} has {len(target_lines)}: "
                "parallel files have the same number; obtain both again"
            )
        for index, pair in enumerate(zip(source_lines, target_lines, strict=True)):
            yield index, dict(zip((source, target), pair, strict=True))
