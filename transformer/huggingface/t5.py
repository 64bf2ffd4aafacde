"""Conversion of T5 (Raffel et al. 2020), and of version 1.1 with gated layers and an untied head (Shazeer 2020).

mT5 (Xue et al. 2021) is version 1.1 in many languages.
"""

import dataclasses
import functools
from collections.abc import Iterable

from transformer.config import UserError, convert_value, shorten_value
from transformer.huggingface.conversion_spec import (
    WINDOWLESS_KEYS,
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
    unembedding_entries,
    without_keys,
)
from transformer.huggingface.fine_tuned_heads import (
    FINE_TUNED_CLASSES,
    interface_with_classes,
    num_classes,
    problem_type_keys,
    sizes_from_shapes,
    without_head_keys,
)
from transformer.huggingface.tensor_layouts import LINEAR

_ACTIVATIONS = {
    "relu": "relu",
    "gated-gelu": "geglu_tanh",
    "gated-silu": "swiglu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
}


def _stack_entries(name: str, *, cross: bool, relative: str, norm: str, layers: str) -> tuple[TensorEntry, ...]:
    """Return the tensors of a stack.

    Args:
        name: Its name in the file.
        cross: Whether its blocks attend to a source.
        relative: The path of our table of relative positions.
        norm: The path of our last norm.
        layers: The path of our blocks.
    """
    block, names = f"{name}.block.{{layer}}.layer", ("q", "k", "v", "o")
    last = 2 if cross else 1
    middle = (
        *attention_entries(f"{block}.1.EncDecAttention", f"{layers}/cross", names),
        *norm_entries(f"{block}.1.layer_norm", f"{layers}/cross_residual/norm"),
    )
    wide = f"{block}.{last}.DenseReluDense"
    gate, expand = (f"{layers}/feed_forward/{part}/kernel" for part in ("gate", "expand"))
    return (
        *attention_entries(f"{block}.0.SelfAttention", f"{layers}/attention", names),
        *norm_entries(f"{block}.0.layer_norm", f"{layers}/attention_residual/norm"),
        # All layers share the table of the first.
        *embedding_entries(f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias", relative),
        *(middle if cross else ()),
        TensorEntry(f"{wide}.wi_0.weight", (gate,), LINEAR),
        TensorEntry(f"{wide}.wi_1.weight", (expand,), LINEAR, required_parameter=gate),
        TensorEntry(f"{wide}.wi.weight", (expand,), LINEAR, excluded_parameter=gate),
        *linear_entries(f"{wide}.wo", f"{layers}/feed_forward/contract"),
        *norm_entries(f"{block}.{last}.layer_norm", f"{layers}/feed_forward_residual/norm"),
        *norm_entries(f"{name}.final_layer_norm", norm),
    )


_SEQUENCE_TO_SEQUENCE_ENTRIES = (
    *embedding_entries("shared", "embedding"),
    *_stack_entries("encoder", cross=False, relative="encoder_relative", norm="encoder_norm", layers="encoder"),
    *_stack_entries("decoder", cross=True, relative="decoder_relative", norm="decoder_norm", layers="decoder"),
)
_ENCODER_ENTRIES = (
    *embedding_entries("shared", "embedding"),
    *_stack_entries("encoder", cross=False, relative="relative", norm="norm", layers="layers"),
)


def _with_prefix(entries: Iterable[TensorEntry]) -> tuple[TensorEntry, ...]:
    """Return the tensors of a body as the classes with a head name them."""
    return tuple(dataclasses.replace(entry, tensor_name=f"{_PREFIX}{entry.tensor_name}") for entry in entries)


_PREFIX = "transformer."
_BODIES = ("T5Model", "MT5Model")


def _simplify_config(config: Config, names: TensorNames) -> Config:
    stated_tie = convert_value(bool | None, config.get("tie_word_embeddings"), "config.json: tie_word_embeddings")
    tied = stated_tie is not False
    # A null is false here: only without the key do they scale because of the tie.
    scaled = convert_value(bool | None, config.get("scale_decoder_outputs", tied), "config.json: scale_decoder_outputs")
    if scaled and not tied:
        raise UserError("config.json has scale_decoder_outputs=True, which goes with tie_word_embeddings=True alone")
    kind = config["feed_forward_proj"]
    stated, implied = config.get("dense_act_fn"), "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    if stated not in (None, implied):
        raise UserError(f"config.json has dense_act_fn={stated!r}, not the {implied!r} of feed_forward_proj={kind!r}")
    gated = kind.startswith("gated-")
    # A null is false here, too.
    if bool(config.get("is_gated_act", gated)) is not gated:
        raise UserError(
            f"config.json has is_gated_act={shorten_value(config['is_gated_act'])}; with feed_forward_proj={kind!r} "
            f"only {gated} can be read"
        )
    layers, decoder_layers, encoder_layers = (
        config.get(name) for name in ("num_layers", "num_decoder_layers", "num_hidden_layers")
    )
    return {
        **config,
        "num_layers": layers if encoder_layers is None else encoder_layers,
        # As many as the usual name of the key says, also where its other name says otherwise.
        "num_decoder_layers": layers if decoder_layers is None else decoder_layers,
        "tie_word_embeddings": tied,
        "head": _read_head(config, tied, names),
        "attention_dropout": config["dropout_rate"],
        "logit_scale": "inverse_sqrt_width" if scaled else "none",
    }


def _read_head(config: Config, tied: bool, names: TensorNames) -> str:
    """Return our head: none of a body whose logits would not be those of its table."""
    architecture = (config["architectures"] or ("",))[0]
    if architecture.endswith(FINE_TUNED_CLASSES["span"]) or (not architecture and "qa_outputs.weight" in names):
        return "span"
    is_body = architecture in _BODIES
    return "none" if is_body and not tied and "lm_head.weight" not in names else "next_tokens"


def _restore_head(config: Config, name: str) -> Config:
    """Return the config with the class of a model with this head; `name` begins the names of its classes."""
    classes = {"none": f"{name}Model", "span": f"{name}{FINE_TUNED_CLASSES['span']}"}
    head = config["head"]
    if head not in ("next_tokens", *classes):
        raise UserError(f"config.model.head={head} is none of next_tokens, {', '.join(classes)}")
    architecture_keys = {"architectures": [classes[head]]} if head in classes else {}
    return {**without_keys(config, "head"), **architecture_keys}


def _restore_config(config: Config) -> Config:
    config = _restore_head(config, "T5")
    scaled = config["logit_scale"] == "inverse_sqrt_width"
    if scaled and not config["tie_word_embeddings"]:
        raise UserError("config.model.logit_scale=inverse_sqrt_width goes with tie_embeddings=True alone")
    other_keys = without_keys(config, "attention_dropout", "logit_scale")
    return (
        {**other_keys, "scale_decoder_outputs": False} if config["tie_word_embeddings"] and not scaled else other_keys
    )


T5 = ConversionSpec(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    model_family="encoder_decoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("d_model", "width"),
        ConfigKey("num_layers", "encoder_layers"),
        ConfigKey("num_decoder_layers", "decoder_layers"),
        ConfigKey("num_heads", "heads"),
        ConfigKey("d_kv", "head_dim"),
        ConfigKey("d_ff", "feed_forward"),
        ConfigKey("n_positions", "max_length", 512),
        ConfigKey("relative_attention_num_buckets", "relative_attention_num_buckets"),
        ConfigKey("relative_attention_max_distance", "relative_attention_max_distance"),
        ConfigKey("layer_norm_epsilon", "norm_epsilon"),
        ConfigKey("dropout_rate", "dropout"),
        ConfigKey("attention_dropout", "attention_dropout"),
        ConfigKey("feed_forward_proj", "activation", values=_ACTIVATIONS),
        ConfigKey("tie_word_embeddings", "tie_embeddings"),
        ConfigKey("logit_scale", "logit_scale", values={"none": "none", "inverse_sqrt_width": "inverse_sqrt_width"}),
        ConfigKey("head", "head"),
    ),
    fixed_fields={
        "score": "dot",
        "cross": "attention",
        "norm": "rms",
        "norm_placement": "pre",
        "biases": "none",
        "positions": "t5",
        "position_offset": 0,
        "side_embeddings": "shared",
        "attention_windows": (),
        "embedding_scale": "none",
        "embedding_norm": False,
        "output_bias": False,
    },
    training_defaults={"initialization": "t5"},
    bare_architecture="T5Model",
    other_architectures=("T5Model", "T5ForQuestionAnswering"),
    fixed_keys=(FixedConfigKey("is_encoder_decoder", True, is_written=True), *WINDOWLESS_KEYS),
    key_aliases={"hidden_size": "d_model", "num_attention_heads": "num_heads", "head_dim": "d_kv"},
    tensor_entries=(
        *_SEQUENCE_TO_SEQUENCE_ENTRIES,
        *unembedding_entries(),
        *linear_entries("qa_outputs", "span"),
    ),
    tensor_aliases={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    # Published files also hold a table for cross-attention, which no version reads.
    ignored_tensors=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    simplify_config=_simplify_config,
    simplified_keys=frozenset({"scale_decoder_outputs", "dense_act_fn", "is_gated_act", "num_hidden_layers"}),
    restore_config=_restore_config,
)


def _simplify_mt5(config: Config, names: TensorNames) -> Config:
    """The class has a head of its own where the file has one, whatever its config says, and never scales its states."""
    tied = "lm_head.weight" not in names
    simplified = _simplify_config({**config, "tie_word_embeddings": True, "scale_decoder_outputs": False}, names)
    head = _read_head(config, config.get("tie_word_embeddings") is True, names)
    return {**simplified, "tie_word_embeddings": tied and head != "none", "head": head}


def _restore_mt5(config: Config) -> Config:
    return without_keys(_restore_head(config, "MT5"), "attention_dropout")


MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    config_keys=tuple(key for key in T5.config_keys if key.our_key != "logit_scale"),
    fixed_fields={**T5.fixed_fields, "logit_scale": "none"},
    bare_architecture="MT5Model",
    other_architectures=("MT5Model", "MT5ForQuestionAnswering"),
    simplify_config=_simplify_mt5,
    restore_config=_restore_mt5,
)


