"""Recurrent layers over padded sequences, unidirectional, bidirectional or stacked; or one step at a time."""

import dataclasses
import enum
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.component import Initializer
from transformer.attention.inverted_dropout import dropout
from transformer.config import Config, NumLayers, PositiveInt, Rate, UserError
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole, RecurrentInitialization
from transformer.layers.linear import product
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import with_logical_constraint


class CellKind(enum.Enum):
    """The equations of a cell; x is the input, h the state, s the logistic function, * the elementwise product.

    Attributes:
        VANILLA: h' = tanh(W x + b + U h) (Elman 1990).
        GRU_RESET_BEFORE: r = s(W_r x + b_r + U_r h), z = s(W_z x + b_z + U_z h), n = tanh(W_n x + b_n + U_n (r * h)),
            h' = (1 - z) * n + z * h (Cho et al. 2014, equations 5 to 8). Bahdanau et al. 2015, appendix A.1.1, swap z
            and 1 - z, which is the same family of functions.
        GRU_RESET_AFTER: The same but n = tanh(W_n x + b_n + r * (U_n h + c)), the reset gate after the product: one
            product per step instead of two (cuDNN and PyTorch).
        LSTM: i, f, o = s(W x + b + U h) each by its own matrices, g = tanh(W_g x + b_g + U_g h), c' = f * c + i * g,
            h' = o * tanh(c') (Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000), no peepholes.
        LSTM_PEEPHOLE: The same, but the input and forget gates also read p_i * c and p_f * c, and the output gate
            p_o * c' (Gers and Schmidhuber 2000; Zhou et al. 2016, equation 2, whose p are theta).
    """

    VANILLA = "vanilla"
    GRU_RESET_BEFORE = "gru_reset_before"
    GRU_RESET_AFTER = "gru_reset_after"
    LSTM = "lstm"
    LSTM_PEEPHOLE = "lstm_peephole"

    @property
    def has_memory(self) -> bool:
        """Whether the cell carries a memory c besides its state."""
        return self in (CellKind.LSTM, CellKind.LSTM_PEEPHOLE)

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of the gates, in the order in which kernels and biases store them."""
        match self:
            case CellKind.VANILLA:
                return ("state",)
            case CellKind.GRU_RESET_BEFORE | CellKind.GRU_RESET_AFTER:
                return ("reset", "update", "candidate")
            case CellKind.LSTM | CellKind.LSTM_PEEPHOLE:
                return ("input", "forget", "candidate", "output")


class CellState(NamedTuple):
    """The state that a step passes to the next.

    Attributes:
        hidden: h, which is also the step's output.
        memory: The LSTM's c; None for other cells.
    """

    hidden: Float[Array, "*D R F"]
    memory: Float[Array, "*D R F"] | None = None


class RecurrentWeights(NamedTuple):
    """The weights that a step needs after the input is projected.

    Attributes:
        kernel_FxGxF: U of every gate.
        candidate_bias_F: c of gru_reset_after; None for other cells.
        peephole_3xF: p_i, p_f and p_o of lstm_peephole; None for other cells.
    """

    kernel_FxGxF: Float[Array, "*D F G F"]
    candidate_bias_F: Float[Array, "*D F"] | None = None
    peephole_3xF: Float[Array, "*D 3 F"] | None = None


class RecurrentCell(Module):
    """The parameters of one recurrent cell.

    They are sharded along the state's width only: a state sharded over `tensor` would have to be gathered at every
    step.

    Args:
        kind: The equations.
        inputs: Features of an input.
        width: Features of the state.
        recurrent_initialization: Initialization of the state-to-state matrices.
        forget_bias: Initial bias of the LSTM's forget gate (Jozefowicz et al. 2015 advise 1); other biases begin at
            zero.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        kind: CellKind,
        inputs: int,
        width: int,
        *,
        recurrent_initialization: RecurrentInitialization,
        forget_bias: float,
        builder: ParameterBuilder,
    ):
        self.kind, self.width = kind, width
        gates, axes = len(kind.gates), ("features", "features", "embed")
        self.kernel = builder.parameter(builder.rule(ParameterRole.DENSE, inputs, width), (inputs, gates, width), axes)
        self.recurrent_kernel = builder.parameter(recurrent_initialization(width, width), (width, gates, width), axes)
        zeros = jax.nn.initializers.zeros
        bias = _forget_bias(kind, forget_bias) if kind.has_memory else zeros
        self.bias = builder.parameter(bias, (gates, width), ("features", "features"))
        after, peephole = kind is CellKind.GRU_RESET_AFTER, kind is CellKind.LSTM_PEEPHOLE
        self.candidate_bias = builder.parameter(zeros, (width,), ("features",)) if after else None
        self.peephole = builder.parameter(zeros, (3, width), ("features", "features")) if peephole else None

    def project(self, x: Float[Array, "*B I"]) -> Float[Array, "*B G F"]:
        """Compute W x + b of every gate for any number of steps at once, since it does not depend on the state."""
        y = product(x, jnp.asarray(self.kernel[...], x.dtype))
        return y + jax.lax.broadcast_to_rank(self.bias[...].astype(x.dtype), y.ndim)

    def weights(self, dtype: jnp.dtype) -> RecurrentWeights:
        """The weights for `next_cell_state`, in this type."""
        kernel, *rest = (
            None if parameter is None else jnp.asarray(parameter[...], dtype)
            for parameter in (self.recurrent_kernel, self.candidate_bias, self.peephole)
        )
        assert kernel is not None
        return RecurrentWeights(kernel, *rest)

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> CellState:
        """A state of zeros."""
        zeros = jnp.zeros((rows, self.width), dtype)
        return CellState(zeros, zeros if self.kind.has_memory else None)

    def step(self, x_RxI: Float[Array, "R I"], state: CellState) -> CellState:
        """Compute the state after one input of every row."""
        return self.step_over(self.project(x_RxI), state)

    def step_over(self, projected_RxGxF: Float[Array, "R G F"], state: CellState) -> CellState:
        """As `step`, for an input that is already projected."""
        return next_cell_state(self.kind, self.weights(projected_RxGxF.dtype), projected_RxGxF, state)


