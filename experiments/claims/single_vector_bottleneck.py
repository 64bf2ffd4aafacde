"""C-14: one vector for the whole source is overloaded, the more the longer the source."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

CONTEXTS = {"attention": "attention", "last": "last state alone"}
# The buckets of the records, and the longest source of each; of the last bucket of sentences, its shortest.
SYMBOL_BUCKETS = {"1_4": 4, "5_8": 8, "9_12": 12, "13_16": 16, "17_20": 20, "21_up": 24}
WORD_BUCKETS = {"1_10": "1 to 10", "11_13": "11 to 13", "14_15": "14 and 15", "16_up": "16 and more"}


def read(records: Sequence[Any]) -> Figures:
    """Take the last evaluations of the copying runs, and the test figures of both translation models."""
    copying, *translations = records
    exact: dict[str, dict[str, list[float]]] = {context: {} for context in CONTEXTS}
    accuracy: dict[str, list[float]] = {context: [] for context in CONTEXTS}
    last_step = max(row["step"] for row in copying)
    for row in copying:
        if row["step"] != last_step:
            continue
        if row["split"] == "validation" and "exact_match" in row:
            for bucket in SYMBOL_BUCKETS:
                exact[row["context"]].setdefault(bucket, []).append(row[f"exact_match/length_{bucket}"])
        if row["split"] == "test" and "accuracy" in row:
            accuracy[row["context"]].append(row["accuracy"])
    bleu = {}
    for context, rows in zip(CONTEXTS, translations, strict=True):
        (test,) = [row for row in rows if row["split"].startswith("test") and "bleu" in row]
        bleu[context] = {"all": test["bleu"]} | {bucket: test[f"bleu/length_{bucket}"] for bucket in WORD_BUCKETS}
    return {"exact": exact, "accuracy": accuracy, "bleu": bleu}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def judge(figures: Figures) -> Finding:
    """The gap must grow with the length in both tasks, and attention must hold at the longest copies."""
    accuracy, bleu = figures["accuracy"], figures["bleu"]
    gaps = {
        bucket: _mean(figures["exact"]["attention"][bucket]) - _mean(figures["exact"]["last"][bucket])
        for bucket in SYMBOL_BUCKETS
    }
    sentences = [bleu["attention"][bucket] - bleu["last"][bucket] for bucket in WORD_BUCKETS]
    reason = (
        f"Copying {SYMBOL_BUCKETS['21_up']} symbols, a GRU with one vector says {min(accuracy['last']):.0%} to "
        f"{max(accuracy['last']):.0%} of them rightly, with attention {min(accuracy['attention']):.1%} to "
        f"{max(accuracy['attention']):.1%} ({len(accuracy['last'])} seeds); of copies of at most four symbols, one "
        f"vector gets {_mean(figures['exact']['last']['1_4']):.0%} wholly right. On Multi30k it is {sentences[0]:.1f} "
        f"BLEU behind for short sentences and {sentences[-1]:.1f} for long ones (one seed)."
    )
    holds = (
        max(accuracy["last"]) <= 0.65
        and min(accuracy["attention"]) >= 0.98
        and gaps["21_up"] > gaps["1_4"] + 0.5
        and sentences == sorted(sentences)
        and sentences[0] > 0
    )
    return Finding(Verdict.HOLDS if holds else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show whole copies over the length, and BLEU by length."""
    lengths = list(SYMBOL_BUCKETS.values())
    chart = LineChart(
        caption="Whole copies by greedy decoding over the length of the source, mean and range of three seeds",
        x_label="symbols, at most",
        y_label="copied without an error",
        series={
            label: Series(
                lengths,
                [_mean(figures["exact"][context][bucket]) for bucket in SYMBOL_BUCKETS],
                [min(figures["exact"][context][bucket]) for bucket in SYMBOL_BUCKETS],
                [max(figures["exact"][context][bucket]) for bucket in SYMBOL_BUCKETS],
            )
            for context, label in CONTEXTS.items()
        },
    )
    bleu = figures["bleu"]
    table = Table(
        caption="BLEU on Multi30k English-German by words of the source (test_2016_flickr, one seed)",
        columns=("words", *CONTEXTS.values(), "between them"),
        rows=[
            (
                label,
                f"{bleu['attention'][bucket]:.2f}",
                f"{bleu['last'][bucket]:.2f}",
                f"{bleu['attention'][bucket] - bleu['last'][bucket]:.2f}",
            )
            for bucket, label in {**WORD_BUCKETS, "all": "all"}.items()
        ],
    )
    return chart, table


CLAIM = Claim(
    number=14,
    title="One vector is overloaded",
    sentence="A single vector that must hold the whole source is overloaded, and the longer the source, the more is "
    "lost.",
    lectures=("S1", "S2", "S3", "S4"),
    source="Cho et al. 2014; Bahdanau et al. 2015, figure 2",
    refutation="On copies of 24 symbols one vector has more than 0.65 of the symbols right or attention less than "
    "0.98; or the gap between both does not grow with the length, of copies or of sentences.",
    evidence=Records(
        files=(
            "translation/results/recurrent_copy.jsonl",
            "translation/results/recurrent_multi30k_attention.jsonl",
            "translation/results/recurrent_multi30k_last.jsonl",
        ),
        page="translation/results/recurrent_copy.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
