"""Descriptions of a store's modules and labels as plain JSON values, and back."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from transformer.attention.sites import Axis, Site
from transformer.config import MatchesPattern, Range, Sha256, convert_value
from transformer.maps.capture_plan import Sizes, StoredResolutions
from transformer.maps.zarr_files import Metadata, single_chunk_metadata
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

_PART = r"(?!\.{1,2}(/|$))[^/\0]+"
SiteName = Annotated[str, MatchesPattern(f"{_PART}(/{_PART})*", "a path within a step, without empty parts and dots")]
"""The name of a site, which is its folder in every step's."""
ArrayName = Annotated[
    str, MatchesPattern(f"{_PART}(/{_PART})*/(image|spectrogram|sound)", "AXIS/image, AXIS/spectrogram or AXIS/sound")
]
MOST_POSITIONS = 2**24
"""Of an axis of a stored map."""
Period = Annotated[int, Range(2, MOST_POSITIONS)]
_MEDIA_TYPES = {"image": (4, "uint8"), "spectrogram": (3, "float32"), "sound": (2, "uint8")}
"""How many axes the arrays of labels have, or one more, and of what they are."""


@dataclasses.dataclass(frozen=True)
class MediaArray:
    """The shape and the SHA-256 of an array of images, spectrograms or sounds."""

    shape: tuple[Annotated[int, Range(1, 2**31 - 1)], ...]
    sha256: Sha256


@dataclasses.dataclass(frozen=True)
class LabelsMetadata:
    """The labels of a store as JSON values; fields as in `AxisLabels`.

    Attributes:
        tokens: The token of every position of each example by axis.
        titles: The title of each example.
        gold_alignments: The gold alignments of each example by attention module.
        periods: The period of each example of repeated random tokens.
        media: The arrays of images, spectrograms and sounds by name.
        gold_key_description: What a head reads that follows the gold alignments, as in "the antecedent".
    """

    tokens: Mapping[str, tuple[tuple[Any, ...], ...]]
    titles: tuple[Any, ...]
    gold_alignments: Mapping[str, tuple[tuple[GoldAlignment, ...], ...]] | None
    periods: tuple[Period | None, ...] | None
    media: Mapping[ArrayName, MediaArray]
    gold_key_description: str | None = None

    def __post_init__(self) -> None:
        # A token may be a null character, which no other text is.
        words = [word for examples in self.tokens.values() for example in examples for word in example]
        if not all(isinstance(word, str) for word in (*words, *self.titles)):
            raise ValueError("tokens: each token and title must be a text")
        if not self.titles:
            raise ValueError("titles: there must be an example")
        for name, array in self.media.items():
            axes, _ = _media_type(name)
            if not axes <= len(array.shape) <= axes + 1:
                raise ValueError(f"media: {name!r} has the shape {array.shape}; it must have {axes} axes")


def check_site(site: Site) -> None:
    """Check that a stored attention module has a valid name, layers, heads and axes of a possible size.

    Raises:
        ValueError: If a field is not valid.
    """
    convert_value(SiteName, site.name, "name")
    if not site.layers or not site.heads:
        raise ValueError(f"layers: the site {site.name!r} must have layers and heads")
    for axis in (site.query, site.key):
        rows, columns = axis.shape or (axis.num_positions or 0, 1)
        if not (rows >= 0 and columns >= 0 and rows * columns + axis.num_leading_positions <= MOST_POSITIONS):
            raise ValueError(f"shape: the axis {axis.name!r} of {site.name!r} has too many positions")


def store_metadata(
    sites: tuple[Site, ...], labels: AxisLabels, resolutions: StoredResolutions, sizes: Sizes
) -> dict[str, Any]:
    """Return everything that must be unchanged for a map store to be continued.

    Args:
        sites: The attention modules.
        labels: The labels of the probe examples; arrays among them are represented by their hashes.
        resolutions: The resolutions at which maps are stored.
        sizes: The numbers of queries and keys by the name of a module.

    Returns:
        JSON values.
    """
    described = {
        "sites": [site_metadata(site) for site in sites],
        "labels": {
            "tokens": dict(labels.tokens),
            "titles": labels.titles,
            "gold_alignments": labels.gold_alignments,
            **({} if labels.gold_key_description is None else {"gold_key_description": labels.gold_key_description}),
            "periods": labels.periods,
            "media": {
                name: {"shape": values.shape, "sha256": hash_array(values)}
                for name, values in label_media_arrays(labels).items()
            },
        },
        "resolutions": {
            "level_sizes": resolutions.level_sizes,
            "num_rows": resolutions.num_rows,
            "top_k": resolutions.top_k,
        },
        "sizes": dict(sizes),
    }
    return json.loads(json.dumps(described))


