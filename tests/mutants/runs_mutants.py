"""Mutants of transformer/runs."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/runs/trust.py",
        "if not untrusted or (not untrusted_code and _is_remembered(config)):",
        "if not untrusted or _is_remembered(config):",
        ("tests/runs/test_trust.py",),
    ),
)
