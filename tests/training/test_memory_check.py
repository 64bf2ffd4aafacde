"""What has no room is refused before anything compiles, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.training.small_run import CONFIG
from transformer.config import UserError
from transformer.training import build
from transformer.training.config import resolve_config
from transformer.training.driver import train
from transformer.training.partitioning import single_device_placement
from transformer.training.startup_checks import check_memory, device_memory


def state(size: int, over: PartitionSpec) -> dict[str, jax.ShapeDtypeStruct]:
    mesh = Mesh(jax.devices(), ("data",))
    return {"table": jax.ShapeDtypeStruct((size,), jnp.float32, sharding=NamedSharding(mesh, over))}


def test_devices_that_share_their_memory_hold_what_all_of_them_hold() -> None:
    # 4 MB: divided over the eight CPU devices they hold it once, and replicated eight times.
    divided, replicated = state(10**6, PartitionSpec("data")), state(10**6, PartitionSpec())
    check_memory(divided, (), 4e6, shared=True)
    check_memory(replicated, (), 32e6, shared=True)
    for held, memory in ((divided, 3.9e6), (replicated, 31.9e6)):
        with pytest.raises(UserError, match=r"the largest array is table of 1000000"):
            check_memory(held, (), memory, shared=True)
    with pytest.raises(UserError):
        check_memory(divided, state(10**6, PartitionSpec("data")), 4.1e6, shared=True)
    check_memory(divided, (), None, shared=True)
    # Devices with a memory each hold an eighth.
    check_memory(divided, (), 0.5e6, shared=False)
    with pytest.raises(UserError):
        check_memory(divided, (), 0.49e6, shared=False)


def test_the_memory_of_a_machine_is_what_it_has_and_swaps(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:  1 kB\nSwapTotal:       500 kB\n")
    assert device_memory(jax.devices()[0], tmp_path) == 1500 * 1024
    (tmp_path / "proc" / "meminfo").write_text("nothing\n")
    assert (device_memory(jax.devices()[0], tmp_path) or 0) > 1e8


def test_a_model_beyond_the_machine_leaves_no_run(tmp_path: Path) -> None:
    config = json.loads(json.dumps({**CONFIG, "model": {**CONFIG["model"], "feed_forward": 2**31 - 1}}))
    with pytest.raises(UserError, match=r"out of memory: parameters and optimizer state take .* GB"):
        train(resolve_config(config), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_moments_averages_and_summed_gradients_of_bfloat16_parameters_are_counted_as_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, Any, float | None]] = []
    monkeypatch.setattr(build, "check_memory", lambda *sizes, shared: given.append(sizes))
    for num_microbatches in (1, 2):
        config = resolve_config(
            {**CONFIG, "num_microbatches": num_microbatches, "precision": {"parameters": "bfloat16"}}
        )
        build.run_startup_checks(config, build.build_components(config, tmp_path, single_device_placement()))
    (state, alone, _), (_, summed, _) = given
    moments = [leaf for leaf in jax.tree.leaves(state.optimizers) if leaf.ndim]
    kinds = [{leaf.dtype.name for leaf in jax.tree.leaves(tree)} for tree in (moments, state.averages, summed)]
    assert kinds == [{"float32"}] * 3
    assert {leaf.dtype.name for leaf in jax.tree.leaves((state.variables.params, alone))} == {"bfloat16"}
    assert jax.tree.structure(summed) == jax.tree.structure(alone)
