"""The support table of the attention backends, generated from what they declare and refuse."""

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docs.markdown_table import markdown_table
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.backends import (
    BACKENDS,
    MAX_DENSE_LOGITS,
    NON_MASK_FEATURES,
    AttentionVariant,
    CallShape,
    choose_backend,
    limit_exceeded,
    unsupported_reason,
)
from transformer.attention.masks import MASK_FIELDS, REQUIRED_FIELD
from transformer.attention.normalizers import Normalizer, Reweighting
from transformer.attention.positions import SCHEMES, AttentionPosition
from transformer.attention.scores import Score
from transformer.logical_axes import SequenceParallel

HEAD = """# Attention backends

A backend is the program that computes attention. `config.model.backend` chooses it:

```
python -m launch.train --config=experiments/language_modeling/configs/gpt.py --workdir=runs/blockwise \\
    --config.model.backend=blockwise
```

The default is `auto`: [What `auto` chooses](#what-auto-chooses) lists its choices on CPUs, GPUs and TPUs. In Python,
the backend is a field of the spec, `AttentionSpec(backend=Backend.BLOCKWISE)`. The file `log.txt` of a run names each
choice (the logger is `transformer.attention.backends`):

```
attention: backend=einsum for score=scaled_dot x normalizer=softmax x position=none x mask=causal, float32 [...] on cpu
```

If the backend that you name can't compute your attention, you get an error that names one that can.

This page lists which requests each backend supports. [Attention](attention.md) explains the terms. `make docs`
generates the page from `transformer/attention/backends.py`, which makes the same decisions at run time.

## Names of other libraries

`config.model.backend` takes only our names. Any other is an error that lists them. Of these it says which one is meant:

| elsewhere | here |
| --- | --- |
| `flash`, and every name with `flash` | cudnn on NVIDIA GPUs, splash on TPUs; `auto` chooses them |
| `sdpa`, `xformers`, `triton`, `pallas` | `auto`: cudnn or splash where they are exact |
| `memory_efficient`, `mem_efficient` | the same |
| `eager`, `math`, `naive`, `reference`, `dense` | einsum |

[From FlexAttention, flash-attention and SDPA](attention_from_peers.md) has the calls.

## Read the tables

A request is what a call of attention asks for: a score, a normalizer, a re-weighting, positions and a mask. `auto`
prefers the backends in the order of this page. Each table row covers every combination of the values in its cells. The
last cell has the supported masks, or the list below the table has them. `+` joins masks and other options that are used
together. `bias` means an array added to the logits. `dropout` means dropout of the weights, and matters in training
only. `softcap` means `Softcap` as the spec's `logit_modification`, and `logit_modification` means any other function
there. If a backend supports each of several masks, it supports them together. There is one exception: cudnn supports
`window` only together with `causal`. Combinations in no row of any table have no meaning and raise an error.

On cudnn, `segments` need as many keys as queries and a GPU of compute capability 9.0 (Hopper) or later, and can't be
computed under `jax.vmap`. In vmapped training, `auto` chooses another backend for them. The kernel is compiled for one
sequence per 64 positions of a row, and for at least two. Batches with more sequences in a row, or with segments that
aren't contiguous, are computed in blocks.

Every backend agrees with a NumPy float64 reference on the requests that it supports, and has gradients with respect to
q, k, v, the bias and all parameters. Maps and head statistics can be captured from all of them. "cached decoding" is
attention with a `query_offset`.

On other devices than TPUs, splash runs in JAX's interpreter: its results are correct, but it is slow, for tests only.
float64 needs JAX's 64-bit mode. On CPUs, xla doesn't support float16, because JAX doesn't compile it there.
"""

CHOICE = """## What `auto` chooses

`auto` chooses the first backend that supports the request, with two exceptions:

- splash is chosen only on TPUs, and not for a program on several devices without a
  [placement](attention_capture.md#attention-on-a-mesh), which says how arrays lie on the mesh of devices.
- If blockwise supports the request too, einsum is chosen only up to {dense:,} logits
  (batch x heads x queries x keys). Under a placement, sizes are per device.

The order and the limit are fixed. `auto` doesn't time the backends, so another backend can be faster on your machine.
`python -m launch.benchmark_backends` times all of them.

The choices for a batch of 8 with 8 heads of depth 64. The last row is a program on 4 TPUs that passes no
[placement](attention_capture.md#attention-on-a-mesh):
"""

