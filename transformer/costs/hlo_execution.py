"""How often each instruction of a compiled program runs, the bytes it moves, and its collectives.

Bytes moved through a device's main memory follow a model, because the program does not state them: every instruction
that runs reads its operands from main memory once and writes its result once. A fusion writes no intermediate results;
of what it slices it reads only the slice, and of what it updates in place it writes only the update. A TPU's fast
memory is free. A kernel that reads an operand more than once (attention reads keys and values for every
block of queries) is counted too low.

A program is scheduled: its instructions run in the order of the text. What stands between the start and the end of an
asynchronous collective can run at the same time.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from transformer.attention.rare_branch import RARE_BRANCH
from transformer.costs.hlo_parser import (
    HloArray,
    HloComputation,
    HloInstruction,
    HloModule,
    replica_groups,
    source_target_pairs,
)

COLLECTIVE_OPCODES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

# They only name existing arrays, or the instructions that they call are counted instead.
_MOVES_NOTHING = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "call",
        "conditional",
        "constant",
        "domain",
        "get-tuple-element",
        "opt-barrier",
        "optimization-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
        "while",
    }
)
_NO_KERNELS = ("AllocateBuffer", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast", "Sharding")
_SLICE_OPCODES = ("dynamic-slice", "gather", "slice")


class ExecutedInstruction(NamedTuple):
    """An instruction that runs.

    Attributes:
        computation: Its computation.
        instruction: The instruction.
        num_executions: How often it runs.
        overlapped: Whether it overlaps with other work.
    """

    computation: HloComputation
    instruction: HloInstruction
    num_executions: int
    overlapped: bool


class ExecutedCollective(NamedTuple):
    """A collective that runs.

    Attributes:
        kind: The opcode.
        num_bytes: Bytes per device and execution.
        groups: The groups of devices; for a permutation the (source, target) pairs.
        num_executions: How often it runs.
        overlapped: Whether it overlaps with other work.
        source: The traced operation that it comes from.
        work: The work of one execution that it overlaps with; None if unknown, as between two turns of a loop.
    """

    kind: str
    num_bytes: int
    groups: tuple[tuple[int, ...], ...]
    num_executions: int
    overlapped: bool
    source: str
    work: "Work | None" = None


class Work(NamedTuple):
    """What kernels do.

    Attributes:
        bytes_moved: Bytes through main memory.
        flops: FLOPs of matrix products.
        float32_flops: Those of them whose operands are float32.
    """

    bytes_moved: int
    flops: int
    float32_flops: int


def executed_instructions(module: HloModule) -> Iterator[ExecutedInstruction]:
    """Iterate over all instructions that run, except those within fusions; executions of nested loops multiply.

    Of a conditional's branches the one that moves the most bytes is taken, except for those that are marked as rare
    (transformer.attention.rare_branch). A loop without a known trip count counts once and is listed by
    `loops_without_trip_count`.
    """
    return _iterate_executions(module, module.entry, 1, overlapped=False)


def loops_without_trip_count(module: HloModule) -> tuple[str, ...]:
    """List the loops whose trip count neither the compiler nor their condition gives."""
    loops = [execution for execution in executed_instructions(module) if execution.instruction.opcode == "while"]
    return tuple(
        execution.instruction.source or execution.instruction.name
        for execution in loops
        if trip_count(module, execution.computation, execution.instruction) is None
    )


def _iterate_executions(
    module: HloModule,
    computation: HloComputation,
    executions: int,
    *,
    overlapped: bool,
    names: Iterable[str] | None = None,
) -> Iterator[ExecutedInstruction]:
    for instruction in map(computation.instructions.__getitem__, names or computation.instructions):
        yield ExecutedInstruction(computation, instruction, executions, overlapped)
        callees = [module.computations[name] for name in instruction.called_computations]
        match instruction.opcode:
            case "while":
                iterations = trip_count(module, computation, instruction)
                for part in callees:
                    yield from _iterate_executions(
                        module, part, executions * (1 if iterations is None else iterations), overlapped=overlapped
                    )
            case "conditional":
                runs = [
                    list(_iterate_executions(module, branch, executions, overlapped=overlapped)) for branch in callees
                ]
                yield from max(_drop_rare_branches(runs), key=lambda run: total_work(module, run).bytes_moved)
            case "call":
                yield from _iterate_executions(module, callees[0], executions, overlapped=overlapped)
            case "async-start" | "call-start":
                yield from _iterate_executions(module, callees[0], executions, overlapped=True)


def _drop_rare_branches(branches: Sequence[list[ExecutedInstruction]]) -> list[list[ExecutedInstruction]]:
    """Return the branches of a conditional without those that are marked as rare.

    Not all operations of a rare branch keep its mark, under `shard_map` two in five do, and the compiler may move some
    into the other branch. So a branch is rare if a quarter of its operations are marked, and twice as many as those of
    the branch with the fewest.
    """
    shares = []
    for branch in branches:
        sources = [execution.instruction.source for execution in branch if execution.instruction.source]
        shares.append(sum(RARE_BRANCH in source for source in sources) / max(len(sources), 1))
    min_share = min(shares)
    return [branch for branch, share in zip(branches, shares, strict=True) if share <= max(2 * min_share, 1 / 4)]


def total_work(module: HloModule, run: Iterable[ExecutedInstruction]) -> Work:
    """Return the work of all executions of these instructions."""
    moved = flops = float32_flops = 0
    for execution in run:
        products = list(_matmul_flops(module, execution.computation, execution.instruction))
        moved += execution.num_executions * bytes_moved(module, execution)
        flops += execution.num_executions * sum(count for count, _ in products)
        float32_flops += execution.num_executions * sum(count for count, is_float32 in products if is_float32)
    return Work(moved, flops, float32_flops)


def _matmul_flops(
    module: HloModule, computation: HloComputation, instruction: HloInstruction
) -> Iterator[tuple[int, bool]]:
    """Iterate over the FLOPs of an instruction's matrix products, each with whether its operands are float32."""
    if instruction.opcode in ("fusion", "fusion-start"):
        inner = module.computations[instruction.called_computations[0]]
        for inner_instruction in inner.instructions.values():
            yield from _matmul_flops(module, inner, inner_instruction)
        return
    is_cublas = instruction.custom_call_target.startswith("__cublas$")
    if not is_cublas and instruction.opcode not in ("dot", "convolution"):
        return
    lhs, rhs = (computation.instructions[name].arrays[0] for name in instruction.operand_names[:2])
    if instruction.opcode == "convolution":
        contracted = _contracted_by_convolution(instruction, rhs)
    else:
        pattern = r'"lhs_contracting_dimensions":\[([\d,"]*)\]' if is_cublas else r"\blhs_contracting_dims=\{([\d,]*)\}"
        axes = re.search(pattern, instruction.attributes)
        contracted = math.prod(lhs.shape[int(axis)] for axis in re.findall(r"\d+", axes[1] if axes else ""))
    yield 2 * math.prod(instruction.arrays[0].shape) * contracted, lhs.dtype == rhs.dtype == "f32"


