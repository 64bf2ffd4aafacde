"""What a compiled program does when it runs: how often each instruction, the bytes it moves, what devices exchange.

Bytes moved through a device's main memory follow a model, as the program does not state them: every instruction that
runs reads its operands from main memory and writes its result to it, once each time. Within a fusion nothing is
written; of what it slices only the slice is read, and of what it updates in place only the update is written. What lies
in a TPU's fast memory is free. A kernel that reads an operand more than once (attention does, keys and values for every
block of queries) is counted too low.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from transformer.costs.hlo import Array, Computation, Instruction, Module, groups, pairs

KINDS = (
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
_SLICES = ("dynamic-slice", "gather", "slice")


class Executed(NamedTuple):
    """One instruction, where it stands, how often it runs, and whether it runs beside others."""

    computation: Computation
    instruction: Instruction
    times: int
    beside: bool


class Exchange(NamedTuple):
    """One collective of the program: bytes a device each time, the groups of devices (of a permute its pairs)."""

    kind: str
    bytes: int
    groups: tuple[tuple[int, ...], ...]
    times: int
    beside: bool
    source: str


def executed(module: Module) -> Iterator[Executed]:
    """Every instruction that runs, but those within fusions; loops multiply, and nested loops multiply each other.

    Of a conditional's branches the one that moves the most bytes is taken. A loop of unknown trip count counts once:
    `endless` names it.
    """
    return _run(module, module.entry, 1, beside=False)


def endless(module: Module) -> tuple[str, ...]:
    """The loops whose trip count neither the compiler nor their condition gives."""
    loops = [each for each in executed(module) if each.instruction.opcode == "while"]
    return tuple(
        each.instruction.source or each.instruction.name
        for each in loops
        if trips(module, each.computation, each.instruction) is None
    )


def _run(module: Module, computation: Computation, times: int, *, beside: bool) -> Iterator[Executed]:
    for instruction in computation.instructions.values():
        yield Executed(computation, instruction, times, beside)
        called = [module.computations[name] for name in instruction.called]
        match instruction.opcode:
            case "while":
                turns = trips(module, computation, instruction)
                for part in called:
                    yield from _run(module, part, times * (1 if turns is None else turns), beside=beside)
            case "conditional":
                runs = [list(_run(module, branch, times, beside=beside)) for branch in called]
                yield from max(runs, key=lambda run: sum(each.times * moved(module, each) for each in run))
            case "call":
                yield from _run(module, called[0], times, beside=beside)
            case "async-start" | "call-start" | "fusion-start":
                yield from _run(module, called[0], times, beside=True)


def trips(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """How often the body of a `while` runs: what the compiler says, or what its counter gives; None where neither does.

    A counter is an integer of the loop's tuple: the caller gives its start, the condition compares it, or a multiple of
    it, with a constant, and the body adds a constant. That need not be 1: XLA's loops of windowed einsums take two
    shards a turn.
    """
    if said := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(said[1])
    condition, body = (module.computations[_attribute(loop, name)] for name in ("condition", "body"))
    compare, within, given = condition.root, condition, dict[str, _Linear | None]()
    if compare.opcode == "fusion":
        within, given = _inside(module, condition, compare, {})
        compare = within.root
    caller, carried = _carried(module, caller, loop.operands[0])
    if (compare.opcode, body.root.opcode, carried.opcode) != ("compare", "tuple", "tuple"):
        return None
    direction = _attribute(compare, "direction")
    counter, bound = (_linear(module, within, name, given) for name in compare.operands)
    if counter is not None and counter.element is None:
        counter, bound, direction = bound, counter, _MIRRORED[direction]
    if counter is None or counter.element is None or bound is None or bound.element is not None:
        return None
    start = _linear(module, caller, carried.operands[counter.element], {})
    after = _linear(module, body, body.root.operands[counter.element], {})
    if start is None or start.element is not None or after is None or after[:2] != (counter.element, 1):
        return None
    first, step = counter.factor * start.constant + counter.constant, counter.factor * after.constant
    return _turns(first, step, bound.constant, direction)


def _carried(module: Module, caller: Computation, name: str) -> tuple[Computation, Instruction]:
    """What a loop begins with, and the computation that makes it: CPUs' compiler calls small loops from elsewhere."""
    carried = caller.instructions[name]
    if carried.opcode == "parameter":
        for computation in module.computations.values():
            for call in computation.instructions.values():
                if call.opcode == "call" and call.called == (caller.name,):
                    return _carried(module, computation, call.operands[int(carried.literal)])
    return caller, carried


_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


