"""Published models by name: their parameters to the last one, by shapes and by formulas that know no code."""

import dataclasses
from typing import Any

import jax
import pytest

from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.encoder import EncoderHead
from transformer.models.model import count_parameters
from transformer.models.published_sizes import PUBLISHED_SIZES as SIZES
from transformer.models.task_interface import TaskInterface

POOLED: dict[str, Any] = {"head": EncoderHead.NONE, "add_pooling_layer": True}
UNSCORED: dict[str, Any] = {"output_bias": False}


def shapes(name: str, vocabulary: int | None = None, **changes: Any) -> dict[str, Any]:
    config = dataclasses.replace(registry.model_config({"size": name}), **changes)
    size = SIZES[name].vocab_size if vocabulary is None else vocabulary
    interface = TaskInterface({}, {"tokens": size, "joint": size}, pad_id=0, bos_id=1, eos_id=2)
    return registry.build(config, interface, Precision()).functional.shapes()


def counted(name: str, vocabulary: int | None = None, **changes: Any) -> int:
    return count_parameters(shapes(name, vocabulary, **changes))


def gpt(layers: int, width: int, vocabulary: int, context: int, final: bool = True) -> int:
    """V d + T d + L (12 d^2 + 13 d), and the final norm's 2 d."""
    blocks = layers * (12 * width**2 + 13 * width)
    return (vocabulary + context) * width + blocks + (2 * width if final else 0)


def bert(layers: int, width: int, vocabulary: int, rows: int, types: int) -> int:
    """(V + T + types) d + 2 d + L (12 d^2 + 13 d) + d^2 + d: embeddings and their norm, blocks, pooler."""
    return (vocabulary + rows + types + 2) * width + layers * (12 * width**2 + 13 * width) + width**2 + width


def yang(layers: int, width: int, vocabulary: int) -> int:
    """V d + d + L (13 d^2 + 14 d): five projections, r_w, r_r, r_s, two of kinds, feed-forward, norms; g^(0) once."""
    projections, others = 5 * width**2 + 3 * width + 2 * width, 8 * width**2 + 5 * width + 4 * width
    return vocabulary * width + width + layers * (projections + others)


def vaswani(width: int, hidden: int, layers: int, vocabulary: int) -> int:
    """V d + N (4 d^2 + 2 d f + f + d + 4 d) + N (8 d^2 + 2 d f + f + d + 6 d), no biases in attention."""
    encoder = 4 * width**2 + 2 * width * hidden + hidden + 5 * width
    decoder = 8 * width**2 + 2 * width * hidden + hidden + 7 * width
    return vocabulary * width + layers * (encoder + decoder)


@pytest.mark.parametrize(
    ("name", "exact", "formula"),
    [
        ("transformer-base", 63_045_632, vaswani(512, 2048, 6, 37_000)),
        ("transformer-big", 214_171_648, vaswani(1024, 4096, 6, 37_000)),
        ("gpt1", 116_534_784, gpt(12, 768, 40_478, 512, final=False)),
        ("gpt2", 124_439_808, gpt(12, 768, 50_257, 1024)),
        ("gpt2-medium", 354_823_168, gpt(24, 1024, 50_257, 1024)),
        ("gpt2-large", 774_030_080, gpt(36, 1280, 50_257, 1024)),
        ("gpt2-xl", 1_557_611_200, gpt(48, 1600, 50_257, 1024)),
        ("gpt3-125m", 125_226_240, gpt(12, 768, 50_257, 2048)),
        ("gpt3-350m", 355_871_744, gpt(24, 1024, 50_257, 2048)),
        ("gpt3-760m", 760_300_032, gpt(24, 1536, 50_257, 2048)),
        ("gpt3-1.3b", 1_315_723_264, gpt(24, 2048, 50_257, 2048)),
        ("gpt3-2.7b", 2_651_553_280, gpt(32, 2560, 50_257, 2048)),
        ("gpt3-6.7b", 6_658_404_352, gpt(32, 4096, 50_257, 2048)),
        ("gpt3-13b", 12_853_386_240, gpt(40, 5120, 50_257, 2048)),
        ("gpt3-175b", 174_604_259_328, gpt(96, 12288, 50_257, 2048)),
        ("bert-base", 109_482_240, bert(12, 768, 30_522, 512, 2)),
        ("bert-large", 335_141_888, bert(24, 1024, 30_522, 512, 2)),
        ("roberta-base", 124_645_632, bert(12, 768, 50_265, 514, 1)),
        ("roberta-large", 355_359_744, bert(24, 1024, 50_265, 514, 1)),
        ("xlnet-base", 116_718_336, yang(12, 768, 32_000)),
        ("xlnet-large", 360_268_800, yang(24, 1024, 32_000)),
        ("megatron-lm-8.3b", 8_317_040_640, gpt(72, 3072, 51_200, 1024)),
        ("turing-nlg-17b", 17_176_845_728, gpt(78, 4256, 50_257, 1024)),
    ],
)
def test_a_size_has_exactly_the_published_models_parameters(name: str, exact: int, formula: int) -> None:
    changes = {"encoder": POOLED, "xlnet": UNSCORED}.get(SIZES[name].family, {})
    assert counted(name, **changes) == exact == formula


