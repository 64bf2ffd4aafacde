"""C-02: long vectors make dot products grow with the width."""

import math

import numpy as np

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

WIDTHS = (4, 16, 64, 256, 1024)
FIRST, SECOND = 0.5, 2.0  # the components of two constant vectors
TRIALS, SEED = 5000, 1


def measure() -> Figures:
    """Measure norms and dot products of two constant vectors, and the spread of dot products of random ones."""
    random = np.random.default_rng(SEED)
    rows = []
    for width in WIDTHS:
        first, second = np.full(width, FIRST), np.full(width, SECOND)
        query_NxD, key_NxD = random.standard_normal((2, TRIALS, width))
        products_N = (query_NxD * key_NxD).sum(-1)
        rows.append(
            {
                "width": width,
                "constant_norm": float(np.linalg.norm(first)),
                "constant_product": float(first @ second),
                "random_mean": float(products_N.mean()),
                "random_deviation": float(products_N.std()),
            }
        )
    return {"components": [FIRST, SECOND], "trials": TRIALS, "rows": rows}


def _exponent(figures: Figures, name: str) -> float:
    """The exponent p of a power law in the width, by least squares over logarithms."""
    rows = figures["rows"]
    slope, _ = np.polyfit(np.log([row["width"] for row in rows]), np.log([row[name] for row in rows]), 1)
    return float(slope)


def judge(figures: Figures) -> Finding:
    """The norm must grow as the root of the width; the condition is how the product grows."""
    first, _ = figures["components"]
    exact = all(
        math.isclose(row["constant_norm"], abs(first) * math.sqrt(row["width"]), rel_tol=1e-9)
        for row in figures["rows"]
    )
    constant, random = _exponent(figures, "constant_product"), _exponent(figures, "random_deviation")
    reason = (
        f"The norm of a constant vector is its component times the root of the width, exactly. Its dot product with "
        f"another grows as the width to the power {constant:.2f}, so that dividing by the root would not stop it. The "
        "paper divides by the root for another reason: with independent components of variance 1, the standard "
        f"deviation grows as the width to the power {random:.2f}."
    )
    if not exact or abs(random - 0.5) > 0.02:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.HOLDS if abs(constant - random) < 0.02 else Verdict.CONDITIONAL, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show how both kinds of dot product grow."""
    rows = figures["rows"]
    widths = [row["width"] for row in rows]
    first, second = figures["components"]
    chart = LineChart(
        caption="How dot products grow with the width",
        x_label="width",
        y_label="size of the dot product",
        x_scale="log",
        y_scale="log",
        series={
            f"constant vectors of {first} and {second}": Series(widths, [row["constant_product"] for row in rows]),
            "random vectors, standard deviation": Series(widths, [row["random_deviation"] for row in rows]),
            "root of the width": Series(widths, [math.sqrt(width) for width in widths]),
        },
    )
    table = Table(
        caption=f"The norm of a vector whose components are all {first}, and dot products of it and of random vectors",
        columns=("width", "norm", "product of constants", "random, mean", "random, standard deviation"),
        rows=[
            (
                f"{row['width']:,}",
                f"{row['constant_norm']:.2f}",
                f"{row['constant_product']:,.0f}",
                f"{row['random_mean']:.2f}",
                f"{row['random_deviation']:.2f}",
            )
            for row in rows
        ],
    )
    return chart, table


CLAIM = Claim(
    number=2,
    title="Longer vectors, larger products",
    sentence="A vector whose components all have one value is as long as that value times the root of the width, and "
    "this is why dot products must be divided by the root of the width.",
    lectures=("S3",),
    source="Vaswani et al. 2017, section 3.2.1 and footnote 4",
    refutation="The norm of a constant vector is not its component times the root of the width, or the standard "
    "deviation of random products does not grow as that root (exponent 0.5 within 0.02). A condition: the products of "
    "constant vectors grow at another rate than the root.",
    evidence=Measurement(measure=measure, seconds=1),
    judge=judge,
    exhibits=exhibits,
)
