"""Attention maps as named arrays: by attention module and layer, with the tokens of their rows and columns."""

import base64
import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from transformer.attention.capture import CapturedAttention
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.data.png import encode_png
from transformer.maps.head_grid_image import render_head_grid
from transformer.maps.run_maps import coordinate, import_xarray
from transformer.tasks.axis_labels import AxisLabels

if TYPE_CHECKING:
    import xarray

_MAX_POSITIONS = 64  # positions a side: of a longer map the image shows the first ones
_MAX_HEADS = 64

Tokens = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, repr=False)
class LayerMaps:
    """The attention weights of one layer, and the tokens of every example's queries and keys.

    A row is a query. Weights beyond an example's own tokens are zero. `numpy.asarray` returns the weights.

    Attributes:
        site_name: The name of the attention module.
        layer_name: The name of the layer.
        head_names: The names of the heads.
        queries: The query tokens of each example.
        keys: The key tokens of each example.
        weights: The weights [example, head, query, key].
    """

    site_name: str
    layer_name: str
    head_names: tuple[str, ...]
    queries: Tokens
    keys: Tokens
    weights: Float[np.ndarray, "B H Q K"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of examples, heads, queries and keys."""
        return self.weights.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.weights, dtype, copy=copy)

    def __getitem__(self, index: Any) -> Any:
        return self.weights[index]

    def __repr__(self) -> str:
        return f"LayerMaps({self.site_name!r}, layer={self.layer_name!r}, shape={self.shape})"

    def _repr_html_(self) -> str:
        """Return an image of every head on the first example, as notebooks display it."""
        return _render_figure(
            f"{self.site_name}, layer {self.layer_name}", self.weights[None, 0], self.queries[0], self.keys[0]
        )

    def to_xarray(self, example: int = 0) -> "xarray.DataArray":
        """Return one example's weights as a labeled array.

        Args:
            example: The index of the example.

        Returns:
            The weights [head, query, key], cut to the example's own tokens, with positions and tokens as coordinates.

        Raises:
            UserError: If there is no such example, or xarray is not installed.
        """
        if not 0 <= example < len(self.queries):
            raise UserError(f"example={example} was not read: there are 0 ... {len(self.queries) - 1}")
        queries, keys = self.queries[example], self.keys[example]
        return import_xarray().DataArray(
            self.weights[example, :, : len(queries), : len(keys)],
            dims=("head", "query", "key"),
            coords={
                "head": coordinate(self.head_names),
                "query": range(len(queries)),
                "key": range(len(keys)),
                "query_token": ("query", list(queries)),
                "key_token": ("key", list(keys)),
            },
            name="weight",
            attrs={"site": self.site_name, "layer": self.layer_name},
        )


@dataclasses.dataclass(frozen=True, repr=False)
class SiteMaps(Sequence[LayerMaps]):
    """The layers of one attention module, a sequence indexed by the number or the name of a layer.

    Attributes:
        site: The attention module.
        queries: The query tokens of each example.
        keys: The key tokens of each example.
        weights: The weights [layer, example, head, query, key].
    """

    site: Site
    queries: Tokens
    keys: Tokens
    weights: Float[np.ndarray, "L B H Q K"]

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, layer: Any) -> Any:
        if isinstance(layer, slice):
            return [self[number] for number in range(len(self))[layer]]
        names = self.site.layers
        number = names.index(layer) if layer in names else layer
        if not isinstance(number, int) or not -len(names) <= number < len(names):
            raise IndexError(f"layer={layer!r} is not at {self.site.name}: it has {', '.join(names)}")
        tokens = (self.queries, self.keys)
        return LayerMaps(self.site.name, names[number], self.site.heads, *tokens, self.weights[number])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.weights, dtype, copy=copy)

    def __repr__(self) -> str:
        return f"SiteMaps({self.site.name!r}, layers={self.site.layers}, each {self.weights.shape[1:]})"

    def _repr_html_(self) -> str:
        """Return an image of every head on the first example, one row a layer."""
        return _render_figure(f"{self.site.name}, a row a layer", self.weights[:, 0], self.queries[0], self.keys[0])


@dataclasses.dataclass(frozen=True, repr=False)
class AttentionMaps(Mapping[str, SiteMaps]):
    """The maps of a few texts, a mapping from the name of an attention module to its layers.

    `maps["decoder/self"][0]` is the `LayerMaps` of a module's first layer.
    """

    sites: Mapping[str, SiteMaps]

    def __getitem__(self, site: str) -> SiteMaps:
        if site not in self.sites:
            raise KeyError(f"{site!r} is no site of this model: it has {', '.join(self.sites)}")
        return self.sites[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        return f"AttentionMaps({', '.join(map(repr, self.sites.values()))})"

    def _repr_html_(self) -> str:
        """Return the images of all attention modules."""
        return "".join(maps._repr_html_() for maps in self.sites.values())


def name_maps(sites: Sequence[Site], labels: AxisLabels, captured: Mapping[str, CapturedAttention]) -> AttentionMaps:
    """Name the arrays of whole captured maps and drop the padding that no example needs.

    Args:
        sites: The attention modules.
        labels: The tokens of every axis.
        captured: The captured weights [layer, example, head, query, key] by the name of the module.

    Returns:
        The maps in float32, zero beyond each example's own tokens.
    """
    site_maps = {}
    for site in sites:
        queries, keys = labels.tokens[site.query.name], labels.tokens[site.key.name]
        longest = max(map(len, queries)), max(map(len, keys))
        weights = np.array(captured[site.name].weights, np.float32)[..., : longest[0], : longest[1]]
        for example, (rows, columns) in enumerate(zip(queries, keys, strict=True)):
            weights[:, example, :, len(rows) :] = 0
            weights[:, example, :, :, len(columns) :] = 0
        site_maps[site.name] = SiteMaps(site, queries, keys, weights)
    return AttentionMaps(site_maps)


def _render_figure(title: str, weights_LxHxQxK: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> str:
    """Return a grid of heads as an HTML figure, black for a weight of one, with its tokens below."""
    layers, heads = weights_LxHxQxK.shape[:2]
    num_layers = max(1, _MAX_HEADS // heads)
    visible_weights = weights_LxHxQxK[:num_layers, :, : len(queries), : len(keys)][
        ..., :_MAX_POSITIONS, :_MAX_POSITIONS
    ]
    image = base64.b64encode(encode_png(render_head_grid(np.sqrt(np.maximum(visible_weights, 0))))).decode("ascii")
    caption = [f"{heads} heads, rows are queries; darker is more"]
    caption += [f"the first {num_layers} of {layers} layers"] if num_layers < layers else []
    caption += [f"the first {_MAX_POSITIONS} positions"] if max(len(queries), len(keys)) > _MAX_POSITIONS else []
    lines = [("queries and keys", queries)] if queries == keys else [("queries", queries), ("keys", keys)]
    tokens = "".join(
        f"<div>{name}: {' '.join(f'<code>{html.escape(token)}</code>' for token in side[:_MAX_POSITIONS])}</div>"
        for name, side in lines
    )
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b> ({'; '.join(caption)})</figcaption>"
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{image}" '
        f'style="image-rendering:pixelated">{tokens}</figure>'
    )
