"""Mixtures of experts against a NumPy oracle: values, gradients, both losses, whatever the room; padding; ties."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.gradients import check_gradient
from tests.oracles import experts as oracle
from tests.oracles.transformer import feed_forward
from transformer.attention.capture import Capture
from transformer.layers import mixture_of_experts as layer
from transformer.layers.feed_forward import Activation, FeedForward
from transformer.layers.functional_module import FunctionalModule, ParameterBuilder, Precision
from transformer.layers.mixture_of_experts import (
    ExpertUse,
    Gating,
    MixtureOfExperts,
    MixtureOfExpertsConfig,
    noisy_top_k_gating,
    squared_coefficient_of_variation,
)

BATCH, LENGTH, WIDTH, HIDDEN, COUNT, CHOSEN = 3, 11, 4, 6, 5, 2
POSITIONS = BATCH * LENGTH
SITE = "here"


def functional(activation: Activation = Activation.SWIGLU, **settings: Any) -> FunctionalModule[MixtureOfExperts]:
    config = MixtureOfExpertsConfig(**{"count": COUNT, "top_k": CHOSEN, **settings})

    def make(builder: ParameterBuilder, hidden: int = HIDDEN) -> FeedForward:
        return FeedForward(WIDTH, hidden, activation=activation, bias=True, builder=builder)

    hidden = config.shared_feed_forward
    make_shared = functools.partial(make, hidden=hidden) if hidden else None
    return FunctionalModule(
        lambda builder: MixtureOfExperts(config, WIDTH, make, make_shared=make_shared, builder=builder),
        Precision(*2 * ("float64" if jax.config.jax_enable_x64 else "float32",)),
    )


def given(experts: FunctionalModule[MixtureOfExperts], favor: float = 0.0, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Parameters without zeros, of which the router favors expert 0 by so much, and inputs."""
    random = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: random.normal(0, 0.7, leaf.shape), experts.shapes())
    x_BxTxE = random.normal(size=(BATCH, LENGTH, WIDTH))
    params["router"]["kernel"][:, 0] *= 1 if not favor else 0
    if favor:
        x_BxTxE[..., 0] = 1
        params["router"]["kernel"][0, 0] = favor
    return params, x_BxTxE


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.fixture
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def noise_of(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.normal(key, (BATCH, LENGTH, COUNT), jnp.float64))


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("noisy", "room", "favor"),
    [
        pytest.param(False, 1.0, 0.0, id="still"),
        pytest.param(True, 0.01, 0.0, id="noisy, little room"),
        pytest.param(True, 10.0, 20.0, id="noisy, all ask for one that has room"),
        pytest.param(False, 0.01, 20.0, id="all ask for one that has none"),
    ],
)
def test_the_layer_is_the_papers_equations_whatever_an_experts_room(noisy: bool, room: float, favor: float) -> None:
    experts = functional(capacity_factor=room)
    params, x_BxTxE = given(experts, favor)
    lengths_B, key = np.array([LENGTH, 4, 7]), jax.random.key(3) if noisy else None
    expected = oracle.mixture(
        params, x_BxTxE, CHOSEN, silu, None if key is None else noise_of(key), lengths_B=lengths_B
    )
    if favor:
        assert (expected.gates[..., 0] > 0).sum() == lengths_B.sum() > 2 * layer._ROWS_AT_ONCE

    def run(params: Any, x_BxTxE: Any, lengths_B: Any) -> Any:
        return experts.bind(params)(x_BxTxE, lengths_B=lengths_B, key=key, capture=Capture((SITE,)))

    y_BxTxE, captured, balance = jax.jit(run)(params, x_BxTxE, lengths_B)
    np.testing.assert_allclose(y_BxTxE, expected.outputs, atol=1e-10)
    np.testing.assert_allclose(captured.weights[:, 0], expected.gates, atol=1e-10)
    assert float(balance.importance) == pytest.approx(expected.importance_loss, rel=1e-9)
    assert float(balance.load) == pytest.approx(expected.load_loss, rel=1e-9)
    assert float(balance.positions) == lengths_B.sum()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("gating", "top_k", "router_bias", "room"),
    [
        (Gating.TOP_K, 2, True, 0.01),
        (Gating.SOFTMAX, 3, False, 1.5),
        pytest.param(Gating.TOP_K, 1, False, 1.0, marks=pytest.mark.slow),
        pytest.param(Gating.SOFTMAX, 1, True, 0.01, marks=pytest.mark.slow),
        pytest.param(Gating.SOFTMAX, COUNT, False, 0.5, marks=pytest.mark.slow),
    ],
)
def test_without_noise_the_gates_are_a_softmax_of_the_chosen_or_of_all(
    gating: Gating, top_k: int, router_bias: bool, room: float
) -> None:
    experts = functional(gating=gating, top_k=top_k, router_bias=router_bias, capacity_factor=room)
    params, x_BxTxE = given(experts)
    lengths_B = np.array([LENGTH, 4, 7])
    renormalized = gating is Gating.TOP_K
    expected = oracle.mixture_without_noise(
        params, x_BxTxE, top_k, silu, renormalized=renormalized, lengths_B=lengths_B
    )

    def run(params: Any, x_BxTxE: Any, lengths_B: Any) -> Any:
        # A key draws no noise.
        return experts.bind(params)(x_BxTxE, lengths_B=lengths_B, key=jax.random.key(0), capture=Capture((SITE,)))

    y_BxTxE, captured, use = jax.jit(run)(params, x_BxTxE, lengths_B)
    np.testing.assert_allclose(y_BxTxE, expected.outputs, atol=1e-10)
    np.testing.assert_allclose(captured.weights[:, 0], expected.gates, atol=1e-10)
    assert float(use.balance_loss()) == pytest.approx(expected.balance_loss, rel=1e-9)
    assert float(use.positions) == lengths_B.sum()
    sums = expected.gates.sum(axis=-1)[np.arange(LENGTH) < lengths_B[:, None]]
    assert (np.abs(sums - 1) < 1e-9).all() == (renormalized or top_k == COUNT)


