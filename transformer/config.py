"""Configs: build frozen dataclasses from nested mappings, and refuse unknown keys and invalid values.

The dataclass of a model family or a task is defined next to it; this module has only the mechanism.
"""

import contextlib
import dataclasses
import difflib
import enum
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple


class UserError(ValueError):
    """A mistake that the user can correct: its message is one line that says what to do.

    Commands print the message and exit with code 2; every other error is a failure of the run.
    """


def refuse_single_text(values: Any, name: str) -> None:
    """Refuse a single text where a sequence of texts is expected, as it is a sequence of letters too.

    Args:
        values: The value.
        name: Its name, for the message.

    Raises:
        TypeError: If it is a text or bytes.
    """
    if isinstance(values, str | bytes):
        raise TypeError(f"{name} is {values!r}, a single text; give a list of them, [{values!r}]")


def suggest_nearest(name: str, candidates: typing.Iterable[str]) -> str:
    """Return a clause with the known word closest to `name`, or with all of them if none is close."""
    names = [str(word) for word in candidates]
    close = _equal_numbers(name, names) or close_matches(name, names)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names))}"


def _equal_numbers(name: str, words: typing.Iterable[str]) -> list[str]:
    """Return the words that are the same number as `name`, such as 1 for 1.0, whose characters resemble 0 as much."""
    try:
        number = float(name)
    except ValueError:
        return []
    return [word for word in words if word.lstrip("-").isdecimal() and float(word) == number]


def close_matches(name: str, candidates: typing.Iterable[str], cutoff: float = 0.5) -> list[str]:
    """Return the known words that are similar to `name`, the most similar first.

    Args:
        name: The word.
        candidates: The known words.
        cutoff: The smallest similarity (`name_similarity`).
    """
    similarities = {word: name_similarity(name, word) for word in candidates}
    return sorted((word for word in similarities if similarities[word] >= cutoff), key=lambda word: -similarities[word])


def name_similarity(name: str, word: str) -> float:
    """Return the similarity of two words, from 0 to 1; at least 0.7 if one begins with the other, 0.8 if it ends so."""
    ratio = difflib.SequenceMatcher(None, word, name).ratio()
    short, long = sorted((name, word), key=len)
    if long.endswith(f"_{short}"):
        return max(ratio, 0.8)
    return max(ratio, 0.7) if len(short) >= 3 and long.startswith(short) else ratio


def lookup_by_name(value: str, table: Mapping[str, Any], path: str, *, advice: str = "", alternative: str = "") -> Any:
    """Return the entry of a registry by its name.

    Args:
        value: The name.
        table: The registry.
        path: The key that has the name, for the message.
        advice: What to say of an unknown name in place of the most similar one.
        alternative: What else the key takes, for the end of the message.

    Raises:
        UserError: If the name is unknown; the message lists the known names, the most similar first.
    """
    if value not in table:
        close = [] if advice else close_matches(str(value), table)
        known_names = ", ".join((*close, *sorted(set(table) - set(close))))
        advice = advice or (f"did you mean {close[0]!r}?" if close else "")
        raise UserError(
            f"{path}={shorten_value(value)} is unknown: {advice}{' ' * bool(advice)}known: {known_names}{alternative}"
        )
    return table[value]


def enum_member(cls: type[enum.Enum], value: str, path: str) -> Any:
    """Return the member of an enum by its value.

    An enum may have a class method `advise_on_unknown` that returns what to say of a word of others, such as a name
    that another library has for a member.

    Raises:
        UserError: If it has no such member.
    """
    advice = getattr(cls, "advise_on_unknown", lambda name: "")(value)
    return lookup_by_name(value, {str(member.value): member for member in cls}, path, advice=advice)


# The largest 32-bit integer.
_GREATEST = 2**31 - 1


