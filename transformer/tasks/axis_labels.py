"""Labels of the axes of maps: the names of a probe batch's positions, and the images or sounds that they show."""

import dataclasses
from collections.abc import Mapping, Sequence, Sized
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer.attention.sites import Site
from transformer.config import UserError


class GoldLink(NamedTuple):
    """A gold alignment of one query position with one key position; `sure` or else merely possible."""

    query: int
    key: int
    sure: bool


@dataclasses.dataclass(frozen=True)
class AxisLabels:
    """The names of a probe batch's positions, kept on the host.

    `tokens` maps an axis name (as `Site.query.name` and `Site.key.name` say it) to the name of every position of
    each example at its true length, padding excluded; an axis that names its positions itself (`Axis.names`) may be
    left out. `titles` names the examples. `links` maps a site name to each example's gold links, where they are known
    (transformer.attention.sites.sites_between finds them); `linked` says what a head reads that follows
    them, as in "the antecedent". `periods` gives the period of each example of
    repeated random tokens. `images` maps the axis of a grid, and `spectrograms` (log magnitudes, low frequencies
    first) that of frames, to the examples that the positions were cut from; `sounds` has a WAV file of each example of
    frames. Where every query sees an image of its own, as an agent does at each step, images are
    [B, queries, height, width, 3]; so are those of an axis of queries that is no grid, an image for each of its
    positions, which the page shows as they are.

    Raises:
        ValueError: If the parts disagree on the number of examples.
    """

    tokens: Mapping[str, tuple[tuple[str, ...], ...]]
    titles: tuple[str, ...]
    links: Mapping[str, tuple[tuple[GoldLink, ...], ...]] | None = None
    periods: tuple[int | None, ...] | None = None
    images: Mapping[str, UInt8[np.ndarray, "B *Q height width 3"]] = dataclasses.field(default_factory=dict)
    spectrograms: Mapping[str, Float[np.ndarray, "B bins time"]] = dataclasses.field(default_factory=dict)
    linked: str | None = None
    sounds: Mapping[str, tuple[bytes, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        counted: dict[str, Sized] = {} if self.periods is None else {"periods": self.periods}
        for part in ("tokens", "links", "images", "spectrograms", "sounds"):
            counted |= {f"{part}[{name!r}]": examples for name, examples in (getattr(self, part) or {}).items()}
        for part, examples in counted.items():
            if len(examples) != len(self.titles):
                raise ValueError(
                    f"{part} has {len(examples)} examples but titles has {len(self.titles)}: "
                    "give one of each for every example of the probe batch"
                )

    def completed(self, sites: Sequence[Site]) -> "AxisLabels":
        """The labels with the names of the axes that name themselves.

        Raises:
            UserError: Naming the site and the axis for an axis without names, for gold links of a site that the model
                does not have, and for links that lie outside of their axes.
        """
        tokens = dict(self.tokens)
        for site in sites:
            for axis in (site.query, site.key):
                own = axis.names()
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
        for name, examples in (self.links or {}).items():
            if name not in sites:
                raise UserError(f"gold links are of the site {name!r}, which the model lacks: it has {sorted(sites)}")
            axes = sites[name].query.name, sites[name].key.name
            for example, links in enumerate(examples):
                queries, keys = (len(self.tokens[axis][example]) for axis in axes)
                for link in links:
                    if not (0 <= link.query < queries and 0 <= link.key < keys):
                        raise UserError(
                            f"the gold link {tuple(link)} of example {example} at the site {name!r} lies outside of "
                            f"its {queries} positions of {axes[0]!r} and {keys} of {axes[1]!r}"
                        )
