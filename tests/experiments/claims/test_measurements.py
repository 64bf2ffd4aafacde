"""What claims measure: figures with closed forms equal them, and what they compute with does as it says."""

import functools
import json
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.claims import symbol_translation, translation_costs
from experiments.claims.catalog import claims_by_module
from experiments.claims.claim import Measurement
from experiments.claims.evidence import read_recorded_figures
from experiments.claims.sequence_layers import convolution_layer, layers_to_connect, loop_lengths
from experiments.claims.training import train_models
from transformer.models.model import Variables

CLAIMS = claims_by_module()


@functools.cache
def figures_of(module: str) -> Any:
    return read_recorded_figures(module, CLAIMS[module])[0]


def remeasured(module: str) -> Any:
    evidence = CLAIMS[module].evidence
    assert isinstance(evidence, Measurement)
    return json.loads(json.dumps(evidence.measure()))


def test_operations_are_those_of_the_equations() -> None:
    for row in figures_of("cost_orders")["rows"]:
        n, d = row["length"], row["width"]
        core, products = 4 * n * n * d, 4 * n * d * d
        expected = {"core": core, "layer": core + 2 * products, "vanilla": products, "lstm": 4 * products}
        assert {name: row[name] for name in expected} == expected
    thousand = {"core": 4, "layer": 12, "vanilla": 4, "gru": 12, "lstm": 16, "convolution": 6}
    assert remeasured("cost_at_thousand") == figures_of("cost_at_thousand")
    assert figures_of("cost_at_thousand")["flops"] == {name: count * 10**9 for name, count in thousand.items()}


def test_dot_products_of_constant_vectors_are_exact() -> None:
    figures = remeasured("dot_product_growth")
    for row, recorded in zip(figures["rows"], figures_of("dot_product_growth")["rows"], strict=True):
        assert row["constant_norm"] == 0.5 * math.sqrt(row["width"])
        assert row["constant_product"] == row["width"]
        # 5,000 draws: the standard error of a standard deviation is a hundredth of it.
        assert row["random_deviation"] == pytest.approx(math.sqrt(row["width"]), rel=0.05)
        assert row == pytest.approx(recorded)


def test_sinusoids_have_their_norm_and_products() -> None:
    figures = figures_of("sinusoid_shifts")
    assert figures["norm_squared"] == pytest.approx([figures["width"] / 2] * 2)
    frequencies = [10000 ** (-index / figures["width"]) for index in range(0, figures["width"], 2)]
    first_row = [max(sum(math.cos(distance * frequency) for frequency in frequencies), 0) for distance in range(40)]
    np.testing.assert_allclose(figures["products"][0], first_row, atol=1e-3)
    assert figures["error"] < 1e-12
    assert figures["least_distance"] == pytest.approx(1.95, abs=0.01)


def test_paths_have_the_lengths_of_the_table() -> None:
    expected = {9: (1, 4, 4, 2, 9), 27: (1, 13, 13, 3, 27), 81: (1, 40, 40, 4, 81)}
    names = ("attention", "window", "convolution", "dilated", "recurrence")
    rows = figures_of("path_lengths")["rows"]
    assert {row["length"]: tuple(row[name] for name in names) for row in rows} == expected
    assert {row["recurrent_layers"] for row in rows} == {1}
    depths = {8: (4, 2, 2, 2), 16: (8, 3, 3, 2), 32: (16, 6, 4, 2), 64: (32, 11, 4, 3)}
    depth_names = ("plain_3", "plain_7", "dilated_3", "dilated_7")
    rows = figures_of("convolution_depth")["rows"]
    assert {row["length"]: tuple(row[name] for name in depth_names) for row in rows} == depths


def test_the_whole_map_is_in_memory_or_is_not() -> None:
    for row in figures_of("attention_memory")["rows"]:
        assert row["einsum"] >= 4 * row["length"] ** 2  # bytes of one map in float32
    assert figures_of("attention_memory")["rows"][-1]["blockwise"] < 4 * row["length"] ** 2 / 10


def test_recurrence_has_a_step_for_every_input() -> None:
    assert all(row["steps"] == row["length"] for row in figures_of("recurrent_reach")["rows"])


