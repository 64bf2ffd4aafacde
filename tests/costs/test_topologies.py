"""Topologies by name: what each needs, and what is told of names that are none."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

from transformer.config import UserError
from transformer.costs.chips import find_chip
from transformer.costs.gpu_targets import GPU_TARGETS, target_config
from transformer.costs.topologies import (
    OutOfMemoryError,
    compile_environment_variables,
    compile_lowered,
    parse_topology,
    topology_devices,
    use_compute_capability,
)


@pytest.mark.parametrize(
    "name",
    [
        *("v5e:1x1", "v5e:4x4", "v5e:8x4", "v6e:16x16", "v5p:2x2x1", "v5p:8x8x4", "v4:4x4x4", "cpu:8", "gpu:1"),
        *("a100:1", "h100:8", "h100:2x8", "h200:16x8", "b200:4"),
    ],
)
def test_names_of_topologies(name: str) -> None:
    assert ":".join(parse_topology(name)) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is not a topology: use v5e:4x4"),
        ("v5e", "is not a topology: use v5e:4x4"),
        ("v5e-16", "is not a topology: use v5e:4x4"),
        ("v5litepod-32", "is not a topology: use v5e:4x8"),
        ("v6e-7", "is not a topology: use v5e:4x4, "),
        ("v9:4x4", "is not a topology: use v5e:4x4"),
        ("tpu:8", "is not a topology: use v5e:4x4"),
        ("cpu", "needs a number of devices, such as cpu:8"),
        ("cpu:0", "needs a number of devices, such as cpu:8"),
        ("gpu:two", "needs a number of devices, such as gpu:8"),
        ("h100", "needs a number of GPUs, as in h100:8, or hosts x GPUs: h100:2x8"),
        ("h100:0", "needs a number of GPUs"),
        ("h100:2x2x2", "needs a number of GPUs"),
        ("h100:12", "has more than the 8 GPUs of one host: use h100:2x8"),
        ("a100:2x16", "has more than the 8 GPUs of one host: use a100:2x8"),
        ("v100:8", "is not a topology: use v5e:4x4"),
        ("v5e:3x3", "is not a slice of v5e; there are 1x1, 2x2"),
        ("v5e:4x4x4", "is not a slice of v5e; there are 1x1, 2x2"),
        ("v5e:32x32", "is not a slice of v5e; there are 1x1, 2x2"),
        ("v5p:4x4", "is not a slice of v5p; there are 1x1x1, 2x2x1"),
        ("v5p:4x4x6", "is not a slice of v5p"),
        ("v5p:0x4x4", "is not a slice of v5p"),
        ("v5p:4x4x", "is not a slice of v5p"),
        ("v4:16x16x20", "with at most 4096 chips"),
        ("v5p:20x20x20", "with at most 6144 chips"),
    ],
)
def test_names_that_are_none(name: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        topology_devices(name)
    assert says in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cpu_devices_are_those_that_are_there() -> None:
    assert topology_devices("cpu:4") == tuple(jax.devices("cpu")[:4])
    with pytest.raises(UserError, match=r"needs 64 devices, and this machine has 8; set XLA_FLAGS=.*count=64"):
        topology_devices("cpu:64")


def test_a_gpu_that_is_not_there_is_said_so() -> None:
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="needs a GPU, and jax sees none on this machine"):
        topology_devices("gpu:1")


def test_without_libtpu_a_slice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name))
    with pytest.raises(UserError, match="needs libtpu, the TPU compiler"):
        topology_devices("v5e:2x2")


def test_without_the_cuda_plugin_a_gpu_by_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("jax_cuda") else find(name))
    with pytest.raises(
        UserError, match=r"needs XLA's compiler for NVIDIA GPUs, .*pip install 'jax\[cuda13\]=="
    ) as caught:
        topology_devices("h100:8")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", GPU_TARGETS)
def test_every_named_gpu_has_published_rates(name: str) -> None:
    target = GPU_TARGETS[name]
    device: Any = types.SimpleNamespace(device_kind=target.device_kind)
    chip = find_chip(device)
    assert chip is not None
    # The driver's figures of memory and of bandwidth are those of the data sheet, but for rounding.
    assert chip.memory_bytes == pytest.approx(target.memory_bytes, rel=0.08)
    assert chip.memory_bandwidth == pytest.approx(target.memory_bandwidth, rel=0.05)
    assert target.device_kind in target_config(target)


def test_jax_is_told_the_capability_of_the_gpu_that_is_compiled_for() -> None:
    hopper: Any = types.SimpleNamespace(platform="gpu", compute_capability="9.0")
    before = fused.check_compute_capability
    with use_compute_capability(hopper):
        assert [fused.check_compute_capability(text) for text in ("8.0", "9.0", "10.0")] == [True, True, False]
        assert fused.is_cuda_compute_capability_equal("9.0")
        assert not fused.is_cuda_compute_capability_equal("10.3")
    assert fused.check_compute_capability is before
    with use_compute_capability(jax.devices("cpu")[0]):
        assert fused.check_compute_capability is before


def test_the_environment_of_each_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --xla_force_host_platform_device_count=8 --b=2")
    cpu = compile_environment_variables("cpu:12")
    assert cpu["JAX_PLATFORMS"] == "cpu"
    assert cpu["XLA_FLAGS"].split() == ["--a=1", "--b=2", "--xla_force_host_platform_device_count=12"]
    assert compile_environment_variables("gpu:1") == {}
    assert compile_environment_variables("h100:2x8")["CUDA_VISIBLE_DEVICES"] == "-1"
    assert compile_environment_variables("h100:2x8")["JAX_PLATFORMS"] == "cpu"
    assert compile_environment_variables("v5p:4x4x4")["JAX_PLATFORMS"] == "cpu"
    assert compile_environment_variables("v5p:4x4x4")["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "true"
    with pytest.raises(UserError):
        compile_environment_variables("v5p")


def test_the_environment_is_said_before_jax_is_imported(root: Path) -> None:
    program = (
        "import os, sys\n"
        "from transformer.costs.topologies import compile_environment_variables, topology_devices\n"
        "assert 'jax' not in sys.modules\n"
        "os.environ.update(compile_environment_variables('cpu:3'))\n"
        "print(len(topology_devices('cpu:3')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=os.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_a_program_that_does_not_fit_is_told_from_one_that_is_wrong() -> None:
    class Lowered:
        def __init__(self, message: str):
            self.message = message

        def compile(self) -> Any:
            raise jax.errors.JaxRuntimeError(self.message)

    full: Any = Lowered("RESOURCE_EXHAUSTED: the total memory (48.00G) exceeds available HBM (15.75G)")
    wrong: Any = Lowered("INTERNAL: no")
    with pytest.raises(OutOfMemoryError, match=r"15\.75G"):
        compile_lowered(full)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compile_lowered(wrong)


def test_a_program_is_compiled_and_timed() -> None:
    compiled, seconds = compile_lowered(jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((3,), jnp.float32)))
    assert compiled(jnp.zeros(3)).shape == (3,)
    assert seconds > 0
