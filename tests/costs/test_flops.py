"""FLOPs counted in a trace: of small programs by hand, and of models against the formulas that stood here before.

The tables hold what formulas in closed form, written for each family by itself and checked against the program of each,
gave for these configs. What a trace counts otherwise stands beside its number, as a term of its own.
"""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.sharding import AxisType, PartitionSpec

from tests.contracts.cases import CASES
from transformer.attention.attention_spec import Backend
from transformer.attention.positions import PositionCombination
from transformer.attention.scores import Score
from transformer.costs import flops
from transformer.costs.flops import (
    UncountableError,
    count_matmul_flops,
    forward_flops,
    recomputed_flops,
    training_flops,
    training_flops_per_token,
)
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import Precision
from transformer.layers.norm import NormKind
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases, PositionEncoding, Remat, TransformerConfig
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import EncoderConfig, EncoderHead
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import Model
from transformer.models.published_sizes import PUBLISHED_SIZES as SIZES
from transformer.models.registry import build, model_config, published_sizes
from transformer.models.task_interface import TaskInterface
from transformer.models.transformer_xl import TransformerXLConfig
from transformer.models.xlnet import XLNetConfig
from transformer.tasks.synthetic_data import abstract_batch
from transformer.training import build as building
from transformer.training.build import TrainingComponents, build_components, flops_counter
from transformer.training.optimizer import OptimizerAlgorithm

VOCABULARY = 23
VOCABULARIES = {"tokens": VOCABULARY, "joint": VOCABULARY}
Batch = dict[str, jax.ShapeDtypeStruct]


def counted(program: Callable[..., Any], *shapes: tuple[int, ...]) -> int:
    given = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return count_matmul_flops(jax.make_jaxpr(program)(*given).jaxpr)


def square(x: Any) -> Any:
    return x @ x


def convolved(x: Any, kernel: Any, strides: tuple[int, int] = (1, 1), groups: int = 1) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, strides, "VALID", dimension_numbers=layout, feature_group_count=groups
    )


@jax.custom_vjp
def halved(x: Any) -> Any:
    return x @ x / 2


# Three products backwards, of which a derivative would have two.
halved.defvjp(lambda x: (halved(x), x), lambda x, gradient: (gradient @ x + x @ gradient + x @ x,))


def block_product(x: Any, y: Any) -> Any:
    """Rows of x in blocks of four, by a kernel."""

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] @ y[...]

    return pallas.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 16), jnp.float32),
        grid=(4,),
        in_specs=[pallas.BlockSpec((4, 8), lambda i: (i, 0)), pallas.BlockSpec((8, 16), lambda i: (0, 0))],
        out_specs=pallas.BlockSpec((4, 16), lambda i: (i, 0)),
    )(x, y)


