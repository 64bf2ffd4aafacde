"""The maps of a store that fit a page's size, and their encoding as text."""

import base64
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from transformer.attention.sites import Site
from transformer.maps.capture_plan import ResolutionLevel
from transformer.maps.quantize import LEVELS, Quantized, quantize
from transformer.maps.report.run_data import evenly_spaced_indices
from transformer.maps.store import MapStore

COARSE_LEVELS = 127
WITHIN = 0.0095  # of what is stored, that a weight drawn from coarse codes stays
_MANTISSA = 11  # stored bits of a scale: half precision, with the range of a float32
ELEMENT_BYTES = 64  # approximate bytes of a block's own element
_BEST_PACKING = 10  # codes of maps are expected to take at least a tenth of their size when packed
_TEXT_BYTES = 1.2  # expected bytes of text a byte of a whole row or of a key
_LARGEST_KEYS = 1 << 16  # keys that the page's two bytes can number


class DataBlock(NamedTuple):
    """A named block of the page's data.

    Attributes:
        name: Its element id.
        text: Its contents.
    """

    name: str
    text: str

    @property
    def num_bytes(self) -> int:
        """Its bytes in the page."""
        return len(self.text) + len(self.name) + ELEMENT_BYTES


@dataclasses.dataclass(frozen=True)
class PagePayload:
    """The part of a store that a page contains.

    Attributes:
        steps: The training steps.
        num_codes: The largest code.
        sites: The facts of every module.
        blocks: The blocks.
    """

    steps: tuple[int, ...]
    num_codes: int
    sites: tuple[dict[str, Any], ...]
    blocks: tuple[DataBlock, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of all blocks."""
        return sum(block.num_bytes for block in self.blocks)


@dataclasses.dataclass(frozen=True)
class _Tier:
    """A kind of maps of one module: its facts for the page, its blocks at (step, index), its bytes before packing."""

    key: str  # the key of the facts: "levels", "rows" or "top"
    what: str  # its name in the page's list of missing maps
    facts: dict[str, Any]
    encode: Callable[[int, int], list[DataBlock]]
    min_bytes: int  # the least bytes of one step
    share: int | None = None  # the most bytes of the page
    partly: str | None = None  # the part that is left out at every step


def page_payload(store: MapStore, budget: int, run: str = "maps", steps: Sequence[int] | None = None) -> PagePayload:
    """Select and encode as much of a store as fits the budget.

    The coarsest level of every module comes first, at as many of `steps` as fit, evenly spaced. Of the remaining budget
    a sixth may go to whole rows, another to the largest weights of rows, and the rest to finer levels, the last step
    first. Codes have eight bits if the coarsest levels then fill at most half of the budget, else seven.

    Args:
        store: The maps of a run.
        budget: The largest size in bytes.
        run: The prefix of the blocks' names: "maps" for the run itself, "other" for the run it is compared with.
        steps: The steps to choose from, all by default.

    Returns:
        The payload; it has no steps if not even one fits.
    """
    steps = _affordable_steps(store, tuple(store.steps if steps is None else steps), budget)
    codes, coarsest_blocks = LEVELS, _coarsest_blocks(store, run, steps, LEVELS, budget // 2)
    if coarsest_blocks is None:
        codes, coarsest_blocks = COARSE_LEVELS, _coarsest_blocks(store, run, steps, COARSE_LEVELS) or []
    selected = indices_within_budget([sum(block.num_bytes for block in step) for step in coarsest_blocks], budget)
    shown_steps = tuple(steps[index] for index in selected)
    sites: tuple[dict[str, Any], ...] = tuple(
        {"levels": [], "rows": None, "top": None, "missing": []} for _ in store.sites
    )
    for number, site in enumerate(store.sites):
        coarsest = store.levels(site.name)[0]
        sites[number]["levels"].append(
            _level_facts(site, coarsest, split=False) | {"steps": list(range(len(selected)))}
        )
    blocks = [_renumber_block(block, new) for new, old in enumerate(selected) for block in coarsest_blocks[old]]
    room = budget - sum(block.num_bytes for block in blocks)
    for number, tier in _tiers(store, codes, run, room // (6 * len(sites))):
        added, filled = _fill_tier(tier, shown_steps, room if tier.share is None else min(room, tier.share))
        room -= sum(block.num_bytes for block in added)
        blocks += added
        _note_tier(sites[number], tier, filled, len(shown_steps))
    for entry in sites:
        entry["levels"].sort(key=lambda level: level["queries"] * level["keys"])
    return PagePayload(shown_steps, codes, sites, tuple(blocks))


def min_page_size(store: MapStore) -> int:
    """Return the bytes that the coarsest levels of the last step take."""
    (last,) = _coarsest_blocks(store, "maps", store.steps[-1:], COARSE_LEVELS) or [[]]
    return sum(block.num_bytes for block in last)


def requantize(maps: Quantized, levels: int) -> Quantized:
    """Requantize weights with codes up to `levels`, and round scales to half precision.

    With fewer levels than the store's, code' = round(levels (code / 255)^(root / root')). A code then stands for
    weights within root' scale / (2 levels) of its own: root' is the stored root, or less where that error exceeds
    `WITHIN`, and at least 2 (scale / 127 for a scale up to one).

    Args:
        maps: The quantized weights.
        levels: The largest code.

    Returns:
        The requantized weights.
    """
    codes, root = np.asarray(maps.codes), np.asarray(maps.root)
    scale = np.asarray(maps.scale, np.float32)
    if levels != LEVELS:
        widest = np.floor(WITHIN * 2 * levels / np.maximum(scale, 1e-9))
        new_root = np.clip(widest, 2, root).astype(np.uint8)
        # Rows that keep their root are rounded from their codes directly, others through the power root / root'.
        table = np.rint(levels * (np.arange(LEVELS + 1) / LEVELS)).astype(np.uint8)
        new_codes = table[codes]
        changed = new_root != root
        power = (root[changed] / new_root[changed]).astype(np.float32)[:, None]
        new_codes[changed] = np.rint(levels * (codes[changed] / np.float32(LEVELS)) ** power).astype(np.uint8)
        codes, root = new_codes, new_root
    return Quantized(codes, _round_mantissa(scale), root)


def encode_rows(maps: Quantized, triangular: bool = False) -> str:
    """Encode rows with any leading axes as text: the bytes of the scales in four planes, then roots, then codes.

    Args:
        maps: The quantized rows.
        triangular: Whether the map is causal, [..., q, q], so that row i is given by its first i + 1 codes.

    Returns:
        The text.
    """
    scale = np.ascontiguousarray(maps.scale, dtype="<f4").reshape(-1)
    planes = scale.view(np.uint8).reshape(-1, 4).T
    codes = maps.codes[..., *np.tril_indices(maps.codes.shape[-1])] if triangular else maps.codes
    return compress_to_base64(
        planes.tobytes() + np.ascontiguousarray(maps.root).tobytes() + np.ascontiguousarray(codes).tobytes()
    )


def encode_top_weights(keys: Int[np.ndarray, "*rows k"], weights: Quantized) -> str:
    """Encode the largest weights of rows as text: high bytes of the keys, low bytes, then the weights as rows.

    Args:
        keys: The keys of the weights, below 65,536.
        weights: The quantized weights.

    Returns:
        The text.
    """
    planes = np.ascontiguousarray(keys, dtype=">u2").view(np.uint8).reshape(-1, 2).T
    scale = np.ascontiguousarray(weights.scale, dtype="<f4").reshape(-1).view(np.uint8).reshape(-1, 4).T
    rows = (planes, scale, np.ascontiguousarray(weights.root), np.ascontiguousarray(weights.codes))
    return compress_to_base64(b"".join(part.tobytes() for part in rows))


def compress_to_base64(data: bytes) -> str:
    """Compress with gzip and encode as base64, without a time stamp, so that equal runs give equal pages."""
    # Weights look like noise: they pack smaller without a search for chance repeats.
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS, 9, zlib.Z_FILTERED)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


def downsample_image(image: UInt8[np.ndarray, "height width 3"], side: int) -> UInt8[np.ndarray, "rows columns 3"]:
    """Average an image over square blocks, the smallest that bring both sides down to `side` pixels."""
    block = -(-max(image.shape[:2]) // side)
    rows, columns = (-(-size // block) for size in image.shape[:2])
    padding = [(0, rows * block - image.shape[0]), (0, columns * block - image.shape[1]), (0, 0)]
    blocks = np.pad(image, padding, mode="edge").reshape(rows, block, columns, block, 3)
    return np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)


def log_magnitudes_to_bytes(spectrogram: Float[np.ndarray, "bins time"]) -> UInt8[np.ndarray, "bins time"]:
    """Scale log magnitudes to bytes, from the smallest to the largest finite value."""
    finite = np.isfinite(spectrogram)
    low, high = (spectrogram[finite].min(), spectrogram[finite].max()) if finite.any() else (0.0, 0.0)
    spread = np.where(finite, spectrogram - low, 0.0) / max(high - low, 1e-9)
    return np.rint(255 * np.clip(spread, 0, 1)).astype(np.uint8)


def _round_mantissa(scale: Float[np.ndarray, "*rows"]) -> Float[np.ndarray, "*rows"]:
    dropped = 23 - _MANTISSA
    bits = np.ascontiguousarray(scale).view(np.uint32)
    rounded = (bits + np.uint32(1 << (dropped - 1))) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return np.where(np.isfinite(scale), rounded.view(np.float32), scale)


def _affordable_steps(store: MapStore, steps: tuple[int, ...], budget: int) -> tuple[int, ...]:
    """Return evenly spaced steps, 1.5 times as many as fit if all are as large as the last; no others are read."""
    (last,) = _coarsest_blocks(store, "maps", steps[-1:], COARSE_LEVELS) or [[]]
    most = 1 + int(1.5 * max(budget, 0) / max(1, sum(block.num_bytes for block in last)))
    return tuple(steps[index] for index in evenly_spaced_indices(len(steps), min(len(steps), most)))


def indices_within_budget(sizes: Sequence[int], budget: int) -> list[int]:
    """Return the most indices, evenly spaced, whose sizes sum to no more than `budget`."""
    for count in range(len(sizes), 0, -1):
        indices = evenly_spaced_indices(len(sizes), count)
        if sum(sizes[index] for index in indices) <= budget:
            return indices
    return []


def spread_order(total: int) -> list[int]:
    """Order all indices so that every prefix is spread over the whole range; the last index comes first."""
    order: dict[int, None] = {}
    count = 1
    while len(order) < total:
        order |= dict.fromkeys(reversed(evenly_spaced_indices(total, min(count, total))))
        count = max(2, 2 * count - 1)
    return list(order)


def _coarsest_blocks(
    store: MapStore, run: str, steps: Sequence[int], codes: int, at_most: int | None = None
) -> list[list[DataBlock]] | None:
    """Return the blocks of the coarsest levels, a list a step; None as soon as they exceed `at_most` bytes."""
    coarsest_blocks: list[list[DataBlock]] = []
    spent = 0
    for index, step in enumerate(steps):
        blocks: list[DataBlock] = []
        for number, site in enumerate(store.sites):
            level = store.levels(site.name)[0]
            maps = requantize(store.read_quantized(site.name, step, level.name), codes)
            for example, part in enumerate(_split_examples(maps)):
                name = f"{run}-{index}-{number}-{example}-{level.name}"
                blocks.append(DataBlock(name, encode_rows(part, _is_triangular(site, level))))
        coarsest_blocks.append(blocks)
        spent += sum(block.num_bytes for block in blocks)
        if at_most is not None and spent > at_most:
            return None
    return coarsest_blocks


def _renumber_block(block: DataBlock, index: int) -> DataBlock:
    run, _, rest = block.name.split("-", 2)
    return DataBlock(f"{run}-{index}-{rest}", block.text)


def _split_examples(maps: Quantized) -> Iterator[Quantized]:
    return (Quantized(*parts) for parts in zip(*maps, strict=True))


def _is_triangular(site: Site, level: ResolutionLevel) -> bool:
    return site.causal and (level.num_queries, level.query_block) == (level.num_keys, level.key_block)


def _level_facts(site: Site, level: ResolutionLevel, split: bool) -> dict[str, Any]:
    return {
        "name": level.name,
        "queries": level.num_queries,
        "keys": level.num_keys,
        "queryBlock": level.query_block,
        "keyBlock": level.key_block,
        "triangular": _is_triangular(site, level),
        "split": split,
    }


def _tiers(store: MapStore, codes: int, run: str, share: int) -> Iterator[tuple[int, _Tier]]:
    """Yield the tiers after the coarsest levels with the number of their module, the most useful per byte first."""
    sites = list(enumerate(store.sites))
    # The page draws only levels of the run that it compares with.
    for number, site in sites if run == "maps" else []:
        yield from ((number, tier) for tier in _rows_tier(store, site, number, codes, share))
        yield from ((number, tier) for tier in _top_tier(store, site, number, codes, share))
    finer = [(level, number, site) for number, site in sites for level in store.levels(site.name)[1:]]
    for level, number, site in sorted(finer, key=lambda entry: (entry[0].num_queries * entry[0].num_keys, entry[1])):
        yield number, _level_tier(store, site, number, level, codes, run)


def _level_tier(store: MapStore, site: Site, number: int, level: ResolutionLevel, codes: int, run: str) -> _Tier:
    triangular = _is_triangular(site, level)

    def encode(step: int, index: int) -> list[DataBlock]:
        maps = requantize(store.read_quantized(site.name, step, level.name), codes)
        # A block a layer, so that the page unpacks only the shown layer.
        return [
            DataBlock(f"{run}-{index}-{number}-{example}-{level.name}-{layer}", encode_rows(part, triangular))
            for example, example_maps in enumerate(_split_examples(maps))
            for layer, part in enumerate(_split_examples(example_maps))
        ]

    heads = len(store.labels.titles) * len(site.layers) * len(site.heads)
    min_bytes = heads * level.num_queries * level.num_keys // ((2 if triangular else 1) * _BEST_PACKING)
    what = "whole maps" if level.name == "full" else f"maps of {level.num_queries} × {level.num_keys} cells"
    return _Tier("levels", what, _level_facts(site, level, split=True), encode, min_bytes)


def _rows_tier(store: MapStore, site: Site, number: int, codes: int, share: int) -> Iterator[_Tier]:
    """Yield the tier of whole rows, as many as a share of the bytes holds at one step."""
    last = store.read_rows(site.name, store.steps[-1])
    if last is None or not last[0]:
        return
    positions, rows = last
    count = min(len(positions), max(1, share * len(positions) // int(_TEXT_BYTES * rows.size)))
    row_indices = evenly_spaced_indices(len(positions), count)

    def encode(step: int, index: int) -> list[DataBlock]:
        _, rows = store.read_rows(site.name, step) or last
        maps = requantize(quantize(rows[..., row_indices, :]), codes)
        return [
            DataBlock(f"rows-{index}-{number}-{example}", encode_rows(part))
            for example, part in enumerate(_split_examples(maps))
        ]

    facts = {"positions": [positions[row] for row in row_indices], "keys": rows.shape[-1]}
    num_omitted = len(positions) - count
    partly = f"{num_omitted} of {len(positions)} whole rows" if num_omitted else None
    min_bytes = rows.size * count // len(positions) // _BEST_PACKING
    yield _Tier("rows", f"{len(positions)} whole rows", facts, encode, min_bytes, share, partly)


def _top_tier(store: MapStore, site: Site, number: int, codes: int, share: int) -> Iterator[_Tier]:
    """Yield the tier of the largest weights of every row, or of every 2nd, 4th ... row, as a share of bytes allows."""
    last = store.read_top(site.name, store.steps[-1])
    if last is None or max(len(tokens) for tokens in store.labels.tokens[site.key.name]) > _LARGEST_KEYS:
        return
    queries, k = last[0].shape[-2:]
    heads, every = math.prod(last[0].shape[:3]), 1
    while every < queries and _TEXT_BYTES * heads * -(-queries // every) * (3 * k + 5) > share:
        every *= 2

    def encode(step: int, index: int) -> list[DataBlock]:
        keys, weights = (array[..., ::every, :] for array in store.read_top(site.name, step) or last)
        maps = requantize(quantize(weights), codes)
        return [
            DataBlock(f"top-{index}-{number}-{example}-{layer}", encode_top_weights(keys[example, layer], part))
            for example, example_maps in enumerate(_split_examples(maps))
            for layer, part in enumerate(_split_examples(example_maps))
        ]

    what = f"the {k} largest weights of each row"
    facts = {"queries": -(-queries // every), "every": every, "k": k}
    partly = None if every == 1 else f"the {k} largest weights of {every - 1} in {every} rows"
    yield _Tier("top", what, facts, encode, heads * facts["queries"] * k // 2, share, partly)


def _fill_tier(tier: _Tier, steps: Sequence[int], room: int) -> tuple[list[DataBlock], list[int]]:
    """Return the blocks of a tier and the indices of their steps, as many as fit into `room` bytes."""
    blocks: list[DataBlock] = []
    filled: list[int] = []
    for index in spread_order(len(steps)):
        # Maps that cannot fit are not read.
        added = tier.encode(steps[index], index) if tier.min_bytes <= room else []
        size = sum(block.num_bytes for block in added)
        if not added or size > room:
            break
        room -= size
        blocks += added
        filled.append(index)
    return blocks, sorted(filled)


def _note_tier(entry: dict[str, Any], tier: _Tier, steps: list[int], total: int) -> None:
    facts = tier.facts | {"steps": steps}
    if tier.key == "levels":
        entry["levels"] += [facts] if steps else []
    elif steps:
        entry[tier.key] = facts
    if len(steps) < total:
        entry["missing"].append({"what": tier.what, "there": len(steps)})
    if steps and tier.partly:
        entry["missing"].append({"what": tier.partly, "there": 0})