def _turns(first: int, step: int, bound: int, direction: str) -> int | None:
    """How many of first, first + step, ... come before one that is not `direction` the bound; None if none ever is."""
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
    """An integer: `constant`, and where there is an `element` of a loop's tuple `factor` times that element."""

    element: int | None
    factor: int
    constant: int


def _linear(module: Module, computation: Computation, name: str, given: Mapping[str, _Linear | None]) -> _Linear | None:
    """The integer that an instruction makes of its loop's tuple; `given` are a fusion's parameters; None if unlike."""
    made = computation.instructions[name]
    match made.opcode:
        case "constant":
            return _Linear(None, 0, int(made.literal)) if re.fullmatch(r"-?\d+", made.literal) else None
        case "parameter":
            return given.get(name)
        case "get-tuple-element" if computation.instructions[made.operands[0]].opcode == "parameter":
            return _Linear(made.number("index"), 1, 0)
        case "copy" | "bitcast":
            return _linear(module, computation, made.operands[0], given)
        case "fusion":
            inner, inside = _inside(module, computation, made, given)
            return _linear(module, inner, inner.root.name, inside)
        case "add" | "multiply":
            one, other = (_linear(module, computation, operand, given) for operand in made.operands)
            if one is None or other is None:
                return None
            if one.element is None:
                one, other = other, one
            if other.element is not None:
                return None
            if made.opcode == "add":
                return one._replace(constant=one.constant + other.constant)
            return _Linear(one.element, one.factor * other.constant, one.constant * other.constant)
    return None


def _inside(
    module: Module, computation: Computation, fusion: Instruction, given: Mapping[str, _Linear | None]
) -> tuple[Computation, dict[str, _Linear | None]]:
    """The computation of a fusion, and the integers that its parameters are."""
    inner = module.computations[fusion.called[0]]
    outside = zip(inner.parameters(), fusion.operands, strict=True)
    return inner, {parameter.name: _linear(module, computation, name, given) for parameter, name in outside}


def _attribute(instruction: Instruction, name: str) -> str:
    """The attribute `name`, a word or the name of a computation."""
    match = re.search(rf"\b{name}=%?([\w.$-]+)", instruction.attributes)
    assert match is not None
    return match[1]


def exchanges(module: Module) -> Iterator[Exchange]:
    """Every collective that runs, each once: of a start and its end the start, of a fused one the whole.

    On TPUs a collective that runs beside others is fused with them: one fusion starts it, those in between and the one
    that ends it repeat it under the same channel, and only the first counts. An all-reduce of which every device keeps
    its own part is one fusion too, and is the reduce-scatter that it is run as.
    """
    started = _started(module)
    for computation, instruction, times, beside in executed(module):
        if instruction.opcode != "fusion":
            yield from _exchange(module, computation, instruction, times, beside=beside)
            continue
        for inner in _within(module, module.computations[instruction.called[0]]):
            starts = any(each.target == "AsyncCollectiveStart" for each in inner.instructions.values())
            for each in inner.instructions.values():
                if not starts and each.number("channel_id") in started:
                    continue
                for exchange in _exchange(module, inner, each, times, beside=beside or starts):
                    scattered = exchange.kind == "all-reduce" and inner.name.startswith("all-reduce-scatter")
                    yield exchange._replace(kind="reduce-scatter") if scattered else exchange


def _within(module: Module, fused: Computation) -> Iterator[Computation]:
    """The computation of a fusion, and those of the fusions in it."""
    yield fused
    for instruction in fused.instructions.values():
        if instruction.opcode == "fusion":
            yield from _within(module, module.computations[instruction.called[0]])


def _started(module: Module) -> frozenset[int]:
    """The channels of the collectives that a fusion starts and others end."""
    channels = set()
    for computation in module.computations.values():
        if any(each.target == "AsyncCollectiveStart" for each in computation.instructions.values()):
            channels |= {each.number("channel_id") for each in computation.instructions.values() if _kind(each)}
    return frozenset(channel for channel in channels if channel is not None)


def _kind(instruction: Instruction) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in KINDS else None


def _exchange(
    module: Module, computation: Computation, instruction: Instruction, times: int, *, beside: bool
) -> Iterator[Exchange]:
    kind = _kind(instruction)
    if kind is None:
        return
    size = sum(array.bytes for name in instruction.operands for array in computation.instructions[name].arrays)
    beside = beside or instruction.opcode.endswith("-start")
    permutes = kind == "collective-permute"
    among = pairs(instruction) if permutes else groups(instruction, module.devices)
    among = tuple(group for group in among if len(set(group)) > 1)
    if among:
        whole = size * len(among[0]) if kind == "all-gather" else size
        yield Exchange(kind, whole, among, times, beside, instruction.source)


