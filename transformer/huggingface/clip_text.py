"""Conversion of the text tower of CLIP (Radford et al. 2021), which has no head: what it gives are states."""

from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    CAUSAL,
    ConfigKey,
    ConversionSpec,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
)

_PREFIX = "text_model."
_LAYER = f"{_PREFIX}encoder.layers.{{layer}}"
_ARCHITECTURE = "CLIPTextModel"


CLIP_TEXT = ConversionSpec(
    model_type="clip_text_model",
    architecture=_ARCHITECTURE,
    bare_architecture=_ARCHITECTURE,
    model_family="decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("num_hidden_layers", "layers"),
        ConfigKey("num_attention_heads", "heads"),
        ConfigKey("intermediate_size", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
        ConfigKey("layer_norm_eps", "norm_epsilon"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
    ),
    fixed_fields={
        "head": "none",
        "score": "scaled_dot",
        "norm": "layer",
        "norm_placement": "pre",
        "biases": "all",
        "positions": "learned",
        "position_offset": 0,
        "attention_windows": (),
        "embedding_scale": "none",
        "embedding_norm": False,
        "logit_scale": "none",
        "output_bias": False,
    },
    fixed_keys=(CAUSAL,),
    training_defaults={"dropout": 0.0, "initialization": "gpt"},
    tensor_entries=(
        *embedding_entries(f"{_PREFIX}embeddings.token_embedding", "embedding"),
        *embedding_entries(f"{_PREFIX}embeddings.position_embedding", "positions"),
        *norm_entries(f"{_LAYER}.layer_norm1", "layers/attention_residual/norm"),
        *attention_entries(f"{_LAYER}.self_attn", "layers/attention", ("q_proj", "k_proj", "v_proj", "out_proj")),
        *norm_entries(f"{_LAYER}.layer_norm2", "layers/feed_forward_residual/norm"),
        *linear_entries(f"{_LAYER}.mlp.fc1", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.mlp.fc2", "layers/feed_forward/contract"),
        *norm_entries(f"{_PREFIX}final_layer_norm", "norm"),
    ),
    optional_prefix=_PREFIX,
    ignored_tensors=(r"(text_model\.)?embeddings\.position_ids",),
)
