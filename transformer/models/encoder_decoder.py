"""The encoder-decoder Transformer (Vaswani et al. 2017), and the variants of Marian, T5 and BART."""

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.scores import score_class, score_name
from transformer.attention.sites import Axis, Site
from transformer.config import NonNegativeInt, NumLayers, UserError
from transformer.layers.embedding_and_head import PositionsAndNorm
from transformer.layers.fine_tuning_heads import last_state, make_class_layer, make_head_layer
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import InitializationRule, deepnorm_encoder_decoder
from transformer.layers.kv_cache import KeysAndValues
from transformer.layers.sequence_lengths import check_num_positions, real_lengths, target_lengths
from transformer.layers.transformer_block import (
    Block,
    BlockAux,
    EncoderMemory,
    PerLayerInputs,
    outputs_of_each_layer,
    scan_blocks,
    stack_by_layer,
)
from transformer.layers.transformer_config import (
    Biases,
    CrossAttentionKind,
    PositionEncoding,
    TransformerConfig,
    WidthScale,
    check_ring_attention,
)
from transformer.models.model import Aux, AuxiliaryLoss, Cache, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.published_sizes import sizes_of_family
from transformer.models.task_interface import (
    EXTRACTIVE_QUESTION_ANSWERING,
    TEXT_CLASSIFICATION,
    TRANSLATION,
    TaskInterface,
    check_head,
)
from transformer.models.transformer_base import (
    TokenDecoder,
    capture_for_stack,
    expert_losses,
    final_states,
    gates_for_stack,
    maps_of_stack,
    sites_of_stack,
)

ENCODER, DECODER, TOKENS = "encoder", "decoder", "tokens"


class EncoderDecoderHead(enum.Enum):
    """The head of the encoder-decoder.

    Attributes:
        NEXT_TOKENS: The logits of the next target tokens, by the embedding table or an output matrix.
        CLASSES: A linear map of tanh(W h + b) to the logits of a task's classes, or to a score. The decoder reads the
            same text as the encoder, one token later, and h is its state at the last token (Lewis et al. 2020, section
            3.1).
        SPAN: A linear map of each of the same states to two logits: an answer begins here, and it ends here.
        NONE: No head; the model returns the decoder's hidden states.
    """

    NEXT_TOKENS = "next_tokens"
    CLASSES = "classes"
    SPAN = "span"
    NONE = "none"


TEXT_HEADS = (EncoderDecoderHead.CLASSES, EncoderDecoderHead.SPAN)
"""The heads of models that read one text, with both the encoder and the decoder."""

_HEADS_OF_OUTPUT = {
    TRANSLATION.output: EncoderDecoderHead.NEXT_TOKENS,
    TEXT_CLASSIFICATION.output: EncoderDecoderHead.CLASSES,
    EXTRACTIVE_QUESTION_ANSWERING.output: EncoderDecoderHead.SPAN,
}


class SideEmbeddings(enum.Enum):
    """What follows the table of tokens, which source and target always share.

    Attributes:
        SHARED: Source and target share the table of learned positions and the norm behind the embeddings, too.
        SEPARATE: Each has its own table of positions and norm (BART: Lewis et al. 2020).
    """

    SHARED = "shared"
    SEPARATE = "separate"


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """The configuration of an encoder-decoder; the defaults are Transformer base (Vaswani et al. 2017, table 3).

    The keys that are not listed are those of `TransformerConfig`. `max_length` limits the positions of both sources and
    targets; `attention_windows` are those of self-attention.

    Attributes:
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        position_offset: The number of the first position in the tables of learned positions or in the sinusoidal ones
            (BART: 2).
        side_embeddings: Whether source and target share the table of positions and the norm behind the embeddings.
        cross: Whether the decoder attends to the source, or reads its mean.
        head: The head.

    Raises:
        UserError: If a value is out of range, or if values do not fit each other.
    """

    encoder_layers: NumLayers = 6
    decoder_layers: NumLayers = 6
    position_offset: NonNegativeInt = 0
    side_embeddings: SideEmbeddings = SideEmbeddings.SHARED
    biases: Biases = Biases.FEED_FORWARD
    embedding_scale: WidthScale = WidthScale.SQRT_WIDTH
    cross: CrossAttentionKind = CrossAttentionKind.ATTENTION
    head: EncoderDecoderHead = EncoderDecoderHead.NEXT_TOKENS

    def _check(self) -> None:
        super()._check()
        self.check_window_pattern("encoder_layers")
        self.check_window_pattern("decoder_layers")
        self.check_position_offset(self.position_offset)
        has_tables = self.positions is PositionEncoding.LEARNED or self.embedding_norm
        if self.side_embeddings is SideEmbeddings.SEPARATE and not has_tables:
            raise UserError(
                f"config.model.side_embeddings=separate parts nothing: config.model.positions={self.positions.value} "
                "has no table and config.model.embedding_norm=False; say side_embeddings=shared, positions=learned or "
                "embedding_norm=True"
            )
        if self.cross is CrossAttentionKind.MEAN and score_class(self.score_kind).ranks_keys_for_zero_query:
            raise UserError(
                f"config.model.cross=mean and config.model.score={score_name(self.score_kind)} do not go together: "
                "that score of a query of zeros still depends on the key; say scaled_dot"
            )


