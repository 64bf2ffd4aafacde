"""Recurrent cells, layers and stacks against NumPy float64, whole and step by step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gradients import check_gradient
from tests.oracles import recurrent as oracle
from transformer.config import UserError
from transformer.layers import recurrent
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.initialization import RecurrentInitialization
from transformer.layers.recurrent import (
    CellKind,
    CellState,
    Direction,
    RecurrentConfig,
    RecurrentLayer,
    RecurrentStack,
    SkipConnections,
)
from transformer.logical_axes import RULES, partition_spec

B, T, INPUTS, WIDTH = 4, 5, 3, 4
# A whole row, a short one, one position, and a row that only fills the batch.
LENGTHS = np.int32([5, 3, 1, 0])

each_cell = pytest.mark.parametrize("cell", list(CellKind), ids=lambda cell: cell.value)


@functools.cache
def stack_of(cell: CellKind, **options: Any) -> FunctionalModule:
    config = RecurrentConfig(cell, WIDTH, **options)
    return FunctionalModule(lambda builder: RecurrentStack(config, INPUTS, builder=builder))


def random_weights(functional: FunctionalModule, seed: int = 0) -> dict[str, Any]:
    """No parameter at its plain start, where a missing one would go unseen; exact in float32."""
    normal = np.random.default_rng(seed).normal
    return jax.tree.map(lambda leaf: normal(size=leaf.shape, scale=0.7).astype(leaf.dtype), functional.shapes())


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def random_carry(functional: FunctionalModule) -> tuple[CellState, ...]:
    shapes = jax.eval_shape(lambda: functional.bind(functional.init(jax.random.key(0))).initial(B, jnp.float32))
    return jax.tree.map(lambda leaf: random(*leaf.shape, seed=leaf.shape[1]), shapes)


def by_row(carry: tuple[CellState, ...]) -> list[list[oracle.State]]:
    return [
        [oracle.State(*(None if leaf is None else leaf[row] for leaf in state)) for row in range(B)] for state in carry
    ]


def assert_carry(found: tuple[CellState, ...], expected: list[list[oracle.State]], atol: float = 1e-12) -> None:
    for state, rows in zip(found, expected, strict=True):
        np.testing.assert_allclose(state.hidden, np.stack([row.hidden for row in rows]), rtol=0, atol=atol)
        assert (state.memory is None) == (rows[0].memory is None)
        if state.memory is not None:
            np.testing.assert_allclose(state.memory, np.stack([row.memory for row in rows]), rtol=0, atol=atol)


DEEP = [
    (CellKind.VANILLA, Direction.BACKWARD, 1, SkipConnections.NONE),
    (CellKind.GRU_RESET_BEFORE, Direction.FORWARD, 1, SkipConnections.NONE),
    (CellKind.GRU_RESET_AFTER, Direction.BIDIRECTIONAL, 2, SkipConnections.NONE),
    (CellKind.GRU_RESET_BEFORE, Direction.BIDIRECTIONAL, 1, SkipConnections.NONE),
    (CellKind.LSTM, Direction.FORWARD, 3, SkipConnections.GNMT),
    (CellKind.LSTM, Direction.BIDIRECTIONAL, 3, SkipConnections.RESIDUAL),
    (CellKind.LSTM, Direction.BIDIRECTIONAL, 3, SkipConnections.FAST_FORWARD),
    (CellKind.LSTM, Direction.BIDIRECTIONAL_BELOW, 3, SkipConnections.GNMT),
    (CellKind.LSTM, Direction.ALTERNATING, 3, SkipConnections.FAST_FORWARD),
    (CellKind.LSTM, Direction.ALTERNATING_COLUMNS, 3, SkipConnections.RESIDUAL),
    (CellKind.LSTM_PEEPHOLE, Direction.ALTERNATING_COLUMNS, 2, SkipConnections.FAST_FORWARD_HALF),
    (CellKind.LSTM_PEEPHOLE, Direction.BIDIRECTIONAL, 2, SkipConnections.FAST_FORWARD_HALF),
]


@pytest.mark.parametrize(
    ("cell", "direction", "layers", "links"),
    [pytest.param(*each, marks=() if number % 2 == 0 else pytest.mark.slow) for number, each in enumerate(DEEP)],
)
def test_a_stack_is_the_oracles_and_padding_has_no_effect(
    cell: CellKind, direction: Direction, layers: int, links: SkipConnections
) -> None:
    functional = stack_of(cell, direction=direction, layers=layers, skip_connections=links)
    weights, x = random_weights(functional), random(B, T, INPUTS)
    padded = np.where(np.arange(T)[None, :, None] < LENGTHS[:, None, None], x, np.nan)
    kind = oracle.Stack(cell.value, direction.value, layers, links.value)

    def of(x: Any, carry: Any) -> tuple[Any, Any]:
        y, after = functional.bind(weights)(x, jnp.asarray(LENGTHS), carry)
        return jnp.sum(jnp.square(y)), (y, after)

    with jax.enable_x64(True):
        carry = random_carry(functional)
        gradient, (y, after) = jax.jit(jax.grad(of, has_aux=True))(padded, carry)
    expected, ends = oracle.stack(kind, weights, x, LENGTHS, by_row(carry))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
    assert_carry(after, ends)
    # A row of length 0 ends as it began.
    jax.tree.map(lambda found, given: np.testing.assert_array_equal(found[3], given[3]), after, carry)
    real = np.isfinite(padded)
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[~real] == 0).all()
    assert (np.asarray(gradient)[real] != 0).all()


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=() if number % 2 else pytest.mark.slow) for number, cell in enumerate(CellKind)],
    ids=lambda cell: cell.value,
)
def test_gradients_are_right(cell: CellKind) -> None:
    functional = stack_of(cell)
    weights = random_weights(functional)
    with jax.enable_x64(True):
        check_gradient(
            lambda weights, x: functional.bind(weights)(x, jnp.asarray(LENGTHS)),
            (weights, random(B, T, INPUTS)),
            atol=1e-6,
            rtol=1e-6,
            eps=1e-5,
        )


@pytest.mark.parametrize(
    ("cell", "links"),
    [
        *(
            pytest.param(cell, SkipConnections.RESIDUAL, marks=() if cell is CellKind.LSTM else pytest.mark.slow)
            for cell in CellKind
        ),
        (CellKind.GRU_RESET_AFTER, SkipConnections.FAST_FORWARD),
    ],
)
def test_step_by_step_is_the_whole_sequence(cell: CellKind, links: SkipConnections) -> None:
    functional = stack_of(cell, layers=2, skip_connections=links)
    weights, x = random_weights(functional), random(B, T, INPUTS)
    kind = oracle.Stack(cell.value, layers=2, links=links.value)
    with jax.enable_x64(True):
        carry = random_carry(functional)
        whole, after = jax.jit(lambda weights, x, carry: functional.bind(weights)(x, None, carry))(weights, x, carry)
        step = jax.jit(lambda weights, x, carry: functional.bind(weights).step(x, carry))
        expected, ends = oracle.stack(kind, weights, x, np.full(B, T), by_row(carry))
        np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-12)
        assert_carry(after, ends)
        for place in range(T):
            y, carry = step(weights, x[:, place], carry)
            np.testing.assert_allclose(y, np.asarray(whole)[:, place], rtol=0, atol=1e-12)
        assert_carry(carry, ends)


def test_no_forward_output_reads_a_later_input() -> None:
    functional = stack_of(CellKind.LSTM, layers=2)
    weights = random_weights(functional)
    jacobian = jax.jit(jax.jacrev(lambda x: jnp.sum(functional.bind(weights)(x[None])[0][0], axis=-1)))(
        random(T, INPUTS).astype(np.float32)
    )
    reads = np.abs(np.asarray(jacobian)).max(-1)
    np.testing.assert_array_equal(reads != 0, np.tril(np.ones((T, T), bool)))


def test_only_a_forward_stack_takes_steps_and_sizes_are_checked() -> None:
    functional = stack_of(CellKind.LSTM, direction=Direction.BIDIRECTIONAL)
    stack = functional.bind(random_weights(functional))
    with pytest.raises(ValueError, match="direction=bidirectional reads what is to come: only forward"):
        jax.eval_shape(lambda x: stack.step(x, stack.initial(B, jnp.float32)), np.ones((B, INPUTS), np.float32))
    with pytest.raises(UserError, match="layers=0 must be at least 1"):
        RecurrentConfig(layers=0)
    with pytest.raises(UserError, match=r"skip_connections=residual adds to the 6 features of layer 2 the 12 of"):
        RecurrentConfig(
            width=6, layers=2, direction=Direction.BIDIRECTIONAL_BELOW, skip_connections=SkipConnections.RESIDUAL
        )
    with pytest.raises(ValueError, match=r"dropout=1\.0"):
        RecurrentConfig(dropout=1.0)
    assert RecurrentConfig(width=6, direction=Direction.BIDIRECTIONAL).output_width == 12
    assert RecurrentConfig(width=6, layers=2, direction=Direction.BIDIRECTIONAL_BELOW).output_width == 6


def test_weights_begin_as_they_should() -> None:
    stack = stack_of(CellKind.LSTM, forget_bias=1.5)
    fresh = jax.jit(stack.init)(jax.random.key(0))["layer_0"]["forward"]
    np.testing.assert_array_equal(fresh["bias"], np.float32([[0] * WIDTH, [1.5] * WIDTH, [0] * WIDTH, [0] * WIDTH]))
    gates = np.moveaxis(np.asarray(fresh["recurrent_kernel"], np.float64), 1, 0)
    for gate, other in zip(gates, np.roll(gates, 1, axis=0), strict=True):
        np.testing.assert_allclose(gate @ gate.T, np.eye(WIDTH), atol=1e-6)
        assert np.abs(gate - other).max() > 0.1
    # 3 features come in, 4 go out of one gate; of the state 4 and 4.
    assert 0.8 * np.sqrt(6 / 7) < np.abs(fresh["kernel"]).max() <= np.sqrt(6 / 7)
    xavier = stack_of(CellKind.GRU_RESET_AFTER, recurrent_initialization=RecurrentInitialization.XAVIER)
    cell = jax.jit(xavier.init)(jax.random.key(0))["layer_0"]["forward"]
    assert 0.8 * np.sqrt(6 / 8) < np.abs(cell["recurrent_kernel"]).max() <= np.sqrt(6 / 8)
    assert not np.asarray(cell["bias"]).any()
    assert not np.asarray(cell["candidate_bias"]).any()


@each_cell
def test_every_parameter_lies_under_every_set_of_rules(cell: CellKind) -> None:
    functional = stack_of(cell, direction=Direction.BIDIRECTIONAL)
    axes = jax.tree.leaves(functional.axes(), is_leaf=lambda leaf: isinstance(leaf, tuple))
    for names, shape in zip(axes, jax.tree.leaves(functional.shapes()), strict=True):
        assert len(names) == len(shape.shape)
        for rules in RULES.values():
            partition_spec(names, rules)


def test_dropout_acts_on_the_inputs_of_upper_layers_alone_and_only_with_a_key() -> None:
    shallow, deep = stack_of(CellKind.VANILLA, dropout=0.5), stack_of(CellKind.VANILLA, layers=2, dropout=0.5)
    x = random(B, T, INPUTS).astype(np.float32)
    for functional, changes in ((shallow, False), (deep, True)):
        weights = random_weights(functional)
        run = jax.jit(lambda x, key, functional=functional, weights=weights: functional.bind(weights)(x, key=key))
        (plain, before), (dropped, after) = run(x, None), run(x, jax.random.key(1))
        assert (np.asarray(plain) != np.asarray(dropped)).any() == changes
        np.testing.assert_array_equal(dropped, run(x, jax.random.key(1))[0])
    # What the first layer carries is never dropped.
    np.testing.assert_array_equal(after[0].hidden, before[0].hidden)


def test_each_layer_drops_by_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    monkeypatch.setattr(recurrent, "dropout", lambda x, rate, key: keys.append(key) or x)
    functional = stack_of(CellKind.VANILLA, layers=4, dropout=0.5)
    weights, x = random_weights(functional), jnp.ones((B, T, INPUTS))
    jax.eval_shape(lambda key: functional.bind(weights)(x, key=key)[0], jax.random.key(1))
    assert len({id(key) for key in keys}) == len(keys) == 3


def test_dropout_leaves_fast_forward_connections_alone() -> None:
    """With all of the lower layer's output dropped, the upper one reads its projected input and zeros."""
    functional = stack_of(CellKind.LSTM, layers=2, skip_connections=SkipConnections.FAST_FORWARD, dropout=0.999999)
    weights, x = random_weights(functional), random(B, T, INPUTS)
    with jax.enable_x64(True):
        y, _ = jax.jit(lambda x, key: functional.bind(weights)(x, key=key))(x, jax.random.key(0))
    fast = oracle.projected(weights["layer_0"]["forward"], x)
    read = np.concatenate([fast, np.zeros((B, T, WIDTH))], -1)
    expected, _ = oracle.stack(oracle.Stack("lstm"), {"layer_0": weights["layer_1"]}, read, np.full(B, T))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


