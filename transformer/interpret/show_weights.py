"""The page of attention weights that were computed elsewhere, such as by a model of another framework."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.capture import Capture, CapturedAttention, capture_weights
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import UserError, hash_config
from transformer.interpret.show import AttentionPage
from transformer.maps.capture_plan import MapStorageConfig
from transformer.maps.report.page import DEFAULT_BUDGET, render_single_text
from transformer.maps.report.single_text import store_single_text
from transformer.tasks.axis_labels import AxisLabels

_SITE = "attention"


def show_weights(
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    causal: bool = False,
    title: str = "attention weights",
    page: str | Path | None = None,
    budget: int = DEFAULT_BUDGET,
) -> AttentionPage:
    """Return the page of attention weights of any origin: every head, its statistics and its role.

    A notebook displays the page in the cell. Elsewhere, or if `page` is given, it is written to a file whose path is
    printed.

    Args:
        weights: The weights of one text, [layer, head, query, key]: an array of NumPy, JAX or PyTorch (on the CPU).
            Each row sums to one, or is zero.
        queries: The token of every query.
        keys: The token of every key, by default those of the queries, as in self-attention.
        causal: Whether no query sees a later key.
        title: The title of the page.
        page: The file to write, by default a new temporary file.
        budget: The largest size of the page in bytes.

    Returns:
        The page, with its path if it was written.

    Raises:
        UserError: If the shape of the weights does not match the tokens, a weight is negative or not finite, a row
            sums to more than one, a causal query has weight on a later key, or the page cannot be written or does not
            fit `budget`.

    Example:
        ```python
        import numpy as np
        from transformer.interpret.show_weights import show_weights

        weights = np.full((1, 2, 3, 3), 1 / 3)  # one layer, two heads
        show_weights(weights, ["the", "fox", "sleeps"], page="fox.html")
        ```
    """
    array = _validate_weights(weights, len(queries), len(queries if keys is None else keys), causal)
    layers, heads = array.shape[:2]
    query = Axis("tokens" if keys is None else "queries")
    key = query if keys is None else Axis("keys")
    site = Site(_SITE, query, key, tuple(map(str, range(layers))), tuple(map(str, range(heads))), causal)
    tokens = {query.name: (tuple(queries),)} | ({} if keys is None else {key.name: (tuple(keys),)})
    labels = AxisLabels(tokens, (title,))

    def look(capture: Capture) -> Mapping[str, CapturedAttention]:
        captured = [capture_weights(jnp.asarray(layer)[None], capture, mask=Mask(causal=causal)) for layer in array]
        return {_SITE: jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured)}

    with tempfile.TemporaryDirectory() as folder:
        store, _ = store_single_text(Path(folder) / "maps", (site,), labels, look, MapStorageConfig(), hash_config({}))
        page_html = render_single_text(store, title, {}, 0, budget)
    return AttentionPage(title, page_html).display_or_save(page)


def _validate_weights(weights: Any, queries: int, keys: int, causal: bool) -> np.ndarray:
    """Return the weights in float32, once their shape and values are checked."""
    array = np.asarray(weights, np.float32)
    if array.ndim != 4 or array.shape[2:] != (queries, keys) or 0 in array.shape:
        raise UserError(
            f"weights have the shape {array.shape}; with {queries} queries and {keys} keys it must be [layer, head, "
            f"{queries}, {keys}]"
        )
    if not np.isfinite(array).all() or array.min() < 0:
        raise UserError("weights must be finite and at least 0: give them after the softmax, not the logits")
    if (largest := array.sum(axis=-1).max()) > 1.01:
        raise UserError(f"a row of weights sums to {largest:.3f}; the weights of a query must sum to 1 over the keys")
    if causal and np.triu(array, 1).any():
        raise UserError("causal=True, but a query has weight on a later key: leave causal out, or mask the weights")
    return array
