"""Mutants of transformer/maps."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/maps/quantize.py",
        "better = candidate_error < error",
        "better = candidate_error > error",
        ("tests/maps/test_quantize.py",),
    ),
    Mutant(
        "transformer/maps/store.py",
        "if self._steps and step <= self._steps[-1]:",
        "if self._steps and step < self._steps[-1]:",
        ("tests/maps/test_store.py",),
    ),
)
