"""C-22: the Transformer translates best, at a fraction of the cost."""

from experiments.claims.claim import Claim, Figures, Finding, Records, Verdict
from experiments.claims.exhibits import Table
from experiments.claims.translation_costs import FILES, OWN, PAGE, PAIRS, PUBLISHED, read, single_systems


def judge(figures: Figures) -> Finding:
    """The published table must have it best; the conditions are at which cost, and whether it is so here."""
    published, own = figures["published"], figures["own"]
    best = all(
        published["transformer-big"][pair]["bleu"] > row[pair]["bleu"]
        for pair in PAIRS
        for name, row in published.items()
        if name != "transformer-big" and pair in row
    )
    shares = {
        pair: [
            published["transformer-big"][pair]["flops"] / row["flops"] for row in single_systems(figures, pair).values()
        ]
        for pair in PAIRS
    }
    final = {name: run["flops"][-1] for name, run in own.items()}
    baselines = [name for name in OWN if name != "transformer"]
    here_best = all(own["transformer"]["bleu"] > own[name]["bleu"] for name in baselines)
    here_cheaper = all(final["transformer"] < final[name] for name in baselines)
    big = [published["transformer-big"][pair]["bleu"] for pair in PAIRS]
    reason = (
        f"The published table has the big Transformer first in both pairs ({big[0]} and {big[1]} BLEU). Its training "
        f"took {min(shares['en-fr']):.2f} to {max(shares['en-fr']):.2f} times the operations of other single systems "
        f"for English-French, but {min(shares['en-de']):.1f} to {max(shares['en-de']):.1f} times for English-German. "
        f"On Multi30k here, at equal steps and one seed, a small Transformer has {own['transformer']['bleu']:.1f} "
        f"BLEU for {final['transformer']:.2g} operations, "
        + " and ".join(f"{OWN[name]} {own[name]['bleu']:.1f} for {final[name]:.2g}" for name in baselines)
        + "."
    )
    if not best:
        return Finding(Verdict.FAILS, reason)
    everywhere = max(max(values) for values in shares.values()) < 0.5 and here_best and here_cheaper
    return Finding(Verdict.HOLDS if everywhere else Verdict.CONDITIONAL, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the published table and this project's runs."""
    published = figures["published"]

    def cell(name: str, pair: str, key: str) -> str:
        value = published[name].get(pair, {}).get(key)
        return "-" if value is None else f"{value:.1e}" if key == "flops" else f"{value:.2f}"

    table = Table(
        caption="Table 2 of Vaswani et al. 2017: BLEU on newstest2014, and operations of training",
        columns=("system", "En-De BLEU", "En-Fr BLEU", "En-De FLOPs", "En-Fr FLOPs"),
        rows=[
            (label, *(cell(name, pair, key) for key in ("bleu", "flops") for pair in PAIRS))
            for name, label in PUBLISHED.items()
        ],
    )
    own = Table(
        caption="Multi30k English-German here, one seed each: BLEU on test_2016_flickr after 3,600 steps",
        columns=("system", "BLEU", "validation loss", "FLOPs of training"),
        rows=[
            (label, f"{run['bleu']:.2f}", f"{run['loss'][-1]:.3f}", f"{run['flops'][-1]:.2e}")
            for name, label in OWN.items()
            for run in (figures["own"][name],)
        ],
    )
    return table, own


CLAIM = Claim(
    number=22,
    title="Best at a fraction of the cost",
    sentence="The Transformer translates better than every system before it, 28.4 BLEU into German and 41.8 into "
    "French, at a fraction of their training cost.",
    lectures=("S0", "S1", "S2"),
    source="Vaswani et al. 2017, table 2",
    refutation="A system of the published table has more BLEU than the big Transformer. Conditions: it took more than "
    "half the operations of some single system, or a small Transformer on Multi30k is not the best for fewer "
    "operations.",
    evidence=Records(files=FILES, page=PAGE, read=read),
    judge=judge,
    exhibits=exhibits,
)
