"""Compiles attention for TPUs that are not there, one line of JSON a program; run by test_tpu_compile.py."""

import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, NamedSharding

from transformer.attention import masks
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.statistics import STATISTICS
from transformer.logical_axes import MESH_AXES, RULES, Placement, SequenceParallel, use_placement

TOPOLOGY = "v5e:2x2"
BATCH, HEADS, GROUPS, DEPTH = 2, 4, 2, 64
KERNEL = re.compile(r"%?(\w+?)(?:\.\d+)* = .*custom_call_target=\"tpu_custom_call\"")
COLLECTIVE = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


class Case(NamedTuple):
    """One attention: the inputs' type, the static facts of its mask, the names of the traced ones, and the rest.

    `mesh`: the sizes of its axes data, fsdp, tensor and sequence; `rules` and `how` are then those of the placement.
    """

    dtype: str
    static: dict[str, Any]
    traced: tuple[str, ...] = ()
    backend: Backend = Backend.SPLASH
    length: int = 512
    mesh: tuple[int, int, int, int] = (1, 1, 1, 1)
    rules: str = "dp"
    how: SequenceParallel = SequenceParallel.RING


CASES = {
    "causal_lengths": Case("bfloat16", {"causal": True}, ("query_lengths", "key_lengths")),
    # So long that not even the fast memory of the chip, 128 MiB, could hold a map.
    "causal_window": Case("bfloat16", {"causal": True, "window": (100, 0)}, length=4096),
    # What auto would take on that TPU.
    "segments": Case("bfloat16", {}, ("segments",), Backend.AUTO),
    "float32_causal_lengths": Case("float32", {"causal": True}, ("query_lengths", "key_lengths")),
    # What auto takes on each of four devices that divide examples and heads.
    "divided": Case("bfloat16", {"causal": True}, ("key_lengths",), Backend.AUTO, mesh=(2, 1, 2, 1), rules="fsdp+tp"),
    "gathered": Case(
        "bfloat16",
        {"causal": True},
        ("segments",),
        Backend.AUTO,
        length=1024,
        mesh=(1, 1, 1, 4),
        rules="sp",
        how=SequenceParallel.GATHER,
    ),
    "ring": Case("bfloat16", {"causal": True}, (), Backend.AUTO, length=4096, mesh=(1, 1, 1, 4), rules="sp"),
}


PROGRAMS = ("forward", "gradient", "capture")


def program(case: Case, name: str) -> Callable[..., Any]:
    """The forward pass; its value and gradient; or these beside rows and statistics that a traced switch turns on."""
    spec = AttentionSpec(backend=case.backend)

    def forward(q: Any, k: Any, v: Any, facts: Any, observe: Any = None) -> tuple[jax.Array, CapturedAttention | None]:
        statistics = tuple(STATISTICS.values())
        capture = Capture(("here",), rows=(0, 1, 100, 511), statistics=statistics, observe=observe)
        mask = masks.Mask(**case.static, **facts)
        output, attended = attend(q, k, v, spec=spec, mask=mask, capture=None if observe is None else capture)
        return output, attended.captured

    def loss(*inputs: Any) -> tuple[jax.Array, CapturedAttention | None]:
        output, captured = forward(*inputs)
        return jnp.sum(output.astype(jnp.float32) ** 2), captured

    step = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    match name:
        case "forward":
            return lambda q, k, v, facts, observe: forward(q, k, v, facts)
        case "gradient":
            return lambda q, k, v, facts, observe: step(q, k, v, facts)
        case _:
            return step


def compiled_for(devices: Any, case: Case, name: str) -> dict[str, Any]:
    """Of one compiled program: kernels that always run and others, collectives that do, a device's memory in bytes."""
    count = int(np.prod(case.mesh))
    of_axes = dict(zip(("data", "fsdp", "tensor", "sequence"), case.mesh, strict=True)) | {"expert": 1}
    types = (AxisType.Auto,) * len(MESH_AXES)
    mesh = jax.make_mesh([of_axes[axis] for axis in MESH_AXES], MESH_AXES, axis_types=types, devices=devices[:count])
    placement = Placement(mesh, RULES[case.rules], case.how)

    def array(shape: tuple[int, ...], dtype: Any, *names: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, placement.even_partition_spec(names, shape))
        )

    q = array((BATCH, case.length, HEADS, DEPTH), case.dtype, "batch", "length", "heads", None)
    k = v = array((BATCH, case.length, GROUPS, DEPTH), case.dtype, "batch", "length", "groups", None)
    labels = array((BATCH, case.length), jnp.int32, "batch", "length")
    lengths = array((BATCH,), jnp.int32, "batch")
    facts = {fact: (labels, labels) if fact == "segments" else lengths for fact in case.traced}
    begin = time.monotonic()
    # The target is said by the mesh in context: attend() asks it, and jax keeps one trace for each.
    with use_placement(placement) if count > 1 else jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        compiled = jax.jit(program(case, name)).lower(q, k, v, facts, array((), jnp.bool_)).compile()
    always, sometimes = found_in(KERNEL, compiled.as_text())
    memory = compiled.memory_analysis()
    return {
        "always": always,
        "sometimes": sometimes,
        "collectives": sorted({name for names in found_in(COLLECTIVE, compiled.as_text()) for name in names}),
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "seconds": round(time.monotonic() - begin, 1),
    }


def found_in(what: re.Pattern[str], program_text: str) -> tuple[list[str], list[str]]:
    """What a pattern finds in a compiled program: in its entry, and in loops and branches."""
    always: list[str] = []
    sometimes: list[str] = []
    found = sometimes
    for line in program_text.splitlines():
        # Each computation begins at the margin with its name and arguments, and ends with an opened brace.
        if re.match(r"(ENTRY )?%?[\w.-]+ \(.*\{$", line):
            found = always if line.startswith("ENTRY") else sometimes
        found += what.findall(line)
    return sorted(always), sorted(sometimes)


def main(programs: list[str]) -> None:
    """Compile each program, given as case/name, for the first devices of the topology."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices
    for path in programs:
        case, name = path.split("/")
        print(json.dumps({"program": path, **compiled_for(devices, CASES[case], name)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
