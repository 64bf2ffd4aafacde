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
from transformer.tasks.contract import Batch
from transformer.tasks.described import Described, known
from transformer.tasks.labels import Labels, Link
from transformer.tasks.looking import LOOKED


class DescribedPictures(Described, abc.ABC):
    """Pictures of `size` x `size` pixels in batches of `rows`, descriptions of at most `longest` of the `symbols`.

    A batch has `picture`, `target`, which the decoder reads, `labels`, which it is to say, one step ahead, and what
    `links` needs. In a line of text `separator` stands between symbols.

    A task adds `source`, `evaluations` and `links`, and calls `show` with the batch whose maps are stored.
    """

    def __init__(
        self, name: str, symbols: Sequence[str], longest: int, *, size: int, rows: int, beams: int, separator: str
    ):
        super().__init__(
            name,
            symbols,
            longest,
            inputs={"picture": Input((rows, size, size, 3), jnp.float32, Modality.PICTURE)},
            signature=CAPTIONING,
            vocabulary="target",
            beams=beams,
            separator=separator,
        )

    @abc.abstractmethod
    def links(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[Link, ...], ...]:
        """For each picture which places each symbol is about."""

    def describe(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> Labels:
        """The symbols and pictures of a batch, and the places that each symbol is about."""
        looked, pictures = between(sites, *LOOKED), unscaled(batch["picture"])
        gold = known({site.name: self.links(batch, site) for site in looked}, right_B)
        grids = {site.key.name: pictures for site in looked}
        steps = {"target": self.steps_of(batch)}
        return Labels(steps, tuple(self.lines(batch["labels"])), gold or None, pictures=grids)


def inputs_of(batch: Batch) -> dict[str, Any]:
    """What of a batch the model reads."""
    return {name: batch[name] for name in ("picture", "target")}
