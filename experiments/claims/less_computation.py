"""C-24: similar quality for far less computation."""

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import LineChart, Series, Table
from experiments.claims.translation_costs import FILES, OWN, PAGE, PAIRS, PUBLISHED, flops_to_loss, read, single_systems

SIMILAR, FAR_LESS = 0.5, 1 / 3  # BLEU below the best other system, and the share of its operations


def _published_pair(figures: Figures, pair: str) -> tuple[str, float, float]:
    """The best single system before, the base model's BLEU less its own, and the share of its operations."""
    systems, base = single_systems(figures, pair), figures["published"]["transformer-base"][pair]
    best = max(systems, key=lambda name: systems[name]["bleu"])
    return best, base["bleu"] - systems[best]["bleu"], base["flops"] / systems[best]["flops"]


def _own_shares(figures: Figures) -> dict[str, float | None]:
    """The share of each other run's operations that the Transformer takes to its last loss; None if not reached."""
    shares = {}
    for name, run in figures["own"].items():
        if name != "transformer":
            flops = flops_to_loss(figures["own"]["transformer"], run["loss"][-1])
            shares[name] = None if flops is None else flops / run["flops"][-1]
    return shares


def judge(figures: Figures) -> Finding:
    """It holds if quality is similar and the computation far less in both pairs and here; else it depends on where."""
    pairs = {pair: _published_pair(figures, pair) for pair in PAIRS}
    similar = {pair: gain > -SIMILAR and share < FAR_LESS for pair, (_, gain, share) in pairs.items()}
    own = _own_shares(figures)
    own_far_less = all(share is not None and share < FAR_LESS for share in own.values())
    texts = [
        f"{PAIRS[pair]}, the base model has {gain:+.1f} BLEU against {PUBLISHED[best]} for {share:.0%} of its "
        "operations"
        for pair, (best, gain, share) in pairs.items()
    ]
    reason = (
        f"In the paper, for {texts[0]}; for {texts[1]}. Here on Multi30k the small Transformer "
        + " and ".join(
            f"does not come to the last loss of {OWN[name]}"
            if share is None
            else f"comes to the last loss of {OWN[name]} with {share:.0%} of its operations"
            for name, share in own.items()
        )
        + " (one seed)."
    )
    if all(similar.values()) and own_far_less:
        return Finding(Verdict.HOLDS, reason)
    return Finding(Verdict.CONDITIONAL if any(similar.values()) else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the loss over operations, and the published rows."""
    chart = LineChart(
        caption="Multi30k English-German here: validation loss over operations of training, one seed each",
        x_label="FLOPs",
        y_label="validation cross-entropy, nats",
        x_scale="log",
        series={
            label: Series(figures["own"][name]["flops"], figures["own"][name]["loss"]) for name, label in OWN.items()
        },
    )
    table = Table(
        caption="The base model and the best single system before it, newstest2014",
        columns=("pair", "best before", "BLEU more", "of its operations"),
        rows=[
            (label, PUBLISHED[best], f"{gain:+.2f}", f"{share:.1%}")
            for pair, label in PAIRS.items()
            for best, gain, share in (_published_pair(figures, pair),)
        ],
    )
    return chart, table


CLAIM = Claim(
    number=24,
    title="Similar quality, far less computation",
    sentence="For similar quality of translation, the Transformer takes tremendously less computation.",
    lectures=("S2",),
    source="Vaswani et al. 2017, table 2",
    refutation="In neither pair of the published table has the base model at most half a point of BLEU less than the "
    "best single system before it, for less than a third of the operations. A condition: in one pair, or on Multi30k "
    "to the same validation loss, it has not.",
    evidence=Records(files=FILES, page=PAGE, read=read),
    judge=judge,
    exhibits=exhibits,
)
