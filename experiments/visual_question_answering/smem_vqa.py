"""SMem-VQA: a spatial memory network that answers questions about images in hops (Xu and Saenko 2016)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from experiments.visual_question_answering.signature import VISUAL_QUESTION_ANSWERING
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site
from transformer.attention.inverted_dropout import dropout
from transformer.attention.random_arrays import draw_array
from transformer.attention.sites import Site
from transformer.config import Config, NumHops, PositiveInt, Rate
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
from transformer.layers.sequence_lengths import real_positions
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

SITE = "answer/hops"


@dataclasses.dataclass(frozen=True)
class SMemVQAConfig(Config, path="config.model"):
    """The configuration of a spatial memory network.

    Attributes:
        width: Features of words and of grid positions.
        num_hops: The number of hops.
        image_encoder: The convolutions.
        grid_positions: The position embeddings of the grid.
        image_readout: How the image is read; mean weights all positions alike in every hop, nothing takes no hop.
        dropout: The rate of dropout on the input of the output layer.
        word_dropout: The probability that a word may not guide the first hop in training.
        vocab_size: Rows of the vocabulary, None for as many as the task has tokens.
    """

    width: PositiveInt = 128
    num_hops: NumHops = 2
    image_encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    grid_positions: GridPositionEncoding = GridPositionEncoding.LEARNED
    image_readout: ImageReadout = ImageReadout.ATTENTION
    dropout: Rate = 0.0
    word_dropout: Rate = 0.0
    vocab_size: int | None = None


class SMemVQA(StatelessModule):
    """Hops to the positions S of an image, for a question whose words have the vectors V (sections 3.1 and 3.2).

    The question is the sum Q = W_Q V + b_Q of its words, weighted by their position; O_0 = Q. The first hop is guided
    by single words: C = V (S W_A + b_A)', and the logit of a position is that of its best word: softmax(max over words
    of C). Every later hop k is guided by all that is known: C = (S W_E + b_E) O_(k-1), with the W_E of the hop before.
    A hop adds what it reads, O_k = O_(k-1) + w_k (S W_Ek + b_Ek), and the class is scored from the last, W_P relu(O) +
    b_P.

    Inputs: `image` [B, height, width, channels], `tokens` [B, T], `lengths` [B], beyond which a question is padding.
    Outputs: logits [B, C].
    """

    def __init__(self, config: SMemVQAConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype, width = config, builder.dtype, config.width
        rows = padded_vocab_size(interface.vocabularies["tokens"], config.vocab_size)
        self.embedding = Embedding(rows, width, builder=builder)
        longest = interface.inputs["tokens"].shape[1]
        # Every word counts alike at first.
        self.bag = builder.parameter(jax.nn.initializers.ones, (longest,), ("positions",))
        self.bag_bias = builder.parameter(jax.nn.initializers.zeros, (width,), ("features",))
        if config.image_readout is not ImageReadout.NOTHING:
            self.places = GridFeatures(
                config.image_encoder, config.grid_positions, image_shape(interface), builder=builder
            )
            for hop in range(config.num_hops):
                setattr(self, f"evidence_{hop}", self._make_place_embedding(builder))
        if config.image_readout is ImageReadout.ATTENTION:
            self.correlated = self._make_place_embedding(builder)
        classes = (("classes", interface.vocabularies["classes"]),)
        self.output = Linear((("embed", width),), classes, bias=True, builder=builder)

    def _make_place_embedding(self, builder: ParameterBuilder) -> Linear:
        inputs, outputs = (("features", self.config.image_encoder.width),), (("embed", self.config.width),)
        return Linear(inputs, outputs, bias=True, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B C"], Aux]:
        """Return the logits of the classes; tokens at or beyond a question's length are never read."""
        keys = split_key(forward_pass.training_key)
        tokens_BxT, lengths_B = jnp.asarray(inputs["tokens"]), jnp.asarray(inputs["lengths"])
        real_BxT = real_positions(lengths_B, tokens_BxT.shape[1])
        words_BxTxN = jnp.where(real_BxT[..., None], self.embedding(tokens_BxT, self.dtype), 0)
        bag_T = jnp.asarray(self.bag[: tokens_BxT.shape[1]], self.dtype)
        known_BxN = jnp.einsum("t,btn->bn", bag_T, words_BxTxN) + self.bag_bias[...].astype(self.dtype)[None]
        looks: list[CapturedAttention | None] = []
        if self.config.image_readout is not ImageReadout.NOTHING:
            places_BxLxC = self.places(jnp.asarray(inputs["image"], self.dtype))
            guides_BxT = sample_guide_mask(real_BxT, self.config.word_dropout, keys[1])
            known_BxN, looks = self.run_hops(
                known_BxN, words_BxTxN, guides_BxT, places_BxLxC, capture_for_site(SITE, forward_pass.capture)
            )
        known_BxN = dropout(jax.nn.relu(known_BxN), self.config.dropout, keys[0])
        logits_BxC = self.output.logits(known_BxN)
        return logits_BxC, Aux(stack_layer_maps(SITE, looks), {}, state)

    def run_hops(
        self,
        known_BxN: Float[Array, "B N"],
        words_BxTxN: Float[Array, "B T N"],
        guides_BxT: Bool[Array, "B T"],
        places_BxLxC: Float[Array, "B L C"],
        capture: Capture | None,
    ) -> tuple[Float[Array, "B N"], list[CapturedAttention | None]]:
        """Run all hops.

        Args:
            known_BxN: O_0.
            words_BxTxN: The word vectors.
            guides_BxT: The words that may guide the first hop.
            places_BxLxC: The grid positions.
            capture: What to capture.

        Returns:
            The last O, and what was captured of each hop.
        """
        looks: list[CapturedAttention | None] = []
        evidence_BxLxN = None
        for hop in range(self.config.num_hops):
            if self.config.image_readout is ImageReadout.MEAN:
                weights_BxL = jnp.full(places_BxLxC.shape[:2], 1 / places_BxLxC.shape[1], places_BxLxC.dtype)
            else:
                if evidence_BxLxN is None:
                    logits_BxL = best_word_logits(words_BxTxN, self.correlated(places_BxLxC), guides_BxT)
                else:
                    logits_BxL = jnp.einsum("bln,bn->bl", evidence_BxLxN, known_BxN)
                weights_BxL, captured = grid_softmax(logits_BxL, capture)
                looks.append(captured)
            evidence_BxLxN = getattr(self, f"evidence_{hop}")(places_BxLxC)
            known_BxN = known_BxN + jnp.einsum("bl,bln->bn", weights_BxL, evidence_BxLxN)
        return known_BxN, looks


