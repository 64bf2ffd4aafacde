"""Scores: how well every query fits every key, before any normalisation."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention import positions as relative
from transformer.attention.arguments import is_array, shown
from transformer.attention.checks import check_choices, check_keys, check_queries
from transformer.attention.parameters import Additive, Concat, Cosine, General, Location, Mlp, Parameters, Score
from transformer.attention.positions import ROTARIES, Position, Rotary, TransformerXL
from transformer.attention.static import static


def scaling(kind: Score, depth: int, scale: float | None) -> float:
    """What a product of query and key is multiplied with: 1 / sqrt(D) for scaled_dot unless `scale` says another."""
    if kind is not Score.SCALED_DOT:
        return 1.0
    return 1 / math.sqrt(depth) if scale is None else scale


def product_queries(
    q_BxQxHxD: Float[Array, "B Q H D"],
    kind: Score,
    position: Position,
    params: Parameters,
    positions: Int[Array, "#B Q"],
) -> Float[Array, "B Q H D"]:
    """The vectors whose inner product with `product_keys`, times `scaling`, is the score.

    Rotated for rotary positions, of unit length times the sharpening for cosine, moved by u for Transformer-XL.
    """
    q_BxQxHxD = _rotated(q_BxQxHxD, position, params, positions)
    if kind is Score.COSINE:
        beta = params.score.sharpening if isinstance(params.score, Cosine) else 1.0
        if not isinstance(beta, (int, float)):
            beta = jnp.moveaxis(jnp.asarray(beta), 1, 2)[..., None]
        q_BxQxHxD = (_unit(q_BxQxHxD) * beta).astype(q_BxQxHxD.dtype)
    if isinstance(params.position, TransformerXL):
        q_BxQxHxD = q_BxQxHxD + params.position.content_HxD.astype(q_BxQxHxD.dtype)
    return q_BxQxHxD


def product_keys(
    k_BxKxGxC: Float[Array, "B K G C"], kind: Score, position: Position, params: Parameters
) -> Float[Array, "B K G C"]:
    """The keys' side of `product_queries`."""
    positions = jnp.arange(k_BxKxGxC.shape[1], dtype=jnp.int32)[None]
    k_BxKxGxC = _rotated(k_BxKxGxC, position, params, positions)
    return _unit(k_BxKxGxC).astype(k_BxKxGxC.dtype) if kind is Score.COSINE else k_BxKxGxC


# The scores whose prepared keys are the keys themselves, unless positions turn them.
_UNPREPARED = frozenset({Score.DOT, Score.SCALED_DOT, Score.LOCATION})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PreparedKeys:
    """Keys as one score meets them, and what they were prepared for, so that no other score takes them for its own.

    A pytree of one leaf, `keys`: [B, K, H, A] of the perceptrons' hidden units, [B, K, H, D] of general, else
    [B, K, G, D]. Caches, scans, shardings and the rows of beams carry it as they would the array. `depth` is that of a
    key before it was prepared.
    """

    # An array; where a program is described alone, a shape or a sharding.
    keys: Any
    kind: Score = static()  # noqa: RUF009
    position: Position = static()  # noqa: RUF009
    depth: int = static()


def prepare_keys(
    k_BxKxGxC: Float[Array, "B K G C"],
    kind: Score,
    position: Position = Position.NONE,
    params: Parameters | None = None,
) -> PreparedKeys:
    """All of a score that depends on the keys alone: once for a memory, outside a loop over queries.

    Errors: TypeError for a `kind` or `position` that is no member of its enum, and for parameters of another score;
    ValueError for shapes that do not fit, and for positions that the score has not.
    """
    params = Parameters() if params is None else params
    check_keys(k_BxKxGxC, kind, position, params)
    return PreparedKeys(_prepared(k_BxKxGxC, kind, position, params), kind, position, k_BxKxGxC.shape[-1])


