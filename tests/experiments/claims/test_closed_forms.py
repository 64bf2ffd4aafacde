"""Figures of claims that have closed forms equal them, and what is quick to measure gives what is recorded."""

import pytest

from experiments.claims.catalog import claims_by_module
from experiments.claims.claim import Figures, Measurement
from experiments.claims.evidence import read_record, record_file


def figures_of(module: str) -> Figures:
    """The recorded figures of a claim."""
    return read_record(record_file(module)).figures


def test_products_of_cells_equal_their_closed_forms() -> None:
    figures = figures_of("lstm_matrix_products")
    n, d = figures["length"], figures["width"]
    # A product with the input and one with the state, a gate.
    assert figures["flops"] == {name: gates * 4 * n * d * d for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))}


def test_bytes_of_caches_equal_their_closed_forms() -> None:
    size, lengths, layers, width = figures_of("unbounded_memory")["bytes"], (64, 256, 1024, 4096), 2, 64
    assert size["attention"] == [
        layers * 2 * (n + 1) * width * 4 for n in lengths
    ]  # keys and values in float32, the prompt's too
    assert size["LSTM"] == [layers * 2 * width * 4] * len(lengths)  # hidden state and cell


def test_flops_of_a_decoded_token_equal_their_closed_forms() -> None:
    flops, lengths = figures_of("local_attention")["flops"], (64, 256, 1024, 4096)
    half_width, width, vocabulary = 10, 64, 8
    # Four projections, two matrices of a feed-forward network that is as wide, and the output. Then two products a key,
    # of the prompt's one token and those decoded.
    matrices = 2 * (4 + 2) * width**2 + 2 * width * vocabulary
    assert flops["global"] == [matrices + 4 * (n + 1) * width for n in lengths]
    assert flops["window of 10"] == [matrices + 4 * (half_width + 1) * width] * len(lengths)


def test_reading_one_key_saves_the_weighted_sum() -> None:
    figures = figures_of("hard_attention")
    scores = 2 * figures["keys"] * figures["width"]
    assert figures["flops"] == {"soft": 2 * scores, "hard": scores}


def test_attention_computes_all_pairs_and_an_lstm_one_step_a_position() -> None:
    for row in figures_of("parallel_positions")["rows"]:
        attention = row["layer"] == "self-attention"
        assert row["products"] == (row["length"] ** 2 if attention else 0)
        assert row["steps"] == (0 if attention else row["length"])


@pytest.mark.parametrize("module", ["lstm_matrix_products", "gopher_cost"])
def test_quick_measurements_give_the_recorded_figures(module: str) -> None:
    evidence = claims_by_module()[module].evidence
    assert isinstance(evidence, Measurement)
    assert evidence.measure() == figures_of(module)
