"""C-39: larger models are better."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

ARTICLE_SIZES = ("tiny", "small", "large")
WORD_MAP_SIZES = ("small", "large")
WIDTHS = ("64", "128", "256")


def read(files: Sequence[Any]) -> Figures:
    """Return the validation losses by size and seed, and two measures of other tasks by size."""
    sizes, articles, small_maps, large_maps = files
    return {
        "parameters": [
            next(run["parameters"] for run in sizes["runs"] if run["name"].startswith(f"{width}_")) for width in WIDTHS
        ],
        "losses": [
            [
                run["loss"]
                for run in sorted(sizes["runs"], key=lambda run: run["name"])
                if run["name"].startswith(f"{width}_")
            ]
            for width in WIDTHS
        ],
        "exponent": sizes["fits"]["parameters"]["values"]["alpha"],
        "exponent_interval": sizes["fits"]["parameters"]["intervals"]["alpha"],
        "agreeing_articles": {
            size: [
                row["agreeing_articles"]
                for row in articles
                if row["size"] == size and row["split"] == "test" and "agreeing_articles" in row
            ]
            for size in ARTICLE_SIZES
        },
        "word_maps": {
            size: next(
                row["unseen_accuracy_8"] for row in rows if row["split"] == "test" and "unseen_accuracy_8" in row
            )
            for size, rows in zip(WORD_MAP_SIZES, (small_maps, large_maps), strict=True)
        },
    }


def is_increasing(by_size: Sequence[Sequence[float]]) -> bool:
    """Whether each value of a size is above each of the next smaller one."""
    return all(min(larger) > max(smaller) for smaller, larger in itertools.pairwise(by_size))


def judge(figures: Figures) -> Finding:
    """It holds if all seeds of each size are ahead of all of the next smaller one, on each task."""
    losses, parameters = figures["losses"], figures["parameters"]
    articles: Mapping[str, Sequence[float]] = figures["agreeing_articles"]
    maps = [[figures["word_maps"][size]] for size in WORD_MAP_SIZES]
    tasks: list[Sequence[Sequence[float]]] = [
        [[-loss for loss in size_values] for size_values in losses],
        [articles[size] for size in ARTICLE_SIZES],
        maps,
    ]
    low, high = figures["exponent_interval"]
    reason = (
        f"From {parameters[0]:,.0f} to {parameters[-1]:,.0f} parameters, each trained on the same text, the validation "
        f"loss falls from {statistics.mean(losses[0]):.3f} to {statistics.mean(losses[-1]):.3f} "
        f"({len(losses[0])} seeds), as the power -{figures['exponent']:.3f} of the size ({low:.3f} to {high:.3f}). "
        f"Written articles agree with their title in {statistics.mean(articles['tiny']):.0%}, "
        f"{statistics.mean(articles['small']):.0%} and {statistics.mean(articles['large']):.0%}, by size."
    )
    if not all(map(is_increasing, tasks)):
        return Finding(Verdict.FAILS, reason)
    return Finding(
        Verdict.CONDITIONAL,
        f"{reason} Condition: enough data; a model too large for its text was not tried.",
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the loss over the size, and the other tasks."""
    losses = figures["losses"]
    chart = LineChart(
        caption="Validation loss on Python's documentation after 1,228,800 characters: mean and range of three seeds",
        x_label="parameters",
        y_label="nats a character",
        x_scale="log",
        series={
            "decoder": Series(
                figures["parameters"],
                [statistics.mean(size_values) for size_values in losses],
                low=[min(size_values) for size_values in losses],
                high=[max(size_values) for size_values in losses],
            )
        },
    )
    table = Table(
        caption="Other tasks",
        columns=("task", "size", "share"),
        rows=[
            *(
                ("articles that agree with their title", size, f"{statistics.mean(shares):.3f}")
                for size, shares in figures["agreeing_articles"].items()
            ),
            *(("words right after 8 pairs", size, f"{share:.3f}") for size, share in figures["word_maps"].items()),
        ],
    )
    return chart, table


CLAIM = Claim(
    number=39,
    title="Larger models are better",
    sentence="With more parameters a Transformer keeps on getting better, in its loss and in what it can do.",
    lectures=("S0",),
    source="Kaplan et al. 2020, section 3; Brown et al. 2020, section 3",
    refutation="On one of three tasks, some seed of a larger model is no better than one of the next smaller size.",
    evidence=Records(
        files=(
            "language_modeling/results/sizes.json",
            "news_articles/results/write_from_title.jsonl",
            "in_context_learning/results/word_maps_small.jsonl",
            "in_context_learning/results/word_maps.jsonl",
        ),
        page="language_modeling/results/sizes.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
