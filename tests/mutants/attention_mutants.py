"""Mutants of transformer/attention."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
