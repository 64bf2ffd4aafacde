"""Show, Attend and Tell: an LSTM decoder that attends to an image at every word of its caption (Xu et al. 2015)."""

import dataclasses
import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.normalizers import Normalizer
from transformer.attention.sites import Axis, MapValues, Site
from transformer.config import Config, NonNegativeFloat, PositiveInt, Rate, UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.layers.grid_positions import GridPositionEncoding
from transformer.layers.image_grid_attention import GridFeatures
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, RecurrentConfig, RecurrentLayer
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, AuxiliaryLoss, ForwardPass, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import (
    SITE,
    DecoderSteps,
    EncodedSource,
    RecurrentAttentionDecoder,
    StepInput,
    compute_context,
    reinforce_extras,
    sample_soft_attention_examples,
)
from transformer.models.task_interface import IMAGE_CAPTIONING, TaskInterface


class AttentionKind(enum.Enum):
    """How the context z_t is read from the annotations a_1 ... a_L at each word, with attention probabilities p_t.

    soft: sum_i p_ti a_i (Xu et al. 2015, equation 13). hard: one a_i, sampled from p_t in training, which learns by
    REINFORCE, and the most probable one otherwise (equations 8 and 9). none: the mean (1/L) sum_i a_i at every word.
    """

    SOFT = "soft"
    HARD = "hard"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class CaptionerConfig(Config, path="config.model"):
    """The configuration of a captioner: a convolutional image encoder, and an LSTM decoder that attends to its grid.

    Attributes:
        image_encoder: The convolutions.
        grid_positions: The position embeddings of the grid; none, as in the paper, leaves only the edges that
            convolutions see.
        width: Features of the LSTM.
        embedding_width: Features of the word embeddings, and of the input of the output layer.
        attention: How the image is attended to.
        gated: Whether z_t is multiplied by beta_t (section 4.2.1).
        doubly_stochastic_weight: Weight of the penalty of equation 14 on grid positions that soft attention neglects or
            dwells on.
        soft_attention_probability: With hard attention, the probability that a training example is attended to softly
            (section 4.1).

    Raises:
        UserError: If `soft_attention_probability` is set without hard attention, or `doubly_stochastic_weight` without
            soft attention.
    """

    image_encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    grid_positions: GridPositionEncoding = GridPositionEncoding.LEARNED
    width: PositiveInt = 256
    embedding_width: PositiveInt = 128
    attention: AttentionKind = AttentionKind.SOFT
    gated: bool = True
    doubly_stochastic_weight: NonNegativeFloat = 0.0
    soft_attention_probability: Rate = 0.0

    def _check(self) -> None:
        if self.soft_attention_probability and self.attention is not AttentionKind.HARD:
            raise UserError(
                f"config.model.soft_attention_probability={self.soft_attention_probability} is for an attention that "
                "draws: say attention=hard, or soft_attention_probability=0"
            )
        if self.doubly_stochastic_weight and self.attention is not AttentionKind.SOFT:
            raise UserError(
                f"config.model.doubly_stochastic_weight={self.doubly_stochastic_weight} is for soft attention, "
                "whose weights have a gradient: say attention=soft, or doubly_stochastic_weight=0"
            )

    @property
    def attention_cell(self) -> AttentionCellConfig | None:
        """The config of the decoder's attention with the additive score f_att; None without attention."""
        match self.attention:
            case AttentionKind.SOFT:
                return AttentionCellConfig()
            case AttentionKind.HARD:
                return AttentionCellConfig(normalizer=Normalizer.HARD)
            case AttentionKind.NONE:
                return None

    @property
    def decoder(self) -> RecurrentConfig:
        """The config of the LSTM."""
        return RecurrentConfig(width=self.width)


class StepOutput(NamedTuple):
    """The outputs of one decoder step.

    Attributes:
        hidden: h_t.
        context: z_t, after the gate.
        weights: The attention weights; None without attention.
        reinforce_extras: The sampling terms of hard attention.
    """

    hidden: Float[Array, "*B F"]
    context: Float[Array, "*B A"]
    weights: Float[Array, "*B L"] | None
    reinforce_extras: dict[str, Array]


