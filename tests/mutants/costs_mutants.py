"""Mutants of transformer/costs."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/costs/chips.py",
        "return chip.flops_per_second * len(devices) if chip",
        "return chip.flops_per_second if chip",
        ("tests/costs/test_chips.py",),
    ),
    Mutant(
        "transformer/costs/compiled_program.py",
        "return self.argument_bytes + self.output_bytes - self.aliased_bytes + self.temp_bytes + self.code_bytes",
        "return self.argument_bytes + self.output_bytes + self.temp_bytes + self.code_bytes",
        ("tests/costs/test_compiled_program.py",),
    ),
    Mutant(
        "transformer/costs/compiled_program.py",
        "previous.num_bytes + collective.num_executions * collective.num_bytes",
        "previous.num_bytes + collective.num_bytes",
        ("tests/costs/test_compiled_program.py",),
    ),
    Mutant(
        "transformer/costs/flops.py",
        "return (two - one) / size.context_length",
        "return one / size.context_length",
        ("tests/costs/test_flops.py",),
    ),
    Mutant(
        "transformer/costs/flops.py",
        'return max(count_matmul_flops(branch.jaxpr) for branch in params["branches"])',
        'return sum(count_matmul_flops(branch.jaxpr) for branch in params["branches"])',
        ("tests/costs/test_flops.py",),
    ),
    Mutant(
        "transformer/costs/flops.py",
        "(kernel.size // kernel.shape[numbers.rhs_spec[0]])",
        "kernel.size",
        ("tests/costs/test_flops.py",),
    ),
    Mutant(
        "transformer/costs/gpu_targets.py",
        "GPUS_PER_HOST = 8",
        "GPUS_PER_HOST = 16",
        ("tests/costs/test_topologies.py", "tests/launch/test_compile.py"),
    ),
    Mutant(
        "transformer/costs/hlo_execution.py",
        "moved += execution.num_executions * bytes_moved(module, execution)",
        "moved += bytes_moved(module, execution)",
        ("tests/costs/test_compiled_program.py",),
    ),
    Mutant(
        "transformer/costs/hlo_execution.py",
        "return len(range(first, bound + 1, step))",
        "return len(range(first, bound, step))",
        ("tests/costs/test_compiled_program.py", "tests/costs/test_hlo_parser.py"),
    ),
    Mutant(
        "transformer/costs/hlo_parser.py",
        "numbers.transpose(order) if order else numbers",
        "numbers",
        ("tests/costs/test_hlo_parser.py",),
    ),
    Mutant(
        "transformer/costs/roofline.py",
        "overlapped += hidden",
        "overlapped += seconds",
        ("tests/costs/test_roofline.py",),
    ),
    Mutant(
        "transformer/costs/roofline.py",
        "(chip.float32_slowdown - 1) * program.float32_flops",
        "chip.float32_slowdown * program.float32_flops",
        ("tests/costs/test_roofline.py",),
    ),
    Mutant(
        "transformer/costs/roofline.py",
        'return 2 * one_pass if collective.kind == "all-reduce" else one_pass',
        "return one_pass",
        ("tests/costs/test_roofline.py",),
    ),
    Mutant(
        "transformer/costs/topologies.py",
        "or math.prod(sides) > _LARGEST[platform]:",
        "or max(sides) > _LARGEST[platform]:",
        ("tests/costs/test_topologies.py",),
    ),
    Mutant(
        "transformer/costs/training_cost.py",
        "rental_cost(1, days * _DAY,",
        "rental_cost(1, days,",
        ("tests/launch/test_model_sizes.py",),
    ),
)
