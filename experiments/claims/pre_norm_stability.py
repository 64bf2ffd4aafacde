"""C-31: pre-norm trains more stably than post-norm."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

# The smallest effect of interest that the study registered, in nats.
SMALLEST_EFFECT = 0.05


def read(files: Sequence[Any]) -> Figures:
    """Return the differences by task, the runs that learned without warm-up, and the gradients at initialization."""
    study, reversal, placements = files
    stacks = placements["about"]["initial_gradients"]["stacks"]
    decoder = next(stack for stack in stacks if stack["name"] == "encoder-decoder's decoder")
    return {
        "seeds": len(study["seeds"]),
        "tasks": [
            {"task": pair["task"], "difference": pair["difference"], "interval": pair["interval"]}
            for pair in study["comparisons"]
            if pair["task"] is not None
        ],
        "reversal": {arm["name"]: arm["learned"] for arm in reversal["arms"]},
        "gradients": {
            arm["arm"]: {"layers": arm["layers"], "low": arm["low"], "high": arm["high"]}
            for arm in decoder["arms"]
            if arm["arm"] in ("post", "pre") and arm["depth"] == 6
        },
    }


def judge(figures: Figures) -> Finding:
    """It fails where post-norm is as good; it holds alone where every difference is one of interest."""
    tasks, reversal = figures["tasks"], figures["reversal"]
    largest = min(tasks, key=lambda task: task["difference"])
    smallest = max(tasks, key=lambda task: task["difference"])
    better = all(task["interval"][1] < 0 for task in tasks)
    learns = reversal["pre"]["count"] == reversal["pre"]["of"] and reversal["post"]["count"] < reversal["post"]["of"]
    reason = (
        f"Each at its best learning rate, pre-norm's loss is lower in {sum(t['interval'][1] < 0 for t in tasks)} of "
        f"{len(tasks)} settings ({figures['seeds']} seeds): by {-largest['difference']:.2f} nats with "
        f"{largest['task']}, but by {-smallest['difference']:.3f} with {smallest['task']}. At a fixed rate of 3e-3 "
        f"without warm-up, {reversal['pre']['count']} of {reversal['pre']['of']} runs learn to reverse with pre-norm "
        f"and {reversal['post']['count']} of {reversal['post']['of']} with post-norm."
    )
    if not (better and learns):
        return Finding(Verdict.FAILS, reason)
    if all(task["difference"] < -SMALLEST_EFFECT for task in tasks):
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL, f"{reason} Condition: the model is deep, or training is short or without warm-up."
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show gradients by layer at initialization, and the differences of losses."""
    chart = LineChart(
        caption="Gradient norm of the first feed-forward matrix at initialization, decoder of 6+6 layers, three seeds",
        x_label="layer",
        y_label="gradient norm",
        y_scale="log",
        series={
            f"{name}-norm": Series(
                list(range(1, len(arm["layers"]) + 1)), arm["layers"], low=arm["low"], high=arm["high"]
            )
            for name, arm in figures["gradients"].items()
        },
    )
    table = Table(
        caption=f"Test loss of pre-norm minus post-norm's, {figures['seeds']} paired seeds, adjusted 95% intervals",
        columns=("setting", "difference", "interval"),
        rows=[
            (task["task"], f"{task['difference']:.3f}", "{:.3f} to {:.3f}".format(*task["interval"]))
            for task in figures["tasks"]
        ],
    )
    return chart, table


CLAIM = Claim(
    number=31,
    title="Pre-norm trains more stably",
    sentence="A norm at the start of each sub-layer, not behind the addition, makes training of a Transformer more "
    "stable and less dependent on warm-up.",
    lectures=("S3",),
    source="Xiong et al. 2020, sections 3 and 4",
    refutation="In one of the settings, the interval of the difference of losses reaches 0; or post-norm learns to "
    "reverse without warm-up with as many seeds as pre-norm.",
    evidence=Records(
        files=(
            "ablations/results/pre_norm_vs_post_norm.json",
            "ablations/results/norm_reversal.json",
            "ablations/results/norm_placement.json",
        ),
        page="ablations/results/pre_norm_vs_post_norm.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
