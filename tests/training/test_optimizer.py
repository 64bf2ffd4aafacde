"""Schedules against their formulas, and what weight decay and clipping touch."""

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.contrib import MuonDimensionNumbers

from transformer.config import UserError, from_config, to_config
from transformer.layers.functional_module import Precision
from transformer.models.decoder import DecoderConfig
from transformer.models.model import leaves_by_path
from transformer.models.recurrent_decoder import RecurrentDecoderConfig
from transformer.models.registry import build
from transformer.models.task_interface import TaskInterface
from transformer.training.learning_rate import LearningRateSchedule, depends_on_steps
from transformer.training.optimizer import (
    OptimizerAlgorithm,
    OptimizerConfig,
    hidden_matrices,
    hyperparameters,
    make_optimizer,
)

PEAK, WARMUP, STEPS, FINAL = 0.02, 7, 40, 0.1


def warm(after: Callable[[int], float]) -> list[float]:
    """The rate of updates 1 to STEPS: a straight line to the peak, then `after`."""
    return [PEAK * (t / WARMUP if t < WARMUP else after(t)) for t in range(1, STEPS + 1)]


def progress(t: int) -> float:
    return (t - WARMUP) / (STEPS - WARMUP)


FORMULAS = {
    LearningRateSchedule.CONSTANT: warm(lambda t: 1),
    LearningRateSchedule.INVERSE_SQUARE_ROOT: warm(lambda t: math.sqrt(WARMUP / t)),
    LearningRateSchedule.LINEAR: warm(lambda t: 1 - (1 - FINAL) * progress(t)),
    LearningRateSchedule.COSINE: warm(lambda t: FINAL + (1 - FINAL) * (1 + math.cos(math.pi * progress(t))) / 2),
}


def rates(config: OptimizerConfig, steps: int) -> np.ndarray:
    rate = functools.partial(make_optimizer(config, steps).learning_rate, hyper=hyperparameters(config))
    return np.asarray(jax.jit(jax.vmap(rate))(np.arange(steps)))


@pytest.mark.parametrize("schedule", LearningRateSchedule)
def test_a_schedule_is_its_formula(schedule: LearningRateSchedule) -> None:
    config = OptimizerConfig(learning_rate=PEAK, schedule=schedule, warmup_steps=WARMUP, final_lr_fraction=FINAL)
    found = rates(config, STEPS)
    np.testing.assert_allclose(found, FORMULAS[schedule], rtol=1e-5)
    assert found.max() == pytest.approx(PEAK)
    assert found.argmax() == WARMUP - 1
    if schedule in (LearningRateSchedule.LINEAR, LearningRateSchedule.COSINE):
        assert found[-1] == pytest.approx(FINAL * PEAK)


def test_equation_3_of_vaswani() -> None:
    width, warmup = 512, 4000
    config = OptimizerConfig(learning_rate=(width * warmup) ** -0.5, warmup_steps=warmup)
    t = np.arange(1, 12_001, dtype=np.float64)
    equation = width**-0.5 * np.minimum(t**-0.5, t * warmup**-1.5)
    np.testing.assert_allclose(rates(config, len(t)), equation, rtol=1e-5)


@pytest.mark.parametrize("schedule", LearningRateSchedule)
def test_without_warm_up_the_first_update_has_the_peak(schedule: LearningRateSchedule) -> None:
    config = OptimizerConfig(learning_rate=PEAK, schedule=schedule, warmup_steps=0)
    assert rates(config, STEPS)[0] == pytest.approx(PEAK)


PARAMETERS = {
    "block/kernel": jnp.asarray(np.full((2, 2), 2.0, np.float32)),
    "block/bias": jnp.asarray(np.full((2, 2), 2.0, np.float32)),
    "norm/scale": jnp.asarray(np.full(2, 2.0, np.float32)),
    "relative/content": jnp.asarray(np.full((2, 2), 2.0, np.float32)),
    "relative/position": jnp.asarray(np.full((2, 2), 2.0, np.float32)),
}


