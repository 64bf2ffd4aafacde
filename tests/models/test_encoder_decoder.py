"""The encoder-decoder Transformer against NumPy float64, published counts, and what no mask may let through."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import lively
from tests.oracles import transformer as oracle
from transformer.attention.capture import Capture
from transformer.attention.positions import PositionCombination
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases, PositionEncoding
from transformer.logical_axes import LOGICAL_AXES, RULES, partition_spec
from transformer.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderHead, SideEmbeddings
from transformer.models.model import Model, Variables, count_parameters
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

PAD, BEGIN, END, VOCABULARY = 0, 1, 2, 24
SITES = ("encoder/self", "decoder/self", "decoder/cross")
SEPARATE = {
    "positions": PositionEncoding.LEARNED,
    "embedding_norm": True,
    "position_offset": 2,
    "side_embeddings": SideEmbeddings.SEPARATE,
}
TINY = EncoderDecoderConfig(
    encoder_layers=2, decoder_layers=2, width=16, heads=2, feed_forward=24, biases=Biases.ALL, max_length=16
)
# Every token stands in one place only, so that a row of the table's gradient is a place's.
SOURCE = np.int32([[5, 9, 13, 20, 7, 6], [11, 4, 18, PAD, PAD, PAD], [8, PAD, PAD, PAD, PAD, PAD]])
TARGET = np.int32([[BEGIN, 17, 3, 12, 10], [BEGIN, 19, 14, PAD, PAD], [BEGIN, 15, 21, 22, PAD]])
UNUSED = 23
INPUTS = {"source": jnp.asarray(SOURCE), "target": jnp.asarray(TARGET)}


def interface(vocabulary: int = VOCABULARY, longest: int = 8) -> TaskInterface:
    shape = InputSpec((4, longest))
    return TaskInterface({"source": shape, "target": shape}, {"joint": vocabulary}, PAD, BEGIN, END)


def make(precision: Precision | None = None, **changes: Any) -> Model:
    return build(dataclasses.replace(TINY, **changes), interface(), precision or Precision())


class Case(NamedTuple):
    model: Model
    variables: Variables
    forward: Callable[..., Any]  # (variables, inputs) -> logits, aux with every map


@functools.cache
def case_of(**changes: Any) -> Case:
    model = make(**changes)

    def forward(variables: Variables, inputs: Mapping[str, Any]) -> Any:
        return model.apply(variables, inputs, train=False, capture=Capture(SITES))

    return Case(model, lively(model, spread=0.3), jax.jit(forward))


def whole_rows(site: str) -> np.ndarray:
    """What each row of a map sums to, [layer, example, head, query]: one, and zero where the query is padding."""
    real = (SOURCE if site == "encoder/self" else TARGET) != PAD
    return np.broadcast_to(real[None, :, None], (2, len(SOURCE), 2, real.shape[1]))


@pytest.fixture(autouse=True)
def _highest_precision() -> Iterator[None]:
    """For every test, so that all share what is compiled."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module", params=["post", "pre"])
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(norm_placement=NormPlacement(request.param))


# What knows nothing of the norm's placement is looked at under one of the two.
under_post = pytest.mark.parametrize("case", ["post"], indirect=True)
under_pre = pytest.mark.parametrize("case", ["pre"], indirect=True)


@pytest.mark.parametrize(
    ("placement", "changes"),
    [
        (NormPlacement.POST, {}),
        pytest.param(NormPlacement.PRE, {}, marks=pytest.mark.slow),
        pytest.param(NormPlacement.PRE, {"positions": PositionEncoding.LEARNED}, marks=pytest.mark.slow),
        (NormPlacement.PRE, {"positions": PositionEncoding.LEARNED, "position_join": PositionCombination.CONCATENATED}),
        (NormPlacement.POST, SEPARATE),
        pytest.param(
            NormPlacement.PRE,
            {"positions": PositionEncoding.SINUSOIDAL_TENSOR2TENSOR, "position_offset": 3},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["post", "pre", "pre_learned", "pre_concatenated", "post_separate", "pre_tensor2tensor"],
)
def test_logits_and_maps_are_the_oracles(placement: NormPlacement, changes: dict[str, Any]) -> None:
    case = case_of(norm_placement=placement, **changes)
    positions = changes.get("positions", TINY.positions)
    logits, aux = case.forward(case.variables, INPUTS)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), case.variables.params)
    kind = oracle.Kind(
        placement.value,
        positions=positions.value,
        embedding_scale="sqrt_width",
        position_offset=changes.get("position_offset", 0),
        side_embeddings="separate" if changes == SEPARATE else "shared",
    )
    expected = oracle.encoder_decoder(kind, params, SOURCE, TARGET, pad=PAD)
    assert expected.logits.std() > 0.5
    np.testing.assert_allclose(logits, expected.logits, rtol=0, atol=1e-4)
    assert set(aux.maps) == set(SITES)
    for site in SITES:
        np.testing.assert_allclose(aux.maps[site].weights, expected.maps[site], rtol=0, atol=1e-5, err_msg=site)


