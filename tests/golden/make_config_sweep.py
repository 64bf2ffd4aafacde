"""Record the config classes of transformers, and which of their keys change what a model computes.

Recorded with Python 3.11, torch 2.13.0 (CPU), transformers 5.24.0 and numpy 2.4.6, from the root of the checkout:

    golden/bin/python tests/golden/make_config_sweep.py [case ...]

It writes tests/golden/config_sweep.json: for each case the keys of its class with kind and default, the other names of
its keys, a small config.json, and for every variation of one key what the same weights give by it: "same" logits,
"other" logits, or no model at all ("none"). Weights are those of weights.random_weights, by name and shape. A case is
named by its `model_type`, and a further one of the same type adds to it what its config.json has besides.
"""

import copy
import dataclasses
import importlib.metadata
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from cases import (
    ALBERT,
    BART,
    BERT,
    DEBERTA,
    DISTILBERT,
    FALCON,
    FEED_FORWARD,
    GPT2,
    GPT_OSS,
    HEADS,
    LLAMA,
    LLAMA3,
    LONGROPE,
    MARIAN,
    MIXTRAL,
    MODERNBERT,
    MPT,
    NO_KV_HEADS,
    OLMOE,
    OPT,
    POSITIONS,
    QWEN2_MOE,
    QWEN3_MOE,
    T5,
    VOCABULARY,
    WIDTH,
    XGLM,
    XLNET,
    YARN,
)
from weights import weights_of

