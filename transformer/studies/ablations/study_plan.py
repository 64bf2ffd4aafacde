"""Plan the seeds of a study before it is trained, from an effect that the user names."""

import math

from transformer.config import UserError
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.statistics import SIGNIFICANCE, num_pairs_needed, statistical_power

_SMALLEST_EFFECT = 0.01  # it takes 80,000 seeds
_TABLED_SEEDS = (3, 5, 8, 12, 20)


def check_planned_effect(effect: float) -> None:
    """Check the difference, in standard deviations of the paired differences, that a user wants to see.

    Raises:
        UserError: If it is too small to plan for, or not a number.
    """
    if not _SMALLEST_EFFECT <= effect < math.inf:
        raise UserError(
            f"--plan_effect={effect:g} must be {_SMALLEST_EFFECT:g} or more, in standard deviations of the paired "
            "differences between two arms"
        )


def format_plan(spec: Ablation, effect: float) -> str:
    """Format how likely a study is to see a difference from the reference, for several numbers of seeds.

    Args:
        spec: The ablation. The level of each comparison is 5% over its number of comparisons.
        effect: The assumed difference, in standard deviations of the paired differences.

    Returns:
        The text.

    Raises:
        UserError: If the effect is too small to plan for, or not a number.
    """
    check_planned_effect(effect)
    num_comparisons = len(spec.arms) - 1
    level = SIGNIFICANCE / num_comparisons
    needed = num_pairs_needed(effect, level)
    rows = [f"{n:5}  {statistical_power(n, effect, level):.2f}" for n in sorted({*_TABLED_SEEDS, needed})]
    plural = "s" if num_comparisons > 1 else ""
    return "\n".join(
        [
            f"Power to see a difference of {effect:g} standard deviations of the paired differences, at 5% over "
            f"{num_comparisons} comparison{plural}:",
            "seeds  power",
            *rows,
            f"80% power takes {needed} seeds.",
        ]
    )
