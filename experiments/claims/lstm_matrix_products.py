"""C-26: an LSTM takes three times the matrix products of a plain recurrent network."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

LENGTH = WIDTH = 1000
CELLS = {"vanilla": "RNN", "gru": "GRU", "lstm": "LSTM"}


def measure() -> Figures:
    """Count the FLOPs of the matrix products of a layer of each cell, in the traced program."""
    from transformer.benchmarks.layer_types import LAYER_TYPES

    return {
        "length": LENGTH,
        "width": WIDTH,
        "flops": {label: LAYER_TYPES[name].count_flops(LENGTH, WIDTH) for name, label in CELLS.items()},
    }


def judge(figures: Figures) -> Finding:
    """It holds if the ratio is three."""
    flops = figures["flops"]
    ratio, gru = flops["LSTM"] / flops["RNN"], flops["GRU"] / flops["RNN"]
    reason = (
        f"Over {figures['length']:,} positions of width {figures['width']:,}, an LSTM takes {flops['LSTM']:.2g} FLOPs, "
        f"{ratio:.2f} times the {flops['RNN']:.1g} of an RNN: three gates and a candidate. A GRU takes {gru:.2f} times."
    )
    return Finding(Verdict.HOLDS if abs(ratio - 3) < 0.05 else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the FLOPs."""
    flops = figures["flops"]
    return (
        Table(
            caption=f"Matrix products of a layer over {figures['length']:,} positions of width {figures['width']:,}",
            columns=("cell", "FLOPs", "times an RNN"),
            rows=[(name, f"{count:.3g}", f"{count / flops['RNN']:.2f}") for name, count in flops.items()],
        ),
    )


CLAIM = Claim(
    number=26,
    title="An LSTM takes three times the matrix products",
    sentence="The gates of an LSTM make it three times as expensive in matrix products as a plain recurrent network.",
    lectures=("S2",),
    source="Hochreiter and Schmidhuber 1997; Gers et al. 2000",
    refutation="The ratio of the counted FLOPs differs from 3 by 0.05 or more.",
    evidence=Measurement(measure=measure, seconds=1),
    judge=judge,
    exhibits=exhibits,
)
