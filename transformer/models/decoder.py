"""The decoder-only Transformer: GPT (Radford et al. 2018, 2019; Brown et al. 2020) and its successors."""

import dataclasses
import enum
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionCombination
from transformer.attention.sites import Axis, Site
from transformer.config import NonNegativeFloat, NonNegativeInt, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding_and_head import ClassHead
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, ParameterRole, deepnorm
from transformer.layers.linear import Linear
from transformer.layers.residual import NormPlacement
from transformer.layers.sequence_lengths import read_prompts
from transformer.layers.transformer_block import Block, outputs_of_each_layer, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig, check_ring_attention
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily, hidden_for_next_tokens
from transformer.models.published_sizes import sizes_of_family
from transformer.models.task_interface import (
    EXTRACTIVE_QUESTION_ANSWERING,
    LANGUAGE_MODELING,
    TEXT_CLASSIFICATION,
    TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING,
    TOKEN_CLASSIFICATION,
    TaskInterface,
    check_head,
)
from transformer.models.transformer_base import (
    TokenDecoder,
    capture_for_stack,
    causal_mask,
    expert_losses,
    final_states,
    gates_for_stack,
    maps_of_stack,
    sites_of_stack,
)

STACK = "decoder"


class DecoderHead(enum.Enum):
    """The head of the decoder.

    Attributes:
        NEXT_TOKENS: The logits of the next tokens, by the embedding table or an output matrix; for a task with classes,
            beside it GPT-1's linear map of the last token's state to their logits (Radford et al. 2018, section 3.2).
        CLASSES: That linear map alone, to the logits of a task's classes or to a score.
        TOKEN_CLASSES: A linear map with a bias of every state to the logits of a task's classes.
        SPAN: A linear map with a bias of every state to two logits: an answer begins here, and it ends here.
        NONE: No head; the model returns the hidden states.
    """

    NEXT_TOKENS = "next_tokens"
    CLASSES = "classes"
    TOKEN_CLASSES = "token_classes"
    SPAN = "span"
    NONE = "none"


# The heads that have each output, the usual one first.
_HEADS_OF_OUTPUT = {
    LANGUAGE_MODELING.output: (DecoderHead.NEXT_TOKENS,),
    TEXT_CLASSIFICATION.output: (DecoderHead.CLASSES, DecoderHead.NEXT_TOKENS),
    TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING.output: (DecoderHead.NEXT_TOKENS,),
    TOKEN_CLASSIFICATION.output: (DecoderHead.TOKEN_CLASSES,),
    EXTRACTIVE_QUESTION_ANSWERING.output: (DecoderHead.SPAN,),
}


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
        position_offset: The number of the first position in the table of learned or sinusoidal positions (OPT: 2).
        head: The head.

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    layers: NumLayers = 12
    base_width: PositiveInt | None = None
    position_offset: NonNegativeInt = 0
    head: DecoderHead = DecoderHead.NEXT_TOKENS
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
        self.check_position_offset(self.position_offset)
        if self.base_width is not None and self.position_join is PositionCombination.CONCATENATED:
            raise UserError(
                f"config.model.base_width={self.base_width} has no rule for the matrix of position_join=concatenated: "
                "say added, or leave base_width out"
            )


