"""What a recurrent encoder-decoder may be: its choices, one enum each, and its config."""

import dataclasses
import enum

from transformer.attention.drop import check_rate
from transformer.attention.normalisers import SAMPLERS, Normaliser, Reweighting
from transformer.attention.scores import SCORES, Score
from transformer.config import Heads, Layers, UserError
from transformer.layers.attention_cell import AttentionCellConfig, Extent, Projection
from transformer.layers.initialisation import Initialisation, ScoreInitialisation
from transformer.layers.recurrent import Direction, Links, RecurrentConfig
from transformer.layers.recurrent_cells import Cell


class Context(enum.Enum):
    """What the decoder is given of the annotations h_1 ... h_N of the source, beside its first state.

    none: nothing (Sutskever et al. 2014). last: the encoder's last state, at every step (Cho et al. 2014).
    mean: (1/N) sum_i h_i. sum: the same without 1/N. attention: sum_i a_i h_i (Bahdanau et al. 2015, equation 5).
    attention_over_length: (1/N) sum_i a_i h_i, as some lectures write it: the weights sum to one already, so that
      this context shrinks as the source grows.
    """

    NONE = "none"
    LAST = "last"
    MEAN = "mean"
    SUM = "sum"
    ATTENTION = "attention"
    ATTENTION_OVER_LENGTH = "attention_over_length"

    @property
    def attends(self) -> bool:
        """Whether its weights are those of an attention."""
        return self in (Context.ATTENTION, Context.ATTENTION_OVER_LENGTH)


class Order(enum.Enum):
    """Which state asks, and where the answer goes; w_t is the word that step t reads, c_t the context.

    previous: s_{t-1} asks, s_t = f(s_{t-1}, [w_t ; c_t]) (Bahdanau et al. 2015, appendix A.2.2).
    current: s_t = f(s_{t-1}, w_t) asks, and c_t goes to the output alone (Luong et al. 2015, section 3.1).
    input_feeding: the same, but s_t = f(s_{t-1}, [w_t ; r_{t-1}]), r being what the word before was scored from (their
      section 3.3).
    """

    PREVIOUS = "previous"
    CURRENT = "current"
    INPUT_FEEDING = "input_feeding"


class Readout(enum.Enum):
    """r_t, from which the next word is scored.

    maxout: the larger of each pair of features of W [s_t ; w_t ; c_t] + b (Bahdanau et al. 2015, appendix A.2.2).
    tanh: tanh(W [c_t ; s_t]) (Luong et al. 2015, equation 5).
    """

    MAXOUT = "maxout"
    TANH = "tanh"


class Bridge(enum.Enum):
    """Where the decoder's first state comes from.

    tanh: every layer's is tanh(W h + b) of the last state h of the encoder's top layer, an LSTM's memory W' c + b'
      (Bahdanau et al. 2015, appendix A.2.2, of the backward direction alone).
    copy: each layer's is that of the encoder's layer of the same number (Sutskever et al. 2014).
    """

    TANH = "tanh"
    COPY = "copy"


