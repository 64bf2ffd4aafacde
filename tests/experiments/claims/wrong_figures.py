"""Figures that change verdicts, and by which claims do not hold.

A key is a path into the figures, with numbers for places in lists and "*" for all of a list or mapping.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.claims.claim import Verdict

FAILS, HOLDS, CONDITIONAL = Verdict.FAILS, Verdict.HOLDS, Verdict.CONDITIONAL
# The module of a claim, what replaces figures of its record, and the verdict that it then has.
WRONG_FIGURES: Sequence[tuple[str, Mapping[str, Any], Verdict]] = (
    ("attention_memory", {"rows.*.einsum": 1000}, FAILS),
    ("best_at_lower_cost", {"published.transformer-big.en-de.bleu": 20.0}, FAILS),
    ("block_interaction", {"maps.pre-norm block, without attention.0.1": 0.5}, FAILS),
    ("causal_masking", {"future_gradient": 0.1}, FAILS),
    ("changing_context", {"trained.changes.*.*": 0.0}, FAILS),
    ("convolution_depth", {"rows.-1.plain_3": 1}, FAILS),
    ("coreference_head", {"head_accuracy": 0.5}, FAILS),
    ("cost_at_thousand", {"flops.core": 12000000000.0}, FAILS),
    ("cost_crossover", {"rows.*.attention_seconds": 1000.0}, FAILS),
    ("cost_orders", {"rows.*.core": 1000}, FAILS),
    ("differentiable_attention", {"rows.*.gradient": 1.0}, FAILS),
    ("diluted_states", {"seeds.*.own_state.*": 0.0}, FAILS),
    ("dot_product_growth", {"rows.*.constant_norm": 1.0}, FAILS),
    ("equal_loss_sizes", {"decoder.*.test": 0.0}, FAILS),
    ("equal_loss_sizes", {"LSTM.*.test": 0.0}, CONDITIONAL),
    ("free_alignment", {"recurrent_phrases.errors.0": 0.4}, FAILS),
    ("gopher_cost", {"dollars.1": 4000000.0}, FAILS),
    ("gradient_over_distance", {"by_distance.self-attention.-1": 1e-09}, FAILS),
    ("gradient_over_distance", {"by_depth.neither.-1": 1.0}, HOLDS),
    ("hard_attention", {"gradients.hard": 0.1}, FAILS),
    ("image_dependencies", {"interval": [-0.1, 0.1]}, FAILS),
    ("learned_positions", {"interval": [0.1, 0.2]}, FAILS),
    ("learned_positions", {"interval": [-0.01, 0.02]}, HOLDS),
    ("less_computation", {"published.transformer-base.*.bleu": 1.0}, FAILS),
    ("local_attention", {"gradients.local-p.keys": 0.0}, FAILS),
    ("local_attention", {"flops.window of 10.-1": 1000000000.0}, FAILS),
    ("local_attention", {"gradients.local-p without its Gaussian.center": 1.0}, HOLDS),
    ("lstm_matrix_products", {"flops.LSTM": 12000000000.0}, HOLDS),
    ("need_for_positions", {"accuracies.encoder without positions.*": 0.9}, FAILS),
    ("need_for_positions", {"accuracies.causal decoder without positions.*": 0.5}, HOLDS),
    ("new_tasks_in_context", {"tasks.*.new.-1": 0.0}, FAILS),
    ("order_blindness", {"rows.*.accuracy": 0.7}, FAILS),
    ("parallel_positions", {"rows.0.loops": 1}, FAILS),
    ("path_lengths", {"rows.-1.attention": 2}, FAILS),
    ("permutation_equivariance", {"largest_difference.plain": 0.1}, FAILS),
    ("pointer_vocabulary", {"rows.left to right.*.accuracy": 0.1}, FAILS),
    ("pointer_vocabulary", {"rows.random order.-1.area": 0.9}, FAILS),
    ("pre_norm_stability", {"tasks.0.interval": [0.1, 0.2]}, FAILS),
    ("pre_norm_stability", {"reversal.post.count": 3}, FAILS),
    ("pre_training", {"rows.*.interval": [0.5, 1.5]}, HOLDS),
    ("recurrent_reach", {"rows.-1.least": 0.0}, FAILS),
    ("relative_positions", {"shift.relative": 0.3}, FAILS),
    ("relative_positions", {"graph.renumbered": 0.3}, FAILS),
    ("reordered_alignment", {"rows.*.near": 0.3}, FAILS),
    ("scale", {"losses.-1.*": 9.0}, FAILS),
    ("self_similarity", {"curves.1.weights.-1": 0.1}, FAILS),
    ("shared_block", {"equal_parameters": False}, FAILS),
    ("shared_block", {"rows.2.block": "another.Block"}, FAILS),
    ("single_vector_bottleneck", {"accuracy.last.*": 0.9}, FAILS),
    ("sinusoid_shifts", {"error": 0.1}, FAILS),
    ("softmax_saturation", {"rows.-1.plain_largest_weight": 0.3}, FAILS),
    ("three_times_faster", {"published.transformer-base.*.flops": 1e21}, FAILS),
    ("transformer_kinds", {"reach.decoder.0.1": 1}, FAILS),
    ("turing_machine_generalization", {"copy.0.wrong_bits.*": 0.5}, FAILS),
    ("unbounded_memory", {"recall.LSTM.*": 1.0}, FAILS),
    ("visual_gaze", {"noun.0": 0.1}, FAILS),
    ("weights_sum_to_one", {"softmax.least_sum": 0.9}, FAILS),
)


def replace_figures(figures: Mapping[str, Any], replacements: Mapping[str, Any]) -> Mapping[str, Any]:
    """Figures with others in their places.

    Raises:
        KeyError: If a path is none of the figures, so that nothing would be wrong.
    """
    changed = copy.deepcopy(dict(figures))
    for path, value in replacements.items():
        *parents, last = path.split(".")
        places: list[Any] = [changed]
        for name in parents:
            places = [place[index] for place in places for index in _indices(place, name)]
        for place in places:
            for index in _indices(place, last):
                place[index] = value
    return changed


def _indices(place: Any, name: str) -> list[Any]:
    """The keys or indices of a mapping or list that a part of a path names."""
    if isinstance(place, list):
        return list(range(len(place))) if name == "*" else [int(name)]
    if name != "*" and name not in place:
        raise KeyError(name)
    return list(place) if name == "*" else [name]
