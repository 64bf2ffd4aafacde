"""C-40: a language model solves new tasks from examples in its prompt."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

EXAMPLES = (0, 1, 2, 4, 8)
TASKS = ("letter maps", "pairs of edits")


def read(files: Sequence[Any]) -> Figures:
    """Return the accuracy over the number of examples: on tasks of training, on new ones, and the best possible."""
    tasks = {}
    for task, rows in zip(TASKS, files, strict=True):
        test: dict[str, Any] = {}
        for row in rows:
            if row["split"] == "test":
                test |= row
        tasks[task] = {
            "seen": [test[f"seen_accuracy_{count}"] for count in EXAMPLES],
            "new": [test[f"unseen_accuracy_{count}"] for count in EXAMPLES],
            "best possible": [test[f"unseen_bayes_optimal_accuracy_{count}"] for count in EXAMPLES],
        }
    return {"tasks": tasks}


def judge(figures: Figures) -> Finding:
    """Examples must help on new tasks; to hold alone, nearly as much as they possibly can."""
    tasks = figures["tasks"]
    reason = (
        "; ".join(
            f"on new {task}, {curves['new'][0]:.2f} of the answers are right without examples and "
            f"{curves['new'][-1]:.2f} after {EXAMPLES[-1]} (on those of training {curves['seen'][-1]:.2f}, at best "
            f"{curves['best possible'][-1]:.2f})"
            for task, curves in tasks.items()
        ).capitalize()
        + ". One seed, no gradient at test time."
    )
    if any(curves["new"][-1] < curves["new"][0] + 0.1 for curves in tasks.values()):
        return Finding(Verdict.FAILS, reason)
    if all(curves["new"][-1] >= 0.9 * curves["best possible"][-1] for curves in tasks.values()):
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL,
        f"{reason} Condition: new tasks of the kinds that training had; and new combinations of known edits are right "
        "half as often as known ones.",
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show a chart for each kind of task."""
    charts = tuple(
        LineChart(
            caption=f"Words that are entirely right, {task}",
            x_label="examples in the prompt",
            y_label="accuracy",
            series={name: Series(EXAMPLES, values) for name, values in curves.items()},
        )
        for task, curves in figures["tasks"].items()
    )
    table = Table(
        caption=f"After {EXAMPLES[-1]} examples",
        columns=("tasks", "seen", "new", "best possible"),
        rows=[
            (task, *(f"{curves[name][-1]:.3f}" for name in ("seen", "new", "best possible")))
            for task, curves in figures["tasks"].items()
        ],
    )
    return *charts, table


CLAIM = Claim(
    number=40,
    title="Language models generalize to new tasks",
    sentence="A large language model solves tasks that it was not trained for when the prompt has a few examples of "
    "them.",
    lectures=("S2",),
    source="Brown et al. 2020, sections 1 and 3.9",
    refutation="On tasks that training did not have, eight examples in the prompt raise the accuracy by less than 0.1.",
    evidence=Records(
        files=("in_context_learning/results/word_maps.jsonl", "in_context_learning/results/rule_edits.jsonl"),
        page="in_context_learning/results/rule_edits.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
