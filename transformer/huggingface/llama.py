"""Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023)."""

from typing import Any

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    GATES,
    Config,
    Entry,
    Family,
    FixedKey,
    Key,
    Names,
    attention,
    linear,
    norm,
    table,
    unembedding,
)

_LAYER = "model.layers.{layer}"
_KEYS = (
    Key("vocab_size", "embedding_rows"),
    Key("hidden_size", "width"),
    Key("num_hidden_layers", "layers"),
    Key("num_attention_heads", "heads"),
    Key("num_key_value_heads", "kv_heads"),
    Key("head_dim", "head_dim"),
    Key("intermediate_size", "feed_forward"),
    Key("max_position_embeddings", "max_length"),
    Key("rms_norm_eps", "norm_epsilon", 1e-6),
    Key("rope_theta", "rotary_base", 10000.0),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("tie_word_embeddings", "tied", False),
    Key("hidden_act", "activation", "silu", GATES),
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
_BEGUN = {"initialization": "gpt", "dropout": 0.0}
_ROTARY = frozenset({"rope_scaling", "rope_parameters"})
_WHOLE_HEADS = FixedKey("partial_rotary_factor", 1.0)
_HARMLESS = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)  # the rotary frequencies, a constant


def _entries() -> tuple[Entry, ...]:
    return (
        *table("model.embed_tokens", "embedding"),
        *norm(f"{_LAYER}.input_layernorm", "layers/attention_residual/norm"),
        *attention(f"{_LAYER}.self_attn", "layers/attention", ("q_proj", "k_proj", "v_proj", "o_proj")),
        *norm(f"{_LAYER}.post_attention_layernorm", "layers/feed_forward_residual/norm"),
        *linear(f"{_LAYER}.mlp.gate_proj", "layers/feed_forward/gate"),
        *linear(f"{_LAYER}.mlp.up_proj", "layers/feed_forward/expand"),
        *linear(f"{_LAYER}.mlp.down_proj", "layers/feed_forward/contract"),
        *norm("model.norm", "norm"),
        *unembedding(),
    )


def _rotary(config: Config) -> Config:
    """The config with the base of rotary positions, which newer files nest; scaled positions are refused."""
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


def _simplify_llama(config: Config, names: Names) -> Config:
    flags = (bool(config.get("attention_bias")), bool(config.get("mlp_bias")))
    if flags not in _BIASES:
        raise UserError("config.json has attention_bias=True, which can be read with mlp_bias=True alone")
    return {**_rotary(config), "biases": _BIASES[flags]}


def _publish_llama(config: Config) -> Config:
    (attention, mlp), *_ = (flags for flags, name in _BIASES.items() if name == config["biases"])
    rest = {name: value for name, value in config.items() if name != "biases"}
    return {**rest, "attention_bias": attention, "mlp_bias": mlp}


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    model="decoder",
    keys=(*_KEYS, Key("biases", "biases")),
    fixed={**_FIXED, "windows": ()},
    begun=_BEGUN,
    only=(_WHOLE_HEADS,),
    entries=_entries(),
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    harmless=_HARMLESS,
    simplify=_simplify_llama,
    simplified=_ROTARY | {"attention_bias", "mlp_bias"},
    publish=_publish_llama,
)


def _simplify_mistral(config: Config, names: Names) -> Config:
    # Their window includes the query's own position, ours does not.
    window = config.get("sliding_window", 4096)
    if window is not None and window < 2:
        raise UserError(f"config.json has sliding_window={window}; it must be at least 2, or null")
    return {**_rotary(config), "sliding_window": () if window is None else (window - 1,)}


def _publish_mistral(config: Config) -> Config:
    windows = config["sliding_window"]
    if len(windows) > 1:
        raise UserError(f"config.model.windows={windows} are not one for all layers")
    return {**config, "sliding_window": windows[0] + 1 if windows else None}


MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    model="decoder",
    keys=(*_KEYS, Key("sliding_window", "windows")),
    fixed={**_FIXED, "biases": "none"},
    begun=_BEGUN,
    only=(FixedKey("attention_bias", False), FixedKey("mlp_bias", False), _WHOLE_HEADS),
    entries=_entries(),
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    harmless=_HARMLESS,
    simplify=_simplify_mistral,
    simplified=_ROTARY,
    publish=_publish_mistral,
)
