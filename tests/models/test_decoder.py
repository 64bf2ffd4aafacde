"""The decoder: what no mask may let through, packed rows, rematerialization, windows, and what training drops."""

import collections
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import SMALL, VOCABULARY, build, exact, kind_of, lively
from tests.oracles import transformer as oracle
from transformer.attention import backends
from transformer.attention.attention_spec import Backend
from transformer.attention.capture import Capture
from transformer.attention.scores import Score
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import PositionEncoding, Remat
from transformer.models.decoder import DecoderConfig
from transformer.models.model import Variables
from transformer.models.registry import build as build_decoder
from transformer.models.task_interface import TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING, InputSpec, TaskInterface

# Every token stands in one place only, so that a row of the table's gradient is a place's.
ROW = np.int32([[3, 9, 5, 7, 11, 4, 8]])


def through_table(model: Any, variables: Variables, inputs: dict[str, Any]) -> np.ndarray:
    """The derivative of a sum over the state at each place by each token's embedding, [T, V, E]."""

    @jax.jit
    def derivative(table: jax.Array) -> jax.Array:
        def weighed(table: jax.Array) -> jax.Array:
            params = {**variables.params, "embedding": {"table": table}}
            hidden, _ = model.apply(Variables(params, {}), inputs, method="hidden", train=False)
            return jnp.sum(hidden[0] * jnp.arange(1, hidden.shape[-1] + 1) ** 0.5, axis=-1)

        return jax.jacrev(weighed)(table)

    return np.asarray(derivative(variables.params["embedding"]["table"]))


@pytest.mark.parametrize(("windows", "positions"), [((), PositionEncoding.ROTARY), ((2,), PositionEncoding.LEARNED)])
def test_no_logit_depends_on_a_later_token_or_on_one_beyond_the_windows(
    windows: Any, positions: PositionEncoding
) -> None:
    model, _ = build("decoder", attention_windows=windows, positions=positions, head_dim=4)
    flows_TxV = through_table(model, lively(model), {"tokens": ROW}).any(axis=-1)
    expected_TxV = np.zeros_like(flows_TxV)
    for place in range(ROW.shape[1]):
        # Two layers of window 2 reach four places back.
        first = max(0, place - 4) if windows else 0
        expected_TxV[place, ROW[0, first : place + 1]] = True
    np.testing.assert_array_equal(flows_TxV, expected_TxV)


PACKED = np.int32([[3, 9, 5, 7, 11, 4, 8, 0]])
SEGMENTS = np.int32([[1, 1, 1, 2, 2, 3, 3, 0]])
PLACES = np.int32([[0, 1, 2, 0, 1, 0, 1, 0]])
PARTS = ((0, 3), (3, 5), (5, 7))


# tests/attention/test_properties.py says the same of attention alone.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "windows"),
    [
        (PositionEncoding.LEARNED, ()),
        (PositionEncoding.ROTARY, (0, 1)),
        (PositionEncoding.T5, (1,)),
        (PositionEncoding.TRANSFORMER_XL, ()),
    ],
    ids=lambda value: str(getattr(value, "value", value)),
)
def test_a_packed_row_is_its_segments_one_by_one_in_values_and_gradients(
    positions: PositionEncoding, windows: Any
) -> None:
    model, config = build("decoder", positions=positions, attention_windows=windows, kv_heads=2, head_dim=4)
    variables = lively(model)
    packed = {"tokens": PACKED, "segments": SEGMENTS, "positions": PLACES}
    # The same segments as rows of their own, right-padded to one width.
    alone = {"tokens": np.zeros((3, 3), np.int32), "lengths": np.int32([end - start for start, end in PARTS])}
    for row, (start, end) in enumerate(PARTS):
        alone["tokens"][row, : end - start] = PACKED[0, start:end]

    def loss(params: Any, inputs: Any, real: np.ndarray) -> Any:
        logits, _ = model.apply(Variables(params, {}), inputs, train=False)
        log_probabilities = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probabilities, (inputs["tokens"] * 5 % VOCABULARY)[..., None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(real, picked, 0)), logits

    def gradient(inputs: Any, real: np.ndarray) -> Any:
        return jax.jit(jax.value_and_grad(functools.partial(loss, inputs=inputs, real=real), has_aux=True))(
            variables.params
        )

    (whole, logits), of_packed = gradient(packed, SEGMENTS > 0)
    (apart, _), of_alone = gradient(alone, alone["tokens"] > 0)
    np.testing.assert_allclose(whole, apart, rtol=1e-5)
    for (path, ours), expected in zip(
        jax.tree_util.tree_leaves_with_path(of_packed), jax.tree.leaves(of_alone), strict=True
    ):
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4 * scale, err_msg=jax.tree_util.keystr(path))
    answer = oracle.decoder(kind_of(config), exact(variables.params), PACKED, segments=SEGMENTS, places=PLACES).logits
    np.testing.assert_allclose(logits[0, :7], answer[0, :7], rtol=0, atol=1e-4 * np.abs(answer).max())


