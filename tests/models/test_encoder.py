"""The encoder: padding, types, the offset of its positions, its pooler, and its states without a head."""

from typing import Any

import jax
import numpy as np
import pytest

from tests import programs
from tests.models.architecture_variants import PAD, SMALL, VOCABULARY, build, exact, kind_of, lively
from tests.oracles import transformer as oracle
from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import Precision
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases, PositionEncoding, Remat, WidthScale
from transformer.models import encoder
from transformer.models.encoder import EncoderConfig, EncoderHead, HeadBiases, HeadTransform, Pooling
from transformer.models.model import Variables, leaves_by_path
from transformer.models.task_interface import TEXT_CLASSIFICATION_WITH_TYPES, InputSpec, TaskInterface
from transformer.training.partitioning import ShardingConfig, make_placement, trace_with_placement

TOKENS = np.int32([[5, 9, 3, 8, 7], [6, 4, 8, PAD, PAD]])
LENGTHS = np.int32([5, 3])


@pytest.fixture(scope="module")
def case() -> Any:
    """A model with everything, and its jitted forward pass."""
    model, config = build("encoder", add_pooling_layer=True, position_offset=2, num_token_types=3)
    return model, config, lively(model), jax.jit(lambda v, inputs: model.apply(v, inputs, train=False))


