"""C-01: large similarities saturate the softmax."""

import math

import numpy as np

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

WIDTHS = (4, 16, 64, 256, 1024)
NUM_KEYS, TRIALS, SEED = 64, 2000, 1


def measure() -> Figures:
    """Draw queries and keys with independent normal components, and measure logits, weights and softmax's Jacobian."""
    random = np.random.default_rng(SEED)
    rows = []
    for width in WIDTHS:
        query_Nx1xD = random.standard_normal((TRIALS, 1, width))
        keys_NxKxD = random.standard_normal((TRIALS, NUM_KEYS, width))
        logits_NxK = (query_Nx1xD * keys_NxKxD).sum(-1)
        row = {"width": width, "variance": float(logits_NxK.var())}
        for name, scale in (("plain", 1.0), ("scaled", 1 / math.sqrt(width))):
            weights_NxK = np.exp(scale * (logits_NxK - logits_NxK.max(-1, keepdims=True)))
            weights_NxK /= weights_NxK.sum(-1, keepdims=True)
            # The Jacobian is diag(p) - p p^T: its squared Frobenius norm is sum(p^2) - 2 sum(p^3) + (sum(p^2))^2.
            squares_N, cubes_N = (weights_NxK**2).sum(-1), (weights_NxK**3).sum(-1)
            jacobian_N = np.sqrt(np.maximum(squares_N - 2 * cubes_N + squares_N**2, 0))
            row[f"{name}_largest_weight"] = float(weights_NxK.max(-1).mean())
            row[f"{name}_jacobian"] = float(np.median(jacobian_N))
        rows.append(row)
    return {"keys": NUM_KEYS, "trials": TRIALS, "rows": rows}


def judge(figures: Figures) -> Finding:
    """It holds if weights saturate and gradients vanish with the width, and neither does after scaling."""
    first, last = figures["rows"][0], figures["rows"][-1]
    saturates = last["plain_largest_weight"] > 0.9 and last["plain_jacobian"] < first["plain_jacobian"] / 100
    cured = abs(last["scaled_largest_weight"] - first["scaled_largest_weight"]) < 0.05
    reason = (
        f"From width {first['width']} to {last['width']}, the largest of {figures['keys']} weights grows from "
        f"{first['plain_largest_weight']:.2f} to {last['plain_largest_weight']:.2f} and the Jacobian's norm falls from "
        f"{first['plain_jacobian']:.2f} to {last['plain_jacobian']:.1g}. Divided by the root of the width, the largest "
        f"weight is {first['scaled_largest_weight']:.2f} and {last['scaled_largest_weight']:.2f}."
    )
    return Finding(Verdict.HOLDS if saturates and cured else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[Table | LineChart, ...]:
    """Show the largest weight over the width, and the table of all figures."""
    rows = figures["rows"]
    widths = [row["width"] for row in rows]
    chart = LineChart(
        caption=f"The largest of {figures['keys']} weights, mean of {figures['trials']:,} draws",
        x_label="width of queries and keys",
        y_label="largest weight",
        x_scale="log",
        series={
            label: Series(widths, [row[f"{name}_largest_weight"] for row in rows])
            for name, label in (("plain", "dot product"), ("scaled", "scaled dot product"))
        },
    )
    table = Table(
        caption="Variance of the dot product and median norm of softmax's Jacobian",
        columns=("width", "variance", "Jacobian", "Jacobian, scaled"),
        rows=[
            (
                str(row["width"]),
                f"{row['variance']:.0f}",
                f"{row['plain_jacobian']:.2g}",
                f"{row['scaled_jacobian']:.2g}",
            )
            for row in rows
        ],
    )
    return chart, table


CLAIM = Claim(
    number=1,
    title="Large similarities saturate the softmax",
    sentence="Dot products grow with the width of queries and keys until the softmax saturates and its gradients "
    "vanish; dividing by the square root of the width prevents it.",
    lectures=("S3",),
    source="Vaswani et al. 2017, section 3.2.1 and footnote 4",
    refutation="At width 1,024 the largest weight stays below 0.9 or the Jacobian's norm falls less than a hundredfold "
    "from width 4; or scaling leaves the largest weight dependent on the width.",
    evidence=Measurement(measure=measure, seconds=4),
    judge=judge,
    exhibits=exhibits,
)
