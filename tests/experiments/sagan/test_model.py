"""SAGAN: attention that begins as nothing, kernels of norm one, both players' shapes, FLOPs, and refusals."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.sagan.model import SaganConfig
from experiments.sagan.signature import IMAGE_GENERATION
from tests import programs
from tests.models.random_models import fresh_variables
from tests.oracles import grids
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model, leaves_by_path
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

CONFIG = SaganConfig((4, 6, 8), attention_grids=(4, 2), reduction=2, classifier_channels=(4,))
RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(size=(3, 5)).astype(np.float32)
IMAGE = RANDOM.normal(size=(3, 8, 16, 1)).astype(np.float32)


def interface_of() -> TaskInterface:
    inputs = {
        "noise": InputSpec(NOISE.shape, jnp.float32, Modality.POINTS),
        "image": InputSpec(IMAGE.shape, jnp.float32, Modality.IMAGE),
    }
    return TaskInterface(inputs, {"classes": 10}, output=IMAGE_GENERATION.output)


def model_of(config: SaganConfig, precision: str = "float32") -> Model:
    return registry.build(config, interface_of(), Precision(precision, precision))


def passes(model: Model, variables: Any) -> list[np.ndarray]:
    """What both players make of their inputs, by one program."""

    @jax.jit
    def both(variables: Any) -> Any:
        made, _ = model.apply(variables, {"noise": NOISE}, train=False)
        score, _ = model.apply(variables, {"image": IMAGE}, method="score", train=False)
        return made, score

    return [np.asarray(outputs) for outputs in both(variables)]


def scaled(params: Any) -> Any:
    """The parameters with all kernels three times as large."""

    def of_leaf(path: Any, leaf: jax.Array) -> jax.Array:
        return 3 * leaf if path[-1].key == "kernel" else leaf

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def test_both_players_are_the_oracles() -> None:
    config = dataclasses.replace(CONFIG, classifier_channels=())
    model = model_of(config)
    variables = fresh_variables(model)
    with jax.enable_x64(True):
        variables = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, np.float64)), variables)
        noise, images = np.asarray(NOISE, np.float64), np.asarray(IMAGE, np.float64)
        exact = model_of(config, "float64")
        made, _ = jax.jit(lambda v: exact.apply(v, {"noise": noise}, train=True))(variables)
        scores, _ = jax.jit(lambda v: exact.apply(v, {"image": images}, method="score", train=False))(variables)
    weights, state = jax.device_get((variables.params, variables.state))
    vectors = {name: {kernel: each.u for kernel, each in state[name]["spectral"].items()} for name in state}
    expected = grids.generator(weights["generator"], vectors["generator"], noise, (2, 4, 8))
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-12)
    of_images = [grids.discriminator(weights["discriminator"], vectors["discriminator"], each) for each in images]
    np.testing.assert_allclose(scores, of_images, rtol=1e-12)
    # Nothing of a player is without effect: attention's gamma is not at its initial 0.
    assert {float(weights[name][f"attention_{rows}"]["gamma"][0]) for name in vectors for rows in (4, 2)}.isdisjoint(
        {0}
    )


@pytest.mark.slow
def test_with_gamma_0_both_players_are_those_without_attention() -> None:
    plain, attending = model_of(SaganConfig(CONFIG.channels)), model_of(CONFIG)
    variables = programs.initial(attending.init)
    params = {
        player: {name: leaf for name, leaf in variables.params[player].items() if "attention" not in name}
        for player in ("generator", "discriminator")
    }
    before = passes(attending, variables)
    for outputs, expected in zip(before, passes(plain, variables._replace(params=params)), strict=True):
        np.testing.assert_allclose(outputs, expected, atol=1e-6)
    moved = jax.tree.map(jnp.array, variables)
    for player in ("generator", "discriminator"):
        moved.params[player]["attention_4"]["gamma"] += 1
    after = passes(attending, moved)
    for outputs, other in zip(before, after, strict=True):
        assert np.abs(outputs - other).max() > 1e-4
    # Of what is divided by its largest singular value the size is of no account: no kernel is read as it is.
    for outputs, other in zip(after, passes(attending, moved._replace(params=scaled(moved.params))), strict=True):
        np.testing.assert_allclose(outputs, other, atol=1e-5)


@pytest.mark.slow
def test_maps_of_each_player_come_from_its_own_pass_with_the_shapes_of_its_grids() -> None:
    model = model_of(CONFIG)
    variables = programs.initial(model.init)
    capture = Capture(sites=tuple(site.name for site in model.sites))
    made, of_generator = programs.apply(model, variables, {"noise": NOISE}, train=False, capture=capture)
    score, aux = programs.apply(model, variables, {"image": IMAGE}, method="score", train=False, capture=capture)
    assert (made.shape, score.shape) == (IMAGE.shape, (3,))
    assert np.abs(made).max() <= 1
    maps = {**of_generator.maps, **aux.maps}
    assert set(maps) == {f"{player}/self_{rows}" for player in ("generator", "discriminator") for rows in (4, 2)}
    for site in model.sites:
        weights = maps[site.name].weights
        assert weights is not None
        assert site.key.shape is not None
        places = site.key.shape[0] * site.key.shape[1]
        assert weights.shape == (1, 3, 1, places, places)
        assert site.key.stride == 8 / site.key.shape[0]
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.slow
def test_every_kernel_of_both_players_has_a_largest_singular_value_of_one() -> None:
    model = model_of(CONFIG)
    variables = programs.initial(model.init, 1)

    @jax.jit
    def train(variables: Any) -> Any:
        for inputs, method in (({"noise": NOISE}, "forward"), ({"image": IMAGE}, "score")):
            _, aux = model.apply(variables, inputs, method=method, train=True)
            variables = variables._replace(state=aux.state)
        return variables

    for _ in range(300):
        variables = train(variables)
    module = model.functional.bind(variables.params)
    kernels = {
        path
        for path in leaves_by_path(variables.params)
        if path.endswith("kernel") and not path.startswith("classifier")
    }
    seen = 0
    for name in ("generator", "discriminator"):
        state = variables.state[name]["spectral"]
        normed, following = getattr(module, name).normalize_kernels(state, train=False)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), following, state))
        for path, kernel in normed.items():
            outputs = 2 if path.endswith(("query", "key", "value")) else 1
            matrix = np.asarray(kernel, np.float64).reshape(-1, int(np.prod(kernel.shape[-outputs:])))
            assert np.linalg.svd(matrix, compute_uv=False)[0] == pytest.approx(1, abs=1e-3), path
            seen += 1
    assert seen == len(kernels)


def test_a_pass_moves_the_state_of_its_own_player_alone_and_only_in_training() -> None:
    model = model_of(dataclasses.replace(CONFIG, channels=(4, 6), attention_grids=(4,), classifier_channels=()))
    variables = fresh_variables(model)
    inputs = {"forward": {"noise": NOISE}, "score": {"image": IMAGE}}

    @jax.jit
    def passes(variables: Any) -> Any:
        return {
            (method, train): model.apply(variables, inputs[method], method=method, train=train)[1].state
            for method in inputs
            for train in (True, False)
        }

    states = jax.device_get(passes(variables))
    for method, own, other in (
        ("forward", "generator", "discriminator"),
        ("score", "discriminator", "generator"),
    ):
        for train in (True, False):
            state = states[method, train]
            changed = {
                player: any(
                    np.any(state[player][kind][name][0] != variables.state[player][kind][name][0])
                    for kind in variables.state[player]
                    for name in variables.state[player][kind]
                )
                for player in (own, other)
            }
            assert changed == {own: train, other: False}


def test_the_judge_is_the_classifier_of_its_parameters() -> None:
    model = model_of(CONFIG)
    variables = fresh_variables(model)
    halves = IMAGE[:, :, :8]

    @jax.jit
    def classified(variables: Any) -> Any:
        said, aux = model.apply(variables, {"image": halves}, method="classify", train=False)
        assert aux.state is variables.state
        return said

    said = jax.device_get(classified(variables))
    inputs = {"image": InputSpec(halves.shape, jnp.float32, Modality.IMAGE)}
    alone = registry.build(CONFIG.classifier_config(), TaskInterface(inputs, {"classes": 10}), Precision())
    of_classifier = variables._replace(params=variables.params["classifier"], state={})
    expected, _ = programs.apply(alone, of_classifier, {"image": halves}, train=False)
    np.testing.assert_array_equal(said["logits"], expected)
    head = variables.params["classifier"]["head"]
    np.testing.assert_allclose(said["features"] @ head["kernel"] + head["bias"], said["logits"], atol=1e-5)
    without = model_of(SaganConfig(CONFIG.channels))
    with pytest.raises(ValueError, match="has no classifier"):
        jax.eval_shape(
            lambda variables: without.apply(variables, {"image": halves}, method="classify", train=False),
            jax.eval_shape(without.init, jax.random.key(0)),
        )


def test_flops_count_every_product() -> None:
    made = 5 * 8 * 8 + 32 * 9 * 8 * 6 + 128 * 9 * 6 * 4 + 128 * 9 * 4 * 1
    scored = 128 * 9 * 1 * 4 + 32 * 16 * 4 * 6 + 8 * 16 * 6 * 8 + 8
    attention = sum(4 * channels * inner * n + 2 * n * n * inner for channels, inner, n in ((6, 3, 32), (8, 4, 8)))

    def counted(rows: int) -> int:
        shapes = {"noise": (rows, 5), "image": (rows, 8, 16, 1)}
        inputs = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
        return forward_flops(model_of(CONFIG), inputs)

    # The norms of the kernels are of no row.
    assert counted(4) - counted(1) == 3 * 2 * (made + scored + 2 * attention)
    assert counted(3) > 3 * 2 * (made + scored + 2 * attention)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"channels": (4,)}, "channels=.* at least 2 values"),
        ({"channels": (4, 0)}, r"channels\[1\]=0 must be at least 1"),
        ({"attention_grids": (4, 4)}, "attention_grids=.* different values"),
        ({"attention_grids": (3,)}, "only of 8, 4, 2"),
        ({"reduction": 0}, "reduction"),
        ({"classifier_channels": (0,)}, "classifier_channels"),
        ({"channels": (4, 4, 4, 4, 4)}, "not divided by 16"),
    ],
)
def test_unfit_values_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        model_of(SaganConfig(**{"channels": (4, 6, 8)} | wrong))