class EncoderDecoder(TokenDecoder):
    """Encoder-decoder Transformer with one shared embedding, which is also the output matrix (section 3.4).

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target after a begin token, which may be any
    token); padding is the token `pad`, at the end only. Outputs: logits [B, T, V], or the states [B, T, E] without a
    head. With a head of classes or answers, the inputs are instead `tokens` [B, T] and `lengths` [B], and the outputs
    the logits [B, C] or [B, T, 2], which are also the extras `classes` and `span`.
    """

    def __init__(self, config: EncoderDecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        deep = deepnorm_encoder_decoder(config.encoder_layers, config.decoder_layers)
        residuals = (2 * config.encoder_layers, 3 * config.decoder_layers)
        encoder_builder, decoder_builder = (
            builder.with_rule(InitializationRule(config.initialization, count, config.resolved_head_dim, side.beta))
            for count, side in zip(residuals, deep, strict=True)
        )
        self.kind_of_head = config.head
        self.predicts_tokens = config.head is EncoderDecoderHead.NEXT_TOKENS
        super().__init__(
            config if self.predicts_tokens else config.without_token_head(),
            config.padded_vocab_size(interface.vocabularies["tokens" if config.head in TEXT_HEADS else "joint"]),
            offset=config.position_offset,
            builder=encoder_builder,
        )
        # The target's are the model's own, which a decoding step reads.
        self.separate_sides = config.side_embeddings is SideEmbeddings.SEPARATE
        source = self.make_positions_and_norm(encoder_builder) if self.separate_sides else PositionsAndNorm(None, None)
        self.source_positions, self.source_embedding_norm = source
        if interface.bos_id is None or (interface.pad_id is None and config.head not in TEXT_HEADS):
            raise ValueError("an encoder-decoder needs interface.pad_id and interface.bos_id, the tokens' numbers")
        self.pad, self.begin = interface.pad_id, interface.bos_id
        self.encoder_layers, self.decoder_layers = config.encoder_layers, config.decoder_layers
        self.encoder = self.make_blocks(config.encoder_layers, cross=False, deep=deep[0], builder=encoder_builder)
        self.decoder = self.make_blocks(config.decoder_layers, cross=True, deep=deep[1], builder=decoder_builder)
        self.encoder_relative = self.make_relative_positions(bidirectional=True, builder=encoder_builder)
        self.decoder_relative = self.make_relative_positions(bidirectional=False, builder=decoder_builder)
        self.encoder_norm = self.make_final_norm(encoder_builder)
        self.decoder_norm = self.make_final_norm(decoder_builder)
        # Published heads have biases, also where the blocks have none (T5's code).
        classified = config.head is EncoderDecoderHead.CLASSES
        self.pooler = make_head_layer(config, config.width, decoder_builder, bias=True) if classified else None
        self.classes = (
            make_class_layer(config, interface.vocabularies["classes"], decoder_builder, bias=True)
            if classified
            else None
        )
        answers = config.head is EncoderDecoderHead.SPAN
        self.span = make_head_layer(config, 2, decoder_builder, bias=True) if answers else None

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B *T _"], Aux]:
        """Return the logits of the head, or the hidden states without a head."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        match self.kind_of_head:
            case EncoderDecoderHead.NEXT_TOKENS:
                return self.logits(hidden_BxTxE), aux
            case EncoderDecoderHead.CLASSES:
                return aux.extras["classes"], aux
            case EncoderDecoderHead.SPAN:
                return aux.extras["span"], aux
            case EncoderDecoderHead.NONE:
                return hidden_BxTxE, aux

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the final hidden states, from which `logits` computes the logits."""
        encoder_key, decoder_key = split_key(forward_pass.training_key)
        reads_text = self.kind_of_head in TEXT_HEADS
        decoder_key, head_key = split_key(decoder_key) if reads_text else (decoder_key, None)
        with jax.named_scope(ENCODER):
            memory_BxSxE, source_lengths, encoder_aux = self.encode(inputs, encoder_key, forward_pass.capture)
        if reads_text:
            tokens_BxT = jnp.asarray(inputs["tokens"])
            target_BxT = jnp.pad(tokens_BxT[:, :-1], ((0, 0), (1, 0)), constant_values=self.begin)
            lengths = source_lengths
        else:
            target_BxT = jnp.asarray(inputs["target"])
            assert self.pad is not None
            lengths = target_lengths(target_BxT, source_lengths, self.pad)
        # Padded queries see nothing: their rows stay out of maps and statistics.
        mask = Mask(causal=True, query_lengths=lengths, key_lengths=lengths)
        memory = EncoderMemory(memory_BxSxE, Mask(query_lengths=lengths, key_lengths=source_lengths))
        embedding_key, layers_key = split_key(decoder_key)
        with jax.named_scope(DECODER):
            x_BxTxE, outputs = scan_blocks(
                self.decoder,
                self.config,
                self.decoder_layers,
                functools.partial(
                    Block.__call__,
                    mask=mask,
                    relative_positions=self.decoder_relative(),
                    memory=memory,
                    capture=capture_for_stack(DECODER, forward_pass.capture),
                ),
                self.embed(target_BxT, jnp.arange(target_BxT.shape[1])[None], embedding_key),
                key=layers_key,
                gates=gates_for_stack(DECODER, forward_pass.capture),
            )
            x_BxTxE = final_states(self.decoder_norm, x_BxTxE)
        maps: dict[str, CapturedAttention] = {}
        losses: dict[str, AuxiliaryLoss] = {}
        for stack, stack_aux in ((ENCODER, encoder_aux), (DECODER, stack_by_layer(outputs))):
            maps |= maps_of_stack(stack, stack_aux)
            losses |= expert_losses(stack, stack_aux, self.config.experts)
        return x_BxTxE, Aux(maps, self._head_outputs(x_BxTxE, lengths, head_key), state, losses)

    def _head_outputs(
        self, x_BxTxE: Float[Array, "B T E"], lengths_B: Int[Array, " B"], key: Key[Array, ""] | None
    ) -> dict[str, Array]:
        """Return the logits of classes as `classes`, or of an answer as `span`, if the model has such a head."""
        if self.span is not None:
            return {"span": self.span.logits(x_BxTxE)}
        if self.classes is None or self.pooler is None:
            return {}
        state_key, pooled_key = split_key(key)
        rate = self.config.dropout
        pooled_BxE = jnp.tanh(self.pooler(dropout(last_state(x_BxTxE, lengths_B), rate, state_key)))
        return {"classes": self.classes.logits(dropout(pooled_BxE, rate, pooled_key))}

    def encode(
        self, inputs: Inputs, key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B S E"], Int[Array, " B"], BlockAux]:
        """Encode the source.

        Args:
            inputs: The model's inputs, of which `source` is read, or `tokens` and `lengths`.
            key: Random key for dropout; None means evaluation.
            capture: Which maps to capture; None captures nothing.

        Returns:
            The encoder's output, the lengths of the sources, and the auxiliary results of the layers.
        """
        if self.kind_of_head in TEXT_HEADS:
            source_BxS, lengths = jnp.asarray(inputs["tokens"]), jnp.asarray(inputs["lengths"])
        else:
            assert self.pad is not None
            source_BxS = jnp.asarray(inputs["source"])
            lengths = real_lengths(source_BxS, self.pad)
        own = PositionsAndNorm(self.source_positions, self.source_embedding_norm)
        tables = own if self.separate_sides else None
        mask = Mask(query_lengths=lengths, key_lengths=lengths)
        embedding_key, layers_key = split_key(key)
        x_BxSxE, outputs = scan_blocks(
            self.encoder,
            self.config,
            self.encoder_layers,
            functools.partial(
                Block.__call__,
                mask=mask,
                relative_positions=self.encoder_relative(),
                capture=capture_for_stack(ENCODER, capture),
            ),
            self.embed(source_BxS, jnp.arange(source_BxS.shape[1])[None], embedding_key, tables=tables),
            key=layers_key,
            gates=gates_for_stack(ENCODER, capture),
        )
        return final_states(self.encoder_norm, x_BxSxE), lengths, stack_by_layer(outputs)

    def init_cache(self, state: dict, inputs: Inputs, *, num_beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source and project its keys and values once; every row starts with the begin token.

        Raises:
            UserError: If the source or `length` exceeds `max_length`.
        """
        check_num_positions(length, self.config.max_length, "a target to be generated")
        with jax.named_scope(ENCODER):
            memory_BxSxE, lengths, _ = self.encode(inputs, None, None)
        examples, groups, head_dim = len(memory_BxSxE), self.config.resolved_kv_heads, self.config.resolved_head_dim

        def prefill(block: Block, carry: Array, layer: PerLayerInputs) -> tuple[Array, tuple[Any, KeysAndValues]]:
            assert block.cross is not None
            memory = block.cross.keys_and_values(memory_BxSxE)
            slots = block.attention.cache_length(length, layer.kind.window)
            empty = jnp.zeros((examples, slots, groups, head_dim), self.dtype)
            return carry, (memory, (empty, empty))

        with jax.named_scope(DECODER):
            _, outputs = scan_blocks(self.decoder, self.config, self.decoder_layers, prefill, jnp.zeros(()))
        memories, filled = zip(*outputs_of_each_layer(outputs), strict=True)
        cache = self.make_cache(
            self.decoder,
            filled,
            jnp.zeros(examples, jnp.int32),
            num_beams=num_beams,
            length=length,
            examples={"memory": memories, "lengths": lengths},
        )
        return cache, jnp.full(examples * num_beams, self.begin, jnp.int32)

    def step(
        self, state: dict, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Return the logits after each row's new token, the next cache, and maps over cache and source."""
        mask = Mask(key_lengths=cache.examples["lengths"])
        logits_RxV, cache, aux = self.step_rows(
            DECODER,
            self.decoder,
            cache,
            tokens_R,
            relative=self.decoder_relative,
            norm=self.decoder_norm,
            memories=[EncoderMemory(content, mask) for content in cache.examples["memory"]],
            capture=capture_for_stack(DECODER, forward_pass.capture),
        )
        return logits_RxV, cache, Aux(maps_of_stack(DECODER, aux), {}, state)


def check_task(config: EncoderDecoderConfig, interface: TaskInterface) -> None:
    """Check that the config has the head that a task needs, and the task the begin token that a decoder needs.

    Raises:
        UserError: If it does not.
    """
    output = interface.output
    possible = tuple(EncoderDecoderHead) if output is None else (_HEADS_OF_OUTPUT[output],)
    check_head(config.head, possible, interface, EncoderDecoderHead.NEXT_TOKENS)
    if config.head in TEXT_HEADS and interface.bos_id is None:
        raise UserError(
            "config.model.family=encoder_decoder begins its decoder with a begin token, and the run's tokenizer has "
            "none: use config.model.family=encoder, or another tokenizer"
        )


def attention_sites(config: EncoderDecoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    # A target position reads one token and predicts the next: as a query it is known by the one that it
    # predicts, as a key by the one that it has read.
    source, target, target_input = Axis("source"), Axis("target"), Axis("target_input")
    if config.head in TEXT_HEADS:
        source = target = Axis(TOKENS)
        target_input = Axis("delayed_tokens", delayed_axis=TOKENS)
    return (
        *sites_of_stack(ENCODER, config, config.encoder_layers, source, source),
        *sites_of_stack(DECODER, config, config.decoder_layers, target, target_input, causal=True, memory=source),
    )


FAMILY = ModelFamily(
    EncoderDecoderConfig,
    EncoderDecoder,
    frozenset({TRANSLATION, TEXT_CLASSIFICATION, EXTRACTIVE_QUESTION_ANSWERING}),
    sizes=sizes_of_family("encoder_decoder"),
    check_ring_attention_placement=check_ring_attention,
    sites=attention_sites,
    check=check_task,
)
