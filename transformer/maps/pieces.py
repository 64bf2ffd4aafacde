"""The parts of a site's arrays that one process writes, as they are stored."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.attention.sites import Site
from transformer.maps.tiers import Level
from transformer.maps.zarr_files import Piece, own_pieces
from transformer.tasks.labels import Labels


def statistics_pieces(
    statistics: Mapping[str, Any], names: Sequence[str], heads: tuple[int, int, int]
) -> Iterator[Piece]:
    """The statistics [example, layer, head] in the order of `names`, NaN for one that is not given.

    They are stacked on the host, so that the devices, busy training, compute nothing for it.
    """
    pieces = {name: list(own_pieces(statistics[name])) for name in names if name in statistics}
    places = [where for where, _ in next(iter(pieces.values()))] if pieces else [(slice(None),) * len(heads)]
    for number, where in enumerate(places):
        nothing = np.full(heads, np.nan, np.float32)[where]
        values = [pieces[name][number][1] if name in pieces else nothing for name in names]
        yield where, np.stack(values, axis=-1).astype(np.float32)


def cut(
    values: np.ndarray, where: tuple[slice, ...], name: str, labels: Labels, site: Site, levels: Sequence[Level]
) -> np.ndarray:
    """The values of an array `name` at `where`, with zeros beyond each example's own tokens."""
    sides = {level.name: (level.query_block, level.key_block) for level in levels}
    group, _, part = name.partition("/")
    if group not in sides:
        return values
    result = np.array(values)
    for index, example in enumerate(range(len(labels.titles))[where[0]]):
        queries, keys = (
            -(-len(labels.tokens[axis.name][example]) // block)
            for axis, block in zip((site.query, site.key), sides[group], strict=True)
        )
        first_query, first_key = (where[axis].start or 0 if len(where) > axis else 0 for axis in (3, 4))
        result[index, :, :, max(0, queries - first_query) :] = 0
        if part == "codes":
            result[index, ..., max(0, keys - first_key) :] = 0
    return result
