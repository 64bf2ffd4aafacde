"""The store of attention maps: zarr v3 under a run's `maps/`, one group a site, one shard a step.

    maps/zarr.json                    root group: format, config hash, sites, labels and THE list of steps
    maps/decoder/cross/zarr.json      group of the site "decoder/cross" with its own description
    maps/decoder/cross/weights/       uint8   [step, example, layer, head, query, key]
    maps/decoder/cross/scale/         float32 [step, example, layer, head, query]

weight = scale (code / 255)^2. Queries and keys are cut to the longest example; beyond an example's own
tokens both arrays hold zeros. A step enters the list only once its data is complete, and the list is
replaced in one atomic rename: after a kill at any moment the store holds whole steps only. The arrays may
then be longer than the list; what lies beyond it means nothing and the next write replaces it.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from jaxtyping import Float, UInt8

from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.maps.quantise import dequantise, quantise
from transformer.tasks.labels import Labels, Link

FORMAT = "headwise-maps"
VERSION = 1
_AXES = ("step", "example", "layer", "head", "query", "key")


@dataclasses.dataclass(frozen=True)
class SiteMaps:
    """The stored maps of one site at one step, still quantised."""

    codes: UInt8[np.ndarray, "B L H Q K"]
    scale: Float[np.ndarray, "B L H Q"]


class MapStore:
    """All maps of one run: written step by step, readable at any moment.

    `MapStore.open` creates or continues a store for writing, `MapStore.existing` opens one to read.
    """

    def __init__(self, path: Path, sites: tuple[Site, ...], labels: Labels, config_hash: str, steps: list[int]):
        self.path = path
        self.sites = sites
        self.labels = labels
        self.config_hash = config_hash
        self._steps = steps
        self._arrays: dict[tuple[str, str], Any] = {}

    @classmethod
    def open(cls, path: Path, sites: tuple[Site, ...], labels: Labels, config_hash: str) -> "MapStore":
        """Create the store at `path`, or continue the one that is there.

        Errors: UserError if the store there has other sites, labels or shapes, or an unknown version.
        """
        path = Path(path).resolve()
        _check_axes(sites, labels)
        steps: list[int] = []
        if (path / "zarr.json").exists():
            there = _read_attributes(path)
            for part, value in _describe(sites, labels).items():
                if there.get(part) != value:
                    raise UserError(
                        f"the map store {path} was written with other {part}: take a new run directory, "
                        "or move that store away"
                    )
            steps = list(there["steps"])
        store = cls(path, tuple(sites), labels, config_hash, steps)
        store._write_site_groups()
        store._commit(steps)
        return store

    @classmethod
    def existing(cls, path: Path) -> "MapStore":
        """Open the store at `path` for reading, with all that it says of itself.

        Errors: UserError if there is none, or if it was written by an unknown version.
        """
        path = Path(path).resolve()
        if not (path / "zarr.json").exists():
            raise UserError(f"no map store at {path}: train the run with maps_every > 0 first")
        there = _read_attributes(path)
        sites, labels = tuple(_site(entry) for entry in there["sites"]), _labels(there["labels"])
        return cls(path, sites, labels, there["config_hash"], list(there["steps"]))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps whose maps are complete, in order."""
        return tuple(self._steps)

    def site(self, name: str) -> Site:
        """The site called `name`. Errors: UserError naming the sites that there are."""
        for site in self.sites:
            if site.name == name:
                return site
        raise UserError(f"site={name!r} is not in the map store: it has {', '.join(s.name for s in self.sites)}")

    def write(self, step: int, maps: Mapping[str, Float[np.ndarray, "L B H Q K"]]) -> None:
        """Append the maps of every site at `step`; returns once they are on disk and listed.

        Each array is [layer, example, head, query, key], padded to any fixed query and key length.

        Errors: ValueError if `step` does not come after the stored ones, a site is missing or unknown, or
        a shape is not the site's.
        """
        if self._steps and step <= self._steps[-1]:
            raise ValueError(f"step={step} must come after the last stored step {self._steps[-1]}")
        names = {site.name for site in self.sites}
        if set(maps) != names:
            raise ValueError(f"maps has the sites {sorted(maps)}; the store's are {sorted(names)}")
        pending = []
        for site in self.sites:
            weights = _trim(np.asarray(maps[site.name]), site, self.labels)
            codes, scale = quantise(weights)
            for name, values in (("weights", codes), ("scale", scale)):
                pending.append(self._append(site, name, values))
        for future in pending:
            future.result()
        self._commit([*self._steps, int(step)])

    def read_quantised(self, site: str, step: int) -> SiteMaps:
        """The codes and scales of `site` at `step`. Errors: UserError if either is not stored."""
        owner = self.site(site)
        if step not in self._steps:
            raise UserError(f"step={step} is not in the map store: it has {self._steps}")
        index = self._steps.index(step)
        codes, scale = (self._array(owner, name)[index].read() for name in ("weights", "scale"))
        return SiteMaps(codes.result(), scale.result())

    def read(self, site: str, step: int) -> Float[np.ndarray, "B L H Q K"]:
        """The weights of `site` at `step`, dequantised to float32; zero beyond an example's tokens.

        Errors: UserError if either is not stored.
        """
        maps = self.read_quantised(site, step)
        return dequantise(maps.codes, maps.scale)

    def truncate(self, after_step: int) -> None:
        """Drop every step later than `after_step`, as a run resumed from that step must."""
        kept = [step for step in self._steps if step <= after_step]
        if kept == self._steps:
            return
        # The list first: a kill between the two leaves data that nothing names and the next write replaces.
        self._commit(kept)
        for site in self.sites:
            for name in ("weights", "scale"):
                self._resize(site, name, len(kept))

    def _append(self, site: Site, name: str, values: np.ndarray) -> Any:
        index = len(self._steps)
        self._resize(site, name, index + 1)
        return self._array(site, name)[index].write(values)

    def _resize(self, site: Site, name: str, steps: int) -> None:
        array = self._array(site, name)
        bounds = [steps] + [None] * (array.rank - 1)
        self._arrays[site.name, name] = array.resize(exclusive_max=bounds, resize_metadata_only=False).result()

    def _array(self, site: Site, name: str) -> Any:
        if (site.name, name) not in self._arrays:
            path = self.path / site.name / name
            spec: dict[str, Any] = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
            if not (path / "zarr.json").exists():
                shape = _shape(site, self.labels)
                spec |= {"create": True, "metadata": _metadata(shape if name == "weights" else shape[:-1])}
            self._arrays[site.name, name] = tensorstore.open(spec).result()
        return self._arrays[site.name, name]

    def _write_site_groups(self) -> None:
        for site in self.sites:
            parts = site.name.split("/")
            for depth in range(1, len(parts)):
                _write_group(self.path.joinpath(*parts[:depth]), {})
            about = {**_describe((site,), self.labels)["sites"][0], "config_hash": self.config_hash}
            about["tokens"] = {axis: list(self.labels.tokens[axis]) for axis in {site.query.name, site.key.name}}
            about["titles"] = list(self.labels.titles)
            about["links"] = (self.labels.links or {}).get(site.name)
            about["quantisation"] = "weight = scale * (weights / 255) ** 2"
            _write_group(self.path / site.name, about)

    def _commit(self, steps: list[int]) -> None:
        attributes = {
            "format": FORMAT,
            "version": VERSION,
            "config_hash": self.config_hash,
            "steps": steps,
            **_describe(self.sites, self.labels),
        }
        _write_group(self.path, attributes)
        self._steps = list(steps)