@pytest.mark.usefixtures("wide")
def test_a_shared_network_is_added_by_its_gate() -> None:
    experts = functional(gating=Gating.SOFTMAX, top_k=3, shared_feed_forward=7)
    params, x_BxTxE = given(experts)
    lengths_B = np.array([LENGTH, 4, 7])
    expected = oracle.mixture_without_noise(params, x_BxTxE, 3, silu, renormalized=False, lengths_B=lengths_B).outputs
    gate_BxTx1 = 1 / (1 + np.exp(-x_BxTxE @ params["shared_gate"]["kernel"]))
    expected = expected + gate_BxTx1 * feed_forward(params["shared"], x_BxTxE, "swiglu")
    with jax.disable_jit():
        y_BxTxE, _, _ = experts.bind(params)(jnp.asarray(x_BxTxE), lengths_B=jnp.asarray(lengths_B))
    real = np.arange(LENGTH) < lengths_B[:, None]
    np.testing.assert_allclose(np.asarray(y_BxTxE)[real], expected[real], atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("wide")
def test_gradients_without_noise_are_those_of_finite_differences() -> None:
    experts = functional(Activation.SWIGLU_CLAMPED, gating=Gating.SOFTMAX, router_bias=True, capacity_factor=0.01)
    params, x_BxTxE = given(experts)

    def run(params: Any, x_BxTxE: Any) -> Any:
        y, _, use = experts.bind(params)(x_BxTxE)
        return jnp.sum(jnp.sin(y)), use.balance_loss()

    check_gradient(run, (params, x_BxTxE), rtol=1e-5, atol=1e-6, eps=1e-6)


def test_the_balance_loss_is_over_the_positions_of_all_layers_together() -> None:
    selections, probability = np.float64([[6, 2], [2, 6]]), np.float64([[5, 3], [1, 7]])
    use = ExpertUse(jnp.asarray(selections), jnp.asarray(probability), jnp.array([8.0, 8.0]))
    # f = (1/2, 1/2), P = (6/16, 10/16): what one layer has too many, the other has too few.
    assert float(use.balance_loss()) == pytest.approx(2 * (0.5 * 6 / 16 + 0.5 * 10 / 16))
    first = ExpertUse(*(array[0] for array in use))
    assert float(first.balance_loss()) == pytest.approx(2 * (0.75 * 5 / 8 + 0.25 * 3 / 8))


def test_a_router_without_noise_begins_as_other_matrices() -> None:
    experts = functional(gating=Gating.TOP_K, router_bias=True)
    params = programs.initial(experts.init)
    assert set(params) == {"router", "networks"}
    assert np.abs(params["router"]["kernel"]).min() > 0
    assert not np.any(params["router"]["bias"])


@pytest.mark.usefixtures("wide")
def test_gradients_are_those_of_finite_differences_also_of_further_turns() -> None:
    experts = functional(activation=Activation.GELU_TANH, capacity_factor=0.01)
    params, x_BxTxE = given(experts, favor=2.0)

    def run(params: Any, x_BxTxE: Any) -> Any:
        y, _, balance = experts.bind(params)(x_BxTxE, key=jax.random.key(1))
        return jnp.sum(jnp.sin(y)), balance.importance, balance.load

    check_gradient(run, (params, x_BxTxE), rtol=1e-5, atol=1e-6, eps=1e-6)


@pytest.mark.usefixtures("wide")
def test_the_loads_threshold_is_the_kth_of_the_others() -> None:
    random = np.random.default_rng(0)
    clean, deviation, noise = random.normal(size=(3, 40, COUNT))
    deviation = np.abs(deviation)
    of_route = jax.jit(lambda *given: noisy_top_k_gating(*given, CHOSEN).probability)
    found = np.asarray(of_route(jnp.asarray(clean), jnp.asarray(deviation), jnp.asarray(noise)))
    noisy = clean + noise * deviation
    for row in range(len(clean)):
        for i in range(COUNT):
            # Drawing this expert's noise again, the others' as it was: it is chosen where it passes the k-th of them.
            others = np.sort(np.delete(noisy[row], i))[::-1]
            needed = (clean[row, i] - others[CHOSEN - 1]) / deviation[row, i]
            assert float(found[row, i]) == pytest.approx(oracle.cumulative(needed), abs=1e-12)


def test_of_equal_experts_the_first_are_chosen_and_share_evenly() -> None:
    routing = jax.jit(lambda: noisy_top_k_gating(jnp.zeros((1, COUNT)), jnp.ones((1, COUNT)), None, CHOSEN))()
    assert routing.experts.tolist() == [[0, 1]]
    assert routing.gates.tolist() == [[0.5, 0.5]]
    np.testing.assert_allclose(routing.probability, 0.5)


def test_the_router_begins_at_zero_and_noise_is_drawn_by_a_key_alone() -> None:
    experts = functional()
    params = programs.initial(experts.init)
    assert not np.any(params["router"]["kernel"])
    assert not np.any(params["noise"]["kernel"])
    kernels = np.asarray(params["networks"]["expand"]["kernel"])
    assert all(np.abs(kernels[0] - kernels[i]).max() > 0.01 for i in range(1, COUNT))
    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)

    @jax.jit
    def gates(key: Any) -> Any:
        _, captured, _ = experts.bind(params)(jnp.asarray(x), key=key, capture=Capture((SITE,)))
        assert captured is not None
        return captured.weights

    still, first, again, other = (np.asarray(gates(key)) for key in (None, *map(jax.random.key, (1, 1, 2))))
    assert (still[..., :CHOSEN] == 0.5).all()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    # Without signal every expert is as likely.
    assert np.bincount(np.argmax(first, axis=-1).ravel(), minlength=COUNT).min() > 0