def test_figures_of_records_are_those_of_their_pages() -> None:
    alignment = figures_of("free_alignment")
    assert [round(error, 3) for error in alignment["recurrent_phrases"]["errors"]] == [0.060, 0.077, 0.098]
    assert [round(error, 3) for error in alignment["demo"]["errors"]] == [0.143]
    bottleneck = figures_of("single_vector_bottleneck")
    assert [round(value, 4) for value in bottleneck["accuracy"]["last"]] == [0.5600, 0.5807, 0.5677]
    assert [round(bottleneck["bleu"][context]["all"], 2) for context in ("attention", "last")] == [35.63, 23.92]
    own = figures_of("best_at_lower_cost")["own"]
    assert {name: (round(run["bleu"], 2), f"{run['flops'][-1]:.2e}") for name, run in own.items()} == {
        "transformer": (34.72, "8.35e+13"),
        "recurrent": (35.63, "1.47e+14"),
        "convs2s": (38.09, "1.33e+14"),
    }


def test_ratios_of_the_published_table() -> None:
    base = translation_costs.single_systems(figures_of("three_times_faster"), "en-de")
    assert {name: round(row["flops"] / 3.3e18, 1) for name, row in base.items()} == {
        "gnmt-rl": 7.0,
        "convs2s": 2.9,
        "moe": 6.1,
    }


@pytest.mark.parametrize(("loss", "flops"), [(5.0, 10.0), (3.0, 15.0), (2.0, 20.0), (1.5, 30.0), (0.5, None)])
def test_operations_until_a_loss_are_interpolated(loss: float, flops: float | None) -> None:
    run = {"loss": [4.0, 2.0, 1.0], "flops": [10.0, 20.0, 40.0]}
    assert translation_costs.flops_to_loss(run, loss) == flops


def test_layers_that_do_not_connect_are_refused() -> None:
    with pytest.raises(ValueError, match="length=9: no stack"):
        layers_to_connect([convolution_layer(2, 3)] * 3, 9, 2)


def test_loops_within_loops_are_found() -> None:
    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        inner, _ = jax.lax.scan(lambda total, y: (total + y, None), carry, jnp.full(3, x))
        return inner, inner

    jaxpr = jax.make_jaxpr(jax.jit(lambda x: jax.lax.scan(body, jnp.float32(0), x)))(jnp.ones(7))
    assert sorted(loop_lengths(jaxpr.jaxpr)) == [3, 7]


def test_models_of_several_seeds_learn_from_the_rows_that_count() -> None:
    """A linear classifier of two of four features; rows with a negative label would teach the contrary."""

    def draw(key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        x = jax.random.normal(key, (32, 4))
        ignored = jnp.arange(32) % 2 == 1
        labels = (x[:, 0] > x[:, 1]).astype(jnp.int32)
        return {"x": jnp.where(ignored[:, None], -100 * x, x)}, jnp.where(ignored, -1, labels)

    model: Any = SimpleNamespace(
        init=lambda key: Variables({"weights": jax.random.normal(key, (4, 2))}, {}),
        apply=lambda variables, inputs, **_: (inputs["x"] @ variables.params["weights"], None),
    )
    trained = train_models(model, draw, steps=60, learning_rate=0.1, seeds=(1, 2))
    first, second = (np.asarray(variables.params["weights"]) for variables in trained)
    assert not np.allclose(first, second)
    for weights in (first, second):
        margin = weights[:, 1] - weights[:, 0]
        assert margin[0] > 1
        assert margin[1] < -1


def test_weight_near_the_right_words() -> None:
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    assert symbol_translation.mass_near(weights, (0, 2), 0) == pytest.approx((0.5 + 0.8) / 2)
    assert symbol_translation.mass_near(weights, (0, 2), 1) == pytest.approx((0.8 + 0.9) / 2)


def test_translations_follow_their_orders() -> None:
    inputs, labels = symbol_translation.draw_batch(jax.random.key(0), 64)
    orders = list(symbol_translation.ORDERS.values())
    for source, target, read in zip(*map(np.asarray, (inputs["source"], labels, inputs["target"])), strict=True):
        order = orders[source[0] - symbol_translation.FIRST_ORDER]
        assert [source[1 + place] for place in order] == target.tolist()
        assert read.tolist() == [symbol_translation.BEGIN, *target[:-1]]
    assert len({int(source[0]) for source in np.asarray(inputs["source"])}) == len(orders)


def test_products_of_cells_equal_their_closed_forms() -> None:
    figures = figures_of("lstm_matrix_products")
    n, d = figures["length"], figures["width"]
    # A product with the input and one with the state, a gate.
    assert figures["flops"] == {name: gates * 4 * n * d * d for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))}


def test_bytes_of_caches_equal_their_closed_forms() -> None:
    size, lengths, layers, width = figures_of("unbounded_memory")["bytes"], (64, 256, 1024, 4096), 2, 64
    # Keys and values in float32, those of the prompt too.
    assert size["attention"] == [layers * 2 * (n + 1) * width * 4 for n in lengths]
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
    assert remeasured(module) == figures_of(module)