def test_segments_have_no_gradient_by_each_other() -> None:
    model, _ = build("decoder", positions=PositionEncoding.LEARNED)
    inputs = {"tokens": PACKED, "segments": SEGMENTS, "positions": PLACES}
    flows_TxV = through_table(model, lively(model), inputs).any(axis=-1)
    expected_TxV = np.zeros_like(flows_TxV)
    for start, end in PARTS:
        for place in range(start, end):
            expected_TxV[place, PACKED[0, start : place + 1]] = True
    np.testing.assert_array_equal(flows_TxV[:7], expected_TxV[:7])


def test_padding_changes_nothing_before_it() -> None:
    model, _ = build("decoder", positions=PositionEncoding.ALIBI)
    variables = lively(model)
    forward = jax.jit(lambda v, inputs: model.apply(v, inputs, train=False)[0])
    whole = forward(variables, {"tokens": ROW})
    for filler in (0, 6):
        wider = np.pad(ROW, ((0, 0), (0, 3)), constant_values=filler)
        padded = forward(variables, {"tokens": wider, "lengths": np.int32([ROW.shape[1]])})
        np.testing.assert_allclose(padded[:, : ROW.shape[1]], whole, rtol=0, atol=1e-5)


def test_classes_are_a_linear_map_of_the_state_at_the_last_real_token() -> None:
    config = DecoderConfig(**SMALL, layers=1, dropout=0.0)
    interface = TaskInterface(
        {"tokens": InputSpec((2, 7)), "lengths": InputSpec((2,))},
        {"tokens": VOCABULARY, "classes": 3, "next tokens": VOCABULARY},
        output=TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING.output,
    )
    model = build_decoder(config, interface, Precision())
    variables = lively(model)
    inputs = {"tokens": np.repeat(ROW, 2, axis=0), "lengths": np.int32([7, 4])}
    run = functools.partial(model.apply, variables, inputs, train=False)
    (hidden, aux), (classes, _) = jax.jit(lambda: (run(method="hidden"), run()))()
    kernel = np.asarray(variables.params["classes"]["output"]["kernel"])
    expected = np.stack([hidden[0, 6] @ kernel, hidden[1, 3] @ kernel])
    np.testing.assert_allclose(aux.extras["classes"], expected, atol=1e-5)
    np.testing.assert_array_equal(classes, aux.extras["classes"])
    tokens, both, unscored = (
        forward_flops(build_decoder(config, TaskInterface({}, sizes), Precision()), inputs)
        for sizes in ({"tokens": VOCABULARY}, interface.vocabularies, {"tokens": VOCABULARY, "classes": 3})
    )
    assert both - tokens == 2 * 2 * config.width * 3
    assert both - unscored == 2 * 7 * 2 * config.width * VOCABULARY


DEEP: dict[str, Any] = {"layers": 4, "attention_windows": (0, 2), "dropout": 0.2, "attention_dropout": 0.2}


