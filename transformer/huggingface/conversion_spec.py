"""ConversionSpec: how a Hugging Face architecture maps to a model family of ours, in tables of keys and tensors."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np

from transformer.attention.positions import PositionCombination
from transformer.config import (
    NonNegativeInt,
    PositiveInt,
    UserError,
    VocabSize,
    convert_value,
    shorten_value,
    to_config,
    type_hints,
)
from transformer.huggingface.config_classes import CONFIG_CLASSES, WITHOUT_EFFECT, ClassKeys
from transformer.huggingface.generation_config import GENERATION_KEYS
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR, TABLE, VECTOR, Shape, TensorLayout
from transformer.layers.transformer_config import Biases, LayerRotary, Projections, TransformerConfig
from transformer.models.registry import FAMILIES, family_name
from transformer.models.task_interface import TaskInterface

Config = dict[str, Any]
TensorNames = frozenset[str]
_ABSENT = object()

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}

GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_fast": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """A key of config.json that corresponds to one field of our config.

    Attributes:
        their_key: The key of config.json.
        our_key: The field of our config.
        default: The library's value if a key that is none of its config class is absent or null.
        values: The library's values, each with ours, where they differ; of several with the same meaning the first is
            written.
    """

    their_key: str
    our_key: str
    default: Any = _ABSENT
    values: Mapping[Any, Any] | None = None

    def read(self, config: Config) -> Any:
        """Return our value of the field.

        Args:
            config: The content of config.json.

        Returns:
            The value.

        Raises:
            UserError: If the value has no equivalent.
        """
        value = config.get(self.their_key)
        if value is None and self.default is not _ABSENT:
            value = self.default
        if self.values is None:
            return value
        for theirs, ours in self.values.items():
            if type(theirs) is type(value) and theirs == value:
                return ours
        known_values = ", ".join(map(repr, self.values))
        raise UserError(
            f"config.json has {self.their_key}={shorten_value(value)}, which this model cannot be; known: "
            f"{known_values}"
        )

    def write(self, ours: Config) -> Any:
        """Return the library's value of the key.

        Args:
            ours: The fields of our config.

        Returns:
            The value.

        Raises:
            UserError: If the value has no equivalent there.
        """
        value = ours[self.our_key]
        if self.values is None:
            return value
        for theirs, our_value in self.values.items():
            if our_value == value:
                return theirs
        known_values = ", ".join(map(str, dict.fromkeys(self.values.values())))
        raise UserError(f"config.model.{self.our_key}={value} is none of {known_values}")


@dataclasses.dataclass(frozen=True)
class FixedConfigKey:
    """A key of config.json of which one value is supported.

    Attributes:
        their_key: The key of config.json.
        value: The supported value, also assumed if the key is absent.
        is_written: Whether an export writes the key.
        null: Whether null means that value too.
        advice: What a user can do about another value.
    """

    their_key: str
    value: Any
    is_written: bool = False
    null: bool = True
    advice: str = ""

    def check(self, config: Config) -> None:
        """Check that config.json does not have another value, or a list of others.

        Raises:
            UserError: If it does; gives key and value.
        """
        value = config.get(self.their_key, self.value)
        values = value if isinstance(value, list | tuple) else [value]
        # A flag of no config class is of no kind: the library asks whether it is true.
        read = bool if isinstance(self.value, bool) else lambda entry: entry
        if any(read(entry) != self.value and not (entry is None and self.null) for entry in values):
            message = _unsupported_value_message(self.their_key, value, self.value)
            raise UserError(f"{message}: {self.advice}" if self.advice else message)


# Keys of no config class that the library, or an earlier version of it, reads all the same.
_READ_BEYOND_CLASSES = (
    FixedConfigKey("fusion_config", None),
    FixedConfigKey("per_layer_config", None),
    FixedConfigKey(
        "quantization_config",
        None,
        advice="only float weights can be read; load the model in transformers with dequantize=True in its "
        "quantization config, and write it anew with save_pretrained",
    ),
    FixedConfigKey("tie_encoder_decoder", False),
    FixedConfigKey("transformers_weights", None),
)

CAUSAL = FixedConfigKey("is_causal", True, null=False)
"""The same for models that generate: masks are made as it says."""

CAUSAL_KEYS = (
    CAUSAL,
    FixedConfigKey("attention_chunk_size", None),
    FixedConfigKey("layer_types", "full_attention"),
)
"""Those of models that generate and whose class has no `layer_types`: caches are made as these say."""

WINDOWLESS_KEYS = (*CAUSAL_KEYS, FixedConfigKey("sliding_window", None))
"""Those of models that generate and have no windows."""

# What a class has that the others of its `model_type` have not, by the end of its name.
_CLASS_DIFFERENCES = {
    "DoubleHeadsModel": "which has a second head, of multiple choice",
    "ForSequenceClassification": "which has a head of classes of texts",
    "ForTokenClassification": "which has a head of classes of tokens",
    "ForQuestionAnswering": "which has a head that finds answers",
    "ForMultipleChoice": "which has a head that chooses among texts",
    "ForNextSentencePrediction": "which has no head but that of whether a text follows another",
    "ForPreTraining": "which has other heads of pre-training",
    "ForMaskedImageModeling": "which has a head that restores images",
    "ForImageClassification": "which has one head of classes",
    "Backbone": "which returns the states of several layers",
    "WithProjection": "which projects into the space that images and texts share",
    "SiglipModel": "which compares images with texts",
    "CLIPModel": "which compares images with texts",
    "EncoderModel": "which has no decoder",
    "LMHeadModel": "which reads texts in one direction",
    "ForCausalLM": "which reads texts in one direction",
    "Model": "which has no head",
}
# The limits of what is a part of the interface of our models.
_INTERFACE_LIMITS = {
    "vocab_size": VocabSize,
    "side": PositiveInt,
    "channels": PositiveInt,
    "classes": NonNegativeInt,
}


def _unsupported_value_message(key: str, value: Any, supported: Any) -> str:
    return f"config.json has {key}={shorten_value(value)}; only {supported!r} can be read"


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """A tensor of the file and the parameters of ours that it holds.

    An entry whose parameters a model does not have (no bias, tied output) is left out of that model's file.

    Attributes:
        tensor_name: The tensor's name; `{layer}` stands for the index into stacked parameters, and `{expert}` for that
            into the experts of a layer.
        leaf_paths: The paths of the parameters.
        layout: How the tensor arranges them.
        required_parameter: The path of a parameter that the model must have for this entry to apply.
        excluded_parameter: The path of a parameter that the model must not have.
        first_layer_name: The tensor's name in layer 0; None means as in the others.
    """

    tensor_name: str
    leaf_paths: tuple[str, ...]
    layout: TensorLayout
    required_parameter: str | None = None
    excluded_parameter: str | None = None
    first_layer_name: str | None = None

    def name_at(self, **index: int) -> str:
        """Return the tensor's name in a layer, or of an expert of it."""
        if index.get("layer") == 0 and self.first_layer_name is not None:
            return self.first_layer_name
        return self.tensor_name.format(**index)

    def applies_to(self, leaves: Container[str]) -> bool:
        """Return whether a model with parameters of these paths has the tensor."""
        needed = self.leaf_paths if self.required_parameter is None else (*self.leaf_paths, self.required_parameter)
        return all(leaf in leaves for leaf in needed) and self.excluded_parameter not in leaves


