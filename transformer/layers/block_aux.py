"""What blocks return beside their output, of one layer or several: the maps asked for, and the use of experts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.capture import Capture, Captured
from transformer.layers.experts import Balance


class BlockCapture(NamedTuple):
    """The maps that are asked for of each sub-layer that has one."""

    attention: Capture | None = None
    cross: Capture | None = None
    experts: Capture | None = None


NO_CAPTURE = BlockCapture()


class BlockAux(NamedTuple):
    """The maps of each sub-layer that was asked for one, and how even the use of experts is where there are any."""

    attention: Captured | None
    cross: Captured | None
    experts: Captured | None
    balance: Balance | None


def by_layer(outputs: tuple[BlockAux, ...]) -> BlockAux:
    """What `run_layers` returned for the layers of a period, with one leading axis of the layers that have it."""
    return of_all(outputs, in_order)


def in_order(*leaves: Array) -> Array:
    """Arrays with an axis of periods, one for each layer of a period, as one with an axis of the layers."""
    return jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])


def of_all(outputs: Sequence[BlockAux], joined: Callable[..., Array]) -> BlockAux:
    """The same of several layers, joined among those that have it."""
    present = ([each for each in of_field if each is not None] for of_field in zip(*outputs, strict=True))
    return BlockAux(*(jax.tree.map(joined, *each) if each else None for each in present))
