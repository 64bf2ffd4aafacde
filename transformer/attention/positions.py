"""Position schemes: a class each, with its parameters and what it adds to attention."""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.component import (
    AttentionComponent,
    AttentionSizes,
    Keys,
    Logits,
    ParameterSpec,
    Queries,
    normal,
    xavier_uniform,
    zeros,
)
from transformer.attention.pytree_dataclass import array_field, pytree_dataclass, static_field
from transformer.attention.rotary import NO_SCALING, RotaryScaling, apply_rotary, sinusoids


class PositionCombination(enum.Enum):
    """How a position's vector p is combined with a token's vector x.

    Attributes:
        ADDED: x + p (Vaswani et al. 2017, section 3.5).
        CONCATENATED: [x ; p]. A linear map W follows, which makes it x + p with a linear map for each.
    """

    ADDED = "added"
    CONCATENATED = "concatenated"


def combine_positions(
    x: Float[Array, "*B E"], position: Float[Array, "*#B P"], how: PositionCombination = PositionCombination.ADDED
) -> Float[Array, "*B _"]:
    """Combine token and position vectors into one.

    After concatenation, a linear map of [x ; p] is x W_x + p W_p: the sum with a projection each.

    Args:
        x: Token vectors.
        position: Position vectors; broadcast against the tokens, with P = E for addition.
        how: Addition or concatenation.

    Returns:
        Vectors of width E for addition, E + P for concatenation.
    """
    match how:
        case PositionCombination.ADDED:
            return x + position
        case PositionCombination.CONCATENATED:
            broadcast = jnp.broadcast_to(position, (*x.shape[:-1], position.shape[-1]))
            return jnp.concatenate([x, broadcast.astype(x.dtype)], axis=-1)


