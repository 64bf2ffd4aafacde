"""Show, Attend and Read: recognize the string in an image by 2D attention (Li et al. 2019)."""

import dataclasses
import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.capture import CapturedAttention, capture_for_site
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NumLayers, PositiveInt
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, RecurrentConfig, RecurrentStack
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import ForwardPass, Inputs
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import (
    SITE,
    RecurrentAttentionDecoder,
    StepInput,
    capture_all_steps,
)
from transformer.models.task_interface import IMAGE_CAPTIONING, TaskInterface

# Rows and columns from a place to each of the eight around it.
_NEIGHBORS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0))


class AttentionInput(enum.Enum):
    """What the decoder's attention scores and reads.

    neighbors: every grid position, scored together with the eight around it (Li et al. 2019, equation 4). plain: every
    grid position, scored by itself. columns: one vector a column, the maximum of each feature along it, as in
    recognizers of straight text.
    """

    NEIGHBORS = "neighbors"
    PLAIN = "plain"
    COLUMNS = "columns"


@dataclasses.dataclass(frozen=True)
class ShowAttendReadConfig(Config, path="config.model"):
    """The configuration of a convolutional image encoder, an LSTM over its columns, and an attentive LSTM decoder.

    Attributes:
        image_encoder: The convolutions.
        width: Features of both LSTMs.
        layers: Layers of both LSTMs.
        attention_input: What attention scores and reads.
    """

    image_encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    width: PositiveInt = 512
    layers: NumLayers = 2
    attention_input: AttentionInput = AttentionInput.NEIGHBORS

    @property
    def recurrent(self) -> RecurrentConfig:
        """The config of both LSTMs."""
        return RecurrentConfig(width=self.width, layers=self.layers)


