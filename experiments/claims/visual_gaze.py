"""C-32: attention over images is like a gaze that moves."""

import statistics
from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import Table

# Scenes have nine cells of one object each at most; a caption names objects one after another.
CELLS = 9
LEAST_WEIGHT = 0.7


def read(files: Sequence[Any]) -> Figures:
    """Return the weight on the cell of the named object and that on the moving person, by seed."""
    *captions, person = files
    weights = [
        next(row["attention_mass/noun"] for row in rows if "attention_mass/noun" in row and row["split"] == "test")
        for rows in captions
    ]
    tests = [row for row in person if row["split"] == "test"]
    return {
        "noun": weights,
        "person": [row["attention_mass/person"] for row in tests],
        "person_over_uniform": [row["attention_mass/person_over_uniform"] for row in tests],
    }


def judge(figures: Figures) -> Finding:
    """What can be refuted is that attention is narrow and moves to what is named; the likeness to eyes cannot."""
    weights, person, over_uniform = figures["noun"], figures["person"], figures["person_over_uniform"]
    reason = (
        f"A caption's attention has {statistics.mean(weights):.3f} of its weight on the cell of the object that it "
        f"names ({len(weights)} seeds; uniform: {1 / CELLS:.3f}), and an agent's {statistics.mean(person):.2f} on a "
        f"walking person ({len(person)} seeds; {statistics.mean(over_uniform):.0f} times uniform)."
    )
    if min(weights) < LEAST_WEIGHT or min(over_uniform) < 2:
        return Finding(Verdict.FAILS, reason)
    return Finding(
        Verdict.NOT_TESTABLE,
        f"{reason} So it is narrow and moves; whether it moves as eyes do takes recorded gazes, which are not here.",
    )


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the weights."""
    rows = [
        (f"cell of the named object, seed {seed}", f"{weight:.3f}", f"{weight * CELLS:.1f}")
        for seed, weight in enumerate(figures["noun"], 1)
    ]
    person = zip(figures["person"], figures["person_over_uniform"], strict=True)
    rows += [
        (f"walking person, seed {seed}", f"{weight:.3f}", f"{over_uniform:.1f}")
        for seed, (weight, over_uniform) in enumerate(person, 1)
    ]
    return (
        Table(
            caption="Attention on what is named, or acted on, in test scenes",
            columns=("region", "weight", "times uniform"),
            rows=rows,
        ),
    )


CLAIM = Claim(
    number=32,
    title="Attention is like the movement of a gaze",
    sentence="Attention over an image works as the eye does: it looks sharply at one small region at a time and moves "
    "from region to region.",
    lectures=("S3",),
    source="Xu et al. 2015, section 1",
    refutation="With some seed, less than 0.7 of a caption's attention is on the object that it names, or an agent's "
    "is less than twice the uniform weight on the person that it acts on.",
    evidence=Records(
        files=(
            "captioning/results/captions_soft_seed1.jsonl",
            "captioning/results/captions_soft_seed2.jsonl",
            "captioning/results/captions_soft_seed3.jsonl",
            "handshake_rl/results/approaching_person_attention.jsonl",
        ),
        page="captioning/results/captions.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
