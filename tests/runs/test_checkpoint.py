"""Checkpoints come back bit for bit, or not at all."""

import contextlib
import gc
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from transformer.config import UserError
from transformer.runs import checkpoint
from transformer.runs.checkpoint import Checkpoints, DamagedCheckpoint, StoredCheckpoint
from transformer.runs.checkpoint_files import describe_damaged_array, parse_manifest
from transformer.runs.exceptions import RunFailed
from transformer.storage.disk import DiskStorage


class State(NamedTuple):
    step: Any
    key: Any
    params: Any
    optimizer: Any
    extra: Any


def make_state(seed: int = 0, width: int = 16) -> State:
    """Every kind of leaf and of emptiness; NaNs, infinities and subnormals by random bits."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (width, 8), dtype=np.uint32)
    return State(
        step=jnp.int32(7 + seed),
        key=jax.random.split(jax.random.key(seed), 2),
        params={
            "encoder": {"kernel": jnp.asarray(bits.view(np.float32)), "none": {}},
            "half": jnp.asarray(bits.astype(np.uint16).view(jnp.bfloat16)),
            "empty": jnp.zeros((0, width), jnp.bfloat16),
            "flags": jnp.asarray([True, False]),
        },
        optimizer=((), (jnp.uint8(255), {"other": jax.random.key(seed, impl="rbg")})),
        extra={
            "count": 2**40 + seed,
            "rate": 0.1,
            "on": True,
            "wide": np.arange(3, dtype=np.int64) + 2**40,
            "double": np.float64(1 / 3),
            "nothing": None,
        },
    )


def bits(leaf: Any) -> tuple[str, str, bytes]:
    """A leaf's type, dtype and bytes."""
    if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return (
            str(jax.random.key_impl(leaf)),
            str(leaf.shape),
            np.asarray(jax.random.key_data(leaf)).tobytes(),
        )
    kind = "jax" if isinstance(leaf, jax.Array) else type(leaf).__name__
    array = np.asarray(leaf)
    return kind, f"{array.shape} {array.dtype}", array.tobytes()


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    assert [bits(leaf) for leaf in jax.tree.leaves(got)] == [bits(leaf) for leaf in jax.tree.leaves(expected)]