def on_devices(x: Any) -> Any:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(square, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))(x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "a product": (jnp.matmul, ((2, 3), (3, 5)), 2 * 2 * 3 * 5),
    "a vector": (jnp.dot, ((7,), (7,)), 2 * 7),
    "a batch of products": (jnp.matmul, ((4, 2, 3), (4, 3, 5)), 4 * 2 * 2 * 3 * 5),
    "two contracted axes": (lambda x, y: jnp.einsum("abc,bcd->ad", x, y), ((2, 3, 4), (3, 4, 5)), 2 * 2 * 12 * 5),
    "an outer product": (lambda x, y: jnp.einsum("a,b->ab", x, y), ((3,), (5,)), 2 * 15),
    "no product": (lambda x: jax.nn.softmax(x * x).sum(), ((3, 3),), 0),
    "a convolution": (convolved, ((2, 8, 8, 3), (3, 3, 3, 5)), 2 * (2 * 6 * 6 * 5) * 9 * 3),
    "with a stride": (
        lambda x, kernel: convolved(x, kernel, strides=(2, 1)),
        ((2, 8, 8, 3), (3, 3, 3, 5)),
        2 * (2 * 3 * 6 * 5) * 9 * 3,
    ),
    "in groups": (
        lambda x, kernel: convolved(x, kernel, strides=(2, 2), groups=2),
        ((2, 8, 8, 6), (3, 3, 3, 4)),
        2 * (2 * 3 * 3 * 4) * 9 * 3,
    ),
    "of each channel": (
        lambda x, kernel: convolved(x, kernel, groups=6),
        ((2, 8, 8, 6), (3, 3, 1, 6)),
        2 * (2 * 6 * 6 * 6) * 9,
    ),
    "a scan": (lambda x: jax.lax.scan(lambda y, _: (y @ y, None), x @ x, None, length=5), ((3, 3),), 6 * 54),
    "a scan in a scan": (
        lambda x: jax.lax.scan(
            lambda y, _: (jax.lax.scan(lambda z, _: (z @ z, None), y @ y, None, length=5)[0], None), x, None, length=4
        ),
        ((3, 3),),
        4 * 6 * 54,
    ),
    "a known loop": (lambda x: jax.lax.fori_loop(2, 5, lambda _, y: y @ y, x), ((3, 3),), 3 * 54),
    "the dearer branch": (
        lambda x: jax.lax.cond(x[0, 0] > 0, square, lambda y: square(square(y)), x),
        ((3, 3),),
        2 * 54,
    ),
    "jit": (jax.jit(square), ((3, 3),), 54),
    "vmap": (jax.vmap(square), ((7, 3, 3),), 7 * 54),
    "a rematerialized pass": (jax.checkpoint(square), ((3, 3),), 54),
    "its gradient": (
        # x x and sin(x x) sin(x x), of which the first again, and two products backwards for each.
        jax.grad(jax.checkpoint(lambda x: square(jnp.sin(square(x))).sum())),
        ((3, 3),),
        (2 + 1 + 4) * 54,
    ),
    "a gradient of its own": (jax.grad(lambda x: halved(x).sum()), ((3, 3),), 4 * 54),
    "rows by groups": (
        lambda x, y: jax.lax.ragged_dot(x, y, jnp.array([1, 2, 3])),
        ((6, 4), (3, 4, 5)),
        2 * 6 * 4 * 5,
    ),
    "a kernel": (block_product, ((16, 8), (8, 16)), 2 * 16 * 8 * 16),
    "two devices": (on_devices, ((6, 3),), 2 * 54),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_are_counted_as_by_hand(name: str) -> None:
    program, shapes, expected = PROGRAMS[name]
    assert counted(program, *shapes) == expected


def test_a_fused_attention_of_cudnn_counts_its_scores_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    for check in ("check_cudnn_version", "check_compute_capability"):
        monkeypatch.setattr(fused, check, lambda *_: 90_000)

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")

    assert counted(attention, (2, 16, 4, 8), (2, 32, 2, 8), (2, 32, 2, 8)) == 4 * 2 * 4 * 16 * 32 * 8


def until_small(x: Any, step: Callable[[Any], Any]) -> Any:
    return jax.lax.while_loop(lambda y: jnp.max(y) > 1, step, x)


def test_a_loop_that_nobody_can_foresee_is_refused_if_it_computes_products() -> None:
    assert counted(lambda x: until_small(x, lambda y: y / 2), (3, 3)) == 0
    with pytest.raises(UncountableError, match="a while loop computes products, and how often it turns"):
        counted(lambda x: until_small(x, square), (3, 3))


def test_a_program_without_a_trace_is_refused() -> None:
    def outside(x: Any) -> Any:
        return jax.pure_callback(lambda y: y, x, x)

    with pytest.raises(UncountableError, match="pure_callback calls a program that has no trace"):
        counted(outside, (3, 3))


def batch_of(rows: int, length: int, target: int) -> Batch:
    """What every family reads of a batch; decoders and encoders its `tokens`."""
    shape = lambda columns: jax.ShapeDtypeStruct((rows, columns), jnp.int32)  # noqa: E731
    return {"tokens": shape(length), "source": shape(length), "target": shape(target)}


def model_of(config: TransformerConfig) -> Model:
    interface = TaskInterface({}, VOCABULARIES, pad_id=0, bos_id=1, eos_id=2)
    return build(config, interface, Precision())


TINY: dict[str, Any] = {"width": 16, "heads": 4, "feed_forward": 24, "max_length": 32}
PAIR = EncoderDecoderConfig(encoder_layers=2, decoder_layers=3, scan_unroll=3, **TINY)
DECODER = DecoderConfig(layers=2, **TINY)
ENCODER = EncoderConfig(layers=2, **TINY)
MODERN: dict[str, Any] = {
    "kv_heads": 2,
    "head_dim": 6,
    "activation": Activation.SWIGLU,
    "norm": NormKind.RMS,
    "biases": Biases.NONE,
    "positions": PositionEncoding.ROTARY,
    "tie_embeddings": False,
}
CONFIGS: dict[str, TransformerConfig] = {
    "pair": PAIR,
    "pair-pre": dataclasses.replace(PAIR, encoder_layers=1, norm_placement=NormPlacement.PRE, biases=Biases.ALL),
    "pair-modern": dataclasses.replace(PAIR, **MODERN),
    "pair-transformer-xl": dataclasses.replace(PAIR, positions=PositionEncoding.TRANSFORMER_XL, head_dim=3),
    "pair-general": dataclasses.replace(PAIR, score=Score.GENERAL, head_dim=3),
    "pair-additive": dataclasses.replace(PAIR, score=Score.ADDITIVE, kv_heads=2),
    "pair-concatenated": dataclasses.replace(PAIR, position_join=PositionCombination.CONCATENATED),
    "decoder": DECODER,
    "decoder-concatenated": dataclasses.replace(DECODER, position_join=PositionCombination.CONCATENATED),
    "decoder-modern": dataclasses.replace(DECODER, **MODERN),
    "decoder-windows": dataclasses.replace(DECODER, attention_windows=(0, 3)),
    "decoder-parallel": dataclasses.replace(DECODER, norm_placement=NormPlacement.PARALLEL, kv_heads=1),
    "decoder-shaw": dataclasses.replace(
        DECODER, positions=PositionEncoding.SHAW, relative_attention_max_distance=5, head_dim=3
    ),
    "decoder-t5": dataclasses.replace(DECODER, positions=PositionEncoding.T5),
    "decoder-disentangled": dataclasses.replace(
        DECODER, positions=PositionEncoding.DISENTANGLED, relative_attention_num_buckets=8
    ),
    "decoder-alibi": dataclasses.replace(DECODER, positions=PositionEncoding.ALIBI),
    **{f"decoder-{score.value}": dataclasses.replace(DECODER, score=score, head_dim=3) for score in Score},
    "encoder": ENCODER,
    "encoder-concatenated": dataclasses.replace(ENCODER, position_join=PositionCombination.CONCATENATED),
    "encoder-pooled": dataclasses.replace(ENCODER, head=EncoderHead.NONE, add_pooling_layer=True),
    "encoder-both": dataclasses.replace(
        ENCODER, head=EncoderHead.PRETRAINING, tie_embeddings=False, activation=Activation.GEGLU_TANH
    ),
}

# Of 3 rows of 7 tokens (with 4 of a target), and of 1 row of 5. The score by location reads no keys: their projection,
# which the formulas counted, is left out.
FORWARD = {
    "pair": (433_920, 136_800),
    "pair-pre": (349_248, 117_280),
    "pair-modern": (538_176, 172_640),
    "pair-transformer-xl": (394_800, 135_800),
    "pair-general": (367_752, 116_000),
    "pair-additive": (394_368, 126_560),
    "pair-concatenated": (467_712, 147_040),
    "decoder": (184_800, 42_720),
    "decoder-concatenated": (206_304, 47_840),
    "decoder-modern": (237_216, 54_560),
    "decoder-windows": (184_800, 42_720),
    "decoder-parallel": (152_544, 35_040),
    "decoder-shaw": (180_768, 42_080),
    "decoder-t5": (184_800, 42_720),
    # Both tables of eight relative positions are projected and multiplied in each of two layers.
    "decoder-disentangled": (
        184_800 + 2 * (2 * 2 * 21 * 16 * 8 + 2 * 2 * 8 * 16 * 16),
        42_720 + 2 * (2 * 2 * 5 * 16 * 8 + 2 * 2 * 8 * 16 * 16),
    ),
    "decoder-alibi": (184_800, 42_720),
    "decoder-dot": (158_592, 36_800),
    "decoder-scaled_dot": (158_592, 36_800),
    "decoder-general": (161_616, 37_520),
    "decoder-additive": (164_640, 38_240),
    "decoder-concat": (164_640, 38_240),
    "decoder-mlp": (164_640, 38_240),
    "decoder-cosine": (158_592, 36_800),
    # The differences of queries and keys are no products.
    "decoder-squared_distance": (158_592 - 7_056, 36_800 - 1_200),
    "decoder-location": (158_592 - 16_128, 36_800 - 3_840),
    "encoder": (195_552, 45_280),
    "encoder-concatenated": (217_056, 50_400),
    "encoder-pooled": (170_880, 39_552),
    "encoder-both": (229_536, 53_536),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_forward_pass_has_the_products_of_its_formula(name: str) -> None:
    model = model_of(CONFIGS[name])
    assert tuple(forward_flops(model, batch_of(*sizes)) for sizes in ((3, 7, 4), (1, 5, 5))) == FORWARD[name]


def test_every_config_has_its_count() -> None:
    assert list(FORWARD) == list(CONFIGS)


@pytest.mark.parametrize(
    ("config", "remembers", "expected"),
    [
        pytest.param(
            TransformerXLConfig(layers=2, memory_length=4, **TINY),
            True,
            260_384,
            id="transformer-xl",
        ),
        pytest.param(
            XLNetConfig(layers=2, memory_length=4, relative_segments=True, **TINY),
            True,
            385_984,
            id="xlnet",
        ),
        pytest.param(
            XLNetConfig(layers=2, memory_length=4, relative_segments=True, **TINY),
            False,
            320_960,
            id="xlnet-alone",
        ),
    ],
)
def test_a_segment_counts_its_memory(config: DecoderConfig | XLNetConfig, remembers: bool, expected: int) -> None:
    rows, length = 3, 7
    whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)  # noqa: E731
    inputs = {"tokens": whole(rows, length)}
    if remembers:
        memory = jax.ShapeDtypeStruct((rows, 2, 4, config.width), jnp.float32)
        inputs |= {"past": whole(rows), "memory": memory}
    if isinstance(config, XLNetConfig):
        inputs |= {"predicted": whole(rows, 2)}
    assert forward_flops(model_of(config), inputs) == expected


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.BLOCKWISE, Backend.SPLASH, Backend.XLA, Backend.EINSUM])
def test_the_count_is_the_models_whatever_program_computes_it(backend: Backend) -> None:
    """A causal decoder of one layer whose map is too large to be computed whole, and half of it hidden."""
    length, rows = 2048, 8
    config = DecoderConfig(layers=1, width=16, heads=4, feed_forward=24, max_length=length, backend=backend)
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    a_token = 8 * 16**2 + 4 * 16 * 24 + 2 * 16 * VOCABULARY
    assert rows * 4 * length**2 > 2**25
    assert forward_flops(model_of(config), {"tokens": tokens}) == rows * (length * a_token + 4 * length**2 * 16)


