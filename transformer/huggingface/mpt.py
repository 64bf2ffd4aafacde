"""Conversion of MPT (MosaicML 2023)."""

from collections.abc import Mapping
from typing import Any

from transformer.config import NonNegativeFloat, PositiveFloat, UserError, convert_value, shorten_value
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    Config,
    ConfigKey,
    ConversionSpec,
    TensorEntry,
    TensorNames,
    embedding_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR

_BLOCK = "transformer.blocks.{layer}"
_PARTS = tuple(f"layers/attention/{name}/kernel" for name in ("query", "key", "value"))
# What the class has and never reads: it is ALiBi of the usual slopes, four times as wide inside, without biases.
_UNREAD_KEYS = frozenset(
    """emb_pdrop embedding_fraction expansion_ratio init_device learned_pos_emb logit_scale no_bias norm_type
    resid_pdrop""".split()  # noqa: SIM905  names
)


def _simplify_mpt(config: Config, names: TensorNames) -> Config:
    attention = convert_value(Mapping[str, Any], config["attn_config"] or {}, "config.json: attn_config")
    if attention.get("clip_qkv"):
        raise UserError(f"config.json has attn_config with clip_qkv={shorten_value(attention['clip_qkv'])}; only null")
    scale = convert_value(
        PositiveFloat | None, attention.get("softmax_scale"), "config.json: attn_config.softmax_scale"
    )
    dropout = convert_value(NonNegativeFloat, attention.get("attn_pdrop", 0.0), "config.json: attn_config.attn_pdrop")
    sizes = {"feed_forward": 4 * config["d_model"], "softmax_scale": scale}
    return {**config, **sizes, "dropout": dropout, "attention_dropout": dropout}


def _restore_mpt(config: Config) -> Config:
    if config["feed_forward"] != 4 * config["d_model"]:
        raise UserError(f"config.model.feed_forward={config['feed_forward']} is not 4 x width={4 * config['d_model']}")
    read = ("feed_forward", "softmax_scale", "dropout", "attention_dropout")
    other_keys = without_keys(config, *read)
    scale = config["softmax_scale"]
    return other_keys if scale is None else {**other_keys, "attn_config": {"softmax_scale": scale}}


MPT = ConversionSpec(
    model_type="mpt",
    architecture="MptForCausalLM",
    # As the first files have it, whose code was not yet the library's own.
    other_architectures=("MPTForCausalLM",),
    model_family="decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("d_model", "width"),
        ConfigKey("n_layers", "layers"),
        ConfigKey("n_heads", "heads"),
        ConfigKey("feed_forward", "feed_forward"),
        ConfigKey("max_seq_len", "max_length"),
        ConfigKey("softmax_scale", "attention_scale"),
        ConfigKey("layer_norm_epsilon", "norm_epsilon"),
        ConfigKey("dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
    ),
    fixed_fields={
        "score": "scaled_dot",
        "norm": "layer",
        "norm_placement": "pre",
        "biases": "none",
        "activation": "gelu",
        "positions": "alibi",
        "attention_windows": (),
        "embedding_scale": "none",
        "logit_scale": "none",
        "embedding_norm": False,
        "output_bias": False,
    },
    training_defaults={"initialization": "gpt"},
    bare_architecture="MptModel",
    fixed_keys=(CAUSAL,),
    key_aliases={"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"},
    tensor_entries=(
        *embedding_entries("transformer.wte", "embedding"),
        *norm_entries(f"{_BLOCK}.norm_1", "layers/attention_residual/norm"),
        TensorEntry(f"{_BLOCK}.attn.Wqkv.weight", _PARTS, LINEAR),
        *linear_entries(f"{_BLOCK}.attn.out_proj", "layers/attention/output", FROM_HEADS),
        *norm_entries(f"{_BLOCK}.norm_2", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{_BLOCK}.ffn.up_proj", "layers/feed_forward/expand"),
        *linear_entries(f"{_BLOCK}.ffn.down_proj", "layers/feed_forward/contract"),
        *norm_entries("transformer.norm_f", "norm"),
        *unembedding_entries(),
    ),
    optional_prefix="transformer.",
    tensor_aliases={"lm_head.weight": "transformer.wte.weight"},
    simplify_config=_simplify_mpt,
    simplified_keys=_UNREAD_KEYS | {"attn_config"},
    restore_config=_restore_mpt,
)
