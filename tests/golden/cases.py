"""The small random models of the recording, one published arrangement each, as transformers reads them.

What is not named is the default of the class, which is what the published checkpoints have.
"""

from dataclasses import dataclass, field
from typing import Any

VOCABULARY, WIDTH, HEADS, FEED_FORWARD, POSITIONS = 53, 32, 4, 48, 24

GPT2 = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": WIDTH, "n_head": HEADS, "n_inner": FEED_FORWARD}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
}
MARIAN = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": FEED_FORWARD,
    "decoder_ffn_dim": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": VOCABULARY - 1,
    "decoder_start_token_id": VOCABULARY - 1,
    "eos_token_id": 0,
    "scale_embedding": True,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_ff": FEED_FORWARD,
    "num_layers": 2,
    "num_heads": HEADS,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
NO_KV_HEADS = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
# Scaled rotary positions, whose pre-training was shorter than the batch.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 6}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [1.2, 2.0, 3.5, 4.0],
}
# Mixtures of experts, in texts of 32 tokens behind their prompts.
MIXTURE = LLAMA | {"max_position_embeddings": 40, "num_experts_per_tok": 2}
MIXTRAL = MIXTURE | {"num_local_experts": 5}
QWEN3_MOE = MIXTURE | {"num_experts": 5, "moe_intermediate_size": 20, "head_dim": 12}
QWEN2_MOE = MIXTURE | {"num_experts": 5, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
OLMOE = MIXTURE | {"num_experts": 5, "intermediate_size": 20}
GPT_OSS = MIXTURE | {
    "num_local_experts": 5,
    "intermediate_size": 20,
    "head_dim": 12,
    "sliding_window": 3,
    "rope_parameters": YARN | {"truncate": False},
}
FALCON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}
MPT = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": 2, "n_heads": HEADS, "max_seq_len": POSITIONS}
OPT = FALCON | {"ffn_dim": FEED_FORWARD}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": WIDTH,
    "n_layers": 2,
    "n_heads": HEADS,
    "hidden_dim": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
}
ALBERT = BERT | {"embedding_size": 12, "num_hidden_layers": 4}
# Three heads of odd number; a half window of two tokens; every third layer sees all.
MODERNBERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 30,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
    "local_attention": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
# Three heads of odd depth; buckets of several distances, and distances beyond the last.
DEBERTA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 4,
    "max_relative_positions": 7,
    "norm_rel_ebd": "layer_norm",
}
BART = {key: value for key, value in MARIAN.items() if not key.endswith(("_token_id", "_embedding"))}
XGLM = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "ffn_dim": FEED_FORWARD,
    "num_layers": 2,
    "attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}
XLNET = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": 2, "n_head": HEADS, "d_inner": FEED_FORWARD}


