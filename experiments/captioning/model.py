"""Show, Attend and Tell: a recurrent decoder that says what a picture shows and looks at it word by word (Xu 2015)."""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, capture_at, capture_weights, captured_at
from transformer.attention.masks import Mask
from transformer.attention.normalizers import Normaliser
from transformer.attention.rng import check_rate
from transformer.attention.sites import Axis, Site, Values
from transformer.axes import place
from transformer.config import UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory, scan_steps
from transformer.layers.beams import repeat_rows
from transformer.layers.embedding import Embedding
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.layers.grid_positions import GridPositions
from transformer.layers.image_grid_attention import Places
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Precision
from transformer.layers.padding import target_lengths
from transformer.layers.recurrent import CellState, RecurrentConfig, RecurrentLayer
from transformer.models.contract import Aux, AuxiliaryLoss, Cache, Inputs, Model, PyTree, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import CAPTIONING, Interface

SITE = "decoder/attention"


class Looking(enum.Enum):
    """What z_t the decoder reads of the annotations a_1 ... a_L at each word; p_t are its attention's probabilities.

    soft: sum_i p_ti a_i (Xu et al. 2015, equation 13). hard: one a_i, drawn by p_t in training, which learns by
    REINFORCE, and the likeliest later (equations 8 and 9). none: the mean (1/L) sum_i a_i at every word.
    """

    SOFT = "soft"
    HARD = "hard"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class CaptionerConfig:
    """A grid of annotations, and an LSTM over words that looks at it.

    `positions` tell the annotations apart; none, as in the paper: by the edges that convolutions see. `embedding`: of
    words, and of what the next one is scored from. `gated` multiplies z_t with beta_t (section 4.2.1).
    `doubly_stochastic` is the weight of equation 14's penalty on places that soft attention leaves out or dwells on.
    Of hard attention `soft_share` is the probability that a training example is read softly (section 4.1).

    Errors: UserError for sizes below 1, and for what the choice of `looking` has no use for.
    """

    encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    positions: GridPositions = GridPositions.LEARNED
    width: int = 256
    embedding: int = 128
    looking: Looking = Looking.SOFT
    gated: bool = True
    doubly_stochastic: float = 0.0
    soft_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("width", "embedding"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")
        check_rate("soft_share", self.soft_share)
        if not self.doubly_stochastic >= 0:
            raise UserError(f"config.model.doubly_stochastic={self.doubly_stochastic} must be at least 0")
        if self.soft_share and self.looking is not Looking.HARD:
            raise UserError(
                f"config.model.soft_share={self.soft_share} is for an attention that draws: say looking=hard, or "
                "soft_share=0"
            )
        if self.doubly_stochastic and self.looking is not Looking.SOFT:
            raise UserError(
                f"config.model.doubly_stochastic={self.doubly_stochastic} is for soft attention, whose weights have a "
                "gradient: say looking=soft, or doubly_stochastic=0"
            )

    @property
    def attention(self) -> AttentionCellConfig | None:
        """The decoder's attention, f_att the additive score; None without one."""
        match self.looking:
            case Looking.SOFT:
                return AttentionCellConfig()
            case Looking.HARD:
                return AttentionCellConfig(normaliser=Normaliser.HARD)
            case Looking.NONE:
                return None

    @property
    def decoder(self) -> RecurrentConfig:
        """The LSTM."""
        return RecurrentConfig(width=self.width)


class Scene(NamedTuple):
    """What every word reads of a picture: the mean annotation, and the memory of an attention."""

    mean: Float[Array, "B A"]
    memory: AttentionMemory | None


class Given(NamedTuple):
    """What a step is given: the word before, and, where drawn, whether the picture is read softly."""

    word: Float[Array, "*B E"]
    soft: Bool[Array, "*B"] | None = None


class Told(NamedTuple):
    """What a step hands out: h_t, the gated z_t, the weights of the places, and of a draw what `extras` has."""

    hidden: Float[Array, "*B F"]
    context: Float[Array, "*B A"]
    weights: Float[Array, "*B L"] | None
    draws: dict[str, Array]


class Captioner(Stateless):
    """p(y_t | a, y_1 ... y_{t-1}) = softmax(L_o (E y_{t-1} + L_h h_t + L_z z_t)) (equation 7).

    e_ti = f_att(a_i, h_{t-1}); z_t is beta_t = sigmoid(f_beta(h_{t-1})) times what is read by these (section 4.2.1);
    h_t = LSTM([E y_{t-1} ; z_t], h_{t-1}); c_0 and h_0 are each a layer of tanh over the mean annotation (section
    3.1.2). Inputs: `picture` and `target`, the caption behind a begin token, padded at its end.
    """

    def __init__(self, config: CaptionerConfig, interface: Interface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError("a captioner needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        seen, width, embedding = config.encoder.width, config.width, config.embedding
        vocabulary = interface.vocabularies["target"]
        self.places = Places(config.encoder, config.positions, interface.inputs["picture"].shape[1:], builder=builder)
        self.embedding = Embedding(vocabulary, embedding, builder=builder)

        def linear(inputs: int, name: str, outputs: int, *, bias: bool) -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=bias, builder=builder)

        self.first_hidden = linear(seen, "embed", width, bias=True)
        self.first_memory = linear(seen, "embed", width, bias=True)
        attention = config.attention
        self.attention = None if attention is None else AttentionCell(attention, width, seen, builder=builder)
        self.gate = linear(width, "features", 1, bias=True) if config.gated else None
        self.decoder = RecurrentLayer(config.decoder, embedding + seen, builder=builder)
        self.of_state = linear(width, "embed", embedding, bias=False)
        self.of_context = linear(seen, "embed", embedding, bias=False)
        self.output = Linear((("embed", embedding),), (("vocabulary", vocabulary),), bias=False, builder=builder)

    def encode(self, inputs: Inputs) -> tuple[Scene, CellState]:
        """The annotations as the words read them, and h_0 and c_0."""
        annotations_BxLxA = place(self.places(jnp.asarray(inputs["picture"], self.dtype)), "batch", None, None)
        mean_BxA = jnp.mean(annotations_BxLxA, axis=1)
        memory = None if self.attention is None else self.attention.prepare(annotations_BxLxA)
        first = CellState(jnp.tanh(self.first_hidden(mean_BxA)), jnp.tanh(self.first_memory(mean_BxA)))
        return Scene(mean_BxA, memory), first

    def forward(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T V"], Aux]:
        """Teacher forcing: the score of every word at every position of `target`.

        Of hard attention `extras` has `attention_log_prob` [B, T, H], the log-probability of each draw, and
        `attention_entropy`, that of what it was drawn from. Soft attention adds the loss `doubly_stochastic`.
        """
        target_BxT = jnp.asarray(inputs["target"])
        scene, first = self.encode(inputs)
        # A caption has at least its begin token: every row holds a picture.
        lengths_B = target_lengths(target_BxT, jnp.ones(len(target_BxT), jnp.int32), self.pad)
        word_BxTxE = self.embedding(target_BxT, self.dtype)
        soft_key, step_key = (None, None) if key is None or not train else jax.random.split(key)
        _, told, captured = scan_steps(
            functools.partial(self._step, scene=scene, train=train),
            first,
            Given(word_BxTxE, self._soft(target_BxT, soft_key)),
            mask=Mask(query_lengths=lengths_B, key_lengths=None if scene.memory is None else scene.memory.lengths),
            key=step_key,
            capture=capture_at(SITE, capture),
        )
        maps = {} if captured is None else {SITE: captured}
        return self._score(word_BxTxE, told), Aux(maps, told.draws, state, self._losses(told))

    def init_cache(self, state: PyTree, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Rows are examples x beams, with h_0 and c_0; the picture lies in `examples`, once for all beams."""
        scene, first = self.encode(inputs)
        rows = repeat_rows(first, beams)
        return Cache(layers=(), rows=rows, examples=scene), jnp.full(len(rows.hidden), self.begin, jnp.int32)

    def step(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The same step as in training, on the words that were chosen."""
        word_RxE = self.embedding(tokens_R, self.dtype)
        rows, told, alignment = self._step(cache.rows, Given(word_RxE), None, scene=cache.examples, train=False)
        maps, asked = {}, capture_at(SITE, capture)
        if alignment is not None and asked is not None:
            logits = alignment.logits[:, :, None]
            maps = captured_at(SITE, capture_weights(alignment.weights[:, :, None], asked, logits=logits), capture)
        return self._score(word_RxE, told), cache._replace(rows=rows), Aux(maps, {}, state)

    def _step(
        self, state: CellState, given: Given, key: Key[Array, ""] | None, *, scene: Scene, train: bool
    ) -> tuple[CellState, Told, Alignment | None]:
        """One word further: h_{t-1} looks, and h_t reads the word and what it saw."""
        alignment, weights, draws = None, None, {}
        if self.attention is None:
            context_RxA = repeat_rows(scene.mean, len(state.hidden) // len(scene.mean))
        else:
            assert scene.memory is not None
            context_RxA, alignment = self.attention.step(
                state.hidden, scene.memory, soft_R=given.soft, key=key, train=train
            )
            weights = alignment.weights[:, 0]
            if alignment.log_prob is not None and alignment.entropy is not None:
                draws = {"attention_log_prob": alignment.log_prob, "attention_entropy": alignment.entropy}
        if self.gate is not None:
            context_RxA *= jax.nn.sigmoid(self.gate(state.hidden))
        state = self.decoder.step(jnp.concatenate([given.word, context_RxA], axis=-1), state)
        return state, Told(state.hidden, context_RxA, weights, draws), alignment

    def _score(self, word: Float[Array, "*B E"], told: Told) -> Float[Array, "*B V"]:
        """Equation 7, in at least float32."""
        logits = self.output(word + self.of_state(told.hidden) + self.of_context(told.context))
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def _soft(self, target_BxT: Array, key: Key[Array, ""] | None) -> Bool[Array, "B T"] | None:
        """Which examples are read by the probabilities, none outside of training."""
        if key is None or not self.config.soft_share:
            return None
        drawn_Bx1 = jax.random.bernoulli(key, self.config.soft_share, (len(target_BxT), 1))
        return jnp.broadcast_to(drawn_Bx1, target_BxT.shape)

    def _losses(self, told: Told) -> dict[str, AuxiliaryLoss]:
        """Sum_i (1 - sum_t p_ti)^2 of every example (equation 14); also without weight, so that it is logged."""
        if told.weights is None or self.config.looking is not Looking.SOFT:
            return {}
        over_words_BxL = jnp.sum(told.weights, axis=1)
        total, count = jnp.sum(jnp.square(1 - over_words_BxL)), float(len(over_words_BxL))
        return {"doubly_stochastic": AuxiliaryLoss(total, count, self.config.doubly_stochastic)}


def build(config: CaptionerConfig, interface: Interface, precision: Precision) -> Model:
    """The model for pictures of one size; captions may have any length.

    Errors: UserError for pictures that the strides of the convolutions do not divide.
    """
    grid = config.encoder.axis("grid", *interface.inputs["picture"].shape[1:3])
    sites: tuple[Site, ...] = ()
    if config.looking is not Looking.NONE:
        values = Values.SAMPLE if config.looking is Looking.HARD else Values.PROBABILITY
        sites = (Site(SITE, Axis("target"), grid, layers=("0",), heads=("0",), values=values),)
    return Model(Functional(lambda builder: Captioner(config, interface, builder), precision), sites)


def operations(config: CaptionerConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations:
    """Matrix products of a forward pass by teacher forcing, 2 for each multiplication and addition."""
    rows, height, across, channels = batch["picture"].shape
    steps, seen, width, embedding = batch["target"].shape[1], config.encoder.width, config.width, config.embedding
    grid = config.encoder.stages(height, across)[-1]
    count = config.encoder.operations(channels, height, across) + 2 * 2 * seen * width
    if config.attention is not None:
        count += config.attention.operations(width, seen, queries=steps, keys=grid[0] * grid[1])
    of_word = config.decoder.operations(embedding + seen) + 2 * width * config.gated
    of_word += 2 * embedding * (width + seen + vocabularies["target"])
    return Operations(float(rows * (count + steps * of_word)))


FAMILY = Family(CaptionerConfig, build, frozenset({CAPTIONING}), operations)
