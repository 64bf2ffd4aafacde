"""Stacked attention for VQA: glimpses by two convolutions over the image and the question (Kazemi and Elqursh 2017)."""

import dataclasses
import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.visual_question_answering.signature import VISUAL_QUESTION_ANSWERING
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site
from transformer.attention.inverted_dropout import dropout
from transformer.attention.sites import Site
from transformer.config import Config, NumHops, PositiveInt, Rate, UserError
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.layers.grid_positions import GridPositionEncoding
from transformer.layers.image_grid_attention import (
    GridFeatures,
    ImageReadout,
    glimpse_site,
    grid_softmax,
    stack_layer_maps,
)
from transformer.layers.linear import Linear
from transformer.layers.recurrent import RecurrentConfig, RecurrentStack
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

SITE = "answer/glimpses"
# A place whose features are shorter than this is not made longer.
_MIN_LENGTH = 1e-6


class WordActivation(enum.Enum):
    """What is applied to the word vectors before the recurrent layers.

    Attributes:
        NONE: Nothing, as the paper writes it (section 3.1).
        TANH: The hyperbolic tangent, as the public implementation in PyTorch has it.
    """

    NONE = "none"
    TANH = "tanh"


class QuestionState(enum.Enum):
    """Which state of the last recurrent layer after the last word is the question's.

    Attributes:
        HIDDEN: h, the layer's output.
        MEMORY: The LSTM's c, as the public implementation in PyTorch has it; the paper says "the final state".
    """

    HIDDEN = "hidden"
    MEMORY = "memory"


@dataclasses.dataclass(frozen=True)
class StackedAttentionConfig(Config, path="config.model"):
    """The configuration of a question encoder, glimpses at an image grid, and a classifier.

    Attributes:
        embedding_width: Features of the word embeddings.
        word_activation: What is applied to word embeddings.
        question_encoder: The recurrent layers over words.
        question_state: Which of their states is the question's.
        num_glimpses: The number of glimpses.
        hidden: Features of the first convolution, and of the classifier's first layer.
        image_encoder: The convolutions of the image.
        grid_positions: The position embeddings of the grid.
        image_readout: How the image is read; mean is one glimpse at all positions alike, nothing none.
        dropout: The rate of dropout on word vectors and on the inputs of the glimpses' and the classifier's layers.
        vocab_size: Rows of the vocabulary, None for as many as the task has tokens.

    Raises:
        UserError: If the recurrent layers have no memory, which is to be the question's state.
    """

    embedding_width: PositiveInt = 64
    question_encoder: RecurrentConfig = dataclasses.field(default_factory=lambda: RecurrentConfig(width=128))
    num_glimpses: NumHops = 2
    hidden: PositiveInt = 128
    image_encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    grid_positions: GridPositionEncoding = GridPositionEncoding.LEARNED
    image_readout: ImageReadout = ImageReadout.ATTENTION
    dropout: Rate = 0.0
    vocab_size: int | None = None
    word_activation: WordActivation = WordActivation.NONE
    question_state: QuestionState = QuestionState.HIDDEN

    def _check(self) -> None:
        cell = self.question_encoder.cell
        if self.question_state is QuestionState.MEMORY and not cell.has_memory:
            raise UserError(
                f"config.model.question_state=memory is that of an LSTM, and config.model.question_encoder.cell="
                f"{cell.value} has none: say question_state=hidden, or cell=lstm"
            )

    @property
    def image_features_width(self) -> int:
        """The number of features that are read from an image."""
        return {ImageReadout.ATTENTION: self.num_glimpses, ImageReadout.MEAN: 1, ImageReadout.NOTHING: 0}[
            self.image_readout
        ] * self.image_encoder.width


