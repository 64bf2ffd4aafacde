"""What the positions of a probe batch are called and show: what a map's axes are read with."""

import dataclasses
from collections.abc import Mapping, Sized
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8


class Link(NamedTuple):
    """A gold alignment of one query position with one key position; `sure` or else merely possible."""

    query: int
    key: int
    sure: bool


@dataclasses.dataclass(frozen=True)
class Labels:
    """The names of a probe batch's positions, kept on the host.

    `tokens` maps an axis name (as `Site.query.name` and `Site.key.name` say it) to the name of every position of
    each example at its true length, padding excluded. `titles` names the examples. `links` maps a site name to each
    example's gold links, where a truth is known. `periods` says of an example of random tokens after how many they
    repeat. `pictures` of a grid's name and `spectrograms` (log magnitudes, low frequencies first) of frames' show
    what the positions were cut from.

    Errors: ValueError where the parts disagree on the number of examples.
    """

    tokens: Mapping[str, tuple[tuple[str, ...], ...]]
    titles: tuple[str, ...]
    links: Mapping[str, tuple[tuple[Link, ...], ...]] | None = None
    periods: tuple[int | None, ...] | None = None
    pictures: Mapping[str, UInt8[np.ndarray, "B height width 3"]] = dataclasses.field(default_factory=dict)
    spectrograms: Mapping[str, Float[np.ndarray, "B bins time"]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        counted: dict[str, Sized] = {} if self.periods is None else {"periods": self.periods}
        for part in ("tokens", "links", "pictures", "spectrograms"):
            counted |= {f"{part}[{name!r}]": examples for name, examples in (getattr(self, part) or {}).items()}
        for part, examples in counted.items():
            if len(examples) != len(self.titles):
                raise ValueError(
                    f"{part} has {len(examples)} examples but titles has {len(self.titles)}: "
                    "give one of each for every example of the probe batch"
                )
