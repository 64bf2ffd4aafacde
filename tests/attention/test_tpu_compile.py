"""Attention compiles for a real TPU topology, ahead of time, on a machine that has none."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attention.compile_for_tpu import BATCH, CASES, HEADS, PROGRAMS

FORWARD = "splash_mha_fwd_segmented_no_residuals"
FORWARD_AND_SUMS = "splash_mha_fwd_segmented_residuals"
BACKWARD = ["splash_mha_dkv_segmented_no_residuals", "splash_mha_dq_segmented_no_residuals"]
KERNELS = {
    "forward": ([FORWARD], []),
    "gradient": ([*BACKWARD, FORWARD_AND_SUMS], []),
    # Capturing runs the forward kernel once more, and only in the branch of a step that is observed.
    "capture": ([*BACKWARD, FORWARD_AND_SUMS], [FORWARD_AND_SUMS]),
}
# A ring runs in blocks, and where positions are divided so does what finds the log-sum-exp once more.
OTHERS = {"gathered/capture": (KERNELS["gradient"][0], []), **{f"ring/{name}": ([], []) for name in PROGRAMS}}
# What the devices say to each other: sums of the loss, and of statistics; keys only where positions are divided.
COLLECTIVES = {
    "divided": {"forward": [], "gradient": ["all-reduce"], "capture": ["all-reduce"]},
    "gathered": {
        "forward": ["all-gather"],
        "gradient": ["all-gather", "all-reduce", "reduce-scatter"],
        "capture": ["all-gather", "all-reduce", "reduce-scatter"],
    },
    "ring": {
        "forward": ["collective-permute"],
        "gradient": ["all-reduce", "collective-permute"],
        "capture": ["all-gather", "all-reduce", "collective-permute"],
    },
}
# The compiler of TPUs without a TPU: no search for one, no fight with another process over it.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


PATHS = tuple(f"{case}/{name}" for case in CASES for name in PROGRAMS)
# To compile for a TPU takes seconds a program.
pytestmark = pytest.mark.slow


@functools.cache
def compiled(root: Path) -> dict[str, dict[str, Any]]:
    """Each program's kernels and memory, by case/name; compiled one after the other in one process."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu, the TPU compiler, which has wheels for Linux on x86-64 alone")
    words = [sys.executable, "-m", "tests.attention.compile_for_tpu", *PATHS]
    done = subprocess.run(
        words, cwd=root, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {line["program"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert tuple(found) == PATHS
    return found


@pytest.mark.parametrize("path", PATHS)
def test_it_runs_on_the_tpus_own_kernels(root: Path, path: str) -> None:
    program = compiled(root)[path]
    print({key: value for key, value in program.items() if key not in ("always", "sometimes")})
    case, name = path.split("/")
    assert (program["always"], program["sometimes"]) == OTHERS.get(path, KERNELS[name])
    assert program["collectives"] == COLLECTIVES.get(case, {}).get(name, [])


@pytest.mark.parametrize("path", [f"causal_window/{name}" for name in PROGRAMS])
def test_no_program_holds_a_map(root: Path, path: str) -> None:
    whole_map = 4 * BATCH * HEADS * CASES["causal_window"].length ** 2
    assert compiled(root)[path]["temporary"] < whole_map / 8
