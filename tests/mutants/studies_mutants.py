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
        "transformer/studies/ablations/statistics.py",
        "1 - (1 - CONFIDENCE) / 2 / num_comparisons",
        "1 - (1 - CONFIDENCE) / 2",
        ("tests/studies/test_statistics.py",),
    ),
)
