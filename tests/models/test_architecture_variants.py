"""The three families in a cover of their arrangements: logits and maps against NumPy, cached decoding, parameters."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import BEGIN, PAD, VOCABULARY, Arrangement, build, cover, exact, kind_of, lively
from tests.oracles import transformer as oracle
from transformer.attention.capture import Capture
from transformer.attention.rotary import RotaryScaling, RotaryScalingKind
from transformer.layers.functional_module import Precision
from transformer.layers.norm import NormKind
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases, LayerRotary, PositionEncoding, Projections

COVER = cover()
LONGROPE: dict[str, Any] = {
    "kind": RotaryScalingKind.LONGROPE,
    "factor": 6.0,
    "short_factors": (1.0, 1.1, 1.5, 2.0),
    "long_factors": (1.2, 2.0, 3.5, 4.0),
}
# By which biases a layer norm has one unless it says otherwise.
NORMS_BIASED_BY = ("all", "feed_forward", "attention", "query_key_value")
# `make test` takes other kinds of positions of every family; `make slow` takes all.
KINDS = len(PositionEncoding)
ROWS = [
    pytest.param(row, marks=() if (index % KINDS - index // KINDS) % 6 == 0 else pytest.mark.slow, id=row.name)
    for index, row in enumerate(COVER)
]
TOKENS = np.int32([[5, 9, 3, 8, 7, 6, 4], [6, 4, 8, 11, PAD, PAD, PAD]])
LENGTHS = np.int32([7, 4])
SOURCE = np.int32([[5, 9, 3, 8, 7], [6, 4, 8, PAD, PAD]])
TARGET = np.int32([[BEGIN, 7, 3, 5, 9, 4], [BEGIN, 9, 4, 6, PAD, PAD]])
TYPES = np.int32([[0, 0, 1, 1, 0, 1, 1], [1, 0, 1, 0, 0, 0, 0]])
SITES = {
    "decoder": ("decoder/self",),
    "encoder": ("encoder/self",),
    "encoder_decoder": ("encoder/self", "decoder/self", "decoder/cross"),
}
INPUTS: dict[str, dict[str, np.ndarray]] = {
    "decoder": {"tokens": TOKENS, "lengths": LENGTHS},
    "encoder": {"tokens": TOKENS, "lengths": LENGTHS, "types": TYPES},
    "encoder_decoder": {"source": SOURCE, "target": TARGET},
}


def expected_of(family: str, config: Any, params: Any) -> oracle.Answer:
    kind, weights = kind_of(config), exact(params)
    if family == "decoder":
        return oracle.decoder(kind, weights, TOKENS, lengths=LENGTHS)
    if family == "encoder":
        return oracle.encoder(kind, weights, TOKENS, lengths=LENGTHS, types=TYPES)[0]
    return oracle.encoder_decoder(kind, weights, SOURCE, TARGET, pad=PAD)


def real_of(family: str) -> np.ndarray:
    return (TARGET if family == "encoder_decoder" else TOKENS) != PAD


def close(ours: Any, expected: np.ndarray, tolerance: float) -> None:
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tolerance * scale)


def passes(model: Any, variables: Any, family: str) -> tuple[Any, Any, np.ndarray | None]:
    """Logits and auxiliary results of the whole pass, and the logits of every cached step, [row, step, V].

    A decoder begins behind prompts of unequal length, and an encoder has no steps. One program compiles sooner than
    two.
    """
    capture = Capture(SITES[family])
    if family == "encoder":
        run = jax.jit(lambda variables: model.apply(variables, INPUTS[family], train=False, capture=capture))
        return *run(variables), None
    if family == "encoder_decoder":
        # Two beams: each row of a pair reads the target of its own.
        inputs, fed, num_beams = {"source": SOURCE}, np.repeat(TARGET, 2, axis=0), 2
        fed[1] = fed[0][[0, 3, 2, 1, 5, 4]]
    else:
        inputs, num_beams = {"tokens": TOKENS[:, :3], "lengths": PROMPTS}, 1
        fed = np.stack([row[start - 1 :][:5] for row, start in zip(FULL, PROMPTS, strict=True)])

    @jax.jit
    def whole_and_steps(variables: Any, fed_RxT: Any) -> Any:
        logits, aux = model.apply(variables, INPUTS[family], train=False, capture=capture)
        cache, _ = model.init_cache(variables, inputs, num_beams=num_beams, length=fed_RxT.shape[1])

        def advance(cache: Any, tokens: Any) -> Any:
            logits, cache, _ = model.step(variables, cache, tokens)
            return cache, logits

        return logits, aux, jax.lax.scan(advance, cache, fed_RxT.T)[1]

    logits, aux, cached = whole_and_steps(variables, jnp.asarray(fed))
    return logits, aux, np.moveaxis(np.asarray(cached), 0, 1)


# Prompts of three tokens and of one; then the rest of each text, fed one token at a time.
PROMPTS = np.int32([3, 1])
FULL = np.int32([[5, 9, 3, 8, 7, 6, 4], [6, 4, 8, 11, 3, 7, 5]])


@pytest.mark.parametrize("arrangement", ROWS)
def test_logits_maps_and_cached_steps_are_the_oracles(arrangement: Arrangement) -> None:
    family = arrangement.family
    extra = {"add_pooling_layer": True, "position_offset": 2} if family == "encoder" else {}
    model, config = build(family, **arrangement.options, **extra)
    variables = lively(model)
    logits, aux, cached = passes(model, variables, family)
    expected, real = expected_of(family, config, variables.params), real_of(family)
    logits = np.asarray(logits)
    assert logits.dtype == np.float32
    assert expected.logits[real].std() > 0.1
    close(logits[real], expected.logits[real], 1e-4)
    assert set(aux.maps) == set(SITES[family])
    # T5's logits are not divided by a root of the depth: float32 rounds larger ones. In float64 all agree to 2e-14.
    tolerance = 1e-4 if arrangement.options["positions"] is PositionEncoding.T5 else 2e-5
    for site in SITES[family]:
        close(aux.maps[site].weights, expected.maps[site], tolerance)
    if family == "encoder":
        _, _, pooled = oracle.encoder(kind_of(config), exact(variables.params), TOKENS, lengths=LENGTHS, types=TYPES)
        assert pooled is not None
        close(aux.extras["pooled"], pooled, 1e-4)
        return
    assert cached is not None
    kind, weights = kind_of(config), exact(variables.params)
    if family == "decoder":
        whole = oracle.decoder(kind, weights, FULL).logits
        for row, start in enumerate(PROMPTS):
            close(cached[row], whole[row, start - 1 :][:5], 1e-4)
    else:
        close(cached[::2][real], expected.logits[real], 1e-4)
        other = TARGET.copy()
        other[0] = other[0][[0, 3, 2, 1, 5, 4]]
        whole = oracle.encoder_decoder(kind, weights, SOURCE, other, pad=PAD).logits
        close(cached[1::2][real], whole[real], 1e-4)


GLOBAL, LOCAL, PLAIN = LayerRotary
# What published decoders choose beside the cover. In texts of 7 and caches of 8 positions.
CHOICES: dict[str, dict[str, Any]] = {
    "a part": {"positions": PositionEncoding.ROTARY, "rotary_fraction": 0.5},
    "a part by halves": {"rotary_fraction": 0.25},
    "linear": {"rotary_scaling": RotaryScaling(RotaryScalingKind.LINEAR, 3.0)},
    "dynamic": {"rotary_scaling": RotaryScaling(RotaryScalingKind.DYNAMIC, 3.0, 4)},
    "llama3": {"rotary_scaling": RotaryScaling(RotaryScalingKind.LLAMA3, 8.0, 40)},
    "yarn": {"rotary_scaling": RotaryScaling(RotaryScalingKind.YARN, 4.0, 30, beta_fast=4.0, beta_slow=0.5)},
    "longrope, long": {"rotary_scaling": RotaryScaling(**LONGROPE, original_max_length=6)},
    "longrope, short": {"rotary_scaling": RotaryScaling(**LONGROPE, original_max_length=20)},
    # The 8 positions of the cache are more than 7.
    "longrope, long in the cache alone": {"rotary_scaling": RotaryScaling(**LONGROPE, original_max_length=7)},
    "local and global": {
        "rotary_pattern": (LOCAL, GLOBAL),
        "local_rotary_base": 7.0,
        "attention_windows": (3, 0),
        "rotary_scaling": RotaryScaling(RotaryScalingKind.LINEAR, 3.0),
    },
    "global and none": {"rotary_pattern": (GLOBAL, PLAIN)},
    "multipliers": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logit_multiplier": 0.5,
        "attention_scale": 0.9,
    },
    "layer scale": {"layer_scale": 0.1, "norm_placement": NormPlacement.SANDWICH},
    "parallel layer scale": {"layer_scale": 0.1, "norm_placement": NormPlacement.PARALLEL},
    "sinks": {"attention_sinks": True, "attention_windows": (3, 0)},
    "soft caps": {"attention_softcap": 0.5, "logit_softcap": 1.5, "norm": NormKind.RMS_ZERO_CENTERED},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("yarn", "dynamic", "local and global", "layer scale") else pytest.mark.slow
        )
        for name in CHOICES
    ],
)
def test_choices_of_published_decoders_are_the_oracles(name: str) -> None:
    chosen = CHOICES[name]
    shared = {"head_dim": 8, "kv_heads": 2, "rotary_base": 100.0, "norm_placement": NormPlacement.PRE}
    model, config = build("decoder", **({"positions": PositionEncoding.ROTARY_HALVES} | shared | chosen))
    assert ("layer_scale" in chosen) == ("layer_scale" in model.functional.shapes()["layers"]["attention_residual"])
    variables = lively(model)
    logits, aux, cached = passes(model, variables, "decoder")
    expected, real = expected_of("decoder", config, variables.params), real_of("decoder")
    close(np.asarray(logits)[real], expected.logits[real], 1e-4)
    close(aux.maps["decoder/self"].weights, expected.maps["decoder/self"], 2e-5)
    assert cached is not None
    kind, weights = kind_of(config)._replace(text_length=8), exact(variables.params)
    whole = oracle.decoder(kind, weights, FULL).logits
    for row, start in enumerate(PROMPTS):
        close(cached[row], whole[row, start - 1 :][:5], 1e-4)
    # Whoever left out one of them would be seen. A parallel block has no second norm, which other placements read.
    unvaried = {"positions", *(["norm_placement"] if config.norm_placement is NormPlacement.PARALLEL else [])}
    for option in chosen.keys() & set(oracle.Kind._fields) - unvaried:
        without = oracle.decoder(kind._replace(**{option: oracle.Kind._field_defaults[option]}), weights, FULL).logits
        assert np.abs(without - whole).max() > 0.01 or "short" in name, option


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "encoder" else pytest.mark.slow) for name in SITES]
)
def test_attention_without_projections_is_that_of_identity_matrices(family: str) -> None:
    model, config = build(family, projections=Projections.NONE, biases=Biases.NONE)
    variables = lively(model)
    logits, aux, cached = passes(model, variables, family)
    width, heads = config.width, config.heads
    identity = np.broadcast_to(np.eye(width), (2, width, width))  # of both layers
    inwards = {"kernel": identity.reshape(2, width, heads, -1)}
    attention = {
        **{name: inwards for name in ("query", "key", "value")},
        "output": {"kernel": identity.reshape(2, heads, -1, width)},
    }
    params = dict(variables.params)
    for stack in ("encoder", "decoder") if family == "encoder_decoder" else ("layers",):
        assert not {"attention", "cross"} & set(params[stack])
        params[stack] = {**params[stack], "attention": attention, "cross": attention}
    expected, real = expected_of(family, config, params), real_of(family)
    close(np.asarray(logits)[real], expected.logits[real], 1e-4)
    for site in SITES[family]:
        close(aux.maps[site].weights, expected.maps[site], 2e-5)
    if family == "encoder_decoder":
        close(cached[::2][real], expected.logits[real], 1e-4)
    if family == "decoder":
        whole = oracle.decoder(kind_of(config), exact(params), FULL).logits
        for row, start in enumerate(PROMPTS):
            close(cached[row], whole[row, start - 1 :][:5], 1e-4)


def names(tree: Any, prefix: str = "") -> set[str]:
    """Every leaf's path."""
    if not isinstance(tree, dict):
        return {prefix.removesuffix("/")}
    return {name for key, branch in tree.items() for name in names(branch, f"{prefix}{key}/")}