@pytest.mark.parametrize("config", [PAIR, DECODER, ENCODER], ids=["pair", "decoder", "encoder"])
def test_a_step_costs_three_forward_passes_padding_included(config: TransformerConfig) -> None:
    model, batch = model_of(config), batch_of(4, 6, 5)
    assert training_flops(model, batch) == 3 * forward_flops(model, batch)


A_TOKEN = {
    "transformer-base": 381_444_096,
    "transformer-big": 1_291_370_496,
    "gpt1": 752_753_664,
    "gpt2": 854_438_400,
    "gpt2-medium": 2_422_708_224,
    "gpt2-large": 5_198_937_600,
    "gpt2-xl": 10_273_545_600,
    "gpt3-125m": 967_684_608,
    "gpt3-350m": 2_724_698_112,
    "gpt3-760m": 5_446_001_664,
    "gpt3-1.3b": 9_073_274_880,
    "gpt3-2.7b": 17_884_707_840,
    "gpt3-6.7b": 43_111_047_168,
    "gpt3-13b": 82_074_531_840,
    "gpt3-175b": 1_076_373_430_272,
    "bert-base": 710_415_360,
    "bert-large": 2_156_752_896,
    "roberta-base": 801_391_104,
    "roberta-large": 2_278_053_888,
    "xlnet-base": 1_308_340_224,
    "xlnet-large": 4_122_771_456,
    "megatron-lm-8.3b": 52_583_989_248,
    "turing-nlg-17b": 107_088_203_712,
    "gopher-280b": 1_613_750_599_680,
    "vit-b16": 534938930.680203,
    "vit-b32": 529102356.48,
    "vit-l16": 1874762819.573604,
    "vit-l32": 1845304688.64,
    "vit-h14": 3905722391.906615,
    "deit-ti16": 38183244.67005076,
    "deit-s16": 140067481.3401015,
    "deit-b16-distilled": 535054894.54545456,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", A_TOKEN)
def test_a_token_of_a_published_size_costs_what_its_formula_says(name: str) -> None:
    assert training_flops_per_token(model_config({"size": name}), published_sizes()[name]) == A_TOKEN[name]


def test_a_token_of_gpt2_costs_six_a_weight_and_twelve_a_layer_width_and_position() -> None:
    """6 N + 12 L H Q T, Chowdhery et al. 2022, appendix B; positions are looked up and cost no product."""
    for name, layers, width in (("gpt2", 12, 768), ("gpt2-xl", 48, 1600)):
        matrices = 12 * layers * width**2 + 50_257 * width
        found = training_flops_per_token(model_config({"size": name}), SIZES[name])
        assert found == 6 * matrices + 12 * layers * width * 1024


def test_a_patch_of_vit_costs_six_a_weight_and_twelve_a_layer_width_and_position() -> None:
    """196 patches and a class token meet every block; patches alone are embedded, the class token alone is scored."""
    found = training_flops_per_token(model_config({"size": "vit-b16"}), published_sizes()["vit-b16"])
    blocks = 197 * (6 * 12 * 12 * 768**2 + 12 * 12 * 768 * 197)
    assert found == pytest.approx((blocks + 6 * 768 * (196 * 3 * 16**2 + 1000)) / 197)


@pytest.mark.parametrize(("name", "extra"), [("gpt3-175b", 1), ("gpt3-13b", 1), ("gopher-280b", 4 / 3)])
def test_published_training_costs_are_met(name: str, extra: float) -> None:
    """Brown et al. 2020, table D.1 (without attention); Rae et al. 2021 computed every forward pass twice."""
    size = SIZES[name]
    assert size.training_flops is not None
    assert size.training_tokens is not None
    a_token = training_flops_per_token(model_config({"size": name}), size)
    assert extra * a_token * size.training_tokens == pytest.approx(size.training_flops, rel=0.08)


def test_transformer_base_is_about_six_operations_a_parameter_and_token() -> None:
    """Vaswani et al. 2017, table 3: 65 million parameters; short sentences leave the square terms small."""
    model = build(
        EncoderDecoderConfig(), TaskInterface({}, {"joint": 37_000}, pad_id=0, bos_id=1, eos_id=2), Precision()
    )
    a_pair = forward_flops(model, batch_of(1, 32, 32))
    # Encoder weights meet every source position, decoder weights and the shared table every target position.
    encoder, decoder = 6 * (4 * 512**2 + 2 * 512 * 2048), 6 * (8 * 512**2 + 2 * 512 * 2048)
    assert a_pair == pytest.approx(2 * 32 * (encoder + decoder + 512 * 37_000), rel=0.02)


# Of 3 rows of 20 tokens, by the policy: full, attention, dots.
CHANGES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "post": ({}, (491_520, 414_720, 153_600)),
    "pre": ({"norm_placement": NormPlacement.PRE}, (491_520, 414_720, 153_600)),
    "parallel": ({"norm_placement": NormPlacement.PARALLEL}, (430_080, 353_280, 153_600)),
    "modern": ({**MODERN, "norm_placement": NormPlacement.PRE}, (691_200, 576_000, 230_400)),
    "attention_windows": (
        {"norm_placement": NormPlacement.PRE, "attention_windows": (0, 3)},
        (537_600, 460_800, 153_600),
    ),
}