def abstract(state: Any) -> Any:
    def describe(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    return jax.tree.map(describe, state)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def checkpoints(directory: Path) -> Iterator[Checkpoints]:
    opened = Checkpoints(directory, max_to_keep=2)
    yield opened
    opened.close()


def test_every_bit_comes_back(checkpoints: Checkpoints, directory: Path):
    state, metadata = make_state(), {"position": 12, "shapes": (1, 2), 3: None}
    assert checkpoints.latest() is None
    checkpoints.save(7, state, metadata)
    checkpoints.close()
    stored = Checkpoints(directory, max_to_keep=2).read(7)
    restored, read = stored.restore(abstract(state)), stored.metadata
    assert_same(restored, state)
    assert read == {"position": 12, "shapes": [1, 2], "3": None}
    # An array may stand for itself, and a reader needs no right to write.
    restored = Checkpoints.open_read_only(directory).read(7).restore(state)
    assert_same(restored, state)


def test_the_state_may_be_donated_while_it_is_saved(checkpoints: Checkpoints):
    burn = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    state = {"large": jnp.arange(2_000_000, dtype=jnp.float32), "own": np.ones(1000)}
    expected = {name: np.array(leaf) for name, leaf in state.items()}
    checkpoints.save(1, state, {})
    burned = burn({"large": state["large"]})
    state["own"][:] = -1
    restored = checkpoints.read(1).restore({"large": burned["large"], "own": state["own"]})
    np.testing.assert_array_equal(restored["large"], expected["large"])
    np.testing.assert_array_equal(restored["own"], expected["own"])


def test_the_last_ones_are_kept(checkpoints: Checkpoints, directory: Path):
    for step in (1, 2, 10):
        checkpoints.save(step, make_state(step), {"step": step})
    assert checkpoints.steps() == [2, 10]
    assert checkpoints.latest() == 10
    for step in (2, 10):
        stored = checkpoints.read(step)
        restored, metadata = stored.restore(abstract(make_state(step))), stored.metadata
        assert_same(restored, make_state(step))
        assert metadata == {"step": step}
    with pytest.raises(ValueError, match="step=10 is not after the latest checkpoint, 10"):
        checkpoints.save(10, make_state(), {})
    with pytest.raises(UserError, match=r"no checkpoint of step 1 in .*, which has \[2, 10\]"):
        checkpoints.read(1).restore(make_state())
    assert sorted(entry.name for entry in directory.iterdir()) == ["10", "2"]


def test_arrays_land_where_the_abstract_state_says(checkpoints: Checkpoints):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def placed(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    values = {"kernel": jnp.arange(64.0).reshape(8, 8), "key": jax.random.key(3), "none": jnp.zeros((0, 8))}
    before = {"kernel": placed("data", "model"), "key": placed(), "none": placed()}
    after = {"kernel": placed("model"), "key": placed(), "none": placed(None, "data")}
    checkpoints.save(1, {name: jax.device_put(leaf, before[name]) for name, leaf in values.items()}, {})
    shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=after[name]) for name, leaf in values.items()}
    restored = checkpoints.read(1).restore(shapes)
    assert_same(restored, values)
    for name, leaf in restored.items():
        assert leaf.sharding.is_equivalent_to(after[name], leaf.ndim), name
    device = SingleDeviceSharding(jax.devices()[5])
    only = checkpoints.read(1).restore(jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=device), ("kernel",))
    assert only.devices() == {jax.devices()[5]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    """Checkpoints with a state of every kind of leaf, of which tests only read."""
    opened = Checkpoints(tmp_path_factory.mktemp("saved") / "checkpoints", max_to_keep=2)
    opened.save(1, make_state(), {})
    assert opened.steps() == [1]
    yield opened
    opened.close()


def changed(state: State, **params: Any) -> State:
    return state._replace(params={name: leaf for name, leaf in (state.params | params).items() if leaf is not None})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"flags": jnp.zeros(3, bool)},
            r"leaf 'params/flags' is shape \(2,\) of bool in the checkpoint and shape \(3,\) of bool in this run",
        ),
        (
            {"flags": jnp.zeros(2)},
            r"'params/flags' is shape \(2,\) of bool in the checkpoint and shape \(2,\) of float32 in this run",
        ),
        (
            {"half": jnp.zeros((16, 8))},
            "'params/half' is shape .* of bfloat16 in the checkpoint and shape .* of float32 in this run",
        ),
        ({"new": jnp.zeros(1)}, r"'params/new' is absent in the checkpoint and shape \(1,\) of float32 in this run"),
        ({"flags": None}, r"'params/flags' is shape \(2,\) of bool in the checkpoint and absent in this run"),
        (
            {"flags": jax.random.split(jax.random.key(0), 2)},
            "'params/flags' is shape .* of bool in the checkpoint and .* of key<fry> in this run",
        ),
        (
            {"empty": jnp.zeros((0, 15), jnp.bfloat16)},
            r"'params/empty' is shape \(0, 16\) of bfloat16 in the checkpoint and shape \(0, 15\) of bfloat16 "
            "in this run",
        ),
        ({"flags": 1}, "'params/flags' is shape .* in the checkpoint and .* of python int in this run"),
    ],
)
def test_another_model_is_refused_before_anything_is_read(
    saved: Checkpoints, monkeypatch: pytest.MonkeyPatch, params: dict, message: str
):
    monkeypatch.setattr(StoredCheckpoint, "_read_unverified", lambda *_: pytest.fail("the arrays were read"))
    other = changed(make_state(), **params)
    for expected in (other, abstract(other)):
        with pytest.raises(UserError, match=f"of another model or version: .*{message}; give the config"):
            saved.read(1).restore(expected)
        with pytest.raises(UserError, match=message):
            saved.read(1).restore(expected.params, ("params",))