@dataclass(frozen=True)
class Case:
    """One model: its class, the arguments of its configuration, and what is said otherwise than by these."""

    architecture: str
    config: dict[str, Any]
    kind: str = "decoder"
    seed: int = 0
    published: dict[str, Any] = field(default_factory=dict)
    """Keys of config.json as published checkpoints have them, where the library itself would write others."""
    untied: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Weights of published checkpoints that the library itself would tie away."""
    dtype: str = "float64"
    """Not float64 where the library cannot: its XLNet mixes types, a window of nothing but padding gives no number, and
    its XGLM has a least number that is no float32."""
    generates: bool = True
    new_tokens: int = 8
    """How many tokens are generated."""
    trains: bool = False
    """Whether the losses before and after a step of gradient descent are recorded."""


CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT2 | {"n_layer": 3}, seed=79),
    "gpt2_gelu": Case("GPT2LMHeadModel", GPT2 | {"n_layer": 2, "activation_function": "gelu"}),
    "openai_gpt": Case(
        "OpenAIGPTLMHeadModel",
        {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS},
        seed=51,
    ),
    "gptj": Case("GPTJForCausalLM", GPT2 | {"n_layer": 2, "rotary_dim": WIDTH // HEADS}),
    "llama": Case("LlamaForCausalLM", LLAMA, seed=2),
    "llama_tied": Case("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}, seed=1),
    "llama_options": Case(
        "LlamaForCausalLM",
        LLAMA
        | {
            "num_key_value_heads": HEADS,
            "head_dim": 12,
            "hidden_act": "gelu",
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
        seed=2,
    ),
    "mistral": Case(
        "MistralForCausalLM",
        LLAMA | {"num_hidden_layers": 3, "num_key_value_heads": 1, "sliding_window": 3},
        dtype="float32",
        seed=2,
    ),
    "llama3": Case("LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3, "attention_bias": True}, seed=2),
    "llama_linear": Case(
        "LlamaForCausalLM",
        LLAMA | {"mlp_bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
        seed=2,
    ),
    "qwen2": Case("Qwen2ForCausalLM", LLAMA | {"rope_parameters": YARN}, seed=1),
    "qwen2_window": Case(
        "Qwen2ForCausalLM",
        LLAMA | {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        dtype="float32",
        seed=1,
    ),
    "qwen3": Case("Qwen3ForCausalLM", LLAMA | {"head_dim": 12}, seed=2),
    "ministral": Case(
        "MinistralForCausalLM",
        LLAMA | {"head_dim": 8, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
        dtype="float32",
        seed=2,
    ),
    "smollm3": Case("SmolLM3ForCausalLM", LLAMA | {"num_hidden_layers": 4}, seed=2),
    "granite": Case(
        "GraniteForCausalLM",
        LLAMA
        | {
            "embedding_multiplier": 12.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
        },
        seed=2,
    ),
    "olmo2": Case("Olmo2ForCausalLM", LLAMA, seed=2),
    "olmo3": Case(
        "Olmo3ForCausalLM",
        LLAMA
        | {
            "num_hidden_layers": 4,
            "sliding_window": 3,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": YARN,
            },
        },
        dtype="float32",
        seed=2,
    ),
    "gemma": Case("GemmaForCausalLM", LLAMA | {"head_dim": 12}, seed=6),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        LLAMA
        | {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "query_pre_attn_scalar": 20,
            "sliding_window": 3,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 8.0,
        },
        dtype="float32",
        seed=6,
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        LLAMA
        | {
            "num_hidden_layers": 3,
            "head_dim": 8,
            "query_pre_attn_scalar": 16,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
            },
        },
        dtype="float32",
        seed=12,
    ),
    "gptj_part": Case("GPTJForCausalLM", GPT2 | {"n_layer": 2, "rotary_dim": 4}),
    "gpt_neox": Case("GPTNeoXForCausalLM", NO_KV_HEADS, seed=3),
    "gpt_neox_pre": Case(
        "GPTNeoXForCausalLM",
        NO_KV_HEADS | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
        seed=3,
    ),
    "stablelm": Case("StableLmForCausalLM", LLAMA, seed=2),
    "stablelm_parallel": Case(
        "StableLmForCausalLM", LLAMA | {"use_qkv_bias": True, "use_parallel_residual": True}, seed=3
    ),
    "phi": Case("PhiForCausalLM", LLAMA, seed=3),
    "phi3": Case("Phi3ForCausalLM", LLAMA, seed=3),
    "phi3_long": Case(
        "Phi3ForCausalLM",
        LLAMA | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 4},
        seed=3,
        # There, a text that grows beyond the short context is computed anew with the long one's factors.
        generates=False,
    ),
    "cohere": Case("CohereForCausalLM", LLAMA | {"logit_scale": 0.5}, seed=3),
    "cohere_bias": Case(
        "CohereForCausalLM",
        LLAMA
        | {
            "head_dim": 12,
            "attention_bias": True,
            "hidden_act": "gelu",
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
        },
        seed=4,
    ),
    "cohere2": Case(
        "Cohere2ForCausalLM",
        LLAMA | {"num_hidden_layers": 4, "sliding_window": 3, "logit_scale": 0.5},
        dtype="float32",
        seed=2,
    ),
    "cohere2_bias": Case(
        "Cohere2ForCausalLM",
        LLAMA
        | {
            "attention_bias": True,
            "sliding_window": 3,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
        dtype="float32",
        seed=2,
    ),
    "starcoder2": Case("Starcoder2ForCausalLM", LLAMA, seed=4),
    "starcoder2_window": Case(
        "Starcoder2ForCausalLM",
        LLAMA | {"use_bias": False, "sliding_window": 3, "tie_word_embeddings": False, "hidden_act": "gelu"},
        dtype="float32",
        seed=4,
    ),
    "gpt_bigcode": Case("GPTBigCodeForCausalLM", GPT2 | {"n_layer": 2}, seed=3),
    "gpt_bigcode_heads": Case(
        "GPTBigCodeForCausalLM",
        GPT2 | {"n_layer": 2, "multi_query": False, "scale_attn_weights": False, "activation_function": "gelu"},
        seed=2,
    ),
    "falcon": Case("FalconForCausalLM", FALCON, seed=5),
    "falcon_groups": Case(
        "FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}, seed=2
    ),
    "falcon_one_norm": Case(
        "FalconForCausalLM",
        FALCON
        | {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": FEED_FORWARD,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
        },
        seed=5,
    ),
    "falcon_heads": Case("FalconForCausalLM", FALCON | {"multi_query": False, "tie_word_embeddings": False}, seed=2),
    "mpt": Case("MptForCausalLM", MPT, seed=9),
    "mpt_six_heads": Case(
        "MptForCausalLM",
        MPT | {"d_model": 36, "n_heads": 6, "attn_config": {"softmax_scale": 0.2}},
        seed=4,
    ),
    "opt": Case("OPTForCausalLM", OPT, seed=3),
    "xglm": Case("XGLMForCausalLM", XGLM, seed=1, dtype="float32", generates=False),
    "xglm_plain": Case(
        "XGLMForCausalLM",
        XGLM
        | {
            "scale_embedding": False,
            "activation_function": "relu",
            "pad_token_id": 0,
            "attention_heads": 2,
            "num_layers": 4,
        },
        seed=109,
        dtype="float32",
    ),
    "opt_post": Case(
        "OPTForCausalLM",
        OPT | {"do_layer_norm_before": False, "enable_bias": False, "activation_function": "gelu"},
        seed=8,
    ),
    "bloom": Case(
        "BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}, seed=15
    ),
    "mixtral": Case(
        "MixtralForCausalLM",
        MIXTRAL | {"output_router_logits": True, "router_aux_loss_coef": 0.05},
        seed=1,
        new_tokens=32,
        trains=True,
    ),
    "mixtral_window": Case(
        "MixtralForCausalLM",
        MIXTRAL | {"num_hidden_layers": 3, "head_dim": 12, "sliding_window": 3, "num_experts_per_tok": 1},
        dtype="float32",
        seed=2,
        new_tokens=32,
    ),
    "qwen3_moe": Case("Qwen3MoeForCausalLM", QWEN3_MOE | {"norm_topk_prob": True}, seed=1, new_tokens=32),
    "qwen3_moe_window": Case(
        "Qwen3MoeForCausalLM",
        QWEN3_MOE
        | {
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 3,
            "rope_parameters": YARN,
        },
        dtype="float32",
        seed=3,
        new_tokens=32,
    ),
    "qwen2_moe": Case("Qwen2MoeForCausalLM", QWEN2_MOE, seed=1, new_tokens=32),
    "qwen2_moe_window": Case(
        "Qwen2MoeForCausalLM",
        QWEN2_MOE | {"norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": True, "sliding_window": 3},
        dtype="float32",
        seed=2,
        new_tokens=32,
    ),
    "olmoe": Case("OlmoeForCausalLM", OLMOE, seed=1, new_tokens=32),
    "olmoe_norm": Case(
        "OlmoeForCausalLM",
        OLMOE | {"norm_topk_prob": True, "attention_bias": True, "hidden_act": "gelu", "num_experts_per_tok": 4},
        seed=2,
        new_tokens=32,
    ),
    "gpt_oss": Case("GptOssForCausalLM", GPT_OSS, seed=1, new_tokens=32),
    "gpt_oss_full": Case(
        "GptOssForCausalLM",
        GPT_OSS
        | {
            "attention_bias": False,
            "layer_types": ["full_attention", "full_attention"],
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
        seed=2,
        new_tokens=32,
    ),
    "xlnet": Case(
        "XLNetLMHeadModel",
        XLNET | {"attn_type": "uni"},
        dtype="float32",
        generates=False,
    ),
    "bert": Case("BertForMaskedLM", BERT, "encoder"),
    "bert_pretraining": Case("BertForPreTraining", BERT, "encoder"),
    "bert_gelu_new": Case("BertForMaskedLM", BERT | {"hidden_act": "gelu_new"}, "encoder"),
    "roberta": Case(
        "RobertaForMaskedLM",
        BERT | {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        "encoder",
    ),
    "xlm_roberta": Case(
        "XLMRobertaForMaskedLM",
        BERT | {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        "encoder",
        seed=1,
    ),
    "camembert": Case(
        "CamembertForMaskedLM",
        BERT | {"max_position_embeddings": POSITIONS + 6, "type_vocab_size": 1, "pad_token_id": 5},
        "encoder",
        seed=1,
    ),
    "distilbert": Case("DistilBertForMaskedLM", DISTILBERT, "encoder", seed=1),
    "distilbert_relu": Case(
        "DistilBertForMaskedLM", DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True}, "encoder", seed=1
    ),
    "electra": Case("ElectraForMaskedLM", BERT | {"embedding_size": WIDTH}, "encoder", seed=1),
    "electra_one_type": Case(
        "ElectraForMaskedLM",
        BERT | {"embedding_size": WIDTH, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        "encoder",
        seed=1,
    ),
    "electra_small": Case("ElectraForMaskedLM", BERT | {"embedding_size": 12}, "encoder", seed=1),
    "albert": Case("AlbertForMaskedLM", ALBERT, "encoder", seed=1),
    "albert_groups": Case(
        "AlbertForMaskedLM",
        ALBERT | {"embedding_size": WIDTH, "num_hidden_groups": 2, "hidden_act": "relu", "type_vocab_size": 1},
        "encoder",
        seed=2,
    ),
    "modernbert": Case("ModernBertForMaskedLM", MODERNBERT, "encoder", dtype="float32", seed=1),
    "modernbert_options": Case(
        "ModernBertForMaskedLM",
        MODERNBERT
        | {
            "num_hidden_layers": 3,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "classifier_bias": True,
            "decoder_bias": False,
            "tie_word_embeddings": False,
            "hidden_activation": "silu",
            "classifier_activation": "silu",
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
            },
        },
        "encoder",
        dtype="float32",
        seed=2,
    ),
    "deberta": Case("DebertaV2ForMaskedLM", DEBERTA, "encoder", seed=1),
    # No buckets, more distances than the text has, and token types.
    "deberta_distances": Case(
        "DebertaV2ForMaskedLM",
        DEBERTA
        | {
            "hidden_size": WIDTH,
            "num_attention_heads": HEADS,
            "position_buckets": -1,
            "max_relative_positions": -1,
            "norm_rel_ebd": "none",
            "type_vocab_size": 2,
            "hidden_act": "gelu_new",
        },
        "encoder",
        seed=2,
    ),
    "deberta_absolute": Case(
        "DebertaV2ForMaskedLM",
        {key: DEBERTA[key] for key in (*BERT,)} | {"type_vocab_size": 2},
        "encoder",
        seed=3,
    ),
    "marian": Case("MarianMTModel", MARIAN | {"activation_function": "swish"}, "encoder_decoder", seed=12),
    "marian_relu": Case("MarianMTModel", MARIAN | {"activation_function": "relu"}, "encoder_decoder", seed=14),
    "bart": Case("BartForConditionalGeneration", BART, "encoder_decoder", seed=12),
    "bart_three_heads": Case(
        "BartForConditionalGeneration",
        BART
        | {
            "d_model": 36,
            "encoder_attention_heads": 3,
            "decoder_attention_heads": 3,
            "decoder_layers": 3,
            "activation_function": "relu",
            "scale_embedding": True,
        },
        "encoder_decoder",
        seed=34,
    ),
    "mbart": Case(
        "MBartForConditionalGeneration",
        BART | {"scale_embedding": True, "decoder_start_token_id": 2},
        "encoder_decoder",
        seed=4,
    ),
    "pegasus": Case(
        "PegasusForConditionalGeneration",
        BART | {"scale_embedding": True, "activation_function": "relu"},
        "encoder_decoder",
        seed=24,
    ),
    "blenderbot": Case("BlenderbotForConditionalGeneration", BART, "encoder_decoder", seed=4),
    "m2m_100": Case("M2M100ForConditionalGeneration", BART, "encoder_decoder", seed=10),
    "m2m_100_padding": Case(
        "M2M100ForConditionalGeneration",
        BART | {"pad_token_id": 4, "scale_embedding": False, "activation_function": "swish"},
        "encoder_decoder",
        seed=18,
    ),
    "t5": Case(
        "T5ForConditionalGeneration",
        T5 | {"d_kv": 8, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6},
        "encoder_decoder",
        seed=16,
    ),
    "t5_gated": Case(
        "T5ForConditionalGeneration",
        T5 | {"d_kv": 6, "feed_forward_proj": "gated-gelu"},
        "encoder_decoder",
        published={"tie_word_embeddings": False, "scale_decoder_outputs": None},
        untied={"lm_head.weight": (VOCABULARY, WIDTH)},
        seed=36,
    ),
    "mt5": Case(
        "MT5ForConditionalGeneration",
        T5 | {"d_kv": 6},
        "encoder_decoder",
        published={"tie_word_embeddings": False},
        untied={"lm_head.weight": (VOCABULARY, WIDTH)},
        seed=3,
    ),
    "mt5_tied": Case(
        "MT5ForConditionalGeneration",
        T5 | {"d_kv": 8, "feed_forward_proj": "relu", "relative_attention_num_buckets": 8},
        "encoder_decoder",
        seed=36,
    ),
}
