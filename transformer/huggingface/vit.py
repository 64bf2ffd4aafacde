"""Conversion of ViT (Dosovitskiy et al. 2021) and DeiT with its distillation token (Touvron et al. 2021).

Both have a class with a head of classes, and one without, with a pooler.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    attention_entries,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.tensor_layouts import CONVOLUTION, TABLE_WITH_LEADING_AXIS, VECTOR, Shape
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.models.vit import VitConfig

_KEYS = (
    ConfigKey("patch_size", "patch_size"),
    ConfigKey("num_hidden_layers", "layers"),
    ConfigKey("hidden_size", "width"),
    ConfigKey("num_attention_heads", "heads"),
    ConfigKey("intermediate_size", "feed_forward"),
    ConfigKey("layer_norm_eps", "norm_epsilon"),
    ConfigKey("hidden_dropout_prob", "dropout"),
    ConfigKey("attention_probs_dropout_prob", "attention_dropout"),
    ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
    ConfigKey("image_size", "side"),
    ConfigKey("num_channels", "channels"),
    ConfigKey("num_labels", "classes", 2),
    ConfigKey("pooler", "add_pooling_layer"),
)
_POOLER = "pooler.dense.weight"
FIXED_FIELDS: dict[str, Any] = {
    "positions": "learned",
    "norm": "layer",
    "norm_placement": "pre",
    "biases": "all",
    "score": "scaled_dot",
    "embedding_norm": False,
    "layer_scale": None,
    "patch_bias": True,
    "final_norm": "states",
}
"""What a vision Transformer of the library is, unless its type is more."""


def square_sides(config: Config) -> Config:
    """Return `image_size` and `patch_size` as sides of squares.

    Raises:
        UserError: If one is no square.
    """
    sides = {}
    for key in ("image_size", "patch_size"):
        size = config[key]
        values: tuple[int, ...] = (size, size) if isinstance(size, int) else tuple(size or ())
        if len(values) != 2 or values[0] != values[1]:
            raise UserError(f"config.json has {key}={list(values)}; only square images and patches can be read")
        sides[key] = values[0]
    return sides


def check_head_dim(config: Config) -> None:
    """Check that a `head_dim`, which no config class has but the library reads, is the usual one.

    Raises:
        UserError: If it is another.
    """
    depth, head_dim = config["hidden_size"] // max(config["num_attention_heads"], 1), config.get("head_dim", ...)
    if head_dim not in (..., depth):
        raise UserError(f"config.json has head_dim={head_dim!r}, not hidden_size / num_attention_heads={depth}")


def number_of_classes(config: Config) -> Config:
    """Return `num_labels` if config.json gives it by the names of the classes."""
    labels = config["id2label"]
    return {} if labels is None else {"num_labels": len(labels)}


def _simplify_config(body: str, config: Config, names: TensorNames) -> Config:
    """Return the config with sides of squares, and the number of classes, which config.json gives by their names.

    Args:
        body: The class without a head, which has no classes.
        config: The content of config.json.
        names: The names of the tensors.
    """
    sides = square_sides(config)
    check_head_dim(config)
    if (config["architectures"] or ("",))[0] != body:
        return {**config, **sides, "pooler": False, **number_of_classes(config)}
    pooled = any(name in (_POOLER, f"{config['model_type']}.{_POOLER}") for name in names)
    if pooled:
        FixedConfigKey("pooler_act", "tanh").check(config)
        FixedConfigKey("pooler_output_size", config["hidden_size"]).check(config)
    return {**config, **sides, "pooler": pooled, "num_labels": 0}


def _restore_config(body: str, config: Config) -> Config:
    """Undo `_simplify_config`."""
    other_keys = without_keys(config, "pooler")
    return other_keys if config["num_labels"] else {**without_keys(other_keys, "num_labels"), "architectures": [body]}


def make_image_interface(section: Config) -> TaskInterface:
    """Return the task interface of a model of images."""
    side, channels = section["side"], section["channels"]
    image = InputSpec((1, side, side, channels), jnp.float32, Modality.IMAGE)
    return TaskInterface({"image": image}, {"classes": section["classes"]} if section["classes"] else {})


def infer_image_fields(model: VitConfig, shapes: Mapping[str, Shape]) -> Config:
    """Return the images' size and the number of classes, from the shapes of the position table and the head."""
    patches = shapes["positions/table"][0] - model.pooling.num_extra_tokens if "positions/table" in shapes else 0
    return {
        "side": math.isqrt(patches) * model.patch_size,
        "channels": shapes["embed/kernel"][2],
        "classes": shapes.get("head/kernel", (0, 0))[1],
    }


def _tensor_entries(body: str) -> tuple[TensorEntry, ...]:
    layer = f"{body}.encoder.layer.{{layer}}"
    names = ("attention.query", "attention.key", "attention.value", "output.dense")
    patches = f"{body}.embeddings.patch_embeddings.projection"
    return (
        TensorEntry(f"{body}.embeddings.cls_token", ("class_token",), TABLE_WITH_LEADING_AXIS),
        TensorEntry(f"{body}.embeddings.distillation_token", ("distillation_token",), TABLE_WITH_LEADING_AXIS),
        TensorEntry(f"{body}.embeddings.position_embeddings", ("positions/table",), TABLE_WITH_LEADING_AXIS),
        TensorEntry(f"{patches}.weight", ("embed/kernel",), CONVOLUTION),
        TensorEntry(f"{patches}.bias", ("embed/bias",), VECTOR),
        *norm_entries(f"{layer}.layernorm_before", "layers/attention_residual/norm"),
        *attention_entries(f"{layer}.attention", "layers/attention", names),
        *norm_entries(f"{layer}.layernorm_after", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{layer}.intermediate.dense", "layers/feed_forward/expand"),
        *linear_entries(f"{layer}.output.dense", "layers/feed_forward/contract"),
        *norm_entries(f"{body}.layernorm", "norm"),
        *linear_entries(f"{body}.pooler.dense", "pooler"),
    )


def _make_spec(
    model_type: str, architecture: str, body: str, pooling: str, heads: tuple[TensorEntry, ...]
) -> ConversionSpec:
    return ConversionSpec(
        model_type=model_type,
        architecture=architecture,
        bare_architecture=body,
        other_architectures=(body,),
        model_family="vit",
        config_keys=_KEYS,
        fixed_fields={**FIXED_FIELDS, "pooling": pooling},
        training_defaults={"initialization": "bert"},
        tensor_entries=(*_tensor_entries(model_type), *heads),
        optional_prefix=f"{model_type}.",
        # That of hidden patches, which only pre-training reads, and a pooler beside a head of classes.
        dropped_tensors=(rf"({model_type}\.)?(embeddings\.mask_token|pooler\.dense\.(weight|bias))",),
        simplify_config=functools.partial(_simplify_config, body),
        restore_config=functools.partial(_restore_config, body),
        simplified_keys=frozenset({"head_dim"}),
        make_task_interface=make_image_interface,
        interface_keys=frozenset({"side", "channels", "classes"}),
        infer_fields_from_shapes=infer_image_fields,
    )


VIT = _make_spec(
    "vit", "ViTForImageClassification", "ViTModel", "class_token", tuple(linear_entries("classifier", "head"))
)
DEIT = _make_spec(
    "deit",
    "DeiTForImageClassificationWithTeacher",
    "DeiTModel",
    "distilled",
    (*linear_entries("cls_classifier", "head"), *linear_entries("distillation_classifier", "distilled")),
)
