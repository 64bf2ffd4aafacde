"""Conversion of SantaCoder and StarCoder (Allal et al. 2023; Li et al. 2023), `gpt_bigcode`, and of StarCoder 2."""

import dataclasses

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    CAUSAL,
    Config,
    ConfigKey,
    TensorNames,
    embedding_entries,
    fused_attention_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
)
from transformer.huggingface.gpt import GPT2
from transformer.huggingface.layer_keys import ROTARY_KEYS, our_window, restore_rotary
from transformer.huggingface.llama import (
    LAYER,
    LLAMA,
    PRE_NORMS,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
    simplify_whole_heads,
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
    other_keys = {name: value for name, value in config.items() if name not in ("kv_heads", "scale")}
    return {
        **other_keys,
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


def _simplify_starcoder2(config: Config, names: TensorNames) -> Config:
    window = config["sliding_window"]
    return {
        **simplify_whole_heads(config),
        "windows": () if window is None else (our_window(window),),
        "biases": "all" if config["use_bias"] else "none",
        "norm_bias": None if config["use_bias"] else True,
    }


def _restore_starcoder2(config: Config) -> Config:
    windows = config["windows"]
    if len(windows) > 1:
        raise UserError(f"config.model.attention_windows={windows} are not one for all layers")
    other_keys = {name: value for name, value in config.items() if name != "windows"}
    return {
        **restore_rotary(restore_bias(other_keys, "use_bias")),
        "sliding_window": windows[0] + 1 if windows else None,
    }


def restore_bias(config: Config, key: str) -> Config:
    """Undo that all linear maps have biases or none, as a key says, while norms have theirs.

    Args:
        config: The config, with `biases` and `norm_bias` as ours has them.
        key: The key of config.json.

    Raises:
        UserError: If others have biases, or if norms have none.
    """
    biases = config["biases"]
    if biases not in ("all", "none"):
        raise UserError(f"config.model.biases={biases} is none of all, none")
    if config["norm_bias"] != (True if biases == "none" else None):
        raise UserError("config.model.norm_bias=False leaves out what the norms have there")
    other_keys = {name: value for name, value in config.items() if name not in ("biases", "norm_bias")}
    return {**other_keys, key: biases == "all"}


STARCODER2 = dataclasses.replace(
    LLAMA,
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    config_keys=(
        *SIZES,
        ConfigKey("norm_epsilon", "norm_epsilon"),
        ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
        ConfigKey("residual_dropout", "dropout"),
        ConfigKey("biases", "biases"),
        ConfigKey("norm_bias", "norm_bias"),
        ConfigKey("windows", "attention_windows"),
    ),
    fixed_fields={**ROTARY_DECODER, "norm": "layer", "norm_placement": "pre"},
    training_defaults={"initialization": "gpt"},
    bare_architecture="Starcoder2Model",
    fixed_keys=(CAUSAL,),
    training_keys={"embedding_dropout": "residual_dropout"},
    tensor_entries=decoder_entries(
        PRE_NORMS,
        (
            *linear_entries(f"{LAYER}.mlp.c_fc", "layers/feed_forward/expand"),
            *linear_entries(f"{LAYER}.mlp.c_proj", "layers/feed_forward/contract"),
        ),
    ),
    simplify_config=_simplify_starcoder2,
    simplified_keys=ROTARY_KEYS | {"sliding_window", "use_bias"},
    restore_config=_restore_starcoder2,
)