def _contracted_by_convolution(instruction: HloInstruction, kernel: HloArray) -> int:
    """Return how many products an element of a convolution sums, as which TPUs compute every matrix product.

    These are input features x the window's size. A dimension of a batch is a window too, over a dilated input, of
    which one element is no padding.
    """
    labels = re.search(r"\bdim_labels=\w+_(\w+)->", instruction.attributes)
    features = kernel.shape[labels[1].index("i")] if labels else 1
    window = re.search(r"\bwindow=\{([^}]*)\}", instruction.attributes)
    sides = dict(re.findall(r"(\w+)=([\dx]+)", window[1])) if window else {}
    sizes = [int(size) for size in sides.get("size", "1").split("x")]
    dilations = [int(size) for size in sides["lhs_dilate"].split("x")] if "lhs_dilate" in sides else [1] * len(sizes)
    return features * math.prod(size for size, dilation in zip(sizes, dilations, strict=True) if dilation == 1)


def trip_count(module: HloModule, caller: HloComputation, loop: HloInstruction) -> int | None:
    """Return how often the body of a `while` runs, from the compiler or from its counter; None if neither is known.

    A counter is an integer in the loop's tuple: the caller gives its start, the condition compares it, or a multiple of
    it, with a constant, and the body adds a constant. The constant need not be 1: XLA's loops of windowed einsums take
    two shards per iteration.

    Args:
        module: The program.
        caller: The computation that has the loop.
        loop: The loop.

    Returns:
        The number of iterations, or None.
    """
    if match := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(match[1])
    condition, body = (module.computations[_attribute(loop, name)] for name in ("condition", "body"))
    compare, compare_computation, parameter_values = condition.root, condition, dict[str, _Linear | None]()
    if compare.opcode == "fusion":
        compare_computation, parameter_values = _enter_fusion(module, condition, compare, {})
        compare = compare_computation.root
    caller, carried = _initial_loop_value(module, caller, loop.operand_names[0])
    if (compare.opcode, body.root.opcode, carried.opcode) != ("compare", "tuple", "tuple"):
        return None
    direction = _attribute(compare, "direction")
    counter, bound = (_to_linear(module, compare_computation, name, parameter_values) for name in compare.operand_names)
    if counter is not None and counter.element is None:
        counter, bound, direction = bound, counter, _MIRRORED[direction]
    if counter is None or counter.element is None or bound is None or bound.element is not None:
        return None
    start = _to_linear(module, caller, carried.operand_names[counter.element], {})
    after = _to_linear(module, body, body.root.operand_names[counter.element], {})
    if start is None or start.element is not None or after is None or after[:2] != (counter.element, 1):
        return None
    first, step = counter.factor * start.constant + counter.constant, counter.factor * after.constant
    return _iterations(first, step, bound.constant, direction)


