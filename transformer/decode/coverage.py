"""The coverage penalty of beam search: hypotheses are preferred whose attention has been everywhere in the source."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.attention.capture import Capture, Captured
from transformer.layers.beams import repeat_rows

# A position that was never attended to counts as if it had been by this much: the penalty stays finite.
LEAST = 1e-6


class Coverage(NamedTuple):
    """cp(X; Y) = `weight` sum_i log(min(sum_j p_ij, 1)) (Wu et al. 2016, equation 14), at most 0.

    p_ij is the weight of position i of the source at step j, of all layers and heads of the `sites` the mean; i counts
    the real positions.
    """

    weight: float
    sites: tuple[str, ...]
    real_BxS: Bool[Array, "B S"]

    @property
    def capture(self) -> Capture:
        """What is asked of every step."""
        return Capture(self.sites)

    def nothing(self, beams: int) -> Float[Array, "R S"]:
        """What hypotheses have attended to before their first step, `beams` of them for each example."""
        return jnp.zeros((len(self.real_BxS) * beams, self.real_BxS.shape[1]))

    def attended(self, maps: Mapping[str, Captured]) -> Float[Array, "R S"]:
        """The mean weight of each source position at one step."""
        each = []
        for site in self.sites:
            weights_LxRxHx1xS = maps[site].weights
            assert weights_LxRxHx1xS is not None
            each.append(jnp.mean(weights_LxRxHx1xS[:, :, :, 0], axis=(0, 2)))
        return jnp.mean(jnp.stack(each), axis=0)

    def penalty(self, attended_RxS: Float[Array, "R S"]) -> Float[Array, " R"]:
        """The penalty of hypotheses whose steps attended so much, summed, to each source position."""
        real_RxS = repeat_rows(self.real_BxS, len(attended_RxS) // len(self.real_BxS))
        covered_RxS = jnp.log(jnp.clip(attended_RxS, LEAST, 1))
        return self.weight * jnp.sum(jnp.where(real_RxS, covered_RxS, 0), axis=1)