def site_metadata(site: Site) -> dict[str, Any]:
    """Return an attention module as plain JSON values."""
    return {
        "name": site.name,
        "query": _describe_axis(site.query),
        "key": _describe_axis(site.key),
        "layers": site.layers,
        "heads": site.heads,
        "causal": site.causal,
        "values": site.values.value,
    }


def max_lengths(site: Site, labels: AxisLabels) -> tuple[int, int]:
    """Return the largest numbers of queries and keys that an example has at a module.

    Args:
        site: The attention module.
        labels: The labels of the examples.

    Returns:
        The numbers of queries and of keys.

    Raises:
        ValueError: If the labels lack one of its axes.
    """
    for axis in (site.query, site.key):
        if axis.name not in labels.tokens:
            raise ValueError(
                f"labels.tokens lacks the axis {axis.name!r} of site {site.name!r}: it has {sorted(labels.tokens)}"
            )
    queries, keys = (max(map(len, labels.tokens[axis.name])) for axis in (site.query, site.key))
    return queries, keys


def hash_array(values: np.ndarray) -> str:
    """Return the SHA-256 of an array's bytes."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def media_metadata(name: str, array: MediaArray) -> Metadata:
    """Return the zarr metadata of an array of images, spectrograms or sounds."""
    return single_chunk_metadata(array.shape, _media_type(name)[1])


def _media_type(name: str) -> tuple[int, str]:
    return _MEDIA_TYPES[name.rpartition("/")[2]]


def label_media_arrays(labels: AxisLabels) -> dict[str, np.ndarray]:
    """Return the images, spectrograms and sounds of labels as arrays, by the name they are stored under."""
    images = {f"{axis}/image": np.asarray(values, np.uint8) for axis, values in labels.images.items()}
    sounds = {f"{axis}/sound": _pack_files(files) for axis, files in labels.sounds.items()}
    spectrograms = {f"{axis}/spectrogram": np.asarray(v, np.float32) for axis, v in labels.spectrograms.items()}
    return images | spectrograms | sounds


def parse_labels(entry: LabelsMetadata, read: Callable[[str], np.ndarray]) -> AxisLabels:
    """Build labels from their description.

    Args:
        entry: The description.
        read: Returns the array of an image, spectrogram or sound by name.

    Returns:
        The labels.

    Raises:
        ValueError: If the parts disagree on the number of examples.
    """
    arrays = {name: read(name) for name in entry.media}
    return AxisLabels(
        tokens=entry.tokens,
        titles=entry.titles,
        gold_alignments=entry.gold_alignments,
        periods=entry.periods,
        gold_key_description=entry.gold_key_description,
        images={name.removesuffix("/image"): a for name, a in arrays.items() if name.endswith("/image")},
        spectrograms={
            name.removesuffix("/spectrogram"): a for name, a in arrays.items() if name.endswith("/spectrogram")
        },
        sounds={name.removesuffix("/sound"): _unpack_files(a) for name, a in arrays.items() if name.endswith("/sound")},
    )


def _pack_files(files: Sequence[bytes]) -> np.ndarray:
    """Store WAV files of different sizes as rows of bytes, padded with zeros."""
    rows = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, content in zip(rows, files, strict=True):
        row[: len(content)] = np.frombuffer(content, np.uint8)
    return rows


def _unpack_files(rows: np.ndarray) -> tuple[bytes, ...]:
    """Recover the WAV files, the inverse of `_pack_files`: bytes 4 to 7 of a WAV file count those that follow."""
    return tuple(row[: 8 + int.from_bytes(row[4:8].tobytes(), "little")].tobytes() for row in rows)


def _describe_axis(axis: Axis) -> dict[str, Any]:
    return {
        "name": axis.name,
        "kind": axis.kind.value,
        "shape": axis.shape,
        "stride": axis.stride,
        "offset": axis.offset,
        "num_leading_positions": axis.num_leading_positions,
        "num_positions": axis.num_positions,
    }
