"""The Transformer's block, and running a stack of them: whole sequences, prefilled caches, one position at a time."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionScheme
from transformer.layers.beam_rows import as_rows, by_example, queries_as_rows
from transformer.layers.feed_forward import FeedForward
from transformer.layers.functional_module import Builder, Module, Params, entry, layer_of, scan, unstacked
from transformer.layers.kv_cache import KeysAndValues, fill_ring
from transformer.layers.mixture_of_experts import Balance, Experts
from transformer.layers.multi_head_attention import OUTPUT_NAME, MultiHeadAttention
from transformer.layers.residual import Drops, NormPlacement, Residual, apply_sublayers
from transformer.layers.transformer_config import Biases, Remat, TransformerConfig
from transformer.logical_axes import place

# Where the vectors between layers lie.
BLOCK_AXES = ("batch", "length", None)


class BlockCapture(NamedTuple):
    """The maps that are asked for of each sub-layer that has one."""

    attention: Capture | None = None
    cross: Capture | None = None
    experts: Capture | None = None


NO_CAPTURE = BlockCapture()


class BlockAux(NamedTuple):
    """The maps of each sub-layer that was asked for one, and how even the use of experts is where there are any."""

    attention: CapturedAttention | None
    cross: CapturedAttention | None
    experts: CapturedAttention | None
    balance: Balance | None


class LayerContext(NamedTuple):
    """What a layer is told beside its parameters: its window (0: none), what it drops, and a key while training."""

    window: int
    drops: Drops
    key: Key[Array, ""] | None


class Memory(NamedTuple):
    """What a decoder's blocks read beside their own sequence: an encoder's output, or its keys and values."""

    content: Any
    mask: Mask


class Block(Module):
    """Self-attention, attention over a memory where `cross`, and a feed-forward network or a mixture of such experts.

    `alpha` is deepnorm's factor of the residual connections.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        cross: bool,
        experts: bool,
        alpha: float,
        builder: Builder,
    ):
        norm = functools.partial(config.make_norm, builder)

        def make_later_residual() -> Residual:
            shares_first_norm = config.norm_placement is NormPlacement.PARALLEL
            return Residual(config.norm_placement, None if shares_first_norm else norm, alpha)

        self.attention = MultiHeadAttention(config, cross=False, builder=builder)
        self.attention_residual = Residual(config.norm_placement, norm, alpha)
        self.cross = MultiHeadAttention(config, cross=True, builder=builder) if cross else None
        self.cross_residual = make_later_residual() if cross else None

        def make_feed_forward(builder: Builder) -> FeedForward:
            bias = config.biases is not Biases.NONE
            return FeedForward(
                config.width, config.feed_forward, activation=config.activation, bias=bias, builder=builder
            )

        self.feed_forward = None if experts else make_feed_forward(builder)
        self.experts = Experts(config.experts, config.width, make_feed_forward, builder=builder) if experts else None
        self.feed_forward_residual = make_later_residual()

    @property
    def blocks(self) -> tuple["Block", ...]:
        """Itself: as an entry of a stack it is one block."""
        return (self,)

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        layer: LayerContext,
        *,
        mask: Mask,
        table: PositionScheme | None = None,
        memory: Memory | None = None,
        asked: BlockCapture = NO_CAPTURE,
    ) -> tuple[Float[Array, "B T E"], BlockAux]:
        """One layer over whole sequences, and what its sub-layers returned beside."""

        def attend(x: Array, key: Key[Array, ""] | None) -> tuple[Array, CapturedAttention | None]:
            return self.attention(x, x, mask=mask, table=table, key=key, capture=asked.attention)

        def attend_to_memory(x: Array, key: Key[Array, ""] | None) -> tuple[Array, CapturedAttention | None]:
            assert self.cross is not None
            assert memory is not None
            return self.cross(x, memory.content, mask=memory.mask, key=key, capture=asked.cross)

        return self.apply(x_BxTxE, layer, attend, attend_to_memory, mask.query_lengths, asked.experts)

    def prefill(
        self,
        x_BxPxE: Float[Array, "B P E"],
        layer: LayerContext,
        *,
        mask: Mask,
        last_B: Int[Array, " B"],
        length: int,
        table: PositionScheme | None = None,
    ) -> tuple[Float[Array, "B P E"], KeysAndValues]:
        """One layer over prompts, and what its rings for `length` positions hold up to each prompt's `last` one."""

        def attend(x: Array, key: None) -> tuple[Array, KeysAndValues]:
            projected = self.attention.keys_and_values(x)
            slots = self.attention.cache_length(length, layer.window)
            cached = self.attention.cacheable(projected, jnp.arange(x.shape[1])[None])
            ring = jax.tree.map(lambda values: fill_ring(values, last_B, slots), cached)
            return self.attention.read(x, *projected, mask=mask, table=table)[0], ring

        x_BxPxE, aux = self.apply(x_BxPxE, layer, attend, None, mask.query_lengths)
        return x_BxPxE, aux.attention

    def step(
        self,
        x_RxE: Float[Array, "R E"],
        layer: LayerContext,
        rings: KeysAndValues,
        position_R: Int[Array, " R"],
        *,
        ancestors_RxT: Int[Array, "R T"],
        table: PositionScheme | None = None,
        memory: Memory | None = None,
        asked: BlockCapture = NO_CAPTURE,
    ) -> tuple[Float[Array, "R E"], KeysAndValues, BlockAux]:
        """One layer over one new position of every row: the output, the grown rings, and what else it returns."""

        def attend(x_Rx1xE: Array, key: None) -> tuple[Array, tuple[KeysAndValues, CapturedAttention | None]]:
            output, grown, captured = self.attention.step(
                x_Rx1xE,
                rings,
                position_R,
                window=layer.window,
                ancestors_RxT=ancestors_RxT,
                table=table,
                capture=asked.attention,
            )
            return output, (grown, captured)

        def attend_to_memory(x_Rx1xE: Array, key: None) -> tuple[Array, CapturedAttention | None]:
            assert self.cross is not None
            assert memory is not None
            # The beams of an example are queries of one attention, so that its memory is never tiled.
            x_BxQxE = by_example(x_Rx1xE[:, 0], memory.content[0].shape[0])
            y_BxQxE, captured = self.cross.read(x_BxQxE, *memory.content, mask=memory.mask, capture=asked.cross)
            if captured is not None:
                captured = captured.with_maps(lambda leaf: queries_as_rows(leaf)[:, :, None])
            return as_rows(y_BxQxE)[:, None], captured

        x_Rx1xE, aux = self.apply(x_RxE[:, None], layer, attend, attend_to_memory, capture=asked.experts)
        grown_rings, captured = aux.attention
        return x_Rx1xE[:, 0], grown_rings, aux._replace(attention=captured)

    def apply(
        self,
        x: Array,
        layer: LayerContext,
        attend: Callable[..., Any],
        attend_to_memory: Callable[..., Any] | None,
        lengths_B: Array | None = None,
        capture: Capture | None = None,
    ) -> tuple[Array, Any]:
        """The sub-layers, and as `BlockAux` whatever each of them has to say."""

        def feed_forward(x: Array, key: Key[Array, ""] | None) -> tuple[Array, Any]:
            if self.experts is None:
                assert self.feed_forward is not None
                return self.feed_forward(x), (None, None)
            y, captured, balance = self.experts(x, lengths_B=lengths_B, key=key, capture=capture)
            return y, (captured, balance)

        sublayers: list[tuple[Residual, Any]] = [(self.attention_residual, attend)]
        if self.cross_residual is not None:
            sublayers.append((self.cross_residual, attend_to_memory))
        sublayers.append((self.feed_forward_residual, feed_forward))
        x, outputs = apply_sublayers(place(x, *BLOCK_AXES), sublayers, layer.drops, layer.key)
        self_attention, *cross_attention, (experts, balance) = outputs
        aux = BlockAux(self_attention, cross_attention[0] if cross_attention else None, experts, balance)
        return place(x, *BLOCK_AXES), aux


