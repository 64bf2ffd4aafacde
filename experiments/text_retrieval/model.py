"""A dual encoder: one Transformer encoder embeds both texts of a pair, each alone."""

import dataclasses
import enum
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.text_retrieval.data import PAIR_EMBEDDING
from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import NumHeads, NumLayersOrZero, PositiveInt, Rate, UserError
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import InitializationRule, deepnorm
from transformer.layers.residual import NormPlacement
from transformer.layers.sequence_lengths import real_lengths, real_positions
from transformer.layers.transformer_block import Block, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig, check_ring_attention
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface
from transformer.models.transformer_base import (
    TokenModel,
    capture_for_stack,
    final_states,
    gates_for_stack,
    maps_of_stack,
    sites_of_stack,
)

# One encoder; its maps are named after the text that it reads.
STACKS = ("source", "target")


class Pooling(enum.Enum):
    """How the states of a text become one vector.

    Attributes:
        MEAN: Their mean.
        FIRST: The state of the begin token, as BERT's [CLS].
    """

    MEAN = "mean"
    FIRST = "first"


@dataclasses.dataclass(frozen=True)
class DualEncoderConfig(TransformerConfig):
    """The configuration of the encoder; the keys that are not listed are those of `TransformerConfig`.

    Attributes:
        layers: Number of blocks; with 0 a text is the mean of its tokens' vectors.
        pooling: How states become one vector.

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    layers: NumLayersOrZero = 2
    width: PositiveInt = 64
    heads: NumHeads = 4
    feed_forward: PositiveInt = 128
    norm_placement: NormPlacement = NormPlacement.PRE
    dropout: Rate = 0.0
    positions: PositionEncoding = PositionEncoding.LEARNED
    max_length: PositiveInt = 64
    pooling: Pooling = Pooling.MEAN

    bidirectional: ClassVar[bool] = True

    def _check(self) -> None:
        super()._check()
        self.check_window_pattern("layers")
        if not self.layers and self.pooling is Pooling.FIRST:
            raise UserError(
                "config.model.layers=0 leaves the begin token without a word of the text, which config.model.pooling="
                "first reads: say pooling=mean"
            )
        if self.experts.count:
            raise UserError(f"config.model.experts.count={self.experts.count}: this model has no experts, say 0")
        if not self.tie_embeddings or self.output_bias:
            raise UserError(
                "config.model.tie_embeddings=False and output_bias=True are of a head over the vocabulary, which this "
                "model does not have: leave them out"
            )


class DualEncoder(TokenModel):
    """x / |x| of both texts, where x is the pooled output of one encoder.

    Inputs: `source` [B, S] and `target` [B, T], tokens with padding at the end. Outputs: the embeddings [B, 2, E], in
    float32 or wider.
    """

    def __init__(self, config: DualEncoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        deep = deepnorm(max(config.layers, 1))
        builder = builder.with_rule(
            InitializationRule(config.initialization, 2 * config.layers, config.resolved_head_dim, deep.beta)
        )
        super().__init__(config, config.padded_vocab_size(interface.vocabularies["joint"]), builder=builder)
        assert interface.pad_id is not None
        self.count, self.pad, self.pooling = config.layers, interface.pad_id, config.pooling
        make_blocks = functools.partial(self.make_blocks, cross=False, deep=deep, builder=builder)
        self.layers = make_blocks(config.layers) if config.layers else None
        if config.layers:
            self.relative = self.make_relative_positions(bidirectional=True, builder=builder)
            self.norm = self.make_final_norm(builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B 2 E"], Aux]:
        """Return the embeddings of both texts."""
        keys = split_key(forward_pass.training_key)
        embeddings: list[Array] = []
        maps: dict[str, CapturedAttention] = {}
        for stack, stack_key in zip(STACKS, keys, strict=True):
            pooled_BxE, captured = self._encode(jnp.asarray(inputs[stack]), stack, stack_key, forward_pass.capture)
            embeddings.append(pooled_BxE)
            maps |= captured
        x_Bx2xE = jnp.stack(embeddings, axis=1)
        x_Bx2xE = x_Bx2xE.astype(jnp.promote_types(x_Bx2xE.dtype, jnp.float32))
        # A text without tokens, whose vector is zero, stays zero and has a gradient of zero.
        square_Bx2x1 = jnp.sum(jnp.square(x_Bx2xE), axis=-1, keepdims=True)
        return x_Bx2xE / jnp.sqrt(jnp.where(square_Bx2x1 > 0, square_Bx2x1, 1)), Aux(maps, {}, state)

    def _encode(
        self, tokens_BxT: Array, stack: str, key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B E"], dict[str, CapturedAttention]]:
        """Return the pooled states of texts, and the maps of the stack's name."""
        lengths_B = real_lengths(tokens_BxT, self.pad)
        embedding_key, layers_key = split_key(key)
        maps: dict[str, CapturedAttention] = {}
        with jax.named_scope(stack):
            x_BxTxE = self.embed(tokens_BxT, jnp.arange(tokens_BxT.shape[1])[None], embedding_key)
            if self.layers is not None:
                x_BxTxE, outputs = scan_blocks(
                    self.layers,
                    self.config,
                    self.count,
                    functools.partial(
                        Block.__call__,
                        mask=Mask(query_lengths=lengths_B, key_lengths=lengths_B),
                        relative_positions=self.relative(),
                        capture=capture_for_stack(stack, capture),
                    ),
                    x_BxTxE,
                    key=layers_key,
                    gates=gates_for_stack(stack, capture),
                )
                x_BxTxE, maps = final_states(self.norm, x_BxTxE), maps_of_stack(stack, stack_by_layer(outputs))
        match self.pooling:
            case Pooling.FIRST:
                return x_BxTxE[:, 0], maps
            case Pooling.MEAN:
                real_BxTx1 = real_positions(lengths_B, tokens_BxT.shape[1])[..., None]
                total_BxE = jnp.sum(jnp.where(real_BxTx1, x_BxTxE, 0), axis=1)
                return total_BxE / jnp.maximum(lengths_B, 1)[:, None].astype(x_BxTxE.dtype), maps


def attention_sites(config: DualEncoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of both encoders; none without layers."""
    if not config.layers:
        return ()
    return tuple(
        site for stack in STACKS for site in sites_of_stack(stack, config, config.layers, Axis(stack), Axis(stack))
    )


FAMILY = ModelFamily(
    DualEncoderConfig,
    DualEncoder,
    frozenset({PAIR_EMBEDDING}),
    check_ring_attention_placement=check_ring_attention,
    sites=attention_sites,
)
