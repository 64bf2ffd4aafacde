"""XLNet: a permutation language model with two streams of self-attention and a memory (Yang et al. 2019)."""

import dataclasses
import enum
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.capture import CapturedAttention, capture_for_site, gates_for_site
from transformer.attention.inverted_dropout import dropout
from transformer.attention.positions import AttentionPosition
from transformer.attention.sites import Site
from transformer.config import NonNegativeFloat, NonNegativeInt, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.feed_forward import Activation
from transformer.layers.fine_tuning_heads import last_state, make_class_layer, make_head_layer
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, ParameterRole, deepnorm
from transformer.layers.residual import NormPlacement
from transformer.layers.segment_memory import (
    TOKENS,
    memory_key_axis,
    split_memory_by_layer,
    stack_memory_of_layers,
    valid_keys,
)
from transformer.layers.sequence_lengths import real_positions
from transformer.layers.transformer_block import merge_periods_into_layers, scan_blocks
from transformer.layers.transformer_config import (
    SEGMENT_MODEL_POSITIONS,
    Biases,
    PositionEncoding,
    TransformerConfig,
    check_ring_attention,
)
from transformer.layers.two_stream_attention import (
    CONTENT_STREAM,
    QUERY_STREAM,
    SegmentDifferences,
    StreamCaptures,
    StreamGates,
    StreamMaps,
    StreamMasks,
    StreamStates,
    apply_two_stream_block,
    make_two_stream_block,
    two_stream_masks,
)
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import TOKEN_EMBEDDING_PATTERNS, ModelFamily, unlimited_length
from transformer.models.published_sizes import sizes_of_family
from transformer.models.task_interface import (
    EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES,
    PERMUTATION_LANGUAGE_MODELING,
    TEXT_CLASSIFICATION_WITH_TYPES,
    TOKEN_CLASSIFICATION_WITH_TYPES,
    TaskInterface,
    check_choice,
    check_head,
)
from transformer.models.transformer_base import TokenModel, final_states

CONTENT, QUERY = f"{CONTENT_STREAM}/self", f"{QUERY_STREAM}/self"


class XLNetHead(enum.Enum):
    """The head of XLNet.

    With all but the first, the model is the content stream alone, in which all tokens of a text see each other (section
    2.3), without a memory.

    Attributes:
        PERMUTED: The logits of the predicted tokens, from the query stream.
        CLASSES: A linear map of tanh(W h + b), h the last token's state, to the logits of a task's classes, or to a
            score (its code).
        CHOICE: The same to one logit: how well a text answers, compared with that of each other text to choose from.
        TOKEN_CLASSES: A linear map of every state to the logits of a task's classes.
        SPAN: A linear map of every state to two logits: an answer begins here, and it ends here.
        NONE: No head; the model returns the hidden states. It has the vector with which predicted tokens begin.
    """

    PERMUTED = "permuted"
    CLASSES = "classes"
    CHOICE = "choice"
    TOKEN_CLASSES = "token_classes"
    SPAN = "span"
    NONE = "none"


_HEADS_OF_OUTPUT = {
    PERMUTATION_LANGUAGE_MODELING.output: (XLNetHead.PERMUTED,),
    TEXT_CLASSIFICATION_WITH_TYPES.output: (XLNetHead.CLASSES, XLNetHead.CHOICE),
    TOKEN_CLASSIFICATION_WITH_TYPES.output: (XLNetHead.TOKEN_CLASSES,),
    EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES.output: (XLNetHead.SPAN,),
}


