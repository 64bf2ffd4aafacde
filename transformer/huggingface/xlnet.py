"""Conversion of XLNet (Yang et al. 2019), with the head of pre-training, heads of fine-tuning or none."""

import dataclasses

import numpy as np

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    embedding_entries,
    linear_entries,
    norm_entries,
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
from transformer.huggingface.tensor_layouts import OUTPUTS_FIRST, SAME_AXES, VECTOR, VECTOR_WITH_LEADING_AXES

_LAYER = "transformer.layer.{layer}"
_ATTENTION = f"{_LAYER}.rel_attn"
# Of the two classes for questions, the other finds spans by beam search.
_FINE_TUNED_CLASSES = FINE_TUNED_CLASSES | {"span": "ForQuestionAnsweringSimple"}
# The first tensor of each head; the last is of the class for questions that cannot be read.
_FIRST_TENSORS = {
    "logits_proj.weight": "classes",
    "classifier.weight": "token_classes",
    "qa_outputs.weight": "span",
    "start_logits.dense.weight": "span",
}
_BODY = "XLNetModel"
# What the summary of a text is in published models; other kinds have no place in ours.
_SUMMARY = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}


def _simplify_config(config: Config, names: TensorNames) -> Config:
    depth = config["d_model"] // max(config["n_head"], 1)
    if (config["d_head"] or depth) * config["n_head"] != config["d_model"]:
        raise UserError(f"config.json has d_head={config['d_head']}, not d_model / n_head={depth}")
    by_tensors = next((head for name, head in _FIRST_TENSORS.items() if name in names), None)
    head = (
        "none"
        if (config["architectures"] or ("",))[0] == _BODY
        else fine_tuned_head(config["architectures"] or (), by_tensors, _FINE_TUNED_CLASSES) or "permuted"
    )
    if head in ("classes", "choice"):
        for key, value in _SUMMARY.items():
            FixedConfigKey(key, value).check(config)
    return {
        **config,
        # Its code has one rate for all.
        "attention_dropout": config["dropout"],
        "mem_len": config["mem_len"] or 0,
        "head": head,
        "output_bias": head == "permuted",
        "num_labels": num_classes(config, head),
    }


def _restore_config(config: Config) -> Config:
    head = config["head"]
    if head == "permuted" and not config["output_bias"]:
        raise UserError("config.model.output_bias=False is not True")
    other_keys = without_head_keys(config, ("attention_dropout", "head", "output_bias"))
    architectures = {ours: f"XLNet{ending}" for ours, ending in _FINE_TUNED_CLASSES.items()} | {"none": _BODY}
    architecture_keys = {"architectures": [architectures[head]]} if head in architectures else {}
    head_keys = {**architecture_keys, **problem_type_keys(head, config["num_labels"])}
    return {**other_keys, **head_keys, "d_head": config["d_model"] // config["n_head"]}


def _unused_mask_embedding(config: Config) -> dict[str, np.ndarray]:
    """Return zeros for the vector of predicted tokens for classes of fine-tuning, which predict none."""
    has_vector = config["architectures"][0] in ("XLNetLMHeadModel", _BODY)
    return {} if has_vector else {"transformer.mask_emb": np.zeros((1, 1, config["d_model"]))}


XLNET = ConversionSpec(
    model_type="xlnet",
    architecture="XLNetLMHeadModel",
    model_family="xlnet",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("d_model", "width"),
        ConfigKey("n_layer", "layers"),
        ConfigKey("n_head", "heads"),
        ConfigKey("d_inner", "feed_forward"),
        ConfigKey("layer_norm_eps", "norm_epsilon"),
        ConfigKey("dropout", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("ff_activation", "activation", values=ACTIVATIONS),
        ConfigKey("mem_len", "memory_length"),
        ConfigKey("head", "head"),
        ConfigKey("output_bias", "output_bias"),
        ConfigKey("num_labels", "classes"),
    ),
    fixed_fields={
        "score": "scaled_dot",
        "norm": "layer",
        "norm_placement": "post",
        "biases": "feed_forward",
        "positions": "transformer_xl",
        "attention_windows": (),
        "embedding_scale": "none",
        "logit_scale": "none",
        "embedding_norm": False,
        "tie_embeddings": True,
        "relative_segments": True,
    },
    # Its positions have no end; its texts were of 512 tokens.
    training_defaults={"initialization": "gpt", "max_length": 512},
    other_architectures=(_BODY, *(f"XLNet{ending}" for ending in _FINE_TUNED_CLASSES.values())),
    # Of half of a batch the texts of `bi_data` would run backwards; with `reuse_len` a memory would be of a segment's
    # first tokens.
    fixed_keys=(FixedConfigKey("attn_type", "bi", is_written=True), FixedConfigKey("reuse_len", 0)),
    training_keys={"summary_last_dropout": "dropout"},
    key_aliases={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    tensor_entries=(
        *embedding_entries("transformer.word_embedding", "embedding"),
        TensorEntry("transformer.mask_emb", ("blank",), VECTOR_WITH_LEADING_AXES),
        *(
            TensorEntry(f"{_ATTENTION}.{theirs}", (f"layers/attention/{ours}",), layout)
            for theirs, ours, layout in (
                ("q", "query/kernel", SAME_AXES),
                ("k", "key/kernel", SAME_AXES),
                ("v", "value/kernel", SAME_AXES),
                ("o", "output/kernel", OUTPUTS_FIRST),
                ("r", "relative/weight", SAME_AXES),
                ("r_w_bias", "relative/content", SAME_AXES),
                ("r_r_bias", "relative/position", SAME_AXES),
                ("r_s_bias", "relative/kind_bias", SAME_AXES),
                ("seg_embed", "relative/kind", SAME_AXES),
            )
        ),
        *norm_entries(f"{_ATTENTION}.layer_norm", "layers/attention_residual/norm"),
        *linear_entries(f"{_LAYER}.ff.layer_1", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.ff.layer_2", "layers/feed_forward/contract"),
        *norm_entries(f"{_LAYER}.ff.layer_norm", "layers/feed_forward_residual/norm"),
        TensorEntry("lm_loss.bias", ("output_bias/bias",), VECTOR),
        *linear_entries("sequence_summary.summary", "pooler"),
        *(
            dataclasses.replace(entry, required_parameter="pooler/kernel")
            for entry in linear_entries("logits_proj", "classes")
        ),
        *linear_entries("logits_proj", "choice"),
        *(
            dataclasses.replace(entry, excluded_parameter="pooler/kernel")
            for entry in linear_entries("classifier", "classes")
        ),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="transformer.",
    tensor_aliases={"lm_loss.weight": "transformer.word_embedding.weight"},
    dropped_tensors=(r"(transformer\.)?mask_emb",),
    simplify_config=_simplify_config,
    simplified_keys=frozenset({"d_head"}),
    restore_config=_restore_config,
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
    constant_tensors=_unused_mask_embedding,
)
