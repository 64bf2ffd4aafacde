"""How evenly the experts of a model are used over a whole set of data, from the maps of their gates."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer.attention.capture import Capture, Captured
from transformer.attention.sites import AxisKind
from transformer.tasks.contract import View

_IMPORTANCE = "importance/"


def with_gates(view: View) -> View:
    """The view, whose passes return the gates of the model's experts as well; as it is where there are none."""
    sites = tuple(site.name for site in view.model.sites if site.key.kind is AxisKind.EXPERTS)
    return view._replace(capture=Capture(sites)) if sites else view


def importance_sums(maps: Mapping[str, Captured], counts_BxT: Bool[Array, "B T"]) -> dict[str, Array]:
    """Of each site of `with_gates` the sums of every layer's and expert's gates [L, X], over the positions that count.

    Importance(X) = sum_x G(x) (Shazeer et al. 2017, equation 6).
    """
    return {
        f"{_IMPORTANCE}{site}": jnp.sum(jnp.where(counts_BxT[:, :, None], of_site.weights[:, :, 0], 0), axis=(1, 2))
        for site, of_site in maps.items()
        if of_site.weights is not None
    }


def importance_variations(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`importance_cv/SITE/n` for the n-th layer of a site: the deviation of its importances divided by their mean."""
    return {
        f"importance_cv/{name.removeprefix(_IMPORTANCE)}/{layer}": float(
            np.std(of_layer) / max(np.mean(of_layer), 1e-30)
        )
        for name, of_site in sums.items()
        if name.startswith(_IMPORTANCE)
        for layer, of_layer in enumerate(of_site)
    }
