"""Mutants of transformer/interpret."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/interpret/heat_maps.py",
        "POSITIVE_RGB if value > 0 else NEGATIVE_RGB",
        "POSITIVE_RGB if value < 0 else NEGATIVE_RGB",
        ("tests/interpret/test_heat_maps.py",),
    ),
    Mutant(
        "transformer/interpret/heat_maps.py",
        "part = min(1.0, abs(value) / limit)",
        "part = min(1.0, abs(value))",
        ("tests/interpret/test_heat_maps.py",),
    ),
    Mutant(
        "transformer/interpret/attribution.py",
        "words=words[::-1],",
        "words=words,",
        ("tests/interpret/test_heat_maps.py",),
    ),
    Mutant(
        "transformer/interpret/load.py",
        "tokens[sites[-1].query.name][0]",
        "tokens[sites[-1].key.name][0]",
        ("tests/interpret/test_heat_maps.py",),
    ),
    Mutant(
        "transformer/interpret/attribution.py",
        "[replace(name, stream, layers=-1)]",
        "[replace(name, stream, layers=0)]",
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
    Mutant(
        "transformer/interpret/head_ablation.py",
        "value = (1 - gates_Lx1x1xHx1) * replacement_Lx1x1xHxD",
        "value = gates_Lx1x1xHx1 * replacement_Lx1x1xHxD",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "np.abs(gradients_NxU).sum(axis=1)",
        "np.abs(gradients_NxU.sum(axis=1))",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "jnp.any(gradient != 0, axis=(4, 5))",
        "jnp.any(gradient == gradient, axis=(4, 5))",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "gates_NxN[number:, head] = 0",
        "gates_NxN[number + 1 :, head] = 0",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "1 + first: -1, 1 + second: -1, 0: 1",
        "1 + first: -1, 1 + second: -1, 0: -1",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "np.any(sums_VxUxK[0] != 0, axis=-1)",
        "np.any(sums_VxUxK[0] > -1, axis=-1)",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "math.sqrt(self.num_units * np.var(influences_U, ddof=1))",
        "math.sqrt(np.var(influences_U, ddof=1))",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/head_ablation.py",
        "np.allclose(summed[name], sums[name], rtol=_ROUNDING, atol=_ROUNDING)",
        "np.shape(summed[name]) == np.shape(sums[name])",
        ("tests/interpret/test_head_ablation.py",),
    ),
    Mutant(
        "transformer/interpret/show.py",
        "event.source === frame.contentWindow &amp;&amp; event.data?.headwiseHeight",
        "event.data?.headwiseHeight",
        ("tests/interpret/test_page_single_text.py",),
    ),
)
