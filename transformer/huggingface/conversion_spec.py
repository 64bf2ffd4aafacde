"""ConversionSpec: how a Hugging Face architecture maps to a model family of ours, in tables of keys and tensors."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from transformer.attention.positions import PositionCombination
from transformer.config import UserError, to_config
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR, TABLE, VECTOR, Shape, TensorLayout
from transformer.layers.transformer_config import Projections, TransformerConfig
from transformer.models.registry import family_name
from transformer.models.task_interface import TaskInterface

Config = dict[str, Any]
TensorNames = frozenset[str]
_REQUIRED = object()

# Keys of config.json that change nothing of what a model computes: what its class and files are called, how it was
# initialized and trained, what its library returns and how fast, heads for other problems, defaults of generation.
_WITHOUT_EFFECT = frozenset(
    """_name_or_path architectures attention_softmax_in_fp32 auto_map bad_words_ids begin_suppress_tokens
    bias_dropout_fusion bos_token_id chunk_size_feed_forward classif_dropout classifier_dropout
    decoder_start_token_id directionality diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size encoder_stride end_n_top eos_token_id exponential_decay_length_penalty finetuning_task
    force_bos_token_to_be_generated forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label init_std
    initializer_factor initializer_range is_decoder label2id length_penalty masked_softmax_fusion max_length
    max_sequence_length min_length model_type n_ctx no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences offset_alibi output_attentions output_hidden_states output_past output_scores pad_token_id
    pooler_act pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_output_size pooler_size_per_head
    pooler_type predict_special_tokens prefix pretraining_tp problem_type remove_invalid_values
    reorder_and_upcast_attn repetition_penalty return_dict return_dict_in_generate sep_token_id skip_bias_add
    skip_bias_add_qkv slow_but_exact start_n_top suppress_tokens task_specific_params temperature tf_legacy_loss
    tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p unk_token_id use_bfloat16
    use_cache use_mems_eval use_mems_train""".split()  # noqa: SIM905  a list of names, not lines
)

TRAINING_ONLY_FIELDS = frozenset(
    {"initialization", "stochastic_depth", "backend", "remat", "scan_unroll", "size", "attention_dropout", "lora"}
)
"""Config fields that only say how a model is trained and run; an export ignores them. LoRA is merged before."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}

GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """A key of config.json that corresponds to one field of our config.

    Attributes:
        their_key: The key of config.json.
        our_key: The field of our config.
        default: The library's value if the key is absent or null; without a default the key is required.
        values: The library's values, each with ours, where they differ; of several with the same meaning the first is
            written.
    """

    their_key: str
    our_key: str
    default: Any = _REQUIRED
    values: Mapping[Any, Any] | None = None

    def read(self, config: Config) -> Any:
        """Return our value of the field.

        Args:
            config: The content of config.json.

        Returns:
            The value.

        Raises:
            UserError: If the key is missing, or if its value has no equivalent.
        """
        value = config.get(self.their_key)
        if value is None:
            if self.default is _REQUIRED:
                raise UserError(f"config.json has no {self.their_key}, which a {config.get('model_type')} model needs")
            value = self.default
        if self.values is None:
            return value
        for known, ours in self.values.items():
            if type(known) is type(value) and known == value:
                return ours
        known_values = ", ".join(map(repr, self.values))
        raise UserError(
            f"config.json has {self.their_key}={value!r}, which this model cannot be; known: {known_values}"
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
        for theirs, known in self.values.items():
            if known == value:
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
    """

    their_key: str
    value: Any
    is_written: bool = False

    def check(self, config: Config) -> None:
        """Check that config.json does not have another value.

        Raises:
            UserError: If it does; gives key and value.
        """
        value = config.get(self.their_key)
        if value is not None and value != self.value:
            raise UserError(f"config.json has {self.their_key}={value!r}; only {self.value!r} can be read")


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """A tensor of the file and the parameters of ours that it holds.

    An entry whose parameters a model does not have (no bias, tied output) is left out of that model's file.

    Attributes:
        tensor_name: The tensor's name; `{layer}` stands for the index into stacked parameters.
        leaf_paths: The paths of the parameters.
        layout: How the tensor arranges them.
        required_parameter: The path of a parameter that the model must have for this entry to apply.
        excluded_parameter: The path of a parameter that the model must not have.
    """

    tensor_name: str
    leaf_paths: tuple[str, ...]
    layout: TensorLayout
    required_parameter: str | None = None
    excluded_parameter: str | None = None

    def applies_to(self, leaves: Container[str]) -> bool:
        """Return whether a model with parameters of these paths has the tensor."""
        needed = self.leaf_paths if self.required_parameter is None else (*self.leaf_paths, self.required_parameter)
        return all(leaf in leaves for leaf in needed) and self.excluded_parameter not in leaves


def _unchanged(config: Config, names: TensorNames) -> Config:
    return config


def _token_interface(section: Config) -> TaskInterface:
    rows = section["vocab_size"]
    return TaskInterface({}, {"tokens": rows, "joint": rows}, pad_id=0, bos_id=0, eos_id=0)


def _embedding_rows(model: Any, shapes: Mapping[str, Shape]) -> Config:
    return {"vocab_size": shapes["embedding/table"][0]}


def _unchanged_export(config: Config) -> Config:
    return config


def _no_tensors(config: Config) -> dict[str, Shape]:
    return {}


@dataclasses.dataclass(frozen=True)
class ConversionSpec:
    """How the models of one Hugging Face `model_type` are converted to a family of ours and back, as tables.

    Attributes:
        model_type: The `model_type` of config.json.
        architecture: The class of the library, for `architectures` in config.json.
        model_family: The name of our model family.
        config_keys: Keys of config.json, each with the config field of ours that it gives.
        fixed_fields: Config fields of ours that are the same for every such model, with their values.
        tensor_entries: The tensors of the file, each with the parameters that it holds.
        training_defaults: Config fields of ours that only training reads, with the values that an import sets.
        fixed_keys: Keys of config.json of which only one value is supported.
        optional_prefix: A prefix of tensor names that a file may leave out.
        tensor_aliases: Names of second copies of a tensor, each with the name of the original.
        ignored_tensors: Patterns of tensors that hold no parameter.
        dropped_tensors: Patterns of parameters that no model of ours has; an import leaves them out and says so.
        key_aliases: Other names of keys of config.json, each with the usual name.
        tensor_renames: Regular expressions of outdated parts of tensor names, each with its replacement.
        simplify_config: Rewrites config.json so that each key corresponds to one field of ours; its second argument is
            the names of the tensors in the file.
        restore_config: The inverse of `simplify_config`.
        make_task_interface: The task interface of the model that a config describes.
        interface_keys: Keys that belong to the interface, not to our model config.
        infer_fields_from_shapes: The config fields that follow from the shapes of the parameters, for an export.
        simplified_keys: Keys of config.json that `simplify_config` reads.
        unread_tensors: The shapes, by name, of tensors that a class of the library has and never reads; its argument is
            the content of config.json. An export writes zeros.
    """

    model_type: str
    architecture: str
    model_family: str
    config_keys: tuple[ConfigKey, ...]
    fixed_fields: Mapping[str, Any]
    tensor_entries: tuple[TensorEntry, ...]
    training_defaults: Mapping[str, Any]
    fixed_keys: tuple[FixedConfigKey, ...] = ()
    optional_prefix: str = ""
    tensor_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored_tensors: tuple[str, ...] = ()
    dropped_tensors: tuple[str, ...] = ()
    key_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensor_renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simplify_config: Callable[[Config, TensorNames], Config] = _unchanged
    restore_config: Callable[[Config], Config] = _unchanged_export
    make_task_interface: Callable[[Config], TaskInterface] = _token_interface
    interface_keys: TensorNames = frozenset()
    infer_fields_from_shapes: Callable[[Any, Mapping[str, Shape]], Config] = _embedding_rows
    simplified_keys: TensorNames = frozenset()
    unread_tensors: Callable[[Config], Mapping[str, Shape]] = _no_tensors

    def unread_keys(self, config: Mapping[str, Any]) -> list[str]:
        """List the keys of a config.json that are not read although they may describe the model."""
        read = (
            {key.their_key for key in self.config_keys}
            | {only.their_key for only in self.fixed_keys}
            | self.key_aliases.keys()
        )
        read |= self.simplified_keys | _WITHOUT_EFFECT
        empty: tuple[Any, ...] = (None, {}, [], "")
        return sorted(
            name
            for name, value in config.items()
            if name not in read and value not in empty and not name.startswith("summary_")
        )

    def convert_config(self, config: Mapping[str, Any], names: TensorNames) -> tuple[Config, TaskInterface]:
        """Convert config.json to the config of our model.

        Args:
            config: The content of config.json.
            names: The names of the tensors in the weights file.

        Returns:
            The `config.model` section, and the interface that a task must have for this model.

        Raises:
            UserError: If a key is missing, or if our models cannot express its value; gives the key.
        """
        plain = dict(config)
        for spelling, name in self.key_aliases.items():
            if plain.get(name) is None and plain.get(spelling) is not None:
                plain[name] = plain[spelling]
        for only in self.fixed_keys:
            only.check(plain)
        plain = self.simplify_config(plain, names)
        section = {"family": self.model_family, **self.fixed_fields, **self.training_defaults}
        section |= {key.our_key: key.read(plain) for key in self.config_keys}
        return {
            key: value for key, value in section.items() if key not in self.interface_keys
        }, self.make_task_interface(section)

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
            reasons += _unsupported_fields(model, listed)
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


class InexpressibleModelError(UserError):
    """Raised for a model that a Hugging Face architecture cannot express; `reasons` lists why."""

    def __init__(self, model_type: str, reasons: list[str]):
        super().__init__(f"{model_type}: {'; '.join(reasons)}")
        self.reasons = reasons


def _unsupported_fields(model: TransformerConfig, listed: TensorNames | set[str]) -> list[str]:
    """List the fields that an export cannot express unless the architecture has a key for them."""
    usual = {"kv_heads": model.heads, "head_dim": model.width // model.heads}
    reasons = [
        f"config.model.{name}={value} is not {usual[name]}"
        for name, value in (("kv_heads", model.resolved_kv_heads), ("head_dim", model.resolved_head_dim))
        if name not in listed and value != usual[name]
    ]
    if model.projections is not Projections.LINEAR:
        reasons.append(f"config.model.projections={model.projections.value} is not linear")
    if model.experts.count:
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
    return to_config(model) | {
        "kv_heads": model.resolved_kv_heads,
        "head_dim": model.resolved_head_dim,
        "attention_windows": uniform,
    }


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
