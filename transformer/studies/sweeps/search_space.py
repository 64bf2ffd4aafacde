"""Spaces of overrides: what `get_sweep(sweep)` in a config file makes of product, zip, chain, choice and log_uniform.

    def get_sweep(sweep):
        return sweep.product(
            sweep.choice("model.norm_placement", ["pre", "post"]),
            sweep.log_uniform("optimizer.learning_rate", 1e-4, 1e-2),
        )

A space yields overrides: dotted keys of the config (without "config.") and their values. A finite space numbers its
points; every space can be drawn from, asking at each place that has something to decide.
"""

import dataclasses
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Protocol

from transformer.config import UserError

Overrides = dict[str, Any]
SampledValues = dict[str, Any]  # by the name that was asked: a label, or a number


class Sampler(Protocol):
    """What draws a value of a space: a random generator, or a sampler that learns from earlier trials.

    `name` is one place of the space; the same place is always asked by the same name.
    """

    def index(self, name: str, labels: tuple[str, ...]) -> int:
        """Which of the labeled possibilities."""

    def number(self, name: str, low: float, high: float, log: bool) -> float:
        """A number between two others, on a logarithmic scale or a plain one."""

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number, both ends included."""


class SearchSpace(Protocol):
    """A set of overrides."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that any of its points sets."""

    @property
    def size(self) -> int | None:
        """How many points it has; None: without end."""

    def point(self, number: int) -> Overrides:
        """One of the points of a finite space, counted from 0; the last member of a product changes fastest."""

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        """A point as `ask` decides."""

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        """The answers of an `Sampler` with which `draw` gives these overrides; None where none do.

        Keys that the space does not set are nothing to it.
        """

    def describe(self) -> Any:
        """The space as plain values: equal ones are equal spaces."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One key and its values."""

    key: str
    values: tuple[Any, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def size(self) -> int:
        return len(self.values)

    def point(self, number: int) -> Overrides:
        return {self.key: self.values[number]}

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        return self.point(ask.index(place + self.key, tuple(map(_plain, self.values))))

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        label = _plain(overrides[self.key]) if self.key in overrides else ""
        return {place + self.key: label} if label in map(_plain, self.values) else None

    def describe(self) -> Any:
        return {"choice": {self.key: json.loads(_plain(self.values))}}


@dataclasses.dataclass(frozen=True)
class Uniform:
    """One key and the numbers between two others; of `log`, 1e-4 to 1e-3 as often as 1e-3 to 1e-2."""

    key: str
    low: float
    high: float
    log: bool

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def size(self) -> None:
        return None

    def point(self, number: int) -> Overrides:
        raise ValueError(f"the points of {self.key} cannot be counted")

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        return {self.key: ask.number(place + self.key, self.low, self.high, self.log)}

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        value = overrides.get(self.key)
        return {place + self.key: value} if isinstance(value, float) and self.low <= value <= self.high else None

    def describe(self) -> Any:
        return {"log_uniform" if self.log else "uniform": {self.key: [self.low, self.high]}}


@dataclasses.dataclass(frozen=True)
class Integers:
    """One key and the whole numbers from `low` to `high`, both included."""

    key: str
    low: int
    high: int

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def point(self, number: int) -> Overrides:
        return {self.key: self.low + number}

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        return {self.key: ask.integer(place + self.key, self.low, self.high)}

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        value = overrides.get(self.key)
        return {place + self.key: value} if type(value) is int and self.low <= value <= self.high else None

    def describe(self) -> Any:
        return {"integers": {self.key: [self.low, self.high]}}


@dataclasses.dataclass(frozen=True)
class Product:
    """Every point of one with every point of the others."""

    spaces: tuple[SearchSpace, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for space in self.spaces for key in space.keys)

    @property
    def size(self) -> int | None:
        sizes = [space.size for space in self.spaces]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def point(self, number: int) -> Overrides:
        parts = []
        for space in reversed(self.spaces):
            assert space.size is not None
            number, position = divmod(number, space.size)
            parts.append(space.point(position))
        return {key: value for part in reversed(parts) for key, value in part.items()}

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        """A draw of each member; their keys differ, so a place needs no more than its key."""
        return {key: value for space in self.spaces for key, value in space.draw(ask, place).items()}

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        parts = [space.answers(overrides, place) for space in self.spaces]
        known = [part for part in parts if part is not None]
        return {name: answer for part in known for name, answer in part.items()} if len(known) == len(parts) else None

    def describe(self) -> Any:
        return {"product": [space.describe() for space in self.spaces]}


@dataclasses.dataclass(frozen=True)
class Zip:
    """The first point of one with the first of the others, the second with the second, and so on."""

    spaces: tuple[SearchSpace, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for space in self.spaces for key in space.keys)

    @property
    def size(self) -> int:
        size = self.spaces[0].size
        assert size is not None
        return size

    def point(self, number: int) -> Overrides:
        return {key: value for space in self.spaces for key, value in space.point(number).items()}

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        labels = tuple(_plain(self.point(number)) for number in range(self.size))
        return self.point(ask.index(place + "+".join(self.keys), labels))

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        label = _plain({key: overrides[key] for key in self.keys if key in overrides})
        labels = [_plain(self.point(number)) for number in range(self.size)]
        return {place + "+".join(self.keys): label} if label in labels else None

    def describe(self) -> Any:
        return {"zip": [space.describe() for space in self.spaces]}


@dataclasses.dataclass(frozen=True)
class Chain:
    """The points of one, then those of the next."""

    spaces: tuple[SearchSpace, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for space in self.spaces for key in space.keys))

    @property
    def size(self) -> int | None:
        sizes = [space.size for space in self.spaces]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def point(self, number: int) -> Overrides:
        for space in self.spaces:
            assert space.size is not None
            if number < space.size:
                return space.point(number)
            number -= space.size
        raise IndexError(number)

    def draw(self, ask: Sampler, place: str = "") -> Overrides:
        """Which member, then a draw of it; each is another place, also where they share keys."""
        where = self._where(place)
        member = ask.index(where, self._members())
        return self.spaces[member].draw(ask, f"{where}[{member}]/")

    def answers(self, overrides: Mapping[str, Any], place: str = "") -> SampledValues | None:
        """Those of the first member that sets the keys of the chain which the overrides have, and no more."""
        where = self._where(place)
        wanted = {key: overrides[key] for key in self.keys if key in overrides}
        for member, space in enumerate(self.spaces):
            inner = space.answers(overrides, f"{where}[{member}]/")
            if inner is not None:
                answers = {where: self._members()[member], **inner}
                if _plain(self.draw(_FixedSampler(answers), place)) == _plain(wanted):
                    return answers
        return None

    def _where(self, place: str) -> str:
        return f"{place}chain({'+'.join(self.keys)})"

    def _members(self) -> tuple[str, ...]:
        return tuple(f"{number}: {','.join(space.keys)}" for number, space in enumerate(self.spaces))

    def describe(self) -> Any:
        return {"chain": [space.describe() for space in self.spaces]}


