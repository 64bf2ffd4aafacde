"""Conversion of GPT-1, GPT-2 (Radford et al.), GPT-J (Wang and Komatsuzaki 2021) and BLOOM (Scao et al. 2022)."""

from transformer.attention.rotary import rotated_features
from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    ConversionSpec,
    TensorEntry,
    TensorNames,
    embedding_entries,
    fused_attention_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.tensor_layouts import (
    FROM_HEADS,
    LINEAR_BY_HEADS,
    TABLE,
    TABLE_FROM_HEADS,
    VECTOR,
    VECTOR_BY_HEADS,
)

_H = "transformer.h.{layer}"
_MASKS = (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",)  # the causal mask, a constant
_KEY_ALIASES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
_PLAIN = {
    "score": "scaled_dot",
    "norm": "layer",
    "attention_windows": (),
    "embedding_scale": "none",
    "logit_scale": "none",
    "embedding_norm": False,
    "output_bias": False,
    "biases": "all",
}


_SIZES = (
    ConfigKey("vocab_size", "vocab_size"),
    ConfigKey("n_embd", "width"),
    ConfigKey("n_layer", "layers"),
    ConfigKey("n_head", "heads"),
    ConfigKey("n_inner", "feed_forward"),
    ConfigKey("n_positions", "max_length"),
    ConfigKey("layer_norm_epsilon", "norm_epsilon"),
    ConfigKey("resid_pdrop", "dropout"),
    ConfigKey("attn_pdrop", "attention_dropout"),
    ConfigKey("tie_word_embeddings", "tie_embeddings"),
)
_TRAINING_KEYS = {"embd_pdrop": "resid_pdrop"}


def _simplify_gpt(config: Config, names: TensorNames) -> Config:
    return {**config, "n_inner": 4 * config["n_embd"] if config["n_inner"] is None else config["n_inner"]}


def _restore_gpt(config: Config) -> Config:
    return {**config, "embd_pdrop": config["resid_pdrop"]}


def _require_default_inner_width(config: Config, width: str) -> Config:
    if config["n_inner"] != 4 * config[width]:
        raise UserError(f"config.model.feed_forward={config['n_inner']} is not 4 x width={4 * config[width]}")
    return without_keys(config, "n_inner")


def _gpt_entries(embedding: str, positions: str) -> tuple[TensorEntry, ...]:
    return (
        *embedding_entries(f"transformer.{embedding}", "embedding"),
        *embedding_entries(f"transformer.{positions}", "positions"),
        *norm_entries(f"{_H}.ln_1", "layers/attention_residual/norm"),
        *fused_attention_entries(f"{_H}.attn.c_attn", "layers/attention", TABLE, VECTOR),
        *linear_entries(f"{_H}.attn.c_proj", "layers/attention/output", TABLE_FROM_HEADS),
        *norm_entries(f"{_H}.ln_2", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{_H}.mlp.c_fc", "layers/feed_forward/expand", TABLE),
        *linear_entries(f"{_H}.mlp.c_proj", "layers/feed_forward/contract", TABLE),
        *norm_entries("transformer.ln_f", "norm"),
        *unembedding_entries(),
    )


GPT2 = ConversionSpec(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    model_family="decoder",
    config_keys=(*_SIZES, ConfigKey("activation_function", "activation", values=ACTIVATIONS)),
    fixed_fields={**_PLAIN, "norm_placement": "pre", "positions": "learned"},
    training_defaults={"initialization": "gpt2"},
    bare_architecture="GPT2Model",
    fixed_keys=WINDOWLESS_KEYS,
    training_keys=_TRAINING_KEYS,
    tensor_entries=_gpt_entries("wte", "wpe"),
    optional_prefix="transformer.",
    tensor_aliases={"lm_head.weight": "transformer.wte.weight"},
    ignored_tensors=_MASKS,
    key_aliases=_KEY_ALIASES,
    simplify_config=_simplify_gpt,
    restore_config=_restore_gpt,
)

GPT1 = ConversionSpec(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    model_family="decoder",
    config_keys=(
        *_SIZES,
        # Their "gelu" is the tanh approximation.
        ConfigKey("afn", "activation", values={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
    ),
    fixed_fields={**_PLAIN, "norm_placement": "post", "positions": "learned"},
    training_defaults={"initialization": "gpt"},
    bare_architecture="OpenAIGPTModel",
    training_keys=_TRAINING_KEYS,
    tensor_entries=_gpt_entries("tokens_embed", "positions_embed"),
    optional_prefix="transformer.",
    tensor_aliases={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored_tensors=_MASKS,
    key_aliases=_KEY_ALIASES,
    simplify_config=lambda config, names: {**config, "n_inner": 4 * config["n_embd"]},
    restore_config=lambda config: _restore_gpt(_require_default_inner_width(config, "n_embd")),
)


def _simplify_gptj(config: Config, names: TensorNames) -> Config:
    depth, turned = config["n_embd"] // max(config["n_head"], 1), config["rotary_dim"]
    if not 0 < turned <= depth:
        raise UserError(f"config.json has rotary_dim={turned}; it must be 1 to {depth}, the features of a head")
    return _simplify_gpt({**config, "rotary_fraction": turned / depth}, names)


def _restore_gptj(config: Config) -> Config:
    turned = rotated_features(config["n_embd"] // config["n_head"], config["rotary_fraction"])
    return _restore_gpt({**without_keys(config, "rotary_fraction"), "rotary_dim": turned})


GPTJ = ConversionSpec(
    model_type="gptj",
    architecture="GPTJForCausalLM",
    model_family="decoder",
    config_keys=(
        *_SIZES,
        ConfigKey("activation_function", "activation", values=ACTIVATIONS),
        ConfigKey("rotary_fraction", "rotary_fraction"),
    ),
    fixed_fields={
        **_PLAIN,
        "norm_placement": "parallel",
        "positions": "rotary",
        "rotary_base": 10000.0,
        "biases": "feed_forward",
        "output_bias": True,
    },
    training_defaults={"initialization": "gpt2"},
    bare_architecture="GPTJModel",
    fixed_keys=WINDOWLESS_KEYS,
    training_keys=_TRAINING_KEYS,
    tensor_entries=(
        *embedding_entries("transformer.wte", "embedding"),
        *norm_entries(f"{_H}.ln_1", "layers/attention_residual/norm"),
        *linear_entries(f"{_H}.attn.q_proj", "layers/attention/query"),
        *linear_entries(f"{_H}.attn.k_proj", "layers/attention/key"),
        *linear_entries(f"{_H}.attn.v_proj", "layers/attention/value"),
        *linear_entries(f"{_H}.attn.out_proj", "layers/attention/output", FROM_HEADS),
        *linear_entries(f"{_H}.mlp.fc_in", "layers/feed_forward/expand"),
        *linear_entries(f"{_H}.mlp.fc_out", "layers/feed_forward/contract"),
        *norm_entries("transformer.ln_f", "norm"),
        *unembedding_entries(),
    ),
    optional_prefix="transformer.",
    tensor_aliases={"lm_head.weight": "transformer.wte.weight"},
    ignored_tensors=_MASKS,
    key_aliases=_KEY_ALIASES,
    simplify_config=_simplify_gptj,
    simplified_keys=frozenset({"rotary_dim"}),
    restore_config=_restore_gptj,
)

BLOOM = ConversionSpec(
    model_type="bloom",
    architecture="BloomForCausalLM",
    model_family="decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("n_layer", "layers"),
        ConfigKey("n_head", "heads"),
        ConfigKey("n_inner", "feed_forward"),
        ConfigKey("seq_length", "max_length", 2048),
        ConfigKey("layer_norm_epsilon", "norm_epsilon"),
        ConfigKey("hidden_dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
    ),
    fixed_fields={
        **_PLAIN,
        "activation": "gelu_tanh",
        "norm_placement": "pre",
        "positions": "alibi",
        "embedding_norm": True,
    },
    training_defaults={"initialization": "gpt"},
    bare_architecture="BloomModel",
    fixed_keys=WINDOWLESS_KEYS,
    tensor_entries=(
        *embedding_entries("transformer.word_embeddings", "embedding"),
        *norm_entries("transformer.word_embeddings_layernorm", "embedding_norm"),
        *norm_entries(f"{_H}.input_layernorm", "layers/attention_residual/norm"),
        *fused_attention_entries(
            f"{_H}.self_attention.query_key_value", "layers/attention", LINEAR_BY_HEADS, VECTOR_BY_HEADS
        ),
        *linear_entries(f"{_H}.self_attention.dense", "layers/attention/output", FROM_HEADS),
        *norm_entries(f"{_H}.post_attention_layernorm", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{_H}.mlp.dense_h_to_4h", "layers/feed_forward/expand"),
        *linear_entries(f"{_H}.mlp.dense_4h_to_h", "layers/feed_forward/contract"),
        *norm_entries("transformer.ln_f", "norm"),
        *unembedding_entries(),
    ),
    optional_prefix="transformer.",
    tensor_aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
    key_aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    simplify_config=lambda config, names: {**config, "n_inner": 4 * config["hidden_size"]},
    restore_config=lambda config: _require_default_inner_width(config, "hidden_size"),
)
