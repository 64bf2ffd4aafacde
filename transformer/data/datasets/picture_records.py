"""Labelled pictures that TFDS has prepared, read without TensorFlow."""

from collections.abc import Mapping

from transformer.config import UserError
from transformer.data.datasets.folders import own_names
from transformer.data.datasets.picture_files import Resizing, decode, stacked
from transformer.data.datasets.preparation import Kind, prepared_by_name, tfds_name
from transformer.data.datasets.prepared import Features, open_prepared, picture_of
from transformer.data.pictures import Pictures

_KIND = Kind("set of pictures", "tfds/NAME, such as tfds/mnist", ())


def read_prepared(
    name: str, data_dir: str | None, resizing: Resizing
) -> tuple[Mapping[str, Pictures], tuple[str, ...]]:
    """All splits of a set that `tfds build NAME` has prepared in `data_dir`, and the names of its classes.

    The picture and the class are those that the set calls supervised, else its first of each.

    Errors: UserError for a set that is not prepared, of which TFDS could write no picture without TensorFlow, for one
    without pictures or classes, and for files that cannot be read.
    """
    tfds_name(name, _KIND)
    folder = prepared_by_name(name, data_dir)
    if folder is None:
        where = f"in {data_dir}" if data_dir else "where config.task.data_dir says"
        raise UserError(
            f"{name} is not prepared {where}: run `tfds build {name} --file_format=array_record` where TensorFlow is "
            "installed, and give the folder that it wrote to by --data_dir"
        )
    prepared = open_prepared(folder)
    picture, label = _features(name, prepared.features)
    grey, classes = prepared.features.pictures[picture] == 1, prepared.features.classes[label]
    splits = {}
    for split, own in own_names(prepared.splits).items():
        records = prepared.records(split)
        read = [picture_of(record, picture, label) for record in records]
        if not read:
            raise UserError(f"{folder} has no record in its split {split!r}: prepare it again")
        if strangers := [number for _, number in read if not 0 <= number < len(classes)]:
            raise UserError(
                f"{folder} has the class {strangers[0]} in {split}; its classes are 0 to {len(classes) - 1}"
            )
        pixels = [decode(content, f"{folder}: {split}", resizing, grey=grey) for content, _ in read]
        splits[own] = stacked(f"{name}, {split},", pixels, [number for _, number in read])
    return splits, classes


def _features(name: str, features: Features) -> tuple[str, str]:
    """The names of the picture and of the class."""
    chosen = []
    for known, what in ((features.pictures, "picture"), (features.classes, "class")):
        if not known:
            raise UserError(f"{name} has no {what}: its features are {', '.join(features.names)}")
        chosen.append(next((key for key in features.supervised if key in known), next(iter(known))))
    picture, label = chosen
    return picture, label
