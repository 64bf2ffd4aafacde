"""C-40: a language model solves new tasks from examples in its prompt."""

import statistics
from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

EXAMPLES = (0, 1, 2, 4, 8)
TASKS = ("letter maps", "pairs of edits")


def read(files: Sequence[Any]) -> Figures:
    """Return the mean accuracy of the seeds after numbers of examples: on tasks of training, new ones, and at best."""
    tasks = {}
    for task, rows in zip(TASKS, files, strict=True):
        tests = [row for row in rows if row["split"] == "test"]
        tasks[task] = {
            "seen": _means(tests, "seen_accuracy"),
            "new": _means(tests, "unseen_accuracy"),
            "best possible": _means(tests, "unseen_bayes_optimal_accuracy"),
        }
    return {
        "tasks": tasks,
        "seeds": {task: len({row.get("seed") for row in rows}) for task, rows in zip(TASKS, files, strict=True)},
    }


def _means(rows: Sequence[Any], metric: str) -> list[float]:
    names = [f"{metric}_{count}" for count in EXAMPLES]
    return [statistics.fmean(row[name] for row in rows if name in row) for name in names]


def judge(figures: Figures) -> Finding:
    """Examples must help on new tasks; to hold alone, nearly as much as they possibly can."""
    tasks = figures["tasks"]
    reason = (
        "; ".join(
            f"on new {task}, {curves['new'][0]:.2f} of the answers are right without examples and "
            f"{curves['new'][-1]:.2f} after {EXAMPLES[-1]} (on those of training {curves['seen'][-1]:.2f}, at best "
            f"{curves['best possible'][-1]:.2f}; seeds: {figures['seeds'][task]})"
            for task, curves in tasks.items()
        ).capitalize()
        + ". No gradient at test time."
    )
    if any(curves["new"][-1] < curves["new"][0] + 0.1 for curves in tasks.values()):
        return Finding(Verdict.FAILS, reason)
    if all(curves["new"][-1] >= 0.9 * curves["best possible"][-1] for curves in tasks.values()):
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL,
        f"{reason} Condition: new tasks of the kinds that training had; and new combinations of known edits are right "
        "less often than known ones.",
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
