"""Claims C-02 to C-24: other figures change their verdicts, and figures with closed forms equal them."""

import functools
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.claims import short_training, symbol_translation, translation_costs
from experiments.claims.catalog import claims_by_module
from experiments.claims.claim import Measurement, Verdict
from experiments.claims.evidence import load_figures
from experiments.claims.sequence_layers import convolution_layer, layers_to_connect, loop_lengths
from tests.experiments.claims.wrong_figures import replace_figures
from transformer.models.model import Variables

CLAIMS = claims_by_module()
HOLDS, CONDITIONAL, FAILS = Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.FAILS

# Of each claim: figures in place of those of its record, and the verdict that they then give.
OTHER_FIGURES: tuple[tuple[str, Mapping[str, Any], Verdict], ...] = (
    ("dot_product_growth", {"rows.*.random_deviation": 10.0}, FAILS),
    ("permutation_equivariance", {"largest_difference.plain": 1e-3}, FAILS),
    ("permutation_equivariance", {"smallest_difference.positions": 0.0, "smallest_difference.causal": 0.0}, HOLDS),
    ("order_blindness", {"rows.0.accuracy": 0.6}, FAILS),
    ("order_blindness", {"rows.-1.accuracy": 0.8}, FAILS),
    ("causal_masking", {"future_weight": 1e-30}, FAILS),
    ("causal_masking", {"past_logit_change": 1e-7}, FAILS),
    ("causal_masking", {"past_gradient": 0.0}, FAILS),
    ("sinusoid_shifts", {"error": 1e-6}, FAILS),
    ("sinusoid_shifts", {"rotation_error": 1e-6}, FAILS),
    ("cost_orders", {"rows.0.lstm": 10**9}, FAILS),
    ("cost_at_thousand", {"flops.lstm": 12e9}, FAILS),
    ("cost_at_thousand", {"flops.layer": 4e9, "flops.vanilla": 16e9}, HOLDS),
    ("cost_crossover", {"rows.0.lstm_seconds": 0.0001, "rows.0.attention_seconds": 0.0002}, FAILS),
    ("cost_crossover", {"rows.-1.attention_seconds": 1e-6}, FAILS),
    ("path_lengths", {"rows.0.dilated": 4}, FAILS),
    ("path_lengths", {"rows.-1.recurrence": 1}, FAILS),
    ("recurrent_reach", {"attention_loops": [81]}, FAILS),
    ("recurrent_reach", {"rows.0.steps": 1}, FAILS),
    ("recurrent_reach", {"rows.*.ratio": 0.5}, HOLDS),
    ("convolution_depth", {"rows.0.plain_3": 1}, FAILS),
    ("convolution_depth", {"rows.-1.dilated_3": 32, "rows.-1.wide": 32}, HOLDS),
    ("attention_memory", {"rows.*.einsum": 10**6}, FAILS),
    ("attention_memory", {"difference": 0.1}, HOLDS),
    ("single_vector_bottleneck", {"accuracy.last.0": 0.95}, FAILS),
    ("single_vector_bottleneck", {"bleu.last.16_up": 32.0}, FAILS),
    ("single_vector_bottleneck", {"exact.last.21_up.*": 1.0}, FAILS),
    ("diluted_states", {"seeds.0.after.12.*": 0.95}, FAILS),
    ("diluted_states", {"seeds.*.after.3.*": 1.0}, CONDITIONAL),
    ("free_alignment", {"recurrent_phrases.errors.2": 0.3}, FAILS),
    ("free_alignment", {"recurrent_hard.errors.*": 0.1, "recurrent_gnmt.errors.*": 0.1}, HOLDS),
    ("reordered_alignment", {"rows.-1.near": 0.31}, FAILS),
    ("reordered_alignment", {"rows.-1.exact": 0.2}, CONDITIONAL),
    ("differentiable_attention", {"rows.0.norm": 0.0}, FAILS),
    ("differentiable_attention", {"rows.1.difference": 1.0}, FAILS),
    ("differentiable_attention", {"rows.*.norm": 0.1}, HOLDS),
    ("weights_sum_to_one", {"padded.smallest": -0.1}, FAILS),
    ("weights_sum_to_one", {"hidden.largest": 0.01}, FAILS),
    ("weights_sum_to_one", {"far_apart.zeros": 0.0, "no_key.greatest_sum": 1.0}, HOLDS),
    ("head_aspects", {"differences.*.disagreement": 0.1}, FAILS),
    ("head_aspects", {"pruning.*.losses.1": 5.0}, HOLDS),
    ("coreference_head", {"head_accuracy": 0.85}, FAILS),
    ("coreference_head", {"rules.nearest_noun": 0.95}, FAILS),
    ("coreference_head", {"agreement.head_accuracy": 0.95}, HOLDS),
    ("best_at_lower_cost", {"published.convs2s-ensemble.en-fr.bleu": 42.0}, FAILS),
    ("three_times_faster", {"published.transformer-base.en-de.flops": 1e20}, CONDITIONAL),
    ("three_times_faster", {"published.transformer-base.*.flops": 1e20}, FAILS),
    ("less_computation", {"published.transformer-base.*.bleu": 20.0}, FAILS),
    ("less_computation", {"published.transformer-base.*.flops": 1e20}, FAILS),
)


@functools.cache
def figures_of(module: str) -> Any:
    return load_figures(module, CLAIMS[module])[0]


@pytest.mark.parametrize(("module", "replacements", "verdict"), OTHER_FIGURES)
def test_other_figures_change_the_verdict(module: str, replacements: Mapping[str, Any], verdict: Verdict) -> None:
    figures, judge = figures_of(module), CLAIMS[module].judge
    assert judge(figures).verdict is not verdict
    finding = judge(replace_figures(figures, replacements))
    assert (finding.verdict, bool(finding.reason)) == (verdict, True)


def test_every_claim_has_other_figures() -> None:
    assert {module for module, claim in CLAIMS.items() if 2 <= claim.number <= 24} == {row[0] for row in OTHER_FIGURES}


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
    names = ("plain_3", "plain_7", "dilated_3", "dilated_7")
    rows = figures_of("convolution_depth")["rows"]
    assert {row["length"]: tuple(row[name] for name in names) for row in rows} == depths


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


def test_models_that_train_together_are_those_that_train_alone() -> None:
    """A linear classifier of two of four features; rows with a negative label would teach the contrary."""

    def draw(key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        x = jax.random.normal(key, (32, 4))
        labels = (x[:, 0] > x[:, 1]).astype(jnp.int32)
        ignored = jnp.arange(32) % 2 == 1
        return {"x": jnp.where(ignored[:, None], -100 * x, x)}, jnp.where(ignored, -1, labels)

    model: Any = SimpleNamespace(
        init=lambda key: Variables({"weights": jax.random.normal(key, (4, 2))}, {}),
        apply=lambda variables, inputs, **_: (inputs["x"] @ variables.params["weights"], None),
    )
    train = functools.partial(short_training.train_models, model, draw, steps=60, learning_rate=0.1)
    together = train(seeds=(1, 2))
    alone = short_training.variables_of(train(seeds=(2,)), 0)
    weights = np.asarray(short_training.variables_of(together, 1).params["weights"])
    np.testing.assert_allclose(weights, alone.params["weights"], rtol=1e-5, atol=1e-6)
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
