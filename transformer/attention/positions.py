"""Positions: waves and rotations of the position itself, and what relative position adds to a logit."""

import dataclasses
import enum
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.attention.static import static


class Position(enum.Enum):
    """How attention itself knows positions; positions in the embeddings (sinusoidal, learned) need nothing here.

    rotary pairs neighbouring features, as its paper does; rotary_halves pairs feature i with i + D/2, as the
    published weights of many later models do.
    """

    NONE = "none"
    ROTARY = "rotary"
    ROTARY_HALVES = "rotary_halves"
    ALIBI = "alibi"
    T5 = "t5"
    SHAW = "shaw"
    TRANSFORMER_XL = "transformer_xl"


ROTARIES = frozenset({Position.ROTARY, Position.ROTARY_HALVES})
# What a backend that works in blocks can add to a block of logits from the positions alone.
BIASES = frozenset({Position.ALIBI, Position.T5})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rotary:
    """The base of the frequencies base^(-2i / D)."""

    base: float = static(10000.0)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0):
            raise ValueError(f"base={self.base} of the rotary frequencies must be finite and above 0")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Alibi:
    """The slopes of some of the heads, where a device has no more; `alibi_slopes` are those of all."""

    slopes_H: Float[Array, " H"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class T5:
    """A bias for each bucket of distance and each head; `longest`: distances from here on share the last bucket."""

    table_PxH: Float[Array, "P H"]
    bidirectional: bool = static(True)
    longest: int = static(128)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shaw:
    """Embeddings of the distances -C ... C, P = 2C + 1, for keys and, where given, for values; shared by the heads."""

    keys_PxD: Float[Array, "P D"]
    values_PxD: Float[Array, "P Dv"] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformerXL:
    """W_kR, u and v of Transformer-XL: the projection of a wave of width E, and the biases of content and position."""

    weight_ExHxD: Float[Array, "E H D"]
    content_HxD: Float[Array, "H D"]
    position_HxD: Float[Array, "H D"]


PositionParameters = Rotary | Alibi | T5 | Shaw | TransformerXL

# Which parameters a scheme takes; ALiBi has none, and rotary has a default.
PARAMETERS: dict[Position, type] = {
    Position.ROTARY: Rotary,
    Position.ROTARY_HALVES: Rotary,
    Position.T5: T5,
    Position.SHAW: Shaw,
    Position.TRANSFORMER_XL: TransformerXL,
}


class Combination(enum.Enum):
    """How a position's vector joins a token's: x + p, or [x ; p]."""

    ADD = "add"
    CONCATENATE = "concatenate"


def combine(
    x: Float[Array, "*B E"], position: Float[Array, "*#B P"], how: Combination = Combination.ADD
) -> Float[Array, "*B _"]:
    """Token and position as one vector.

    A linear map of [x ; p] is x W_x + p W_p: the sum with a projection each.
    """
    match how:
        case Combination.ADD:
            return x + position
        case Combination.CONCATENATE:
            broadcast = jnp.broadcast_to(position, (*x.shape[:-1], position.shape[-1]))
            return jnp.concatenate([x, broadcast.astype(x.dtype)], axis=-1)


def sinusoidal(positions: Int[Array, "*shape"], width: int, *, halves: bool = False) -> Float[Array, "*shape {width}"]:
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)); `halves` puts all sines
    before all cosines instead, as the authors' code does.

    Errors: ValueError when `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width={width} is odd; sinusoidal positions pair each sine with a cosine")
    sines, cosines = _waves(positions, width, 10000.0, jnp.dtype(jnp.float32))
    if halves:
        return jnp.concatenate([sines, cosines], axis=-1)
    return jnp.stack([sines, cosines], axis=-1).reshape(*positions.shape, width)


def rotary(
    x_BxNxHxD: Float[Array, "B N H D"],
    positions: Int[Array, "#B N"],
    *,
    base: float = 10000.0,
    halves: bool = False,
) -> Float[Array, "B N H D"]:
    """Each pair of features turned by its position times its frequency (Su et al. 2021, section 3.2.2, equation 15).

    (x_2i, x_2i+1) -> R(p base^(-2i / D)) (x_2i, x_2i+1); `halves` pairs (x_i, x_(i + D/2)) instead. The product of
    a turned query and a turned key depends on their positions by the difference alone.

    Errors: ValueError when the depth D is odd.
    """
    depth = x_BxNxHxD.shape[-1]
    if depth % 2:
        raise ValueError(f"head depth {depth} is odd; rotary positions turn pairs of features")
    wide = jnp.promote_types(x_BxNxHxD.dtype, jnp.float32)
    sines, cosines = (wave[:, :, None] for wave in _waves(positions, depth, base, wide))
    x = x_BxNxHxD.astype(wide)
    first, second = jnp.split(x, 2, axis=-1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = (first * cosines - second * sines, first * sines + second * cosines)
    joined = jnp.concatenate(turned, axis=-1) if halves else jnp.stack(turned, axis=-1).reshape(x.shape)
    return joined.astype(x_BxNxHxD.dtype)


def alibi_slopes(heads: int) -> Float[np.ndarray, " H"]:
    """The slope of each head: 2^(-8h / H) for h = 1 ... H (Press et al. 2022, section 3).

    Where H is no power of two: the slopes of the power below, then every second slope of the power above, as in
    the authors' code.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    between = 2.0 ** (-8.0 / (2 * power) * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([slopes, between[: heads - power]])


def t5_bucket(
    distance: Int[Array, "*shape"], *, buckets: int, bidirectional: bool, longest: int
) -> Int[Array, "*shape"]:
    """The bucket of key position - query position (Raffel et al. 2020, section 2.1, and its code).

    Half of the buckets hold one distance each, the other half grow in proportion up to `longest`, beyond which all
    share the last. `bidirectional` gives half of all buckets to keys behind the query; without it such keys count
    as distance 0.
    """
    offset = jnp.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = jnp.where(distance > 0, buckets, 0).astype(distance.dtype)
        away = jnp.abs(distance)
    else:
        away = jnp.maximum(-distance, 0)
    exact = buckets // 2
    # float32, as in the published code: the edges of the buckets are part of the published weights.
    ratio = jnp.maximum(away, 1).astype(jnp.float32) / exact
    grown = exact + (jnp.log(ratio) / math.log(longest / exact) * (buckets - exact)).astype(distance.dtype)
    return offset + jnp.where(away < exact, away, jnp.minimum(grown, buckets - 1))


def relative_bias(
    position: Position,
    params: PositionParameters | None,
    heads: int,
    query_positions: Int[Array, "#B Q"],
    key_positions: Int[Array, "#B #Q K"],
    dtype: jnp.dtype,
) -> Float[Array, "#B H Q K"] | None:
    """What the positions alone add to the logits: None for the schemes that add nothing.

    ALiBi: -m_h |i - j|. T5: the table's entry of the bucket of j - i.
    """
    distance_BxQxK = key_positions - query_positions[:, :, None]
    match position:
        case Position.ALIBI:
            slopes_H = jnp.asarray(params.slopes_H if isinstance(params, Alibi) else alibi_slopes(heads), dtype)
            return -slopes_H[:, None, None] * jnp.abs(distance_BxQxK).astype(dtype)[:, None]
        case Position.T5:
            assert isinstance(params, T5)
            bucket_BxQxK = t5_bucket(
                distance_BxQxK,
                buckets=params.table_PxH.shape[0],
                bidirectional=params.bidirectional,
                longest=params.longest,
            )
            return jnp.moveaxis(params.table_PxH[bucket_BxQxK], -1, 1).astype(dtype)
        case _:
            return None


def relative_logits(
    position: Position,
    params: PositionParameters | None,
    q_BxQxHxD: Float[Array, "B Q H D"],
    query_positions: Int[Array, "#B Q"],
    keys: int,
) -> Float[Array, "B H Q K"]:
    """What relative position adds to the product q . k before it is scaled, from the query and the distance.

    Shaw: q_i . a_(clip(j - i, -C, C)) (Shaw et al. 2018, equation 4). Transformer-XL: u . k_j is content and is
    added to the query beforehand; here (q_i + v) . W_kR R_(i - j) (Dai et al. 2019, section 3.3). The products are
    taken with each distance once and then laid out over the keys, so that memory grows as Q K, not as Q K D.
    """
    distance_BxQxK = jnp.arange(keys)[None, None] - query_positions[:, :, None]
    match params:
        case Shaw():
            clip = params.keys_PxD.shape[0] // 2
            products_BxHxQxP = jnp.einsum("bqhd,pd->bhqp", q_BxQxHxD, params.keys_PxD.astype(q_BxQxHxD.dtype))
            index_BxQxK = jnp.clip(distance_BxQxK, -clip, clip) + clip
            return _lay_out(products_BxHxQxP, index_BxQxK)
        case TransformerXL():
            # One wave for each distance i - j that occurs; with an offset the distances differ by example.
            queries = q_BxQxHxD.shape[1]
            first_Bx1 = query_positions[:, :1]
            distances_BxP = first_Bx1 + jnp.arange(-(keys - 1), queries)[None]
            dtype = q_BxQxHxD.dtype
            width = params.weight_ExHxD.shape[0]
            waves_BxPxE = _concatenated_waves(distances_BxP, width, dtype)
            projected_BxPxHxD = jnp.einsum("bpe,ehd->bphd", waves_BxPxE, params.weight_ExHxD.astype(dtype))
            shifted_BxQxHxD = q_BxQxHxD + params.position_HxD.astype(dtype)
            projected_BxPxHxD = jnp.broadcast_to(projected_BxPxHxD, (q_BxQxHxD.shape[0], *projected_BxPxHxD.shape[1:]))
            products_BxHxQxP = jnp.einsum("bqhd,bphd->bhqp", shifted_BxQxHxD, projected_BxPxHxD)
            index_BxQxK = -distance_BxQxK - first_Bx1[:, :, None] + keys - 1
            return _lay_out(products_BxHxQxP, index_BxQxK)
        case _:
            raise TypeError(f"position={position.value} adds no logits that depend on the query")


def relative_values(
    params: Shaw, weights_BxHxQxK: Float[Array, "B H Q K"], query_positions: Int[Array, "#B Q"]
) -> Float[Array, "B Q H Dv"]:
    """What relative position adds to the output: sum_j w_ij a_(clip(j - i, -C, C)) (Shaw et al. 2018, equation 3).

    The weights are gathered by distance first, so that memory grows as Q P and not as Q K D.
    """
    assert params.values_PxD is not None
    clip = params.values_PxD.shape[0] // 2
    keys = weights_BxHxQxK.shape[-1]
    distance_Bx1xQxK = (jnp.arange(keys)[None, None] - query_positions[:, :, None])[:, None]
    parts = []
    if clip:
        inner = query_positions[:, None, :, None] + jnp.arange(-clip + 1, clip)
        picked = jnp.take_along_axis(
            weights_BxHxQxK,
            jnp.broadcast_to(jnp.clip(inner, 0, keys - 1), (*weights_BxHxQxK.shape[:1], 1, *inner.shape[2:])),
            axis=-1,
        )
        before = jnp.sum(weights_BxHxQxK, axis=-1, where=distance_Bx1xQxK <= -clip, keepdims=True)
        behind = jnp.sum(weights_BxHxQxK, axis=-1, where=distance_Bx1xQxK >= clip, keepdims=True)
        parts = [before, jnp.where((inner >= 0) & (inner < keys), picked, 0), behind]
        by_distance_BxHxQxP = jnp.concatenate(parts, axis=-1)
    else:
        by_distance_BxHxQxP = jnp.sum(weights_BxHxQxK, axis=-1, keepdims=True)
    table = params.values_PxD
    return jnp.einsum("bhqp,pd->bqhd", by_distance_BxHxQxP.astype(table.dtype), table)


def _waves(positions: Int[Array, "*shape"], width: int, base: float, dtype: jnp.dtype) -> tuple[Array, Array]:
    # Frequencies in float64 on the host: float32 powers would shift the slowest waves.
    frequencies = np.power(base, -np.arange(0, width, 2) / width)
    angles = positions[..., None].astype(dtype) * jnp.asarray(frequencies, dtype)
    return jnp.sin(angles), jnp.cos(angles)


def _concatenated_waves(positions: Int[Array, "*shape"], width: int, dtype: jnp.dtype) -> Array:
    """Transformer-XL's wave: all sines, then all cosines, as in the authors' code."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return jnp.concatenate(_waves(positions, width, 10000.0, wide), axis=-1).astype(dtype)


def _lay_out(products_BxHxQxP: Array, index: Int[Array, "#B Q K"]) -> Array:
    """Entry [b, h, q, k] is the product of its distance."""
    index = jnp.broadcast_to(index[:, None], (products_BxHxQxP.shape[0], 1, *index.shape[1:]))
    return jnp.take_along_axis(products_BxHxQxP, index, axis=-1)
