"""Parameters and operations of the named sizes, counted from abstract shapes: no array is ever made."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from transformer.costs.flops import training_flops_a_token
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import TransformerConfig
from transformer.models.model import count_parameters
from transformer.models.registry import build, model_config, published_sizes

# Leaves that vectors are multiplied with or taken from; all others are norms and biases.
_MATRICES = frozenset({"kernel", "table", "weight"})


class Counted(NamedTuple):
    """What a named size has.

    `matrices`: the parameters but for norms and biases. `flops_a_token`: training's operations a token of its context
    (transformer.costs.flops).
    """

    parameters: int
    matrices: int
    flops_a_token: float


@functools.cache
def count(name: str) -> Counted:
    """The counts of a named size: of its own parameters, and of the operations of its family's training."""
    size = published_sizes()[name]
    config = model_config({"size": name, **size.counted})
    shapes = build(config, size.interface, Precision()).functional.shapes()
    matrices = sum(leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(shapes) if path[-1].key in _MATRICES)
    flops = training_flops_a_token(model_config({"size": name}), size)
    return Counted(count_parameters(shapes), matrices, flops)


def active_parameters(config: Any, sizes: Mapping[str, int]) -> int:
    """Of parameters by path those that one position meets: of a mixture's networks the chosen ones' share."""
    if not isinstance(config, TransformerConfig):
        return sum(sizes.values())
    experts = config.experts
    return sum(
        size * experts.top_k // experts.count if "/experts/networks/" in f"/{path}" else size
        for path, size in sizes.items()
    )
