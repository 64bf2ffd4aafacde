"""The two single-sentence data sets of GLUE (Wang et al. 2019), from files that the user has."""

import dataclasses
import pathlib
from collections.abc import Mapping

from transformer.config import UserError
from transformer.data.datasets.local_files import read_raw_lines, refuse_empty_lines
from transformer.data.labeled_text_batches import LabeledText


@dataclasses.dataclass(frozen=True)
class GlueDataset:
    """A data set of GLUE.

    Attributes:
        classes: The names of its classes.
        split_files: The file of each split.
        development_splits: The splits that together are GLUE's labeled development set, if all of them have labels.
        metric_name: The metric by which GLUE scores it (Wang et al. 2019, table 1).
        layout_description: The layout of the files, in words.
        columns: The columns of the sentence and of the label; None if a header names them.
    """

    classes: tuple[str, ...]
    split_files: Mapping[str, str]
    development_splits: tuple[str, ...]
    metric_name: str
    layout_description: str
    columns: tuple[int, int] | None = None


GLUE_DATASETS = {
    "SST-2": GlueDataset(
        ("negative", "positive"),
        {"train": "SST-2/train.tsv", "validation": "SST-2/dev.tsv", "test": "SST-2/test.tsv"},
        ("test",),
        "accuracy",
        "a header and the columns sentence and label",
    ),
    # Validation sentences are from the training set's sources, test sentences from others.
    "CoLA": GlueDataset(
        ("unacceptable", "acceptable"),
        {
            "train": "CoLA/raw/in_domain_train.tsv",
            "validation": "CoLA/raw/in_domain_dev.tsv",
            "test": "CoLA/raw/out_of_domain_dev.tsv",
        },
        ("validation", "test"),
        "matthews",
        "no header and the columns source, label, author's mark and sentence",
        columns=(3, 1),
    ),
}


def read_glue(name: str, data_dir: str | None) -> dict[str, list[LabeledText]]:
    """Read the sentences of a GLUE data set by split, and once more as "development", GLUE's development set.

    The labels of GLUE's own test sets are not published: a test.tsv without labels gives no split, and dev.tsv is the
    development set. For SST-2 the training set is usually cut in two, and the labeled development set saved as
    test.tsv.

    Args:
        name: A key of `GLUE_DATASETS`.
        data_dir: The folder of the files.

    Raises:
        UserError: If files are missing or malformed.
    """
    dataset = GLUE_DATASETS[name]
    advice = (
        f"give the folder that holds {', '.join(dataset.split_files.values())} by --data_dir, each with "
        f"{dataset.layout_description}, separated by tabs"
    )
    if data_dir is None:
        raise UserError(f"glue/{name} needs its files: {advice}")
    splits = {}
    for split, file_name in dataset.split_files.items():
        path = pathlib.Path(data_dir).expanduser() / file_name
        if not path.is_file():
            raise UserError(f"glue/{name}: no file {path}: {advice}")
        sentences = _read_sentences(path, dataset, advice)
        if sentences is None and split != "test":
            raise UserError(f"glue/{name}: {path} has no labels: {advice}")
        if sentences is not None:
            splits[split] = sentences
    development_splits = (
        dataset.development_splits if set(dataset.development_splits) <= set(splits) else ("validation",)
    )
    return {**splits, "development": [example for split in development_splits for example in splits[split]]}


def glue_metric(dataset: str) -> str | None:
    """Return the metric by which GLUE scores a data set such as "glue/CoLA"; None if it is not of GLUE."""
    kind, _, name = dataset.partition("/")
    return GLUE_DATASETS[name].metric_name if kind == "glue" and name in GLUE_DATASETS else None


def _read_sentences(path: pathlib.Path, dataset: GlueDataset, advice: str) -> list[LabeledText] | None:
    """Read the sentences of a file in order; None if its header has no label."""
    lines = read_raw_lines(path)
    if not lines:
        raise UserError(f"{path} has no sentences: {advice}")
    columns, first = dataset.columns, 1
    if columns is None:
        header, first = lines[0].split("\t"), 2
        if "sentence" not in header:
            raise UserError(f"{path}: its first line names no column sentence: {advice}")
        if "label" not in header:
            return None
        columns = header.index("sentence"), header.index("label")
    sentence, label = columns
    labels = {str(number): number for number in range(len(dataset.classes))}
    sentences = []
    for number, line in enumerate(lines[first - 1 :], first):
        cells = line.split("\t")
        if len(cells) <= max(columns) or cells[label] not in labels:
            raise UserError(f"{path}: line {number} has no label of {', '.join(labels)} and a sentence: {advice}")
        sentences.append(LabeledText(cells[sentence].strip(), labels[cells[label]]))
    if not sentences:
        raise UserError(f"{path} has no sentences: {advice}")
    refuse_empty_lines(
        [number for number, example in enumerate(sentences, first) if not example.text], path, "sentence"
    )
    return sentences
