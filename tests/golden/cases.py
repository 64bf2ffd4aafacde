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
    """Not float64 where the library cannot: its XLNet mixes types, a window of nothing but padding gives no number."""
    generates: bool = True


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
    "gemma2": Case(
        "Gemma2ForCausalLM",
        LLAMA
        | {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 3,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
        dtype="float32",
        seed=6,
    ),
    "bloom": Case(
        "BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}, seed=15
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
    "marian": Case("MarianMTModel", MARIAN | {"activation_function": "swish"}, "encoder_decoder", seed=12),
    "marian_relu": Case("MarianMTModel", MARIAN | {"activation_function": "relu"}, "encoder_decoder", seed=14),
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
}
