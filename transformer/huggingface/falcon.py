"""Conversion of Falcon (Almazrouei et al. 2023)."""

import dataclasses

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    embedding_entries,
    fused_attention_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
)
from transformer.huggingface.layer_keys import ROTARY_KEYS, restore_rotary
from transformer.huggingface.llama import LLAMA, ROTARY_DECODER, flatten_whole_rotary
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR_BY_GROUPS, VECTOR_BY_GROUPS

_H = "transformer.h.{layer}"
_SECOND_NORM = "layers/feed_forward_residual/norm/scale"


def _simplify_falcon(config: Config, names: TensorNames) -> Config:
    heads, grouped = config["num_attention_heads"], config["new_decoder_architecture"]
    kv_heads = heads if config["num_kv_heads"] is None else config["num_kv_heads"]
    if not grouped and config["multi_query"]:
        kv_heads = 1
    elif not grouped and kv_heads != heads:
        raise UserError(
            f"config.json has num_kv_heads={kv_heads} and num_attention_heads={heads}, which differ with "
            "new_decoder_architecture=True alone"
        )
    num_norms = config["num_ln_in_parallel_attn"]
    num_norms = (2 if grouped else 1) if num_norms is None else num_norms
    if num_norms not in ((1, 2) if grouped else (1,)):
        raise UserError(
            f"config.json has num_ln_in_parallel_attn={num_norms}; only 1, or 2 with "
            "new_decoder_architecture=True, can be read"
        )
    width = config["ffn_hidden_size"]
    return {
        **flatten_whole_rotary(config),
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": 4 * config["hidden_size"] if width is None else width,
        "placement": "parallel_norms" if num_norms == 2 else "parallel",
    }


def _restore_falcon(config: Config) -> Config:
    placement, grouped = config["placement"], config["num_kv_heads"] not in (1, config["num_attention_heads"])
    if placement not in ("parallel", "parallel_norms"):
        raise UserError(f"config.model.norm_placement={placement} is none of parallel, parallel_norms")
    # The older architecture where it can be: all can read it.
    grouped |= placement == "parallel_norms"
    restored = restore_rotary(config)
    kv_heads = restored.pop("num_kv_heads")
    del restored["placement"]
    if grouped:
        num_norms = 2 if placement == "parallel_norms" else 1
        architecture_keys = {"num_kv_heads": kv_heads, "num_ln_in_parallel_attn": num_norms}
    else:
        architecture_keys = {"multi_query": kv_heads == 1}
    return {**restored, "new_decoder_architecture": grouped, **architecture_keys}


def _if_two_norms(entry: TensorEntry) -> TensorEntry:
    return dataclasses.replace(entry, required_parameter=_SECOND_NORM)


FALCON = dataclasses.replace(
    LLAMA,
    model_type="falcon",
    architecture="FalconForCausalLM",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("num_hidden_layers", "layers"),
        ConfigKey("num_attention_heads", "heads"),
        ConfigKey("num_kv_heads", "kv_heads"),
        ConfigKey("ffn_hidden_size", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("rope_theta", "rotary_base"),
        ConfigKey("rope_scaling", "rotary_scaling"),
        ConfigKey("layer_norm_epsilon", "norm_epsilon"),
        ConfigKey("activation", "activation", values=ACTIVATIONS),
        ConfigKey("hidden_dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
        ConfigKey("bias", "biases", False, values={True: "all", False: "none"}),
        ConfigKey("placement", "norm_placement"),
    ),
    fixed_fields={**ROTARY_DECODER, "norm": "layer", "norm_bias": True, "attention_windows": ()},
    training_defaults={"initialization": "gpt"},
    bare_architecture="FalconModel",
    fixed_keys=(
        *WINDOWLESS_KEYS,
        # ALiBi's biases are in bfloat16 and divided by sqrt(D) there, and eager attention adds them twice.
        FixedConfigKey("alibi", False),
        FixedConfigKey("parallel_attn", True, null=False),
    ),
    key_aliases={"n_embed": "hidden_size"},
    tensor_entries=(
        *embedding_entries("transformer.word_embeddings", "embedding"),
        *(
            dataclasses.replace(entry, excluded_parameter=_SECOND_NORM)
            for entry in norm_entries(f"{_H}.input_layernorm", "layers/attention_residual/norm")
        ),
        *map(_if_two_norms, norm_entries(f"{_H}.ln_attn", "layers/attention_residual/norm")),
        *norm_entries(f"{_H}.ln_mlp", "layers/feed_forward_residual/norm"),
        *fused_attention_entries(
            f"{_H}.self_attention.query_key_value", "layers/attention", LINEAR_BY_GROUPS, VECTOR_BY_GROUPS
        ),
        *linear_entries(f"{_H}.self_attention.dense", "layers/attention/output", FROM_HEADS),
        *linear_entries(f"{_H}.mlp.dense_h_to_4h", "layers/feed_forward/expand"),
        *linear_entries(f"{_H}.mlp.dense_4h_to_h", "layers/feed_forward/contract"),
        *norm_entries("transformer.ln_f", "norm"),
        *unembedding_entries(),
    ),
    optional_prefix="transformer.",
    tensor_aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
    ignored_tensors=(r"(transformer\.)?h\.\d+\.self_attention\.(maybe_)?rotary(_emb)?\.inv_freq",),
    simplify_config=_simplify_falcon,
    simplified_keys=ROTARY_KEYS | {"new_decoder_architecture", "multi_query", "num_ln_in_parallel_attn"},
    restore_config=_restore_falcon,
)