def update(gradients: Any, **fields: Any) -> dict[str, np.ndarray]:
    """The first update, at a learning rate of 0.1."""
    config = OptimizerConfig(learning_rate=0.1, schedule=LearningRateSchedule.CONSTANT, warmup_steps=0, **fields)
    rule = make_optimizer(config, STEPS)
    updates, _ = jax.jit(
        lambda gradients: rule.update(gradients, rule.init(PARAMETERS), PARAMETERS, 0, hyperparameters(config))
    )(gradients)
    return {path: np.asarray(leaf) for path, leaf in updates.items()}


def test_weight_decay_leaves_biases_and_norms_alone() -> None:
    still = jax.tree.map(np.zeros_like, PARAMETERS)
    updates = update(still, algorithm=OptimizerAlgorithm.ADAMW, weight_decay=0.3)
    np.testing.assert_allclose(updates["block/kernel"], -0.1 * 0.3 * 2.0, rtol=1e-6)
    assert not updates["block/bias"].any()  # a stack of biases has two dimensions too
    assert not updates["norm/scale"].any()
    assert not updates["relative/content"].any()  # the biases of Transformer-XL's scores
    assert not updates["relative/position"].any()


@pytest.mark.parametrize(("norm", "kept"), [(10.0, 0.5), (0.5, 0.5), (0.2, 0.2)])
def test_clipping_bounds_the_global_norm(norm: float, kept: float) -> None:
    random = np.random.default_rng(0)
    gradients = {path: random.normal(size=leaf.shape) for path, leaf in PARAMETERS.items()}
    scale = norm / math.sqrt(sum(np.square(leaf).sum() for leaf in gradients.values()))
    gradients = {path: np.float32(scale * leaf) for path, leaf in gradients.items()}
    updates = update(gradients, algorithm=OptimizerAlgorithm.SGD, beta1=0.0, clip_norm=0.5)
    for path, leaf in gradients.items():
        np.testing.assert_allclose(updates[path], -0.1 * leaf * kept / norm, rtol=1e-5)


def test_momentum_adds_up() -> None:
    config = OptimizerConfig(OptimizerAlgorithm.SGD, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, beta1=0.5)
    rule = make_optimizer(config, STEPS)
    ones, zeros = {"x": np.ones(1, np.float32)}, {"x": np.zeros(1, np.float32)}
    state, moved = rule.init(zeros), []
    update = jax.jit(lambda state, step: rule.update(ones, state, zeros, step, hyperparameters(config)))
    for step in range(3):
        updates, state = update(state, step)
        moved.append(float(updates["x"][0]))
    assert moved == pytest.approx([-0.1, -0.15, -0.175])