@dataclasses.dataclass(frozen=True)
class XLNetConfig(TransformerConfig):
    """The configuration of XLNet; the defaults are XLNet base (Yang et al. 2019, its code).

    The memory is that of XLNet large (appendix A.4). The keys that are not listed are those of `TransformerConfig`.

    Attributes:
        layers: Number of blocks.
        positions: Must be relative, within attention.
        memory_length: How many positions of earlier segments every layer attends to.
        relative_segments: Whether attention knows which tokens are of the same segment, such as a sentence (section
            2.5), as in the published models. Without `types` in the inputs all are of one kind.
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
    norm_placement: NormPlacement = NormPlacement.POST
    biases: Biases = Biases.FEED_FORWARD
    initialization: Initialization = Initialization.GPT
    attention_dropout: Rate = 0.1
    positions: PositionEncoding = SEGMENT_MODEL_POSITIONS
    output_bias: bool = True
    memory_length: NonNegativeInt = 384
    relative_segments: bool = False
    head: XLNetHead = XLNetHead.PERMUTED

    @property
    def resolved_memory_length(self) -> int:
        """The length of the memory: 0 in fine-tuned models, which read one text at a time."""
        return self.memory_length if self.head is XLNetHead.PERMUTED else 0

    def _check(self) -> None:
        super()._check()
        self.check_window_pattern("layers")
        self.check_memory_of_inputs()
        if self.positions.within_attention is AttentionPosition.NONE:
            raise UserError(
                f"config.model.positions={self.positions.value}: the query stream knows a position by attention alone, "
                "never by its embedding; say transformer_xl, or another within attention"
            )
        if self.relative_segments and not self.positions.scheme.supports_relative_segments:
            raise UserError(
                f"config.model.relative_segments=True needs positions with relative segment encodings, which "
                f"positions={self.positions.value} has not: use transformer_xl"
            )
        if self.positions.scheme.shared_by_layers:
            raise UserError(
                f"config.model.positions={self.positions.value} is one table for all layers, which this model has not: "
                "say transformer_xl, shaw, rotary or alibi"
            )
        if self.experts.count:
            raise UserError(f"config.model.experts.count={self.experts.count}: this model has no experts, say 0")


class XLNet(TokenModel):
    """XLNet: predicts tokens in any factorization order, or what is fine-tuned.

    Its inputs, all but `tokens` optional:

    - `tokens` [B, T].
    - `order` [B, T]: each position's place in the factorization order, from 0 (by default from left to right; all alike
      with a head of fine-tuning or none). Lower places are known to higher ones; positions of the same place see each
      other, but no query of that place sees them.
    - `predicted` [B, P]: different positions whose tokens are predicted (by default all, in order).
    - `lengths` [B], beyond which an example is padding (by default none is).
    - `memory` [B, L, M, E] and `past` [B], as for TransformerXLDecoder (by default there is none).
    - `types` [B, T]: kinds of tokens (by default all are of kind 0, as a memory's are), read with relative segments.

    Outputs: logits [B, P, V] of the tokens at the predicted positions, logits [B, C] of classes, logits [B, T, C] of
    classes at each position, logits [B, T, 2] of an answer's start and end, or the states [B, T, E] without a head. The
    extras have the next memory as
    `memory`, the logits of classes as `classes`, and those of an answer as `span`.
    """

    config: XLNetConfig

    def __init__(self, config: XLNetConfig, interface: TaskInterface, builder: ParameterBuilder):
        deep = deepnorm(config.layers)
        builder = builder.with_rule(
            InitializationRule(config.initialization, 2 * config.layers, config.resolved_head_dim, deep.beta)
        )
        # Where nothing scores tokens, neither their own matrix nor their bias would be read.
        scored = config.head is XLNetHead.PERMUTED
        super().__init__(
            config if scored else config.without_token_head(),
            config.padded_vocab_size(interface.vocabularies["tokens"]),
            builder=builder,
        )
        self.max_length = None
        alpha = deep.alpha if config.norm_placement is NormPlacement.DEEPNORM else 1.0
        self.layers = builder.stack(
            lambda builder: make_two_stream_block(config, config.relative_segments, alpha, builder), config.layers
        )
        self.norm = self.make_final_norm(builder)
        # g^(0), the same for every position: the query stream begins without any content (section 2.3).
        rule = builder.rule(ParameterRole.EMBEDDING, 1, config.width)
        blank = scored or config.head is XLNetHead.NONE
        self.blank = builder.parameter(rule, (config.width,), ("embed",)) if blank else None
        pooled, classified = (
            config.head in (XLNetHead.CLASSES, XLNetHead.CHOICE),
            config.head in (XLNetHead.CLASSES, XLNetHead.TOKEN_CLASSES),
        )
        self.pooler = make_head_layer(config, config.width, builder) if pooled else None
        self.classes = make_class_layer(config, interface.vocabularies["classes"], builder) if classified else None
        self.choice = make_head_layer(config, 1, builder) if config.head is XLNetHead.CHOICE else None
        self.span = make_head_layer(config, 2, builder) if config.head is XLNetHead.SPAN else None

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of the head, or the hidden states without a head."""
        hidden, aux = self.hidden(state, inputs, forward_pass)
        match self.config.head:
            case XLNetHead.PERMUTED:
                return self.logits(hidden), aux
            case XLNetHead.CLASSES | XLNetHead.TOKEN_CLASSES:
                return aux.extras["classes"], aux
            case XLNetHead.CHOICE:
                return aux.extras["choice"], aux
            case XLNetHead.SPAN:
                return aux.extras["span"], aux
            case XLNetHead.NONE:
                return hidden, aux

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B _ E"], Aux]:
        """Return the query stream after the last layer, from which `logits` computes the logits.

        With a head of fine-tuning or none, return the content stream instead, and the head's logits in the extras.
        """
        if self.config.head is not XLNetHead.PERMUTED:
            return self._run_fine_tuning(state, inputs, forward_pass)
        streams, aux = self._run_streams(inputs, forward_pass, queries=True)
        assert streams.query is not None
        return streams.query, aux._replace(state=state)

    def _run_fine_tuning(
        self, state: dict, inputs: Inputs, forward_pass: ForwardPass
    ) -> tuple[Float[Array, "B T E"], Aux]:
        tokens_BxT = jnp.asarray(inputs["tokens"])
        stream_key, head_key = split_key(forward_pass.training_key)
        inputs = {"order": jnp.zeros_like(tokens_BxT), **inputs}
        content_BxTxE, aux = self.content(state, inputs, dataclasses.replace(forward_pass, key=stream_key))
        if self.config.head is XLNetHead.NONE:
            return content_BxTxE, aux
        # Its code drops out the last states, and then the summary.
        states_key, summary_key = split_key(head_key)
        states_BxTxE = dropout(content_BxTxE, self.config.dropout, states_key)
        if self.span is not None:
            return content_BxTxE, aux._replace(extras={"span": self.span.logits(states_BxTxE)})
        classified = states_BxTxE
        if self.pooler is not None:
            batch, length = tokens_BxT.shape
            lengths_B = jnp.asarray(inputs.get("lengths", jnp.full(batch, length)))
            summary_BxE = jnp.tanh(self.pooler(last_state(states_BxTxE, lengths_B)))
            classified = dropout(summary_BxE, self.config.dropout, summary_key)
        if self.choice is not None:
            return content_BxTxE, aux._replace(extras={"choice": self.choice.logits(classified)})
        assert self.classes is not None
        return content_BxTxE, aux._replace(extras={"classes": self.classes.logits(classified)})

    def content(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the content stream, which fine-tuning reads and memories are made of (sections 2.3 and 2.4)."""
        streams, aux = self._run_streams(inputs, forward_pass, queries=False)
        return streams.content, aux._replace(state=state)

    def _run_streams(self, inputs: Inputs, forward_pass: ForwardPass, *, queries: bool) -> tuple[StreamStates, Aux]:
        config, memory = self.config, inputs.get("memory")
        tokens_BxT = jnp.asarray(inputs["tokens"])
        batch, length = tokens_BxT.shape
        all_BxT = jnp.broadcast_to(jnp.arange(length), (batch, length))
        predicted_BxP = jnp.asarray(inputs.get("predicted", all_BxT))
        masks = self._stream_masks(inputs, predicted_BxP if "predicted" in inputs else None)
        keys = dict(zip(("content", "query"), split_key(forward_pass.training_key), strict=True))
        ends, layers_key = split_key(keys["content"])
        query_BxPxE = None
        if queries:
            assert self.blank is not None
            blank_BxPxE = jnp.broadcast_to(self.blank[...].astype(self.dtype), (*predicted_BxP.shape, config.width))
            query_BxPxE = dropout(blank_BxPxE, config.dropout, keys["query"])
        with jax.named_scope(CONTENT_STREAM):
            first = StreamStates(self.embed(tokens_BxT, all_BxT[:1], ends), query_BxPxE)
        streams, outputs = scan_blocks(
            self.layers,
            config,
            config.layers,
            functools.partial(
                apply_two_stream_block,
                memory_length=config.resolved_memory_length,
                masks=masks,
                predicted_BxP=predicted_BxP,
                relative_positions=self._segment_differences(inputs),
                capture=StreamCaptures(
                    capture_for_site(CONTENT, forward_pass.capture), capture_for_site(QUERY, forward_pass.capture)
                ),
            ),
            first,
            key=layers_key,
            gates=StreamGates(
                gates_for_site(CONTENT, forward_pass.capture), gates_for_site(QUERY, forward_pass.capture)
            ),
            segment_memories=split_memory_by_layer(memory, len(config.layer_pattern)),
        )
        maps, memories = zip(*outputs, strict=True)
        extras = {"memory": stack_memory_of_layers(memories)} if config.resolved_memory_length else {}
        with jax.named_scope(CONTENT_STREAM):
            content = final_states(self.norm, streams.content)
        with jax.named_scope(QUERY_STREAM):
            query = None if streams.query is None else final_states(self.norm, streams.query)
        return StreamStates(content, query), Aux(_maps_by_site(maps), extras, None)

    def _stream_masks(self, inputs: Inputs, predicted_BxP: Array | None) -> StreamMasks:
        tokens_BxT = jnp.asarray(inputs["tokens"])
        batch, length = tokens_BxT.shape
        order_BxT = jnp.broadcast_to(jnp.asarray(inputs.get("order", jnp.arange(length))), (batch, length))
        real_BxT = real_positions(jnp.asarray(inputs.get("lengths", jnp.full(batch, length))), length)
        asked_BxT = jnp.ones_like(real_BxT)
        if predicted_BxP is not None:
            asked_BxT = jnp.any(predicted_BxP[..., None] == jnp.arange(length)[None, None], axis=1)
        slots = _num_memory_positions(inputs)
        past_B = jnp.asarray(inputs["past"]) if slots else jnp.zeros(batch, jnp.int32)
        return two_stream_masks(order_BxT, real_BxT, asked_BxT, valid_keys(slots, past_B, 0))

    def _segment_differences(self, inputs: Inputs) -> SegmentDifferences | None:
        """Return which queries and keys have different token types; those of a memory are 0."""
        if not self.config.relative_segments:
            return None
        types_BxT = jnp.asarray(inputs.get("types", jnp.zeros_like(jnp.asarray(inputs["tokens"]))))
        key_types_BxK = jnp.pad(types_BxT, ((0, 0), (_num_memory_positions(inputs), 0)))
        return SegmentDifferences(types_BxT[:, :, None] != key_types_BxK[:, None])


def _num_memory_positions(inputs: Inputs) -> int:
    """Return the number of positions of the memory; 0 without one."""
    return inputs["memory"].shape[2] if "memory" in inputs else 0


def _maps_by_site(maps: tuple[StreamMaps, ...]) -> dict[str, CapturedAttention]:
    """Return the captured maps by site, in the order of the layers."""
    stream_maps = zip((CONTENT, QUERY), zip(*maps, strict=True), strict=True)
    return {
        site: jax.tree.map(merge_periods_into_layers, *layers) for site, layers in stream_maps if layers[0] is not None
    }


def check_task(config: XLNetConfig, interface: TaskInterface) -> None:
    """Check that the config has the head that a task needs, and the task sequences of XLNet.

    Raises:
        UserError: If not.
    """
    possible = _HEADS_OF_OUTPUT.get(interface.output or "", (config.head,))
    check_head(config.head, possible, interface, XLNetHead.PERMUTED)
    check_choice(config.head is XLNetHead.CHOICE, interface)
    if interface.vocabularies.get("types", 3) < 3:
        raise UserError(
            "config.model.family=xlnet reads classes from the last token: say config.task.sequence_format=xlnet"
        )


def attention_sites(config: XLNetConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model: fine-tuned models have no query stream."""
    heads, layers = tuple(map(str, range(config.heads))), tuple(map(str, range(config.layers)))
    keys = memory_key_axis(config.resolved_memory_length)
    streams = (CONTENT, QUERY) if config.head is XLNetHead.PERMUTED else (CONTENT,)
    return tuple(Site(stream, TOKENS, keys, layers, heads, values=config.map_values) for stream in streams)


FAMILY = ModelFamily(
    XLNetConfig,
    XLNet,
    frozenset(
        {
            PERMUTATION_LANGUAGE_MODELING,
            TEXT_CLASSIFICATION_WITH_TYPES,
            TOKEN_CLASSIFICATION_WITH_TYPES,
            EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES,
        }
    ),
    sizes=sizes_of_family("xlnet"),
    check_ring_attention_placement=check_ring_attention,
    embedding_patterns=(*TOKEN_EMBEDDING_PATTERNS, "blank"),
    sites=attention_sites,
    check=check_task,
    max_length=unlimited_length,
)
