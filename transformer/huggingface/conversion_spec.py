"""A model family of another library, as tables of its config keys and tensors."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from transformer.config import UserError, to_config
from transformer.huggingface.tensor_layouts import FROM_HEADS, LINEAR, TABLE, VECTOR, Layout, Shape
from transformer.layers.transformer_config import PositionJoin, TransformerConfig
from transformer.models.registry import name_of
from transformer.models.task_interface import TaskInterface

Config = dict[str, Any]
Names = frozenset[str]
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

UNPUBLISHED_FIELDS = frozenset(
    {"initialization", "stochastic_depth", "backend", "remat", "unroll", "size", "attention_dropout", "lora"}
)
"""Fields that say how a model is trained and run: no other library need know them. LoRA is merged before."""

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

GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of config.json that gives one field of our config.

    `default` is the other library's value where the key is absent or null. `values` maps its values to ours where they
    differ; if several mean the same, the first is written.
    """

    theirs: str
    ours: str
    default: Any = _REQUIRED
    values: Mapping[Any, Any] | None = None

    def read(self, config: Config) -> Any:
        """Our value.

        Raises:
            UserError: For a missing key, or a value that ours has no equivalent of.
        """
        value = config.get(self.theirs)
        if value is None:
            if self.default is _REQUIRED:
                raise UserError(f"config.json has no {self.theirs}, which a {config.get('model_type')} model needs")
            value = self.default
        if self.values is None:
            return value
        for known, ours in self.values.items():
            if type(known) is type(value) and known == value:
                return ours
        known_values = ", ".join(map(repr, self.values))
        raise UserError(f"config.json has {self.theirs}={value!r}, which this model cannot be; known: {known_values}")

    def write(self, ours: Config) -> Any:
        """Their value.

        Raises:
            UserError: For a value that theirs has no equivalent of.
        """
        value = ours[self.ours]
        if self.values is None:
            return value
        for theirs, known in self.values.items():
            if known == value:
                return theirs
        known_values = ", ".join(map(str, dict.fromkeys(self.values.values())))
        raise UserError(f"config.model.{self.ours}={value} is none of {known_values}")