MATRICES = {"block/kernel": MuonDimensionNumbers((0,), (1,))}
NUMBERS = {"learning_rate": 0.3, "warmup_steps": 5, "beta1": 0.7, "beta2": 0.9, "epsilon": 1e-4}
RULES = {
    "adam": OptimizerConfig(final_lr_fraction=0.2, clip_norm=0.6, schedule=LearningRateSchedule.COSINE, **NUMBERS),
    "adamw": OptimizerConfig(OptimizerAlgorithm.ADAMW, weight_decay=0.2, **NUMBERS),
    "muon": OptimizerConfig(OptimizerAlgorithm.MUON, weight_decay=0.2, **NUMBERS),
    "sgd": OptimizerConfig(
        OptimizerAlgorithm.SGD, 0.3, LearningRateSchedule.CONSTANT, warmup_steps=5, beta1=0.7, clip_norm=0.6
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_numbers_are_arguments_of_the_rule_and_no_part_of_it(name: str) -> None:
    config, hyper = RULES[name], hyperparameters(RULES[name])
    # The rule of other numbers, every one of them, given those of the config.
    others = dataclasses.replace(
        config, **{key: float(value) * 0.5 for key, value in hyper.items() if key != "warmup_steps"}, warmup_steps=9
    )
    assert hyperparameters(others).keys() == hyper.keys()
    assert all(hyperparameters(others)[key] != value for key, value in hyper.items())
    rules = [make_optimizer(numbers, STEPS, matrices=MATRICES) for numbers in (config, others)]
    fixed, given = (jax.jit(rule.update) for rule in rules)
    gradients = jax.tree.map(lambda leaf: np.asarray(leaf) / 3, PARAMETERS)
    states = [jax.device_get(rule.init(PARAMETERS)) for rule in rules]
    for step in range(3):
        updates, states[0] = fixed(gradients, states[0], PARAMETERS, step, hyper)
        moved, states[1] = given(gradients, states[1], PARAMETERS, step, hyper)
        jax.tree.map(np.testing.assert_array_equal, updates, moved)
        jax.tree.map(np.testing.assert_array_equal, *states)
    for key, value in hyper.items():
        changed, _ = fixed(gradients, states[0], PARAMETERS, 3, {**hyper, key: value * np.float32(0.8)})
        same, _ = fixed(gradients, states[0], PARAMETERS, 3, hyper)
        moves = any(np.any(np.asarray(changed[path]) != np.asarray(same[path])) for path in PARAMETERS)
        assert moves == (key not in ("final_lr_fraction",)), key  # no schedule is at its end here


def orthogonalized(matrix: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz iterations X <- a X + (b A + c A^2) X with A = X X^T (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


def test_muon_orthogonalizes_the_momentum_of_matrices_and_trains_all_others_by_adamw() -> None:
    numbers = {"beta1": 0.8, "weight_decay": 0.3, "warmup_steps": 0, "schedule": LearningRateSchedule.CONSTANT}
    muon, adamw = (
        OptimizerConfig(algorithm, 0.1, **numbers)  # type: ignore[arg-type]
        for algorithm in (OptimizerAlgorithm.MUON, OptimizerAlgorithm.ADAMW)
    )
    random = np.random.default_rng(0)
    params = {
        "layers/query/kernel": random.normal(size=(2, 6, 2, 2)),  # two layers, each of 6 inputs and 2 heads of 2
        "layers/output/kernel": random.normal(size=(2, 2, 2, 6)),
        "layers/query/bias": random.normal(size=(2, 4)),
        "embedding/table": random.normal(size=(5, 6)),
    }
    params = {path: np.float32(leaf) for path, leaf in params.items()}
    axes = {
        "layers/query/kernel": MuonDimensionNumbers((1,), (2, 3)),
        "layers/output/kernel": MuonDimensionNumbers((1, 2), (3,)),
    }
    rules = make_optimizer(muon, STEPS, matrices=axes), make_optimizer(adamw, STEPS)
    states, updates = [rule.init(params) for rule in rules], [{}, {}]
    moments = {path: np.zeros(params[path].shape) for path in axes}
    for step in range(3):
        gradients = {path: np.float32(random.normal(size=leaf.shape)) for path, leaf in params.items()}
        for number, (rule, config) in enumerate(zip(rules, (muon, adamw), strict=True)):
            hyper = hyperparameters(config)
            updates[number], states[number] = rule.update(gradients, states[number], params, step, hyper)
        for path, moment in moments.items():
            moments[path] = 0.8 * moment + 0.2 * gradients[path]
            # Nesterov: the mean that the next step would have if its gradient were this one's, without its bias.
            ahead = 0.8 * moments[path] / (1 - 0.8 ** (step + 2)) + 0.2 * gradients[path] / (1 - 0.8 ** (step + 1))
            matrices = ahead.reshape(2, 6, 4) if "query" in path else ahead.reshape(2, 4, 6).transpose(0, 2, 1)
            expected = np.stack([orthogonalized(matrix.T).T for matrix in matrices])
            expected = expected if "query" in path else expected.transpose(0, 2, 1)
            expected = -0.1 * (0.2 * math.sqrt(6) * expected.reshape(params[path].shape) + 0.3 * params[path])
            np.testing.assert_allclose(updates[0][path], expected, atol=1e-5)
    for path in ("layers/query/bias", "embedding/table"):
        np.testing.assert_array_equal(updates[0][path], updates[1][path])


def test_hidden_matrices_are_those_of_attention_and_feed_forward_networks() -> None:
    config = DecoderConfig(layers=2, width=16, heads=4, kv_heads=2, feed_forward=32, max_length=8)
    model = build(config, TaskInterface({}, {"tokens": 11}), Precision())
    matrices = hidden_matrices(model)
    axes = leaves_by_path(model.functional.axes(), lambda leaf: isinstance(leaf, tuple))
    names = {path: [[axes[path][axis] for axis in side] for side in sides] for path, sides in matrices.items()}
    assert names == {
        "layers/attention/query/kernel": [["embed"], ["heads", "head_dim"]],
        "layers/attention/key/kernel": [["embed"], ["groups", "head_dim"]],
        "layers/attention/value/kernel": [["embed"], ["groups", "head_dim"]],
        "layers/attention/output/kernel": [["heads", "head_dim"], ["embed"]],
        "layers/feed_forward/expand/kernel": [["embed"], ["feed_forward"]],
        "layers/feed_forward/contract/kernel": [["feed_forward"], ["embed"]],
    }
    recurrent = build(RecurrentDecoderConfig(width=8), TaskInterface({}, {"tokens": 11}), Precision())
    with pytest.raises(UserError, match=r"algorithm=muon is for the matrices of attention .* has none: say adamw"):
        hidden_matrices(recurrent)


def test_what_is_zero_is_no_number() -> None:
    assert "clip_norm" not in hyperparameters(OptimizerConfig())
    assert "weight_decay" not in hyperparameters(OptimizerConfig(OptimizerAlgorithm.ADAMW))
    assert "beta1" not in hyperparameters(OptimizerConfig(OptimizerAlgorithm.SGD, beta1=0.0))
    assert "final_lr_fraction" not in hyperparameters(OptimizerConfig())
    assert "beta2" not in hyperparameters(OptimizerConfig(OptimizerAlgorithm.SGD))


def test_adam_is_kingmas_and_numbers_stay_float32_beside_bfloat16() -> None:
    # A clip that nothing reaches: it has to fit the type of the gradients all the same.
    config = OptimizerConfig(
        OptimizerAlgorithm.ADAM,
        0.1,
        LearningRateSchedule.CONSTANT,
        warmup_steps=0,
        beta1=0.9,
        beta2=0.999,
        clip_norm=1e6,
    )
    rule, hyper = make_optimizer(config, STEPS), hyperparameters(config)
    m = v = np.zeros(4)
    for kind in (jnp.float32, jnp.bfloat16):
        params = {"x": jnp.asarray(np.ones(4, kind))}
        state, m, v = rule.init(params), np.zeros(4), np.zeros(4)
        update = jax.jit(
            lambda gradients, state, step, params=params: rule.update(gradients, state, params, step, hyper)
        )
        for t in range(1, 4):
            gradient = np.array([0.5, -1.0, 2.0, 0.25]) * t
            updates, after = update({"x": gradient.astype(kind)}, state, t - 1)
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            expected = -0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-9)
            np.testing.assert_allclose(np.asarray(updates["x"], np.float64), expected, rtol=1e-5)
            kinds = [jax.tree.map(lambda leaf: leaf.dtype, each) for each in (state, after)]
            assert kinds[0] == kinds[1]  # a state that changed its types would compile every step again
            state = after


def test_the_second_moment_of_bfloat16_parameters_keeps_moving() -> None:
    config = OptimizerConfig(OptimizerAlgorithm.ADAM, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, beta2=0.999)
    rule, hyper, steps = make_optimizer(config, STEPS), hyperparameters(config), 2000
    params, gradients = ({"x": jnp.full(3, number, jnp.bfloat16)} for number in (1.0, 0.25))
    state = rule.init(params)
    after = jax.lax.fori_loop(0, steps, lambda _, old: rule.update(gradients, old, params, 0, hyper)[1], state)
    (second,) = (leaf for path, leaf in jax.tree.leaves_with_path(after) if "nu" in jax.tree_util.keystr(path))
    # In bfloat16 it stands still at the first value of which a thousandth is rounded away.
    np.testing.assert_allclose(np.asarray(second, np.float64), 0.25**2 * (1 - 0.999**steps), rtol=1e-3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"clip_norm": -0.5}, "clip_norm=-0.5"),
        ({"weight_decay": 0.1}, "weight_decay=0.1 acts with algorithm=adamw or muon; algorithm is adam"),
    ],
)
def test_values_that_cannot_be_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_config(OptimizerConfig, fields)


