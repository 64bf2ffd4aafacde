"""Published figures: which device has which, and that they agree with each other."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

from transformer.costs.chips import TPU_CHIPS, find_chip, peak_flops


class Device(NamedTuple):
    device_kind: str
    platform: str = "tpu"


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H200", 989.4e12),
    ],
)
def test_devices_by_their_kind(kind: str, flops: float) -> None:
    device: Any = Device(kind)
    chip = find_chip(device)
    assert chip is not None
    assert chip.flops_per_second == flops
    assert peak_flops([device] * 3) == 3 * flops


def test_a_device_without_published_figures_has_none() -> None:
    device: Any = Device("TPU v99")
    for own in (device, jax.devices("cpu")[0]):
        assert find_chip(own) is None
        assert peak_flops([own]) is None


# Bytes a second of a chip's links together, both directions, and of all-reduce over the whole pod, as published.
@pytest.mark.parametrize(("name", "both_ways"), [("v5e", 400e9), ("v5p", 1200e9), ("v6e", 800e9)])
def test_links_add_up_to_what_is_published(name: str, both_ways: float) -> None:
    chip = TPU_CHIPS[name]
    assert 2 * chip.num_links * chip.link_bandwidth == both_ways


@pytest.mark.parametrize(
    ("name", "pod", "all_reduce"), [("v4", 4096, 1.1e15), ("v5e", 256, 51.2e12), ("v6e", 256, 102.4e12)]
)
def test_a_pods_all_reduce_is_its_links(name: str, pod: int, all_reduce: float) -> None:
    chip = TPU_CHIPS[name]
    assert pod * chip.num_links * chip.link_bandwidth == pytest.approx(all_reduce, rel=0.01)


def test_the_table_of_the_docs_is_the_codes(root: Path) -> None:
    """Memory, TFLOP/s, memory GB/s, link GB/s and links of each TPU, as the guide lists them."""
    rows: dict[str, list[float]] = {}
    for line in (root / "docs" / "guides" / "ahead_of_time_compilation.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        if cells[0] in TPU_CHIPS:
            # The first of its two tables, then the second, whose last column is the network.
            figures = cells[1:4] if cells[0] not in rows else cells[1:3]
            rows[cells[0]] = [*rows.get(cells[0], []), *(float(cell.split()[0]) for cell in figures)]
    assert rows == {
        name: [
            chip.memory_bytes / 2**30,
            chip.flops_per_second / 1e12,
            chip.memory_bandwidth / 1e9,
            chip.link_bandwidth / 1e9,
            chip.num_links,
        ]
        for name, chip in TPU_CHIPS.items()
    }
