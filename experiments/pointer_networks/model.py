"""Pointer networks and the sequence-to-sequence models that they replace (Vinyals, Fortunato and Jaitly 2015)."""

import dataclasses
import enum
from typing import Any, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.pointer_networks.signature import POINTER_END, POINTER_PREDICTION
from transformer.attention.capture import (
    Capture,
    CapturedAttention,
    capture_for_site,
    capture_weights,
    single_layer_maps,
)
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NumLayers, UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory
from transformer.layers.beam_rows import beam_queries_to_rows, flatten_beam_axis, repeat_per_beam, unflatten_beam_axis
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentStack
from transformer.layers.sequence_lengths import real_positions, target_lengths
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, PyTree, StatelessModule, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import SITE as ATTENTION_SITE
from transformer.models.recurrent_attention_decoder_base import DecoderSteps, RecurrentAttentionDecoder
from transformer.models.task_interface import TaskInterface

SITE = "decoder/pointer"
COORDINATES = 2
# The logit of a point that is not there: finite, so that its product with a smoothing of zero is zero.
NO_POINT = -1e9


class OutputKind(enum.Enum):
    """What the answers are chosen from, and how.

    pointer: the points of the input, by an attention over them (section 2.3 of the paper). fixed_vocabulary: the
    indices of as many points as training has at most, from the decoder's state alone (section 2.1).
    fixed_vocabulary_with_attention: the same from the state and its attention over the encoder's outputs (section 2.2).
    """

    POINTER = "pointer"
    FIXED_VOCABULARY = "fixed_vocabulary"
    FIXED_VOCABULARY_WITH_ATTENTION = "fixed_vocabulary_with_attention"


class DecoderInputKind(enum.Enum):
    """What the decoder reads of the last chosen point.

    point: its coordinates (section 2.3 of the paper). encoded: the encoder's output e_j, which also depends on the
    other points. index: a learned embedding of its index, for a fixed vocabulary (section 2.1).
    """

    POINT = "point"
    ENCODED = "encoded"
    INDEX = "index"


@dataclasses.dataclass(frozen=True)
class PointerNetworkConfig(Config, path="config.model"):
    """The configuration of a recurrent encoder over the points, and a decoder that chooses points.

    The decoder has the encoder's cell and the width of the encoder's outputs; its layers start with the final states of
    the encoder's topmost layers (section 2.3).

    Attributes:
        encoder: The encoder: its cell, width, layers and direction.
        decoder_layers: Number of decoder layers.
        decoder_input: What the decoder reads at each step.
        output: What the answers are chosen from.

    Raises:
        UserError: If the decoder has more layers than the encoder, or one starts with a state of another width, or a
            pointer network would read indices, of which it has no vocabulary.
    """

    encoder: RecurrentConfig = dataclasses.field(default_factory=lambda: RecurrentConfig(width=256))
    decoder_layers: NumLayers = 1
    decoder_input: DecoderInputKind = DecoderInputKind.POINT
    output: OutputKind = OutputKind.POINTER

    def _check(self) -> None:
        if self.output is OutputKind.POINTER and self.decoder_input is DecoderInputKind.INDEX:
            raise UserError(
                "config.model.decoder_input=index embeds the indices of a fixed vocabulary, which "
                "config.model.output=pointer does not have: say decoder_input=point or encoded, or output="
                "fixed_vocabulary or fixed_vocabulary_with_attention"
            )
        if self.decoder_layers > self.encoder.layers:
            raise UserError(
                f"config.model.decoder_layers={self.decoder_layers} must be 1 to {self.encoder.layers}, "
                "config.model.encoder.layers: each begins with the state of one of those"
            )
        state_width, first = self.encoder.output_width, self.encoder.layers - self.decoder_layers
        widths = [self.encoder.layer_output_width(layer) for layer in range(first, self.encoder.layers)]
        fits = [width == state_width for width in widths]
        if not all(fits):
            raise UserError(
                f"config.model.decoder_layers={self.decoder_layers} begin with the states of the topmost layers of the "
                f"encoder, and with config.model.encoder.direction={self.encoder.direction.value} one of these has "
                f"{widths[fits.index(False)]} features where the decoder has {state_width}: say "
                f"config.model.decoder_layers={fits[::-1].index(False)}, or another direction"
            )

    @property
    def decoder(self) -> RecurrentConfig:
        """The config of the decoder's layers."""
        width, forward = self.encoder.output_width, Direction.FORWARD
        return dataclasses.replace(self.encoder, width=width, layers=self.decoder_layers, direction=forward)

    @property
    def decoder_input_width(self) -> int:
        """The number of features that the decoder reads at each step."""
        return COORDINATES if self.decoder_input is DecoderInputKind.POINT else self.encoder.output_width