def test_half_precision_computes_in_the_type_of_its_input() -> None:
    functional = stack_of(CellKind.LSTM)
    stack = functional.bind(random_weights(functional))
    x = np.ones((B, T, INPUTS), jnp.bfloat16)
    y, after = jax.eval_shape(lambda x: stack(x, carry=stack.initial(B, jnp.float32)), x)
    assert {leaf.dtype for leaf in jax.tree.leaves((y, after))} == {jnp.dtype(jnp.bfloat16)}


def test_one_layer_is_one_loop_over_time() -> None:
    """Both directions ride on one scan, and the inputs' projection is outside of it."""
    functional = FunctionalModule(
        lambda builder: RecurrentLayer(
            RecurrentConfig(CellKind.GRU_RESET_AFTER, WIDTH, direction=Direction.BIDIRECTIONAL), INPUTS, builder=builder
        )
    )
    jaxpr = jax.make_jaxpr(lambda x: functional.bind(random_weights(functional))(x))(
        np.ones((B, T, INPUTS), np.float32)
    )
    loops = [
        equation for equation in jaxpr.eqns if equation.primitive.name == "scan" and equation.params["length"] == T
    ]
    assert len(loops) == 1
    inside = [equation.primitive.name for equation in loops[0].params["jaxpr"].eqns]
    assert inside.count("dot_general") == 1