def _simplify_classifier(head: str, config: Config, names: TensorNames) -> Config:
    """Of classes without a head of tokens, whether it would be tied, and how scaled, changes nothing."""
    simplified = _simplify_config({**config, "tie_word_embeddings": True, "scale_decoder_outputs": False}, names)
    return {**without_keys(simplified, "head"), "num_labels": num_classes(config, head)}


def _restore_classifier(head: str, architecture: str, config: Config) -> Config:
    other_keys = without_head_keys({**config, "head": head}, ("head", "attention_dropout"))
    return {**other_keys, **problem_type_keys(head, config["num_labels"]), "architectures": [architecture]}


_CLASSIFIER_KEYS = ("tie_word_embeddings", "scale_decoder_outputs", "dense_act_fn", "is_gated_act", "num_hidden_layers")
_ENCODER_DECODER_KEYS = {"head", "logit_scale", "tie_word_embeddings"}


def _with_classes(spec: ConversionSpec, name: str) -> ConversionSpec:
    """Return the spec of the class of texts' classes, whose decoder reads the text once more."""
    architecture = f"{name}{FINE_TUNED_CLASSES['classes']}"
    keys = (key for key in spec.config_keys if key.their_key not in _ENCODER_DECODER_KEYS)
    return dataclasses.replace(
        spec,
        architecture=architecture,
        other_architectures=(),
        config_keys=(*keys, ConfigKey("num_labels", "classes")),
        fixed_fields={**spec.fixed_fields, "tie_embeddings": True, "logit_scale": "none", "head": "classes"},
        tensor_entries=(
            *_with_prefix(_SEQUENCE_TO_SEQUENCE_ENTRIES),
            *linear_entries("classification_head.dense", "pooler"),
            *linear_entries("classification_head.out_proj", "classes"),
        ),
        tensor_aliases={
            f"{_PREFIX}{side}.embed_tokens.weight": f"{_PREFIX}shared.weight" for side in ("encoder", "decoder")
        },
        ignored_tensors=tuple(rf"transformer\.{pattern}" for pattern in spec.ignored_tensors),
        simplify_config=functools.partial(_simplify_classifier, "classes"),
        simplified_keys=frozenset(_CLASSIFIER_KEYS),
        restore_config=functools.partial(_restore_classifier, "classes", architecture),
        make_task_interface=interface_with_classes,
        interface_keys=frozenset({"classes"}),
        infer_fields_from_shapes=sizes_from_shapes,
    )