class Range(NamedTuple):
    """The smallest and the largest allowed value of a number, as in `Annotated[int, Range(1, 9)]`.

    Attributes:
        minimum: The smallest value.
        maximum: The largest value.
        note: The end of the message about a value that is too small: why, or what to use instead.
    """

    minimum: float
    maximum: float = _GREATEST
    note: str = ""

    def check(self, value: float, path: str) -> None:
        """Check a value.

        Raises:
            UserError: If it is out of range; the message names `path`.
        """
        if value < self.minimum:
            raise UserError(f"{path}={value!r} must be at least {self.minimum:.10g}{self.note}")
        if value > self.maximum:
            raise UserError(f"{path}={value!r} must be at most {self.maximum:.10g}")


class GreaterThan(NamedTuple):
    """A number must be greater than `bound`; `note` ends the message."""

    bound: float
    note: str = ""

    def check(self, value: float, path: str) -> None:
        """Check a value.

        Raises:
            UserError: If it is not above the bound; the message names `path`.
        """
        if not value > self.bound:
            raise UserError(f"{path}={value!r} must be above {self.bound:.10g}{self.note}")


class HalfOpenRange(NamedTuple):
    """A number must be at least `minimum` and less than `bound`."""

    minimum: float
    bound: float

    def check(self, value: float, path: str) -> None:
        """Check a value.

        Raises:
            UserError: If it is outside; the message names `path`.
        """
        if not self.minimum <= value < self.bound:
            raise UserError(f"{path}={value!r} must be at least {self.minimum:.10g} and below {self.bound:.10g}")


class MatchesPattern(NamedTuple):
    """A text must match a pattern, as in `Annotated[str, MatchesPattern("[0-9a-f]{8}", "8 hexadecimal digits")]`."""

    pattern: str
    meaning: str

    def check(self, value: str, path: str) -> None:
        """Check a text.

        Raises:
            UserError: If the pattern does not match all of it; the message names `path`.
        """
        if not re.fullmatch(self.pattern, value):
            raise UserError(f"{path}={shorten_value(value)} must be {self.meaning}")


class TupleLimits(NamedTuple):
    """A tuple must have at least `min_length` values, and no two equal ones if `distinct`."""

    min_length: int = 0
    distinct: bool = False

    def check(self, values: typing.Sequence[Any], path: str) -> None:
        """Check a tuple.

        Raises:
            UserError: If it has too few values, or equal ones; the message names `path`.
        """
        if len(values) < self.min_length:
            required = "a value" if self.min_length == 1 else f"{self.min_length} values"
            raise UserError(f"{path}={shorten_value(values)} must hold at least {required}")
        if self.distinct and len(set(values)) < len(values):
            raise UserError(f"{path}={shorten_value(values)} must hold different values")


Limit = Range | GreaterThan | HalfOpenRange | MatchesPattern | TupleLimits

PositiveInt = Annotated[int, Range(1, _GREATEST)]
"""A number of at least 1."""
NonNegativeInt = Annotated[int, Range(0, _GREATEST)]
"""A number of at least 0."""
SEEDS = Range(0, 2**32 - 1)
Seed = Annotated[int, SEEDS]
"""The seed of random numbers."""
Sha256 = Annotated[str, MatchesPattern("[0-9a-f]{64}", "64 hexadecimal digits")]
"""A SHA-256, as written in a file."""
VocabSize = Annotated[int, Range(1, 2**24)]
"""A number of tokens, limited because training a tokenizer allocates memory for each in advance."""
NumLayers = Annotated[int, Range(1, 2**12)]
"""A number of layers, limited because each is described before anything is computed."""
NumLayersOrZero = Annotated[int, Range(0, 2**12)]
"""A number of layers that may be 0."""
NumHeads = Annotated[int, Range(1, 2**12)]
"""A number of heads of one attention module."""
NumHops = Annotated[int, Range(1, 2**12)]
"""A number of hops of one attention module, each of which is a layer of its maps."""
BatchSize = Annotated[int, Range(1, 2**20)]
"""A number of rows in a batch, limited because the host allocates arrays of this size."""
NumExamples = Annotated[int, Range(1, 2**22)]
"""A number of examples that are generated or queried one by one."""
NumExamplesOrZero = Annotated[int, Range(0, 2**22)]
"""A number of such examples that may be 0."""
NumBeams = Annotated[int, Range(1, 2**12)]
"""A number of hypotheses that beam search keeps."""
ImageSize = Annotated[int, Range(1, 2**12)]
"""The side of an image in pixels."""
NumDisplayedExamples = Annotated[int, Range(1, 2**16)]
"""A number of examples to look at, each of which has maps of its own."""
NonNegativeFloat = Annotated[float, Range(0.0, math.inf)]
"""A quantity that is not negative."""
PositiveFloat = Annotated[float, GreaterThan(0.0)]
"""A quantity above 0."""
Fraction = Annotated[float, Range(0.0, 1.0)]
"""A fraction or probability, from 0 to 1."""
PositiveFraction = Annotated[float, GreaterThan(0.0), Range(0.0, 1.0)]
"""A part of a whole, above 0 and at most 1."""
Rate = Annotated[float, HalfOpenRange(0.0, 1.0)]
"""A fraction that is dropped, smoothed or replaced, from 0 to below 1."""
SplitName = Annotated[str, MatchesPattern("(?s).+", "the name of a split")]
"""The name of a split of a data set."""

