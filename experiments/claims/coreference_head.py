"""C-21: a head finds the noun that "it" refers to."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

RULES = {"nearest_noun": "the nearest noun", "first_noun": "the first noun", "majority": "the commonest answer"}


def read(records: Sequence[Any]) -> Figures:
    """Take the last test figures of the probe of coreference, its curve, and the head that reads subjects."""
    coreference, agreement, corpora = records
    test: dict[str, float] = {}
    for row in coreference:
        if row["split"] == "test":
            test |= row
    curve = [row for row in coreference if row["split"] == "validation" and "accuracy" in row]
    agreement_test = {name: value for row in agreement if row["split"] == "test" for name, value in row.items()}
    (subject_head,) = [value for name, value in agreement_test.items() if name.endswith("head_accuracy")]
    by_arm: dict[str, list[float]] = {}
    for run in corpora["runs"]:
        if run["task"] == "coreference":
            by_arm.setdefault(run["arm"], []).append(run["reported_value"])
    return {
        "accuracy": test["accuracy"],
        "head_accuracy": test["antecedent_head_accuracy"],
        "rules": {rule: test[f"{rule}_accuracy"] for rule in RULES},
        "curve": {"step": [row["step"] for row in curve], "accuracy": [row["accuracy"] for row in curve]},
        "agreement": {"accuracy": agreement_test["accuracy"], "head_accuracy": subject_head},
        "families": by_arm,
    }


def judge(figures: Figures) -> Finding:
    """A head must find 0.9 of the nouns and beat the nearest noun; the condition is that other answers need no head."""
    rule = max(figures["rules"].values())
    agreement = figures["agreement"]
    reason = (
        f"On synthetic texts the largest weight of one head of a small decoder is on the noun that the pronoun refers "
        f"to in {figures['head_accuracy']:.1%} of questions, where the best rule has {rule:.1%} (one seed; the head "
        f"was chosen on other texts). Verbs that must agree with a subject are right in {agreement['accuracy']:.1%}, "
        f"but no head looks at the subject in more than {agreement['head_accuracy']:.1%}: not every such relation has "
        "a head."
    )
    if figures["head_accuracy"] < 0.9 or figures["head_accuracy"] < rule + 0.1:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.CONDITIONAL if agreement["head_accuracy"] < 0.9 else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the curve and the rules."""
    curve = figures["curve"]
    chart = LineChart(
        caption="Pronouns answered rightly on validation texts, over training",
        x_label="step",
        y_label="right",
        series={
            "decoder": Series(curve["step"], curve["accuracy"]),
            "the nearest noun": Series(curve["step"], [figures["rules"]["nearest_noun"]] * len(curve["step"])),
        },
    )
    table = Table(
        caption="Test texts: the noun that a pronoun refers to",
        columns=("who answers", "right"),
        rows=[
            ("the decoder", f"{figures['accuracy']:.3f}"),
            ("the key with the largest weight of its best head", f"{figures['head_accuracy']:.3f}"),
            *((label, f"{figures['rules'][rule]:.3f}") for rule, label in RULES.items()),
            *(
                (f"{arm}, {len(values)} seeds", f"{min(values):.3f} to {max(values):.3f}")
                for arm, values in figures["families"].items()
            ),
        ],
    )
    return chart, table


CLAIM = Claim(
    number=21,
    title="What does it refer to?",
    sentence="Self-attention links a pronoun to the noun that it stands for: a head looks from the one to the other.",
    lectures=("S1",),
    source="Vaswani et al. 2017, figure 5; Clark et al. 2019, section 4.2",
    refutation="No head has its largest weight on the right noun in at least 0.9 of test questions, or it is less than "
    "0.1 better than the best rule without attention. A condition: another relation is answered without such a head.",
    evidence=Records(
        files=(
            "attention_probes/results/one_thing_coreference.jsonl",
            "attention_probes/results/one_thing_agreement.jsonl",
            "attention_probes/results/corpora.json",
        ),
        page="attention_probes/results/one_thing.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
