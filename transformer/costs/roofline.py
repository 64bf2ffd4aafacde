"""A roofline model of the step time, from counted FLOPs, bytes and communication, and published hardware rates.

    compute       = (FLOPs + recomputed FLOPs + (slowdown - 1) x float32 FLOPs) / (chips x FLOPs per second)
    memory        = bytes moved through a chip's main memory / its memory bandwidth
    communication = sum over collectives of the bytes that a chip must send / the bandwidth of its links

Compute and memory overlap. float32 FLOPs are those of products with float32 operands, which the compiled program has. A
collective overlaps with the kernels that the compiler scheduled between its start and its end, for as long as these
take by the same model; any other time blocks the chip:

    step = max(compute, memory, overlapped communication) + blocking communication

It is a bound, not a forecast: matrix products run at full rate, collectives have no latency, and nothing is lost
between kernels. FLOPs that rematerialization recomputes take time and are not useful: they count in the step time and
not in the MFU.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from transformer.costs.chips import Chip
from transformer.costs.compiled_program import Collective, CompiledProgram


class StepEstimate(NamedTuple):
    """The estimated seconds of one step.

    Attributes:
        flops: FLOPs of the step over all chips.
        recomputed_flops: FLOPs that rematerialization adds.
        num_chips: The number of chips.
        chip: The published figures of a chip.
        compute_seconds: Seconds of compute.
        memory_seconds: Seconds of main memory traffic.
        overlapped_seconds: Seconds of communication that overlaps with other work.
        blocking_seconds: Seconds of communication that does not.
        seconds_by_collective: Seconds of each kind of collective over each set of mesh axes.
    """

    flops: float
    recomputed_flops: float
    num_chips: int
    chip: Chip
    compute_seconds: float
    memory_seconds: float
    overlapped_seconds: float
    blocking_seconds: float
    seconds_by_collective: dict[tuple[str, tuple[str, ...]], float]

    @property
    def communication_seconds(self) -> float:
        """Seconds in which links are busy."""
        return self.overlapped_seconds + self.blocking_seconds

    @property
    def step_seconds(self) -> float:
        """Seconds of the step, by this file's model."""
        return max(self.compute_seconds, self.memory_seconds, self.overlapped_seconds) + self.blocking_seconds

    @property
    def fully_overlapped_step_seconds(self) -> float:
        """Seconds of the step if all communication overlapped: a lower bound of any schedule."""
        return max(self.compute_seconds, self.memory_seconds, self.communication_seconds)

    @property
    def fully_exposed_step_seconds(self) -> float:
        """Seconds of the step if no communication overlapped."""
        return max(self.compute_seconds, self.memory_seconds) + self.communication_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al. 2022): FLOPs / (step x chips x peak FLOPs per second)."""
        return self.flops / (self.step_seconds * self.num_chips * self.chip.flops_per_second)

    @property
    def communication_share(self) -> float:
        """The fraction of the step in which links are busy, overlapped or not."""
        return self.communication_seconds / self.step_seconds

    @property
    def exposed_share(self) -> float:
        """The fraction of the step in which chips only wait for links."""
        return 1 - max(self.compute_seconds, self.memory_seconds) / self.step_seconds


def estimate_step(
    program: CompiledProgram, flops: float, chip: Chip, mesh: Mesh, recomputed_flops: float = 0.0
) -> StepEstimate:
    """Estimate the step time of a program on a mesh of chips.

    Args:
        program: The compiled step.
        flops: FLOPs of the step over all chips (transformer.costs.flops).
        chip: The published figures of a chip.
        mesh: The mesh of the program.
        recomputed_flops: FLOPs that rematerialization adds.

    Returns:
        The estimate.

    Raises:
        ValueError: If a collective crosses hosts and the chip's network bandwidth is not published, or if its kind is
            unknown.
    """
    devices = list(mesh.devices.flat)
    by_kind: dict[tuple[str, tuple[str, ...]], float] = {}
    idle: dict[frozenset[tuple[int, int]], float] = {}
    overlapped = blocking = 0.0
    for collective in program.collectives:
        seconds = collective.num_executions * collective_seconds(collective, chip, devices)
        if collective.overlapped and collective.kind == "collective-permute" and chip.wraparound_multiple:
            seconds = _added_link_seconds(seconds, collective.device_group, idle)
        key = collective.kind, collective.mesh_axes
        by_kind[key] = by_kind.get(key, 0.0) + seconds
        hidden = min(seconds, collective.num_executions * _overlapped_kernel_seconds(collective, chip))
        overlapped += hidden
        blocking += seconds - hidden
    slowed = (chip.float32_slowdown - 1) * program.float32_flops
    compute = ((flops + recomputed_flops) / len(devices) + slowed) / chip.flops_per_second
    return StepEstimate(
        flops,
        recomputed_flops,
        len(devices),
        chip,
        compute,
        program.bytes_moved / chip.memory_bandwidth,
        overlapped,
        blocking,
        dict(sorted(by_kind.items())),
    )


def _overlapped_kernel_seconds(collective: Collective, chip: Chip) -> float:
    """Return the seconds of the kernels that one execution of a collective overlaps with; unlimited if unknown."""
    if not collective.overlapped:
        return 0.0
    if collective.work is None:
        return math.inf
    moved, flops, float32_flops = collective.work
    slowed = flops + (chip.float32_slowdown - 1) * float32_flops
    return max(moved / chip.memory_bandwidth, slowed / chip.flops_per_second)


def _added_link_seconds(seconds: float, chain: tuple[int, ...], idle: dict[frozenset[tuple[int, int]], float]) -> float:
    """Return the link time that a permutation adds: none while the opposite direction is in use.

    XLA sends half of a product's shards each way around a ring at once, and every link has its full rate each way.
    `idle` has, by the hops of a direction, the seconds in which only the opposite direction was used.
    """
    hops = frozenset(zip(chain, (*chain[1:], chain[0]), strict=True))
    reverse_hops = frozenset((target, source) for source, target in hops)
    if reverse_hops == hops:  # two chips: both permutations send both ways
        return seconds
    shared = min(seconds, idle.get(hops, 0.0))
    idle[hops] = idle.get(hops, 0.0) - shared
    idle[reverse_hops] = idle.get(reverse_hops, 0.0) + seconds - shared
    return seconds - shared


def collective_seconds(collective: Collective, chip: Chip, devices: Sequence[Any]) -> float:
    """Return the seconds of one execution of a collective, by the algorithm that uses the links best.

    Of B bytes among n devices, around a ring: an all-gather or reduce-scatter sends B (n - 1) / n, an all-reduce, which
    is both, twice that. An all-to-all sends every byte a quarter of the way around, B n / 4 in all. A permutation sends
    B to a neighbor over one link.

    Args:
        collective: The collective.
        chip: The published figures of a chip.
        devices: The devices of the mesh, in order.

    Returns:
        Seconds.

    Raises:
        ValueError: If the group crosses hosts and the network bandwidth is not published, or if the kind is unknown.
    """
    count, size = collective.num_participants, collective.num_bytes
    group = [devices[number] for number in collective.device_group]
    if chip.wraparound_multiple == 0:
        return _switched_seconds(collective, chip, group)
    lines = _torus_lines(chip, group, devices)
    match collective.kind:
        case "collective-permute":
            return size / chip.link_bandwidth
        case "all-to-all" | "ragged-all-to-all":
            return max(size * count_along / 4 / rate for count_along, rate in lines)
        case "all-gather" | "reduce-scatter" | "all-reduce" | "collective-broadcast":
            return _bytes_sent(collective) / sum(rate for _, rate in lines)
        case _:
            raise ValueError(f"{collective.kind} among {count} devices is no collective that is known")


def _bytes_sent(collective: Collective) -> float:
    """Return the bytes that each device sends over a ring or through a switch."""
    if collective.kind in ("collective-permute", "collective-broadcast"):
        return float(collective.num_bytes)
    one_pass = collective.num_bytes * (collective.num_participants - 1) / collective.num_participants
    return 2 * one_pass if collective.kind == "all-reduce" else one_pass


def _switched_seconds(collective: Collective, chip: Chip, group: Sequence[Any]) -> float:
    """Return the seconds of GPUs: over their links within a host, and over their shares of the network across hosts.

    Rings through several GPUs of each host leave it over the network share of another GPU each, so that these add up.
    An all-to-all sends over a GPU's own share what is meant for other hosts.
    """
    sent = _bytes_sent(collective)
    link_seconds = sent / (chip.link_bandwidth * chip.num_links)
    per_host = Counter(device.process_index for device in group)
    if len(per_host) == 1:
        return link_seconds
    if chip.network_bandwidth is None:
        raise ValueError(f"a collective crosses hosts, and the network bandwidth of {chip.name} is not published")
    network_seconds = sent / chip.network_bandwidth
    fewest = min(per_host.values())
    match collective.kind:
        case "collective-permute":
            return network_seconds
        case "all-to-all" | "ragged-all-to-all":
            return max(link_seconds, network_seconds * (len(group) - fewest) / (len(group) - 1))
        case _:
            return max(link_seconds, network_seconds / fewest)


def _torus_lines(chip: Chip, group: Sequence[Any], devices: Sequence[Any]) -> list[tuple[int, float]]:
    """Return, for each side of the torus along which a group lies, its chips and the bytes per second that each sends.

    A whole side that closes to a ring, or every k-th chip of it, sends both ways. A part of a side, or one that does
    not close, is a line, whose ends have one neighbor. A group that leaves out chips in between, or lies on a diagonal,
    shares the links that it spans with the groups of those chips.
    """
    sides = range(len(group[0].coords))
    extents = [1 + max(device.coords[side] for device in devices) for side in sides]
    # Slices of three dimensions, six links a chip, are tori as a whole or not at all.
    can_be_torus = chip.num_links < 6 or all(extent % chip.wraparound_multiple == 0 for extent in extents)
    coordinates = [sorted({device.coords[side] for device in group}) for side in sides]
    share = len(group) / math.prod(map(len, coordinates))
    lines = []
    for places, extent in zip(coordinates, extents, strict=True):
        if len(places) == 1:
            continue
        spacing = min(b - a for a, b in itertools.pairwise(places))
        # Every k-th chip of a ring is a ring, over links that k groups share.
        ring = len(places) * spacing == extent and extent % chip.wraparound_multiple == 0 and can_be_torus
        lines.append((len(places), share * chip.link_bandwidth * (2 if ring else 1) / spacing))
    return lines or [(len(group), math.inf)]  # Both cores of one chip share its memory.
