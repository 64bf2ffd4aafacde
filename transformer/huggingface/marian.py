"""Marian's translation models (Junczys-Dowmunt et al. 2018)."""

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
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
)
from transformer.huggingface.tensor_layouts import ROW

_EPSILON = 1e-5  # that of its norms, which files do not state


def _side(name: str) -> tuple[Entry, ...]:
    layer, projections = f"model.{name}.layers.{{layer}}", ("q_proj", "k_proj", "v_proj", "out_proj")
    return (
        *attention(f"{layer}.self_attn", f"{name}/attention", projections),
        *norm(f"{layer}.self_attn_layer_norm", f"{name}/attention_residual/norm"),
        *attention(f"{layer}.encoder_attn", f"{name}/cross", projections),
        *norm(f"{layer}.encoder_attn_layer_norm", f"{name}/cross_residual/norm"),
        *linear(f"{layer}.fc1", f"{name}/feed_forward/expand"),
        *linear(f"{layer}.fc2", f"{name}/feed_forward/contract"),
        *norm(f"{layer}.final_layer_norm", f"{name}/feed_forward_residual/norm"),
    )


def _simplify(config: Config, names: Names) -> Config:
    for one, other in (
        ("decoder_attention_heads", "encoder_attention_heads"),
        ("decoder_ffn_dim", "encoder_ffn_dim"),
        ("decoder_vocab_size", "vocab_size"),
    ):
        if config.get(one) is not None and config[one] != config.get(other):
            raise UserError(f"config.json has {one}={config[one]}, not {other}={config.get(other)}; they must be equal")
    return config


def _publish(config: Config) -> Config:
    return {
        **config,
        "decoder_attention_heads": config["encoder_attention_heads"],
        "decoder_ffn_dim": config["encoder_ffn_dim"],
        "decoder_vocab_size": config["vocab_size"],
    }


MARIAN = Family(
    model_type="marian",
    architecture="MarianMTModel",
    model="encoder_decoder",
    keys=(
        Key("vocab_size", "embedding_rows"),
        Key("d_model", "width"),
        Key("encoder_layers", "encoder_layers"),
        Key("decoder_layers", "decoder_layers"),
        Key("encoder_attention_heads", "heads"),
        Key("encoder_ffn_dim", "feed_forward"),
        Key("max_position_embeddings", "max_length", 1024),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("activation_function", "activation", "gelu", ACTIVATIONS),
        Key("scale_embedding", "embedding_scale", False, {False: "none", True: "sqrt_width"}),
    ),
    fixed={
        "score": "scaled_dot",
        "cross": "attention",
        "norm": "layer",
        "norm_epsilon": _EPSILON,
        "norm_placement": "post",
        "biases": "all",
        "positions": "sinusoidal_halves",
        "windows": (),
        "logit_scale": "none",
        "embedding_norm": False,
        "tied": True,
        "output_bias": True,
    },
    begun={"initialization": "xavier"},
    only=(
        FixedKey("is_encoder_decoder", True, written=True),
        FixedKey("tie_word_embeddings", True),
        FixedKey("share_encoder_decoder_embeddings", True, written=True),
        FixedKey("static_position_embeddings", True, written=True),
        FixedKey("normalize_before", False),
        FixedKey("normalize_embedding", False),
        FixedKey("add_final_layer_norm", False),
        FixedKey("add_bias_logits", False),
        FixedKey("activation_dropout", 0.0),
        FixedKey("encoder_layerdrop", 0.0),
        FixedKey("decoder_layerdrop", 0.0),
    ),
    entries=(
        *table("model.shared", "embedding"),
        *_side("encoder"),
        *_side("decoder"),
        Entry("final_logits_bias", ("output_bias/bias",), ROW),
    ),
    prefix="model.",
    aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    harmless=(r"model\.(encoder|decoder)\.embed_positions\.weight",),  # the sinusoids, a constant
    simplify=_simplify,
    simplified=frozenset({"decoder_attention_heads", "decoder_ffn_dim", "decoder_vocab_size"}),
    publish=_publish,
)