class StackedAttention(StatelessModule):
    """Weighted sums of image positions, each phi_l of Euclidean length 1, and a classifier (section 3).

    s is the state of the recurrent layers after the question's last word (`QuestionState`). Two convolutions of 1 x 1
    over the concatenation of phi_l and s weight the positions: a_g = softmax over l of
    (W_2 relu(W_1 [phi_l ; s] + b_1))_g, where another bias would be the same for all positions. Glimpse g is
    x_g = sum over l of a_gl phi_l, and the class is scored by two layers, W_4 relu(W_3 [x_1 ; ... ; x_G ; s] + b_3) +
    b_4. W_1 is split into a matrix of phi and one of s, so that s is multiplied once for all positions.

    Inputs: `image` [B, height, width, channels], `tokens` [B, T], `lengths` [B], beyond which a question is padding.
    Outputs: logits [B, C].
    """

    def __init__(self, config: StackedAttentionConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype, hidden = config, builder.dtype, config.hidden
        rows = padded_vocab_size(interface.vocabularies["tokens"], config.vocab_size)
        self.embedding = Embedding(rows, config.embedding_width, builder=builder)
        self.encoder = RecurrentStack(config.question_encoder, config.embedding_width, builder=builder)
        state = config.question_encoder.output_width
        if config.image_readout is not ImageReadout.NOTHING:
            self.places = GridFeatures(
                config.image_encoder, config.grid_positions, interface.inputs["image"].shape[1:], builder=builder
            )
        if config.image_readout is ImageReadout.ATTENTION:
            features, inner = (("features", config.image_encoder.width),), (("embed", hidden),)
            self.of_place = Linear(features, inner, bias=True, builder=builder)
            self.of_question = Linear((("features", state),), inner, bias=False, builder=builder)
            self.glimpse = Linear(inner, (("features", config.num_glimpses),), bias=False, builder=builder)
        read = (("features", config.image_features_width + state),)
        self.classify = Linear(read, (("embed", hidden),), bias=True, builder=builder)
        classes = (("classes", interface.vocabularies["classes"]),)
        self.output = Linear((("embed", hidden),), classes, bias=True, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B C"], Aux]:
        """Return the logits of the classes; tokens at or beyond a question's length are never read."""
        keys = split_key(forward_pass.training_key, 7)
        rate = self.config.dropout
        tokens_BxT, lengths_B = jnp.asarray(inputs["tokens"]), jnp.asarray(inputs["lengths"])
        words_BxTxE = dropout(self.embedding(tokens_BxT, self.dtype), rate, keys[0])
        if self.config.word_activation is WordActivation.TANH:
            words_BxTxE = jnp.tanh(words_BxTxE)
        _, carry = self.encoder(words_BxTxE, lengths_B, key=keys[1])
        question_BxS = carry[-1].hidden
        if self.config.question_state is QuestionState.MEMORY:
            assert carry[-1].memory is not None
            question_BxS = carry[-1].memory
        features = [question_BxS]
        looks: list[CapturedAttention | None] = []
        if self.config.image_readout is not ImageReadout.NOTHING:
            places_BxLxC = normalize_to_unit_length(self.places(jnp.asarray(inputs["image"], self.dtype)))
            glimpsed_BxF, looks = self.compute_glimpses(
                places_BxLxC, question_BxS, tuple(keys[4:]), capture_for_site(SITE, forward_pass.capture)
            )
            features = [glimpsed_BxF, question_BxS]
        read_BxR = dropout(jnp.concatenate(features, axis=-1), rate, keys[2])
        logits_BxC = self.output.logits(dropout(jax.nn.relu(self.classify(read_BxR)), rate, keys[3]))
        return logits_BxC, Aux(stack_layer_maps(SITE, looks), {}, state)

    def compute_glimpses(
        self,
        places_BxLxC: Float[Array, "B L C"],
        question_BxS: Float[Array, "B S"],
        keys: Sequence[Key[Array, ""] | None],
        capture: Capture | None,
    ) -> tuple[Float[Array, "B F"], list[CapturedAttention | None]]:
        """Compute all glimpses, and return what was captured of each."""
        if self.config.image_readout is ImageReadout.MEAN:
            return jnp.mean(places_BxLxC, axis=1), []
        rate = self.config.dropout
        read_BxLxC, state_BxS = dropout(places_BxLxC, rate, keys[0]), dropout(question_BxS, rate, keys[1])
        joined_BxLxH = jax.nn.relu(self.of_place(read_BxLxC) + self.of_question(state_BxS)[:, None])
        logits_BxLxG = self.glimpse(dropout(joined_BxLxH, rate, keys[2]))
        glimpses, looks = [], []
        for number in range(self.config.num_glimpses):
            weights_BxL, captured = grid_softmax(logits_BxLxG[..., number], capture)
            glimpses.append(jnp.einsum("bl,blc->bc", weights_BxL, places_BxLxC))
            looks.append(captured)
        return jnp.concatenate(glimpses, axis=-1), looks


def normalize_to_unit_length(x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """Normalize vectors: x / max(|x|, 1e-6)."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), _MIN_LENGTH**2))


def attention_sites(config: StackedAttentionConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model; none without attention."""
    if config.image_readout is not ImageReadout.ATTENTION:
        return ()
    return (glimpse_site(SITE, config.image_encoder, interface.inputs["image"].shape[1:], config.num_glimpses),)


FAMILY = ModelFamily(
    StackedAttentionConfig, StackedAttention, frozenset({VISUAL_QUESTION_ANSWERING}), sites=attention_sites
)
