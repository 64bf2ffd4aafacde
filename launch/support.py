"""Write the page of what each attention backend takes."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from launch.cli import Arguments, Command, run

COMMAND = Command(
    name="support",
    description="Print the page that says which attention each backend computes, on which arrays and machines.",
    example="python -m launch.support > docs/support.md",
)

HEAD = """# What each attention backend takes

Written by `make docs` (`python -m launch.support > docs/support.md`) from `transformer/attention/backends.py`, which
decides and refuses at run time: change that file, not this one. [The algebra](attention.md) explains the words.

## Combinations

A row stands for every combination of what its first four cells list. What is in no row has no meaning and is refused.
The cell of a backend names the masks that it takes there, or the note below that does: facts of `Mask`, with + those
given together, and `bias`, an array that is added to the logits; - is none. A mask of other facts together is taken
where each of them is, but for cudnn, whose window needs causal. The backends stand in the order in which `auto` prefers
them.
"""

ASPECTS = """## Forward, gradient, cached decoding, capture

- forward: wherever the table says so, in agreement with a NumPy float64 reference.
- gradient: wherever forward is taken, of q, k, v, the bias and all parameters.
- cached decoding: new queries at positions behind those of a cache, which is the fact `query_offset`.
- capture: maps and head statistics, wherever forward is taken: what a backend does not keep is computed beside it.
"""

LIMITS = """## Limits on arrays and machine

Each row changes one thing where all else suits every backend. Away from TPUs splash is interpreted: right, slow, for
tests alone. float64 needs the 64-bit mode of JAX.
"""

CHOICE = """## What auto chooses

The first backend that takes the request, with two exceptions: splash only on TPUs and for a program on one device, and
einsum only up to {dense:,} logits (batch x heads x queries x keys) where blockwise would do. For a batch of 8, and 8
heads of depth 64:
"""

# How the programs are built, which no declaration says.
MODES = {"einsum": "reverse and forward mode", "xla": "reverse and forward mode"}
WEIGHTS = {
    "einsum": "the weights themselves",
    "blockwise": "its own log-sum-exp",
    "splash": "the kernel's log-sum-exp, one more forward pass",
}


def page() -> str:
    """The whole page."""
    from transformer.attention.backends import BACKENDS, DENSE_LOGITS, Combination, table, unsupported

    names = [backend.value for backend in BACKENDS]
    decoding = Combination(facts=frozenset({"causal", "query_offset"}))
    aspects = {
        "gradient": [MODES.get(name, "reverse mode") for name in names],
        "cached decoding": ["no" if unsupported(backend, decoding) else "yes" for backend in BACKENDS],
        "capture from": [WEIGHTS.get(name, "a log-sum-exp found blockwise") for name in names],
    }
    parts = (
        HEAD,
        table(),
        ASPECTS,
        _markdown(["", *names], aspects),
        LIMITS,
        _markdown(["", *names], _limits()),
        CHOICE.format(dense=DENSE_LOGITS),
        _choices(),
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _limits() -> dict[str, list[str]]:
    """What of each array and machine the backends take, found by asking for one after the other."""
    from transformer.attention.backends import BACKENDS, Circumstances, unfit

    suits = Circumstances("gpu", "bfloat16", batch=1, heads=1, queries=1024, keys=1024, depth=64, value_depth=64)
    probes: dict[str, dict[Any, dict[str, Any]]] = {
        "platform": {name: {"platform": name} for name in ("cpu", "gpu", "tpu")},
        "type": {name: {"dtype": name} for name in ("bfloat16", "float16", "float32", "float64")},
        "head depth": {size: {"depth": size, "value_depth": size} for size in range(1, 513)},
        "value depth": {"that of the keys": {}, "any other": {"value_depth": 32}},
        "lengths": {size: {"queries": size, "keys": size} for size in range(1, 1025)},
    }

    def taken(backend: Any, probe: dict[Any, dict[str, Any]]) -> str:
        good = [value for value, change in probe.items() if not unfit(backend, dataclasses.replace(suits, **change))]
        return "any" if len(good) == len(probe) else in_words(good, max(probe))

    return {name: [taken(backend, probe) for backend in BACKENDS] for name, probe in probes.items()}


def in_words(values: Sequence[Any], largest: Any) -> str:
    """Words one by one; numbers as the multiples that they are."""
    if not values or isinstance(values[0], str) or list(values) != list(range(values[0], values[-1] + 1, values[0])):
        return ", ".join(map(str, values)) or "none"
    multiples = f"multiples of {values[0]}"
    return multiples if values[-1] + values[0] > largest else f"{multiples} to {values[-1]}"


def _choices() -> str:
    """What auto chooses for some usual requests on some usual machines."""
    from transformer.attention.backends import Circumstances, Combination, choose
    from transformer.attention.normalise import Normaliser
    from transformer.attention.positions import Position
    from transformer.attention.spec import AttentionSpec

    causal = Combination(facts=frozenset({"causal"}))
    requests = {
        "causal": causal,
        "causal, query_offset": Combination(facts=frozenset({"causal", "query_offset"})),
        "causal, alibi": dataclasses.replace(causal, position=Position.ALIBI),
        "causal, sparsemax": dataclasses.replace(causal, normaliser=Normaliser.SPARSEMAX),
    }
    machines = (("cpu", "float32", 1), ("gpu", "bfloat16", 1), ("gpu", "float32", 1))
    rows = {}
    for platform, dtype, devices in (*machines, ("tpu", "bfloat16", 1), ("tpu", "bfloat16", 4)):
        for length in (512, 4096):
            at = Circumstances(platform, dtype, 8, 8, length, length, 64, 64, devices)
            name = f"{devices} {platform}, {dtype}, length {length:,}"
            rows[name] = [choose(AttentionSpec(), request, at).value for request in requests.values()]
    return _markdown(["", *requests], rows)


def _markdown(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Arguments) -> None:
    """Print the page."""
    print(page(), end="")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
