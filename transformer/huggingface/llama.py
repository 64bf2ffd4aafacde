"""Conversion of Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023)."""

from collections.abc import Mapping
from typing import Any

from transformer.config import UserError, convert_value, shorten_value
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    CAUSAL_KEYS,
    GATED_ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
)

_LAYER = "model.layers.{layer}"
_KEYS = (
    ConfigKey("vocab_size", "vocab_size"),
    ConfigKey("hidden_size", "width"),
    ConfigKey("num_hidden_layers", "layers"),
    ConfigKey("num_attention_heads", "heads"),
    ConfigKey("num_key_value_heads", "kv_heads"),
    ConfigKey("head_dim", "head_dim"),
    ConfigKey("intermediate_size", "feed_forward"),
    ConfigKey("max_position_embeddings", "max_length"),
    ConfigKey("rms_norm_eps", "norm_epsilon"),
    ConfigKey("rope_theta", "rotary_base"),
    ConfigKey("attention_dropout", "attention_dropout"),
    ConfigKey("tie_word_embeddings", "tie_embeddings"),
    ConfigKey("hidden_act", "activation", values=GATED_ACTIVATIONS),
)
_FIXED: dict[str, Any] = {
    "score": "scaled_dot",
    "norm": "rms",
    "norm_placement": "pre",
    "positions": "rotary_halves",
    "embedding_scale": "none",
    "logit_scale": "none",
    "embedding_norm": False,
    "output_bias": False,
}
_TRAINING_DEFAULTS = {"initialization": "gpt", "dropout": 0.0}
_ROTARY = frozenset({"rope_scaling", "rope_parameters"})
_ROTARY_BASE = 10000.0
_WHOLE_HEADS = FixedConfigKey("partial_rotary_factor", 1.0)
_IGNORED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)  # the rotary frequencies, a constant


def _tensor_entries() -> tuple[TensorEntry, ...]:
    return (
        *embedding_entries("model.embed_tokens", "embedding"),
        *norm_entries(f"{_LAYER}.input_layernorm", "layers/attention_residual/norm"),
        *attention_entries(f"{_LAYER}.self_attn", "layers/attention", ("q_proj", "k_proj", "v_proj", "o_proj")),
        *norm_entries(f"{_LAYER}.post_attention_layernorm", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{_LAYER}.mlp.gate_proj", "layers/feed_forward/gate"),
        *linear_entries(f"{_LAYER}.mlp.up_proj", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.mlp.down_proj", "layers/feed_forward/contract"),
        *norm_entries("model.norm", "norm"),
        *unembedding_entries(),
    )


def _flatten_rotary(config: Config) -> Config:
    """Return the config with the base of rotary positions, which newer files nest; raises for scaled positions."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rotary = convert_value(Mapping[str, Any], config.get(name) or {}, f"config.json: {name}")
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if not _is_plain(rotary, kind) or rotary.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"config.json has {name}={shorten_value(rotary)}; only plain rotary positions can be read")
    read = {"rope_type", "type", "partial_rotary_factor", "rope_theta", "factor", *_ROTARY_SCALING_KEYS.get(kind, ())}
    if unread := rotary.keys() - read:
        raise UserError(
            f"config.json has {name}={shorten_value(rotary)}, whose {', '.join(sorted(unread))} cannot be read"
        )
    heads = config["num_attention_heads"]
    return {
        **config,
        "rope_theta": rotary.get("rope_theta", config.get("rope_theta", _ROTARY_BASE)),
        "num_key_value_heads": heads if config["num_key_value_heads"] is None else config["num_key_value_heads"],
        "head_dim": config["hidden_size"] // max(heads, 1) if config["head_dim"] is None else config["head_dim"],
        "attention_dropout": config["attention_dropout"] or 0.0,
    }


# Further keys of a kind of scaled rotary positions; none of them has an effect where the factor is 1.
_ROTARY_SCALING_KEYS = {
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow"),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


def _is_plain(rotary: Mapping[str, Any], kind: Any) -> bool:
    """Return whether rotary positions turn as plain ones do, up to `max_position_embeddings`."""
    if kind == "default":
        return True
    factor = rotary.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        return False
    # A dynamic scale begins behind the last position.
    return factor >= 1 if kind == "dynamic" else factor == 1 and kind in ("linear", *_ROTARY_SCALING_KEYS)


_BIASES = {(True, True): "all", (False, True): "feed_forward", (False, False): "none"}


def _simplify_llama_config(config: Config, names: TensorNames) -> Config:
    flags = (config["attention_bias"], config["mlp_bias"])
    if flags not in _BIASES:
        raise UserError("config.json has attention_bias=True, which can be read with mlp_bias=True alone")
    return {**_flatten_rotary(config), "biases": _BIASES[flags]}


def _restore_llama(config: Config) -> Config:
    (attention, mlp), *_ = (flags for flags, name in _BIASES.items() if name == config["biases"])
    other_keys = {name: value for name, value in config.items() if name != "biases"}
    return {**other_keys, "attention_bias": attention, "mlp_bias": mlp}


LLAMA = ConversionSpec(
    model_type="llama",
    architecture="LlamaForCausalLM",
    model_family="decoder",
    config_keys=(*_KEYS, ConfigKey("biases", "biases")),
    fixed_fields={**_FIXED, "attention_windows": ()},
    training_defaults=_TRAINING_DEFAULTS,
    bare_architecture="LlamaModel",
    fixed_keys=(*CAUSAL_KEYS, _WHOLE_HEADS),
    tensor_entries=_tensor_entries(),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=_IGNORED,
    simplify_config=_simplify_llama_config,
    simplified_keys=_ROTARY | {"attention_bias", "mlp_bias"},
    restore_config=_restore_llama,
)


def _simplify_mistral(config: Config, names: TensorNames) -> Config:
    # Their window includes the query's own position, ours does not.
    window = config["sliding_window"]
    if window is not None and window < 2:
        raise UserError(f"config.json has sliding_window={window}; it must be at least 2, or null")
    return {**_flatten_rotary(config), "sliding_window": () if window is None else (window - 1,)}


def _restore_mistral(config: Config) -> Config:
    windows = config["sliding_window"]
    if len(windows) > 1:
        raise UserError(f"config.model.attention_windows={windows} are not one for all layers")
    return {**config, "sliding_window": windows[0] + 1 if windows else None}


MISTRAL = ConversionSpec(
    model_type="mistral",
    architecture="MistralForCausalLM",
    model_family="decoder",
    config_keys=(*_KEYS, ConfigKey("sliding_window", "attention_windows")),
    fixed_fields={**_FIXED, "biases": "none"},
    training_defaults=_TRAINING_DEFAULTS,
    bare_architecture="MistralModel",
    fixed_keys=(
        CAUSAL,
        FixedConfigKey("attention_bias", False),
        FixedConfigKey("mlp_bias", False),
        _WHOLE_HEADS,
    ),
    tensor_entries=_tensor_entries(),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=_IGNORED,
    simplify_config=_simplify_mistral,
    simplified_keys=_ROTARY,
    restore_config=_restore_mistral,
)
