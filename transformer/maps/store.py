"""The store of attention maps: zarr v3 in a run's `maps/`, one group a step, which never changes once it is listed.

    maps/zarr.json                         root group: format, config hash, sites, labels and THE list of steps
    maps/labels/<axis>/image               what a grid's positions were cut from; `spectrogram` and `sound` for frames
    maps/steps/400/zarr.json               group of step 400, with the metadata of all below it
    maps/steps/400/decoder/cross/
        full/codes                         uint8   [example, layer, head, query, key] of the site "decoder/cross"
        full/scale, full/root              float32, uint8   [example, layer, head, query]
        pooled-64/...                      the same of a coarser level
        rows/...                           the same of some whole rows, where "full" is not stored
        top/...                            the same of the largest weights of each row, and `keys` int32
        statistics                         float32 [example, layer, head, statistic]

weight = scale (code / 255)^root. Beyond an example's own tokens the levels hold zeros.

A step's arrays are written first, then its group file, then the list of steps, in one atomic rename each: a process
killed at any moment leaves whole steps only, and the next start removes what no list names. The root's list is what
readers go by: one file to read, however many steps there are. Several processes write one store, each the shards that
it holds: the first keeps the list in the root group, every other a list of its own, and a step counts once all of them
list it. The first process must open and truncate the store before the others open it, and their number may change when
a run is restarted.

Every chunk has its CRC-32C, which zarr verifies. What that does not cover has checks of its own: the root group and the
lists have their SHA-256, and so have the arrays of labels; a step's group file must be what the root group implies. No
metadata of an array is read.
"""

import dataclasses
import functools
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
from transformer.maps.quantize import Quantized
from transformer.maps.store_metadata import (
    MOST_POSITIONS,
    LabelsMetadata,
    MediaArray,
    check_site,
    hash_array,
    label_media_arrays,
    max_lengths,
    media_metadata,
    parse_labels,
    store_metadata,
)
from transformer.maps.zarr_files import (
    Metadata,
    Piece,
    array_metadata,
    check_fits_memory,
    check_groups,
    group_metadata,
    local_shards,
    open_array,
    replace_file,
    set_padding_to_zero,
    stack_statistics,
    write_group,
)
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
VERSION = 8
_AXES = ("example", "layer", "head")
_PARTS = Quantized._fields
_MOST_WRITERS = 1 << 16

Positions = Annotated[int, Range(1, MOST_POSITIONS)]


class CorruptMapsError(UserError):
    """Raised when stored maps are not the bytes that were written.

    Attributes:
        path: The store.
        step: The damaged step, None if the whole store is damaged.
    """

    def __init__(self, path: Path, what: str, step: int | None = None):
        super().__init__(f"{path} is damaged: {what}")
        self.path, self.step = path, step


@dataclasses.dataclass(frozen=True)
class WrittenSteps:
    """The contents of written-N.json: the steps that a process has written."""

    steps: tuple[StepNumber, ...]
    sha256: str

    def __post_init__(self) -> None:
        if any(step >= next_step for step, next_step in itertools.pairwise(self.steps)):
            raise ValueError("steps: each must be after the one before")


