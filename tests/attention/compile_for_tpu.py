"""Compiles attention on splash for a TPU that is not there, one line of JSON a program; run by test_tpu_compile.py."""

import functools
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
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.attention import masks
from transformer.attention.attend import attend
from transformer.attention.capture import Capture, Captured
from transformer.attention.spec import AttentionSpec, Backend
from transformer.attention.statistics import STATISTICS

TOPOLOGY = "v5e:2x2"
BATCH, HEADS, GROUPS, DEPTH = 2, 4, 2, 64
KERNEL = re.compile(r"%?(\w+?)(?:\.\d+)* = .*custom_call_target=\"tpu_custom_call\"")


class Case(NamedTuple):
    """One attention: the inputs' type, the static facts of its mask, the names of the traced ones, and the rest."""

    dtype: str
    static: dict[str, Any]
    traced: tuple[str, ...] = ()
    backend: Backend = Backend.SPLASH
    length: int = 512


CASES = {
    "causal_lengths": Case("bfloat16", {"causal": True}, ("query_lengths", "key_lengths")),
    # So long that not even the fast memory of the chip, 128 MiB, could hold a map.
    "causal_window": Case("bfloat16", {"causal": True, "window": (100, 0)}, length=4096),
    # What auto would take on that TPU.
    "segments": Case("bfloat16", {}, ("segments",), Backend.AUTO),
    "float32_causal_lengths": Case("float32", {"causal": True}, ("query_lengths", "key_lengths")),
}


PROGRAMS = ("forward", "gradient", "capture")


def program(case: Case, name: str) -> Callable[..., Any]:
    """The forward pass; its value and gradient; or these beside rows and statistics that a traced switch turns on."""
    spec = AttentionSpec(backend=case.backend)

    def forward(q: Any, k: Any, v: Any, facts: Any, observe: Any = None) -> tuple[jax.Array, Captured | None]:
        statistics = tuple(STATISTICS.values())
        capture = Capture(("here",), rows=(0, 1, 100, 511), statistics=statistics, observe=observe)
        mask = masks.Mask(**case.static, **facts)
        output, attended = attend(q, k, v, spec=spec, mask=mask, capture=None if observe is None else capture)
        return output, attended.captured

    def loss(*inputs: Any) -> tuple[jax.Array, Captured | None]:
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


def compiled_for(mesh: Mesh, case: Case, name: str) -> dict[str, Any]:
    """The kernels of one compiled program, those that always run and the others, and its memory in bytes."""
    array = functools.partial(jax.ShapeDtypeStruct, sharding=NamedSharding(mesh, PartitionSpec()))
    q = array((BATCH, case.length, HEADS, DEPTH), case.dtype)
    k = v = array((BATCH, case.length, GROUPS, DEPTH), case.dtype)
    labels = array((BATCH, case.length), jnp.int32)
    lengths = array((BATCH,), jnp.int32)
    facts = {fact: (labels, labels) if fact == "segments" else lengths for fact in case.traced}
    begin = time.monotonic()
    # The target is said by the mesh in context: attend() asks it, and jax keeps one trace for each.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        compiled = jax.jit(program(case, name)).lower(q, k, v, facts, array((), jnp.bool_)).compile()
    always, sometimes = kernels(compiled.as_text())
    memory = compiled.memory_analysis()
    return {
        "always": always,
        "sometimes": sometimes,
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "seconds": round(time.monotonic() - begin, 1),
    }


def kernels(program_text: str) -> tuple[list[str], list[str]]:
    """The names of the Mosaic kernels of a compiled program: those of its entry, and those of branches."""
    always: list[str] = []
    sometimes: list[str] = []
    found = sometimes
    for line in program_text.splitlines():
        # Each computation begins at the margin with its name and arguments, and ends with an opened brace.
        if re.match(r"(ENTRY )?%?[\w.-]+ \(.*\{$", line):
            found = always if line.startswith("ENTRY") else sometimes
        found += KERNEL.findall(line)
    return sorted(always), sorted(sometimes)


def main(programs: list[str]) -> None:
    """Compile each program, given as case/name, for one device of the topology."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices
    mesh = Mesh(np.array(devices[:1]), ("one",), axis_types=(AxisType.Auto,))
    for path in programs:
        case, name = path.split("/")
        print(json.dumps({"program": path, **compiled_for(mesh, CASES[case], name)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
