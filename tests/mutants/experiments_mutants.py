"""Mutants of experiments."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "experiments/few_shot/task.py",
        "shown_BxT[:, -1] = 0",
        "shown_BxT[:, 0] = 0",
        ("tests/experiments/few_shot/test_task.py",),
    ),
    Mutant(
        "experiments/graphs/task.py",
        '"labels": (graphs.distances - 1)',
        '"labels": (graphs.distances % self.config.max_distance)',
        ("tests/experiments/graphs/test_task.py",),
    ),
    Mutant(
        "experiments/pointer_networks/metrics.py",
        '"optimality_gap": length / optimal - 1',
        '"optimality_gap": 1 - optimal / length',
        ("tests/experiments/pointer_networks/test_task.py", "tests/experiments/pointer_networks/test_data.py"),
    ),
    Mutant(
        "experiments/speech/metrics.py",
        "beneath = (compared < own) + 0.5 * (compared == own)",
        "beneath = compared < own",
        ("tests/experiments/speech/test_task.py",),
    ),
    Mutant(
        "experiments/summarization/metrics.py",
        "for start in range(len(words) - order + 1))",
        "for start in range(len(words) - order))",
        ("tests/experiments/summarization/test_metrics.py",),
    ),
    Mutant(
        "experiments/summarization/metrics.py",
        "repeated_facts=fact_counts.total() - len(first)",
        "repeated_facts=fact_counts.total() - len(fact_counts)",
        ("tests/experiments/summarization/test_metrics.py",),
    ),
    Mutant(
        "experiments/text_retrieval/metrics.py",
        "source_BxE @ target_BxE.T / temperature",
        "source_BxE @ target_BxE.T * temperature",
        ("tests/experiments/text_retrieval/test_metrics.py",),
    ),
    Mutant(
        "experiments/text_retrieval/metrics.py",
        "float(np.mean((ahead_N == 0) / level_N))",
        "float(np.mean(ahead_N == 0))",
        ("tests/experiments/text_retrieval/test_metrics.py",),
    ),
)
