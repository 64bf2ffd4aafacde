"""Recurrent encoder-decoders with and without attention.

Sutskever et al. 2014, Cho et al. 2014, Bahdanau et al. 2015, Luong et al. 2015, GNMT (Wu et al. 2016) and Deep-Att
(Zhou et al. 2016).
"""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import CapturedAttention, capture_for_site
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.normalizers import SAMPLING_NORMALIZERS, Normalizer, Reweighting
from transformer.attention.requested_activations import RECURRENT, is_requested
from transformer.attention.scores import Score, score_class, score_name
from transformer.attention.sites import Axis, MapValues, Site
from transformer.config import Config, NonNegativeInt, NumHeads, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.attention_cell import (
    Alignment,
    AttentionCell,
    AttentionCellConfig,
    AttentionSpan,
    KeyValueProjection,
)
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import Initialization, InitializationRule, ScoreInitialization
from transformer.layers.linear import Linear
from transformer.layers.own_score import resolve_score
from transformer.layers.recurrent import (
    CellKind,
    CellState,
    Direction,
    RecurrentConfig,
    RecurrentStack,
    SkipConnections,
)
from transformer.layers.sequence_lengths import real_lengths
from transformer.models.model import Aux, ForwardPass, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import (
    SITE,
    DecoderSteps,
    EncodedSource,
    RecurrentAttentionDecoder,
    StepInput,
    capture_all_steps,
    compute_context,
    reinforce_extras,
    sample_scheduled_sampling_mask,
    sample_soft_attention_examples,
)
from transformer.models.task_interface import TRANSLATION, TaskInterface


class ContextVectorKind(enum.Enum):
    """The context vector that the decoder computes from the annotations h_1 ... h_N, besides its initial state.

    Attributes:
        NONE: No context vector (Sutskever et al. 2014).
        LAST: The encoder's last state, at every step (Cho et al. 2014).
        MEAN: (1/N) sum_i h_i.
        SUM: sum_i h_i.
        ATTENTION: sum_i a_i h_i (Bahdanau et al. 2015, equation 5).
        ATTENTION_OVER_LENGTH: (1/N) sum_i a_i h_i, as some lectures write it: the weights already sum to one, so this
            context vector shrinks with the length of the source.
    """

    NONE = "none"
    LAST = "last"
    MEAN = "mean"
    SUM = "sum"
    ATTENTION = "attention"
    ATTENTION_OVER_LENGTH = "attention_over_length"

    @property
    def attends(self) -> bool:
        """Whether it is computed by attention."""
        return self in (ContextVectorKind.ATTENTION, ContextVectorKind.ATTENTION_OVER_LENGTH)


class Annotations(enum.Enum):
    """The annotations h_1 ... h_N of the source, which the context vector is made of.

    Attributes:
        STATE: The outputs of the encoder's top layer.
        FAST_FORWARD: W e_i of e_i = [h_i ; f_i], the outputs and the projected inputs of all cells of the top layer; W
            has a quarter as many rows as columns (Zhou et al. 2016, Deep-Att, equations 8 to 10 and section 4.2: an
            LSTM's f has four times as many features as h, so that 5120 features become 1280). An e_i has f whole also
            where `fast_forward_half` passes on its half between layers.
    """

    STATE = "state"
    FAST_FORWARD = "fast_forward"


