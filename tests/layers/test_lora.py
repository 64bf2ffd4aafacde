"""LoRA against its equation in float64, and that a model with it is the base at first, and can be merged."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from transformer.config import UserError, from_config
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import FunctionalModule, Module, ParameterBuilder, Precision
from transformer.layers.linear import Linear
from transformer.layers.lora import LoraConfig, LoraTarget, LowRankUpdate, merge_lora_params
from transformer.models import registry
from transformer.models.model import Model, Variables, leaves_by_path
from transformer.models.task_interface import TaskInterface

ALL = tuple(each.value for each in LoraTarget)
LORA = {"rank": 3, "alpha": 5.0, "targets": ALL}
VOCABULARY = 11
SIZES = {"width": 8, "heads": 4, "kv_heads": 2, "feed_forward": 12, "max_length": 8, "dropout": 0.0}
MODELS = {
    "decoder": {"layers": 2, "activation": "swiglu", "biases": "none"},
    "encoder": {"layers": 2, "attention_dropout": 0.0},
    "encoder_decoder": {"encoder_layers": 1, "decoder_layers": 2},
}
TOKENS = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 1, 2]])
INPUTS = {"tokens": TOKENS, "source": TOKENS, "target": TOKENS[:, :4]}


@functools.cache
def made(family: str, rank: int, where: tuple[str, ...] = ALL) -> tuple[Any, Model]:
    config = registry.model_config(
        {"family": family, **SIZES, **MODELS[family], "lora": LORA | {"rank": rank, "targets": where}}
    )
    interface = TaskInterface({}, {"tokens": VOCABULARY, "joint": VOCABULARY}, pad_id=0, bos_id=1, eos_id=2)
    return config, registry.build(config, interface, Precision())


def drawn(model: Model) -> Variables:
    return model.init(jax.random.key(4))


def learned(params: Any) -> Any:
    """The parameters with matrices B that are no longer zero."""
    random = np.random.default_rng(0)

    def move(path: Any, leaf: jax.Array) -> jax.Array:
        return random.normal(0, 0.3, leaf.shape).astype(np.float32) if path[-1].key == "up" else leaf

    return jax.tree_util.tree_map_with_path(move, params)


class Adapted(Module):
    """One projection from heads, with LoRA beside it."""

    def __init__(self, builder: ParameterBuilder, rank: int = 2):
        self.linear = Linear((("heads", 2), ("head_dim", 3)), (("embed", 5),), bias=True, builder=builder)
        self.linear.lora = LowRankUpdate(self.linear, LoraConfig(rank, alpha=7.0), builder=builder)


def test_a_low_rank_is_its_equation_and_so_is_its_gradient() -> None:
    functional = FunctionalModule(Adapted)
    params = learned(programs.initial(functional.init, 1))
    random = np.random.default_rng(1)
    x, weights = random.normal(size=(4, 2, 3)), random.normal(size=(4, 5))

    def loss(params: Any) -> Any:
        adapted = functional.bind(params).linear
        found = adapted(jnp.float32(x))
        return jnp.sum(found * weights), (found, adapted.full_matrix())

    linear = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)["linear"]
    w, a = linear["kernel"].reshape(6, 5), linear["lora"]["down"].reshape(6, 2)
    b, flat = linear["lora"]["up"], x.reshape(4, 6)
    y = flat @ w + 3.5 * flat @ a @ b + linear["bias"]
    gradient, (output, matrix) = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(output, y, atol=1e-5)
    np.testing.assert_allclose(matrix, (w + 3.5 * a @ b).reshape(2, 3, 5), atol=1e-5)
    found = gradient["linear"]["lora"]
    np.testing.assert_allclose(found["down"].reshape(6, 2), 3.5 * flat.T @ weights @ b.T, atol=1e-4)
    np.testing.assert_allclose(found["up"], 3.5 * (flat @ a).T @ weights, atol=1e-4)
    assert np.std(programs.initial(functional.init)["linear"]["lora"]["down"]) == pytest.approx(6**-0.5, rel=0.6)


def test_a_low_rank_lies_as_its_kernel_does() -> None:
    axes = FunctionalModule(Adapted).axes()["linear"]
    assert axes["kernel"] == ("heads", "head_dim", "embed")
    assert axes["lora"] == {"down": ("heads", "head_dim", "features"), "up": ("features", "embed")}


@functools.cache
def compiled(family: str, rank: int) -> Any:
    return jax.jit(lambda variables: made(family, rank)[1].apply(variables, INPUTS, train=False)[0])


@pytest.mark.parametrize(
    "family", ["decoder", *(pytest.param(name, marks=pytest.mark.slow) for name in ("encoder", "encoder_decoder"))]
)
def test_at_first_it_is_the_base_model_and_merged_it_is_what_it_learned(family: str) -> None:
    (_, base), (config, model) = made(family, 0), made(family, 3)
    start, plain = drawn(model), drawn(base)
    kernels = {path: leaf for path, leaf in leaves_by_path(start.params).items() if "/lora/" not in path}
    assert {path: np.asarray(leaf).tobytes() for path, leaf in kernels.items()} == {
        path: np.asarray(leaf).tobytes() for path, leaf in leaves_by_path(plain.params).items()
    }
    after = start._replace(params=learned(start.params))
    of_base, of_model = compiled(family, 0), compiled(family, 3)
    before, found = of_base(plain), of_model(after)
    np.testing.assert_array_equal(of_model(start), before)
    assert np.abs(found - before).max() > 0.05
    into = plain._replace(params=merge_lora_params(after.params, config.lora))
    np.testing.assert_allclose(of_base(into), found, atol=1e-6)


@pytest.mark.slow
def test_a_step_of_decoding_has_the_low_rank_too() -> None:
    _, model = made("decoder", 3)
    start = drawn(model)
    after = start._replace(params=learned(start.params))
    cache, first = model.init_cache(after, {"tokens": TOKENS}, num_beams=1, length=2)
    np.testing.assert_allclose(model.step(after, cache, first)[0], compiled("decoder", 3)(after)[:, -1], atol=1e-5)


def test_stacked_kernels_are_merged_layer_by_layer() -> None:
    random = np.random.default_rng(2)
    kernel, down, up = (random.normal(size=size) for size in ((2, 3, 4, 5, 6), (2, 3, 4, 2), (2, 3, 2, 5, 6)))
    plain = merge_lora_params(
        {"map": {"kernel": kernel, "lora": {"down": down, "up": up}, "bias": 1}}, LoraConfig(2, alpha=3.0)
    )
    assert plain["map"].keys() == {"kernel", "bias"}
    for layer in np.ndindex(2, 3):
        expected = kernel[layer] + 1.5 * np.einsum("ir,rhd->ihd", down[layer], up[layer])
        np.testing.assert_allclose(plain["map"]["kernel"][layer], expected, rtol=1e-12)


def test_of_rank_zero_there_is_nothing_and_each_place_can_be_alone() -> None:
    assert made("decoder", 0)[1].functional.shapes().keys() == drawn(made("decoder", 0)[1]).params.keys()
    assert not [path for path in leaves_by_path(made("decoder", 0)[1].functional.shapes()) if "lora" in path]
    for where in ("key", "feed_forward"):
        paths = leaves_by_path(made("decoder", 1, (where,))[1].functional.shapes())
        names = {path.split("/")[2] for path in paths if "/lora/" in path}
        assert names == ({"key"} if where == "key" else {"expand", "gate", "contract"})


@pytest.mark.parametrize("family", MODELS)
def test_its_flops_are_two_for_each_of_its_numbers_at_every_position(family: str) -> None:
    batch = {name: jax.ShapeDtypeStruct((2, 5), jnp.int32) for name in ("tokens", "source", "target")}
    (_, plain), (_, model) = made(family, 0), made(family, 3)
    numbers = sum(leaf.size for path, leaf in leaves_by_path(model.functional.shapes()).items() if "/lora/" in path)
    assert forward_flops(model, batch) - forward_flops(plain, batch) == 2 * numbers * 10


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": -1}, "config.rank=-1"),
        ({"rank": 1, "alpha": 0.0}, "config.alpha=0.0 must be above 0"),
        ({"rank": 1, "targets": ()}, "lora.targets is empty"),
        ({"targets": ("queries",)}, "did you mean 'query'"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_config(LoraConfig, given)


def test_a_rank_above_that_of_its_map_is_refused() -> None:
    assert FunctionalModule(functools.partial(Adapted, rank=5)).shapes()["linear"]["lora"]["up"].shape == (5, 5)
    with pytest.raises(UserError, match=r"lora\.rank=6 stands beside a map of 6 to 5 features, whose rank is 5"):
        FunctionalModule(functools.partial(Adapted, rank=6)).shapes()


def test_a_mixture_of_experts_has_no_low_rank() -> None:
    with pytest.raises(UserError, match=r"lora\.targets holds feed_forward, whose networks are a mixture"):
        registry.model_config({"family": "decoder", "lora": LORA, "experts": {"count": 4}})