def _metadata(shape: tuple[int, ...]) -> dict[str, Any]:
    """One step a shard; in it one example a chunk, so that a reader may fetch a single example."""
    names = _AXES[: len(shape)]
    weights = names[-1] == "key"
    endian = {} if weights else {"endian": "little"}
    chunks = [{"name": "bytes", "configuration": endian}, {"name": "gzip", "configuration": {"level": 6}}]
    shard = {"chunk_shape": [1, 1, *shape[2:]], "codecs": chunks}
    return {
        "shape": [0, *shape[1:]],
        "data_type": "uint8" if weights else "float32",
        "fill_value": 0,
        "dimension_names": list(names),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, *shape[1:]]}},
        "codecs": [{"name": "sharding_indexed", "configuration": shard}],
    }


def _shape(site: Site, labels: Labels) -> tuple[int, int, int, int, int, int]:
    queries, keys = (max(map(len, labels.tokens[axis.name])) for axis in (site.query, site.key))
    return (1, len(labels.titles), len(site.layers), len(site.heads), queries, keys)


def _trim(weights_LxBxHxQxK: np.ndarray, site: Site, labels: Labels) -> Float[np.ndarray, "B L H Q K"]:
    """Example first, lengths cut to the longest example, padding zeroed so that it costs nothing."""
    _, examples, layers, heads, queries, keys = _shape(site, labels)
    shape = weights_LxBxHxQxK.shape
    if shape[:3] != (layers, examples, heads) or shape[3] < queries or shape[4] < keys:
        raise ValueError(
            f"maps[{site.name!r}] has shape {shape}; it must be [layer {layers}, example {examples}, "
            f"head {heads}, query >= {queries}, key >= {keys}]"
        )
    trimmed = np.moveaxis(weights_LxBxHxQxK[..., :queries, :keys], 1, 0).astype(np.float32)
    for example in range(examples):
        trimmed[example, ..., len(labels.tokens[site.query.name][example]) :, :] = 0
        trimmed[example, ..., len(labels.tokens[site.key.name][example]) :] = 0
    return trimmed


