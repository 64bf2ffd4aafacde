"""C-48: training Gopher cost 3.8 million dollars."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

CLAIMED_DOLLARS = 3_768_320
# Rae et al. 2021, section 4 and appendix C: 4096 TPU v3 chips for 920 hours, and 300 billion tokens.
CHIPS, HOURS, TOKENS = 4096, 920.0, 300e9
DOLLARS_PER_CHIP_HOUR = (1.0, 2.0, 4.0)
# Of one TPU v3 chip in bfloat16.
PEAK_FLOPS = 123e12


def measure() -> Figures:
    """Compute the rental cost at several prices, and the FLOPs that the model needs and the chips have."""
    from transformer.costs.training_cost import rental_cost

    parameters = 13 * 80 * 16384**2 + 32000 * 16384
    return {
        "dollars": {f"{price:g}": rental_cost(CHIPS, HOURS, price) for price in DOLLARS_PER_CHIP_HOUR},
        "days": HOURS / 24,
        "parameters": parameters,
        "model_flops": 6 * parameters * TOKENS,
        "chip_flops": CHIPS * HOURS * 3600 * PEAK_FLOPS,
    }


def judge(figures: Figures) -> Finding:
    """The product at one dollar must be the figure, and the time plausible; the price is a condition."""
    dollars = figures["dollars"]
    utilization = figures["model_flops"] / figures["chip_flops"]
    reason = (
        f"{CHIPS:,} chips for {HOURS:g} hours ({figures['days']:.1f} days) cost ${dollars['1']:,.0f} at $1 an hour and "
        f"chip, and ${dollars['2']:,.0f} at $2. The model's {figures['model_flops']:.3g} FLOPs would use "
        f"{utilization:.0%} of what the chips can do in that time."
    )
    if dollars["1"] != CLAIMED_DOLLARS or not 0.1 < utilization < 1:
        return Finding(Verdict.FAILS, reason)
    return Finding(
        Verdict.CONDITIONAL, f"{reason} Condition: the price of $1, which is not the paper's; it names no cost."
    )


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the cost by price."""
    return (
        Table(
            caption=f"Rental of {CHIPS:,} chips for {HOURS:g} hours",
            columns=("dollars an hour and chip", "cost"),
            rows=[(price, f"${cost:,.0f}") for price, cost in figures["dollars"].items()],
        ),
    )


CLAIM = Claim(
    number=48,
    title="Training Gopher cost 3.8 million dollars",
    sentence="The training of Gopher, with 280 billion parameters, cost 3,768,320 dollars.",
    lectures=("S3",),
    source="Rae et al. 2021, section 4 and appendix C, for chips, hours and tokens",
    refutation="Chips times hours at one dollar is another figure, or the chips cannot compute the model's FLOPs in "
    "that time, or would use less than a tenth of it.",
    evidence=Measurement(measure=measure, seconds=1),
    judge=judge,
    exhibits=exhibits,
)
