"""Search spaces, built in a config file's `get_sweep(sweep)` from choice, uniform, log_uniform, product and others.

    def get_sweep(sweep):
        return sweep.product(
            sweep.choice("model.norm_placement", ["pre", "post"]),
            sweep.log_uniform("optimizer.learning_rate", 1e-4, 1e-2),
        )

A point of a space is a set of overrides: dotted keys of the config (without "config.") and their values. The points of
a finite space are numbered. They are not listed, since a space of a few seeds and integers may have billions of them.
"""

import abc
import dataclasses
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from transformer.config import UserError

Overrides = dict[str, Any]


class SearchSpace(abc.ABC):
    """A set of points, each a set of overrides."""

    @property
    @abc.abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The config keys that any of its points sets."""

    @property
    @abc.abstractmethod
    def num_points(self) -> int | None:
        """The number of points; None for an infinite space."""

    @abc.abstractmethod
    def get_point(self, number: int) -> Overrides:
        """Return a point of a finite space by its number from 0; the last member of a product changes fastest."""

    @abc.abstractmethod
    def describe(self) -> Any:
        """Return the space as plain values; equal spaces have equal descriptions."""

    def sample(self, generator: random.Random) -> Overrides:
        """Draw a point at random; overridden where the points have no numbers."""
        assert self.num_points is not None
        return self.get_point(generator.randrange(self.num_points))


@dataclasses.dataclass(frozen=True)
class Choice(SearchSpace):
    """One key and the values to choose from."""

    key: str
    values: tuple[Any, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def num_points(self) -> int:
        return len(self.values)

    def get_point(self, number: int) -> Overrides:
        return {self.key: self.values[number]}

    def describe(self) -> Any:
        return {"choice": {self.key: json.loads(to_json(self.values))}}


@dataclasses.dataclass(frozen=True)
class Uniform(SearchSpace):
    """One key and a range of numbers, on a logarithmic scale if `log`."""

    key: str
    low: float
    high: float
    log: bool

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def num_points(self) -> None:
        return None

    def get_point(self, number: int) -> Overrides:
        raise ValueError(f"the points of {self.key} cannot be counted")

    def describe(self) -> Any:
        return {"log_uniform" if self.log else "uniform": {self.key: [self.low, self.high]}}

    def sample(self, generator: random.Random) -> Overrides:
        """Draw uniformly, or uniformly in the logarithm; never outside of the range by rounding."""
        if not self.log:
            return {self.key: generator.uniform(self.low, self.high)}
        number = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return {self.key: min(max(number, self.low), self.high)}


@dataclasses.dataclass(frozen=True)
class Integers(SearchSpace):
    """One key and the whole numbers from `low` to `high`, both included."""

    key: str
    low: int
    high: int

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def num_points(self) -> int:
        return self.high - self.low + 1

    def get_point(self, number: int) -> Overrides:
        return {self.key: self.low + number}

    def describe(self) -> Any:
        return {"integers": {self.key: [self.low, self.high]}}


@dataclasses.dataclass(frozen=True)
class Product(SearchSpace):
    """The Cartesian product of spaces, whose keys differ."""

    spaces: tuple[SearchSpace, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for space in self.spaces for key in space.keys)

    @property
    def num_points(self) -> int | None:
        sizes = [space.num_points for space in self.spaces]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def get_point(self, number: int) -> Overrides:
        parts = []
        for space in reversed(self.spaces):
            assert space.num_points is not None
            number, position = divmod(number, space.num_points)
            parts.append(space.get_point(position))
        return merge_overrides(reversed(parts))

    def describe(self) -> Any:
        return {"product": [space.describe() for space in self.spaces]}

    def sample(self, generator: random.Random) -> Overrides:
        return merge_overrides(space.sample(generator) for space in self.spaces)


@dataclasses.dataclass(frozen=True)
class Zip(SearchSpace):
    """Finite spaces of one size, point by point: the first points together, then the second, and so on."""

    spaces: tuple[SearchSpace, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for space in self.spaces for key in space.keys)

    @property
    def num_points(self) -> int:
        size = self.spaces[0].num_points
        assert size is not None
        return size

    def get_point(self, number: int) -> Overrides:
        return merge_overrides(space.get_point(number) for space in self.spaces)

    def describe(self) -> Any:
        return {"zip": [space.describe() for space in self.spaces]}


@dataclasses.dataclass(frozen=True)
class Chain(SearchSpace):
    """The points of one space, then those of the next."""

    spaces: tuple[SearchSpace, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for space in self.spaces for key in space.keys))

    @property
    def num_points(self) -> int | None:
        sizes = [space.num_points for space in self.spaces]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def get_point(self, number: int) -> Overrides:
        for space in self.spaces:
            assert space.num_points is not None
            if number < space.num_points:
                return space.get_point(number)
            number -= space.num_points
        raise IndexError(number)

    def describe(self) -> Any:
        return {"chain": [space.describe() for space in self.spaces]}

    def sample(self, generator: random.Random) -> Overrides:
        """Draw a member, each as likely as the others, then a point of it."""
        return generator.choice(self.spaces).sample(generator)


class SearchSpaceBuilder:
    """The `sweep` of a config file's `get_sweep(sweep)`: each method builds a space."""

    def choice(self, key: str, values: Iterable[Any]) -> SearchSpace:
        """Build a space of one key and its values.

        Args:
            key: The dotted key of the config, without "config.".
            values: The values; a dict replaces a whole group.

        Returns:
            The space.

        Raises:
            UserError: If the key is malformed, or the values are no list, empty, repeated or no config values.
        """
        if isinstance(values, Set):
            raise UserError(f"choice({key!r}, {values!r}): a set has no order; give a list, as sorted(...)")
        if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
            raise UserError(f"choice({key!r}, {values!r}): give a list of values, as [{values!r}]")
        options = tuple(values)
        if not options:
            raise UserError(f"choice({key!r}) is empty: give it at least one value")
        plain = [to_json(value, key) for value in options]
        for value in plain:
            if plain.count(value) > 1:
                raise UserError(f"choice({key!r}) has {value} twice: name each value once")
        return Choice(_check_key(key), options)

    def log_uniform(self, key: str, low: float, high: float) -> SearchSpace:
        """Build a space of one key and the numbers from `low` to `high`, uniform in their logarithm.

        Args:
            key: The dotted key of the config, without "config.".
            low: The lower bound, above 0.
            high: The upper bound.

        Returns:
            The space.

        Raises:
            UserError: If the key is malformed, `low` is not positive, or the bounds are not finite and ascending.
        """
        _check_range("log_uniform", key, low, high)
        if low <= 0:
            raise UserError(f"log_uniform({key!r}, {low!r}, {high!r}): low must be above 0, or say uniform")
        return Uniform(_check_key(key), float(low), float(high), log=True)

    def uniform(self, key: str, low: float, high: float) -> SearchSpace:
        """Build a space of one key and the numbers from `low` to `high`.

        Args:
            key: The dotted key of the config, without "config.".
            low: The lower bound.
            high: The upper bound.

        Returns:
            The space.

        Raises:
            UserError: If the key is malformed, or the bounds are not finite and ascending.
        """
        _check_range("uniform", key, low, high)
        return Uniform(_check_key(key), float(low), float(high), log=False)

    def integers(self, key: str, low: int, high: int) -> SearchSpace:
        """Build a space of one key and the whole numbers from `low` to `high`, both included.

        Args:
            key: The dotted key of the config, without "config.".
            low: The smallest number.
            high: The largest number.

        Returns:
            The space.

        Raises:
            UserError: If the key is malformed, or the bounds are not whole numbers and ascending.
        """
        _check_range("integers", key, low, high)
        if not isinstance(low, int) or not isinstance(high, int):
            raise UserError(f"integers({key!r}, {low!r}, {high!r}): both ends must be whole numbers")
        return Integers(_check_key(key), low, high)

    def product(self, *spaces: SearchSpace) -> SearchSpace:
        """Combine every point of each space with every point of the others.

        Raises:
            UserError: If there is no space, or two of them set the same key.
        """
        return Product(_check_disjoint("product", spaces))

    def zip(self, *spaces: SearchSpace) -> SearchSpace:
        """Combine finite spaces of one size point by point.

        Raises:
            UserError: If there is no space, two of them set the same key, or one is infinite or of another size.
        """
        members = _check_disjoint("zip", spaces)
        for space in members:
            if space.num_points is None:
                raise UserError(f"zip: {', '.join(space.keys)} has no number of values; zip takes choice and integers")
        sizes = {", ".join(space.keys): space.num_points for space in members}
        if len(set(sizes.values())) > 1:
            lengths = " and ".join(f"{size} of {name}" for name, size in sizes.items())
            raise UserError(f"zip of unequal lengths: {lengths}; give each as many values as the others")
        return Zip(members)

    def chain(self, *spaces: SearchSpace) -> SearchSpace:
        """Join spaces: the points of one, then those of the next.

        Raises:
            UserError: If there is no space.
        """
        return Chain(_check_spaces("chain", spaces))


