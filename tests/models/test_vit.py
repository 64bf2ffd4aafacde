"""The vision Transformer against its equations in NumPy, its positions, its published sizes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from tests import programs
from tests.models.random_models import fresh_variables
from transformer.attention import AxisKind, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import FunctionalModule, Precision
from transformer.layers.grid_positions import GridPositionEmbeddings, GridPositionEncoding
from transformer.models import registry
from transformer.models.model import Model, Variables, count_parameters
from transformer.models.model_family import PublishedSize
from transformer.models.task_interface import IMAGE_CLASSIFICATION, InputSpec, Modality, TaskInterface
from transformer.models.vit import SIZES, STACK, FinalNorm, ImagePooling, VitConfig
from transformer.training.partitioning import ShardingConfig, make_placement, trace_with_placement

CLASSES, ROWS, COLUMNS, PATCH, CHANNELS, WIDTH, HEADS = 5, 2, 3, 4, 3, 8, 2


def vit(**changes: Any) -> tuple[VitConfig, Model]:
    values = {
        "patch_size": PATCH,
        "layers": 2,
        "width": WIDTH,
        "heads": HEADS,
        "feed_forward": 12,
        "dropout": 0.0,
    } | changes
    shape = (2, ROWS * PATCH, COLUMNS * PATCH, CHANNELS)
    inputs = {"image": InputSpec(shape, jnp.float32, Modality.IMAGE)}
    config = VitConfig(**values)
    interface = TaskInterface(inputs, {"classes": CLASSES}, output=IMAGE_CLASSIFICATION.output)
    return config, registry.build(config, interface, Precision())


def scattered_variables(model: Model) -> Variables:
    """Parameters none of which is zero or one, so that each matters."""
    rng, variables = np.random.default_rng(1), fresh_variables(model)
    scatter = lambda leaf: np.asarray(leaf) + 0.2 * rng.normal(size=leaf.shape).astype(np.float32)  # noqa: E731
    return variables._replace(params=jax.tree.map(scatter, variables.params))


def image(rows: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, ROWS * PATCH, COLUMNS * PATCH, CHANNELS)).astype(np.float32)


def norm(x: np.ndarray, params: dict) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * params["scale"] + params["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return x * (1 + erf(x / np.sqrt(2))) / 2


def quick_gelu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-1.702 * x))


def attend(queries: np.ndarray, keys: np.ndarray, params: dict) -> np.ndarray:
    q, k, v = (
        np.einsum("ne,ehd->nhd", read, params[name]["kernel"]) + params[name]["bias"]
        for name, read in (("query", queries), ("key", keys), ("value", keys))
    )
    logits = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(WIDTH // HEADS)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads = np.einsum("hqk,khd->qhd", weights, v)
    return np.einsum("qhd,hde->qe", heads, params["output"]["kernel"]) + params["output"]["bias"]


def network(x: np.ndarray, params: dict, activation: Callable = gelu) -> np.ndarray:
    hidden = activation(x @ params["expand"]["kernel"] + params["expand"]["bias"])
    return hidden @ params["contract"]["kernel"] + params["contract"]["bias"]


def blocks(x: np.ndarray, layers: dict, activation: Callable = gelu) -> np.ndarray:
    """Pre-norm blocks, one after another (equations 2 and 3); factors on what a sub-layer adds if it has them."""
    for number in range(2):
        layer = jax.tree.map(lambda leaf, number=number: leaf[number], layers)
        first, second = layer["attention_residual"], layer["feed_forward_residual"]
        read = norm(x, first["norm"])
        x = x + first.get("layer_scale", {"scale": 1})["scale"] * attend(read, read, layer["attention"])
        added = network(norm(x, second["norm"]), layer["feed_forward"], activation)
        x = x + second.get("layer_scale", {"scale": 1})["scale"] * added
    return x


def cut_into_patches(one: np.ndarray, embed: dict) -> np.ndarray:
    cuts = [
        one[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
        for row in range(ROWS)
        for column in range(COLUMNS)
    ]
    return np.stack([np.einsum("yxc,yxce->e", cut, embed["kernel"]) + embed.get("bias", 0) for cut in cuts])


@pytest.mark.parametrize("pooling", ImagePooling)
def test_logits_are_those_of_the_equations(pooling: ImagePooling) -> None:
    config, model = vit(pooling=pooling)
    variables = scattered_variables(model)
    got, _ = programs.apply(model, variables, {"image": image()}, train=False)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables.params)
    for one, logits in zip(image().astype(np.float64), got, strict=True):
        x = cut_into_patches(one, params["embed"])
        if pooling is ImagePooling.DISTILLED:
            x = np.concatenate([params["distillation_token"], x])
        if pooling not in (ImagePooling.MEAN, ImagePooling.ATTENTION):
            x = np.concatenate([params["class_token"], x])
        x = norm(blocks(x + params["positions"]["table"], params["layers"]), params["norm"])

        def scored(state: np.ndarray, head: dict) -> np.ndarray:
            return state @ head["kernel"] + head["bias"]

        match pooling:
            case ImagePooling.CLASS_TOKEN:
                expected = scored(x[0], params["head"])
            case ImagePooling.MEAN:
                expected = scored(x.mean(0), params["head"])
            case ImagePooling.PATCH_MEAN:
                expected = scored(x[1:].mean(0), params["head"])
            case ImagePooling.CLASS_TOKEN_AND_MEAN:
                expected = scored(np.concatenate([x[0], x[1:].mean(0)]), params["head"])
            case ImagePooling.ATTENTION:
                pooling_params = params["attention_pooling"]
                h = attend(pooling_params["probe"], x, pooling_params["attention"])
                h = h + network(norm(h, pooling_params["norm"]), pooling_params["feed_forward"])
                expected = scored(h[0], params["head"])
            case ImagePooling.DISTILLED:
                expected = (scored(x[0], params["head"]) + scored(x[1], params["distilled"])) / 2
        np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert config.pooling is pooling


@pytest.mark.parametrize("final_norm", FinalNorm)
def test_the_choices_of_published_models_are_their_equations(final_norm: FinalNorm) -> None:
    changes = {"embedding_norm": True, "patch_bias": False, "layer_scale": 0.5, "activation": Activation.QUICK_GELU}
    _, model = vit(final_norm=final_norm, pooling=ImagePooling.PATCH_MEAN, **changes)
    variables = scattered_variables(model)
    got, _ = programs.apply(model, variables, {"image": image()}, train=False)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables.params)
    for one, logits in zip(image().astype(np.float64), got, strict=True):
        x = np.concatenate([params["class_token"], cut_into_patches(one, params["embed"])])
        x = blocks(norm(x + params["positions"]["table"], params["embedding_norm"]), params["layers"], quick_gelu)
        match final_norm:
            case FinalNorm.STATES:
                pooled = norm(x, params["norm"])[1:].mean(0)
            case FinalNorm.POOLED:
                pooled = norm(x[1:].mean(0), params["pooled_norm"])
            case FinalNorm.NONE:
                pooled = x[1:].mean(0)
        np.testing.assert_allclose(logits, pooled @ params["head"]["kernel"] + params["head"]["bias"], atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", [ImagePooling.ATTENTION, ImagePooling.CLASS_TOKEN_AND_MEAN])
def test_a_mesh_computes_what_one_device_does(pooling: ImagePooling) -> None:
    _, model = vit(pooling=pooling, embedding_norm=True, layer_scale=0.5)
    params, images = scattered_variables(model).params, image(4)
    placement = make_placement(ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"))

    def gradients(params: Any, images: Any) -> Any:
        def of(params: Any) -> Any:
            logits, _ = model.apply(Variables(params, {}), {"image": images}, train=False)
            return jnp.sum(jnp.sin(logits)), logits

        return jax.grad(of, has_aux=True)(params)

    def sharding(names: tuple[str, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(placement.mesh, placement.even_partition_spec(names, leaf.shape))

    shardings = jax.tree.map(sharding, model.axes().params, params, is_leaf=lambda leaf: isinstance(leaf, tuple))
    rows = NamedSharding(placement.mesh, placement.partition_spec(("batch", None, None, None)))
    run = jax.jit(trace_with_placement(placement, gradients), in_shardings=(shardings, rows), out_shardings=None)
    found = jax.device_get(run(jax.device_put(params, shardings), jax.device_put(images, rows)))
    expected = jax.device_get(jax.jit(gradients)(params, images))
    jax.tree.map(
        lambda ours, of_one: np.testing.assert_allclose(ours, of_one, rtol=0, atol=2e-5 * max(1, np.abs(of_one).max())),
        found,
        expected,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final_norm": "pooled", "pooling": "distilled"}, "pooling=distilled has not: say final_norm=states"),
        (
            {"final_norm": "pooled", "pooling": "class_token_and_mean"},
            "config.model.final_norm=pooled is of one pooled",
        ),
        ({"final_norm": "none", "norm_placement": "post"}, "norm_placement=post has none: leave it out"),
        (
            {"pooling": "attention", "add_pooling_layer": True},
            "pooling=attention with final_norm=states pools by itself",
        ),
    ],
)
def test_choices_that_do_not_go_together_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        registry.model_config({"family": "vit", **changes})


def test_attention_pooling_has_a_map_of_one_query_over_the_grid() -> None:
    _, model = vit(pooling=ImagePooling.ATTENTION)
    site = model.sites[1]
    assert (site.name, site.query.num_positions, site.key.shape, site.layers) == ("pooling", 1, (2, 3), ("0",))
    capture = Capture(sites=("pooling",))
    _, aux = programs.apply(model, fresh_variables(model), {"image": image()}, train=False, capture=capture)
    assert aux.maps.keys() == {"pooling"}
    maps = aux.maps["pooling"].weights
    assert maps.shape == (1, 2, HEADS, 1, 6)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)


def test_sites_have_the_grid_and_the_token_in_front() -> None:
    _, model = vit()
    (site,) = model.sites
    assert (site.key.kind, site.key.shape, site.key.stride, site.key.num_leading_positions) == (
        AxisKind.GRID,
        (2, 3),
        4.0,
        1,
    )
    capture = Capture(sites=(f"{STACK}/self",))
    _, aux = programs.apply(model, fresh_variables(model), {"image": image()}, train=False, capture=capture)
    maps = aux.maps[f"{STACK}/self"].weights
    assert maps.shape == (2, 2, HEADS, 7, 7)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("kind", GridPositionEncoding)
def test_only_without_positions_is_a_image_a_set_of_patches(kind: GridPositionEncoding) -> None:
    _, model = vit(positions=kind)
    variables = scattered_variables(model)
    given = image()
    turned = np.concatenate([given[:, PATCH:], given[:, :PATCH]], axis=1)
    first, second = (
        np.asarray(programs.apply(model, variables, {"image": each}, train=False)[0]) for each in (given, turned)
    )
    same = np.abs(first - second).max() < 1e-5
    assert same == (kind is GridPositionEncoding.NONE)


def test_sinusoidal_positions_of_rows_and_columns() -> None:
    """[sin x w, cos x w, sin y w, cos y w] with w = 1 / 10000^(k / (width / 4 - 1)) (Beyer et al. 2022, their code)."""
    width, shape = 16, (3, 4)
    kind = GridPositionEncoding.SINUSOIDAL_2D
    functional = FunctionalModule(
        lambda builder: GridPositionEmbeddings(kind, shape, width, num_class_tokens=1, builder=builder)
    )
    embed = jax.jit(lambda x: functional.bind(functional.init(jax.random.key(0)))(x))
    got = embed(np.zeros((1, 13, width), np.float32))[0]
    expected = np.zeros((13, width))
    for row in range(3):
        for column in range(4):
            omega = 10000.0 ** -(np.arange(4) / 3)
            parts = [np.sin(column * omega), np.cos(column * omega), np.sin(row * omega), np.cos(row * omega)]
            expected[1 + row * 4 + column] = np.concatenate(parts)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_learned_rows_and_columns_are_shared() -> None:
    functional = FunctionalModule(
        lambda builder: GridPositionEmbeddings(
            GridPositionEncoding.LEARNED_2D, (2, 3), 4, num_class_tokens=1, builder=builder
        )
    )
    params = jax.device_get(programs.initial(functional.init))
    got = jax.jit(lambda params, x: functional.bind(params)(x))(params, np.zeros((1, 7, 4), np.float32))[0]
    rows, columns = params["rows"], params["columns"]
    expected = [np.zeros(4)] + [np.concatenate([rows[row], columns[column]]) for row in range(2) for column in range(3)]
    np.testing.assert_allclose(got, np.stack(expected))


def formula(size: PublishedSize) -> int:
    """(3 P^2) d + d + tokens d + (N + tokens) d + L (12 d^2 + 13 d) + 2 d + heads (d C + C)."""
    width, patch, layers = (size.config_values[name] for name in ("width", "patch_size", "layers"))
    tokens = ImagePooling(size.config_values["pooling"]).num_extra_tokens
    heads = max(tokens, 1) * (width * 1000 + 1000)
    blocks = layers * (12 * width**2 + 13 * width)
    return 3 * patch**2 * width + width + tokens * width + size.context_length * width + blocks + 2 * width + heads


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("vit-b16", 86_567_656),
        ("vit-b32", 88_224_232),
        ("vit-l16", 304_326_632),
        ("vit-l32", 306_535_400),
        ("vit-h14", 632_045_800),
        ("deit-ti16", 5_717_416),
        ("deit-s16", 22_050_664),
        ("deit-b16-distilled", 87_338_192),
    ],
)
def test_a_size_has_exactly_the_published_models_parameters(name: str, exact: int) -> None:
    size = SIZES[name]
    model = registry.build(registry.model_config({"size": name}), size.task_interface, Precision())
    assert count_parameters(model.functional.shapes()) == exact == formula(size)
    assert size.published_parameters is not None
    assert exact == pytest.approx(size.published_parameters, rel=0.15 if "ti" in name else 0.03)


def test_flops_count_every_product() -> None:
    _, model = vit()
    counted = forward_flops(model, {"image": jax.ShapeDtypeStruct((4, 8, 12, 3), jnp.float32)})
    embedding, head = 2 * 6 * 4 * 4 * 3 * 8, 2 * 8 * CLASSES
    layer = 2 * 7 * (4 * 8**2 + 2 * 8 * 12) + 4 * 7 * 7 * 8
    assert counted == 4 * (embedding + head + 2 * layer)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patch_size": 5}, "8 x 12 pixels are not divisible by config.model.patch_size=5"),
        ({"patch_size": 0}, "config.model.patch_size=0"),
        ({"width": 6, "heads": 2, "positions": GridPositionEncoding.SINUSOIDAL_2D}, "no multiple of 4"),
        ({"heads": 3}, "not divisible"),
    ],
)
def test_unfit_values_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        vit(**wrong)
