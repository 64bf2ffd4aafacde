"""What a causal model of text may see of its inputs."""

import jax.numpy as jnp

from transformer.attention.masks import Mask
from transformer.models.contract import Inputs


def mask_of(inputs: Inputs) -> Mask:
    """What the tokens may see: their past, within their segment, and no padding."""
    if "segments" in inputs:
        segments_BxT = jnp.asarray(inputs["segments"])
        lengths_B = jnp.sum(segments_BxT > 0, axis=1)
        return Mask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B, segments=(segments_BxT, segments_BxT))
    if "lengths" in inputs:
        lengths_B = jnp.asarray(inputs["lengths"])
        return Mask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B)
    return Mask(causal=True)