def random_permutation(size: int, seed: int) -> Iterator[int]:
    """Yield the numbers below `size` in random order, by a Fisher-Yates shuffle that stores only what has moved.

    Args:
        size: How many numbers there are.
        seed: The seed, on which alone the order depends, however many numbers are taken.

    Yields:
        The numbers.
    """
    chance, moved = random.Random(seed), dict[int, int]()
    for position in range(size):
        swap = chance.randrange(position, size)
        yield moved.get(swap, swap)
        moved[swap] = moved.pop(position, position)


def _check_key(key: str) -> str:
    if not isinstance(key, str) or not all(key.split(".")):
        raise UserError(f"{key!r} is no key: write a dotted key of the config, as 'optimizer.learning_rate'")
    if key.startswith("config."):
        raise UserError(f"the key {key!r} is written without 'config.' in a sweep: {key.removeprefix('config.')!r}")
    return key


def _check_range(name: str, key: str, low: Any, high: Any) -> None:
    call = f"{name}({key!r}, {low!r}, {high!r})"
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
            raise UserError(f"{call}: {bound!r} is no finite number")
    if low >= high:
        raise UserError(f"{call}: low must be below high")


def _check_spaces(name: str, spaces: tuple[SearchSpace, ...]) -> tuple[SearchSpace, ...]:
    if not spaces:
        raise UserError(f"{name}() is empty: give it at least one space, as sweep.choice(KEY, VALUES)")
    for space in spaces:
        if not isinstance(space, SearchSpace):
            raise UserError(f"{name}: {space!r} is no space; make one with sweep.choice(KEY, VALUES)")
    return spaces


def _check_disjoint(name: str, spaces: tuple[SearchSpace, ...]) -> tuple[SearchSpace, ...]:
    """Return spaces that are set together, none of which may set a key of another."""
    used_keys: set[str] = set()
    for space in _check_spaces(name, spaces):
        for key in space.keys:
            if key in used_keys:
                raise UserError(f"{name}: {key!r} is set twice; give all its values to one of them, or use chain")
        used_keys |= set(space.keys)
    return spaces


def merge_overrides(parts: Iterable[Overrides]) -> Overrides:
    """Return the overrides of all parts, whose keys differ."""
    return {key: value for part in parts for key, value in part.items()}


def to_json(value: Any, key: str = "") -> str:
    """Return a value as JSON text, equal for equal values."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"choice({key!r}): {value!r} cannot be written down as a config value ({error})") from None
