"""What a compiled program needs: bytes of each device's memory, the collectives, the largest buffers, a fingerprint."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer.costs.execution import Exchange, endless, exchanges, executed, moved
from transformer.costs.hlo import Module, parse

BUFFERS = 20  # As many of the largest buffers as a reader looks at.


class Collective(NamedTuple):
    """One collective operation of the program.

    `bytes` are a device's, each time: the whole result of an all-gather, the operand of all others. `participants`
    devices exchange among themselves, along `axes` of the mesh; `group` is one of their groups, as numbers of devices
    of the mesh. `times`: how often a step runs it, loops multiplied. `beside`: other work goes on meanwhile.
    """

    kind: str
    bytes: int
    participants: int
    axes: tuple[str, ...]
    group: tuple[int, ...]
    times: int
    beside: bool
    source: str


class Buffer(NamedTuple):
    """Arrays of one type and shape that the program makes in main memory: bytes of one, and where the first is from."""

    bytes: int
    shape: str
    opcode: str
    source: str


class Program(NamedTuple):
    """A compiled program, in bytes a device.

    `aliased` is what arguments and outputs share. `moved`: through main memory, each time it runs, by the model of
    `transformer.costs.execution`. `endless`: loops of unknown trip count, counted once.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    moved: int
    collectives: tuple[Collective, ...]
    buffers: tuple[Buffer, ...]
    endless: tuple[str, ...]
    fingerprint: str

    @property
    def peak(self) -> int:
        """The most that is held at once: arguments, outputs that are not arguments, temporaries and code."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


class Total(NamedTuple):
    """All collectives of one kind over the same axes of the mesh: executions, and bytes a device of all of them."""

    times: int
    bytes: int


def read_program(compiled: jax.stages.Compiled, mesh: Mesh) -> Program:
    """What a program compiled for the devices of `mesh` needs.

    Raises:
        ValueError: For a backend that does not say its memory, or whose text is no program.
    """
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    if memory is None or text is None:
        raise ValueError("the backend does not say what its compiled programs need")
    module = parse(text)
    return Program(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        moved=sum(run.times * moved(module, run) for run in executed(module)),
        collectives=tuple(_collective(each, mesh) for each in exchanges(module)),
        buffers=largest_buffers(module),
        endless=endless(module),
        fingerprint=fingerprint(text),
    )


def _collective(exchange: Exchange, mesh: Mesh) -> Collective:
    among = exchange.groups
    if exchange.kind == "collective-permute":
        participants, group = len(_chain(among)), _chain(among)
    else:
        participants, group = len(among[0]), among[0]
    sizes = tuple(mesh.shape.values())
    places = [np.array(np.unravel_index(each, sizes)) for each in among]
    varying = np.any([np.any(place != place[:, :1], axis=1) for place in places], axis=0)
    axes = tuple(name for name, varies in zip(mesh.shape, varying, strict=True) if varies)
    return Collective(
        exchange.kind, exchange.bytes, participants, axes, group, exchange.times, exchange.beside, exchange.source
    )


def _chain(pairs: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The devices that the first sender reaches by handing on and on, itself among them."""
    to = {source: target for source, target in pairs}
    chain = [pairs[0][0]]
    while (after := to.get(chain[-1])) is not None and after not in chain:
        chain.append(after)
    return tuple(chain)


def totals(collectives: Iterable[Collective]) -> dict[tuple[str, tuple[str, ...]], Total]:
    """Executions and bytes of a step by kind and axes of the mesh, the most bytes first."""
    sums: dict[tuple[str, tuple[str, ...]], Total] = {}
    for each in collectives:
        before = sums.get((each.kind, each.axes), Total(0, 0))
        sums[each.kind, each.axes] = Total(before.times + each.times, before.bytes + each.times * each.bytes)
    return dict(sorted(sums.items(), key=lambda item: -item[1].bytes))


def split_arguments(kinds: Mapping[str, Any]) -> dict[str, int]:
    """Bytes on one device of each kind of argument, a tree of arrays or shapes that say their sharding.

    Exact by the shapes of the shards; a TPU may store an array in more, filled up to whole tiles. Leaves without a
    sharding are whole on every device.
    """
    return {kind: sum(map(_bytes_on_device, jax.tree.leaves(tree))) for kind, tree in kinds.items()}


def _bytes_on_device(leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return math.prod(shape) * leaf.dtype.itemsize


def largest_buffers(module: Module, count: int = BUFFERS) -> tuple[Buffer, ...]:
    """The largest arrays that the program makes in main memory, one of each type and shape.

    Not all of them live at once. What only names or slices another array is none; what is updated in place is the
    array that it updates.
    """
    names = ("parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "opt-barrier")
    largest: dict[str, Buffer] = {}
    for run in executed(module):
        made = run.instruction
        if made.opcode in names or made.opcode.endswith("-start"):
            continue
        for array in made.arrays:
            before = largest.get(str(array))
            # The compiler's own broadcasts and copies say no source; whoever writes into them does.
            if array.space == 0 and (before is None or "/" not in before.source):
                largest[str(array)] = Buffer(array.stored, str(array), made.opcode, made.source)
    return tuple(sorted(largest.values(), key=lambda buffer: -buffer.bytes)[:count])


def fingerprint(text: str) -> str:
    """The SHA-256 of a program's text without what depends on how it was written down.

    That is: names and their numbers, which become numbers in order of appearance, source files and lines, names of
    traced operations and of arguments, numbers of channels, and axes of the mesh that have one device.
    """
    body = re.sub(r"\nFileNames\n.*?\n\n\n", "\n", text, count=1, flags=re.DOTALL)
    body = re.sub(r"^HloModule [^,\n]*", "HloModule", body, count=1)
    quoted = r'"(?:[^"\\]|\\.)*"'
    braced = rf'\{{(?:[^{{}}"]|{quoted})*\}}'
    body = re.sub(rf'(?:, )?(?:metadata|frontend_attributes)=\{{(?:[^{{}}"]|{quoted}|{braced})*\}}', "", body)
    body = re.sub(r"^(ENTRY )?(%?[\w.$-]+) \(.*\{$", r"\1\2 {", body, flags=re.MULTILINE)
    body = re.sub(r"\bmesh\[([^\]]*)\]", _dividing, body)
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return match[1] + str(numbers.setdefault(match[0], len(numbers)))

    body = re.sub(r"(%|\bchannel_id=)[\w.$-]+", number, body)
    return hashlib.sha256(body.encode()).hexdigest()


def _dividing(mesh: re.Match[str]) -> str:
    """A mesh as a program's text describes it, of the axes with more than one device alone."""
    return f"mesh[{','.join(axis for axis in mesh[1].split(',') if not axis.endswith('=1'))}]"