def losses(**changes: Any) -> Any:
    """A training loss of parameters and a key, of a model of four layers that drops features."""
    model, _ = build("decoder", **(DEEP | changes))

    def loss(params: Any, key: Any) -> Any:
        logits, _ = model.apply(Variables(params, {}), {"tokens": ROW}, train=True, key=key)
        return jnp.mean(jnp.square(logits))

    return loss


@pytest.fixture(scope="module")
def kept_whole() -> Any:
    variables = lively(build("decoder", **DEEP)[0])
    return variables.params, jax.jit(jax.value_and_grad(losses()))(variables.params, jax.random.key(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"scan_unroll": 2},
        {"remat": Remat.FULL},
        {"remat": Remat.FULL, "scan_unroll": 2},
        {"remat": Remat.DOTS},
        {"remat": Remat.ATTENTION, "scan_unroll": 2},
    ],
    ids=["unrolled", "full", "full_unrolled", "dots", "attention_unrolled"],
)
def test_how_layers_run_changes_neither_the_loss_nor_its_gradient(kept_whole: Any, changes: dict[str, Any]) -> None:
    params, (expected, gradients) = kept_whole
    found, ours = jax.jit(jax.value_and_grad(losses(**changes)))(params, jax.random.key(3))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for (path, leaf), other in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(gradients), strict=True):
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


def held_and_products(remat: Remat) -> tuple[int, int]:
    """The numbers kept for the backward pass, and the matrix products in the program of the gradient."""
    loss, key = losses(remat=remat, dropout=0.0, attention_dropout=0.0), jax.random.key(0)
    shapes = build("decoder", **DEEP)[0].functional.shapes()
    pullback = jax.eval_shape(lambda params: jax.vjp(lambda p: loss(p, key), params)[1], shapes)
    program = str(jax.make_jaxpr(jax.grad(loss))(shapes, key))
    return sum(leaf.size for leaf in jax.tree.leaves(pullback)), program.count("dot_general[")


@pytest.mark.slow
def test_each_policy_keeps_less_and_computes_more() -> None:
    held, products = zip(*(held_and_products(remat) for remat in (Remat.NONE, Remat.DOTS, Remat.FULL)), strict=True)
    assert held[0] > held[1] > held[2]
    assert products[2] > products[0]
    of_attention, again = held_and_products(Remat.ATTENTION)
    assert held[2] < of_attention < held[0]
    assert products[0] < again


@pytest.mark.parametrize(("remat", "forward_passes"), [(Remat.NONE, 1), (Remat.DOTS, 1), (Remat.FULL, 2)])
def test_the_backward_pass_computes_cudnns_attention_again_only_if_nothing_is_stored(
    remat: Remat, forward_passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax._src.cudnn import fused_attention_stablehlo as fused

    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(backends, "target_platform", lambda: "gpu")
    model, _ = build("decoder", Precision(compute="bfloat16"), backend=Backend.CUDNN, remat=remat, width=32)

    def loss(params: Any) -> jax.Array:
        logits, _ = model.apply(Variables(params, {}), {"tokens": ROW}, train=False)
        return jnp.sum(logits)

    traced = jax.jit(jax.grad(loss)).trace(model.functional.shapes())
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = collections.Counter(re.findall(r"custom_call @__cudnn\$(\w+)", text))
    # Once each, because the layers are a loop.
    assert calls == {"fmhaSoftmax": forward_passes, "fmhaSoftmaxBackward": 1}


def test_each_layer_has_the_window_of_its_place_in_the_period() -> None:
    windows = (0, 1, 3)
    model, _ = build("decoder", layers=6, attention_windows=windows)
    capture = Capture(("decoder/self",))
    _, aux = jax.jit(lambda v: model.apply(v, {"tokens": ROW}, train=False, capture=capture))(lively(model))
    weights_LxBxHxQxK = np.asarray(aux.maps["decoder/self"].weights)
    query, key = np.indices(weights_LxBxHxQxK.shape[-2:])
    for layer, weights in enumerate(weights_LxBxHxQxK):
        window = windows[layer % 3] or ROW.shape[1]
        seen = (key <= query) & (query - key <= window)
        np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))
    # In the order of the layers: no two maps of layers with one window are the same.
    assert np.abs(weights_LxBxHxQxK[1] - weights_LxBxHxQxK[4]).max() > 1e-3


