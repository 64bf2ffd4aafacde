"""The tests that need an NVIDIA GPU: skipped elsewhere, with a report of the machine at the top of the output."""

import os
import shutil
import subprocess

import jax
import pytest


def pytest_report_header() -> list[str]:
    """What a report of a failure should say of the machine."""
    devices = jax.devices()
    platform = devices[0].client.platform_version.splitlines()
    lines = [
        f"jax {jax.__version__}, {' '.join(platform)}, {len(devices)} x {devices[0].device_kind}",
        f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '').strip()}",
    ]
    if program := shutil.which("nvidia-smi"):
        asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        lines.append(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    return lines


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU: JAX_PLATFORMS=cuda python -m pytest -n 0 -rA tests/accelerator")