def test_another_kind_of_key_or_number_is_refused(saved: Checkpoints):
    state = make_state()
    with pytest.raises(UserError, match=r"'key' is .* of key<fry> in the checkpoint and .* of key<rbg> in this run"):
        saved.read(1).restore(state._replace(key=jax.random.split(jax.random.key(0, impl="rbg"), 2)))
    with pytest.raises(
        UserError, match=r"'extra/rate' is .* python float in the checkpoint and .* python int in this run"
    ):
        saved.read(1).restore(state._replace(extra=state.extra | {"rate": 1}))
    with pytest.raises(UserError, match=r"'extra/wide' is .* of int64 in the checkpoint and .* of int32 in this run"):
        saved.read(1).restore(state._replace(extra=state.extra | {"wide": np.zeros(3, np.int32)}))


def test_a_part_is_read_alone(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    state = make_state()
    checkpoints.save(1, state, {})
    asked: list[str] = []
    read = StoredCheckpoint._read_unverified

    def spy(self: StoredCheckpoint, leaves: dict) -> dict:
        asked.extend(leaves)
        return read(self, leaves)

    monkeypatch.setattr(StoredCheckpoint, "_read_unverified", spy)
    assert_same(checkpoints.read(1).restore(abstract(state.params), ("params",)), state.params)
    assert set(asked) == {"params/encoder/kernel", "params/half", "params/flags"}
    assert_same(
        checkpoints.read(1).restore(abstract(state.params["encoder"]), ("params", "encoder")),
        state.params["encoder"],
    )
    assert_same(checkpoints.read(1).restore(abstract(state.step), ("step",)), state.step)
    assert checkpoints.read(1).restore({}, ("elsewhere",)) == {}


# TensorStore's threads report to event loops that orbax has closed after the first error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_flipped_bit_anywhere_is_never_restored(directory: Path):
    state = {
        "kernel": jax.random.normal(jax.random.key(0), (64, 64)),
        "small": jnp.ones(3, jnp.bfloat16),
        "key": jax.random.key(1),
        "count": 3,
    }
    writer = Checkpoints(directory, max_to_keep=3)
    for step in (1, 2):
        writer.save(step, state, {"position": 5})
    writer.close()
    random, found = np.random.default_rng(0), []
    for path in sorted(path for path in (directory / "2").rglob("*") if path.is_file()):
        content = path.read_bytes()
        # Orbax's own metadata, changed, make it return what is no array.
        count = 12 if path.name == "_METADATA" else 2
        for place in random.integers(0, max(1, len(content)), count if content else 0):
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(random.integers(8))
            path.write_bytes(flipped)
            try:
                stored = Checkpoints.open_read_only(directory).read(2)
                restored, metadata = stored.restore(state), stored.metadata
            except DamagedCheckpoint as error:
                found.append(str(error))
            else:
                assert_same(restored, state)
                assert metadata == {"position": 5}
        path.write_bytes(content)
    gc.collect()  # what the errors left behind must not be reported by another test
    where = f"{directory / '2'} is damaged: "
    assert all(message.startswith(where) for message in found)
    assert any("leaf 'kernel' in state/ is not what was saved" in message for message in found)
    assert any("cannot be read from" in message for message in found)
    assert any("manifest/metadata" in message for message in found)


def test_exchanged_leaves_and_metadata_are_found(directory: Path):
    writer = Checkpoints(directory, max_to_keep=2)
    writer.save(1, {"a": jnp.ones(3), "b": jnp.zeros(3)}, {"position": 5})
    writer.close()
    path = directory / "1" / "manifest" / "metadata"
    content = path.read_text()
    for forged in (content.replace('"position": 5', '"position": 6'), content.replace('"a"', '"c"')):
        assert forged != content
        path.write_text(forged)
        with pytest.raises(DamagedCheckpoint, match=r"1 is damaged: manifest/metadata is not what was saved$"):
            Checkpoints.open_read_only(directory).read(1).restore({"a": jnp.ones(3), "b": jnp.zeros(3)})
    manifest = json.loads(content)
    assert list(manifest["leaves"]) == ["a", "b"]


def test_a_failed_save_raises_and_is_not_the_latest(directory: Path):
    checkpoints = Checkpoints(directory, max_to_keep=3)
    checkpoints.save(1, {"a": jnp.arange(4.0)}, {})
    checkpoints.steps()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))  # as a full disk
    try:
        checkpoints.save(2, {"a": jax.random.normal(jax.random.key(0), (400_000,))}, {})
        with pytest.raises(Exception, match="File too large"):
            checkpoints.steps()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert checkpoints.latest() == 1
    checkpoints.save(3, {"a": jnp.arange(5.0)}, {})
    assert checkpoints.steps() == [1, 3]
    checkpoints.close()
    again = Checkpoints(directory, max_to_keep=3)
    assert again.steps() == [1, 3]
    restored = again.read(3).restore({"a": jnp.zeros(5)})
    assert_same(restored, {"a": jnp.arange(5.0)})
    assert sorted(entry.name for entry in directory.iterdir()) == ["1", "3"]


