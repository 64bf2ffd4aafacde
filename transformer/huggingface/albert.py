"""Conversion of ALBERT (Lan et al. 2020): narrow embeddings, and layers that share the parameters of one block."""

import dataclasses

from transformer.config import UserError
from transformer.huggingface.bert import BERT, accepted_architectures, infer_heads, restore_heads
from transformer.huggingface.conversion_spec import (
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.tensor_layouts import VECTOR

_EMBEDDINGS = "albert.embeddings"
# A group of successive layers is one of our blocks.
_BLOCK = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0"
_POOLER = "albert.pooler"


def _simplify_albert(config: Config, names: TensorNames) -> Config:
    layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    if groups < 1 or layers % groups:
        raise UserError(
            f"config.json has num_hidden_groups={groups}; only divisors of num_hidden_layers={layers} can be read"
        )
    # Its pooler has the name that a layer of it has in BERT.
    pooler = {f"{name}.dense.weight" for name in (_POOLER, "pooler") if f"{name}.weight" in names}
    return infer_heads(config, names | pooler, "albert", "predictions.dense.weight", "classifier.weight")


def _restore_albert(config: Config) -> Config:
    if config["embedding_size"] is None or config["num_hidden_groups"] is None:
        names = {"embedding_size": "embedding_width", "num_hidden_groups": "layer_groups"}
        unset = ", ".join(f"config.model.{ours}=None" for theirs, ours in names.items() if config[theirs] is None)
        raise UserError(f"{unset}, which it always has there")
    # Ours have one rate.
    return restore_heads({**config, "classifier_dropout_prob": config["hidden_dropout_prob"]}, "AlbertModel")


ALBERT = dataclasses.replace(
    BERT,
    model_type="albert",
    architecture="AlbertForMaskedLM",
    config_keys=(
        *BERT.config_keys,
        ConfigKey("embedding_size", "embedding_width"),
        ConfigKey("num_hidden_groups", "layer_groups"),
    ),
    fixed_fields=without_keys(dict(BERT.fixed_fields), "embedding_width", "layer_groups"),
    other_architectures=accepted_architectures("AlbertModel"),
    fixed_keys=(*BERT.fixed_keys, FixedConfigKey("inner_group_num", 1, null=False)),
    training_keys={"classifier_dropout_prob": "hidden_dropout_prob"},
    tensor_entries=(
        *embedding_entries(f"{_EMBEDDINGS}.word_embeddings", "embedding"),
        *embedding_entries(f"{_EMBEDDINGS}.position_embeddings", "positions"),
        *embedding_entries(f"{_EMBEDDINGS}.token_type_embeddings", "types"),
        *norm_entries(f"{_EMBEDDINGS}.LayerNorm", "embedding_norm"),
        *linear_entries("albert.encoder.embedding_hidden_mapping_in", "embedding_projection"),
        *attention_entries(f"{_BLOCK}.attention", "layers/attention", ("query", "key", "value", "dense")),
        *norm_entries(f"{_BLOCK}.attention.LayerNorm", "layers/attention_residual/norm"),
        *linear_entries(f"{_BLOCK}.ffn", "layers/feed_forward/expand"),
        *linear_entries(f"{_BLOCK}.ffn_output", "layers/feed_forward/contract"),
        *norm_entries(f"{_BLOCK}.full_layer_layer_norm", "layers/feed_forward_residual/norm"),
        *linear_entries(_POOLER, "pooler"),
        *linear_entries("predictions.dense", "head/transform"),
        *norm_entries("predictions.LayerNorm", "head/norm"),
        TensorEntry("predictions.bias", ("output_bias/bias",), VECTOR),
        *linear_entries("classifier", "classes"),
        *linear_entries("classifier", "choice"),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="albert.",
    tensor_aliases={
        "predictions.decoder.weight": f"{_EMBEDDINGS}.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored_tensors=(r"(albert\.)?embeddings\.position_ids",),
    # The head that says which of two texts came first.
    dropped_tensors=(r"sop_classifier\.classifier\.(weight|bias)", r"(albert\.)?pooler\.(weight|bias)"),
    simplify_config=_simplify_albert,
    restore_config=_restore_albert,
)
