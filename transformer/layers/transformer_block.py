"""The Transformer block, and stacks of blocks: over whole sequences, to prefill caches, and one position at a time."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention, add_importance
from transformer.attention.importance import ImportanceGates, OutputGates
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionScheme
from transformer.attention.requested_activations import HEAD_OUTPUTS
from transformer.layers.beam_rows import beam_queries_to_rows, flatten_beam_axis, unflatten_beam_axis
from transformer.layers.feed_forward import FeedForward
from transformer.layers.functional_module import (
    Module,
    ParameterBuilder,
    Params,
    bind_layer,
    group_layers,
    index_leading_axis,
    unstack_layers,
)
from transformer.layers.kv_cache import KeysAndValues, fill_cache
from transformer.layers.mixture_of_experts import ExpertBalance, ExpertUse, MixtureOfExperts
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.layers.residual import (
    BlockInput,
    DropRates,
    LayerScale,
    NormPlacement,
    Residual,
    SublayerGates,
    SublayerKeys,
    split_sublayer_keys,
)
from transformer.layers.transformer_config import LayerKind, Remat, TransformerConfig
from transformer.logical_axes import with_logical_constraint

# Where the vectors between layers lie.
BLOCK_AXES = ("batch", "length", None)


class BlockCapture(NamedTuple):
    """Which maps to capture of each kind of sub-layer; None captures nothing.

    Attributes:
        attention: Of self-attention.
        cross: Of cross-attention.
        expert_gates: Of the experts' gates.
    """

    attention: Capture | None = None
    cross: Capture | None = None
    expert_gates: Capture | None = None


NO_CAPTURE = BlockCapture()


class BlockGates(NamedTuple):
    """The gates by which the importance of heads and branches is measured; None for none.

    Attributes:
        attention: Of self-attention, and of the feed-forward network.
        cross: Of cross-attention.
    """

    attention: ImportanceGates | None = None
    cross: ImportanceGates | None = None


NO_GATES = BlockGates()


class BlockAux(NamedTuple):
    """The auxiliary results of a block.

    Attributes:
        attention: What self-attention captured.
        cross: What cross-attention captured.
        expert_gates: What was captured of the experts' gates.
        expert_balance: How evenly the experts are used; None without experts.
    """

    attention: CapturedAttention | None
    cross: CapturedAttention | None
    expert_gates: CapturedAttention | None
    expert_balance: ExpertBalance | ExpertUse | None


class PerLayerInputs(NamedTuple):
    """The inputs of a layer that differ between layers.

    Attributes:
        kind: The layer's window and rotary positions.
        drop_rates: Dropout rates.
        key: Random key; None means evaluation.
        segment_memory: The states that the layer stored of earlier segments; None for none.
        is_first: Whether it is the first layer, where the norm placement asks for it.
        gates: The gates of its heads and branches, a `BlockGates` unless `apply` of `scan_blocks` reads another type.
    """

    kind: LayerKind
    drop_rates: DropRates
    key: Key[Array, ""] | None
    segment_memory: Float[Array, "B M E"] | None = None
    is_first: Bool[Array, ""] | bool = False
    gates: Any = NO_GATES


class GatesOfSublayers(NamedTuple):
    """The gates of a block's sub-layers."""

    attention: SublayerGates = SublayerGates()
    cross: SublayerGates = SublayerGates()
    feed_forward: SublayerGates = SublayerGates()


class BlockKeys(NamedTuple):
    """The random keys of a block's sub-layers."""

    attention: SublayerKeys
    cross: SublayerKeys
    feed_forward: SublayerKeys


class EncoderMemory(NamedTuple):
    """What a decoder's blocks attend to besides their own sequence.

    Attributes:
        content: An encoder's output [B, K, E], or in decoding its projected keys and values.
        mask: The mask of attention over it.
    """

    content: Any
    mask: Mask


