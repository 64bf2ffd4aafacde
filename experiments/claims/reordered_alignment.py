"""C-17: maps are diagonal where orders agree, and follow the words where they do not."""

from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import HeatMap, Table

STEPS, SEEDS, TEST = 500, (1, 2, 3), 600
LABELS = {"same": "in the same order", "phrase": "with three words reversed", "reversed": "wholly reversed"}


def measure() -> Figures:
    """Train a recurrent model with attention to translate symbols in three orders, and measure where its maps lie."""
    from experiments.claims.symbol_translation import LENGTH, ORDERS, mass_near, mean_maps, train

    model, seeds = train(STEPS, SEEDS)
    rows: list[dict[str, Any]] = []
    maps: dict[str, list[list[float]]] = {}
    for seed, variables in zip(SEEDS, seeds, strict=True):
        for order, result in mean_maps(model, variables, TEST).items():
            links = ORDERS[order]
            exact, near = (mass_near(result["map"], links, distance) for distance in (0, 1))
            diagonal = mass_near(result["map"], ORDERS["same"], 1)
            rows.append(
                {"seed": seed, "order": order, "accuracy": result["accuracy"], "exact": exact, "near": near}
                | {"near_diagonal": diagonal}
            )
            maps.setdefault(order, result["map"].round(4).tolist())
    # A map that knows of nothing has this much weight within one word of the right one.
    chance = sum(min(place + 1, LENGTH - 1) - max(place - 1, 0) + 1 for place in range(LENGTH)) / LENGTH**2
    return {"chance_near": chance, "rows": rows, "maps": maps}


def judge(figures: Figures) -> Finding:
    """Most weight must lie at the right words in every order; the condition is a map that lies beside them."""
    by_order = {order: [row for row in figures["rows"] if row["order"] == order] for order in LABELS}
    near = {order: min(row["near"] for row in rows) for order, rows in by_order.items()}
    exact = {order: min(row["exact"] for row in rows) for order, rows in by_order.items()}
    seeds, right = len(by_order["same"]), min(row["accuracy"] for row in figures["rows"])
    reason = (
        f"Of the weight, at least {near['same']:.0%} lies within one word of the right one where the order stays, "
        f"{near['phrase']:.0%} where three words are reversed and {near['reversed']:.0%} where all are, in each of "
        f"{seeds} seeds (a map that knows of nothing has {figures['chance_near']:.0%}); on the right word itself it is "
        f"{min(exact.values()):.0%} to {max(row['exact'] for row in figures['rows']):.0%}. In the "
        f"worst seed and order, {right:.1%} of the words are translated rightly."
    )
    if min(near.values()) < 0.7:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.CONDITIONAL if min(exact.values()) < 0.5 else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[HeatMap | Table, ...]:
    """Show the mean maps of the first seed, and the weights of all."""
    maps = [
        HeatMap(
            caption=f"Words {label}: mean weights of the first seed",
            values=figures["maps"][order],
            row_labels=[str(place) for place in range(1, 1 + len(figures["maps"][order]))],
            column_labels=[str(place) for place in range(1, 1 + len(figures["maps"][order]))],
            row_axis="target word",
            column_axis="source word",
        )
        for order, label in LABELS.items()
    ]
    table = Table(
        caption="Weight on the right word, within one word of it, and within one word of the diagonal",
        columns=("order", "seed", "right word", "within one", "near the diagonal"),
        rows=[
            (
                LABELS[row["order"]],
                str(row["seed"]),
                f"{row['exact']:.1%}",
                f"{row['near']:.1%}",
                f"{row['near_diagonal']:.1%}",
            )
            for row in figures["rows"]
        ],
    )
    return (*maps, table)


CLAIM = Claim(
    number=17,
    title="Diagonals and detours",
    sentence="Attention maps of a translation follow the diagonal where both languages have the words in the same "
    "order, and find the words where the order differs.",
    lectures=("S2", "S3"),
    source="Bahdanau et al. 2015, section 5.2.1 and figure 3",
    refutation="In some seed and order, less than 0.7 of the weight lies within one word of the right one. A "
    "condition: less than half lies on the right word itself.",
    evidence=Measurement(measure=measure, seconds=20),
    judge=judge,
    exhibits=exhibits,
)
