"""An agent with a recurrent memory that attends to regions of what it sees, in two streams: MDARQN."""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.capture import Capture, capture_at
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, Positive
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory, scan_steps
from transformer.layers.functional_module import Builder, Functional, Precision
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, RecurrentConfig, RecurrentLayer
from transformer.logical_axes import place
from transformer.models.model import Aux, Inputs, Model, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import ACTION_VALUES, TaskInterface

SITE = "agent/attention"
STREAMS = ("gray", "depth")


class Reading(enum.Enum):
    """What of the regions' features f_1 ... f_K the recurrent layer reads at step t.

    attention: sum_k a_k f_k, a = softmax_k(v' tanh(W h_{t-1} + U f_k)) (Sorokin et al. 2015, DARQN: its soft
      attention).
    mean: their mean, which is the same without the choice.
    all: every region's, side by side (Hausknecht and Stone 2015, DRQN).
    """

    ATTENTION = "attention"
    MEAN = "mean"
    ALL = "all"


@dataclasses.dataclass(frozen=True)
class RecurrentQNetworkConfig(Config, path="config.model"):
    """Convolutions of `encoder` for each stream, a `reading` of their regions, an LSTM of `width`, a value an action.

    Raises:
        UserError: For a width below 1.
    """

    encoder: GridEncoderConfig = dataclasses.field(
        default_factory=lambda: GridEncoderConfig(channels=(32,), strides=(3,))
    )
    reading: Reading = Reading.ATTENTION
    width: Positive = 64

    @property
    def features(self) -> int:
        """The features of a region: those of both streams."""
        return len(STREAMS) * self.encoder.width

    def read_width(self, regions: int) -> int:
        """The features that the recurrent layer reads of an image of so many regions."""
        return self.features * (regions if self.reading is Reading.ALL else 1)

    @property
    def recurrent(self) -> RecurrentConfig:
        """The recurrent layer."""
        return RecurrentConfig(width=self.width)


class Seen(NamedTuple):
    """What a step reads: its regions, prepared to be attended to or read already, and the action behind it."""

    regions: AttentionMemory | Float[Array, "*B F"]
    action: Float[Array, "*B A"]