def test_a_reader_leaves_an_unfinished_save_alone_and_sees_the_next(directory: Path, checkpoints: Checkpoints):
    checkpoints.save(1, {"a": jnp.ones(3)}, {})
    checkpoints.steps()
    unfinished = directory / "2.orbax-checkpoint-tmp"
    unfinished.mkdir()
    reader = Checkpoints.open_read_only(directory)
    assert reader.latest() == 1
    assert unfinished.is_dir()
    writer = Checkpoints(directory, max_to_keep=2)
    assert writer.latest() == 1
    writer.save(3, {"a": jnp.ones(3)}, {})
    writer.close()
    assert reader.steps() == [1, 3]
    reader.close()
    assert sorted(entry.name for entry in directory.iterdir()) == ["1", "3"]
    with pytest.raises(UserError, match="saved no checkpoint yet"):
        Checkpoints.open_read_only(directory / "none")


SAVING = """
import sys
import jax.numpy as jnp
from transformer.runs.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], max_to_keep=2)
for step in range(1, 100_000):
    checkpoints.save(step, {"a": jnp.full(200_000, float(step)), "step": jnp.int32(step)}, {"step": step})
    print(step, flush=True)
"""


def test_a_killed_process_leaves_a_sound_checkpoint(directory: Path):
    shape = {"a": jax.ShapeDtypeStruct((200_000,), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
    command = [sys.executable, "-c", SAVING, str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip() == "4":
                break
        time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    checkpoints = Checkpoints(directory, max_to_keep=2)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest >= 3
    for step in checkpoints.steps():
        stored = checkpoints.read(step)
        restored, metadata = stored.restore(shape), stored.metadata
        assert metadata == {"step": step}
        assert int(restored["step"]) == step
        np.testing.assert_array_equal(restored["a"], np.full(200_000, step, np.float32))
    checkpoints.save(latest + 1, restored, {})
    checkpoints.close()
    assert all(entry.name.isdigit() for entry in directory.iterdir())


def test_milestones_are_kept_for_good(directory: Path):
    checkpoints = Checkpoints(directory, max_to_keep=1, permanent_checkpoint_every=4)
    for step in (2, 4, 6, 8, 10):
        checkpoints.save(step, {"a": jnp.full(3, float(step))}, {})
    checkpoints.close()
    again = Checkpoints(directory, max_to_keep=1, permanent_checkpoint_every=4)
    assert again.steps() == [4, 8, 10]
    restored = again.read(4).restore({"a": jnp.zeros(3)})
    assert_same(restored, {"a": jnp.full(3, 4.0)})


def test_what_is_older_stays_until_the_new_one_is_read_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    checkpoints = Checkpoints(directory, max_to_keep=1)
    checkpoints.save(1, {"a": jnp.ones(3)}, {})
    assert checkpoints.steps() == [1]

    def spoilt(path: Path) -> str:
        return "leaf 'a' in state/ is not what was saved"

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "describe_damaged_array", lambda *_: spoilt(directory))
        checkpoints.save(2, {"a": jnp.ones(3)}, {})
        assert checkpoints.steps() == [1]
    checkpoints.save(3, {"a": jnp.ones(3)}, {})
    checkpoints.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"2 was not written as it was saved: leaf 'a' .* kept as damaged-2, .*; training continues$", line)
    assert sorted(entry.name for entry in directory.iterdir()) == ["3", "damaged-2"]


def test_what_is_read_back_is_compared_bit_for_bit_and_in_shape(directory: Path):
    with Checkpoints(directory, max_to_keep=1) as checkpoints:
        checkpoints.save(1, {"a": jnp.zeros(4), "b": jnp.array([0.0, 0.0, 0.0, -0.0]), "c": jnp.zeros((2, 2))}, {})
    leaves = parse_manifest((directory / "1" / "manifest" / "metadata").read_bytes()).leaves
    assert describe_damaged_array(directory / "1" / "state", leaves) is None
    for other in "bc":
        assert describe_damaged_array(directory / "1" / "state", {**leaves, "a": leaves[other]}) == (
            "leaf 'a' in state/ is not what was saved (its digest differs)"
        )


def test_the_newest_sound_one_serves_and_one_that_vanishes_is_no_damage(directory: Path, capsys: Any):
    writer = Checkpoints(directory, max_to_keep=9)
    for step in (1, 2, 3):
        writer.save(step, {"a": jnp.full(3, float(step))}, {})
    writer.close()
    (directory / "3" / "manifest" / "metadata").unlink()
    reader = Checkpoints.open_read_only(directory)
    asked = []

    def read(stored: StoredCheckpoint) -> Any:
        asked.append(stored.step)
        if stored.step == 2:  # as a run that rotates beside
            shutil.rmtree(directory / "2")
        return stored.restore({"a": jnp.zeros(3)})

    sound = reader.restore_newest_valid(read)
    assert sound is not None
    assert (sound.step, list(sound.damaged), asked) == (1, [3], [2, 1])
    reader.announce_damage(sound, set_aside=False)
    assert "3 is damaged: manifest/metadata cannot be read; step 1 is used instead" in capsys.readouterr().err
    assert (directory / "3").is_dir()


def test_a_run_whose_last_checkpoint_was_not_written_as_it_was_saved_fails_at_its_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    spoilt = "leaf 'a' in state/ is not what was saved"
    monkeypatch.setattr(
        checkpoint, "describe_damaged_array", lambda folder, _: spoilt if folder.parent.name == "2" else None
    )

    def train(*steps: int, fails: bool = False) -> None:
        with Checkpoints(directory, max_to_keep=2) as checkpoints:
            for step in steps:
                checkpoints.save(step, {"a": jnp.ones(3)}, {})
            if fails:
                raise KeyError

    with pytest.raises(
        RunFailed,
        match=r"checkpoints/2 was not written .*kept as damaged-2, and the last .* of step 1; start the same .*",
    ):
        train(1, 2)
    assert capsys.readouterr().err == ""  # the command tells it, once
    with pytest.raises(KeyError):  # which is not hidden by the other
        train(2, fails=True)
    assert capsys.readouterr().err.count("was not written as it was saved") == 1
    train(2, 3)


@pytest.mark.parametrize("name", ["a[b]", "[!a]", "**", "a*", "?", "~a", "a~", "a:b", "漢字", "...", "a\nb"])
def test_the_characters_of_a_path_are_no_pattern(tmp_path: Path, name: str):
    # What the name would match as a pattern is another run's.
    for number, run in enumerate(("ab", "b", name)):
        with Checkpoints(tmp_path / run / "checkpoints", max_to_keep=1) as checkpoints:
            checkpoints.save(1, {"a": jnp.full(3, float(number))}, {})
            checkpoints.save(2, {"a": jnp.full(3, float(number))}, {})
    with Checkpoints.open_read_only(tmp_path / name / "checkpoints") as reader:
        restored = reader.read(2).restore({"a": jnp.zeros(3)})
    assert_same(restored, {"a": jnp.full(3, 2.0)})


def test_what_cannot_be_saved_is_named(checkpoints: Checkpoints, directory: Path):
    with pytest.raises(TypeError, match="a str cannot be a leaf"):
        checkpoints.save(1, {"name": "x"}, {})
    with pytest.raises(ValueError, match="both called 'a/b'"):
        checkpoints.save(1, {"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}, {})
    with pytest.raises(ValueError, match="'keys' is an empty array of keys"):
        checkpoints.save(1, {"keys": jax.random.split(jax.random.key(0), 2)[:0]}, {})
    with pytest.raises(UserError, match="max_to_keep=0"):
        Checkpoints(directory, max_to_keep=0)
    assert checkpoints.latest() is None


@pytest.mark.parametrize("content", [b"1" * 9999, b"[1, 2]", b"[" * 9999, b"\xff", b""])
def test_what_orbax_lists_a_step_by_is_damaged_in_one_line(directory: Path, content: bytes):
    with contextlib.closing(Checkpoints(directory, max_to_keep=2)) as checkpoints:
        for step in (2, 4):
            checkpoints.save(step, {"x": jnp.arange(4.0)}, {})
    (directory / "4" / "_CHECKPOINT_METADATA").write_bytes(content)
    with contextlib.suppress(UserError):  # no other error, and never what was not saved
        restored = Checkpoints.open_read_only(directory).read(4).restore({"x": jnp.zeros(4)})
        np.testing.assert_array_equal(restored["x"], np.arange(4.0))


def test_an_old_checkpoint_that_cannot_be_removed_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def remove_tree(disk: DiskStorage, path: Path) -> None:
        raise OSError(5, "planted", str(path))

    checkpoints = Checkpoints(tmp_path / "checkpoints", max_to_keep=1)
    state = {"weights": np.arange(3.0)}
    with monkeypatch.context() as patch:
        patch.setattr(DiskStorage, "remove_tree", remove_tree)
        for step in (1, 2):
            checkpoints.save(step, state, {})
        assert checkpoints.steps() == [1, 2]
    assert "could not be removed yet" in capsys.readouterr().err
    checkpoints.save(3, state, {})
    assert checkpoints.steps() == [3]
    checkpoints.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": [10**6] * 6, "chunks": [10**6] * 6}, "cannot be read"),
        ({"chunks": [10**9, 10**9]}, "cannot be read"),
        ("[" * 200_000, "cannot be read"),
    ],
)
def test_no_array_reaches_tensorstore_that_is_not_the_manifests(tmp_path: Path, change: Any, says: str) -> None:
    state = {"kernel": np.ones((2, 3), np.float32)}
    with contextlib.closing(Checkpoints(tmp_path, 1)) as checkpoints:
        checkpoints.save(1, state, {})
    base = {"driver": "file", "path": f"{tmp_path}/1/state/"}
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    said = json.loads(store.read("kernel/.zarray").result().value)
    store.write("kernel/.zarray", change if isinstance(change, str) else json.dumps(said | change)).result()
    with pytest.raises(DamagedCheckpoint, match=says):
        Checkpoints.open_read_only(tmp_path).read(1).restore(state)


def test_a_manifest_of_arrays_that_is_larger_than_any_is_not_given_to_tensorstore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"kernel": np.ones((2, 3), np.float32)}
    with contextlib.closing(Checkpoints(tmp_path, 1)) as checkpoints:
        checkpoints.save(1, state, {})
    os.truncate(tmp_path / "1" / "state" / "manifest.ocdbt", 2**40)
    # It would end the process.
    monkeypatch.setattr(tensorstore, "KvStore", types.SimpleNamespace(open=lambda spec: pytest.fail("it is opened")))
    with pytest.raises(DamagedCheckpoint, match="leaf 'kernel' cannot be read"):
        Checkpoints.open_read_only(tmp_path).read(1).restore(state)
