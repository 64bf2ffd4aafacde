"""C-09: at which length attention becomes slower than recurrence."""

import math

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, WIDTH, HEADS, REPEATS = (64, 256, 512, 1024, 2048, 4096), 256, 4, 5
KINDS = {"attention": "self-attention with projections", "lstm": "LSTM"}


def measure() -> Figures:
    """Time one layer of each kind over one sequence, the quickest of a few runs, and count its operations."""
    import time

    import jax
    import jax.numpy as jnp

    from experiments.claims.sequence_layers import attention_layer, recurrent_layer
    from transformer.layers.recurrent import CellKind

    layers = {"attention": attention_layer(WIDTH, heads=HEADS), "lstm": recurrent_layer(WIDTH, CellKind.LSTM)}
    params = {kind: layer.module.init(jax.random.key(1)) for kind, layer in layers.items()}
    rows = []
    for length in LENGTHS:
        row: dict[str, float] = {"length": length}
        x_1xTxE = jax.random.normal(jax.random.key(2), (1, length, WIDTH), jnp.float32)
        for kind, layer in layers.items():
            apply = jax.jit(layer.apply).lower(params[kind], x_1xTxE).compile()
            jax.block_until_ready(apply(params[kind], x_1xTxE))
            times = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                jax.block_until_ready(apply(params[kind], x_1xTxE))
                times.append(time.perf_counter() - start)
            row |= {f"{kind}_seconds": min(times), f"{kind}_flops": layer.flops(length, WIDTH)}
        rows.append(row)
    return {"width": WIDTH, "heads": HEADS, "repeats": REPEATS, "rows": rows}


def crossover(figures: Figures, measured: str) -> float | None:
    """Return the length at which both cost as much, between two measured lengths on logarithmic axes; None if none."""
    rows = figures["rows"]
    ratios = [math.log(row[f"attention_{measured}"] / row[f"lstm_{measured}"]) for row in rows]
    for number in range(len(rows) - 1):
        if ratios[number] < 0 <= ratios[number + 1]:
            share = -ratios[number] / (ratios[number + 1] - ratios[number])
            return rows[number]["length"] * (rows[number + 1]["length"] / rows[number]["length"]) ** share
    return None


def judge(figures: Figures) -> Finding:
    """Attention must be quicker up to n = d and slower at the end; the condition is where they cross."""
    rows, width = figures["rows"], figures["width"]
    short = [row for row in rows if row["length"] <= width]
    quicker = all(row["attention_seconds"] < row["lstm_seconds"] for row in short)
    slower = rows[-1]["attention_seconds"] > rows[-1]["lstm_seconds"]
    times, flops = crossover(figures, "seconds"), crossover(figures, "flops")
    last = rows[-1]
    reason = (
        f"At width {width}, attention over {short[-1]['length']} positions takes "
        f"{short[-1]['lstm_seconds'] / short[-1]['attention_seconds']:.1f} times less time than an LSTM, and over "
        f"{last['length']:,} positions {last['attention_seconds'] / last['lstm_seconds']:.1f} times as much."
    )
    if times is not None and flops is not None:
        reason += (
            f" They take as long at about {times:,.0f} positions, {times / width:.1f} times the width, and as many "
            f"operations at {flops:,.0f}. Times are of one machine and differ on another."
        )
    if not (quicker and slower) or times is None:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.HOLDS if width / 2 <= times <= 2 * width else Verdict.CONDITIONAL, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show times over the length."""
    rows = figures["rows"]
    chart = LineChart(
        caption=f"Time of one layer of width {figures['width']} over one sequence, the quickest of "
        f"{figures['repeats']}",
        x_label="length",
        y_label="seconds",
        x_scale="log",
        y_scale="log",
        series={
            label: Series([row["length"] for row in rows], [row[f"{kind}_seconds"] for row in rows])
            for kind, label in KINDS.items()
        },
    )
    table = Table(
        caption="Times, and operations of matrix products",
        columns=("length", "attention, s", "LSTM, s", "attention, FLOPs", "LSTM, FLOPs"),
        rows=[
            (
                f"{row['length']:,}",
                f"{row['attention_seconds']:.2g}",
                f"{row['lstm_seconds']:.2g}",
                f"{row['attention_flops']:.2e}",
                f"{row['lstm_flops']:.2e}",
            )
            for row in rows
        ],
    )
    return chart, table


CLAIM = Claim(
    number=9,
    title="Quicker while short",
    sentence="Attention is quicker than recurrence while the sequence is shorter than the vectors are wide, and slower "
    "for long sequences.",
    lectures=("S0",),
    source="Vaswani et al. 2017, section 4",
    refutation="At some length up to the width an LSTM takes less time, or at the longest one attention does. A "
    "condition: they take as long at less than half or more than twice the width.",
    evidence=Measurement(measure=measure, seconds=10),
    judge=judge,
    exhibits=exhibits,
)
