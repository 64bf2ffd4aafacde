"""MDARQN: a recurrent Q-network that attends to the regions of a grayscale and a depth image."""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.handshake_rl.signature import ACTION_VALUES
from transformer.attention.capture import capture_for_site
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, PositiveInt
from transformer.layers.attention_cell import (
    Alignment,
    AttentionCell,
    AttentionCellConfig,
    AttentionMemory,
    scan_decoder_steps,
)
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, RecurrentConfig, RecurrentLayer
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

SITE = "agent/attention"
STREAMS = ("gray", "depth")


class RegionPooling(enum.Enum):
    """How the regions' features f_1 ... f_K become the input of the recurrent layer at step t.

    attention: sum_k a_k f_k, a = softmax_k(v' tanh(W h_{t-1} + U f_k)) (Sorokin et al. 2015, DARQN: its soft
    attention). mean: their mean. concatenate: all regions' features (Hausknecht and Stone 2015, DRQN).
    """

    ATTENTION = "attention"
    MEAN = "mean"
    CONCATENATE = "concatenate"


@dataclasses.dataclass(frozen=True)
class RecurrentQNetworkConfig(Config, path="config.model"):
    """The configuration of a recurrent Q-network: convolutions of each image, pooled regions, an LSTM, action values.

    Attributes:
        image_encoder: The convolutions of each image.
        region_pooling: How regions become the input of the LSTM.
        width: Features of the LSTM.

    Raises:
        UserError: If the width is below 1.
    """

    image_encoder: GridEncoderConfig = dataclasses.field(
        default_factory=lambda: GridEncoderConfig(channels=(32,), strides=(3,))
    )
    region_pooling: RegionPooling = RegionPooling.ATTENTION
    width: PositiveInt = 64

    @property
    def num_region_features(self) -> int:
        """The number of features of a region, over both images."""
        return len(STREAMS) * self.image_encoder.width

    def pooled_width(self, regions: int) -> int:
        """Return the number of image features that the recurrent layer reads, for an image of so many regions."""
        return self.num_region_features * (regions if self.region_pooling is RegionPooling.CONCATENATE else 1)

    @property
    def recurrent(self) -> RecurrentConfig:
        """The config of the recurrent layer."""
        return RecurrentConfig(width=self.width)


class StepInputs(NamedTuple):
    """The inputs of a step that need no state.

    Attributes:
        regions: The regions, prepared for attention or pooled.
        action: The last action as a one-hot vector, zero at the first step.
    """

    regions: AttentionMemory | Float[Array, "*B F"]
    action: Float[Array, "*B A"]


