"""Conversion of Cohere's Command R (Cohere 2024) and Command R7B and A (Cohere 2025), `cohere` and `cohere2`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from transformer.config import PositiveInt, UserError, convert_value
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    CAUSAL_KEYS,
    GATED_ACTIVATIONS,
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorNames,
)
from transformer.huggingface.layer_keys import (
    LAYER_TYPE_KEYS,
    ROTARY_KEYS,
    restore_rotary,
    restore_windows,
    shortest_period,
    windows_of_layers,
)
from transformer.huggingface.llama import (
    LLAMA,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
    restore_attention_bias,
    simplify_whole_heads,
    with_attention_bias,
)

_FIXED: dict[str, Any] = {
    **ROTARY_DECODER,
    "positions": "rotary",
    "norm": "layer",
    "norm_placement": "parallel",
}
# The rotary base of the class of Command R.
_COHERE_BASE = 500000.0


def _simplify_biases(config: Config, simplified: Config) -> Config:
    """Attention may have biases, norms have none."""
    return {**with_attention_bias(config, simplified), "norm_bias": False if config["attention_bias"] else None}


def _restore_biases(restore: Callable[[Config], Config], config: Config) -> Config:
    """Undo `_simplify_biases` behind another inverse.

    Raises:
        UserError: If norms have biases.
    """
    if config["norm_bias"] != (None if config["biases"] == "none" else False):
        raise UserError("config.model.norm_bias=True adds what the norms have not there")
    return restore_attention_bias(restore, {name: value for name, value in config.items() if name != "norm_bias"})


COHERE = dataclasses.replace(
    LLAMA,
    model_type="cohere",
    architecture="CohereForCausalLM",
    config_keys=(
        *SIZES,
        ConfigKey("layer_norm_eps", "norm_epsilon"),
        ConfigKey("hidden_act", "activation", values=GATED_ACTIVATIONS),
        ConfigKey("logit_scale", "logit_multiplier"),
        ConfigKey("biases", "biases"),
        ConfigKey("norm_bias", "norm_bias"),
    ),
    fixed_fields={**_FIXED, "attention_windows": ()},
    bare_architecture="CohereModel",
    # A norm of queries and keys has one scale for each feature of each head there.
    fixed_keys=(*CAUSAL_KEYS, FixedConfigKey("use_qk_norm", False)),
    tensor_entries=decoder_entries({"input_layernorm": "attention_residual/norm"}),
    simplify_config=lambda config, names: _simplify_biases(config, simplify_whole_heads(config, base=_COHERE_BASE)),
    simplified_keys=ROTARY_KEYS | {"attention_bias"},
    restore_config=functools.partial(_restore_biases, restore_rotary),
)


def _rotary_pattern(windows: tuple[int, ...]) -> tuple[str, ...]:
    """Layers with a window rotate, those that see all have no positions; empty if all rotate."""
    return () if all(windows) and windows else tuple("global" if window else "none" for window in windows or (0,))


def _simplify_cohere2(config: Config, names: TensorNames) -> Config:
    pattern = convert_value(PositiveInt, config.get("sliding_window_pattern", 4), "config.json: sliding_window_pattern")
    types = config["layer_types"] or [
        "sliding_attention" if (number + 1) % pattern else "full_attention"
        for number in range(config["num_hidden_layers"])
    ]
    windows = windows_of_layers(config, types)
    simplified = {**simplify_whole_heads(config), "windows": windows, "rotary_pattern": _rotary_pattern(windows)}
    return _simplify_biases(config, simplified)


def _restore_cohere2(config: Config) -> Config:
    windows, pattern = tuple(config["windows"]), tuple(config["rotary_pattern"])
    usual = _rotary_pattern(windows)
    if shortest_period(pattern) != shortest_period(usual):
        raise UserError(
            f"config.model.rotary_pattern={pattern} is not global in the layers with a window alone, and none in the "
            "others"
        )
    other_keys = {name: value for name, value in config.items() if name not in ("windows", "rotary_pattern")}
    return {**restore_rotary(other_keys), **restore_windows(config, windows)}


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
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS | {"attention_bias", "sliding_window_pattern"},
    restore_config=functools.partial(_restore_biases, _restore_cohere2),
)
