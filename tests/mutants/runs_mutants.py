"""Mutants of transformer/runs."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/runs/array_digests.py",
        "+ np.uint64(place)) * _GOLDEN",
        ") * _GOLDEN",
        ("tests/runs/test_array_digests.py",),
    ),
    Mutant(
        "transformer/runs/checkpoint.py",
        "*steps[-self._max_to_keep :]}]",
        "*steps[: self._max_to_keep]}]",
        ("tests/runs/test_checkpoint.py",),
    ),
    Mutant(
        "transformer/runs/checkpoint_files.py",
        "if digest != entries[name].digest or arrays[name].shape",
        "if arrays[name].shape",
        ("tests/runs/test_checkpoint.py",),
    ),
    Mutant(
        "transformer/runs/distributed.py",
        'parse_process_count(environment, "SLURM_NTASKS") > 1',
        'parse_process_count(environment, "SLURM_NTASKS") >= 1',
        ("tests/runs/test_distributed.py",),
    ),
    Mutant(
        "transformer/runs/distributed.py",
        "if not 0 <= int(number) < int(total):",
        "if not 0 <= int(number) <= int(total):",
        ("tests/runs/test_distributed.py",),
    ),
    Mutant(
        "transformer/runs/jsonl_reading.py",
        "start = storage.read_range(path, 0, max_bytes // 2)",
        "start = storage.read_range(path, 1, max_bytes // 2)",
        ("tests/studies/test_run_listing.py",),
    ),
    Mutant(
        "transformer/runs/metric_curves.py",
        "indices |= {int(stretch[values.argmin()]), int(stretch[values.argmax()])}",
        "indices |= {int(stretch[values.argmin()]), int(stretch[0])}",
        ("tests/maps/test_page_data.py",),
    ),
    Mutant(
        "transformer/runs/jsonl_reading.py",
        "isinstance(step, int) and step <= last:",
        "isinstance(step, int) and step < last:",
        ("tests/training/test_writers.py",),
    ),
    Mutant(
        "transformer/runs/jsonl_reading.py",
        "for record in reversed(records):",
        "for record in records:",
        ("tests/studies/test_sweep_results.py", "tests/studies/test_worker.py"),
    ),
    Mutant(
        "transformer/runs/processor.py",
        "if name in instructions][:1]]",
        "if name in instructions][-1:]]",
        ("tests/runs/test_processor.py",),
    ),
    Mutant(
        "transformer/runs/run_directory.py",
        "if is_key_within(key, may_change):",
        "if key in may_change:",
        ("tests/runs/test_run_directory.py",),
    ),
    Mutant(
        "transformer/runs/trust.py",
        "only the run's own config.json names\": _untrusted(code, trusted),",
        "only the run's own config.json names\": _untrusted(code, trusted) if untrusted_paths else [],",
        ("tests/runs/test_trust.py",),
    ),
    Mutant(
        "transformer/runs/trust.py",
        'if "." in name.value and not is_project_module(name.value)]',
        'if not is_project_module(name.value) and name.value.count(".") > 1]',
        ("tests/runs/test_trust.py",),
    ),
)
