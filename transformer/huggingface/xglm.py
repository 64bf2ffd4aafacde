"""Conversion of XGLM (Lin et al. 2022)."""

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
)

_LAYER = "model.layers.{layer}"
_OFFSET = 2


def _simplify_config(config: Config, names: TensorNames) -> Config:
    """The row of the padding token's number is 0, which only rows before the first position may be."""
    padding = config["pad_token_id"]
    if padding is not None and not 0 <= padding < _OFFSET:
        raise UserError(
            f"config.json has pad_token_id={padding}, and no position has that number; only 0 and 1 can be read, "
            f"before the first position {_OFFSET}"
        )
    return config


XGLM = ConversionSpec(
    model_type="xglm",
    architecture="XGLMForCausalLM",
    model_family="decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("d_model", "width"),
        ConfigKey("num_layers", "layers"),
        ConfigKey("attention_heads", "heads"),
        ConfigKey("ffn_dim", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("activation_function", "activation", values=ACTIVATIONS),
        ConfigKey("dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("scale_embedding", "embedding_scale", values={False: "none", True: "sqrt_width"}),
    ),
    fixed_fields={
        "score": "scaled_dot",
        "norm": "layer",
        "norm_bias": True,
        "norm_epsilon": 1e-5,
        "norm_placement": "pre",
        "biases": "all",
        "positions": "sinusoidal_tensor2tensor",
        "position_offset": _OFFSET,
        "attention_windows": (),
        "logit_scale": "none",
        "embedding_norm": False,
        "output_bias": False,
        "tie_embeddings": True,
    },
    training_defaults={"initialization": "gpt"},
    bare_architecture="XGLMModel",
    fixed_keys=(*WINDOWLESS_KEYS, FixedConfigKey("add_cross_attention", False)),
    training_keys={"activation_dropout": "", "layerdrop": ""},
    tensor_entries=(
        *embedding_entries("model.embed_tokens", "embedding"),
        *attention_entries(f"{_LAYER}.self_attn", "layers/attention", ("q_proj", "k_proj", "v_proj", "out_proj")),
        *norm_entries(f"{_LAYER}.self_attn_layer_norm", "layers/attention_residual/norm"),
        *linear_entries(f"{_LAYER}.fc1", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.fc2", "layers/feed_forward/contract"),
        *norm_entries(f"{_LAYER}.final_layer_norm", "layers/feed_forward_residual/norm"),
        *norm_entries("model.layer_norm", "norm"),
    ),
    optional_prefix="model.",
    tensor_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    # The sinusoids, which earlier versions of the library wrote.
    ignored_tensors=(r"(model\.)?embed_positions\.weights",),
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "attention_heads",
        "num_hidden_layers": "num_layers",
    },
    simplify_config=_simplify_config,
    simplified_keys=frozenset({"pad_token_id"}),
)