class BlockGroup(Module):
    """`count` blocks one after another, of which the last alone has experts, as one entry of a stack.

    `make(experts, builder)` builds a block.
    """

    def __init__(self, make: Callable[[bool, Builder], Block], count: int, builder: Builder):
        self.dense = builder.stack(functools.partial(make, False), count - 1)
        self.last, self.count = make(True, builder), count

    @property
    def blocks(self) -> tuple[Block, ...]:
        """They, in order."""
        dense = (layer_of(self.dense, params) for params in unstacked(self.dense, self.count - 1))
        return (*dense, self.last)


def run_layers(
    stacked: Module,
    config: TransformerConfig,
    count: int,
    function: Callable[[Any, Any, LayerContext, Any], tuple[Any, Any]],
    x: Any,
    *,
    key: Key[Array, ""] | None = None,
    inputs: tuple[Any, ...] | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """Run `function(block, x, layer, input) -> (x, output)` over the `count` layers of a stacked block.

    The layers are scanned by periods of windows. `inputs` and the returned outputs are tuples with one tree for each
    layer of a period, with a leading axis of the periods, so that layers of unlike windows may have caches of unlike
    lengths; `stack_by_layer` puts outputs in the order of the layers.
    """
    period = config.period
    periods = count // len(period)
    rates = config.stochastic_depth * (jnp.arange(1, count + 1) / count)
    keys = None if key is None else jax.random.split(key, count).reshape(periods, len(period))

    def run_period(
        entries: tuple[Any, ...], x: Any, period_inputs: tuple[Any, Any, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        rates_P, keys_P, inputs_P = period_inputs
        blocks = [block for entry in entries for block in entry.blocks]
        outputs = []
        for number, (block, window) in enumerate(zip(blocks, period, strict=True)):
            depth_rate = rates_P[number] if config.stochastic_depth else 0.0
            layer_key = None if keys_P is None else keys_P[number]
            layer = LayerContext(window, Drops(config.dropout, depth_rate), layer_key)
            layer_input = None if inputs_P is None else inputs_P[number]
            x, output = function(block, x, layer, layer_input)
            outputs.append(output)
        return x, tuple(outputs)

    return scan(
        run_period,
        stacked,
        x,
        (rates.reshape(periods, len(period)), keys, inputs),
        period=len(period) // config.experts.group,
        unroll=config.scan_unroll,
        checkpoint=_checkpoint_policy(config.remat),
    )


def with_window(mask: Mask, window: int) -> Mask:
    """The mask with a layer's window: so many positions back, and ahead too where it is not causal."""
    if not window:
        return mask
    return Mask(**{name: getattr(mask, name) for name in mask.facts()}, window=(window, 0 if mask.causal else window))


def step_layers(
    stacked: Module,
    config: TransformerConfig,
    params: tuple[Params, ...],
    function: Callable[[Any, Array, LayerContext, Any], tuple[Array, Any]],
    x: Array,
    inputs: Sequence[Any],
) -> tuple[Array, tuple[Any, ...]]:
    """Run the function of `run_layers` over layers in line, each with its own input.

    `params` are those of each entry of the stack.

    A loop over layers would copy each layer's parameters and caches out of their stacks, and back: more than a step
    of decoding reads.
    """
    outputs = []
    blocks = [block for entry_params in params for block in layer_of(stacked, entry_params).blocks]
    for number, (block, layer_input) in enumerate(zip(blocks, inputs, strict=True)):
        window = config.period[number % len(config.period)]
        layer = LayerContext(window, Drops(config.dropout, 0.0), None)
        x, output = function(block, x, layer, layer_input)
        outputs.append(output)
    return x, tuple(outputs)


def outputs_of_each_layer(outputs: tuple[Any, ...]) -> list[Any]:
    """Outputs of `run_layers`, one tree for each layer."""
    periods = len(jax.tree.leaves(outputs)[0])
    return [entry(output, number) for number in range(periods) for output in outputs]


def stack_by_layer(outputs: tuple[BlockAux, ...]) -> BlockAux:
    """What `run_layers` returned for the layers of a period, with one leading axis of the layers that have it."""
    return stack_aux(outputs, interleave_periods)


def interleave_periods(*leaves: Array) -> Array:
    """Arrays with an axis of periods, one for each layer of a period, as one with an axis of the layers."""
    return jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])


def stack_aux(outputs: Sequence[BlockAux], joined: Callable[..., Array]) -> BlockAux:
    """The same of several layers, joined among those that have it."""
    present = ([each for each in of_field if each is not None] for of_field in zip(*outputs, strict=True))
    return BlockAux(*(jax.tree.map(joined, *each) if each else None for each in present))


def _checkpoint_policy(remat: Remat) -> Callable[..., Any] | None:
    """What a block's backward pass finds kept; None: everything."""
    match remat:
        case Remat.NONE:
            return None
        case Remat.FULL:
            return jax.checkpoint_policies.nothing_saveable
        case Remat.DOTS:
            return jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        case Remat.ATTENTION:
            return jax.checkpoint_policies.save_only_these_names(OUTPUT_NAME)
