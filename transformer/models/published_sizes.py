"""Published Transformers by name: the config values that each fixes, and the numbers given in its paper."""

from collections.abc import Mapping
from typing import Any

from transformer.models.model_family import PublishedSize


def _common_values(width: int, heads: int, feed_forward: int) -> dict[str, Any]:
    """Return the values that all sizes have: as many key heads as query heads, of width / heads each."""
    return {
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "feed_forward": feed_forward,
        "score": "scaled_dot",
        "norm": "layer",
        "tie_embeddings": True,
        "logit_scale": "none",
    }


def _transformer(width: int, heads: int, **metadata: Any) -> PublishedSize:
    values = _common_values(width, heads, 4 * width) | {
        "encoder_layers": 6,
        "decoder_layers": 6,
        "activation": "relu",
        "norm_placement": "post",
        "biases": "feed_forward",
        "initialization": "xavier",
        "positions": "sinusoidal",
        "attention_windows": (),
        "embedding_scale": "sqrt_width",
        "embedding_norm": False,
        "output_bias": False,
    }
    return PublishedSize("encoder_decoder", values, 37_000, 32, "Vaswani et al. 2017, table 3", **metadata)


_TRANSFORMER_NOTES = (
    "the vocabulary is published as 'about 37000 tokens' (section 5.1), so that no count can be exact: with 37,000 it "
    "is within 4% of the published one",
    "no context is fixed: operations are counted at 32 positions, about a sentence",
)


def _decoder(layers: int, width: int, heads: int, max_length: int, **changes: Any) -> dict[str, Any]:
    """Return the values of GPT-2's architecture (Radford et al. 2019, section 2.3), which others adopt."""
    return _common_values(width, heads, 4 * width) | {
        "layers": layers,
        "activation": "gelu_tanh",
        "norm_placement": "pre",
        "biases": "all",
        "positions": "learned",
        "attention_windows": (),
        "max_length": max_length,
        "embedding_scale": "none",
        "embedding_norm": False,
        "output_bias": False,
        **changes,
    }


# What models fix as well whose code states it, or whose paper by naming GPT-2's.
_GPT2 = {"norm_epsilon": 1e-5, "initialization": "gpt2"}


def _gpt2(layers: int, width: int, heads: int, published: float) -> PublishedSize:
    notes = ("the paper prints 117M, 345M, 762M and 1542M; the released weights hold what is counted here",)
    values = _decoder(layers, width, heads, 1024, **_GPT2)
    return PublishedSize("decoder", values, 50_257, 1024, "Radford et al. 2019, table 2", published, notes=notes)


_GPT3_BANDS = (
    "dense and locally banded layers alternate (section 2.1) after Child et al. 2019; the width of the band is not "
    "published: 128 positions here"
)


def _gpt3(layers: int, width: int, heads: int, published: float, flops: float, *notes: str) -> PublishedSize:
    values = _decoder(layers, width, heads, 2048, attention_windows=(0, 128), **_GPT2)
    citation = "Brown et al. 2020, tables 2.1 and D.1"
    return PublishedSize("decoder", values, 50_257, 2048, citation, published, flops, 300e9, (_GPT3_BANDS, *notes))


def _encoder(layers: int, width: int, heads: int, **changes: Any) -> dict[str, Any]:
    """Return the values of BERT's architecture (Devlin et al. 2019, section 3), without its heads."""
    return _common_values(width, heads, 4 * width) | {
        "layers": layers,
        "activation": "gelu",
        "norm_epsilon": 1e-12,
        "norm_placement": "post",
        "biases": "all",
        "initialization": "bert",
        "positions": "learned",
        "attention_windows": (),
        "max_length": 512,
        "embedding_scale": "none",
        "embedding_norm": True,
        "output_bias": True,
        "num_token_types": 2,
        "position_offset": 0,
        **changes,
    }


_POOLED = {"head": "none", "add_pooling_layer": True}
_ENCODER_NOTE = (
    "parameters are those of encoder and pooler, without heads; operations are those of training with the head of "
    "masked tokens at every position; training FLOPs as Brown et al. 2020, table D.1, give them"
)


def _bert(layers: int, width: int, heads: int, published: float, flops: float) -> PublishedSize:
    notes = (_ENCODER_NOTE, "vocabulary of the uncased models")
    values = _encoder(layers, width, heads)
    citation = "Devlin et al. 2019, section 3"
    return PublishedSize("encoder", values, 30_522, 512, citation, published, flops, 250e9, notes, _POOLED)


def _roberta(layers: int, width: int, heads: int, published: float, flops: float, *notes: str) -> PublishedSize:
    values = _encoder(layers, width, heads, norm_epsilon=1e-5, num_token_types=1, position_offset=2)
    citation = "Liu et al. 2019, sections 4 and 5"
    return PublishedSize(
        "encoder", values, 50_265, 512, citation, published, flops, 2e12, (_ENCODER_NOTE, *notes), _POOLED
    )


