"""Conversion of Gemma (Gemma Team 2024a), Gemma 2 (2024b) and the text models of Gemma 3 (2025)."""

import dataclasses
from typing import Any

from transformer.config import PositiveInt, UserError, convert_value
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    GATED_ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorNames,
)
from transformer.huggingface.layer_keys import (
    LAYER_TYPE_KEYS,
    ROTARY_KEYS,
    flatten_rotary_by_kind,
    full_every,
    restore_rotary,
    rotary_pattern_by_windows,
    windows_of_layers,
)
from transformer.huggingface.llama import (
    ATTENTION_BIAS,
    HEAD_NORMS,
    LLAMA,
    LOCAL_ROTARY,
    LOCAL_ROTARY_KEYS,
    PRE_NORMS,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
    restore_local_rotary,
    restore_sliding,
    simplify_sizes,
    simplify_whole_heads,
)

_FIXED: dict[str, Any] = {**ROTARY_DECODER, "norm": "rms_zero_centered", "embedding_scale": "sqrt_width"}
_ONE_DIRECTION = FixedConfigKey("use_bidirectional_attention", False)
_NORM_KEY = ConfigKey("rms_norm_eps", "norm_epsilon")
_SANDWICH_NORMS = {
    "input_layernorm": "attention_residual/norm",
    "post_attention_layernorm": "attention_residual/output_norm",
    "pre_feedforward_layernorm": "feed_forward_residual/norm",
    "post_feedforward_layernorm": "feed_forward_residual/output_norm",
}
_CAP_KEYS = (
    ConfigKey("query_pre_attn_scalar", "attention_scale"),
    ConfigKey("attn_logit_softcapping", "attention_softcap"),
    ConfigKey("final_logit_softcapping", "logit_softcap"),
)
# The rotary bases of Gemma 3's class.
_FULL_BASE, _SLIDING_BASE = 1000000.0, 10000.0


def _simplify_gemma(config: Config, names: TensorNames) -> Config:
    # As the class does: the first files say gelu and mean its approximation.
    activation = "gelu_pytorch_tanh" if config["hidden_act"] == "gelu" else config["hidden_act"]
    return {**simplify_whole_heads(config), "hidden_act": activation}


def _restore_gemma(config: Config) -> Config:
    if config["hidden_act"] == "gelu":
        raise UserError("config.model.activation=geglu means geglu_tanh there")
    return restore_rotary(config)


GEMMA = dataclasses.replace(
    LLAMA,
    model_type="gemma",
    architecture="GemmaForCausalLM",
    config_keys=(
        *SIZES,
        _NORM_KEY,
        ConfigKey("hidden_act", "activation", values=GATED_ACTIVATIONS),
        ATTENTION_BIAS,
    ),
    fixed_fields={**_FIXED, "norm_placement": "pre", "attention_windows": ()},
    bare_architecture="GemmaModel",
    fixed_keys=(*WINDOWLESS_KEYS, _ONE_DIRECTION),
    tensor_entries=decoder_entries(PRE_NORMS),
    simplify_config=_simplify_gemma,
    simplified_keys=ROTARY_KEYS,
    restore_config=_restore_gemma,
)


def _scale_from_scalar(config: Config) -> Config:
    """Their scalar is the inverse square of our scale; None where it is the usual one."""
    scalar, head_dim = config["query_pre_attn_scalar"], config["head_dim"]
    if scalar <= 0:
        raise UserError(f"config.json has query_pre_attn_scalar={scalar}; it must be above 0")
    return {**config, "query_pre_attn_scalar": None if scalar == head_dim else scalar**-0.5}


def _scalar_from_scale(config: Config) -> Config:
    """Undo `_scale_from_scalar`.

    Raises:
        UserError: If the scale is that of no whole number.
    """
    scale = config["query_pre_attn_scalar"]
    scalar = config["head_dim"] if scale is None else round(scale**-2)
    if scale is not None and scalar**-0.5 != scale:
        raise UserError(f"config.model.attention_scale={scale} is 1 / sqrt(n) of no whole number n, as it is there")
    return {**config, "query_pre_attn_scalar": scalar}


def _simplify_gemma2(config: Config, names: TensorNames) -> Config:
    types = config["layer_types"] or [
        "sliding_attention" if number % 2 == 0 else "full_attention" for number in range(config["num_hidden_layers"])
    ]
    return _scale_from_scalar({**simplify_whole_heads(config), "windows": windows_of_layers(config, types)})


GEMMA2 = dataclasses.replace(
    GEMMA,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    config_keys=(
        *SIZES,
        _NORM_KEY,
        ConfigKey("hidden_activation", "activation", values=GATED_ACTIVATIONS),
        *_CAP_KEYS,
        ATTENTION_BIAS,
        ConfigKey("windows", "attention_windows"),
    ),
    fixed_fields={**_FIXED, "norm_placement": "sandwich"},
    bare_architecture="Gemma2Model",
    fixed_keys=(CAUSAL, _ONE_DIRECTION),
    tensor_entries=decoder_entries(_SANDWICH_NORMS),
    simplify_config=_simplify_gemma2,
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS,
    restore_config=lambda config: _scalar_from_scale(restore_sliding(config)),
)


def _simplify_gemma3(config: Config, names: TensorNames) -> Config:
    pattern = convert_value(PositiveInt, config.get("sliding_window_pattern", 6), "config.json: sliding_window_pattern")
    types = config["layer_types"] or full_every(pattern, config["num_hidden_layers"])
    windows = windows_of_layers(config, types)
    simplified = flatten_rotary_by_kind(
        _scale_from_scalar(simplify_sizes(config)),
        full_base=config.get("rope_theta", _FULL_BASE),
        sliding_base=config.get("rope_local_base_freq", _SLIDING_BASE),
    )
    return {**simplified, "windows": windows, "rotary_pattern": rotary_pattern_by_windows(windows, **LOCAL_ROTARY)}


GEMMA3 = dataclasses.replace(
    GEMMA2,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    config_keys=(
        *(key for key in GEMMA2.config_keys if key.their_key not in ("windows", "attn_logit_softcapping")),
        *LOCAL_ROTARY_KEYS,
    ),
    fixed_fields={**_FIXED, "norm_placement": "sandwich", "query_key_norm": "head"},
    bare_architecture="Gemma3TextModel",
    tensor_entries=decoder_entries(_SANDWICH_NORMS | HEAD_NORMS),
    simplify_config=_simplify_gemma3,
    # The class has the key of attention's cap and caps nothing there.
    simplified_keys=ROTARY_KEYS
    | LAYER_TYPE_KEYS
    | {"rope_local_base_freq", "sliding_window_pattern", "attn_logit_softcapping"},
    restore_config=lambda config: _scalar_from_scale(restore_local_rotary(config)),
)
