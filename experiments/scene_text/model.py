"""Show, Attend and Read: reads the string in a picture by attention over rows and columns (Li et al. 2019)."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, Captured, capture_at, capture_weights, captured_at
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.axes import place
from transformer.config import Layers, UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory
from transformer.layers.beams import repeat_rows
from transformer.layers.embedding import Embedding
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Precision
from transformer.layers.padding import target_lengths
from transformer.layers.recurrent import CellState, RecurrentConfig, RecurrentStack
from transformer.models.contract import Aux, Cache, Inputs, Model, PyTree, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import CAPTIONING, Interface

SITE = "decoder/attention"
# Rows and columns from a place to each of the eight around it.
_NEIGHBOURS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0))


class Attended(enum.Enum):
    """What the decoder's attention scores and reads.

    neighbours: every place of the grid, scored with the eight around it (Li et al. 2019, equation 4). plain: every
    place, scored by itself. columns: one vector a column, the greatest of each feature along it, as readers of straight
    text have it.
    """

    NEIGHBOURS = "neighbours"
    PLAIN = "plain"
    COLUMNS = "columns"


@dataclasses.dataclass(frozen=True)
class TextReaderConfig:
    """Convolutions that make a grid of features, an LSTM over its columns, and one over the glyphs that looks at it.

    `width` and `layers` are those of both LSTMs, `width` also that of glyphs' vectors and of the attention's hidden
    layer.

    Errors: UserError for sizes below 1.
    """

    encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    width: int = 512
    layers: Layers = 2
    attention: Attended = Attended.NEIGHBOURS

    def __post_init__(self) -> None:
        for name in ("width", "layers"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")

    @property
    def recurrent(self) -> RecurrentConfig:
        """Either LSTM."""
        return RecurrentConfig(width=self.width, layers=self.layers)


class TextReader(Stateless):
    """p(y_t | v, y_1 ... y_{t-1}) = softmax(W_o [h_t ; g_t]) (section 3.3 of the paper).

    v_ij are the features of row i and column j. With W'_pq a matrix for each of the eight neighbours,
    e_ij = w' tanh(W_v v_ij + sum_pq W'_pq v_pq + W_h h_t), alpha = softmax(e) and g_t = sum_ij alpha_ij v_ij. h_t is
    the decoder's state behind y_{t-1}. Before the begin token it reads a linear map of the holistic feature, which is
    the encoder's state behind the last column; of each column the encoder reads the greatest of every feature.
    Neighbours beyond the edge are zero.

    Inputs: `picture` and `target`, the string behind a begin token, padded at its end.
    """

    def __init__(self, config: TextReaderConfig, interface: Interface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError("a reader of text needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        seen, width, vocabulary = config.encoder.width, config.width, interface.vocabularies["target"]
        self.grid = GridEncoder(config.encoder, interface.inputs["picture"].shape[-1], builder=builder)
        self.encoder = RecurrentStack(config.recurrent, seen, builder=builder)
        self.holistic = Linear((("features", width),), (("embed", width),), bias=False, builder=builder)
        self.embedding = Embedding(vocabulary, width, builder=builder)
        self.decoder = RecurrentStack(config.recurrent, width, builder=builder)
        self.attention = AttentionCell(AttentionCellConfig(), width, seen, builder=builder)
        around = config.attention is Attended.NEIGHBOURS
        sums = (("groups", len(_NEIGHBOURS)), ("features", width))
        self.neighbours = Linear((("features", seen),), sums, bias=False, builder=builder) if around else None
        read = (("features", width + seen),)
        self.output = Linear(read, (("vocabulary", vocabulary),), bias=False, builder=builder)

    def encode(self, inputs: Inputs) -> tuple[AttentionMemory, tuple[CellState, ...]]:
        """What every glyph reads of the picture, and the decoder's state before the begin token."""
        grid_BxVxWxC = self.grid(jnp.asarray(inputs["picture"], self.dtype))
        columns_BxWxC = place(_greatest_of_columns(grid_BxVxWxC), "batch", None, None)
        _, encoded = self.encoder(columns_BxWxC)
        holistic_BxF = self.holistic(encoded[-1].hidden)
        _, first = self.decoder.step(holistic_BxF, self.decoder.initial(len(holistic_BxF), self.dtype))
        if self.config.attention is Attended.COLUMNS:
            return self.attention.prepare(columns_BxWxC), first
        places_BxLxC = grid_BxVxWxC.reshape(len(grid_BxVxWxC), -1, grid_BxVxWxC.shape[-1])
        memory = self.attention.prepare(place(places_BxLxC, "batch", None, None))
        if self.neighbours is not None:
            around = _from_neighbours(self.neighbours(place(grid_BxVxWxC, "batch", None, None, None)))
            # Keys as the additive score has prepared them are W_v v_ij: what stands within its tanh beside W_h h_t.
            keys = jax.tree.map(lambda own: own + around.reshape(own.shape), memory.keys)
            memory = memory._replace(keys=keys)
        return memory, first

    def forward(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T V"], Aux]:
        """Teacher forcing: the score of every glyph at every position of `target`.

        No state reads what was seen before, so that the decoder runs over all of `target` first.
        """
        target_BxT = jnp.asarray(inputs["target"])
        memory, first = self.encode(inputs)
        # A string has at least its begin token: every row holds a picture.
        lengths_B = target_lengths(target_BxT, jnp.ones(len(target_BxT), jnp.int32), self.pad)
        hidden_BxTxF, _ = self.decoder(self.embedding(target_BxT, self.dtype), lengths_B, first)
        mask = Mask(query_lengths=lengths_B, key_lengths=memory.lengths)
        glimpse_BxTxC, alignment = self.attention(hidden_BxTxF, memory, mask=mask)
        return self._score(hidden_BxTxF, glimpse_BxTxC), Aux(_maps(alignment, mask, capture), {}, state)

    def init_cache(self, state: PyTree, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Rows are examples x beams, with the decoder's states; the picture lies in `examples`, once for all beams."""
        memory, first = self.encode(inputs)
        rows = repeat_rows(first, beams)
        begin_R = jnp.full(len(memory.lengths) * beams, self.begin, jnp.int32)
        return Cache(layers=(), rows=rows, examples=memory), begin_R

    def step(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The same on the glyphs that were chosen."""
        hidden_RxF, rows = self.decoder.step(self.embedding(tokens_R, self.dtype), cache.rows)
        glimpse_RxC, alignment = self.attention.step(hidden_RxF, cache.examples)
        of_rows = Alignment(alignment.weights[:, :, None], alignment.logits[:, :, None])
        maps = _maps(of_rows, None, capture)
        return self._score(hidden_RxF, glimpse_RxC), cache._replace(rows=rows), Aux(maps, {}, state)

    def _score(self, hidden: Float[Array, "*B F"], glimpse: Float[Array, "*B C"]) -> Float[Array, "*B V"]:
        """W_o [h_t ; g_t], in at least float32."""
        logits = self.output(jnp.concatenate([hidden, glimpse], axis=-1))
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def _greatest_of_columns(grid_BxVxWxC: Float[Array, "B V W C"]) -> Float[Array, "B W C"]:
    """The greatest of each feature along every column.

    Taken by its place: the gradient of jnp.max was NaN beside a finite loss (jax 0.12.0 on CPUs). It divides by the
    number of places that equal the greatest, which are none if the compiler computes the grid twice and rounds
    otherwise.
    """
    highest_Bx1xWxC = jnp.argmax(grid_BxVxWxC, axis=1, keepdims=True)
    return jnp.take_along_axis(grid_BxVxWxC, highest_Bx1xWxC, axis=1)[:, 0]


def _from_neighbours(of_places: Float[Array, "B V W 8 F"]) -> Float[Array, "B V W F"]:
    """The sum over `_NEIGHBOURS` of what each of them gives to this place; those beyond the edge give nothing.

    A convolution of 3 x 3 with a hole in the middle, whose matrix is that of the attention's keys.
    """
    rows, columns = of_places.shape[1:3]
    padded = jnp.pad(of_places, ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    given = [
        padded[:, 1 + down : 1 + down + rows, 1 + right : 1 + right + columns, number]
        for number, (down, right) in enumerate(_NEIGHBOURS)
    ]
    return sum(given[1:], start=given[0])


def _maps(alignment: Alignment, mask: Mask | None, capture: Capture | None) -> dict[str, Captured]:
    captured = capture_weights(alignment.weights, capture_at(SITE, capture), logits=alignment.logits, mask=mask)
    return captured_at(SITE, captured, capture)


def build(config: TextReaderConfig, interface: Interface, precision: Precision) -> Model:
    """The model for pictures of one size; strings may have any length.

    Errors: UserError for pictures that the strides of the convolutions do not divide.
    """
    seen = config.encoder.axis("grid", *interface.inputs["picture"].shape[1:3])
    if config.attention is Attended.COLUMNS:
        assert seen.shape is not None
        seen = Axis("columns", AxisKind.STEPS, size=seen.shape[1])
    site = Site(SITE, Axis("target"), seen, layers=("0",), heads=("0",))
    return Model(Functional(lambda builder: TextReader(config, interface, builder), precision), (site,))


def operations(config: TextReaderConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations:
    """Matrix products of a forward pass by teacher forcing, 2 for each multiplication and addition."""
    rows, height, across, channels = batch["picture"].shape
    steps, seen, width = batch["target"].shape[1], config.encoder.width, config.width
    down, along = config.encoder.stages(height, across)[-1]
    keys = along if config.attention is Attended.COLUMNS else down * along
    count = config.encoder.operations(channels, height, across) + along * config.recurrent.operations(seen)
    count += 2 * width**2 + (1 + steps) * config.recurrent.operations(width)
    count += AttentionCellConfig().operations(width, seen, queries=steps, keys=keys)
    if config.attention is Attended.NEIGHBOURS:
        count += 2 * keys * len(_NEIGHBOURS) * seen * width
    count += steps * 2 * (width + seen) * vocabularies["target"]
    return Operations(float(rows * count))


FAMILY = Family(TextReaderConfig, build, frozenset({CAPTIONING}), operations)