def _keep_config(config: Config, names: TensorNames) -> Config:
    return config


def _make_token_interface(section: Config) -> TaskInterface:
    rows = section["vocab_size"]
    return TaskInterface({}, {"tokens": rows, "joint": rows}, pad_id=0, bos_id=0, eos_id=0)


def _infer_vocab_size(model: Any, shapes: Mapping[str, Shape]) -> Config:
    return {"vocab_size": shapes["embedding/table"][0]}


def _keep_exported_config(config: Config) -> Config:
    return config


def _no_tensors(config: Config) -> dict[str, np.ndarray]:
    return {}


@dataclasses.dataclass(frozen=True)
class ConversionSpec:
    """How the models of one Hugging Face `model_type` are converted to a family of ours and back, as tables.

    Attributes:
        model_type: The `model_type` of config.json.
        architecture: The class of the library, for `architectures` in config.json.
        other_architectures: The other classes that can be read.
        bare_architecture: The class without a head.
        model_family: The name of our model family.
        config_keys: Keys of config.json, each with the config field of ours that it gives.
        fixed_fields: Config fields of ours that are the same for every such model, with their values.
        tensor_entries: The tensors of the file, each with the parameters that it holds.
        training_defaults: Config fields of ours that only training reads, with the values that an import sets.
        fixed_keys: Keys of config.json of which only one value is supported, other than those of the config class,
            which must have its defaults unless they are read.
        training_keys: Rates that only training reads and that no model of ours has, each with the key whose rate ours
            have there; "" if none.
        optional_prefix: A prefix of tensor names that a file may leave out.
        tensor_aliases: Names of second copies of a tensor, each with the name of the original.
        ignored_tensors: Patterns of tensors that hold no parameter.
        dropped_tensors: Patterns of parameters that no model of ours has; an import leaves them out and says so.
        key_aliases: Other names of keys of config.json, each with the usual name, whose value they replace.
        tensor_renames: Regular expressions of outdated parts of tensor names, each with its replacement.
        simplify_config: Rewrites config.json so that each key corresponds to one field of ours; its second argument is
            the names of the tensors in the file.
        restore_config: The inverse of `simplify_config`.
        make_task_interface: The task interface of the model that a config describes.
        interface_keys: Keys that belong to the interface, not to our model config.
        infer_fields_from_shapes: The config fields that follow from the shapes of the parameters, for an export.
        simplified_keys: Keys of config.json that `simplify_config` reads.
        constant_tensors: The tensors, by name, that a class of the library has and no model of ours: constants, and
            what it never reads; its argument is the content of config.json. An export writes them.
        computed_tensors: The tensors, by name, that a file may hold and whose values ours compute; its argument is the
            content of config.json with every key of its class. A file with other values is refused.
    """

    model_type: str
    architecture: str
    model_family: str
    config_keys: tuple[ConfigKey, ...]
    fixed_fields: Mapping[str, Any]
    tensor_entries: tuple[TensorEntry, ...]
    training_defaults: Mapping[str, Any]
    other_architectures: tuple[str, ...] = ()
    bare_architecture: str = ""
    fixed_keys: tuple[FixedConfigKey, ...] = ()
    training_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    optional_prefix: str = ""
    tensor_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored_tensors: tuple[str, ...] = ()
    dropped_tensors: tuple[str, ...] = ()
    key_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensor_renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simplify_config: Callable[[Config, TensorNames], Config] = _keep_config
    restore_config: Callable[[Config], Config] = _keep_exported_config
    make_task_interface: Callable[[Config], TaskInterface] = _make_token_interface
    interface_keys: TensorNames = frozenset()
    infer_fields_from_shapes: Callable[[Any, Mapping[str, Shape]], Config] = _infer_vocab_size
    simplified_keys: TensorNames = frozenset()
    constant_tensors: Callable[[Config], Mapping[str, np.ndarray]] = _no_tensors
    computed_tensors: Callable[[Config], Mapping[str, np.ndarray]] = _no_tensors

    @property
    def class_keys(self) -> ClassKeys:
        """The keys of the library's config class."""
        return CONFIG_CLASSES[self.model_type]

    @property
    def _read_keys(self) -> set[str]:
        keys = {key.their_key for key in self.config_keys} | {only.their_key for only in self.fixed_keys}
        return keys | self.key_aliases.keys() | self.simplified_keys | self.training_keys.keys()

    @property
    def _ignored_keys(self) -> set[str]:
        """The keys whose values check no default: what is read, or changes nothing of what a model computes."""
        return self._read_keys | WITHOUT_EFFECT | GENERATION_KEYS

    @property
    def limited_keys(self) -> Mapping[str, tuple[Any, ...]]:
        """The keys of config.json of which only some values are read whatever the others are, with these values."""
        limited = {
            key.their_key: tuple(key.values)
            for key in self.config_keys
            if key.values is not None and key.their_key in self.class_keys and not {True, False} <= {*key.values}
        }
        ignored = self._ignored_keys
        limited |= {name: (default,) for name, (_, default) in self.class_keys.items() if name not in ignored}
        fixed = (*self.fixed_keys, *_READ_BEYOND_CLASSES)
        limited |= {only.their_key: (only.value,) for only in fixed}
        return {name: values for name, values in limited.items() if name not in self.simplified_keys}

    def config_notes(self, config: Mapping[str, Any]) -> list[str]:
        """Return what of a readable config.json is not read, or is read otherwise, as notes for the user."""
        notes = []
        for alias, name in self.key_aliases.items():
            if config.get(alias) is not None and config.get(name) not in (None, config[alias]):
                notes.append(
                    f"config.json has {name}={config[name]} and {alias}={config[alias]}: the second counts, as in "
                    "transformers"
                )
        complete = self.complete_config(config)
        for name, usual in self.training_keys.items():
            rate, ours = complete.get(name), complete[usual] if usual else 0
            if rate not in (None, ours):
                applied = f"has the rate of {usual} there, {ours}" if usual else "has no such dropout"
                notes.append(f"config.json has {name}={rate}; further training {applied}")
        architecture = (complete["architectures"] or (self.architecture,))[0]
        if complete["problem_type"] == "multi_label_classification" and architecture.endswith("Classification"):
            notes.append(
                "config.json has problem_type='multi_label_classification': a text may have several of its classes; "
                "here it has one"
            )
        read = self._read_keys | self.class_keys.keys() | WITHOUT_EFFECT | GENERATION_KEYS
        read |= {only.their_key for only in _READ_BEYOND_CLASSES}
        empty: tuple[Any, ...] = (None, {}, [], "")
        unread = sorted(
            name
            for name, value in config.items()
            if name not in read and value not in empty and not name.startswith("summary_")
        )
        if unread:
            notes.append(f"keys of config.json that are not read: {', '.join(unread)}")
        return notes

    def complete_config(self, config: Mapping[str, Any]) -> Config:
        """Return a config.json with every key of its class: other names resolved, and defaults for absent keys.

        Raises:
            UserError: If a value is of the wrong kind; gives the key.
        """
        complete = dict(config)
        for alias, name in self.key_aliases.items():
            if complete.get(alias) is not None:
                complete[name] = complete[alias]
        for name, (kind, default) in self.class_keys.items():
            complete[name] = (
                convert_value(kind, complete[name], f"config.json: {name}") if name in complete else default
            )
        layers = complete.get("per_layer_config")
        if isinstance(layers, Mapping) and all(
            isinstance(layer, Mapping) and layer.items() <= complete.items() for layer in layers.values()
        ):
            del complete["per_layer_config"]  # every layer is as the others
        return complete

    def convert_config(self, config: Mapping[str, Any], names: TensorNames) -> tuple[Config, TaskInterface]:
        """Convert config.json to the config of our model.

        A key of the library's config class that is not read must have its default there, unless it changes nothing of
        what the model computes.

        Args:
            config: The content of config.json.
            names: The names of the tensors in the weights file.

        Returns:
            The `config.model` section, and the interface that a task must have for this model.

        Raises:
            UserError: If a value is of the wrong kind, or if our models cannot express it; gives the key.
        """
        plain = self.complete_config(config)
        self._check_architecture(plain)
        self.check_unread_keys(plain)
        plain = self.simplify_config(plain, names)
        section = {"family": self.model_family, **self.fixed_fields, **self.training_defaults}
        hints = type_hints(FAMILIES[self.model_family].config_class)
        for key in self.config_keys:
            value = key.read(plain)
            kind = _INTERFACE_LIMITS.get(key.our_key, hints.get(key.our_key, Any))
            if key.values is None:
                convert_value(kind, value, f"config.json: {key.their_key}")
            section[key.our_key] = value
        return {
            key: value for key, value in section.items() if key not in self.interface_keys
        }, self.make_task_interface(section)

    def check_unread_keys(self, complete: Config) -> None:
        """Check that keys that are not read have the values of which every model of ours is.

        Raises:
            UserError: If one has another; gives key and value.
        """
        for name, (_, default) in self.class_keys.items():
            if name not in self._ignored_keys and complete[name] != default:
                raise UserError(_unsupported_value_message(name, complete[name], default))
        for only in (*self.fixed_keys, *_READ_BEYOND_CLASSES):
            if only.their_key not in self.simplified_keys:
                only.check(complete)

    def _check_architecture(self, config: Config) -> None:
        """Check that the class that a config.json names has no head of which ours know nothing.

        Raises:
            UserError: If it has; gives the class and why.
        """
        architecture = (config["architectures"] or (self.architecture,))[0]
        readable = (self.architecture, *self.other_architectures)
        if architecture in readable:
            return
        reason = next(
            (text for end, text in _CLASS_DIFFERENCES.items() if architecture.endswith(end)), "which is unknown"
        )
        raise UserError(
            f"config.json has architectures={[architecture]}, {reason}; of {self.model_type} models "
            f"{', '.join(readable)} can be read"
        )

    def write_config(self, model: Any, shapes: Mapping[str, Shape]) -> Config:
        """Convert the config of our model to config.json.

        Args:
            model: The config of the model.
            shapes: The shapes of its parameters by path.

        Returns:
            The content of config.json.

        Raises:
            UserError: If the model is of another family.
            InexpressibleModelError: If models of this `model_type` cannot express it; lists the fields.
        """
        if family_name(model) != self.model_family:
            raise UserError(f"config.model.family={family_name(model)} is not {self.model_family}")
        ours = comparable_config(model) | self.infer_fields_from_shapes(model, shapes)
        listed = {key.our_key for key in self.config_keys}
        reasons = [
            f"config.model.{name}={ours[name]} is not {value}"
            for name, value in self.fixed_fields.items()
            if ours[name] != value
        ]
        if isinstance(model, TransformerConfig):
            reasons += _list_unsupported_fields(model, listed | self.fixed_fields.keys())
            reasons += [
                f"config.model.{name}={shorten_value(ours[name])} is not {shorten_value(usual)}"
                for name, usual in FIELDS_OF_SOME.items()
                if name not in listed and name not in self.fixed_fields and ours.get(name, usual) != usual
            ]
        config: Config = {"architectures": [self.architecture], "model_type": self.model_type}
        config |= {only.their_key: only.value for only in self.fixed_keys if only.is_written}
        for key in self.config_keys:
            try:
                config[key.their_key] = key.write(ours)
            except UserError as error:
                reasons.append(str(error))
        if not reasons:
            try:
                return self.restore_config(config)
            except UserError as error:
                reasons.append(str(error))
        raise InexpressibleModelError(self.model_type, reasons)


