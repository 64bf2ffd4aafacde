"""Mixtures of experts in the Transformers: which blocks have them, decoding, maps, losses, counts, other formats."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.costs.test_flops import batch_of, model_of
from tests.models.architecture_variants import BEGIN, FAMILIES, PAD, build, lively
from tests.oracles import experts as oracle
from transformer.attention import AxisKind, Capture
from transformer.attention.sites import MapValues
from transformer.config import UserError
from transformer.costs.flops import forward_flops, recomputed_flops
from transformer.costs.model_sizes import count_active_parameters
from transformer.huggingface.convert import find_conversion
from transformer.layers.mixture_of_experts import Gating, MixtureOfExpertsConfig
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import PositionEncoding, Remat
from transformer.models.decoder import DecoderConfig
from transformer.models.model import count_parameters, leaves_by_path

COUNT = 4
LAYERS = ("layers", "encoder_layers", "decoder_layers")
TOKENS = np.int32([[5, 9, 3, 8, 7, 6, 4], [6, 4, 8, 11, PAD, PAD, PAD]])
SOURCE = np.int32([[5, 9, 3, 8, 7, 2], [6, 4, 2, PAD, PAD, PAD]])
TARGET = np.int32([[BEGIN, 7, 6, 4, 3], [BEGIN, 8, 11, PAD, PAD]])
INPUTS: dict[str, dict[str, np.ndarray]] = {
    "decoder": {"tokens": TOKENS, "lengths": np.int32([7, 4])},
    "encoder": {"tokens": TOKENS, "lengths": np.int32([7, 4]), "types": np.zeros_like(TOKENS)},
    "encoder_decoder": {"source": SOURCE, "target": TARGET},
}
REAL = {"decoder": TOKENS != PAD, "encoder": TOKENS != PAD, "encoder_decoder": TARGET != PAD}
STACKS = {"decoder": ("decoder",), "encoder": ("encoder",), "encoder_decoder": ("encoder", "decoder")}


def layers(family: str, count: int) -> dict[str, int]:
    names = LAYERS[1:] if family == "encoder_decoder" else LAYERS[:1]
    return dict.fromkeys(names, count)


def with_equal_experts(dense: Any, sparse: Any) -> Any:
    """The parameters of the dense model in the other's places, every expert with those of its layer's network."""
    given = leaves_by_path(dense)

    def take(path: str, leaf: Any) -> np.ndarray:
        stack, *rest = path.split("/")
        name = "/".join(rest)
        if rest[0] in ("dense", "last"):  # groups of two blocks: of each the first without experts, the second with
            plain = "/".join(rest[1:]).replace("experts/networks", "feed_forward")
            found = given.get(f"{stack}/{plain}")
            found = None if found is None else found[0::2][:, None] if rest[0] == "dense" else found[1::2]
        else:
            found = given.get(f"{stack}/{name}".replace("experts/networks", "feed_forward"))
        if found is None:  # the router
            return np.asarray(leaf)
        shape = leaf.shape
        if "experts/networks" in name:
            found = np.broadcast_to(np.asarray(found)[:, None], shape)
        assert found.shape == shape
        return np.asarray(found)

    found = {path: take(path, leaf) for path, leaf in leaves_by_path(sparse).items()}
    return jax.tree.unflatten(jax.tree.structure(sparse), [found[path] for path in leaves_by_path(sparse)])


@pytest.mark.parametrize(
    ("family", "every"),
    [
        pytest.param(family, every, marks=() if quick else pytest.mark.slow)
        for family, every, quick in zip(
            (*FAMILIES, *FAMILIES), (1, 1, 1, 2, 2, 2), (False, True, False, True, False, False), strict=True
        )
    ],
)
def test_with_equal_experts_a_model_is_the_dense_one(family: str, every: int) -> None:
    """The gates sum to one: whatever is chosen, in whichever blocks."""
    dense, _ = build(family, **layers(family, 4))
    sparse, _ = build(
        family, experts=MixtureOfExpertsConfig(COUNT, every_n_layers=every, capacity_factor=0.1), **layers(family, 4)
    )
    variables, of_sparse = lively(dense), lively(sparse, seed=1)
    same = of_sparse._replace(params=with_equal_experts(variables.params, of_sparse.params))
    expected, _ = jax.jit(lambda v: dense.apply(v, INPUTS[family], train=False))(variables)
    found, aux = jax.jit(lambda v: sparse.apply(v, INPUTS[family], train=False))(same)
    np.testing.assert_allclose(found[REAL[family]], expected[REAL[family]], atol=2e-4)
    assert set(aux.losses) == {f"{stack}/{name}" for stack in STACKS[family] for name in ("importance", "load")}
    numbers = tuple(str(number) for number in range(4) if (number + 1) % every == 0)
    of_experts = {site.name: site for site in sparse.sites if site.name not in {site.name for site in dense.sites}}
    assert set(of_experts) == {f"{stack}/experts" for stack in STACKS[family]}
    for site in of_experts.values():
        assert (site.key.kind, site.key.num_positions, site.layers, site.heads) == (
            AxisKind.EXPERTS,
            COUNT,
            numbers,
            ("0",),
        )


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "encoder_decoder" else pytest.mark.slow) for name in FAMILIES]
)
def test_the_losses_are_those_of_the_maps_over_what_is_real(family: str) -> None:
    config = MixtureOfExpertsConfig(COUNT, importance_loss=0.3, load_loss=0.7)
    model, _ = build(family, experts=config, **layers(family, 2))
    sites = tuple(f"{stack}/experts" for stack in STACKS[family])
    variables, inputs = lively(model), INPUTS[family]
    _, aux = jax.jit(lambda v: model.apply(v, inputs, train=False, capture=Capture(sites)))(variables)
    for stack, site in zip(STACKS[family], sites, strict=True):
        real = SOURCE != PAD if (family, stack) == ("encoder_decoder", "encoder") else REAL[family]
        gates_LxBxTxX = np.asarray(aux.maps[site].weights[:, :, 0], np.float64)
        np.testing.assert_allclose(
            gates_LxBxTxX.sum(axis=-1), np.broadcast_to(real, gates_LxBxTxX.shape[:-1]), atol=1e-6
        )
        assert ((gates_LxBxTxX > 0).sum(axis=-1) <= 2).all()
        term = aux.losses[f"{stack}/importance"]
        expected = sum(oracle.squared_variation(gates.sum(axis=(0, 1))) for gates in gates_LxBxTxX)
        assert float(term.denominator) == real.sum()
        assert float(term.total / term.denominator) == pytest.approx(expected, rel=1e-4)
        assert (term.weight, aux.losses[f"{stack}/load"].weight) == (0.3, 0.7)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param("decoder", {"every": 1}, marks=pytest.mark.slow),
        ("decoder", {"every": 2, "attention_windows": (0, 3)}),
        pytest.param("encoder_decoder", {"every": 2}, marks=pytest.mark.slow),
    ],
)
def test_cached_steps_are_the_whole_pass_and_return_the_gates(family: str, settings: dict[str, Any]) -> None:
    every, windows = settings["every"], settings.get("attention_windows", ())
    config = MixtureOfExpertsConfig(COUNT, every_n_layers=every, capacity_factor=0.1)
    model, _ = build(
        family, experts=config, positions=PositionEncoding.LEARNED, attention_windows=windows, **layers(family, 2)
    )
    variables, capture = lively(model), Capture(("decoder/experts",))
    fed = np.repeat(TARGET, 2, axis=0)
    fed[:, 3:] = [[4, 3], [9, 5], [7, 7], [2, 10]]
    if family == "decoder":
        first, whole, num_beams = {"tokens": fed[:, :1], "lengths": np.ones(4, np.int32)}, {"tokens": fed}, 1
    else:
        first, whole, num_beams = {"source": SOURCE}, {"source": np.repeat(SOURCE, 2, axis=0), "target": fed}, 2

    @jax.jit
    def run(variables: Any) -> Any:
        cache, _ = model.init_cache(variables, first, num_beams=num_beams, length=fed.shape[1])

        def advance(cache: Any, tokens: Any) -> Any:
            logits, cache, aux = model.step(variables, cache, tokens, capture=capture)
            return cache, (logits, aux.maps["decoder/experts"].weights)

        return jax.lax.scan(advance, cache, jnp.asarray(fed.T))[1]

    logits_TxRxV, gates_TxLxRxHx1xX = run(variables)
    expected, aux = jax.jit(lambda v: model.apply(v, whole, train=False, capture=capture))(variables)
    np.testing.assert_allclose(np.moveaxis(logits_TxRxV, 0, 1), expected, atol=2e-4)
    gates_LxRxHxTxX = np.moveaxis(np.asarray(gates_TxLxRxHx1xX)[..., 0, :], 0, 3)
    np.testing.assert_allclose(gates_LxRxHxTxX, aux.maps["decoder/experts"].weights, atol=1e-5)
    assert len(gates_LxRxHxTxX) == 2 // every


@pytest.mark.slow
def test_prompts_are_routed_as_the_whole_pass_routes_them() -> None:
    model, _ = build("decoder", experts=MixtureOfExpertsConfig(COUNT), positions=PositionEncoding.LEARNED)
    variables = lively(model)
    prompts = {"tokens": TOKENS, "lengths": np.int32([7, 4])}

    @jax.jit
    def after(variables: Any) -> Any:
        cache, tokens = model.init_cache(variables, prompts, num_beams=1, length=2)
        return model.step(variables, cache, tokens)[0], model.apply(variables, prompts, train=False)[0]

    stepped, whole = after(variables)
    np.testing.assert_allclose(stepped, whole[np.arange(2), [6, 3]], atol=2e-4)


@pytest.mark.slow
def test_noise_is_drawn_while_training_alone() -> None:
    model, _ = build("decoder", experts=MixtureOfExpertsConfig(COUNT))
    variables = lively(model)

    @jax.jit
    def passes(variables: Any) -> Any:
        def run(train: bool, key: int) -> Any:
            return model.apply(variables, INPUTS["decoder"], train=train, key=jax.random.key(key))[0]

        return run(False, 1), run(False, 2), run(True, 1), run(True, 1), run(True, 2)

    still, again, first, repeated, other = map(np.asarray, passes(variables))
    np.testing.assert_array_equal(still, again)
    np.testing.assert_array_equal(first, repeated)
    assert np.abs(first - still).max() > 1e-3
    assert np.abs(first - other).max() > 1e-3


SMALL = DecoderConfig(layers=2, width=16, heads=4, feed_forward=24, max_length=32)


@pytest.mark.parametrize(("every", "expected"), [(1, 262_752), (2, 223_776)])
def test_flops_are_those_that_a_position_uses(every: int, expected: int) -> None:
    """Whatever room each expert has: rows that stay empty, and turns that an overfull one computes, are left out."""
    of_network, blocks, positions = 4 * 16 * 24, 2 // every, 21
    dense = forward_flops(model_of(SMALL), batch_of(3, 7, 4))
    for room in (1.0, 5.0):
        config = dataclasses.replace(
            SMALL, experts=MixtureOfExpertsConfig(5, top_k=2, every_n_layers=every, capacity_factor=room)
        )
        found = forward_flops(model_of(config), batch_of(3, 7, 4))
        assert found == expected == dense + blocks * positions * (of_network + 4 * 16 * 5)


def test_without_noise_a_position_has_the_router_alone() -> None:
    experts = MixtureOfExpertsConfig(5, top_k=3, gating=Gating.TOP_K, router_bias=True)
    found = forward_flops(model_of(dataclasses.replace(SMALL, experts=experts)), batch_of(3, 7, 4))
    dense = forward_flops(model_of(SMALL), batch_of(3, 7, 4))
    assert found == dense + 2 * 21 * (2 * 4 * 16 * 24 + 2 * 16 * 5)


def test_the_balance_loss_of_a_stack_is_weighted_by_its_positions() -> None:
    config = MixtureOfExpertsConfig(COUNT, gating=Gating.SOFTMAX, balance_loss=0.3)
    model, _ = build("decoder", experts=config)
    site = next(site for site in model.sites if site.name == "decoder/experts")
    assert site.values is MapValues.REWEIGHTED
    with jax.disable_jit():
        _, aux = model.apply(lively(model), INPUTS["decoder"], train=False)
    term = aux.losses["decoder/balance"]
    assert set(aux.losses) == {"decoder/balance"}
    assert (float(term.denominator), term.weight) == (REAL["decoder"].sum(), 0.3)
    # Of evenly used experts it is the number that each position selects.
    assert 2 <= float(term.total / term.denominator) < COUNT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "remat", "expected"),
    [
        (NormPlacement.PRE, Remat.FULL, 695_040),
        (NormPlacement.PRE, Remat.DOTS, 337_920),
        (NormPlacement.PRE, Remat.ATTENTION, 618_240),
        (NormPlacement.PARALLEL, Remat.FULL, 664_320),
        (NormPlacement.PARALLEL, Remat.DOTS, 337_920),
        (NormPlacement.PARALLEL, Remat.ATTENTION, 587_520),
    ],
)
def test_what_is_computed_again_is_counted_too(placement: NormPlacement, remat: Remat, expected: int) -> None:
    experts = MixtureOfExpertsConfig(5, top_k=2, every_n_layers=2, capacity_factor=5.0)
    config = dataclasses.replace(SMALL, norm_placement=placement, experts=experts, remat=remat)
    assert recomputed_flops(model_of(config), batch_of(3, 20, 20)) == expected


def test_all_parameters_and_those_that_a_position_meets() -> None:
    model, config = build("decoder", experts=MixtureOfExpertsConfig(6, top_k=2, every_n_layers=2))
    dense, _ = build("decoder")
    shapes = model.functional.shapes()
    network = 2 * config.width * config.feed_forward + config.feed_forward + config.width
    router = 2 * config.width * 6
    whole = count_parameters(dense.functional.shapes())
    assert count_parameters(shapes) == whole + 5 * network + router
    sizes = {path: leaf.size for path, leaf in leaves_by_path(shapes).items()}
    assert count_active_parameters(config, sizes) == whole + network + router
    assert count_active_parameters(object(), sizes) == sum(sizes.values())


def test_other_formats_refuse_experts_in_one_line() -> None:
    model, config = build("decoder", experts=MixtureOfExpertsConfig(COUNT))
    with pytest.raises(UserError, match=r"^Hugging Face has no such model; .*config\.model\.experts\.count=4 is not 0"):
        find_conversion(config, lively(model).params)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"layers": 3}, r"config\.model\.layers=3 is no multiple of config\.model\.experts\.every_n_layers=2"),
        ({"layers": 6, "attention_windows": (0, 1, 1, 1)}, r"layers=6 is no multiple of the 4 windows"),
        ({"layers": 6, "attention_windows": (0, 1), "every": 3}, None),
        ({"layers": 12, "attention_windows": (0, 1, 1, 1), "every": 6}, None),
        ({"layers": 12, "attention_windows": (0, 1, 1, 1, 1, 1), "every": 4}, None),
    ],
)
def test_layers_are_whole_periods_of_windows_and_experts(changes: dict[str, Any], line: str | None) -> None:
    experts = MixtureOfExpertsConfig(COUNT, every_n_layers=changes.pop("every", 2))
    if line is None:
        assert len(dataclasses.replace(SMALL, experts=experts, **changes).layer_pattern) <= changes["layers"]
        return
    with pytest.raises(UserError, match=line):
        dataclasses.replace(SMALL, experts=experts, **changes)
