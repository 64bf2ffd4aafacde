"""The roofline against seconds by hand, on made-up slices of a made-up chip."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from transformer.costs.chips import Chip
from transformer.costs.compiled_program import Collective, CompiledProgram
from transformer.costs.hlo_execution import Work
from transformer.costs.roofline import collective_seconds, estimate_step

TORUS = Chip("t", 10**9, 1e12, 1e9, link_bandwidth=1e6, num_links=6, wraparound_multiple=4, network_bandwidth=1e4)
FLAT = TORUS._replace(num_links=4, wraparound_multiple=16)
SWITCHED = TORUS._replace(num_links=10, wraparound_multiple=0)


class Device(NamedTuple):
    coords: tuple[int, ...]
    process_index: int = 0


def slice_of(*sides: int) -> list[Device]:
    """Devices in the order of their places, the last side running fastest."""
    return [Device(place) for place in itertools.product(*map(range, sides))]


def collective(
    kind: str, size: int, group: Sequence[int], *, executions: int = 1, overlapped: bool = False
) -> Collective:
    return Collective(kind, size, len(group), ("data",), tuple(group), executions, overlapped, "")


def seconds(kind: str, group: Sequence[int], sides: tuple[int, ...], chip: Chip = TORUS) -> float:
    return collective_seconds(collective(kind, 8_000_000, group), chip, slice_of(*sides))


RING = range(0, 64, 16)  # Four in a row along the first side of 4 x 4 x 4.
PLANE = range(0, 64, 4)  # The first two sides.


@pytest.mark.parametrize(
    ("kind", "group", "sides", "expected"),
    [
        # 8 MB among 4: three quarters go out, over two links of 1 MB/s.
        ("all-gather", RING, (4, 4, 4), 3.0),
        ("reduce-scatter", RING, (4, 4, 4), 3.0),
        ("all-reduce", RING, (4, 4, 4), 6.0),
        # Two sides at once: 15 sixteenths over four links.
        ("all-gather", PLANE, (4, 4, 4), 8 * 15 / 16 / 4),
        ("all-reduce", range(64), (4, 4, 4), 2 * 8 * 63 / 64 / 6),
        # 2 x 2 x 1 has no rings: two chips have one link each way.
        ("all-gather", (0, 2), (2, 2, 1), 8 / 2),
        ("all-reduce", range(4), (2, 2, 1), 2 * 8 * 3 / 4 / 2),
        # One short side, and no side closes.
        ("all-gather", range(0, 32, 8), (4, 4, 2), 6.0),
        # Half of a ring is a line; every second chip of it shares its links with the others.
        ("all-gather", (0, 16), (4, 4, 4), 4.0),
        ("all-gather", (0, 32), (4, 4, 4), 4.0),  # both ways around
        # Across a square, two links for two pairs of chips: each has one of them.
        ("all-gather", (0, 3), (2, 2, 1), 4.0),
        ("collective-permute", RING, (4, 4, 4), 8.0),
        # A quarter of the way around, on average, over both links: 8 x 4 / 4 / 2; on a line over one.
        ("all-to-all", RING, (4, 4, 4), 4.0),
        ("all-to-all", (0, 2), (2, 2, 1), 8 * 2 / 4),
        # The longest side has the most to carry.
        ("all-to-all", range(4 * 4 * 8), (4, 4, 8), 8 * 8 / 4 / 2),
    ],
)
def test_seconds_on_a_torus(kind: str, group: Sequence[int], sides: tuple[int, ...], expected: float) -> None:
    assert seconds(kind, group, sides) == pytest.approx(expected)


@pytest.mark.parametrize(("side", "expected"), [(8, 8 * 7 / 8), (16, 8 * 15 / 16 / 2)])
def test_a_side_of_a_flat_slice_closes_at_the_pods_own(side: int, expected: float) -> None:
    group = range(0, side * 4, 4)
    assert seconds("all-gather", group, (side, 4, 1), FLAT) == pytest.approx(expected)


def test_seconds_through_a_switch_and_beyond_the_host() -> None:
    inside = [Device((), 0)] * 8
    assert collective_seconds(collective("all-gather", 8_000_000, range(8)), SWITCHED, inside) == pytest.approx(0.7)
    assert collective_seconds(collective("all-to-all", 8_000_000, range(8)), SWITCHED, inside) == pytest.approx(0.7)
    assert collective_seconds(collective("collective-permute", 8_000_000, range(8)), SWITCHED, inside) == pytest.approx(
        0.8
    )
    hosts = [Device((), number // 4) for number in range(8)]
    # Each device sends 140,000 bytes around rings, which leave a host over the network shares of its four devices.
    assert collective_seconds(collective("all-reduce", 80_000, range(8)), SWITCHED, hosts) == pytest.approx(14.0 / 4)
    # One device of each host: over its own share.
    assert collective_seconds(collective("all-reduce", 80_000, (0, 4)), SWITCHED, hosts) == pytest.approx(8.0)
    # Four of the seven parts that a device sends are for the other host; within, links are faster.
    assert collective_seconds(collective("all-to-all", 80_000, range(8)), SWITCHED, hosts) == pytest.approx(7.0 * 4 / 7)
    assert collective_seconds(collective("collective-permute", 80_000, (3, 4)), SWITCHED, hosts) == pytest.approx(8.0)
    fast = SWITCHED._replace(network_bandwidth=1e12)
    assert collective_seconds(collective("all-gather", 8_000_000, range(8)), fast, hosts) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="the network bandwidth of t is not published"):
        collective_seconds(collective("all-reduce", 80_000, range(8)), SWITCHED._replace(network_bandwidth=None), hosts)


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="gossip among 4 devices"):
        seconds("gossip", RING, (4, 4, 4))


class FakeMesh(NamedTuple):
    devices: np.ndarray


def mesh_of(devices: Sequence[Any]) -> Any:
    array = np.empty(len(devices), object)
    array[:] = devices
    return FakeMesh(array)


def program(*collectives: Collective, moved: int = 0) -> CompiledProgram:
    return CompiledProgram(1, 1, 0, 0, 0, moved, collectives, (), (), "")


MESH = mesh_of(slice_of(4, 4, 4))
GATHER = collective("all-gather", 8_000_000, RING, executions=2)  # 6 s
HIDDEN = collective("all-reduce", 8_000_000, RING, overlapped=True)  # 6 s


@pytest.mark.parametrize(
    ("collectives", "compute", "memory", "step", "waiting"),
    [
        ((), 10, 4, 10, 0.0),
        ((), 4, 10, 10, 0.0),
        ((GATHER,), 10, 4, 16, 6 / 16),
        # What runs beside other work costs nothing while there is other work, and all that it takes longer.
        ((HIDDEN,), 10, 4, 10, 0.0),
        ((HIDDEN,), 2, 4, 6, 2 / 6),
        ((GATHER, HIDDEN), 2, 4, 12, 8 / 12),
    ],
)
def test_the_step(
    collectives: tuple[Collective, ...], compute: float, memory: float, step: float, waiting: float
) -> None:
    found = estimate_step(program(*collectives, moved=int(memory * 1e9)), compute * 64 * 1e12, TORUS, MESH)
    links = 6 * len(collectives)
    assert (found.compute_seconds, found.memory_seconds, found.communication_seconds) == pytest.approx(
        (compute, memory, links)
    )
    assert found.step_seconds == pytest.approx(step)
    assert found.exposed_share == pytest.approx(waiting)
    assert found.communication_share == pytest.approx(links / step)
    assert found.mfu == pytest.approx(compute / step)
    assert found.fully_overlapped_step_seconds == pytest.approx(max(compute, memory, links))
    assert found.fully_exposed_step_seconds == pytest.approx(max(compute, memory) + links)
    assert found.fully_overlapped_step_seconds <= found.step_seconds <= found.fully_exposed_step_seconds


@pytest.mark.parametrize(
    ("work", "hidden"),
    [
        (None, 6.0),
        (Work(0, 0, 0), 0.0),
        (Work(int(2e9), int(1e12), 0), 2.0),  # 2 s of memory, 1 s of products
        (Work(int(1e9), int(2e12), int(1e12)), 4.0),  # half of the products takes three times as long
        (Work(int(9e9), 0, 0), 6.0),
    ],
)
def test_a_collective_is_hidden_for_as_long_as_the_kernels_beside_it_take(work: Work | None, hidden: float) -> None:
    found = estimate_step(program(HIDDEN._replace(work=work)), 0.0, TORUS._replace(float32_slowdown=3.0), MESH)
    assert (found.overlapped_seconds, found.blocking_seconds) == pytest.approx((hidden, 6.0 - hidden))


def test_products_of_float32_operands_take_longer_by_the_chips_slowdown() -> None:
    half = program()._replace(float32_flops=int(1e12))
    found = estimate_step(half, 2 * 64 * 1e12, TORUS._replace(float32_slowdown=2.0), MESH)
    assert found.compute_seconds == pytest.approx(1 + 2)
    assert estimate_step(half, 2 * 64 * 1e12, TORUS, MESH).compute_seconds == pytest.approx(2)


def test_seconds_by_kind() -> None:
    found = estimate_step(program(GATHER, HIDDEN, GATHER), 1e12, TORUS, MESH)
    assert found.seconds_by_collective == {
        ("all-gather", ("data",)): pytest.approx(12),
        ("all-reduce", ("data",)): pytest.approx(6),
    }


def test_permutations_of_both_ways_around_a_ring_share_the_time() -> None:
    chips = slice_of(4, 4, 4)
    there = [chips.index(Device((x, 0, 0))) for x in range(4)]
    ways = [
        collective("collective-permute", size, chain, overlapped=True)
        for size, chain in ((3_000_000, there), (2_000_000, [there[0], *there[:0:-1]]))
    ]
    found = estimate_step(program(*ways), 1e12, TORUS, MESH)
    assert found.overlapped_seconds == pytest.approx(3.0)
    assert estimate_step(program(*ways[:1] * 2), 1e12, TORUS, MESH).overlapped_seconds == pytest.approx(6.0)
    # Two chips send to each other: both permutations take both ways of their link.
    pair = [collective("collective-permute", 1_000_000, there[:2], overlapped=True)] * 2
    assert estimate_step(program(*pair), 1e12, TORUS, MESH).overlapped_seconds == pytest.approx(2.0)


def test_what_is_computed_again_takes_time_and_is_no_use() -> None:
    found = estimate_step(program(moved=0), 3e14, TORUS, MESH, recomputed_flops=1e14)
    assert found.mfu == pytest.approx(0.75)
    assert found.step_seconds == pytest.approx(4e14 / (64 * 1e12))
