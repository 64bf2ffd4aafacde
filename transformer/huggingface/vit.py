"""ViT (Dosovitskiy et al. 2021) and DeiT with its distillation token (Touvron et al. 2021)."""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    Entry,
    Family,
    FixedKey,
    Key,
    Names,
    attention,
    linear,
    norm,
)
from transformer.huggingface.tensor_layouts import CONVOLUTION, ONE_TABLE, VECTOR, Shape
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.models.vit import VitConfig

_KEYS = (
    Key("patch_size", "patch", 16),
    Key("num_hidden_layers", "layers", 12),
    Key("hidden_size", "width", 768),
    Key("num_attention_heads", "heads", 12),
    Key("intermediate_size", "feed_forward", 3072),
    Key("layer_norm_eps", "norm_epsilon", 1e-12),
    Key("hidden_dropout_prob", "dropout", 0.0),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0),
    Key("hidden_act", "activation", "gelu", ACTIVATIONS),
    Key("image_size", "side", 224),
    Key("num_channels", "channels", 3),
    Key("num_labels", "classes", 2),
)
_FIXED: dict[str, Any] = {
    "positions": "learned",
    "norm": "layer",
    "norm_placement": "pre",
    "biases": "all",
    "score": "scaled_dot",
}


def _simplify(config: Config, names: Names) -> Config:
    """The config with the number of its classes, which the names of the classes say where they stand in it."""
    for key in ("image_size", "patch_size"):
        if isinstance(config.get(key), list):
            raise UserError(f"config.json has {key}={config[key]}; only square images and patches can be read")
    named = config.get("id2label")
    return {**config, "num_labels": len(named)} if isinstance(named, dict) else config


def _interface(section: Config) -> TaskInterface:
    side, channels = section["side"], section["channels"]
    image = InputSpec((1, side, side, channels), jnp.float32, Modality.IMAGE)
    return TaskInterface({"image": image}, {"classes": section["classes"]})


def _told(model: VitConfig, shapes: Mapping[str, Shape]) -> Config:
    """The images' size and the number of classes, from the tables of positions and of the head."""
    patches = shapes["positions/table"][0] - model.readout.tokens if "positions/table" in shapes else 0
    return {
        "side": math.isqrt(patches) * model.patch,
        "channels": shapes["embed/kernel"][2],
        "classes": shapes["head/kernel"][1],
    }


def _entries(body: str) -> tuple[Entry, ...]:
    layer = f"{body}.encoder.layer.{{layer}}"
    names = ("attention.query", "attention.key", "attention.value", "output.dense")
    patches = f"{body}.embeddings.patch_embeddings.projection"
    return (
        Entry(f"{body}.embeddings.cls_token", ("class_token",), ONE_TABLE),
        Entry(f"{body}.embeddings.distillation_token", ("distillation_token",), ONE_TABLE),
        Entry(f"{body}.embeddings.position_embeddings", ("positions/table",), ONE_TABLE),
        Entry(f"{patches}.weight", ("embed/kernel",), CONVOLUTION),
        Entry(f"{patches}.bias", ("embed/bias",), VECTOR),
        *norm(f"{layer}.layernorm_before", "layers/attention_residual/norm"),
        *attention(f"{layer}.attention", "layers/attention", names),
        *norm(f"{layer}.layernorm_after", "layers/feed_forward_residual/norm"),
        *linear(f"{layer}.intermediate.dense", "layers/feed_forward/expand"),
        *linear(f"{layer}.output.dense", "layers/feed_forward/contract"),
        *norm(f"{body}.layernorm", "norm"),
    )


def _family(model_type: str, architecture: str, readout: str, heads: tuple[Entry, ...]) -> Family:
    return Family(
        model_type=model_type,
        architecture=architecture,
        model="vit",
        keys=_KEYS,
        fixed={**_FIXED, "readout": readout},
        begun={"initialization": "bert"},
        only=(FixedKey("qkv_bias", True),),
        entries=(*_entries(model_type), *heads),
        simplify=_simplify,
        interface=_interface,
        beside=frozenset({"side", "channels", "classes"}),
        told=_told,
    )


VIT = _family("vit", "ViTForImageClassification", "class_token", tuple(linear("classifier", "head")))
DEIT = _family(
    "deit",
    "DeiTForImageClassificationWithTeacher",
    "distilled",
    (*linear("cls_classifier", "head"), *linear("distillation_classifier", "distilled")),
)