FILE = Path(__file__).with_name("config_sweep.json")
IMAGES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": FEED_FORWARD,
    "image_size": 8,
    "patch_size": 4,
}
TEXT_TOWER = {
    **{key: IMAGES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
}
DINOV2 = {key: value for key, value in IMAGES.items() if key != "intermediate_size"} | {"mlp_ratio": 2}
# What a config with the towers of images and of texts has of the first: each key of it is varied as that tower's.
TOWERS = {"siglip": "siglip_vision_model", "clip": "clip_vision_model"}
# Parameters that no logits depend on: the others are drawn as without them.
UNREAD = ("embeddings.mask_token", "vision_model.head.")
GPT = GPT2 | {"n_layer": 2}
ROBERTA = BERT | {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
SHORT = {"max_position_embeddings": POSITIONS}
GEMMA = LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 20, "sliding_window": 5}
NESTED = {
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
    }
}
# Texts longer than max_position_embeddings, on which some scalings depend; a model with a table has no such.
LONG_TEXTS = (
    *("llama", "mistral", "qwen2", "qwen3", "ministral", "smollm3", "granite", "olmo2", "olmo3"),
    *("gemma", "gemma2", "gemma3_text", "gpt_neox", "stablelm", "phi", "phi3", "modernbert"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"),
    *("cohere", "cohere2", "starcoder2", "falcon"),
)
LONG_LENGTH = POSITIONS + 6
CASES = {
    "gpt2": ("GPT2LMHeadModel", GPT),
    "openai-gpt": ("OpenAIGPTLMHeadModel", {key: value for key, value in GPT.items() if key != "n_inner"}),
    "gptj": ("GPTJForCausalLM", GPT | {"rotary_dim": WIDTH // HEADS}),
    "bloom": ("BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA | {"sliding_window": 5}),
    "llama yarn": ("LlamaForCausalLM", LLAMA | {"rope_parameters": YARN}),
    "llama dynamic": ("LlamaForCausalLM", LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 3.0}}),
    "mistral llama3": ("MistralForCausalLM", LLAMA | {"sliding_window": None, "rope_parameters": LLAMA3}),
    "gptj part": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "qwen2": (
        "Qwen2ForCausalLM",
        LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2 full": ("Qwen2ForCausalLM", LLAMA | {"sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 12, "sliding_window": 5}),
    "ministral": ("MinistralForCausalLM", LLAMA | {"head_dim": 8, "sliding_window": 5}),
    "smollm3": ("SmolLM3ForCausalLM", LLAMA | {"num_hidden_layers": 4}),
    "smollm3 window": (
        "SmolLM3ForCausalLM",
        LLAMA
        | {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1, 1]},
    ),
    "granite": (
        "GraniteForCausalLM",
        LLAMA
        | {
            "embedding_multiplier": 12.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "olmo3": ("Olmo3ForCausalLM", LLAMA | {"num_hidden_layers": 4, "sliding_window": 5}),
    "olmo3 nested": ("Olmo3ForCausalLM", LLAMA | {"num_hidden_layers": 4, "sliding_window": 5} | NESTED),
    "gemma": ("GemmaForCausalLM", LLAMA | {"head_dim": 12}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 8.0}),
    "gemma3_text": ("Gemma3ForCausalLM", GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}),
    "gemma3_text nested": ("Gemma3ForCausalLM", GEMMA | {"num_hidden_layers": 4, "sliding_window_pattern": 2} | NESTED),
    "gpt_neox": ("GPTNeoXForCausalLM", NO_KV_HEADS | {"rotary_pct": 0.5, "rotary_emb_base": 1000}),
    "stablelm": ("StableLmForCausalLM", LLAMA | {"partial_rotary_factor": 0.5}),
    "phi": ("PhiForCausalLM", LLAMA),
    "phi3": ("Phi3ForCausalLM", LLAMA),
    "phi3 long": (
        "Phi3ForCausalLM",
        LLAMA | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 12, "sliding_window": 5},
    ),
    "mixtral": ("MixtralForCausalLM", MIXTRAL | SHORT | {"head_dim": 8}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", QWEN3_MOE | SHORT | {"sliding_window": 5}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", QWEN2_MOE | SHORT | {"use_sliding_window": True, "sliding_window": 5}),
    "olmoe": ("OlmoeForCausalLM", OLMOE | SHORT),
    "gpt_oss": ("GptOssForCausalLM", {key: GPT_OSS[key] for key in GPT_OSS if key != "rope_parameters"} | SHORT),
    "bert": ("BertForPreTraining", BERT),
    "roberta": ("RobertaForMaskedLM", ROBERTA),
    "electra": ("ElectraForMaskedLM", BERT | {"embedding_size": 12}),
    "albert": ("AlbertForMaskedLM", ALBERT),
    "albert groups": ("AlbertForSequenceClassification", ALBERT | {"num_hidden_groups": 2}),
    "modernbert": ("ModernBertForMaskedLM", MODERNBERT),
    "modernbert mean": (
        "ModernBertForSequenceClassification",
        MODERNBERT | {"num_hidden_layers": 2, "classifier_pooling": "mean"},
    ),
    "modernbert nested": ("ModernBertForTokenClassification", MODERNBERT | {"global_attn_every_n_layers": 2} | NESTED),
    "deberta-v2": ("DebertaV2ForMaskedLM", DEBERTA),
    "deberta-v2 absolute": (
        "DebertaV2ForSequenceClassification",
        {key: DEBERTA[key] for key in BERT} | {"type_vocab_size": 2},
    ),
    "marian": ("MarianMTModel", MARIAN),
    "bart": ("BartForConditionalGeneration", BART),
    "mbart": ("MBartForConditionalGeneration", BART | {"scale_embedding": True}),
    "pegasus": ("PegasusForConditionalGeneration", BART),
    "blenderbot": ("BlenderbotForConditionalGeneration", BART),
    "m2m_100": ("M2M100ForConditionalGeneration", BART),
    "xglm": ("XGLMForCausalLM", XGLM),
    "t5": ("T5ForConditionalGeneration", T5 | {"d_kv": 8, "relative_attention_num_buckets": 8}),
    "vit": ("ViTForImageClassification", IMAGES),
    "deit": ("DeiTForImageClassificationWithTeacher", IMAGES),
    "dinov2": ("Dinov2ForImageClassification", DINOV2),
    "dinov2 gated": ("Dinov2ForImageClassification", DINOV2 | {"use_swiglu_ffn": True}),
    "siglip_vision_model": ("SiglipVisionModel", IMAGES),
    "siglip": ("SiglipForImageClassification", {"vision_config": IMAGES}),
    "clip_vision_model": ("CLIPVisionModel", IMAGES),
    "clip": ("CLIPForImageClassification", {"vision_config": IMAGES}),
    "clip_text_model": ("CLIPTextModel", TEXT_TOWER),
    "xlnet": ("XLNetLMHeadModel", XLNET | {"d_head": WIDTH // HEADS}),
    "cohere": ("CohereForCausalLM", LLAMA | {"logit_scale": 0.5}),
    "cohere2": ("Cohere2ForCausalLM", LLAMA | {"num_hidden_layers": 4, "sliding_window": 5, "logit_scale": 0.5}),
    "starcoder2": ("Starcoder2ForCausalLM", LLAMA | {"sliding_window": 5}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon groups": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "mpt": ("MptForCausalLM", MPT),
    "opt": ("OPTForCausalLM", OPT),
    "xlm-roberta": ("XLMRobertaForMaskedLM", ROBERTA),
    "camembert": ("CamembertForMaskedLM", ROBERTA),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "mt5": ("MT5ForConditionalGeneration", T5 | {"d_kv": 8, "relative_attention_num_buckets": 8}),
}
ACTIVATIONS = [
    "relu",
    "gelu",
    "gelu_python",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "silu",
    "swish",
    "tanh",
    "relu2",
    "mish",
]
ROTATIONS = [
    {},
    {"factor": 2.0},
    {"type": "linear", "factor": 1.0},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "dynamic", "factor": 3.0},
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": POSITIONS},
    {"rope_type": "yarn", "factor": 2.0},
    {"rope_type": "yarn", "factor": 1.0, "attention_factor": 0.5},
    {"rope_type": "llama3", "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "longrope", "factor": 1.0, "short_factor": [2.0] * 4, "long_factor": [1.5] * 4},
    {"rope_type": "default", "rope_theta": 100.0},
    {"rope_theta": 100.0},
    {"rope_theta": None},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"type": "linear", "rope_type": "default", "factor": 2.0},
    {"rope_type": 7},
    {"rope_type": "linear"},
    {"rope_type": "linear", "factor": "2"},
    LLAMA3,
    LLAMA3 | {"original_max_position_embeddings": 12},
    LLAMA3 | {"high_freq_factor": 2.0},
    LLAMA3 | {"high_freq_factor": 1.0},
    LLAMA3 | {"original_max_position_embeddings": None},
    LLAMA3 | {"factor": 0.5},
    YARN,
    YARN | {"original_max_position_embeddings": 12},
    YARN | {"attention_factor": 2.0},
    YARN | {"beta_fast": 4.0, "beta_slow": 0.5},
    YARN | {"beta_fast": 1.0, "beta_slow": 4.0},
    YARN | {"truncate": False},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    YARN | {"mscale": 1.0},
    YARN | {"finetuned": True},
    YARN | {"factor": None},
    YARN | {"factor": 0.5},
    YARN | {"factor": 0},
    YARN | {"my_own_key": 3},
    YARN | {"partial_rotary_factor": 1.0},
    LONGROPE,
    LONGROPE | {"original_max_position_embeddings": 12},
    LONGROPE | {"original_max_position_embeddings": 40},
    LONGROPE | {"original_max_position_embeddings": 12, "factor": 2.0},
    LONGROPE | {"original_max_position_embeddings": 12, "attention_factor": 0.7},
    LONGROPE | {"rope_type": "su"},
    {"type": "su", "short_factor": [1.0] * 4, "long_factor": [1.5] * 4},
    {"type": "yarn", "short_factor": [1.2] * 4, "long_factor": [1.5] * 4},
    LONGROPE | {"short_factor": [1.0] * 3},
    LONGROPE | {"long_factor": [1.0, 2.0, 3.0, 0.0]},
    LONGROPE | {"long_factor": None},
    {"rope_type": "longrope", "short_factor": [2.0], "long_factor": [3.0]},
    {"rope_type": "longrope", "short_factor": [2.0] * 2, "long_factor": [3.0] * 2},
    {"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 12},
    {"rope_type": "dynamic", "factor": 1.0},
    {"rope_type": "dynamic"},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_type": "default", "partial_rotary_factor": 0.25},
    {"rope_type": "default", "partial_rotary_factor": 1.0},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    {"rope_type": "default", "factor": 4.0},
    {"rope_type": "linear", "factor": 0.5},
    {"rope_type": "linear", "factor": -2.0},
    {"rope_type": None, "factor": 2.0},
    {"rope_type": "default", "rope_theta": 10000},
    {"rope_type": "default", "rope_theta": 0},
    {"rope_type": "default", "rope_theta": "10000"},
    {"full_attention": {"rope_type": "default", "rope_theta": 100.0}},
    {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
    {"full_attention": {"rope_theta": 100.0}, "sliding_attention": {"rope_theta": 100.0}},
    {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}},
    {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}},
    {"full_attention": {"type": "linear", "factor": 2.0}, "sliding_attention": {}},
    {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
    {"full_attention": LLAMA3, "sliding_attention": None},
    {"full_attention": {"rope_type": "dynamic", "factor": 3.0}, "sliding_attention": None},
    {"full_attention": None, "sliding_attention": None},
    {"full_attention": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}, "sliding_attention": {}},
    {"full_attention": {"rope_type": "default"}, "rope_theta": 100.0},
    {"full_attention": {"rope_type": "default"}, "my_own_key": 1},
    {"other_attention": {"rope_type": "default"}},
]
# Values of keys, beside those that follow from the kind of the key's default.
VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("activation_function", "afn", "hidden_act", "hidden_activation", "ff_activation", "classifier_activation"),
        ACTIVATIONS,
    ),
    "classifier_pooling": ["cls", "mean", "max"],
    "local_attention": [4, 5, 6, 40],
    "global_attn_every_n_layers": [4],
    "rope_parameters": ROTATIONS,
    "feed_forward_proj": [
        "relu",
        "gated-gelu",
        "gated-silu",
        "gelu",
        "gelu_new",
        "silu",
        "gated-relu",
        "a-b-c",
        "gated",
        "tanh",
    ],
    "dense_act_fn": ["relu", "silu"],
    "attn_type": ["uni"],
    "id2label": [{"0": "a", "1": "b", "2": "c"}, {"0": "a"}, {}, ["a", "b"], {"x": "a"}],
    "image_size": [[8, 8], [8, 4], [8], [16, 16]],
    "patch_size": [[4, 4], [4, 2], [2, 2]],
    "layer_types": [
        ["full_attention"] * 2,
        ["sliding_attention"] * 2,
        ["sliding_attention", "full_attention"],
        ["full_attention", "sliding_attention"],
        ["full_attention"] * 4,
        ["sliding_attention"] * 4,
        ["sliding_attention", "full_attention"] * 2,
        ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        ["chunked_attention"] * 2,
        ["full_attention"],
        ["full_attention", None],
        [],
        "full_attention",
    ],
    "sliding_window": [0, 1, 2, 3, 4, -1, 40, 4096, 3.5],
    **{key: [0.5, 2, 30.0, 50.0, 0, 0.0, -1.0] for key in ("attn_logit_softcapping", "final_logit_softcapping")},
    "query_pre_attn_scalar": [8, 12, 16, 20, 2.5, -2],
    **{key: [1.0, 0.5, 0.25, 0.75, 0.3, 0.0, 0, 1, 2.0, -0.5] for key in ("partial_rotary_factor", "rotary_pct")},
    "rotary_dim": [4, 5, 6, 8, 10],
    **{
        key: [100, 100.0, 10000, 10000.0, 0, -1.0]
        for key in ("rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta")
    },
    "no_rope_layers": [
        [1, 0, 1, 1],
        [1, 1, 1, 1],
        [0, 0, 0, 0],
        [1, 0, 1, 0],
        [0, 1],
        [1, 0],
        [1, 1, 1, 0, 1],
        [2, 0, 1, 1],
        [True, False, True, True],
        [],
    ],
    "no_rope_layer_interval": [4, 5, 8],
    "original_max_position_embeddings": [4, 12, 24, 40],
    "sliding_window_pattern": [1, 2, 3, 4, 6, 0],
    "rope_scaling": ROTATIONS,
    "attention_multiplier": [0.2, 0.35355, 1e-3],
    **{key: [0.22, 4.0] for key in ("logits_scaling", "residual_multiplier", "embedding_multiplier")},
    "mlp_only_layers": [[], [0], [1], [5]],
    "per_layer_config": [{"1": {"num_attention_heads": 2}}, {"1": {"intermediate_size": FEED_FORWARD}}],
    "mlp_ratio": [1, 2, 3, 4, 1.5],
    "layerscale_value": [1e-5, 0.0],
    "text_config": [{}, {"num_hidden_layers": 1}],
    "eos_token_id": [[0, 2]],
    "problem_type": ["regression", "multi_label_classification"],
    "summary_type": ["first", "mean"],
    "pruned_heads": [{}],
    "pos_att_type": [[], ["c2p"], ["p2c"], ["c2p", "p2c"], "p2c|c2p", "C2P | p2c", "c2p", ["c2p", "p2p"]],
    "position_buckets": [-1, 4, 6, 8, 12],
    "max_relative_positions": [4, 5, 7, 12, 512],
    "norm_rel_ebd": ["none", "layer_norm", "LAYER_NORM | x", "rms"],
    "attention_head_size": [10, 8],
    "embedding_size": [30, 12],
    "pooler_hidden_size": [30, 12],
    "pooler_hidden_act": ACTIVATIONS,
}
# Keys that no class has: of other classes, of earlier versions, and of one's own.
FOREIGN = [
    "attention_multiplier",
    "global_attn_every_n_layers",
    "global_rope_theta",
    "local_rope_theta",
    "attn_logit_softcapping",
    "clip_qkv",
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_local_experts",
    "shared_expert_intermediate_size",
    "final_logit_softcapping",
    "logits_scaling",
    "no_rope_layers",
    "original_max_position_embeddings",
    "qk_layernorm",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "rope_local_base_freq",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_pct",
    "sliding_window_pattern",
    "use_bidirectional_attention",
    "use_parallel_residual",
    "use_qk_norm",
    "use_qkv_bias",
    "use_sliding_window",
    "attention_bias",
    "attention_chunk_size",
    "attention_head_size",
    "cls_dropout",
    "conv_kernel_size",
    "embedding_size",
    "norm_rel_ebd",
    "pooler_hidden_size",
    "position_buckets",
    "share_att_key",
    "decoder_start_token_id",
    "dense_act_fn",
    "head_dim",
    "hidden_dropout",
    "is_causal",
    "is_decoder",
    "is_gated_act",
    "layer_types",
    "mlp_bias",
    "my_own_key",
    "n_embed",
    "num_labels",
    "output_attentions",
    "partial_rotary_factor",
    "per_layer_config",
    "position_embedding_type",
    "pruned_heads",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "scale_decoder_outputs",
    "sliding_window",
    "static_position_embeddings",
    "tie_word_embeddings",
    "torch_dtype",
]
SEED, START = 3, 7  # of the weights; the token that decoders begin with
CLOSE = 1e-4  # two kernels of one activation, or of attention, differ by less
NUMBERS: list[Any] = [None, "x", -1, 0, 1, 2, 3, 0.5, [2]]
OTHERS: list[Any] = [None, True, False, 2, "x"]


