"""Mutants of transformer/interpret."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/interpret/named_maps.py",
        "if not 0 <= example < len(self.queries):",
        "if not example < len(self.queries):",
        ("tests/interpret/test_load.py",),
    ),
)