def test_the_other_placement_would_be_noticed(case: Case) -> None:
    pre = case.model.functional.shapes().get("encoder_norm") is not None
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), case.variables.params)
    params |= {} if pre else {name: {"scale": 1.0, "bias": 0.0} for name in ("encoder_norm", "decoder_norm")}
    kind = oracle.Kind("post" if pre else "pre", embedding_scale="sqrt_width")
    wrong = oracle.encoder_decoder(kind, params, SOURCE, TARGET, pad=PAD).logits
    logits, _ = case.forward(case.variables, INPUTS)
    assert np.abs(logits - wrong).max() > 0.1


@under_pre
def test_no_logit_depends_on_a_later_target_or_on_padding(case: Case) -> None:
    """By the gradient of an unused token's logits by the table: the row of each token stands for its place."""
    params = case.variables.params

    @jax.jit
    def derivative(table: jax.Array, inputs: Mapping[str, Any]) -> jax.Array:
        def unused(table: jax.Array) -> jax.Array:
            variables = Variables({**params, "embedding": {"table": table}}, {})
            return case.model.apply(variables, inputs, train=False)[0][0, :, UNUSED]

        return jax.jacrev(unused)(table)

    for example in range(len(SOURCE)):
        source, target = SOURCE[example], TARGET[example]
        ones = {"source": source[None], "target": target[None]}
        flows_TxV = np.asarray(derivative(params["embedding"]["table"], ones)).any(axis=-1)
        expected_TxV = np.zeros_like(flows_TxV)
        expected_TxV[:, UNUSED] = True
        expected_TxV[:, source[source != PAD]] = True
        real = target != PAD
        for place, token in enumerate(target):
            # A padded target place sees nothing but what it holds itself; its logits count nowhere.
            expected_TxV[place:][real[place:], token] = True
            expected_TxV[place, token] = True
        expected_TxV[~real] &= np.isin(np.arange(expected_TxV.shape[1]), [PAD, UNUSED])
        np.testing.assert_array_equal(flows_TxV, expected_TxV)


@under_post
def test_more_padding_changes_nothing(case: Case) -> None:
    logits, aux = case.forward(case.variables, INPUTS)
    wider = {
        "source": np.pad(SOURCE, ((0, 1), (0, 3)), constant_values=PAD),
        "target": np.pad(TARGET, ((0, 1), (0, 2)), constant_values=PAD),
    }
    padded_logits, padded_aux = case.forward(case.variables, wider)
    examples, targets = TARGET.shape
    np.testing.assert_allclose(padded_logits[:examples, :targets], logits, rtol=0, atol=1e-5)
    sizes = {"source": SOURCE.shape[1], "target": targets}
    for site, query, key in zip(SITES, ("source", "target", "target"), ("source", "target", "source"), strict=True):
        inner = padded_aux.maps[site].weights[:, :examples, :, : sizes[query], : sizes[key]]
        np.testing.assert_allclose(inner, aux.maps[site].weights, rtol=0, atol=1e-5, err_msg=site)
    # Also the row of padding alone, which fills up a batch.
    assert np.isfinite(padded_logits).all()


