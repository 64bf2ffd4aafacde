"""C-13: the memory of self-attention over the length."""

import numpy as np

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, HEAD_DIM = (512, 1024, 2048, 4096, 8192), 64
CHECKED_LENGTH, SEED = 600, 1
KINDS = {"einsum": "the whole map in memory", "blockwise": "blockwise"}


def measure() -> Figures:
    """Read the working memory of compiled training steps of one head, and compare both programs' outputs."""
    import jax
    import jax.numpy as jnp

    from transformer.attention import AttentionSpec, Backend, attend

    def loss(kind: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, k, v, spec=AttentionSpec(backend=Backend(kind)))[0] ** 2)

    rows = []
    for length in LENGTHS:
        shape = jax.ShapeDtypeStruct((1, length, 1, HEAD_DIM), jnp.float32)
        row = {"length": length}
        for kind in KINDS:
            gradient = jax.jit(jax.grad(lambda q, k, v, kind=kind: loss(kind, q, k, v), argnums=(0, 1, 2)))
            memory = gradient.lower(shape, shape, shape).compile().memory_analysis()
            assert memory is not None
            row[kind] = memory.temp_size_in_bytes
        rows.append(row)
    q, k, v = jax.random.normal(jax.random.key(SEED), (3, 1, CHECKED_LENGTH, 1, HEAD_DIM))
    outputs = [attend(q, k, v, spec=AttentionSpec(backend=Backend(kind)))[0] for kind in KINDS]
    return {"head_dim": HEAD_DIM, "rows": rows, "difference": float(jnp.abs(outputs[0] - outputs[1]).max())}


def exponent(figures: Figures, kind: str) -> float:
    """Return the power of the length in the memory, over the longer half of the lengths."""
    rows = figures["rows"][len(figures["rows"]) // 2 :]
    slope, _ = np.polyfit(np.log([row["length"] for row in rows]), np.log([row[kind] for row in rows]), 1)
    return float(slope)


def judge(figures: Figures) -> Finding:
    """The map's memory must be quadratic; the condition is whether a program without the map has the same output."""
    einsum, blockwise, last = exponent(figures, "einsum"), exponent(figures, "blockwise"), figures["rows"][-1]
    reason = (
        f"One head's training step over {last['length']:,} positions works in {last['einsum'] / 2**20:,.0f} MiB if the "
        f"map is kept, growing with the length to the power {einsum:.2f}. Computed in blocks it has the same output "
        f"(within {figures['difference']:.0e}) in {last['blockwise'] / 2**20:,.1f} MiB, growing to the power "
        f"{blockwise:.2f}."
    )
    if einsum < 1.8:
        return Finding(Verdict.FAILS, reason)
    linear = blockwise < 1.2 and figures["difference"] < 1e-5
    return Finding(Verdict.CONDITIONAL if linear else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show memory over the length."""
    rows = figures["rows"]
    chart = LineChart(
        caption="Working memory of a training step of one head, as the compiler plans it",
        x_label="length",
        y_label="MiB",
        x_scale="log",
        y_scale="log",
        series={
            label: Series([row["length"] for row in rows], [row[kind] / 2**20 for row in rows])
            for kind, label in KINDS.items()
        },
    )
    table = Table(
        caption="The same as numbers, MiB",
        columns=("length", *KINDS.values()),
        rows=[(f"{row['length']:,}", *(f"{row[kind] / 2**20:,.2f}" for kind in KINDS)) for row in rows],
    )
    return chart, table


CLAIM = Claim(
    number=13,
    title="Attention is memory-hungry",
    sentence="Self-attention needs very much memory: the map of all pairs of positions grows with the square of the "
    "length.",
    lectures=("S3",),
    source="Vaswani et al. 2017, table 1; Dao et al. 2022, FlashAttention, section 3",
    refutation="The working memory of a program that keeps the map grows with the length to a power below 1.8. A "
    "condition: another program has the same output within 1e-5 and grows to a power below 1.2.",
    evidence=Measurement(measure=measure, seconds=5),
    judge=judge,
    exhibits=exhibits,
)
