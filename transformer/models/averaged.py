"""Parameters of which some are averages."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def with_average(params: Any, average: Mapping[str, jax.Array | np.ndarray]) -> Any:
    """The parameters with the averaged ones in their place, each in the parameter's type."""

    def chosen(path: Any, leaf: Any) -> Any:
        own = average.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        return leaf if own is None else own if own.dtype == leaf.dtype else own.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(chosen, params)