class Block(Module):
    """A Transformer block: self-attention, optional cross-attention, and a feed-forward network or experts.

    Each sub-layer F with its residual connection is x = write(x, F(read(x))), as transformer.layers.residual says.

    Args:
        config: The configuration of the Transformer.
        cross: Whether there is cross-attention to a memory.
        experts: Whether a mixture of experts replaces the feed-forward network.
        alpha: DeepNorm's factor of the residual stream.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        cross: bool,
        experts: bool,
        alpha: float,
        builder: ParameterBuilder,
    ):
        norm = functools.partial(config.make_norm, builder)

        def make_residual(name: str, make_norm: Callable[[], LayerNorm | RmsNorm] | None) -> Residual:
            layer_scale = (
                None if config.layer_scale is None else LayerScale(config.width, config.layer_scale, builder=builder)
            )
            return Residual(name, config.norm_placement, make_norm, alpha, config.residual_multiplier, layer_scale)

        def make_later_residual(name: str) -> Residual:
            shares_first_norm = config.norm_placement is NormPlacement.PARALLEL
            return make_residual(name, None if shares_first_norm else norm)

        self.attention = MultiHeadAttention(config, cross=False, builder=builder)
        self.attention_residual = make_residual("self", norm)
        self.cross = MultiHeadAttention(config, cross=True, builder=builder) if cross else None
        self.cross_residual = make_later_residual("cross") if cross else None

        def make_feed_forward(builder: ParameterBuilder, hidden: int = config.feed_forward) -> FeedForward:
            bias = config.biases.in_feed_forward
            return FeedForward(config.width, hidden, activation=config.activation, bias=bias, builder=builder)

        def make_experts() -> MixtureOfExperts:
            hidden = config.experts.shared_feed_forward
            make_shared = functools.partial(make_feed_forward, hidden=hidden) if hidden else None
            return MixtureOfExperts(
                config.experts, config.width, make_feed_forward, make_shared=make_shared, builder=builder
            )

        self.feed_forward = None if experts else make_feed_forward(builder)
        self.experts = make_experts() if experts else None
        self.feed_forward_residual = make_later_residual("feed_forward")

    @property
    def blocks(self) -> tuple["Block", ...]:
        """The blocks in this entry of a stack: only itself."""
        return (self,)

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        layer: PerLayerInputs,
        *,
        mask: Mask,
        relative_positions: PositionScheme | None = None,
        memory: EncoderMemory | None = None,
        capture: BlockCapture = NO_CAPTURE,
    ) -> tuple[Float[Array, "B T E"], BlockAux]:
        """Run the block over whole sequences.

        Args:
            x_BxTxE: The residual stream.
            layer: The layer's window, dropout, key and gates.
            mask: Which keys each query may see, before the layer's window.
            relative_positions: The position scheme's parameters that layers share, if any.
            memory: The memory of cross-attention; None if there is none.
            capture: Which maps to capture.

        Returns:
            The new residual stream, and what the sub-layers captured.
        """
        keys, rates, gates = self.split_key(layer.key), layer.drop_rates, self.split_gates(layer.gates, capture)
        x = block_input(x_BxTxE)

        read = self.attention_residual.read(x)
        first = BlockInput(x, read)
        x = self.attention_residual.stream(x, read, layer.is_first)
        y, attention = self.attention(
            read,
            read,
            mask=add_window(mask, layer.kind.window),
            table=relative_positions,
            rotary=layer.kind.rotary,
            key=keys.attention.inside,
            capture=capture.attention,
            gates=gates.attention.inside,
        )
        attention = add_importance(attention, layer.gates.attention, capture.attention, len(x))
        x = self.attention_residual.write(x, y, rates, keys.attention.output, gates.attention.output)

        cross = None
        if self.cross is not None and self.cross_residual is not None:
            assert memory is not None
            y, cross = self.cross(
                self.cross_residual.read(x, first),
                memory.content,
                mask=memory.mask,
                key=keys.cross.inside,
                capture=capture.cross,
                gates=gates.cross.inside,
            )
            cross = add_importance(cross, layer.gates.cross, capture.cross, len(x))
            x = self.cross_residual.write(x, y, rates, keys.cross.output, gates.cross.output)

        y, expert_gates, balance = self.feed_forward_or_experts(
            self.feed_forward_residual.read(x, first),
            mask.query_lengths,
            keys.feed_forward.inside,
            capture.expert_gates,
            gates.feed_forward.inside,
        )
        x = self.feed_forward_residual.write(x, y, rates, keys.feed_forward.output, gates.feed_forward.output)
        return with_logical_constraint(x, *BLOCK_AXES), BlockAux(attention, cross, expert_gates, balance)

    def prefill(
        self,
        x_BxPxE: Float[Array, "B P E"],
        layer: PerLayerInputs,
        *,
        mask: Mask,
        last_B: Int[Array, " B"],
        length: int,
        relative_positions: PositionScheme | None = None,
    ) -> tuple[Float[Array, "B P E"], KeysAndValues]:
        """Run the block over prompts and fill its caches.

        Args:
            x_BxPxE: The residual stream of the prompts.
            layer: The layer's window, dropout and key.
            mask: Which keys each query may see, before the layer's window.
            last_B: The last real position of each prompt.
            length: The greatest number of positions that will be decoded, the prompt included.
            relative_positions: The position scheme's parameters that layers share, if any.

        Returns:
            The new residual stream, and the caches of keys and values up to each prompt's last position.
        """
        keys, rates = self.split_key(layer.key), layer.drop_rates
        x = block_input(x_BxPxE)

        read = self.attention_residual.read(x)
        first = BlockInput(x, read)
        x = self.attention_residual.stream(x, read, layer.is_first)
        projected = self.attention.keys_and_values(read)
        slots = self.attention.cache_length(length, layer.kind.window)
        cached = self.attention.cacheable(projected, jnp.arange(read.shape[1])[None], layer.kind.rotary, length)
        cache = jax.tree.map(lambda values: fill_cache(values, last_B, slots), cached)
        y, _ = self.attention.read(
            read,
            *projected,
            mask=add_window(mask, layer.kind.window),
            table=relative_positions,
            rotary=layer.kind.rotary,
            text_length=length,
        )
        x = self.attention_residual.write(x, y, rates, keys.attention.output)

        y, _, _ = self.feed_forward_or_experts(self.feed_forward_residual.read(x, first), mask.query_lengths)
        x = self.feed_forward_residual.write(x, y, rates, keys.feed_forward.output)
        return with_logical_constraint(x, *BLOCK_AXES), cache

    def step(
        self,
        x_RxE: Float[Array, "R E"],
        layer: PerLayerInputs,
        cache: KeysAndValues,
        position_R: Int[Array, " R"],
        *,
        ancestors_RxT: Int[Array, "R T"],
        relative_positions: PositionScheme | None = None,
        memory: EncoderMemory | None = None,
        capture: BlockCapture = NO_CAPTURE,
    ) -> tuple[Float[Array, "R E"], KeysAndValues, BlockAux]:
        """Run the block over one new position of every row.

        Args:
            x_RxE: The residual stream at the new position.
            layer: The layer's window, dropout and key.
            cache: The caches of keys and values.
            position_R: The new position of each row.
            ancestors_RxT: For each row and position, the row of its example that wrote it.
            relative_positions: The position scheme's parameters that layers share, if any.
            memory: The memory of cross-attention, as projected keys and values; None if there is none.
            capture: Which maps to capture.

        Returns:
            The new residual stream, the updated caches, and what the sub-layers captured.
        """
        keys, rates = self.split_key(layer.key), layer.drop_rates
        x = block_input(x_RxE[:, None])

        read = self.attention_residual.read(x)
        first = BlockInput(x, read)
        x = self.attention_residual.stream(x, read, layer.is_first)
        y, cache, attention = self.attention.step(
            read,
            cache,
            position_R,
            window=layer.kind.window,
            ancestors_RxT=ancestors_RxT,
            table=relative_positions,
            rotary=layer.kind.rotary,
            capture=capture.attention,
        )
        x = self.attention_residual.write(x, y, rates, keys.attention.output)

        cross = None
        if self.cross is not None and self.cross_residual is not None:
            assert memory is not None
            # The beams of an example are queries of one attention, so that its memory is never tiled.
            read_BxQxE = unflatten_beam_axis(self.cross_residual.read(x, first)[:, 0], memory.content[0].shape[0])
            y_BxQxE, cross = self.cross.read(read_BxQxE, *memory.content, mask=memory.mask, capture=capture.cross)
            if cross is not None:
                cross = cross.with_maps(lambda leaf: beam_queries_to_rows(leaf)[:, :, None])
            x = self.cross_residual.write(x, flatten_beam_axis(y_BxQxE)[:, None], rates, keys.cross.output)

        y, gates, balance = self.feed_forward_or_experts(
            self.feed_forward_residual.read(x, first), capture=capture.expert_gates
        )
        x = self.feed_forward_residual.write(x, y, rates, keys.feed_forward.output)
        x = with_logical_constraint(x, *BLOCK_AXES)
        return x[:, 0], cache, BlockAux(attention, cross, gates, balance)

    def split_key(self, key: Key[Array, ""] | None) -> BlockKeys:
        """Split the block's key into those of its sub-layers; None means evaluation."""
        if self.cross is not None:
            return BlockKeys(*split_sublayer_keys(key, 3))
        attention, feed_forward = split_sublayer_keys(key, 2)
        return BlockKeys(attention, SublayerKeys(None, None), feed_forward)

    def split_gates(self, gates: BlockGates, capture: BlockCapture) -> GatesOfSublayers:
        """Split the gates of a layer into those of its sub-layers."""
        attention = cross = feed_forward = SublayerGates()
        if gates.attention is not None and capture.attention is not None:
            observe = capture.attention.observe
            attention = self.attention_residual.place_gates(OutputGates(*gates.attention[:2], observe))
            branch = OutputGates(None, gates.attention.feed_forward, observe)
            is_linear = self.experts is None
            feed_forward = self.feed_forward_residual.place_gates(branch) if is_linear else SublayerGates(None, branch)
        if gates.cross is not None and capture.cross is not None and self.cross_residual is not None:
            cross = self.cross_residual.place_gates(OutputGates(*gates.cross[:2], capture.cross.observe))
        return GatesOfSublayers(attention, cross, feed_forward)

    def feed_forward_or_experts(
        self,
        x: Float[Array, "B T E"],
        lengths_B: Int[Array, " B"] | None = None,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
        gates: OutputGates | None = None,
    ) -> tuple[Float[Array, "B T E"], CapturedAttention | None, ExpertBalance | ExpertUse | None]:
        """Apply the feed-forward network, or the experts in its place.

        Args:
            x: What the sub-layer reads.
            lengths_B: Real positions of each example, for experts; None means all.
            key: Random key for the experts' noise; None means evaluation.
            capture: Which maps of the experts' gates to capture.
            gates: The gate of the network's output; experts take none.

        Returns:
            The output, what was captured of the experts' gates, and how evenly the experts are used.
        """
        if self.experts is not None:
            with jax.named_scope("experts"):
                return self.experts(x, lengths_B=lengths_B, key=key, capture=capture)
        assert self.feed_forward is not None
        with jax.named_scope("feed_forward"):
            return self.feed_forward(x, gates), None, None