# The range of integers without other limits: 32 bits.
_WHOLE = Range(-_GREATEST - 1, _GREATEST)
_LARGEST = 3.4e38
_LONGEST_SHOWN = 300  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Config:
    """A section of a config, or a part of one, whose fields are checked whenever it is constructed.

    A field is checked against its annotation. What annotations cannot express, such as values that do not go together,
    a subclass refuses in `_check`. The class argument `path` is the dotted key of the section, for messages.

    Example:
        ```python
        import dataclasses
        from transformer.config import Config, PositiveInt

        @dataclasses.dataclass(frozen=True)
        class SortingConfig(Config, path="config.task"):
            length: PositiveInt = 8

        SortingConfig(length=0)  # UserError: config.task.length=0 must be at least 1
        ```
    """

    _path: ClassVar[str] = ""

    def __init_subclass__(cls, path: str | None = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if path is not None:
            cls._path = path

    def __post_init__(self) -> None:
        prefix = f"{self._path}." if self._path else ""
        for name, (hint, limits) in _hints_and_limits(typing.cast(type, type(self))).items():
            convert_value(hint, getattr(self, name), f"{prefix}{name}", limits)
        self._check()

    def _check(self) -> None:
        """Check that the fields go together.

        Raises:
            UserError: If they do not; the message names the keys and their values.
        """


def from_config[T](cls: type[T], values: Mapping[str, Any], path: str = "config", default: T | None = None) -> T:
    """Build a frozen dataclass from a nested mapping, checking every key and every type.

    Lists become tuples, integers serve as floats, and strings name enum members by value. A key that a nested section
    leaves out has the value of the instance that is the default of the section's field, not of the section's class.

    Args:
        cls: The dataclass.
        values: The mapping.
        path: The dotted key of the mapping, for messages.
        default: The values of the keys that the mapping leaves out; by default those of `cls`.

    Raises:
        UserError: If a key is unknown or missing, a value has the wrong type, or `cls` refuses a value with a
            ValueError. The message names the dotted key.

    Example:
        ```python
        import dataclasses
        from transformer.config import Config, PositiveInt, from_config

        @dataclasses.dataclass(frozen=True)
        class SortingConfig(Config, path="config.task"):
            length: PositiveInt = 8

        from_config(SortingConfig, {"length": 4}, "config.task")  # SortingConfig(length=4)
        ```
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    for key in values:
        if key not in fields:
            raise UserError(f"unknown key {prefix}{_truncate(str(key))}: {suggest_nearest(str(key), fields)}")
    hints = _hints_and_limits(typing.cast(type, cls))
    arguments = {}
    for name, field in fields.items():
        own_default = field_default(field) if default is None else getattr(default, name)
        if name in values:
            hint, limits = hints[name]
            arguments[name] = convert_value(hint, values[name], f"{prefix}{name}", limits, own_default)
        elif own_default is dataclasses.MISSING:
            raise UserError(f"{prefix}{name} is missing: it has no default")
        else:
            arguments[name] = own_default
    try:
        return cls(**arguments)
    except UserError:
        raise
    except ValueError as error:
        # Attention and layers do not know config paths: their messages name only the field.
        names_field = str(error).partition("=")[0] in fields
        raise UserError(f"{prefix}{error}" if names_field else str(error)) from error


def field_default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass's field, from its factory if it has one; `dataclasses.MISSING` without any."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class with what `Annotated` adds to them, resolved once."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _hints_and_limits(cls: type) -> dict[str, tuple[Any, tuple[Limit, ...]]]:
    """Return for each field of a dataclass its annotation without limits, and the limits."""
    hints = type_hints(cls)
    return {field.name: _split_limits(hints[field.name]) for field in dataclasses.fields(cls)}


def _split_limits(hint: Any) -> tuple[Any, tuple[Limit, ...]]:
    """Return an annotation without `Annotated`, and the limits that it adds."""
    if typing.get_origin(hint) is not Annotated:
        return hint, ()
    kind, *annotations = typing.get_args(hint)
    return kind, tuple(limit for limit in annotations if isinstance(limit, Limit))


def convert_value(
    hint: Any, value: Any, path: str, limits: tuple[Limit, ...] = (), default: Any = dataclasses.MISSING
) -> Any:
    """Convert a value to the type of a dataclass's field, as `from_config` does for each key.

    Args:
        hint: The annotation of the field.
        value: The value.
        path: The dotted key, for messages.
        limits: Limits that a number, a text or a tuple must satisfy. A number without limits must fit 32 bits.
        default: The default of the field. Keys that a section leaves out have the values of this instance.

    Raises:
        UserError: If the value has another type or violates a limit.
    """
    # A class, as most annotations are, has neither.
    origin, parameters = (None, ()) if type(hint) is type else (typing.get_origin(hint), typing.get_args(hint))
    if hint is Any:
        return value
    if origin is Annotated:
        kind, limits = _split_limits(hint)
        return convert_value(kind, value, path, limits, default)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in parameters:
            return None
        if isinstance(value, str) and "." not in value and (choices := choices_beside_modules(hint)) is not None:
            return lookup_choice_beside_modules(choices, value, path)
        *earlier_members, last_member = members_default_first(hint, default)
        for earlier_member in earlier_members:
            with contextlib.suppress(UserError):
                return convert_value(earlier_member, value, path, default=default)
        return convert_value(last_member, value, path, default=default)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        cls = typing.cast(type, hint)
        return from_config(cls, value, path, default if isinstance(default, cls) else None)
    if isinstance(value, (list, tuple)):
        if origin is tuple:
            kinds = (parameters[0],) * len(value) if parameters[-1] is Ellipsis else parameters
            items = tuple(_convert_items(kinds, value, path))
            for limit in limits:
                limit.check(items, path)  # type: ignore[arg-type]
            return items
        if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
            return hint(*_convert_items(tuple(type_hints(hint).values()), value, path))
    if origin in (dict, Mapping):
        if isinstance(value, Mapping):
            return _convert_mapping(parameters, value, path)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if isinstance(value, hint):
            return value
        if isinstance(value, str):
            return enum_member(hint, value, path)
    elif hint in (int, float) and isinstance(value, (int, float)) and type(value) in (int, hint):
        return _convert_number(hint, value, path, limits)
    elif isinstance(hint, type) and isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        if isinstance(value, str):
            return _check_text(value, path, limits)
        return value
    name = getattr(hint, "__name__", str(hint))
    raise UserError(f"{path}={shorten_value(value)} is a {type(value).__name__}; it must be a {name}")


def choices_beside_modules(hint: Any) -> type[enum.Enum] | None:
    """Return the enum of a type `Choice | str`, whose texts are the word of a member or the dotted path of a module."""
    members = members_default_first(hint)
    choices = [member for member in members if isinstance(member, type) and issubclass(member, enum.Enum)]
    return choices[0] if len(choices) == 1 and str in members else None


def lookup_choice_beside_modules(choices: type[enum.Enum], value: str, path: str) -> enum.Enum:
    """Return the member with this word, of a key that also takes the dotted path of a module.

    Raises:
        UserError: If there is none.
    """
    table = {str(member.value): member for member in choices}
    alternative = "; or the dotted path of a module of your own, such as lab.mine"
    return lookup_by_name(value, table, path, alternative=alternative)


def members_default_first(hint: Any, default: Any = dataclasses.MISSING) -> list[Any]:
    """Return the types of a union except None, or the type itself if it is no union.

    Of several sections, that of the default comes first: it is the one whose keys a config gives without saying more.
    """
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return [hint]
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    return sorted(members, key=lambda member: not (dataclasses.is_dataclass(member) and type(default) is member))


def _convert_items(kinds: tuple[Any, ...], values: typing.Sequence[Any], path: str) -> list[Any]:
    """Convert the items of a tuple.

    Raises:
        UserError: If there are more or fewer items than types, or an item is invalid.
    """
    if len(kinds) != len(values):
        raise UserError(f"{path}={shorten_value(values)} has {len(values)} values; it must have {len(kinds)}")
    return [convert_value(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(kinds, values, strict=True))]


def _convert_mapping(kinds: tuple[Any, ...], values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Convert the keys and values of a mapping.

    Raises:
        UserError: If a key or a value is invalid.
    """
    if kinds[1] is Any:
        return dict(values.items())
    return {
        convert_value(kinds[0], key, f"a key of {path}"): convert_value(kinds[1], value, f"{path}[{key!r}]")
        for key, value in values.items()
    }


def _convert_number(kind: type, value: float, path: str, limits: tuple[Limit, ...]) -> Any:
    """Convert a number.

    Raises:
        UserError: If it is not finite or is out of range.
    """
    if kind is float and not abs(value) <= _LARGEST:
        raise UserError(f"{path}={value!r} must be a finite number of 32 bits")
    for limit in limits or ((_WHOLE,) if kind is int else ()):
        limit.check(value, path)  # type: ignore[arg-type]
    return kind(value)


def _check_text(value: str, path: str, limits: tuple[Limit, ...]) -> str:
    """Check a text.

    Raises:
        UserError: If it is not valid UTF-8, has null characters, or violates a limit.
    """
    has_surrogates = not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)
    if has_surrogates or "\0" in value:
        raise UserError(f"{path}={shorten_value(value)} must be text of UTF-8 without null characters")
    for each in limits:
        each.check(value, path)  # type: ignore[arg-type]
    return value


