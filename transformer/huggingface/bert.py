"""Conversion of BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), with heads of pre-training or fine-tuning.

XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) are RoBERTa by other names.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.fine_tuned_heads import (
    FINE_TUNED_CLASSES,
    fine_tuned_head,
    interface_with_classes,
    num_classes,
    problem_type_keys,
    sizes_from_shapes,
    without_head_keys,
)
from transformer.huggingface.tensor_layouts import VECTOR

KEYS = (
    ConfigKey("vocab_size", "vocab_size"),
    ConfigKey("hidden_size", "width"),
    ConfigKey("num_hidden_layers", "layers"),
    ConfigKey("num_attention_heads", "heads"),
    ConfigKey("intermediate_size", "feed_forward"),
    ConfigKey("max_position_embeddings", "max_length"),
    ConfigKey("position_offset", "position_offset"),
    ConfigKey("type_vocab_size", "num_token_types"),
    ConfigKey("layer_norm_eps", "norm_epsilon"),
    ConfigKey("hidden_dropout_prob", "dropout"),
    ConfigKey("attention_probs_dropout_prob", "attention_dropout"),
    ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
    ConfigKey("pooler", "add_pooling_layer"),
    ConfigKey("pooler_activation", "pooler_activation"),
    ConfigKey("head", "head"),
    ConfigKey("output_bias", "output_bias"),
    ConfigKey("num_labels", "classes"),
)
FIXED: dict[str, Any] = {
    "score": "scaled_dot",
    "norm": "layer",
    "norm_placement": "post",
    "biases": "all",
    "positions": "learned",
    "attention_windows": (),
    "embedding_scale": "none",
    "logit_scale": "none",
    "embedding_norm": True,
    "tie_embeddings": True,
    "embedding_width": None,
    "layer_groups": None,
    "pooling": "first",
    "head_transform": "tokens",
    "head_biases": "blocks",
}
# A key of earlier versions of the library.
_FIXED_KEYS = (FixedConfigKey("position_embedding_type", "absolute"),)
_TRAINING_KEYS = {"classifier_dropout": "hidden_dropout_prob"}


def accepted_architectures(bare: str, heads: Sequence[str] = tuple(FINE_TUNED_CLASSES)) -> tuple[str, ...]:
    """Return the class without a head and those with heads of fine-tuning.

    Args:
        bare: The name of the class without a head.
        heads: Our heads of fine-tuning.
    """
    return (bare, *(bare.replace("Model", FINE_TUNED_CLASSES[head]) for head in heads))


# RoBERTa's head of masked language modeling, whatever the activation of its blocks.
_HEAD_ACTIVATION = "gelu"
# BERT's second head of pre-training: whether a text follows another.
_NEXT_SENTENCE_HEAD = "cls.seq_relationship"
_NEXT_SENTENCE_CLASS = "BertForNextSentencePrediction"
# Old files call a norm's scale and bias gamma and beta.
RENAMED = {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}


def body_entries(body: str) -> tuple[TensorEntry, ...]:
    """Return the tensors of a model without a head.

    Args:
        body: The prefix of their names.
    """
    layer = f"{body}.encoder.layer.{{layer}}"
    names = ("self.query", "self.key", "self.value", "output.dense")
    return (
        *embedding_entries(f"{body}.embeddings.word_embeddings", "embedding"),
        *embedding_entries(f"{body}.embeddings.position_embeddings", "positions"),
        *embedding_entries(f"{body}.embeddings.token_type_embeddings", "types"),
        *norm_entries(f"{body}.embeddings.LayerNorm", "embedding_norm"),
        *attention_entries(f"{layer}.attention", "layers/attention", names),
        *norm_entries(f"{layer}.attention.output.LayerNorm", "layers/attention_residual/norm"),
        *linear_entries(f"{layer}.intermediate.dense", "layers/feed_forward/expand"),
        *linear_entries(f"{layer}.output.dense", "layers/feed_forward/contract"),
        *norm_entries(f"{layer}.output.LayerNorm", "layers/feed_forward_residual/norm"),
    )


def _tensor_entries(
    body: str, pooler: tuple[TensorEntry, ...], transform: str, transform_norm: str, bias: str
) -> tuple[TensorEntry, ...]:
    return (
        *body_entries(body),
        *pooler,
        *linear_entries(transform, "head/transform"),
        *norm_entries(transform_norm, "head/norm"),
        TensorEntry(bias, ("output_bias/bias",), VECTOR),
    )


def infer_heads(
    config: Config, names: TensorNames, body: str, transform: str, classifier: str, pooler_activation: str = "tanh"
) -> Config:
    """Return the config with the model's heads, inferred from its architecture and its tensors.

    Args:
        config: The content of config.json.
        names: The names of the tensors.
        body: The prefix of the tensors without a head.
        transform: A tensor of the head of masked language modeling.
        classifier: A tensor of the head of classes of a whole text, which no other head has.
        pooler_activation: The activation of the layer before it.
    """
    architectures = config["architectures"] or ()
    scored = any(name.endswith(("MaskedLM", "PreTraining")) for name in architectures) or transform in names
    pooled = bool({f"{body}.pooler.dense.weight", "pooler.dense.weight"} & names)
    by_tensors = None if scored else _infer_fine_tuned_head(names, classifier, pooled)
    fine_tuned = fine_tuned_head(architectures, by_tensors, FINE_TUNED_CLASSES)
    # Published files may hold the second head of pre-training under the name of a class that passes over it.
    follows = pooled and f"{_NEXT_SENTENCE_HEAD}.weight" in names
    if scored:
        head = "pretraining" if follows else "masked"
    else:
        head = fine_tuned or ("next_sentence" if follows and _reads_next_sentence(architectures) else "none")
    # Old files of models that score every token hold a pooler that nothing reads.
    pooled &= head not in ("token_classes", "span")
    heads = {"pooler": pooled, "pooler_activation": pooler_activation, "head": head, "output_bias": scored}
    return {**config, **heads, "num_labels": num_classes(config, head)}


def _reads_next_sentence(architectures: Sequence[str]) -> bool:
    """Whether a model may read the head of next sentences: its class does, or no class is named."""
    return not architectures or architectures[0] == _NEXT_SENTENCE_CLASS


def _infer_fine_tuned_head(names: TensorNames, classifier: str, pooled: bool) -> str | None:
    """Return the head of fine-tuning of which a file has tensors; None for none.

    Args:
        names: The names of the tensors.
        classifier: A tensor of the head of classes of a whole text.
        pooled: Whether there is a pooler.
    """
    if "qa_outputs.weight" in names:
        return "span"
    if not {"classifier.weight", classifier} & names:
        return None
    classifies_texts = classifier in names and (pooled or classifier != "classifier.weight")
    return "classes" if classifies_texts else "token_classes"


def restore_heads(config: Config, bare: str, pooler_activation: str = "tanh") -> Config:
    """Return the config with the class of a model with these heads; with both, `BertForPreTraining`.

    Args:
        config: The config, with the keys of our heads.
        bare: The name of the class without a head.
        pooler_activation: The activation of its pooler.

    Raises:
        UserError: If the model has a pooler with another activation.
    """
    head, activation = config["head"], config["pooler_activation"]
    pooled = config.get("pooler") or head in ("classes", "choice", "pretraining", "next_sentence")
    if pooled and activation != pooler_activation:
        raise UserError(f"config.model.pooler_activation={activation} is not {pooler_activation}")
    other_keys = without_head_keys(config, ("pooler", "pooler_activation", "head", "output_bias"))
    architecture_by_head = {"pretraining": "BertForPreTraining", "next_sentence": _NEXT_SENTENCE_CLASS, "none": bare}
    architecture_by_head |= {ours: bare.replace("Model", ending) for ours, ending in FINE_TUNED_CLASSES.items()}
    other_keys |= problem_type_keys(head, config["num_labels"])
    return other_keys | ({"architectures": [architecture_by_head[head]]} if head in architecture_by_head else {})


def _simplify_bert(config: Config, names: TensorNames) -> Config:
    return infer_heads(config, names, "bert", "cls.predictions.transform.dense.weight", "classifier.weight")


BERT = ConversionSpec(
    model_type="bert",
    architecture="BertForMaskedLM",
    model_family="encoder",
    config_keys=tuple(key for key in KEYS if key.our_key != "position_offset"),
    fixed_fields={**FIXED, "position_offset": 0},
    training_defaults={"initialization": "bert"},
    other_architectures=("BertForPreTraining", _NEXT_SENTENCE_CLASS, *accepted_architectures("BertModel")),
    fixed_keys=_FIXED_KEYS,
    training_keys=_TRAINING_KEYS,
    tensor_entries=(
        *_tensor_entries(
            "bert",
            tuple(linear_entries("bert.pooler.dense", "pooler")),
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
        ),
        *linear_entries(_NEXT_SENTENCE_HEAD, "next_sentence"),
        *linear_entries("classifier", "classes"),
        *linear_entries("classifier", "choice"),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="bert.",
    tensor_aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored_tensors=(r"(bert\.)?embeddings\.position_ids",),  # 0, 1, 2, ...
    dropped_tensors=(r"cls\.seq_relationship\.(weight|bias)", r"(bert\.)?pooler\.dense\.(weight|bias)"),
    tensor_renames=RENAMED,
    simplify_config=_simplify_bert,
    restore_config=lambda config: restore_heads(config, "BertModel"),
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
)


def check_head_activation(config: Config, simplified: Config, architecture: str) -> None:
    """Check the activation of a head of masked language modeling that has gelu whatever the blocks have.

    Raises:
        UserError: If the blocks have another, since the head of ours has theirs.
    """
    if simplified["head"] == "masked" and ACTIVATIONS.get(config["hidden_act"]) != _HEAD_ACTIVATION:
        raise UserError(
            f"config.json has hidden_act={config['hidden_act']!r}, but the head of a {architecture} has "
            f"{_HEAD_ACTIVATION} in any case; only {_HEAD_ACTIVATION} can be read with it"
        )


def check_exported_head_activation(config: Config) -> None:
    """As `check_head_activation`, of a model of ours.

    Raises:
        UserError: If the blocks have another.
    """
    if config["head"] == "masked" and ACTIVATIONS[config["hidden_act"]] != _HEAD_ACTIVATION:
        raise UserError(
            f"config.model.activation={ACTIVATIONS[config['hidden_act']]} is not {_HEAD_ACTIVATION}, which its head "
            "has in any case"
        )


def _simplify_roberta(model_type: str, architecture: str, config: Config, names: TensorNames) -> Config:
    # Position 0 has the row behind the padding token's number, -1 where there is none.
    pad, rows = config["pad_token_id"], config["max_position_embeddings"]
    if pad is None or pad < -1:
        raise UserError(f"config.json has pad_token_id={pad!r}, from which a {model_type} model counts its positions")
    if rows < pad + 2:
        raise UserError(f"config.json has max_position_embeddings={rows}: pad_token_id={pad} leaves no position")
    positions = {"max_position_embeddings": rows - pad - 1, "position_offset": pad + 1}
    simplified = infer_heads(
        {**config, **positions}, names, "roberta", "lm_head.dense.weight", "classifier.out_proj.weight"
    )
    check_head_activation(config, simplified, architecture)
    return simplified


def _restore_roberta(bare: str, config: Config) -> Config:
    check_exported_head_activation(config)
    offset = config["position_offset"]
    other_keys = without_keys(config, "position_offset")
    positions = {
        "max_position_embeddings": config["max_position_embeddings"] + offset,
        "pad_token_id": offset - 1,
    }
    return restore_heads({**other_keys, **positions}, bare)


# With classes of whole texts, the pooler is a part of their head.
_ROBERTA_POOLER = (
    *(
        dataclasses.replace(entry, excluded_parameter="classes/kernel")
        for entry in linear_entries("roberta.pooler.dense", "pooler")
    ),
    *(
        dataclasses.replace(entry, required_parameter="classes/kernel")
        for entry in linear_entries("classifier.dense", "pooler")
    ),
)

_ROBERTA = ConversionSpec(
    model_type="",
    architecture="",
    model_family="encoder",
    config_keys=KEYS,
    fixed_fields=FIXED,
    training_defaults={"initialization": "bert"},
    fixed_keys=_FIXED_KEYS,
    training_keys=_TRAINING_KEYS,
    tensor_entries=(
        *_tensor_entries("roberta", _ROBERTA_POOLER, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        *(
            dataclasses.replace(entry, required_parameter="pooler/kernel")
            for entry in linear_entries("classifier.out_proj", "classes")
        ),
        *(
            dataclasses.replace(entry, excluded_parameter="pooler/kernel")
            for entry in linear_entries("classifier", "classes")
        ),
        *linear_entries("classifier", "choice"),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="roberta.",
    tensor_aliases={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    ignored_tensors=(r"(roberta\.)?embeddings\.position_ids",),
    dropped_tensors=(r"(roberta\.)?pooler\.dense\.(weight|bias)",),
    tensor_renames=RENAMED,
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
)


def _make_roberta(model_type: str, name: str) -> ConversionSpec:
    """Return the spec of a class that is RoBERTa by another name."""
    architecture, bare = f"{name}ForMaskedLM", f"{name}Model"
    return dataclasses.replace(
        _ROBERTA,
        model_type=model_type,
        architecture=architecture,
        other_architectures=accepted_architectures(bare),
        simplify_config=functools.partial(_simplify_roberta, model_type, architecture),
        restore_config=functools.partial(_restore_roberta, bare),
    )


ROBERTA = _make_roberta("roberta", "Roberta")
XLM_ROBERTA = _make_roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = _make_roberta("camembert", "Camembert")