def _check_axes(sites: tuple[Site, ...], labels: Labels) -> None:
    for site in sites:
        for axis in (site.query, site.key):
            if axis.name not in labels.tokens:
                raise ValueError(
                    f"labels.tokens lacks the axis {axis.name!r} of site {site.name!r}: it has {sorted(labels.tokens)}"
                )


def _describe(sites: tuple[Site, ...], labels: Labels) -> dict[str, Any]:
    """What the store says of its sites and labels, as plain JSON values that compare with those read back."""
    described = {
        "sites": [
            {
                "name": site.name,
                "query": {"name": site.query.name, "kind": site.query.kind.value},
                "key": {"name": site.key.name, "kind": site.key.kind.value},
                "layers": site.layers,
                "heads": site.heads,
                "causal": site.causal,
            }
            for site in sites
        ],
        "labels": {"tokens": dict(labels.tokens), "titles": labels.titles, "links": labels.links},
    }
    return json.loads(json.dumps(described))


def _site(entry: Mapping[str, Any]) -> Site:
    query, key = (Axis(entry[side]["name"], AxisKind(entry[side]["kind"])) for side in ("query", "key"))
    return Site(entry["name"], query, key, tuple(entry["layers"]), tuple(entry["heads"]), entry["causal"])


def _labels(entry: Mapping[str, Any]) -> Labels:
    links = entry["links"]
    return Labels(
        tokens={axis: tuple(tuple(words) for words in examples) for axis, examples in entry["tokens"].items()},
        titles=tuple(entry["titles"]),
        links=None
        if links is None
        else {
            site: tuple(tuple(Link(*link) for link in each) for each in examples) for site, examples in links.items()
        },
    )


def _read_attributes(path: Path) -> dict[str, Any]:
    try:
        attributes = json.loads((path / "zarr.json").read_text())["attributes"]
    except (json.JSONDecodeError, KeyError):
        raise UserError(f"{path}/zarr.json is not the group of a map store: move that directory away") from None
    if attributes.get("format") != FORMAT or attributes.get("version") != VERSION:
        raise UserError(
            f"the map store {path} is {attributes.get('format')!r} version {attributes.get('version')!r}; "
            f"this code reads {FORMAT!r} version {VERSION}: open it with the version that wrote it"
        )
    return attributes


def _write_group(path: Path, attributes: Mapping[str, Any]) -> None:
    """Replace a group's metadata in one rename: a reader sees the old file or the new one, never a part."""
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1)
    temporary = path / "zarr.json.new"
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / "zarr.json")