class RecurrentQNetwork(StatelessModule):
    """h_t = LSTM([read_t(f_1 ... f_K, h_{t-1}) ; a_{t-1}], h_{t-1}), Q_t = W h_t + b.

    f_k = [gray features ; depth features] of region k: the network of Sorokin et al. 2015 (DARQN) with a stream of
    convolutions for each image of Qureshi et al. 2017 (Show, attend and interact). The streams are joined in each
    region, and one attention reads both: were only the values of two whole networks added, nothing would ever read
    together what is in one place of both images. The last action a_{t-1} is fed as by Zhu et al. 2017 (ADRQN): what
    the agent did is not in the image.

    inputs: `gray` and `depth` [B, T, Y, X, 1] from -1 to 1, `actions` [B, T] (0: none yet, else the action plus 1),
    `lengths` [B]. Outputs: the values [B, T, A], those of W 0 + b at padding.
    """

    def __init__(self, config: RecurrentQNetworkConfig, interface: TaskInterface, builder: Builder):
        self.config, self.dtype, self.count = config, builder.dtype, interface.vocabularies["actions"]
        regions = _regions(config, interface)
        self.gray = GridEncoder(config.encoder, 1, builder=builder)
        self.depth = GridEncoder(config.encoder, 1, builder=builder)
        if config.reading is Reading.ATTENTION:
            self.attention = AttentionCell(AttentionCellConfig(), config.width, config.features, builder=builder)
        self.recurrent = RecurrentLayer(config.recurrent, config.read_width(regions) + self.count, builder=builder)
        self.values = Linear((("embed", config.width),), (("features", self.count),), bias=True, builder=builder)

    def see(self, inputs: Inputs) -> Seen:
        """All of a step that waits for no state, for images with any leading axes."""
        lead = jnp.shape(inputs["gray"])[:-3]

        def encoded(stream: str) -> Array:
            images = jnp.asarray(inputs[stream], self.dtype)
            images = place(images.reshape(-1, *images.shape[-3:]), "batch", None, None, None)
            return getattr(self, stream)(images)

        grid_NxYxXxF = jnp.concatenate([encoded(stream) for stream in STREAMS], axis=-1)
        regions_NxKxF = grid_NxYxXxF.reshape(grid_NxYxXxF.shape[0], -1, grid_NxYxXxF.shape[-1])
        match self.config.reading:
            case Reading.ATTENTION:
                regions: Any = self.attention.prepare(regions_NxKxF)
            case Reading.MEAN:
                regions = jnp.mean(regions_NxKxF, axis=1)
            case Reading.ALL:
                regions = regions_NxKxF.reshape(len(regions_NxKxF), -1)
        # Of no action at all the vector is zero.
        action = jax.nn.one_hot(jnp.asarray(inputs["actions"]) - 1, self.count, dtype=self.dtype)
        return Seen(jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), regions), action)

    def advance(
        self, state: CellState, seen: Seen, key: Key[Array, ""] | None
    ) -> tuple[CellState, Float[Array, "B F"], Alignment | None]:
        """One step: what is read depends on the state before it."""
        if isinstance(seen.regions, AttentionMemory):
            read_BxF, alignment = self.attention.step(state.hidden, seen.regions)
        else:
            read_BxF, alignment = seen.regions, None
        state = self.recurrent.step(jnp.concatenate([read_BxF, seen.action], axis=-1), state)
        return state, state.hidden, alignment

    def forward(
        self,
        state: dict,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T A"], Aux]:
        """The values at every step of episodes that are known, from a state of zeros."""
        seen, lengths_B = self.see(inputs), jnp.asarray(inputs["lengths"])
        first = self.recurrent.initial(len(lengths_B), self.dtype)
        asked = capture_at(SITE, capture) if self.config.reading is Reading.ATTENTION else None
        mask = Mask(query_lengths=lengths_B)
        _, hidden_BxTxF, captured = scan_steps(self.advance, first, seen, mask=mask, capture=asked)
        return self._values(hidden_BxTxF), Aux({} if captured is None else {SITE: captured}, {}, state)

    def begin(self, state: dict, inputs: Inputs, **options: Any) -> tuple[CellState, Aux]:
        """The state before the first step, for as many agents as there are `actions` [B]."""
        return self.recurrent.initial(len(inputs["actions"]), self.dtype), Aux({}, {}, state)

    def act(self, state: dict, inputs: Inputs, **options: Any) -> tuple[tuple[Float[Array, "B A"], CellState], Aux]:
        """The values of one step and the state behind it, of inputs without the axis of steps and the `state` before.

        What `forward` computes at that step.
        """
        before: Any = inputs["state"]
        after, hidden_BxF, _ = self.advance(before, self.see(inputs), None)
        return (self._values(hidden_BxF), after), Aux({}, {}, state)

    def _values(self, hidden: Float[Array, "*B F"]) -> Float[Array, "*B A"]:
        values = self.values(hidden)
        return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _regions(config: RecurrentQNetworkConfig, interface: TaskInterface) -> int:
    rows, columns = config.encoder.stages(*interface.inputs["gray"].shape[2:4])[-1]
    return rows * columns


def build(config: RecurrentQNetworkConfig, interface: TaskInterface, precision: Precision) -> Model:
    """The model for a task of an agent that sees; without attention it has no maps."""
    sites: tuple[Site, ...] = ()
    region = config.encoder.axis("region", *interface.inputs["gray"].shape[2:4])
    if config.reading is Reading.ATTENTION:
        sites = (Site(SITE, Axis("step", AxisKind.STEPS), region, layers=("0",), heads=("0",)),)
    return Model(Functional(lambda builder: RecurrentQNetwork(config, interface, builder), precision), sites)


FAMILY = ModelFamily(RecurrentQNetworkConfig, build, frozenset({ACTION_VALUES}))
