"""Conversion of Llama (Touvron et al. 2023; Grattafiori et al. 2024) and of models that differ from it in a few keys.

These are Mistral (Jiang et al. 2023), Ministral, SmolLM 3, Granite, Qwen 2 and 3, and OLMo 2 and 3.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    CAUSAL_KEYS,
    GATED_ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    ConversionSpec,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.layer_keys import (
    LAYER_TYPE_KEYS,
    ROTARY_KEYS,
    check_rotary_pattern,
    flatten_rotary,
    flatten_rotary_by_kind,
    full_every,
    restore_rotary,
    restore_rotary_by_kind,
    restore_sliding_window,
    restore_windows,
    rotary_pattern_by_windows,
    rotary_section,
    scaling_kind,
    shortest_period,
    windows_of_all_layers,
    windows_of_layers,
)

LAYER = "model.layers.{layer}"
SIZES = (
    ConfigKey("vocab_size", "vocab_size"),
    ConfigKey("hidden_size", "width"),
    ConfigKey("num_hidden_layers", "layers"),
    ConfigKey("num_attention_heads", "heads"),
    ConfigKey("num_key_value_heads", "kv_heads"),
    ConfigKey("head_dim", "head_dim"),
    ConfigKey("intermediate_size", "feed_forward"),
    ConfigKey("max_position_embeddings", "max_length"),
    ConfigKey("rope_theta", "rotary_base"),
    ConfigKey("rope_scaling", "rotary_scaling"),
    ConfigKey("attention_dropout", "attention_dropout"),
    ConfigKey("tie_word_embeddings", "tie_embeddings"),
)
RMS_KEYS = (
    ConfigKey("rms_norm_eps", "norm_epsilon"),
    ConfigKey("hidden_act", "activation", values=GATED_ACTIVATIONS),
)
ROTARY_DECODER: Mapping[str, Any] = {
    "score": "scaled_dot",
    "positions": "rotary_halves",
    "embedding_scale": "none",
    "logit_scale": "none",
    "embedding_norm": False,
    "output_bias": False,
}
_FIXED: dict[str, Any] = {**ROTARY_DECODER, "norm": "rms", "norm_placement": "pre"}
# Of attention and of the feed-forward network.
BIASES = {(True, True): "all", (False, True): "feed_forward", (True, False): "attention", (False, False): "none"}
ATTENTION_BIAS = ConfigKey("attention_bias", "biases", values={True: "attention", False: "none"})


def gated_entries(tensor: str, leaf: str) -> tuple[TensorEntry, ...]:
    """Return the entries of a gated feed-forward network."""
    return (
        *linear_entries(f"{tensor}.gate_proj", f"{leaf}/gate"),
        *linear_entries(f"{tensor}.up_proj", f"{leaf}/expand"),
        *linear_entries(f"{tensor}.down_proj", f"{leaf}/contract"),
    )


def decoder_entries(
    norms: Mapping[str, str],
    feed_forward: Iterable[TensorEntry] | None = None,
    attention: Iterable[TensorEntry] | None = None,
) -> tuple[TensorEntry, ...]:
    """Return the tensors of a decoder that names them as Llama does.

    Args:
        norms: The names of a layer's norms, each with the path of ours in the layer.
        feed_forward: The tensors of the feed-forward network; None means a gated one.
        attention: The tensors of attention's projections; None means Llama's.
    """
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    if attention is None:
        attention = attention_entries(f"{LAYER}.self_attn", "layers/attention", projections)
    return (
        *embedding_entries("model.embed_tokens", "embedding"),
        *(entry for name, leaf in norms.items() for entry in norm_entries(f"{LAYER}.{name}", f"layers/{leaf}")),
        *attention,
        *(gated_entries(f"{LAYER}.mlp", "layers/feed_forward") if feed_forward is None else feed_forward),
        *norm_entries("model.norm", "norm"),
        *unembedding_entries(),
    )


PRE_NORMS = {"input_layernorm": "attention_residual/norm", "post_attention_layernorm": "feed_forward_residual/norm"}
HEAD_NORMS = {"self_attn.q_norm": "attention/query_norm", "self_attn.k_norm": "attention/key_norm"}
_OUTPUT_NORMS = {
    "post_attention_layernorm": "attention_residual/norm",
    "post_feedforward_layernorm": "feed_forward_residual/norm",
    "self_attn.q_norm": "attention/query_norm/norm",
    "self_attn.k_norm": "attention/key_norm/norm",
}


def simplify_sizes(config: Config) -> Config:
    """Return a config.json with the numbers that follow from others where it has none."""
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    head_dim = config.get("head_dim")
    return {
        **config,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": config["hidden_size"] // max(heads, 1) if head_dim is None else head_dim,
        "attention_dropout": config["attention_dropout"] or 0.0,
    }


def simplify_whole_heads(config: Config, **defaults: float) -> Config:
    """As `simplify_sizes`, with the rotary positions of a class in which whole heads rotate."""
    return flatten_whole_rotary(simplify_sizes(config), **defaults)


def flatten_whole_rotary(config: Config, **defaults: float) -> Config:
    """As `flatten_rotary`, of a class in which whole heads rotate: without scaling it does not look for a part of them.

    Raises:
        UserError: If a part of them does.
    """
    name, rotary = rotary_section(config)
    if scaling_kind(rotary) == "default":
        config = without_keys({**config, name: without_keys(rotary, "partial_rotary_factor")}, "partial_rotary_factor")
    simplified = flatten_rotary(config, **defaults)
    if simplified["partial_rotary_factor"] != 1.0:
        raise UserError(
            f"config.json has partial_rotary_factor={simplified['partial_rotary_factor']}; only 1.0 can be read"
        )
    return simplified


def _simplify_llama(config: Config, names: TensorNames) -> Config:
    biases = BIASES[config["attention_bias"], config["mlp_bias"]]
    return {**simplify_whole_heads(config), "biases": biases}


def _restore_llama(config: Config) -> Config:
    flags = [flags for flags, name in BIASES.items() if name == config["biases"]]
    if not flags:
        raise UserError(f"config.model.biases={config['biases']} is none of {', '.join(BIASES.values())}")
    other_keys = without_keys(config, "biases")
    return {**restore_rotary(other_keys), "attention_bias": flags[0][0], "mlp_bias": flags[0][1]}


LLAMA = ConversionSpec(
    model_type="llama",
    architecture="LlamaForCausalLM",
    model_family="decoder",
    config_keys=(*SIZES, *RMS_KEYS, ConfigKey("biases", "biases")),
    fixed_fields={**_FIXED, "attention_windows": ()},
    training_defaults={"initialization": "gpt", "dropout": 0.0},
    bare_architecture="LlamaModel",
    fixed_keys=WINDOWLESS_KEYS,
    tensor_entries=decoder_entries(PRE_NORMS),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # a constant
    simplify_config=_simplify_llama,
    simplified_keys=ROTARY_KEYS | {"attention_bias", "mlp_bias"},
    restore_config=_restore_llama,
)


def _simplify_mistral(config: Config, names: TensorNames) -> Config:
    return {**simplify_whole_heads(config), "windows": windows_of_all_layers(config)}


def _restore_mistral(config: Config) -> Config:
    return {**restore_rotary(without_keys(config, "windows")), **restore_sliding_window(config["windows"])}


MISTRAL = dataclasses.replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    config_keys=(*SIZES, *RMS_KEYS, ConfigKey("windows", "attention_windows")),
    fixed_fields={**_FIXED, "biases": "none"},
    bare_architecture="MistralModel",
    fixed_keys=CAUSAL_KEYS,
    simplify_config=_simplify_mistral,
    simplified_keys=ROTARY_KEYS | {"sliding_window"},
    restore_config=_restore_mistral,
)


def simplify_sliding(config: Config, **defaults: float) -> Config:
    """As `simplify_whole_heads`, with the windows of `layer_types`."""
    simplified = simplify_whole_heads(config, **defaults)
    layer_types = config["layer_types"]
    if layer_types is None:
        kind = "full_attention" if config["sliding_window"] is None else "sliding_attention"
        layer_types = [kind] * config["num_hidden_layers"]
    return {**simplified, "windows": windows_of_layers(config, layer_types)}


def restore_sliding(config: Config) -> Config:
    """The inverse of `simplify_sliding`."""
    return {**restore_rotary(without_keys(config, "windows")), **restore_windows(config, config["windows"])}


MINISTRAL = dataclasses.replace(
    MISTRAL,
    model_type="ministral",
    architecture="MinistralForCausalLM",
    bare_architecture="MinistralModel",
    fixed_keys=(CAUSAL,),
    simplify_config=lambda config, names: simplify_sliding(config),
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS,
    restore_config=restore_sliding,
)

# The rotary base of SmolLM 3's class.
_SMOLLM3_BASE = 2000000.0


def _simplify_smollm3(config: Config, names: TensorNames) -> Config:
    layers, interval = config["num_hidden_layers"], config["no_rope_layer_interval"]
    rotates = config["no_rope_layers"]
    if rotates is None:
        if interval == 0:
            raise UserError("config.json has no_rope_layer_interval=0; it must be 1 or more")
        rotates = [int((number + 1) % interval != 0) for number in range(layers)]
    if len(rotates) != layers:
        raise UserError(f"config.json has no_rope_layers of {len(rotates)} layers and num_hidden_layers={layers}")
    types = config["layer_types"]
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    if types is None:
        types = ["sliding_attention" if slides and not turn else "full_attention" for turn in rotates]
    pattern = shortest_period(tuple("global" if turn else "none" for turn in rotates))
    return {
        **simplify_whole_heads(config, base=_SMOLLM3_BASE),
        "biases": BIASES[config["attention_bias"], config["mlp_bias"]],
        "windows": windows_of_layers(config, types if slides else ["full_attention"] * layers),
        "rotary_pattern": () if set(pattern) == {"global"} else pattern,
    }


def _restore_smollm3(config: Config) -> Config:
    layers, pattern = config["num_hidden_layers"], config["rotary_pattern"] or ("global",)
    if "local" in pattern:
        raise UserError(f"config.model.rotary_pattern={pattern} has local layers")
    windows = restore_windows(config, config["windows"])
    return {
        **_restore_llama(without_keys(config, "windows", "rotary_pattern")),
        **windows,
        "use_sliding_window": "sliding_window" in windows,
        "no_rope_layers": [int(pattern[number % len(pattern)] == "global") for number in range(layers)],
    }


SMOLLM3 = dataclasses.replace(
    LLAMA,
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    config_keys=(
        *LLAMA.config_keys,
        ConfigKey("windows", "attention_windows"),
        ConfigKey("rotary_pattern", "rotary_pattern"),
    ),
    fixed_fields=_FIXED,
    bare_architecture="SmolLM3Model",
    fixed_keys=(CAUSAL,),
    simplify_config=_simplify_smollm3,
    simplified_keys=LLAMA.simplified_keys
    | LAYER_TYPE_KEYS
    | {"no_rope_layers", "no_rope_layer_interval", "use_sliding_window"},
    restore_config=_restore_smollm3,
)


def _simplify_granite(config: Config, names: TensorNames) -> Config:
    if config["logits_scaling"] == 0:
        raise UserError("config.json has logits_scaling=0.0; it must be above 0")
    return {**_simplify_llama(config, names), "logits_scaling": 1 / config["logits_scaling"]}


def _restore_granite(config: Config) -> Config:
    scale = config["attention_multiplier"]
    return {
        **_restore_llama(config),
        "attention_multiplier": config["head_dim"] ** -0.5 if scale is None else scale,
        "logits_scaling": 1 / config["logits_scaling"],
    }


GRANITE = dataclasses.replace(
    LLAMA,
    model_type="granite",
    architecture="GraniteForCausalLM",
    config_keys=(
        *LLAMA.config_keys,
        ConfigKey("attention_multiplier", "attention_scale"),
        ConfigKey("embedding_multiplier", "embedding_multiplier"),
        ConfigKey("residual_multiplier", "residual_multiplier"),
        ConfigKey("logits_scaling", "logit_multiplier"),
    ),
    bare_architecture="GraniteModel",
    simplify_config=_simplify_granite,
    restore_config=_restore_granite,
)


def _simplify_qwen(config: Config) -> Config:
    """Windows stand in the layers behind `max_window_layers`, if `use_sliding_window` says that there are any."""
    window = config["sliding_window"] if config["use_sliding_window"] else None
    types = config["layer_types"]
    if types is None:
        first = config["max_window_layers"]
        types = [
            "sliding_attention" if window is not None and number >= first else "full_attention"
            for number in range(config["num_hidden_layers"])
        ]
    return {
        **simplify_whole_heads(config),
        "windows": windows_of_layers({**config, "sliding_window": window}, types),
    }


def _restore_qwen(config: Config) -> Config:
    restored = restore_sliding(config)
    return {**restored, "use_sliding_window": "sliding_window" in restored}


QWEN2 = dataclasses.replace(
    MISTRAL,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fixed_fields={**_FIXED, "biases": "query_key_value"},
    bare_architecture="Qwen2Model",
    fixed_keys=(CAUSAL,),
    simplify_config=lambda config, names: _simplify_qwen(config),
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS | {"use_sliding_window", "max_window_layers"},
    restore_config=_restore_qwen,
)


QWEN3 = dataclasses.replace(
    QWEN2,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    config_keys=(*QWEN2.config_keys, ATTENTION_BIAS),
    fixed_fields={**_FIXED, "query_key_norm": "head"},
    bare_architecture="Qwen3Model",
    tensor_entries=decoder_entries(PRE_NORMS | HEAD_NORMS),
)

OLMO2 = dataclasses.replace(
    LLAMA,
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    config_keys=(*SIZES, *RMS_KEYS, ATTENTION_BIAS),
    fixed_fields={**_FIXED, "norm_placement": "output", "query_key_norm": "width", "attention_windows": ()},
    bare_architecture="Olmo2Model",
    tensor_entries=decoder_entries(_OUTPUT_NORMS),
    simplify_config=lambda config, names: simplify_whole_heads(config),
    simplified_keys=ROTARY_KEYS,
    restore_config=restore_rotary,
)

# The rotary positions of layers with a window, and of the others.
LOCAL_ROTARY = {"sliding": "local", "full": "global"}
# The rotary base of OLMo 3's class.
_OLMO3_BASE = 500000.0


def _simplify_olmo3(config: Config, names: TensorNames) -> Config:
    types = config["layer_types"] or full_every(4, config["num_hidden_layers"])
    # As the class does: a base beside those of the kinds of layers is that of full ones alone.
    simplified = flatten_rotary_by_kind(
        simplify_sizes(config), full_base=config.get("rope_theta", _OLMO3_BASE), sliding_base=_OLMO3_BASE
    )
    windows = windows_of_layers(config, types)
    return {**simplified, "windows": windows, "rotary_pattern": rotary_pattern_by_windows(windows, **LOCAL_ROTARY)}


def restore_local_rotary(config: Config) -> Config:
    """Undo what gives sliding layers rotary positions of their own."""
    check_rotary_pattern(config, **LOCAL_ROTARY)
    other_keys = without_keys(config, "windows", "rotary_pattern")
    return {**restore_rotary_by_kind(other_keys), **restore_windows(config, config["windows"])}


LOCAL_ROTARY_KEYS = (
    ConfigKey("windows", "attention_windows"),
    ConfigKey("rotary_pattern", "rotary_pattern"),
    ConfigKey("rope_local_base_freq", "local_rotary_base"),
)

OLMO3 = dataclasses.replace(
    OLMO2,
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    config_keys=(*OLMO2.config_keys, *LOCAL_ROTARY_KEYS),
    fixed_fields={**_FIXED, "norm_placement": "output", "query_key_norm": "width"},
    bare_architecture="Olmo3Model",
    fixed_keys=(CAUSAL,),
    simplify_config=_simplify_olmo3,
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS,
    restore_config=restore_local_rotary,
)
