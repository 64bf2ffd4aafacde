"""The Neural Turing Machine against NumPy float64: outputs, weightings, memory; its padding, gradient and counts."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.neural_turing_machine import lstm_controller as controller_only
from experiments.neural_turing_machine.lstm_controller import LSTMControllerConfig
from experiments.neural_turing_machine.ntm import FAMILY, NTM, READ, WRITE, ControllerKind, MemoryInit, NTMConfig
from experiments.neural_turing_machine.signature import BIT_SEQUENCE_PREDICTION
from tests import programs
from tests.gradients import check_gradient
from tests.oracles import neural_turing_machine as oracle
from tests.oracles import recurrent
from transformer.attention import STATISTICS, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops, recomputed_flops
from transformer.layers.functional_module import Precision
from transformer.layers.recurrent import CellKind
from transformer.models.model import Model, Variables, count_parameters
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

B, T, INPUTS, BITS_OUT = 3, 6, 4, 3
LENGTHS = np.int32([6, 4, 1])
INTERFACE = TaskInterface(
    {"vectors": InputSpec((B, T, INPUTS), jnp.float32, Modality.POINTS), "lengths": InputSpec((B,))},
    {"bits": BITS_OUT},
    output=BIT_SEQUENCE_PREDICTION.output,
)
SMALL = {"width": 5, "num_slots": 7, "slot_width": 3}
CONFIGS = [
    NTMConfig(ControllerKind.FEED_FORWARD, **SMALL),
    NTMConfig(ControllerKind.LSTM, **SMALL),
    NTMConfig(ControllerKind.FEED_FORWARD, read_heads=2, write_heads=3, shift_range=2, **SMALL),
    NTMConfig(ControllerKind.LSTM, read_heads=3, write_heads=2, shift_range=0, **SMALL),
    NTMConfig(ControllerKind.LSTM, memory_init=MemoryInit.CONSTANT, **SMALL),
]

# Each controller once, with one head and with several.
QUICK = [pytest.param(each, marks=pytest.mark.slow if n in (0, 3) else ()) for n, each in enumerate(CONFIGS)]


def called(config: NTMConfig) -> str:
    heads = f"{config.read_heads}-{config.write_heads}-{config.shift_range}"
    return f"{config.controller.value}-{heads}-{config.memory_init.value}"


def expected_of(config: NTMConfig, params: Any, x_TxI: np.ndarray) -> oracle.Trace:
    """The oracle's, which is given the slots that are no parameters."""
    if config.memory_init is MemoryInit.CONSTANT:
        assert "memory" not in params
        params = {**params, "memory": np.full((config.num_slots, config.slot_width), 1e-6)}
    return oracle.run(machine(config), params, x_TxI)


def machine(config: NTMConfig) -> oracle.Machine:
    return oracle.Machine(config.controller.value, config.read_heads, config.write_heads, config.shift_range)


@functools.cache
def model_of(config: NTMConfig) -> Model:
    with jax.enable_x64(True):
        return FAMILY.build(config, INTERFACE, Precision("float64", "float64"))


def random_params(model: Model, scale: float = 1.0) -> Any:
    normal = np.random.default_rng(0).normal
    return jax.tree.map(lambda leaf: scale * normal(size=leaf.shape), model.functional.shapes())


def given() -> dict[str, np.ndarray]:
    vectors = np.random.default_rng(1).normal(size=(B, T, INPUTS))
    return {
        "vectors": np.where(np.arange(T)[None, :, None] < LENGTHS[:, None, None], vectors, np.nan),
        "lengths": LENGTHS,
    }


