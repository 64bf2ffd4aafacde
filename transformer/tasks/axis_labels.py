"""Labels of the axes of attention maps: the names of positions, and the images or sounds that they show."""

import dataclasses
from collections.abc import Mapping, Sequence, Sized
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer.attention.sites import Site
from transformer.config import UserError

# The name of the token that precedes those of a delayed axis.
_BEGIN = "<begin>"


class GoldAlignment(NamedTuple):
    """A gold alignment of a query position with a key position.

    Attributes:
        query: The index of the query.
        key: The index of the key.
        sure: Whether the link is sure, or else merely possible (Och and Ney 2003).
    """

    query: int
    key: int
    sure: bool


@dataclasses.dataclass(frozen=True)
class AxisLabels:
    """The names of a probe batch's positions, kept on the host.

    Attributes:
        tokens: For each axis name (`Site.query.name`, `Site.key.name`) the name of every position of each example at
            its true length, padding excluded. An axis that names its own positions (`Axis.names`) may be left out.
        titles: The name of each example.
        gold_alignments: For each site name the gold alignments of each example, where they are known.
        periods: The period of each example of repeated random tokens, None for other examples.
        images: The images that the positions of an axis were cut from, by axis name: [B, height, width, 3]. Where every
            query sees an image of its own, as an agent does at each step, they are [B, queries, height, width, 3]; so
            are the images of a query axis that is not a grid, one for each position, which the page shows as they are.
        spectrograms: Log magnitudes by the name of the axis of frames, low frequencies first.
        gold_key_description: What a head reads that follows the gold alignments, as in "the antecedent".
        sounds: A WAV file for each example by the name of the axis of frames.

    Raises:
        ValueError: If the parts disagree on the number of examples.
    """

    tokens: Mapping[str, tuple[tuple[str, ...], ...]]
    titles: tuple[str, ...]
    gold_alignments: Mapping[str, tuple[tuple[GoldAlignment, ...], ...]] | None = None
    periods: tuple[int | None, ...] | None = None
    images: Mapping[str, UInt8[np.ndarray, "B *Q height width 3"]] = dataclasses.field(default_factory=dict)
    spectrograms: Mapping[str, Float[np.ndarray, "B bins time"]] = dataclasses.field(default_factory=dict)
    gold_key_description: str | None = None
    sounds: Mapping[str, tuple[bytes, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        counted: dict[str, Sized] = {} if self.periods is None else {"periods": self.periods}
        for part in ("tokens", "gold_alignments", "images", "spectrograms", "sounds"):
            counted |= {f"{part}[{name!r}]": examples for name, examples in (getattr(self, part) or {}).items()}
        for part, examples in counted.items():
            if len(examples) != len(self.titles):
                raise ValueError(
                    f"{part} has {len(examples)} examples but titles has {len(self.titles)}: "
                    "give one of each for every example of the probe batch"
                )

    def with_axis_names(self, sites: Sequence[Site]) -> "AxisLabels":
        """Return the labels with the names of the axes that name their own positions.

        Args:
            sites: The model's attention sites.

        Raises:
            UserError: If an axis has no names, a site of gold alignments does not exist, or a gold alignment lies
                outside of its axes.
        """
        tokens = dict(self.tokens)
        for site in sites:
            for axis in (site.query, site.key):
                own = axis.names()
                if axis.name not in tokens and axis.delayed_axis in tokens:
                    undelayed = tokens[axis.delayed_axis]
                    tokens[axis.name] = tuple((_BEGIN, *names[:-1])[: len(names)] for names in undelayed)
                if axis.name not in tokens and own is None:
                    raise UserError(
                        f"the site {site.name!r} has the axis {axis.name!r}, which nothing names: give "
                        f"AxisLabels.tokens[{axis.name!r}] (it has {sorted(self.tokens)}), or the axis a size or shape"
                    )
                if own is not None:
                    tokens.setdefault(axis.name, (own,) * len(self.titles))
        labels = dataclasses.replace(self, tokens=tokens)
        labels._check_links({site.name: site for site in sites})
        return labels

    def _check_links(self, sites: Mapping[str, Site]) -> None:
        for name, links_by_example in (self.gold_alignments or {}).items():
            if name not in sites:
                raise UserError(
                    f"gold alignments are of the site {name!r}, which the model lacks: it has {sorted(sites)}"
                )
            axes = sites[name].query.name, sites[name].key.name
            for example, links in enumerate(links_by_example):
                queries, keys = (len(self.tokens[axis][example]) for axis in axes)
                for link in links:
                    if not (0 <= link.query < queries and 0 <= link.key < keys):
                        raise UserError(
                            f"the gold alignment {tuple(link)} of example {example} at the site {name!r} lies outside "
                            f"of its {queries} positions of {axes[0]!r} and {keys} of {axes[1]!r}"
                        )
