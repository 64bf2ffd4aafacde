"""Where attention lies over an image, beside the places where it should."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, Site, sites_between
from transformer.tasks.task import Batch, StateView

# The axes of maps of what is said, symbol by symbol, over the places of an image.
TARGET_OVER_GRID = ("target", "grid")
# The cell of what lies in none.
NO_CELL = -1
_MASS = "mass/"


def patch_centers(axis: Axis) -> tuple[Float[np.ndarray, " Y"], Float[np.ndarray, " X"]]:
    """The middles of the rows and of the columns of a grid, in pixels of its image.

    Raises:
        ValueError: For an axis that is no grid.
    """
    if axis.shape is None:
        raise ValueError(f"the axis {axis.name!r} of kind {axis.kind.value} has no shape: it is no grid")
    y_Y, x_X = (axis.offset + axis.stride * (np.arange(count) + 0.5) for count in axis.shape)
    return y_Y, x_X


def cell_of_patch(axis: Axis, *, side: int, size: int) -> Int[np.ndarray, " K"]:
    """In which of `side` x `side` cells of an image of `size` pixels the middle of each place of a grid lies.

    `NO_CELL` for positions that are no place, such as a class token.
    """
    row, column = (np.clip(middles * side // size, 0, side - 1) for middles in patch_centers(axis))
    cells = (side * row[:, None] + column).astype(np.int32).ravel()
    return np.concatenate([np.full(axis.leading, NO_CELL, np.int32), cells])


def capture_weights(
    view: StateView, inputs: Batch, axes: tuple[str, str] = TARGET_OVER_GRID
) -> dict[Site, Float[Array, "L B H T K"]]:
    """All maps between these axes, by default over the places of images, while the true symbols are said."""
    sites = sites_between(view.model.sites, *axes)
    capture = Capture(tuple(site.name for site in sites))
    _, aux = view.model.apply(view.variables, inputs, train=False, capture=capture)
    return {site: aux.maps[site.name].weights for site in sites}  # type: ignore[misc]


def attention_mass_within(
    weights_LxBxHxTxK: Float[Array, "L B H T K"], inside_BxTxK: Bool[Array, "B T K"]
) -> Float[Array, "L H"]:
    """For each layer and head the sum, over all symbols, of the attention within the places that are theirs."""
    return jnp.sum(jnp.where(inside_BxTxK[None, :, None], weights_LxBxHxTxK, 0), axis=(1, 3, 4))


def attention_mass_sums(masses: Mapping[Site, Float[Array, "L H"]]) -> dict[str, Array]:
    """`mass_within` of every site, as sums of an evaluation."""
    return {_MASS + site.name: mass for site, mass in masses.items()}


def head_with_most_mass(
    sums: Mapping[str, np.ndarray], told: Mapping[str, np.ndarray] | None = None
) -> tuple[float, str, int, int]:
    """The greatest of the `attention_mass_sums`, and the site, the layer and the head that have it.

    With `told`, other such sums, what the same head has of those: a head that one set chose, measured on another.
    """
    of_head = {
        (name.removeprefix(_MASS), *place): float(of_site[place])
        for name, of_site in sums.items()
        if name.startswith(_MASS)
        for place in np.ndindex(np.shape(of_site))
    }
    site, layer, head = max(of_head, key=of_head.__getitem__)
    return float((sums if told is None else told)[_MASS + site][layer, head]), site, layer, head
