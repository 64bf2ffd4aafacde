"""What each of several processes does for test_processes.py: argument 1 is the folder that holds all of it.

With the argument "killed" behind it they begin two more runs: with the parameters of the first, and one that a process
does not survive.

It is called with the environment that transformer.runs.distributed reads, and leaves what it found in files.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from launch.platform import exit_process
from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.maps.capture_plan import StoredMaps, quantize_maps, resolution_levels
from transformer.maps.store import MapStore
from transformer.runs import distributed
from transformer.runs.array_digests import compute_digests, find_mismatched_arrays
from transformer.runs.checkpoint import Checkpoints
from transformer.tasks.axis_labels import AxisLabels
from transformer.training import build, driver
from transformer.training import config as experiment
from transformer.training.init_from import build_initial_state
from transformer.training.writers import open_writers
from transformer.training.writers.map_writer import BackgroundMapWriter
from transformer.training.writers.writer import Progress, Report

SHAPES = {"divided": (16, 8), "crossed": (8, 4, 8), "whole": (5, 3), "half": (8, 16), "empty": (0, 8), "count": ()}
DTYPES = {"half": jnp.bfloat16, "count": jnp.int32}
SPECS = {"divided": ("a",), "crossed": (None, "b", "a"), "half": ("b",), "empty": (None, "a")}
SITE = Site("decoder/self", Axis("text"), Axis("text"), ("0", "1"), ("0", "1"), causal=True)
LABELS = AxisLabels(tokens={"text": (tuple("abcde"),) * 4}, titles=("0", "1", "2", "3"))
DIES = 3  # the step that one process does not live to see the end of


def values(seed: int) -> dict[str, np.ndarray]:
    """Random bits of every shape, NaNs and subnormals among them."""
    random = np.random.default_rng(seed)
    bits = {name: random.integers(0, 256, (*shape, 4), np.uint8) for name, shape in SHAPES.items()}
    kinds = {name: np.dtype(DTYPES.get(name, np.float32)) for name in SHAPES}
    return {
        name: np.ascontiguousarray(each[..., : kinds[name].itemsize]).view(kinds[name])[..., 0]
        for name, each in bits.items()
    }


def mesh_of(devices: list[Any]) -> Mesh:
    """A mesh of two axes over devices whose number is a power of two."""
    shape = (2, len(devices) // 2) if len(devices) > 1 else (1, 1)
    return Mesh(np.array(devices).reshape(shape), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def state_of(seed: int, mesh: Mesh) -> dict[str, Any]:
    """The values and a key as global arrays, each as its spec says."""
    found: dict[str, Any] = {}
    for name, array in values(seed).items():
        sharding = NamedSharding(mesh, PartitionSpec(*SPECS.get(name, ())))
        found[name] = jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
    whole = NamedSharding(mesh, PartitionSpec())
    found["key"] = jax.jit(lambda: jax.random.key(seed, impl="rbg"), out_shardings=whole)()
    found["keys"] = jax.jit(lambda: jax.random.split(jax.random.key(seed), 4), out_shardings=whole)()
    return found


def abstract(state: dict[str, Any]) -> dict[str, Any]:
    """The shapes of a state, and where it lies."""
    return {n: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for n, leaf in state.items()}


def same(state: dict[str, Any], seed: int) -> bool:
    """Whether every shard that lies here holds the very bits."""
    expected: dict[str, Any] = {
        **values(seed),
        "key": np.asarray(jax.random.key_data(jax.random.key(seed, impl="rbg"))),
        "keys": np.asarray(jax.random.key_data(jax.random.split(jax.random.key(seed), 4))),
    }
    bits = {n: jax.random.key_data(x) if n.startswith("key") else x for n, x in state.items()}
    return set(state) == set(expected) and all(
        np.asarray(shard.data).tobytes() == np.ascontiguousarray(expected[name][shard.index]).tobytes()
        for name, array in bits.items()
        for shard in array.addressable_shards
    )


def some_maps() -> dict[str, StoredMaps]:
    """What is kept of the maps of one step, in NumPy."""
    weights = np.random.default_rng(5).dirichlet(np.ones(5), (2, 4, 2, 5)).astype(np.float32)
    return {SITE.name: quantize_maps(weights, resolution_levels(5, 5, (64,)), {"entropy": weights[..., 0, 0]})}


def check_refusal(folder: Path) -> str:
    """What is said of a directory that another run holds."""
    try:
        with distributed.claim_run_directory(folder / "held", {}):
            return "it was free"
    except UserError as error:
        return str(error)


def check_digests(mesh: Mesh) -> dict[str, Any]:
    """The digests of a state that lies everywhere, and what is found of one that is wrong somewhere."""
    state = {name: leaf for name, leaf in state_of(1, mesh).items() if not name.startswith("key")}
    expected = compute_digests(state)
    found: dict[str, Any] = {"digests": expected, "sound": find_mismatched_arrays(state, expected)}
    for name in ("divided", "crossed", "whole", "half"):
        # One bit of what the last process holds; of a copy, the others are sound.
        here = values(1)[name].copy()
        if jax.process_index() == jax.process_count() - 1:
            last = state[name].addressable_shards[-1].index
            part = np.ascontiguousarray(here[last])
            part.reshape(-1).view(np.uint8)[-1] ^= 16
            here[last] = part
        wrong = jax.make_array_from_callback(here.shape, state[name].sharding, here.__getitem__)
        found[name] = find_mismatched_arrays({**state, name: wrong}, expected)
    return found


def check_checkpoints(folder: Path, mesh: Mesh) -> bool:
    """Restore what one process saved, and save what one process will restore."""
    sound = same(Checkpoints.open_read_only(folder / "from_one").read(1).restore(abstract(state_of(1, mesh))), 1)
    saved = Checkpoints(folder / "from_several", max_to_keep=2)
    for step in (1, 2, 3):
        saved.save(step, state_of(step, mesh), {"step": step})
    sound &= saved.steps() == [2, 3]
    sound &= same(saved.read(2).restore(abstract(state_of(2, mesh))), 2)
    saved.close()
    return sound


def check_going_back(folder: Path, mesh: Mesh) -> list[Any]:
    """Of two checkpoints the newer is damaged where the last process reads it: all go back to the other, and say so."""
    saved = Checkpoints(folder / "gone_back", max_to_keep=2)
    for step in (1, 2):
        saved.save(step, state_of(step, mesh), {})
    saved.steps()

    def damage() -> None:
        for file in sorted((folder / "gone_back" / "2" / "state").rglob("d/*")):
            content = bytearray(file.read_bytes())
            content[-1 - len(content) // 3] ^= 64
            file.write_bytes(content)

    distributed.run_on_primary(damage)
    sound = saved.restore_newest_valid(lambda stored: stored.restore(abstract(state_of(stored.step, mesh))))
    assert sound is not None
    assert same(sound.value, 1)
    saved.announce_damage(sound, set_aside=True)
    names = distributed.run_on_primary(lambda: sorted(entry.name for entry in (folder / "gone_back").iterdir()))
    saved.close()
    return [sound.step, sorted(sound.damaged), names]


def check_beginning(config: dict[str, Any], folder: Path) -> bool:
    """Begin a run with the parameters of the one that all have trained, and find them where they belong."""
    made = experiment.resolve_config(config | {"initialize_from": {"run": str(folder / "several")}})
    setting = build.build_components(made, folder / "several")
    state, _ = build_initial_state(made.initialize_from, setting, jax.random.key(1), folder / "begun")
    checkpoints = Checkpoints.open_read_only(folder / "several" / "checkpoints")
    wanted = checkpoints.read(config["steps"]).restore(setting.abstract_state)
    pairs = zip(jax.tree.leaves(state.variables), jax.tree.leaves(wanted.variables), strict=True)
    return int(state.step) == 0 and all(
        np.array_equal(np.asarray(one.data), np.asarray(other.data))
        for here, there in pairs
        for one, other in zip(here.addressable_shards, there.addressable_shards, strict=True)
    )


def check_maps(folder: Path) -> None:
    """Write maps whose examples and heads are divided over all devices."""
    devices = np.array(jax.devices()).reshape(-1, 2)
    mesh = Mesh(devices, ("examples", "heads"), axis_types=(AxisType.Auto,) * 2)

    def divided(array: np.ndarray) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec("examples", None, "heads"))
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    writers = jax.process_index(), jax.process_count()
    store = distributed.run_on_primary_first(
        lambda: MapStore.open(folder / "maps", (SITE,), LABELS, "", writers=writers)
    )
    for step in (1, 2):
        store.write(step, jax.tree.map(divided, some_maps()))


def dies(folder: Path) -> type[BackgroundMapWriter]:
    """The writer of a process that is killed, once the checkpoint before is there."""

    class Dying(BackgroundMapWriter):
        def write(self, report: Report) -> None:
            dies = isinstance(report, Progress) and report.step == DIES
            if dies and jax.process_index() == jax.process_count() - 1:
                while not (folder / "checkpoints" / str(DIES - 1)).exists():
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
            super().write(report)

    return Dying


def main(folder: Path, *more: str) -> None:
    mesh = mesh_of(jax.devices())
    found = {
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "refusal": check_refusal(folder),
        "digests": check_digests(mesh),
        "checkpoints": check_checkpoints(folder, mesh),
        "gone back": check_going_back(folder, mesh),
    }
    check_maps(folder)
    config = json.loads((folder / "config.json").read_text())
    driver.train(experiment.resolve_config(config), folder / "several")
    if "killed" in more:
        found["begun"] = check_beginning(config, folder)
    (folder / f"found-{jax.process_index()}.json").write_text(json.dumps(found))
    if "killed" in more:
        open_writers.BackgroundMapWriter = dies(folder / "killed")  # type: ignore[misc]
        driver.train(experiment.resolve_config(config), folder / "killed")


if __name__ == "__main__":
    distributed.join_processes(heartbeat=10)
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except BaseException:
        import traceback

        traceback.print_exc()
        exit_process(1)
    exit_process(0)
