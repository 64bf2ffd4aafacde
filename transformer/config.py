"""Configs: building frozen dataclasses from nested mappings, refusing what they do not know.

A family's or a task's dataclass sits beside it; this file holds the mechanism alone.
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
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple


class UserError(ValueError):
    """A mistake of the person at the keyboard: its message is one line that says what to do.

    Commands print the message and exit with code 2; everything else is a failure of the run.
    """


def refuse_single_text(values: Any, name: str) -> None:
    """Refuse one text where several are read: it is a sequence too, of letters.

    Raises:
        TypeError: As described above.
    """
    if isinstance(values, str | bytes):
        raise TypeError(f"{name} is {values!r}, a single text; give a list of them, [{values!r}]")


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """A clause naming the known word closest to `name`, or listing them all when none is close."""
    names = [str(word) for word in known]
    close = closest(name, names)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names))}"


def closest(name: str, known: typing.Iterable[str], cutoff: float = 0.5) -> list[str]:
    """The known words that are like `name`, the likest first."""
    near = {word: likeness(name, word) for word in known}
    return sorted((word for word in near if near[word] >= cutoff), key=lambda word: -near[word])


def likeness(name: str, word: str) -> float:
    """How like two words are, from 0 to 1; at least 0.7 where one begins with the other: "prenorm" means "pre"."""
    ratio = difflib.SequenceMatcher(None, word, name).ratio()
    short, long = sorted((name, word), key=len)
    return max(ratio, 0.7) if len(short) >= 3 and long.startswith(short) else ratio


def choice(value: str, table: Mapping[str, Any], path: str) -> Any:
    """The entry of a registry by its name; an unknown name is refused with all known names, the nearest first.

    Raises:
        UserError: Naming `path`, the value and the known names.
    """
    if value not in table:
        close = closest(str(value), table)
        known = ", ".join((*close, *sorted(set(table) - set(close))))
        raise UserError(
            f"{path}={_shown(value)} is unknown: "
            + (f"did you mean {close[0]!r}? " if close else "")
            + f"known: {known}"
        )
    return table[value]


# The greatest integer that arrays of 32 bits hold.
_GREATEST = 2**31 - 1


class Range(NamedTuple):
    """The least and the greatest value of a number, both allowed; a field has it as `Annotated[int, Range(1, 9)]`.

    `note` ends the message about a smaller value: why, or what does instead.
    """

    least: float
    greatest: float = _GREATEST
    note: str = ""

    def check(self, value: float, path: str) -> None:
        """Raise UserError naming `path` for a value outside."""
        if value < self.least:
            raise UserError(f"{path}={value!r} must be at least {self.least:.10g}{self.note}")
        if value > self.greatest:
            raise UserError(f"{path}={value!r} must be at most {self.greatest:.10g}")


class Above(NamedTuple):
    """What a number must be greater than; `note` ends the message."""

    bound: float
    note: str = ""

    def check(self, value: float, path: str) -> None:
        """Raise UserError naming `path` for another value."""
        if not value > self.bound:
            raise UserError(f"{path}={value!r} must be above {self.bound:.10g}{self.note}")


class HalfOpen(NamedTuple):
    """The least value of a number, and what it must be below."""

    least: float
    bound: float

    def check(self, value: float, path: str) -> None:
        """Raise UserError naming `path` for a value outside."""
        if not self.least <= value < self.bound:
            raise UserError(f"{path}={value!r} must be at least {self.least:.10g} and below {self.bound:.10g}")


class Matching(NamedTuple):
    """What a text must be; a field has it as `Annotated[str, Matching("[0-9a-f]{8}", "8 hexadecimal digits")]`."""

    pattern: str
    meaning: str

    def check(self, value: str, path: str) -> None:
        """Raise UserError naming `path` for a text that the pattern does not match as a whole."""
        if not re.fullmatch(self.pattern, value):
            raise UserError(f"{path}={_shown(value)} must be {self.meaning}")


class Items(NamedTuple):
    """How many values a tuple holds at least, and whether no two of them are alike."""

    least: int = 0
    distinct: bool = False

    def check(self, values: typing.Sequence[Any], path: str) -> None:
        """Raise UserError naming `path` for another tuple."""
        if len(values) < self.least:
            some = "a value" if self.least == 1 else f"{self.least} values"
            raise UserError(f"{path}={_shown(values)} must hold at least {some}")
        if self.distinct and len(set(values)) < len(values):
            raise UserError(f"{path}={_shown(values)} must hold different values")


Limit = Range | Above | HalfOpen | Matching | Items

Positive = Annotated[int, Range(1, _GREATEST)]
"""A number of things of which there is one."""
Count = Annotated[int, Range(0, _GREATEST)]
"""A number of things."""
Seed = Annotated[int, Range(0, 2**32 - 1)]
"""What random numbers are drawn from."""
Vocabulary = Annotated[int, Range(1, 2**24)]
"""A number of tokens: what trains a tokenizer takes memory for each before it has met one."""
Layers = Annotated[int, Range(1, 2**12)]
"""A number of layers: what is known of each is written down one by one before anything is computed."""
LayersIfAny = Annotated[int, Range(0, 2**12)]
"""A number of layers that may be 0."""
Heads = Annotated[int, Range(1, 2**12)]
"""A number of heads of one attention: each has a name in its maps."""
Hops = Annotated[int, Range(1, 2**12)]
"""A number of times that one attention is asked, each a layer to its maps."""
BatchRows = Annotated[int, Range(1, 2**20)]
"""A number of rows of a batch: the host makes arrays of as many."""
Examples = Annotated[int, Range(1, 2**22)]
"""A number of examples that are made, or asked for, one by one."""
ExamplesIfAny = Annotated[int, Range(0, 2**22)]
"""A number of such examples that may be 0: there are none then."""
Beams = Annotated[int, Range(1, 2**12)]
"""A number of hypotheses that a search keeps."""
Pixels = Annotated[int, Range(1, 2**12)]
"""The side of an image."""
DisplayedExampleCount = Annotated[int, Range(1, 2**16)]
"""A number of examples that a person looks at: each has maps of its own."""
Amount = Annotated[float, Range(0.0, math.inf)]
"""A quantity that is not negative."""
PositiveAmount = Annotated[float, Above(0.0)]
"""A quantity of which there is some."""
Share = Annotated[float, Range(0.0, 1.0)]
"""A part of a whole, a probability."""
Rate = Annotated[float, HalfOpen(0.0, 1.0)]
"""A part that is dropped, smoothed or replaced: never all of it."""
SplitName = Annotated[str, Matching("(?s).+", "the name of a split")]
"""A part of a dataset, by its name."""

# What arrays hold, where a field says nothing else: 32 bits.
_WHOLE = Range(-_GREATEST - 1, _GREATEST)
_LARGEST = 3.4e38
_LONGEST_SHOWN = 300  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Config:
    """A section of a config, or a part of one: its fields are checked whoever constructs it.

    What a field may be, its annotation says. What annotations cannot say, such as values that do not go together, a
    subclass refuses in `_check`. `path` is where the section stands in a config, for the messages:

        @dataclasses.dataclass(frozen=True)
        class SortingConfig(Config, path="config.task"):
            length: Positive = 8
    """

    _path: ClassVar[str] = ""

    def __init_subclass__(cls, path: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if path is not None:
            cls._path = path

    def __post_init__(self) -> None:
        within = f"{self._path}." if self._path else ""
        hints = _hints(typing.cast(type, type(self)))
        for field in dataclasses.fields(self):
            convert(hints[field.name], getattr(self, field.name), f"{within}{field.name}")
        self._check()

    def _check(self) -> None:
        """Raise UserError naming the keys and their values, where these do not go together."""


def from_config[T](cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Build the frozen dataclass `cls` from a nested mapping, checking every key and every type.

    Lists become tuples, integers serve as floats, strings name enum members by value.

    Raises:
        UserError: Naming the dotted key for an unknown key (with the nearest known one), a missing key without a
            default, a value of the wrong type, or one that `cls` itself refuses by a ValueError.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    within = f"{path}." if path else ""
    for key in values:
        if key not in fields:
            raise UserError(f"unknown key {within}{_cut(str(key))}: {nearest(str(key), fields)}")
    hints = _hints(typing.cast(type, cls))
    arguments = {}
    for name, field in fields.items():
        if name in values:
            arguments[name] = convert(hints[name], values[name], f"{within}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{within}{name} is missing: it has no default")
    try:
        return cls(**arguments)
    except UserError:
        raise
    except ValueError as error:
        # Attention and layers know nothing of configs: they name the field alone.
        named = str(error).partition("=")[0] in fields
        raise UserError(f"{within}{error}" if named else str(error)) from error


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def convert(hint: Any, value: Any, path: str, limits: tuple[Limit, ...] = ()) -> Any:
    """The value as the type `hint` of a dataclass's field has it: as `from_config` does for each of its keys.

    A number, a text or a tuple must be within all `limits`; a number without any, within what 32 bits hold.

    Raises:
        UserError: Naming `path` for a value of another type, and for one that is not within its limits.
    """
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        kind, *said = parameters
        return convert(kind, value, path, tuple(each for each in said if isinstance(each, Limit)))
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in parameters:
            return None
        *others, last = [p for p in parameters if p is not type(None)]
        for other in others:
            with contextlib.suppress(UserError):
                return convert(other, value, path)
        return convert(last, value, path)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_config(typing.cast(type, hint), value, path)
    if isinstance(value, (list, tuple)):
        if origin is tuple:
            kinds = (parameters[0],) * len(value) if parameters[-1] is Ellipsis else parameters
            items = tuple(_items(kinds, value, path))
            for each in limits:
                each.check(items, path)  # type: ignore[arg-type]
            return items
        if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
            return hint(*_items(tuple(_hints(hint).values()), value, path))
    if origin in (dict, Mapping):
        if isinstance(value, Mapping):
            return _entries(parameters, value, path)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if isinstance(value, hint):
            return value
        if isinstance(value, str):
            return choice(value, {str(member.value): member for member in hint}, path)
    elif hint in (int, float) and isinstance(value, (int, float)) and type(value) in (int, hint):
        return _number(hint, value, path, limits)
    elif isinstance(hint, type) and isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        if isinstance(value, str):
            return _text(value, path, limits)
        return value
    name = getattr(hint, "__name__", str(hint))
    raise UserError(f"{path}={_shown(value)} is a {type(value).__name__}; it must be a {name}")


def _items(kinds: tuple[Any, ...], values: typing.Sequence[Any], path: str) -> list[Any]:
    """Raise UserError naming `path` for another number of values than there are kinds, and as `convert`."""
    if len(kinds) != len(values):
        raise UserError(f"{path}={_shown(values)} has {len(values)} values; it must have {len(kinds)}")
    return [convert(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(kinds, values, strict=True))]


def _entries(kinds: tuple[Any, ...], values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Raise UserError naming `path` and the key, as `convert`."""
    if kinds[1] is Any:
        return dict(values.items())
    return {
        convert(kinds[0], key, f"a key of {path}"): convert(kinds[1], value, f"{path}[{key!r}]")
        for key, value in values.items()
    }


