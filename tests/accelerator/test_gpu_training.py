"""A training on an NVIDIA GPU: the loss of the same steps on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SETTINGS: dict[str, Any] = {
    **{"layers": 2, "width": 128, "heads": 4, "feed_forward": 256, "context": 128, "rows": 8, "vocabulary": 512},
    **{"warmup_steps": 0, "steps": 10, "seed": 0},
}


def loss_after_ten_steps(root: Path, platform: str, dtype: str, precision: str) -> float:
    environment = {**os.environ, "JAX_PLATFORMS": platform, "JAX_DEFAULT_MATMUL_PRECISION": precision}
    # This process may hold most of the GPU's memory.
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    program = [sys.executable, "-m", "experiments.benchmarks.programs.decoder_training_step"]
    done = subprocess.run(
        [*program, json.dumps({**SETTINGS, "dtype": dtype})],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(platform, dtype, precision, {name: found[name] for name in ("device", "loss", "first")})
    return found["loss"]


@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [("float32", "highest", 1e-4), ("float32", "default", 1e-2), ("bfloat16", "default", 5e-2)],
)
def test_ten_steps_have_the_loss_of_the_cpu(root: Path, dtype: str, precision: str, tolerance: float) -> None:
    on_cpu = loss_after_ten_steps(root, "cpu", "float32", "highest")
    assert loss_after_ten_steps(root, "cuda", dtype, precision) == pytest.approx(on_cpu, abs=tolerance)
