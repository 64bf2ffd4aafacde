"""Mutants of transformer/studies."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/studies/ablations/ablation.py",
        "return self.sign * value < self.sign * reference",
        "return value < reference",
        ("tests/studies/test_ablation.py", "tests/studies/test_analysis.py"),
    ),
    Mutant(
        "transformer/studies/ablations/analysis.py",
        "rate=diverged / ended if ended else None",
        "rate=diverged / study.planned_AxTxCxS[study.arm_number(arm)].sum() if ended else None",
        ("tests/studies/test_analysis.py",),
    ),
    Mutant(
        "transformer/studies/ablations/analysis.py",
        "if not study.spec.direction.is_better(target, value)",
        "if study.spec.direction.is_better(value, target)",
        ("tests/studies/test_analysis.py",),
    ),
    Mutant(
        "transformer/studies/ablations/arm_comparisons.py",
        "math.comb(len(study.spec.arms), 2)",
        "len(study.spec.arms) - 1",
        ("tests/studies/test_analysis.py",),
    ),
    Mutant(
        "transformer/studies/ablations/arm_comparisons.py",
        "differences_S = values_2xS[0] - values_2xS[1]",
        "differences_S = np.sort(values_2xS[0]) - np.sort(values_2xS[1])",
        ("tests/studies/test_analysis.py",),
    ),
    Mutant(
        "transformer/studies/ablations/collect_results.py",
        "return reports[-1][1] if reports else None",
        "return reports[0][1] if reports else None",
        ("tests/studies/test_collect.py",),
    ),
    Mutant(
        "transformer/studies/ablations/hyperparameter_selection.py",
        "(2 * num_learned_LxAxTxC >= num_counted_LxAxTx1)",
        "(2 * num_learned_LxAxTxC > num_counted_LxAxTx1)",
        ("tests/studies/test_analysis.py",),
    ),
    Mutant(
        "transformer/studies/ablations/registration.py",
        "if _whole_seconds(start) < _whole_seconds(registered)]",
        "if _whole_seconds(start) <= _whole_seconds(registered)]",
        ("tests/studies/test_registration.py",),
    ),
    Mutant(
        "transformer/studies/ablations/registration.py",
        'if key not in ("name", "seed")})',
        'if key != "name"})',
        ("tests/studies/test_registration.py",),
    ),
    Mutant(
        "transformer/studies/ablations/statistics.py",
        "1 - (1 - CONFIDENCE) / 2 / num_comparisons",
        "1 - (1 - CONFIDENCE) / 2",
        ("tests/studies/test_statistics.py",),
    ),
    Mutant(
        "transformer/studies/ablations/statistics.py",
        "2 * (1 + int(min(below, above)))",
        "(1 + int(min(below, above)))",
        ("tests/studies/test_statistics.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/listing.py",
        'is_study = "sweep.json" in entries',
        'is_study = "trials.jsonl" in entries',
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/listing.py",
        "files.version: self._summaries.get(files.version) or read_run(files)",
        "files.version: self._summaries.get(files.name) or read_run(files)",
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/run_summary.py",
        "if num_steps is not None and step >= num_steps:",
        "if num_steps is not None and step > num_steps:",
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/run_summary.py",
        "latest = starts[-1] if starts else RunStart()",
        "latest = starts[0] if starts else RunStart()",
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/run_summary.py",
        'choose = min if direction == "minimize" else max',
        'choose = max if direction == "minimize" else min',
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/selection.py",
        'return [*sorted(having, key=lambda run: sort_key(read_value(run)), reverse=key.startswith("-")), *lacking]',
        'return [*sorted(having, key=lambda run: sort_key(read_value(run)), reverse=key.startswith("-"))]',
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/selection.py",
        "all(test(run) for test in tests)",
        "any(test(run) for test in tests)",
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/run_listing/selection.py",
        "return (type(value).__name__, value if is_plain else config_text(value))",
        'return ("", value if is_plain else config_text(value))',
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/studies/scaling_laws.py",
        "slope = np.clip(residual / HUBER, -1, 1)",
        "slope = residual / HUBER",
        ("tests/studies/test_scaling_laws.py",),
    ),
    Mutant(
        "transformer/studies/sweeps/search_space.py",
        "generator.uniform(math.log(self.low), math.log(self.high))",
        "math.log(generator.uniform(self.low, self.high))",
        ("tests/studies/test_space.py",),
    ),
    Mutant(
        "transformer/studies/sweeps/search_space.py",
        "return self.high - self.low + 1",
        "return self.high - self.low",
        ("tests/studies/test_space.py",),
    ),
    Mutant(
        "transformer/studies/sweeps/sweep_progress.py",
        "-row.value if maximize else row.value,)",
        "row.value,)",
        ("tests/studies/test_progress.py", "tests/studies/test_sweep_results.py"),
    ),
    Mutant(
        "transformer/studies/sweeps/trial_store.py",
        "return any(outcome is not None and outcome.value is not None for outcome in outcomes)",
        "return any(outcome is not None for outcome in outcomes)",
        ("tests/studies/test_trial_store.py",),
    ),
    Mutant(
        "transformer/studies/sweeps/trial_store.py",
        "attempts.clear()",
        "attempts.pop()",
        ("tests/studies/test_trial_store.py",),
    ),
    Mutant(
        "transformer/studies/sweeps/worker.py",
        "failures = failures + 1 if ended.state == TrialState.FAILED else 0",
        "failures = failures + (ended.state == TrialState.FAILED)",
        ("tests/studies/test_worker.py",),
    ),
    Mutant(
        "transformer/studies/ablations/run_distributions.py",
        "return finite if len(finite) <= _THRESHOLDS else",
        "return finite if len(finite) < 2 else",
        ("tests/studies/test_run_distributions.py",),
    ),
)
