"""The encoder-only Transformer: BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and their successors.

These are ALBERT (Lan et al. 2020), ELECTRA (Clark et al. 2020), DeBERTa (He et al. 2021) and ModernBERT (Warner et al.
2024).
"""

import dataclasses
import enum
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import NonNegativeFloat, NonNegativeInt, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.feed_forward import Activation
from transformer.layers.fine_tuning_heads import make_class_layer, make_head_layer, mean_state
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, deepnorm
from transformer.layers.sequence_lengths import real_lengths
from transformer.layers.transformer_block import Block, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import (
    SINUSOIDAL_POSITIONS,
    PositionEncoding,
    TransformerConfig,
    WidthScale,
    check_ring_attention,
)
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
    check_choice,
    check_head,
)
from transformer.models.transformer_base import (
    TokenModel,
    capture_for_stack,
    expert_losses,
    final_states,
    gates_for_stack,
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
        CHOICE: A linear map of the pooler's output to one logit: how well a text answers, compared with that of each
            other text to choose from (section 4.4).
        TOKEN_CLASSES: A linear map of every state to the logits of a task's classes (section 5.3).
        SPAN: A linear map of every state to two logits: an answer begins here, and it ends here (section 4.2).
        NONE: No head; the model returns the hidden states.
    """

    MASKED = "masked"
    PRETRAINING = "pretraining"
    NEXT_SENTENCE = "next_sentence"
    CLASSES = "classes"
    CHOICE = "choice"
    TOKEN_CLASSES = "token_classes"
    SPAN = "span"
    NONE = "none"


class PoolerActivation(enum.Enum):
    """The activation of the pooler.

    Attributes:
        TANH: That of BERT and RoBERTa.
        RELU: That of DistilBERT (its code).
        GELU: That of ELECTRA and DeBERTa (their code).
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


class Pooling(enum.Enum):
    """What the pooler, or a head of classes of texts without one, reads of a text.

    Attributes:
        FIRST: The state of the first token (Devlin et al. 2019, section 3).
        MEAN: The mean of the states of all tokens (Reimers and Gurevych 2019, section 3).
    """

    FIRST = "first"
    MEAN = "mean"

    def __call__(self, x_BxTxE: Float[Array, "B T E"], lengths_B: Int[Array, " B"] | None) -> Float[Array, "B E"]:
        """Reduce the states of each text to one."""
        match self:
            case Pooling.FIRST:
                return x_BxTxE[:, 0]
            case Pooling.MEAN:
                return mean_state(x_BxTxE, lengths_B)


class HeadTransform(enum.Enum):
    """Which heads have BERT's transformation norm(activation(x W + b)) before their last matrix.

    Attributes:
        TOKENS: That of masked tokens alone (Devlin et al. 2019, their code); classes of texts have a pooler.
        EVERY: Every head, those of classes and of answers, too; none has a pooler (Warner et al. 2024, their code).
    """

    TOKENS = "tokens"
    EVERY = "every"


class HeadBiases(enum.Enum):
    """Which linear maps of the heads have a bias, but for that of the tokens' logits, which is `output_bias`.

    Attributes:
        BLOCKS: All if the feed-forward networks of the blocks have biases, else none.
        ALL: All.
        LAST: The last map of a head alone (ModernBERT's code).
    """

    BLOCKS = "blocks"
    ALL = "all"
    LAST = "last"


# The heads that have each output, the usual one first.
_HEADS_OF_OUTPUT = {
    MASKED_LANGUAGE_MODELING.output: (EncoderHead.MASKED, EncoderHead.PRETRAINING),
    BERT_PRETRAINING.output: (EncoderHead.PRETRAINING,),
    TEXT_CLASSIFICATION.output: (EncoderHead.CLASSES, EncoderHead.CHOICE),
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
        embedding_width: Features of the embeddings, with a linear layer from them to the blocks, and the transformation
            of the head of masked tokens back to them (Lan et al. 2020, section 3.1); None means `width`, without it.
        layer_groups: Groups of successive layers that share the parameters of one block (Lan et al. 2020, section 3.1);
            1 shares them among all layers, and None shares none.
        pooling: What the pooler reads.
        head_transform: Which heads transform their states.
        head_biases: Which maps of the heads have a bias.
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
    embedding_width: PositiveInt | None = None
    layer_groups: PositiveInt | None = None
    pooling: Pooling = Pooling.FIRST
    head_transform: HeadTransform = HeadTransform.TOKENS
    head_biases: HeadBiases = HeadBiases.BLOCKS
    head: EncoderHead = EncoderHead.MASKED

    bidirectional: ClassVar[bool] = True

    def _check(self) -> None:
        super()._check()
        self.check_window_pattern("layers")
        if self.add_pooling_layer and self.head in (EncoderHead.TOKEN_CLASSES, EncoderHead.SPAN):
            raise UserError(
                f"config.model.add_pooling_layer=True is not read by config.model.head={self.head.value}: leave it out"
            )
        self.check_embedding_width()
        self.check_layer_groups()
        self.check_head_transform()

    def check_embedding_width(self) -> None:
        """Check that embeddings of a width of their own are asked for nothing that only those of the model can have.

        Raises:
            UserError: If they are; gives the keys, their values and what would be right.
        """
        if self.embedding_width is None:
            return
        setting = f"config.model.embedding_width={self.embedding_width}"
        for name in ("embedding_scale", "logit_scale"):
            if (scale := getattr(self, name)) is not WidthScale.NONE:
                raise UserError(
                    f"config.model.{name}={scale.value} is a factor of one width, and {setting} beside "
                    f"config.model.width={self.width} makes two: say {name}=none"
                )
        if self.embedding_width % 2 and self.positions in SINUSOIDAL_POSITIONS:
            raise UserError(
                f"{setting} is odd; config.model.positions={self.positions.value} pairs sines with cosines: say an "
                "even one"
            )

    @property
    def layers_per_block(self) -> int:
        """How many successive layers share the parameters of one block."""
        return 1 if self.layer_groups is None else self.layers // self.layer_groups

    def check_layer_groups(self) -> None:
        """Check that the layers can be divided into the groups that share parameters.

        Raises:
            UserError: If they cannot; gives the keys, their values and what would be right.
        """
        if self.layer_groups is None:
            return
        setting = f"config.model.layer_groups={self.layer_groups}"
        if self.layers % self.layer_groups:
            raise UserError(
                f"{setting} does not divide config.model.layers={self.layers}: say 1, which shares one block among all "
                "layers, or another divisor"
            )
        if self.experts.layer_period > 1:
            raise UserError(
                f"{setting} shares one block among layers, which config.model.experts.every_n_layers="
                f"{self.experts.every_n_layers} makes of two kinds: say every_n_layers=1, or layer_groups=None"
            )
        if self.layers_per_block > 1 and self.layers_per_block % (period := len(self.layer_pattern)):
            raise UserError(
                f"{setting} makes groups of {self.layers_per_block} layers, no multiple of the {period} layers of "
                "config.model.attention_windows and rotary_pattern: say fewer groups"
            )

    def check_head_transform(self) -> None:
        """Check that a transformation before every head stands where it can.

        Raises:
            UserError: If it does not; gives the keys, their values and what would be right.
        """
        if self.head_transform is HeadTransform.TOKENS:
            return
        setting = f"config.model.head_transform={self.head_transform.value}"
        if self.add_pooling_layer or self.head in (EncoderHead.PRETRAINING, EncoderHead.NEXT_SENTENCE):
            head = f"config.model.head={self.head.value}"
            what = "config.model.add_pooling_layer=True" if self.add_pooling_layer else head
            raise UserError(f"{setting} has no pooler, which {what} needs: say head_transform=tokens")
        if self.embedding_width is not None:
            raise UserError(
                f"{setting} keeps the width of the states, and config.model.embedding_width={self.embedding_width} is "
                "another: say head_transform=tokens"
            )

    @property
    def transform_bias(self) -> bool:
        """Whether the pooler and the transformation of the heads have a bias."""
        if self.head_biases is HeadBiases.BLOCKS:
            return self.biases.in_feed_forward
        return self.head_biases is HeadBiases.ALL

    @property
    def last_head_bias(self) -> bool:
        """Whether the last map of a head has a bias."""
        return self.biases.in_feed_forward if self.head_biases is HeadBiases.BLOCKS else True

    @property
    def transforms_states(self) -> bool:
        """Whether the head transforms states before its last matrix."""
        return self.scores_tokens or (self.head_transform is HeadTransform.EVERY and self.head is not EncoderHead.NONE)

    @property
    def pooled(self) -> bool:
        """Whether the model has one state of a whole text, requested or needed by the head."""
        return self.add_pooling_layer or self.head in (
            EncoderHead.PRETRAINING,
            EncoderHead.NEXT_SENTENCE,
            EncoderHead.CLASSES,
            EncoderHead.CHOICE,
        )

    @property
    def scores_tokens(self) -> bool:
        """Whether the head has a logit for every token."""
        return self.head in (EncoderHead.MASKED, EncoderHead.PRETRAINING)


class MaskedLanguageModelingHead(Module):
    """BERT's masked language modeling head before the output matrix, norm(activation(x W + b)) (its code).

    Its outputs are as wide as the embeddings.
    """

    def __init__(self, config: EncoderConfig, *, builder: ParameterBuilder):
        width = config.width if config.embedding_width is None else config.embedding_width
        self.transform = make_head_layer(config, width, builder, bias=config.transform_bias)
        self.norm = config.make_norm_over(width, builder, bias=config.resolved_norm_bias)
        self.activation = config.activation.function

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B F"]:
        """Transform every state."""
        with jax.named_scope("head"):
            return self.norm(self.activation(self.transform(x)))


class Encoder(TokenModel):
    """Encoder-only Transformer: blocks of bidirectional self-attention.

    inputs: `tokens` [B, T]; optionally `types` [B, T] (by default all 0) and `lengths` [B], beyond which an example is
    padding (by default the padding token ends it). Outputs: logits [B, T, V] of the token at each position, logits [B,
    C] of classes, the logit [B, 1] of a text to choose, logits [B, T, C] of classes at each position, logits [B, T, 2]
    of an answer's start and end, logits [B, 2] of next-sentence prediction alone, or the states [B, T, E] without a
    head. The extras have the pooler's output [B, E] as `pooled`, the logits [B, 2] of next-sentence prediction as
    `next_sentence`, those of classes as `classes`, that of a text to choose as `choice`, and those of an answer as
    `span`.
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
            embedding_width=config.embedding_width,
            builder=builder,
        )
        self.count, self.pad, self.kind_of_head = config.layers, interface.pad_id, config.head
        self.layers_per_block = config.layers_per_block
        self.layers = self.make_blocks(config.layer_groups or config.layers, cross=False, deep=deep, builder=builder)
        self.relative = self.make_relative_positions(bidirectional=True, builder=builder)
        self.norm = self.make_final_norm(builder)
        self.pooling, self.pooled, self.scores_tokens = config.pooling, config.pooled, scored
        has_pooler = config.pooled and config.head_transform is HeadTransform.TOKENS
        self.pooler = make_head_layer(config, config.width, builder, bias=config.transform_bias) if has_pooler else None
        self.pooler_activation = config.pooler_activation
        self.head = MaskedLanguageModelingHead(config, builder=builder) if config.transforms_states else None
        followed = config.head in (EncoderHead.PRETRAINING, EncoderHead.NEXT_SENTENCE)
        last_bias = config.last_head_bias
        self.next_sentence = make_head_layer(config, 2, builder, bias=last_bias) if followed else None
        classified = config.head in (EncoderHead.CLASSES, EncoderHead.TOKEN_CLASSES)
        self.classes = (
            make_class_layer(config, interface.vocabularies["classes"], builder, bias=last_bias) if classified else None
        )
        chosen = config.head is EncoderHead.CHOICE
        self.choice = make_head_layer(config, 1, builder, bias=last_bias) if chosen else None
        self.span = make_head_layer(config, 2, builder, bias=last_bias) if config.head is EncoderHead.SPAN else None

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of the head, or the hidden states without a head."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        match self.kind_of_head:
            case EncoderHead.CLASSES | EncoderHead.TOKEN_CLASSES:
                return aux.extras["classes"], aux
            case EncoderHead.CHOICE:
                return aux.extras["choice"], aux
            case EncoderHead.SPAN:
                return aux.extras["span"], aux
            case EncoderHead.NEXT_SENTENCE:
                return aux.extras["next_sentence"], aux
            case EncoderHead.NONE:
                return hidden_BxTxE, aux
            case EncoderHead.MASKED | EncoderHead.PRETRAINING:
                return self.logits(hidden_BxTxE), aux

    @jax.named_scope(STACK)
    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the hidden states after the last block."""
        tokens_BxT = jnp.asarray(inputs["tokens"])
        lengths_B = jnp.asarray(inputs["lengths"]) if "lengths" in inputs else self._real_lengths(tokens_BxT)
        mask = Mask() if lengths_B is None else Mask(query_lengths=lengths_B, key_lengths=lengths_B)
        embedding_key, layers_key = split_key(forward_pass.training_key)
        is_classified = self.classes is not None or self.choice is not None
        layers_key, classes_key = split_key(layers_key) if is_classified else (layers_key, None)
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
            gates=gates_for_stack(STACK, forward_pass.capture),
            layers_per_block=self.layers_per_block,
        )
        x_BxTxE, aux = final_states(self.norm, x_BxTxE), stack_by_layer(outputs)
        extras = {"pooled": self._summarize(self.pooling(x_BxTxE, lengths_B))} if self.pooled else {}
        if self.next_sentence is not None:
            extras["next_sentence"] = self.next_sentence.logits(extras["pooled"])
        if self.classes is not None:
            is_of_text = self.kind_of_head is EncoderHead.CLASSES
            classified = extras["pooled"] if is_of_text else self._transform(x_BxTxE)
            extras["classes"] = self.classes.logits(dropout(classified, self.config.dropout, classes_key))
        if self.choice is not None:
            extras["choice"] = self.choice.logits(dropout(extras["pooled"], self.config.dropout, classes_key))
        if self.span is not None:
            extras["span"] = self.span.logits(self._transform(x_BxTxE))
        return x_BxTxE, Aux(maps_of_stack(STACK, aux), extras, state, expert_losses(STACK, aux, self.config.experts))

    def logits(self, x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logits from the hidden states after the last block.

        Raises:
            ValueError: If the model has no head.
        """
        if self.head is None or not self.scores_tokens:
            raise ValueError("this encoder has no head that scores tokens: build it with config.model.head=masked")
        return super().logits(self.head(x))

    def _summarize(self, x: Float[Array, "B E"]) -> Float[Array, "B E"]:
        """Apply the pooler to the state that is read of a text, or the head's transformation where there is none."""
        return self._transform(x) if self.pooler is None else self.pooler_activation(self.pooler(x))

    def _transform(self, x: Float[Array, "*B E"]) -> Float[Array, "*B F"]:
        """Transform states before the last matrix of a head other than that of tokens."""
        return x if self.head is None else self.head(x)

    def _real_lengths(self, tokens_BxT: Array) -> Array | None:
        return None if self.pad is None else real_lengths(tokens_BxT, self.pad)


def check_task(config: EncoderConfig, interface: TaskInterface) -> None:
    """Check that the config has the head and the token types that a task needs.

    Raises:
        UserError: If it does not.
    """
    possible = _HEADS_OF_OUTPUT.get(interface.output or "", tuple(EncoderHead))
    check_head(config.head, possible, interface, EncoderHead.MASKED)
    check_choice(config.head is EncoderHead.CHOICE, interface)
    if interface.vocabularies.get("types", 2) > 2:
        raise UserError(
            "config.task.sequence_format=xlnet is read by config.model.family=xlnet alone: say "
            "config.task.sequence_format=bert or roberta"
        )
    # Without any type, the separator alone tells texts apart, as in DistilBERT, ModernBERT and DeBERTa.
    unneeded = config.num_token_types == 0 and not config.scores_tokens
    if config.num_token_types < 2 and "types" in interface.inputs and not unneeded:
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