@dataclasses.dataclass(frozen=True)
class FixedKey:
    """A key of config.json with the only value that we support; it may be absent. `written`: files must state it."""

    theirs: str
    value: Any
    written: bool = False

    def check(self, config: Config) -> None:
        """Refuse another value.

        Raises:
            UserError: Naming it.
        """
        value = config.get(self.theirs)
        if value is not None and value != self.value:
            raise UserError(f"config.json has {self.theirs}={value!r}; only {self.value!r} can be read")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor and the leaves that it holds; `{layer}` in its name stands for the index in stacked leaves.

    An entry whose leaves a model does not have (no bias, tied output) is left out of that model's file. An entry with
    `beside` needs that leaf in the model, one with `without` needs it absent.
    """

    tensor: str
    leaves: tuple[str, ...]
    layout: Layout
    beside: str | None = None
    without: str | None = None

    def stands(self, leaves: Container[str]) -> bool:
        """Whether a model with these leaves has the tensor."""
        needed = self.leaves if self.beside is None else (*self.leaves, self.beside)
        return all(leaf in leaves for leaf in needed) and self.without not in leaves


def _unchanged(config: Config, names: Names) -> Config:
    return config


def _token_interface(section: Config) -> TaskInterface:
    rows = section["embedding_rows"]
    return TaskInterface({}, {"tokens": rows, "joint": rows}, pad=0, begin=0, end=0)


def _embedding_rows(model: Any, shapes: Mapping[str, Shape]) -> Config:
    return {"embedding_rows": shapes["embedding/table"][0]}


def _published(config: Config) -> Config:
    return config


@dataclasses.dataclass(frozen=True)
class Family:
    """One arrangement of another library, as tables.

    `model_type` and `architecture` are its names in the library, `model` the name of our family. `keys`, `only` and
    `fixed` translate the config: `fixed` are our fields whose values this arrangement implies, `begun` those that only
    a training run reads. `simplify` makes a config whose keys are one to one with fields of ours, given the names of
    the file's tensors; `publish` is its inverse. `spellings` are other names of keys, `renamed` other parts of tensor
    names. A file may leave `prefix` out of the names. `aliases` are second copies of a tensor; `harmless` are patterns
    of tensors that hold no parameter, `left_out` of parameters that no model of ours has. `interface` is what a task
    asks of the model that a section describes; keys of ours that are the interface's alone are `beside` the section.
    `told` are the keys that the shapes of the parameters tell; `simplified` those of theirs that `simplify` reads.
    """

    model_type: str
    architecture: str
    model: str
    keys: tuple[Key, ...]
    fixed: Mapping[str, Any]
    entries: tuple[Entry, ...]
    begun: Mapping[str, Any]
    only: tuple[FixedKey, ...] = ()
    prefix: str = ""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simplify: Callable[[Config, Names], Config] = _unchanged
    publish: Callable[[Config], Config] = _published
    interface: Callable[[Config], TaskInterface] = _token_interface
    beside: Names = frozenset()
    told: Callable[[Any, Mapping[str, Shape]], Config] = _embedding_rows
    simplified: Names = frozenset()

    def unread(self, config: Mapping[str, Any]) -> list[str]:
        """The keys of a config.json that may say something of the model and are not read."""
        read = {key.theirs for key in self.keys} | {only.theirs for only in self.only} | self.spellings.keys()
        read |= self.simplified | _WITHOUT_EFFECT
        empty: tuple[Any, ...] = (None, {}, [], "")
        return sorted(
            name
            for name, value in config.items()
            if name not in read and value not in empty and not name.startswith("summary_")
        )

    def read_config(self, config: Mapping[str, Any], names: Names) -> tuple[Config, TaskInterface]:
        """Our model section and what a task asks of it, from config.json and the names of the tensors beside it.

        Raises:
            UserError: Naming a key of config.json that is missing, or whose value our model cannot express.
        """
        plain = dict(config)
        for spelling, name in self.spellings.items():
            if plain.get(name) is None and plain.get(spelling) is not None:
                plain[name] = plain[spelling]
        for only in self.only:
            only.check(plain)
        plain = self.simplify(plain, names)
        section = {"family": self.model, **self.fixed, **self.begun}
        section |= {key.ours: key.read(plain) for key in self.keys}
        return {key: value for key, value in section.items() if key not in self.beside}, self.interface(section)

    def write_config(self, model: Any, shapes: Mapping[str, Shape]) -> Config:
        """Their config.json of our model with parameters of these shapes.

        Raises:
            UserError: Listing what this arrangement cannot express.
        """
        if name_of(model) != self.model:
            raise UserError(f"config.model.family={name_of(model)} is not {self.model}")
        ours = comparable(model) | self.told(model, shapes)
        listed = {key.ours for key in self.keys}
        faults = [
            f"config.model.{name}={ours[name]} is not {value}"
            for name, value in self.fixed.items()
            if ours[name] != value
        ]
        if isinstance(model, TransformerConfig):
            faults += _unsupported_fields(model, listed)
        config: Config = {"architectures": [self.architecture], "model_type": self.model_type}
        config |= {only.theirs: only.value for only in self.only if only.written}
        for key in self.keys:
            try:
                config[key.theirs] = key.write(ours)
            except UserError as error:
                faults.append(str(error))
        if not faults:
            try:
                return self.publish(config)
            except UserError as error:
                faults.append(str(error))
        raise Inexpressible(self.model_type, faults)


class Inexpressible(UserError):
    """A model that an arrangement cannot express, with the list of reasons."""

    def __init__(self, model_type: str, faults: list[str]):
        super().__init__(f"{model_type}: {'; '.join(faults)}")
        self.faults = faults


def _unsupported_fields(model: TransformerConfig, listed: Names | set[str]) -> list[str]:
    """What of the blocks over tokens no arrangement has, but where it lists the key."""
    usual = {"kv_heads": model.heads, "head_dim": model.width // model.heads}
    faults = [
        f"config.model.{name}={value} is not {usual[name]}"
        for name, value in (("kv_heads", model.groups), ("head_dim", model.depth))
        if name not in listed and value != usual[name]
    ]
    if model.experts.count:
        faults.append(f"config.model.experts.count={model.experts.count} is not 0")
    if model.position_join is not PositionJoin.ADDED:
        faults.append(f"config.model.position_join={model.position_join.value} is not added")
    return faults


def comparable(model: Any) -> Config:
    """The fields of a config with equal values for equal models."""
    if not isinstance(model, TransformerConfig):
        return to_config(model)
    windows = model.windows if any(model.windows) else ()
    uniform = windows[:1] if len(set(windows)) == 1 else windows
    return to_config(model) | {
        "kv_heads": model.groups,
        "head_dim": model.depth,
        "windows": uniform,
    }


def norm(tensor: str, leaf: str) -> Iterator[Entry]:
    """A norm's scale, and its bias where it has one."""
    yield Entry(f"{tensor}.weight", (f"{leaf}/scale",), VECTOR)
    yield Entry(f"{tensor}.bias", (f"{leaf}/bias",), VECTOR)


def linear(tensor: str, leaf: str, layout: Layout = LINEAR) -> Iterator[Entry]:
    """A projection's matrix, and its bias where it has one."""
    yield Entry(f"{tensor}.weight", (f"{leaf}/kernel",), layout)
    yield Entry(f"{tensor}.bias", (f"{leaf}/bias",), VECTOR)


def attention(tensor: str, leaf: str, names: tuple[str, str, str, str]) -> Iterator[Entry]:
    """The projections of attention: `names` are those of queries, keys, values and output."""
    for name, ours in zip(names, ("query", "key", "value", "output"), strict=True):
        yield from linear(f"{tensor}.{name}", f"{leaf}/{ours}", FROM_HEADS if ours == "output" else LINEAR)


def fused(tensor: str, leaf: str, kernel: Layout, bias: Layout) -> Iterator[Entry]:
    """Queries, keys and values in one matrix."""
    parts = tuple(f"{leaf}/{name}" for name in ("query", "key", "value"))
    yield Entry(f"{tensor}.weight", tuple(f"{part}/kernel" for part in parts), kernel)
    yield Entry(f"{tensor}.bias", tuple(f"{part}/bias" for part in parts), bias)


def table(tensor: str, leaf: str) -> Iterator[Entry]:
    """A table of vectors."""
    yield Entry(f"{tensor}.weight", (f"{leaf}/table",), TABLE)


def unembedding(tensor: str = "lm_head") -> Iterator[Entry]:
    """The matrix that scores the tokens, where it is not the embedding, and their bias."""
    yield Entry(f"{tensor}.weight", ("unembedding/kernel",), LINEAR)
    yield Entry(f"{tensor}.bias", ("output_bias/bias",), VECTOR)