def sinusoidal_positions(
    positions: Int[Array, "*shape"], width: int, *, halves: bool = False
) -> Float[Array, "*shape {width}"]:
    """Compute sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)).

    Args:
        positions: Positions p.
        width: Features of the encoding; even.
        halves: Whether to put all sines before all cosines.

    Returns:
        The encodings, in float32.

    Raises:
        ValueError: If `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width={width} is odd; sinusoidal positions pair each sine with a cosine")
    sines, cosines = sinusoids(positions, width, 10000.0, jnp.dtype(jnp.float32))
    if halves:
        return jnp.concatenate([sines, cosines], axis=-1)
    return jnp.stack([sines, cosines], axis=-1).reshape(*positions.shape, width)


def tensor2tensor_positions(positions: Int[Array, "*shape"], width: int) -> Float[Array, "*shape {width}"]:
    """Compute the encodings of the code of Vaswani et al. 2017 (tensor2tensor), which fairseq took over.

    PE(p, i) = sin(p / 10000^(i / (width / 2 - 1))) for i < width / 2, then the cosines: the wavelengths rise from 2 pi
    to 10000 times 2 pi, both included, where those of the paper end one step before.

    Args:
        positions: Positions p.
        width: Features of the encoding; even and at least 4.

    Returns:
        The encodings, in float32.

    Raises:
        ValueError: If `width` is odd or below 4.
    """
    if width % 2 or width < 4:
        raise ValueError(f"width={width} has no two frequencies of a sine and a cosine: it must be even, 4 or more")
    half = width // 2
    waves = sinusoids(positions, width, 10000.0 ** (half / (half - 1)), jnp.dtype(jnp.float32))
    return jnp.concatenate(waves, axis=-1)


class AttentionPosition(enum.Enum):
    """The position scheme inside attention; sinusoidal and learned positions are added to embeddings instead.

    Attributes:
        NONE: No position scheme.
        ROTARY: Rotations of neighboring features, as in the paper (Su et al. 2021).
        ROTARY_HALVES: Rotations of feature i with i + D/2, as in the published weights of many later models.
        ALIBI: A bias proportional to the distance (Press et al. 2022).
        T5: A learned bias for each bucket of distance (Raffel et al. 2020).
        SHAW: Embeddings of relative positions (Shaw et al. 2018).
        TRANSFORMER_XL: Projected sinusoids of relative positions (Dai et al. 2019).
        DISENTANGLED: Products of queries with positions and of positions with keys (He et al. 2021).
    """

    NONE = "none"
    ROTARY = "rotary"
    ROTARY_HALVES = "rotary_halves"
    ALIBI = "alibi"
    T5 = "t5"
    SHAW = "shaw"
    TRANSFORMER_XL = "transformer_xl"
    DISENTANGLED = "disentangled"


QueryPositions = Int[Array, "#B Q"]
KeyPositions = Int[Array, "#B #Q K"]


class PositionScheme(AttentionComponent):
    """A position scheme and its parameters; the base class adds nothing.

    Attributes:
        rotates_features: Whether it rotates pairs of features of queries and keys.
        adds_position_bias: Whether the positions alone determine what it adds to a logit, so that a blockwise program
            can add it.
        shared_by_layers: Whether all layers of a stack share its parameters.
        supports_relative_segments: Whether it can also depend on whether query and key are of one kind, such as a
            sentence.
        num_products: How many products a logit is the sum of, for whose number a scaled score divides, too.
    """

    parameters = "none"
    rotates_features = False
    adds_position_bias = False
    shared_by_layers = False
    supports_relative_segments = False
    num_products = 1

    @classmethod
    def incompatible_reason(cls, score: Any) -> str | None:
        """Say why a score (a subclass of `ScoreFunction`) cannot use this scheme; None if it can."""
        return None

    def check(self, q: Array, value_depth: int | None) -> None:
        """Check that the parameters match the queries and the values.

        Args:
            q: The queries.
            value_depth: Features of a value head; None if unknown.

        Raises:
            ValueError: If a parameter has the wrong shape.
        """

    def for_sharded_heads(self, heads: int) -> "PositionScheme":
        """The scheme for sharded heads: whatever depends on a head's index becomes an array over all heads."""
        return self

    def encode_queries(self, q_BxQxHxD: Queries, positions: QueryPositions) -> Queries:
        """Transform the queries before the product with the keys.

        Args:
            q_BxQxHxD: The queries.
            positions: Their positions.

        Returns:
            Queries of the same shape; unchanged in the base class.
        """
        return q_BxQxHxD

    def encode_keys(self, k_BxKxGxC: Keys, positions: Int[Array, "#B K"]) -> Keys:
        """Transform the keys before the product with the queries.

        Args:
            k_BxKxGxC: The keys.
            positions: Their positions.

        Returns:
            Keys of the same shape; unchanged in the base class.
        """
        return k_BxKxGxC

    def position_logits(
        self, q_BxQxHxD: Queries, k_BxKxGxC: Keys, query_positions: QueryPositions, *, consecutive: bool
    ) -> Logits | None:
        """Compute the term that is added to q . k before scaling, from both sides and their distances.

        Args:
            q_BxQxHxD: The queries, before `encode_queries`.
            k_BxKxGxC: The keys, at positions 0 ... K - 1.
            query_positions: Positions of the queries.
            consecutive: Whether the positions of a row are known to be consecutive, as those of `attend` are.

        Returns:
            The term; None for none.
        """
        return None

    def position_bias(
        self, query_positions: QueryPositions, key_positions: KeyPositions, heads: int, dtype: jnp.dtype
    ) -> Float[Array, "#B H Q K"] | None:
        """Compute the term that is added to the scaled logits, from the positions alone.

        Args:
            query_positions: Positions of the queries.
            key_positions: Positions of the keys: one row for all queries, or one for each.
            heads: Number of query heads.
            dtype: Type of the logits.

        Returns:
            The term; None for none.
        """
        return None

    def position_values(
        self, weights_BxHxQxK: Logits, query_positions: QueryPositions
    ) -> Float[Array, "B Q H Dv"] | None:
        """Compute the term that is added to the output.

        Args:
            weights_BxHxQxK: The weights that multiply the values.
            query_positions: Positions of the queries.

        Returns:
            The term; None for none.
        """
        return None


