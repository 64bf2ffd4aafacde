"""Operations by formula against every product of matrices in the program that really runs."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from transformer.attention.scores import Score
from transformer.costs.flops import training_flops, training_flops_a_token
from transformer.layers.feed_forward import Activation
from transformer.layers.module import Precision
from transformer.layers.norm import Norm
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases, PositionJoin, Positions, Remat, TransformerConfig
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import EncoderConfig, Head
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.interface import Input, Interface
from transformer.models.published import PUBLISHED as SIZES
from transformer.models.registry import build, model_config, operations, sizes
from transformer.models.transformer_xl import TransformerXLConfig
from transformer.models.xlnet import XLNetConfig

VOCABULARY = 23
VOCABULARIES = {"tokens": VOCABULARY, "joint": VOCABULARY}
Batch = dict[str, jax.ShapeDtypeStruct]


def products(jaxpr: Any) -> int:
    """2 x output size x contracted size of every dot_general, 2 x output size x window x channels of every convolution.

    The body of a loop counts as often as it runs.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = sum(products(sub) for value in equation.params.values() for sub in jaxprs(value))
        total += inner * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        assert equation.primitive.name != "while", "cannot be counted"
        if equation.primitive.name == "conv_general_dilated":
            kernel, numbers = equation.invars[1].aval, equation.params["dimension_numbers"]
            assert equation.params["feature_group_count"] == equation.params["batch_group_count"] == 1
            total += 2 * equation.outvars[0].aval.size * kernel.size // kernel.shape[numbers.rhs_spec[0]]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
    return total


def jaxprs(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in jaxprs(item)]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []


def batch_of(rows: int, length: int, target: int) -> Batch:
    """What every family reads of a batch; decoders and encoders its `tokens`."""
    shape = lambda columns: jax.ShapeDtypeStruct((rows, columns), jnp.int32)  # noqa: E731
    return {"tokens": shape(length), "source": shape(length), "target": shape(target)}


def counted(config: TransformerConfig, batch: Batch) -> int:
    names = ("source", "target") if isinstance(config, EncoderDecoderConfig) else ("tokens",)
    inputs = {name: batch[name] for name in names}
    interface = Interface({n: Input(x.shape) for n, x in inputs.items()}, VOCABULARIES, pad=0, begin=1, end=2)
    model = build(config, interface, Precision())
    variables = jax.eval_shape(model.init, jax.random.key(0))

    def forward(variables: Any, inputs: Any) -> Any:
        outputs, aux = model.apply(variables, inputs, train=False)
        return outputs, aux.extras

    return products(jax.make_jaxpr(forward)(variables, inputs).jaxpr)