def values_of(key: str, default: Any, stated: Any) -> list[Any]:
    """The values of a key that are tried."""
    number = isinstance(default, int | float) and not isinstance(default, bool)
    values = [*VALUES.get(key, []), *(NUMBERS if number else OTHERS)]
    return [*values, 2 * stated] if type(stated) is int else values


class Computed(NamedTuple):
    """What a model computes: the shapes of its weights, its inputs, its outputs by name, and those of other uses."""

    shapes: dict[str, tuple[int, ...]]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    uses: dict[str, np.ndarray]


def compute(kind: str, config: dict[str, Any], folder: Path, *, used: bool = False) -> Computed:
    """What a model of this config.json computes with random weights; `used` also lets it generate and train."""
    (folder / "config.json").write_text(json.dumps(config))
    loaded = transformers.AutoConfig.from_pretrained(folder)
    loaded._attn_implementation = loaded._experts_implementation = "eager"
    with torch.no_grad():
        model = getattr(transformers, kind)(copy.deepcopy(loaded)).float().eval()
        parameters = dict(model.named_parameters())
        read = {name: tuple(value.shape) for name, value in parameters.items() if not any(map(name.count, UNREAD))}
        for name, value in weights_of(kind, read, SEED).items():
            parameters[name].copy_(torch.tensor(value))
        generator = np.random.default_rng(0)
        long = LONG_LENGTH if config["model_type"] in LONG_TEXTS else 9
        ids, target = (torch.tensor(generator.integers(6, 40, (2, length))) for length in (long, 7))
        target[:, 0] = START
        images = getattr(loaded, "vision_config", loaded)
        if hasattr(images, "image_size"):
            size = images.image_size
            sides = (size, size) if isinstance(size, int) else tuple(size)
            inputs = {"pixel_values": torch.tensor(generator.normal(size=(2, images.num_channels, *sides))).float()}
        elif loaded.is_encoder_decoder:
            inputs = {"input_ids": ids, "decoder_input_ids": target}
        else:
            inputs = {"input_ids": ids}
        output = model(**inputs, return_dict=True)
    names = [name for name in output if "logits" in name and name != "router_logits"]
    outputs = {
        name: output[name].numpy()
        for name in names or ("last_hidden_state", "pooler_output")
        if output.get(name) is not None
    }
    uses = {"generating": generating(model, ids), "training": training(model, inputs)} if used else {}
    return Computed(read, {name: value.numpy() for name, value in inputs.items()}, outputs, uses)