def next_cell_state(
    kind: CellKind, weights: RecurrentWeights, projected_RxGxF: Float[Array, "R G F"], state: CellState
) -> CellState:
    """Compute the next state from a projected input, by the equations of `CellKind`.

    Args:
        kind: The equations.
        weights: The weights from `RecurrentCell.weights`.
        projected_RxGxF: The result of `RecurrentCell.project`.
        state: The state before.

    Returns:
        The state after.
    """
    hidden_RxF, kernel_FxGxF = state.hidden, weights.kernel_FxGxF
    match kind:
        case CellKind.VANILLA:
            return CellState(jnp.tanh(projected_RxGxF[:, 0] + hidden_RxF @ kernel_FxGxF[:, 0]))
        case CellKind.GRU_RESET_BEFORE:
            gates_Rx2xF = projected_RxGxF[:, :2] + product(hidden_RxF, kernel_FxGxF[:, :2])
            reset_RxF, update_RxF = jnp.unstack(jax.nn.sigmoid(gates_Rx2xF), axis=1)
            candidate_RxF = jnp.tanh(projected_RxGxF[:, 2] + (reset_RxF * hidden_RxF) @ kernel_FxGxF[:, 2])
            return CellState((1 - update_RxF) * candidate_RxF + update_RxF * hidden_RxF)
        case CellKind.GRU_RESET_AFTER:
            recurrent_RxGxF = product(hidden_RxF, kernel_FxGxF)
            gates_Rx2xF = projected_RxGxF[:, :2] + recurrent_RxGxF[:, :2]
            reset_RxF, update_RxF = jnp.unstack(jax.nn.sigmoid(gates_Rx2xF), axis=1)
            assert weights.candidate_bias_F is not None
            read_RxF = recurrent_RxGxF[:, 2] + weights.candidate_bias_F
            candidate_RxF = jnp.tanh(projected_RxGxF[:, 2] + reset_RxF * read_RxF)
            return CellState((1 - update_RxF) * candidate_RxF + update_RxF * hidden_RxF)
        case CellKind.LSTM:
            sums_RxGxF = projected_RxGxF + product(hidden_RxF, kernel_FxGxF)
            input_RxF, forget_RxF, candidate_RxF, output_RxF = jnp.unstack(sums_RxGxF, axis=1)
            assert state.memory is not None
            kept_RxF = jax.nn.sigmoid(forget_RxF) * state.memory
            memory_RxF = kept_RxF + jax.nn.sigmoid(input_RxF) * jnp.tanh(candidate_RxF)
            return CellState(jax.nn.sigmoid(output_RxF) * jnp.tanh(memory_RxF), memory_RxF)
        case CellKind.LSTM_PEEPHOLE:
            sums_RxGxF = projected_RxGxF + product(hidden_RxF, kernel_FxGxF)
            input_RxF, forget_RxF, candidate_RxF, output_RxF = jnp.unstack(sums_RxGxF, axis=1)
            assert state.memory is not None
            assert weights.peephole_3xF is not None
            to_input_F, to_forget_F, to_output_F = jnp.unstack(weights.peephole_3xF)
            kept_RxF = jax.nn.sigmoid(forget_RxF + to_forget_F * state.memory) * state.memory
            added_RxF = jax.nn.sigmoid(input_RxF + to_input_F * state.memory) * jnp.tanh(candidate_RxF)
            memory_RxF = kept_RxF + added_RxF
            output_RxF = jax.nn.sigmoid(output_RxF + to_output_F * memory_RxF)
            return CellState(output_RxF * jnp.tanh(memory_RxF), memory_RxF)