@dataclasses.dataclass(frozen=True)
class RecurrentEncoderDecoderConfig:
    """A recurrent encoder-decoder; the defaults are those of Bahdanau et al. 2015 at a smaller width.

    `width`: of a state of either side and of the readout; `embedding`: of words. `direction` of the encoder: backward
    reads the source reversed (Sutskever et al. 2014). `score` to `half_width` are of the attention
    (transformer.layers.attention_cell), `max_length` the positions that the score location has rows for,
    `embedding_rows` those of the vocabulary, None for as many as the task has tokens.
    Of a `normaliser` that draws, `soft_share` is the probability that a training example is read by the probabilities
    in place of draws (Xu et al. 2015, section 4.1). In training a word that the decoder reads is its own draw, and not
    the reference's, with a probability that rises to `scheduled_sampling` over as many steps as
    `scheduled_sampling_steps` says (Bengio et al. 2015).

    Errors: UserError for sizes below 1, and for choices that exclude each other.
    """

    cell: Cell = Cell.GRU_RESET_BEFORE
    width: int = 256
    embedding: int = 256
    encoder_layers: Layers = 1
    decoder_layers: Layers = 1
    direction: Direction = Direction.BIDIRECTIONAL
    links: Links = Links.NONE
    bridge: Bridge = Bridge.TANH
    context: Context = Context.ATTENTION
    order: Order = Order.PREVIOUS
    readout: Readout = Readout.MAXOUT
    score: Score = AttentionCellConfig.score
    normaliser: Normaliser = AttentionCellConfig.normaliser
    projection: Projection = AttentionCellConfig.projection
    heads: Heads = AttentionCellConfig.heads
    depth: int = AttentionCellConfig.depth
    extent: Extent = AttentionCellConfig.extent
    half_width: int = AttentionCellConfig.half_width
    max_length: int = AttentionCellConfig.max_length
    soft_share: float = 0.0
    embedding_rows: int | None = None
    initialisation: Initialisation = Initialisation.XAVIER
    dropout: float = 0.0
    scheduled_sampling: float = 0.0
    scheduled_sampling_steps: int = 10_000

    def __post_init__(self) -> None:
        for name in ("width", "embedding", "encoder_layers", "decoder_layers", "scheduled_sampling_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")
        check_rate("dropout", self.dropout)
        check_rate("scheduled_sampling", self.scheduled_sampling)
        check_rate("soft_share", self.soft_share)
        if self.soft_share and not (self.normaliser in SAMPLERS and self.context.attends):
            raise UserError(
                f"config.model.soft_share={self.soft_share} is for an attention that draws: say normaliser=hard or "
                "straight_through, or soft_share=0"
            )
        if self.order is Order.INPUT_FEEDING and self.context is Context.NONE:
            raise UserError(
                "config.model.order=input_feeding feeds what was read of the source back, and config.model.context="
                "none reads nothing: say current, or another context"
            )
        single = all(len(self.direction.orders(layer)) == 1 for layer in range(self.encoder_layers))
        alike = single and self.encoder_layers == self.decoder_layers
        if self.bridge is Bridge.COPY and not alike:
            raise UserError(
                "config.model.bridge=copy needs as many layers on both sides, and encoder layers of one cell each: "
                f"config.model.encoder_layers={self.encoder_layers}, decoder_layers={self.decoder_layers}, "
                f"direction={self.direction.value}; or say bridge=tanh"
            )
        if self.context.attends:
            self.check_attention()

    def check_attention(self) -> None:
        """Errors: UserError for an attention that these sizes do not allow, or whose choices exclude each other."""
        self.attention()
        if self.extent is Extent.PREDICTIVE and self.normaliser in SAMPLERS:
            raise UserError(
                "config.model.extent=predictive weighs the keys around its centre, of which config.model.normaliser="
                f"{self.normaliser.value} leaves one: say extent=monotonic, or normaliser=softmax"
            )
        memory, split = self.encoder().output_width, self.projection is Projection.SPLIT
        for name, size in (("width", self.width), ("the encoder's output", memory)):
            if size % self.heads and not (split and self.depth):
                raise UserError(f"config.model.heads={self.heads} do not divide the {size} features of {name}")
        if SCORES[self.score].product and not split and self.width != memory:
            raise UserError(
                f"config.model.score={self.score.value} multiplies states of {self.width} features with annotations "
                f"of {memory}: say projection=split, direction=forward, or the score general"
            )

    def encoder(self) -> RecurrentConfig:
        """The encoder's stack."""
        return RecurrentConfig(self.cell, self.width, self.encoder_layers, self.direction, self.links, self.dropout)

    def decoder(self) -> RecurrentConfig:
        """The decoder's stack."""
        return RecurrentConfig(self.cell, self.width, self.decoder_layers, links=self.links, dropout=self.dropout)

    @property
    def context_width(self) -> int:
        """The features of a context, 0 without one."""
        annotations = self.encoder().output_width
        if self.context.attends:
            return self.attention().context_width(self.width, annotations)
        return 0 if self.context is Context.NONE else annotations

    @property
    def fed_width(self) -> int:
        """The features that the decoder's first layer reads beside the word."""
        match self.order:
            case Order.PREVIOUS:
                return self.context_width
            case Order.CURRENT:
                return 0
            case Order.INPUT_FEEDING:
                return self.width

    @property
    def readout_sizes(self) -> tuple[int, int]:
        """Features that the readout's matrix reads, and those that it gives: maxout reads the word and gives pairs."""
        both = self.width + self.context_width
        if self.readout is Readout.MAXOUT:
            return both + self.embedding, 2 * self.width
        return both, self.width

    def attention(self) -> AttentionCellConfig:
        """The decoder's attention: local-p with its Gaussian window."""
        bahdanau = self.initialisation is Initialisation.BAHDANAU
        return AttentionCellConfig(
            self.score,
            self.normaliser,
            Reweighting.GAUSSIAN if self.extent is Extent.PREDICTIVE else Reweighting.NONE,
            self.projection,
            self.heads,
            self.depth,
            self.max_length,
            self.extent,
            self.half_width,
            ScoreInitialisation.BAHDANAU if bahdanau else ScoreInitialisation.OWN,
        )
