"""C-16: attention aligns words though nothing tells it to."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import Table

SYSTEMS = {
    "recurrent_phrases": "a GRU with one head of soft attention",
    "recurrent_multi_head": "a GRU with several heads, the best chosen",
    "demo": "a Transformer, the best of 8 heads chosen",
    "recurrent_deep_att": "the stacked LSTMs of Deep-Att",
    "recurrent_gnmt": "the stacked LSTMs of GNMT",
    "recurrent_hard": "a GRU with one head of hard attention",
}


def read(records: Sequence[Any]) -> Figures:
    """Take the alignment error rates of the test phrases."""
    systems = {}
    for name, rows in zip(SYSTEMS, records, strict=True):
        measured = [row for row in rows if "alignment_error_rate" in row and row["split"] == "test"]
        systems[name] = {
            "errors": [row["alignment_error_rate"] for row in measured],
            "diagonal": measured[0]["alignment_error_rate_diagonal"],
        }
    return systems


def judge(figures: Figures) -> Finding:
    """The model of the claim must beat half the diagonal's error; the condition is which other models do not."""
    soft = figures["recurrent_phrases"]
    poor = [name for name, system in figures.items() if max(system["errors"]) > system["diagonal"] / 2]
    reason = (
        f"A GRU with one head of attention, trained on translations alone, has alignment error rates of "
        f"{min(soft['errors']):.2f} to {max(soft['errors']):.2f} ({len(soft['errors'])} seeds) on phrases whose links "
        f"are known, where the diagonal has {soft['diagonal']:.2f}."
    )
    if "recurrent_phrases" in poor:
        return Finding(Verdict.FAILS, reason)
    if poor:
        names = " and ".join(SYSTEMS[name] for name in poor)
        worst = max(max(figures[name]["errors"]) for name in poor)
        reason += (
            f" It depends on the model: {names} have more than half of the diagonal's error in some seed, up to "
            f"{worst:.2f}, though they translate; and a Transformer's head must first be found with known links."
        )
    return Finding(Verdict.CONDITIONAL if poor else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show every system's error rates."""
    return (
        Table(
            caption="Alignment error rate on 2,000 phrases whose links are known, by seed; less is better",
            columns=("system", "error of each seed", "the diagonal's"),
            rows=[
                (
                    label,
                    ", ".join(f"{error:.3f}" for error in figures[name]["errors"]),
                    f"{figures[name]['diagonal']:.3f}",
                )
                for name, label in SYSTEMS.items()
            ],
        ),
    )


CLAIM = Claim(
    number=16,
    title="Alignment for free",
    sentence="Attention learns which source word each target word comes from, though nobody tells it the alignment.",
    lectures=("S1",),
    source="Bahdanau et al. 2015, section 5.2; Luong et al. 2015, table 6; Zenkel et al. 2019",
    refutation="In some seed, the recurrent model with one head of soft attention has more than half of the diagonal's "
    "alignment error rate. A condition: another model that attends has.",
    evidence=Records(
        files=tuple(f"translation/results/{name}.jsonl" for name in SYSTEMS),
        page="translation/results/recurrent_phrases.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