def _forget_bias(kind: CellKind, value: float) -> Initializer:
    """An initializer of zeros, with `value` in the forget gate's row."""
    row = kind.gates.index("forget")
    return lambda key, shape, dtype: jnp.zeros(shape, dtype).at[row].set(value)


class Direction(enum.Enum):
    """The order in which the layers of a stack read a sequence.

    Attributes:
        FORWARD: From the first position.
        BACKWARD: From the last real position of each row.
        BIDIRECTIONAL: Both, with a cell per direction; their outputs are concatenated, forward first (Schuster and
            Paliwal 1997).
        BIDIRECTIONAL_BELOW: The lowest layer is bidirectional, those above it read forward (Wu et al. 2016, section
            3.2).
        ALTERNATING: The lowest layer reads forward, the next one backward, and so on (Zhou et al. 2016, Deep-Att,
            section 3.1).
        ALTERNATING_COLUMNS: Two such columns of layers side by side, the second of which begins backward; no layer
            reads the other column, and the outputs of both are concatenated (the encoder of the same section).
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    BIDIRECTIONAL = "bidirectional"
    BIDIRECTIONAL_BELOW = "bidirectional_below"
    ALTERNATING = "alternating"
    ALTERNATING_COLUMNS = "alternating_columns"

    @property
    def columns(self) -> int:
        """The number of columns of layers that do not read each other."""
        return 2 if self is Direction.ALTERNATING_COLUMNS else 1

    def cell_directions(self, layer: int) -> tuple[str, ...]:
        """The directions of the cells of layer `layer`, counted from 0."""
        match self:
            case Direction.FORWARD | Direction.BACKWARD:
                return (self.value,)
            case Direction.BIDIRECTIONAL:
                return ("forward", "backward")
            case Direction.BIDIRECTIONAL_BELOW:
                return ("forward", "backward") if layer == 0 else ("forward",)
            case Direction.ALTERNATING:
                return ("backward",) if layer % 2 else ("forward",)
            case Direction.ALTERNATING_COLUMNS:
                return ("backward", "forward") if layer % 2 else ("forward", "backward")


class SkipConnections(enum.Enum):
    """The skip connections between the layers of a stack.

    Attributes:
        NONE: No skip connections.
        RESIDUAL: All layers above the first add their input to their output (Wu et al. 2016, section 3.1, equation 6).
        GNMT: Those from the third on do, as in that paper's figure 1.
        FAST_FORWARD: A layer reads the output h of the layer below together with that layer's projected input f = W x,
            before any non-linearity: f' = W' [f ; h], with dropout on h only (Zhou et al. 2016, Deep-Att, section 3.1).
        FAST_FORWARD_HALF: The same with half of f, which is the paper's model: f' = W' [Half(f) ; h]. An LSTM's f has
            four parts, of which its equation 2 has the candidate and the input gate first.
    """

    NONE = "none"
    RESIDUAL = "residual"
    GNMT = "gnmt"
    FAST_FORWARD = "fast_forward"
    FAST_FORWARD_HALF = "fast_forward_half"

    def adds(self, layer: int) -> bool:
        """Whether layer `layer`, counted from 0, adds its input to its output."""
        match self:
            case SkipConnections.NONE | SkipConnections.FAST_FORWARD | SkipConnections.FAST_FORWARD_HALF:
                return False
            case SkipConnections.RESIDUAL:
                return layer >= 1
            case SkipConnections.GNMT:
                return layer >= 2

    def fast_forward_gates(self, cell: CellKind) -> tuple[str, ...]:
        """The gates of a cell whose projected inputs the layer above reads as well."""
        match self:
            case SkipConnections.NONE | SkipConnections.RESIDUAL | SkipConnections.GNMT:
                return ()
            case SkipConnections.FAST_FORWARD:
                return cell.gates
            case SkipConnections.FAST_FORWARD_HALF:
                return ("input", "candidate")


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(Config):
    """A stack of recurrent layers.

    Attributes:
        cell: The equations of a cell.
        width: Features of one cell's state.
        layers: Number of layers.
        direction: The order in which the layers read.
        skip_connections: The skip connections between layers.
        dropout: Dropout rate on the inputs of all layers above the first (Zaremba et al. 2014, section 3.1).
        forget_bias: Initial bias of the LSTM's forget gate (Jozefowicz et al. 2015 advise 1).
        recurrent_initialization: Initialization of the state-to-state matrices, orthogonal after Saxe et al. 2014.

    Raises:
        UserError: If a number is out of range, if a skip connection would add features of another width, or if half of
            the gates of a cell other than an LSTM are asked for.
    """

    cell: CellKind = CellKind.LSTM
    width: PositiveInt = 512
    layers: NumLayers = 1
    direction: Direction = Direction.FORWARD
    skip_connections: SkipConnections = SkipConnections.NONE
    dropout: Rate = 0.0
    forget_bias: float = 1.0
    recurrent_initialization: RecurrentInitialization = RecurrentInitialization.ORTHOGONAL

    def _check(self) -> None:
        if self.skip_connections is SkipConnections.FAST_FORWARD_HALF and not self.cell.has_memory:
            raise UserError(
                "skip_connections=fast_forward_half passes on two of the four gates of an LSTM, and "
                f"cell={self.cell.value} is none: say cell=lstm, or skip_connections=fast_forward"
            )
        for layer in range(1, self.layers):
            width, below = self.layer_output_width(layer), self.layer_output_width(layer - 1)
            if self.skip_connections.adds(layer) and width != below:
                raise UserError(
                    f"skip_connections={self.skip_connections.value} adds to the {width} features of "
                    f"layer {layer + 1} the {below} of the bidirectional layer below: say "
                    "skip_connections=gnmt, which adds from the third layer on"
                )

    def layer_output_width(self, layer: int) -> int:
        """The output features of a layer: those of both cells if it has two."""
        return self.width * len(self.direction.cell_directions(layer))

    def passed_on_width(self, layer: int) -> int:
        """The features that a layer passes on: its output, and with fast-forward connections its projected input."""
        return self.layer_output_width(layer) * (1 + len(self.skip_connections.fast_forward_gates(self.cell)))

    @property
    def output_width(self) -> int:
        """The output features of the last layer, which are also those of its `CellState.hidden`."""
        return self.layer_output_width(self.layers - 1)

    @property
    def projected_width(self) -> int:
        """The features of the last layer's projected input."""
        return self.output_width * len(self.cell.gates)