def _initial_loop_value(module: HloModule, caller: HloComputation, name: str) -> tuple[HloComputation, HloInstruction]:
    """Return the initial value of a loop and its computation: the CPU compiler calls small loops from elsewhere."""
    initial = caller.instructions[name]
    if initial.opcode == "parameter":
        for computation in module.computations.values():
            for call in computation.instructions.values():
                if call.opcode == "call" and call.called_computations == (caller.name,):
                    return _initial_loop_value(module, computation, call.operand_names[int(initial.literal)])
    return caller, initial


_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


def _iterations(first: int, step: int, bound: int, direction: str) -> int | None:
    """Count the values first, first + step, ... that satisfy `direction` bound; None if the loop never ends."""
    match direction:
        case "LT" if step > 0:
            return len(range(first, bound, step))
        case "LE" if step > 0:
            return len(range(first, bound + 1, step))
        case "GT" if step < 0:
            return len(range(first, bound, step))
        case "GE" if step < 0:
            return len(range(first, bound - 1, step))
        case "NE" if step and (bound - first) % step == 0 and (bound - first) // step >= 0:
            return (bound - first) // step
    return None


class _Linear(NamedTuple):
    """The integer `constant` + `factor` x an `element` of the loop's tuple (if there is one)."""

    element: int | None
    factor: int
    constant: int


