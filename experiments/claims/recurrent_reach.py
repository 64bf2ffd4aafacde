"""C-11: one recurrent layer reads everything, but one step after the other."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, WIDTH, SEEDS = (16, 32, 64, 128), 32, 5
CELLS = {"vanilla": "vanilla", "gru_reset_after": "GRU", "lstm": "LSTM"}


def measure() -> Figures:
    """Compare the last state's gradient to the first input with that to the last, and read the loops of the program."""
    import jax
    import numpy as np

    from experiments.claims.sequence_layers import attention_layer, loop_lengths, recurrent_layer
    from transformer.layers.recurrent import CellKind

    rows = []
    for cell in CELLS:
        layer = recurrent_layer(WIDTH, CellKind(cell))

        @jax.jit
        def gradient(key: jax.Array, layer=layer) -> jax.Array:
            params_key, input_key, direction_key = jax.random.split(key, 3)
            params = layer.module.init(params_key)
            x_1xTxE = jax.random.normal(input_key, (1, max(LENGTHS), WIDTH))
            direction_E = jax.random.normal(direction_key, (WIDTH,))
            return jax.grad(lambda x: layer.apply(params, x)[0, -1] @ direction_E)(x_1xTxE)[0]

        gradients_SxTxE = np.array([gradient(jax.random.key(seed)) for seed in range(1, 1 + SEEDS)], np.float64)
        norms_SxT = np.linalg.norm(gradients_SxTxE, axis=-1)
        for length in LENGTHS:
            # From the last position back: the input that lies `length - 1` steps before the last state.
            values = sorted(map(float, norms_SxT[:, -length] / norms_SxT[:, -1]))
            (loop,) = loop_lengths(layer.trace(length, WIDTH))
            ratios = {"ratio": values[len(values) // 2], "least": values[0], "most": values[-1]}
            rows.append({"cell": cell, "length": length, **ratios, "steps": loop})
    attention = loop_lengths(attention_layer(WIDTH).trace(max(LENGTHS), WIDTH))
    return {"seeds": SEEDS, "width": WIDTH, "rows": rows, "attention_loops": attention}


def judge(figures: Figures) -> Finding:
    """Every input must reach the last state, in as many steps as inputs; the condition is how little of it does."""
    rows = figures["rows"]
    holds = all(row["least"] > 0 and row["steps"] == row["length"] for row in rows) and not figures["attention_loops"]
    longest = [row for row in rows if row["length"] == max(row["length"] for row in rows)]
    ratios = ", ".join(f"{row['ratio']:.0e} ({CELLS[row['cell']]})" for row in longest)
    reason = (
        f"The last state of one layer depends on every input, and a program of {longest[0]['steps']} steps computes "
        f"it, one after the other; attention's has no loop. But before training the gradient to the input "
        f"{longest[0]['length'] - 1} steps back is, of that to the last input, only {ratios}, median of "
        f"{figures['seeds']} seeds."
    )
    if not holds:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.CONDITIONAL if min(row["ratio"] for row in longest) < 1e-3 else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the gradient over the distance."""
    by_cell = {cell: [row for row in figures["rows"] if row["cell"] == cell] for cell in CELLS}
    chart = LineChart(
        caption=f"Gradient of the last state to an input before, of that to the last input: median and range of "
        f"{figures['seeds']} seeds before training",
        x_label="steps back",
        y_label="gradient, of the last input's",
        y_scale="log",
        series={
            CELLS[cell]: Series(
                [row["length"] - 1 for row in rows],
                [row["ratio"] for row in rows],
                [row["least"] for row in rows],
                [row["most"] for row in rows],
            )
            for cell, rows in by_cell.items()
        },
    )
    table = Table(
        caption="Steps that must follow each other",
        columns=("length", *CELLS.values(), "attention"),
        rows=[
            (str(length), *(str(by_cell[cell][number]["steps"]) for cell in CELLS), "no loop")
            for number, length in enumerate(row["length"] for row in by_cell["lstm"])
        ],
    )
    return chart, table


CLAIM = Claim(
    number=11,
    title="Recurrence sees all, in sequence",
    sentence="After one recurrent layer the last state has seen the whole input, but its steps cannot be computed in "
    "parallel.",
    lectures=("S3",),
    source="Vaswani et al. 2017, table 1; Bengio et al. 1994",
    refutation="The last state has no gradient to some input, or the program's loop is shorter than the input. A "
    "condition: the gradient to the first of 128 inputs is less than a thousandth of that to the last.",
    evidence=Measurement(measure=measure, seconds=8),
    judge=judge,
    exhibits=exhibits,
)
