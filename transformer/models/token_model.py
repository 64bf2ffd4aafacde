"""What every Transformer is built from: stacks of blocks, and of those over tokens the two ends."""

import functools

import jax
from jaxtyping import Array, Float, Key

from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.layers.attention_parameters import SharedPositions
from transformer.layers.block import Block, run_layers, windowed
from transformer.layers.block_aux import BlockAux, BlockCapture, by_layer
from transformer.layers.block_groups import Group
from transformer.layers.ends import TokenEnds
from transformer.layers.initialisation import DeepNorm
from transformer.layers.lora import adapted
from transformer.layers.module import Builder, Module
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import TransformerConfig
from transformer.models.contract import Aux, Inputs
from transformer.models.stateless import Stateless

FinalNorm = LayerNorm | RmsNorm | None
OptionalKey = Key[Array, ""] | None


class BlockStacks(Stateless):
    """A family that runs stacks of blocks of `self.config`: how they are made, and run over a sequence."""

    config: TransformerConfig

    def make_blocks(self, count: int, *, cross: bool, deep: DeepNorm, builder: Builder) -> Module:
        """`count` blocks of the config's arrangement as one stacked module."""
        config = self.config
        alpha = deep.alpha if config.norm_placement is NormPlacement.DEEPNORM else 1.0

        def block(experts: bool, builder: Builder) -> Block:
            made = Block(config, cross=cross, experts=experts, alpha=alpha, builder=builder)
            return adapted(made, config.lora, builder)

        group = config.experts.group
        if group == 1:
            return builder.stack(functools.partial(block, bool(config.experts.count)), count)
        return builder.stack(lambda builder: Group(block, group, builder), count // group)

    def make_table(self, *, bidirectional: bool, builder: Builder) -> SharedPositions | None:
        """The relative positions that all layers of a stack share, where their scheme has such."""
        if not self.config.positions.scheme.shared:
            return None
        return SharedPositions(self.config, bidirectional=bidirectional, builder=builder)

    def make_final_norm(self, builder: Builder) -> FinalNorm:
        """The norm behind the last block, where the placement asks for one."""
        return self.config.make_norm(builder) if self.config.norm_placement.final_norm else None

    def run_self_attention(
        self,
        stacked: Module,
        count: int,
        x_BxTxE: Float[Array, "B T E"],
        mask: Mask,
        *,
        relative: SharedPositions | None,
        norm: FinalNorm,
        key: OptionalKey,
        asked: BlockCapture,
    ) -> tuple[Float[Array, "B T E"], BlockAux]:
        """A stack without a memory over whole sequences and its final norm, and what its layers returned beside."""
        table = None if relative is None else relative()
        x_BxTxE, outputs = run_layers(
            stacked,
            self.config,
            count,
            lambda block, x, layer, _: block(x, layer, mask=windowed(mask, layer.window), table=table, asked=asked),
            x_BxTxE,
            key=key,
        )
        return (x_BxTxE if norm is None else norm(x_BxTxE)), by_layer(outputs)


class TokenModel(BlockStacks, TokenEnds):
    """A family over tokens: it says what its outputs before the vocabulary are, by `hidden`."""

    def forward(
        self, state: dict, inputs: Inputs, *, train: bool, key: OptionalKey = None, capture: Capture | None = None
    ) -> tuple[Float[Array, "B T _"], Aux]:
        """The logits of every position."""
        hidden_BxTxE, aux = self.hidden(state, inputs, train=train, key=key, capture=capture)
        return self.logits(hidden_BxTxE), aux

    def hidden(
        self, state: dict, inputs: Inputs, *, train: bool, key: OptionalKey = None, capture: Capture | None = None
    ) -> tuple[Float[Array, "B T E"], Aux]:
        """What `logits` scores the tokens from."""
        raise NotImplementedError


def split_key(key: OptionalKey) -> tuple[OptionalKey, OptionalKey]:
    """Two keys of one, or none of none."""
    if key is None:
        return None, None
    first, second = jax.random.split(key)
    return first, second
