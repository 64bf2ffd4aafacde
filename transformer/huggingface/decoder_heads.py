"""The heads that all decoders share: classes of texts and of tokens, answers to questions, or none.

A class without the head of next tokens has the tensors of the body under the same names, and one layer more. Which of
the classes a type has is recorded in `HEAD_LAYERS`; everything else is the same for every type.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    Config,
    ConfigKey,
    ConversionSpec,
    TensorEntry,
    TensorNames,
    linear_entries,
    without_keys,
)
from transformer.huggingface.fine_tuned_heads import (
    FINE_TUNED_CLASSES,
    interface_with_classes,
    num_classes,
    problem_type_keys,
    without_head_keys,
)
from transformer.huggingface.tensor_layouts import LINEAR, Shape

_TEXTS = {"classes": "score"}
_SPAN = {"span": "qa_outputs"}
# The layer of classes of tokens has the same name as that of texts where the library has one class for all types.
_SCORE = {**_TEXTS, "token_classes": "score"}
_CLASSIFIER = {**_TEXTS, "token_classes": "classifier"}

HEAD_LAYERS: Mapping[str, Mapping[str, str]] = {
    model_type: layers
    for model_types, layers in (
        (
            ("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"),
            {**_SCORE, **_SPAN},
        ),
        (("gemma", "gemma2", "gpt_oss", "phi", "phi3", "stablelm", "starcoder2"), _SCORE),
        (("gpt2", "gpt_neox", "bloom", "falcon", "mpt"), {**_CLASSIFIER, **_SPAN}),
        (("gptj", "opt"), {**_TEXTS, **_SPAN}),
        (("openai-gpt", "gemma3_text", "olmo2", "olmo3"), _TEXTS),
        (("gpt_bigcode",), _CLASSIFIER),
    )
    for model_type in model_types
}
"""The heads of which transformers 5.24.0 has a class, by `model_type`, each with the name of its layer's tensors."""

# The types whose class for questions calls the body `transformer`, and their other classes `model`.
_RENAMED_FOR_QUESTIONS = ("llama", "ministral", "qwen2", "qwen3", "qwen3_moe", "smollm3")


def with_heads(spec: ConversionSpec) -> ConversionSpec:
    """Return the conversion spec of a decoder whose other classes can be read and written, too.

    Args:
        spec: The spec of the class that predicts next tokens.
    """
    layers = HEAD_LAYERS.get(spec.model_type, {})
    base = spec.bare_architecture.removesuffix("Model")
    architectures = {head: f"{base}{FINE_TUNED_CLASSES[head]}" for head in layers} | {"none": spec.bare_architecture}
    return dataclasses.replace(
        spec,
        other_architectures=(*spec.other_architectures, *architectures.values()),
        config_keys=(*spec.config_keys, ConfigKey("head", "head"), ConfigKey("num_labels", "classes")),
        tensor_entries=(*_body_entries(spec), *_head_entries(layers)),
        simplify_config=functools.partial(_simplify_config, spec, layers, architectures),
        restore_config=functools.partial(_restore_config, spec, architectures),
        make_task_interface=interface_with_classes,
        interface_keys=frozenset({"classes"}),
        infer_fields_from_shapes=_sizes_from_shapes,
    )


def _body_entries(spec: ConversionSpec) -> Iterator[TensorEntry]:
    """Yield the tensors of the body and of the head of next tokens."""
    for entry in spec.tensor_entries:
        if spec.model_type in _RENAMED_FOR_QUESTIONS and entry.tensor_name.startswith("model."):
            renamed = f"transformer.{entry.tensor_name.removeprefix('model.')}"
            yield dataclasses.replace(entry, excluded_parameter="span/kernel")
            yield dataclasses.replace(entry, tensor_name=renamed, required_parameter="span/kernel")
        else:
            yield entry


def _head_entries(layers: Mapping[str, str]) -> tuple[TensorEntry, ...]:
    """Return the tensors of the heads: that of classes of texts alone has no bias."""
    entries: tuple[TensorEntry, ...] = ()
    if "classes" in layers:
        entries += (TensorEntry(f"{layers['classes']}.weight", ("classes/output/kernel",), LINEAR),)
    for head, leaf in (("token_classes", "classes"), ("span", "span")):
        entries += tuple(linear_entries(layers[head], leaf)) if head in layers else ()
    return entries


def _simplify_config(
    spec: ConversionSpec,
    layers: Mapping[str, str],
    architectures: Mapping[str, str],
    config: Config,
    names: TensorNames,
) -> Config:
    simplified = spec.simplify_config(config, names)
    heads = {architecture: head for head, architecture in architectures.items()}
    if config["architectures"]:
        head = heads.get(config["architectures"][0], "next_tokens")
    else:
        head = _head_of_tensors(layers, names)
    if head == "none" and _predicts_tokens(spec, simplified, names):
        head = "next_tokens"
    return {**simplified, "head": head, "num_labels": num_classes(config, head)}


def _head_of_tensors(layers: Mapping[str, str], names: TensorNames) -> str:
    """Return the head of a file whose config.json names no class."""
    for head, layer in layers.items():
        # Where both have one name, that of tokens has a bias.
        if f"{layer}.weight" in names and (head != "classes" or f"{layer}.bias" not in names):
            return head
    return "none"


def _predicts_tokens(spec: ConversionSpec, config: Config, names: TensorNames) -> bool:
    """Whether a body predicts tokens: with the table, if its config.json ties it, or with a head that its file has."""
    tensors = {
        leaf: entry.tensor_name
        for entry in spec.tensor_entries
        for leaf in entry.leaf_paths
        if leaf in ("unembedding/kernel", "output_bias/bias")
    }
    tied = next((config[key.their_key] for key in spec.config_keys if key.our_key == "tie_embeddings"), True)
    has_matrix = tied or not names or tensors.get("unembedding/kernel") in names
    has_bias = not spec.fixed_fields["output_bias"] or not names or tensors["output_bias/bias"] in names
    return has_matrix and has_bias


def _restore_config(spec: ConversionSpec, architectures: Mapping[str, str], config: Config) -> Config:
    head, classes = config["head"], config["num_labels"]
    if head == "next_tokens" and classes:
        raise UserError(
            f"config.model.head=next_tokens with {classes} classes is two heads, and no class has both: fine-tune with "
            "config.model.head=classes"
        )
    if head not in ("next_tokens", *architectures):
        raise UserError(f"config.model.head={head} is none of {', '.join(('next_tokens', *architectures))}")
    restored = spec.restore_config(without_keys(config, "head", "num_labels"))
    if head == "next_tokens":
        return restored
    head_keys = without_head_keys({"head": head, "num_labels": classes}, ("head",))
    return {**restored, **head_keys, **problem_type_keys(head, classes), "architectures": [architectures[head]]}


def _sizes_from_shapes(model: object, shapes: Mapping[str, Shape]) -> Config:
    """Return the sizes of the vocabulary and of the head of classes, 0 without one."""
    kernels = ("classes/output/kernel", "classes/kernel")
    classes = next((shapes[kernel][1] for kernel in kernels if kernel in shapes), 0)
    return {"vocab_size": shapes["embedding/table"][0], "classes": classes}
