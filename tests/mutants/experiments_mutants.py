"""Mutants of experiments."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "experiments/summarization/metrics.py",
        "for start in range(len(words) - order + 1))",
        "for start in range(len(words) - order))",
        ("tests/experiments/summarization/test_metrics.py",),
    ),
)
