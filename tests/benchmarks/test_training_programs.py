"""The programs that time training do the work that they are said to do."""

from typing import Any

import numpy as np
import pytest

from experiments.benchmarks.catalog import BENCHMARKS
from experiments.benchmarks.programs import vocabulary_head
from experiments.benchmarks.programs.decoder_training_step import measure
from experiments.benchmarks.programs.encoder_decoder_training_step import build_encoder_decoder


def settings(name: str, program: str, **changes: Any) -> dict[str, Any]:
    return {**BENCHMARKS[name].programs[program].settings, **changes}


def test_a_pairs_target_is_what_it_predicts_behind_a_begin_token() -> None:
    tiny = settings("encoder_decoder_base", "headwise", layers=1, width=8, heads=2, feed_forward=16, vocabulary=20)
    _, task = build_encoder_decoder(tiny)
    batch = task.training_batches(0)[3]
    assert {name: value.shape for name, value in batch.items()} == dict.fromkeys(
        ("source", "target", "labels"), (8, 32)
    )
    np.testing.assert_array_equal(batch["target"][:, 0], 1)
    np.testing.assert_array_equal(batch["target"][:, 1:], batch["labels"][:, :-1])
    assert min(batch["source"].min(), batch["labels"].min()) == 3
    assert not np.array_equal(batch["source"], task.training_batches(0)[4]["source"])


@pytest.mark.slow
def test_an_encoder_decoder_of_random_pairs_trains() -> None:
    sizes = {"layers": 1, "width": 8, "heads": 2, "feed_forward": 16, "vocabulary": 20, "rows": 2, "context": 4}
    found = measure(
        settings("encoder_decoder_base", "headwise", warmup_steps=1, steps=2, **sizes), build_encoder_decoder
    )
    assert len(found["seconds"]) == 2
    assert 1 < found["loss"] < 6
    # Section 3.1 of Vaswani et al. (2017): attention once and twice, a network of two matrices a layer, norms behind.
    attention, network, norm = 4 * 8 * 8, 8 * 16 + 16 + 16 * 8 + 8, 2 * 8
    assert found["parameters"] == 20 * 8 + 3 * attention + 2 * network + 5 * norm


def test_the_loss_of_a_vocabulary_is_the_same_in_chunks_which_hold_less() -> None:
    found = vocabulary_head.measure(
        settings("vocabulary_head", "head", rows=2, length=64, width=16, vocabulary=300, at_once=2 * 8 * 300)
    )
    whole, chunks = found["losses"].values()
    assert whole == pytest.approx(chunks, rel=1e-5)
    assert found["bytes_held"]["in chunks"] < 0.6 * found["bytes_held"]["whole"]
    assert [len(times) for times in found["seconds"].values()] == [3, 3]
