"""Mutants of transformer/interpret."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/interpret/attribution.py",
        "return model.run_with(text, [replace(name, stream, layers=-1)], target=target)",
        "return model.run_with(text, [replace(name, stream, layers=0)], target=target)",
        ("tests/interpret/test_attribution.py",),
    ),
    Mutant(
        "transformer/interpret/attribution.py",
        "fixed_norm = [replace(factor, cache[factor])] if factor in cache else []",
        "fixed_norm = []",
        ("tests/interpret/test_attribution.py",),
    ),
    Mutant(
        "transformer/interpret/attribution.py",
        "_, reached = model.with_edits(edits).run_with_cache(text, receiver.name, target=target)",
        "_, reached = model.with_edits(edits[-1:]).run_with_cache(text, receiver.name, target=target)",
        ("tests/interpret/test_attribution.py",),
    ),
    Mutant(
        "transformer/interpret/attribution.py",
        "group = head * groups // cache",
        "group = 0 * groups // cache",
        ("tests/interpret/test_attribution.py",),
    ),
    Mutant(
        "transformer/interpret/named_maps.py",
        "if not 0 <= example < len(self.queries):",
        "if not example < len(self.queries):",
        ("tests/interpret/test_load.py",),
    ),
    Mutant(
        "transformer/interpret/role_onset.py",
        "low, high = (low, middle) if plays else (middle, high)",
        "low, high = (middle, high) if plays else (low, middle)",
        ("tests/interpret/test_role_onset.py",),
    ),
    Mutant(
        "transformer/interpret/role_onset.py",
        "next(step for step in steps if step > last_without)",
        "next(step for step in steps if step >= last_without)",
        ("tests/interpret/test_role_onset.py",),
    ),
    Mutant(
        "transformer/interpret/role_onset.py",
        "if start is not None and start.step <= step]",
        "if start is not None]",
        ("tests/interpret/test_role_onset.py",),
    ),
    Mutant(
        "transformer/interpret/role_onset.py",
        "if nearest is None or nearest.step < saved:",
        "if nearest is None:",
        ("tests/interpret/test_role_onset.py",),
    ),
)
