"""Conversion of DINOv2 (Oquab et al. 2023): layer scale, and a head that reads the class token beside the patches."""

import dataclasses

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
from transformer.huggingface.tensor_layouts import CONVOLUTION, LINEAR, TABLE_WITH_LEADING_AXIS, VECTOR
from transformer.huggingface.vit import (
    FIXED_FIELDS,
    check_head_dim,
    infer_image_fields,
    make_image_interface,
    number_of_classes,
    square_sides,
)

_BODY = "Dinov2Model"
_ACTIVATION = ConfigKey("hidden_act", "activation", values=ACTIVATIONS)


def _gated_units(hidden: int) -> int:
    """The hidden units of a gated network that stands for a plain one of `hidden`: two thirds, a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _simplify_config(config: Config, names: TensorNames) -> Config:
    """Return the config with our activation, the hidden units of the network, and the number of classes."""
    check_head_dim(config)
    hidden, gated = int(config["hidden_size"] * config["mlp_ratio"]), config["use_swiglu_ffn"]
    network = {
        "activation": "swiglu" if gated else _ACTIVATION.read(config),
        "feed_forward": _gated_units(hidden) if gated else hidden,
    }
    bare = (config["architectures"] or ("",))[0] == _BODY
    return {**config, **square_sides(config), **network, **({"num_labels": 0} if bare else number_of_classes(config))}


def _restore_config(config: Config) -> Config:
    """Undo `_simplify_config`."""
    width, units, gated = config["hidden_size"], config["feed_forward"], config["activation"] == "swiglu"
    ratios = range(1, 2 * units // width + 2)
    ratio = next((n for n in ratios if units == (_gated_units(n * width) if gated else n * width)), None)
    if ratio is None:
        rounding = " of two thirds, rounded up to 8" if gated else ""
        raise UserError(f"config.model.feed_forward={units} is no multiple{rounding} of width={width}")
    network = {"mlp_ratio": ratio, "use_swiglu_ffn": gated, "use_mask_token": False}
    if not gated:
        network["hidden_act"] = _ACTIVATION.write(config)
    other_keys = without_keys(config, "activation", "feed_forward") | network
    if config["num_labels"]:
        return other_keys
    return {**without_keys(other_keys, "num_labels"), "architectures": [_BODY]}


_EMBEDDINGS, _LAYER = "dinov2.embeddings", "dinov2.encoder.layer.{layer}"
_PATCHES, _NETWORK = f"{_EMBEDDINGS}.patch_embeddings.projection", "layers/feed_forward"
_GATE, _EXPAND, _CONTRACT = f"{_NETWORK}/gate/kernel", f"{_NETWORK}/expand", f"{_NETWORK}/contract"
_PROJECTIONS = ("attention.query", "attention.key", "attention.value", "output.dense")
DINOV2 = ConversionSpec(
    model_type="dinov2",
    architecture="Dinov2ForImageClassification",
    bare_architecture=_BODY,
    other_architectures=(_BODY,),
    model_family="vit",
    config_keys=(
        ConfigKey("patch_size", "patch_size"),
        ConfigKey("num_hidden_layers", "layers"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("num_attention_heads", "heads"),
        ConfigKey("feed_forward", "feed_forward"),
        ConfigKey("activation", "activation"),
        ConfigKey("layerscale_value", "layer_scale"),
        ConfigKey("layer_norm_eps", "norm_epsilon"),
        ConfigKey("attention_probs_dropout_prob", "attention_dropout"),
        ConfigKey("image_size", "side"),
        ConfigKey("num_channels", "channels"),
        ConfigKey("num_labels", "classes", 2),
    ),
    fixed_keys=(FixedConfigKey("qkv_bias", True),),
    fixed_fields={
        **without_keys(FIXED_FIELDS, "layer_scale"),
        "pooling": "class_token_and_mean",
        "add_pooling_layer": False,
    },
    # Its dropout is of the embeddings alone, and its layers are dropped at one rate.
    training_keys={"hidden_dropout_prob": "", "drop_path_rate": ""},
    training_defaults={"dropout": 0.0, "initialization": "bert"},
    tensor_entries=(
        TensorEntry(f"{_EMBEDDINGS}.cls_token", ("class_token",), TABLE_WITH_LEADING_AXIS),
        TensorEntry(f"{_EMBEDDINGS}.position_embeddings", ("positions/table",), TABLE_WITH_LEADING_AXIS),
        *linear_entries(_PATCHES, "embed", CONVOLUTION),
        *norm_entries(f"{_LAYER}.norm1", "layers/attention_residual/norm"),
        *attention_entries(f"{_LAYER}.attention", "layers/attention", _PROJECTIONS),
        TensorEntry(f"{_LAYER}.layer_scale1.lambda1", ("layers/attention_residual/layer_scale/scale",), VECTOR),
        *norm_entries(f"{_LAYER}.norm2", "layers/feed_forward_residual/norm"),
        *(
            dataclasses.replace(entry, excluded_parameter=_GATE)
            for entry in linear_entries(f"{_LAYER}.mlp.fc1", _EXPAND)
        ),
        *(
            dataclasses.replace(entry, excluded_parameter=_GATE)
            for entry in linear_entries(f"{_LAYER}.mlp.fc2", _CONTRACT)
        ),
        TensorEntry(f"{_LAYER}.mlp.weights_in.weight", (_GATE, f"{_EXPAND}/kernel"), LINEAR),
        TensorEntry(f"{_LAYER}.mlp.weights_in.bias", (f"{_NETWORK}/gate/bias", f"{_EXPAND}/bias"), VECTOR),
        *(
            dataclasses.replace(entry, required_parameter=_GATE)
            for entry in linear_entries(f"{_LAYER}.mlp.weights_out", _CONTRACT)
        ),
        TensorEntry(f"{_LAYER}.layer_scale2.lambda1", ("layers/feed_forward_residual/layer_scale/scale",), VECTOR),
        *norm_entries("dinov2.layernorm", "norm"),
        *linear_entries("classifier", "head"),
    ),
    optional_prefix="dinov2.",
    # That of hidden patches, which only pre-training reads.
    dropped_tensors=(r"(dinov2\.)?embeddings\.mask_token",),
    simplify_config=_simplify_config,
    restore_config=_restore_config,
    simplified_keys=frozenset({"head_dim", "hidden_act", "mlp_ratio", "use_swiglu_ffn"}),
    make_task_interface=make_image_interface,
    interface_keys=frozenset({"side", "channels", "classes"}),
    infer_fields_from_shapes=infer_image_fields,
)
