"""A parser of HLO text: computations, instructions, arrays and groups of devices.

    module       = header, computation, ...
    computation  = ["ENTRY"] "%"name ... "{" line break, instruction, ... "}"
    instruction  = ["ROOT"] "%"name " = " arrays " " opcode "(" operands ")" {", " attribute}
    arrays       = array | "(" arrays {", " arrays} ")"
    array        = type "[" sizes "]" ["{" minor to major [":" {"T(" tile ")"} ["S(" space ")"]] "}"]
    groups       = "{{0,1},{2,3}}" | "[2,2]<=[4]" | "[2,2]<=[2,2]T(1,0)" | "mesh['a'=2,'b'=2] {'b'}"

Names are unique in a module. Memory space 0 is the device's main memory; a TPU's fast memories have other numbers.
"""

import itertools
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.$-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.$-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\(([^)]*)\)(.*)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.$-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.$-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_SWAPPED = re.compile(r"\[([\d,]+)\]T\(([\d,]+)\)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_TABLE_FILE = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_TABLE_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", re.MULTILINE)
_TABLE_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)", re.MULTILINE)
_BITS = re.compile(r"\d+")


class HloArray(NamedTuple):
    """An array on one device.

    Attributes:
        dtype: The element type.
        shape: The size of each axis.
        minor_to_major: The order of the axes in memory.
        tile: The tile of the layout.
        memory_space: The memory space; 0 is main memory.
    """

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tile: tuple[int, ...]
    memory_space: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        return math.ceil(math.prod(self.shape) * _item_bits(self.dtype) / 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory, where a TPU pads the innermost axes to whole tiles."""
        sizes = [self.shape[axis] for axis in self.minor_to_major] if self.minor_to_major else list(self.shape)
        for place, side in enumerate(reversed(self.tile[-len(sizes) :] if sizes else ())):
            sizes[place] = math.ceil(sizes[place] / side) * side
        return math.ceil(math.prod(sizes) * _item_bits(self.dtype) / 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class HloInstruction(NamedTuple):
    """An instruction.

    Attributes:
        name: Its name.
        opcode: Its opcode.
        arrays: The result's arrays, with tuples flattened.
        operand_names: Names of the operands.
        literal: The text in parentheses, such as a constant.
        attributes: The text after the parentheses.
        called_computations: Names of the computations that it calls.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operand_names: tuple[str, ...]
    literal: str
    attributes: str
    called_computations: tuple[str, ...]

    @property
    def source(self) -> str:
        """The traced operation that it comes from; empty if the compiler inserted it."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1].replace("\\'", "'") if match else ""

    def integer_attribute(self, name: str) -> int | None:
        """Return the integer attribute `name`; None if absent."""
        match = re.search(rf"\b{name}=(\d+)", self.attributes)
        return int(match[1]) if match else None

    @property
    def custom_call_target(self) -> str:
        """The target of a custom call; else empty."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes) if self.opcode == "custom-call" else None
        return match[1] if match else ""


class HloComputation(NamedTuple):
    """A computation.

    Attributes:
        name: Its name.
        instructions: The instructions by name, in order.
        users: For each instruction, those that use it.
        root: The instruction whose result it returns.
    """

    name: str
    instructions: Mapping[str, HloInstruction]
    users: Mapping[str, tuple[HloInstruction, ...]]
    root: HloInstruction

    def parameters(self) -> list[HloInstruction]:
        """Return the parameters in order."""
        parameters = [instruction for instruction in self.instructions.values() if instruction.opcode == "parameter"]
        return sorted(parameters, key=lambda instruction: int(instruction.literal))


class HloModule(NamedTuple):
    """A parsed program.

    Attributes:
        computations: Its computations by name.
        entry: The entry computation.
        num_devices: The number of devices.
        source_lines: For each stack frame of the program's table, its file and line, as in "model.py:12".
    """

    computations: Mapping[str, HloComputation]
    entry: HloComputation
    num_devices: int
    source_lines: Mapping[int, str]


def parse_hlo(text: str) -> HloModule:
    """Parse the text of `jax.stages.Compiled.as_text`.

    Raises:
        ValueError: If the text is not an HLO program.
    """
    computations: dict[str, HloComputation] = {}
    entry, name = "", ""
    lines: list[str] = []
    for line in text.splitlines():
        if not name:
            if head := _COMPUTATION.match(line):
                name, lines = head[2], []
                entry = name if head[1] else entry
        elif line == "}" or line.startswith("}, execution_thread="):
            computations[name], name = _parse_computation(name, lines), ""
        elif _INSTRUCTION.match(line):
            lines.append(line)
        elif lines:
            lines[-1] += line  # A kernel's attributes may go on in the next line.
    if entry not in computations:
        raise ValueError("the text is no compiled program: it has no computation that begins with ENTRY")
    header = text.split("\n", 1)[0]
    counts = [int(n) for n in re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header)]
    return HloModule(computations, computations[entry], math.prod(counts), _parse_source_lines(text))


def _parse_source_lines(text: str) -> dict[int, str]:
    """Read the tables of files, locations and stack frames in front of a program; empty if it has none."""
    tables: dict[str, list[str]] = {name: [] for name in _TABLES}
    table = None
    for line in text.split("\n"):
        if line in tables:
            table = tables[line]
        elif not line:
            table = None
        elif table is not None:
            table.append(line)
        elif line.startswith(("%", "ENTRY")):
            break  # The tables stand before the first computation.
    files = dict(_TABLE_FILE.findall("\n".join(tables["FileNames"])))
    locations = {
        number: f"{files.get(file, '')}:{line}"
        for number, file, line in _TABLE_LOCATION.findall("\n".join(tables["FileLocations"]))
    }
    frames = _TABLE_FRAME.findall("\n".join(tables["StackFrames"]))
    return {int(number): locations[location] for number, location in frames if location in locations}