def moved(module: Module, run: Executed) -> int:
    """The bytes that one execution of an instruction reads from main memory and writes to it, by the model above."""
    computation, instruction = run.computation, run.instruction
    opcode = instruction.opcode
    if opcode in _MOVES_NOTHING or opcode.endswith(("-start", "-update")) or instruction.target in _NO_KERNELS:
        return 0
    operands = [computation.instructions[name] for name in instruction.operands]
    if opcode.endswith("-done"):
        return _moved_beside(computation, instruction, operands[0])
    if opcode == "fusion":
        return _moved_by_fusion(module, computation, instruction)
    if opcode in _SLICES:
        return 2 * _stored(instruction.arrays) + sum(_stored(each.arrays) for each in operands[1:])
    if opcode in ("dynamic-update-slice", "scatter"):
        # In place: the new part is read and written, with scatter beside what it is added to.
        new = operands[1:2] if opcode == "dynamic-update-slice" else operands[-1:] + operands[-1:] + operands[1:2]
        return _stored(new[0].arrays) + sum(_stored(each.arrays) for each in new)
    return _stored(instruction.arrays) + sum(_stored(each.arrays) for each in operands)


def _stored(arrays: tuple[Array, ...]) -> int:
    """What arrays take in main memory."""
    return sum(array.stored for array in arrays if array.space == 0)


def _moved_beside(computation: Computation, end: Instruction, start: Instruction) -> int:
    """A copy, a slice or a collective that runs beside others, counted where it ends."""
    if not start.opcode.endswith("-start") or start.opcode in ("async-start", "call-start", "fusion-start"):
        return 0  # What it calls is counted.
    source = computation.instructions[start.operands[0]].arrays
    if start.opcode.removesuffix("-start") not in ("copy", "slice", "dynamic-slice"):
        return _stored(source) + _stored(end.arrays)
    read = sum(array.stored for array in end.arrays) if _stored(source) else 0
    return read + _stored(end.arrays)


def _moved_by_fusion(module: Module, computation: Computation, fusion: Instruction) -> int:
    inner = module.computations[fusion.called[0]]
    targets = {each.target for each in inner.instructions.values()}
    if "AsyncCollectiveDone" in targets:
        return 0  # Its start counts.
    read = 0
    for parameter, name in zip(inner.parameters(), fusion.operands, strict=True):
        arrays = computation.instructions[name].arrays
        if _stored(arrays):
            read += min(_stored(arrays), _read(module, inner, parameter.name))
    if "AsyncCollectiveStart" in targets:
        return read + _stored(fusion.arrays[1:2])  # Behind the operand that is handed on stands the result.
    roots = [inner.instructions[name] for name in inner.root.operands] if inner.root.opcode == "tuple" else [inner.root]
    if len(roots) != len(fusion.arrays):
        return read + _stored(fusion.arrays)
    return read + sum(_written(inner, root, array) for root, array in zip(roots, fusion.arrays, strict=True))


def _written(inner: Computation, root: Instruction, array: Array) -> int:
    while root.opcode == "bitcast":
        root = inner.instructions[root.operands[0]]
    if array.space != 0 or root.opcode == "parameter":
        return 0
    if root.opcode in ("dynamic-update-slice", "scatter"):
        new = inner.instructions[root.operands[1 if root.opcode == "dynamic-update-slice" else -1]]
        return min(array.stored, sum(each.stored for each in new.arrays))
    return array.stored


def _read(module: Module, inner: Computation, name: str) -> int:
    """How many bytes of a value those that use it within a fusion read, each for itself."""
    whole = sum(array.stored for array in inner.instructions[name].arrays)
    handed_on = any(user.opcode == "tuple" for user in inner.users[name])
    total = 0
    for user in inner.users[name]:
        others = user.operands[1:]
        if user.opcode in ("bitcast", "get-tuple-element"):
            total += _read(module, inner, user.name)
        elif user.opcode in _SLICES and name not in others:
            total += sum(array.stored for array in user.arrays)
        elif user.opcode == "fusion":
            called = module.computations[user.called[0]]
            taken = zip(called.parameters(), user.operands, strict=True)
            total += sum(_read(module, called, parameter.name) for parameter, outer in taken if outer == name)
        elif user.opcode == "tuple" or (user.opcode in ("dynamic-update-slice", "scatter") and name not in others):
            continue
        elif not (_kind(user) and handed_on):  # A collective that another fusion starts hands its operand on.
            total += whole
    return total
