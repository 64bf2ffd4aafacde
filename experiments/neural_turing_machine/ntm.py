"""The Neural Turing Machine: a controller that reads and writes a memory by attention (Graves et al. 2014)."""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments.neural_turing_machine import memory
from experiments.neural_turing_machine.signature import BIT_SEQUENCE_PREDICTION
from transformer.attention.capture import (
    CapturedAttention,
    capture_for_site,
    capture_weights,
    single_layer_maps,
)
from transformer.attention.component import normal
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NonNegativeInt, NumHeads, PositiveInt, UserError
from transformer.layers.attention_cell import Alignment, scan_decoder_steps
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import RecurrentInitialization
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellKind, CellState, RecurrentCell
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

READ, WRITE = "memory/read", "memory/write"
UNWRITTEN = 1e-6  # what every slot holds where the beginning is constant


class ControllerKind(enum.Enum):
    """The controller network, which reads the input and the last read vectors, and emits the heads' parameters."""

    FEED_FORWARD = "feed_forward"
    LSTM = "lstm"


class MemoryInit(enum.Enum):
    """The contents of the memory before the first step."""

    LEARNED = "learned"
    CONSTANT = "constant"


@dataclasses.dataclass(frozen=True)
class NTMConfig(Config, path="config.model"):
    """The configuration of an NTM; the defaults are those of the paper's copy task (table 1).

    Attributes:
        controller: The controller network.
        width: Features of the controller.
        read_heads: The number of read heads.
        write_heads: The number of write heads.
        num_slots: The slots of the memory.
        slot_width: Features of a slot.
        shift_range: The largest shift to either side.
        memory_init: The contents of the memory before the first step.

    Raises:
        UserError: If a value is out of range, or `shift_range` goes more than once around the slots.
    """

    controller: ControllerKind = ControllerKind.FEED_FORWARD
    width: PositiveInt = 100
    read_heads: NumHeads = 1
    write_heads: NumHeads = 1
    num_slots: PositiveInt = 128
    slot_width: PositiveInt = 20
    shift_range: NonNegativeInt = 1
    memory_init: MemoryInit = MemoryInit.LEARNED

    def _check(self) -> None:
        if memory.num_shift_offsets(self.shift_range) > self.num_slots:
            raise UserError(
                f"config.model.shift_range={self.shift_range} must go to either side no further than "
                f"once around the config.model.num_slots={self.num_slots}"
            )

    @property
    def num_heads(self) -> int:
        """The number of heads, read heads first."""
        return self.read_heads + self.write_heads

    @property
    def num_head_outputs(self) -> int:
        """The number of the controller's outputs for all heads in one step."""
        changes = 2 * self.slot_width * self.write_heads
        return self.num_heads * memory.num_address_outputs(self.slot_width, self.shift_range) + changes


class MachineState(NamedTuple):
    """The state between steps.

    Attributes:
        memory: The memory.
        weights: The last weightings, those of read heads first.
        reads: The last read vectors.
        controller: The LSTM's state; None for a feed-forward controller.
    """

    memory: Float[Array, "R N M"]
    weights: Float[Array, "R H N"]
    """The weightings of the step before: of the heads that read, then of those that write."""
    reads: Float[Array, "R heads M"]
    controller: CellState | None
    """The LSTM's state; a feed-forward controller has none."""


