"""Analysis of a compiled program: memory per device, collectives, largest buffers, and a fingerprint."""

import hashlib
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer.costs.hlo_execution import (
    ExecutedCollective,
    ExecutedInstruction,
    Work,
    bytes_moved,
    executed_collectives,
    executed_instructions,
    loops_without_trip_count,
    total_work,
)
from transformer.costs.hlo_parser import HloInstruction, HloModule, parse_hlo
from transformer.system.command_invocation import PACKAGE_PARENT

NUM_LARGEST_BUFFERS = 20


class Collective(NamedTuple):
    """A collective operation of the program.

    Attributes:
        kind: The opcode, such as "all-reduce".
        num_bytes: Bytes per device and execution: the whole result of an all-gather, the operand of all others.
        num_participants: The number of devices in a group.
        mesh_axes: The mesh axes along which they communicate.
        device_group: One of the groups, as indices of devices of the mesh.
        num_executions: How often a step runs it, loops included.
        overlapped: Whether other work runs at the same time.
        source: The traced operation that it comes from.
        work: The work that one execution overlaps with; None if unknown.
    """

    kind: str
    num_bytes: int
    num_participants: int
    mesh_axes: tuple[str, ...]
    device_group: tuple[int, ...]
    num_executions: int
    overlapped: bool
    source: str
    work: Work | None = None


class BufferGroup(NamedTuple):
    """Arrays of one type and shape that the program makes in main memory.

    Attributes:
        num_bytes: Bytes of one of them.
        shape: Type and shape.
        opcode: The instruction that makes the first of them.
        source: The traced operation that it comes from.
    """

    num_bytes: int
    shape: str
    opcode: str
    source: str


class SourceLine(NamedTuple):
    """The traffic of all instructions that come from one line of source code.

    Attributes:
        line: The file, as from the checkout or the folder of installed libraries, and line; empty for instructions that
            the compiler inserted.
        num_bytes: Bytes through main memory per execution of the program.
        num_executions: How many instructions run.
        source: The traced operation of the instruction that moves the most.
    """

    line: str
    num_bytes: int
    num_executions: int
    source: str