# Fields that only some architectures have; the others are as these defaults say.
FIELDS_OF_SOME: Config = {
    name: to_config(getattr(TransformerConfig, name))
    for name in (
        "query_key_norm",
        "rotary_fraction",
        "rotary_scaling",
        "rotary_pattern",
        "local_rotary_base",
        "attention_scale",
        "attention_softcap",
        "attention_sinks",
        "relative_embedding_norm",
        "embedding_multiplier",
        "residual_multiplier",
        "layer_scale",
        "logit_multiplier",
        "logit_softcap",
    )
} | {"position_offset": 0}


class InexpressibleModelError(UserError):
    """Raised for a model that a Hugging Face architecture cannot express; `reasons` lists why."""

    def __init__(self, model_type: str, reasons: list[str]):
        super().__init__(f"{model_type}: {'; '.join(reasons)}")
        self.model_type = model_type
        self.reasons = reasons


def _list_unsupported_fields(model: TransformerConfig, listed: TensorNames | set[str]) -> list[str]:
    """List the fields that an export cannot express unless the architecture has a key for them."""
    usual = {
        "kv_heads": (model.resolved_kv_heads, model.heads),
        "head_dim": (model.resolved_head_dim, model.width // model.heads),
        "norm_bias": (model.resolved_norm_bias, model.biases is not Biases.NONE),
    }
    reasons = [
        f"config.model.{name}={value} is not {usual_value}"
        for name, (value, usual_value) in usual.items()
        if name not in listed and value != usual_value
    ]
    if model.projections is not Projections.LINEAR:
        reasons.append(f"config.model.projections={model.projections.value} is not linear")
    if model.experts.count and "experts" not in listed:
        reasons.append(f"config.model.experts.count={model.experts.count} is not 0")
    if model.resolved_base_width != model.width:
        reasons.append(f"config.model.base_width={model.resolved_base_width} is not width={model.width}")
    if model.position_join is not PositionCombination.ADDED:
        reasons.append(f"config.model.position_join={model.position_join.value} is not added")
    return reasons


def comparable_config(model: Any) -> Config:
    """Return the fields of a model config, normalized so that equal models have equal values."""
    if not isinstance(model, TransformerConfig):
        return to_config(model)
    windows = model.attention_windows if any(model.attention_windows) else ()
    uniform = windows[:1] if len(set(windows)) == 1 else windows
    rotary = model.rotary_pattern if set(model.rotary_pattern) != {LayerRotary.GLOBAL} else ()
    usual_scale = model.resolved_head_dim**-0.5
    return to_config(model) | {
        "kv_heads": model.resolved_kv_heads,
        "head_dim": model.resolved_head_dim,
        "attention_windows": uniform,
        "attention_scale": None if model.attention_scale == usual_scale else model.attention_scale,
        "norm_bias": model.resolved_norm_bias,
        "rotary_pattern": to_config(rotary),
        "local_rotary_base": model.local_rotary_base
        if LayerRotary.LOCAL in rotary
        else TransformerConfig.local_rotary_base,
    }


def without_keys(config: Config, *names: str) -> Config:
    """Return a config without these keys."""
    return {name: value for name, value in config.items() if name not in names}


def norm_entries(tensor: str, leaf: str) -> Iterator[TensorEntry]:
    """Yield the entries of a norm: its scale, and its bias if it has one.

    Args:
        tensor: The tensors' name, without `.weight` and `.bias`.
        leaf: The path of our norm.

    Yields:
        The entries.
    """
    yield TensorEntry(f"{tensor}.weight", (f"{leaf}/scale",), VECTOR)
    yield TensorEntry(f"{tensor}.bias", (f"{leaf}/bias",), VECTOR)


def linear_entries(tensor: str, leaf: str, layout: TensorLayout = LINEAR) -> Iterator[TensorEntry]:
    """Yield the entries of a linear layer: its matrix, and its bias if it has one.

    Args:
        tensor: The tensors' name, without `.weight` and `.bias`.
        leaf: The path of our layer.
        layout: The layout of the matrix.

    Yields:
        The entries.
    """
    yield TensorEntry(f"{tensor}.weight", (f"{leaf}/kernel",), layout)
    yield TensorEntry(f"{tensor}.bias", (f"{leaf}/bias",), VECTOR)


def attention_entries(tensor: str, leaf: str, names: tuple[str, str, str, str]) -> Iterator[TensorEntry]:
    """Yield the entries of an attention layer.

    Args:
        tensor: The prefix of the tensors' names.
        leaf: The path of our layer.
        names: Names of the query, key, value and output projections after the prefix.

    Yields:
        The entries.
    """
    for name, ours in zip(names, ("query", "key", "value", "output"), strict=True):
        yield from linear_entries(f"{tensor}.{name}", f"{leaf}/{ours}", FROM_HEADS if ours == "output" else LINEAR)


def fused_attention_entries(tensor: str, leaf: str, kernel: TensorLayout, bias: TensorLayout) -> Iterator[TensorEntry]:
    """Yield the entries of query, key and value projections that the file stores in one matrix.

    Args:
        tensor: The tensor's name, without `.weight` and `.bias`.
        leaf: The path of the attention layer.
        kernel: The layout of the matrix.
        bias: The layout of the bias.

    Yields:
        The entries of the matrix and of the bias.
    """
    parts = tuple(f"{leaf}/{name}" for name in ("query", "key", "value"))
    yield TensorEntry(f"{tensor}.weight", tuple(f"{part}/kernel" for part in parts), kernel)
    yield TensorEntry(f"{tensor}.bias", tuple(f"{part}/bias" for part in parts), bias)


def embedding_entries(tensor: str, leaf: str) -> Iterator[TensorEntry]:
    """Yield the entry of an embedding table."""
    yield TensorEntry(f"{tensor}.weight", (f"{leaf}/table",), TABLE)


def unembedding_entries(tensor: str = "lm_head") -> Iterator[TensorEntry]:
    """Yield the entries of the output head: its matrix, unless tied to the embedding, and its bias."""
    yield TensorEntry(f"{tensor}.weight", ("unembedding/kernel",), LINEAR)
    yield TensorEntry(f"{tensor}.bias", ("output_bias/bias",), VECTOR)
