"""Conversion of Cohere's Command R (Cohere 2024) and Command R7B and A (Cohere 2025), `cohere` and `cohere2`."""

import dataclasses
from typing import Any

from transformer.config import PositiveInt, convert_value
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    GATED_ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorNames,
    without_keys,
)
from transformer.huggingface.layer_keys import (
    LAYER_TYPE_KEYS,
    ROTARY_KEYS,
    check_rotary_pattern,
    full_every,
    restore_rotary,
    restore_windows,
    rotary_pattern_by_windows,
    windows_of_layers,
)
from transformer.huggingface.llama import (
    ATTENTION_BIAS,
    LLAMA,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
    simplify_whole_heads,
)

_FIXED: dict[str, Any] = {
    **ROTARY_DECODER,
    "positions": "rotary",
    "norm": "layer",
    "norm_bias": False,
    "norm_placement": "parallel",
}
# The rotary base of the class of Command R.
_COHERE_BASE = 500000.0


COHERE = dataclasses.replace(
    LLAMA,
    model_type="cohere",
    architecture="CohereForCausalLM",
    config_keys=(
        *SIZES,
        ConfigKey("layer_norm_eps", "norm_epsilon"),
        ConfigKey("hidden_act", "activation", values=GATED_ACTIVATIONS),
        ConfigKey("logit_scale", "logit_multiplier"),
        ATTENTION_BIAS,
    ),
    fixed_fields={**_FIXED, "attention_windows": ()},
    bare_architecture="CohereModel",
    # A norm of queries and keys has one scale for each feature of each head there.
    fixed_keys=(*WINDOWLESS_KEYS, FixedConfigKey("use_qk_norm", False)),
    tensor_entries=decoder_entries({"input_layernorm": "attention_residual/norm"}),
    simplify_config=lambda config, names: simplify_whole_heads(config, base=_COHERE_BASE),
    simplified_keys=ROTARY_KEYS,
    restore_config=restore_rotary,
)


# Layers with a window rotate, those that see all have no positions.
_WINDOW_ROTARY = {"sliding": "global", "full": "none"}


def _simplify_cohere2(config: Config, names: TensorNames) -> Config:
    pattern = convert_value(PositiveInt, config.get("sliding_window_pattern", 4), "config.json: sliding_window_pattern")
    windows = windows_of_layers(config, config["layer_types"] or full_every(pattern, config["num_hidden_layers"]))
    rotary_pattern = rotary_pattern_by_windows(windows, **_WINDOW_ROTARY)
    return {**simplify_whole_heads(config), "windows": windows, "rotary_pattern": rotary_pattern}


def _restore_cohere2(config: Config) -> Config:
    check_rotary_pattern(config, **_WINDOW_ROTARY)
    other_keys = without_keys(config, "windows", "rotary_pattern")
    return {**restore_rotary(other_keys), **restore_windows(config, config["windows"])}


COHERE2 = dataclasses.replace(
    COHERE,
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    config_keys=(
        *COHERE.config_keys,
        ConfigKey("windows", "attention_windows"),
        ConfigKey("rotary_pattern", "rotary_pattern"),
    ),
    fixed_fields=_FIXED,
    bare_architecture="Cohere2Model",
    fixed_keys=(CAUSAL,),
    simplify_config=_simplify_cohere2,
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS | {"sliding_window_pattern"},
    restore_config=_restore_cohere2,
)
