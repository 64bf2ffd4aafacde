"""The decoder-only Transformer: GPT (Radford et al. 2018, 2019; Brown et al. 2020) and its successors."""

import dataclasses
import functools

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention.masks import Mask
from transformer.attention.positions import PositionCombination
from transformer.attention.sites import Axis, Site
from transformer.config import NonNegativeFloat, NonNegativeInt, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding_and_head import ClassHead
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, deepnorm
from transformer.layers.residual import NormPlacement
from transformer.layers.sequence_lengths import read_prompts
from transformer.layers.transformer_block import Block, outputs_of_each_layer, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig, check_ring_attention
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily, hidden_for_next_tokens
from transformer.models.published_sizes import sizes_of_family
from transformer.models.task_interface import (
    LANGUAGE_MODELING,
    TEXT_CLASSIFICATION,
    TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING,
    TaskInterface,
)
from transformer.models.transformer_base import (
    TokenDecoder,
    capture_for_stack,
    causal_mask,
    expert_losses,
    maps_of_stack,
    sites_of_stack,
)

STACK = "decoder"


@dataclasses.dataclass(frozen=True)
class DecoderConfig(TransformerConfig):
    """The configuration of a decoder-only Transformer; the defaults are GPT-2 small without dropout.

    GPT-2's sizes are those of Radford et al. 2019, table 2. All keys but `layers` are those of `TransformerConfig`.

    With `base_width`, the model has the maximal update parametrization, in which the best learning rate of a narrow
    model is also that of a wide one (Yang et al. 2022, table 8). For m = width / base_width, hidden matrices begin with
    1 / m of the variance and have 1 / m of Adam's learning rate; tables and the vocabulary head begin, and learn, as at
    the base width; logits are divided by m. `feed_forward` has to grow with the width. So has `heads`: the scale of
    attention, 1 / D in the paper, is then the same at every width.

    Attributes:
        layers: Number of blocks.
        base_width: The width at which the maximal update parametrization changes nothing; None is the standard
            parametrization.
        position_offset: Rows before the first position in the table of learned positions (OPT: 2).

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    layers: NumLayers = 12
    base_width: PositiveInt | None = None
    position_offset: NonNegativeInt = 0
    width: PositiveInt = 768
    heads: NumHeads = 12
    feed_forward: PositiveInt = 3072
    activation: Activation = Activation.GELU_TANH
    norm_epsilon: NonNegativeFloat = 1e-5
    norm_placement: NormPlacement = NormPlacement.PRE
    initialization: Initialization = Initialization.GPT2
    dropout: Rate = 0.0
    positions: PositionEncoding = PositionEncoding.LEARNED
    max_length: PositiveInt = 1024

    @property
    def resolved_base_width(self) -> int:
        """The base width."""
        return self.width if self.base_width is None else self.base_width

    def _check(self) -> None:
        super()._check()
        self.check_window_pattern("layers")
        if self.position_offset and self.positions is not PositionEncoding.LEARNED:
            raise UserError(
                f"config.model.position_offset={self.position_offset} is of a table of positions, and "
                f"config.model.positions={self.positions.value} has none: leave it out, or say positions=learned"
            )
        if self.base_width is not None and self.position_join is PositionCombination.CONCATENATED:
            raise UserError(
                f"config.model.base_width={self.base_width} has no rule for the matrix of position_join=concatenated: "
                "say added, or leave base_width out"
            )


class Decoder(TokenDecoder):
    """Decoder-only Transformer: causal blocks over one sequence of tokens.

    inputs: `tokens` [B, T]; optionally `lengths` [B], beyond which an example is padding; for packed rows instead
    `segments` [B, T], 1 and up, 0 for padding, which do not attend to each other, and `positions` [B, T] within them.
    Outputs: logits [B, T, V] of the token that follows each; for a task with classes, logits [B, C] of them, which are
    in the extras of `hidden` as `classes`.
    """

    def __init__(self, config: DecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        deep = deepnorm(config.layers)
        rule = InitializationRule(config.initialization, 2 * config.layers, config.resolved_head_dim, deep.beta)
        builder = builder.with_rule(dataclasses.replace(rule, width_ratio=config.width_ratio))
        super().__init__(
            config,
            config.padded_vocab_size(interface.vocabularies["tokens"]),
            offset=config.position_offset,
            builder=builder,
        )
        self.count = config.layers
        self.layers = self.make_blocks(config.layers, cross=False, deep=deep, builder=builder)
        self.relative = self.make_relative_positions(bidirectional=False, builder=builder)
        self.norm = self.make_final_norm(builder)
        classes = interface.vocabularies.get("classes")
        head = None if classes is None else ClassHead(config.width, classes, rate=config.dropout, builder=builder)
        self.classes = head

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of every position, or of the classes if the task has any."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        return self.logits(hidden_BxTxE) if self.classes is None else aux.extras["classes"], aux

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the final hidden states, which `logits` maps to logits: what tasks that predict tokens call."""
        tokens_BxT = jnp.asarray(inputs["tokens"])
        embedding_key, layers_key = split_key(forward_pass.training_key)
        layers_key, classes_key = (layers_key, None) if self.classes is None else split_key(layers_key)
        if "segments" in inputs and "positions" not in inputs:
            raise ValueError("inputs has segments without positions: packed rows need both, positions from 0 in each")
        positions = inputs.get("positions", jnp.arange(tokens_BxT.shape[1])[None])
        x_BxTxE, outputs = scan_blocks(
            self.layers,
            self.config,
            self.count,
            functools.partial(
                Block.__call__,
                mask=causal_mask(inputs),
                relative_positions=self.relative(),
                capture=capture_for_stack(STACK, forward_pass.capture),
            ),
            self.embed(tokens_BxT, jnp.asarray(positions), embedding_key),
            key=layers_key,
        )
        x_BxTxE, aux = self.norm(x_BxTxE), stack_by_layer(outputs)
        extras: dict[str, Array] = {}
        if self.classes is not None:
            ratio = self.config.width_ratio
            class_features_BxTxE = x_BxTxE if ratio == 1 else x_BxTxE / ratio
            extras["classes"] = self.classes(class_features_BxTxE, jnp.asarray(inputs["lengths"]), classes_key)
        return x_BxTxE, Aux(maps_of_stack(STACK, aux), extras, state, expert_losses(STACK, aux, self.config.experts))

    def init_cache(self, state: dict, inputs: Inputs, *, num_beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Prefill the right-padded prompts; the first step reads each row's last prompt token again.

        Raises:
            UserError: If a prompt is empty, or if prompts and what follows are longer than `max_length`.
        """
        prompts = read_prompts(inputs)
        prompts.check_room(length, self.config.max_length)
        tokens_BxP, last_B = prompts
        width, lengths_B = tokens_BxP.shape[1], last_B + 1
        mask = Mask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B)
        _, outputs = scan_blocks(
            self.layers,
            self.config,
            self.count,
            functools.partial(
                Block.prefill, mask=mask, last_B=last_B, length=width + length, relative_positions=self.relative()
            ),
            self.embed(tokens_BxP, jnp.arange(width)[None], None),
        )
        filled = outputs_of_each_layer(outputs)
        cache = self.make_cache(self.layers, filled, last_B, num_beams=num_beams, length=width + length, examples={})
        return cache, repeat_per_beam(prompts.last_tokens(), num_beams)

    def step(
        self, state: dict, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Return the logits after each row's new token, the next cache, and maps over the slots of the cache."""
        logits_RxV, cache, aux = self.step_rows(
            self.layers,
            cache,
            tokens_R,
            relative=self.relative,
            norm=self.norm,
            memories=[None] * self.count,
            capture=capture_for_stack(STACK, forward_pass.capture),
        )
        return logits_RxV, cache, Aux(maps_of_stack(STACK, aux), {}, state)


def attention_sites(config: DecoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    tokens = Axis("tokens")
    return sites_of_stack(STACK, config, config.layers, tokens, tokens, causal=True)


FAMILY = ModelFamily(
    DecoderConfig,
    Decoder,
    frozenset({LANGUAGE_MODELING, TEXT_CLASSIFICATION, TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING}),
    sizes=sizes_of_family("decoder"),
    check_ring_attention_placement=check_ring_attention,
    sites=attention_sites,
    forward_methods=hidden_for_next_tokens,
)
