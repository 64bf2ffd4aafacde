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
