"""Which values a metric can have at all: an interval of its mean reaches no further."""

import math
import re
from collections.abc import Sequence

from transformer.studies.statistics import Interval

_SHARES = {"accuracy", "exact", "share"}
_NEVER_NEGATIVE = {"loss", "entropy", "perplexity", "error", "distance", "bleu", "gleu", "norm"}


def possible(metric: str, interval: Interval, values: Sequence[float]) -> Interval:
    """An interval of a mean, cut where no value of the metric can lie.

    A t interval of a few losses near 0 reaches below it, where no mean of losses is: what is cut off holds no possible
    mean, so that the interval holds the true one as often as before. The metric is known by the words of its name; one
    with a value outside its range, as of a loss that subtracts something, keeps the whole interval.

    Examples: ("test/loss", -0.1 to 0.4) -> 0 to 0.4; ("test/reward", -0.1 to 0.4) as it is.
    """
    words = set(re.split(r"[/_]", metric))
    low = 0.0 if words & (_SHARES | _NEVER_NEGATIVE) else -math.inf
    high = 1.0 if words & _SHARES else math.inf
    if not all(low <= value <= high for value in values):
        return interval
    return Interval(max(interval.low, low), min(interval.high, high))