class RecurrentQNetwork(StatelessModule):
    """A recurrent Q-network: h_t = LSTM([read_t(f_1 ... f_K, h_{t-1}) ; a_{t-1}], h_{t-1}), Q_t = W h_t + b.

    f_k = [gray features ; depth features] of region k: the network of Sorokin et al. 2015 (DARQN) with a stream of
    convolutions for each image as in Qureshi et al. 2017 (Show, attend and interact). The streams are joined in each
    region, and one attention reads both: if only the values of two separate networks were added, nothing would ever see
    both images of a region together. The last action a_{t-1} is an input as in Zhu et al. 2017 (ADRQN), because the
    image does not show what the agent did.

    Inputs: `gray` and `depth` [B, T, Y, X, 1] from -1 to 1, `actions` [B, T] (0: none yet, else the action plus 1),
    `lengths` [B]. Outputs: the values [B, T, A]; at padding those of W 0 + b.
    """

    def __init__(self, config: RecurrentQNetworkConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype, self.count = config, builder.dtype, interface.vocabularies["actions"]
        regions = _num_regions(config, interface)
        self.gray = GridEncoder(config.image_encoder, 1, builder=builder)
        self.depth = GridEncoder(config.image_encoder, 1, builder=builder)
        if config.region_pooling is RegionPooling.ATTENTION:
            self.attention = AttentionCell(
                AttentionCellConfig(), config.width, config.num_region_features, builder=builder
            )
        self.recurrent = RecurrentLayer(config.recurrent, config.pooled_width(regions) + self.count, builder=builder)
        self.values = Linear((("embed", config.width),), (("features", self.count),), bias=True, builder=builder)

    def encode_observation(self, inputs: Inputs) -> StepInputs:
        """Compute the part of a step that needs no state, for images with any leading axes."""
        lead = jnp.shape(inputs["gray"])[:-3]

        def encoded(stream: str) -> Array:
            images = jnp.asarray(inputs[stream], self.dtype)
            images = with_logical_constraint(images.reshape(-1, *images.shape[-3:]), "batch", None, None, None)
            return getattr(self, stream)(images)

        grid_NxYxXxF = jnp.concatenate([encoded(stream) for stream in STREAMS], axis=-1)
        regions_NxKxF = grid_NxYxXxF.reshape(grid_NxYxXxF.shape[0], -1, grid_NxYxXxF.shape[-1])
        match self.config.region_pooling:
            case RegionPooling.ATTENTION:
                regions: Any = self.attention.prepare(regions_NxKxF)
            case RegionPooling.MEAN:
                regions = jnp.mean(regions_NxKxF, axis=1)
            case RegionPooling.CONCATENATE:
                regions = regions_NxKxF.reshape(len(regions_NxKxF), -1)
        # Of no action at all the vector is zero.
        action = jax.nn.one_hot(jnp.asarray(inputs["actions"]) - 1, self.count, dtype=self.dtype)
        return StepInputs(jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), regions), action)

    def advance(
        self, state: CellState, step_input: StepInputs, key: Key[Array, ""] | None
    ) -> tuple[CellState, Float[Array, "B F"], Alignment | None]:
        """Run one step: attention is conditioned on the previous state."""
        if isinstance(step_input.regions, AttentionMemory):
            read_BxF, alignment = self.attention.step(state.hidden, step_input.regions)
        else:
            read_BxF, alignment = step_input.regions, None
        state = self.recurrent.step(jnp.concatenate([read_BxF, step_input.action], axis=-1), state)
        return state, state.hidden, alignment

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T A"], Aux]:
        """Return the values [B, T, A] at every step of complete episodes, from a zero state."""
        step_inputs, lengths_B = self.encode_observation(inputs), jnp.asarray(inputs["lengths"])
        first = self.recurrent.initial(len(lengths_B), self.dtype)
        attends = self.config.region_pooling is RegionPooling.ATTENTION
        capture = capture_for_site(SITE, forward_pass.capture) if attends else None
        mask = Mask(query_lengths=lengths_B)
        _, hidden_BxTxF, captured = scan_decoder_steps(self.advance, first, step_inputs, mask=mask, capture=capture)
        return self._action_values(hidden_BxTxF), Aux({} if captured is None else {SITE: captured}, {}, state)

    def begin(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[CellState, Aux]:
        """Return the initial state for as many agents as there are `actions` [B]."""
        return self.recurrent.initial(len(inputs["actions"]), self.dtype), Aux({}, {}, state)

    def act(
        self, state: dict, inputs: Inputs, forward_pass: ForwardPass
    ) -> tuple[tuple[Float[Array, "B A"], CellState], Aux]:
        """Return the values of one step and the new state, from inputs without the step axis and the previous `state`.

        The values are those of `forward` at that step.
        """
        before: Any = inputs["state"]
        after, hidden_BxF, _ = self.advance(before, self.encode_observation(inputs), None)
        return (self._action_values(hidden_BxF), after), Aux({}, {}, state)

    def _action_values(self, hidden: Float[Array, "*B F"]) -> Float[Array, "*B A"]:
        values = self.values(hidden)
        return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _num_regions(config: RecurrentQNetworkConfig, interface: TaskInterface) -> int:
    rows, columns = config.image_encoder.stages(*interface.inputs["gray"].shape[2:4])[-1]
    return rows * columns


def attention_sites(config: RecurrentQNetworkConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model, over regions of the image; none without attention."""
    region = config.image_encoder.axis("region", *interface.inputs["gray"].shape[2:4])
    if config.region_pooling is not RegionPooling.ATTENTION:
        return ()
    return (Site(SITE, Axis("step", AxisKind.STEPS), region, layers=("0",), heads=("0",)),)


FAMILY = ModelFamily(RecurrentQNetworkConfig, RecurrentQNetwork, frozenset({ACTION_VALUES}), sites=attention_sites)