@pytest.mark.parametrize(
    ("name", "vocabulary", "changes", "exact"),
    [
        ("bert-base", None, {"head": EncoderHead.NONE}, 108_891_648),
        ("bert-large", None, {"head": EncoderHead.NONE}, 334_092_288),
        # The published 110,106,428 and 336,226,108 have the head of sentence pairs, 2 d + 2, besides.
        ("bert-base", None, {"add_pooling_layer": True}, 110_106_428 - 2 * 768 - 2),
        ("bert-large", None, {"add_pooling_layer": True}, 336_226_108 - 2 * 1024 - 2),
        ("bert-base", None, {"head": EncoderHead.PRETRAINING}, 110_106_428),
        ("bert-large", None, {"head": EncoderHead.PRETRAINING}, 336_226_108),
        ("bert-base", 28_996, POOLED, 108_310_272),
        ("bert-large", 28_996, POOLED, 333_579_264),
        ("roberta-base", None, {}, 124_697_433),
        ("roberta-large", None, {}, 355_412_057),
        ("roberta-large", None, {"head": EncoderHead.NONE}, 354_310_144),
        ("megatron-lm-8.3b", 50_257, {}, 8_314_143_744),
        (
            "megatron-lm-8.3b",
            None,
            {"layers": 40, "width": 1536, "feed_forward": 6144, "head_dim": 64},
            1_213_479_936,
        ),
    ],
)
def test_the_same_arrangement_with_other_ends_counts_too(
    name: str, vocabulary: int | None, changes: dict[str, Any], exact: int
) -> None:
    assert counted(name, vocabulary, **changes) == exact


@pytest.mark.parametrize(
    ("layers", "width", "matrices"),
    [
        (8, 512, 43_646_976),
        (12, 768, 116_588_544),
        (12, 1536, 417_202_176),
        (24, 2048, 1_374_158_848),
        (32, 4096, 7_110_393_856),
        (80, 16384, 279_697_162_240),
    ],
)
def test_gophers_family_has_thirteen_squares_a_layer_and_one_vocabulary(layers: int, width: int, matrices: int) -> None:
    """Rae et al. 2021, table 1: 44M, 117M, 417M, 1.4B, 7.1B and 280B."""
    found = shapes(
        "gopher-280b",
        layers=layers,
        width=width,
        heads=8,
        kv_heads=8,
        head_dim=width // 8,
        feed_forward=4 * width,
    )
    leaves = [(path[-1].key, leaf.size) for path, leaf in jax.tree_util.tree_leaves_with_path(found)]
    vectors = {"scale", "bias", "content", "position"}
    vector_sizes = [size for name, size in leaves if name in vectors]
    matrix_sizes = [size for name, size in leaves if name not in vectors]
    assert sum(matrix_sizes) == matrices == 13 * layers * width**2 + 32_000 * width
    # Two norms without bias, 4 d of attention's and 5 d of the feed-forward's biases, u and v; and the final norm.
    assert sum(vector_sizes) == layers * (2 + 4 + 5 + 2) * width + width
    assert min(matrix_sizes) > max(vector_sizes)


def test_gopher_in_full() -> None:
    assert counted("gopher-280b") == 279_714_217_984


@pytest.mark.parametrize("name", ["transformer-base", "transformer-big"])
def test_vaswanis_models_are_within_four_percent_and_say_why(name: str) -> None:
    size = SIZES[name]
    assert size.published_parameters is not None
    assert counted(name) == pytest.approx(size.published_parameters, rel=0.04)
    assert "37000" in size.notes[0]


def test_what_is_printed_of_training_is_consistent() -> None:
    """Brown et al. 2020, table D.1: FLOPs are 6 x parameters x tokens, both rounded there."""
    for name, size in SIZES.items():
        assert size.citation, name
        if name.startswith(("gpt3", "bert", "roberta")):
            assert size.training_flops is not None, name
            assert size.training_tokens is not None, name
            # The table counts BERT-large with RoBERTa-large's 355 million.
            parameters = 355e6 if name == "bert-large" else counted(name)
            assert size.training_flops == pytest.approx(6 * parameters * size.training_tokens, rel=0.02), name


@pytest.mark.parametrize("name", list(SIZES))
def test_a_size_fixes_its_architecture_and_nothing_of_its_training(name: str) -> None:
    size = SIZES[name]
    config = registry.model_config({"size": name})
    fields = {field.name for field in dataclasses.fields(config)}
    free = {"dropout", "attention_dropout", "stochastic_depth", "backend", "remat", "scan_unroll"}
    assert not free & set(size.config_values)
    assert {"width", "heads", "kv_heads", "head_dim", "feed_forward", "positions"} <= set(size.config_values) <= fields
    assert config.heads * config.resolved_head_dim == config.width
    assert config.resolved_kv_heads == config.heads


# Brown et al. 2020, table 2.1; heads of the other models of language have 64 features.
HEAD_DIMS = {
    "gpt3-760m": 96,
    "gpt3-2.7b": 80,
    **dict.fromkeys(("gpt3-1.3b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b"), 128),
}


@pytest.mark.parametrize(
    "name", [name for name in SIZES if name.startswith(("transformer", "gpt", "bert", "roberta", "xlnet"))]
)
def test_heads_have_their_published_depth(name: str) -> None:
    assert registry.model_config({"size": name}).resolved_head_dim == HEAD_DIMS.get(name, 64)


@pytest.mark.parametrize("name", [name for name in SIZES if SIZES[name].family == "decoder"])
def test_gpt3s_sizes_alone_alternate_dense_and_banded_layers(name: str) -> None:
    config = registry.model_config({"size": name})
    assert config.attention_windows == ((0, 128) if name.startswith("gpt3") else ())
    assert config.layers % max(len(config.attention_windows), 1) == 0