class SearchSpaceBuilder:
    """What a config file's `get_sweep(sweep)` is given: each method makes a space.

    Raises:
        UserError: Each UserError is one line that names the key or the sizes at fault.
    """

    def choice(self, key: str, values: Iterable[Any]) -> SearchSpace:
        """One key with each of its values; a dict replaces a whole group."""
        if isinstance(values, Set):
            raise UserError(f"choice({key!r}, {values!r}): a set has no order; give a list, as sorted(...)")
        if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
            raise UserError(f"choice({key!r}, {values!r}): give a list of values, as [{values!r}]")
        tried = tuple(values)
        if not tried:
            raise UserError(f"choice({key!r}) is empty: give it at least one value")
        plain = [_plain(value, key) for value in tried]
        for value in plain:
            if plain.count(value) > 1:
                raise UserError(f"choice({key!r}) has {value} twice: name each value once")
        return Choice(_key(key), tried)

    def log_uniform(self, key: str, low: float, high: float) -> SearchSpace:
        """One key with the numbers from low to high, each order of magnitude as likely as another."""
        _ordered("log_uniform", key, low, high)
        if low <= 0:
            raise UserError(f"log_uniform({key!r}, {low!r}, {high!r}): low must be above 0, or say uniform")
        return Uniform(_key(key), float(low), float(high), log=True)

    def uniform(self, key: str, low: float, high: float) -> SearchSpace:
        """One key with the numbers from low to high."""
        _ordered("uniform", key, low, high)
        return Uniform(_key(key), float(low), float(high), log=False)

    def integers(self, key: str, low: int, high: int) -> SearchSpace:
        """One key with the whole numbers from low to high, both included."""
        _ordered("integers", key, low, high)
        if not isinstance(low, int) or not isinstance(high, int):
            raise UserError(f"integers({key!r}, {low!r}, {high!r}): both ends must be whole numbers")
        return Integers(_key(key), low, high)

    def product(self, *spaces: SearchSpace) -> SearchSpace:
        """Every point of one space with every point of the others."""
        return Product(_joined("product", spaces))

    def zip(self, *spaces: SearchSpace) -> SearchSpace:
        """The points of finite spaces of one size, side by side."""
        members = _joined("zip", spaces)
        for space in members:
            if space.size is None:
                raise UserError(f"zip: {', '.join(space.keys)} has no number of values; zip takes choice and integers")
        sizes = {", ".join(space.keys): space.size for space in members}
        if len(set(sizes.values())) > 1:
            said = " and ".join(f"{size} of {name}" for name, size in sizes.items())
            raise UserError(f"zip of unequal lengths: {said}; give each as many values as the others")
        return Zip(members)

    def chain(self, *spaces: SearchSpace) -> SearchSpace:
        """The points of one space, then those of the next."""
        return Chain(_members("chain", spaces))


