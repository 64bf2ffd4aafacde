"""Batches of which a process makes its own rows: placed on devices they are the whole batches."""

import jax
import numpy as np
import pytest

from transformer.data.batches import Batch
from transformer.training.partitioning import (
    ShardingConfig,
    make_placement,
    rows_of_process,
    shard_batch,
    single_device_placement,
)
from transformer.training.sharded_batches import ProcessRows, ShardedBatches


class Counting:
    """A batch whose rows are numbers of the step and the row; remembers which rows were asked for."""

    num_rows = 16

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __getitem__(self, step: int) -> Batch:
        return self.read_rows(step, 0, self.num_rows)

    def read_rows(self, step: int, start: int, stop: int) -> Batch:
        self.asked.append((start, stop))
        rows = np.arange(start, stop, dtype=np.int32)
        return {"tokens": 100 * step + rows[:, None] + np.zeros(3, np.int32), "index": rows}


@pytest.mark.parametrize("config", [ShardingConfig(), ShardingConfig(data=2, tensor=4, rules="sp+tp")])
def test_rows_on_the_devices_are_the_batch_that_the_step_would_place(config: ShardingConfig) -> None:
    placement, source = make_placement(config), Counting()
    assert rows_of_process(16, placement) == (0, 16)
    batch = ShardedBatches(ProcessRows(source, placement), source.num_rows, placement)[5]
    wanted = shard_batch(source[5], placement)
    for name, array in wanted.items():
        assert isinstance(batch[name], jax.Array)
        assert batch[name].sharding == array.sharding
        np.testing.assert_array_equal(batch[name], array)
    assert all(placed is batch[name] for name, placed in shard_batch(batch, placement).items())


def test_a_process_asks_for_the_rows_between_its_first_and_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = make_placement(ShardingConfig())

    def second_half(self: object, shape: tuple[int, ...]) -> dict[int, tuple[slice, ...]]:
        # Of eight devices, the last four, as of a second process.
        return {device: (slice(2 * device, 2 * device + 2),) for device in range(4, 8)}

    monkeypatch.setattr(jax.sharding.NamedSharding, "addressable_devices_indices_map", second_half)
    assert rows_of_process(16, placement) == (8, 16)
    source = Counting()
    np.testing.assert_array_equal(ProcessRows(source, placement)[0]["index"], np.arange(8, 16))
    assert source.asked == [(8, 16)]
    monkeypatch.setattr(
        jax.sharding.NamedSharding,
        "addressable_devices_indices_map",
        lambda self, shape: {0: (slice(0, 2),), 1: (slice(4, 6),)},
    )
    assert rows_of_process(16, placement) == (0, 16)  # with a gap: all


def test_one_device_has_all_rows() -> None:
    assert rows_of_process(16, single_device_placement()) == (0, 16)
