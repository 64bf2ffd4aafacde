"""Conversion of ModernBERT (Warner et al. 2024)."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer.config import PositiveInt, UserError, convert_value, shorten_value
from transformer.huggingface.bert import accepted_architectures
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    GATED_ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    embedding_entries,
    fused_attention_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.fine_tuned_heads import (
    FINE_TUNED_CLASSES,
    interface_with_classes,
    num_classes,
    problem_type_keys,
    sizes_from_shapes,
    without_head_keys,
)
from transformer.huggingface.layer_keys import (
    ROTARY_KEYS,
    flatten_rotary_by_kind,
    rotary_pattern_by_windows,
    windows_of_layers,
)
from transformer.huggingface.llama import BIASES, LOCAL_ROTARY, LOCAL_ROTARY_KEYS, restore_local_rotary
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR, VECTOR

_LAYER = "model.layers.{layer}"
_BARE = "ModernBertModel"
_FULL_BASE, _SLIDING_BASE = 160000.0, 10000.0


def _simplify_modernbert(config: Config, names: TensorNames) -> Config:
    head = _head(config, names)
    if head != "none" and ACTIVATIONS.get(config["classifier_activation"]) != ACTIVATIONS.get(
        config["hidden_activation"]
    ):
        raise UserError(
            f"config.json has classifier_activation={config['classifier_activation']!r}; only hidden_activation="
            f"{config['hidden_activation']!r} can be read"
        )
    every = convert_value(
        PositiveInt, config.get("global_attn_every_n_layers", 3), "config.json: global_attn_every_n_layers"
    )
    types = config["layer_types"] or [
        "sliding_attention" if number % every else "full_attention" for number in range(config["num_hidden_layers"])
    ]
    windows = windows_of_layers({**config, "sliding_window": _half_window(config, types) + 1}, types)
    simplified = flatten_rotary_by_kind(
        _scale_every_kind(config, types),
        full_base=config.get("global_rope_theta", _FULL_BASE),
        sliding_base=config.get("local_rope_theta", _SLIDING_BASE),
    )
    return {
        **simplified,
        "biases": BIASES[config["attention_bias"], config["mlp_bias"]],
        "windows": windows,
        "rotary_pattern": rotary_pattern_by_windows(windows, **LOCAL_ROTARY),
        "head": head,
        "num_labels": num_classes(config, head),
    }


def _head(config: Config, names: TensorNames) -> str:
    """Return our head.

    Raises:
        UserError: If the file has a classifier and config.json does not say of what.
    """
    architecture = (config["architectures"] or ("",))[0]
    for head, ending in FINE_TUNED_CLASSES.items():
        if architecture.endswith(ending):
            return head
    if not architecture and "classifier.weight" in names:
        raise UserError("config.json has no architectures, and without them a classifier may be of texts or of tokens")
    predicts = architecture.endswith("MaskedLM") or (not architecture and "head.dense.weight" in names)
    return "masked" if predicts else "none"


def _half_window(config: Config, layer_types: list[str]) -> int:
    """Return how many positions a sliding layer sees to each side.

    Raises:
        UserError: If it is none.
    """
    # A key of the class's own that overrules the other.
    half_window = convert_value(int | None, config.get("sliding_window"), "config.json: sliding_window")
    half_window = config["local_attention"] // 2 if half_window is None else half_window
    if "sliding_attention" in layer_types and half_window < 1:
        raise UserError(f"config.json has local_attention={config['local_attention']}; it must be at least 2")
    return half_window


def _scale_every_kind(config: Config, layer_types: Sequence[str]) -> Config:
    """Return the config with its scaling of rotary positions in every kind of layer, as the class reads it.

    It does not look for a part of the features that rotates.

    Raises:
        UserError: If sliding layers would have a scaling.
    """
    config = without_keys(config, "partial_rotary_factor")
    scaling = convert_value(Mapping[str, Any], config.get("rope_scaling") or {}, "config.json: rope_scaling")
    if not scaling:
        return config
    nested = config["rope_parameters"] or {}
    kinds = {kind: {**(nested.get(kind) or {"rope_type": "default"}), **scaling} for kind in set(layer_types)}
    if kinds.get("sliding_attention", {}).get("rope_type", "default") != "default":
        raise UserError(
            f"config.json has rope_scaling={shorten_value(dict(scaling))}, which scales those of sliding "
            "layers, too; only full ones can be scaled, by rope_parameters"
        )
    return {**config, "rope_parameters": {**nested, **kinds}, "rope_scaling": None}


def _restore_modernbert(config: Config) -> Config:
    head = config["head"]
    if head not in ("masked", "none", *FINE_TUNED_CLASSES):
        raise UserError(f"config.model.head={head} is none of masked, none, {', '.join(FINE_TUNED_CLASSES)}")
    flags = next((flags for flags, name in BIASES.items() if name == config["biases"]), None)
    if flags is None:
        raise UserError(f"config.model.biases={config['biases']} is none of {', '.join(BIASES.values())}")
    restored = restore_local_rotary(without_keys(config, "biases"))
    half_window = (restored.pop("sliding_window", 1)) - 1
    keys = {"attention_bias": flags[0], "mlp_bias": flags[1], "classifier_activation": config["hidden_activation"]}
    if half_window:
        keys["local_attention"] = 2 * half_window
    if head in FINE_TUNED_CLASSES or head == "none":
        bare = _BARE if head == "none" else _BARE.replace("Model", FINE_TUNED_CLASSES[head])
        keys["architectures"] = [bare]
    return without_head_keys(restored, ("head",)) | keys | problem_type_keys(head, config["num_labels"])


MODERNBERT = ConversionSpec(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    model_family="encoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("num_hidden_layers", "layers"),
        ConfigKey("num_attention_heads", "heads"),
        ConfigKey("intermediate_size", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("norm_eps", "norm_epsilon"),
        ConfigKey("norm_bias", "norm_bias"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("hidden_activation", "activation", values=GATED_ACTIVATIONS),
        ConfigKey("rope_theta", "rotary_base"),
        ConfigKey("rope_scaling", "rotary_scaling"),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
        ConfigKey("biases", "biases"),
        ConfigKey("decoder_bias", "output_bias"),
        ConfigKey("classifier_bias", "head_biases", values={False: "last", True: "all"}),
        ConfigKey("classifier_pooling", "pooling", values={"cls": "first", "mean": "mean"}),
        ConfigKey("head", "head"),
        ConfigKey("num_labels", "classes"),
        *LOCAL_ROTARY_KEYS,
    ),
    fixed_fields={
        "score": "scaled_dot",
        "norm": "layer",
        "norm_placement": "pre_normed_input",
        "positions": "rotary_halves",
        "position_offset": 0,
        "num_token_types": 0,
        "embedding_scale": "none",
        "logit_scale": "none",
        "embedding_norm": False,
        "embedding_width": None,
        "layer_groups": None,
        "add_pooling_layer": False,
        "pooler_activation": "tanh",
        "head_transform": "every",
    },
    training_defaults={"initialization": "bert", "dropout": 0.0},
    other_architectures=accepted_architectures(_BARE),
    fixed_keys=(FixedConfigKey("head_dim", None),),
    training_keys={"embedding_dropout": "", "mlp_dropout": "", "classifier_dropout": ""},
    tensor_entries=(
        *embedding_entries("model.embeddings.tok_embeddings", "embedding"),
        *(
            TensorEntry(
                f"{_LAYER}.attn_norm.{theirs}",
                (f"layers/attention_residual/norm/{ours}",),
                VECTOR,
                first_layer_name=f"model.embeddings.norm.{theirs}",
            )
            for theirs, ours in (("weight", "scale"), ("bias", "bias"))
        ),
        *fused_attention_entries(f"{_LAYER}.attn.Wqkv", "layers/attention", LINEAR, VECTOR),
        *linear_entries(f"{_LAYER}.attn.Wo", "layers/attention/output", FROM_HEADS),
        *norm_entries(f"{_LAYER}.mlp_norm", "layers/feed_forward_residual/norm"),
        *(
            TensorEntry(
                f"{_LAYER}.mlp.Wi.{theirs}",
                (f"layers/feed_forward/gate/{ours}", f"layers/feed_forward/expand/{ours}"),
                layout,
            )
            for theirs, ours, layout in (("weight", "kernel", LINEAR), ("bias", "bias", VECTOR))
        ),
        *linear_entries(f"{_LAYER}.mlp.Wo", "layers/feed_forward/contract"),
        *norm_entries("model.final_norm", "norm"),
        *linear_entries("head.dense", "head/transform"),
        *norm_entries("head.norm", "head/norm"),
        *unembedding_entries("decoder"),
        *linear_entries("classifier", "classes"),
        *linear_entries("classifier", "choice"),
        *linear_entries("classifier", "span"),
    ),
    optional_prefix="model.",
    tensor_aliases={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    simplify_config=_simplify_modernbert,
    # Among them how a loss is computed, how fast attention is, and how weights were initialized.
    simplified_keys=ROTARY_KEYS
    | {
        "layer_types",
        "sliding_window",
        "local_attention",
        "global_attn_every_n_layers",
        "global_rope_theta",
        "local_rope_theta",
        "attention_bias",
        "mlp_bias",
        "classifier_activation",
        "sparse_prediction",
        "sparse_pred_ignore_index",
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "cls_token_id",
    },
    restore_config=_restore_modernbert,
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
)
