"""Conversion of Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023)."""

from typing import Any

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
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
    ConfigKey("rms_norm_eps", "norm_epsilon", 1e-6),
    ConfigKey("rope_theta", "rotary_base", 10000.0),
    ConfigKey("attention_dropout", "attention_dropout", 0.0),
    ConfigKey("tie_word_embeddings", "tie_embeddings", False),
    ConfigKey("hidden_act", "activation", "silu", GATED_ACTIVATIONS),
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
_WHOLE_HEADS = FixedConfigKey("partial_rotary_factor", 1.0)
_IGNORED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)  # the rotary frequencies, a constant


def _entries() -> tuple[TensorEntry, ...]:
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


def _rotary(config: Config) -> Config:
    """Return the config with the base of rotary positions, which newer files nest; raises for scaled positions."""
    for name in ("rope_scaling", "rope_parameters"):
        stated = config.get(name) or {}
        kind = stated.get("rope_type", stated.get("type", "default"))
        if kind != "default" or stated.get("partial_rotary_factor", 1.0) != 1.0:
            raise UserError(f"config.json has {name}={stated}; only plain rotary positions can be read")
        if unread := stated.keys() - {"rope_type", "type", "partial_rotary_factor", "rope_theta"}:
            raise UserError(f"config.json has {name}={stated}, whose {', '.join(sorted(unread))} are not read")
        if "rope_theta" in stated:
            config = {**config, "rope_theta": stated["rope_theta"]}
    heads = config.get("num_attention_heads") or 1
    return {
        **config,
        "num_key_value_heads": config.get("num_key_value_heads") or config.get("num_attention_heads"),
        "head_dim": config.get("head_dim") or config.get("hidden_size", 0) // heads,
    }


_BIASES = {(True, True): "all", (False, True): "feed_forward", (False, False): "none"}


def _simplify_llama(config: Config, names: TensorNames) -> Config:
    flags = (bool(config.get("attention_bias")), bool(config.get("mlp_bias")))
    if flags not in _BIASES:
        raise UserError("config.json has attention_bias=True, which can be read with mlp_bias=True alone")
    return {**_rotary(config), "biases": _BIASES[flags]}


def _restore_llama(config: Config) -> Config:
    (attention, mlp), *_ = (flags for flags, name in _BIASES.items() if name == config["biases"])
    rest = {name: value for name, value in config.items() if name != "biases"}
    return {**rest, "attention_bias": attention, "mlp_bias": mlp}


LLAMA = ConversionSpec(
    model_type="llama",
    architecture="LlamaForCausalLM",
    model_family="decoder",
    config_keys=(*_KEYS, ConfigKey("biases", "biases")),
    fixed_fields={**_FIXED, "attention_windows": ()},
    training_defaults=_TRAINING_DEFAULTS,
    fixed_keys=(_WHOLE_HEADS,),
    tensor_entries=_entries(),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=_IGNORED,
    simplify_config=_simplify_llama,
    simplified_keys=_ROTARY | {"attention_bias", "mlp_bias"},
    restore_config=_restore_llama,
)


def _simplify_mistral(config: Config, names: TensorNames) -> Config:
    # Their window includes the query's own position, ours does not.
    window = config.get("sliding_window", 4096)
    if window is not None and window < 2:
        raise UserError(f"config.json has sliding_window={window}; it must be at least 2, or null")
    return {**_rotary(config), "sliding_window": () if window is None else (window - 1,)}


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
    fixed_keys=(FixedConfigKey("attention_bias", False), FixedConfigKey("mlp_bias", False), _WHOLE_HEADS),
    tensor_entries=_entries(),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=_IGNORED,
    simplify_config=_simplify_mistral,
    simplified_keys=_ROTARY,
    restore_config=_restore_mistral,
)
