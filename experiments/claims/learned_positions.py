"""C-44: learned and fixed positions are equally good."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

ARMS = ("sinusoidal", "learned", "none")


def read(files: Sequence[Any]) -> Figures:
    """Return the losses of each kind of positions, and the difference of learned from sinusoidal ones."""
    (study,) = files
    pair = next(pair for pair in study["comparisons"] if pair["arm"] == "learned")
    arms = {arm["name"]: arm for arm in study["arms"]}
    bands = {name: arms[name]["bands"]["validation/loss"] for name in ARMS}
    return {
        "seeds": len(study["seeds"]),
        "effect": study["smallest_effect_of_interest"],
        "difference": pair["difference"],
        "interval": pair["interval"],
        "losses": {name: [arms[name]["mean"], *arms[name]["interval"]] for name in ARMS},
        "curves": {
            name: {"steps": band["steps"], "loss": band["middle"], "low": band["low"], "high": band["high"]}
            for name, band in bands.items()
        },
    }


def judge(figures: Figures) -> Finding:
    """Equal is an interval within the smallest effect of interest; one that leaves 0 out is unequal."""
    (low, high), effect = figures["interval"], figures["effect"]
    reason = (
        f"On the demo's phrases, learned positions change the test loss by {figures['difference']:+.3f} nats from "
        f"sinusoidal ones; the 95% interval is {low:+.3f} to {high:+.3f} ({figures['seeds']} paired seeds)."
    )
    if low > 0 or high < 0:
        return Finding(Verdict.FAILS, reason)
    if -effect < low and high < effect:
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.NOT_TESTABLE,
        f"{reason} No difference is seen, but equal would mean within {effect}, which takes more seeds. On sequences "
        "longer than in training they differ for certain: a table has no rows for them.",
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the curves of training, and the test losses."""
    chart = LineChart(
        caption="Validation loss: interquartile mean and interval over five seeds",
        x_label="step",
        y_label="nats a token",
        series={
            name: Series(curve["steps"], curve["loss"], low=curve["low"], high=curve["high"])
            for name, curve in figures["curves"].items()
        },
    )
    table = Table(
        caption="Test loss",
        columns=("positions", "mean", "95% interval"),
        rows=[
            (name, f"{mean:.3f}", f"{low:.3f} to {high:.3f}") for name, (mean, low, high) in figures["losses"].items()
        ],
    )
    return chart, table


CLAIM = Claim(
    number=44,
    title="Learned and fixed positions are equally good",
    sentence="It makes no difference whether a Transformer's position vectors are learned or fixed sines and cosines.",
    lectures=("S3",),
    source="Vaswani et al. 2017, section 3.5 and table 3, row E",
    refutation="The 95% interval of the difference of their test losses leaves 0 out. It holds if the interval is "
    "within 0.05 nats, the smallest effect of interest of the study.",
    evidence=Records(
        files=("ablations/results/position_encodings.json",),
        page="ablations/results/position_encodings.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
