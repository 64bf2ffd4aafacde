"""Descriptions of a store's sites and labels as plain JSON values, and back."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.attention.sites import Axis, AxisKind, Site, Values
from transformer.maps.plan import Sizes
from transformer.maps.tiers import Tiers
from transformer.tasks.labels import Labels, Link


def describe(sites: tuple[Site, ...], labels: Labels, tiers: Tiers, sizes: Sizes) -> dict[str, Any]:
    """All values that must agree for a store to be continued, as JSON returns them."""
    described = {
        "sites": [describe_site(site) for site in sites],
        "labels": {
            "tokens": dict(labels.tokens),
            "titles": labels.titles,
            "links": labels.links,
            **({} if labels.linked is None else {"linked": labels.linked}),
            "periods": labels.periods,
            "shown": {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in shown(labels).items()},
        },
        "tiers": {"cells": tiers.cells, "rows": tiers.rows, "top": tiers.top},
        "sizes": dict(sizes),
    }
    return json.loads(json.dumps(described))


def describe_site(site: Site) -> dict[str, Any]:
    """A site as plain JSON values."""
    return {
        "name": site.name,
        "query": _describe_axis(site.query),
        "key": _describe_axis(site.key),
        "layers": site.layers,
        "heads": site.heads,
        "causal": site.causal,
        "values": site.values.value,
    }


def longest(site: Site, labels: Labels) -> tuple[int, int]:
    """The most queries and keys that an example has at a site.

    Errors: ValueError where the labels lack one of its axes.
    """
    for axis in (site.query, site.key):
        if axis.name not in labels.tokens:
            raise ValueError(
                f"labels.tokens lacks the axis {axis.name!r} of site {site.name!r}: it has {sorted(labels.tokens)}"
            )
    queries, keys = (max(map(len, labels.tokens[axis.name])) for axis in (site.query, site.key))
    return queries, keys


def shown(labels: Labels) -> dict[str, np.ndarray]:
    """Pictures, spectrograms and sounds by the names of their arrays."""
    pictures = {f"{axis}/picture": np.asarray(values, np.uint8) for axis, values in labels.pictures.items()}
    sounds = {f"{axis}/sound": _beside(files) for axis, files in labels.sounds.items()}
    heard = {f"{axis}/spectrogram": np.asarray(v, np.float32) for axis, v in labels.spectrograms.items()}
    return pictures | heard | sounds


def site_of(entry: Mapping[str, Any]) -> Site:
    """The site of a description: the inverse of `describe_site`."""
    query, key = (_axis(entry[side]) for side in ("query", "key"))
    names = tuple(entry["layers"]), tuple(entry["heads"])
    return Site(entry["name"], query, key, *names, entry["causal"], Values(entry["values"]))


def labels_of(entry: Mapping[str, Any], read: Callable[[str], np.ndarray]) -> Labels:
    """The labels of a description; `read` gives the array of a picture or spectrogram."""
    links, periods = entry["links"], entry["periods"]
    arrays = {name: read(name) for name in entry["shown"]}
    return Labels(
        tokens={axis: tuple(tuple(words) for words in examples) for axis, examples in entry["tokens"].items()},
        titles=tuple(entry["titles"]),
        links=None
        if links is None
        else {
            site: tuple(tuple(Link(*link) for link in each) for each in examples) for site, examples in links.items()
        },
        periods=None if periods is None else tuple(periods),
        linked=entry.get("linked"),
        pictures={name.removesuffix("/picture"): a for name, a in arrays.items() if name.endswith("/picture")},
        spectrograms={
            name.removesuffix("/spectrogram"): a for name, a in arrays.items() if name.endswith("/spectrogram")
        },
        sounds={name.removesuffix("/sound"): _files(a) for name, a in arrays.items() if name.endswith("/sound")},
    )


def _beside(files: Sequence[bytes]) -> np.ndarray:
    """WAV files of unlike sizes as rows of bytes, zeros behind them."""
    rows = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, content in zip(rows, files, strict=True):
        row[: len(content)] = np.frombuffer(content, np.uint8)
    return rows


def _files(rows: np.ndarray) -> tuple[bytes, ...]:
    """The inverse: a WAV file says in its second four bytes how many follow them."""
    return tuple(row[: 8 + int.from_bytes(row[4:8].tobytes(), "little")].tobytes() for row in rows)


def _describe_axis(axis: Axis) -> dict[str, Any]:
    return {
        "name": axis.name,
        "kind": axis.kind.value,
        "shape": axis.shape,
        "stride": axis.stride,
        "offset": axis.offset,
        "leading": axis.leading,
        "size": axis.size,
    }


def _axis(entry: Mapping[str, Any]) -> Axis:
    shape = entry["shape"]
    return Axis(
        entry["name"],
        AxisKind(entry["kind"]),
        None if shape is None else (shape[0], shape[1]),
        entry["stride"],
        entry["offset"],
        entry["leading"],
        entry["size"],
    )