class AttentionQuery(enum.Enum):
    """The decoder state that is the attention query; w_t is the word that step t reads, c_t the context vector.

    Attributes:
        PREVIOUS: s_{t-1}, and s_t = f(s_{t-1}, [w_t ; c_t]) (Bahdanau et al. 2015, appendix A.2.2).
        CURRENT: s_t = f(s_{t-1}, w_t), and only the output layer reads c_t (Luong et al. 2015, section 3.1).
        INPUT_FEEDING: s_t = f(s_{t-1}, [w_t ; r_{t-1}]), where r_{t-1} is the output layer of the previous step (Luong
            et al. 2015, section 3.3).
        BOTTOM_LAYER: The previous state of the lowest layer, which reads [w_t ; c_t]; every layer above reads c_t as
            well (Wu et al. 2016, GNMT, section 3 and figure 1).
        BOTTOM_LAYER_ONLY: The same, but only the lowest layer reads c_t (Zhou et al. 2016, Deep-Att, equations 10 and
            11).
    """

    PREVIOUS = "previous"
    CURRENT = "current"
    INPUT_FEEDING = "input_feeding"
    BOTTOM_LAYER = "bottom_layer"
    BOTTOM_LAYER_ONLY = "bottom_layer_only"

    @property
    def precedes_step(self) -> bool:
        """Whether attention is computed before the step, from states of the previous one."""
        return self is AttentionQuery.PREVIOUS or self.is_bottom_layer

    @property
    def is_bottom_layer(self) -> bool:
        """Whether the lowest layer attends, and not the top one."""
        return self in (AttentionQuery.BOTTOM_LAYER, AttentionQuery.BOTTOM_LAYER_ONLY)


class OutputLayerKind(enum.Enum):
    """The output layer r_t, from which the logits of the next word are computed.

    Bahdanau et al. (2015) write p(y_t | ...) = g(y_{t-1}, s_t, c_t) in equation 4, but print the state s_{t-1} in
    appendix A.2.2. The default follows the equation: the state s_t has read the word and the context vector, and an
    output layer of s_{t-1} never reads the state of the last step.

    Attributes:
        MAXOUT: The larger of each pair of features of W [s_t ; w_t ; c_t] + b (Bahdanau et al. 2015, equation 4).
        MAXOUT_OF_PREVIOUS_STATE: The same of W [s_{t-1} ; w_t ; c_t] + b (Bahdanau et al. 2015, appendix A.2.2).
        TANH: tanh(W [c_t ; s_t]) (Luong et al. 2015, equation 5).
        STATE: s_t itself, the output of the top layer (Wu et al. 2016, section 3).
    """

    MAXOUT = "maxout"
    MAXOUT_OF_PREVIOUS_STATE = "maxout_of_previous_state"
    TANH = "tanh"
    STATE = "state"


class InitialDecoderState(enum.Enum):
    """How the decoder's initial state is computed.

    Attributes:
        TANH: In every layer tanh(W h + b) of the last state h of the encoder's top layer, an LSTM's memory W' c + b'
            (Bahdanau et al. 2015, appendix A.2.2, who use the backward direction only).
        COPY: The last state of the encoder's layer of the same index (Sutskever et al. 2014).
        ZERO: Zeros, so that the decoder knows of the source by its context vector only. Zhou et al. (2016) name no
            other path from Deep-Att's encoder to its decoder, and no initial state.
    """

    TANH = "tanh"
    COPY = "copy"
    ZERO = "zero"


