"""C-23: Transformers train more than three times as fast as the others."""

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import Table
from experiments.claims.translation_costs import FILES, OWN, PAGE, PAIRS, PUBLISHED, flops_to_loss, read, single_systems


def ratios(figures: Figures, model: str) -> dict[str, dict[str, float]]:
    """Return how many times the operations of a published Transformer each other single system took, by pair."""
    return {
        pair: {
            name: row["flops"] / figures["published"][model][pair]["flops"]
            for name, row in single_systems(figures, pair).items()
        }
        for pair in PAIRS
    }


def own_ratios(figures: Figures) -> dict[str, float | None]:
    """Return how many times the Transformer's operations the other runs here took to its last validation loss."""
    transformer = figures["own"]["transformer"]
    reached = {
        name: flops_to_loss(run, transformer["loss"][-1])
        for name, run in figures["own"].items()
        if name != "transformer"
    }
    return {name: None if flops is None else flops / transformer["flops"][-1] for name, flops in reached.items()}


def judge(figures: Figures) -> Finding:
    """It holds if every ratio is above three, of both models; the condition is of which it is so."""
    base, big = ratios(figures, "transformer-base"), ratios(figures, "transformer-big")
    all_ratios = [value for model in (base, big) for by_name in model.values() for value in by_name.values()]
    base_ratios = [value for by_name in base.values() for value in by_name.values()]
    own = own_ratios(figures)
    reason = (
        "By operations of training, into German the base model is "
        + ", ".join(f"{value:.1f} times faster than {PUBLISHED[name]}" for name, value in base["en-de"].items())
        + f"; but the big model, which has the claimed BLEU, only {min(big['en-de'].values()):.1f} to "
        f"{max(big['en-de'].values()):.1f} times. Here on Multi30k, to the Transformer's last loss, "
        + " and ".join(
            f"{OWN[name]} {'does not come' if value is None else f'took {value:.1f} times its operations'}"
            for name, value in own.items()
        )
        + " (one seed)."
    )
    if min(all_ratios) > 3 and all(value is None or value > 3 for value in own.values()):
        return Finding(Verdict.HOLDS, reason)
    mostly = sum(value > 3 for value in base_ratios) > len(base_ratios) / 2
    return Finding(Verdict.CONDITIONAL if mostly else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show all ratios."""
    rows = []
    for model, label in (("transformer-base", "base"), ("transformer-big", "big")):
        for pair, by_name in ratios(figures, model).items():
            rows += [(PUBLISHED[name], PAIRS[pair], label, f"{value:.2f}") for name, value in by_name.items()]
    for name, value in own_ratios(figures).items():
        rows.append((f"{OWN[name]}, here", "Multi30k", "small", "not reached" if value is None else f"{value:.2f}"))
    return (
        Table(
            caption="Operations of training, in those of a Transformer; above 3 the claim is right",
            columns=("system", "pair", "Transformer", "times its operations"),
            rows=rows,
        ),
    )


CLAIM = Claim(
    number=23,
    title="Three times as fast",
    sentence="Transformers train more than three times as fast as the other systems.",
    lectures=("S1",),
    source="Vaswani et al. 2017, table 2",
    refutation="At most half of the single systems took more than three times the operations of the base model. A "
    "condition: some system took three times or less of the base or the big model's, or of the small one's here to the "
    "same validation loss.",
    evidence=Records(files=FILES, page=PAGE, read=read),
    judge=judge,
    exhibits=exhibits,
)