@under_post
def test_examples_do_not_mix_and_filler_has_finite_gradients(case: Case) -> None:
    filler = {"source": np.full_like(SOURCE[:1], PAD), "target": np.full_like(TARGET[:1], PAD)}

    @jax.jit
    def gradient(params: Any, beside: Mapping[str, Any], example: Any) -> Any:
        inputs = {name: jnp.concatenate([INPUTS[name][:1], beside[name]]) for name in INPUTS}

        def loss(params: Any) -> jax.Array:
            logits, _ = case.model.apply(Variables(params, {}), inputs, train=False)
            return jnp.sum(jnp.square(logits[example]))

        return jax.grad(loss)(params)

    params = case.variables.params
    with_filler = gradient(params, filler, 0)
    beside_another = gradient(params, {name: INPUTS[name][1:2] for name in INPUTS}, 0)
    jax.tree.map(
        lambda ours, other: np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-5), with_filler, beside_another
    )
    # A row of padding alone attends to nothing.
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(params, filler, 1)))


def test_every_row_of_a_map_sums_to_one_and_sees_no_padding(case: Case) -> None:
    _, aux = case.forward(case.variables, INPUTS)
    lengths = (SOURCE != PAD).sum(1)
    for site in SITES:
        weights_LxBxHxQxK = np.asarray(aux.maps[site].weights)
        assert weights_LxBxHxQxK.shape[:3] == (2, len(SOURCE), 2)
        assert weights_LxBxHxQxK.dtype == np.float32
        np.testing.assert_allclose(weights_LxBxHxQxK.sum(-1), whole_rows(site), rtol=0, atol=1e-5)
        if site == "decoder/self":
            assert not np.triu(weights_LxBxHxQxK, 1).any()
        else:
            assert all(not weights_LxBxHxQxK[:, b, :, :, n:].any() for b, n in enumerate(lengths))
        # Layers and heads are themselves, not copies of one.
        flat = weights_LxBxHxQxK[:, 0].reshape(4, -1)
        assert min(np.abs(flat[i] - flat[j]).max() for i in range(4) for j in range(i)) > 1e-3
    sites = {site.name: site for site in case.model.sites}
    assert tuple(sites) == SITES
    for site in sites.values():
        assert (site.layers, site.heads) == (("0", "1"), ("0", "1"))
    assert [(site.query.name, site.key.name, site.causal) for site in sites.values()] == [
        ("source", "source", False),
        ("target", "target_input", True),
        ("target", "source", False),
    ]


@pytest.mark.parametrize(
    ("case", "sites"), [("post", ()), ("pre", ("encoder/self", "decoder/cross"))], indirect=["case"], ids=str
)
def test_what_is_captured_changes_no_output_and_no_other_map(case: Case, sites: tuple[str, ...]) -> None:
    request = Capture(sites) if sites else None
    apply = jax.jit(lambda v, inputs: case.model.apply(v, inputs, train=False, capture=request))
    logits, aux = apply(case.variables, INPUTS)
    all_logits, all_aux = case.forward(case.variables, INPUTS)
    assert set(aux.maps) == set(sites)
    np.testing.assert_array_equal(logits, all_logits)
    for site in sites:
        np.testing.assert_array_equal(aux.maps[site].weights, all_aux.maps[site].weights)


@pytest.mark.slow
def test_dropout_acts_in_training_with_a_key_and_never_else() -> None:
    model = make(dropout=0.3)
    variables = lively(model, spread=0.3)
    apply = jax.jit(lambda v, key, train: model.apply(v, INPUTS, train=train, key=key)[0], static_argnames="train")
    evaluated = apply(variables, jax.random.key(0), train=False)
    # `train` is explicit: a key alone is not a mode, and makes no other program.
    shapes, key = jax.eval_shape(lambda: variables), jax.random.key(0)
    with_key, without = (
        jax.make_jaxpr(lambda v, key, given=given: model.apply(v, INPUTS, train=False, key=key if given else None)[0])
        for given in (True, False)
    )
    assert str(with_key(shapes, key)) == str(without(shapes, key))
    once, again, other = (apply(variables, jax.random.key(seed), train=True) for seed in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert np.abs(once - evaluated).max() > 0.1
    assert np.abs(once - other).max() > 0.1


@under_pre
def test_bfloat16_computes_with_float32_parameters(case: Case) -> None:
    placement = NormPlacement.PRE if "encoder_norm" in case.variables.params else NormPlacement.POST
    half = make(Precision(compute="bfloat16"), norm_placement=placement)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half.functional.shapes())} == {"float32"}
    logits, aux = jax.jit(lambda v: half.apply(v, INPUTS, train=False, capture=Capture(SITES)))(case.variables)
    exact, exact_aux = case.forward(case.variables, INPUTS)
    assert logits.dtype == np.float32
    difference = np.abs(logits - exact)
    assert difference.max() < 0.1 * max(1, np.abs(exact).max())
    # Truly computed in bfloat16.
    assert difference.max() > 1e-4
    for site in SITES:
        weights = np.asarray(aux.maps[site].weights)
        np.testing.assert_allclose(weights.sum(-1), whole_rows(site), rtol=0, atol=1e-5)
        np.testing.assert_allclose(weights, exact_aux.maps[site].weights, rtol=0, atol=1e-1)


