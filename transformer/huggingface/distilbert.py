"""Conversion of DistilBERT (Sanh et al. 2019)."""

from typing import Any

from transformer.huggingface.bert import FIXED, RENAMED, accepted_architectures, infer_heads, restore_heads
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
)
from transformer.huggingface.fine_tuned_heads import interface_with_classes, sizes_from_shapes
from transformer.huggingface.tensor_layouts import VECTOR

_EMBEDDINGS, _LAYER = "distilbert.embeddings", "distilbert.transformer.layer.{layer}"
_POOLER_ACTIVATION = "relu"
_NAMES = ("q_lin", "k_lin", "v_lin", "out_lin")
_DISTILBERT_FIXED: dict[str, Any] = {
    **FIXED,
    "norm_epsilon": 1e-12,
    "num_token_types": 0,
    "position_offset": 0,
    "add_pooling_layer": False,
}


def _simplify_distilbert(config: Config, names: TensorNames) -> Config:
    return infer_heads(
        config, names, "distilbert", "vocab_transform.weight", "pre_classifier.weight", _POOLER_ACTIVATION
    )


DISTILBERT = ConversionSpec(
    model_type="distilbert",
    architecture="DistilBertForMaskedLM",
    model_family="encoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("dim", "width"),
        ConfigKey("n_layers", "layers"),
        ConfigKey("n_heads", "heads"),
        ConfigKey("hidden_dim", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("activation", "activation", values=ACTIVATIONS),
        ConfigKey("pooler_activation", "pooler_activation"),
        ConfigKey("head", "head"),
        ConfigKey("output_bias", "output_bias"),
        ConfigKey("num_labels", "classes"),
    ),
    fixed_fields=_DISTILBERT_FIXED,
    training_defaults={"initialization": "bert"},
    other_architectures=accepted_architectures("DistilBertModel"),
    key_aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    tensor_entries=(
        *embedding_entries(f"{_EMBEDDINGS}.word_embeddings", "embedding"),
        *embedding_entries(f"{_EMBEDDINGS}.position_embeddings", "positions"),
        *norm_entries(f"{_EMBEDDINGS}.LayerNorm", "embedding_norm"),
        *attention_entries(f"{_LAYER}.attention", "layers/attention", _NAMES),
        *norm_entries(f"{_LAYER}.sa_layer_norm", "layers/attention_residual/norm"),
        *linear_entries(f"{_LAYER}.ffn.lin1", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.ffn.lin2", "layers/feed_forward/contract"),
        *norm_entries(f"{_LAYER}.output_layer_norm", "layers/feed_forward_residual/norm"),
        *linear_entries("vocab_transform", "head/transform"),
        *norm_entries("vocab_layer_norm", "head/norm"),
        TensorEntry("vocab_projector.bias", ("output_bias/bias",), VECTOR),
        *linear_entries("pre_classifier", "pooler"),
        *linear_entries("classifier", "classes"),
        *linear_entries("classifier", "choice"),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="distilbert.",
    tensor_aliases={"vocab_projector.weight": f"{_EMBEDDINGS}.word_embeddings.weight"},
    ignored_tensors=(r"(distilbert\.)?embeddings\.position_ids",),
    tensor_renames=RENAMED,
    simplify_config=_simplify_distilbert,
    # How the table of positions was initialized, and dropout of heads.
    simplified_keys=frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"}),
    restore_config=lambda config: restore_heads(config, "DistilBertModel", _POOLER_ACTIVATION),
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
)