@pytree_dataclass
class Rotary(PositionScheme):
    """Rotary positions: `apply_rotary` to queries and keys.

    Attributes:
        base: Base of the frequencies base^(-2i / D).
        halves: Whether feature i is paired with i + D/2; set from the `AttentionPosition`, whatever is passed here.
        fraction: The part of a head's features that rotate, the first ones (Black et al. 2022, section 2.1.1).
        scaling: How the frequencies are scaled for contexts longer than those of pre-training.
        text_length: The positions of the whole text, where a call has only some of them; None means those of the call.

    Raises:
        ValueError: If `base` is not finite and above 0, or if `fraction` is not above 0 and at most 1.
    """

    base: float = static_field(default=10000.0)
    halves: bool = static_field(default=False)
    fraction: float = static_field(default=1.0)
    scaling: RotaryScaling = static_field(default=NO_SCALING)
    text_length: int | None = static_field(default=None)

    parameters = "optional"
    rotates_features = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0):
            raise ValueError(f"base={self.base} of the rotary frequencies must be finite and above 0")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction} of the features that rotate must be above 0 and at most 1")

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> "Rotary":
        return cls(sizes.rotary_base, fraction=sizes.rotary_fraction, scaling=sizes.rotary_scaling)

    @classmethod
    def incompatible_reason(cls, score: Any) -> str | None:
        return None if score.is_product else "turns the two sides of a product, which score={} has not"

    def encode_queries(self, q_BxQxHxD: Queries, positions: QueryPositions) -> Queries:
        return self._rotate(q_BxQxHxD, positions)

    def encode_keys(self, k_BxKxGxC: Keys, positions: Int[Array, "#B K"]) -> Keys:
        return self._rotate(k_BxKxGxC, positions)

    def _rotate(self, x_BxNxHxD: Queries, positions: Int[Array, "#B N"]) -> Queries:
        return apply_rotary(
            x_BxNxHxD,
            positions,
            base=self.base,
            halves=self.halves,
            fraction=self.fraction,
            scaling=self.scaling,
            text_length=self.text_length,
        )


@pytree_dataclass
class Alibi(PositionScheme):
    """ALiBi: adds -m_h |i - j| (Press et al. 2022, section 3).

    Attributes:
        slopes_H: The slopes m_h; None computes them from the number of heads (`alibi_slopes`).
    """

    slopes_H: Float[Array, " H"] | None = array_field("heads", default=None)

    parameters = "optional"
    adds_position_bias = True

    def check(self, q: Array, value_depth: int | None) -> None:
        if self.slopes_H is not None and self.slopes_H.shape != q.shape[2:3]:
            raise ValueError(
                f"params.position.slopes_H has shape {self.slopes_H.shape}; q {q.shape} needs {q.shape[2:3]}, its heads"
            )

    def for_sharded_heads(self, heads: int) -> "Alibi":
        return Alibi(jnp.asarray(alibi_slopes(heads), jnp.float32)) if self.slopes_H is None else self

    def position_bias(
        self, query_positions: QueryPositions, key_positions: KeyPositions, heads: int, dtype: jnp.dtype
    ) -> Float[Array, "#B H Q K"]:
        distance_BxQxK = key_positions - query_positions[:, :, None]
        slopes_H = jnp.asarray(alibi_slopes(heads) if self.slopes_H is None else self.slopes_H, dtype)
        return -slopes_H[None, :, None, None] * jnp.abs(distance_BxQxK).astype(dtype)[:, None]


@pytree_dataclass
class T5(PositionScheme):
    """T5's relative positions: adds b_h[bucket(j - i)] for each head (Raffel et al. 2020, section 2.1).

    Attributes:
        table_PxH: The bias of each of P buckets and each head.
        bidirectional: Whether later keys have buckets of their own; otherwise they count as distance 0.
        max_distance: Distances from this one on share the last bucket.
    """

    table_PxH: Float[Array, "P H"] = array_field("positions", "heads")
    bidirectional: bool = static_field(default=True)
    max_distance: int = static_field(default=128)

    parameters = "required"
    adds_position_bias = True
    shared_by_layers = True

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        shape = (sizes.relative_attention_num_buckets, sizes.heads)
        return {"table": ParameterSpec(shape, ("positions", "heads"), normal(sizes.base_width**-0.5))}

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> "T5":
        return cls(arrays[0], sizes.bidirectional_buckets, sizes.relative_attention_max_distance)

    def check(self, q: Array, value_depth: int | None) -> None:
        heads, shape, min_buckets = q.shape[2], self.table_PxH.shape, 4 if self.bidirectional else 2
        if len(shape) != 2 or shape[0] < min_buckets or shape[1] != heads:
            raise ValueError(
                f"params.position.table_PxH has shape {shape}; it needs at least {min_buckets} buckets "
                f"for {heads} heads"
            )
        exact = shape[0] // min_buckets
        if self.max_distance <= exact:
            raise ValueError(
                f"params.position.max_distance={self.max_distance} must be above {exact}, the "
                "distances that have buckets alone"
            )

    def position_bias(
        self, query_positions: QueryPositions, key_positions: KeyPositions, heads: int, dtype: jnp.dtype
    ) -> Float[Array, "#B H Q K"]:
        bucket_BxQxK = t5_bucket(
            key_positions - query_positions[:, :, None],
            buckets=self.table_PxH.shape[0],
            bidirectional=self.bidirectional,
            max_distance=self.max_distance,
        )
        return jnp.moveaxis(self.table_PxH[bucket_BxQxK], -1, 1).astype(dtype)