def sample_guide_mask(real_BxT: Bool[Array, "B T"], rate: float, key: Key[Array, ""] | None) -> Bool[Array, "B T"]:
    """Return the words that may guide the first hop, each left out with probability `rate` but never all.

    The paper leaves none out. At each position only the best word learns, and softmax ignores what all positions have
    in common, so that a word that fits everywhere ("shape" in "what shape is red ?") costs nothing and keeps those that
    distinguish positions from ever learning.

    Args:
        real_BxT: The real words.
        rate: The probability of leaving one out.
        key: The random key; None to leave none out.

    Returns:
        Which words may guide.
    """
    if key is None or rate == 0:
        return real_BxT
    draws_BxT = jnp.where(real_BxT, draw_array(jax.random.uniform, key, real_BxT.shape), -1)
    return real_BxT & ((draws_BxT >= rate) | (draws_BxT == jnp.max(draws_BxT, axis=1, keepdims=True)))


def best_word_logits(
    words_BxTxN: Float[Array, "B T N"], places_BxLxN: Float[Array, "B L N"], guides_BxT: Bool[Array, "B T"]
) -> Float[Array, "B L"]:
    """Compute how well each position fits the best of the guiding words.

    Args:
        words_BxTxN: The word vectors.
        places_BxLxN: The grid positions.
        guides_BxT: The words that may guide.

    Returns:
        The logits [example, position]; 0 for a question without guides.
    """
    fits_BxTxL = jnp.einsum("btn,bln->btl", words_BxTxN, places_BxLxN)
    best_BxL = jnp.max(jnp.where(guides_BxT[..., None], fits_BxTxL, -jnp.inf), axis=1)
    return jnp.where(jnp.any(guides_BxT, axis=1, keepdims=True), best_BxL, 0)


def image_shape(interface: TaskInterface) -> tuple[int, ...]:
    """Return the height, width and channels of the images."""
    return interface.inputs["image"].shape[1:]


def attention_sites(config: SMemVQAConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model; none without attention."""
    if config.image_readout is not ImageReadout.ATTENTION:
        return ()
    return (glimpse_site(SITE, config.image_encoder, image_shape(interface), config.num_hops),)


FAMILY = ModelFamily(SMemVQAConfig, SMemVQA, frozenset({VISUAL_QUESTION_ANSWERING}), sites=attention_sites)
