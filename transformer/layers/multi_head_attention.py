"""Multi-head attention: four projections around attend(), over whole sequences or stepwise with a cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec
from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.importance import OutputGates, gate_input
from transformer.attention.masks import Mask
from transformer.attention.positions import (
    SCHEMES,
    AttentionPosition,
    PositionScheme,
    RelativeEmbeddings,
    Rotary,
    resolve_position_scheme,
)
from transformer.attention.projection_capture import AttentionProjections, capture_projections
from transformer.attention.requested_activations import (
    HEAD_CONTRIBUTIONS,
    HEAD_OUTPUTS,
    LOGITS,
    WEIGHTS,
    is_requested,
)
from transformer.attention.scores import score_class
from transformer.layers.attention_parameters import TrainedPositions, TrainedScore
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole
from transformer.layers.kv_cache import (
    KeysAndValues,
    attend_to_cache,
    gather_from_writers,
    slot_positions,
    slot_writers,
    write_slot,
)
from transformer.layers.linear import Linear
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.layers.transformer_config import (
    CrossAttentionKind,
    LayerRotary,
    Projections,
    QueryKeyNorm,
    TransformerConfig,
)
from transformer.logical_axes import with_logical_constraint


class SplitHeads(Module):
    """Features cut into one equal part per head, in place of a projection; it has no parameters.

    Args:
        heads: Number of heads.
        head_dim: Features of a head.
    """

    def __init__(self, heads: int, head_dim: int):
        self.heads, self.head_dim = heads, head_dim

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B H D"]:
        """Split the last axis."""
        return x.reshape(*x.shape[:-1], self.heads, self.head_dim)


class ConcatenateHeads(SplitHeads):
    """The heads side by side, Concat(head_1, ..., head_H), in place of the output projection; it has no parameters."""

    def __call__(self, x: Float[Array, "*B H D"]) -> Float[Array, "*B E"]:
        """Join the last two axes."""
        return x.reshape(*x.shape[:-2], self.heads * self.head_dim)

    def gated(self, x: Float[Array, "B N H D"], gates: OutputGates | None) -> Float[Array, "B N E"]:
        """Join the last two axes; `gates` measure the importance of the heads and of the result."""
        return self(x if gates is None or gates.is_empty else gate_input(x, x.shape, gates)[0])

    def full_matrix(self) -> Float[Array, "H D E"]:
        """The matrix of the map: the identity, cut into the rows of each head."""
        return jnp.eye(self.heads * self.head_dim).reshape(self.heads, self.head_dim, -1)


class MultiHeadAttention(Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O (Vaswani et al. 2017, section 3.2.2).

    head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i), where H / G neighboring heads share keys and values. Without
    projections all four matrices are the identity, of which each head has its part of the features.

    Queries, keys, values and the output of each head are activations (transformer.models.activations) of the scope
    "self" or "cross".

    Args:
        config: The configuration of the Transformer.
        cross: Whether it attends to another sequence, without relative positions.
        builder: Makes the parameters.
    """

    query: Linear | SplitHeads
    key: Linear | SplitHeads
    value: Linear | SplitHeads
    output: Linear | ConcatenateHeads

    def __init__(self, config: TransformerConfig, *, cross: bool, builder: ParameterBuilder):
        match config.projections:
            case Projections.LINEAR:
                model = (("embed", config.width),)
                heads = (("heads", config.heads), ("head_dim", config.resolved_head_dim))
                groups = (("groups", config.resolved_kv_heads), ("head_dim", config.resolved_head_dim))
                linear = functools.partial(Linear, model, bias=config.biases.in_query_key_value, builder=builder)
                self.query = linear(heads, role=ParameterRole.QUERY)
                self.key = linear(groups, role=ParameterRole.KEY)
                self.value = linear(groups, role=ParameterRole.VALUE)
                bias = config.biases.in_attention_output
                self.output = Linear(heads, model, bias=bias, role=ParameterRole.OUTPUT, builder=builder)
            case Projections.NONE:
                sizes = config.heads, config.resolved_head_dim
                self.query = self.key = self.value = SplitHeads(*sizes)
                self.output = ConcatenateHeads(*sizes)
        self.name = "cross" if cross else "self"
        self.query_norm = make_query_key_norm(config, config.heads, builder)
        self.key_norm = make_query_key_norm(config, config.resolved_kv_heads, builder)
        self.score = TrainedScore(
            config.score_kind, config.heads, config.resolved_head_dim, config.max_length, builder=builder
        )
        self.sinks = (
            builder.parameter(jax.nn.initializers.zeros, (config.heads,), ("heads",))
            if config.attention_sinks
            else None
        )
        position = AttentionPosition.NONE if cross else config.positions.within_attention
        self.spec = config.attention_spec(position)
        # A score or scheme that reads a key's index as its position needs a cache with every key at its own place.
        self.indexed = score_class(config.score_kind).uses_key_index or SCHEMES[position].uses_key_index
        self.mean = cross and config.cross is CrossAttentionKind.MEAN
        self.relative = TrainedPositions(SCHEMES[position], config.attention_sizes(), builder=builder)
        self.local_rotary = Rotary(config.local_rotary_base, fraction=config.rotary_fraction)

    def _sinks(self) -> Float[Array, " H"] | None:
        return None if self.sinks is None else self.sinks[...]

    def queries(self, x_BxQxE: Float[Array, "B Q E"]) -> Float[Array, "B Q H D"]:
        """Project and normalize the queries of x, without positions."""
        with jax.named_scope(self.name):
            q_BxQxHxD = self.query(x_BxQxE)
            if self.query_norm is not None:
                with jax.named_scope("query_norm"):
                    q_BxQxHxD = self.query_norm(q_BxQxHxD)
            return checkpoint_name(q_BxQxHxD, "queries")

    def keys_and_values(self, memory_BxKxE: Float[Array, "B K E"]) -> KeysAndValues:
        """Project the keys and values of a memory, and normalize the keys, without positions."""
        names = ("batch", "length", "groups", None)
        with jax.named_scope(self.name):
            k_BxKxGxD = self.key(memory_BxKxE)
            if self.key_norm is not None:
                with jax.named_scope("key_norm"):
                    k_BxKxGxD = self.key_norm(k_BxKxGxD)
            k_BxKxGxD = with_logical_constraint(k_BxKxGxD, *names)
            v_BxKxGxD = with_logical_constraint(self.value(memory_BxKxE), *names)
            return checkpoint_name(k_BxKxGxD, "keys"), checkpoint_name(v_BxKxGxD, "values")

    def read(
        self,
        x_BxQxE: Float[Array, "B Q E"],
        k_BxKxGxD: Float[Array, "B K G D"],
        v_BxKxGxD: Float[Array, "B K G D"],
        *,
        mask: Mask,
        table: PositionScheme | None = None,
        rotary: LayerRotary = LayerRotary.GLOBAL,
        text_length: int | None = None,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
        gates: OutputGates | None = None,
    ) -> tuple[Float[Array, "B Q E"], CapturedAttention | None]:
        """Attend from x to keys and values that are already projected.

        Args:
            x_BxQxE: The inputs of the queries.
            k_BxKxGxD: Projected keys.
            v_BxKxGxD: Projected values.
            mask: Which keys each query may see.
            table: The position scheme's parameters that layers share, if any.
            rotary: The layer's rotary positions.
            text_length: The positions of the whole text, where these are only some of them.
            key: Random key for dropout of weights; None means evaluation.
            capture: Which maps and statistics to capture; None captures nothing.
            gates: Gates of the heads and of the output, by which their importance is measured; None for none.

        Returns:
            The output, and what was captured.
        """
        names = ("batch", "length", "heads", None)
        q_BxQxHxD = self.queries(x_BxQxE)
        if self.mean:
            q_BxQxHxD = jnp.zeros_like(q_BxQxHxD)  # a product with zeros scores every key alike
        spec, positions = self._spec_and_positions(table, rotary, text_length, x_BxQxE.dtype)
        with jax.named_scope(self.name):
            output_BxQxHxD, attended = attend(
                with_logical_constraint(q_BxQxHxD, *names),
                k_BxKxGxD,
                v_BxKxGxD,
                spec=spec,
                mask=mask,
                params=AttentionParameters(self.score(x_BxQxE.dtype), positions, self._sinks()),
                key=key,
                train=key is not None,
                capture=capture,
            )
        output_BxQxHxD = with_logical_constraint(output_BxQxHxD, *names)
        captured = attended.captured
        if captured is not None and capture is not None and (capture.value_norms or capture.query_key_vectors):
            scheme = resolve_position_scheme(spec.position, positions)
            projected = AttentionProjections(
                q_BxQxHxD, k_BxKxGxD, v_BxKxGxD, self.output.full_matrix(), spec, scheme, mask
            )
            captured = capture_projections(captured, capture, projected)
        return self.combine_heads(output_BxQxHxD, gates), captured

    def combine_heads(
        self, output_BxQxHxD: Float[Array, "B Q H D"], gates: OutputGates | None = None
    ) -> Float[Array, "B Q E"]:
        """Compute Concat(head_1, ..., head_H) W_O; if the contribution of each head is requested, as their sum.

        Args:
            output_BxQxHxD: The output of each head.
            gates: Gates of the heads and of the output, by which their importance is measured; None for none.
        """
        with jax.named_scope(self.name):
            output_BxQxHxD = checkpoint_name(output_BxQxHxD, HEAD_OUTPUTS)
            if not is_requested(HEAD_CONTRIBUTIONS):
                return self.output.gated(output_BxQxHxD, gates)
            matrix_HxDxE = self.output.full_matrix().astype(output_BxQxHxD.dtype)
            contributions_BxQxHxE = jnp.einsum("bqhd,hde->bqhe", output_BxQxHxD, matrix_HxDxE)
            contributions_BxQxHxE = checkpoint_name(contributions_BxQxHxE, HEAD_CONTRIBUTIONS)
            bias = self.output(jnp.zeros_like(output_BxQxHxD))
            return jnp.sum(contributions_BxQxHxE, axis=2) + bias

    def __call__(
        self,
        x_BxQxE: Float[Array, "B Q E"],
        memory_BxKxE: Float[Array, "B K E"],
        *,
        mask: Mask,
        table: PositionScheme | None = None,
        rotary: LayerRotary = LayerRotary.GLOBAL,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
        gates: OutputGates | None = None,
    ) -> tuple[Float[Array, "B Q E"], CapturedAttention | None]:
        """Attend from x to a memory; self-attention if both are the same.

        Args:
            x_BxQxE: The inputs of the queries.
            memory_BxKxE: The inputs of the keys and values.
            mask: Which keys each query may see.
            table: The position scheme's parameters that layers share, if any.
            rotary: The layer's rotary positions.
            key: Random key for dropout of weights; None means evaluation.
            capture: Which maps and statistics to capture; None captures nothing.
            gates: Gates of the heads and of the output, by which their importance is measured; None for none.

        Returns:
            The output, and what was captured.
        """
        projected = self.keys_and_values(memory_BxKxE)
        return self.read(
            x_BxQxE, *projected, mask=mask, table=table, rotary=rotary, key=key, capture=capture, gates=gates
        )

    def cacheable(
        self, keys_and_values: KeysAndValues, positions_BxK: Int[Array, "#B K"], rotary: LayerRotary, text_length: int
    ) -> KeysAndValues:
        """Keys and values as the cache stores them: with rotary positions, keys are rotated once and stored so."""
        keys, values = keys_and_values
        if not SCHEMES[self.spec.position].rotates_features:
            return keys, values
        spec, positions = self._spec_and_positions(None, rotary, text_length, keys.dtype)
        return resolve_position_scheme(spec.position, positions).encode_keys(keys, positions_BxK), values

    def step(
        self,
        x_Rx1xE: Float[Array, "R 1 E"],
        caches: KeysAndValues,
        position_R: Int[Array, " R"],
        *,
        window: int,
        ancestors_RxT: Int[Array, "R T"],
        table: PositionScheme | None = None,
        rotary: LayerRotary = LayerRotary.GLOBAL,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R 1 E"], KeysAndValues, CapturedAttention | None]:
        """Attend from each row's new position to its past.

        Args:
            x_Rx1xE: The inputs at the new position.
            caches: The caches of keys and of values (transformer.layers.kv_cache).
            position_R: The new position of each row.
            window: How many positions back a query sees; 0 means all.
            ancestors_RxT: For each row and position, the row of its example that wrote it.
            table: The position scheme's parameters that layers share, if any.
            rotary: The layer's rotary positions.
            capture: Which maps to capture; their keys are the slots of the cache. None captures nothing.

        Returns:
            The output, the caches with the new key and value, and what was captured.
        """
        text_length = ancestors_RxT.shape[1]
        new = self.cacheable(self.keys_and_values(x_Rx1xE), position_R[:, None], rotary, text_length)
        # Behind the barrier a cache is one array for the read and for the next step: else each has a copy of its own.
        grown = jax.lax.optimization_barrier(
            jax.tree.map(lambda cache, entry: write_slot(cache, entry, position_R), caches, new)
        )
        cached_positions_RxK = slot_positions(position_R, grown[0].shape[3])
        writer_RxK = slot_writers(ancestors_RxT, cached_positions_RxK)
        if self.indexed:
            mask = Mask(causal=True, window=(window, 0) if window else None, query_offset=position_R)
            past = (gather_from_writers(cache, writer_RxK) for cache in grown)
            output, captured = self.read(x_Rx1xE, *past, mask=mask, table=table, rotary=rotary, capture=capture)
            return output, grown, captured
        seen_RxK = cached_positions_RxK >= 0
        if window:
            seen_RxK &= position_R[:, None] - cached_positions_RxK <= window
        spec, positions = self._spec_and_positions(table, rotary, text_length, x_Rx1xE.dtype)
        scheme = resolve_position_scheme(spec.position, positions)
        position_Rx1 = position_R[:, None]
        q_Rx1xHxD = scheme.encode_queries(self.queries(x_Rx1xE), position_Rx1)
        logits_dtype = jnp.promote_types(x_Rx1xE.dtype, jnp.float32)
        bias = scheme.position_bias(position_Rx1, cached_positions_RxK[:, None], q_Rx1xHxD.shape[2], logits_dtype)
        spec = dataclasses.replace(spec, position=AttentionPosition.NONE)
        needs_weights = capture is not None or is_requested(LOGITS) or is_requested(WEIGHTS)
        if score_class(spec.score).is_dot_product and self.sinks is None and not needs_weights:
            output = attend_to_cache(q_Rx1xHxD, grown, seen_RxK, writer_RxK, spec, bias)
            return self.combine_heads(output), grown, None
        with jax.named_scope(self.name):
            output, attended = attend(
                q_Rx1xHxD,
                *(gather_from_writers(cache, writer_RxK) for cache in grown),
                spec=spec,
                mask=Mask(allowed=seen_RxK[:, None, None]),
                bias=bias,
                params=AttentionParameters(score=self.score(x_Rx1xE.dtype), sinks_H=self._sinks()),
                capture=capture,
            )
        return self.combine_heads(output), grown, attended.captured

    def cache_length(self, length: int, window: int) -> int:
        """The slots needed by a cache for `length` positions if a query sees `window` positions back (0: all)."""
        return length if self.indexed or not window else min(window + 1, length)

    def _spec_and_positions(
        self, table: PositionScheme | None, rotary: LayerRotary, text_length: int | None, dtype: jnp.dtype
    ) -> tuple[AttentionSpec, PositionScheme | None]:
        """The attention spec of a layer, and the parameters of its position scheme."""
        match rotary:
            case LayerRotary.NONE:
                return dataclasses.replace(self.spec, position=AttentionPosition.NONE), None
            case LayerRotary.LOCAL:
                return self.spec, self.local_rotary
            case LayerRotary.GLOBAL:
                positions = self.relative(table, dtype)
                if isinstance(positions, Rotary) and positions.scaling.kind.depends_on_length:
                    positions = dataclasses.replace(positions, text_length=text_length)
                if isinstance(positions, RelativeEmbeddings):
                    positions = positions.project(self.query, self.key, dtype)
                return self.spec, positions


class NormOverHeads(Module):
    """A norm over the features of all heads together.

    Args:
        norm: The norm, of heads x head_dim features.
    """

    def __init__(self, norm: LayerNorm | RmsNorm):
        self.norm = norm

    def __call__(self, x_BxNxHxD: Float[Array, "B N H D"]) -> Float[Array, "B N H D"]:
        """Normalize the features of each position."""
        return self.norm(x_BxNxHxD.reshape(*x_BxNxHxD.shape[:-2], -1)).reshape(x_BxNxHxD.shape)


def make_query_key_norm(
    config: TransformerConfig, heads: int, builder: ParameterBuilder
) -> LayerNorm | RmsNorm | NormOverHeads | None:
    """Build the norm of queries or keys of so many heads; None if there is none."""
    match config.query_key_norm:
        case QueryKeyNorm.NONE:
            return None
        case QueryKeyNorm.HEAD:
            return config.make_norm_over(config.resolved_head_dim, builder)
        case QueryKeyNorm.WIDTH:
            return NormOverHeads(config.make_norm_over(heads * config.resolved_head_dim, builder))
