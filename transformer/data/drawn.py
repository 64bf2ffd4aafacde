"""Batches that are drawn anew at every step: a pure function of seed and step, for problems made of numbers."""

import dataclasses
from collections.abc import Callable

import numpy as np

from transformer.data.batches import Batch

# Seeds of what is held out, beyond the seeds of runs: none trains on what they draw.
VALIDATION, TEST = 2**40, 2**41
# What a run of seed 0 draws from, beyond all seeds of runs too. NumPy cuts numbers into words of 32 bits and adds
# zeros, so that (0, 256) is the generator of (2**40, 0): step 256 would train on the first batch of validation.
_ZERO = 2**32


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The batch of a step is what `draw` makes of a generator that seed and step alone determine."""

    draw: Callable[[np.random.Generator], Batch]
    seed: int

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step, from 0."""
        return self.draw(np.random.default_rng((self.seed or _ZERO, step)))
