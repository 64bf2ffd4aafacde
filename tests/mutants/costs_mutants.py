"""Mutants of transformer/costs."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/costs/topologies.py",
        "or math.prod(sides) > _LARGEST[platform]:",
        "or max(sides) > _LARGEST[platform]:",
        ("tests/costs/test_topologies.py",),
    ),
)