TINY: dict[str, Any] = {"width": 16, "heads": 4, "feed_forward": 24, "max_length": 32}
PAIR = EncoderDecoderConfig(encoder_layers=2, decoder_layers=3, unroll=3, **TINY)
DECODER = DecoderConfig(layers=2, **TINY)
ENCODER = EncoderConfig(layers=2, **TINY)
MODERN: dict[str, Any] = {
    "kv_heads": 2,
    "head_dim": 6,
    "activation": Activation.SWIGLU,
    "norm": Norm.RMS,
    "biases": Biases.NONE,
    "positions": Positions.ROTARY,
    "tied": False,
}
CONFIGS: dict[str, TransformerConfig] = {
    "pair": PAIR,
    "pair-pre": dataclasses.replace(PAIR, encoder_layers=1, norm_placement=NormPlacement.PRE, biases=Biases.ALL),
    "pair-modern": dataclasses.replace(PAIR, **MODERN),
    "pair-transformer-xl": dataclasses.replace(PAIR, positions=Positions.TRANSFORMER_XL, head_dim=3),
    "pair-general": dataclasses.replace(PAIR, score=Score.GENERAL, head_dim=3),
    "pair-additive": dataclasses.replace(PAIR, score=Score.ADDITIVE, kv_heads=2),
    "pair-concatenated": dataclasses.replace(PAIR, position_join=PositionJoin.CONCATENATED),
    "decoder": DECODER,
    "decoder-concatenated": dataclasses.replace(DECODER, position_join=PositionJoin.CONCATENATED),
    "decoder-modern": dataclasses.replace(DECODER, **MODERN),
    "decoder-windows": dataclasses.replace(DECODER, windows=(0, 3)),
    "decoder-parallel": dataclasses.replace(DECODER, norm_placement=NormPlacement.PARALLEL, kv_heads=1),
    "decoder-shaw": dataclasses.replace(DECODER, positions=Positions.SHAW, max_distance=5, head_dim=3),
    "decoder-t5": dataclasses.replace(DECODER, positions=Positions.T5),
    "decoder-alibi": dataclasses.replace(DECODER, positions=Positions.ALIBI),
    **{f"decoder-{score.value}": dataclasses.replace(DECODER, score=score, head_dim=3) for score in Score},
    "encoder": ENCODER,
    "encoder-concatenated": dataclasses.replace(ENCODER, position_join=PositionJoin.CONCATENATED),
    "encoder-pooled": dataclasses.replace(ENCODER, head=Head.NONE, pooler=True),
    "encoder-both": dataclasses.replace(ENCODER, head=Head.PRETRAINING, tied=False, activation=Activation.GEGLU_TANH),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_formula_is_the_programs_count(config: TransformerConfig) -> None:
    batch = batch_of(3, 7, 4)
    assert operations(config, batch, VOCABULARIES).forward == counted(config, batch)


@pytest.mark.parametrize("config", [PAIR, DECODER, ENCODER], ids=["pair", "decoder", "encoder"])
def test_the_formula_is_the_programs_count_of_a_single_row(config: TransformerConfig) -> None:
    batch = batch_of(1, 5, 5)
    assert operations(config, batch, VOCABULARIES).forward == counted(config, batch)


@pytest.mark.parametrize(
    ("config", "remembers"),
    [
        pytest.param(TransformerXLConfig(layers=2, memory=4, **TINY), True, id="transformer-xl"),
        pytest.param(XLNetConfig(layers=2, memory=4, kinds=True, **TINY), True, id="xlnet"),
        pytest.param(XLNetConfig(layers=2, memory=4, kinds=True, **TINY), False, id="xlnet-alone"),
    ],
)
def test_the_formula_of_a_segment_counts_its_memory(config: DecoderConfig | XLNetConfig, remembers: bool) -> None:
    rows, length = 3, 7
    whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)  # noqa: E731
    batch = {"tokens": whole(rows, length)} | ({"past": whole(rows)} if remembers else {})
    if isinstance(config, XLNetConfig):
        batch |= {"predicted": whole(rows, 2)}
    model = build(config, Interface({}, VOCABULARIES), Precision())
    memory = {"memory": jax.ShapeDtypeStruct((rows, 2, 4, config.width), jnp.float32)} if remembers else {}

    def forward(variables: Any, inputs: Any) -> Any:
        return model.apply(variables, inputs, train=False)[0]

    variables = jax.eval_shape(model.init, jax.random.key(0))
    program = jax.make_jaxpr(forward)(variables, {**batch, **memory})
    assert operations(config, batch, VOCABULARIES).forward == products(program.jaxpr)


def test_the_counter_sees_a_product_and_a_loop() -> None:
    def program(x: Any) -> Any:
        return jax.lax.scan(lambda y, _: (y @ y, None), x @ x, None, length=5)[0]

    count = products(jax.make_jaxpr(jax.jit(program))(jnp.ones((3, 3))).jaxpr)
    assert count == 6 * 2 * 3**3


@pytest.mark.parametrize("config", [PAIR, DECODER, ENCODER], ids=["pair", "decoder", "encoder"])
def test_a_step_costs_three_forward_passes_padding_included(config: TransformerConfig) -> None:
    batch = batch_of(4, 6, 5)
    assert training_flops(config, batch, VOCABULARIES) == 3 * operations(config, batch, VOCABULARIES).forward


def test_a_config_of_no_family_has_no_formula() -> None:
    with pytest.raises(TypeError, match="TransformerConfig is the config of no FAMILY"):
        operations(TransformerConfig(), batch_of(1, 2, 2), VOCABULARIES)


