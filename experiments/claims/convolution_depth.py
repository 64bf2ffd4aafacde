"""C-12: convolutions reach far only in stacks."""

import math

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, WIDTH, KERNELS = (8, 16, 32, 64), 4, (3, 7)


def measure() -> Figures:
    """Find how many convolutions connect both ends of a sequence, by exact zeros of the derivative."""
    import itertools

    from experiments.claims.sequence_layers import convolution_layer, layers_to_connect

    rows = []
    for length in LENGTHS:
        row = {"length": length}
        for size in KERNELS:
            plain = itertools.repeat(convolution_layer(WIDTH, size))
            dilated = (convolution_layer(WIDTH, size, dilation=size**depth) for depth in itertools.count())
            row[f"plain_{size}"] = layers_to_connect(plain, length, WIDTH)
            row[f"dilated_{size}"] = layers_to_connect(dilated, length, WIDTH)
        row["wide"] = layers_to_connect([convolution_layer(WIDTH, length)], length, WIDTH)
        rows.append(row)
    return {"kernels": list(KERNELS), "rows": rows}


def judge(figures: Figures) -> Finding:
    """Plain convolutions must need a depth that grows with the length; the condition is what else connects the ends."""
    rows, last = figures["rows"], figures["rows"][-1]
    size = figures["kernels"][0]
    linear = all(row[f"plain_{size}"] == math.ceil((row["length"] - 1) / (size - 1)) for row in rows)
    reason = (
        f"To connect the ends of {last['length']} positions takes {last[f'plain_{size}']} convolutions of width "
        f"{size}, or {last[f'dilated_{size}']} if each is dilated {size} times as much as the one before; a kernel as "
        f"wide as the input needs {last['wide']} layer."
    )
    if not linear or last[f"plain_{size}"] <= 1:
        return Finding(Verdict.FAILS, reason)
    shallow = last[f"dilated_{size}"] <= math.log2(last["length"]) or last["wide"] == 1
    return Finding(Verdict.CONDITIONAL if shallow else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the depth over the length."""
    rows = figures["rows"]
    kinds = {
        f"{kind}_{size}": f"{kind}, width {size}" for kind in ("plain", "dilated") for size in figures["kernels"]
    } | {"wide": "as wide as the input"}
    lengths = [row["length"] for row in rows]
    chart = LineChart(
        caption="Layers until the last output depends on the first input",
        x_label="length",
        y_label="layers",
        series={label: Series(lengths, [row[kind] for row in rows]) for kind, label in kinds.items()},
    )
    table = Table(
        caption="The same as numbers",
        columns=("length", *kinds.values()),
        rows=[(str(row["length"]), *(str(row[kind]) for kind in kinds)) for row in rows],
    )
    return chart, table


CLAIM = Claim(
    number=12,
    title="Convolutions need depth",
    sentence="A convolution sees only its window, so that many must be stacked before the ends of a long input meet.",
    lectures=("S3",),
    source="Vaswani et al. 2017, table 1; Kalchbrenner et al. 2016, section 3",
    refutation="The ends meet after fewer plain convolutions than (n - 1) / (k - 1). A condition: dilations or a wide "
    "kernel connect them in at most log2 n layers.",
    evidence=Measurement(measure=measure, seconds=4),
    judge=judge,
    exhibits=exhibits,
)