def test_the_guide_lists_every_key_algorithm_and_schedule(root: Path) -> None:
    guide = (root / "docs" / "guides" / "optimizers.md").read_text(encoding="utf-8")
    names = [field.name for field in dataclasses.fields(OptimizerConfig)]
    names += [value.value for kind in (OptimizerAlgorithm, LearningRateSchedule) for value in kind]
    assert [name for name in names if f"`{name}`" not in guide] == []


def test_the_guide_tabulates_every_schedule(root: Path) -> None:
    guide = (root / "docs" / "guides" / "optimizers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| ([\d. |]+) \|$", guide, re.MULTILINE)
    assert len(rows) == 6
    schedules = re.findall(r"`(\w+)`", guide.partition("| t |")[2].partition("\n")[0])
    assert schedules == [schedule.value for schedule in LearningRateSchedule]
    for number, schedule in enumerate(LearningRateSchedule):
        config = OptimizerConfig(learning_rate=1.0, schedule=schedule, warmup_steps=1000, final_lr_fraction=0.1)
        expected = rates(config, 10_000)
        for t, cells in rows:
            assert float(cells.split(" | ")[number]) == pytest.approx(expected[int(t.replace(",", "")) - 1], abs=6e-4)


OWN_SCHEDULES = {
    "half_cosine": """
import jax.numpy as jnp
def half_cosine(step, steps, learning_rate, sharpness=2.0):
    return learning_rate * jnp.cos(jnp.pi / 2 * step / steps) ** sharpness
SCHEDULE = half_cosine
""",
    "stairs": "SCHEDULE = lambda *, step, warmup_steps, final_lr_fraction: final_lr_fraction ** (step // warmup_steps)",
    "count": "SCHEDULE = lambda count: count",
    "still": "SCHEDULE = lambda learning_rate: learning_rate",
    "pair": "SCHEDULE = lambda step: (step, step)",
    "number": "SCHEDULE = 0.1",
}


