"""Conversion of ELECTRA (Clark et al. 2020): its generator, and the body of its discriminator."""

import dataclasses

from transformer.config import UserError
from transformer.huggingface.bert import (
    BERT,
    accepted_architectures,
    body_entries,
    check_exported_head_activation,
    check_head_activation,
    infer_heads,
    restore_heads,
)
from transformer.huggingface.conversion_spec import (
    Config,
    ConfigKey,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.tensor_layouts import VECTOR

_ARCHITECTURE = "ElectraForMaskedLM"
_POOLER_ACTIVATION = "gelu"
# What a text's summary is, of which a choice is made; other kinds have no place in ours.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": _POOLER_ACTIVATION}


def _simplify_electra(config: Config, names: TensorNames) -> Config:
    # The class has a projection of its embeddings where they are of another width.
    embedding_size = None if config["embedding_size"] == config["hidden_size"] else config["embedding_size"]
    simplified = infer_heads(
        {**config, "embedding_size": embedding_size},
        names,
        "electra",
        "generator_predictions.dense.weight",
        "classifier.out_proj.weight",
        _POOLER_ACTIVATION,
    )
    check_head_activation(config, simplified, _ARCHITECTURE)
    if simplified["head"] == "choice":
        for key, value in _SUMMARY.items():
            FixedConfigKey(key, value).check(config)
    return simplified


def _restore_electra(config: Config) -> Config:
    check_exported_head_activation(config)
    if config["embedding_size"] == config["hidden_size"]:
        raise UserError(
            f"config.model.embedding_width={config['embedding_size']} has a projection to as many features, which it "
            "has not there: it would have to be None"
        )
    config = {**config, "embedding_size": config["embedding_size"] or config["hidden_size"]}
    return restore_heads(config, "ElectraModel", _POOLER_ACTIVATION)


ELECTRA = dataclasses.replace(
    BERT,
    model_type="electra",
    architecture=_ARCHITECTURE,
    config_keys=(
        *(key for key in BERT.config_keys if key.our_key != "add_pooling_layer"),
        ConfigKey("embedding_size", "embedding_width"),
    ),
    fixed_fields={**without_keys(dict(BERT.fixed_fields), "embedding_width"), "add_pooling_layer": False},
    other_architectures=accepted_architectures("ElectraModel"),
    tensor_entries=(
        *body_entries("electra"),
        *linear_entries("electra.embeddings_project", "embedding_projection"),
        *linear_entries("generator_predictions.dense", "head/transform"),
        *norm_entries("generator_predictions.LayerNorm", "head/norm"),
        TensorEntry("generator_lm_head.bias", ("output_bias/bias",), VECTOR),
        # As in RoBERTa's, the pooler is a part of the head of classes of texts; that of choices is by another name.
        *(
            dataclasses.replace(entry, excluded_parameter="choice/kernel")
            for entry in linear_entries("classifier.dense", "pooler")
        ),
        *(
            dataclasses.replace(entry, required_parameter="choice/kernel")
            for entry in linear_entries("sequence_summary.summary", "pooler")
        ),
        *linear_entries("classifier", "choice"),
        *(
            dataclasses.replace(entry, required_parameter="pooler/kernel")
            for entry in linear_entries("classifier.out_proj", "classes")
        ),
        *(
            dataclasses.replace(entry, excluded_parameter="pooler/kernel")
            for entry in linear_entries("classifier", "classes")
        ),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="electra.",
    tensor_aliases={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    ignored_tensors=(r"(electra\.)?embeddings\.position_ids",),
    # Of the discriminator, whose body is read as an ElectraModel.
    dropped_tensors=(r"discriminator_predictions\.(dense|dense_prediction)\.(weight|bias)",),
    simplify_config=_simplify_electra,
    simplified_keys=frozenset({"summary_last_dropout"}),
    restore_config=_restore_electra,
)
