"""Conversion of the image towers of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023), alone and with classes.

A tower alone has a config of its own; with a head of classes it is `vision_config` within that of both towers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.tensor_layouts import CONVOLUTION, LINEAR, TABLE_WITH_LEADING_AXIS, VECTOR
from transformer.huggingface.vit import (
    FIXED_FIELDS,
    infer_image_fields,
    make_image_interface,
    number_of_classes,
    square_sides,
)

_KEYS = (
    ConfigKey("patch_size", "patch_size"),
    ConfigKey("num_hidden_layers", "layers"),
    ConfigKey("hidden_size", "width"),
    ConfigKey("num_attention_heads", "heads"),
    ConfigKey("intermediate_size", "feed_forward"),
    ConfigKey("layer_norm_eps", "norm_epsilon"),
    ConfigKey("attention_dropout", "attention_dropout", 0.0),
    ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
    ConfigKey("image_size", "side"),
    ConfigKey("num_channels", "channels"),
)
_CLASSES = ConfigKey("num_labels", "classes", 2)
_HEAD = ConfigKey("vision_use_head", "pooling", values={True: "attention", False: "mean"})
_POOLING = "attention_pooling"
_PREFIX = "vision_model."


def _tower_entries(norm: str | None) -> tuple[TensorEntry, ...]:
    """Return the tensors of a tower, whose last norm is this one of ours."""
    layer, attention = f"{_PREFIX}encoder.layers.{{layer}}", ("q_proj", "k_proj", "v_proj", "out_proj")
    return (
        TensorEntry(f"{_PREFIX}embeddings.class_embedding", ("class_token",), VECTOR),
        *linear_entries(f"{_PREFIX}embeddings.patch_embedding", "embed", CONVOLUTION),
        *embedding_entries(f"{_PREFIX}embeddings.position_embedding", "positions"),
        *norm_entries(f"{_PREFIX}pre_layrnorm", "embedding_norm"),
        *norm_entries(f"{layer}.layer_norm1", "layers/attention_residual/norm"),
        *attention_entries(f"{layer}.self_attn", "layers/attention", attention),
        *norm_entries(f"{layer}.layer_norm2", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{layer}.mlp.fc1", "layers/feed_forward/expand"),
        *linear_entries(f"{layer}.mlp.fc2", "layers/feed_forward/contract"),
        *(norm_entries(f"{_PREFIX}post_layernorm", norm) if norm else ()),
    )


def _pooling_entries() -> tuple[TensorEntry, ...]:
    """Return the tensors of SigLIP's attention pooling."""
    head, fused = f"{_PREFIX}head", [f"{_POOLING}/attention/{name}" for name in ("query", "key", "value")]
    return (
        TensorEntry(f"{head}.probe", (f"{_POOLING}/probe",), TABLE_WITH_LEADING_AXIS),
        TensorEntry(f"{head}.attention.in_proj_weight", tuple(f"{name}/kernel" for name in fused), LINEAR),
        TensorEntry(f"{head}.attention.in_proj_bias", tuple(f"{name}/bias" for name in fused), VECTOR),
        *(
            entry
            for entry in attention_entries(f"{head}.attention", f"{_POOLING}/attention", ("", "", "", "out_proj"))
            if "out_proj" in entry.tensor_name
        ),
        *norm_entries(f"{head}.layernorm", f"{_POOLING}/norm"),
        *linear_entries(f"{head}.mlp.fc1", f"{_POOLING}/feed_forward/expand"),
        *linear_entries(f"{head}.mlp.fc2", f"{_POOLING}/feed_forward/contract"),
    )


def _simplify_tower(config: Config, names: TensorNames) -> Config:
    return {**config, **square_sides(config), "num_labels": 0}


def _restore_tower(config: Config) -> Config:
    if config["num_labels"]:
        raise UserError("a tower alone has no head of classes")
    return without_keys(config, "num_labels")


