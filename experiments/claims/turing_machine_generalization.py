"""C-35: a Neural Turing Machine learns algorithms that go beyond its training lengths."""

from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

TRAINED_VECTORS, TRAINED_ITEMS = 20, 6
NUM_VECTORS, NUM_ITEMS = (10, 20, 30, 50, 80, 120), (6, 8, 10, 12, 15, 20)
# Copying counts as learned at 50 vectors, recall at 12 items; the farthest of both decide whether it goes on.
VECTORS, ITEMS = 50, 12


def read(files: Sequence[Any]) -> Figures:
    """Return the test errors by length, of copying by model and seed and of recall."""
    copies, recall = files
    tests = [row for row in copies if row["split"] == "test"]
    return {
        "copy": [
            {
                "model": row["model"],
                "seed": row["seed"],
                "wrong_bits": [row[f"bit_error_rate/{number}"] for number in NUM_VECTORS],
            }
            for row in tests
        ],
        "recall": next(
            [row[f"exact_match/{number}"] for number in NUM_ITEMS] for row in recall if row["split"] == "test"
        ),
    }


def judge(figures: Figures) -> Finding:
    """It holds alone if nothing is wrong at the farthest lengths, with a condition if not far beyond training."""
    at, far = NUM_VECTORS.index(VECTORS), NUM_VECTORS.index(max(NUM_VECTORS))
    turing = [run["wrong_bits"] for run in figures["copy"] if run["model"] == "turing"]
    lstm = [run["wrong_bits"][at] for run in figures["copy"] if run["model"] == "controller_only"]
    recalled, recalled_far = figures["recall"][NUM_ITEMS.index(ITEMS)], figures["recall"][-1]
    reason = (
        f"Trained on at most {TRAINED_VECTORS} vectors, it copies {VECTORS} with at most "
        f"{max(errors[at] for errors in turing):.1%} of the bits wrong ({len(turing)} seeds; an LSTM: at least "
        f"{min(lstm):.0%}), and {max(NUM_VECTORS)} with {min(errors[far] for errors in turing):.1%} to "
        f"{max(errors[far] for errors in turing):.1%}. Trained on at most {TRAINED_ITEMS} items, it recalls "
        f"{recalled:.0%} of {ITEMS} and {recalled_far:.0%} of {max(NUM_ITEMS)} (one seed)."
    )
    learned = max(errors[at] for errors in turing) < 0.01 and min(lstm) > 0.1 and recalled >= 0.99
    if not learned:
        return Finding(Verdict.FAILS, reason)
    if max(errors[far] for errors in turing) == 0 and recalled_far == 1:
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL, f"{reason} Condition: about twice the length of training; farther, errors grow."
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show errors of copying over the length, and recall."""
    labels = {"turing": "NTM", "controller_only": "LSTM"}
    chart = LineChart(
        caption=f"Copying: share of wrong bits, trained on at most {TRAINED_VECTORS} vectors",
        x_label="vectors",
        y_label="wrong bits",
        series={
            f"{labels[run['model']]}, seed {run['seed']}": Series(NUM_VECTORS, run["wrong_bits"])
            for run in figures["copy"]
            if run["model"] in labels
        },
    )
    table = Table(
        caption=f"Associative recall: entirely correct answers, trained on at most {TRAINED_ITEMS} items, one seed",
        columns=("items", "correct"),
        rows=[(str(number), f"{share:.3f}") for number, share in zip(NUM_ITEMS, figures["recall"], strict=True)],
    )
    return chart, table


CLAIM = Claim(
    number=35,
    title="Neural Turing Machines learn algorithms",
    sentence="A network with a memory that it reads and writes by attention learns simple algorithms, such as copying, "
    "that go on to work on inputs longer than those of training.",
    lectures=("S4",),
    source="Graves et al. 2014, sections 4.1 and 4.3",
    refutation="Trained on at most 20 vectors, it copies 50 with 1% of the bits wrong with some seed, or an LSTM "
    "copies them with less than 10% wrong; or, trained on at most 6 items, it recalls less than 99% of 12.",
    evidence=Records(
        files=(
            "neural_turing_machine/results/turing_copy.jsonl",
            "neural_turing_machine/results/turing_recall.jsonl",
        ),
        page="neural_turing_machine/results/turing_copy.md",
        read=read,
    ),
    judge=judge,
    exhibits=exhibits,
)