class RecurrentLayer(Module):
    """One layer of a stack over whole sequences: a cell per direction, in one scan over time.

    The state of a bidirectional layer is both cells' concatenated, as its outputs are.

    Args:
        config: The configuration of the stack.
        inputs: Features of an input of each cell.
        builder: Makes the parameters.
        number: Index of the layer, counted from 0, which may determine its direction.
    """

    def __init__(self, config: RecurrentConfig, inputs: int, *, builder: ParameterBuilder, number: int = 0):
        self.kind, self.width, self.direction = config.cell, config.width, config.direction
        self.orders = self.direction.cell_directions(number)
        for order in self.orders:
            cell = RecurrentCell(
                config.cell,
                inputs,
                config.width,
                recurrent_initialization=config.recurrent_initialization,
                forget_bias=config.forget_bias,
                builder=builder,
            )
            setattr(self, order, cell)

    @property
    def cells(self) -> tuple[RecurrentCell, ...]:
        """The cells, in the order of `Direction.cell_directions`."""
        return tuple(getattr(self, order) for order in self.orders)

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> CellState:
        """A state of zeros."""
        return _concatenate_directions(self._split_directions(None, rows, dtype))

    def project(self, *x: Float[Array, "*B I"]) -> tuple[Float[Array, "*B G F"], ...]:
        """Project inputs for the gates of each direction's cell: one input for all cells, or one for each."""
        cell_inputs = x if len(x) > 1 else x * len(self.orders)
        return tuple(cell.project(cell_input) for cell, cell_input in zip(self.cells, cell_inputs, strict=True))

    def step(self, x_RxI: Float[Array, "R I"], state: CellState) -> CellState:
        """Compute the state after one more input of every row.

        Raises:
            ValueError: If the layer does not read forward only.
        """
        return self.step_over(self.project(x_RxI), state)

    def step_over(self, projected: tuple[Float[Array, "R G F"], ...], state: CellState) -> CellState:
        """As `step`, for an input that is already projected.

        Raises:
            ValueError: If the layer does not read forward only.
        """
        if self.orders != ("forward",):
            raise ValueError(f"direction={self.direction.value} reads what is to come: only forward can take a step")
        (projected_RxGxF,) = projected
        return self.cells[0].step_over(projected_RxGxF, _cast_state(state, projected_RxGxF.dtype))

    def __call__(
        self,
        x_BxTxI: Float[Array, "B T I"],
        lengths_B: Int[Array, " B"] | None = None,
        state: CellState | None = None,
    ) -> tuple[Float[Array, "B T F"], CellState]:
        """Run the layer over whole sequences.

        Args:
            x_BxTxI: The inputs; positions at or beyond a row's length are never read, NaN included.
            lengths_B: Real positions of each row; None means all.
            state: The initial state; None means zeros.

        Returns:
            The output at every position, zero at padding, and the state after the last real one.
        """
        return self.over(self.project(_zero_padding(x_BxTxI, lengths_B)), lengths_B, state)

    def over(
        self,
        projected_D: tuple[Float[Array, "B T G C"], ...],
        lengths_B: Int[Array, " B"] | None,
        state: CellState | None,
    ) -> tuple[Float[Array, "B T F"], CellState]:
        """As a call, for inputs that are already projected.

        Args:
            projected_D: The result of `project`, finite at padding.
            lengths_B: Real positions of each row; None means all.
            state: The initial state; None means zeros.

        Returns:
            The output at every position, zero at padding, and the state after the last real one.
        """
        (batch, count, *_), dtype = projected_D[0].shape, projected_D[0].dtype
        real_BxT = None if lengths_B is None else real_positions(lengths_B, count)
        orders = self.orders
        projected = [
            _to_reading_order(with_logical_constraint(cell_input, "batch", None, None, None), order)
            for cell_input, order in zip(projected_D, orders, strict=True)
        ]
        real_TxDxBx1 = None
        if real_BxT is not None:
            real_TxDxBx1 = jnp.stack([_to_reading_order(real_BxT, order) for order in orders], axis=1)[..., None]
        # The scan reads these at every step: whole, they are gathered once and not at each.
        weights_D = jax.tree.map(
            lambda *leaves: with_logical_constraint(jnp.stack(leaves), *(None,) * (leaves[0].ndim + 1)),
            *(cell.weights(dtype) for cell in self.cells),
        )
        step_cells = jax.vmap(functools.partial(next_cell_state, self.kind))

        def body(state: CellState, step_inputs: tuple[Array, Bool[Array, "D B 1"] | None]) -> tuple[CellState, Array]:
            projected_DxBxGxF, real_DxBx1 = step_inputs
            after = step_cells(weights_D, projected_DxBxGxF, state)
            if real_DxBx1 is None:
                return after, after.hidden
            after = jax.tree.map(lambda new, old: jnp.where(real_DxBx1, new, old), after, state)
            return after, jnp.where(real_DxBx1, after.hidden, 0)

        state_DxBxF = self._split_directions(state, batch, dtype)
        state_DxBxF, hidden_TxDxBxF = jax.lax.scan(body, state_DxBxF, (jnp.stack(projected, axis=1), real_TxDxBx1))
        outputs = [
            jnp.moveaxis(hidden_TxBxF if order == "forward" else jnp.flip(hidden_TxBxF, 0), 0, 1)
            for hidden_TxBxF, order in zip(jnp.unstack(hidden_TxDxBxF, axis=1), orders, strict=True)
        ]
        outputs_BxTxF = with_logical_constraint(jnp.concatenate(outputs, axis=-1), "batch", "length", None)
        return checkpoint_name(outputs_BxTxF, "layer_outputs"), _concatenate_directions(state_DxBxF)

    def _split_directions(self, state: CellState | None, rows: int, dtype: jax.typing.DTypeLike) -> CellState:
        """Split a concatenated state into one of its cells, [D, R, F]; zeros for None."""
        directions = len(self.orders)
        if state is None:
            zeros = jnp.zeros((directions, rows, self.width), dtype)
            return CellState(zeros, zeros if self.kind.has_memory else None)
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(rows, directions, self.width), 1, 0), _cast_state(state, dtype)
        )


