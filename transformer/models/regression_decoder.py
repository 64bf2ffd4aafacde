"""A decoder-only Transformer for in-context regression (Garg et al. 2022): vectors in, real numbers out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.attention_spec import Backend
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.scores import DEFAULT_SCORE, Score
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NonNegativeFloat, NumHeads, NumLayers, PositiveInt, Rate
from transformer.layers.embedding import LearnedPositions
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, deepnorm
from transformer.layers.linear import Linear
from transformer.layers.residual import NormPlacement
from transformer.layers.sequence_lengths import check_num_positions
from transformer.layers.transformer_block import Block, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import TransformerConfig, block_config_from, check_ring_attention
from transformer.logical_axes import Placement
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import VECTOR_REGRESSION, TaskInterface
from transformer.models.transformer_base import (
    BlockStacks,
    capture_for_stack,
    final_states,
    gates_for_stack,
    maps_of_stack,
    sites_of_stack,
)

STACK = "decoder"


@dataclasses.dataclass(frozen=True)
class RegressionDecoderConfig(Config, path="config.model"):
    """GPT-2's blocks and learned positions; the keys are those of `TransformerConfig`.

    The initialization suits small widths; GPT-2's own standard deviation of 0.02 suits a width of 2,500.

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    layers: NumLayers = 4
    width: PositiveInt = 64
    heads: NumHeads = 4
    feed_forward: PositiveInt = 256
    activation: Activation = Activation.GELU_TANH
    norm_epsilon: NonNegativeFloat = 1e-5
    norm_placement: NormPlacement = NormPlacement.PRE
    initialization: Initialization = Initialization.XAVIER
    dropout: Rate = 0.0
    max_length: PositiveInt = 128
    score: Score | str = DEFAULT_SCORE
    backend: Backend = Backend.AUTO
    scan_unroll: PositiveInt = 1

    def _check(self) -> None:
        _ = self.blocks  # which checks its values

    @property
    def blocks(self) -> TransformerConfig:
        """The config of the blocks; positions are added before them."""
        return block_config_from(self)


class RegressionDecoder(BlockStacks):
    """x_t = W v_t + b + p_t; causal blocks; y_t = V norm(x_t) + c.

    inputs: `vectors` [B, T, I]. Outputs: numbers [B, T, O], each computed from the vectors up to its own.
    """

    def __init__(self, config: RegressionDecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        blocks, deep = config.blocks, deepnorm(config.layers)
        builder = builder.with_rule(
            InitializationRule(config.initialization, 2 * config.layers, blocks.resolved_head_dim, deep.beta)
        )
        self.config, self.count, self.dtype = blocks, config.layers, builder.dtype
        model = (("embed", config.width),)
        features = (("features", interface.inputs["vectors"].shape[-1]),)
        numbers = (("features", interface.vocabularies["numbers"]),)
        self.embed = Linear(features, model, bias=True, builder=builder)
        self.positions = LearnedPositions(config.max_length, config.width, builder=builder)
        self.layers = self.make_blocks(config.layers, cross=False, deep=deep, builder=builder)
        self.norm = self.make_final_norm(builder)
        self.head = Linear(model, numbers, bias=True, builder=builder)

    @jax.named_scope(STACK)
    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T O"], Aux]:
        """Return the predicted numbers at every step."""
        vectors_BxTxI = jnp.asarray(inputs["vectors"], self.dtype)
        embedding_key, layers_key = split_key(forward_pass.training_key)
        check_num_positions(vectors_BxTxI.shape[1], self.config.max_length, "a sequence")
        positions_TxE = self.positions(jnp.arange(vectors_BxTxI.shape[1])).astype(self.dtype)
        x_BxTxE, outputs = scan_blocks(
            self.layers,
            self.config,
            self.count,
            functools.partial(
                Block.__call__, mask=Mask(causal=True), capture=capture_for_stack(STACK, forward_pass.capture)
            ),
            dropout(self.embed(vectors_BxTxI) + positions_TxE[None], self.config.dropout, embedding_key),
            key=layers_key,
            gates=gates_for_stack(STACK, forward_pass.capture),
        )
        aux = stack_by_layer(outputs)
        return self.head(final_states(self.norm, x_BxTxE)), Aux(maps_of_stack(STACK, aux), {}, state)


def attention_sites(config: RegressionDecoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    steps = Axis("steps", AxisKind.STEPS)
    return sites_of_stack(STACK, config.blocks, config.layers, steps, steps, causal=True)


def check_ring_attention_placement(config: RegressionDecoderConfig, placement: Placement) -> None:
    """Check that the attention supports ring attention if the placement needs it.

    Raises:
        UserError: If it does not; gives the keys that could change it.
    """
    check_ring_attention(config.blocks, placement)


FAMILY = ModelFamily(
    RegressionDecoderConfig,
    RegressionDecoder,
    frozenset({VECTOR_REGRESSION}),
    check_ring_attention_placement=check_ring_attention_placement,
    embedding_patterns=("embed/*", "positions/*"),
    sites=attention_sites,
)