def _parse_computation(name: str, lines: list[str]) -> HloComputation:
    instructions = {instruction.name: instruction for instruction in map(_parse_instruction, lines)}
    roots = [
        instruction
        for instruction, line in zip(instructions.values(), lines, strict=True)
        if line.lstrip().startswith("ROOT ")
    ]
    if not roots:
        raise ValueError(f"computation {name} of the program has no result")
    users: dict[str, list[HloInstruction]] = {instruction_name: [] for instruction_name in instructions}
    for instruction in instructions.values():
        for operand in dict.fromkeys(instruction.operand_names):
            users[operand].append(instruction)
    return HloComputation(
        name, instructions, {operand_name: tuple(its_users) for operand_name, its_users in users.items()}, roots[0]
    )


def _parse_instruction(line: str) -> HloInstruction:
    match = _INSTRUCTION.match(line)
    assert match is not None
    name, arrays, opcode, operands, attributes = match.groups()
    called_names = _CALLED.findall(attributes)
    for branches in _BRANCHES.findall(attributes):
        called_names += [branch.strip().lstrip("%") for branch in branches.split(",")]
    names = tuple(_NAME.findall(operands))
    return HloInstruction(name, opcode, parse_arrays(arrays), names, operands, attributes, tuple(called_names))


def parse_arrays(text: str) -> tuple[HloArray, ...]:
    """Parse all arrays of a type, tuples flattened."""
    return tuple(_parse_array(*parts) for parts in _ARRAY.findall(text))


def _parse_array(name: str, sizes: str, layout: str) -> HloArray:
    order, _, tiling = layout.partition(":")
    tile = re.search(r"T\(([\d,*]+)\)", tiling)
    space = re.search(r"S\((\d+)\)", tiling)
    return HloArray(
        name,
        tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size),
        tuple(int(axis) for axis in order.split(",") if axis.isdigit()),
        tuple(1 if side == "*" else int(side) for side in tile[1].split(",")) if tile else (),
        int(space[1]) if space else 0,
    )


def _item_bits(name: str) -> int:
    """Bits of an element: the first number in the type's name (bf16, s4, f8e4m3fn, c64)."""
    if name in ("token", "opaque"):
        return 0
    bits = _BITS.search(name)
    return int(bits[0]) if bits else 8


def replica_groups(instruction: HloInstruction, devices: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices that communicate, as device indices.

    Args:
        instruction: The collective.
        devices: The number of devices, for a collective that does not list its groups.

    Returns:
        The groups.

    Raises:
        ValueError: If the notation is unknown.
    """
    match = re.search(r"\breplica_groups=(mesh\[.*?\}|\{\{.*?\}\}|\{\}|\[[^ ]*)", instruction.attributes)
    text = match[1] if match else "{}"
    if text == "{}":
        return (tuple(range(devices)),)
    if text.startswith("{{"):
        return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", text))
    if mesh := _MESH.match(text):
        return _mesh_groups(mesh[1], mesh[2], mesh[3])
    if iota := _IOTA.match(text):
        return tuple(map(tuple, _parse_iota(iota).tolist()))
    raise ValueError(f"the groups {text!r} of {instruction.name} are in no notation that is known")


def _parse_iota(match: re.Match[str]) -> np.ndarray:
    shape, sizes, order = ([int(n) for n in (part or "").split(",") if n] for part in match.groups())
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return (numbers.transpose(order) if order else numbers).reshape(shape)


def _mesh_groups(axes: str, order: str | None, group_axes: str) -> tuple[tuple[int, ...], ...]:
    """Return groups along some mesh axes, `'b'`, or a part of one: `'b':(2)4`, 4 within each of 2."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", group_axes):
        parts[name].append((int(before or 1), int(size or sizes[name])))
    numbers = np.arange(math.prod(sizes.values()))
    if order is not None and (swapped := _SWAPPED.fullmatch(order)):
        shape, places = ([int(n) for n in part.split(",")] for part in swapped.groups())
        numbers = numbers.reshape(shape).transpose(places).reshape(-1)
    elif order is not None:
        numbers = np.array([int(n) for n in order.split(",")])
    # Every axis is cut where a part begins or ends, and the cuts of the groups' axes are put last.
    cut_sizes, inside = [], []
    for name, size in sizes.items():
        cuts = sorted({1, size, *(cut for before, part in parts[name] for cut in (before, before * part))})
        for low, high in itertools.pairwise(cuts):
            cut_sizes.append(high // low)
            inside.append(any(before <= low and high <= before * part for before, part in parts[name]))
    last = sorted(range(len(cut_sizes)), key=lambda place: inside[place])
    width = math.prod(size for size, is_in_group in zip(cut_sizes, inside, strict=True) if is_in_group)
    return tuple(map(tuple, numbers.reshape(cut_sizes).transpose(last).reshape(-1, width).tolist()))


def source_target_pairs(instruction: HloInstruction) -> tuple[tuple[int, ...], ...]:
    """Return the (source, target) devices of a collective-permute."""
    match = re.search(r"\bsource_target_pairs=\{(\{.*?\})\}", instruction.attributes)
    return tuple(tuple(map(int, pair)) for pair in re.findall(r"\{(\d+),(\d+)\}", match[1])) if match else ()
