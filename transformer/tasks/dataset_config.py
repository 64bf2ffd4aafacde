"""The config keys that tasks on a data set share: its folder, the splits that are evaluated, and what is mapped."""

import dataclasses

from transformer.config import Config, NumDisplayedExamples, SplitName
from transformer.data.datasets.local_files import HeldOutFiles


@dataclasses.dataclass(frozen=True)
class DatasetConfig(Config, path="config.task"):
    """A data set whose splits are evaluated.

    Attributes:
        data_dir: The folder of the data, for data sets that are not generated. None resolves names relative to the
            working directory.
        validation_split: The name of the split that is evaluated during training; some data sets have several
            (MultiNLI's validation_matched and validation_mismatched).
        test_split: The name of the split that is evaluated at the end. Empty is none; translation needs one.
        num_probe_examples: The number of validation examples, evenly spaced, whose maps are stored.
        eval_parameters: Which parameters are evaluated: "raw", or the name of an average.
    """

    data_dir: str | None = None
    validation_split: SplitName = "validation"
    test_split: str = "test"
    num_probe_examples: NumDisplayedExamples = 4
    eval_parameters: str = "raw"

    @property
    def eval_splits(self) -> tuple[str, ...]:
        """The splits that are evaluated."""
        return (self.validation_split, *((self.test_split,) if self.test_split else ()))


@dataclasses.dataclass(frozen=True)
class TextDatasetConfig(DatasetConfig):
    """A data set that may be files of the user's own, of which splits have their own or are cut from `dataset`.

    Attributes:
        validation_files: The files of the validation split, for files of your own. Empty cuts the split from `dataset`.
        test_files: The same for the test split.
    """

    validation_files: str = ""
    test_files: str = ""

    @property
    def held_out(self) -> HeldOutFiles:
        """The files of splits that have files of their own."""
        return HeldOutFiles(self.validation_files, self.test_files)