@dataclasses.dataclass(frozen=True)
class RecurrentEncoderDecoderConfig(Config, path="config.model"):
    """A recurrent encoder-decoder; the defaults are those of Bahdanau et al. 2015 with a smaller width.

    Attributes:
        cell: The equations of a cell.
        width: Features of the states of both sides and of the output layer.
        embedding_width: Features of a word vector.
        encoder_layers: Layers of the encoder.
        decoder_layers: Layers of the decoder.
        direction: The encoder's direction; backward reads the source reversed (Sutskever et al. 2014).
        skip_connections: The skip connections between layers of both sides.
        initial_decoder_state: How the decoder's initial state is computed.
        annotations: What the encoder says of each position of the source.
        context_vector: The context vector that the decoder reads.
        attention_query: The decoder state that is the attention query.
        output_layer: The layer from which the logits are computed.
        score: The attention's score function.
        normalizer: How logits become weights.
        key_value_projection: How keys and values are made from the annotations.
        heads: Number of heads.
        head_dim: Features of a projected head; 0 as in `AttentionCellConfig`.
        attention_span: Which annotations a query sees.
        half_width: D of the local attention spans.
        max_length: The longest source, for the score `location` only.
        soft_attention_probability: With a normalizer that samples, the probability that a training example uses the
            attention probabilities instead (Xu et al. 2015, section 4.1).
        vocab_size: Rows of the embedding table; None means as many as the task's tokens.
        initialization: The initialization of the parameters.
        dropout: Dropout rate of word vectors, upper layers' inputs and the output layer.
        scheduled_sampling: In training, the probability of reading the model's own sampled word in place of the
            reference, reached linearly (Bengio et al. 2015).
        scheduled_sampling_steps: Training steps until that probability is reached.

    Raises:
        UserError: If a value is out of range, or if two choices cannot be combined.
    """

    cell: CellKind = CellKind.GRU_RESET_BEFORE
    width: PositiveInt = 256
    embedding_width: PositiveInt = 256
    encoder_layers: NumLayers = 1
    decoder_layers: NumLayers = 1
    direction: Direction = Direction.BIDIRECTIONAL
    skip_connections: SkipConnections = SkipConnections.NONE
    initial_decoder_state: InitialDecoderState = InitialDecoderState.TANH
    annotations: Annotations = Annotations.STATE
    context_vector: ContextVectorKind = ContextVectorKind.ATTENTION
    attention_query: AttentionQuery = AttentionQuery.PREVIOUS
    output_layer: OutputLayerKind = OutputLayerKind.MAXOUT
    score: Score | str = AttentionCellConfig.score
    normalizer: Normalizer = AttentionCellConfig.normalizer
    key_value_projection: KeyValueProjection = AttentionCellConfig.key_value_projection
    heads: NumHeads = AttentionCellConfig.heads
    head_dim: NonNegativeInt = AttentionCellConfig.head_dim
    attention_span: AttentionSpan = AttentionCellConfig.attention_span
    half_width: PositiveInt = AttentionCellConfig.half_width
    max_length: NonNegativeInt = AttentionCellConfig.max_length
    soft_attention_probability: Rate = 0.0
    vocab_size: int | None = None
    initialization: Initialization = Initialization.XAVIER
    dropout: Rate = 0.0
    scheduled_sampling: Rate = 0.0
    scheduled_sampling_steps: PositiveInt = 10_000

    def _check(self) -> None:
        if self.soft_attention_probability and not (
            self.normalizer in SAMPLING_NORMALIZERS and self.context_vector.attends
        ):
            raise UserError(
                f"config.model.soft_attention_probability={self.soft_attention_probability} is for an attention that "
                "draws: use normalizer=hard or straight_through, or soft_attention_probability=0"
            )
        if self.attention_query is AttentionQuery.INPUT_FEEDING and self.context_vector is ContextVectorKind.NONE:
            raise UserError(
                "config.model.attention_query=input_feeding needs a context vector to feed back, and "
                "config.model.context_vector=none has none: use attention_query=current, or another context vector"
            )
        ignores_annotations = self.context_vector in (ContextVectorKind.NONE, ContextVectorKind.LAST)
        if ignores_annotations and self.annotations is not Annotations.STATE:
            raise UserError(
                f"config.model.context_vector={self.context_vector.value} reads no annotations, which "
                f"config.model.annotations={self.annotations.value} projects: say annotations=state, or "
                "context_vector=attention"
            )
        previous = self.attention_query is AttentionQuery.PREVIOUS
        if self.output_layer is OutputLayerKind.MAXOUT_OF_PREVIOUS_STATE and not previous:
            raise UserError(
                "config.model.output_layer=maxout_of_previous_state reads the state that attends, and "
                f"config.model.attention_query={self.attention_query.value} attends with the next one: use "
                "attention_query=previous, or output_layer=maxout"
            )
        single = all(len(self.direction.cell_directions(layer)) == 1 for layer in range(self.encoder_layers))
        same_layers = single and self.encoder_layers == self.decoder_layers
        if self.initial_decoder_state is InitialDecoderState.COPY and not same_layers:
            raise UserError(
                "config.model.initial_decoder_state=copy needs as many decoder layers as encoder layers, each of one "
                f"direction: encoder_layers={self.encoder_layers}, decoder_layers={self.decoder_layers}, "
                f"direction={self.direction.value}; or use initial_decoder_state=tanh"
            )
        if self.initial_decoder_state is InitialDecoderState.ZERO and self.context_vector is ContextVectorKind.NONE:
            raise UserError(
                "config.model.initial_decoder_state=zero and config.model.context_vector=none tell the decoder nothing "
                "of the source: say initial_decoder_state=tanh, or context_vector=attention"
            )
        if self.context_vector.attends:
            self.check_attention()

    def check_attention(self) -> None:
        """Check that the choices and sizes of the attention can be combined.

        Raises:
            UserError: If sizes do not match, or if two choices cannot be combined.
        """
        self.attention()
        if self.attention_span is AttentionSpan.PREDICTIVE and self.normalizer in SAMPLING_NORMALIZERS:
            raise UserError(
                "config.model.attention_span=predictive weights the keys around its center, of which "
                f"config.model.normalizer={self.normalizer.value} leaves one: say attention_span=monotonic, or "
                "normalizer=softmax"
            )
        memory, split = self.annotation_width, self.key_value_projection is KeyValueProjection.SPLIT
        for name, size in (("width", self.width), ("the annotations", memory)):
            if size % self.heads and not (split and self.head_dim):
                raise UserError(f"config.model.heads={self.heads} do not divide the {size} features of {name}")
        kind = resolve_score(self.score)
        if score_class(kind).needs_equal_depths and not split and self.width != memory:
            raise UserError(
                f"config.model.score={score_name(kind)} compares states of {self.width} features with annotations "
                f"of {memory}: say key_value_projection=split, direction=forward, or the score general"
            )

    def encoder(self) -> RecurrentConfig:
        """Return the config of the encoder's layers."""
        return RecurrentConfig(
            self.cell, self.width, self.encoder_layers, self.direction, self.skip_connections, self.dropout
        )

    def decoder(self) -> RecurrentConfig:
        """Return the config of the decoder's layers."""
        return RecurrentConfig(
            self.cell, self.width, self.decoder_layers, skip_connections=self.skip_connections, dropout=self.dropout
        )

    @property
    def annotation_width(self) -> int:
        """The features of an annotation; a quarter of [h ; f], rounded up, for `Annotations.FAST_FORWARD`."""
        encoder = self.encoder()
        match self.annotations:
            case Annotations.STATE:
                return encoder.output_width
            case Annotations.FAST_FORWARD:
                return -(-(encoder.output_width + encoder.projected_width) // 4)

    @property
    def context_width(self) -> int:
        """The features of a context vector; 0 without one."""
        if self.context_vector.attends:
            return self.attention().context_width(self.width, self.annotation_width)
        return 0 if self.context_vector is ContextVectorKind.NONE else self.annotation_width

    @property
    def fed_width(self) -> int:
        """The features that the decoder's first layer reads besides the word vector."""
        match self.attention_query:
            case AttentionQuery.PREVIOUS | AttentionQuery.BOTTOM_LAYER | AttentionQuery.BOTTOM_LAYER_ONLY:
                return self.context_width
            case AttentionQuery.CURRENT:
                return 0
            case AttentionQuery.INPUT_FEEDING:
                return self.width

    @property
    def readout_sizes(self) -> tuple[int, int]:
        """The input and output features of the output layer's matrix; maxout also reads the word and has pairs."""
        both = self.width + self.context_width
        if self.output_layer is OutputLayerKind.TANH:
            return both, self.width
        return both + self.embedding_width, 2 * self.width

    def attention(self) -> AttentionCellConfig:
        """Return the config of the attention; local-p attention has its Gaussian window."""
        bahdanau = self.initialization is Initialization.BAHDANAU
        return AttentionCellConfig(
            self.score,
            self.normalizer,
            Reweighting.GAUSSIAN if self.attention_span is AttentionSpan.PREDICTIVE else Reweighting.NONE,
            self.key_value_projection,
            self.heads,
            self.head_dim,
            self.max_length,
            self.attention_span,
            self.half_width,
            ScoreInitialization.BAHDANAU if bahdanau else ScoreInitialization.OWN,
        )


class DecoderCarry(NamedTuple):
    """The carry between decoder steps.

    Attributes:
        states: The state of each layer.
        position: The index of the step.
        readout: The output layer of the previous step, for input feeding.
        sampled_word: The word that the model sampled last, for scheduled sampling.
    """

    states: tuple[CellState, ...]
    position: Int[Array, " R"]
    readout: Float[Array, "R E"] | None = None
    sampled_word: Int[Array, " R"] | None = None


class StepOutput(NamedTuple):
    """The outputs of a step.

    Attributes:
        readout: The output layer.
        reinforce_extras: What REINFORCE needs of hard attention.
    """

    readout: Float[Array, "*B E"]
    reinforce_extras: dict[str, Array]


class RecurrentEncoderDecoder(RecurrentAttentionDecoder):
    """Encoder, attention and decoder over one joint vocabulary.

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target after a begin token); padding is the
    token `pad`, at the end only. Outputs: logits [B, T, V].
    """

    streams = (
        "source",
        "encoder",
        "target",
        "own",
        "steps",
        "said",
        "attention",
        "decoder",
        "readout",
        "which",
        "draw",
        "soft",
    )

    def __init__(self, config: RecurrentEncoderDecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config = config
        builder = builder.with_rule(InitializationRule(config.initialization))
        vocabulary = padded_vocab_size(interface.vocabularies["joint"], config.vocab_size)
        width, embedding = config.width, config.embedding_width
        self.embedding = Embedding(vocabulary, embedding, builder=builder)
        self.encoder = RecurrentStack(config.encoder(), embedding, builder=builder)
        final, annotations = config.encoder().output_width, config.annotation_width
        read = final + config.encoder().projected_width
        self.annotation_projection = (
            Linear((("features", read),), (("embed", annotations),), bias=False, builder=builder)
            if config.annotations is Annotations.FAST_FORWARD
            else None
        )

        attends = config.context_vector.attends
        self.attention = AttentionCell(config.attention(), width, annotations, builder=builder) if attends else None
        context_width = config.context_width if config.attention_query is AttentionQuery.BOTTOM_LAYER else 0
        self.decoder = RecurrentStack(
            config.decoder(), embedding + config.fed_width, builder=builder, context_width=context_width
        )

        def make_initial_state() -> Linear:
            states = (("layers", config.decoder_layers), ("embed", width))
            return Linear((("features", final),), states, bias=True, builder=builder)

        is_projected = config.initial_decoder_state is InitialDecoderState.TANH
        self.first_hidden = make_initial_state() if is_projected else None
        self.first_memory = make_initial_state() if is_projected and config.cell.has_memory else None
        read, readout_width = config.readout_sizes
        maxout = config.output_layer is not OutputLayerKind.TANH
        self.readout = (
            None
            if config.output_layer is OutputLayerKind.STATE
            else Linear((("features", read),), (("embed", readout_width),), bias=maxout, builder=builder)
        )
        self.output = Linear((("embed", width),), (("vocabulary", vocabulary),), bias=False, builder=builder)

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Return the counter of training steps for scheduled sampling; empty without it."""
        return {"steps": jnp.int32(0)} if self.config.scheduled_sampling else {}

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[EncodedSource, DecoderCarry]:
        """Encode the source; return it, and the decoder's initial carry."""
        source_BxS = jnp.asarray(inputs["source"])
        lengths_B = real_lengths(source_BxS, self.pad)
        words_BxSxE = self._embed(source_BxS, self.random_stream_key(key, "source"))
        h_BxSxM, last = self._encode_annotations(words_BxSxE, lengths_B, self.random_stream_key(key, "encoder"))
        states = self._initial_states(last)
        fed_BxE = (
            jnp.zeros_like(states[-1].hidden) if self.config.attention_query is AttentionQuery.INPUT_FEEDING else None
        )
        samples = key is not None and self.config.scheduled_sampling
        said_B = jnp.asarray(inputs["target"])[:, 0] if samples else None
        first = DecoderCarry(states, jnp.zeros(len(lengths_B), jnp.int32), fed_BxE, said_B)
        match self.config.context_vector:
            case ContextVectorKind.NONE:
                return EncodedSource(lengths_B), first
            case ContextVectorKind.LAST:
                return EncodedSource(lengths_B, vector=last[-1].hidden), first
            case ContextVectorKind.SUM:
                return EncodedSource(lengths_B, vector=jnp.sum(h_BxSxM, axis=1)), first
            case ContextVectorKind.MEAN:
                return EncodedSource(lengths_B, vector=_divide_by_length(jnp.sum(h_BxSxM, axis=1), lengths_B)), first
            case ContextVectorKind.ATTENTION | ContextVectorKind.ATTENTION_OVER_LENGTH:
                assert self.attention is not None
                return EncodedSource(lengths_B, memory=self.attention.prepare(h_BxSxM, lengths_B)), first

    def step_inputs(
        self, state: PyTree, inputs: Inputs, source: EncodedSource, key: Key[Array, ""] | None
    ) -> StepInput:
        """Return the previous words, and in training the samples of scheduled sampling and soft attention."""
        target_BxT, config = jnp.asarray(inputs["target"]), self.config
        use_sampled_word_BxT, use_soft_attention_BxT = None, None
        if key is not None and config.scheduled_sampling:
            share = jnp.minimum(state["steps"] / config.scheduled_sampling_steps, 1) * config.scheduled_sampling
            use_sampled_word_BxT = sample_scheduled_sampling_mask(self._draw_key(key, "own"), share, target_BxT)
        if key is not None and config.soft_attention_probability:
            use_soft_attention_BxT = sample_soft_attention_examples(
                self._draw_key(key, "soft"), config.soft_attention_probability, target_BxT
            )
        return StepInput(
            self._embed(target_BxT, self.random_stream_key(key, "target")),
            use_sampled_word_BxT,
            use_soft_attention_BxT,
        )

    def advance(
        self, source: EncodedSource, carry: DecoderCarry, step_input: StepInput, forward_pass: ForwardPass
    ) -> tuple[DecoderCarry, StepOutput, Alignment | None]:
        """Run one step, in the order that `AttentionQuery` describes."""
        word_RxE, key = step_input.word, forward_pass.key
        if step_input.use_sampled_word is not None:
            assert carry.sampled_word is not None
            word_RxE = jnp.where(
                step_input.use_sampled_word[:, None],
                self._embed(carry.sampled_word, self.random_stream_key(key, "said")),
                word_RxE,
            )
        facts: dict[str, Any] = {
            "position_R": carry.position,
            "soft_R": step_input.use_soft_attention,
            "key": self.random_stream_key(key, "attention"),
            "train": forward_pass.train,
        }
        bottom = self.config.attention_query.is_bottom_layer
        reaches_all_layers = self.config.attention_query is AttentionQuery.BOTTOM_LAYER
        if self.config.attention_query.precedes_step:
            context, alignment = self._compute_context(source, carry.states[0 if bottom else -1].hidden, **facts)
            decoder_input = _concatenate(word_RxE, context)
        else:
            decoder_input = _concatenate(word_RxE, carry.readout)
        output_RxE, states = self.decoder.step(
            decoder_input,
            carry.states,
            context_RxC=context if reaches_all_layers else None,
            key=self.random_stream_key(key, "decoder"),
        )
        if not self.config.attention_query.precedes_step:
            context, alignment = self._compute_context(source, output_RxE, **facts)
        previous = self.config.output_layer is OutputLayerKind.MAXOUT_OF_PREVIOUS_STATE
        state_RxE = carry.states[-1].hidden if previous else output_RxE
        readout_RxE = self._compute_readout(state_RxE, word_RxE, context, self.random_stream_key(key, "readout"))

        sampled_word_R = carry.sampled_word
        if step_input.use_sampled_word is not None:
            draw = self.random_stream_key(key, "draw")
            assert draw is not None
            sampled_word_R = jax.random.categorical(draw, self.logits(jax.lax.stop_gradient(readout_RxE))).astype(
                jnp.int32
            )
        fed_RxE = readout_RxE if self.config.attention_query is AttentionQuery.INPUT_FEEDING else None
        after = DecoderCarry(states, carry.position + 1, fed_RxE, sampled_word_R)
        return after, StepOutput(readout_RxE, self._reinforce_extras(alignment)), alignment

    def run_steps(
        self,
        source: EncodedSource,
        carry: DecoderCarry,
        step_inputs: StepInput,
        mask: Mask,
        forward_pass: ForwardPass,
    ) -> tuple[StepOutput, CapturedAttention | None]:
        """Run the steps in order, or attend for all at once if no state depends on a context vector."""
        runs_in_order = any(map(is_requested, RECURRENT))
        if (
            self.config.attention_query is not AttentionQuery.CURRENT
            or step_inputs.use_sampled_word is not None
            or runs_in_order
        ):
            return super().run_steps(source, carry, step_inputs, mask, forward_pass)
        key = forward_pass.training_key
        decoder_key, read_key = self.random_stream_key(key, "decoder"), self.random_stream_key(key, "readout")
        output_BxTxE, _ = self.decoder(step_inputs.word, mask.query_lengths, carry.states, key=decoder_key)
        captured, extras, context = None, {}, None
        if self.attention is not None:
            assert source.memory is not None
            context, alignment = self.attention(
                output_BxTxE,
                source.memory,
                mask=mask,
                soft_BxQ=step_inputs.use_soft_attention,
                key=self.random_stream_key(key, "attention"),
                train=forward_pass.train,
            )
            context = self._scale_context(context, source)
            extras = {name: jnp.moveaxis(value, 1, 2) for name, value in self._reinforce_extras(alignment).items()}
            captured = capture_all_steps(alignment, capture_for_site(SITE, forward_pass.capture), mask)
        elif source.vector is not None:
            shape = (*step_inputs.word.shape[:2], source.vector.shape[-1])
            context = jnp.broadcast_to(source.vector[:, None], shape)
        return StepOutput(self._compute_readout(output_BxTxE, step_inputs.word, context, read_key), extras), captured

    def output_features(self, step_inputs: StepInput, outputs: StepOutput) -> Float[Array, "*B E"]:
        """Return the output layer, which the step itself computes for input feeding."""
        return outputs.readout

    def unroll(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[DecoderSteps, Aux]:
        """Run all steps; hard attention returns its samples in `extras`, scheduled sampling counts the steps.

        Raises:
            TypeError: If scheduled sampling or soft attention is trained without a key.
        """
        if (
            forward_pass.train
            and forward_pass.key is None
            and (self.config.scheduled_sampling or self.config.soft_attention_probability)
        ):
            raise TypeError("a model that draws in training needs a key")
        steps, aux = super().unroll(state, inputs, forward_pass)
        if forward_pass.train and self.config.scheduled_sampling:
            state = {"steps": state["steps"] + 1}
        return steps, aux._replace(extras=steps.outputs.reinforce_extras, state=state)

    def _encode_annotations(
        self, words_BxSxE: Array, lengths_B: Array, key: Key[Array, ""] | None
    ) -> tuple[Array, tuple[CellState, ...]]:
        """Return the annotations of the source, zero at padding, and the encoder's last states."""
        if self.annotation_projection is None:
            return self.encoder(words_BxSxE, lengths_B, key=key)
        h_BxSxF, f_BxSxP, last = self.encoder.with_projected_input(words_BxSxE, lengths_B, key=key)
        return self.annotation_projection(jnp.concatenate([h_BxSxF, f_BxSxP], axis=-1)), last

    def _compute_context(
        self, source: EncodedSource, query_RxE: Array, **facts: Any
    ) -> tuple[Array | None, Alignment | None]:
        """Return the context vector that a state reads, and its attention."""
        if self.config.context_vector is ContextVectorKind.NONE:
            return None, None
        context_RxC, alignment = compute_context(self.attention, source, query_RxE, **facts)
        return self._scale_context(context_RxC, source), alignment

    def _scale_context(self, context: Array, source: EncodedSource) -> Array:
        """Divide the context vector by the length of the source if the config asks for it."""
        if self.config.context_vector is not ContextVectorKind.ATTENTION_OVER_LENGTH:
            return context
        return _divide_by_length(context, repeat_per_beam(source.lengths, len(context) // len(source.lengths)))

    def _compute_readout(self, state: Array, word: Array, context: Array | None, key: Key[Array, ""] | None) -> Array:
        """Return the output layer r_t of the decoder's state."""
        if self.readout is None:
            return dropout(state, self.config.dropout, key)
        match self.config.output_layer:
            case OutputLayerKind.MAXOUT | OutputLayerKind.MAXOUT_OF_PREVIOUS_STATE:
                pairs = self.readout(_concatenate(state, word, context))
                read = jnp.max(pairs.reshape(*pairs.shape[:-1], -1, 2), axis=-1)
            case OutputLayerKind.TANH:
                read = jnp.tanh(self.readout(_concatenate(context, state)))
        return dropout(read, self.config.dropout, key)

    def _reinforce_extras(self, alignment: Alignment | None) -> dict[str, Array]:
        """Return what REINFORCE needs; straight-through samples have a gradient without it."""
        return reinforce_extras(alignment) if self.config.normalizer is Normalizer.HARD else {}

    def _initial_states(self, last: tuple[CellState, ...]) -> tuple[CellState, ...]:
        """Return the decoder's initial states."""
        top = last[-1]
        if self.config.initial_decoder_state is InitialDecoderState.ZERO:
            return self.decoder.initial(len(top.hidden), top.hidden.dtype)
        if self.first_hidden is None:
            return last
        hidden_LxBxF = jnp.moveaxis(jnp.tanh(self.first_hidden(top.hidden)), 1, 0)
        if self.first_memory is None:
            return tuple(CellState(hidden) for hidden in jnp.unstack(hidden_LxBxF))
        assert top.memory is not None
        memory_LxBxF = jnp.moveaxis(self.first_memory(top.memory), 1, 0)
        return tuple(map(CellState, jnp.unstack(hidden_LxBxF), jnp.unstack(memory_LxBxF)))

    def _embed(self, tokens: Int[Array, "..."], key: Key[Array, ""] | None) -> Float[Array, "..."]:
        return dropout(self.embedding(tokens, self.dtype), self.config.dropout, key)

    def _draw_key(self, key: Key[Array, ""], name: str) -> Key[Array, ""]:
        stream_key = self.random_stream_key(self.random_stream_key(key, name), "which")
        assert stream_key is not None
        return stream_key


def _concatenate(*parts: Array | None) -> Array:
    """Concatenate the features of the parts that are not None."""
    return jnp.concatenate([part for part in parts if part is not None], axis=-1)


def _divide_by_length(x: Array, lengths: Int[Array, " R"]) -> Array:
    """Return x / N; for an empty source, x."""
    return x / jnp.maximum(lengths, 1).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))


def attention_sites(config: RecurrentEncoderDecoderConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder; none if its context vector is fixed."""
    if not config.context_vector.attends:
        return ()
    values = MapValues.PROBABILITY
    if config.attention_span is AttentionSpan.PREDICTIVE:
        values = MapValues.REWEIGHTED
    if config.normalizer in SAMPLING_NORMALIZERS:
        values = MapValues.SAMPLE
    heads = tuple(map(str, range(config.heads)))
    return (Site(SITE, Axis("target"), Axis("source"), ("0",), heads, values=values),)


FAMILY = ModelFamily(
    RecurrentEncoderDecoderConfig, RecurrentEncoderDecoder, frozenset({TRANSLATION}), sites=attention_sites
)