def _to_linear(
    module: HloModule, computation: HloComputation, name: str, parameter_values: Mapping[str, _Linear | None]
) -> _Linear | None:
    """Express an instruction as a `_Linear`, given a fusion's `parameter_values`; None if it is not linear."""
    instruction = computation.instructions[name]
    match instruction.opcode:
        case "constant":
            return _Linear(None, 0, int(instruction.literal)) if re.fullmatch(r"-?\d+", instruction.literal) else None
        case "parameter":
            return parameter_values.get(name)
        case "get-tuple-element" if computation.instructions[instruction.operand_names[0]].opcode == "parameter":
            return _Linear(instruction.integer_attribute("index"), 1, 0)
        case "copy" | "bitcast":
            return _to_linear(module, computation, instruction.operand_names[0], parameter_values)
        case "fusion":
            inner, inner_values = _enter_fusion(module, computation, instruction, parameter_values)
            return _to_linear(module, inner, inner.root.name, inner_values)
        case "add" | "multiply":
            first, second = (
                _to_linear(module, computation, operand, parameter_values) for operand in instruction.operand_names
            )
            if first is None or second is None:
                return None
            if first.element is None:
                first, second = second, first
            if second.element is not None:
                return None
            if instruction.opcode == "add":
                return first._replace(constant=first.constant + second.constant)
            return _Linear(first.element, first.factor * second.constant, first.constant * second.constant)
    return None


def _enter_fusion(
    module: HloModule,
    computation: HloComputation,
    fusion: HloInstruction,
    parameter_values: Mapping[str, _Linear | None],
) -> tuple[HloComputation, dict[str, _Linear | None]]:
    """Return the computation of a fusion, and its parameters as `_Linear` integers."""
    inner = module.computations[fusion.called_computations[0]]
    outside = zip(inner.parameters(), fusion.operand_names, strict=True)
    return inner, {
        parameter.name: _to_linear(module, computation, name, parameter_values) for parameter, name in outside
    }


def _attribute(instruction: HloInstruction, name: str) -> str:
    """Return the attribute `name`: a word or the name of a computation."""
    match = re.search(rf"\b{name}=%?([\w.$-]+)", instruction.attributes)
    assert match is not None
    return match[1]


def executed_collectives(module: HloModule) -> Iterator[ExecutedCollective]:
    """Iterate over the collectives that run, each once: the start of an asynchronous pair, the whole of a fused one.

    On TPUs an overlapped collective is fused with other work: one fusion starts it, and the fusions up to its end
    repeat it under the same channel, so only the first counts. An all-reduce of which every device keeps its own
    part is a single fusion too, and counts as the reduce-scatter that it runs as.
    """
    started_channels = _fused_start_channels(module)
    for computation, instruction, executions, overlapped in executed_instructions(module):
        if instruction.opcode not in ("fusion", "fusion-start"):
            yield from _describe_collective(module, computation, instruction, executions, overlapped=overlapped)
            continue
        for inner in _nested_fusions(module, module.computations[instruction.called_computations[0]]):
            is_start = instruction.opcode == "fusion-start" or any(
                fused_instruction.custom_call_target == "AsyncCollectiveStart"
                for fused_instruction in inner.instructions.values()
            )
            for fused_instruction in inner.instructions.values():
                if not is_start and fused_instruction.integer_attribute("channel_id") in started_channels:
                    continue
                for exchange in _describe_collective(
                    module, inner, fused_instruction, executions, overlapped=overlapped or is_start
                ):
                    is_reduce_scatter = exchange.kind == "all-reduce" and inner.name.startswith("all-reduce-scatter")
                    yield exchange._replace(kind="reduce-scatter") if is_reduce_scatter else exchange


def _nested_fusions(module: HloModule, fused: HloComputation) -> Iterator[HloComputation]:
    """Iterate over the computation of a fusion and those of the fusions in it."""
    yield fused
    for instruction in fused.instructions.values():
        if instruction.opcode == "fusion":
            yield from _nested_fusions(module, module.computations[instruction.called_computations[0]])


def _fused_start_channels(module: HloModule) -> frozenset[int]:
    """Return the channels of the collectives that one fusion starts and another ends."""
    channels = set()
    for computation in module.computations.values():
        if any(
            instruction.custom_call_target == "AsyncCollectiveStart"
            for instruction in computation.instructions.values()
        ):
            channels |= {
                instruction.integer_attribute("channel_id")
                for instruction in computation.instructions.values()
                if _collective_kind(instruction)
            }
    return frozenset(channel for channel in channels if channel is not None)