@pytest.mark.parametrize(
    "name", [name if name == "attention_windows" else pytest.param(name, marks=pytest.mark.slow) for name in CHANGES]
)
def test_what_is_computed_again_is_that_of_its_formula(name: str) -> None:
    changed, expected = CHANGES[name]
    config = dataclasses.replace(DECODER, dropout=0.0, **changed)

    def again(remat: Remat) -> int:
        return recomputed_flops(model_of(dataclasses.replace(config, remat=remat)), batch_of(3, 20, 20))

    assert tuple(map(again, (Remat.FULL, Remat.ATTENTION, Remat.DOTS))) == expected
    assert again(Remat.NONE) == 0


# By what the scores of one more row of a vocabulary exceed, with the features that each is a product of.
OF_SCORES = 3 * 2
# A training step over the largest batch of the contracts' cases, one a family and more. What a trace counts otherwise
# than the formulas did: rows of a table beyond the task's tokens, which Transformers score as well as other families;
# of a backward language model no scores of a text's last place; the sum that ELMo makes of its layers; coverage, which
# is a multiple of one vector and no product; and SAGAN's estimates of spectral norms, whatever the batch.
STEPS = {
    "pointer": 196_608,
    "two_players": 129_024,
    "translation x encoder_decoder": 59_572_224,
    "translation x recurrent": 4_786_176,
    "translation x convs2s": 3_465_216,
    "translation x bytenet": 5_849_088,
    "language_modeling x decoder": 26_738_688,
    "language_modeling x recurrent_decoder": 17_694_720,
    "language_modeling x decoder with experts": 24_772_608,
    "masked_lm x encoder": 22_904_832 + OF_SCORES * 512 * 16 * (264 - 258),
    "algorithms x turing": 454_656,
    "algorithms x controller_only": 2_531_328,
    "language_modeling x bidirectional_language_model": 8_650_752 - OF_SCORES * 16 * 4 * 288,
    "classification x recurrent_classifier": 1_010_688,
    "classification x recurrent_classifier with ELMo": 1_797_120 + 3 * 2 * 3 * 128 * 8,
    "fine_tuning x decoder from a language model": 85_529_088,
    "memory": 92_160,
    "patches": 427_008,
    "image_classification x vit": 1_124_352,
    "image_classification x convolutional_classifier": 437_760,
    "summarization x pointer_generator": 6_650_880 - 3 * 2 * 16 * 10 * 32 * 8,
    "linear_regression x regression_decoder": 2_774_016,
    "in_context_learning x decoder": 5_971_968 + OF_SCORES * 384 * 16 * (32 - 18),
    "few_shot x snail": 3_717_504,
    "point_clouds x set_transformer": 6_700_032,
    # Of each row a product of 9 x 9 weights with one value; the distances are no products.
    "kernel_regression x kernel_regression": 3 * 2 * 16 * 9 * 9,
    "graph_distances x graph_transformer": 400_896,
    "geometry x pointer": 2_657_280,
    "visual_question_answering x smem_vqa": 7_130_112,
    "visual_question_answering x stacked_attention_vqa": 6_210_048,
    "captions x captioner": 2_646_528,
    "handshake_rl x recurrent_q_network": 4_018_176,
    "scene_text x show_attend_read": 3_578_880,
    "paired_digits x sagan": 10_814_208 + 3 * 15_172,
    "spoken_digits x listen_attend_spell": 389_480_448,
    "spoken_digits x speech_transformer": 249_486_336 + OF_SCORES * 32 * 16 * (16 - 13),
    "permutation_lm x xlnet": 13_768_704 + OF_SCORES * 64 * 16 * (264 - 257),
    "segment_lm x transformer_xl": 10_248_192 + OF_SCORES * 256 * 16 * (264 - 257),
    "instruction_following x listen_attend_walk": 2_955_264,
    "attention_probes x decoder": 1_873_920 + OF_SCORES * 160 * 16 * (8 - 6),
    "attention_probes x bytenet_decoder": 4_669_440,
    # Of 16 x 2 texts of 32 tokens four projections, the feed-forward network, and attention.
    "text_retrieval x dual_encoder": 3 * 1024 * (4 * 2 * 16**2 + 2 * 2 * 16**2 + 2 * 2 * 32 * 16),
    "normed_translator": 66_674_688,
}