def test_what_training_drops_goes_by_the_key_and_only_while_training() -> None:
    for rates in ({"dropout": 0.3}, {"attention_dropout": 0.3}, {"stochastic_depth": 0.5}):
        model, _ = build("decoder", **rates)
        variables = lively(model)
        run = jax.jit(
            lambda v, key, train, model=model: model.apply(v, {"tokens": ROW}, train=train, key=key)[0],
            static_argnames="train",
        )
        evaluated = run(variables, jax.random.key(0), train=False)
        np.testing.assert_array_equal(run(variables, jax.random.key(9), train=False), evaluated)
        # None is needed either; values without a key are looked at below.
        assert jax.eval_shape(lambda v, run=run: run(v, None, train=False), variables).shape == evaluated.shape
        once, again = (run(variables, jax.random.key(1), train=True) for _ in range(2))
        np.testing.assert_array_equal(once, again)
        others = [run(variables, jax.random.key(seed), train=True) for seed in range(2, 8)]
        assert any(np.abs(other - once).max() > 1e-2 for other in others)
        assert any(np.abs(other - evaluated).max() > 1e-2 for other in others)
    model, _ = build("decoder")
    variables = lively(model)
    run = jax.jit(lambda v, key, train: model.apply(v, {"tokens": ROW}, train=train, key=key)[0], static_argnums=2)
    np.testing.assert_allclose(run(variables, jax.random.key(0), True), run(variables, None, False), rtol=0, atol=1e-5)


def test_the_rate_of_stochastic_depth_rises_in_proportion_to_the_last_layers() -> None:
    """Each layer's kernel of its feed-forward's end has a zero gradient exactly where its only example was left out."""
    layers, last, draws = 4, 0.6, 400
    model, _ = build("decoder", layers=layers, stochastic_depth=last)
    variables = lively(model)

    def loss(params: Any, key: Any) -> Any:
        logits, _ = model.apply(Variables(params, {}), {"tokens": ROW[:, :2]}, train=True, key=key)
        return jnp.sum(jnp.square(logits))

    @jax.jit
    def dropped(keys: Any) -> Any:
        def one(key: Any) -> Any:
            layers_ = jax.grad(loss)(variables.params, key)["layers"]
            ends = layers_["attention"]["output"]["kernel"], layers_["feed_forward"]["contract"]["kernel"]
            return jnp.stack([jnp.all(end.reshape(layers, -1) == 0, axis=1) for end in ends])

        return jax.lax.map(one, keys)

    left_out = np.asarray(dropped(jax.random.split(jax.random.key(0), draws)))
    expected = last * np.arange(1, layers + 1) / layers
    for sublayer in range(2):
        deviation = np.sqrt(expected * (1 - expected) / draws)
        assert (np.abs(left_out[:, sublayer].mean(0) - expected) < 4 * deviation).all()
    # The two sub-layers of a layer are drawn apart, and so are layers: one may be left out where the next is not.
    assert (left_out[:, 0] != left_out[:, 1]).any(axis=0).all()
    assert (left_out[:, :, :-1] & ~left_out[:, :, 1:]).any(axis=0).all()