def _collective_kind(instruction: HloInstruction) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVE_OPCODES else None


def _describe_collective(
    module: HloModule, computation: HloComputation, instruction: HloInstruction, executions: int, *, overlapped: bool
) -> Iterator[ExecutedCollective]:
    kind = _collective_kind(instruction)
    if kind is None:
        return
    size = sum(array.num_bytes for name in instruction.operand_names for array in computation.instructions[name].arrays)
    work = None
    if instruction.opcode.endswith("-start"):
        work = _work_until_done(module, computation, instruction)
        overlapped = '"is_sync":true' not in instruction.attributes and (work is None or any(work))
    permutes = kind == "collective-permute"
    groups = source_target_pairs(instruction) if permutes else replica_groups(instruction, module.num_devices)
    groups = tuple(group for group in groups if len(set(group)) > 1)
    if groups:
        total_bytes = size * len(groups[0]) if kind == "all-gather" else size
        yield ExecutedCollective(
            kind, total_bytes, groups, executions, overlapped, instruction.source, work if overlapped else None
        )


def _work_until_done(module: HloModule, computation: HloComputation, start: HloInstruction) -> Work | None:
    """Return the work that is scheduled between the start of an asynchronous instruction and its end.

    Args:
        module: The program.
        computation: The computation of the start.
        start: The start.

    Returns:
        The work; None if the end is in another turn of a loop.
    """
    ends = {user.name for user in computation.users[start.name] if user.opcode.endswith("-done")}
    names = list(computation.instructions)
    last = next((place for place, name in enumerate(names) if name in ends), None)
    if last is None:
        return None
    between = [name for name in names[names.index(start.name) + 1 : last] if not _communicates(computation, name)]
    return total_work(
        module, _iterate_executions(module, computation, 1, overlapped=False, names=between) if between else ()
    )


def _communicates(computation: HloComputation, name: str) -> bool:
    """Whether an instruction starts, ends or is a collective."""
    instruction = computation.instructions[name]
    return instruction.opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVE_OPCODES


def bytes_moved(module: HloModule, run: ExecutedInstruction) -> int:
    """Return the bytes that one execution reads from and writes to main memory, by this file's model."""
    computation, instruction = run.computation, run.instruction
    opcode = instruction.opcode
    if (
        opcode in _MOVES_NOTHING
        or opcode.endswith(("-start", "-update"))
        or instruction.custom_call_target in _NO_KERNELS
    ):
        return 0
    operands = [computation.instructions[name] for name in instruction.operand_names]
    if opcode == "fusion-done":
        return _bytes_moved_by_fusion(module, computation, operands[0], instruction.arrays)
    if opcode.endswith("-done"):
        return _bytes_moved_asynchronously(computation, instruction, operands[0])
    if opcode == "fusion":
        return _bytes_moved_by_fusion(module, computation, instruction, instruction.arrays)
    if opcode in _SLICE_OPCODES:
        return 2 * _main_memory_bytes(instruction.arrays) + sum(
            _main_memory_bytes(operand.arrays) for operand in operands[1:]
        )
    if opcode in ("dynamic-update-slice", "scatter"):
        # In place: the new part is read and written, with scatter beside what it is added to.
        new = operands[1:2] if opcode == "dynamic-update-slice" else operands[-1:] + operands[-1:] + operands[1:2]
        return _main_memory_bytes(new[0].arrays) + sum(_main_memory_bytes(operand.arrays) for operand in new)
    return _main_memory_bytes(instruction.arrays) + sum(_main_memory_bytes(operand.arrays) for operand in operands)


def _main_memory_bytes(arrays: tuple[HloArray, ...]) -> int:
    """Return the bytes of arrays in main memory."""
    return sum(array.padded_bytes for array in arrays if array.memory_space == 0)


