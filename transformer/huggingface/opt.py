"""Conversion of OPT (Zhang et al. 2022)."""

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
)

_LAYER = "model.decoder.layers.{layer}"


def _simplify_opt(config: Config, names: TensorNames) -> Config:
    width, table = config["hidden_size"], config["word_embed_proj_dim"]
    if table not in (None, width):
        raise UserError(
            f"config.json has word_embed_proj_dim={table}, the width of the embedding table; only hidden_size={width} "
            "can be read"
        )
    if config["do_layer_norm_before"] and config["_remove_final_layer_norm"]:
        raise UserError("config.json has _remove_final_layer_norm=True; only False can be read")
    return config


OPT = ConversionSpec(
    model_type="opt",
    architecture="OPTForCausalLM",
    model_family="decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("num_hidden_layers", "layers"),
        ConfigKey("num_attention_heads", "heads"),
        ConfigKey("ffn_dim", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("activation_function", "activation", values=ACTIVATIONS),
        ConfigKey("dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
        ConfigKey("enable_bias", "biases", values={True: "all", False: "none"}),
        ConfigKey("do_layer_norm_before", "norm_placement", values={True: "pre", False: "post"}),
    ),
    fixed_fields={
        "score": "scaled_dot",
        "norm": "layer",
        "norm_bias": True,
        "norm_epsilon": 1e-5,
        "positions": "learned",
        "position_offset": 2,
        "attention_windows": (),
        "embedding_scale": "none",
        "logit_scale": "none",
        "embedding_norm": False,
        "output_bias": False,
    },
    training_defaults={"initialization": "gpt"},
    bare_architecture="OPTModel",
    fixed_keys=(*WINDOWLESS_KEYS, FixedConfigKey("layer_norm_elementwise_affine", True, null=False)),
    training_keys={"layerdrop": ""},
    tensor_entries=(
        *embedding_entries("model.decoder.embed_tokens", "embedding"),
        *embedding_entries("model.decoder.embed_positions", "positions"),
        *attention_entries(f"{_LAYER}.self_attn", "layers/attention", ("q_proj", "k_proj", "v_proj", "out_proj")),
        *norm_entries(f"{_LAYER}.self_attn_layer_norm", "layers/attention_residual/norm"),
        *linear_entries(f"{_LAYER}.fc1", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.fc2", "layers/feed_forward/contract"),
        *norm_entries(f"{_LAYER}.final_layer_norm", "layers/feed_forward_residual/norm"),
        *norm_entries("model.decoder.final_layer_norm", "norm"),
        *unembedding_entries(),
    ),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    simplify_config=_simplify_opt,
    simplified_keys=frozenset({"word_embed_proj_dim", "_remove_final_layer_norm"}),
    restore_config=lambda config: {**config, "word_embed_proj_dim": config["hidden_size"]},
)
