"""Mutants of transformer/runs."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/runs/array_digests.py",
        "_list_copies(array)[1] if jax.process_index() == 0 else []",
        "_list_copies(array)[1][:1] if jax.process_index() == 0 else []",
        ("tests/runs/test_array_digests.py",),
    ),
    Mutant(
        "transformer/runs/array_digests.py",
        "+ np.uint64(place)) * _GOLDEN",
        ") * _GOLDEN",
        ("tests/runs/test_array_digests.py",),
    ),
    Mutant(
        "transformer/runs/checkpoint.py",
        "for saved_step in self.steps() if saved_step > step]",
        "for saved_step in self.steps() if saved_step >= step]",
        ("tests/runs/test_checkpoint.py", "tests/training/test_rollback.py"),
    ),
    Mutant(
        "transformer/runs/checkpoint.py",
        "self._milestone_every and step % self._milestone_every == 0}",
        "self._milestone_every and step % self._milestone_every == 1}",
        ("tests/runs/test_checkpoint.py",),
    ),
    Mutant(
        "transformer/runs/checkpoint.py",
        "*steps[-self._max_to_keep :]}]",
        "*steps[: self._max_to_keep]}]",
        ("tests/runs/test_checkpoint.py",),
    ),
    Mutant(
        "transformer/runs/checkpoint_files.py",
        "json.dumps([leaves, metadata], sort_keys=True)",
        "json.dumps(leaves, sort_keys=True)",
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
        "transformer/runs/exceptions.py",
        "EXIT_CODE_RESTARTABLE = 75",
        "EXIT_CODE_RESTARTABLE = 1",
        ("tests/runs/test_lifecycle.py",),
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
    Mutant("transformer/runs/lifecycle.py", "save + unit <= grace", "save <= grace", ("tests/runs/test_lifecycle.py",)),
    Mutant(
        "transformer/runs/preemption.py",
        "self._num_begun >= self._last_unit:",
        "self._num_begun > self._last_unit:",
        ("tests/runs/test_lifecycle.py",),
    ),
    Mutant(
        "transformer/runs/preemption.py",
        "exit_at_once(128 + number)",
        "exit_at_once(1)",
        ("tests/runs/test_lifecycle.py",),
    ),
    Mutant(
        "transformer/runs/processor.py",
        "if name in instructions][:1]]",
        "if name in instructions][-1:]]",
        ("tests/runs/test_processor.py",),
    ),
    Mutant(
        "transformer/runs/run_directory.py",
        "for start in self._read_starts() for name",
        "for start in reversed(self._read_starts()) for name",
        ("tests/runs/test_run_directory.py",),
    ),
    Mutant(
        "transformer/runs/run_directory.py",
        "if is_key_within(key, may_change):",
        "if key in may_change:",
        ("tests/runs/test_run_directory.py", "tests/training/test_resume.py"),
    ),
    Mutant(
        "transformer/runs/trust.py",
        "if not untrusted or (not untrusted_code and _is_remembered(config)):",
        "if not untrusted or _is_remembered(config):",
        ("tests/runs/test_trust.py",),
    ),
    Mutant(
        "transformer/runs/trust.py",
        'if "." in name.value and not is_project_module(name.value)]',
        'if not is_project_module(name.value) and name.value.count(".") > 1]',
        ("tests/runs/test_trust.py",),
    ),
    Mutant(
        "transformer/runs/watchdog.py",
        "max(MIN_SECONDS, SLOWEST_UNIT_FACTOR",
        "min(MIN_SECONDS, SLOWEST_UNIT_FACTOR",
        ("tests/runs/test_lifecycle.py",),
    ),
)