# How the programs are built, which no declaration says.
DIFFERENTIATION_MODES = {Backend.EINSUM: "reverse and forward mode", Backend.XLA: "reverse and forward mode"}
CAPTURE_SOURCES = {
    Backend.EINSUM: "the weights themselves",
    Backend.BLOCKWISE: "recomputed from its own log-sum-exp",
    Backend.SPLASH: "recomputed from the log-sum-exp of a second forward pass",
}


def support_page() -> str:
    """Return the page as Markdown."""
    limits = _probe_limits()
    sections = [_backend_section(backend, limits) for backend in BACKENDS]
    parts = (HEAD, *sections, CHOICE.format(dense=MAX_DENSE_LOGITS), _auto_choices())
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _backend_section(backend: Backend, limits: Mapping[str, Sequence[str]]) -> str:
    """Write what one backend supports: its combinations, then its other properties."""
    decoding = AttentionVariant(features=frozenset({"causal", "query_offset"}))
    column = list(BACKENDS).index(backend)
    properties = {
        "gradient": DIFFERENTIATION_MODES.get(backend, "reverse mode"),
        "cached decoding": "no" if unsupported_reason(backend, decoding) else "yes",
        "weights of captured maps": CAPTURE_SOURCES.get(backend, "recomputed from a blockwise log-sum-exp"),
        **{name: values[column] for name, values in limits.items()},
    }
    table = markdown_table(("property", "value"), properties.items())
    return "\n\n".join([f"## {backend.value}", _variants_table(backend), table])


def _probe_limits() -> dict[str, list[str]]:
    """Find which arrays and platforms each backend supports, by changing one property at a time."""
    base_shape = CallShape("gpu", "bfloat16", batch=1, heads=1, queries=1024, keys=1024, depth=64, value_depth=64)
    probes: dict[str, dict[Any, dict[str, Any]]] = {
        "platform": {name: {"platform": name} for name in ("cpu", "gpu", "tpu")},
        "dtype": {name: {"dtype": name} for name in ("bfloat16", "float16", "float32", "float64")},
        "head depth": {size: {"depth": size, "value_depth": size} for size in range(1, 513)},
        "value depth": {"the key depth": {}, "any other": {"value_depth": 32}},
        "lengths": {size: {"queries": size, "keys": size} for size in range(1, 1025)},
        "sequence parallelism": {how.value: {"sequence_parallel": how} for how in SequenceParallel},
    }

    def describe_accepted(backend: Backend, probe: dict[Any, dict[str, Any]]) -> str:
        accepted = [
            value
            for value, change in probe.items()
            if not limit_exceeded(backend, dataclasses.replace(base_shape, **change))
        ]
        return "any" if len(accepted) == len(probe) else describe_values(accepted, max(probe))

    return {name: [describe_accepted(backend, probe) for backend in BACKENDS] for name, probe in probes.items()}


def describe_values(values: Sequence[Any], largest: Any) -> str:
    """Describe supported values: words separately, numbers as multiples.

    Args:
        values: The supported values, in order.
        largest: The largest value that was tried.

    Returns:
        The description, such as "multiples of 8 to 128".
    """
    if not values or isinstance(values[0], str) or list(values) != list(range(values[0], values[-1] + 1, values[0])):
        return ", ".join(map(str, values)) or "none"
    multiples = f"multiples of {values[0]}"
    return multiples if values[-1] + values[0] > largest else f"{multiples} to {values[-1]}"


def _auto_choices() -> str:
    """List what auto chooses for usual calls on usual machines."""
    causal = AttentionVariant(features=frozenset({"causal"}))
    biased = next(position for position, scheme in SCHEMES.items() if scheme.adds_position_bias)
    requests = {
        "causal": causal,
        "causal, query_offset": AttentionVariant(features=frozenset({"causal", "query_offset"})),
        f"causal, {biased.value}": dataclasses.replace(causal, position=biased),
        "causal, sparsemax": dataclasses.replace(causal, normalizer=Normalizer.SPARSEMAX),
    }
    machines = (("cpu", "float32", 1), ("gpu", "bfloat16", 1), ("gpu", "float32", 1))
    device_settings = (*machines, ("tpu", "bfloat16", 1), ("tpu", "bfloat16", 4))
    sections = []
    for length in (512, 4096):
        rows = []
        for platform, dtype, devices in device_settings:
            shape = CallShape(platform, dtype, 8, 8, length, length, 64, 64, devices)
            backends = [choose_backend(AttentionSpec(), request, shape).value for request in requests.values()]
            rows.append([f"{devices} {platform} in {dtype}", *backends])
        sections.append(f"Length {length:,}:\n\n" + markdown_table(["devices", *requests], rows))
    return "\n\n".join(sections)