class _DotProductScheme(PositionScheme):
    """A scheme whose terms are products with the query, for every key of a contiguous sequence.

    The products are computed once per distance and then gathered over the keys, so that memory grows as Q K, not as Q K
    D.
    """

    parameters = "required"
    uses_key_index = True

    @classmethod
    def incompatible_reason(cls, score: Any) -> str | None:
        return None if score.is_dot_product else "is a term of the dot product, which score={} is not"


@pytree_dataclass
class Shaw(_DotProductScheme):
    """Relations q_i . (k_j + a_(r_ij)) and sum_j w_ij (v_j + b_(r_ij)) (Shaw et al. 2018, equations 3 and 4).

    The relation r_ij of query i and key j is their clipped distance, clip(j - i, -C, C), or the type of the edge
    between them in a graph (section 3.2). The heads share the embeddings.

    Attributes:
        keys_PxD: Embeddings a of the distances -C ... C, P = 2C + 1, or of P types of edges.
        values_PxD: Embeddings b of the same relations; None adds nothing to the values.
        edge_types_BxQxK: The type 0 ... P - 1 of the edge between each query and key; None for distances.
    """

    keys_PxD: Float[Array, "P D"] = array_field("positions", "head_dim")
    values_PxD: Float[Array, "P Dv"] | None = array_field("positions", "head_dim", default=None)
    edge_types_BxQxK: Int[Array, "#B Q K"] | None = array_field("batch", "queries", "keys", default=None)

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        shape, axes = (2 * sizes.relative_attention_max_distance + 1, sizes.head_dim), ("positions", "head_dim")
        return {name: ParameterSpec(shape, axes, normal(sizes.head_dim**-0.5)) for name in ("keys", "values")}

    def check(self, q: Array, value_depth: int | None) -> None:
        tables = {"keys_PxD": (self.keys_PxD, q.shape[3]), "values_PxD": (self.values_PxD, value_depth)}
        for name, (table, width) in tables.items():
            if table is None or width is None:
                continue
            odd = table.shape[0] % 2 == 1 or self.edge_types_BxQxK is not None
            if table.ndim != 2 or not odd or table.shape[1] != width:
                rows = "2 clip + 1" if self.edge_types_BxQxK is None else "types of edges"
                raise ValueError(f"params.position.{name} has shape {table.shape}; it needs ({rows}, {width})")
        if self.edge_types_BxQxK is None:
            return
        types, counts = self.edge_types_BxQxK.shape, {len(table) for table, _ in tables.values() if table is not None}
        if len(types) != 3 or types[0] not in (1, q.shape[0]) or types[1] != q.shape[1]:
            raise ValueError(
                f"params.position.edge_types_BxQxK has shape {types}; queries of shape {q.shape} need "
                f"({q.shape[0]} or 1, {q.shape[1]}, keys)"
            )
        if len(counts) > 1:
            raise ValueError(
                f"params.position.keys_PxD and values_PxD have {sorted(counts)} types of edges; give as many"
            )

    def position_logits(
        self, q_BxQxHxD: Queries, k_BxKxGxC: Keys, query_positions: QueryPositions, *, consecutive: bool
    ) -> Logits:
        keys = k_BxKxGxC.shape[1]
        keys_PxD, wide = self.keys_PxD.astype(q_BxQxHxD.dtype), jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        products_BxHxQxP = jnp.einsum("bqhd,pd->bhqp", q_BxQxHxD, keys_PxD, preferred_element_type=wide)
        if self.edge_types_BxQxK is not None:
            if self.edge_types_BxQxK.shape[2] != keys:
                raise ValueError(
                    f"params.position.edge_types_BxQxK has shape {self.edge_types_BxQxK.shape}; the last size must be "
                    f"{keys}, the number of keys"
                )
            return _gather_by_relation(products_BxHxQxP, self.edge_types_BxQxK)
        distance_BxQxK = jnp.arange(keys)[None, None] - query_positions[:, :, None]
        clip = self.keys_PxD.shape[0] // 2
        return _gather_by_relation(products_BxHxQxP, jnp.clip(distance_BxQxK, -clip, clip) + clip)

    def position_values(
        self, weights_BxHxQxK: Logits, query_positions: QueryPositions
    ) -> Float[Array, "B Q H Dv"] | None:
        """Sum the weights by relation first, so that memory grows as Q P and not as Q K D."""
        if self.values_PxD is None:
            return None
        table = self.values_PxD
        if self.edge_types_BxQxK is not None:
            one_hot_BxQxKxP = jax.nn.one_hot(self.edge_types_BxQxK, len(table), dtype=weights_BxHxQxK.dtype)
            one_hot_BxQxKxP = jnp.broadcast_to(one_hot_BxQxKxP, (len(weights_BxHxQxK), *one_hot_BxQxKxP.shape[1:]))
            by_type_BxHxQxP = jnp.einsum("bhqk,bqkp->bhqp", weights_BxHxQxK, one_hot_BxQxKxP)
            return jnp.einsum("bhqp,pd->bqhd", by_type_BxHxQxP.astype(table.dtype), table)
        clip, keys = self.values_PxD.shape[0] // 2, weights_BxHxQxK.shape[-1]
        if clip == 0:
            by_distance_BxHxQxP = jnp.sum(weights_BxHxQxK, axis=-1, keepdims=True)
        else:
            distance_Bx1xQxK = (jnp.arange(keys)[None, None] - query_positions[:, :, None])[:, None]
            inner = query_positions[:, None, :, None] + jnp.arange(-clip + 1, clip)
            index = jnp.broadcast_to(jnp.clip(inner, 0, keys - 1), (len(weights_BxHxQxK), 1, *inner.shape[2:]))
            inner_weights = jnp.take_along_axis(weights_BxHxQxK, index, axis=-1)
            before = jnp.sum(weights_BxHxQxK, axis=-1, where=distance_Bx1xQxK <= -clip, keepdims=True)
            after = jnp.sum(weights_BxHxQxK, axis=-1, where=distance_Bx1xQxK >= clip, keepdims=True)
            parts = [before, jnp.where((inner >= 0) & (inner < keys), inner_weights, 0), after]
            by_distance_BxHxQxP = jnp.concatenate(parts, axis=-1)
        return jnp.einsum("bhqp,pd->bqhd", by_distance_BxHxQxP.astype(table.dtype), table)


