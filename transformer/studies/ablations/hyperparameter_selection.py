"""Select the combination of tuned values at which each arm of an ablation is compared on each task."""

import math

import numpy as np
from jaxtyping import Bool, Float, Int


def tuning_seeds(ended_AxTxCxS: Bool[np.ndarray, "A T C S"]) -> Bool[np.ndarray, "A T S"]:
    """Return with which seeds an arm's combinations are compared: those that have an ended run of each.

    A run that failed says nothing about its values, and neither it nor its seed may decide which are selected.
    Combinations without any ended run are ignored.
    """
    has_ended_AxTxCx1 = ended_AxTxCxS.any(axis=-1, keepdims=True)
    return (ended_AxTxCxS | ~has_ended_AxTxCx1).all(axis=2) & has_ended_AxTxCx1.any(axis=2)


def select_combinations(
    costs_AxTxCxS: Float[np.ndarray, "A T C S"],
    planned_AxTxCxS: Bool[np.ndarray, "A T C S"],
    ended_AxTxCxS: Bool[np.ndarray, "A T C S"],
    learned_AxTxCxS: Bool[np.ndarray, "A T C S"],
) -> Int[np.ndarray, "L A T"]:
    """Select for each arm and task the combination with the least mean cost over `tuning_seeds`.

    A run that did not learn counts with the worst of the arm's runs with its seed that did. So all means are of the
    same seeds, and a run more that diverged by chance decides little. Combinations with which fewer than half of the
    seeds learned are selected only if there are no others, those with which most learned first. Ties go to the first.

    Args:
        costs_AxTxCxS: The selection metric of runs that completed, negated if higher is better; NaN without.
        planned_AxTxCxS: Whether there is a run, in any state; a combination without one is not selected.
        ended_AxTxCxS: Whether the run completed or diverged.
        learned_AxTxCxS: Whether it completed and is not stuck.

    Returns:
        The number of the selected combination: first with all seeds, then without each of them.
    """
    num_seeds = costs_AxTxCxS.shape[-1]
    remaining_LxS = np.vstack([np.ones((1, num_seeds), bool), ~np.eye(num_seeds, dtype=bool)])
    counted_LxAxTx1xS = (remaining_LxS[:, None, None] & tuning_seeds(ended_AxTxCxS))[..., None, :]
    finished_LxAxTxCxS = np.where(counted_LxAxTx1xS, costs_AxTxCxS, np.nan)
    own_LxAxTxCxS = np.where(learned_AxTxCxS, finished_LxAxTxCxS, np.nan)
    worst_LxAxTx1xS = np.fmax.reduce(own_LxAxTxCxS, axis=-2, keepdims=True)

    num_counted_LxAxTx1 = counted_LxAxTx1xS.sum(axis=-1)
    num_learned_LxAxTxC = (~np.isnan(own_LxAxTxCxS)).sum(axis=-1)
    enough_LxAxTxC = (2 * num_learned_LxAxTxC >= num_counted_LxAxTx1) & (num_learned_LxAxTxC > 0)
    any_learned_LxAxTxCx1 = (num_learned_LxAxTxC > 0)[..., None]
    means_LxAxTxC = _means_of_known(
        np.where(
            enough_LxAxTxC[..., None],
            np.where(np.isnan(own_LxAxTxCxS), worst_LxAxTx1xS, own_LxAxTxCxS),
            np.where(any_learned_LxAxTxCx1, own_LxAxTxCxS, finished_LxAxTxCxS),
        )
    )
    num_unlearned_LxAxTxC = np.where(enough_LxAxTxC, 0, num_counted_LxAxTx1 - num_learned_LxAxTxC)
    unplanned_LxAxTxC = np.broadcast_to(~planned_AxTxCxS.any(axis=-1), num_unlearned_LxAxTxC.shape)
    most_learned_LxAxTxC = np.where(enough_LxAxTxC, -num_learned_LxAxTxC, 0)
    # The last key counts most; equal ones keep their order.
    order = np.lexsort((most_learned_LxAxTxC, means_LxAxTxC, num_unlearned_LxAxTxC, unplanned_LxAxTxC))
    return order[..., 0]


def _means_of_known(values: Float[np.ndarray, "*rows S"]) -> Float[np.ndarray, "*rows"]:
    """Return the means over the last axis of the values that are no NaN; inf without any.

    Sums are exact until they are rounded once: the same accuracies with other seeds are a tie.
    """
    finite_rows = [[value for value in row if value == value] for row in values.reshape(-1, values.shape[-1]).tolist()]
    return np.array([math.fsum(row) / len(row) if row else math.inf for row in finite_rows]).reshape(values.shape[:-1])