class CompiledProgram(NamedTuple):
    """A compiled program; sizes are in bytes per device.

    Attributes:
        argument_bytes: Bytes of the arguments.
        output_bytes: Bytes of the outputs.
        aliased_bytes: Bytes that arguments and outputs share.
        temp_bytes: Bytes of temporary buffers.
        code_bytes: Bytes of the generated code.
        bytes_moved: Bytes through main memory per execution, by the model of `transformer.costs.hlo_execution`.
        collectives: All collectives.
        largest_buffers: The largest arrays in main memory.
        loops_without_trip_count: Loops of unknown trip count, which count once.
        fingerprint: A hash of the program's text.
        float32_flops: FLOPs per execution of the matrix products whose operands are float32.
        attention_kernels: How often the program runs each attention kernel of a library (cuDNN, splash), by its name.
        source_lines: Traffic by line of source code, the most first.
    """

    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    temp_bytes: int
    code_bytes: int
    bytes_moved: int
    collectives: tuple[Collective, ...]
    largest_buffers: tuple[BufferGroup, ...]
    loops_without_trip_count: tuple[str, ...]
    fingerprint: str
    float32_flops: int = 0
    attention_kernels: Mapping[str, int] = {}
    source_lines: tuple[SourceLine, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Peak memory: arguments, outputs that are not arguments, temporaries and code."""
        return self.argument_bytes + self.output_bytes - self.aliased_bytes + self.temp_bytes + self.code_bytes


class CollectiveTotal(NamedTuple):
    """All collectives of one kind over the same mesh axes.

    Attributes:
        num_executions: How often a step runs them.
        num_bytes: Total bytes per device.
    """

    num_executions: int
    num_bytes: int


def analyze_program(compiled: jax.stages.Compiled, mesh: Mesh) -> CompiledProgram:
    """Analyze a compiled program.

    Args:
        compiled: The program.
        mesh: The mesh of devices that it was compiled for.

    Returns:
        Its memory, collectives and largest buffers.

    Raises:
        ValueError: If the backend has no memory analysis, or its text is not an HLO program.
    """
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    if memory is None or text is None:
        raise ValueError("the backend has no memory analysis of compiled programs")
    module = parse_hlo(text)
    executed = list(executed_instructions(module))
    work = total_work(module, executed)
    return CompiledProgram(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        aliased_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        bytes_moved=work.bytes_moved,
        collectives=tuple(_describe_collective(collective, mesh) for collective in executed_collectives(module)),
        largest_buffers=largest_buffers(module),
        loops_without_trip_count=loops_without_trip_count(module),
        fingerprint=fingerprint(text),
        float32_flops=work.float32_flops,
        attention_kernels=attention_kernels(executed),
        source_lines=bytes_by_source_line(module, executed),
    )


def attention_kernels(executed: Iterable[ExecutedInstruction]) -> dict[str, int]:
    """Count the executions of the attention kernels of libraries: cuDNN's by name, splash's by name and number."""
    counts: dict[str, int] = {}
    for execution in executed:
        target = execution.instruction.custom_call_target
        if target.startswith("__cudnn$fmha"):
            name = target.removeprefix("__")
        elif target and "splash" in execution.instruction.source:
            name = execution.instruction.source.rsplit("/", 1)[-1]
        else:
            continue
        counts[name] = counts.get(name, 0) + execution.num_executions
    return counts


def bytes_by_source_line(module: HloModule, executed: Iterable[ExecutedInstruction]) -> tuple[SourceLine, ...]:
    """Sum the bytes moved by the line of source code that an instruction comes from, the most first.

    Args:
        module: The program.
        executed: Its instructions.

    Returns:
        The lines.
    """
    sums: dict[str, SourceLine] = {}
    largest: dict[str, int] = {}
    for execution in executed:
        moved = execution.num_executions * bytes_moved(module, execution)
        if not moved:
            continue
        line, source = _instruction_source(module, execution.instruction)
        previous = sums.get(line, SourceLine(line, 0, 0, ""))
        source = source if moved > largest.get(line, 0) else previous.source
        largest[line] = max(moved, largest.get(line, 0))
        sums[line] = SourceLine(
            line, previous.num_bytes + moved, previous.num_executions + execution.num_executions, source
        )
    ordered = sorted(sums.values(), key=lambda total: -total.num_bytes)
    return tuple(total._replace(line=_short_path(total.line)) for total in ordered)


def _short_path(line: str) -> str:
    """Return a source line with its path as from the checkout or the folder of installed libraries."""
    for folder in (str(PACKAGE_PARENT), *filter(None, sys.path)):
        if line.startswith(folder + os.sep):
            return line[len(folder) + 1 :]
    return line


def _instruction_source(module: HloModule, instruction: HloInstruction) -> tuple[str, str]:
    """Return the source line and the traced operation of an instruction, or else of what is fused in it."""
    candidates = [instruction]
    if instruction.opcode in ("fusion", "fusion-start"):
        inner = module.computations[instruction.called_computations[0]]
        candidates += [inner.root, *reversed(list(inner.instructions.values()))]
    for candidate in candidates:
        frame = candidate.integer_attribute("stack_frame_id")
        if frame is not None and frame in module.source_lines:
            return module.source_lines[frame], candidate.source
    return "", instruction.source


def _describe_collective(exchange: ExecutedCollective, mesh: Mesh) -> Collective:
    groups = exchange.groups
    if exchange.kind == "collective-permute":
        participants, group = len(_device_chain(groups)), _device_chain(groups)
    else:
        participants, group = len(groups[0]), groups[0]
    sizes = tuple(mesh.shape.values())
    coordinates = [np.array(np.unravel_index(devices, sizes)) for devices in groups]
    varying = np.any([np.any(place != place[:, :1], axis=1) for place in coordinates], axis=0)
    axes = tuple(name for name, varies in zip(mesh.shape, varying, strict=True) if varies)
    return Collective(
        exchange.kind,
        exchange.num_bytes,
        participants,
        axes,
        group,
        exchange.num_executions,
        exchange.overlapped,
        exchange.source,
        exchange.work,
    )


def _device_chain(pairs: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the devices on the path of the first sender, including itself."""
    target_by_source = {source: target for source, target in pairs}
    chain = [pairs[0][0]]
    while (after := target_by_source.get(chain[-1])) is not None and after not in chain:
        chain.append(after)
    return tuple(chain)


def collective_totals(collectives: Iterable[Collective]) -> dict[tuple[str, tuple[str, ...]], CollectiveTotal]:
    """Sum executions and bytes by kind and mesh axes, the most bytes first."""
    sums: dict[tuple[str, tuple[str, ...]], CollectiveTotal] = {}
    for collective in collectives:
        previous = sums.get((collective.kind, collective.mesh_axes), CollectiveTotal(0, 0))
        sums[collective.kind, collective.mesh_axes] = CollectiveTotal(
            previous.num_executions + collective.num_executions,
            previous.num_bytes + collective.num_executions * collective.num_bytes,
        )
    return dict(sorted(sums.items(), key=lambda item: -item[1].num_bytes))


def argument_bytes(kinds: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of each kind of argument on one device.

    The sizes are those of the shards; a TPU may pad an array to whole tiles. Leaves without a sharding are replicated.

    Args:
        kinds: For each kind, a tree of arrays or of shapes with shardings.

    Returns:
        Bytes by kind.
    """
    return {kind: sum(map(_bytes_on_device, jax.tree.leaves(tree))) for kind, tree in kinds.items()}


def _bytes_on_device(leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return math.prod(shape) * leaf.dtype.itemsize


def largest_buffers(module: HloModule, count: int = NUM_LARGEST_BUFFERS) -> tuple[BufferGroup, ...]:
    """Return the largest arrays that the program makes in main memory, one of each type and shape.

    Not all of them are live at once. Views of other arrays do not count; an in-place update counts as the array that it
    updates.

    Args:
        module: The program.
        count: How many to return.

    Returns:
        The arrays, the largest first.
    """
    names = ("parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "opt-barrier")
    largest: dict[str, BufferGroup] = {}
    for execution in executed_instructions(module):
        instruction = execution.instruction
        if instruction.opcode in names or instruction.opcode.endswith("-start"):
            continue
        for array in instruction.arrays:
            previous = largest.get(str(array))
            # The compiler's own broadcasts and copies say no source; whoever writes into them does.
            if array.memory_space == 0 and (previous is None or "/" not in previous.source):
                largest[str(array)] = BufferGroup(
                    array.padded_bytes, str(array), instruction.opcode, instruction.source
                )
    return tuple(sorted(largest.values(), key=lambda buffer: -buffer.num_bytes)[:count])


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a program's text, ignoring what does not change the program.

    Ignored are names and their numbers (replaced by numbers in order of appearance), source files and lines, names of
    traced operations and of arguments, channel numbers, and mesh axes of size 1.
    """
    body = re.sub(r"\nFileNames\n.*?\n\n\n", "\n", text, count=1, flags=re.DOTALL)
    body = re.sub(r"^HloModule [^,\n]*", "HloModule", body, count=1)
    quoted = r'"(?:[^"\\]|\\.)*"'
    braced = rf'\{{(?:[^{{}}"]|{quoted})*\}}'
    body = re.sub(rf'(?:, )?(?:metadata|frontend_attributes)=\{{(?:[^{{}}"]|{quoted}|{braced})*\}}', "", body)
    body = re.sub(r"^(ENTRY )?(%?[\w.$-]+) \(.*\{$", r"\1\2 {", body, flags=re.MULTILINE)
    body = re.sub(r"\bmesh\[([^\]]*)\]", _drop_unit_axes, body)
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return match[1] + str(numbers.setdefault(match[0], len(numbers)))

    body = re.sub(r"(%|\bchannel_id=)[\w.$-]+", number, body)
    return hashlib.sha256(body.encode()).hexdigest()


def _drop_unit_axes(mesh: re.Match[str]) -> str:
    """Describe a mesh as a program's text does, without axes of size 1."""
    return f"mesh[{','.join(axis for axis in mesh[1].split(',') if not axis.endswith('=1'))}]"
