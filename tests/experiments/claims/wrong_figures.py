"""Figures by which claims do not hold: for each module, what replaces figures of its record.

A key is a path into the figures, with numbers for places in lists and "*" for all of a list or mapping.
"""

import copy
from collections.abc import Mapping
from typing import Any

WRONG_FIGURES: Mapping[str, Mapping[str, Any]] = {
    "attention_memory": {"rows.*.einsum": 1000},
    "best_at_lower_cost": {"published.transformer-big.en-de.bleu": 20.0},
    "block_interaction": {"maps.pre-norm block, without attention.0.1": 0.5},
    "causal_masking": {"future_gradient": 0.1},
    "changing_context": {"trained.changes.*.*": 0.0},
    "convolution_depth": {"rows.-1.plain_3": 1},
    "coreference_head": {"head_accuracy": 0.5},
    "cost_at_thousand": {"flops.core": 12e9},
    "cost_crossover": {"rows.*.attention_seconds": 1e3},
    "cost_orders": {"rows.*.core": 1000},
    "differentiable_attention": {"rows.*.gradient": 1.0},
    "diluted_states": {"seeds.*.own_state.*": 0.0},
    "dot_product_growth": {"rows.*.constant_norm": 1.0},
    "free_alignment": {"recurrent_phrases.errors.0": 0.4},
    "gopher_cost": {"dollars.1": 4e6},
    "gradient_over_distance": {"by_distance.self-attention.-1": 1e-9},
    "hard_attention": {"gradients.hard": 0.1},
    "image_dependencies": {"interval": [-0.1, 0.1]},
    "learned_positions": {"interval": [0.1, 0.2]},
    "less_computation": {"published.transformer-base.*.bleu": 1.0},
    "local_attention": {"gradients.local-p.keys": 0.0},
    "new_tasks_in_context": {"tasks.*.new.-1": 0.0},
    "order_blindness": {"rows.*.accuracy": 0.7},
    "parallel_positions": {"rows.0.loops": 1},
    "path_lengths": {"rows.-1.attention": 2},
    "permutation_equivariance": {"largest_difference.plain": 0.1},
    "pointer_vocabulary": {"rows.left to right.*.accuracy": 0.1},
    "pre_norm_stability": {"tasks.0.interval": [0.1, 0.2]},
    "recurrent_reach": {"rows.-1.least": 0.0},
    "reordered_alignment": {"rows.*.near": 0.3},
    "scale": {"losses.-1.*": 9.0},
    "self_similarity": {"curves.1.weights.-1": 0.1},
    "shared_block": {"equal_parameters": False},
    "single_vector_bottleneck": {"accuracy.last.*": 0.9},
    "sinusoid_shifts": {"error": 0.1},
    "softmax_saturation": {"rows.-1.plain_largest_weight": 0.3},
    "three_times_faster": {"published.transformer-base.*.flops": 1e21},
    "transformer_kinds": {"reach.decoder.0.1": 1},
    "turing_machine_generalization": {"copy.0.wrong_bits.*": 0.5},
    "visual_gaze": {"noun.0": 0.1},
    "weights_sum_to_one": {"softmax.least_sum": 0.9},
}


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
