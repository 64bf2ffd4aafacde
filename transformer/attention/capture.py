"""Capture: which maps a forward pass returns beside its output, and what it returns."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class Capture:
    """A static request: the sites whose maps, of all layers and heads, are wanted."""

    sites: tuple[str, ...]

    def at(self, site: str) -> "Capture | None":
        """The request as the attention at `site` sees it: None when its maps are not wanted."""
        return self if site in self.sites else None


class Captured(NamedTuple):
    """What one site returned; a scan over layers adds the leading layer axis."""

    weights: Float[Array, "*L B H Q K"]


def capture_weights(weights_BxHxQxK: Float[Array, "B H Q K"]) -> Captured:
    """The very weights that multiply the values, in float32, cut off from the gradient."""
    return Captured(jax.lax.stop_gradient(weights_BxHxQxK.astype(jnp.float32)))
