"""What a program needs on a TPU, read from the text of its own compiler, on a machine that has none."""

import collections
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.costs.compile_program_for_tpu import LAYERS, ROWS, WIDTH

pytestmark = pytest.mark.slow

TWO_BYTES = 2


@functools.cache
def programs(root: Path) -> list[dict[str, Any]]:
    """Of few layers and of twice as many."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu, the TPU compiler, which has wheels for Linux on x86-64 alone")
    words = [sys.executable, "-m", "tests.costs.compile_program_for_tpu"]
    done = subprocess.run(words, cwd=root, env=os.environ, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_layer_gathers_once_and_agrees_five_times(root: Path) -> None:
    for layers, program in zip(LAYERS, programs(root), strict=True):
        counted: collections.Counter[tuple[Any, ...]] = collections.Counter()
        for each in program["collectives"]:
            counted[each["kind"], each["num_bytes"], each["num_participants"], *each["mesh_axes"]] += each[
                "num_executions"
            ]
        assert counted == {
            ("all-gather", WIDTH * WIDTH * TWO_BYTES, 2, "fsdp"): layers,
            ("all-reduce", ROWS // 2 * WIDTH * TWO_BYTES, 2, "tensor"): 5 * layers,
        }


def test_bytes_of_memory(root: Path) -> None:
    for layers, program in zip(LAYERS, programs(root), strict=True):
        rows, weights = ROWS // 2 * WIDTH * TWO_BYTES, layers * WIDTH // 2 * WIDTH * TWO_BYTES
        assert program["argument_bytes"] == rows + weights
        # The compiler rounds a result up by some blocks of its own.
        assert rows <= program["output_bytes"] <= rows + 4096
        assert program["peak"] >= rows + weights + rows
        # Each argument is read at least once and the result written; what lies in fast memory moves nothing.
        assert program["bytes_moved"] >= rows + weights + rows
        assert program["loops_without_trip_count"] == []


def test_twice_the_layers_take_twice_the_operations_and_links(root: Path) -> None:
    few, many = (program["seconds"] for program in programs(root))
    compute, memory, links, step = zip(few, many, strict=True)
    assert compute[1] == 2 * compute[0] > 0
    assert links[1] == pytest.approx(2 * links[0])
    assert memory[1] > memory[0] > 0
    assert all(each >= max(rest) for each, rest in zip(step, zip(compute, memory, strict=True), strict=True))
    # On 2 x 2 chips two have one link of 50 GB/s each way, be they neighbors or across: half of the gathered weights,
    # and of each sum twice its half.
    gathered, summed = WIDTH * WIDTH * TWO_BYTES / 2, ROWS // 2 * WIDTH * TWO_BYTES
    assert links[0] == pytest.approx(LAYERS[0] * (gathered + 5 * summed) / 50e9)


def test_programs_that_differ_have_fingerprints_that_do(root: Path) -> None:
    assert len({program["fingerprint"] for program in programs(root)}) == len(LAYERS)
