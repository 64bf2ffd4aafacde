"""A recurrent classifier: a bidirectional LSTM whose outputs are pooled into one vector, by attention or otherwise."""

import dataclasses
import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention.capture import (
    Capture,
    CapturedAttention,
    capture_for_site,
    capture_weights,
    single_layer_maps,
)
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.scores import Score
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NonNegativeInt, NumLayers, PositiveInt, Rate
from transformer.layers.attention_cell import AttentionCell, AttentionCellConfig
from transformer.layers.elmo import Elmo, ElmoConfig
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.own_score import resolve_score
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentStack
from transformer.layers.sequence_lengths import real_positions
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TEXT_CLASSIFICATION, TaskInterface

SITE = "classifier/attention"


class Pooling(enum.Enum):
    """How the outputs h_1 ... h_T are pooled into one vector.

    Attributes:
        LAST: The last states; for a bidirectional layer that of each direction, forward at T and backward at 1.
        MEAN: Their mean.
        MAX: The largest value of each feature.
        ATTENTION: sum_t a_t h_t, a = softmax_t(score(q, h_t)), with a learned query q. With the additive score
            a_t = softmax_t(v' tanh(W h_t + b)), where the learned U q is the bias b (Yang et al. 2016, equations 5 to
            7). With several hops, each has a query and a score of its own over all features, and their sums are
            concatenated (Lin et al. 2017, section 2.1, whose hops share W and have no bias).
    """

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    ATTENTION = "attention"


@dataclasses.dataclass(frozen=True)
class RecurrentClassifierConfig(Config, path="config.model"):
    """Word vectors, recurrent layers, pooling, and a linear map to the classes.

    Attributes:
        embedding_width: Features of a word vector.
        encoder: The recurrent layers.
        pooling: How their outputs are pooled.
        score: The score of pooling by attention.
        hops: Queries of pooling by attention.
        attention_hidden_width: Units of the score's hidden layer; 0 means as many as an output has features.
        dropout: Dropout rate on the word vectors and on the pooled vector.
        vocab_size: Rows of the embedding table; None means as many as the task's tokens.
        elmo: ELMo features that are concatenated to the word vectors.

    Raises:
        UserError: If a value is out of range.
    """

    embedding_width: PositiveInt = 128
    encoder: RecurrentConfig = dataclasses.field(
        default_factory=lambda: RecurrentConfig(width=128, direction=Direction.BIDIRECTIONAL)
    )
    pooling: Pooling = Pooling.ATTENTION
    score: Score | str = AttentionCellConfig.score
    hops: NumLayers = 1
    attention_hidden_width: NonNegativeInt = 0
    dropout: Rate = 0.0
    vocab_size: int | None = None
    elmo: ElmoConfig = dataclasses.field(default_factory=ElmoConfig)

    def _check(self) -> None:
        resolve_score(self.score)

    @property
    def read_width(self) -> int:
        """The input features of the recurrent layers."""
        return self.embedding_width + self.elmo.output_width

    @property
    def pooled_width(self) -> int:
        """The features of the pooled vector."""
        return self.encoder.output_width * (self.hops if self.pooling is Pooling.ATTENTION else 1)

    def attention(self, max_text_length: int) -> AttentionCellConfig:
        """Return the config of the attention over texts of at most `max_text_length` tokens, with a head per hop."""
        return AttentionCellConfig(
            self.score, heads=self.hops, head_dim=self.attention_hidden_width, max_length=max_text_length
        )