@under_post
def test_unrolled_layers_give_the_same_logits(case: Case) -> None:
    placement = NormPlacement.PRE if "encoder_norm" in case.variables.params else NormPlacement.POST
    unrolled = make(norm_placement=placement, scan_unroll=2)
    logits = jax.jit(lambda v: unrolled.apply(v, INPUTS, train=False)[0])(case.variables)
    np.testing.assert_allclose(logits, case.forward(case.variables, INPUTS)[0], rtol=0, atol=1e-5)


def test_every_parameter_has_logical_axes(case: Case) -> None:
    shapes = case.model.functional.shapes()
    axes = case.model.axes()
    is_axes: dict[str, Any] = {"is_leaf": lambda leaf: isinstance(leaf, tuple)}
    assert jax.tree.structure(axes.params, **is_axes) == jax.tree.structure(shapes)
    assert axes.state == {}
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(axes.params, **is_axes), strict=True)
    for leaf, names in pairs:
        assert len(names) == leaf.ndim
        assert set(names) <= LOGICAL_AXES - {"batch"}
        assert set(partition_spec(names, RULES["dp"])) <= {None}


BASE = EncoderDecoderConfig()


def count(vocabulary: int = 37_000, **changes: Any) -> int:
    model = build(dataclasses.replace(BASE, **changes), interface(vocabulary), Precision())
    return count_parameters(model.functional.shapes())


BIG = {"width": 1024, "feed_forward": 4096, "heads": 16}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 63_045_632),
        ({"biases": Biases.ALL}, 63_082_496),
        (BIG, 214_171_648),
        (BIG | {"biases": Biases.ALL}, 214_245_376),
        # Two final norms, each a scale and a bias.
        ({"norm_placement": NormPlacement.PRE}, 63_045_632 + 2 * 2 * 512),
        ({"positions": PositionEncoding.LEARNED, "max_length": 100}, 63_045_632 + 100 * 512),
    ],
    ids=["base", "base_bias", "big", "big_bias", "pre", "learned"],
)
def test_parameters_of_base_and_big(changes: dict[str, Any], expected: int) -> None:
    assert count(**changes) == expected


@pytest.mark.parametrize(
    ("changes", "millions", "published"),
    [
        ({"encoder_layers": 2, "decoder_layers": 2}, 33.64, 36),
        ({"encoder_layers": 4, "decoder_layers": 4}, 48.35, 50),
        ({"encoder_layers": 8, "decoder_layers": 8}, 77.75, 80),
        ({"width": 256}, 26.82, 28),
        ({"width": 1024}, 163.82, 168),
        ({"feed_forward": 1024}, 50.45, 53),
        ({"feed_forward": 4096}, 88.24, 90),
    ],
    ids=["N2", "N4", "N8", "d256", "d1024", "ff1024", "ff4096"],
)
def test_parameters_of_table_3(changes: dict[str, Any], millions: float, published: float) -> None:
    """Vaswani et al. 2017, table 3; their vocabulary is not known, hence 7 %."""
    found = count(**changes) / 1e6
    assert round(found, 2) == millions
    assert found == pytest.approx(published, rel=0.07)


def test_heads_cost_nothing() -> None:
    assert {count(heads=heads) for heads in (1, 4, 16)} == {63_045_632}


