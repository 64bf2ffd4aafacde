"""A pointer network: its output is an attention over its own input (Vinyals, Fortunato and Jaitly 2015)."""

import dataclasses
import enum
import functools
from typing import assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

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
from transformer.layers.functional_module import FunctionalModule, ParameterBuilder, Precision
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentStack
from transformer.layers.sequence_lengths import real_positions, target_lengths
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, Cache, Inputs, Model, PyTree, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import POINTER_END, POINTER_PREDICTION, TaskInterface

SITE = "decoder/pointer"
COORDINATES = 2
# The logit of a point that is not there: finite, so that its product with a smoothing of zero is zero.
NO_POINT = -1e9


class DecoderInputKind(enum.Enum):
    """What the decoder reads of the last chosen point.

    point: its coordinates (section 2.3 of the paper). encoded: the encoder's output e_j, which also depends on the
    other points.
    """

    POINT = "point"
    ENCODED = "encoded"


@dataclasses.dataclass(frozen=True)
class PointerNetworkConfig(Config, path="config.model"):
    """The configuration of a recurrent encoder over the points, and a decoder that points at them.

    The decoder has the encoder's cell and the width of the encoder's outputs; its layers start with the final states of
    the encoder's topmost layers (section 2.3).

    Attributes:
        encoder: The encoder: its cell, width, layers and direction.
        decoder_layers: Number of decoder layers.
        decoder_input: What the decoder reads at each step.

    Raises:
        UserError: If the decoder has more layers than the encoder, or one starts with a state of another width.
    """

    encoder: RecurrentConfig = dataclasses.field(default_factory=lambda: RecurrentConfig(width=256))
    decoder_layers: NumLayers = 1
    decoder_input: DecoderInputKind = DecoderInputKind.POINT

    def _check(self) -> None:
        if self.decoder_layers > self.encoder.layers:
            raise UserError(
                f"config.model.decoder_layers={self.decoder_layers} must be 1 to {self.encoder.layers}, "
                "config.model.encoder.layers: each begins with the state of one of those"
            )
        wanted, first = self.encoder.output_width, self.encoder.layers - self.decoder_layers
        widths = [self.encoder.layer_output_width(layer) for layer in range(first, self.encoder.layers)]
        alike = [width == wanted for width in widths]
        if not all(alike):
            raise UserError(
                f"config.model.decoder_layers={self.decoder_layers} begin with the states of the topmost layers of the "
                f"encoder, and with config.model.encoder.direction={self.encoder.direction.value} one of these has "
                f"{widths[alike.index(False)]} features where the decoder has {wanted}: say "
                f"config.model.decoder_layers={alike[::-1].index(False)}, or another direction"
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
        """Encode the points. Coordinates at or beyond the number of points, even NaN, are never read.

        Args:
            inputs: `points` and `lengths`.
            key: The random key of dropout.

        Returns:
            The memory that the decoder points at, what it reads after each choice (the begin vector for END), and d_0.
        """
        points_BxNx2 = jnp.asarray(inputs["points"], self.dtype)
        lengths_B = jnp.asarray(inputs["lengths"])
        real_BxN = real_positions(lengths_B, points_BxNx2.shape[1])
        points_BxNx2 = jnp.where(real_BxN[..., None], points_BxNx2, 0)
        encoded_BxNxE, carry = self.encoder(points_BxNx2, lengths_B, key=key)

        def behind(first: Array, of_points_BxNxF: Array) -> Array:
            first_Bx1xF = jnp.broadcast_to(first, (len(lengths_B), 1, *first.shape))
            return with_logical_constraint(jnp.concatenate([first_Bx1xF, of_points_BxNxF], axis=1), "batch", None, None)

        memory_BxKxE = behind(jnp.asarray(self.end[...], self.dtype), encoded_BxNxE)
        match self.config.decoder_input:
            case DecoderInputKind.POINT:
                fed_BxKxI = behind(jnp.asarray(self.begin[...], self.dtype), points_BxNx2)
            case DecoderInputKind.ENCODED:
                fed_BxKxI = behind(jnp.asarray(self.begin[...], self.dtype), encoded_BxNxE)
            case _:
                assert_never(self.config.decoder_input)
        return self.pointer.prepare(memory_BxKxE, lengths_B + 1), fed_BxKxI, carry[-self.config.decoder_layers :]

    def point(self, query_BxQxE: Float[Array, "B Q E"], memory: AttentionMemory, mask: Mask) -> Alignment:
        """Return how each query weights the end and the points; the logits are those of the answer."""
        _, alignment = self.pointer(query_BxQxE, memory, mask=mask)
        real_BxK = real_positions(memory.lengths, memory.values.shape[1])
        return alignment._replace(logits=jnp.where(real_BxK[:, None, None], alignment.logits, NO_POINT))

    def forward(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T K"], Aux]:
        """Return the logits at every step of `target`: END, followed by the numbers of the points (teacher forcing).

        No step reads the attention of the one before, so the decoder runs over all of `target` first.
        """
        target_BxT = jnp.asarray(inputs["target"])
        encoder_key, decoder_key = (None, None) if key is None or not train else jax.random.split(key)
        memory, fed_BxKxI, carry = self.encode(inputs, encoder_key)
        lengths_B = target_lengths(target_BxT, jnp.asarray(inputs["lengths"]), POINTER_END)
        fed_BxTxI = jnp.take_along_axis(fed_BxKxI, target_BxT[..., None], axis=1)
        query_BxTxE, _ = self.decoder(fed_BxTxI, lengths_B, carry, key=decoder_key)
        mask = Mask(query_lengths=lengths_B, key_lengths=memory.lengths)
        alignment = self.point(query_BxTxE, memory, mask)
        return alignment.logits[:, 0], Aux(_maps(alignment, mask, capture), {}, state)

    def init_cache(
        self, state: PyTree, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Return the initial cache; rows are examples x beams, and encoded points are stored once for all beams."""
        memory, fed_BxKxI, carry = self.encode(inputs)
        begin_R = jnp.full(len(fed_BxKxI) * num_beams, POINTER_END, jnp.int32)
        return Cache(layers=(), rows=repeat_per_beam(carry, num_beams), examples=(memory, fed_BxKxI)), begin_R

    def step(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R K"], Cache, Aux]:
        """Return the logits of the end and of every point after one more choice."""
        memory, fed_BxKxI = cache.examples
        chosen_BxM = unflatten_beam_axis(tokens_R, len(fed_BxKxI))
        fed_RxI = flatten_beam_axis(jnp.take_along_axis(fed_BxKxI, chosen_BxM[..., None], axis=1))
        query_RxE, rows = self.decoder.step(fed_RxI, cache.rows)
        mask = Mask(key_lengths=memory.lengths)
        alignment = self.point(unflatten_beam_axis(query_RxE, len(fed_BxKxI)), memory, mask)
        # The beams of an example are queries of one attention; as maps they are rows of one query each.
        of_rows = jax.tree.map(lambda leaf: beam_queries_to_rows(leaf)[:, :, None], alignment)
        lengths_R = jnp.repeat(memory.lengths, chosen_BxM.shape[1])
        maps = _maps(of_rows, Mask(key_lengths=lengths_R), capture)
        return of_rows.logits[:, 0, 0], cache._replace(rows=rows), Aux(maps, {}, state)


def _maps(alignment: Alignment, mask: Mask, capture: Capture | None) -> dict[str, CapturedAttention]:
    captured = capture_weights(alignment.weights, capture_for_site(SITE, capture), logits=alignment.logits, mask=mask)
    return single_layer_maps(SITE, captured, capture)


def build(config: PointerNetworkConfig, interface: TaskInterface, precision: Precision) -> Model:
    """Build the model; points and targets may have any length."""
    target, points = Axis("target"), Axis("points", AxisKind.POINTS)
    site = Site(SITE, target, points, layers=("0",), heads=("0",))
    return Model(FunctionalModule(functools.partial(PointerNetwork, config), precision), (site,))


FAMILY = ModelFamily(PointerNetworkConfig, build, frozenset({POINTER_PREDICTION}))
