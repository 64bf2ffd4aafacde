"""C-30: attention learns the self-similarity of a sequence."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

# The weight on the symbol behind the last occurrence of the query's own.
LEAST_WEIGHT = 0.8


def read(files: Sequence[Any]) -> Figures:
    """Return the best head of the second layer at each stored step, and the last test loss, by seed."""
    (rows,) = files
    curves = {}
    for seed in sorted({row["seed"] for row in rows}):
        seed_rows = [row for row in rows if row["seed"] == seed and "induction" in row]
        curves[str(seed)] = {
            "steps": [row["step"] for row in seed_rows],
            "weights": [max(row["induction"][1]) for row in seed_rows],
        }
    return {"curves": curves}


def judge(figures: Figures) -> Finding:
    """It holds if, with every seed, a head ends with most of its weight behind the earlier occurrence."""
    curves = figures["curves"]
    first = [curve["weights"][0] for curve in curves.values()]
    last = [curve["weights"][-1] for curve in curves.values()]
    reason = (
        f"On random symbols that repeat, the best head puts {min(last):.2f} to {max(last):.2f} of its weight on the "
        f"symbol behind the last occurrence of its own ({len(last)} seeds); before training it is {max(first):.2f}."
    )
    return Finding(Verdict.HOLDS if min(last) >= LEAST_WEIGHT else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the weight over training, and where it ends."""
    curves = figures["curves"]
    chart = LineChart(
        caption="Weight on the symbol behind the last occurrence of the query's own, best head of the second layer",
        x_label="step",
        y_label="mean weight",
        series={f"seed {seed}": Series(curve["steps"], curve["weights"]) for seed, curve in curves.items()},
    )
    table = Table(
        caption="The same before training and at the end",
        columns=("seed", "before", "at the end"),
        rows=[(seed, f"{curve['weights'][0]:.2f}", f"{curve['weights'][-1]:.2f}") for seed, curve in curves.items()],
    )
    return chart, table


CLAIM = Claim(
    number=30,
    title="Attention models self-similarity",
    sentence="Self-attention can compare a sequence with itself, find an earlier place like the current one, and go on "
    "as the sequence went on there.",
    lectures=("S1",),
    source="Huang et al. 2018, section 1; Olsson et al. 2022",
    refutation="With some seed, no head of a trained two-layer decoder has a mean weight of 0.8 on the symbol behind "
    "the last occurrence of the current one.",
    evidence=Records(
        files=("induction_heads/results/induction.jsonl",),
        page="induction_heads/results/induction.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
