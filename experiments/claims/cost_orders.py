"""C-07: the operations of self-attention and of recurrence over length and width."""

import numpy as np

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, WIDTHS = (64, 256, 1024, 4096), (64, 256, 1024)
WIDTH = 256  # of the chart over lengths
KINDS = {
    "core": "self-attention, scores and sums alone",
    "layer": "self-attention with its projections",
    "vanilla": "vanilla recurrence",
    "lstm": "LSTM",
}


def measure() -> Figures:
    """Count the FLOPs of matrix products of one layer for one sequence."""
    from experiments.claims.sequence_layers import attention_layer, recurrent_layer
    from transformer.layers.recurrent import CellKind
    from transformer.layers.transformer_config import Projections

    rows = []
    for length in LENGTHS:
        for width in WIDTHS:
            layers = {
                "core": attention_layer(width, projections=Projections.NONE),
                "layer": attention_layer(width),
                "vanilla": recurrent_layer(width, CellKind.VANILLA),
                "lstm": recurrent_layer(width, CellKind.LSTM),
            }
            counts = {kind: layer.flops(length, width) for kind, layer in layers.items()}
            rows.append({"length": length, "width": width, **counts})
    return {"rows": rows}


def exponents(figures: Figures, kind: str) -> tuple[float, float]:
    """Return the powers of length and width in a count, by least squares over logarithms."""
    rows = figures["rows"]
    columns = [np.log([row[name] for row in rows]) for name in ("length", "width")]
    matrix = np.stack([*columns, np.ones(len(rows))], axis=1)
    solution, *_ = np.linalg.lstsq(matrix, np.log([row[kind] for row in rows]), rcond=None)
    return float(solution[0]), float(solution[1])


def judge(figures: Figures) -> Finding:
    """The core and the recurrence must have the claimed powers; the condition is what a whole layer has."""
    core, layer, lstm = (exponents(figures, kind) for kind in ("core", "layer", "lstm"))
    square = next(row for row in figures["rows"] if row["length"] == row["width"] == WIDTH)
    reason = (
        f"Scores and weighted sums grow as n^{core[0]:.2f} d^{core[1]:.2f}, an LSTM as n^{lstm[0]:.2f} "
        f"d^{lstm[1]:.2f}. A layer of attention also has four projections: at n = d they are "
        f"{1 - square['core'] / square['layer']:.0%} of its operations, and over these lengths and widths the layer "
        f"grows as n^{layer[0]:.2f} d^{layer[1]:.2f}."
    )
    claimed = np.allclose(core, (2, 1), atol=0.02) and np.allclose(lstm, (1, 2), atol=0.02)
    if not claimed:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.HOLDS if np.allclose(layer, (2, 1), atol=0.02) else Verdict.CONDITIONAL, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show operations over the length at one width, and all counts."""
    rows = [row for row in figures["rows"] if row["width"] == WIDTH]
    chart = LineChart(
        caption=f"Operations of one layer at width {WIDTH}",
        x_label="length",
        y_label="FLOPs",
        x_scale="log",
        y_scale="log",
        series={
            label: Series([row["length"] for row in rows], [row[kind] for row in rows]) for kind, label in KINDS.items()
        },
    )
    table = Table(
        caption="FLOPs of one layer for one sequence, a multiplication and an addition as two",
        columns=("length, width", *KINDS.values()),
        rows=[
            (f"{row['length']:,}, {row['width']:,}", *(f"{row[kind]:.2e}" for kind in KINDS)) for row in figures["rows"]
        ],
    )
    return chart, table


CLAIM = Claim(
    number=7,
    title="Quadratic in length or in width",
    sentence="A layer of self-attention costs on the order of length squared times width, a recurrent layer on the "
    "order of length times width squared.",
    lectures=("S0", "S1"),
    source="Vaswani et al. 2017, table 1",
    refutation="The fitted powers of length and width are not 2 and 1 for attention's scores and sums, or not 1 and 2 "
    "for an LSTM (within 0.02). A condition: a whole layer of attention has other powers.",
    evidence=Measurement(measure=measure, seconds=4),
    judge=judge,
    exhibits=exhibits,
)
