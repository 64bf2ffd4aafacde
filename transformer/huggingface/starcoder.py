"""Conversion of SantaCoder and StarCoder (Allal et al. 2023; Li et al. 2023), `gpt_bigcode`, and of StarCoder 2."""

import dataclasses

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    CAUSAL_KEYS,
    Config,
    ConfigKey,
    TensorNames,
    embedding_entries,
    fused_attention_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.gpt import GPT2
from transformer.huggingface.llama import (
    LAYER,
    MISTRAL,
    PRE_NORMS,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
)
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR_BY_GROUPS, VECTOR_BY_GROUPS

_H = "transformer.h.{layer}"


def _simplify_bigcode(config: Config, names: TensorNames) -> Config:
    return {
        **config,
        "n_inner": 4 * config["n_embd"] if config["n_inner"] is None else config["n_inner"],
        "kv_heads": 1 if config["multi_query"] else config["n_head"],
        "scale": None if config["scale_attn_weights"] else 1.0,
    }


def _restore_bigcode(config: Config) -> Config:
    if config["kv_heads"] not in (1, config["n_head"]):
        raise UserError(f"config.model.kv_heads={config['kv_heads']} is neither 1 nor heads={config['n_head']}")
    if config["scale"] not in (None, 1.0):
        raise UserError(f"config.model.attention_scale={config['scale']} is neither 1 nor 1 / sqrt(D)")
    return {
        **without_keys(config, "kv_heads", "scale"),
        "embd_pdrop": config["resid_pdrop"],
        "multi_query": config["kv_heads"] == 1,
        "scale_attn_weights": config["scale"] is None,
    }


GPT_BIGCODE = dataclasses.replace(
    GPT2,
    model_type="gpt_bigcode",
    architecture="GPTBigCodeForCausalLM",
    config_keys=(*GPT2.config_keys, ConfigKey("kv_heads", "kv_heads"), ConfigKey("scale", "attention_scale")),
    bare_architecture="GPTBigCodeModel",
    tensor_entries=(
        *embedding_entries("transformer.wte", "embedding"),
        *embedding_entries("transformer.wpe", "positions"),
        *norm_entries(f"{_H}.ln_1", "layers/attention_residual/norm"),
        # With one key and value for all heads, and with one for each, a matrix of groups.
        *fused_attention_entries(f"{_H}.attn.c_attn", "layers/attention", LINEAR_BY_GROUPS, VECTOR_BY_GROUPS),
        *linear_entries(f"{_H}.attn.c_proj", "layers/attention/output", FROM_HEADS),
        *norm_entries(f"{_H}.ln_2", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{_H}.mlp.c_fc", "layers/feed_forward/expand"),
        *linear_entries(f"{_H}.mlp.c_proj", "layers/feed_forward/contract"),
        *norm_entries("transformer.ln_f", "norm"),
        *unembedding_entries(),
    ),
    ignored_tensors=(r"(transformer\.)?h\.\d+\.attn\.bias", r"(transformer\.)?bias"),  # the causal mask, a constant
    simplify_config=_simplify_bigcode,
    simplified_keys=frozenset({"multi_query", "scale_attn_weights", "scale_attention_softmax_in_fp32"}),
    restore_config=_restore_bigcode,
)


STARCODER2 = dataclasses.replace(
    MISTRAL,
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    config_keys=(
        *SIZES,
        ConfigKey("norm_epsilon", "norm_epsilon"),
        ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
        ConfigKey("residual_dropout", "dropout"),
        ConfigKey("use_bias", "biases", values={True: "all", False: "none"}),
        ConfigKey("windows", "attention_windows"),
    ),
    fixed_fields={**ROTARY_DECODER, "norm": "layer", "norm_placement": "pre", "norm_bias": True},
    training_defaults={"initialization": "gpt"},
    bare_architecture="Starcoder2Model",
    fixed_keys=CAUSAL_KEYS,
    training_keys={"embedding_dropout": "residual_dropout"},
    tensor_entries=decoder_entries(
        PRE_NORMS,
        (
            *linear_entries(f"{LAYER}.mlp.c_fc", "layers/feed_forward/expand"),
            *linear_entries(f"{LAYER}.mlp.c_proj", "layers/feed_forward/contract"),
        ),
    ),
)
