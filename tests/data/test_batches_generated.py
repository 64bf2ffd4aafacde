"""Batches that are drawn anew: what is held out is drawn by no step of a run."""

import numpy as np
import pytest

from transformer.data.batches import TEST_SEED, VALIDATION_SEED, GeneratedBatches


def first_numbers(seed: int, steps: int) -> set[bytes]:
    drawn = GeneratedBatches(lambda random: {"bytes": np.frombuffer(random.bytes(16), np.uint8)}, seed)
    return {np.asarray(drawn[step]["bytes"]).tobytes() for step in range(steps)}


@pytest.mark.parametrize("seed", [0, 1, 2, 255, 256, 2**32 - 1])
def test_no_step_of_a_run_draws_what_is_held_out(seed: int) -> None:
    held_out = first_numbers(VALIDATION_SEED, 600) | first_numbers(TEST_SEED, 600)
    assert len(held_out) == 1200
    assert not first_numbers(seed, 1100) & held_out
