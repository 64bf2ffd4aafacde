"""A pre-norm decoder in NumPy float64 whose every intermediate array a hook may read and change."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.oracles.transformer import activated, affine, layer_norm, layers_of

# (name, layer, array) -> array.
Hook = Callable[[str, int, np.ndarray], np.ndarray]


def numpy_pass(params: Any, tokens: np.ndarray, hook: Hook) -> np.ndarray:
    """The logits of a pre-norm decoder in float64; `hook` may change what is named."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    length = tokens.shape[1]
    x = params["embedding"]["table"][tokens] + params["positions"]["table"][:length]
    for layer, weights in enumerate(layers_of(params["layers"])):
        x = hook("residual", layer, x)
        read = hook("self/input", layer, layer_norm(weights["attention_residual"]["norm"], x, 1e-5))
        q, k, v = (
            hook(f"self/{name}", layer, np.einsum("bte,ehd->bthd", read, own["kernel"]) + own["bias"])
            for name, own in (
                ("queries", weights["attention"]["query"]),
                ("keys", weights["attention"]["key"]),
                ("values", weights["attention"]["value"]),
            )
        )
        logits = hook("self/logits", layer, np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]))
        logits = np.where(np.tri(length, dtype=bool), logits, -np.inf)
        exponents = np.exp(logits - logits.max(-1, keepdims=True))
        pattern = hook("self/weights", layer, exponents / exponents.sum(-1, keepdims=True))
        heads = hook("self/head_outputs", layer, np.einsum("bhqk,bkhd->bqhd", pattern, v))
        out = weights["attention"]["output"]
        contributions = hook("self/head_contributions", layer, np.einsum("bqhd,hde->bqhe", heads, out["kernel"]))
        x = hook("self/residual", layer, x + hook("self/output", layer, contributions.sum(2) + out["bias"]))
        read = hook("feed_forward/input", layer, layer_norm(weights["feed_forward_residual"]["norm"], x, 1e-5))
        hidden = hook("feed_forward/before_activation", layer, affine(weights["feed_forward"]["expand"], read))
        hidden = hook("feed_forward/hidden", layer, activated("gelu_tanh", hidden))
        y = hook("feed_forward/output", layer, affine(weights["feed_forward"]["contract"], hidden))
        x = hook("feed_forward/residual", layer, x + y)
    states = hook("states", 0, layer_norm(params["norm"], x, 1e-5))
    return states @ params["embedding"]["table"].T
