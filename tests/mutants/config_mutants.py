"""Mutants of the modules of transformer/ itself."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant("transformer/config.py", "if value > self.maximum:", "if value >= self.maximum:", ("tests/test_config.py",)),
    Mutant(
        "transformer/config.py",
        "if not self.minimum <= value < self.bound:",
        "if not self.minimum <= value <= self.bound:",
        ("tests/test_config.py",),
    ),
    Mutant(
        "transformer/config.py",
        "if config_text(one) != config_text(other)}",
        "if one != other}",
        ("tests/test_config.py", "tests/runs/test_run_directory.py"),
    ),
    Mutant(
        "transformer/config.py",
        "return 1 + -(-self.steps // self.maps_every) if self.maps_every else 1",
        "return 1 + self.steps // self.maps_every if self.maps_every else 1",
        ("tests/test_config.py", "tests/maps/test_capture_plan.py"),
    ),
    Mutant(
        "transformer/logical_axes.py",
        '"batch": ("data", "fsdp", "expert"), "expert_batch": ("data", "fsdp"), "embed"',
        '"batch": ("data", "expert"), "expert_batch": ("data", "fsdp"), "embed"',
        ("tests/test_logical_axes.py", "tests/training/test_partitioning.py"),
    ),
    Mutant(
        "transformer/logical_axes.py",
        "if all(size % self.num_shards(name) == 0 for size in sizes)",
        "if all(size >= self.num_shards(name) for size in sizes)",
        ("tests/test_logical_axes.py", "tests/training/test_partitioning.py"),
    ),
    Mutant(
        "transformer/overrides.py",
        "field_schema(hints[field.name], getattr(default, field.name), value)",
        "field_schema(hints[field.name], field_default(field), value)",
        ("tests/test_overrides.py", "tests/training/test_config_keys.py"),
    ),
    Mutant(
        "transformer/overrides.py",
        'for key in sorted(overrides, key=lambda key: key.count(".")):',
        "for key in overrides:",
        ("tests/test_overrides.py", "tests/test_config.py"),
    ),
)