def close(ours: Any, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", QUICK, ids=called)
def test_the_machine_is_the_papers_step_by_step(config: NTMConfig) -> None:
    model, inputs = model_of(config), given()
    params = random_params(model)
    with jax.enable_x64(True):
        look = jax.jit(lambda params: model.apply(Variables(params, {}), inputs, train=False, capture=capture))
        capture = Capture((READ, WRITE))
        logits, aux = look(params)
    for row, length in enumerate(LENGTHS):
        expected = expected_of(config, params, inputs["vectors"][row, :length])
        close(logits[row, :length], expected.logits)
        for site, part in ((READ, slice(0, config.read_heads)), (WRITE, slice(config.read_heads, None))):
            maps = np.asarray(aux.maps[site].weights)
            assert maps.shape == (1, B, len(range(config.num_heads)[part]), T, config.num_slots)
            close(maps[0, row, :, :length], np.moveaxis(expected.weights[:, part], 0, 1))
            close(maps[0, row, :, :length].sum(-1), np.ones((*maps.shape[2:3], length)))


@pytest.mark.parametrize("config", QUICK, ids=called)
def test_memory_weightings_and_reads_are_the_papers_behind_every_step(config: NTMConfig) -> None:
    model = model_of(config)
    params, x_TxI = random_params(model), given()["vectors"][0]
    expected = expected_of(config, params, x_TxI)
    with jax.enable_x64(True):
        bound: NTM = model.functional.bind(jax.tree.map(jnp.asarray, params))
        state, advance = jax.jit(lambda: bound.begin(1))(), jax.jit(lambda state, x: bound.advance(state, x)[0])
        for step, x in enumerate(x_TxI):
            state = advance(state, jnp.asarray(x[None]))
            close(state.memory[0], expected.memory[step])
            close(state.weights[0], expected.weights[step])
            close(state.reads[0], expected.reads[step])


def test_padded_steps_change_nothing_and_have_no_gradient() -> None:
    config = CONFIGS[3]
    model, inputs = model_of(config), given()
    params = random_params(model)

    def loss(params: Any, inputs: Any) -> Any:
        logits, _ = model.apply(Variables(params, {}), inputs, train=True)
        real = jnp.arange(logits.shape[1])[None] < inputs["lengths"][:, None]
        return jnp.sum(jnp.where(real[..., None], logits, 0) ** 2)

    with jax.enable_x64(True):
        value, gradient = jax.jit(jax.value_and_grad(loss))(params, inputs)
    alone = [expected_of(config, params, inputs["vectors"][row, :length]) for row, length in enumerate(LENGTHS)]
    assert float(value) == pytest.approx(sum(np.sum(each.logits**2) for each in alone), rel=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("config", [pytest.param(CONFIGS[0], marks=pytest.mark.slow), CONFIGS[1]], ids=called)
def test_the_gradient_is_that_of_finite_differences(config: NTMConfig) -> None:
    model = model_of(config)
    params = random_params(model, 0.5)
    inputs = {"vectors": np.nan_to_num(given()["vectors"])[:1, :4], "lengths": np.int32([4])}
    with jax.enable_x64(True):
        check_gradient(
            lambda params: model.apply(Variables(params, {}), inputs, train=True)[0], (params,), atol=1e-6, rtol=1e-6
        )


def test_statistics_of_the_heads_leave_padding_out() -> None:
    model, inputs = model_of(CONFIGS[2]), given()
    params = random_params(model)
    capture = Capture((READ, WRITE), statistics=(STATISTICS["entropy"],))
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, params)
        _, aux = programs.apply(model, Variables(params, {}), inputs, train=False, capture=capture)
        means = {site: np.asarray(aux.maps[site].means()["entropy"][0]) for site in (READ, WRITE)}
    for site, heads in ((READ, 2), (WRITE, 3)):
        weights = np.asarray(aux.maps[site].weights)[0]
        entropies = [-(w * np.log(w)).sum(-1) for row, length in enumerate(LENGTHS) for w in [weights[row, :, :length]]]
        np.testing.assert_array_equal(aux.maps[site].counts["entropy"], np.full((1, heads), LENGTHS.sum()))
        close(means[site], np.concatenate(entropies, axis=1).mean(axis=1))


def expected_count(config: NTMConfig, inputs: int, outputs: int) -> int:
    """By the paper's parts: controller, what heads are moved by, output, and what a sequence begins with."""
    read, heads = config.read_heads * config.slot_width, config.read_heads + config.write_heads
    controller = (inputs + read + 1) * config.width
    memory_init = config.num_slots * config.slot_width + read + heads * config.num_slots
    if config.controller is ControllerKind.LSTM:
        controller = 4 * (inputs + read + config.width + 1) * config.width
        memory_init += 2 * config.width
    emitted = heads * (config.slot_width + 1 + 1 + 1 + 2 * config.shift_range + 1)
    emitted += config.write_heads * 2 * config.slot_width
    return controller + (config.width + 1) * emitted + (config.width + read + 1) * outputs + memory_init


def of_the_copy_task(rows: int = 1, steps: int = 41) -> TaskInterface:
    inputs = {"vectors": InputSpec((rows, steps, 9), jnp.float32, Modality.POINTS), "lengths": InputSpec((rows,))}
    return TaskInterface(inputs, {"bits": 8}, output=BIT_SEQUENCE_PREDICTION.output)


@pytest.mark.parametrize(
    ("config", "published"),
    # A public reproduction has 16,096 too; another's 62,660 with an LSTM have two biases a gate and nothing learned to
    # begin with.
    [(NTMConfig(), 16_096), (NTMConfig(ControllerKind.LSTM), 62_660 - 400 + 2_836 + 200), (CONFIGS[2], None)],
    ids=["feed_forward", "lstm", "several heads"],
)
def test_parameters_are_as_many_as_the_formula_says(config: NTMConfig, published: int | None) -> None:
    model = FAMILY.build(config, of_the_copy_task(), Precision())
    count = count_parameters(model.functional.shapes())
    assert count == expected_count(config, 9, 8)
    assert published in (None, count)


def test_the_baseline_is_a_stack_and_a_linear_map() -> None:
    config = LSTMControllerConfig(CellKind.LSTM, width=4, layers=2)
    with jax.enable_x64(True):
        model = controller_only.FAMILY.build(config, INTERFACE, Precision("float64", "float64"))
        params, inputs = random_params(model), given()
        logits, aux = programs.apply(model, Variables(params, {}), inputs, train=False)
    hidden, _ = recurrent.stack(
        recurrent.Stack("lstm", layers=2), params["stack"], np.nan_to_num(inputs["vectors"]), LENGTHS
    )
    close(logits, hidden @ params["output"]["kernel"] + params["output"]["bias"])
    assert model.sites == ()
    assert aux.maps == {}
    # The public reproduction of the paper's LSTM has a second bias for each of its 3 x 4 x 256 gates.
    published = controller_only.FAMILY.build(LSTMControllerConfig(), of_the_copy_task(), Precision())
    assert count_parameters(published.functional.shapes()) == 1_328_136 - 3 * 4 * 256


# What formulas gave for these configs. All of a step that something is differentiated by is computed again: not the
# output's map behind it, and not what is read and written at its end.
@pytest.mark.parametrize(
    ("config", "expected", "again"),
    [
        (CONFIGS[0], 9_468, 7_092),
        (CONFIGS[3], 30_492, 25_200),
        (LSTMControllerConfig(width=4, layers=2), 9_648, 0),
    ],
    ids=["feed_forward", "lstm", "baseline"],
)
def test_flops_are_those_of_its_formula(config: Any, expected: int, again: int) -> None:
    family = FAMILY if isinstance(config, NTMConfig) else controller_only.FAMILY
    model = family.build(config, INTERFACE, Precision())
    assert forward_flops(model, given()) == expected
    assert recomputed_flops(model, given()) == again


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_slots": 0}, r"config\.model\.num_slots=0 must be at least 1"),
        ({"shift_range": 4, "num_slots": 8}, r"config\.model\.shift_range=4 must go .*\.num_slots=8"),
        ({"shift_range": -1}, r"config\.model\.shift_range=-1"),
        ({"read_heads": 0}, r"config\.model\.read_heads=0"),
    ],
)
def test_impossible_machines_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NTMConfig(**values)
    with pytest.raises(UserError, match=r"config\.model\.layers=0"):
        LSTMControllerConfig(layers=0)