def block_input(x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
    """The residual stream as a block reads it: the activation `residual` of the stack."""
    return checkpoint_name(with_logical_constraint(x, *BLOCK_AXES), "residual")


class BlockGroup(Module):
    """`count` successive blocks of which only the last has experts, as one entry of a stack.

    Args:
        make: `make(experts, builder)` builds a block.
        count: Number of blocks.
        builder: Makes the parameters.
    """

    def __init__(self, make: Callable[[bool, ParameterBuilder], Block], count: int, builder: ParameterBuilder):
        self.dense = builder.stack(functools.partial(make, False), count - 1)
        self.last, self.count = make(True, builder), count

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks in this entry of a stack, in order."""
        dense = (bind_layer(self.dense, params) for params in unstack_layers(self.dense, self.count - 1))
        return (*dense, self.last)


def scan_blocks(
    stacked: Module,
    config: TransformerConfig,
    count: int,
    apply: Callable[[Any, Any, PerLayerInputs], tuple[Any, Any]],
    x: Any,
    *,
    key: Key[Array, ""] | None = None,
    segment_memories: tuple[Float[Array, "P B M E"], ...] | None = None,
    layers_per_block: int = 1,
    gates: Any = NO_GATES,
) -> tuple[Any, tuple[Any, ...]]:
    """Scan over the blocks of a stack, by periods of layers of different kinds.

    Args:
        stacked: The stack of blocks.
        config: The configuration of the Transformer.
        count: Number of layers.
        apply: Runs one block, as `Block.__call__` does: (block, x, layer) to (x, output).
        x: The residual stream.
        key: Random key for dropout; None means evaluation.
        segment_memories: For each layer of a period, its memories in all P periods; None for none.
        layers_per_block: How many successive layers, whole periods, share the parameters of one block of the stack.
        gates: The gates of all layers, arrays with a leading axis of layers.

    Returns:
        The final residual stream, and for each layer of a period its outputs with a leading axis of periods;
        `stack_by_layer` restores the order of the layers. Layers with different windows may have outputs of different
        shapes, such as caches.
    """
    period = config.layer_pattern
    periods = count // len(period)
    rates = config.stochastic_depth * (jnp.arange(1, count + 1) / count)
    keys = None if key is None else jax.random.split(key, count).reshape(periods, len(period))

    shares_blocks = layers_per_block > 1
    bind, params = group_layers(stacked, 1 if shares_blocks else len(period) // config.experts.layer_period)
    # Nothing else depends on a layer's number.
    numbers = jnp.arange(periods) if config.norm_placement is NormPlacement.PRE_NORMED_INPUT else None

    def run_period(x: Any, group: tuple[Params, Any, Any, Any, Any, Any]) -> tuple[Any, tuple[Any, ...]]:
        group_params, rates_P, keys_P, memories_P, period_number, gates_P = group
        blocks = [block for entry in bind(group_params) for block in entry.blocks]
        blocks = blocks * len(period) if shares_blocks else blocks
        outputs = []
        for number, (block, kind) in enumerate(zip(blocks, period, strict=True)):
            depth_rate = rates_P[number] if config.stochastic_depth else 0.0
            layer_key = None if keys_P is None else keys_P[number]
            memory = None if memories_P is None else memories_P[number]
            is_first = False if period_number is None or number else period_number == 0
            drop_rates, layer_gates = DropRates(config.dropout, depth_rate), index_leading_axis(gates_P, number)
            layer = PerLayerInputs(kind, drop_rates, layer_key, memory, is_first, layer_gates)
            x, output = apply(block, x, layer)
            outputs.append(output)
        return x, tuple(outputs)

    body = run_period
    if (policy := _checkpoint_policy(config.remat)) is not None:
        # Within a loop nothing could merge the two passes again; layers that are compiled in line could.
        body = jax.checkpoint(run_period, policy=policy, prevent_cse=config.scan_unroll > 1)
    gates_by_period = jax.tree.map(lambda leaf: leaf.reshape(periods, len(period), *leaf.shape[1:]), gates)
    layers = (rates.reshape(periods, len(period)), keys, segment_memories, numbers, gates_by_period)
    if not shares_blocks:
        return jax.lax.scan(body, x, (params, *layers), unroll=config.scan_unroll)

    def run_shared_block(x: Any, group: tuple[Params, Any]) -> tuple[Any, tuple[Any, ...]]:
        block_params, block_layers = group
        return jax.lax.scan(
            lambda x, layer: body(x, (block_params, *layer)), x, block_layers, unroll=config.scan_unroll
        )

    # The parameters of a block stand outside of the loop over its layers, so that they are never copied.
    by_block = jax.tree.map(lambda leaf: leaf.reshape(count // layers_per_block, -1, *leaf.shape[1:]), layers)
    x, outputs = jax.lax.scan(run_shared_block, x, (params, by_block))
    return x, jax.tree.map(lambda leaf: leaf.reshape(periods, *leaf.shape[2:]), outputs)


def add_window(mask: Mask, window: int) -> Mask:
    """Add a layer's window to a mask: so many positions back, and as many ahead unless it is causal; 0 adds none."""
    if not window:
        return mask
    return Mask(
        **{name: getattr(mask, name) for name in mask.present_fields()}, window=(window, 0 if mask.causal else window)
    )


def unroll_blocks(
    stacked: Module, config: TransformerConfig, params: tuple[Params, ...]
) -> Iterator[tuple[Block, PerLayerInputs]]:
    """Yield the blocks of a stack, to run them in line in evaluation.

    A scan would copy each layer's parameters and caches out of their stacks and back, more than a decoding step reads.

    Args:
        stacked: The stack of blocks.
        config: The configuration of the Transformer.
        params: The parameters of each entry of the stack (`unstack_layers`).
    """
    blocks = (block for entry_params in params for block in bind_layer(stacked, entry_params).blocks)
    for number, (block, kind) in enumerate(zip(blocks, itertools.cycle(config.layer_pattern))):
        yield block, PerLayerInputs(kind, DropRates(config.dropout, 0.0), None, is_first=number == 0)


def outputs_of_each_layer(outputs: tuple[Any, ...]) -> list[Any]:
    """Convert the outputs of `scan_blocks` to a list with one tree per layer."""
    periods = len(jax.tree.leaves(outputs)[0])
    return [index_leading_axis(output, number) for number in range(periods) for output in outputs]


def stack_by_layer(outputs: tuple[BlockAux, ...]) -> BlockAux:
    """Stack what `scan_blocks` returned along one leading axis of the layers that have it."""
    return stack_aux(outputs, merge_periods_into_layers)


def merge_periods_into_layers(*leaves: Array) -> Array:
    """Merge arrays with an axis of periods, one array per layer of a period, into one array with an axis of layers."""
    return jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])


def stack_aux(outputs: Sequence[BlockAux], joined: Callable[..., Array]) -> BlockAux:
    """Join the `BlockAux` of several layers, field by field, among the layers that have it."""
    present = ([values for values in field if values is not None] for field in zip(*outputs, strict=True))
    return BlockAux(*(jax.tree.map(joined, *values) if values else None for values in present))


def _checkpoint_policy(remat: Remat) -> Callable[..., Any] | None:
    """The checkpoint policy of a block; None stores everything."""
    match remat:
        case Remat.NONE:
            return None
        case Remat.FULL:
            return jax.checkpoint_policies.nothing_saveable
        case Remat.DOTS:
            return _is_unbatched_product_or_cudnn_attention
        case Remat.ATTENTION:
            return jax.checkpoint_policies.save_only_these_names(HEAD_OUTPUTS)


def _is_unbatched_product_or_cudnn_attention(primitive: Any, *inputs: Any, **params: Any) -> bool:
    """Whether an operation's results are stored by `Remat.DOTS`.

    cuDNN's attention is as costly as a product and stores as little: its output and a log-sum-exp for each query.
    """
    if primitive.name == "dot_product_attention_fwd_wrapper":
        return True
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *inputs, **params)
