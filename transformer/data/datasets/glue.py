"""Two sets of GLUE (Wang et al. 2019) whose texts are single sentences, from files that their user already has."""

import dataclasses
import pathlib
from collections.abc import Mapping

from transformer.config import UserError
from transformer.data.datasets.local_files import read_text, refuse_empty
from transformer.data.labeled_text_batches import LabeledText
from transformer.text_lines import split_lines


@dataclasses.dataclass(frozen=True)
class GlueDataset:
    """One set: its classes by number, its files by split, and where a line has the sentence and the label.

    `development` are the splits that together are GLUE's labeled development set, where all of them have labels, and
    `scored` the measure that GLUE gives the set (Wang et al. 2019, table 1). `columns` is None where a header names
    them, else their numbers.
    """

    classes: tuple[str, ...]
    files: Mapping[str, str]
    development: tuple[str, ...]
    scored: str
    layout: str
    columns: tuple[int, int] | None = None


GLUE_DATASETS = {
    "SST-2": GlueDataset(
        ("negative", "positive"),
        {"train": "SST-2/train.tsv", "validation": "SST-2/dev.tsv", "test": "SST-2/test.tsv"},
        ("test",),
        "accuracy",
        "a header and the columns sentence and label",
    ),
    # Sentences from the training set's sources, and from others.
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
    """The sentences of one of `SETS` by split, and once more as "development" those that GLUE calls so.

    The labels of GLUE's own test sets are not published: a test.tsv without labels gives no split, and dev.tsv beside
    it is the development set. With the training set cut in two and the labeled development set as test.tsv, as is
    usual, SST-2 has one.

    Raises:
        UserError: For files that are missing or are not as expected.
    """
    made = GLUE_DATASETS[name]
    how = (
        f"give the folder that holds {', '.join(made.files.values())} by --data_dir, each with {made.layout}, "
        "separated by tabs"
    )
    if data_dir is None:
        raise UserError(f"glue/{name} needs its files: {how}")
    splits = {}
    for split, file in made.files.items():
        path = pathlib.Path(data_dir).expanduser() / file
        if not path.is_file():
            raise UserError(f"glue/{name}: no file {path}: {how}")
        sentences = _read(path, made, how)
        if sentences is None and split != "test":
            raise UserError(f"glue/{name}: {path} has no labels: {how}")
        if sentences is not None:
            splits[split] = sentences
    of_development = made.development if set(made.development) <= set(splits) else ("validation",)
    return {**splits, "development": [each for split in of_development for each in splits[split]]}


def glue_metric(dataset: str) -> str | None:
    """The measure by which GLUE scores a set, "glue/CoLA" for example; None for one that is not of GLUE."""
    kind, _, name = dataset.partition("/")
    return GLUE_DATASETS[name].scored if kind == "glue" and name in GLUE_DATASETS else None


def _read(path: pathlib.Path, made: GlueDataset, how: str) -> list[LabeledText] | None:
    """The sentences of a file in its order; None for one whose header names no label."""
    lines = split_lines(read_text(path))
    if not lines:
        raise UserError(f"{path} has no sentences: {how}")
    columns, first = made.columns, 1
    if columns is None:
        header, first = lines[0].split("\t"), 2
        if "sentence" not in header:
            raise UserError(f"{path}: its first line names no column sentence: {how}")
        if "label" not in header:
            return None
        columns = header.index("sentence"), header.index("label")
    sentence, label = columns
    labels = {str(number): number for number in range(len(made.classes))}
    read = []
    for number, line in enumerate(lines[first - 1 :], first):
        cells = line.split("\t")
        if len(cells) <= max(columns) or cells[label] not in labels:
            raise UserError(f"{path}: line {number} has no label of {', '.join(labels)} and a sentence: {how}")
        read.append(LabeledText(cells[sentence].strip(), labels[cells[label]]))
    if not read:
        raise UserError(f"{path} has no sentences: {how}")
    refuse_empty([number for number, each in enumerate(read, first) if not each.text], path, "sentence")
    return read
