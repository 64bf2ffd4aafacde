"""Scores: how well every query fits every key, before any normalisation."""

import enum
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.attention import positions as relative
from transformer.attention.positions import Position, PositionParameters, Rotary, TransformerXL


class Score(enum.Enum):
    """A compatibility function of query and key."""

    DOT = "dot"
    SCALED_DOT = "scaled_dot"
    GENERAL = "general"
    ADDITIVE = "additive"
    CONCAT = "concat"
    MLP = "mlp"
    COSINE = "cosine"
    LOCATION = "location"


# The scores that are an inner product of a vector of the query's and one of the key's, without parameters: what
# kernels that work in blocks can compute.
PRODUCTS = frozenset({Score.DOT, Score.SCALED_DOT, Score.COSINE})


class General(NamedTuple):
    """W of q' W k, one for each head."""

    weight_HxDxC: Float[Array, "H D C"]


class Additive(NamedTuple):
    """W1, W2 and v of v' tanh(W1 k + W2 q)."""

    keys_HxCxA: Float[Array, "H C A"]
    queries_HxDxA: Float[Array, "H D A"]
    score_HxA: Float[Array, "H A"]


class Concat(NamedTuple):
    """W and v of v' tanh(W [k ; q])."""

    weight_HxIxA: Float[Array, "H I A"]
    score_HxA: Float[Array, "H A"]


class Mlp(NamedTuple):
    """W, b and v of v' relu(W [k ; q] + b)."""

    weight_HxIxA: Float[Array, "H I A"]
    bias_HxA: Float[Array, "H A"]
    score_HxA: Float[Array, "H A"]


class Cosine(NamedTuple):
    """The sharpening beta, a number or one for each query (a Turing machine emits it)."""

    sharpening: Float[Array, "#B #H #Q"] | float = 1.0


class Location(NamedTuple):
    """W of W q, a row for each key position up to the longest memory."""

    weight_HxDxN: Float[Array, "H D N"]


ScoreParameters = General | Additive | Concat | Mlp | Cosine | Location

# Which parameters a score takes; the dot products have none, and cosine has a default.
PARAMETERS: dict[Score, type] = {
    Score.GENERAL: General,
    Score.ADDITIVE: Additive,
    Score.CONCAT: Concat,
    Score.MLP: Mlp,
    Score.COSINE: Cosine,
    Score.LOCATION: Location,
}


class Parameters(NamedTuple):
    """The trained parts of an attention: of its score, and of its relative positions."""

    score: ScoreParameters | None = None
    position: PositionParameters | None = None


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


def prepare_keys(
    k_BxKxGxC: Float[Array, "B K G C"],
    kind: Score,
    position: Position = Position.NONE,
    params: Parameters | None = None,
) -> Float[Array, "B K _ _"]:
    """All of a score that depends on the keys alone: once for a memory, outside a loop over queries."""
    params = params or Parameters()
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
    prepared: Float[Array, "B K _ _"],
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

    `positions` are the queries' (their indices if absent); relative positions and `bias` add to the score.
    """
    params = params or Parameters()
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


def check_parameters(kind: Score, position: Position, params: Parameters) -> None:
    """Refuse parameters that are not the score's or the position's own.

    Errors: TypeError that says which are needed; ValueError for a sharpening that is no finite positive number.
    """
    for role, owner, needed, given in (
        ("score", kind.value, PARAMETERS.get(kind), params.score),
        ("position", position.value, relative.PARAMETERS.get(position), params.position),
    ):
        optional = needed in (Cosine, Rotary)
        if given is None and (needed is None or optional):
            continue
        if needed is None or not isinstance(given, needed):
            found = "nothing" if given is None else type(given).__name__
            wanted = "no parameters" if needed is None else f"params.{role}={needed.__name__}(...)"
            raise TypeError(f"{role}={owner} takes {wanted}; params.{role} is {found}")
    if isinstance(params.score, Cosine):
        check_positive("sharpening", params.score.sharpening)


def check_positive(name: str, value: Array | float) -> None:
    """Refuse what is no real number, finite and above 0 (of a traced array the numbers are not known).

    Errors: ValueError that names the argument and its value.
    """
    if isinstance(value, jax.core.Tracer):
        return
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "fiuV" or not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name}={value} must be finite and above 0")


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