def _prepared(k_BxKxGxC: Array, kind: Score, position: Position, params: Parameters) -> Array:
    match params.score:
        case General(weight_HxDxC):
            return jnp.einsum("bkhc,hdc->bkhd", repeat_heads(k_BxKxGxC, weight_HxDxC.shape[0]), weight_HxDxC)
        case Additive(keys_HxCxA):
            return jnp.einsum("bkhc,hca->bkha", repeat_heads(k_BxKxGxC, keys_HxCxA.shape[0]), keys_HxCxA)
        case Concat(weight_HxIxA, _) | Mlp(weight_HxIxA, _, _):
            of_keys_HxCxA = weight_HxIxA[:, : k_BxKxGxC.shape[-1]]
            return jnp.einsum("bkhc,hca->bkha", repeat_heads(k_BxKxGxC, of_keys_HxCxA.shape[0]), of_keys_HxCxA)
        case _:
            return product_keys(k_BxKxGxC, kind, position, params)


def score(
    q_BxQxHxD: Float[Array, "B Q H D"],
    prepared: PreparedKeys | Float[Array, "B K _ _"],
    kind: Score,
    position: Position = Position.NONE,
    params: Parameters | None = None,
    *,
    scale: float | None = None,
    positions: Int[Array, "#B Q"] | None = None,
    bias: Float[Array, "#B #H #Q #K"] | None = None,
) -> Float[Array, "B H Q K"]:
    """The logits of every head against keys from `prepare_keys`, in at least float32 whatever the inputs' type.

    dot: q . k (Luong et al. 2015, section 3.1). scaled_dot: q . k / sqrt(D) (Vaswani et al. 2017, equation 1).
    general: q' W k (Luong et al. 2015, section 3.1). additive: v' tanh(W1 k + W2 q) (Bahdanau et al. 2015,
    appendix A.1.2). concat: v' tanh(W [k ; q]) (Luong et al. 2015, section 3.1). mlp: v' relu(W [k ; q] + b), a
    perceptron with one hidden layer. cosine: beta q . k / (|q| |k|) (Graves et al. 2014, equations 5 and 6).
    location: row k of W q, from the query alone (Luong et al. 2015, equation 8).

    `positions` are the queries' (their indices if absent); relative positions and `bias` add to the score. dot,
    scaled_dot and location take the keys as they are, too, unless positions turn them: there is nothing to prepare.

    Errors: TypeError for a `kind` or `position` that is no member of its enum, for parameters of another score, and for
    keys that were not prepared; ValueError for keys that were prepared for another score or position, for shapes that
    do not fit, and for a scale or positions that the score has not.
    """
    params = Parameters() if params is None else params
    prepared, depth = _keys_of(prepared, kind, position)
    check_queries(q_BxQxHxD, prepared, depth, kind, position, params, scale=scale, positions=positions, bias=bias)
    if positions is None:
        positions = jnp.arange(q_BxQxHxD.shape[1], dtype=jnp.int32)[None]
    keys, heads = prepared.shape[1], q_BxQxHxD.shape[2]
    wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    match params.score:
        case Additive(_, queries_HxDxA, score_HxA):
            hidden = jnp.tanh(_outer(q_BxQxHxD, prepared, queries_HxDxA))
            logits = jnp.einsum("bhqka,ha->bhqk", hidden, score_HxA, preferred_element_type=wide)
        case Concat(weight_HxIxA, score_HxA):
            hidden = jnp.tanh(_outer(q_BxQxHxD, prepared, weight_HxIxA[:, -q_BxQxHxD.shape[-1] :]))
            logits = jnp.einsum("bhqka,ha->bhqk", hidden, score_HxA, preferred_element_type=wide)
        case Mlp(weight_HxIxA, bias_HxA, score_HxA):
            sums = _outer(q_BxQxHxD, prepared, weight_HxIxA[:, -q_BxQxHxD.shape[-1] :])
            hidden = jax.nn.relu(sums + bias_HxA[:, None, None, :].astype(sums.dtype))
            logits = jnp.einsum("bhqka,ha->bhqk", hidden, score_HxA, preferred_element_type=wide)
        case Location(weight_HxDxN):
            weight_HxDxK = weight_HxDxN[:, :, :keys]
            logits = jnp.einsum("bqhd,hdk->bhqk", q_BxQxHxD, weight_HxDxK, preferred_element_type=wide)
        case General():
            logits = grouped_products(q_BxQxHxD, prepared)
        case _:
            logits = grouped_products(product_queries(q_BxQxHxD, kind, position, params, positions), prepared)
            if position in (Position.SHAW, Position.TRANSFORMER_XL):
                logits = logits + relative.relative_logits(position, params.position, q_BxQxHxD, positions, keys)
            logits = logits * scaling(kind, q_BxQxHxD.shape[-1], scale)
    key_positions = jnp.arange(keys, dtype=jnp.int32)[None, None]
    from_positions = relative.relative_bias(position, params.position, heads, positions, key_positions, wide)
    for term in (from_positions, bias):
        if term is not None:
            logits = logits + term.astype(wide)
    return logits