@pytree_dataclass
class TransformerXL(_DotProductScheme):
    """Relative positions (q_i + u) . k_j + (q_i + v) . W_kR R_(i - j) (Dai et al. 2019, section 3.3).

    Where tokens are of kinds (such as sentence A or B), (q_i + b) . s_ij is added, s_ij being the first vector of
    `segment_2xHxD` where i and j are of the same kind and the second where they differ (Yang et al. 2019, section 2.5).

    Attributes:
        weight_ExHxD: W_kR, the projection of the sinusoids R of width E.
        content_HxD: u, the content bias.
        position_HxD: v, the position bias.
        segment_2xHxD: s, the vectors of same and different kinds.
        segment_bias_HxD: b, the bias of kinds.
        differ_BxQxK: True where query and key are of different kinds.
    """

    weight_ExHxD: Float[Array, "E H D"] = array_field("embed", "heads", "head_dim")
    content_HxD: Float[Array, "H D"] = array_field("heads", "head_dim")
    position_HxD: Float[Array, "H D"] = array_field("heads", "head_dim")
    segment_2xHxD: Float[Array, "2 H D"] | None = array_field("positions", "heads", "head_dim", default=None)
    segment_bias_HxD: Float[Array, "H D"] | None = array_field("heads", "head_dim", default=None)
    differ_BxQxK: Bool[Array, "B Q K"] | None = array_field("batch", "queries", "keys", default=None)

    supports_relative_segments = True

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        width, heads, depth = sizes.width, sizes.heads, sizes.head_dim
        bias = ParameterSpec((heads, depth), ("heads", "head_dim"), zeros)
        matrix = ParameterSpec(
            (width, heads, depth), ("embed", "heads", "head_dim"), xavier_uniform(width, heads * depth)
        )
        return {"weight": matrix, "content": bias, "position": bias}

    def check(self, q: Array, value_depth: int | None) -> None:
        heads, depth = q.shape[2:]
        width = self.weight_ExHxD.shape[0]
        needed: dict[str, tuple[int, ...]] = {"weight_ExHxD": (width + width % 2, heads, depth)}
        needed |= {"content_HxD": (heads, depth), "position_HxD": (heads, depth)}
        for name, shape in needed.items():
            actual_shape = getattr(self, name).shape
            if actual_shape != shape:
                raise ValueError(
                    f"params.position.{name} has shape {actual_shape}; q {q.shape} needs {shape}, the width even"
                )

    def encode_queries(self, q_BxQxHxD: Queries, positions: QueryPositions) -> Queries:
        return q_BxQxHxD + self.content_HxD.astype(q_BxQxHxD.dtype)

    def position_logits(
        self, q_BxQxHxD: Queries, k_BxKxGxC: Keys, query_positions: QueryPositions, *, consecutive: bool
    ) -> Logits:
        batch, queries = q_BxQxHxD.shape[:2]
        keys = k_BxKxGxC.shape[1]
        dtype, wide = q_BxQxHxD.dtype, jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        if consecutive:
            # One wave for each distance i - j that occurs, the greatest first; with an offset they differ by example.
            waves_BxPxE = self._encode_distances(query_positions[:, -1:] - jnp.arange(queries + keys - 1)[None], dtype)
            projected_BxPxHxD = jnp.einsum("bpe,ehd->bphd", waves_BxPxE, self.weight_ExHxD.astype(dtype))
            projected_BxPxHxD = jnp.broadcast_to(projected_BxPxHxD, (batch, *projected_BxPxHxD.shape[1:]))
            shifted_BxQxHxD = q_BxQxHxD + self.position_HxD.astype(dtype)
            products_BxHxQxP = jnp.einsum(
                "bqhd,bphd->bhqp", shifted_BxQxHxD, projected_BxPxHxD, preferred_element_type=wide
            )
            logits_BxHxQxK = _relative_shift(products_BxHxQxP, keys)
        else:
            waves_BxQxKxE = self._encode_distances(query_positions[..., None] - jnp.arange(keys), wide)
            waves_BxQxKxE = jnp.broadcast_to(waves_BxQxKxE, (batch, *waves_BxQxKxE.shape[1:]))
            shifted_BxQxHxD = q_BxQxHxD + self.position_HxD.astype(dtype)
            projected_BxQxHxE = jnp.einsum(
                "bqhd,ehd->bqhe", shifted_BxQxHxD, self.weight_ExHxD.astype(dtype), preferred_element_type=wide
            )
            logits_BxHxQxK = jnp.einsum("bqhe,bqke->bhqk", projected_BxQxHxE, waves_BxQxKxE)
        if self.segment_2xHxD is None or self.segment_bias_HxD is None or self.differ_BxQxK is None:
            return logits_BxHxQxK
        biased_BxQxHxD, segment_2xHxD = (
            q_BxQxHxD + self.segment_bias_HxD.astype(dtype),
            self.segment_2xHxD.astype(dtype),
        )
        segment_logits_BxHxQx2 = jnp.einsum(
            "bqhd,shd->bhqs", biased_BxQxHxD, segment_2xHxD, preferred_element_type=wide
        )
        same_BxHxQx1, other_BxHxQx1 = jnp.split(segment_logits_BxHxQx2, 2, axis=-1)
        return logits_BxHxQxK + jnp.where(self.differ_BxQxK[:, None], other_BxHxQx1, same_BxHxQx1)

    def _encode_distances(self, distances: Int[Array, "*shape"], dtype: jnp.dtype) -> Float[Array, "*shape E"]:
        """All sines, then all cosines, as in the authors' code."""
        wide = jnp.promote_types(dtype, jnp.float32)
        return jnp.concatenate(sinusoids(distances, self.weight_ExHxD.shape[0], 10000.0, wide), axis=-1).astype(dtype)


