"""The compiled probe: divided over devices, each keeps what it found, and a run's store has it all."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.training.test_heads import THREE_SITES
from transformer.costs.compiled_program import Collective, analyze_program
from transformer.maps.store import MapStore
from transformer.training import build
from transformer.training import config as experiment
from transformer.training.compiled_probe import compile_probe
from transformer.training.partitioning import ShardingConfig, make_placement
from transformer.training.state import TrainState

CONFIG = THREE_SITES.config
RUN: dict[str, Any] = {**CONFIG, "task": {**CONFIG["task"], "num_probe_examples": 8}}
LENGTH = max(CONFIG["task"]["bucket_lengths"])


@pytest.fixture(scope="module")
def resolved() -> experiment.ExperimentConfig:
    return experiment.resolve_config(RUN)


ON_ONE = ShardingConfig(data=1)
MESHES = {
    "data": ShardingConfig(data=8),
    "fsdp": ShardingConfig(data=2, fsdp=4, rules="fsdp"),
    "tensor": ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"),
    "sequence": ShardingConfig(data=2, sequence=4, rules="sp"),
}


class Looked(NamedTuple):
    """The state that was looked at, its maps, what was kept, and what the program exchanges between devices."""

    state: TrainState
    store: MapStore
    kept: Any
    collectives: tuple[Collective, ...]


def drawn(abstract: TrainState) -> TrainState:
    """A state of random weights, for which nothing is compiled."""
    random = np.random.default_rng(3)
    params = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(leaf.dtype), abstract.variables.params)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract._replace(key=None, variables=None))
    return zeros._replace(key=jax.random.key(3), variables=abstract.variables._replace(params=params))


def look_on(
    resolved: experiment.ExperimentConfig, config: ShardingConfig, folder: Path, state: TrainState | None = None
) -> Looked:
    """One look on a mesh, at a first state where none is given."""
    folder.mkdir()
    placement = make_placement(config, jax.devices()[: math.prod(config.sizes().values())])
    setting = build.build_components(resolved, folder, placement)
    asked = {"config": resolved.maps, "times": 1, "parameters": "raw"}
    plan, probe = compile_probe(setting.model, setting.task, setting.abstract_state, placement, **asked)
    state = drawn(setting.abstract_state) if state is None else state
    state = jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, setting.abstract_state))
    compiled = jax.jit(probe).lower(state).compile()
    kept = compiled(state)
    store = MapStore.open(folder / "maps", plan.sites, plan.labels, "", plan.resolutions, plan.sizes)
    store.write(0, kept)
    return Looked(state, store, kept, analyze_program(compiled, placement.mesh).collectives)


@pytest.fixture(scope="module")
def alone(resolved: experiment.ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> Looked:
    return look_on(resolved, ON_ONE, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_maps_lie_where_they_were_found_and_nothing_of_them_is_gathered(
    resolved: experiment.ExperimentConfig, alone: Looked, mesh: str, tmp_path: Path
) -> None:
    config = MESHES[mesh]
    _, store, kept, collectives = look_on(resolved, config, tmp_path / "run", alone.state)
    for leaf in jax.tree.leaves(kept):
        examples, _, heads = leaf.addressable_shards[0].data.shape[:3]
        assert (examples, heads) == (config.tensor, leaf.shape[2] // config.tensor)
    # Where parameters are divided they come together as in every pass; of activations each device sees its own.
    if mesh in ("data", "sequence"):
        assert not collectives
    bytes_of_a_map = 4 * LENGTH**2 * resolved.model.heads // config.tensor
    assert all(found.num_bytes < bytes_of_a_map for found in collectives if found.kind != "all-reduce"), collectives
    for site in alone.store.sites:
        np.testing.assert_allclose(store.read(site.name, 0), alone.store.read(site.name, 0), atol=0.005)
        here, there = store.statistics(site.name), alone.store.statistics(site.name)
        np.testing.assert_allclose(here.values, there.values, rtol=1e-4, atol=1e-4)