class Decoder(TokenDecoder):
    """Decoder-only Transformer: causal blocks over one sequence of tokens.

    inputs: `tokens` [B, T]; optionally `lengths` [B], beyond which an example is padding; for packed rows instead
    `segments` [B, T], 1 and up, 0 for padding, which do not attend to each other, and `positions` [B, T] within them.
    Outputs: logits [B, T, V] of the token that follows each; logits [B, C] of a task's classes, read from the state at
    the last of `lengths` tokens; logits [B, T, C] of classes at each position; logits [B, T, 2] of an answer's start
    and end; or the states [B, T, E] without a head. The extras of `hidden` have the logits of classes as `classes`, and
    those of an answer as `span`.
    """

    def __init__(self, config: DecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        deep = deepnorm(config.layers)
        rule = InitializationRule(config.initialization, 2 * config.layers, config.resolved_head_dim, deep.beta)
        builder = builder.with_rule(dataclasses.replace(rule, width_ratio=config.width_ratio))
        self.predicts_tokens = config.head is DecoderHead.NEXT_TOKENS
        super().__init__(
            config if self.predicts_tokens else config.without_token_head(),
            config.padded_vocab_size(interface.vocabularies["tokens"]),
            offset=config.position_offset,
            builder=builder,
        )
        self.count, self.kind_of_head = config.layers, config.head
        self.layers = self.make_blocks(config.layers, cross=False, deep=deep, builder=builder)
        self.relative = self.make_relative_positions(bidirectional=False, builder=builder)
        self.norm = self.make_final_norm(builder)
        self.classes = self._make_class_head(interface.vocabularies.get("classes"), builder)
        self.span = self._make_position_head("features", 2, builder) if config.head is DecoderHead.SPAN else None

    def _make_class_head(self, classes: int | None, builder: ParameterBuilder) -> ClassHead | Linear | None:
        """Build the head of a task's classes, of texts or of tokens; None without classes, or a head that has none."""
        match self.kind_of_head:
            case _ if classes is None:
                return None
            case DecoderHead.NEXT_TOKENS | DecoderHead.CLASSES:
                return ClassHead(self.config.width, classes, rate=self.config.dropout, builder=builder)
            case DecoderHead.TOKEN_CLASSES:
                return self._make_position_head("classes", classes, builder)
            case DecoderHead.SPAN | DecoderHead.NONE:
                return None

    def _make_position_head(self, axis: str, outputs: int, builder: ParameterBuilder) -> Linear:
        """Build a linear map of every state, which has a bias whatever the blocks have, as in published models."""
        axes = (("embed", self.config.width),), ((axis, outputs),)
        return Linear(*axes, bias=True, role=ParameterRole.LOGITS, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of the head, or the hidden states without a head."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        if self.classes is not None:
            return aux.extras["classes"], aux
        match self.kind_of_head:
            case DecoderHead.SPAN:
                return aux.extras["span"], aux
            case DecoderHead.NEXT_TOKENS:
                return self.logits(hidden_BxTxE), aux
            case _:
                return hidden_BxTxE, aux

    @jax.named_scope(STACK)
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
            gates=gates_for_stack(STACK, forward_pass.capture),
        )
        x_BxTxE, aux = final_states(self.norm, x_BxTxE), stack_by_layer(outputs)
        extras = self._head_outputs(x_BxTxE, inputs, classes_key)
        return x_BxTxE, Aux(maps_of_stack(STACK, aux), extras, state, expert_losses(STACK, aux, self.config.experts))

    def _head_outputs(
        self, x_BxTxE: Float[Array, "B T E"], inputs: Inputs, key: Key[Array, ""] | None
    ) -> dict[str, Array]:
        """Return the logits of classes as `classes` and of an answer as `span`, as far as the model has these heads."""
        ratio = self.config.width_ratio
        features_BxTxE = x_BxTxE if ratio == 1 else x_BxTxE / ratio
        match self.classes:
            case ClassHead():
                return {"classes": self.classes(features_BxTxE, jnp.asarray(inputs["lengths"]), key)}
            case Linear():
                return {"classes": self.classes.logits(dropout(features_BxTxE, self.config.dropout, key))}
            case _:
                return {} if self.span is None else {"span": self.span.logits(features_BxTxE)}

    @jax.named_scope(STACK)
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
            STACK,
            self.layers,
            cache,
            tokens_R,
            relative=self.relative,
            norm=self.norm,
            memories=[None] * self.count,
            capture=capture_for_stack(STACK, forward_pass.capture),
        )
        return logits_RxV, cache, Aux(maps_of_stack(STACK, aux), {}, state)


def check_task(config: DecoderConfig, interface: TaskInterface) -> None:
    """Check that the config has the head that a task needs.

    Raises:
        UserError: If it does not.
    """
    possible = _HEADS_OF_OUTPUT.get(interface.output or "", tuple(DecoderHead))
    check_head(config.head, possible, interface, DecoderHead.NEXT_TOKENS)


def forward_methods(config: DecoderConfig, interface: TaskInterface) -> tuple[str, ...]:
    """Return the method that uses all parameters once: `hidden` where next tokens are predicted."""
    predicts_tokens = config.head is DecoderHead.NEXT_TOKENS
    return hidden_for_next_tokens(config, interface) if predicts_tokens else ("forward",)


def attention_sites(config: DecoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    tokens = Axis("tokens")
    return sites_of_stack(STACK, config, config.layers, tokens, tokens, causal=True)


FAMILY = ModelFamily(
    DecoderConfig,
    Decoder,
    frozenset(
        {
            LANGUAGE_MODELING,
            TEXT_CLASSIFICATION,
            TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING,
            TOKEN_CLASSIFICATION,
            EXTRACTIVE_QUESTION_ANSWERING,
        }
    ),
    sizes=sizes_of_family("decoder"),
    check_ring_attention_placement=check_ring_attention,
    sites=attention_sites,
    check=check_task,
    forward_methods=forward_methods,
)
