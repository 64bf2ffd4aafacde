"""Attention mass: how much attention lies on given regions of an image."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, Site, sites_between
from transformer.tasks.task import Batch, StateView

# The axes of maps from generated symbols to the positions of an image.
TARGET_OVER_GRID = ("target", "grid")
# The cell of a position outside of the grid.
NO_CELL = -1
_MASS = "mass/"


def patch_centers(axis: Axis) -> tuple[Float[np.ndarray, " Y"], Float[np.ndarray, " X"]]:
    """Return the centers of the rows and of the columns of a grid, in pixels of its image.

    Raises:
        ValueError: If the axis is not a grid.
    """
    if axis.shape is None:
        raise ValueError(f"the axis {axis.name!r} of kind {axis.kind.value} has no shape: it is no grid")
    y_Y, x_X = (axis.offset + axis.stride * (np.arange(count) + 0.5) for count in axis.shape)
    return y_Y, x_X


def cell_of_patch(axis: Axis, *, side: int, size: int) -> Int[np.ndarray, " K"]:
    """Return the cell of a coarser grid that each position of a grid axis lies in.

    Args:
        axis: The grid axis.
        side: The image is divided into `side` x `side` cells, numbered row by row.
        size: The side of the image in pixels.

    Returns:
        The cell that contains the center of each position; NO_CELL for positions outside of the grid, such as a class
        token.

    Raises:
        ValueError: If the axis is not a grid.
    """
    row, column = (np.clip(middles * side // size, 0, side - 1) for middles in patch_centers(axis))
    cells = (side * row[:, None] + column).astype(np.int32).ravel()
    return np.concatenate([np.full(axis.num_leading_positions, NO_CELL, np.int32), cells])


def capture_weights(
    view: StateView, inputs: Batch, axes: tuple[str, str] = TARGET_OVER_GRID
) -> dict[Site, Float[Array, "L B H T K"]]:
    """Run the model on true sequences and return its attention weights between two axes.

    Args:
        view: The state.
        inputs: The model's inputs.
        axes: The names of the query and the key axis; by default those of symbols over an image.

    Returns:
        The weights of every site between these axes.
    """
    sites = sites_between(view.model.sites, *axes)
    capture = Capture(tuple(site.name for site in sites))
    _, aux = view.model.apply(view.variables, inputs, train=False, capture=capture)
    return {site: aux.maps[site.name].weights for site in sites}  # type: ignore[misc]


def attention_mass_within(
    weights_LxBxHxTxK: Float[Array, "L B H T K"], inside_BxTxK: Bool[Array, "B T K"]
) -> Float[Array, "L H"]:
    """Sum the attention of every query on its own region, over examples and queries, for each layer and head.

    Args:
        weights_LxBxHxTxK: The weights.
        inside_BxTxK: Which keys belong to the region of each query.
    """
    return jnp.sum(jnp.where(inside_BxTxK[None, :, None], weights_LxBxHxTxK, 0), axis=(1, 3, 4))


def attention_mass_sums(masses: Mapping[Site, Float[Array, "L H"]]) -> dict[str, Array]:
    """Return the sums of `attention_mass_within` for every site under the names that `head_with_most_mass` reads."""
    return {_MASS + site.name: mass for site, mass in masses.items()}


def head_with_most_mass(
    sums: Mapping[str, np.ndarray], reported_sums: Mapping[str, np.ndarray] | None = None
) -> tuple[float, str, int, int]:
    """Find the head with the most attention mass.

    Args:
        sums: Sums with those of `attention_mass_sums`.
        reported_sums: Other such sums: the head is chosen by `sums`, and its mass is read from these. None reads it
            from `sums`.

    Returns:
        The mass, the name of the site, the layer and the head.
    """
    mass_of_head = {
        (name.removeprefix(_MASS), *place): float(site_sums[place])
        for name, site_sums in sums.items()
        if name.startswith(_MASS)
        for place in np.ndindex(np.shape(site_sums))
    }
    site, layer, head = max(mass_of_head, key=mass_of_head.__getitem__)
    return float((sums if reported_sums is None else reported_sums)[_MASS + site][layer, head]), site, layer, head
