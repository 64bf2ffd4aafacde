"""Mutants of launch."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant("launch/cli.py", "return EXIT_CODE_RESTARTABLE", "return 1", ("tests/launch/test_cli.py",)),
    Mutant(
        "launch/cli.py",
        "if isinstance(error, BrokenPipeError) and _redirect_closed_output():",
        "if isinstance(error, BrokenPipeError):",
        ("tests/launch/test_cli.py",),
    ),
    Mutant(
        "launch/compilation_cache.py",
        '("model name", "flags", "Features", "CPU part")',
        '("model name", "CPU part")',
        ("tests/launch/test_compiled.py",),
    ),
    Mutant(
        "launch/config_files.py",
        'alike = difflib.get_close_matches(missing.removeprefix(f"{root}/"), files, n=1, cutoff=0.8)',
        'alike = difflib.get_close_matches(missing.removeprefix(f"{root}/"), files, n=1, cutoff=0.99)',
        ("tests/launch/test_cli.py",),
    ),
    Mutant(
        "launch/flag_parsing.py",
        "flag_values.get(flag.name, flag.default)",
        "flag_values.get(flag.name) or flag.default",
        ("tests/launch/test_cli.py",),
    ),
    Mutant(
        "launch/flag_parsing.py",
        "and len(word) < 20 and minimum <= int(word) < 2**31",
        "and len(word) < 20 and minimum < int(word) < 2**31",
        ("tests/launch/test_cli.py", "tests/launch/test_evaluate.py"),
    ),
    Mutant("launch/maps.py", '"mb": 1_000_000', '"mb": 1_048_576', ("tests/launch/test_maps.py",)),
    Mutant(
        "launch/model_sizes.py",
        "100 * (parameters / published - 1)",
        "100 * (published / parameters - 1)",
        ("tests/launch/test_model_sizes.py",),
    ),
    Mutant(
        "launch/platform.py",
        '" ".join([flags, environment.get(variable, "")])',
        '" ".join([environment.get(variable, ""), flags])',
        ("tests/launch/test_cli.py",),
    ),
    Mutant(
        "launch/scaling_laws.py",
        "read_runs(dict.fromkeys(parse_path(path) for path in paths if path),",
        "read_runs([parse_path(path) for path in paths if path],",
        ("tests/launch/test_scaling_laws.py",),
    ),
    Mutant(
        "launch/standard_output.py",
        "        if self._needed:\n",
        "        if not self._needed:\n",
        ("tests/launch/test_cli.py",),
    ),
    Mutant(
        "launch/sweep.py",
        "(engine in PLANNED_AHEAD or space.num_points is not None) and len(trials)",
        "engine in PLANNED_AHEAD and len(trials)",
        ("tests/launch/test_sweep.py",),
    ),
    Mutant(
        "launch/train.py",
        "if arguments.rollback_to_step is not None or arguments.skip_batches:",
        "if arguments.rollback_to_step or arguments.skip_batches:",
        ("tests/launch/test_train.py",),
    ),
    Mutant(
        "launch/workers.py",
        "bounds = [len(cores) * number // workers for number",
        "bounds = [len(cores) // workers * number for number",
        ("tests/launch/test_workers.py",),
    ),
    Mutant(
        "launch/workers.py",
        "self._deaths + 1 if finished == self._finished else 1",
        "self._deaths + 1",
        ("tests/launch/test_workers.py",),
    ),
)