@pytest.mark.slow
def test_padding_takes_no_room_and_counts_nowhere_whatever_stands_there() -> None:
    experts = functional(capacity_factor=0.01)
    params, x_BxTxE = given(experts, favor=5.0)
    params, x_BxTxE = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (params, x_BxTxE))
    lengths_B = jnp.array([LENGTH, 0, 5])
    padded = x_BxTxE.copy()
    padded[1], padded[2, 5:] = np.nan, np.inf

    @jax.jit
    def run(params: Any, x_BxTxE: Any) -> Any:
        def total(params: Any, x_BxTxE: Any) -> Any:
            y, _, balance = experts.bind(params)(x_BxTxE, lengths_B=lengths_B)
            return jnp.sum(y**2) + balance.importance + balance.load, (y, balance)

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, x_BxTxE)

    for one, other in zip(*(jax.tree.leaves(run(params, x)) for x in (x_BxTxE, padded)), strict=True):
        np.testing.assert_array_equal(one, other)
    # Alone, each example comes to the same.
    together = jax.jit(lambda x: experts.bind(params)(x, lengths_B=lengths_B)[0])(x_BxTxE)
    alone_of = jax.jit(lambda x: experts.bind(params)(x)[0])
    for row, length in ((0, LENGTH), (2, 5)):
        alone = alone_of(x_BxTxE[row : row + 1, :length])
        np.testing.assert_allclose(alone[0], together[row, :length], atol=1e-5)