class RecurrentStack(Module):
    """A stack of recurrent layers. Its carry is a tuple of each layer's `CellState`, arrays [row, features].

    Args:
        config: The configuration.
        inputs: Features of an input.
        builder: Makes the parameters.
        context_width: Features of the context that `step` gives to the layers above the first; 0 for none.
    """

    def __init__(self, config: RecurrentConfig, inputs: int, *, builder: ParameterBuilder, context_width: int = 0):
        self.config = config
        for number in range(config.layers):
            below = config.passed_on_width(number - 1) // config.direction.columns if number else inputs
            size = below + context_width if number else below
            layer = RecurrentLayer(config, size, builder=builder, number=number)
            setattr(self, f"layer_{number}", layer)

    @property
    def layers(self) -> tuple[RecurrentLayer, ...]:
        """The layers, from the lowest upwards."""
        return tuple(getattr(self, f"layer_{number}") for number in range(self.config.layers))

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> tuple[CellState, ...]:
        """A carry of zeros."""
        return tuple(layer.initial(rows, dtype) for layer in self.layers)

    def __call__(
        self,
        x_BxTxI: Float[Array, "B T I"],
        lengths_B: Int[Array, " B"] | None = None,
        carry: tuple[CellState, ...] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B T F"], tuple[CellState, ...]]:
        """Run the stack over whole sequences.

        Args:
            x_BxTxI: The inputs.
            lengths_B: Real positions of each row; None means all.
            carry: The initial carry; None means zeros.
            key: Random key for dropout between layers; None applies none.

        Returns:
            The last layer's output at every position, zero at padding, and the carry after the last real one.
        """
        outputs_BxTxF, _, after = self.with_projected_input(x_BxTxI, lengths_B, carry, key=key)
        return outputs_BxTxF, after

    def with_projected_input(
        self,
        x_BxTxI: Float[Array, "B T I"],
        lengths_B: Int[Array, " B"] | None = None,
        carry: tuple[CellState, ...] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B T F"], Float[Array, "B T P"], tuple[CellState, ...]]:
        """As a call; also return the last layer's projected input, before any non-linearity.

        Args:
            x_BxTxI: The inputs.
            lengths_B: Real positions of each row; None means all.
            carry: The initial carry; None means zeros.
            key: Random key for dropout between layers; None applies none.

        Returns:
            The last layer's output and the projected input of its cells side by side, both zero at padding, and the
            carry after the last real position.
        """
        x_C: tuple[Array, ...] = (_zero_padding(x_BxTxI, lengths_B),)
        after = []
        for number, layer in enumerate(self.layers):
            projected = layer.project(*self._apply_dropout(x_C, number, key))
            y_BxTxF, state = layer.over(projected, lengths_B, None if carry is None else carry[number])
            x_C = self._layer_outputs(number, projected, x_C, y_BxTxF)
            after.append(state)
        projected_BxTxP = jnp.concatenate(
            [cell_input.reshape(*cell_input.shape[:-2], -1) for cell_input in projected], axis=-1
        )
        return jnp.concatenate(x_C, axis=-1), _zero_padding(projected_BxTxP, lengths_B), tuple(after)

    def step(
        self,
        x_RxI: Float[Array, "R I"],
        carry: tuple[CellState, ...],
        *,
        context_RxC: Float[Array, "R C"] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "R F"], tuple[CellState, ...]]:
        """Process one more input of every row.

        Args:
            x_RxI: The inputs.
            carry: The carry before.
            context_RxC: What all layers above the first read besides the output of the layer below; skip connections
                pass over it.
            key: Random key for dropout between layers; None applies none.

        Returns:
            The last layer's output, and the carry after.

        Raises:
            ValueError: If a layer does not read forward only.
        """
        after = []
        for number, (layer, state) in enumerate(zip(self.layers, carry, strict=True)):
            (read_RxI,) = self._apply_dropout((x_RxI,), number, key)
            if number and context_RxC is not None:
                read_RxI = jnp.concatenate([read_RxI, context_RxC], axis=-1)
            projected = layer.project(read_RxI)
            state = layer.step_over(projected, state)
            (x_RxI,) = self._layer_outputs(number, projected, (x_RxI,), state.hidden)
            after.append(state)
        return checkpoint_name(x_RxI, "recurrent_states"), tuple(after)

    def _layer_outputs(
        self, number: int, projected: tuple[Array, ...], x_C: tuple[Array, ...], y: Array
    ) -> tuple[Array, ...]:
        """The features that each column of a layer passes on; those of the last layer are the stack's output.

        Args:
            number: Index of the layer.
            projected: The projected input of each cell.
            x_C: The input of each column, or one for all.
            y: The layer's output, of all its cells.
        """
        skip, columns = self.config.skip_connections, self.config.direction.columns
        y_C = jnp.split(y, columns, axis=-1)
        if number == self.config.layers - 1 or not skip.fast_forward_gates(self.config.cell):
            adds = skip.adds(number)
            return tuple(y + x for x, y in zip(x_C, y_C, strict=True)) if adds else tuple(y_C)
        gates = [self.config.cell.gates.index(gate) for gate in skip.fast_forward_gates(self.config.cell)]
        parts = [jnp.concatenate([cell_input[..., gate, :] for gate in gates], axis=-1) for cell_input in projected]
        cells = len(parts) // columns
        return tuple(
            jnp.concatenate([*parts[column * cells : (column + 1) * cells], y], axis=-1) for column, y in enumerate(y_C)
        )

    def _apply_dropout(self, x_C: tuple[Array, ...], number: int, key: Key[Array, ""] | None) -> tuple[Array, ...]:
        """Apply dropout to what the layer below passes on: to its output, and not to fast-forward connections."""
        if key is None or number == 0:
            return x_C
        layer_key, dropped = jax.random.fold_in(key, number), []
        for column, x in enumerate(x_C):
            column_key = layer_key if column == 0 else jax.random.fold_in(layer_key, column)
            output = self.config.layer_output_width(number - 1) // len(x_C)
            fast, y = jnp.split(x, [x.shape[-1] - output], axis=-1)
            dropped.append(jnp.concatenate([fast, dropout(y, self.config.dropout, column_key)], axis=-1))
        return tuple(dropped)


def _zero_padding(x_BxTxI: Array, lengths_B: Array | None) -> Array:
    """Set padding to zero."""
    if lengths_B is None:
        return x_BxTxI
    return jnp.where(real_positions(lengths_B, x_BxTxI.shape[1])[..., None], x_BxTxI, 0)


def _to_reading_order(x_BxT: Array, order: str) -> Array:
    """[T, B, ...] in a direction's reading order; backward, padding comes first and leaves the initial state as is."""
    x_TxB = jnp.moveaxis(x_BxT, 1, 0)
    return x_TxB if order == "forward" else jnp.flip(x_TxB, 0)


def _concatenate_directions(state_DxRxF: CellState) -> CellState:
    """Concatenate the cells' states [D, R, F] to [R, D x F]."""
    return jax.tree.map(lambda leaf: jnp.concatenate(jnp.unstack(leaf), axis=-1), state_DxRxF)


def _cast_state(state: CellState, dtype: jax.typing.DTypeLike) -> CellState:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), state)