class NTM(StatelessModule):
    """A Neural Turing Machine: h = controller(x, r_{t-1}); heads address M_{t-1}; r_t is read from it; M_t is written.

    The output is computed from [h ; r_t]. The paper writes M_t in the equations of both reading and writing; here all
    heads address and read the memory before the step, so that what is written can be read one step later.

    The initial state is learned: the read vectors, the weightings (their logits), an LSTM's state, and the slots unless
    `MemoryInit` is constant.
    """

    def __init__(self, config: NTMConfig, interface: TaskInterface, builder: ParameterBuilder):
        inputs, outputs = interface.inputs["vectors"].shape[-1], interface.vocabularies["bits"]
        self.config, self.dtype = config, builder.dtype
        # Small, and read at every step: whole on every device.
        width, read = config.width, config.read_heads * config.slot_width
        if config.controller is ControllerKind.LSTM:
            orthogonal = RecurrentInitialization.ORTHOGONAL
            self.cell = RecurrentCell(
                CellKind.LSTM,
                inputs + read,
                width,
                recurrent_initialization=orthogonal,
                forget_bias=1.0,
                builder=builder,
            )
        else:
            self.hidden = Linear((("features", inputs + read),), (("features", width),), bias=True, builder=builder)
        self.heads = Linear(
            (("features", width),), (("features", config.num_head_outputs),), bias=True, builder=builder
        )
        self.output = Linear((("features", width + read),), (("features", outputs),), bias=True, builder=builder)

        def memory_init(deviation: float, *shape: int) -> Any:
            return builder.parameter(normal(deviation), shape, ("features",) * len(shape))

        if config.memory_init is MemoryInit.LEARNED:
            self.memory = memory_init(config.slot_width**-0.5, config.num_slots, config.slot_width)
        self.weights = memory_init(1.0, config.num_heads, config.num_slots)
        self.reads = memory_init(config.slot_width**-0.5, config.read_heads, config.slot_width)
        if config.controller is ControllerKind.LSTM:
            self.state = memory_init(width**-0.5, 2, width)

    def begin(self, rows: int) -> MachineState:
        """Return the initial state of so many sequences."""
        wide = jnp.promote_types(self.dtype, jnp.float32)

        def repeat_rows(x: Array | np.ndarray) -> Array:
            repeated = jnp.broadcast_to(jnp.asarray(x, wide), (rows, *x.shape))
            return with_logical_constraint(repeated, "batch", *(None,) * x.ndim)

        controller = None
        if self.config.controller is ControllerKind.LSTM:
            controller = CellState(*(repeat_rows(part).astype(self.dtype) for part in self.state[...]))
        weights_HxN = jax.nn.softmax(self.weights[...].astype(wide), axis=-1)
        slots_NxM = jnp.full((self.config.num_slots, self.config.slot_width), UNWRITTEN)
        if self.config.memory_init is MemoryInit.LEARNED:
            slots_NxM = self.memory[...]
        return MachineState(repeat_rows(slots_NxM), repeat_rows(weights_HxN), repeat_rows(self.reads[...]), controller)

    def advance(
        self, state: MachineState, x_RxI: Float[Array, "R I"], key: Key[Array, ""] | None = None
    ) -> tuple[MachineState, tuple[Float[Array, "R F"], Float[Array, "R H N"]], Alignment]:
        """Run one step.

        Returns:
            The next state; the features of the output and the weighting of every head; and the weightings as an
            alignment.
        """
        config, rows = self.config, len(x_RxI)
        seen_RxI = jnp.concatenate([x_RxI, state.reads.reshape(rows, -1).astype(x_RxI.dtype)], axis=-1)
        controller = None
        if state.controller is not None:
            controller = self.cell.step(seen_RxI, state.controller)
            hidden_RxF = controller.hidden
        else:
            hidden_RxF = jnp.tanh(self.hidden(seen_RxI))

        emitted_RxF = self.heads(hidden_RxF).astype(state.memory.dtype)
        size = config.num_heads * memory.num_address_outputs(config.slot_width, config.shift_range)
        addresses_RxHxF = emitted_RxF[:, :size].reshape(rows, config.num_heads, -1)
        to = memory.parse_addressing_parameters(addresses_RxHxF, config.slot_width)
        weights_RxHxN = memory.compute_weightings(to, state.memory, state.weights)

        reads_RxHxM = memory.read_slots(state.memory, weights_RxHxN[:, : config.read_heads])
        change = memory.parse_write_parameters(emitted_RxF[:, size:].reshape(rows, config.write_heads, -1))
        memory_RxNxM = memory.write_slots(state.memory, weights_RxHxN[:, config.read_heads :], change)

        read_RxF = jnp.concatenate([hidden_RxF, reads_RxHxM.reshape(rows, -1).astype(hidden_RxF.dtype)], axis=-1)
        after = MachineState(memory_RxNxM, weights_RxHxN, reads_RxHxM, controller)
        return after, (read_RxF, weights_RxHxN), Alignment(weights_RxHxN, jnp.log(weights_RxHxN))

    def forward(self, state: Any, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T O"], Aux]:
        """Return the logits of every bit at every step; values at or beyond a sequence's length are never read."""
        vectors_BxTxI, lengths_B = jnp.asarray(inputs["vectors"], self.dtype), jnp.asarray(inputs["lengths"])
        mask = Mask(query_lengths=lengths_B)
        # Kept for the backward pass, a step's intermediates are several memories: to write and read them takes longer
        # than to compute them again.
        step = jax.checkpoint(self.advance, prevent_cse=False)
        _, (read_BxTxF, weights_BxTxHxN), _ = scan_decoder_steps(
            step, self.begin(len(vectors_BxTxI)), vectors_BxTxI, mask=mask
        )
        weights_BxHxTxN = jnp.moveaxis(weights_BxTxHxN, 2, 1)
        count = self.config.read_heads
        maps: dict[str, CapturedAttention] = {}
        for site, weights in ((READ, weights_BxHxTxN[:, :count]), (WRITE, weights_BxHxTxN[:, count:])):
            captured = capture_weights(weights, capture_for_site(site, forward_pass.capture), mask=mask)
            maps |= single_layer_maps(site, captured, forward_pass.capture)
        return self.output(read_BxTxF), Aux(maps, {}, state)


def attention_sites(config: NTMConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model: its read heads and its write heads."""
    steps, slots = Axis("steps", AxisKind.STEPS), Axis("slots", AxisKind.SLOTS, num_positions=config.num_slots)
    return tuple(
        Site(name, steps, slots, layers=("0",), heads=tuple(map(str, range(count))))
        for name, count in ((READ, config.read_heads), (WRITE, config.write_heads))
    )


FAMILY = ModelFamily(NTMConfig, NTM, frozenset({BIT_SEQUENCE_PREDICTION}), sites=attention_sites)