def read_points(inputs: Inputs, dtype: Any) -> tuple[Float[Array, "B N 2"], Int[Array, " B"]]:
    """Return the points and how many of each example there are. What lies beyond them, even NaN, is never read."""
    points_BxNx2, lengths_B = jnp.asarray(inputs["points"], dtype), jnp.asarray(inputs["lengths"])
    real_BxN = real_positions(lengths_B, points_BxNx2.shape[1])
    return jnp.where(real_BxN[..., None], points_BxNx2, 0), lengths_B


def prepend(first_F: Float[Array, " F"], points_BxNxF: Float[Array, "B N F"]) -> Float[Array, "B K F"]:
    """Return features of the end, which is the same for all examples, followed by those of the points."""
    first_Bx1xF = jnp.broadcast_to(first_F, (len(points_BxNxF), 1, *first_F.shape))
    return with_logical_constraint(jnp.concatenate([first_Bx1xF, points_BxNxF], axis=1), "batch", None, None)


def mask_absent_points(logits: Float[Array, "B *Q K"], lengths_B: Int[Array, " B"]) -> Float[Array, "B *Q K"]:
    """Return the logits of the end and of all points, `NO_POINT` for points that an example does not have."""
    real_BxK = real_positions(lengths_B + 1, logits.shape[-1])
    return jnp.where(jnp.expand_dims(real_BxK, tuple(range(1, logits.ndim - 1))), logits, NO_POINT)


