"""Recurrent layers over sequences: masked by lengths, in either direction or both, stacked; or a step at a time."""

import dataclasses
import enum
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.drop import check_rate, dropout
from transformer.axes import place
from transformer.config import UserError
from transformer.layers.initialisation import RecurrentInitialisation
from transformer.layers.lengths import real_positions
from transformer.layers.module import Builder, Module
from transformer.layers.recurrent_cells import Cell, CellState, RecurrentCell, advance


class Direction(enum.Enum):
    """In which order a layer reads a sequence.

    backward begins at the last real position of each row. bidirectional has a cell for each order and puts their
    outputs side by side, forward first (Schuster and Paliwal 1997).
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    BIDIRECTIONAL = "bidirectional"

    @property
    def cells(self) -> tuple[str, ...]:
        """The orders of its cells."""
        return ("forward", "backward") if self is Direction.BIDIRECTIONAL else (self.value,)


class ResidualLinks(enum.Enum):
    """Which layers of a stack add their input to their output (Wu et al. 2016, section 3.1, equation 6).

    residual: all above the first. gnmt: those from the third on, as in that paper's figure 1.
    """

    NONE = "none"
    RESIDUAL = "residual"
    GNMT = "gnmt"

    def at(self, layer: int) -> bool:
        """Whether the layer of this number, counted from 0, has one."""
        match self:
            case ResidualLinks.NONE:
                return False
            case ResidualLinks.RESIDUAL:
                return layer >= 1
            case ResidualLinks.GNMT:
                return layer >= 2


@dataclasses.dataclass(frozen=True)
class RecurrentConfig:
    """A stack of recurrent layers.

    `width` is that of one cell's state. `dropout` acts on the inputs of all layers above the first (Zaremba et al.
    2014, section 3.1). `forget_bias` is where the LSTM's bias begins. `recurrent` is how the matrices begin that read
    the state.

    Errors: UserError for a width or number of layers below 1; ValueError for a dropout outside [0, 1).
    """

    cell: Cell = Cell.LSTM
    width: int = 512
    layers: int = 1
    direction: Direction = Direction.FORWARD
    links: ResidualLinks = ResidualLinks.NONE
    dropout: float = 0.0
    forget_bias: float = 1.0
    recurrent: RecurrentInitialisation = RecurrentInitialisation.ORTHOGONAL

    def __post_init__(self) -> None:
        for name in ("width", "layers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} of a recurrent stack must be at least 1")
        check_rate("dropout", self.dropout)

    @property
    def output_width(self) -> int:
        """The features of an output and of `CellState.hidden`: those of both directions where it has two."""
        return self.width * len(self.direction.cells)


class RecurrentLayer(Module):
    """One layer over a sequence: a cell for each of its directions, and one scan over time for all of them.

    The state of a bidirectional layer is both cells' side by side, as its outputs are.
    """

    def __init__(self, config: RecurrentConfig, inputs: int, *, builder: Builder):
        self.kind, self.width, self.direction = config.cell, config.width, config.direction
        for order in self.direction.cells:
            made = RecurrentCell(
                config.cell,
                inputs,
                config.width,
                recurrent=config.recurrent,
                forget_bias=config.forget_bias,
                builder=builder,
            )
            setattr(self, order, made)

    @property
    def cells(self) -> tuple[RecurrentCell, ...]:
        """The cells, in the order of `Direction.cells`."""
        return tuple(getattr(self, order) for order in self.direction.cells)

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> CellState:
        """A state of zeros for every direction."""
        return _side_by_side(self._by_direction(None, rows, dtype))

    def step(self, x_RxI: Float[Array, "R I"], state: CellState) -> CellState:
        """The state behind one more input of every row.

        Errors: ValueError for a layer that does not read forward alone.
        """
        if self.direction is not Direction.FORWARD:
            raise ValueError(f"direction={self.direction.value} reads what is to come: only forward can take a step")
        return self.cells[0].step(x_RxI, _in_type(state, x_RxI.dtype))

    def __call__(
        self,
        x_BxTxI: Float[Array, "B T I"],
        lengths_B: Int[Array, " B"] | None = None,
        state: CellState | None = None,
    ) -> tuple[Float[Array, "B T F"], CellState]:
        """The output at every position, zero at padding, and the state behind the last real one.

        A row's positions at or beyond its length are padding, which nothing reads, NaN included. Without lengths all
        positions are real; without a state it begins at zero.
        """
        batch, count, _ = x_BxTxI.shape
        real_BxT = None if lengths_B is None else real_positions(lengths_B, count)
        if real_BxT is not None:
            x_BxTxI = jnp.where(real_BxT[..., None], x_BxTxI, 0)

        orders = self.direction.cells
        projected = [
            _in_order(place(cell.project(x_BxTxI), "batch", None, None, None), order)
            for cell, order in zip(self.cells, orders, strict=True)
        ]
        real_TxDxBx1 = None
        if real_BxT is not None:
            real_TxDxBx1 = jnp.stack([_in_order(real_BxT, order) for order in orders], axis=1)[..., None]
        # The scan reads these at every step: whole, they are gathered once and not at each.
        weights_D = jax.tree.map(
            lambda *leaves: place(jnp.stack(leaves), *(None,) * (leaves[0].ndim + 1)),
            *(cell.weights(x_BxTxI.dtype) for cell in self.cells),
        )
        of_all = jax.vmap(functools.partial(advance, self.kind))

        def body(state: CellState, given: tuple[Array, Bool[Array, "D B 1"] | None]) -> tuple[CellState, Array]:
            projected_DxBxGxF, real_DxBx1 = given
            after = of_all(weights_D, projected_DxBxGxF, state)
            if real_DxBx1 is None:
                return after, after.hidden
            after = jax.tree.map(lambda new, old: jnp.where(real_DxBx1, new, old), after, state)
            return after, jnp.where(real_DxBx1, after.hidden, 0)

        state_DxBxF = self._by_direction(state, batch, x_BxTxI.dtype)
        state_DxBxF, hidden_TxDxBxF = jax.lax.scan(body, state_DxBxF, (jnp.stack(projected, axis=1), real_TxDxBx1))
        outputs = [
            jnp.moveaxis(hidden_TxBxF if order == "forward" else jnp.flip(hidden_TxBxF, 0), 0, 1)
            for hidden_TxBxF, order in zip(jnp.unstack(hidden_TxDxBxF, axis=1), orders, strict=True)
        ]
        return place(jnp.concatenate(outputs, axis=-1), "batch", "length", None), _side_by_side(state_DxBxF)

    def _by_direction(self, state: CellState | None, rows: int, dtype: jax.typing.DTypeLike) -> CellState:
        """The state [D, R, F] of its cells, from one that has them side by side."""
        directions = len(self.direction.cells)
        if state is None:
            zeros = jnp.zeros((directions, rows, self.width), dtype)
            return CellState(zeros, zeros if self.kind is Cell.LSTM else None)
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(rows, directions, self.width), 1, 0), _in_type(state, dtype)
        )


class RecurrentStack(Module):
    """`config.layers` recurrent layers over `inputs` features, each reading the outputs of the one beneath it.

    Its carry is a tuple with the `CellState` of each layer, arrays [row, features]: fit for `Cache.rows`.
    """

    def __init__(self, config: RecurrentConfig, inputs: int, *, builder: Builder):
        self.config = config
        for number in range(config.layers):
            size = inputs if number == 0 else config.output_width
            layer = RecurrentLayer(config, size, builder=builder)
            setattr(self, f"layer_{number}", layer)

    @property
    def layers(self) -> tuple[RecurrentLayer, ...]:
        """The layers, from the one that reads the input upwards."""
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
        """The last layer's output at every position, zero at padding, and the carry behind the last real one.

        With a key, as in training, inputs of the upper layers are dropped.
        """
        after = []
        for number, layer in enumerate(self.layers):
            read = self._dropped(x_BxTxI, number, key)
            y_BxTxF, state = layer(read, lengths_B, None if carry is None else carry[number])
            x_BxTxI = y_BxTxF + x_BxTxI if self.config.links.at(number) else y_BxTxF
            after.append(state)
        return x_BxTxI, tuple(after)

    def step(
        self, x_RxI: Float[Array, "R I"], carry: tuple[CellState, ...], *, key: Key[Array, ""] | None = None
    ) -> tuple[Float[Array, "R F"], tuple[CellState, ...]]:
        """The last layer's output for one more input of every row, and the carry behind it.

        Errors: ValueError for a stack that does not read forward alone.
        """
        after = []
        for number, (layer, state) in enumerate(zip(self.layers, carry, strict=True)):
            state = layer.step(self._dropped(x_RxI, number, key), state)
            x_RxI = state.hidden + x_RxI if self.config.links.at(number) else state.hidden
            after.append(state)
        return x_RxI, tuple(after)

    def _dropped(self, x: Array, number: int, key: Key[Array, ""] | None) -> Array:
        of_layer = None if key is None or number == 0 else jax.random.fold_in(key, number)
        return dropout(x, self.config.dropout, of_layer)


def _in_order(x_BxT: Array, order: str) -> Array:
    """[T, B, ...] as a direction reads it; backward, padding comes first and leaves the initial state as it is."""
    x_TxB = jnp.moveaxis(x_BxT, 1, 0)
    return x_TxB if order == "forward" else jnp.flip(x_TxB, 0)


def _side_by_side(state_DxRxF: CellState) -> CellState:
    """The cells' states [D, R, F] as one [R, D x F]."""
    return jax.tree.map(lambda leaf: jnp.concatenate(jnp.unstack(leaf), axis=-1), state_DxRxF)


def _in_type(state: CellState, dtype: jax.typing.DTypeLike) -> CellState:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), state)
