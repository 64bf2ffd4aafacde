"""What is compiled ahead is found compiled, each shape once, and a failure to compile is the caller's alone."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training.background_compile import (
    BATCHES_SCANNED,
    Program,
    compile_in_background,
    distinct_batch_shapes,
)
from transformer.training.partitioning import shard_batch, single_device_placement

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The thread of each compilation."""
    threads: list[str] = []

    def listen(event: str, seconds: float, **more: Any) -> None:
        if event == BACKEND_COMPILE:
            threads.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield threads
    jax.monitoring.unregister_event_duration_listener(listen)


def batch_of(length: int) -> dict[str, np.ndarray]:
    return {"tokens": np.ones((3, length), np.int64), "labels": np.ones(3, np.float32)}


def test_a_call_finds_its_program_compiled(compilations: list[str]) -> None:
    function = jax.jit(lambda scale, batch, flag: jnp.where(flag, scale, 7) * batch["tokens"].sum())
    placement = single_device_placement()
    scale = shard_batch({"scale": np.float32(3)}, placement)["scale"]
    batches = [batch_of(length) for length in (4, 5, 4, 6)]
    scale_shape = jax.ShapeDtypeStruct((), jnp.float32, sharding=scale.sharding)
    shapes = distinct_batch_shapes(batches, 0, 4, placement)
    with compile_in_background(Program(function, (scale_shape, shape, False)) for shape in shapes):
        while sum(name.startswith("compile") for name in compilations) < 3:
            time.sleep(0.01)
        placed = [shard_batch(batch, placement) for batch in batches]
        before = len(compilations)
        found = [function(scale, batch, True) for batch in placed]
    assert [float(each) for each in found] == [3.0 * 3 * length for length in (4, 5, 4, 6)]
    assert len(compilations) == before


def test_each_shape_comes_once_from_the_first_batches() -> None:
    class Counting:
        asked = 0

        def __getitem__(self, step: int) -> dict[str, np.ndarray]:
            self.asked += 1
            return batch_of(4 + step % 2)

    source = Counting()
    shapes = list(distinct_batch_shapes(source, 3, 10**6, single_device_placement()))
    assert [shape["tokens"].shape for shape in shapes] == [(3, 5), (3, 4)]
    assert shapes[0]["tokens"].dtype == jnp.int32  # as jax keeps them
    assert source.asked == BATCHES_SCANNED


def test_what_does_not_compile_raises_where_it_is_called() -> None:
    @jax.jit
    def function(x: jax.Array) -> jax.Array:
        raise ValueError("at its trace")

    with compile_in_background([Program(function, (jax.ShapeDtypeStruct((), jnp.float32),))]):
        pass
    with pytest.raises(ValueError, match="at its trace"):
        function(jnp.zeros(()))


def test_the_end_leaves_what_was_not_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(NamedTuple):
        def compile(self) -> None:
            begun.set()
            assert go_on.wait(30)

    taken = []

    def programs() -> Iterator[Any]:
        for number in range(1000):
            taken.append(number)
            yield Slow()

    with contextlib.suppress(KeyError), compile_in_background(programs()):
        assert begun.wait(30)
        threading.Timer(0.2, go_on.set).start()
        raise KeyError
    assert go_on.is_set()
    assert len(taken) <= 8  # one a thread