@pytest.mark.parametrize("arrangement", ROWS)
def test_exactly_the_parameters_that_an_arrangement_has(arrangement: Arrangement) -> None:
    family, options = arrangement
    model, _ = build(family, **options)
    found = names(model.functional.shapes())
    placement, positions = options["norm_placement"].value, options["positions"].value
    biases, layer_norm = options["biases"].value, options["norm"].value == "layer"
    gated = options["activation"].value in ("swiglu", "swiglu_clamped", "geglu", "geglu_tanh")

    biased_norms = options["norm_bias"] is True or (options["norm_bias"] is None and biases in NORMS_BIASED_BY)
    in_feed_forward = biases in ("all", "feed_forward")

    def norm(prefix: str) -> set[str]:
        return {f"{prefix}/scale"} | ({f"{prefix}/bias"} if layer_norm and biased_norms else set())

    def linear(prefix: str, biased: bool) -> set[str]:
        return {f"{prefix}/kernel"} | ({f"{prefix}/bias"} if biased else set())

    def block(prefix: str, cross: bool) -> set[str]:
        expected = set()
        for attention in ("attention", "cross") if cross else ("attention",):
            for projection in ("query", "key", "value", "output"):
                some = ("all", "attention") if projection == "output" else ("all", "attention", "query_key_value")
                expected |= linear(f"{prefix}/{attention}/{projection}", biases in some)
            of_heads = {"none": (), "head": ("scale",), "width": ("norm/scale",)}[options["query_key_norm"].value]
            sides = ("query_norm", "key_norm")
            expected |= {f"{prefix}/{attention}/{side}/{name}" for side in sides for name in of_heads}
            expected |= {f"{prefix}/{attention}/sinks"} if options["attention_sinks"] else set()
            expected |= {f"{prefix}/{attention}/score/log_sharpening"} if options["score"].value == "cosine" else set()
        of_kind = {"shaw": ("keys", "values"), "transformer_xl": ("weight", "content", "position")}
        expected |= {f"{prefix}/attention/relative/{name}" for name in of_kind.get(positions, ())}
        for name in ("expand", "contract", "gate") if gated else ("expand", "contract"):
            expected |= linear(f"{prefix}/feed_forward/{name}", in_feed_forward)
        sublayers = ["attention", *(["cross"] if cross else []), "feed_forward"]
        for sublayer in sublayers[:1] if placement == "parallel" else sublayers:
            expected |= norm(f"{prefix}/{sublayer}_residual/norm")
            expected |= norm(f"{prefix}/{sublayer}_residual/output_norm") if placement == "sandwich" else set()
        return expected

    stacks = {"layers": False} if family != "encoder_decoder" else {"encoder": False, "decoder": True}
    expected = {"embedding/table"}.union(*(block(name, cross) for name, cross in stacks.items()))
    sides = ("",) if family != "encoder_decoder" else ("encoder_", "decoder_")
    for side in sides:
        expected |= norm(f"{side}norm") if placement not in ("post", "deepnorm") else set()
        expected |= {f"{side}relative/table"} if positions in ("t5", "disentangled") else set()
    expected |= {"positions/table"} if positions == "learned" else set()
    expected |= set() if options["tie_embeddings"] else {"unembedding/kernel"}
    expected |= {"output_bias/bias"} if options["output_bias"] else set()
    expected |= norm("embedding_norm") if options["embedding_norm"] else set()
    if family == "encoder":
        expected |= {"types/table"} | linear("head/transform", in_feed_forward) | norm("head/norm")
    assert found == expected