# What the encoder alone and the whole model have in common.
_SHARED_FIELDS = (
    *("score", "norm", "norm_placement", "biases", "positions", "position_offset", "attention_windows"),
    *("embedding_scale", "embedding_norm", "output_bias"),
)


def _encoder_alone(spec: ConversionSpec, name: str, head: str) -> ConversionSpec:
    """Return the spec of a class that has no decoder, without a head or with that of tokens' classes."""
    architecture = f"{name}EncoderModel" if head == "none" else f"{name}{FINE_TUNED_CLASSES[head]}"
    left_out = {*_ENCODER_DECODER_KEYS, "num_layers", "num_decoder_layers"}
    keys = (key for key in spec.config_keys if key.their_key not in left_out)
    with_head = head != "none"
    return dataclasses.replace(
        spec,
        architecture=architecture,
        other_architectures=(),
        model_family="encoder",
        config_keys=(*keys, ConfigKey("num_layers", "layers"), ConfigKey("num_labels", "classes")),
        fixed_fields={
            **{key: spec.fixed_fields[key] for key in _SHARED_FIELDS},
            "tie_embeddings": True,
            "logit_scale": "none",
            "num_token_types": 0,
            "embedding_width": None,
            "layer_groups": None,
            "add_pooling_layer": False,
            "pooler_activation": "tanh",
            "pooling": "first",
            "head_transform": "tokens",
            "head_biases": "last",
            "head": head,
        },
        fixed_keys=WINDOWLESS_KEYS,
        tensor_entries=(
            *(_with_prefix(_ENCODER_ENTRIES) if with_head else _ENCODER_ENTRIES),
            *linear_entries("classifier", "classes"),
        ),
        tensor_aliases={
            f"{prefix}encoder.embed_tokens.weight": f"{prefix}shared.weight"
            for prefix in (_PREFIX if with_head else "",)
        },
        ignored_tensors=(),
        simplify_config=functools.partial(_simplify_classifier, head),
        # A file may say of its own whether it has a decoder; the class says that it has none.
        simplified_keys=frozenset({*_CLASSIFIER_KEYS, "num_decoder_layers", "is_encoder_decoder", "is_decoder"}),
        restore_config=functools.partial(_restore_classifier, head, architecture),
        make_task_interface=interface_with_classes,
        interface_keys=frozenset({"classes"}),
        infer_fields_from_shapes=sizes_from_shapes,
    )


OTHER_CLASSES = tuple(
    variant
    for spec, name in ((T5, "T5"), (MT5, "MT5"))
    for variant in (
        _with_classes(spec, name),
        _encoder_alone(spec, name, "none"),
        _encoder_alone(spec, name, "token_classes"),
    )
)
"""The specs of classes whose tensors have other names, or whose model is of another family."""
