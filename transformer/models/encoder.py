"""The encoder-only Transformer: BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019)."""

import dataclasses
import enum
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import NonNegativeFloat, NonNegativeInt, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.feed_forward import Activation
from transformer.layers.fine_tuning_heads import make_class_layer, make_head_layer
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, deepnorm
from transformer.layers.sequence_lengths import real_lengths
from transformer.layers.transformer_block import Block, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig, check_ring_attention
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.published_sizes import sizes_of_family
from transformer.models.task_interface import (
    BERT_PRETRAINING,
    EXTRACTIVE_QUESTION_ANSWERING,
    EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES,
    MASKED_LANGUAGE_MODELING,
    MASKED_LANGUAGE_MODELING_OF_PAIRS,
    TEXT_CLASSIFICATION,
    TEXT_CLASSIFICATION_WITH_TYPES,
    TOKEN_CLASSIFICATION,
    TaskInterface,
    check_head,
)
from transformer.models.transformer_base import (
    TokenModel,
    capture_for_stack,
    expert_losses,
    maps_of_stack,
    sites_of_stack,
)

STACK = "encoder"


class EncoderHead(enum.Enum):
    """The head of the encoder.

    Attributes:
        MASKED: BERT's masked language modeling head.
        PRETRAINING: Both heads of BERT's pre-training: masked language modeling and, after the pooler, next-sentence
            prediction with two logits (Devlin et al. 2019, section 3.1).
        NEXT_SENTENCE: The second of these heads alone.
        CLASSES: A linear map of the pooler's output to the logits of a task's classes, or to a score (Devlin et al.
            2019, section 4.1).
        TOKEN_CLASSES: A linear map of every state to the logits of a task's classes (section 5.3).
        SPAN: A linear map of every state to two logits: an answer begins here, and it ends here (section 4.2).
        NONE: No head; the model returns the hidden states.
    """

    MASKED = "masked"
    PRETRAINING = "pretraining"
    NEXT_SENTENCE = "next_sentence"
    CLASSES = "classes"
    TOKEN_CLASSES = "token_classes"
    SPAN = "span"
    NONE = "none"


class PoolerActivation(enum.Enum):
    """The activation of the pooler.

    Attributes:
        TANH: That of BERT and RoBERTa.
        RELU: That of DistilBERT (its code).
        GELU: That of ELECTRA (its code).
    """

    TANH = "tanh"
    RELU = "relu"
    GELU = "gelu"

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Apply the activation."""
        match self:
            case PoolerActivation.TANH:
                return jnp.tanh(x)
            case PoolerActivation.RELU:
                return jax.nn.relu(x)
            case PoolerActivation.GELU:
                return jax.nn.gelu(x, approximate=False)


# The heads that have each output, the usual one first.
_HEADS_OF_OUTPUT = {
    MASKED_LANGUAGE_MODELING.output: (EncoderHead.MASKED, EncoderHead.PRETRAINING),
    BERT_PRETRAINING.output: (EncoderHead.PRETRAINING,),
    TEXT_CLASSIFICATION.output: (EncoderHead.CLASSES,),
    TOKEN_CLASSIFICATION.output: (EncoderHead.TOKEN_CLASSES,),
    EXTRACTIVE_QUESTION_ANSWERING.output: (EncoderHead.SPAN,),
}


@dataclasses.dataclass(frozen=True)
class EncoderConfig(TransformerConfig):
    """The configuration of an encoder-only Transformer; the defaults are BERT base (Devlin et al. 2019, section 3).

    The keys that are not listed are those of `TransformerConfig`.

    Attributes:
        layers: Number of blocks.
        num_token_types: How many token types have an embedding (sentence A or B); 0 for none.
        add_pooling_layer: Whether there is BERT's pooler, a projection of the first state that classifiers read.
        pooler_activation: The activation of the pooler.
        position_offset: Rows before the first position in the table of positions (RoBERTa: 2).
        head: The head.

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    layers: NumLayers = 12
    width: PositiveInt = 768
    heads: NumHeads = 12
    feed_forward: PositiveInt = 3072
    activation: Activation = Activation.GELU
    norm_epsilon: NonNegativeFloat = 1e-12
    initialization: Initialization = Initialization.BERT
    attention_dropout: Rate = 0.1
    positions: PositionEncoding = PositionEncoding.LEARNED
    max_length: PositiveInt = 512
    embedding_norm: bool = True
    output_bias: bool = True
    num_token_types: NonNegativeInt = 2
    add_pooling_layer: bool = False
    pooler_activation: PoolerActivation = PoolerActivation.TANH
    position_offset: NonNegativeInt = 0
    head: EncoderHead = EncoderHead.MASKED

    bidirectional: ClassVar[bool] = True

    def _check(self) -> None:
        super()._check()
        self.check_window_pattern("layers")
        if self.add_pooling_layer and self.head in (EncoderHead.TOKEN_CLASSES, EncoderHead.SPAN):
            raise UserError(
                f"config.model.add_pooling_layer=True is not read by config.model.head={self.head.value}: leave it out"
            )

    @property
    def pooled(self) -> bool:
        """Whether the model has a pooler, requested or needed by the head."""
        return self.add_pooling_layer or self.head in (
            EncoderHead.PRETRAINING,
            EncoderHead.NEXT_SENTENCE,
            EncoderHead.CLASSES,
        )

    @property
    def scores_tokens(self) -> bool:
        """Whether the head has a logit for every token."""
        return self.head in (EncoderHead.MASKED, EncoderHead.PRETRAINING)