def _number(kind: type, value: float, path: str, limits: tuple[Limit, ...]) -> Any:
    """Raise UserError naming `path` for a number that is infinite or none, and for one out of its range."""
    if kind is float and not abs(value) <= _LARGEST:
        raise UserError(f"{path}={value!r} must be a finite number of 32 bits")
    for each in limits or ((_WHOLE,) if kind is int else ()):
        each.check(value, path)  # type: ignore[arg-type]
    return kind(value)


def _text(value: str, path: str, limits: tuple[Limit, ...]) -> str:
    """Raise UserError naming `path` for what is no text of UTF-8, and for one out of its limits."""
    wide = not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value)
    if wide or "\0" in value:
        raise UserError(f"{path}={_shown(value)} must be text of UTF-8 without null characters")
    for each in limits:
        each.check(value, path)  # type: ignore[arg-type]
    return value


def _shown(value: Any) -> str:
    """A value as a message shows it, the end of a long one left out."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def to_config(value: Any) -> Any:
    """The nested plain mapping of a dataclass, ready for JSON: the inverse of `from_config`."""
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
    """The SHA-256 of a config of plain values, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a nested config by dotted key; a list, and a group without keys, is one value."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


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
        milestone_every: Keep one checkpoint for good every so many steps. 0 keeps only the most recent ones.
        optimizers: By name of an objective, the keys of its optimizer that differ from `optimizer`.
        parameter_averages: Averages of the parameters (EMA or mean) by name.
        precision: The types of parameters and of computation.
        maps: The examples, size and budget of the stored attention maps.
        sharding: The device mesh and how arrays are partitioned over it.
        initialize_from: The run or published model whose parameters initialize this run.
        update_guard: When an update is skipped, and when the run stops.
        pod: The device topology that the run is meant for, such as "v5e:2x2"; `launch.compile` checks that it fits.
    """

    name: str
    task: Mapping[str, Any]
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    steps: Positive
    seed: Seed = 0
    num_microbatches: Positive = 1
    log_every: Positive = 50
    eval_every: Count = 500
    maps_every: Count = 500
    head_statistics_every: Count = 0
    checkpoint_every: Count = 500
    keep_checkpoints: Positive = 2
    permanent_checkpoint_every: Count = 0
    optimizers: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    parameter_averages: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    precision: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    maps: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sharding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    initialize_from: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    update_guard: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pod: str = ""

    def _check(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise UserError(
                f"config.name={self.name!r} must be one line of printable text: it is what the run is called"
            )
        if self.checkpoint_every % self.log_every:
            raise UserError(
                f"config.checkpoint_every={self.checkpoint_every} must be a multiple of "
                f"config.log_every={self.log_every}, so that a resumed run logs what an uninterrupted one would"
            )
        saved = self.checkpoint_every or self.steps
        if self.permanent_checkpoint_every % saved:
            raise UserError(
                f"config.permanent_checkpoint_every={self.permanent_checkpoint_every} must be 0 or a multiple "
                f"of the steps between two checkpoints, {saved}"
            )

    @property
    def probe_count(self) -> int:
        """How often the probe batch is mapped: before step 1, every `maps_every` steps and at the end."""
        return 1 + -(-self.steps // self.maps_every) if self.maps_every else 1
