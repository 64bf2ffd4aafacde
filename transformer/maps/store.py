"""The store of attention maps: zarr v3 in a run's `maps/`, one group an attention module, one shard a step.

    maps/zarr.json                       root group: format, config hash, sites, labels and THE list of steps
    maps/labels/<axis>/image             what a grid's positions were cut from; `spectrogram` and `sound` for frames
    maps/decoder/cross/zarr.json         group of the site "decoder/cross" with its own description
    maps/decoder/cross/full/codes        uint8   [step, example, layer, head, query, key]
    maps/decoder/cross/full/scale, root  float32, uint8   [step, example, layer, head, query]
    maps/decoder/cross/pooled-64/...     the same of a coarser level
    maps/decoder/cross/rows/...          the same of some whole rows, where "full" is not stored
    maps/decoder/cross/top/...           the same of the largest weights of each row, and `keys` int32
    maps/decoder/cross/statistics        float32 [step, example, layer, head, statistic]

weight = scale (code / 255)^root. Beyond an example's own tokens the levels hold zeros.

A step enters the list only once its data is complete, and the list is replaced in one atomic rename: a process killed
at any moment leaves whole steps only. The arrays may then be longer than the list; the next write replaces what lies
beyond it. Several processes write one store, each the shards that it holds: the first keeps the list in the root
group, every other a list of its own, and a step counts once all of them list it. The first process must open the store
before the others, and their number may change when a run is restarted. Each list also has the digests of what its
process wrote (transformer.maps.checksums), which are verified on reading.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer.attention.capture import evenly_spaced_positions
from transformer.attention.sites import Site
from transformer.config import Range, UserError
from transformer.maps.capture_plan import (
    ResolutionLevel,
    Sizes,
    StoredMaps,
    StoredResolutions,
    resolution_levels,
    statistic_names,
)
from transformer.maps.checksums import (
    CorruptMapsError,
    Digests,
    digest_array,
    digest_shards,
    digests_by_array,
    merge_digests,
    regroup_digests_by_step,
)
from transformer.maps.quantize import Quantized
from transformer.maps.store_metadata import (
    MOST_POSITIONS,
    LabelsMetadata,
    check_site,
    label_media_arrays,
    max_lengths,
    parse_labels,
    site_metadata,
    store_metadata,
)
from transformer.maps.store_metadata import StorePath as NameInStore
from transformer.maps.zarr_files import (
    Piece,
    array_metadata,
    local_shards,
    open_array,
    read_array,
    replace_file,
    set_padding_to_zero,
    stack_statistics,
    write_array,
    write_group,
)
from transformer.runs.array_digests import Digest
from transformer.runs.exceptions import NonFiniteError
from transformer.runs.jsonl_reading import StepNumber
from transformer.storage.json_checksum import add_checksum, has_valid_checksum
from transformer.storage.json_reading import (
    parse_dataclass,
    parse_json,
    read_json_object,
    read_regular_file,
    require_object,
)
from transformer.storage.paths import parse_path, storage_of
from transformer.tasks.axis_labels import AxisLabels

FORMAT = "headwise-maps"
VERSION = 7
_AXES = ("step", "example", "layer", "head")
_PARTS = Quantized._fields


_MOST_WRITERS = 1 << 16
_MEDIA_TYPES = {"image": (4, "uint8"), "spectrogram": (3, "float32"), "sound": (2, "uint8")}
"""How many axes the arrays of labels have, and of what they are."""

Positions = Annotated[int, Range(1, MOST_POSITIONS)]


@dataclasses.dataclass(frozen=True)
class WrittenSteps:
    """The contents of written-N.json: the steps that a process has written, and each array's digests at them."""

    steps: tuple[StepNumber, ...]
    digests: Mapping[NameInStore, tuple[Digest, ...]]
    sha256: str

    def __post_init__(self) -> None:
        if any(step >= next_step for step, next_step in itertools.pairwise(self.steps)):
            raise ValueError("steps: each must be after the one before")
        for name, digests in self.digests.items():
            if len(digests) != len(self.steps):
                raise ValueError(f"digests: {name!r} has {len(digests)} for {len(self.steps)} steps")