@dataclasses.dataclass(frozen=True)
class StoreAttributes(WrittenSteps):
    """The attributes of the store's zarr.json: the steps that the first process has written, and what is stored.

    `examples_per_file` is the share of a process of those that began the store: an array has one file for each share.
    """

    format: str
    version: int
    config_hash: str
    writers: Annotated[int, Range(1, _MOST_WRITERS)]
    examples_per_file: Annotated[int, Range(1, MOST_POSITIONS)]
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
        examples_per_file: int | None = None,
    ):
        self.path = path
        self.sites = sites
        self.labels = labels
        self.config_hash = config_hash
        self.resolutions = resolutions
        self._sizes = sizes
        self._writer, self._writers = writers
        self._examples_per_file = examples_per_file or -(-len(labels.titles) // self._writers)
        self._steps: list[int] = []
        self._checked_steps: set[int] = set()  # whose group files are as they were written

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
        """Create the store at `path`, or open an existing one to continue it without what no list names.

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
        planned = tuple(sites), labels, config_hash, resolutions or StoredResolutions(), known_sizes, writers
        if (path / "zarr.json").exists():
            stored, file = _read_attributes(path)
            store = cls(path, *planned, file.examples_per_file)
            for part, value in store._store_metadata.items():
                if stored.get(part) != value:
                    raise UserError(
                        f"the map store {path} was written with other {part}: take a new run directory, "
                        "or move that store away"
                    )
            store._steps = _read_common_steps(path, file)
        else:
            store = cls(path, *planned)
        if not writers[0]:
            store._write_labels()
            write_group(path / "steps", group_metadata({}))
            # The lists of an earlier start's writers are dropped: all continue from the complete steps.
            for writer in range(1, writers[1]):
                store._write_list(writer, store._steps)
            store._commit(store._steps)
            store._remove_unlisted_steps()
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
            file.examples_per_file,
        )
        store._steps = _read_common_steps(path, file)
        for name, metadata in store._planned_arrays.items():
            try:
                check_fits_memory(name, metadata)
            except UserError as error:
                raise CorruptMapsError(path, str(error)) from error
        return store

    @classmethod
    def check(cls, path: Path) -> None:
        """Check that the store at `path` can be continued, without reading maps.

        Raises:
            CorruptMapsError: If it is missing or damaged, or the group file of one of its steps is.
            UserError: If it has an unknown version.
        """
        path = parse_path(path).resolve()
        if not (path / "zarr.json").exists():
            raise CorruptMapsError(path, "its zarr.json is missing")
        store = cls.open_existing(path)
        store._check_groups(store.steps)

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
        """Add the maps of every module at `step`; returns once they are on disk and listed.

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
        pieces = [piece for site in self.sites for piece in self._pieces(step, site, maps[site.name])]
        arrays = {name: self._open_array(step, name) for name in dict.fromkeys(name for name, _, _ in pieces)}
        for write in [arrays[name][where].write(values) for name, where, values in pieces]:
            write.result()
        if not self._writer:
            write_group(self._folder(step), self._step_group)
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
        return self._read_quantized(f"{site}/{level}", step)

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
        return self._rows(site), np.asarray(self._read_quantized(f"{site}/rows", step).weights())

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
        (keys,) = self._read([(step, f"{site}/top/keys")])
        return keys, np.asarray(self._read_quantized(f"{site}/top", step).weights())

    def statistics(self, site: str) -> Statistics:
        """Read the statistics of every head of a module at every step.

        Raises:
            UserError: If the module is unknown.
            CorruptMapsError: If the data is damaged.
        """
        names = statistic_names(self.site(site), self.labels)
        if not self._steps:
            return Statistics(names, np.zeros((0, *self._heads(self.site(site)), len(names)), np.float32))
        return Statistics(names, np.stack(self._read([(step, f"{site}/statistics") for step in self._steps])))

    def exclude_step(self, step: int) -> None:
        """Stop listing a step that is damaged; the files stay as they are."""
        self._steps.remove(step)

    def truncate(self, after_step: int) -> None:
        """Drop every step later than `after_step`, as a run resumed from that step must."""
        remaining = [step for step in self._steps if step <= after_step]
        if remaining == self._steps:
            return
        # The list first: after a kill in between, the next start removes what it does not name.
        self._commit(remaining)
        if not self._writer:
            self._remove_unlisted_steps()

    def _folder(self, step: int) -> Path:
        return self.path / "steps" / str(step)

    def _open_array(self, step: int, name: str) -> Any:
        return open_array(self._folder(step) / name, self._planned_arrays[name])

    def _read_quantized(self, group: str, step: int) -> Quantized:
        return Quantized(*self._read([(step, f"{group}/{part}") for part in _PARTS]))

    def _read(self, arrays: Sequence[tuple[int, str]]) -> list[np.ndarray]:
        """Read arrays by step and name, all at once: a bucket takes its time for each."""
        unknown = {step for step, _ in arrays} - set(self._steps)
        if unknown:
            raise UserError(f"step={min(unknown)} is not in the map store: it has {self._steps}")
        self._check_groups([step for step, _ in arrays])
        reads = [self._open_array(step, name).read() for step, name in arrays]
        values = []
        for (step, name), read in zip(arrays, reads, strict=True):
            try:
                values.append(np.asarray(read.result()))
            except Exception as error:  # a flipped byte can surface as any error of any decoder
                raise CorruptMapsError(self.path, f"its {name} at step {step} cannot be read", step) from error
        return values

    def _check_groups(self, steps: Sequence[int]) -> None:
        """Check that the group files of steps are what was written: every step has the same."""
        unchecked = [step for step in dict.fromkeys(steps) if step not in self._checked_steps]
        for step, error in zip(unchecked, check_groups([*map(self._folder, unchecked)], self._step_group), strict=True):
            if error is not None:
                raise CorruptMapsError(self.path, f"the maps at step {step} cannot be read: {error}", step) from error
            self._checked_steps.add(step)

    def _remove_unlisted_steps(self) -> None:
        """Remove what a killed process was writing or removing, and the steps that were dropped."""
        listed = set(map(str, self._steps))
        # A folder on a disk is removed under a longer name, and one that a kill left is removed before its namesake.
        for folder in sorted((self.path / "steps").iterdir(), key=lambda folder: folder.name, reverse=True):
            if folder.name.partition(".")[0].isdecimal() and folder.name not in listed:
                storage_of(folder).remove_tree(folder)

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

    def _pieces(self, step: int, site: Site, maps: StoredMaps) -> Iterator[tuple[str, tuple[slice, ...], np.ndarray]]:
        """Yield what this process writes of a module's arrays, checked: an array's name, an index and the values."""
        for part, shape, pieces in self._site_arrays(site, maps):
            name = f"{site.name}/{part}"
            planned = self._planned_arrays[name]
            if shape != tuple(planned["shape"]):
                raise ValueError(f"maps[{site.name!r}] has {part} of shape {shape}; it must be {planned['shape']}")
            for where, values in pieces:
                if part.endswith("scale") and not np.isfinite(values).all():
                    raise NonFiniteError(
                        step,
                        f"maps[{site.name!r}] at step {step} holds NaN, inf or < 0, which no weight is: the run "
                        "has diverged, or this site captured no weights",
                    )
                unpadded = set_padding_to_zero(values, where, part, self.labels, site, self.levels(site.name))
                yield name, where, np.asarray(unpadded, planned["data_type"])

    @functools.cached_property
    def _planned_arrays(self) -> dict[str, Metadata]:
        """The metadata of every array of a step by its name."""
        arrays = {}
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
                    arrays[f"{site.name}/{group}/{part}"] = self._metadata((*heads, *shape[:own]), last[:own], kind)
            if "top" in groups:
                arrays[f"{site.name}/top/keys"] = self._metadata((*heads, *groups["top"]), ("query", "rank"), "int32")
            count = len(statistic_names(site, self.labels))
            arrays[f"{site.name}/statistics"] = self._metadata((*heads, count), ("statistic",), "float32")
        return arrays

    def _metadata(self, shape: tuple[int, ...], last: tuple[str, ...], kind: str) -> Metadata:
        """Return an array's metadata: a shard is a process's examples, a chunk in it one layer."""
        shard = (min(self._examples_per_file, shape[0]), *shape[1:])
        return array_metadata(shape, shard, (1, 1, *shape[2:]), (*_AXES, *last), kind)

    @functools.cached_property
    def _step_group(self) -> Metadata:
        """The metadata of a step's group: of every step the same."""
        nodes = dict(self._planned_arrays)
        for site in self.sites:
            about = {
                "quantization": "weight = scale * (codes / 255) ** root",
                "statistics": list(statistic_names(site, self.labels)),
            }
            nodes[site.name] = group_metadata(about)
            if not self._stores_full_maps(site.name):
                nodes[f"{site.name}/rows"] = group_metadata({"queries": list(self._rows(site.name))})
            for level in self.levels(site.name):
                blocks = {"query_block": level.query_block, "key_block": level.key_block}
                nodes[f"{site.name}/{level.name}"] = group_metadata(blocks)
        return group_metadata({}, nodes)

    @functools.cached_property
    def _store_metadata(self) -> dict[str, Any]:
        return store_metadata(self.sites, self.labels, self.resolutions, self._sizes)

    def _write_labels(self) -> None:
        media = label_media_arrays(self.labels)
        if not media:
            return
        nodes = {name: media_metadata(name, MediaArray(values.shape, "")) for name, values in media.items()}
        for name, values in media.items():
            open_array(self.path / "labels" / name, nodes[name]).write(values).result()
        write_group(self.path / "labels", group_metadata({}, nodes))

    def _commit(self, steps: Sequence[int]) -> None:
        if self._writer:
            self._write_list(self._writer, steps)
        else:
            attributes = {
                "format": FORMAT,
                "version": VERSION,
                "config_hash": self.config_hash,
                "steps": list(steps),
                "writers": self._writers,
                "examples_per_file": self._examples_per_file,
                **self._store_metadata,
            }
            write_group(self.path, group_metadata(add_checksum(attributes)))
        self._steps = list(steps)

    def _write_list(self, writer: int, steps: Sequence[int]) -> None:
        replace_file(self.path / f"written-{writer}.json", json.dumps(add_checksum({"steps": list(steps)})))


def _read_common_steps(path: Path, file: StoreAttributes) -> list[int]:
    """Return the steps that every process has written."""
    common_steps = set(file.steps)
    for writer in range(1, file.writers):
        common_steps &= set(_read_written_steps(path, writer).steps)
    return sorted(common_steps)


def _read_written_steps(path: Path, writer: int) -> WrittenSteps:
    file = path / f"written-{writer}.json"
    if not file.exists():
        return WrittenSteps((), "")
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
        media = file.labels.media[name]
        try:
            metadata = media_metadata(name, media)
            check_fits_memory(f"labels/{name}", metadata)
            array = np.asarray(open_array(path / "labels" / name, metadata).read().result())
        except UserError as error:
            raise CorruptMapsError(path, str(error)) from error
        except Exception as error:  # a flipped byte can surface as any error of any decoder
            raise CorruptMapsError(path, f"labels/{name} cannot be read") from error
        if hash_array(array) != media.sha256:
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