@pytree_dataclass
class Disentangled(_DotProductScheme):
    """Disentangled attention q_i . k_j + q_i . r_d + k_j . s_d, scaled by 1 / sqrt(3 D) (He et al. 2021, equation 4).

    The three products are of content with content, of content with position and of position with content. The rows r
    and s are projections of the same embeddings of relative positions. The relative position d = i - j is bounded to
    -P/2 <= d < P/2 (equation 3), or put into as many buckets (`deberta_bucket`). As in the authors' code, both
    terms take the d of query and key, where the equation has that of key and query in the last.

    Attributes:
        keys_PxGxD: r, the projected keys of the P relative positions.
        queries_PxHxD: s, their projected queries.
        max_distance: The distance from which on relative positions share the last bucket; None for no buckets.
    """

    keys_PxGxD: Float[Array, "P G D"] = array_field("positions", "groups", "head_dim")
    queries_PxHxD: Float[Array, "P H D"] = array_field("positions", "heads", "head_dim")
    max_distance: int | None = static_field(default=None)

    shared_by_layers = True
    num_products = 3

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        rows = sizes.relative_attention_num_buckets or 2 * sizes.relative_attention_max_distance
        return {"table": ParameterSpec((rows, sizes.width), ("positions", "embed"), normal(0.02))}

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> "RelativeEmbeddings":
        bucketed = sizes.relative_attention_num_buckets > 0
        return RelativeEmbeddings(arrays[0], sizes.relative_attention_max_distance if bucketed else None)

    def check(self, q: Array, value_depth: int | None) -> None:
        heads, depth = q.shape[2:]
        rows, groups = self.keys_PxGxD.shape[:2]
        needed = {
            "keys_PxGxD": (rows + rows % 2, groups if heads % groups == 0 else heads, depth),
            "queries_PxHxD": (rows + rows % 2, heads, depth),
        }
        for name, shape in needed.items():
            actual_shape = getattr(self, name).shape
            if actual_shape != shape:
                raise ValueError(
                    f"params.position.{name} has shape {actual_shape}; q {q.shape} needs {shape}, the rows even"
                )
        if self.max_distance is not None and (rows % 4 or self.max_distance <= rows // 4 + 1):
            raise ValueError(
                f"params.position.max_distance={self.max_distance} must be above {rows // 4 + 1}, and the rows, "
                f"{rows}, a multiple of 4, half of which have a distance each"
            )

    def position_logits(
        self, q_BxQxHxD: Queries, k_BxKxGxC: Keys, query_positions: QueryPositions, *, consecutive: bool
    ) -> Logits:
        dtype, wide = q_BxQxHxD.dtype, jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        heads, span = q_BxQxHxD.shape[2], len(self.keys_PxGxD) // 2
        distance_BxQxK = query_positions[:, :, None] - jnp.arange(k_BxKxGxC.shape[1])
        if self.max_distance is not None:
            distance_BxQxK = deberta_bucket(distance_BxQxK, buckets=span, max_distance=self.max_distance)
        row_BxQxK = jnp.clip(distance_BxQxK, -span, span - 1) + span
        products = functools.partial(jnp.einsum, preferred_element_type=wide)
        position_keys_PxHxD = jnp.repeat(self.keys_PxGxD, heads // self.keys_PxGxD.shape[1], axis=1).astype(dtype)
        k_BxKxHxD = jnp.repeat(k_BxKxGxC, heads // k_BxKxGxC.shape[2], axis=2)
        content_to_position_BxHxQxP = products("bqhd,phd->bhqp", q_BxQxHxD, position_keys_PxHxD)
        position_to_content_BxHxKxP = products("bkhd,phd->bhkp", k_BxKxHxD, self.queries_PxHxD.astype(dtype))
        content_to_position_BxHxQxK = _gather_by_relation(content_to_position_BxHxQxP, row_BxQxK)
        position_to_content_BxHxKxQ = _gather_by_relation(position_to_content_BxHxKxP, jnp.swapaxes(row_BxQxK, 1, 2))
        return content_to_position_BxHxQxK + jnp.swapaxes(position_to_content_BxHxKxQ, 2, 3)


@pytree_dataclass
class RelativeEmbeddings(PositionScheme):
    """The embeddings of relative positions that the layers of disentangled attention share.

    Each layer projects them as it projects its queries and keys (He et al. 2021, section 3.1, with the matrices of
    content for those of position, as in their published models).

    Attributes:
        table_PxE: The embeddings, those of later keys first.
        max_distance: The distance from which on relative positions share the last bucket; None for no buckets.
    """

    table_PxE: Float[Array, "P E"] = array_field("positions", "embed")
    max_distance: int | None = static_field(default=None)

    def project(self, query: Callable[[Array], Array], key: Callable[[Array], Array], dtype: jnp.dtype) -> Disentangled:
        """The position scheme of a layer with these projections, computed in `dtype`."""
        table_PxE = self.table_PxE.astype(dtype)
        return Disentangled(key(table_PxE), query(table_PxE), self.max_distance)


SCHEMES: dict[AttentionPosition, type[PositionScheme]] = {
    AttentionPosition.NONE: PositionScheme,
    AttentionPosition.ROTARY: Rotary,
    AttentionPosition.ROTARY_HALVES: Rotary,
    AttentionPosition.ALIBI: Alibi,
    AttentionPosition.T5: T5,
    AttentionPosition.SHAW: Shaw,
    AttentionPosition.TRANSFORMER_XL: TransformerXL,
    AttentionPosition.DISENTANGLED: Disentangled,
}


def resolve_position_scheme(position: AttentionPosition, params: PositionScheme | None) -> PositionScheme:
    """The scheme with its parameters, or with defaults if `params` is None."""
    scheme = SCHEMES[position]() if params is None else params
    if isinstance(scheme, Rotary):
        return dataclasses.replace(scheme, halves=position is AttentionPosition.ROTARY_HALVES)
    return scheme


def alibi_slopes(heads: int) -> Float[np.ndarray, " H"]:
    """Compute the slope of each head: 2^(-8h / H) for h = 1 ... H (Press et al. 2022, section 3).

    If H is not a power of two: the slopes of the next lower power, then every second slope of the next higher power, as
    in the authors' code.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    between = 2.0 ** (-8.0 / (2 * power) * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([slopes, between[: heads - power]])


def t5_bucket(
    distance: Int[Array, "*shape"], *, buckets: int, bidirectional: bool, max_distance: int
) -> Int[Array, "*shape"]:
    """Compute the bucket of a distance (Raffel et al. 2020, section 2.1, and its code).

    Half of the buckets hold one distance each; the sizes of the other half grow geometrically up to `max_distance`.

    Args:
        distance: Key position minus query position.
        buckets: Number of buckets.
        bidirectional: Whether half of all buckets are for later keys; otherwise such keys count as distance 0.
        max_distance: Distances from this one on share the last bucket.

    Returns:
        Bucket indices, 0 ... buckets - 1.
    """
    offset = jnp.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = jnp.where(distance > 0, buckets, 0).astype(distance.dtype)
        magnitude = jnp.abs(distance)
    else:
        magnitude = jnp.maximum(-distance, 0)
    exact = buckets // 2
    # float32, as in the published code: the edges of the buckets are part of the published weights.
    ratio = jnp.maximum(magnitude, 1).astype(jnp.float32) / exact
    large_bucket = exact + (jnp.log(ratio) / math.log(max_distance / exact) * (buckets - exact)).astype(distance.dtype)
    return offset + jnp.where(magnitude < exact, magnitude, jnp.minimum(large_bucket, buckets - 1))


def deberta_bucket(distance: Int[Array, "*shape"], *, buckets: int, max_distance: int) -> Int[Array, "*shape"]:
    """Compute the bucket of a distance d in DeBERTa's second version (the authors' code).

    Up to m = buckets / 2 the bucket is d itself; beyond it is
    sign(d) (m + ceil(log(|d| / m) / log((max_distance - 1) / m) (m - 1))).

    Args:
        distance: Query position minus key position.
        buckets: Number of buckets of each side.
        max_distance: Distances from this one on are in buckets of which none is used.

    Returns:
        The bucket; those of distances below `max_distance` are at most `buckets` - 1 on either side.
    """
    middle = buckets // 2
    # A table in float32, as in the published code: the edges of the buckets are part of the published weights, and a
    # compiled logarithm may round otherwise. Every farther distance is beyond the last bucket, as the last row is.
    magnitude = np.arange(max_distance + 1)
    ratio = np.maximum(magnitude, middle).astype(np.float32) / np.float32(middle)
    steps = np.log(ratio) / np.log(np.float32((max_distance - 1) / middle)) * np.float32(middle - 1)
    bucket = np.where(magnitude <= middle, magnitude, np.ceil(steps) + middle).astype(np.int32)
    bucket[-1] = buckets
    return jnp.sign(distance) * jnp.asarray(bucket)[jnp.minimum(jnp.abs(distance), max_distance)]


def _relative_shift(products_BxHxQxP: Array, keys: int) -> Array:
    """Entry [b, h, q, k] is the product at place Q - 1 - q + k: each row is shifted by one place from the next.

    Flattened with one padding place per row, all rows begin at Q - 1: no gather, whose gradient is slow on CPUs.
    """
    *rows, queries, places = products_BxHxQxP.shape
    line = jnp.pad(products_BxHxQxP, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*rows, -1)
    return line[..., queries - 1 : queries - 1 + queries * places].reshape(*rows, queries, places)[..., :keys]


def _gather_by_relation(products_BxHxQxP: Array, index: Int[Array, "#B Q K"]) -> Array:
    """Entry [b, h, q, k] is the product at the index of its relation, such as a distance."""
    index = jnp.broadcast_to(index[:, None], (products_BxHxQxP.shape[0], 1, *index.shape[1:]))
    return jnp.take_along_axis(products_BxHxQxP, index, axis=-1)
