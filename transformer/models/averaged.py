"""Parameters of which some are averages."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def with_average(params: Any, average: Mapping[str, jax.Array | np.ndarray]) -> Any:
    """The parameters with the averaged ones in their place."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: average.get(jax.tree_util.keystr(path, simple=True, separator="/"), leaf), params
    )
