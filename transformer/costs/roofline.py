"""How long a step takes at best: our own estimate from counted operations, bytes and links, and published figures.

    compute = (operations + those computed again) / (chips x operations a second)
    memory  = bytes moved through a chip's main memory / its bytes a second
    links   = sum over collectives of what a chip must send / what its links to the others carry

Compute and memory go on together. A collective that the compiler made to run beside other work is taken to hide behind
them as far as they last; any other stops the chip:

    step = max(compute, memory, links beside) + links alone

It is a bound and no forecast: products of matrices at their full rate, no time from a collective's start to its first
byte, nothing lost between kernels. What rematerialization computes again takes time and is no use: it is in the step
and not in the operations of the utilization.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from transformer.costs.chips import Chip
from transformer.costs.program import Collective, Program


class Estimate(NamedTuple):
    """Seconds of one step, and what follows from them.

    `again` are the operations that rematerialization adds to `flops`.
    `beside` and `alone` are the parts of `links` that run beside other work and that stop it. `by_kind` are the seconds
    of each kind of collective over each set of axes of the mesh.
    """

    flops: float
    again: float
    chips: int
    chip: Chip
    compute: float
    memory: float
    beside: float
    alone: float
    by_kind: dict[tuple[str, tuple[str, ...]], float]

    @property
    def links(self) -> float:
        """Seconds in which links are busy."""
        return self.beside + self.alone

    @property
    def step(self) -> float:
        """The step by the rule above."""
        return max(self.compute, self.memory, self.beside) + self.alone

    @property
    def hidden(self) -> float:
        """The step if every collective hid behind other work: no schedule is faster."""
        return max(self.compute, self.memory, self.links)

    @property
    def exposed(self) -> float:
        """The step if none did."""
        return max(self.compute, self.memory) + self.links

    @property
    def utilization(self) -> float:
        """Model FLOP utilization (Chowdhery et al. 2022): the operations over what the chips could have done."""
        return self.flops / (self.step * self.chips * self.chip.flops)

    @property
    def collective_share(self) -> float:
        """The share of the step in which links are busy, hidden or not."""
        return self.links / self.step

    @property
    def waiting_share(self) -> float:
        """The share of the step in which chips do nothing but wait for links."""
        return 1 - max(self.compute, self.memory) / self.step


def estimate(program: Program, flops: float, chip: Chip, mesh: Mesh, again: float = 0.0) -> Estimate:
    """The estimate of a step of `flops` operations, all chips together (transformer.costs.flops), on a mesh of `chip`.

    `again`: the operations beside them that are computed a second time.

    Raises:
        ValueError: If a collective leaves the hosts of a chip whose network has no published figure.
    """
    devices = list(mesh.devices.flat)
    by_kind: dict[tuple[str, tuple[str, ...]], float] = {}
    idle: dict[frozenset[tuple[int, int]], float] = {}
    beside = alone = 0.0
    for collective in program.collectives:
        seconds = collective.times * link_seconds(collective, chip, devices)
        if collective.beside and collective.kind == "collective-permute" and chip.wraps:
            seconds = _with_the_other_way(seconds, collective.group, idle)
        key = collective.kind, collective.axes
        by_kind[key] = by_kind.get(key, 0.0) + seconds
        beside, alone = (beside + seconds, alone) if collective.beside else (beside, alone + seconds)
    compute = (flops + again) / (len(devices) * chip.flops)
    return Estimate(
        flops,
        again,
        len(devices),
        chip,
        compute,
        program.moved / chip.bandwidth,
        beside,
        alone,
        dict(sorted(by_kind.items())),
    )


def _with_the_other_way(seconds: float, chain: tuple[int, ...], idle: dict[frozenset[tuple[int, int]], float]) -> float:
    """What a permutation adds to the time in which links are busy: nothing while others go the other way.

    XLA sends half of a product's shards one way around a ring and half the other, at once, and every link carries its
    full rate each way. `idle`: by the hops of a way, the seconds in which only the other way was used.
    """
    hops = frozenset(zip(chain, (*chain[1:], chain[0]), strict=True))
    back = frozenset((target, source) for source, target in hops)
    if back == hops:  # two chips: both permutations send both ways
        return seconds
    shared = min(seconds, idle.get(hops, 0.0))
    idle[hops] = idle.get(hops, 0.0) - shared
    idle[back] = idle.get(back, 0.0) + seconds - shared
    return seconds - shared


def link_seconds(collective: Collective, chip: Chip, devices: Sequence[Any]) -> float:
    """Seconds of one execution of a collective, by the algorithm that uses the links best.

    Of B bytes among n devices, around a ring: an all-gather or reduce-scatter sends B (n - 1) / n, an all-reduce, which
    is both, twice that. An all-to-all sends every byte a quarter of the way around, B n / 4 in all. A permutation sends
    B to a neighbor over one link.

    Raises:
        ValueError: As `estimate`.
    """
    count, size = collective.participants, collective.bytes
    group = [devices[number] for number in collective.group]
    if chip.wraps == 0:
        return _sent(collective) / _switched(chip, group)
    lines = _lines(chip, group, devices)
    match collective.kind:
        case "collective-permute":
            return size / chip.link
        case "all-to-all" | "ragged-all-to-all":
            return max(size * count_along / 4 / rate for count_along, rate in lines)
        case "all-gather" | "reduce-scatter" | "all-reduce" | "collective-broadcast":
            return _sent(collective) / sum(rate for _, rate in lines)
        case _:
            raise ValueError(f"{collective.kind} among {count} devices is no collective that is known")


def _sent(collective: Collective) -> float:
    """The bytes that each device sends over a ring or through a switch."""
    if collective.kind in ("collective-permute", "collective-broadcast"):
        return float(collective.bytes)
    once = collective.bytes * (collective.participants - 1) / collective.participants
    return 2 * once if collective.kind == "all-reduce" else once


def _switched(chip: Chip, group: Sequence[Any]) -> float:
    """What a GPU sends to others: over its links within a host, by its share of the network beyond."""
    if len({device.process_index for device in group}) == 1:
        return chip.link * chip.links
    if chip.network is None:
        raise ValueError(f"a collective leaves its host, and no figure is published for the network of {chip.name}")
    return chip.network


def _lines(chip: Chip, group: Sequence[Any], devices: Sequence[Any]) -> list[tuple[int, float]]:
    """For each side of the torus along which a group lies: its chips on that side, and the bytes each sends a second.

    A whole side that closes to a ring, or every k-th chip of it, sends both ways; another part of it or one that does
    not close is a line, whose ends have one neighbor. A group that leaves out chips in between, or lies across as on
    a diagonal, shares the links that it spans with the groups of those chips.
    """
    sides = range(len(group[0].coords))
    extents = [1 + max(device.coords[side] for device in devices) for side in sides]
    # Slices of three dimensions, six links a chip, are tori as a whole or not at all.
    whole = chip.links < 6 or all(extent % chip.wraps == 0 for extent in extents)
    taken = [sorted({device.coords[side] for device in group}) for side in sides]
    part = len(group) / math.prod(map(len, taken))
    lines = []
    for places, extent in zip(taken, extents, strict=True):
        if len(places) == 1:
            continue
        apart = min(b - a for a, b in itertools.pairwise(places))
        # Every k-th chip of a ring is a ring, over links that k groups share.
        ring = len(places) * apart == extent and extent % chip.wraps == 0 and whole
        lines.append((len(places), part * chip.link * (2 if ring else 1) / apart))
    return lines or [(len(group), math.inf)]  # Both cores of one chip share its memory.
