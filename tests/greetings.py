"""A small prepared set of TFDS: greetings in English and German, each with a note."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

SIZES = {"train": 64, "validation": 16, "test": 16}


class Greetings(tfds.core.GeneratorBasedBuilder):
    """So many greetings a split."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(dict.fromkeys(("en", "de", "note"), tfds.features.Text()))
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("en", "de"))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for number in range(SIZES[split]):
            yield number, {"en": f"greetings to {number}", "de": f"Grüße an {number}", "note": split}


def prepare(root: Path) -> Path:
    """The folder of the set, prepared under `root` as a run keeps it: `greetings` is its name there."""
    builder = Greetings(data_dir=root, file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_dir)
