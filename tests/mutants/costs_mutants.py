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
        "transformer/costs/topologies.py",
        "or math.prod(sides) > _LARGEST[platform]:",
        "or max(sides) > _LARGEST[platform]:",
        ("tests/costs/test_topologies.py",),
    ),
)
