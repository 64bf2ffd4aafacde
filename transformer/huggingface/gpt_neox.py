"""Conversion of GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023), StableLM 2, Phi 1 to 2, and Phi 3."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer.config import UserError, convert_value
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    CAUSAL_KEYS,
    GATED_ACTIVATIONS,
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    fused_attention_entries,
    linear_entries,
    norm_entries,
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.layer_keys import (
    ROTARY_KEYS,
    flatten_rotary,
    restore_rotary,
    restore_sliding_window,
    windows_of_all_layers,
)
from transformer.huggingface.llama import (
    LAYER,
    LLAMA,
    PRE_NORMS,
    RMS_KEYS,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
    simplify_sizes,
)
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR, LINEAR_BY_HEADS, VECTOR_BY_HEADS

FRACTION = ConfigKey("partial_rotary_factor", "rotary_fraction")
_LAYER_NORM_KEY = ConfigKey("layer_norm_eps", "norm_epsilon")
_NEOX_LAYER = "gpt_neox.layers.{layer}"
_NO_HEAD_KEYS = ("num_key_value_heads", "head_dim")


def _simplify_neox(config: Config, names: TensorNames) -> Config:
    # Its class has other names for what others call `rope_theta` and `partial_rotary_factor`, and reads no others.
    other_keys = without_keys(config, "rope_theta", "partial_rotary_factor")
    base, fraction = config.get("rotary_emb_base", 10000.0), config.get("rotary_pct", 0.25)
    return flatten_rotary(other_keys, base=base, fraction=fraction)


def _restore_neox(config: Config) -> Config:
    return {
        **without_keys(restore_rotary(config), "rope_theta", "partial_rotary_factor"),
        "rotary_emb_base": config["rope_theta"],
        "rotary_pct": config["partial_rotary_factor"],
    }


GPT_NEOX = dataclasses.replace(
    LLAMA,
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    config_keys=(
        *(key for key in SIZES if key.their_key not in _NO_HEAD_KEYS),
        FRACTION,
        _LAYER_NORM_KEY,
        ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
        ConfigKey("hidden_dropout", "dropout"),
        ConfigKey("attention_bias", "biases", values={True: "all", False: "feed_forward"}),
        ConfigKey("use_parallel_residual", "norm_placement", values={True: "parallel_norms", False: "pre"}),
    ),
    fixed_fields={**ROTARY_DECODER, "norm": "layer", "attention_windows": ()},
    training_defaults={"initialization": "gpt"},
    bare_architecture="GPTNeoXModel",
    # A depth of heads of its own would be that of the rotary positions alone.
    fixed_keys=(*WINDOWLESS_KEYS, FixedConfigKey("is_decoder", False), FixedConfigKey("head_dim", None)),
    tensor_entries=(
        *embedding_entries("gpt_neox.embed_in", "embedding"),
        *norm_entries(f"{_NEOX_LAYER}.input_layernorm", "layers/attention_residual/norm"),
        *norm_entries(f"{_NEOX_LAYER}.post_attention_layernorm", "layers/feed_forward_residual/norm"),
        *fused_attention_entries(
            f"{_NEOX_LAYER}.attention.query_key_value", "layers/attention", LINEAR_BY_HEADS, VECTOR_BY_HEADS
        ),
        *linear_entries(f"{_NEOX_LAYER}.attention.dense", "layers/attention/output", FROM_HEADS),
        *linear_entries(f"{_NEOX_LAYER}.mlp.dense_h_to_4h", "layers/feed_forward/expand"),
        *linear_entries(f"{_NEOX_LAYER}.mlp.dense_4h_to_h", "layers/feed_forward/contract"),
        *norm_entries("gpt_neox.final_layer_norm", "norm"),
        *unembedding_entries("embed_out"),
    ),
    optional_prefix="gpt_neox.",
    tensor_aliases={"embed_out.weight": "gpt_neox.embed_in.weight"},
    ignored_tensors=(r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    simplify_config=_simplify_neox,
    simplified_keys=frozenset({"rope_scaling", "rope_parameters", "rotary_emb_base", "rotary_pct"}),
    restore_config=_restore_neox,
)


def _restore_stablelm(config: Config) -> Config:
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise UserError(f"config.model.head_dim={config['head_dim']} is not width / heads")
    return _restore_fraction(without_keys(config, "head_dim"))


def _restore_fraction(config: Config) -> Config:
    """Return the config with its rotary positions restored, and their part of a head written though it be whole."""
    return {**restore_rotary(config), "partial_rotary_factor": config["partial_rotary_factor"]}


STABLELM = dataclasses.replace(
    LLAMA,
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    config_keys=(
        *SIZES,
        FRACTION,
        _LAYER_NORM_KEY,
        ConfigKey("hidden_act", "activation", values=GATED_ACTIVATIONS),
        ConfigKey("hidden_dropout", "dropout"),
        ConfigKey("use_qkv_bias", "biases", values={True: "query_key_value", False: "none"}),
        ConfigKey("use_parallel_residual", "norm_placement", values={True: "parallel", False: "pre"}),
    ),
    fixed_fields={**ROTARY_DECODER, "norm": "layer", "norm_bias": True, "attention_windows": ()},
    training_defaults={"initialization": "gpt"},
    bare_architecture="StableLmModel",
    fixed_keys=(*WINDOWLESS_KEYS, FixedConfigKey("qk_layernorm", False)),
    tensor_entries=decoder_entries(PRE_NORMS),
    simplify_config=lambda config, names: flatten_rotary(simplify_sizes(config), fraction=0.25),
    simplified_keys=ROTARY_KEYS,
    restore_config=_restore_stablelm,
)


PHI = dataclasses.replace(
    LLAMA,
    model_type="phi",
    architecture="PhiForCausalLM",
    config_keys=(
        *SIZES,
        FRACTION,
        _LAYER_NORM_KEY,
        ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
        ConfigKey("resid_pdrop", "dropout"),
    ),
    fixed_fields={
        **ROTARY_DECODER,
        "norm": "layer",
        "norm_placement": "parallel",
        "biases": "all",
        "output_bias": True,
        "attention_windows": (),
    },
    training_defaults={"initialization": "gpt"},
    bare_architecture="PhiModel",
    fixed_keys=(*WINDOWLESS_KEYS, FixedConfigKey("qk_layernorm", False)),
    training_keys={"embd_pdrop": "resid_pdrop"},
    tensor_entries=(
        *embedding_entries("model.embed_tokens", "embedding"),
        *norm_entries(f"{LAYER}.input_layernorm", "layers/attention_residual/norm"),
        *attention_entries(f"{LAYER}.self_attn", "layers/attention", ("q_proj", "k_proj", "v_proj", "dense")),
        *linear_entries(f"{LAYER}.mlp.fc1", "layers/feed_forward/expand"),
        *linear_entries(f"{LAYER}.mlp.fc2", "layers/feed_forward/contract"),
        *norm_entries("model.final_layernorm", "norm"),
        *unembedding_entries(),
    ),
    simplify_config=lambda config, names: flatten_rotary(simplify_sizes(config), fraction=0.5),
    simplified_keys=ROTARY_KEYS,
    restore_config=_restore_fraction,
)


def _simplify_phi3(config: Config, names: TensorNames) -> Config:
    # As the class does: of its first files `yarn` means what `longrope` does now.
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    scaling = convert_value(Mapping[str, Any], config.get(name) or {}, f"config.json: {name}")
    kind = scaling.get("rope_type", scaling.get("type"))
    renamed = {**config, "rope_scaling": {**scaling, "rope_type": "longrope"}} if kind == "yarn" else config
    return {**flatten_rotary(simplify_sizes(renamed)), "windows": windows_of_all_layers(config)}


def _restore_phi3(config: Config) -> Config:
    scaling = config["rope_scaling"]
    if scaling["kind"] == "yarn":
        raise UserError("config.model.rotary_scaling.kind=yarn means longrope there")
    return {
        **restore_rotary(without_keys(config, "windows")),
        "original_max_position_embeddings": scaling["original_max_length"] or config["max_position_embeddings"],
        **restore_sliding_window(config["windows"]),
    }


_PARTS = tuple(f"layers/attention/{name}/kernel" for name in ("query", "key", "value"))
_GATED_PARTS = ("layers/feed_forward/gate/kernel", "layers/feed_forward/expand/kernel")

PHI3 = dataclasses.replace(
    LLAMA,
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    config_keys=(
        *SIZES,
        *RMS_KEYS,
        FRACTION,
        ConfigKey("resid_pdrop", "dropout"),
        ConfigKey("windows", "attention_windows"),
    ),
    fixed_fields={**ROTARY_DECODER, "norm": "rms", "norm_placement": "pre", "biases": "none"},
    training_defaults={"initialization": "gpt"},
    bare_architecture="Phi3Model",
    fixed_keys=CAUSAL_KEYS,
    training_keys={"embd_pdrop": "resid_pdrop"},
    tensor_entries=decoder_entries(
        PRE_NORMS,
        (
            TensorEntry(f"{LAYER}.self_attn.qkv_proj.weight", _PARTS, LINEAR),
            TensorEntry(f"{LAYER}.mlp.gate_up_proj.weight", _GATED_PARTS, LINEAR),
            *linear_entries(f"{LAYER}.mlp.down_proj", "layers/feed_forward/contract"),
        ),
        attention=linear_entries(f"{LAYER}.self_attn.o_proj", "layers/attention/output", FROM_HEADS),
    ),
    simplify_config=_simplify_phi3,
    simplified_keys=ROTARY_KEYS | {"sliding_window", "original_max_position_embeddings"},
    restore_config=_restore_phi3,
)
