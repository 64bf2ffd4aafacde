"""How the heads of one layer differ: how spread each is over the keys, and how often two read different keys most."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class HeadDifferences(NamedTuple):
    """The differences between the heads of one layer.

    Attributes:
        entropy_H: The mean entropy of each head's rows, in nats: 0 for a head that reads one key at a time.
        disagreement_HxH: The fraction of queries whose largest weight lies on different keys in two heads.
        any_disagreement: The fraction of queries for which at least two heads differ so.
        num_queries: The number of queries that count.
    """

    entropy_H: Float[np.ndarray, " H"]
    disagreement_HxH: Float[np.ndarray, "H H"]
    any_disagreement: float
    num_queries: int


def head_differences(weights_BxHxQxK: Float[np.ndarray, "B H Q K"]) -> HeadDifferences:
    """Measure how the heads of one layer differ.

    With a_h(q) = argmax_k w_hqk, heads h and g disagree in the fraction of queries for which a_h(q) != a_g(q); of equal
    weights the first counts. Queries that are empty in some head, such as padding, are left out. The entropy of a row
    is -sum_k w_k log w_k.

    Args:
        weights_BxHxQxK: The attention weights, such as `numpy.asarray` of the maps that `run_with_maps` returns. Rows
            sum to one or are empty.

    Returns:
        The differences; NaN where no query counts.

    Example:
        ```python
        import numpy as np
        from transformer.maps.head_differences import head_differences

        one_key, first_two = [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]
        found = head_differences(np.array([[[one_key, one_key], [first_two, one_key[::-1]]]]))
        found.entropy_H  # [0.0, 0.347]: log 2 in one of two queries
        found.any_disagreement  # 0.5
        ```
    """
    weights = np.asarray(weights_BxHxQxK, np.float64)
    counts_BxQ = weights.any(axis=-1).all(axis=1)
    # Queries of all examples in one axis.
    weights_NxHxK = np.moveaxis(weights, 1, 2)[counts_BxQ]
    if not len(weights_NxHxK):
        heads = weights.shape[1]
        return HeadDifferences(np.full(heads, np.nan), np.full((heads, heads), np.nan), float("nan"), 0)
    entropy_NxH = -(weights_NxHxK * np.log(np.where(weights_NxHxK > 0, weights_NxHxK, 1))).sum(axis=-1)
    chosen_NxH = weights_NxHxK.argmax(axis=-1)
    differ_NxHxH = chosen_NxH[:, :, None] != chosen_NxH[:, None, :]
    any_disagreement = float(differ_NxHxH.any(axis=(1, 2)).mean())
    return HeadDifferences(entropy_NxH.mean(axis=0), differ_NxHxH.mean(axis=0), any_disagreement, len(chosen_NxH))