class RecurrentClassifier(StatelessModule):
    """Word vectors (with ELMo features), recurrent layers, pooling, and the logits W r + b of the pooled vector r.

    inputs: `tokens` [B, T], `lengths` [B], beyond which an example is padding. Outputs: logits [B, C].
    """

    def __init__(self, config: RecurrentClassifierConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype = config, builder.dtype
        vocabulary = padded_vocab_size(interface.vocabularies["tokens"], config.vocab_size)
        self.embedding = Embedding(vocabulary, config.embedding_width, builder=builder)
        self.elmo = Elmo(config.elmo, vocabulary, builder=builder) if config.elmo.layers else None
        self.encoder = RecurrentStack(config.encoder, config.read_width, builder=builder)
        if config.pooling is Pooling.ATTENTION:
            width = config.pooled_width
            self.query = builder.parameter(jax.nn.initializers.normal(0.1), (width,), ("features",))
            self.attention = AttentionCell(config.attention(max_text_length(interface)), width, width, builder=builder)
        classes = (("classes", interface.vocabularies["classes"]),)
        self.output = Linear((("embed", config.pooled_width),), classes, bias=True, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B C"], Aux]:
        """Return the logits of the classes; nothing beyond a text's length is read."""
        keys = split_key(forward_pass.training_key, 3)
        tokens_BxT, lengths_B = jnp.asarray(inputs["tokens"]), jnp.asarray(inputs["lengths"])
        x_BxTxE = self.embedding(tokens_BxT, self.dtype)
        if self.elmo is not None:
            x_BxTxE = jnp.concatenate([x_BxTxE, self.elmo(tokens_BxT, lengths_B, self.dtype)], axis=-1)
        x_BxTxE = dropout(x_BxTxE, self.config.dropout, keys[0])
        with jax.named_scope("encoder"):
            h_BxTxF, carry = self.encoder(x_BxTxE, lengths_B, key=keys[1])
        pooled_BxF, captured = self.pool(h_BxTxF, carry[-1], lengths_B, capture_for_site(SITE, forward_pass.capture))
        logits_BxC = self.output.logits(dropout(pooled_BxF, self.config.dropout, keys[2]))
        return logits_BxC, Aux(single_layer_maps(SITE, captured, forward_pass.capture), {}, state)

    def pool(
        self,
        h_BxTxF: Float[Array, "B T F"],
        last: CellState,
        lengths_B: Int[Array, " B"],
        capture: Capture | None,
    ) -> tuple[Float[Array, "B P"], CapturedAttention | None]:
        """Pool outputs into one vector per text; zero for an empty text.

        Args:
            h_BxTxF: The outputs, zero at padding.
            last: The last state.
            lengths_B: The length of each text.
            capture: Which maps to capture; None captures nothing.

        Returns:
            The pooled vector, and what was captured.
        """
        match self.config.pooling:
            case Pooling.LAST:
                return last.hidden, None
            case Pooling.MEAN:
                return jnp.sum(h_BxTxF, axis=1) / jnp.maximum(lengths_B, 1)[:, None].astype(h_BxTxF.dtype), None
            case Pooling.MAX:
                real_BxTx1 = real_positions(lengths_B, h_BxTxF.shape[1])[..., None]
                largest_BxF = jnp.max(jnp.where(real_BxTx1, h_BxTxF, -jnp.inf), axis=1)
                return jnp.where(lengths_B[:, None] > 0, largest_BxF, 0), None
            case Pooling.ATTENTION:
                # Each head of the attention has its share of the features: every hop is given all of them.
                memory = self.attention.prepare(jnp.tile(h_BxTxF, self.config.hops), lengths_B)
                query_Bx1xP = jnp.broadcast_to(
                    jnp.asarray(self.query[...], self.dtype), (len(lengths_B), 1, self.config.pooled_width)
                )
                pooled_Bx1xP, alignment = self.attention(query_Bx1xP, memory)
                mask = Mask(key_lengths=lengths_B)
                captured = capture_weights(alignment.weights, capture, logits=alignment.logits, mask=mask)
                return pooled_Bx1xP[:, 0], captured


def max_text_length(interface: TaskInterface) -> int:
    """Return the greatest length of a text in tokens."""
    return interface.inputs["tokens"].shape[1]


def attention_sites(config: RecurrentClassifierConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model; none without pooling by attention."""
    if config.pooling is not Pooling.ATTENTION:
        return ()
    query, hops = Axis("class", AxisKind.SLOTS, num_positions=1), tuple(map(str, range(config.hops)))
    return (Site(SITE, query, Axis("tokens"), layers=("0",), heads=hops),)


FAMILY = ModelFamily(
    RecurrentClassifierConfig, RecurrentClassifier, frozenset({TEXT_CLASSIFICATION}), sites=attention_sites
)