def generating(model: Any, ids: torch.Tensor) -> np.ndarray:
    """The logits of a greedy text, with a cache; nothing where the model cannot generate."""
    try:
        text = model.generate(ids, max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True)
        return torch.stack(text.logits).numpy()
    except Exception:  # whatever it is
        return np.zeros(0)


@torch.no_grad()
def training(model: Any, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """What the model computes in training, with dropout of one seed; nothing where it cannot train."""
    torch.manual_seed(SEED)
    try:
        return model.train()(**inputs, return_dict=True)[0].numpy()
    except Exception:  # whatever it is
        return np.zeros(0)


def logits(kind: str, config: dict[str, Any], folder: Path) -> np.ndarray:
    """What a model of this config.json computes, all numbers in one row."""
    return np.concatenate([value.ravel() for value in compute(kind, config, folder).outputs.values()])


def values_of_tower(model_type: str, stated: dict[str, Any]) -> list[Any]:
    """The values of `vision_config` that are tried: one key of the tower's at a time."""
    varied: list[Any] = [None, {}, [], "x"]
    for field in dataclasses.fields(transformers.AutoConfig.for_model(TOWERS[model_type])):
        known = stated.get(field.name, field.default)
        varied += [stated | {field.name: value} for value in values_of(field.name, known, known)]
        if field.name in stated:
            varied.append({key: value for key, value in stated.items() if key != field.name})
    return varied


def outcome(kind: str, config: dict[str, Any], usual: np.ndarray, folder: Path) -> str:
    """Whether a config.json gives the usual logits, others, or no model."""
    try:
        found = logits(kind, config, folder)
    except Exception:
        return "none"
    return "same" if found.shape == usual.shape and np.allclose(found, usual, rtol=0, atol=CLOSE) else "other"


def kind_of(field: dataclasses.Field[Any]) -> str:
    """The kind of a key's value; of a few strings, that it is one."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return "str" if kind.startswith("typing.Literal") else kind


def record(case: str, folder: Path) -> dict[str, Any]:
    """What is recorded of a case."""
    kind, stated = CASES[case]
    model_type = case.split()[0]
    base = {"model_type": model_type, "architectures": [kind], **stated}
    config_class = transformers.AutoConfig.for_model(model_type)
    keys = {
        field.name: {
            "kind": kind_of(field),
            "default": field.default,
        }
        for field in dataclasses.fields(config_class)
    }
    usual = logits(kind, base, folder)
    assert np.isfinite(usual).all()
    varied = [[key, value, outcome(kind, config, usual, folder)] for key, value, config in variations(case)]
    print(case, len(varied), flush=True)
    return {"keys": keys, "aliases": config_class.attribute_map, "config": base, "varied": varied}


def variations(case: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each key of a case with each value that is tried, and the config.json of it."""
    kind, stated = CASES[case]
    model_type = case.split()[0]
    base = {"model_type": model_type, "architectures": [kind], **stated}
    config_class = transformers.AutoConfig.for_model(model_type)
    defaults = {field.name: field.default for field in dataclasses.fields(config_class)}
    names = dict.fromkeys((*defaults, *config_class.attribute_map, *FOREIGN))
    for key in names:
        if key == "architectures":
            continue
        default = defaults.get(config_class.attribute_map.get(key, key))
        known = stated.get(config_class.attribute_map.get(key, key), default)
        rest = {name: value for name, value in base.items() if name != key}
        tower = key == "vision_config" and model_type in TOWERS
        values = values_of_tower(model_type, known) if tower else values_of(key, known, known)
        yield from ((key, value, {**rest, key: value}) for value in values)
        if key in stated:
            yield key, "absent", rest


def packed(classes: dict[str, Any]) -> dict[str, Any]:
    """The content of the file: each value once, and of each key the numbers of its values and their outcomes' letters.

    A case that is not the first of its type leaves out what the first says of the class.
    """
    values: dict[str, int] = {}
    found = {}
    for case, recorded in classes.items():
        varied: dict[str, list[Any]] = {}
        for key, value, outcome in recorded["varied"]:
            numbers_and_letters = varied.setdefault(key, [[], ""])
            numbers_and_letters[0].append(values.setdefault(json.dumps(value, default=str), len(values)))
            numbers_and_letters[1] += outcome[0]
        of_class = {name: recorded[name] for name in ("keys", "aliases") if " " not in case}
        found[case] = {**of_class, "config": recorded["config"], "varied": varied}
    return {"values": [json.loads(value) for value in values], "classes": found}


def unpacked(content: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `packed`."""
    outcomes = {outcome[0]: outcome for outcome in ("same", "other", "none")}
    found = {}
    for case, recorded in content["classes"].items():
        varied = [
            [key, content["values"][number], outcomes[letter]]
            for key, (numbers, letters) in recorded["varied"].items()
            for number, letter in zip(numbers, letters, strict=True)
        ]
        found[case] = {**recorded, "varied": varied}
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        recorded = {case: record(case, Path(name)) for case in sys.argv[1:] or CASES}
    before = unpacked(json.loads(FILE.read_text())) if FILE.exists() else {}
    classes = {case: (before | recorded)[case] for case in CASES if case in before | recorded}
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    content = {"versions": versions, **packed(classes)}
    FILE.write_text(json.dumps(content, separators=(",", ":"), default=str) + "\n")


if __name__ == "__main__":
    main()