class MaskedLanguageModelingHead(Module):
    """BERT's masked language modeling head before the output matrix, norm(activation(x W + b)) (its code)."""

    def __init__(self, config: EncoderConfig, *, builder: ParameterBuilder):
        self.transform, self.norm = make_head_layer(config, config.width, builder), config.make_norm(builder)
        self.activation = config.activation.function

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Transform every state."""
        return self.norm(self.activation(self.transform(x)))


class Encoder(TokenModel):
    """Encoder-only Transformer: blocks of bidirectional self-attention.

    inputs: `tokens` [B, T]; optionally `types` [B, T] (by default all 0) and `lengths` [B], beyond which an example is
    padding (by default the padding token ends it). Outputs: logits [B, T, V] of the token at each position, logits [B,
    C] of classes, logits [B, T, C] of classes at each position, logits [B, T, 2] of an answer's start and end, logits
    [B, 2] of next-sentence prediction alone, or the states [B, T, E] without a head. The extras have the pooler's
    output [B, E] as `pooled`, the logits [B, 2] of next-sentence prediction as `next_sentence`, those of classes as
    `classes`, and those of an answer as `span`.
    """

    def __init__(self, config: EncoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        deep = deepnorm(config.layers)
        builder = builder.with_rule(
            InitializationRule(config.initialization, 2 * config.layers, config.resolved_head_dim, deep.beta)
        )
        # Where nothing scores tokens, neither their own matrix nor their bias would be read.
        scored = config.scores_tokens
        super().__init__(
            config if scored else config.without_token_head(),
            config.padded_vocab_size(interface.vocabularies["tokens"]),
            types=config.num_token_types,
            offset=config.position_offset,
            builder=builder,
        )
        self.count, self.pad, self.kind_of_head = config.layers, interface.pad_id, config.head
        self.layers = self.make_blocks(config.layers, cross=False, deep=deep, builder=builder)
        self.relative = self.make_relative_positions(bidirectional=True, builder=builder)
        self.norm = self.make_final_norm(builder)
        self.pooler = make_head_layer(config, config.width, builder) if config.pooled else None
        self.pooler_activation = config.pooler_activation
        self.head = MaskedLanguageModelingHead(config, builder=builder) if scored else None
        followed = config.head in (EncoderHead.PRETRAINING, EncoderHead.NEXT_SENTENCE)
        self.next_sentence = make_head_layer(config, 2, builder) if followed else None
        classified = config.head in (EncoderHead.CLASSES, EncoderHead.TOKEN_CLASSES)
        self.classes = make_class_layer(config, interface.vocabularies["classes"], builder) if classified else None
        self.span = make_head_layer(config, 2, builder) if config.head is EncoderHead.SPAN else None

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of the head, or the hidden states without a head."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        match self.kind_of_head:
            case EncoderHead.CLASSES | EncoderHead.TOKEN_CLASSES:
                return aux.extras["classes"], aux
            case EncoderHead.SPAN:
                return aux.extras["span"], aux
            case EncoderHead.NEXT_SENTENCE:
                return aux.extras["next_sentence"], aux
            case EncoderHead.NONE:
                return hidden_BxTxE, aux
            case EncoderHead.MASKED | EncoderHead.PRETRAINING:
                return self.logits(hidden_BxTxE), aux

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the hidden states after the last block."""
        tokens_BxT = jnp.asarray(inputs["tokens"])
        lengths_B = jnp.asarray(inputs["lengths"]) if "lengths" in inputs else self._real_lengths(tokens_BxT)
        mask = Mask() if lengths_B is None else Mask(query_lengths=lengths_B, key_lengths=lengths_B)
        embedding_key, layers_key = split_key(forward_pass.training_key)
        layers_key, classes_key = (layers_key, None) if self.classes is None else split_key(layers_key)
        types_BxT = jnp.asarray(inputs["types"]) if "types" in inputs else None
        x_BxTxE, outputs = scan_blocks(
            self.layers,
            self.config,
            self.count,
            functools.partial(
                Block.__call__,
                mask=mask,
                relative_positions=self.relative(),
                capture=capture_for_stack(STACK, forward_pass.capture),
            ),
            self.embed(tokens_BxT, jnp.arange(tokens_BxT.shape[1])[None], embedding_key, types_BxT),
            key=layers_key,
        )
        x_BxTxE, aux = self.norm(x_BxTxE), stack_by_layer(outputs)
        extras = {} if self.pooler is None else {"pooled": self.pooler_activation(self.pooler(x_BxTxE[:, 0]))}
        if self.next_sentence is not None:
            extras["next_sentence"] = self.next_sentence.logits(extras["pooled"])
        if self.classes is not None:
            classified = extras["pooled"] if self.kind_of_head is EncoderHead.CLASSES else x_BxTxE
            extras["classes"] = self.classes.logits(dropout(classified, self.config.dropout, classes_key))
        if self.span is not None:
            extras["span"] = self.span.logits(x_BxTxE)
        return x_BxTxE, Aux(maps_of_stack(STACK, aux), extras, state, expert_losses(STACK, aux, self.config.experts))

    def logits(self, x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logits from the hidden states after the last block.

        Raises:
            ValueError: If the model has no head.
        """
        if self.head is None:
            raise ValueError("this encoder has no head that scores tokens: build it with config.model.head=masked")
        return super().logits(self.head(x))

    def _real_lengths(self, tokens_BxT: Array) -> Array | None:
        return None if self.pad is None else real_lengths(tokens_BxT, self.pad)


def check_task(config: EncoderConfig, interface: TaskInterface) -> None:
    """Check that the config has the head and the token types that a task needs.

    Raises:
        UserError: If it does not.
    """
    possible = _HEADS_OF_OUTPUT.get(interface.output or "", tuple(EncoderHead))
    check_head(config.head, possible, interface, EncoderHead.MASKED)
    if interface.vocabularies.get("types", 2) > 2:
        raise UserError(
            "config.task.sequence_format=xlnet is read by config.model.family=xlnet alone: say "
            "config.task.sequence_format=bert or roberta"
        )
    if config.num_token_types < 2 and "types" in interface.inputs:
        asks = "input_format=pairs" if config.scores_tokens else "sequence_format=bert"
        raise UserError(
            f"config.model.num_token_types={config.num_token_types} cannot tell texts apart, which config.task.{asks} "
            "needs: use config.model.num_token_types=2"
        )


def attention_sites(config: EncoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    tokens = Axis("tokens")
    return sites_of_stack(STACK, config, config.layers, tokens, tokens)


FAMILY = ModelFamily(
    EncoderConfig,
    Encoder,
    frozenset(
        {
            MASKED_LANGUAGE_MODELING,
            MASKED_LANGUAGE_MODELING_OF_PAIRS,
            BERT_PRETRAINING,
            TEXT_CLASSIFICATION,
            TEXT_CLASSIFICATION_WITH_TYPES,
            TOKEN_CLASSIFICATION,
            EXTRACTIVE_QUESTION_ANSWERING,
            EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES,
        }
    ),
    sizes=sizes_of_family("encoder"),
    check_ring_attention_placement=check_ring_attention,
    sites=attention_sites,
    check=check_task,
)
