"""C-06: the encoding of a later position is a linear function of the encoding of this one."""

import math

import numpy as np

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import HeatMap, Table

WIDTH, LENGTH, SHIFT, SHOWN = 128, 2000, 5, 40


def measure() -> Figures:
    """Rotate encodings by the analytic matrix of a shift, and compare with the shifted encodings."""
    import jax.numpy as jnp

    from transformer.attention import sinusoidal_positions

    library_TxE = np.asarray(sinusoidal_positions(jnp.arange(LENGTH), WIDTH), np.float64)
    frequencies = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    angles_TxF = np.arange(LENGTH)[:, None] * frequencies
    exact_TxE = np.stack([np.sin(angles_TxF), np.cos(angles_TxF)], axis=-1).reshape(LENGTH, WIDTH)
    rotation = np.zeros((WIDTH, WIDTH))
    for index, frequency in enumerate(frequencies):
        sine, cosine = math.sin(SHIFT * frequency), math.cos(SHIFT * frequency)
        rotation[2 * index : 2 * index + 2, 2 * index : 2 * index + 2] = [[cosine, sine], [-sine, cosine]]
    products_TxT = exact_TxE[:SHOWN] @ exact_TxE[:SHOWN].T
    distances = np.sqrt(np.maximum(WIDTH - 2 * (exact_TxE @ exact_TxE.T), 0))
    np.fill_diagonal(distances, np.inf)
    return {
        "width": WIDTH,
        "length": LENGTH,
        "shift": SHIFT,
        "error": float(np.abs(exact_TxE[:-SHIFT] @ rotation.T - exact_TxE[SHIFT:]).max()),
        "library_error": float(np.abs(library_TxE[:-SHIFT] @ rotation.T - library_TxE[SHIFT:]).max()),
        "rotation_error": float(np.abs(rotation.T @ rotation - np.eye(WIDTH)).max()),
        "norm_squared": [float(value) for value in np.quantile((exact_TxE**2).sum(1), (0, 1))],
        "least_distance": float(distances.min()),
        "products": np.round(np.maximum(products_TxT, 0), 3).tolist(),
    }


def judge(figures: Figures) -> Finding:
    """It holds if one rotation, the same for every position, shifts them all."""
    reason = (
        f"One rotation shifts each of {figures['length']:,} encodings by {figures['shift']} positions, with an error "
        f"of at most {figures['error']:.0e} in float64 and {figures['library_error']:.0e} of the library's in "
        f"float32. Any two of these positions are at least {figures['least_distance']:.2f} apart."
    )
    holds = figures["error"] < 1e-10 and figures["rotation_error"] < 1e-12 and figures["library_error"] < 1e-3
    return Finding(Verdict.HOLDS if holds else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[HeatMap | Table, ...]:
    """Show the dot products of encodings, which depend on the distance alone, and the errors."""
    labels = [str(position) for position in range(len(figures["products"]))]
    products = HeatMap(
        caption="Dot products of encodings: they depend on the distance of two positions alone",
        values=figures["products"],
        row_labels=labels,
        column_labels=labels,
        row_axis="position",
        column_axis="position",
    )
    low, high = figures["norm_squared"]
    table = Table(
        caption=f"A rotation by {figures['shift']} positions of encodings of width {figures['width']}",
        columns=("figure", "value"),
        rows=[
            ("largest error of a shifted encoding, float64", f"{figures['error']:.1e}"),
            ("the same of the library's, float32", f"{figures['library_error']:.1e}"),
            ("largest error of R'R = I", f"{figures['rotation_error']:.1e}"),
            ("squared norm, smallest and largest", f"{low:.4f}, {high:.4f}"),
            ("least distance of two positions", f"{figures['least_distance']:.3f}"),
        ],
    )
    return products, table


CLAIM = Claim(
    number=6,
    title="A shift is a rotation",
    sentence="With sines and cosines, the encoding of the position a fixed distance ahead is a linear function of the "
    "encoding of this position, the same function everywhere.",
    lectures=("S2",),
    source="Vaswani et al. 2017, section 3.5",
    refutation="No single matrix, built from the distance and the frequencies alone, maps every encoding to the "
    "shifted one within 1e-10 (float64).",
    evidence=Measurement(measure=measure, seconds=2),
    judge=judge,
    exhibits=exhibits,
)