def table_masks() -> tuple[frozenset[str], ...]:
    """Return the masks of the table: each field alone (with the one that it needs), the usual pairs, and the others."""
    single = [
        frozenset({fact} | ({REQUIRED_FIELD[fact]} if fact in REQUIRED_FIELD else set()))
        for fact in (*MASK_FIELDS, "bias")
    ]
    pairs = itertools.product(("causal",), ("key_lengths", "window", "segments", "query_offset"))
    others = (feature for feature in NON_MASK_FEATURES if feature != "bias")
    return (frozenset(), *single, *(frozenset(pair) for pair in pairs), *(frozenset({one}) for one in others))


def all_variants() -> Iterable[AttentionVariant]:
    """Iterate over every combination of the table."""
    for score, normalizer, reweighting, position, facts in itertools.product(
        Score, Normalizer, Reweighting, AttentionPosition, table_masks()
    ):
        yield AttentionVariant(score, normalizer, reweighting, position, facts)


def _variants_table(backend: Backend) -> str:
    """Write the combinations of a backend as Markdown; lists of masks are below the table."""
    families = (Score, Normalizer, Reweighting, AttentionPosition)
    masks = table_masks()
    rows: dict[str, list[tuple[str, ...]]] = {}
    for parts in itertools.product(*families):
        cell = _mask_text(backend, parts, masks)
        if cell != "-":
            rows.setdefault(cell, []).append(tuple(part.value for part in parts))
    lists = [cell for cell in rows if "," in cell]
    titles = {cell: f"Masks {number}" if len(lists) > 1 else "Masks" for number, cell in enumerate(lists, 1)}
    lines = ["| score | normalizer | re-weighting | position | masks |", "| --- " * 5 + "|"]
    for cell, alike in rows.items():
        for group in _merge_rows(alike):
            texts = [_choice_text(values, family) for values, family in zip(group, families, strict=True)]
            mask_cell = f"{titles[cell].lower()} below" if cell in titles else cell
            lines.append("| " + " | ".join([*texts, mask_cell]) + " |")
    return "\n\n".join(["\n".join(lines), *(f"{title}: {cell}." for cell, title in titles.items())])


def _merge_rows(variants: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], ...]]:
    """Merge rows into few products of sets: scores and normalizers that share all else."""
    boxes: list[tuple[tuple[str, ...], ...]] = [tuple((value,) for value in row) for row in variants]
    for axis in range(4):
        joined: dict[tuple, list[str]] = {}
        for box in boxes:
            remaining = (*box[:axis], *box[axis + 1 :])
            joined.setdefault(remaining, []).extend(box[axis])
        boxes = [(*remaining[:axis], tuple(values), *remaining[axis:]) for remaining, values in joined.items()]
    return boxes


def _choice_text(values: tuple[str, ...], family: type[enum.Enum]) -> str:
    """Name some members of a family in the fewest words."""
    excluded = [member.value for member in family if member.value not in values]
    if not excluded:
        return "every"
    return "all but " + ", ".join(excluded) if len(excluded) < len(values) else ", ".join(values)


def _mask_text(
    backend: Backend, parts: tuple[Score, Normalizer, Reweighting, AttentionPosition], masks: tuple[frozenset[str], ...]
) -> str:
    """Name the masks that a backend supports with these choices."""
    supported = [
        features for features in masks if unsupported_reason(backend, AttentionVariant(*parts, features)) is None
    ]
    if len(supported) == len(masks):
        return "every mask"
    unsupported = [features for features in masks if features not in supported]
    lists_exceptions = 2 * len(unsupported) < len(supported)
    names = ["+".join(sorted(features)) or "none" for features in (unsupported if lists_exceptions else supported)]
    return ("all but " if lists_exceptions else "") + ", ".join(names) or "-"
