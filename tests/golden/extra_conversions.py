"""Tables for the recorded arrangements that are not exchanged as files: XLNet run causally, and torch.nn."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer.huggingface.conversion_spec import (
    ConversionSpec,
    TensorEntry,
    embedding_entries,
    linear_entries,
    norm_entries,
)
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR, TABLE, VECTOR

Weights = Mapping[str, np.ndarray]

_XLNET = "transformer.layer.{layer}"
XLNET = (
    *embedding_entries("transformer.word_embedding", "embedding"),
    *(
        TensorEntry(f"{_XLNET}.rel_attn.{theirs}", (f"layers/attention/{ours}/kernel",), layout)
        for theirs, ours, layout in (
            ("q", "query", TABLE),
            ("k", "key", TABLE),
            ("v", "value", TABLE),
            ("o", "output", FROM_HEADS),
        )
    ),
    TensorEntry(f"{_XLNET}.rel_attn.r", ("layers/attention/relative/weight",), TABLE),
    TensorEntry(f"{_XLNET}.rel_attn.r_w_bias", ("layers/attention/relative/content",), VECTOR),
    TensorEntry(f"{_XLNET}.rel_attn.r_r_bias", ("layers/attention/relative/position",), VECTOR),
    *norm_entries(f"{_XLNET}.rel_attn.layer_norm", "layers/attention_residual/norm"),
    *linear_entries(f"{_XLNET}.ff.layer_1", "layers/feed_forward/expand"),
    *linear_entries(f"{_XLNET}.ff.layer_2", "layers/feed_forward/contract"),
    *norm_entries(f"{_XLNET}.ff.layer_norm", "layers/feed_forward_residual/norm"),
    TensorEntry("lm_loss.bias", ("output_bias/bias",), VECTOR),
)


def _fused(tensor: str, leaf: str) -> tuple[TensorEntry, ...]:
    parts = tuple(f"{leaf}/{part}/kernel" for part in ("query", "key", "value"))
    output = TensorEntry(f"{tensor}.out_proj.weight", (f"{leaf}/output/kernel",), FROM_HEADS)
    return TensorEntry(f"{tensor}.in_proj_weight", parts, LINEAR), output


def _torch(side: str, stack: str, final: str, last: int) -> tuple[TensorEntry, ...]:
    layer = f"{side}.layers.{{layer}}"
    return (
        *_fused(f"{layer}.self_attn", f"{stack}/attention"),
        *norm_entries(f"{layer}.norm1", f"{stack}/attention_residual/norm"),
        *_fused(f"{layer}.multihead_attn", f"{stack}/cross"),
        *norm_entries(f"{layer}.norm2", f"{stack}/{'cross' if last == 3 else 'feed_forward'}_residual/norm"),
        *linear_entries(f"{layer}.linear1", f"{stack}/feed_forward/expand"),
        *linear_entries(f"{layer}.linear2", f"{stack}/feed_forward/contract"),
        *(norm_entries(f"{layer}.norm3", f"{stack}/feed_forward_residual/norm") if last == 3 else ()),
        *norm_entries(f"{side}.norm", final),
    )


TORCH_ENCODER = (*embedding_entries("embedding", "embedding"), *_torch("encoder", "layers", "norm", 2))
TORCH = (
    *embedding_entries("embedding", "embedding"),
    *_torch("encoder", "encoder", "encoder_norm", 2),
    *_torch("decoder", "decoder", "decoder_norm", 3),
)


def _xlnet(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "family": "decoder",
        "layers": config["n_layer"],
        "width": config["d_model"],
        "heads": config["n_head"],
        "feed_forward": config["d_inner"],
        "activation": "gelu",
        "norm_epsilon": config["layer_norm_eps"],
        "norm_placement": "post",
        "biases": "feed_forward",
        "positions": "transformer_xl",
        "output_bias": True,
    }


def _torch_section(config: Mapping[str, Any], decoder: bool) -> dict[str, Any]:
    same = {key: value for key, value in config.items() if key not in ("layers", "pad_token_id")}
    if decoder:
        return {**same, "family": "encoder_decoder", **{f"{side}_layers": config["layers"] for side in SIDES}}
    alone = {"num_token_types": 0, "head": "none", "embedding_norm": False, "output_bias": False}
    return {**same, **alone, "family": "encoder", "layers": config["layers"]}


SIDES = ("encoder", "decoder")


def _flat(weights: Weights) -> Weights:
    """XLNet keeps heads on axes of their own; what it has for kinds of tokens and for masks is not read here."""
    unread = ("seg_embed", "r_s_bias", "mask_emb")
    read = {name: value for name, value in weights.items() if not name.endswith(unread)}
    return {
        name: value.reshape(-1) if "_bias" in name else value.reshape(len(value), -1) if value.ndim > 1 else value
        for name, value in read.items()
    }


def _as_they_are(weights: Weights) -> Weights:
    return weights


Arrangement = tuple[
    tuple[TensorEntry, ...], Callable[[Mapping[str, Any]], dict[str, Any]], Callable[[Weights], Weights]
]

ARRANGEMENTS: dict[str, Arrangement] = {
    "xlnet": (XLNET, _xlnet, _flat),
    **dict.fromkeys(("torch_pre", "torch_post"), (TORCH, lambda config: _torch_section(config, True), _as_they_are)),
    **dict.fromkeys(
        ("torch_encoder_pre", "torch_encoder_post"),
        (TORCH_ENCODER, lambda config: _torch_section(config, False), _as_they_are),
    ),
}


def family(entries: tuple[TensorEntry, ...]) -> ConversionSpec:
    """A family of tensors alone."""
    return ConversionSpec(
        "recorded", "", "", config_keys=(), fixed_fields={}, training_defaults={}, tensor_entries=entries
    )
