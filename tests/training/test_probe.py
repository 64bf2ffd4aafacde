"""The compiled probe: divided over devices, each keeps what it found, and a run's store has it all."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.training.test_resume import CONFIG
from transformer.maps.store import MapStore
from transformer.training import experiment
from transformer.training.probe import compile_probe
from transformer.training.sharding import ShardingConfig, make_placement

RUN: dict[str, Any] = {**CONFIG, "task": {**CONFIG["task"], "probed": 8}}


@pytest.fixture(scope="module")
def resolved() -> experiment.Experiment:
    return experiment.resolve(RUN)


def probe_on(resolved: experiment.Experiment, folder: Path, devices: int) -> tuple[Any, Any, Any]:
    placement = make_placement(ShardingConfig(), jax.devices()[:devices])
    setting = experiment.assemble(resolved, folder, placement)
    plan, probe = compile_probe(setting.model, setting.task, setting.abstract, placement, config=resolved.maps, times=1)
    return plan, probe, setting


def test_examples_are_divided_over_the_devices_and_nothing_is_gathered(
    resolved: experiment.Experiment, tmp_path: Path
) -> None:
    stores = []
    for devices in (1, 8):
        folder = tmp_path / str(devices)
        folder.mkdir()
        plan, probe, setting = probe_on(resolved, folder, devices)
        state = setting.initialise(jax.random.key(3))
        kept = probe(state)
        for leaf in jax.tree.leaves(kept):
            assert leaf.addressable_shards[0].data.shape[0] == 8 // devices
        store = MapStore.open(folder / "maps", plan.sites, plan.labels, "", plan.tiers, plan.sizes)
        store.write(0, kept)
        stores.append(store)
    # The last one's, of eight devices.
    text = jax.jit(probe).lower(state).compile().as_text()
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"))
    for site in stores[0].sites:
        first, second = (store.read(site.name, 0) for store in stores)
        np.testing.assert_allclose(second, first, atol=0.005)
        np.testing.assert_allclose(
            stores[1].statistics(site.name).values, stores[0].statistics(site.name).values, rtol=1e-4, atol=1e-4
        )