def random_permutation(size: int, seed: int) -> Iterator[int]:
    """The numbers below `size` in an order that the seed fixes, whatever how many of them are taken.

    Fisher and Yates's shuffle, remembering only what has moved.
    """
    chance, moved = random.Random(seed), dict[int, int]()
    for position in range(size):
        other = chance.randrange(position, size)
        yield moved.get(other, other)
        moved[other] = moved.pop(position, position)


@dataclasses.dataclass(frozen=True)
class RandomSampler:
    """Draws at random."""

    source: random.Random

    def index(self, name: str, labels: tuple[str, ...]) -> int:
        return self.source.randrange(len(labels))

    def number(self, name: str, low: float, high: float, log: bool) -> float:
        """Uniform, or uniform in the logarithm; never outside by a rounding."""
        if log:
            return min(max(math.exp(self.source.uniform(math.log(low), math.log(high))), low), high)
        return self.source.uniform(low, high)

    def integer(self, name: str, low: int, high: int) -> int:
        return self.source.randint(low, high)


@dataclasses.dataclass(frozen=True)
class _FixedSampler:
    """Draws what was answered before."""

    answers: SampledValues

    def index(self, name: str, labels: tuple[str, ...]) -> int:
        return labels.index(self.answers[name])

    def number(self, name: str, low: float, high: float, log: bool) -> float:
        return self.answers[name]

    def integer(self, name: str, low: int, high: int) -> int:
        return self.answers[name]


def _key(key: str) -> str:
    if not isinstance(key, str) or not all(key.split(".")):
        raise UserError(f"{key!r} is no key: write a dotted key of the config, as 'optimizer.learning_rate'")
    if key.startswith("config."):
        raise UserError(f"the key {key!r} is written without 'config.' in a sweep: {key.removeprefix('config.')!r}")
    return key


def _ordered(name: str, key: str, low: Any, high: Any) -> None:
    said = f"{name}({key!r}, {low!r}, {high!r})"
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
            raise UserError(f"{said}: {bound!r} is no finite number")
    if low >= high:
        raise UserError(f"{said}: low must be below high")


def _members(name: str, spaces: tuple[SearchSpace, ...]) -> tuple[SearchSpace, ...]:
    if not spaces:
        raise UserError(f"{name}() is empty: give it at least one space, as sweep.choice(KEY, VALUES)")
    for space in spaces:
        if not isinstance(space, (Choice, Uniform, Integers, Product, Zip, Chain)):
            raise UserError(f"{name}: {space!r} is no space; make one with sweep.choice(KEY, VALUES)")
    return spaces


def _joined(name: str, spaces: tuple[SearchSpace, ...]) -> tuple[SearchSpace, ...]:
    """Members that are set at once: no key may be set by two of them."""
    seen: set[str] = set()
    for space in _members(name, spaces):
        for key in space.keys:
            if key in seen:
                raise UserError(f"{name}: {key!r} is set twice; give all its values to one of them, or use chain")
        seen |= set(space.keys)
    return spaces


def _plain(value: Any, key: str = "") -> str:
    """A value as JSON, in which equal values are equal."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"choice({key!r}): {value!r} cannot be written down as a config value ({error})") from None