def _xlnet(layers: int, width: int, heads: int, note: str) -> PublishedSize:
    values = _common_values(width, heads, 4 * width) | {
        "layers": layers,
        "activation": "gelu",
        "norm_epsilon": 1e-12,
        "norm_placement": "post",
        "biases": "feed_forward",
        "initialization": "gpt",
        "positions": "transformer_xl",
        "attention_windows": (),
        "embedding_scale": "none",
        "embedding_norm": False,
        "relative_segments": True,
    }
    notes = (
        "parameters are without the bias of the scores; operations are those of predicting every position with both "
        "streams, behind no memory",
        note,
    )
    citation = "Yang et al. 2019, section 3.1"
    return PublishedSize("xlnet", values, 32_000, 512, citation, notes=notes, count_overrides={"output_bias": False})


PUBLISHED_SIZES: Mapping[str, PublishedSize] = {
    "transformer-base": _transformer(
        512, 8, published_parameters=65e6, training_flops=3.3e18, notes=_TRANSFORMER_NOTES
    ),
    "transformer-big": _transformer(
        1024, 16, published_parameters=213e6, training_flops=2.3e19, notes=_TRANSFORMER_NOTES
    ),
    "gpt1": PublishedSize(
        "decoder",
        _decoder(12, 768, 12, 512, norm_placement="post", norm_epsilon=1e-5, initialization="gpt"),
        40_478,
        512,
        "Radford et al. 2018, section 4.1",
        117e6,
        notes=("the 117M are printed in Radford et al. 2019, table 2",),
    ),
    "gpt2": _gpt2(12, 768, 12, 117e6),
    "gpt2-medium": _gpt2(24, 1024, 16, 345e6),
    "gpt2-large": _gpt2(36, 1280, 20, 762e6),
    "gpt2-xl": _gpt2(48, 1600, 25, 1542e6),
    "gpt3-125m": _gpt3(12, 768, 12, 125e6, 2.25e20),
    "gpt3-350m": _gpt3(24, 1024, 16, 350e6, 6.41e20),
    "gpt3-760m": _gpt3(24, 1536, 16, 760e6, 1.37e21),
    "gpt3-1.3b": _gpt3(
        24, 2048, 16, 1.3e9, 2.38e21, "the paper prints 24 heads of depth 128, but 16 x 128 = 2048, the width"
    ),
    "gpt3-2.7b": _gpt3(32, 2560, 32, 2.7e9, 4.77e21),
    "gpt3-6.7b": _gpt3(32, 4096, 32, 6.7e9, 1.20e22),
    "gpt3-13b": _gpt3(40, 5120, 40, 13e9, 2.31e22, "the paper prints the width 5140, but 40 heads x 128 = 5120"),
    "gpt3-175b": _gpt3(96, 12288, 96, 175e9, 3.14e23),
    "bert-base": _bert(12, 768, 12, 110e6, 1.64e20),
    "bert-large": _bert(24, 1024, 16, 340e6, 5.33e20),
    "roberta-base": _roberta(12, 768, 12, 125e6, 1.50e21, "the 125M are printed in Brown et al. 2020, table D.1"),
    "roberta-large": _roberta(24, 1024, 16, 355e6, 4.26e21),
    "xlnet-base": _xlnet(12, 768, 12, "base is of its code: the paper prints the large model alone"),
    "xlnet-large": _xlnet(24, 1024, 16, "the paper prints no number, but 'a similar model size' to BERT-large's"),
    "megatron-lm-8.3b": PublishedSize(
        "decoder",
        _decoder(72, 3072, 24, 1024, **_GPT2),
        51_200,
        1024,
        "Shoeybi et al. 2019, table 2",
        8.3e9,
        notes=("GPT-2's arrangement, its vocabulary filled up from 50,257 to 51,200; 32 heads in table 1's study",),
    ),
    "turing-nlg-17b": PublishedSize(
        "decoder",
        _decoder(78, 4256, 28, 1024),
        50_257,
        1024,
        "Rosset 2020, Turing-NLG",
        17e9,
        notes=("arrangement and vocabulary are taken to be GPT-2's, which its source does not say",),
    ),
    "gopher-280b": PublishedSize(
        "decoder",
        _decoder(80, 16384, 128, 2048, norm="rms", positions="transformer_xl"),
        32_000,
        2048,
        "Rae et al. 2021, table 1",
        280e9,
        6.31e23,
        300e9,
        notes=(
            "weight matrices and embeddings are 13 L d^2 + V d = 279,697,162,240, the rest norms and biases",
            "its published training FLOPs hold rematerialization, a third more, and padding (appendix on compute)",
        ),
    ),
}


def sizes_of_family(name: str) -> Mapping[str, PublishedSize]:
    """Return the published sizes of one family, by name."""
    return {key: size for key, size in PUBLISHED_SIZES.items() if size.family == name}