@dataclasses.dataclass(frozen=True)
class StoreAttributes(WrittenSteps):
    """The attributes of the store's zarr.json: the steps that the first process has written, and what is stored."""

    format: str
    version: int
    config_hash: str
    writers: Annotated[int, Range(1, _MOST_WRITERS)]
    sites: tuple[Site, ...]
    labels: LabelsMetadata
    resolutions: StoredResolutions
    sizes: Mapping[str, tuple[Positions, Positions]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for site in self.sites:
            check_site(site)
        names = [site.name for site in self.sites]
        if len(set(names)) != len(names) or set(self.sizes) != set(names):
            raise ValueError("sizes: there must be one for each site, and no two sites of one name")
        cells, rows, top = self.resolutions.level_sizes, self.resolutions.num_rows, self.resolutions.top_k
        if not cells or cells[0] < 1 or any(size >= next_size for size, next_size in itertools.pairwise(cells)):
            raise ValueError(f"resolutions: level_sizes={cells} must ascend from at least 1")
        if not (1 <= rows <= MOST_POSITIONS and 0 <= top <= MOST_POSITIONS):
            raise ValueError(f"resolutions: num_rows={rows} and top_k={top} are none")


class Statistics(NamedTuple):
    """Statistics of every head at every stored step.

    Attributes:
        names: The names of the statistics.
        values: Their values [step, example, layer, head, statistic]; NaN where one is undefined for an example.
    """

    names: tuple[str, ...]
    values: Float[np.ndarray, "S B L H N"]


class MapStore:
    """All maps of one run: written step by step, readable at any moment.

    `MapStore.open` creates or continues a store for writing, `MapStore.open_existing` opens one to read.

    Attributes:
        path: The directory of the store.
        sites: The attention modules.
        labels: The labels of the probe batch's positions.
        config_hash: The hash of the run's config.
        resolutions: The stored resolutions.
    """

    def __init__(
        self,
        path: Path,
        sites: tuple[Site, ...],
        labels: AxisLabels,
        config_hash: str,
        resolutions: StoredResolutions,
        sizes: Sizes,
        writers: tuple[int, int] = (0, 1),
    ):
        self.path = path
        self.sites = sites
        self.labels = labels
        self.config_hash = config_hash
        self.resolutions = resolutions
        self._sizes = sizes
        self._writer, self._writers = writers
        self._steps: list[int] = []
        self._places: dict[int, int] = {}  # of the steps in the arrays
        self._digests: Digests = {}
        self._arrays: dict[str, Any] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        sites: Sequence[Site],
        labels: AxisLabels,
        config_hash: str,
        resolutions: StoredResolutions | None = None,
        sizes: Sizes | None = None,
        writers: tuple[int, int] = (0, 1),
    ) -> "MapStore":
        """Create the store at `path`, or open an existing one to continue it.

        Args:
            path: The directory of the store.
            sites: The attention modules.
            labels: The labels of the probe batch's positions.
            config_hash: The hash of the run's config.
            resolutions: The stored resolutions.
            sizes: The numbers of queries and keys of the modules whose maps are padded beyond the longest example.
            writers: The index of this process and the number of processes; process 0 must open the store first.

        Returns:
            The store, which continues after the steps that all processes have written.

        Raises:
            UserError: If the existing store has other modules, labels, sizes or resolutions, or an unknown version.
            CorruptMapsError: If the existing store is damaged.
        """
        path = parse_path(path).resolve()
        known_sizes = {site.name: (sizes or {}).get(site.name) or max_lengths(site, labels) for site in sites}
        store = cls(path, tuple(sites), labels, config_hash, resolutions or StoredResolutions(), known_sizes, writers)
        if (path / "zarr.json").exists():
            stored, file = _read_attributes(path)
            for part, value in store._store_metadata.items():
                if stored.get(part) != value:
                    raise UserError(
                        f"the map store {path} was written with other {part}: take a new run directory, "
                        "or move that store away"
                    )
            store._load_written_steps(path, file)
        store._write_site_groups()
        for array, metadata in store._planned_arrays():
            store._arrays[array] = open_array(path / array, metadata, create=True)
        for array, values in label_media_arrays(labels).items() if writers[0] == 0 else ():
            write_array(path / "labels" / array, values)
        if not writers[0]:
            # The lists of an earlier start's writers are dropped: all continue from the complete steps.
            for writer in range(1, writers[1]):
                store._write_steps(writer, store._steps, {})
            store._commit(store._steps)
        else:
            store._digests = {}  # of those steps, they are the first writer's now
        return store

    @classmethod
    def resolutions_at(cls, path: Path) -> StoredResolutions | None:
        """Return the stored resolutions of the store at `path`, None if it does not exist."""
        path = parse_path(path).resolve()
        return _read_attributes(path)[1].resolutions if (path / "zarr.json").exists() else None

    @classmethod
    def open_existing(cls, path: Path) -> "MapStore":
        """Open the store at `path` for reading.

        Raises:
            UserError: If it does not exist, or has an unknown version.
            CorruptMapsError: If it is damaged.
        """
        path = parse_path(path).resolve()
        if not (path / "zarr.json").exists():
            raise UserError(f"no map store at {path}: train the run with maps_every > 0 first")
        _, file = _read_attributes(path)
        store = cls(
            path,
            file.sites,
            _read_labels(path, file),
            file.config_hash,
            file.resolutions,
            file.sizes,
            (0, file.writers),
        )
        store._load_written_steps(path, file)
        return store

    @classmethod
    def check(cls, path: Path) -> None:
        """Check that the store at `path` can be continued, without reading maps.

        Raises:
            CorruptMapsError: If it is missing or damaged, or one of its arrays cannot be opened.
            UserError: If it has an unknown version.
        """
        path = parse_path(path).resolve()
        if not (path / "zarr.json").exists():
            raise CorruptMapsError(path, "its zarr.json is missing")
        store = cls.open_existing(path)
        for name, metadata in store._planned_arrays():
            try:
                store._arrays[name] = open_array(path / name, metadata)
            except UserError as error:
                raise CorruptMapsError(path, str(error)) from error
            except Exception as error:
                raise CorruptMapsError(path, f"its array {name} cannot be opened") from error

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps whose maps are complete, in order."""
        return tuple(self._steps)

    def site(self, name: str) -> Site:
        """Return the attention module called `name`.

        Raises:
            UserError: If the store has no module of this name.
        """
        for site in self.sites:
            if site.name == name:
                return site
        raise UserError(f"site={name!r} is not in the map store: it has {', '.join(s.name for s in self.sites)}")

    def levels(self, site: str) -> tuple[ResolutionLevel, ...]:
        """Return the stored levels of the module called `site`, coarse to fine.

        Raises:
            UserError: If the module is unknown.
        """
        return resolution_levels(*self._sizes[self.site(site).name], self.resolutions.level_sizes)

    def write(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Append the maps of every module at `step`; returns once they are on disk and listed.

        Each process writes its own shards of sharded arrays.

        Args:
            step: The training step.
            maps: The maps by the name of the module.

        Raises:
            ValueError: If `step` does not come after the stored ones, a module is missing or unknown, or a shape is not
                the module's.
            NonFiniteError: If a weight is negative or not finite.
            DirectoryLost: If the directory of the store has disappeared.
        """
        storage_of(self.path).check(self.path)
        if self._steps and step <= self._steps[-1]:
            raise ValueError(f"step={step} must come after the last stored step {self._steps[-1]}")
        names = {site.name for site in self.sites}
        if set(maps) != names:
            raise ValueError(f"maps has the sites {sorted(maps)}; the store's are {sorted(names)}")
        index = len(self._steps)
        pending, digests = [], {}
        for site in self.sites:
            for name, shape, pieces in self._site_arrays(site, maps[site.name]):
                place = self._extended_array(f"{site.name}/{name}", index + 1)[index]
                if shape != place.shape:
                    raise ValueError(f"maps[{site.name!r}] has {name} of shape {shape}; it must be {place.shape}")
                shards = []
                for where, values in pieces:
                    if name.endswith("scale") and not np.isfinite(values).all():
                        raise NonFiniteError(
                            step,
                            f"maps[{site.name!r}] at step {step} holds NaN, inf or < 0, which no weight is: the run "
                            "has diverged, or this site captured no weights",
                        )
                    unpadded = set_padding_to_zero(values, where, name, self.labels, site, self.levels(site.name))
                    shards.append((where, np.asarray(unpadded, place.dtype.numpy_dtype)))
                    pending.append(place[where].write(shards[-1][1]))
                digests[f"{site.name}/{name}"] = digest_shards(shards, place.shape, first=not self._writer)
        for future in pending:
            future.result()
        self._digests[int(step)] = digests
        self._commit([*self._steps, int(step)])

    def read_quantized(self, site: str, step: int, level: str) -> Quantized:
        """Read the codes, scales and roots of one level of a module.

        Args:
            site: The name of the module.
            step: The training step.
            level: The name of the level.

        Returns:
            The codes [example, layer, head, query, key], scales and roots.

        Raises:
            UserError: If the module, step or level is not stored.
            CorruptMapsError: If the data is damaged.
        """
        level_names = [stored_level.name for stored_level in self.levels(site)]
        if level not in level_names:
            raise UserError(f"level={level!r} of {site} is not in the map store: it has {', '.join(level_names)}")
        return self._read_group(f"{site}/{level}", step)

    def read(self, site: str, step: int, level: str = "full") -> Float[np.ndarray, "B L H q k"]:
        """Read the weights of a module at a step.

        Args:
            site: The name of the module.
            step: The training step.
            level: The name of the level; "full" for whole maps.

        Returns:
            The weights [example, layer, head, query, key] in float32, zero beyond an example's tokens.

        Raises:
            UserError: If the module, step or level is not stored.
            CorruptMapsError: If the data is damaged.
        """
        return np.asarray(self.read_quantized(site, step, level).weights())

    def read_rows(self, site: str, step: int) -> tuple[tuple[int, ...], Float[np.ndarray, "B L H R K"]] | None:
        """Read the whole rows that are stored of a pooled map.

        Args:
            site: The name of the module.
            step: The training step.

        Returns:
            The query positions, and the weights [example, layer, head, row, key]; None if whole maps are stored.
        """
        if self._stores_full_maps(site):
            return None
        return self._rows(site), np.asarray(self._read_group(f"{site}/rows", step).weights())

    def read_top(
        self, site: str, step: int
    ) -> tuple[Int[np.ndarray, "B L H Q k"], Float[np.ndarray, "B L H Q k"]] | None:
        """Read the largest weights of every row of a pooled map.

        Args:
            site: The name of the module.
            step: The training step.

        Returns:
            Their keys and the weights [example, layer, head, query, rank]; None if whole maps or no largest weights are
            stored.
        """
        if self._stores_full_maps(site) or not self.resolutions.top_k:
            return None
        keys = self._read_verified(f"{site}/top/keys", step)
        return keys, np.asarray(self._read_group(f"{site}/top", step).weights())

    def statistics(self, site: str) -> Statistics:
        """Read the statistics of every head of a module at every step.

        Raises:
            UserError: If the module is unknown.
            CorruptMapsError: If the data is damaged.
        """
        names = statistic_names(self.site(site), self.labels)
        if not self._steps:
            return Statistics(names, np.zeros((0, *self._heads(self.site(site)), len(names)), np.float32))
        return Statistics(names, np.stack([self._read_verified(f"{site}/statistics", step) for step in self._steps]))

    def exclude_step(self, step: int) -> None:
        """Stop listing a step that is damaged; the files stay as they are."""
        self._steps.remove(step)

    def truncate(self, after_step: int) -> None:
        """Drop every step later than `after_step`, as a run resumed from that step must."""
        remaining = [step for step in self._steps if step <= after_step]
        if remaining == self._steps:
            return
        # The list first: after a kill in between, the unlisted data is replaced by the next write.
        self._commit(remaining)
        # A writer cannot tell whether the others have dropped their steps or written them anew.
        for name, _ in self._planned_arrays() if self._writers == 1 else ():
            array = self._array(name)
            bounds = [len(remaining)] + [None] * (array.rank - 1)
            self._arrays[name] = array.resize(exclusive_max=bounds, resize_metadata_only=False).result()

    def _index(self, step: int) -> int:
        if step not in self._steps:
            raise UserError(f"step={step} is not in the map store: it has {self._steps}")
        return self._places[step]

    def _read_group(self, group: str, step: int) -> Quantized:
        return Quantized(*(self._read_verified(f"{group}/{part}", step) for part in _PARTS))

    def _read_verified(self, name: str, step: int) -> np.ndarray:
        index, site = self._index(step), name.rsplit("/", 2 if name.count("/") > 2 else 1)[0]
        try:
            array = np.asarray(self._array(name)[index].read().result())
        except UserError as error:
            raise CorruptMapsError(
                self.path, f"the maps of {site} at step {step} cannot be read: {error}", step
            ) from error
        except Exception as error:  # a flipped byte can surface as any error of any decoder
            raise CorruptMapsError(self.path, f"the maps of {site} at step {step} cannot be read", step) from error
        if digest_array(array) != self._digests[step].get(name):
            raise CorruptMapsError(self.path, f"the maps of {site} at step {step} are not what was written", step)
        return array

    def _array(self, name: str) -> Any:
        if name not in self._arrays:
            self._arrays[name] = open_array(self.path / name, self._metadata_by_name[name])
        return self._arrays[name]

    def _extended_array(self, name: str, steps: int) -> Any:
        # Opened anew if another writer may have made it longer.
        array = self._array(name) if self._writers == 1 else open_array(self.path / name, self._metadata_by_name[name])
        if array.shape[0] < steps:
            # Never shorter: another writer may be ahead, and shrinking an array deletes its data.
            array = array.resize(exclusive_max=[steps] + [None] * (array.rank - 1), expand_only=True).result()
        self._arrays[name] = array
        return self._arrays[name]

    def _heads(self, site: Site) -> tuple[int, int, int]:
        return len(self.labels.titles), len(site.layers), len(site.heads)

    def _stores_full_maps(self, site: str) -> bool:
        return self.levels(site)[-1].name == "full"

    def _rows(self, site: str) -> tuple[int, ...]:
        return evenly_spaced_positions(self._sizes[site][0], self.resolutions.num_rows)

    def _site_arrays(self, site: Site, maps: StoredMaps) -> Iterator[tuple[str, tuple[int, ...], Iterable[Piece]]]:
        """Yield every array of a module: its name in the module's group, its shape, and this process's pieces."""
        groups = dict(maps.levels)
        arrays: dict[str, Any] = {}
        if maps.rows is not None:
            groups["rows"] = maps.rows
        if maps.top_weights is not None:
            arrays["top/keys"], groups["top"] = maps.top_weights
        for group, quantized in groups.items():
            arrays |= {f"{group}/{part}": array for part, array in quantized._asdict().items()}
        yield from ((name, tuple(array.shape), local_shards(array)) for name, array in arrays.items())
        names, heads = statistic_names(site, self.labels), self._heads(site)
        unknown = set(maps.statistics) - set(names)
        if unknown:
            raise ValueError(f"maps[{site.name!r}] has the statistics {sorted(unknown)}; known: {', '.join(names)}")
        yield "statistics", (*heads, len(names)), stack_statistics(maps.statistics, names, heads)

    def _planned_arrays(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield every array of the store and its metadata."""
        for site in self.sites:
            heads, (queries, keys) = self._heads(site), self._sizes[site.name]
            levels = self.levels(site.name)
            groups = {level.name: (level.num_queries, level.num_keys) for level in levels}
            if not self._stores_full_maps(site.name):
                groups |= {"rows": (len(self._rows(site.name)), keys)}
                groups |= {"top": (queries, min(self.resolutions.top_k, keys))} if self.resolutions.top_k else {}
            for group, (rows, columns) in groups.items():
                for part, kind in zip(_PARTS, ("uint8", "float32", "uint8"), strict=True):
                    shape, last = (rows, columns), ("query", "key")
                    own = len(shape) if part == "codes" else 1
                    yield self._metadata(f"{site.name}/{group}/{part}", (*heads, *shape[:own]), last[:own], kind)
            if "top" in groups:
                yield self._metadata(f"{site.name}/top/keys", (*heads, *groups["top"]), ("query", "rank"), "int32")
            count = len(statistic_names(site, self.labels))
            yield self._metadata(f"{site.name}/statistics", (*heads, count), ("statistic",), "float32")

    @functools.cached_property
    def _metadata_by_name(self) -> dict[str, dict[str, Any]]:
        return dict(self._planned_arrays())

    def _metadata(self, name: str, shape: tuple[int, ...], last: tuple[str, ...], kind: str) -> tuple[str, dict]:
        """Return an array's metadata: a shard is one step of a process's examples, a chunk in it one layer."""
        shard = (1, -(-shape[0] // self._writers), *shape[1:])
        return name, array_metadata((0, *shape), shard, (1, 1, 1, *shape[2:]), (*_AXES, *last), kind)

    @functools.cached_property
    def _store_metadata(self) -> dict[str, Any]:
        return store_metadata(self.sites, self.labels, self.resolutions, self._sizes)

    def _write_site_groups(self) -> None:
        if self._writer:
            return
        for site in self.sites:
            parts = site.name.split("/")
            for depth in range(1, len(parts)):
                write_group(self.path.joinpath(*parts[:depth]), {})
            about = {**site_metadata(site), "config_hash": self.config_hash, "titles": list(self.labels.titles)}
            about["tokens"] = {axis: list(self.labels.tokens[axis]) for axis in {site.query.name, site.key.name}}
            about["gold_alignments"] = (self.labels.gold_alignments or {}).get(site.name)
            about["quantization"] = "weight = scale * (codes / 255) ** root"
            about["statistics"] = list(statistic_names(site, self.labels))
            about["rows"] = list(self._rows(site.name))
            write_group(self.path / site.name, about)
            for level in self.levels(site.name):
                blocks = {"query_block": level.query_block, "key_block": level.key_block}
                write_group(self.path / site.name / level.name, blocks)
            for group, count in (("rows", self.resolutions.num_rows), ("top", self.resolutions.top_k)):
                if not self._stores_full_maps(site.name) and count:
                    write_group(self.path / site.name / group, {})

    def _commit(self, steps: list[int]) -> None:
        if self._writer:
            self._write_steps(self._writer, steps, self._digests)
        else:
            attributes = {
                "format": FORMAT,
                "version": VERSION,
                "config_hash": self.config_hash,
                "steps": steps,
                "writers": self._writers,
                "digests": digests_by_array(self._digests, steps),
                **self._store_metadata,
            }
            write_group(self.path, add_checksum(json.loads(json.dumps(attributes))))
        self._steps = list(steps)
        self._places = {step: index for index, step in enumerate(steps)}

    def _write_steps(self, writer: int, steps: list[int], digests: Digests) -> None:
        record = add_checksum({"steps": steps, "digests": digests_by_array(digests, steps)})
        replace_file(self.path / f"written-{writer}.json", json.dumps(record))

    def _load_written_steps(self, path: Path, file: StoreAttributes) -> None:
        """Take over the steps that every process has written, and their digests."""
        lists = [file, *(_read_written_steps(path, writer) for writer in range(1, file.writers))]
        common_steps = set(file.steps).intersection(*(record.steps for record in lists))
        self._steps = [step for step in file.steps if step in common_steps]
        self._places = {step: index for index, step in enumerate(file.steps)}
        by_step = [regroup_digests_by_step(record.steps, record.digests) for record in lists]
        self._digests = merge_digests(by_step, self._steps)


def _read_written_steps(path: Path, writer: int) -> WrittenSteps:
    file = path / f"written-{writer}.json"
    if not file.exists():
        return WrittenSteps((), {}, "")
    try:
        record = read_json_object(file)
    except UserError:
        record = {}
    if not has_valid_checksum(record):
        raise CorruptMapsError(path, f"{file.name} is not what was written")
    try:
        return parse_dataclass(WrittenSteps, record, file.name)
    except UserError as error:
        raise CorruptMapsError(path, str(error)) from error


def _read_labels(path: Path, file: StoreAttributes) -> AxisLabels:
    """Read the labels of a store and check that they name all positions of its modules.

    Raises:
        CorruptMapsError: If an array is damaged, or the labels do not fit the modules.
    """

    def read(name: str) -> np.ndarray:
        try:
            array = read_array(path / "labels" / name, *_MEDIA_TYPES[name.rpartition("/")[2]])
        except UserError as error:
            raise CorruptMapsError(path, str(error)) from error
        except Exception as error:  # a flipped byte can surface as any error of any decoder
            raise CorruptMapsError(path, f"labels/{name} cannot be read") from error
        if hashlib.sha256(array.tobytes()).hexdigest() != file.labels.array_hashes[name]:
            raise CorruptMapsError(path, f"labels/{name} is not what was written")
        return array

    try:
        labels = parse_labels(file.labels, read).with_axis_names(file.sites)
        for site in file.sites:
            statistic_names(site, labels)
            if any(size < most for size, most in zip(file.sizes[site.name], max_lengths(site, labels), strict=True)):
                raise ValueError(f"sizes[{site.name!r}] is smaller than the longest example")
    except CorruptMapsError:
        raise
    except ValueError as error:
        raise CorruptMapsError(path, f"its zarr.json is not usable: {error}: move that directory away") from error
    return labels


def _read_attributes(path: Path) -> tuple[dict[str, Any], StoreAttributes]:
    """Return the attributes of the store's root group, as JSON and parsed."""
    try:
        # A token may be anything that a tokenizer has.
        group = require_object(parse_json(read_regular_file(path / "zarr.json"), "it", surrogates=True), "it")
        attributes = require_object(group.get("attributes"), "its attributes")
    except (UserError, OSError):
        raise CorruptMapsError(
            path, "its zarr.json is not the group of a map store: move that directory away"
        ) from None
    version = attributes.get("format"), attributes.get("version")
    if version != (FORMAT, VERSION):
        raise UserError(
            f"the map store {path} is {version[0]!r} version {version[1]!r}; "
            f"this code reads {FORMAT!r} version {VERSION}: open it with the version that wrote it"
        )
    if not has_valid_checksum(attributes):
        raise CorruptMapsError(path, "its zarr.json is not what was written: move that directory away")
    try:
        return attributes, parse_dataclass(StoreAttributes, attributes, "its zarr.json")
    except UserError as error:
        raise CorruptMapsError(path, f"{error}: move that directory away") from error