def test_a_token_of_gpt2_costs_six_a_weight_and_twelve_a_layer_width_and_position() -> None:
    """6 N + 12 L H Q T, Chowdhery et al. 2022, appendix B; positions are looked up and cost no product."""
    for name, layers, width in (("gpt2", 12, 768), ("gpt2-xl", 48, 1600)):
        matrices = 12 * layers * width**2 + 50_257 * width
        found = training_flops_a_token(model_config({"size": name}), SIZES[name])
        assert found == 6 * matrices + 12 * layers * width * 1024


def test_a_patch_of_vit_costs_six_a_weight_and_twelve_a_layer_width_and_position() -> None:
    """196 patches and a class token meet every block; patches alone are embedded, the class token alone is scored."""
    found = training_flops_a_token(model_config({"size": "vit-b16"}), sizes()["vit-b16"])
    blocks = 197 * (6 * 12 * 12 * 768**2 + 12 * 12 * 768 * 197)
    assert found == pytest.approx((blocks + 6 * 768 * (196 * 3 * 16**2 + 1000)) / 197)


@pytest.mark.parametrize(("name", "extra"), [("gpt3-175b", 1), ("gpt3-13b", 1), ("gopher-280b", 4 / 3)])
def test_published_training_costs_are_met(name: str, extra: float) -> None:
    """Brown et al. 2020, table D.1 (without attention); Rae et al. 2021 computed every forward pass twice."""
    size = SIZES[name]
    assert size.training_flops is not None
    assert size.training_tokens is not None
    a_token = training_flops_a_token(model_config({"size": name}), size)
    assert extra * a_token * size.training_tokens == pytest.approx(size.training_flops, rel=0.08)


def test_transformer_base_is_about_six_operations_a_parameter_and_token() -> None:
    """Vaswani et al. 2017, table 3: 65 million parameters; short sentences leave the square terms small."""
    a_pair = operations(EncoderDecoderConfig(), batch_of(1, 32, 32), {"joint": 37_000}).forward
    # Encoder weights meet every source position, decoder weights and the shared table every target position.
    encoder, decoder = 6 * (4 * 512**2 + 2 * 512 * 2048), 6 * (8 * 512**2 + 2 * 512 * 2048)
    assert a_pair == pytest.approx(2 * 32 * (encoder + decoder + 512 * 37_000), rel=0.02)


def differentiated(config: TransformerConfig, batch: Batch) -> int:
    """The products of a decoder's forward and backward pass."""
    interface = Interface({"tokens": Input(batch["tokens"].shape)}, VOCABULARIES, pad=0, begin=1, end=2)
    model = build(config, interface, Precision())
    variables = jax.eval_shape(model.init, jax.random.key(0))

    def loss(params: Any, variables: Any, tokens: jax.Array) -> jax.Array:
        given = {"tokens": tokens}
        return model.apply(variables._replace(params=params), given, train=True, key=jax.random.key(0))[0].sum()

    return products(jax.make_jaxpr(jax.grad(loss))(variables.params, variables, batch["tokens"]).jaxpr)


@pytest.mark.parametrize("remat", Remat)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        pytest.param({"norm_placement": NormPlacement.PRE}, marks=pytest.mark.slow),
        pytest.param({"norm_placement": NormPlacement.PARALLEL}, marks=pytest.mark.slow),
        {**MODERN, "norm_placement": NormPlacement.PRE},
        pytest.param({"norm_placement": NormPlacement.PRE, "windows": (0, 3)}, marks=pytest.mark.slow),
    ],
)
def test_what_is_computed_again_is_counted_in_the_program(remat: Remat, changed: dict[str, Any]) -> None:
    batch = batch_of(3, 20, 20)
    plain = dataclasses.replace(DECODER, dropout=0.0, **changed)
    config = dataclasses.replace(plain, remat=remat)
    assert operations(config, batch, VOCABULARIES).recomputed == differentiated(config, batch) - differentiated(
        plain, batch
    )
