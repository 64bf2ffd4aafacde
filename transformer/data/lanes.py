"""Segments that follow one another: each row of a batch goes on where the same row of the step before ended."""

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch


class Lanes:
    """Batches of `rows` segments, `context` tokens each, of a stream of tokens that is cut into as many lanes.

    Row r of a step reads lane r behind where it stood at the step before. An epoch, of `batches_per_epoch` steps, reads
    all lanes from their beginnings; where those lie is drawn from (seed, epoch), so that segments are cut elsewhere in
    every epoch.

    Each batch has `tokens` [B, T], `labels` [B, T], the tokens one further, `past` [B], how many tokens of its lane
    stand before a segment, `lane` [B], the row's number, and `index` [B], where the segment begins in the stream.

    Errors: UserError for a stream too short for one segment a row.
    """

    def __init__(self, stream: np.ndarray, *, context: int, rows: int, seed: int):
        self._stream, self._context, self._rows, self._seed = stream, context, rows, seed
        self.batches_per_epoch = (len(stream) - 1) // (rows * context)
        if not self.batches_per_epoch:
            raise UserError(
                f"the text has {len(stream)} tokens, and rows={rows} of context={context} that follow one another need "
                f"{rows * context + 1}: give more text, fewer rows or a shorter context"
            )

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step."""
        epoch, number = divmod(step, self.batches_per_epoch)
        lane = self.batches_per_epoch * self._context
        spare = len(self._stream) - self._rows * lane
        begin = np.random.default_rng((self._seed, epoch)).integers(spare)
        starts = begin + np.arange(self._rows) * lane + number * self._context
        places = starts[:, None] + np.arange(self._context)
        return {
            "tokens": self._stream[places].astype(np.int32),
            "labels": self._stream[places + 1].astype(np.int32),
            "past": np.full(self._rows, number * self._context, np.int32),
            "lane": np.arange(self._rows, dtype=np.int32),
            "index": starts.astype(np.int32),
        }
