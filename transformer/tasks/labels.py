"""What the positions of a probe batch are called: the words that a map's axes are read with."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple


class Link(NamedTuple):
    """A gold alignment of one query position with one key position; `sure` or else merely possible."""

    query: int
    key: int
    sure: bool


@dataclasses.dataclass(frozen=True)
class Labels:
    """The names of a probe batch's positions, kept on the host.

    `tokens` maps an axis name (as `Site.query.name` and `Site.key.name` say it) to the token strings of
    each example at their true lengths, padding excluded. `titles` names the examples. `links` maps a site
    name to each example's gold links, where a truth is known.

    Errors: ValueError where the parts disagree on the number of examples.
    """

    tokens: Mapping[str, tuple[tuple[str, ...], ...]]
    titles: tuple[str, ...]
    links: Mapping[str, tuple[tuple[Link, ...], ...]] | None = None

    def __post_init__(self) -> None:
        for part, table in (("tokens", self.tokens), ("links", self.links or {})):
            for name, examples in table.items():
                if len(examples) != len(self.titles):
                    raise ValueError(
                        f"{part}[{name!r}] has {len(examples)} examples but titles has {len(self.titles)}: "
                        "give one of each for every example of the probe batch"
                    )
