"""Capturing queries, keys and the norms of transformed values, which need the projections around attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.attention_spec import AttentionSpec
from transformer.attention.capture import Capture, CapturedAttention, QueryKeyVectors
from transformer.attention.masks import Mask, query_positions
from transformer.attention.positions import PositionScheme
from transformer.attention.scores import repeat_heads, score_class


def query_key_vectors(
    q_BxQxHxD: Float[Array, "B Q H D"],
    k_BxKxGxD: Float[Array, "B K G D"],
    spec: AttentionSpec,
    scheme: PositionScheme,
    mask: Mask,
) -> QueryKeyVectors | None:
    """The queries and keys after the position scheme, whose scaled products are the logits.

    Args:
        q_BxQxHxD: Projected queries.
        k_BxKxGxD: Projected keys.
        spec: The attention's configuration.
        scheme: The position scheme with its parameters.
        mask: The mask, for the queries' offset.

    Returns:
        The vectors, without gradient; None if the score is not a dot product.
    """
    score = score_class(spec.score)
    if not score.is_dot_product:
        return None
    q = scheme.encode_queries(q_BxQxHxD, query_positions(mask, q_BxQxHxD.shape[1]))
    k = scheme.encode_keys(k_BxKxGxD, jnp.arange(k_BxKxGxD.shape[1], dtype=jnp.int32)[None])
    adds_to_logits = scheme.adds_position_bias or type(scheme).position_logits is not PositionScheme.position_logits
    scale, is_whole_logit = (
        score().scale(scheme.num_products * q.shape[-1], spec.scale),
        not adds_to_logits and spec.temperature == 1,
    )
    q, k = jax.lax.stop_gradient((q, k))
    return QueryKeyVectors(q, k, jnp.float32(scale), jnp.bool_(is_whole_logit))


def transformed_value_norms(
    v_BxKxGxD: Float[Array, "B K G D"], output_HxDxE: Float[Array, "H D E"], scheme: PositionScheme
) -> Float[Array, "B H K"] | None:
    """Compute |v W_O| of each key and head, W_O being the head's own rows, in float32 or wider.

    Args:
        v_BxKxGxD: Values, including the bias of their projection.
        output_HxDxE: The output projection of each head; its bias belongs to no key and is left out.
        scheme: The position scheme.

    Returns:
        The norms; None if the scheme adds to the values.
    """
    if type(scheme).position_values is not PositionScheme.position_values:
        return None
    wide = jnp.promote_types(v_BxKxGxD.dtype, jnp.float32)
    values, output = jax.lax.stop_gradient((repeat_heads(v_BxKxGxD, len(output_HxDxE)), output_HxDxE))
    transformed = jnp.einsum("bkhd,hde->bhke", values.astype(wide), output.astype(wide), precision="highest")
    return jnp.linalg.norm(transformed, axis=-1)


class AttentionProjections(NamedTuple):
    """The projections of one attention layer.

    Attributes:
        q: Queries.
        k: Keys.
        v: Values, including the bias of their projection.
        output: The output projection of each head.
        spec: The attention's configuration.
        scheme: The position scheme with its parameters.
        mask: The mask.
    """

    q: Float[Array, "B Q H D"]
    k: Float[Array, "B K G D"]
    v: Float[Array, "B K G D"]
    output: Float[Array, "H D E"]
    spec: AttentionSpec
    scheme: PositionScheme
    mask: Mask


def capture_projections(
    captured: CapturedAttention, capture: Capture, projected: AttentionProjections
) -> CapturedAttention:
    """Add the requested norms and vectors to what was captured."""
    q, k, v, output, spec, scheme, mask = projected
    return captured._replace(
        value_norms=transformed_value_norms(v, output, scheme) if capture.value_norms else None,
        query_key_vectors=query_key_vectors(q, k, spec, scheme, mask) if capture.query_key_vectors else None,
    )
