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
    ("attention_memory", {"rows.*.einsum": 1000000}, FAILS),
    ("attention_memory", {"difference": 0.1}, HOLDS),
    ("best_at_lower_cost", {"published.convs2s-ensemble.en-fr.bleu": 42.0}, FAILS),
    ("block_interaction", {"maps.pre-norm block, without attention.0.1": 0.5}, FAILS),
    ("causal_masking", {"future_weight": 1e-30}, FAILS),
    ("causal_masking", {"past_logit_change": 1e-07}, FAILS),
    ("causal_masking", {"past_gradient": 0.0}, FAILS),
    ("changing_context", {"trained.changes.*.*": 0.0}, FAILS),
    ("convolution_depth", {"rows.0.plain_3": 1}, FAILS),
    ("convolution_depth", {"rows.-1.dilated_3": 32, "rows.-1.wide": 32}, HOLDS),
    ("coreference_head", {"head_accuracy": 0.85}, FAILS),
    ("coreference_head", {"rules.nearest_noun": 0.95}, FAILS),
    ("coreference_head", {"agreement.head_accuracy": 0.95}, HOLDS),
    ("cost_at_thousand", {"flops.lstm": 12000000000.0}, FAILS),
    ("cost_at_thousand", {"flops.layer": 4000000000.0, "flops.vanilla": 16000000000.0}, HOLDS),
    ("cost_crossover", {"rows.0.lstm_seconds": 0.0001, "rows.0.attention_seconds": 0.0002}, FAILS),
    ("cost_crossover", {"rows.-1.attention_seconds": 1e-06}, FAILS),
    ("cost_orders", {"rows.0.lstm": 1000000000}, FAILS),
    ("differentiable_attention", {"rows.0.norm": 0.0}, FAILS),
    ("differentiable_attention", {"rows.1.difference": 1.0}, FAILS),
    ("differentiable_attention", {"rows.*.norm": 0.1}, HOLDS),
    ("diluted_states", {"seeds.0.after.12.*": 0.95}, FAILS),
    ("diluted_states", {"seeds.*.after.3.*": 1.0}, CONDITIONAL),
    ("dot_product_growth", {"rows.*.random_deviation": 10.0}, FAILS),
    ("equal_loss_sizes", {"decoder.*.test": 0.0}, FAILS),
    ("free_alignment", {"recurrent_phrases.errors.2": 0.3}, FAILS),
    ("free_alignment", {"recurrent_hard.errors.*": 0.1, "recurrent_gnmt.errors.*": 0.1}, HOLDS),
    ("gopher_cost", {"dollars.1": 4000000.0}, FAILS),
    ("gradient_over_distance", {"by_distance.self-attention.-1": 1e-09}, FAILS),
    ("gradient_over_distance", {"by_depth.neither.-1": 1.0}, HOLDS),
    ("hard_attention", {"gradients.hard": 0.1}, FAILS),
    ("head_aspects", {"differences.*.disagreement": 0.1}, FAILS),
    ("head_aspects", {"pruning.*.losses.1": 5.0}, HOLDS),
    ("image_dependencies", {"interval": [-0.1, 0.1]}, FAILS),
    ("learned_positions", {"interval": [0.1, 0.2]}, FAILS),
    ("learned_positions", {"interval": [-0.01, 0.02]}, HOLDS),
    ("less_computation", {"published.transformer-base.*.bleu": 20.0}, FAILS),
    ("less_computation", {"published.transformer-base.*.flops": 1e20}, FAILS),
    ("local_attention", {"gradients.local-p.keys": 0.0}, FAILS),
    ("local_attention", {"flops.window of 10.-1": 1000000000.0}, FAILS),
    ("local_attention", {"gradients.local-p without its Gaussian.center": 1.0}, HOLDS),
    ("lstm_matrix_products", {"flops.LSTM": 12000000000.0}, HOLDS),
    ("need_for_positions", {"accuracies.encoder without positions.*": 0.9}, FAILS),
    ("need_for_positions", {"accuracies.causal decoder without positions.*": 0.5}, HOLDS),
    ("new_tasks_in_context", {"tasks.*.new.-1": 0.0}, FAILS),
    ("order_blindness", {"rows.0.accuracy": 0.6}, FAILS),
    ("order_blindness", {"rows.-1.accuracy": 0.8}, FAILS),
    ("parallel_positions", {"rows.0.loops": 1}, FAILS),
    ("path_lengths", {"rows.0.dilated": 4}, FAILS),
    ("path_lengths", {"rows.-1.recurrence": 1}, FAILS),
    ("permutation_equivariance", {"largest_difference.plain": 0.001}, FAILS),
    ("permutation_equivariance", {"smallest_difference.positions": 0.0, "smallest_difference.causal": 0.0}, HOLDS),
    ("pointer_vocabulary", {"rows.left to right.*.accuracy": 0.1}, FAILS),
    ("pointer_vocabulary", {"rows.random order.-1.area": 0.9}, FAILS),
    ("pre_norm_stability", {"tasks.0.interval": [0.1, 0.2]}, FAILS),
    ("pre_norm_stability", {"reversal.post.count": 3}, FAILS),
    ("pre_training", {"rows.*.interval": [0.5, 1.5]}, HOLDS),
    ("recurrent_reach", {"attention_loops": [81]}, FAILS),
    ("recurrent_reach", {"rows.0.steps": 1}, FAILS),
    ("recurrent_reach", {"rows.*.ratio": 0.5}, HOLDS),
    ("relative_positions", {"shift.relative": 0.3}, FAILS),
    ("relative_positions", {"graph.renumbered": 0.3}, FAILS),
    ("reordered_alignment", {"rows.-1.near": 0.31}, FAILS),
    ("reordered_alignment", {"rows.-1.exact": 0.2}, CONDITIONAL),
    ("scale", {"losses.-1.*": 9.0}, FAILS),
    ("self_similarity", {"curves.1.weights.-1": 0.1}, FAILS),
    ("shared_block", {"equal_parameters": False}, FAILS),
    ("shared_block", {"rows.2.block": "another.Block"}, FAILS),
    ("single_vector_bottleneck", {"accuracy.last.0": 0.95}, FAILS),
    ("single_vector_bottleneck", {"bleu.last.16_up": 32.0}, FAILS),
    ("single_vector_bottleneck", {"exact.last.21_up.*": 1.0}, FAILS),
    ("sinusoid_shifts", {"error": 1e-06}, FAILS),
    ("sinusoid_shifts", {"rotation_error": 1e-06}, FAILS),
    ("softmax_saturation", {"rows.-1.plain_largest_weight": 0.3}, FAILS),
    ("three_times_faster", {"published.transformer-base.*.flops": 1e20}, FAILS),
    ("transformer_kinds", {"reach.decoder.0.1": 1}, FAILS),
    ("turing_machine_generalization", {"copy.0.wrong_bits.*": 0.5}, FAILS),
    ("unbounded_memory", {"recall.LSTM.*": 1.0}, FAILS),
    ("visual_gaze", {"noun.0": 0.1}, FAILS),
    ("visual_gaze", {"person_over_uniform.0": 1.5}, FAILS),
    ("weights_sum_to_one", {"padded.smallest": -0.1}, FAILS),
    ("weights_sum_to_one", {"hidden.largest": 0.01}, FAILS),
    ("weights_sum_to_one", {"far_apart.zeros": 0.0, "no_key.greatest_sum": 1.0}, HOLDS),
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
