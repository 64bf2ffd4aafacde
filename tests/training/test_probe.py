"""The compiled probe: divided over devices, each keeps what it found, and a run's store has it all."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.training.test_resume import CONFIG
from transformer.costs.program import Collective, read_program
from transformer.maps.store import MapStore
from transformer.training import assembly, experiment
from transformer.training.mesh import ShardingConfig, make_placement
from transformer.training.probe import compile_probe

RUN: dict[str, Any] = {**CONFIG, "task": {**CONFIG["task"], "probed": 8}}
LENGTH = max(CONFIG["task"]["lengths"])


@pytest.fixture(scope="module")
def resolved() -> experiment.Experiment:
    return experiment.resolve(RUN)


ON_ONE = ShardingConfig(data=1)
MESHES = {
    "data": ShardingConfig(data=8),
    "fsdp": ShardingConfig(data=2, fsdp=4, rules="fsdp"),
    "tensor": ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"),
    "sequence": ShardingConfig(data=2, sequence=4, rules="sp"),
}


def store_on(
    resolved: experiment.Experiment, config: ShardingConfig, folder: Path
) -> tuple[MapStore, Any, tuple[Collective, ...]]:
    """The maps of one look on a mesh, what was kept, and what the program exchanges between devices."""
    folder.mkdir()
    placement = make_placement(config, jax.devices()[: math.prod(config.sizes().values())])
    setting = assembly.assemble(resolved, folder, placement)
    plan, probe = compile_probe(setting.model, setting.task, setting.abstract, placement, config=resolved.maps, times=1)
    state = setting.initialise(jax.random.key(3))
    kept = probe(state)
    store = MapStore.open(folder / "maps", plan.sites, plan.labels, "", plan.tiers, plan.sizes)
    store.write(0, kept)
    return store, kept, read_program(jax.jit(probe).lower(state).compile(), placement.mesh).collectives


@pytest.fixture(scope="module")
def alone(resolved: experiment.Experiment, tmp_path_factory: pytest.TempPathFactory) -> MapStore:
    return store_on(resolved, ON_ONE, tmp_path_factory.mktemp("alone") / "run")[0]


@pytest.mark.parametrize("mesh", [pytest.param(m, marks=[pytest.mark.slow] * (m in ("data", "fsdp"))) for m in MESHES])
def test_maps_lie_where_they_were_found_and_nothing_of_them_is_gathered(
    resolved: experiment.Experiment, alone: MapStore, mesh: str, tmp_path: Path
) -> None:
    config = MESHES[mesh]
    store, kept, collectives = store_on(resolved, config, tmp_path / "run")
    for leaf in jax.tree.leaves(kept):
        examples, _, heads = leaf.addressable_shards[0].data.shape[:3]
        assert (examples, heads) == (config.tensor, leaf.shape[2] // config.tensor)
    # Where parameters are divided they come together as in every pass; of activations each device sees its own.
    if mesh in ("data", "sequence"):
        assert not collectives
    bytes_of_a_map = 4 * LENGTH**2 * resolved.model.heads // config.tensor
    assert all(found.bytes < bytes_of_a_map for found in collectives if found.kind != "all-reduce"), collectives
    for site in alone.sites:
        np.testing.assert_allclose(store.read(site.name, 0), alone.read(site.name, 0), atol=0.005)
        here, there = store.statistics(site.name), alone.statistics(site.name)
        np.testing.assert_allclose(here.values, there.values, rtol=1e-4, atol=1e-4)
