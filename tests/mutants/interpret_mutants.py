"""Mutants of transformer/interpret."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/interpret/load.py",
        "dataclasses.replace(capture, value_norms=True, query_key_vectors=query_key_vectors)",
        "dataclasses.replace(capture, value_norms=False, query_key_vectors=query_key_vectors)",
        ("tests/interpret/test_page_single_text.py",),
    ),
    Mutant(
        "transformer/interpret/load.py",
        "    if step is not None:",
        "    if step is not None and step < 0:",
        ("tests/interpret/test_load.py",),
    ),
    Mutant(
        "transformer/interpret/named_maps.py",
        "if not 0 <= example < len(self.queries):",
        "if not example < len(self.queries):",
        ("tests/interpret/test_load.py",),
    ),
    Mutant(
        "transformer/interpret/show.py",
        'return getattr(shell, "kernel", None) is not None',
        "return shell is not None",
        ("tests/interpret/test_show.py",),
    ),
    Mutant(
        "transformer/interpret/show_weights.py",
        "if causal and np.triu(array, 1).any():",
        "if causal and np.triu(array, 2).any():",
        ("tests/interpret/test_show_weights.py",),
    ),
)
