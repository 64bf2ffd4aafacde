"""C-10: how many layers or steps lie between two positions."""

import math

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, WIDTH, KERNEL = (9, 27, 81), 8, 3
KINDS = {
    "attention": "self-attention, layers",
    "window": f"attention to {KERNEL} positions, layers",
    "convolution": f"convolution of {KERNEL}, layers",
    "dilated": f"dilated convolution of {KERNEL}, layers",
    "recurrence": "recurrence, steps of one layer",
}


def measure() -> Figures:
    """Find after how many layers the last output depends on the first input, by exact zeros of the derivative."""
    import itertools

    from experiments.claims.sequence_layers import (
        attention_layer,
        convolution_layer,
        layers_to_connect,
        loop_lengths,
        recurrent_layer,
    )
    from transformer.attention import Mask
    from transformer.layers.recurrent import CellKind

    recurrent = recurrent_layer(WIDTH, CellKind.GRU_RESET_AFTER)
    local = attention_layer(WIDTH, mask=Mask(causal=True, window=(KERNEL - 1, 0)))
    rows = []
    for length in LENGTHS:
        stacks = {
            "attention": itertools.repeat(attention_layer(WIDTH)),
            "window": itertools.repeat(local),
            "convolution": itertools.repeat(convolution_layer(WIDTH, KERNEL)),
            "dilated": (convolution_layer(WIDTH, KERNEL, dilation=KERNEL**depth) for depth in itertools.count()),
        }
        counts = {kind: layers_to_connect(stack, length, WIDTH) for kind, stack in stacks.items()}
        recurrent_layers = layers_to_connect(itertools.repeat(recurrent), length, WIDTH)
        (steps,) = loop_lengths(recurrent.trace(length, WIDTH))
        rows.append({"length": length, **counts, "recurrent_layers": recurrent_layers, "recurrence": steps})
    return {"kernel": KERNEL, "rows": rows}


def expected_path(kind: str, length: int, kernel: int) -> int:
    """Return the path length that table 1 of Vaswani et al. 2017 gives the order of."""
    match kind:
        case "attention":
            return 1
        case "dilated":
            return round(math.log(length, kernel))
        case "recurrence":
            return length
    return math.ceil((length - 1) / (kernel - 1))


def judge(figures: Figures) -> Finding:
    """It holds if every count is the one expected."""
    rows, kernel = figures["rows"], figures["kernel"]
    holds = all(row[kind] == expected_path(kind, row["length"], kernel) for row in rows for kind in KINDS)
    last = rows[-1]
    reason = (
        f"Over {last['length']} positions, the last output first depends on the first input after {last['attention']} "
        f"layer of attention, {last['dilated']} dilated convolutions of width {kernel}, {last['convolution']} plain "
        f"ones, and {last['recurrence']} steps of a recurrent layer."
    )
    return Finding(Verdict.HOLDS if holds else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show path lengths over the length."""
    rows = figures["rows"]
    lengths = [row["length"] for row in rows]
    chart = LineChart(
        caption="Layers or steps between the first input and the last output",
        x_label="length",
        y_label="path length",
        x_scale="log",
        y_scale="log",
        series={label: Series(lengths, [row[kind] for row in rows]) for kind, label in KINDS.items()},
    )
    table = Table(
        caption="The same as numbers, each found by the derivative of the last output",
        columns=("length", *KINDS.values()),
        rows=[(str(row["length"]), *(str(row[kind]) for kind in KINDS)) for row in rows],
    )
    return chart, table


CLAIM = Claim(
    number=10,
    title="Short paths",
    sentence="Self-attention connects any two positions in one layer, whatever the length; recurrence needs as many "
    "steps as there are positions, and dilated convolutions a logarithm of them.",
    lectures=("S0", "S1"),
    source="Vaswani et al. 2017, table 1",
    refutation="The last output's derivative with respect to the first input becomes non-zero after another number of "
    "layers or steps than 1, n, (n - 1) / (k - 1) and log_k n.",
    evidence=Measurement(measure=measure, seconds=5),
    judge=judge,
    exhibits=exhibits,
)
