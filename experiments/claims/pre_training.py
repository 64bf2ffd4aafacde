"""C-38: pre-training helps on many tasks."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import Table

MODELS = ("BERT", "GPT-1", "ELMo", "XLNet")
PRE_TRAINED_ARMS = ("with pre-training", "with auxiliary loss")


def read(files: Sequence[Any]) -> Figures:
    """Return, by model and task, the difference that pre-training makes, higher being better."""
    from transformer.studies.ablations.statistics import t_test

    *studies, fine_tuning = files
    rows = [
        {
            "model": model,
            "task": pair["task"],
            "difference": pair["difference"],
            "interval": pair["interval"],
            "seeds": pair["n"],
        }
        for model, study in zip(MODELS, studies, strict=True)
        for pair in study["comparisons"]
        if pair["task"] is not None and pair["arm"] in PRE_TRAINED_ARMS
    ]
    losses = {(row["run"], row["seed"]): row["loss"] for row in fine_tuning if row["split"] == "test" and "loss" in row}
    seeds = sorted(seed for run, seed in losses if run == "scratch")
    test = t_test([losses["scratch", seed] - losses["layers", seed] for seed in seeds])
    assert test.interval is not None
    code = {"difference": test.mean, "interval": list(test.interval), "seeds": len(seeds)}
    return {"rows": [*rows, {"model": "decoder", "task": "code", **code}]}


def judge(figures: Figures) -> Finding:
    """It holds if more than half of the comparisons are better; with a condition if some are, and none worse."""
    rows = figures["rows"]
    better = [row for row in rows if row["interval"][0] > 0]
    worse = [row for row in rows if row["interval"][1] < 0]

    def join_names(pairs: Sequence[Any]) -> str:
        return ", ".join(f"{row['model']} on {row['task']}" for row in pairs) or "none"

    reason = (
        f"Of {len(rows)} pairs of a model and a task, pre-training helps in {len(better)} ({join_names(better)}), "
        f"harms in {len(worse)} ({join_names(worse)}) and makes no difference that is seen in "
        f"{len(rows) - len(better) - len(worse)}."
    )
    if len(better) > len(rows) / 2:
        return Finding(Verdict.HOLDS if not worse else Verdict.CONDITIONAL, reason)
    if better and not worse:
        return Finding(Verdict.CONDITIONAL, f"{reason} Condition: the task is near to the text of pre-training.")
    return Finding(
        Verdict.FAILS,
        f"{reason} Pre-training takes minutes here and reads the task's own texts or a few megabytes, not billions of "
        "words.",
    )


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show each difference."""
    return (
        Table(
            caption="What pre-training changes: accuracy (SST-2) and Matthews correlation (CoLA) in points, and nats "
            "a byte (code); above 0 is better; 95% intervals, adjusted for the comparisons of a study",
            columns=("model", "task", "difference", "interval", "seeds"),
            rows=[
                (
                    row["model"],
                    row["task"],
                    f"{row['difference']:+.2f}",
                    "{:+.2f} to {:+.2f}".format(*row["interval"]),
                    str(row["seeds"]),
                )
                for row in figures["rows"]
            ],
        ),
    )


CLAIM = Claim(
    number=38,
    title="Pre-training helps on many tasks",
    sentence="A model that is first trained on plain text and then fine-tuned is better on many tasks than one that "
    "starts from random parameters.",
    lectures=("S0", "S2", "S3"),
    source="Radford et al. 2018, table 5; Devlin et al. 2019, table 1",
    refutation="Of the pairs of a model and a task, not more than half have a 95% interval above 0, and some have one "
    "below 0 or none has one above.",
    evidence=Records(
        files=(
            "glue/results/bert_rows.json",
            "glue/results/gpt1_rows.json",
            "glue/results/elmo_rows.json",
            "glue/results/xlnet_rows.json",
            "lora/results/fine_tuning.jsonl",
        ),
        page="glue/results/bert.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
