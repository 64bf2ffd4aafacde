"""Training batches of which a process makes only the rows of its own devices, in the thread that works ahead."""

from typing import Any

from transformer.data.batches import Batch, BatchSource, RowBatchSource
from transformer.logical_axes import Placement
from transformer.training.checked_batches import CheckedBatches
from transformer.training.partitioning import rows_of_process, shard_rows


class ProcessRows:
    """The rows of every batch that the devices of this process hold.

    Args:
        source: The batches.
        placement: The placement.
    """

    def __init__(self, source: RowBatchSource, placement: Placement):
        self._source = source
        self._start, self._stop = rows_of_process(source.num_rows, placement)

    def __getitem__(self, step: int) -> Batch:
        """Return these rows of the batch of a step."""
        return self._source.read_rows(step, self._start, self._stop)


class ShardedBatches:
    """Batches on the devices, as global arrays.

    Args:
        source: The rows of this process.
        num_rows: The number of rows of a whole batch.
        placement: The placement.
    """

    def __init__(self, source: BatchSource, num_rows: int, placement: Placement):
        self._source, self._num_rows, self._placement = source, num_rows, placement

    def __getitem__(self, step: int) -> dict[str, Any]:
        """Return the batch of a step."""
        return shard_rows(self._source[step], self._num_rows, self._placement)


def place_rows_ahead(batches: CheckedBatches, placement: Placement) -> BatchSource:
    """Let each process make only its own rows of the batches, and place them on its devices.

    That happens in the thread that works ahead of the steps. Batches whose rows cannot be made one by one stay whole
    and on the host, and the step places them.

    Args:
        batches: The batches.
        placement: The placement.
    """
    source = batches.source
    if not isinstance(source, RowBatchSource):
        return batches
    return ShardedBatches(batches.with_source(ProcessRows(source, placement)), source.num_rows, placement)
