"""Conversion of Marian's translation models (Junczys-Dowmunt et al. 2018)."""

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
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
)
from transformer.huggingface.tensor_layouts import ROW_VECTOR

_EPSILON = 1e-5  # that of its norms, which files do not state


def _side(name: str) -> tuple[TensorEntry, ...]:
    layer, projections = f"model.{name}.layers.{{layer}}", ("q_proj", "k_proj", "v_proj", "out_proj")
    return (
        *attention_entries(f"{layer}.self_attn", f"{name}/attention", projections),
        *norm_entries(f"{layer}.self_attn_layer_norm", f"{name}/attention_residual/norm"),
        *attention_entries(f"{layer}.encoder_attn", f"{name}/cross", projections),
        *norm_entries(f"{layer}.encoder_attn_layer_norm", f"{name}/cross_residual/norm"),
        *linear_entries(f"{layer}.fc1", f"{name}/feed_forward/expand"),
        *linear_entries(f"{layer}.fc2", f"{name}/feed_forward/contract"),
        *norm_entries(f"{layer}.final_layer_norm", f"{name}/feed_forward_residual/norm"),
    )


def _simplify(config: Config, names: TensorNames) -> Config:
    for one, other in (
        ("decoder_attention_heads", "encoder_attention_heads"),
        ("decoder_ffn_dim", "encoder_ffn_dim"),
        ("decoder_vocab_size", "vocab_size"),
    ):
        if config.get(one) is not None and config[one] != config.get(other):
            raise UserError(f"config.json has {one}={config[one]}, not {other}={config.get(other)}; they must be equal")
    return config


def _restore(config: Config) -> Config:
    return {
        **config,
        "decoder_attention_heads": config["encoder_attention_heads"],
        "decoder_ffn_dim": config["encoder_ffn_dim"],
        "decoder_vocab_size": config["vocab_size"],
    }


MARIAN = ConversionSpec(
    model_type="marian",
    architecture="MarianMTModel",
    model_family="encoder_decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("d_model", "width"),
        ConfigKey("encoder_layers", "encoder_layers"),
        ConfigKey("decoder_layers", "decoder_layers"),
        ConfigKey("encoder_attention_heads", "heads"),
        ConfigKey("encoder_ffn_dim", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length", 1024),
        ConfigKey("dropout", "dropout", 0.1),
        ConfigKey("attention_dropout", "attention_dropout", 0.0),
        ConfigKey("activation_function", "activation", "gelu", ACTIVATIONS),
        ConfigKey("scale_embedding", "embedding_scale", False, {False: "none", True: "sqrt_width"}),
    ),
    fixed_fields={
        "score": "scaled_dot",
        "cross": "attention",
        "norm": "layer",
        "norm_epsilon": _EPSILON,
        "norm_placement": "post",
        "biases": "all",
        "positions": "sinusoidal_halves",
        "attention_windows": (),
        "logit_scale": "none",
        "embedding_norm": False,
        "tie_embeddings": True,
        "output_bias": True,
    },
    training_defaults={"initialization": "xavier"},
    fixed_keys=(
        FixedConfigKey("is_encoder_decoder", True, is_written=True),
        FixedConfigKey("tie_word_embeddings", True),
        FixedConfigKey("share_encoder_decoder_embeddings", True, is_written=True),
        FixedConfigKey("static_position_embeddings", True, is_written=True),
        FixedConfigKey("normalize_before", False),
        FixedConfigKey("normalize_embedding", False),
        FixedConfigKey("add_final_layer_norm", False),
        FixedConfigKey("add_bias_logits", False),
        FixedConfigKey("activation_dropout", 0.0),
        FixedConfigKey("encoder_layerdrop", 0.0),
        FixedConfigKey("decoder_layerdrop", 0.0),
    ),
    tensor_entries=(
        *embedding_entries("model.shared", "embedding"),
        *_side("encoder"),
        *_side("decoder"),
        TensorEntry("final_logits_bias", ("output_bias/bias",), ROW_VECTOR),
    ),
    optional_prefix="model.",
    tensor_aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    ignored_tensors=(r"model\.(encoder|decoder)\.embed_positions\.weight",),  # the sinusoids, a constant
    simplify_config=_simplify,
    simplified_keys=frozenset({"decoder_attention_heads", "decoder_ffn_dim", "decoder_vocab_size"}),
    restore_config=_restore,
)
