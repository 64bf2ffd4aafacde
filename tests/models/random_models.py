"""Models of random parameters, and how they are run step by step."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention import Capture
from transformer.models.model import Model, Variables


def random_variables(model: Model) -> Variables:
    """Normal parameters, the same every time, of a model without state."""
    normal = np.random.default_rng(1).normal
    shapes = model.functional.shapes()
    return Variables(jax.tree.map(lambda leaf: 0.7 * normal(size=leaf.shape).astype(leaf.dtype), shapes), {})


def stepped(
    model: Model,
    variables: Variables,
    inputs: Mapping[str, Any],
    said_RxT: np.ndarray,
    num_beams: int,
    asked: Capture | None,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """The first tokens, and the logits [T, R, V] and maps of every step of decoding that is given what was said."""

    @jax.jit
    def run() -> Any:
        cache, first_R = model.init_cache(variables, inputs, num_beams=num_beams, length=said_RxT.shape[1])

        def advance(cache: Any, tokens_R: Any) -> Any:
            logits_RxV, cache, aux = model.step(variables, cache, tokens_R, capture=asked)
            return cache, (logits_RxV, aux.maps)

        return first_R, jax.lax.scan(advance, cache, jnp.asarray(said_RxT.T))[1]

    first_R, (logits_TxRxV, maps) = jax.device_get(run())
    return first_R, logits_TxRxV, maps
