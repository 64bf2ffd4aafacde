"""Capture: which maps and head statistics are asked for of a forward pass, and what it returns of them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.arguments import shown
from transformer.attention.fields import pytree, static
from transformer.attention.pooling import block_of
from transformer.attention.statistics import Statistic


@pytree
class Capture:
    """A request, static but for its switch: the sites whose maps or head statistics are wanted.

    `maps`: the weights of the chosen `layers`, `heads` and query `rows` (None: all of them; a number: so many, evenly
    spaced). `cells`: a map with more positions a side than that is `pooled` to as many cells or fewer, and its
    `weights` are those of the chosen rows alone; `top`: of such a map also the largest so many weights of each row.
    `statistics`: of every head and layer, as sums over the rows that count, `by_example` or over the whole batch.
    `norms` and `vectors`: what the weights weigh and are made of, of every layer and head (`Captured`); whole, so for
    a few short texts alone, and whatever `observe` says.

    `observe`: a traced switch; where it is False everything captured is zero and costs next to nothing, and turning
    it compiles nothing anew.
    """

    sites: tuple[str, ...] = static()
    layers: tuple[int, ...] | None = static(default=None)
    heads: tuple[int, ...] | None = static(default=None)
    rows: tuple[int, ...] | int | None = static(default=None)
    maps: bool = static(default=True)
    cells: int | None = static(default=None)
    top: int = static(default=0)
    statistics: tuple[Statistic, ...] = static(default=())
    by_example: bool = static(default=False)
    norms: bool = static(default=False)
    vectors: bool = static(default=False)
    observe: Bool[Array, ""] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sites, str):
            raise TypeError(f"sites is {self.sites!r}, a string; give a tuple of names, ({self.sites!r},)")
        for statistic in self.statistics:
            if not isinstance(statistic, Statistic):
                raise TypeError(
                    f"statistics holds {shown(statistic)}; give instances of Expectation, Mass or Reduction, such as "
                    "STATISTICS['entropy']"
                )
        names = [statistic.name for statistic in self.statistics]
        if len(set(names)) != len(names):
            raise ValueError(f"statistics={names} holds a name twice")
        if isinstance(self.rows, int) and self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1; maps=False captures none")

    def blocks(self, queries: int, keys: int) -> tuple[int, int]:
        """How many queries and keys one cell of a map of this size stands for."""
        return (1, 1) if self.cells is None else (block_of(queries, self.cells), block_of(keys, self.cells))


def check_capture(capture: Capture | None) -> None:
    """Refuse what is no request, such as True.

    Errors: TypeError that says what a request is.
    """
    if capture is not None and not isinstance(capture, Capture):
        raise TypeError(f"capture is {shown(capture)}; it must be None or a Capture, such as Capture(sites=('here',))")


class Captured(NamedTuple):
    """What one site returned, cut off from the gradient; a scan over layers adds the leading layer axis.

    `sums` of each statistic over the rows that count, and how many those were: their ratio is the head's mean; of
    each example where that was asked for. `pooled` and `top`, the keys and weights of the largest in each row, only
    where the map has more positions than `Capture.cells`. `norms` of a key are |f(x)|, f(x) = (x W_V + b_V) W_O
    with the rows of W_O that are the head's: weight * norm = |weight f(x)| (Kobayashi et al. 2020, "Attention is not
    only a weight").
    """

    weights: Float[Array, "*L B H R K"] | None
    sums: dict[str, Float[Array, "*heads"]]
    counts: dict[str, Float[Array, "*heads"]]
    pooled: Float[Array, "*L B H q k"] | None = None
    top: "Top | None" = None
    norms: Float[Array, "*L B H K"] | None = None
    vectors: "Vectors | None" = None

    def means(self) -> dict[str, Float[Array, "*heads"]]:
        """The mean of each statistic over the rows that count; 0 where none does."""
        return {name: total / jnp.maximum(self.counts[name], 1) for name, total in self.sums.items()}

    def of_layers(self, layers: tuple[int, ...] | None) -> "Captured":
        """The maps of these layers alone; statistics stay those of every layer."""
        if layers is None or self.weights is None:
            return self
        beyond = [layer for layer in layers if not 0 <= layer < len(self.weights)]
        if beyond:
            raise ValueError(f"capture.layers={layers} names {beyond}; there are layers 0 ... {len(self.weights) - 1}")
        return self.with_maps(lambda of_layers: of_layers[jnp.asarray(layers)])

    def with_maps(self, change: Callable[[Array], Array]) -> "Captured":
        """The same with each array of its maps changed; statistics stay as they are."""
        weights, pooled, top = jax.tree.map(change, (self.weights, self.pooled, self.top))
        return self._replace(weights=weights, pooled=pooled, top=top)


class Top(NamedTuple):
    """The largest weights of each row, falling, and the keys that they are of."""

    keys: Int[Array, "*L B H Q k"]
    weights: Float[Array, "*L B H Q k"]


class Vectors(NamedTuple):
    """Queries and keys as their dot product meets them, turned by their positions: a logit is scale (q . k).

    `whole`: nothing is added to it; False where positions or a bias add to the logits, or a temperature divides them.
    """

    q: Float[Array, "*L B Q H D"]
    k: Float[Array, "*L B K G D"]
    scale: Float[Array, "*L"]
    whole: Bool[Array, "*L"]


# What a pass without a request captured, by site.
NOTHING_CAPTURED: Mapping[str, Captured] = {}


def one_layer(captured: Captured) -> Captured:
    """What a single layer captured, with the leading layer axis that a scan over layers would have added."""
    return jax.tree.map(lambda leaf: leaf[None], captured)


def capture_at(site: str, capture: Capture | None) -> Capture | None:
    """The request as the attention at a site sees it: None where nothing of the site is asked for."""
    return capture if capture is not None and site in capture.sites else None


def captured_at(site: str, captured: Captured | None, capture: Capture | None) -> dict[str, Captured]:
    """`Aux.maps` of a site that is one layer: empty where nothing of the site is asked for."""
    return {} if captured is None or capture_at(site, capture) is None else {site: one_layer(captured)}
