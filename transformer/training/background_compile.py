"""Compile programs in background threads, each batch shape before its first batch."""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from transformer.data.batches import BatchSource
from transformer.logical_axes import Placement
from transformer.runs.exceptions import RunStopped
from transformer.tasks.task import Batch
from transformer.training.partitioning import batch_sharding

# The number of batches of a run or an evaluation that are scanned for shapes to compile.
BATCHES_SCANNED = 100


class Program(NamedTuple):
    """A jitted function with its arguments as shapes."""

    function: Any
    arguments: tuple[Any, ...]

    def compile(self) -> None:
        """Compile the program; a call with arguments of these shapes then finds it compiled, or waits until it is."""
        self.function.lower(*self.arguments).compile()


@contextlib.contextmanager
def compile_in_background(programs: Iterable[Program]) -> Iterator[None]:
    """Compile programs in threads while the context lasts.

    A program that fails to compile raises its error where it is called, not here. The end of the context waits for
    programs being compiled, unless the run was told to stop, and drops the rest. With several processes nothing is
    compiled in the background, since they must compile in the same order.

    Args:
        programs: The programs, in order; they are listed by the threads.
    """
    if jax.process_count() > 1:
        yield
        return
    remaining, lock, ended = iter(programs), threading.Lock(), threading.Event()

    def compile_what_is_left() -> None:
        while not ended.is_set():
            with lock:
                program = next(remaining, None)
            if program is None:
                return
            program.compile()

    # Half of the cores: each compilation uses several, and training continues meanwhile.
    threads = max(1, min(8, (os.cpu_count() or 2) // 2))
    pool = ThreadPoolExecutor(threads, "compile")
    for _ in range(threads):
        pool.submit(compile_what_is_left)
    patient = True
    try:
        yield
    except RunStopped:
        patient = False
        raise
    finally:
        ended.set()
        pool.shutdown(wait=patient)


def distinct_batch_shapes(
    batches: BatchSource | Sequence[Batch], start: int, stop: int, placement: Placement
) -> Iterator[dict[str, jax.ShapeDtypeStruct]]:
    """Yield the first batch of each shape, as shapes with the sharding of `shard_batch`.

    Args:
        batches: The batches.
        start: The number of the first one.
        stop: The number after the last one; at most `BATCHES_SCANNED` are looked at.
        placement: The placement of batches.
    """

    def shape(array: Any) -> jax.ShapeDtypeStruct:
        kind = jax.dtypes.canonicalize_dtype(array.dtype)
        return jax.ShapeDtypeStruct(array.shape, kind, sharding=batch_sharding(array.shape, placement))

    distinct = []
    for number in range(start, min(stop, start + BATCHES_SCANNED)):
        batch = jax.tree.map(shape, dict(batches[number]))
        if batch not in distinct:
            distinct.append(batch)
            yield batch
