"""Mutants of transformer/maps."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/maps/attention_distance.py",
        "values[..., place] *= grid.stride",
        "values[..., place] /= grid.stride",
        ("tests/maps/test_attention_distance.py",),
    ),
    Mutant(
        "transformer/maps/capture_plan.py",
        "config.max_megabytes * 1e6 / max(steps, 1)",
        "config.max_megabytes * 1e6",
        ("tests/maps/test_capture_plan.py",),
    ),
    Mutant(
        "transformer/maps/capture_plan.py",
        "sure[example, query, key] = is_sure",
        "sure[example, query, key] = True",
        ("tests/maps/test_capture_plan.py", "tests/maps/test_head_history.py"),
    ),
    Mutant(
        "transformer/maps/head_differences.py",
        "weights.any(axis=-1).all(axis=1)",
        "weights.any(axis=-1).any(axis=1)",
        ("tests/maps/test_head_differences.py",),
    ),
    Mutant(
        "transformer/maps/report/head_history.py",
        "if name in OF_LAYERS and measured.shape == (shape[0], 1):",
        "if measured.shape == (shape[0], 1):",
        ("tests/maps/test_report_head_history.py",),
    ),
    Mutant(
        "transformer/maps/head_matching.py",
        "linear_sum_assignment(similarity_HxG, maximize=True)",
        "linear_sum_assignment(similarity_HxG)",
        ("tests/maps/test_head_matching.py",),
    ),
    Mutant(
        "transformer/maps/head_matching.py",
        "/ max(np.count_nonzero(rows_BxQ), 1), 0, 1)",
        "/ rows_BxQ.size, 0, 1)",
        ("tests/maps/test_head_matching.py",),
    ),
    Mutant(
        "transformer/maps/head_roles.py",
        "(np.exp(entropy) / count_R[rows])",
        "(entropy / np.log(count_R[rows]))",
        ("tests/maps/test_head_roles.py", "tests/maps/test_head_roles_planted.py"),
    ),
    Mutant(
        "transformer/maps/head_roles.py",
        "return shared > 0.5 * weight",
        "return shared > weight",
        ("tests/maps/test_head_roles_bands_and_words.py",),
    ),
    Mutant(
        "transformer/maps/head_roles.py",
        "one.specificity < max(columns, default=0)",
        "one.specificity < 0",
        ("tests/maps/test_head_roles.py",),
    ),
    Mutant(
        "transformer/maps/quantize.py",
        "better = candidate_error < error",
        "better = candidate_error > error",
        ("tests/maps/test_quantize.py",),
    ),
    Mutant(
        "transformer/maps/report/head_history.py",
        "key=lambda role: -role.score",
        "key=lambda role: role.score",
        ("tests/maps/test_head_history.py", "tests/maps/test_report_head_history.py"),
    ),
    Mutant(
        "transformer/maps/report/head_history.py",
        "if crossings and changes[-1].after >= MIN_ROLE_SCORE:",
        "if crossings:",
        ("tests/maps/test_head_history.py",),
    ),
    Mutant(
        "transformer/maps/report/payload.py",
        "power = (root[changed] / new_root[changed])",
        "power = (new_root[changed] / root[changed])",
        ("tests/maps/test_page_data.py",),
    ),
    Mutant(
        "transformer/maps/report/projections.py",
        "size = sum(2 * math.prod(side.shape) for side in sides)",
        "size = sum(math.prod(side.shape) for side in sides)",
        ("tests/maps/test_projections.py",),
    ),
    Mutant(
        "transformer/maps/role_rules.py",
        "(example.keys == example.queries - example.period + 1)",
        "(example.keys == example.queries - example.period)",
        ("tests/maps/test_induction.py", "tests/maps/test_head_roles.py"),
    ),
    Mutant(
        "transformer/maps/role_rules.py",
        "return (share - chance) / (1 - chance)",
        "return share - chance",
        ("tests/maps/test_head_roles.py", "tests/maps/test_head_history.py"),
    ),
    Mutant(
        "transformer/maps/role_rules.py",
        "(2 * size_R <= visible_R)",
        "(size_R <= visible_R)",
        ("tests/maps/test_head_roles_bands_and_words.py",),
    ),
    Mutant(
        "transformer/maps/role_rules.py",
        "return in_word & (example.keys != example.queries)",
        "return in_word",
        ("tests/maps/test_head_roles_bands_and_words.py",),
    ),
    Mutant(
        "transformer/maps/role_rules.py",
        "number += not is_inside or token[0] in _SPACES",
        "number += not is_inside",
        ("tests/maps/test_head_roles_bands_and_words.py",),
    ),
    Mutant(
        "transformer/maps/run_maps.py",
        "weights = self.weights(site, steps=steps[::-every][::-1], example=example)",
        "weights = self.weights(site, steps=steps[::every], example=example)",
        ("tests/maps/test_run_maps.py",),
    ),
    Mutant(
        "transformer/maps/store.py",
        "if self._steps and step <= self._steps[-1]:",
        "if self._steps and step < self._steps[-1]:",
        ("tests/maps/test_store.py",),
    ),
    Mutant(
        "transformer/maps/store.py",
        "for step in self._steps if step <= after_step]",
        "for step in self._steps if step < after_step]",
        ("tests/maps/test_store.py", "tests/maps/test_store_killed.py"),
    ),
    Mutant(
        "transformer/maps/store_metadata.py",
        "row[: 8 + int.from_bytes(",
        "row[: int.from_bytes(",
        ("tests/maps/test_store.py",),
    ),
    Mutant(
        "transformer/maps/zarr_files.py",
        'size = math.prod(metadata["shape"]) * np.dtype(metadata["data_type"]).itemsize',
        'size = math.prod(metadata["shape"])',
        ("tests/maps/test_store.py",),
    ),
)