def test_an_input_with_more_positions_than_the_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"longest source has 17 positions.*config\.model\.max_length=16"):
        build(TINY, interface(longest=17), Precision())
    build(TINY, interface(longest=16), Precision())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width": 10, "heads": 4}, r"width=10 is not divisible by config\.model\.heads=4; heads=5 would do"),
        ({"width": 5, "heads": 1}, "width=5 is odd"),
        ({"dropout": 1.0}, r"dropout=1\.0 must be at least 0 and below 1"),
        ({"dropout": -0.1}, r"dropout=-0\.1 must be"),
        ({"encoder_layers": 0}, "encoder_layers=0 must be at least 1"),
        ({"heads": 0}, "heads=0 must be at least 1"),
        ({"scan_unroll": 0}, "scan_unroll=0 must be at least 1"),
        (
            {"positions": PositionEncoding.ROTARY, "position_join": PositionCombination.CONCATENATED},
            r"position_join=concatenated needs positions in the embeddings, and config\.model\.positions=rotary",
        ),
    ],
)
def test_an_impossible_config_is_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        dataclasses.replace(TINY, **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"side_embeddings": SideEmbeddings.SEPARATE},
            r"side_embeddings=separate parts nothing: .*positions=sinusoidal has no table",
        ),
        ({"positions": PositionEncoding.T5, "position_offset": 2}, r"position_offset=2 .*positions=t5 has none there"),
        (
            {"positions": PositionEncoding.SINUSOIDAL_TENSOR2TENSOR, "width": 2},
            r"width=2 has one frequency alone; .*say width=4 or more",
        ),
    ],
)
def test_choices_of_positions_that_do_not_hold_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        dataclasses.replace(TINY, **changes)


def test_each_side_has_its_own_table_and_norm() -> None:
    """A change of the source's table changes what is read, and one of the target's what is written."""
    case = case_of(norm_placement=NormPlacement.POST, **SEPARATE)
    params, rows = case.variables.params, 16 + 2
    assert {name: params[name]["table"].shape for name in ("positions", "source_positions")} == {
        "positions": (rows, 16),
        "source_positions": (rows, 16),
    }
    usual = case.forward(case.variables, INPUTS)[1].maps["encoder/self"].weights
    for name, changes_reading in (("positions", False), ("source_positions", True)):
        other = case.variables._replace(params={**params, name: {"table": params[name]["table"][::-1]}})
        found = case.forward(other, INPUTS)[1].maps["encoder/self"].weights
        assert bool(np.abs(found - usual).max() > 1e-3) == changes_reading


def test_a_head_of_texts_reads_the_text_in_both_stacks_one_token_later_in_the_decoder() -> None:
    tokens, lengths = jnp.asarray(SOURCE), jnp.array([6, 3, 1], jnp.int32)
    sizes = {"tokens": VOCABULARY, "joint": VOCABULARY, "classes": 3}
    texts = TaskInterface({}, sizes, PAD, BEGIN, END)
    span, classes = (
        build(dataclasses.replace(TINY, head=head), texts, Precision())
        for head in (EncoderDecoderHead.SPAN, EncoderDecoderHead.CLASSES)
    )
    with jax.disable_jit():
        params = lively(span).params
        delayed = jnp.concatenate([jnp.full((3, 1), BEGIN, jnp.int32), tokens[:, :-1]], axis=1)
        bare = build(dataclasses.replace(TINY, head=EncoderDecoderHead.NONE), texts, Precision())
        body = {name: value for name, value in params.items() if name != "span"}
        states, _ = bare.apply(Variables(body, {}), {"source": tokens, "target": delayed}, train=False)
        logits, _ = span.apply(Variables(params, {}), {"tokens": tokens, "lengths": lengths}, train=False)
        expected = states @ params["span"]["kernel"] + params["span"]["bias"]
        real = np.arange(6) < np.asarray(lengths)[:, None]
        np.testing.assert_allclose(logits[real], expected[real], atol=1e-5)
        # The state at the last token is classified, whatever follows it.
        heads = body | {name: lively(classes).params[name] for name in ("pooler", "classes")}
        inputs = {"tokens": jnp.where(real, tokens, 7), "lengths": lengths}
        found, _ = classes.apply(Variables(heads, {}), inputs, train=False)
        pooled = jnp.tanh(states[jnp.arange(3), lengths - 1] @ heads["pooler"]["kernel"] + heads["pooler"]["bias"])
        np.testing.assert_allclose(found, pooled @ heads["classes"]["kernel"] + heads["classes"]["bias"], atol=1e-5)