class Captioner(RecurrentAttentionDecoder):
    """Show, Attend and Tell: p(y_t | a, y_1 ... y_{t-1}) = softmax(L_o (E y_{t-1} + L_h h_t + L_z z_t)) (equation 7).

    e_ti = f_att(a_i, h_{t-1}); z_t is beta_t = sigmoid(f_beta(h_{t-1})) times the attended annotations (section 4.2.1);
    h_t = LSTM([E y_{t-1} ; z_t], h_{t-1}); c_0 and h_0 are each a layer of tanh over the mean annotation (section
    3.1.2). Inputs: the image, and `target`, the caption after a begin token, padded at its end.
    """

    streams = ("soft", "steps")

    def __init__(self, config: CaptionerConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config = config
        image_width, width, embedding = config.image_encoder.width, config.width, config.embedding_width
        vocabulary = interface.vocabularies["target"]
        self.places = GridFeatures(
            config.image_encoder, config.grid_positions, interface.inputs["image"].shape[1:], builder=builder
        )
        self.embedding = Embedding(vocabulary, embedding, builder=builder)

        def linear(inputs: int, name: str, outputs: int, *, bias: bool) -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=bias, builder=builder)

        self.first_hidden = linear(image_width, "embed", width, bias=True)
        self.first_memory = linear(image_width, "embed", width, bias=True)
        attention = config.attention_cell
        self.attention = None if attention is None else AttentionCell(attention, width, image_width, builder=builder)
        self.gate = linear(width, "features", 1, bias=True) if config.gated else None
        self.decoder = RecurrentLayer(config.decoder, embedding + image_width, builder=builder)
        self.of_state = linear(width, "embed", embedding, bias=False)
        self.of_context = linear(image_width, "embed", embedding, bias=False)
        self.output = Linear((("embed", embedding),), (("vocabulary", vocabulary),), bias=False, builder=builder)

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[EncodedSource, CellState]:
        """Return the annotations as attention reads them, or their mean, and h_0 and c_0."""
        annotations_BxLxA = with_logical_constraint(
            self.places(jnp.asarray(inputs["image"], self.dtype)), "batch", None, None
        )
        batch, count, _ = annotations_BxLxA.shape
        mean_BxA = jnp.mean(annotations_BxLxA, axis=1)
        memory = None if self.attention is None else self.attention.prepare(annotations_BxLxA)
        first = CellState(jnp.tanh(self.first_hidden(mean_BxA)), jnp.tanh(self.first_memory(mean_BxA)))
        return EncodedSource(jnp.full(batch, count, jnp.int32), memory, mean_BxA), first

    def step_inputs(
        self, state: PyTree, inputs: Inputs, source: EncodedSource, key: Key[Array, ""] | None
    ) -> StepInput:
        """Return the word embeddings, and in training of hard attention which captions are read softly."""
        word_inputs, key = super().step_inputs(state, inputs, source, key), self.random_stream_key(key, "soft")
        if key is None or not self.config.soft_attention_probability:
            return word_inputs
        return word_inputs._replace(
            use_soft_attention=sample_soft_attention_examples(
                key, self.config.soft_attention_probability, jnp.asarray(inputs["target"])
            )
        )

    def advance(
        self, source: EncodedSource, state: CellState, step_input: StepInput, forward_pass: ForwardPass
    ) -> tuple[CellState, StepOutput, Alignment | None]:
        """Attend with h_{t-1}, then compute h_t from the word and the context."""
        facts = {"soft_R": step_input.use_soft_attention, "key": forward_pass.key, "train": forward_pass.train}
        context_RxA, alignment = compute_context(self.attention, source, state.hidden, **facts)
        if self.gate is not None:
            context_RxA *= jax.nn.sigmoid(self.gate(state.hidden))
        state = self.decoder.step(jnp.concatenate([step_input.word, context_RxA], axis=-1), state)
        weights_RxL = None if alignment is None else alignment.weights[:, 0]
        return state, StepOutput(state.hidden, context_RxA, weights_RxL, reinforce_extras(alignment)), alignment

    def output_features(self, step_inputs: StepInput, outputs: StepOutput) -> Float[Array, "*B E"]:
        """Return E y_{t-1} + L_h h_t + L_z z_t."""
        return step_inputs.word + self.of_state(outputs.hidden) + self.of_context(outputs.context)

    def unroll(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[DecoderSteps, Aux]:
        """Run all steps; hard attention returns its samples in `extras`, soft attention the loss `doubly_stochastic`.

        The loss is sum_i (1 - sum_t p_ti)^2 of every example (equation 14). With weight 0 it is logged only.
        """
        steps, aux = super().unroll(state, inputs, forward_pass)
        if self.config.attention is not AttentionKind.SOFT:
            return steps, aux._replace(extras=steps.outputs.reinforce_extras)
        over_words_BxL = jnp.sum(steps.outputs.weights, axis=1)
        total, count = jnp.sum(jnp.square(1 - over_words_BxL)), float(len(over_words_BxL))
        loss = AuxiliaryLoss(total, count, self.config.doubly_stochastic_weight)
        return steps, aux._replace(losses={"doubly_stochastic": loss})


def attention_sites(config: CaptionerConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder, over the grid of the task's images; none without attention.

    Raises:
        UserError: If the strides of the convolutions do not divide the image.
    """
    grid = config.image_encoder.axis("grid", *interface.inputs["image"].shape[1:3])
    if config.attention is AttentionKind.NONE:
        return ()
    values = MapValues.SAMPLE if config.attention is AttentionKind.HARD else MapValues.PROBABILITY
    return (Site(SITE, Axis("target"), grid, layers=("0",), heads=("0",), values=values),)


FAMILY = ModelFamily(CaptionerConfig, Captioner, frozenset({IMAGE_CAPTIONING}), sites=attention_sites)