@pytest.fixture
def own_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `own_rates` on Python's path."""
    (tmp_path / "own_rates").mkdir()
    for name, code in {"__init__": "", **OWN_SCHEDULES}.items():
        (tmp_path / "own_rates" / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_rates"]:
        del sys.modules[name]


@pytest.mark.usefixtures("own_schedules")
def test_a_schedule_of_ones_own_is_named_by_its_module() -> None:
    config = from_config(OptimizerConfig, {"learning_rate": PEAK, "schedule": "own_rates.half_cosine"})
    expected = [PEAK * math.cos(math.pi / 2 * step / STEPS) ** 2 for step in range(STEPS)]
    np.testing.assert_allclose(rates(config, STEPS), expected, rtol=1e-5)
    assert to_config(config)["schedule"] == "own_rates.half_cosine"
    assert "final_lr_fraction" not in hyperparameters(config)
    stairs = OptimizerConfig(schedule="own_rates.stairs", warmup_steps=10, final_lr_fraction=0.5)
    np.testing.assert_allclose(rates(stairs, STEPS), [0.5 ** (step // 10) for step in range(STEPS)], rtol=1e-6)
    assert [depends_on_steps(each.schedule) for each in (config, stairs)] == [True, False]


@pytest.mark.usefixtures("own_schedules")
@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (
            "cosin",
            r"schedule='cosin' is unknown: did you mean 'cosine'\? known: .*; or the dotted path .* lab\.mine$",
        ),
        ("own_rates.absent", r"own_rates has no module own_rates\.absent: check its spelling$"),
        ("own_rates/count.py", r"schedule='own_rates/count\.py' names no module"),
        ("own_rates.number", r"exports no SCHEDULE; define SCHEDULE = a function \(step, steps, .*\) in it$"),
        ("own_rates.count", r"its SCHEDULE has the argument count, .* it may have step, steps, learning_rate, warmup"),
        ("own_rates.still", r"='own_rates\.still': its SCHEDULE has no argument step"),
        ("own_rates.pair", r"its SCHEDULE must return one number; it returns \(\(\), \(\)\)"),
    ],
)
def test_a_schedule_that_is_none_is_refused_in_one_line(schedule: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        make_optimizer(from_config(OptimizerConfig, {"schedule": schedule}, "config.optimizer"), STEPS)
    assert "\n" not in str(refused.value)
