"""Recurrent cells: what one step makes of an input and a state."""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.blocks import Initializer
from transformer.layers.initialisation import RecurrentInitialisation, Role
from transformer.layers.linear import product
from transformer.layers.module import Builder, Module


class Cell(enum.Enum):
    """Which equations; x is the input, h the state, s the logistic function, * the product of features.

    vanilla: h' = tanh(W x + b + U h) (Elman 1990).
    gru_reset_before: r = s(W_r x + b_r + U_r h), z = s(W_z x + b_z + U_z h), n = tanh(W_n x + b_n + U_n (r * h)),
      h' = (1 - z) * n + z * h (Cho et al. 2014, equations 5 to 8). Bahdanau et al. 2015, appendix A.1.1, swap z and
      1 - z, which is the same family of functions.
    gru_reset_after: the same but n = tanh(W_n x + b_n + r * (U_n h + c)), the reset gate behind the product: one
      product a step instead of two (cuDNN and PyTorch).
    lstm: i, f, o = s(W x + b + U h) each by its own matrices, g = tanh(W_g x + b_g + U_g h), c' = f * c + i * g,
      h' = o * tanh(c') (Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000), no peepholes.
    """

    VANILLA = "vanilla"
    GRU_RESET_BEFORE = "gru_reset_before"
    GRU_RESET_AFTER = "gru_reset_after"
    LSTM = "lstm"

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates, in the order in which kernels and biases hold them."""
        match self:
            case Cell.VANILLA:
                return ("state",)
            case Cell.GRU_RESET_BEFORE | Cell.GRU_RESET_AFTER:
                return ("reset", "update", "candidate")
            case Cell.LSTM:
                return ("input", "forget", "candidate", "output")


class CellState(NamedTuple):
    """What a step hands to the next: `hidden` is also its output, `memory` is the LSTM's c and None elsewhere."""

    hidden: Float[Array, "*D R F"]
    memory: Float[Array, "*D R F"] | None = None


class RecurrentWeights(NamedTuple):
    """What a step reads beside the projected input: U of every gate, and c of gru_reset_after."""

    kernel_FxGxF: Float[Array, "*D F G F"]
    candidate_bias_F: Float[Array, "*D F"] | None


class RecurrentCell(Module):
    """The parameters of one cell from `inputs` features to a state of `width`.

    Biases begin at zero, the LSTM's forget gate's at `forget_bias` (Jozefowicz et al. 2015 advise 1).
    Parameters are divided along the state's width alone: a state that is divided over `tensor` would have to be
    gathered at every step.
    """

    def __init__(
        self,
        kind: Cell,
        inputs: int,
        width: int,
        *,
        recurrent: RecurrentInitialisation,
        forget_bias: float,
        builder: Builder,
    ):
        self.kind, self.width = kind, width
        gates, axes = len(kind.gates), ("features", "features", "embed")
        self.kernel = builder.parameter(builder.rule(Role.DENSE, inputs, width), (inputs, gates, width), axes)
        self.recurrent_kernel = builder.parameter(recurrent(width, width), (width, gates, width), axes)
        bias = _forget_bias(kind, forget_bias) if kind is Cell.LSTM else jax.nn.initializers.zeros
        self.bias = builder.parameter(bias, (gates, width), ("features", "features"))
        after = kind is Cell.GRU_RESET_AFTER
        self.candidate_bias = builder.parameter(jax.nn.initializers.zeros, (width,), ("features",)) if after else None

    def project(self, x: Float[Array, "*B I"]) -> Float[Array, "*B G F"]:
        """W x + b of every gate, for as many steps at once as x has: nothing in it waits for a state."""
        y = product(x, jnp.asarray(self.kernel[...], x.dtype))
        return y + jax.lax.broadcast_to_rank(self.bias[...].astype(x.dtype), y.ndim)

    def weights(self, dtype: jnp.dtype) -> RecurrentWeights:
        """What `advance` reads, in the type that it computes in."""
        bias = self.candidate_bias
        return RecurrentWeights(
            jnp.asarray(self.recurrent_kernel[...], dtype), None if bias is None else bias[...].astype(dtype)
        )

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> CellState:
        """A state of zeros."""
        zeros = jnp.zeros((rows, self.width), dtype)
        return CellState(zeros, zeros if self.kind is Cell.LSTM else None)

    def step(self, x_RxI: Float[Array, "R I"], state: CellState) -> CellState:
        """The state behind one input of every row."""
        return self.step_over(self.project(x_RxI), state)

    def step_over(self, projected_RxGxF: Float[Array, "R G F"], state: CellState) -> CellState:
        """As `step`, of an input that is projected already."""
        return advance(self.kind, self.weights(projected_RxGxF.dtype), projected_RxGxF, state)


def advance(
    kind: Cell, weights: RecurrentWeights, projected_RxGxF: Float[Array, "R G F"], state: CellState
) -> CellState:
    """The next state from an input's projection: the equations of `Cell`."""
    hidden_RxF, kernel_FxGxF = state.hidden, weights.kernel_FxGxF
    match kind:
        case Cell.VANILLA:
            return CellState(jnp.tanh(projected_RxGxF[:, 0] + hidden_RxF @ kernel_FxGxF[:, 0]))
        case Cell.GRU_RESET_BEFORE:
            both_Rx2xF = projected_RxGxF[:, :2] + product(hidden_RxF, kernel_FxGxF[:, :2])
            reset_RxF, update_RxF = jnp.unstack(jax.nn.sigmoid(both_Rx2xF), axis=1)
            candidate_RxF = jnp.tanh(projected_RxGxF[:, 2] + (reset_RxF * hidden_RxF) @ kernel_FxGxF[:, 2])
            return CellState((1 - update_RxF) * candidate_RxF + update_RxF * hidden_RxF)
        case Cell.GRU_RESET_AFTER:
            of_state_RxGxF = product(hidden_RxF, kernel_FxGxF)
            both_Rx2xF = projected_RxGxF[:, :2] + of_state_RxGxF[:, :2]
            reset_RxF, update_RxF = jnp.unstack(jax.nn.sigmoid(both_Rx2xF), axis=1)
            assert weights.candidate_bias_F is not None
            read_RxF = of_state_RxGxF[:, 2] + weights.candidate_bias_F
            candidate_RxF = jnp.tanh(projected_RxGxF[:, 2] + reset_RxF * read_RxF)
            return CellState((1 - update_RxF) * candidate_RxF + update_RxF * hidden_RxF)
        case Cell.LSTM:
            sums_RxGxF = projected_RxGxF + product(hidden_RxF, kernel_FxGxF)
            input_RxF, forget_RxF, candidate_RxF, output_RxF = jnp.unstack(sums_RxGxF, axis=1)
            assert state.memory is not None
            kept_RxF = jax.nn.sigmoid(forget_RxF) * state.memory
            memory_RxF = kept_RxF + jax.nn.sigmoid(input_RxF) * jnp.tanh(candidate_RxF)
            return CellState(jax.nn.sigmoid(output_RxF) * jnp.tanh(memory_RxF), memory_RxF)


def _forget_bias(kind: Cell, value: float) -> Initializer:
    """Zeros, and `value` in the row of the forget gate."""
    row = kind.gates.index("forget")
    return lambda key, shape, dtype: jnp.zeros(shape, dtype).at[row].set(value)
