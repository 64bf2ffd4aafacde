"""Memory of the cache of decoding, counted from the abstract shapes of the arrays that decoding itself makes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import UserError
from transformer.models.model import Model
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import InputSpec


class CacheMemory(NamedTuple):
    """The memory of a cache of keys and values, or of the states that a model without attention carries.

    Attributes:
        batch_size: The number of texts.
        length: The number of positions of each, prompt included; of an encoder-decoder also of each source.
        dtype: The type of its numbers.
        num_bytes: The bytes of the whole cache.
        bytes_per_token: The bytes that another position of one text takes, as long as no window is full.
    """

    batch_size: int
    length: int
    dtype: str
    num_bytes: int
    bytes_per_token: int


def cache_memory(
    model: Model, family: ModelFamily, batch_size: int, length: int, inputs: Mapping[str, InputSpec]
) -> CacheMemory | None:
    """Count the memory of the cache of decoding, without making it.

    Counted are keys, values and states. Positions and other whole numbers, and parameters in another layout, are not.

    Args:
        model: The model.
        family: Its family.
        batch_size: The number of texts.
        length: The number of positions of each.
        inputs: The further inputs of the model, such as an image, as its task has them.

    Returns:
        The memory; None if the model does not decode.

    Raises:
        UserError: If the model has fewer positions.
    """
    if model.max_length is not None and length > model.max_length:
        raise UserError(f"--cache_length={length} is more than the {model.max_length} positions of this model")
    has_source = any("source" in signature.inputs for signature in family.signatures)

    def arrays(rows: int, positions: int) -> list[jax.ShapeDtypeStruct] | None:
        shapes = {name: (rows, *spec.shape[1:]) for name, spec in inputs.items()}
        batch = {name: jax.ShapeDtypeStruct(shape, inputs[name].dtype) for name, shape in shapes.items()}
        # A prompt of one token; a source is as long as its target, which begins with a token that is in no prompt.
        own = {"tokens": (rows, 1), "lengths": (rows,), "source": (rows, length)}
        batch |= {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in own.items()}

        def make(variables: Any, batch: Any) -> Any:
            module = model.functional.bind(variables.params)
            if not (hasattr(module, "init_cache") and getattr(module, "predicts_tokens", True)):
                return None
            cache, _ = module.init_cache(variables.state, batch, num_beams=1, length=positions - (not has_source))
            return cache.layers, cache.rows, cache.examples

        cache_arrays = jax.eval_shape(make, model.shapes(), batch)
        if cache_arrays is None:
            return None
        return [leaf for leaf in jax.tree.leaves(cache_arrays) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    all_arrays = arrays(batch_size, length)
    if all_arrays is None:
        return None
    first, second = (count_bytes(arrays(1, positions) or ()) for positions in (1, 2))
    dtypes = sorted({str(leaf.dtype) for leaf in all_arrays})
    return CacheMemory(batch_size, length, " and ".join(dtypes), count_bytes(all_arrays), second - first)


def count_bytes(arrays: Any) -> int:
    """Return the bytes of arrays or their shapes."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in arrays)