@pytest.mark.slow
def test_the_padding_token_gives_the_lengths_that_are_not_given(case: Any) -> None:
    _, _, variables, forward = case
    logits, aux = forward(variables, {"tokens": TOKENS})
    stated, stated_aux = forward(variables, {"tokens": TOKENS, "lengths": LENGTHS})
    np.testing.assert_array_equal(logits, stated)
    np.testing.assert_array_equal(aux.extras["pooled"], stated_aux.extras["pooled"])
    # Neither the width of the padding nor what stands in it matters.
    wider = np.pad(TOKENS, ((0, 0), (0, 2)), constant_values=11)
    wider[1, 3:] = 10
    padded, padded_aux = forward(variables, {"tokens": wider, "lengths": LENGTHS})
    real = TOKENS != PAD
    np.testing.assert_allclose(np.asarray(padded)[:, :5][real], np.asarray(logits)[real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(padded_aux.extras["pooled"], aux.extras["pooled"], rtol=0, atol=1e-5)


def test_a_classifier_without_token_types_reads_pairs_by_their_separator_alone() -> None:
    vocabularies = {"tokens": VOCABULARY, "joint": VOCABULARY, "classes": 3, "types": 2}
    inputs = TEXT_CLASSIFICATION_WITH_TYPES.inputs
    specs = {name: InputSpec((2, 5) if name != "lengths" else (2,), np.int32) for name in inputs}
    interface = TaskInterface(specs, vocabularies, pad_id=PAD, output=TEXT_CLASSIFICATION_WITH_TYPES.output)
    for types, head, refused in ((0, "classes", False), (1, "classes", True), (2, "classes", False)):
        config = EncoderConfig(num_token_types=types, head=EncoderHead(head))
        if refused:
            with pytest.raises(UserError, match="num_token_types=1 cannot tell texts apart"):
                encoder.check_task(config, interface)
        else:
            encoder.check_task(config, interface)


def test_every_token_sees_every_other() -> None:
    model, _ = build("encoder", positions=PositionEncoding.NONE, head=EncoderHead.NONE)
    variables = lively(model)
    tokens = np.int32([[5, 9, 3, PAD]])

    def states(table: Any) -> Any:
        params = {**variables.params, "embedding": {"table": table}}
        return model.apply(Variables(params, {}), {"tokens": tokens}, train=False)[0][0, :, 0]

    flows = np.asarray(jax.jit(jax.jacrev(states))(variables.params["embedding"]["table"])).any(axis=-1)
    assert flows[:3][:, [5, 9, 3]].all()
    assert not flows[:3][:, PAD].any()


def test_types_that_are_absent_are_the_first(case: Any) -> None:
    _, _, variables, forward = case
    plain = forward(variables, {"tokens": TOKENS})[0]
    zeros = forward(variables, {"tokens": TOKENS, "types": np.zeros_like(TOKENS)})[0]
    np.testing.assert_array_equal(plain, zeros)
    others = forward(variables, {"tokens": TOKENS, "types": np.full_like(TOKENS, 2)})[0]
    assert np.abs(np.asarray(others) - plain).max() > 0.1


def test_the_first_rows_of_the_positions_are_never_read(case: Any) -> None:
    _, config, variables, forward = case
    table = variables.params["positions"]["table"]
    assert table.shape == (config.max_length + 2, config.width)
    moved = np.array(table)
    moved[:2] += 7
    other = Variables({**variables.params, "positions": {"table": moved}}, {})
    np.testing.assert_array_equal(forward(other, {"tokens": TOKENS})[0], forward(variables, {"tokens": TOKENS})[0])


def test_without_a_head_the_states_come_out() -> None:
    model, config = build(
        "encoder",
        head=EncoderHead.NONE,
        add_pooling_layer=True,
        num_token_types=0,
        tie_embeddings=False,
        output_bias=True,
    )
    variables = lively(model)
    assert not {"head", "unembedding", "output_bias", "types"} & set(variables.params)
    states, aux = programs.apply(model, variables, {"tokens": TOKENS}, train=False)
    _, expected, pooled = oracle.encoder(kind_of(config), exact(variables.params), TOKENS, lengths=LENGTHS)
    real = TOKENS != PAD
    np.testing.assert_allclose(np.asarray(states)[real], expected[real], rtol=0, atol=1e-4)
    assert pooled is not None
    np.testing.assert_allclose(aux.extras["pooled"], pooled, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="no head that scores tokens"):
        model.logits(variables, states)


def test_the_head_alone_scores_a_part_of_the_states(case: Any) -> None:
    model, _, variables, forward = case

    @jax.jit
    def logits_of_part(variables: Variables) -> jax.Array:
        states, _ = model.apply(variables, {"tokens": TOKENS}, method="hidden", train=False)
        return model.logits(variables, states[:, 1:3])

    whole = np.asarray(forward(variables, {"tokens": TOKENS})[0])
    np.testing.assert_allclose(logits_of_part(variables), whole[:, 1:3], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("num_token_types", -1), ("position_offset", -2)])
def test_counts_below_zero_are_refused(name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"config\.model\.{name}={value} must be at least 0"):
        build("encoder", **{name: value})


def test_the_last_bucket_of_t5_begins_behind_those_of_one_distance() -> None:
    """A side has half of the buckets, and half of these hold one distance each."""
    of_t5 = {"positions": PositionEncoding.T5, "relative_attention_num_buckets": 32}
    with pytest.raises(
        UserError,
        match=r"config\.model\.relative_attention_max_distance=8 .* say relative_attention_max_distance=9 or more",
    ):
        build("encoder", **of_t5, relative_attention_max_distance=8)
    model, _ = build("encoder", **of_t5, relative_attention_max_distance=9)
    jax.eval_shape(lambda: model.apply(model.init(jax.random.key(0)), {"tokens": TOKENS}, train=False))


def test_the_head_of_pairs_reads_the_pooler_alone() -> None:
    model, config = build("encoder", head=EncoderHead.PRETRAINING, num_token_types=2)
    variables = lively(model)
    _, aux = programs.apply(model, variables, {"tokens": TOKENS}, method="hidden", train=False)
    _, _, pooled = oracle.encoder(kind_of(config), exact(variables.params), TOKENS, lengths=LENGTHS)
    weights = exact(variables.params)["next_sentence"]
    expected = np.asarray(pooled) @ weights["kernel"] + weights["bias"]
    np.testing.assert_allclose(aux.extras["next_sentence"], expected, rtol=0, atol=1e-4)


ALBERT = {"embedding_width": 5, "layers": 4, "num_token_types": 2}
MODERNBERT = {
    "layers": 3,
    "norm_placement": NormPlacement.PRE_NORMED_INPUT,
    "positions": PositionEncoding.ROTARY_HALVES,
    "head_dim": 4,
    "activation": Activation.GEGLU,
    "biases": Biases.NONE,
    "attention_windows": (0, 1, 1),
    "num_token_types": 0,
    "embedding_norm": False,
    "head_transform": HeadTransform.EVERY,
    "head_biases": HeadBiases.LAST,
}


@pytest.mark.parametrize(
    "changes",
    [
        ALBERT | {"layer_groups": 1, "attention_windows": (0, 1)},
        pytest.param(ALBERT | {"layer_groups": 2, "remat": Remat.FULL, "scan_unroll": 2}, marks=pytest.mark.slow),
        pytest.param(
            ALBERT | {"positions": PositionEncoding.T5, "layer_groups": 2, "tie_embeddings": False},
            marks=pytest.mark.slow,
        ),
        pytest.param(ALBERT | {"positions": PositionEncoding.SINUSOIDAL, "embedding_width": 6}, marks=pytest.mark.slow),
        pytest.param(MODERNBERT, marks=pytest.mark.slow),
        pytest.param(MODERNBERT | {"layer_groups": 1, "pooling": Pooling.MEAN}, marks=pytest.mark.slow),
    ],
)
def test_shared_blocks_and_narrow_embeddings_are_the_oracles(changes: dict[str, Any]) -> None:
    model, config = build("encoder", **changes)
    variables = lively(model)
    run = jax.jit(
        lambda variables: model.apply(
            variables, {"tokens": TOKENS, "lengths": LENGTHS}, train=False, capture=Capture(("encoder/self",))
        )
    )
    with jax.default_matmul_precision("highest"):
        logits, aux = run(variables)
    expected, _, _ = oracle.encoder(kind_of(config), exact(variables.params), TOKENS, lengths=LENGTHS)
    real = TOKENS != PAD
    assert len(expected.maps["encoder/self"]) == config.layers
    np.testing.assert_allclose(np.asarray(logits)[real], expected.logits[real], rtol=0, atol=1e-4)
    np.testing.assert_allclose(aux.maps["encoder/self"].weights, expected.maps["encoder/self"], rtol=0, atol=2e-5)


def with_classes(**changes: Any) -> Any:
    """A model with a head of three classes, and its config."""
    interface = TaskInterface({"tokens": InputSpec((2, 5))}, {"tokens": VOCABULARY, "classes": 3}, PAD, None, None)
    config = EncoderConfig(**(SMALL | {"dropout": 0.0, "attention_dropout": 0.0} | changes))
    return encoder.FAMILY.build(config, interface, Precision()), config


@pytest.mark.parametrize(
    ("head", "pooling", "transform"),
    [
        pytest.param(EncoderHead.CLASSES, Pooling.MEAN, HeadTransform.EVERY, marks=pytest.mark.slow),
        pytest.param(EncoderHead.CLASSES, Pooling.FIRST, HeadTransform.EVERY, marks=pytest.mark.slow),
        pytest.param(EncoderHead.CLASSES, Pooling.MEAN, HeadTransform.TOKENS, marks=pytest.mark.slow),
        pytest.param(EncoderHead.TOKEN_CLASSES, Pooling.FIRST, HeadTransform.EVERY, marks=pytest.mark.slow),
    ],
)
def test_classes_read_what_the_config_says(head: EncoderHead, pooling: Pooling, transform: HeadTransform) -> None:
    model, config = with_classes(**(MODERNBERT | {"head": head, "pooling": pooling, "head_transform": transform}))
    variables = lively(model)
    assert ("pooler" in variables.params) == (transform is HeadTransform.TOKENS)
    assert set(variables.params["classes"]) == {"kernel", "bias"}
    logits, aux = jax.jit(lambda variables: model.apply(variables, {"tokens": TOKENS}, train=False))(variables)
    weights = exact(variables.params)
    answer, _, pooled = oracle.encoder(kind_of(config), weights, TOKENS, lengths=LENGTHS)
    if head is EncoderHead.TOKEN_CLASSES:
        real = TOKENS != PAD
        np.testing.assert_allclose(np.asarray(logits)[real], answer.logits[real], rtol=0, atol=1e-4)
        return
    assert pooled is not None
    np.testing.assert_allclose(aux.extras["pooled"], pooled, rtol=0, atol=1e-4)
    expected = pooled @ weights["classes"]["kernel"] + weights["classes"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_shared_blocks_are_counted_once_and_computed_in_every_layer() -> None:
    shared, _ = build("encoder", layers=4, layer_groups=1)
    own, _ = build("encoder", layers=4)
    single, _ = build("encoder", layers=1)
    sizes = [
        sum(leaf.size for leaf in leaves_by_path(model.functional.shapes()).values()) for model in (shared, single)
    ]
    assert sizes[0] == sizes[1]
    inputs = {"tokens": jax.ShapeDtypeStruct((2, 5), np.int32)}
    assert forward_flops(shared, inputs) == forward_flops(own, inputs) > forward_flops(single, inputs)
    (site,) = shared.sites
    assert site.layers == ("0", "1", "2", "3")


@pytest.mark.slow
def test_layers_of_a_shared_block_drop_independently() -> None:
    """Dropout has a key for each layer, and the gradient of a block is the sum over its layers."""
    shared, _ = build("encoder", layers=2, layer_groups=1, dropout=0.5)
    own, _ = build("encoder", layers=2, dropout=0.5)
    variables = lively(shared)
    layers = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), variables.params["layers"])

    def loss(params: Any, model: Any) -> Any:
        logits, _ = model.apply(Variables(params, {}), {"tokens": TOKENS}, train=True, key=jax.random.key(3))
        return (logits**2).mean()

    (found, gradient), (expected, own_gradient) = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, model)
        for params, model in ((variables.params, shared), ({**variables.params, "layers": layers}, own))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    summed = jax.tree.map(lambda leaf: leaf.sum(0, keepdims=True), own_gradient["layers"])
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5), gradient["layers"], summed
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 4, "layer_groups": 3}, r"config\.model\.layer_groups=3 does not divide config\.model\.layers=4"),
        (
            {"layers": 4, "layer_groups": 2, "attention_windows": (0, 1, 1, 1)},
            r"layer_groups=2 makes groups of 2 layers, no multiple of the 4 layers",
        ),
        (
            {"embedding_width": 5, "embedding_scale": WidthScale.SQRT_WIDTH},
            r"config\.model\.embedding_scale=sqrt_width is a factor of one width",
        ),
        ({"embedding_width": 5, "positions": PositionEncoding.SINUSOIDAL}, r"config\.model\.embedding_width=5 is odd"),
        (
            {"embedding_width": 5, "head_transform": HeadTransform.EVERY},
            r"config\.model\.head_transform=every keeps the width of the states",
        ),
        (
            {"head": EncoderHead.PRETRAINING, "head_transform": HeadTransform.EVERY},
            r"head_transform=every has no pooler, which config\.model\.head=pretraining needs",
        ),
        (
            {"head": EncoderHead.NONE, "add_pooling_layer": True, "head_transform": HeadTransform.EVERY},
            r"head_transform=every has no pooler, which config\.model\.add_pooling_layer=True needs",
        ),
    ],
)
def test_what_an_encoder_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("encoder", **changes)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [ALBERT | {"layer_groups": 2, "embedding_width": 4}, MODERNBERT])
def test_a_mesh_computes_what_one_device_does(changes: dict[str, Any]) -> None:
    model, _ = build("encoder", **changes)
    variables, tokens = lively(model), np.repeat(TOKENS, 2, axis=0)

    def loss(params: Any) -> Any:
        logits, _ = model.apply(Variables(params, {}), {"tokens": tokens}, train=False)
        return (logits**2).mean()

    placement = make_placement(ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"), jax.devices()[:8])
    with jax.default_matmul_precision("highest"):
        found, gradient = jax.jit(trace_with_placement(placement, jax.value_and_grad(loss)))(variables.params)
        expected, plain_gradient = jax.jit(jax.value_and_grad(loss))(variables.params)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5), gradient, plain_gradient
    )
