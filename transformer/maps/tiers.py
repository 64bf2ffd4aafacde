"""The stored parts of a map: all of it if affordable, else a pyramid, some rows, and the top of each row.

A level of `cells` a side holds, for each block of positions, the largest weight in it; blocks are powers of two, so
the levels of a map nest. The last level of a map that is no longer than its cells is the map itself, "full".
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtyping import Float

from transformer.attention.capture import Top
from transformer.attention.pooling import block_of, pool
from transformer.config import UserError
from transformer.maps.quantise import AnyArray, Quantised, quantise

THUMBNAIL = 64  # cells a side of the coarsest level
FINEST = 8192  # cells a side of the largest map that is stored whole


@dataclasses.dataclass(frozen=True)
class MapsConfig:
    """The budget of a run's maps: at most `megabytes` before compression, over all its steps.

    Thumbnails, one whole row and the statistics of every head are always stored. A map that does not fit
    is pooled; of such a map up to `rows` whole rows, evenly spaced, and up to the `top` largest weights of every row
    are kept beside it, as far as they fit.
    """

    megabytes: float = 500.0
    rows: int = 8
    top: int = 8

    def __post_init__(self) -> None:
        if self.megabytes <= 0 or self.rows < 1 or self.top < 0:
            raise UserError(
                f"config.maps has megabytes={self.megabytes}, rows={self.rows}, top={self.top}: "
                "megabytes must be above 0, rows at least 1, top at least 0"
            )


@dataclasses.dataclass(frozen=True)
class Tiers:
    """The sides of the stored levels, coarse to fine; of pooled maps also whole rows and the top of each."""

    cells: tuple[int, ...] = (64, 128, 256, 512, 1024)
    rows: int = 8
    top: int = 8


@dataclasses.dataclass(frozen=True)
class Level:
    """One resolution of a site's maps: cells a side, and positions a cell."""

    name: str
    queries: int
    keys: int
    query_block: int
    key_block: int


class StoredMaps(NamedTuple):
    """The stored maps of one site at one step, arrays of [example, layer, head, ...]; `rows` follow the query axis."""

    levels: dict[str, Quantised]
    rows: Quantised | None
    top: tuple[Any, Quantised] | None
    statistics: dict[str, Any]


def choose_tiers(config: MapsConfig, shapes: Sequence[tuple[int, ...]], steps: int) -> Tiers:
    """The finest levels that fit: `shapes` are [layer, example, head, query, key] of each site's whole maps.

    Every level to the finest is kept, each of at most twice the cells a side of the one before.
    """
    budget = config.megabytes * 1e6 / max(steps, 1)
    tiers = Tiers((THUMBNAIL,), config.rows, config.top)
    # Beside the thumbnails, the larger part is reduced first.
    while sum(_bytes(shape, tiers) for shape in shapes) > budget and (tiers.top or tiers.rows > 1):
        if tiers.top:
            tiers = dataclasses.replace(tiers, top=tiers.top // 2)
        else:
            tiers = dataclasses.replace(tiers, rows=tiers.rows // 2)
    # A model without attention has no maps.
    while tiers.cells[-1] < min(FINEST, max((max(shape[-2:]) for shape in shapes), default=0)):
        finer = dataclasses.replace(tiers, cells=(*tiers.cells, 2 * tiers.cells[-1]))
        if sum(_bytes(shape, finer) for shape in shapes) > budget:
            break
        tiers = finer
    return tiers


def _bytes(shape: tuple[int, ...], tiers: Tiers) -> int:
    """Bytes of one step before compression: codes, scale (4 bytes) and root of a row, and the keys (4) of its top."""
    *heads, queries, keys = shape
    levels = levels_of(queries, keys, tiers.cells)
    size = sum(level.queries * (level.keys + 5) for level in levels)
    if levels[-1].name != "full":
        size += min(tiers.rows, queries) * (keys + 5)
        size += queries * (5 * min(tiers.top, keys) + 5) if tiers.top else 0
    return math.prod(heads) * size


def levels_of(queries: int, keys: int, cells: Sequence[int]) -> tuple[Level, ...]:
    """The levels of a map of so many positions, coarse to fine, to the first that is the whole map."""
    levels: list[Level] = []
    for side in cells:
        blocks = block_of(queries, side), block_of(keys, side)
        whole = blocks == (1, 1)
        name = "full" if whole else f"pooled-{side}"
        levels.append(Level(name, -(-queries // blocks[0]), -(-keys // blocks[1]), *blocks))
        if whole:
            break
    return tuple(levels)


def keep(
    weights: Float[AnyArray, "L B H q k"],
    levels: Sequence[Level],
    statistics: Mapping[str, Float[AnyArray, "L B H"]] | None = None,
    rows: Float[AnyArray, "L B H R K"] | None = None,
    top: Top | None = None,
) -> StoredMaps:
    """Quantise the maps of one site, `weights` at the finest of its levels; NumPy and jax arrays alike.

    Errors: ValueError for weights that are not of the finest level's size.
    """
    finest = levels[-1]
    if weights.shape[-2:] != (finest.queries, finest.keys):
        raise ValueError(
            f"weights has shape {weights.shape}; its last axes must be {(finest.queries, finest.keys)}, those of the "
            f"level {finest.name}"
        )
    kept = {finest.name: quantise(_examples_first(weights))}
    for fine, coarse in itertools.pairwise(reversed(levels)):
        weights = pool(weights, coarse.query_block // fine.query_block, coarse.key_block // fine.key_block)
        kept[coarse.name] = quantise(_examples_first(weights))
    return StoredMaps(
        dict(reversed(kept.items())),
        None if rows is None else quantise(_examples_first(rows)),
        None if top is None else (_examples_first(top.keys), quantise(_examples_first(top.weights))),
        {name: _examples_first(values) for name, values in (statistics or {}).items()},
    )


def _examples_first(array_LxBx: AnyArray) -> Any:
    xp: Any = array_LxBx.__array_namespace__()
    return xp.moveaxis(xp.asarray(array_LxBx), 1, 0)