def test_an_overfull_expert_computes_again_and_no_turn_is_taken_for_nothing() -> None:
    """The rows that all experts compute in one step of the loop, and how often it is entered."""
    turns = []

    def counted(turn: Any) -> Any:
        jax.debug.callback(lambda number: turns.append(int(number)), turn)
        return jnp.float32(1)

    for longest, expected in ((7, []), (8, []), (9, [1]), (24, [1, 2]), (25, [1, 2, 3])):
        turns.clear()
        queue = layer.ExpertQueues(jnp.zeros(1, int), jnp.zeros(1, int), jnp.int32(longest))
        total = layer._sum_over_passes(8, queue, counted, jnp.float32(0))
        assert (float(total), sorted(turns)) == (len(expected), expected)


def test_the_variation_of_zeros_is_zero_and_so_is_its_gradient() -> None:
    value, gradient = jax.jit(jax.value_and_grad(squared_coefficient_of_variation))(jnp.zeros(4))
    assert float(value) == 0
    assert np.isfinite(gradient).all()


def test_a_vanishing_deviation_leaves_gradients_finite() -> None:
    def total(clean: Any, raw: Any) -> Any:
        return jnp.sum(noisy_top_k_gating(clean, jax.nn.softplus(raw), None, CHOSEN).probability)

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(jnp.arange(5.0)[None], jnp.full((1, 5), -100.0))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"count": -1}, r"config\.model\.experts\.count=-1 must be at least 0"),
        ({"count": 4, "top_k": 1}, r"config\.model\.experts\.top_k=1 of count=4 must be at least 2"),
        ({"count": 4, "top_k": 4}, r"config\.model\.experts\.top_k=4 of count=4 .* below the count"),
        ({"count": 4, "every_n_layers": 0}, r"config\.model\.experts\.every_n_layers=0 must be at least 1"),
        ({"count": 4, "load_loss": -0.1}, r"config\.model\.experts\.load_loss=-0\.1 must be at least 0"),
        (
            {"count": 4, "gating": Gating.TOP_K, "top_k": 0},
            r"config\.model\.experts\.top_k=0 of count=4 must be at least 1",
        ),
        ({"count": 4, "gating": Gating.SOFTMAX, "top_k": 5}, r"top_k=5 of count=4 .* not above the count"),
        (
            {"count": 4, "gating": Gating.TOP_K, "load_loss": 0.2},
            r"load_loss=0\.2 is of gating noisy_top_k, and .*=top_k",
        ),
        ({"count": 4, "balance_loss": 0.2}, r"balance_loss=0\.2 is of gating top_k and softmax, and .*=noisy_top_k"),
        ({"count": 4, "router_bias": True}, r"router_bias=True is of gating top_k and softmax"),
        ({"count": 4, "balance_loss": -1.0}, r"config\.model\.experts\.balance_loss=-1\.0 must be at least 0"),
        (
            {"count": 4, "importance_loss": float("nan")},
            r"config\.model\.experts\.importance_loss=nan must be a finite number",
        ),
        ({"count": 4, "capacity_factor": 0.0}, r"config\.model\.experts\.capacity_factor=0\.0 must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        MixtureOfExpertsConfig(**settings)
