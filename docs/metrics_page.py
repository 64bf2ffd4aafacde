"""The page of all metrics, generated from their definitions in the library and in the READMEs of the projects."""

from collections.abc import Iterable, Mapping

from docs.markdown_table import markdown_table
from transformer.runs.metric_definitions import (
    ANSWER_METRICS,
    PREDICTION_METRICS,
    SPEED_METRICS,
    STEP_METRICS,
    MetricDefinition,
)

_HEAD = """# Metrics

The file `metrics.jsonl` of a run has one line for each report: the step, the split, and the metrics by name. The split
is `train` for means over training batches, or the split that an evaluation measures. The [report](reports.md) draws
the metrics over the steps, and says below the curves what they mean. The console shortens some names: `lr` is
`learning_rate`, `grad` is `gradient_norm`, `exact` is `exact_match`. Flags and pages write `split/name`:
`validation/loss` is the metric `loss` of an evaluation of the split `validation`.

What a training step minimizes is `loss` plus the auxiliary losses of the model, such as those of experts or z-loss,
each times its weight. These are logged on their own and aren't part of `loss`. The `loss` of an evaluation is the same
mean over its whole split, without dropout and without label smoothing. Only in translation it has the label smoothing
of training: there `cross_entropy` is the one without. No example is left out or counted twice: the last batch is filled
with empty rows, which no sum counts, and sums are divided once, after the last batch. Only of token shards, which may
be large, at most 1,048,576 tokens of a split are evaluated. The end tokens that stand in the data are predicted and
counted like any other token, padding never is. The mean is over these:

| `config.task.name` | `loss` is a mean over |
| --- | --- |
| `translation`, `language_modeling`, `segment_lm`, `permutation_lm` | predicted tokens |
| `masked_lm` | masked tokens; with next sentences, plus a mean over pairs of texts |
| `classification`, `fine_tuning`, `image_classification` | examples |
| `token_classification` | words |
| `question_answering` | questions with their windows of text |

A word in capitals stands for what differs: `N` for a number, `SITE` for an attention module. Logarithms are natural, so
losses are in nats: divide by ln 2 = 0.693 for bits. A metric without a unit is a plain number. A share is from 0 to 1.
The statistics in `heads.jsonl` are on [another page](map_store.md#statistics). `make docs` generates this page.
"""
_SECTIONS = {
    "Every training step": (
        STEP_METRICS,
        "Means over the steps since the last log. With several objectives, the name of the objective is in front.",
    ),
    "Speed": (SPEED_METRICS, "Over the time since the last log, without evaluations, maps and checkpoints."),
    "Predictions": (PREDICTION_METRICS, "Of training batches and of evaluations."),
    "Labels, answers and generated texts": (ANSWER_METRICS, "Of evaluations."),
}


def metrics_page(projects: Mapping[str, str]) -> str:
    """Return the page as Markdown.

    Args:
        projects: The title of each project that defines metrics of its own, by the name of its folder.
    """
    sections = [f"## {title}\n\n{text}\n\n{_metrics_table(rows)}\n" for title, (rows, text) in _SECTIONS.items()]
    items = [
        f"- [{title}](../../experiments/{project}/README.md#metrics)\n" for project, title in sorted(projects.items())
    ]
    own = "## Projects\n\nThese define metrics of their own:\n\n" + "".join(items)
    return "\n".join([_HEAD, *sections, own])


def _metrics_table(rows: Iterable[MetricDefinition]) -> str:
    cells = ((f"`{row.name}`", row.unit, row.meaning.replace("|", "\\|")) for row in rows)
    return markdown_table(("metric", "unit", "meaning"), cells)