class PointerNetwork(StatelessModule):
    """A pointer network, whose output at every step is an attention over the points (section 2.3 of the paper).

    u^i_j = v' tanh(W1 e_j + W2 d_i), p(C_i = j | C_1 ... C_{i-1}, P) = softmax(u^i)_j. e_1 ... e_n are the encoder's
    outputs at the points and e_0, learned, stands for the end; d_i is the decoder's state after reading C_{i-1}, or a
    learned vector at the first step.
    """

    def __init__(self, config: PointerNetworkConfig, builder: ParameterBuilder):
        self.config, self.dtype = config, builder.dtype
        encoded = config.encoder.output_width
        self.encoder = RecurrentStack(config.encoder, COORDINATES, builder=builder)
        self.decoder = RecurrentStack(config.decoder, config.decoder_input_width, builder=builder)
        normal = jax.nn.initializers.normal(0.1)
        self.begin = builder.parameter(normal, (config.decoder_input_width,), ("features",))
        self.end = builder.parameter(normal, (encoded,), ("features",))
        # Its default is the additive score; the weighted sum of what it points at is read by nobody.
        self.pointer = AttentionCell(AttentionCellConfig(), encoded, encoded, builder=builder)

    def encode(
        self, inputs: Inputs, key: Key[Array, ""] | None = None
    ) -> tuple[AttentionMemory, Float[Array, "B K I"], tuple[CellState, ...]]:
        """Encode the points.

        Args:
            inputs: `points` and `lengths`.
            key: The random key of dropout.

        Returns:
            The memory that the decoder points at, what it reads after each choice (the begin vector for END), and d_0.
        """
        points_BxNx2, lengths_B = read_points(inputs, self.dtype)
        encoded_BxNxE, carry = self.encoder(points_BxNx2, lengths_B, key=key)
        memory_BxKxE = prepend(jnp.asarray(self.end[...], self.dtype), encoded_BxNxE)
        last_chosen_BxNxI = points_BxNx2 if self.config.decoder_input is DecoderInputKind.POINT else encoded_BxNxE
        fed_BxKxI = prepend(jnp.asarray(self.begin[...], self.dtype), last_chosen_BxNxI)
        return self.pointer.prepare(memory_BxKxE, lengths_B + 1), fed_BxKxI, carry[-self.config.decoder_layers :]

    def point(self, query_BxQxE: Float[Array, "B Q E"], memory: AttentionMemory, mask: Mask) -> Alignment:
        """Return how each query weights the end and the points; the logits are those of the answer."""
        _, alignment = self.pointer(query_BxQxE, memory, mask=mask)
        return alignment._replace(logits=mask_absent_points(alignment.logits, memory.lengths - 1))

    def forward(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T K"], Aux]:
        """Return the logits at every step of `target`: END, followed by the numbers of the points (teacher forcing).

        No step reads the attention of the one before, so the decoder runs over all of `target` first.
        """
        target_BxT = jnp.asarray(inputs["target"])
        encoder_key, decoder_key = split_key(forward_pass.training_key)
        memory, fed_BxKxI, carry = self.encode(inputs, encoder_key)
        lengths_B = target_lengths(target_BxT, jnp.asarray(inputs["lengths"]), POINTER_END)
        fed_BxTxI = jnp.take_along_axis(fed_BxKxI, target_BxT[..., None], axis=1)
        query_BxTxE, _ = self.decoder(fed_BxTxI, lengths_B, carry, key=decoder_key)
        mask = Mask(query_lengths=lengths_B, key_lengths=memory.lengths)
        alignment = self.point(query_BxTxE, memory, mask)
        return alignment.logits[:, 0], Aux(_capture_maps(alignment, mask, forward_pass.capture), {}, state)

    def init_cache(
        self, state: PyTree, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Return the initial cache; rows are examples x beams, and encoded points are stored once for all beams."""
        memory, fed_BxKxI, carry = self.encode(inputs)
        begin_R = jnp.full(len(fed_BxKxI) * num_beams, POINTER_END, jnp.int32)
        return Cache(layers=(), rows=repeat_per_beam(carry, num_beams), examples=(memory, fed_BxKxI)), begin_R

    def step(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R K"], Cache, Aux]:
        """Return the logits of the end and of every point after one more choice."""
        memory, decoder_inputs_BxKxI = cache.examples
        chosen_BxM = unflatten_beam_axis(tokens_R, len(decoder_inputs_BxKxI))
        input_RxI = flatten_beam_axis(jnp.take_along_axis(decoder_inputs_BxKxI, chosen_BxM[..., None], axis=1))
        query_RxE, rows = self.decoder.step(input_RxI, cache.rows)
        mask = Mask(key_lengths=memory.lengths)
        alignment = self.point(unflatten_beam_axis(query_RxE, len(decoder_inputs_BxKxI)), memory, mask)
        # The beams of an example are queries of one attention; as maps they are rows of one query each.
        row_alignment = jax.tree.map(lambda leaf: beam_queries_to_rows(leaf)[:, :, None], alignment)
        lengths_R = jnp.repeat(memory.lengths, chosen_BxM.shape[1])
        maps = _capture_maps(row_alignment, Mask(key_lengths=lengths_R), forward_pass.capture)
        return row_alignment.logits[:, 0, 0], cache._replace(rows=rows), Aux(maps, {}, state)


def _capture_maps(alignment: Alignment, mask: Mask, capture: Capture | None) -> dict[str, CapturedAttention]:
    captured = capture_weights(alignment.weights, capture_for_site(SITE, capture), logits=alignment.logits, mask=mask)
    return single_layer_maps(SITE, captured, capture)


class EncodedPoints(NamedTuple):
    """What every step of `FixedVocabularyNetwork` reads.

    Attributes:
        lengths: The number of points of each example.
        fed: What the decoder reads after the end, which begins, and after each point.
        memory: The encoder's outputs, to attend to; None without attention.
    """

    lengths: Int[Array, " B"]
    decoder_inputs: Float[Array, "B K I"]
    memory: AttentionMemory | None


class FixedVocabularyCarry(NamedTuple):
    """The state of `FixedVocabularyNetwork` between steps.

    Attributes:
        cells: The states of the decoder's layers.
        context: The last context d'_{i-1}; None without attention.
    """

    cells: tuple[CellState, ...]
    context: Float[Array, "R E"] | None


class FixedVocabularyNetwork(RecurrentAttentionDecoder):
    """Sequence to sequence with indices of points as its words, with or without attention (sections 2.1 and 2.2).

    Without attention p(C_i | C_1 ... C_{i-1}, P) = softmax(W d_i + b), d_i being the decoder's state after reading
    C_{i-1}. With attention u^i_j = v' tanh(W1 e_j + W2 d_i), d'_i = sum_j softmax(u^i)_j e_j, and the output is
    softmax(W [d_i; d'_i] + b); the next step reads d'_i besides C_i, and the first one zeros.

    The vocabulary has the end and as many indices as an example of the task has points at most. Indices of points that
    an example does not have are no choice.
    """

    streams = ("encoder", "steps")

    def __init__(self, config: PointerNetworkConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config, self.vocabulary = config, interface.vocabularies["target"]
        encoded, attends = config.encoder.output_width, config.output is OutputKind.FIXED_VOCABULARY_WITH_ATTENTION
        context = encoded if attends else 0
        self.encoder = RecurrentStack(config.encoder, COORDINATES, builder=builder)
        self.decoder = RecurrentStack(config.decoder, config.decoder_input_width + context, builder=builder)
        if config.decoder_input is DecoderInputKind.INDEX:
            self.embedding = Embedding(self.vocabulary, config.decoder_input_width, builder=builder)
        else:
            normal = jax.nn.initializers.normal(0.1)
            self.first_input = builder.parameter(normal, (config.decoder_input_width,), ("features",))
        self.attention = AttentionCell(AttentionCellConfig(), encoded, encoded, builder=builder) if attends else None
        self.output = Linear(
            (("embed", encoded + context),), (("vocabulary", self.vocabulary),), bias=True, builder=builder
        )

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[EncodedPoints, FixedVocabularyCarry]:
        """Return the encoded points, and the encoder's final states with a context of zeros.

        Raises:
            UserError: If there are more points than the vocabulary has indices of.
        """
        points_BxNx2, lengths_B = read_points(inputs, self.dtype)
        count = points_BxNx2.shape[1]
        if count >= self.vocabulary:
            raise UserError(
                f"{count} points are more than the {self.vocabulary - 1} whose indices are the vocabulary of "
                f"config.model.output={self.config.output.value}: leave out examples of more (config.task.eval_sizes), "
                "raise config.task.max_points, or say config.model.output=pointer"
            )
        encoded_BxNxE, carry = self.encoder(points_BxNx2, lengths_B, key=self.random_stream_key(key, "encoder"))
        match self.config.decoder_input:
            case DecoderInputKind.POINT:
                fed_BxKxI = prepend(jnp.asarray(self.first_input[...], self.dtype), points_BxNx2)
            case DecoderInputKind.ENCODED:
                fed_BxKxI = prepend(jnp.asarray(self.first_input[...], self.dtype), encoded_BxNxE)
            case DecoderInputKind.INDEX:
                fed_KxI = self.embedding(jnp.arange(count + 1), self.dtype)
                fed_BxKxI = jnp.broadcast_to(fed_KxI, (len(lengths_B), *fed_KxI.shape))
            case _:
                assert_never(self.config.decoder_input)
        memory, context_BxE = None, None
        if self.attention is not None:
            memory, context_BxE = self.attention.prepare(encoded_BxNxE, lengths_B), jnp.zeros_like(encoded_BxNxE[:, 0])
        first = FixedVocabularyCarry(carry[-self.config.decoder_layers :], context_BxE)
        return EncodedPoints(lengths_B, fed_BxKxI, memory), first

    def step_inputs(
        self, state: PyTree, inputs: Inputs, source: EncodedPoints, key: Key[Array, ""] | None
    ) -> Float[Array, "B T I"]:
        """Return what the decoder reads of `target`: END, followed by the numbers of the points (teacher forcing)."""
        return jnp.take_along_axis(source.decoder_inputs, jnp.asarray(inputs["target"])[..., None], axis=1)

    def next_step_input(
        self, tokens_R: Int[Array, " R"], source: EncodedPoints, carry: FixedVocabularyCarry
    ) -> Float[Array, "R I"]:
        """Return what the decoder reads of the chosen points."""
        chosen_BxM = unflatten_beam_axis(tokens_R, len(source.lengths))
        return flatten_beam_axis(jnp.take_along_axis(source.decoder_inputs, chosen_BxM[..., None], axis=1))

    def advance(
        self,
        source: EncodedPoints,
        carry: FixedVocabularyCarry,
        step_input: Float[Array, "R I"],
        forward_pass: ForwardPass,
    ) -> tuple[FixedVocabularyCarry, Float[Array, "R F"], Alignment | None]:
        """Read one more choice and attend, and return d_i, followed by d'_i."""
        if self.attention is None:
            features_RxE, cells = self.decoder.step(step_input, carry.cells, key=forward_pass.key)
            carry, alignment = FixedVocabularyCarry(cells, None), None
        else:
            memory, before_RxE = source.memory, carry.context
            assert memory is not None
            assert before_RxE is not None
            state_RxE, cells = self.decoder.step(
                jnp.concatenate([step_input, before_RxE], axis=-1), carry.cells, key=forward_pass.key
            )
            context_RxE, alignment = self.attention.step(state_RxE, memory)
            features_RxE = jnp.concatenate([state_RxE, context_RxE], axis=-1)
            carry = FixedVocabularyCarry(cells, context_RxE)
        return carry, features_RxE, alignment

    def index_logits(self, steps: DecoderSteps) -> Float[Array, "*B K"]:
        """Return the logits of the end and of every point's index."""
        lengths_B, count = steps.source.lengths, steps.source.decoder_inputs.shape[1]
        lengths_R = repeat_per_beam(lengths_B, len(steps.outputs) // len(lengths_B))
        return mask_absent_points(self.logits(steps.outputs)[..., :count], lengths_R)

    def forward(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T K"], Aux]:
        """Return the logits at every step of `target`."""
        steps, aux = self.unroll(state, inputs, forward_pass)
        return self.index_logits(steps), aux

    def step(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R K"], Cache, Aux]:
        """Return the logits after one more choice."""
        steps, cache, aux = self.extend(state, cache, tokens_R, forward_pass)
        return self.index_logits(steps), cache, aux


def make_network(config: PointerNetworkConfig, interface: TaskInterface, builder: ParameterBuilder) -> Module:
    """Make the network whose outputs a config names."""
    if config.output is OutputKind.POINTER:
        return PointerNetwork(config, builder)
    return FixedVocabularyNetwork(config, interface, builder)


def attention_sites(config: PointerNetworkConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of a network: the pointer itself, or attention over what was encoded."""
    match config.output:
        case OutputKind.POINTER:
            name, keys = SITE, "points"
        case OutputKind.FIXED_VOCABULARY_WITH_ATTENTION:
            name, keys = ATTENTION_SITE, "encoded points"
        case OutputKind.FIXED_VOCABULARY:
            return ()
        case _:
            assert_never(config.output)
    return (Site(name, Axis("target"), Axis(keys, AxisKind.POINTS), layers=("0",), heads=("0",)),)


FAMILY = ModelFamily(PointerNetworkConfig, make_network, frozenset({POINTER_PREDICTION}), sites=attention_sites)