def _keys_of(prepared: PreparedKeys | Array, kind: Score, position: Position) -> tuple[Array, int]:
    """The array of keys that were prepared for this very score and position, and their depth before."""
    check_choices(kind, position)
    call = f"prepare_keys(k, {kind}, {position}, params)"
    if isinstance(prepared, PreparedKeys):
        if (prepared.kind, prepared.position) != (kind, position):
            raise ValueError(
                f"prepared holds keys for {prepared.kind} and {prepared.position}, not for {kind} and {position}; "
                f"give {call}"
            )
        return prepared.keys, prepared.depth
    if not is_array(prepared):
        raise TypeError(f"prepared is {shown(prepared)}; give {call}")
    if kind not in _UNPREPARED or position in ROTARIES:
        raise TypeError(f"prepared is {shown(prepared)}, keys that are not prepared for {kind}; give {call}")
    return prepared, prepared.shape[-1] if prepared.ndim else 0


def grouped_products(q_BxQxHxD: Float[Array, "B Q H D"], k_BxKxGxD: Float[Array, "B K G D"]) -> Float[Array, "B H Q K"]:
    """Q . k in at least float32, where each of the G key heads serves H / G neighbouring query heads."""
    wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    batch, queries, heads, depth = q_BxQxHxD.shape
    keys, groups = k_BxKxGxD.shape[1:3]
    if heads == groups:
        return jnp.einsum("bqhd,bkhd->bhqk", q_BxQxHxD, k_BxKxGxD, preferred_element_type=wide)
    grouped = q_BxQxHxD.reshape(batch, queries, groups, heads // groups, depth)
    products = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, k_BxKxGxD, preferred_element_type=wide)
    return products.reshape(batch, heads, queries, keys)


def repeat_heads(x_BxKxGxD: Float[Array, "B K G D"], heads: int) -> Float[Array, "B K H D"]:
    """Each of the G heads, for the H / G query heads that it serves."""
    return jnp.repeat(x_BxKxGxD, heads // x_BxKxGxD.shape[2], axis=2)


def _rotated(x: Array, position: Position, params: Parameters, positions: Array) -> Array:
    if position not in relative.ROTARIES:
        return x
    base = params.position.base if isinstance(params.position, Rotary) else Rotary().base
    return relative.rotary(x, positions, base=base, halves=position is Position.ROTARY_HALVES)


def _unit(x: Array) -> Array:
    """X / |x| in at least float32; a vector of zeros stays zero, value and gradient."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # Any positive factor leaves x / |x| as it is; this one keeps the square of far and tiny vectors within float32.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    x = x / jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return jnp.where(square > 0, x * jax.lax.rsqrt(jnp.where(square > 0, square, 1)), 0)


def _outer(q_BxQxHxD: Array, prepared_BxKxHxA: Array, weight_HxDxA: Array) -> Array:
    """W1 k + W2 q of every query and key, [B, H, Q, K, A]."""
    of_query_BxHxQxA = jnp.einsum("bqhd,hda->bhqa", q_BxQxHxD, weight_HxDxA)
    return of_query_BxHxQxA[:, :, :, None] + jnp.moveaxis(prepared_BxKxHxA, 1, 2)[:, :, None]