def test_the_cover_has_every_value_in_every_family_and_most_pairs() -> None:
    pairs = set()
    for family, options in COVER:
        flat = {"family": family, **options}
        pairs |= {frozenset({one, two}) for one in flat.items() for two in flat.items() if one != two}
    values = {("family", family) for family, _ in COVER} | {one for _, options in COVER for one in options.items()}
    possible = {frozenset({one, two}) for one in values for two in values if one[0] != two[0]}
    assert len(pairs & possible) / len(possible) > 0.85


def test_cross_attentions_keys_are_computed_once_and_never_tiled() -> None:
    model, config = build("encoder_decoder", kv_heads=2, attention_windows=(0, 3), decoder_layers=4)
    shapes = jax.eval_shape(lambda v: model.init_cache(v, {"source": SOURCE}, num_beams=3, length=8)[0], lively(model))
    examples = len(SOURCE)
    assert len(shapes.examples["memory"]) == 4
    for keys, values in shapes.examples["memory"]:
        assert keys.shape == values.shape == (examples, SOURCE.shape[1], 2, config.resolved_head_dim)
    # A layer that sees all keeps every position, one of window 3 four of them; beams share what they wrote.
    rings = [(examples, 2, 3, 8, 3), (examples, 2, 3, 4, 3)] * 2
    assert [keys.shape for keys, _ in shapes.examples["kv_caches"]] == rings


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name == "encoder_decoder" else ()) for name in SITES]
)
def test_bfloat16_computes_finite_float32_logits(family: str) -> None:
    model, _ = build(family, Precision(compute="bfloat16"))
    variables = lively(model)
    logits, _ = jax.jit(lambda v: model.apply(v, INPUTS[family], train=False))(variables)
    assert logits.dtype == np.float32
    assert logits.shape[-1] == VOCABULARY
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name == "encoder_decoder" else ()) for name in SITES]
)
def test_in_bfloat16_most_products_are_of_bfloat16(family: str) -> None:
    model, _ = build(family, Precision(compute="bfloat16"))
    lowered = jax.jit(lambda v: model.apply(v, INPUTS[family], train=False)).lower(lively(model))
    operands = re.findall(r"stablehlo\.dot_general.*: \(tensor<[\dx]*(\w+)>", lowered.as_text())
    assert operands.count("bf16") > operands.count("f32")