TINY = {"width": 12, "heads": 4, "feed_forward": 8, "layers": 4, "max_length": 8}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width": 10}, r"config\.model\.width=10 is not divisible by config\.model\.heads=4"),
        ({"kv_heads": 3}, r"config\.model\.kv_heads=3 does not divide config\.model\.heads=4; kv_heads=2 would do"),
        ({"kv_heads": 0}, r"config\.model\.kv_heads=0 must be at least 1"),
        ({"head_dim": 0}, r"config\.model\.head_dim=0 must be at least 1"),
        ({"positions": PositionEncoding.ROTARY}, r"head depth 3 is odd; config\.model\.positions=rotary"),
        ({"positions": PositionEncoding.ROTARY_HALVES}, "head depth 3 is odd"),
        ({"positions": PositionEncoding.SINUSOIDAL, "width": 9, "heads": 3}, r"config\.model\.width=9 is odd"),
        ({"dropout": 1.0}, r"config\.model\.dropout=1\.0 must be at least 0 and below 1"),
        ({"attention_dropout": -0.1}, r"config\.model\.attention_dropout=-0\.1"),
        ({"stochastic_depth": 1.5}, r"config\.model\.stochastic_depth=1\.5"),
        (
            {"attention_windows": (0, 2, 3)},
            r"config\.model\.layers=4 is no multiple of the 3 windows of config\.model\.attention_windows=",
        ),
        ({"attention_windows": (-1,)}, r"config\.model\.attention_windows\[0\]=-1 must"),
        ({"norm_epsilon": -1e-5}, r"config\.model\.norm_epsilon=-1e-05"),
        ({"rotary_base": 0.0}, r"config\.model\.rotary_base=0\.0"),
        (
            {"relative_attention_num_buckets": 6},
            r"config\.model\.relative_attention_num_buckets=6 must be a multiple of 4",
        ),
        ({"layers": 0}, r"config\.model\.layers=0 must be at least 1"),
        (
            {"positions": PositionEncoding.T5, "relative_attention_max_distance": 16},
            r"config\.model\.relative_attention_max_distance=16 .* config\.model\.relative_attention_num_buckets=32: "
            "say relative_attention_max_distance=17 or more",
        ),
        (
            {"positions": PositionEncoding.ROTARY, "score": Score.ADDITIVE, "head_dim": 2},
            r"config\.model\.positions=rotary .* config\.model\.score=additive .*; say score=dot or scaled_dot",
        ),
        (
            {"positions": PositionEncoding.SHAW, "score": Score.COSINE},
            r"config\.model\.positions=shaw .* config\.model\.score=cosine .*; say score=dot or scaled_dot",
        ),
        (
            {"positions": PositionEncoding.TRANSFORMER_XL, "width": 9, "heads": 3},
            r"config\.model\.width=9 is odd; config\.model\.positions=transformer_xl",
        ),
        (
            {"backend": Backend.BLOCKWISE, "score": Score.ADDITIVE},
            r"config\.model\.backend=blockwise does not take score=additive: say backend=auto or einsum",
        ),
        (
            {"backend": Backend.XLA, "positions": PositionEncoding.SHAW},
            r"config\.model\.backend=xla does not take position=shaw: say backend=auto or einsum",
        ),
        (
            {"backend": Backend.BLOCKWISE, "attention_dropout": 0.1},
            r"config\.model\.attention_dropout=0\.1 .* config\.model\.backend=blockwise .*: say backend=auto or einsum",
        ),
    ],
    ids=str,
)
def test_an_impossible_config_is_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        DecoderConfig(**(TINY | changes))
    assert "\n" not in str(refused.value)


def test_a_task_that_does_not_fit_is_refused_in_one_line() -> None:
    def build_for(context: int, tokens: int) -> None:
        shape = InputSpec((2, context))
        config = DecoderConfig(**TINY, vocab_size=20)
        build_decoder(config, TaskInterface({"tokens": shape}, {"tokens": tokens}, 0, None, None), Precision())

    build_for(8, 20)
    with pytest.raises(UserError, match=r"longest tokens has 9 positions.*config\.model\.max_length=8"):
        build_for(9, 20)
    with pytest.raises(UserError, match=r"config\.model\.vocab_size=20 does not hold the task's 21 tokens"):
        build_for(8, 21)


def test_only_positions_in_the_embeddings_have_a_first_one_above_0() -> None:
    with pytest.raises(
        UserError, match=r"config\.model\.position_offset=2 is of positions in the embeddings, and .*=alibi has none"
    ):
        build("decoder", positions=PositionEncoding.ALIBI, position_offset=2)
