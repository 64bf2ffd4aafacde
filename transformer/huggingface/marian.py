"""Conversion of Marian's translation models (Junczys-Dowmunt et al. 2018)."""

import numpy as np

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    WINDOWLESS_KEYS,
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
    without_keys,
)
from transformer.huggingface.tensor_layouts import ROW_VECTOR

COMPUTED_POSITIONS = (r"(model\.)?(encoder|decoder)\.embed_positions\.weight",)
"""The tensors of `position_constants`."""

_BODY = "MarianModel"
_EPSILON = 1e-5  # that of its norms, which files do not state


def stack_entries(name: str) -> tuple[TensorEntry, ...]:
    """Return the tensors of a stack, "encoder" or "decoder", of Marian and of BART, which have the same names."""
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


def check_equal_sides(config: Config, *pairs: tuple[str, str]) -> None:
    """Check that these keys of the decoder have the values of the encoder's.

    Raises:
        UserError: If they do not.
    """
    for key, encoder_key in pairs:
        if config[key] != config[encoder_key]:
            raise UserError(
                f"config.json has {key}={config[key]}, not {encoder_key}={config[encoder_key]}; they must be equal"
            )


SIZE_KEYS = (
    ConfigKey("vocab_size", "vocab_size"),
    ConfigKey("d_model", "width"),
    ConfigKey("encoder_layers", "encoder_layers"),
    ConfigKey("decoder_layers", "decoder_layers"),
    ConfigKey("encoder_attention_heads", "heads"),
    ConfigKey("encoder_ffn_dim", "feed_forward"),
    ConfigKey("max_position_embeddings", "max_length"),
    ConfigKey("dropout", "dropout"),
    ConfigKey("attention_dropout", "attention_dropout"),
    ConfigKey("activation_function", "activation", values=ACTIVATIONS),
)
"""The keys of sizes, rates and the activation that Marian and its like have in common."""

SIDE_PAIRS = (("decoder_attention_heads", "encoder_attention_heads"), ("decoder_ffn_dim", "encoder_ffn_dim"))


def _simplify_config(config: Config, names: TensorNames) -> Config:
    if not config["decoder_vocab_size"]:
        config = {**config, "decoder_vocab_size": config["vocab_size"]}
    check_equal_sides(config, *SIDE_PAIRS, ("decoder_vocab_size", "vocab_size"))
    start, padding = config.get("decoder_start_token_id"), config.get("pad_token_id")
    if start is not None and padding is not None and start != padding:
        raise UserError(
            f"config.json has decoder_start_token_id={start}, not pad_token_id={padding}: Marian's decoder begins with "
            "the padding token here"
        )
    # The body has no bias of its logits, which are those of the table; the class of translation always has one.
    return {**config, "output_bias": (config["architectures"] or ("",))[0] != _BODY}


def _restore_config(config: Config) -> Config:
    architecture_keys = {} if config["output_bias"] else {"architectures": [_BODY]}
    return {
        **without_keys(config, "output_bias"),
        **architecture_keys,
        "decoder_attention_heads": config["encoder_attention_heads"],
        "decoder_ffn_dim": config["encoder_ffn_dim"],
        "decoder_vocab_size": config["vocab_size"],
    }


def _sinusoids(config: Config) -> dict[str, np.ndarray]:
    """Return the positions, which the body alone has in its file."""
    return position_constants(config) if config["architectures"] == [_BODY] else {}


def position_constants(config: Config) -> dict[str, np.ndarray]:
    """Return the tensors of positions that are never trained, sines before cosines (Vaswani et al. 2017)."""
    rows, width = config["max_position_embeddings"], config["d_model"]
    angles = np.arange(rows)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    # Of an odd width, the last cosine has no place.
    table = np.concatenate([np.sin(angles), np.cos(angles[:, : width // 2])], axis=1)
    return {f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")}


MARIAN = ConversionSpec(
    model_type="marian",
    architecture="MarianMTModel",
    model_family="encoder_decoder",
    config_keys=(
        *SIZE_KEYS,
        ConfigKey("scale_embedding", "embedding_scale", values={False: "none", True: "sqrt_width"}),
        ConfigKey("output_bias", "output_bias"),
    ),
    fixed_fields={
        "score": "scaled_dot",
        "cross": "attention",
        "norm": "layer",
        "norm_epsilon": _EPSILON,
        "norm_placement": "post",
        "biases": "all",
        "positions": "sinusoidal_halves",
        "position_offset": 0,
        "side_embeddings": "shared",
        "attention_windows": (),
        "logit_scale": "none",
        "embedding_norm": False,
        "tie_embeddings": True,
        "head": "next_tokens",
    },
    training_defaults={"initialization": "xavier"},
    bare_architecture=_BODY,
    other_architectures=(_BODY,),
    fixed_keys=(
        FixedConfigKey("is_encoder_decoder", True, is_written=True),
        FixedConfigKey("share_encoder_decoder_embeddings", True, is_written=True),
        FixedConfigKey("static_position_embeddings", True, is_written=True),
        FixedConfigKey("normalize_before", False),
        FixedConfigKey("normalize_embedding", False),
        FixedConfigKey("add_final_layer_norm", False),
        FixedConfigKey("add_bias_logits", False),
        *WINDOWLESS_KEYS,
    ),
    training_keys={"activation_dropout": "", "encoder_layerdrop": "", "decoder_layerdrop": ""},
    tensor_entries=(
        *embedding_entries("model.shared", "embedding"),
        *stack_entries("encoder"),
        *stack_entries("decoder"),
        TensorEntry("final_logits_bias", ("output_bias/bias",), ROW_VECTOR),
    ),
    optional_prefix="model.",
    tensor_aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    ignored_tensors=COMPUTED_POSITIONS,
    computed_tensors=position_constants,
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    simplify_config=_simplify_config,
    simplified_keys=frozenset({"decoder_attention_heads", "decoder_ffn_dim", "decoder_vocab_size"}),
    restore_config=_restore_config,
    constant_tensors=_sinusoids,
)
