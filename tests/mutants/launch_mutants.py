"""Mutants of launch."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "launch/scaling_laws.py",
        "read_runs(dict.fromkeys(parse_path(path) for path in paths if path),",
        "read_runs([parse_path(path) for path in paths if path],",
        ("tests/launch/test_scaling_laws.py",),
    ),
)
