"""Conversion of decoders whose blocks have mixtures of experts: Mixtral, Qwen 2 and 3 MoE, OLMoE and gpt-oss.

Mixtral is of Jiang et al. 2024, OLMoE of Muennighoff et al. 2024, gpt-oss of OpenAI 2025.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer.config import UserError, to_config
from transformer.huggingface.conversion_spec import (
    CAUSAL,
    CAUSAL_KEYS,
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    linear_entries,
    without_keys,
)
from transformer.huggingface.layer_keys import (
    LAYER_TYPE_KEYS,
    ROTARY_KEYS,
    restore_rotary,
    restore_sliding_window,
    restore_windows,
    windows_of_all_layers,
    windows_of_layers,
)
from transformer.huggingface.llama import (
    ATTENTION_BIAS,
    HEAD_NORMS,
    LAYER,
    LLAMA,
    MISTRAL,
    PRE_NORMS,
    RMS_KEYS,
    ROTARY_DECODER,
    SIZES,
    decoder_entries,
    gated_entries,
    simplify_whole_heads,
)
from transformer.huggingface.tensor_layouts import MATRICES_BY_UNITS, SAME_AXES, VECTOR, VECTORS_BY_UNITS
from transformer.layers.mixture_of_experts import Gating, MixtureOfExpertsConfig

_FIXED: dict[str, Any] = {**ROTARY_DECODER, "norm": "rms", "norm_placement": "pre"}
_EXPERTS = ConfigKey("experts", "experts")
_MLP = f"{LAYER}.mlp"
_LOSS_KEYS = frozenset({"num_experts_per_tok", "router_aux_loss_coef", "output_router_logits"})
_WIDTH_NORMS = {"self_attn.q_norm": "attention/query_norm/norm", "self_attn.k_norm": "attention/key_norm/norm"}


def _simplify_experts(config: Config, count_key: str, gating: Gating, *, router_bias: bool = False) -> Config:
    """Return our config of experts.

    The library balances experts where it returns the router's logits, and otherwise not.

    Raises:
        UserError: If a position would use none of the experts, or more than there are.
    """
    count, top_k = config[count_key], config["num_experts_per_tok"]
    if not 1 <= top_k <= count:
        raise UserError(
            f"config.json has num_experts_per_tok={top_k} of {count_key}={count}; it must be at least 1 and not above "
            "the number of experts"
        )
    balance_loss = config["router_aux_loss_coef"] if config["output_router_logits"] else 0.0
    values: Config = {"count": count, "top_k": top_k, "gating": gating.value, "router_bias": router_bias}
    return {**to_config(MixtureOfExpertsConfig()), **values, "balance_loss": balance_loss}


def _restore_experts(
    config: Config, count_key: str, *gatings: Gating, router_bias: bool = False, shared: bool = False
) -> Config:
    """Return a config.json with the keys that `_simplify_experts` reads in place of our config of experts.

    Args:
        config: The config.
        count_key: The key of the number of experts.
        gatings: The gatings of the type.
        router_bias: Whether its router has a bias.
        shared: Whether it has a shared network.

    Raises:
        UserError: If the experts are none of a type with these gatings.
    """
    experts = config["experts"]
    if not experts["count"]:
        raise UserError("config.model.experts.count=0 is not above 0")
    if experts["gating"] not in (names := [gating.value for gating in gatings]):
        raise UserError(f"config.model.experts.gating={experts['gating']} is none of {', '.join(names)}")
    for name, value in (("router_bias", router_bias), ("every_n_layers", 1)):
        if experts[name] != value:
            raise UserError(f"config.model.experts.{name}={experts[name]} is not {value}")
    if bool(experts["shared_feed_forward"]) != shared:
        supported = "above 0" if shared else "0"
        raise UserError(f"config.model.experts.shared_feed_forward={experts['shared_feed_forward']} is not {supported}")
    balance_loss = {"router_aux_loss_coef": experts["balance_loss"]} if experts["balance_loss"] else {}
    return {
        **without_keys(config, "experts"),
        count_key: experts["count"],
        "num_experts_per_tok": experts["top_k"],
        "output_router_logits": bool(balance_loss),
        **balance_loss,
    }


def _expert_entries(tensor: str, names: tuple[str, str, str]) -> Iterator[TensorEntry]:
    """Yield the entries of a router and of experts with a tensor for each of their matrices.

    Args:
        tensor: The prefix of the tensors' names.
        names: The names of an expert's gate and of its maps to and from the hidden units.

    Yields:
        The entries.
    """
    yield from linear_entries(f"{tensor}.gate", "layers/experts/router")
    for name, ours in zip(names, ("gate", "expand", "contract"), strict=True):
        yield from linear_entries(f"{tensor}.experts.{{expert}}.{name}", f"layers/experts/networks/{ours}")


def _simplify_mixtral(config: Config, names: TensorNames) -> Config:
    return {
        **simplify_whole_heads(config, base=1000000.0),
        "windows": windows_of_all_layers(config),
        "experts": _simplify_experts(config, "num_local_experts", Gating.TOP_K),
    }


def _restore_mixtral(config: Config) -> Config:
    restored = _restore_experts(config, "num_local_experts", Gating.TOP_K)
    return {**restore_rotary(without_keys(restored, "windows")), **restore_sliding_window(config["windows"])}


MIXTRAL = dataclasses.replace(
    MISTRAL,
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    config_keys=(*MISTRAL.config_keys, _EXPERTS),
    bare_architecture="MixtralModel",
    fixed_keys=CAUSAL_KEYS,
    training_keys={"router_jitter_noise": ""},
    tensor_entries=decoder_entries(PRE_NORMS, _expert_entries(f"{LAYER}.block_sparse_moe", ("w1", "w3", "w2"))),
    key_aliases={"num_experts": "num_local_experts"},
    simplify_config=_simplify_mixtral,
    simplified_keys=MISTRAL.simplified_keys | _LOSS_KEYS | {"num_local_experts"},
    restore_config=_restore_mixtral,
)


def _gating(config: Config) -> Gating:
    return Gating.TOP_K if config["norm_topk_prob"] else Gating.SOFTMAX


def _restore_gating(config: Config, *, shared: bool = False) -> Config:
    restored = _restore_experts(config, "num_experts", Gating.TOP_K, Gating.SOFTMAX, shared=shared)
    return {**restored, "norm_topk_prob": config["experts"]["gating"] == Gating.TOP_K.value}


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _simplify_qwen3_moe(config: Config, names: TensorNames) -> Config:
    window = config["sliding_window"] if config["use_sliding_window"] else None
    return {
        **simplify_whole_heads(config),
        "windows": windows_of_all_layers({**config, "sliding_window": window}),
        "experts": _simplify_experts(config, "num_experts", _gating(config)),
    }


def _restore_qwen3_moe(config: Config) -> Config:
    return {
        **restore_rotary(without_keys(_restore_gating(config), "windows")),
        **restore_sliding_window(config["windows"]),
        "use_sliding_window": bool(config["windows"]),
    }


_EXPERTS_IN_ALL_LAYERS = (FixedConfigKey("decoder_sparse_step", 1), FixedConfigKey("mlp_only_layers", None))
# `intermediate_size` is of layers without experts, of which none is read.
_QWEN_MOE_SIZES = tuple(
    dataclasses.replace(key, their_key="moe_intermediate_size") if key.our_key == "feed_forward" else key
    for key in SIZES
)

QWEN3_MOE = dataclasses.replace(
    LLAMA,
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    config_keys=(*_QWEN_MOE_SIZES, *RMS_KEYS, ATTENTION_BIAS, ConfigKey("windows", "attention_windows"), _EXPERTS),
    fixed_fields={**_FIXED, "query_key_norm": "head"},
    bare_architecture="Qwen3MoeModel",
    fixed_keys=(*CAUSAL_KEYS, *_EXPERTS_IN_ALL_LAYERS),
    tensor_entries=decoder_entries(PRE_NORMS | HEAD_NORMS, _expert_entries(_MLP, _PROJECTIONS)),
    key_aliases={"num_local_experts": "num_experts"},
    simplify_config=_simplify_qwen3_moe,
    simplified_keys=ROTARY_KEYS
    | _LOSS_KEYS
    | {"sliding_window", "use_sliding_window", "num_experts", "norm_topk_prob", "intermediate_size"},
    restore_config=_restore_qwen3_moe,
)


def _simplify_qwen2_moe(config: Config, names: TensorNames) -> Config:
    slides, types = config["use_sliding_window"], config["layer_types"]
    if types is None:
        types = [
            "sliding_attention"
            if slides and number % 2 == 0 and number < config["max_window_layers"]
            else "full_attention"
            for number in range(config["num_hidden_layers"])
        ]
    hidden = config["shared_expert_intermediate_size"]
    if hidden < 1:
        raise UserError(f"config.json has shared_expert_intermediate_size={hidden}; it must be at least 1")
    experts = _simplify_experts(config, "num_experts", _gating(config))
    return {
        **simplify_whole_heads(config),
        "windows": windows_of_layers({**config, "sliding_window": config["sliding_window"] if slides else None}, types),
        "experts": {**experts, "shared_feed_forward": hidden},
    }


def _restore_qwen2_moe(config: Config) -> Config:
    windows = restore_windows(config, config["windows"])
    return {
        **restore_rotary(without_keys(_restore_gating(config, shared=True), "windows")),
        **windows,
        "use_sliding_window": "sliding_window" in windows,
        "shared_expert_intermediate_size": config["experts"]["shared_feed_forward"],
    }


def _qwen2_moe_entries() -> Iterator[TensorEntry]:
    """Yield the entries of experts and of the network that they share."""
    yield from _expert_entries(_MLP, _PROJECTIONS)
    yield from gated_entries(f"{_MLP}.shared_expert", "layers/experts/shared")
    yield from linear_entries(f"{_MLP}.shared_expert_gate", "layers/experts/shared_gate")


QWEN2_MOE = dataclasses.replace(
    QWEN3_MOE,
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    config_keys=(
        *_QWEN_MOE_SIZES,
        *RMS_KEYS,
        ConfigKey("qkv_bias", "biases", values={True: "query_key_value", False: "none"}),
        ConfigKey("windows", "attention_windows"),
        _EXPERTS,
    ),
    fixed_fields=_FIXED,
    bare_architecture="Qwen2MoeModel",
    fixed_keys=(CAUSAL, *_EXPERTS_IN_ALL_LAYERS),
    tensor_entries=decoder_entries(PRE_NORMS, _qwen2_moe_entries()),
    key_aliases={},
    simplify_config=_simplify_qwen2_moe,
    simplified_keys=QWEN3_MOE.simplified_keys
    | LAYER_TYPE_KEYS
    | {"max_window_layers", "shared_expert_intermediate_size"},
    restore_config=_restore_qwen2_moe,
)


def _simplify_olmoe(config: Config, names: TensorNames) -> Config:
    return {**simplify_whole_heads(config), "experts": _simplify_experts(config, "num_experts", _gating(config))}


def _restore_olmoe(config: Config) -> Config:
    return restore_rotary(_restore_gating(config))


OLMOE = dataclasses.replace(
    LLAMA,
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    config_keys=(*SIZES, *RMS_KEYS, ATTENTION_BIAS, _EXPERTS),
    fixed_fields={**_FIXED, "query_key_norm": "width", "attention_windows": ()},
    bare_architecture="OlmoeModel",
    tensor_entries=decoder_entries(PRE_NORMS | _WIDTH_NORMS, _expert_entries(_MLP, _PROJECTIONS)),
    key_aliases={"num_local_experts": "num_experts"},
    simplify_config=_simplify_olmoe,
    simplified_keys=ROTARY_KEYS | _LOSS_KEYS | {"num_experts", "norm_topk_prob"},
    restore_config=_restore_olmoe,
)

_GPT_OSS_BASE = 150000.0
# The scaling of the class without a key.
_GPT_OSS_ROTARY: Config = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_NETWORKS = "layers/experts/networks"


def _gpt_oss_entries() -> Iterator[TensorEntry]:
    """Yield the entries of sinks, routers and experts: one tensor holds the gates and first maps of all experts."""
    yield TensorEntry(f"{LAYER}.self_attn.sinks", ("layers/attention/sinks",), VECTOR)
    yield from linear_entries(f"{_MLP}.router", "layers/experts/router")
    for name, kind, layout in (("", "kernel", MATRICES_BY_UNITS), ("_bias", "bias", VECTORS_BY_UNITS)):
        parts = (f"{_NETWORKS}/gate/{kind}", f"{_NETWORKS}/expand/{kind}")
        yield TensorEntry(f"{_MLP}.experts.gate_up_proj{name}", parts, layout)
        yield TensorEntry(f"{_MLP}.experts.down_proj{name}", (f"{_NETWORKS}/contract/{kind}",), SAME_AXES)


def _simplify_gpt_oss(config: Config, names: TensorNames) -> Config:
    if config["rope_parameters"] is None and not config.get("rope_scaling"):
        config = {**config, "rope_parameters": _GPT_OSS_ROTARY}
    types = config["layer_types"]
    if types is None:
        kinds = ("sliding_attention", "full_attention")
        types = [kinds[number % 2] for number in range(config["num_hidden_layers"])]
    return {
        **simplify_whole_heads(config, base=_GPT_OSS_BASE),
        "windows": windows_of_layers(config, types),
        "experts": _simplify_experts(config, "num_local_experts", Gating.TOP_K, router_bias=True),
    }


def _restore_gpt_oss(config: Config) -> Config:
    experts = _restore_experts(config, "num_local_experts", Gating.TOP_K, router_bias=True)
    restored = restore_rotary(without_keys(experts, "windows"))
    if "rope_scaling" not in restored:
        restored["rope_parameters"] = {"rope_type": "default", "rope_theta": restored["rope_theta"]}
    return {**restored, **restore_windows(config, config["windows"])}


GPT_OSS = dataclasses.replace(
    LLAMA,
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    config_keys=(
        *SIZES,
        ConfigKey("rms_norm_eps", "norm_epsilon"),
        ConfigKey("attention_bias", "biases", values={True: "all", False: "feed_forward"}),
        ConfigKey("windows", "attention_windows"),
        _EXPERTS,
    ),
    fixed_fields={**_FIXED, "activation": "swiglu_clamped", "attention_sinks": True},
    bare_architecture="GptOssModel",
    fixed_keys=(
        CAUSAL,
        FixedConfigKey(
            "quantization_config",
            None,
            advice="experts in MXFP4 are not read; load the model in transformers with "
            "quantization_config=Mxfp4Config(dequantize=True), and write it anew with save_pretrained",
        ),
    ),
    tensor_entries=decoder_entries(PRE_NORMS, _gpt_oss_entries()),
    key_aliases={"num_experts": "num_local_experts"},
    simplify_config=_simplify_gpt_oss,
    # Its experts have one activation, whatever `hidden_act` says.
    simplified_keys=ROTARY_KEYS | LAYER_TYPE_KEYS | _LOSS_KEYS | {"num_local_experts", "hidden_act"},
    restore_config=_restore_gpt_oss,
)
