"""Parameters and FLOPs of published model sizes, counted from abstract shapes without making arrays."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from transformer.costs.cache_memory import CacheMemory, cache_memory
from transformer.costs.flops import training_flops_per_token
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import TransformerConfig
from transformer.models.model import count_parameters
from transformer.models.registry import FAMILIES, build, model_config, published_sizes

# Leaves that vectors are multiplied with or taken from; all others are norms and biases.
_MATRICES = frozenset({"kernel", "table", "weight"})


class ModelSize(NamedTuple):
    """The counts of a published model size.

    Attributes:
        num_parameters: The number of parameters.
        num_matrix_parameters: The parameters without norms and biases.
        flops_per_token: Training FLOPs per token of the context (transformer.costs.flops).
    """

    num_parameters: int
    num_matrix_parameters: int
    flops_per_token: float


@functools.cache
def model_size(name: str) -> ModelSize:
    """Count the parameters and training FLOPs of a published model size."""
    size = published_sizes()[name]
    config = model_config({"size": name, **size.count_overrides})
    shapes = build(config, size.task_interface, Precision()).functional.shapes()
    matrices = sum(leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(shapes) if path[-1].key in _MATRICES)
    flops = training_flops_per_token(model_config({"size": name}), size)
    return ModelSize(count_parameters(shapes), matrices, flops)


def published_cache(name: str, batch_size: int, length: int) -> CacheMemory | None:
    """Count the memory of the cache of decoding of a published model size that computes in bfloat16.

    Args:
        name: The name of the size.
        batch_size: The number of texts.
        length: The number of positions of each.

    Returns:
        The memory; None if the model does not decode.

    Raises:
        UserError: If the model has fewer positions.
    """
    size = published_sizes()[name]
    model = build(model_config({"size": name}), size.task_interface, Precision(compute="bfloat16"))
    return cache_memory(model, FAMILIES[size.family], batch_size, length, {})


def count_active_parameters(config: Any, sizes: Mapping[str, int]) -> int:
    """Return the number of parameters that are used for a token; of experts, the selected fraction.

    Args:
        config: The model config.
        sizes: The number of scalars of each parameter, by path.

    Returns:
        The number of active parameters.
    """
    if not isinstance(config, TransformerConfig):
        return sum(sizes.values())
    experts_config = config.experts
    return sum(
        size * experts_config.top_k // experts_config.count if "/experts/networks/" in f"/{path}" else size
        for path, size in sizes.items()
    )
