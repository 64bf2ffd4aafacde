"""C-03: permuted inputs of self-attention give permuted outputs."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

LENGTH, WIDTH, HEADS, TRIALS, SEED = 10, 16, 4, 20, 1
VARIANTS = {
    "plain": "self-attention",
    "positions": "with sinusoidal positions added",
    "causal": "with a causal mask",
}


def measure() -> Figures:
    """Compare f(P x) with P f(x) for a layer of multi-head attention, over random inputs and permutations."""
    import jax
    import jax.numpy as jnp

    from transformer.attention import Mask, sinusoidal_positions
    from transformer.layers.functional_module import FunctionalModule
    from transformer.layers.multi_head_attention import MultiHeadAttention
    from transformer.layers.transformer_config import PositionEncoding, TransformerConfig

    config = TransformerConfig(width=WIDTH, heads=HEADS, positions=PositionEncoding.NONE)
    layer = FunctionalModule(lambda builder: MultiHeadAttention(config, cross=False, builder=builder))
    attention = layer.bind(layer.init(jax.random.key(SEED)))
    positions_TxE = sinusoidal_positions(jnp.arange(LENGTH), WIDTH)

    def run(variant: str, x_TxE: jax.Array) -> jax.Array:
        x_1xTxE = (x_TxE + positions_TxE if variant == "positions" else x_TxE)[None]
        return attention(x_1xTxE, x_1xTxE, mask=Mask(causal=variant == "causal"))[0][0]

    @jax.jit
    def differences(key: jax.Array) -> dict[str, jax.Array]:
        input_key, order_key = jax.random.split(key)
        x_TxE, order_T = jax.random.normal(input_key, (LENGTH, WIDTH)), jax.random.permutation(order_key, LENGTH)
        return {
            variant: jnp.abs(run(variant, x_TxE[order_T]) - run(variant, x_TxE)[order_T]).max() for variant in VARIANTS
        }

    by_variant = jax.vmap(differences)(jax.random.split(jax.random.key(SEED), TRIALS))
    return {
        "length": LENGTH,
        "trials": TRIALS,
        "largest_difference": {variant: float(values.max()) for variant, values in by_variant.items()},
        "smallest_difference": {variant: float(values.min()) for variant, values in by_variant.items()},
    }


def judge(figures: Figures) -> Finding:
    """It holds for the layer alone up to rounding; the condition is that neither positions nor a mask come with it."""
    plain = figures["largest_difference"]["plain"]
    broken = [figures["smallest_difference"][name] for name in ("positions", "causal")]
    reason = (
        f"Over {figures['trials']} random permutations of {figures['length']} inputs, the outputs differ from the "
        f"permuted outputs by at most {plain:.1g}, which is rounding. With positions added they differ by at least "
        f"{broken[0]:.2f}, and with a causal mask by at least {broken[1]:.2f}: a Transformer for text has at least one "
        "of the two."
    )
    if plain > 1e-5:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.CONDITIONAL if max(broken) > 0.01 else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the differences of each variant."""
    return (
        Table(
            caption=f"Difference of f(P x) and P f(x), {figures['trials']} random permutations P",
            columns=("layer", "smallest", "largest"),
            rows=[
                (
                    label,
                    f"{figures['smallest_difference'][variant]:.1e}",
                    f"{figures['largest_difference'][variant]:.1e}",
                )
                for variant, label in VARIANTS.items()
            ],
        ),
    )


CLAIM = Claim(
    number=3,
    title="Permuted in, permuted out",
    sentence="Self-attention is permutation-equivariant: if its inputs change places, its outputs change places in the "
    "same way and are otherwise the same.",
    lectures=("S3",),
    source="Lee et al. 2019, Set Transformer, section 3.1; Vaswani et al. 2017, section 3.5",
    refutation="The outputs of permuted inputs differ from the permuted outputs by more than 1e-5. A condition: "
    "positions or a causal mask make them differ by more than 0.01.",
    evidence=Measurement(measure=measure, seconds=4),
    judge=judge,
    exhibits=exhibits,
)