def assembled(name: str) -> TrainingComponents:
    (case,) = (case for case in CASES if case.name == name)
    return build_components(case.experiment(OptimizerAlgorithm.SGD, 0.1), Path("nowhere"), synthetic=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_every_family_has_the_products_of_its_formula(name: str) -> None:
    components = assembled(name)
    assert flops_counter(components)(abstract_batch(components.task)) == STEPS[name]


def test_a_step_is_traced_once_for_each_shape_of_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    components, traced = assembled("attention_probes x decoder"), []
    monkeypatch.setattr(building, "training_flops", lambda *given: traced.append(given) or training_flops(*given))
    count, batch = flops_counter(components), components.task.training_batches(0)[0]
    half = {name: array[: len(array) // 2] for name, array in batch.items()}
    assert [count(each) for each in (batch, half, batch, half)] == [1_904_640, 952_320] * 2
    assert len(traced) == 2


def test_what_cannot_be_counted_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    components = assembled("attention_probes x decoder")

    def refuse(jaxpr: Any) -> int:
        raise UncountableError("for a reason")

    monkeypatch.setattr(flops, "count_matmul_flops", refuse)
    count, batch = flops_counter(components), components.task.training_batches(0)[0]
    with caplog.at_level(logging.WARNING):
        assert count(batch) is None
        assert count({name: array[:8] for name, array in batch.items()}) is None
    (record,) = caplog.records
    assert (
        record.getMessage()
        == "FLOPs per step and MFU are not logged, because the FLOPs cannot be counted: for a reason"
    )
