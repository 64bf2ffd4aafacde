"""What tasks share in which a picture is described symbol by symbol, each said while a part of it is looked at."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from transformer.attention.sites import Site, between
from transformer.data.pictures import unscaled
from transformer.models.interface import CAPTIONING, Input, Modality
from transformer.tasks.contract import Answers, Batch, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels, Link
from transformer.tasks.looking import LOOKED
from transformer.tasks.plain import look_over
from transformer.tasks.symbol_sequences import SymbolSequences, links_of_right


class DescribedPictures(SymbolSequences, abc.ABC):
    """Pictures of `size` x `size` pixels in batches of `rows`, descriptions of at most `longest` of the `symbols`.

    A batch has `picture` and the sequences of transformer.tasks.symbol_sequences, and what `links` needs.

    A task adds `source`, `evaluations` and `links`, and calls `show` with the batch whose maps are stored.
    """

    def __init__(
        self, name: str, symbols: Sequence[str], longest: int, *, size: int, rows: int, beams: int, separator: str
    ):
        given = {"picture": Input((rows, size, size, 3), jnp.float32, Modality.PICTURE)}
        options: dict[str, Any] = {"rows": rows, "beams": beams, "separator": separator}
        super().__init__(name, symbols, longest, given, output=CAPTIONING.output, **options)

    @abc.abstractmethod
    def links(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[Link, ...], ...]:
        """For each picture which places each symbol is about."""

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The symbols and pictures of the probe, and the places that each symbol is about."""
        return self._describe(self.shown, sites)

    def _describe(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> Labels:
        """Of descriptions that are not `right` it is not known what their symbols are about."""
        steps = tuple(map(self.steps_of, batch["labels"]))
        looked, pictures = between(sites, *LOOKED), unscaled(batch["picture"])
        gold = {site.name: self.links(batch, site) for site in looked}
        if right_B is not None:
            gold = {name: links_of_right(links, right_B) for name, links in gold.items()}
        grids = {site.key.name: pictures for site in looked}
        return Labels({"target": steps}, tuple(self.lines(batch["labels"])), gold or None, pictures=grids)

    def answers(self, view: View, batch: Mapping[str, np.ndarray], decoding: Decoding) -> Answers:
        """What the model says of the pictures of a batch, beside what is true of them."""
        said = self.say(view, batch, decoding)
        right_B = (said["labels"] == batch["labels"]).all(axis=1)
        labels = self._describe(said, view.model.sites, right_B)
        return Answers(self.lines(said["labels"]), labels, look_over(view, self.inputs_of(said)))


def inputs_of(batch: Batch) -> dict[str, Any]:
    """What of a batch the model reads."""
    return {name: batch[name] for name in ("picture", "target")}