def shorten_value(value: Any) -> str:
    """Return a value as a message shows it, shortened."""
    return _truncate(repr(value))


def _truncate(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def to_config(value: Any) -> Any:
    """Return a dataclass as nested plain values, ready for JSON: the inverse of `from_config`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_config(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_config(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_config(item) for item in value]
    return value


def hash_config(config: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of a config of plain values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested config by dotted key; a list, or a group without keys, is one value."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_config(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


class Absent(enum.Enum):
    """What stands for the value of a key that a config does not have."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.value


ABSENT = Absent.ABSENT


def config_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of every dotted key in which two configs differ as JSON, where 1, 1.0 and true differ.

    A list is one value, and `ABSENT` that of a key which a config does not have.
    """
    flat_first, flat_second = flatten_config(first), flatten_config(second)
    values = {key: (flat_first.get(key, ABSENT), flat_second.get(key, ABSENT)) for key in flat_first | flat_second}
    return {key: (one, other) for key, (one, other) in values.items() if config_text(one) != config_text(other)}


def config_text(value: Any) -> str:
    """Return a value of a config as JSON, for messages."""
    return repr(value) if value is ABSENT else json.dumps(value, sort_keys=True, ensure_ascii=False)


def is_key_within(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of these keys, or under one of them."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


# The keys of a config that hold flags of compilers, and the environment variable of each.
COMPILER_FLAGS = {"xla_flags": "XLA_FLAGS", "libtpu_init_args": "LIBTPU_INIT_ARGS"}


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return max(divisor for one in small for divisor in (one, number // one) if divisor <= most)


@dataclasses.dataclass(frozen=True)
class RunConfig(Config, path="config"):
    """The top level of a config: one training run. A section is checked by the dataclass of that section.

    Attributes:
        name: The name of the run: one line of printable text.
        task: The task and its data.
        model: The model family and its architecture.
        optimizer: The optimizer and the learning-rate schedule.
        steps: The number of training steps.
        seed: The seed of initialization, data order and dropout.
        num_microbatches: The number of microbatches whose gradients are accumulated for an update. 1 uses whole
            batches.
        log_every: Steps between two logs of the training metrics.
        eval_every: Steps between two evaluations. 0 evaluates only at the end.
        maps_every: Steps between two captures of the probe batch's attention maps. 0 captures only at the end.
        head_statistics_every: Steps between two logs of statistics of every head over the training batch. 0 is never.
        checkpoint_every: Steps between two checkpoints. 0 saves only at the end.
        keep_checkpoints: The number of most recent checkpoints to keep.
        permanent_checkpoint_every: Keep one checkpoint for good every so many steps, to study the course of training
            (Biderman et al. 2023, Pythia). 0 keeps only the most recent ones.
        optimizers: By name of an objective, the keys of its optimizer that differ from `optimizer`.
        parameter_averages: Averages of the parameters (EMA or mean) by name.
        precision: The types of parameters and of computation.
        maps: The examples, size and budget of the stored attention maps.
        sharding: The device mesh and how arrays are partitioned over it.
        initialize_from: The run or published model whose parameters initialize this run.
        update_guard: When an update is skipped, and when the run stops.
        topology: The device topology that the run is meant for, such as "v5e:2x2"; `launch.compile` checks that it
            fits.
        xla_flags: Flags that come before those of the environment variable XLA_FLAGS, separated by spaces.
        libtpu_init_args: Flags that come before those of LIBTPU_INIT_ARGS, which TPUs alone read.
    """

    name: str
    task: Mapping[str, Any]
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    steps: PositiveInt
    seed: Seed = 0
    num_microbatches: PositiveInt = 1
    log_every: PositiveInt = 50
    eval_every: NonNegativeInt = 500
    maps_every: NonNegativeInt = 500
    head_statistics_every: NonNegativeInt = 0
    checkpoint_every: NonNegativeInt = 500
    keep_checkpoints: PositiveInt = 2
    permanent_checkpoint_every: NonNegativeInt = 0
    optimizers: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    parameter_averages: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    precision: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    maps: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sharding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    initialize_from: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    update_guard: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    topology: str = ""
    xla_flags: str = ""
    libtpu_init_args: str = ""

    def _check(self) -> None:
        for key in COMPILER_FLAGS:
            for word in getattr(self, key).split():
                if not re.fullmatch(r"--\w+(=.+)?", word):
                    raise UserError(
                        f"config.{key} has {shorten_value(word)}, which is not a flag of the form --name=value; "
                        "separate flags by spaces"
                    )
        if not self.name.strip() or not self.name.isprintable():
            raise UserError(
                f"config.name={shorten_value(self.name)} must be one line of printable text: it is what the run is "
                "called"
            )
        self._check_intervals()

    def _check_intervals(self) -> None:
        """Check that the intervals go together.

        Raises:
            UserError: If they do not; the message has all that do not, and values that would do.
        """
        wrong, would_do = [], {}
        if self.checkpoint_every % self.log_every:
            wrong.append(
                f"config.checkpoint_every={self.checkpoint_every} must be a multiple of "
                f"config.log_every={self.log_every}, so that a resumed run logs what an uninterrupted one would"
            )
            would_do["log_every"] = _largest_divisor(self.checkpoint_every, self.log_every)
        saved = self.checkpoint_every or self.steps
        if self.permanent_checkpoint_every % saved:
            wrong.append(
                f"config.permanent_checkpoint_every={self.permanent_checkpoint_every} must be 0 or a multiple "
                f"of the steps between two checkpoints, {saved}"
            )
            would_do["permanent_checkpoint_every"] = -(-self.permanent_checkpoint_every // saved) * saved
        if wrong:
            values = " and ".join(f"config.{name}={value}" for name, value in would_do.items())
            raise UserError(f"{'; '.join(wrong)}: {values} would do")

    @property
    def num_probe_steps(self) -> int:
        """How often the probe batch is mapped: before step 1, every `maps_every` steps and at the end."""
        return 1 + -(-self.steps // self.maps_every) if self.maps_every else 1