class ShowAttendRead(RecurrentAttentionDecoder):
    """Show, Attend and Read: p(y_t | v, y_1 ... y_{t-1}) = softmax(W_o [h_t ; g_t]) (section 3.3 of the paper).

    v_ij are the features of row i and column j. With W'_pq a matrix for each of the eight neighbors, e_ij = w' tanh(W_v
    v_ij + sum_pq W'_pq v_pq + W_h h_t), alpha = softmax(e) and g_t = sum_ij alpha_ij v_ij. h_t is the decoder's state
    after y_{t-1}. Before the begin token it reads a linear map of the holistic feature, which is the encoder's state
    after the last column; the encoder reads the maximum of every feature along each column. Neighbors beyond the edge
    are zero.

    Inputs: `image` and `target`, the string after a begin token, padded at its end.
    """

    def __init__(self, config: ShowAttendReadConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config = config
        image_width, width, vocabulary = config.image_encoder.width, config.width, interface.vocabularies["target"]
        self.grid = GridEncoder(config.image_encoder, interface.inputs["image"].shape[-1], builder=builder)
        self.encoder = RecurrentStack(config.recurrent, image_width, builder=builder)
        self.holistic = Linear((("features", width),), (("embed", width),), bias=False, builder=builder)
        self.embedding = Embedding(vocabulary, width, builder=builder)
        self.decoder = RecurrentStack(config.recurrent, width, builder=builder)
        self.attention = AttentionCell(AttentionCellConfig(), width, image_width, builder=builder)
        reads_neighbors = config.attention_input is AttentionInput.NEIGHBORS
        sums = (("groups", len(_NEIGHBORS)), ("features", width))
        self.neighbors = (
            Linear((("features", image_width),), sums, bias=False, builder=builder) if reads_neighbors else None
        )
        read = (("features", width + image_width),)
        self.output = Linear(read, (("vocabulary", vocabulary),), bias=False, builder=builder)

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[AttentionMemory, tuple[CellState, ...]]:
        """Return the memory that attention reads, and the decoder's state before the begin token."""
        grid_BxVxWxC = self.grid(jnp.asarray(inputs["image"], self.dtype))
        columns_BxWxC = with_logical_constraint(_max_over_rows(grid_BxVxWxC), "batch", None, None)
        _, encoded = self.encoder(columns_BxWxC)
        holistic_BxF = self.holistic(encoded[-1].hidden)
        _, first = self.decoder.step(holistic_BxF, self.decoder.initial(len(holistic_BxF), self.dtype))
        if self.config.attention_input is AttentionInput.COLUMNS:
            return self.attention.prepare(columns_BxWxC), first
        places_BxLxC = grid_BxVxWxC.reshape(len(grid_BxVxWxC), -1, grid_BxVxWxC.shape[-1])
        memory = self.attention.prepare(with_logical_constraint(places_BxLxC, "batch", None, None))
        if self.neighbors is not None:
            neighbor_features = _sum_neighbors(
                self.neighbors(with_logical_constraint(grid_BxVxWxC, "batch", None, None, None))
            )
            # Keys as the additive score has prepared them are W_v v_ij: what stands within its tanh beside W_h h_t.
            keys = jax.tree.map(lambda own: own + neighbor_features.reshape(own.shape), memory.keys)
            memory = memory._replace(keys=keys)
        return memory, first

    def advance(
        self,
        source: AttentionMemory,
        carry: tuple[CellState, ...],
        step_input: StepInput,
        forward_pass: ForwardPass,
    ) -> tuple[tuple[CellState, ...], Float[Array, "R G"], Alignment]:
        """Read the last glyph, then attend to the image, and return [h_t ; g_t] as the output."""
        hidden_RxF, carry = self.decoder.step(step_input.word, carry)
        glimpse_RxC, alignment = self.attention.step(hidden_RxF, source)
        return carry, jnp.concatenate([hidden_RxF, glimpse_RxC], axis=-1), alignment

    def run_steps(
        self,
        source: AttentionMemory,
        carry: tuple[CellState, ...],
        step_inputs: StepInput,
        mask: Mask,
        forward_pass: ForwardPass,
    ) -> tuple[Float[Array, "B T G"], CapturedAttention | None]:
        """Run the decoder over the whole target, then attend at all steps at once: no state reads the attention."""
        hidden_BxTxF, _ = self.decoder(step_inputs.word, mask.query_lengths, carry)
        glimpse_BxTxC, alignment = self.attention(hidden_BxTxF, source, mask=mask)
        outputs_BxTxG = jnp.concatenate([hidden_BxTxF, glimpse_BxTxC], axis=-1)
        return outputs_BxTxG, capture_all_steps(alignment, capture_for_site(SITE, forward_pass.capture), mask)


def _max_over_rows(grid_BxVxWxC: Float[Array, "B V W C"]) -> Float[Array, "B W C"]:
    """Return the maximum of each feature along every column.

    It is taken by index: the gradient of jnp.max was NaN with a finite loss (jax 0.12.0 on CPUs), since it divides by
    the number of positions that equal the maximum, which is zero if the compiler computes the grid twice and rounds
    differently.
    """
    highest_Bx1xWxC = jnp.argmax(grid_BxVxWxC, axis=1, keepdims=True)
    return jnp.take_along_axis(grid_BxVxWxC, highest_Bx1xWxC, axis=1)[:, 0]


def _sum_neighbors(features: Float[Array, "B V W 8 F"]) -> Float[Array, "B V W F"]:
    """Sum the contributions of the eight neighbors to each position; those beyond the edge contribute nothing.

    It is a convolution of 3 x 3 with a hole in the middle, whose matrix is that of the attention's keys.
    """
    rows, columns = features.shape[1:3]
    padded = jnp.pad(features, ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    contributions = [
        padded[:, 1 + down : 1 + down + rows, 1 + right : 1 + right + columns, number]
        for number, (down, right) in enumerate(_NEIGHBORS)
    ]
    return sum(contributions[1:], start=contributions[0])


def attention_sites(config: ShowAttendReadConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder, over the grid or the columns of the task's images.

    Raises:
        UserError: If the strides of the convolutions do not divide the image.
    """
    keys = config.image_encoder.axis("grid", *interface.inputs["image"].shape[1:3])
    if config.attention_input is AttentionInput.COLUMNS:
        assert keys.shape is not None
        keys = Axis("columns", AxisKind.STEPS, num_positions=keys.shape[1])
    return (Site(SITE, Axis("target"), keys, layers=("0",), heads=("0",)),)


FAMILY = ModelFamily(ShowAttendReadConfig, ShowAttendRead, frozenset({IMAGE_CAPTIONING}), sites=attention_sites)