def _make_tower(
    model_type: str,
    architecture: str,
    keys: tuple[ConfigKey, ...],
    fields: Mapping[str, Any],
    entries: tuple[TensorEntry, ...],
) -> ConversionSpec:
    return ConversionSpec(
        model_type=model_type,
        architecture=architecture,
        bare_architecture=architecture,
        model_family="vit",
        config_keys=(*_KEYS, *keys, _CLASSES),
        fixed_fields={**FIXED_FIELDS, "add_pooling_layer": False, **fields},
        training_defaults={"dropout": 0.0, "initialization": "xavier"},
        tensor_entries=entries,
        optional_prefix=_PREFIX,
        ignored_tensors=(r"(vision_model\.)?embeddings\.position_ids",),
        simplify_config=_simplify_tower,
        restore_config=_restore_tower,
        make_task_interface=make_image_interface,
        interface_keys=frozenset({"side", "channels", "classes"}),
        infer_fields_from_shapes=infer_image_fields,
    )


def _make_classifier(
    model_type: str, architecture: str, tower: ConversionSpec, fields: Mapping[str, Any], unread: str, norm: str | None
) -> ConversionSpec:
    """Return the spec of a tower with a head of classes; `unread` is the pattern of its tensors that nothing reads."""

    def simplify(config: Config, names: TensorNames) -> Config:
        vision = tower.complete_config(config["vision_config"] or {})
        tower.check_unread_keys(vision)
        labels = {"num_labels": config.get("num_labels"), **number_of_classes(config)}
        return {**tower.simplify_config(vision, names), **labels}

    def restore(config: Config) -> Config:
        if not config["num_labels"]:
            raise UserError("its class has a head of classes")
        own = {key: config[key] for key in ("architectures", "model_type", "num_labels")}
        vision = without_keys(config, *own) | {"model_type": tower.model_type}
        return own | {"vision_config": vision | ({"vision_use_head": False} if norm else {})}

    return ConversionSpec(
        model_type=model_type,
        architecture=architecture,
        model_family="vit",
        config_keys=(*_KEYS, _CLASSES),
        fixed_fields={**tower.fixed_fields, **fields},
        training_defaults=tower.training_defaults,
        tensor_entries=(*_tower_entries(norm), *linear_entries("classifier", "head")),
        ignored_tensors=tower.ignored_tensors,
        dropped_tensors=(unread,),
        simplify_config=simplify,
        restore_config=restore,
        simplified_keys=frozenset({"text_config", "vision_config"}),
        make_task_interface=make_image_interface,
        interface_keys=tower.interface_keys,
        infer_fields_from_shapes=infer_image_fields,
        constant_tensors=_no_norm if norm is None else lambda config: {},
    )


def _no_norm(config: Config) -> dict[str, np.ndarray]:
    """Return CLIP's last norm, which its head of classes never reads."""
    width, name = config["vision_config"]["hidden_size"], f"{_PREFIX}post_layernorm"
    return {f"{name}.weight": np.ones(width), f"{name}.bias": np.zeros(width)}


SIGLIP_VISION = _make_tower(
    "siglip_vision_model", "SiglipVisionModel", (_HEAD,), {}, (*_tower_entries("norm"), *_pooling_entries())
)
SIGLIP = _make_classifier(
    "siglip", "SiglipForImageClassification", SIGLIP_VISION, {"pooling": "mean"}, r"vision_model\.head\..*", "norm"
)
_CLIP_FIELDS = {"embedding_norm": True, "patch_bias": False, "final_norm": "pooled", "pooling": "class_token"}
CLIP_VISION = _make_tower("clip_vision_model", "CLIPVisionModel", (), _CLIP_FIELDS, _tower_entries("pooled_norm"))
CLIP = _make_classifier(
    "clip",
    "CLIPForImageClassification",
    CLIP_VISION,
    {"pooling": "patch_mean", "final_norm": "none"},
    r"vision_model\.post_layernorm\.(weight|bias)",
    None,
)