def _bytes_moved_asynchronously(computation: HloComputation, end: HloInstruction, start: HloInstruction) -> int:
    """Return the bytes of an asynchronous copy, slice or collective, counted at its end."""
    if not start.opcode.endswith("-start") or start.opcode in ("async-start", "call-start"):
        return 0  # What it calls is counted.
    source = computation.instructions[start.operand_names[0]].arrays
    if start.opcode.removesuffix("-start") not in ("copy", "slice", "dynamic-slice"):
        return _main_memory_bytes(source) + _main_memory_bytes(end.arrays)
    read = sum(array.padded_bytes for array in end.arrays) if _main_memory_bytes(source) else 0
    return read + _main_memory_bytes(end.arrays)


def _bytes_moved_by_fusion(
    module: HloModule, computation: HloComputation, fusion: HloInstruction, results: tuple[HloArray, ...]
) -> int:
    inner = module.computations[fusion.called_computations[0]]
    targets = {instruction.custom_call_target for instruction in inner.instructions.values()}
    if "AsyncCollectiveDone" in targets:
        return 0  # Its start counts.
    bytes_read = 0
    for parameter, name in zip(inner.parameters(), fusion.operand_names, strict=True):
        arrays = computation.instructions[name].arrays
        if _main_memory_bytes(arrays):
            bytes_read += min(_main_memory_bytes(arrays), _bytes_read(module, inner, parameter.name))
    if "AsyncCollectiveStart" in targets:
        return bytes_read + _main_memory_bytes(results[1:2])  # Behind the operand that is handed on stands the result.
    roots = (
        [inner.instructions[name] for name in inner.root.operand_names]
        if inner.root.opcode == "tuple"
        else [inner.root]
    )
    if len(roots) != len(results):
        return bytes_read + _main_memory_bytes(results)
    return bytes_read + sum(_bytes_written(inner, root, array) for root, array in zip(roots, results, strict=True))


def _bytes_written(inner: HloComputation, root: HloInstruction, array: HloArray) -> int:
    while root.opcode == "bitcast":
        root = inner.instructions[root.operand_names[0]]
    if array.memory_space != 0 or root.opcode == "parameter":
        return 0
    if root.opcode in ("dynamic-update-slice", "scatter"):
        new = inner.instructions[root.operand_names[1 if root.opcode == "dynamic-update-slice" else -1]]
        return min(array.padded_bytes, sum(operand_array.padded_bytes for operand_array in new.arrays))
    return array.padded_bytes


def _is_only_sliced(inner: HloComputation, name: str) -> bool:
    users = inner.users[name]
    return bool(users) and all(user.opcode in _SLICE_OPCODES and name not in user.operand_names[1:] for user in users)


def _bytes_read(module: HloModule, inner: HloComputation, name: str) -> int:
    """Return the bytes of a value that its users in a fusion read, summed over the users."""
    value_bytes = sum(array.padded_bytes for array in inner.instructions[name].arrays)
    is_passed_on = any(user.opcode == "tuple" for user in inner.users[name])
    total = 0
    for user in inner.users[name]:
        other_operands = user.operand_names[1:]
        if user.opcode in ("bitcast", "get-tuple-element"):
            total += _bytes_read(module, inner, user.name)
        elif user.opcode == "convert" and _is_only_sliced(inner, user.name):
            converted = sum(array.padded_bytes for array in user.arrays)
            total += _bytes_read(module, inner, user.name) * value_bytes // max(1, converted)
        elif user.opcode in _SLICE_OPCODES and name not in other_operands:
            total += sum(array.padded_bytes for array in user.arrays)
        elif user.opcode == "fusion":
            callee = module.computations[user.called_computations[0]]
            operand_pairs = zip(callee.parameters(), user.operand_names, strict=True)
            total += sum(
                _bytes_read(module, callee, parameter.name) for parameter, outer in operand_pairs if outer == name
            )
        elif user.opcode == "tuple" or (
            user.opcode in ("dynamic-update-slice", "scatter") and name not in other_operands
        ):
            continue
        elif not (
            _collective_kind(user) and is_passed_on
        ):  # A collective that another fusion starts hands its operand on.
            total += value_bytes
    return total
