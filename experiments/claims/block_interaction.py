"""C-47: within a Transformer block, positions interact through attention alone."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import HeatMap, Table

LENGTH, WIDTH = 6, 8


def measure() -> Figures:
    """Measure the Jacobian of a block between positions, and that of the same block when attention gives zero."""
    import jax
    import jax.numpy as jnp

    from transformer.attention.masks import Mask
    from transformer.layers.functional_module import FunctionalModule, Params
    from transformer.layers.residual import DropRates, NormPlacement
    from transformer.layers.transformer_block import Block, PerLayerInputs
    from transformer.layers.transformer_config import LayerKind, LayerRotary, TransformerConfig

    layer = PerLayerInputs(LayerKind(0, LayerRotary.GLOBAL), DropRates(0.0, 0.0), None)
    x_BxTxE = jax.random.normal(jax.random.key(1), (1, LENGTH, WIDTH))

    def jacobians(placement: NormPlacement) -> dict[str, list[list[float]]]:
        config = TransformerConfig(width=WIDTH, heads=2, feed_forward=32, norm_placement=placement, dropout=0.0)
        block = FunctionalModule(lambda builder: Block(config, cross=False, experts=False, alpha=1.0, builder=builder))
        params = block.init(jax.random.key(0))
        # Without its output projection, attention adds nothing to the residual stream.
        removed = {**params["attention"], "output": jax.tree.map(jnp.zeros_like, params["attention"]["output"])}

        def norms(params: Params) -> list[list[float]]:
            jacobian = jax.jacobian(lambda x: block.bind(params)(x, layer, mask=Mask())[0][0])(x_BxTxE)
            norms_TxT = jnp.sqrt(jnp.sum(jacobian[:, :, 0] ** 2, axis=(1, 3)))
            return [[float(norm) for norm in row] for row in norms_TxT]

        return {
            f"{placement.value}-norm block, whole": norms(params),
            f"{placement.value}-norm block, without attention": norms({**params, "attention": removed}),
        }

    return {"maps": jacobians(NormPlacement.POST) | jacobians(NormPlacement.PRE)}


def off_diagonal(norms: list[list[float]]) -> list[float]:
    """Return the norms between different positions."""
    return [norm for i, row in enumerate(norms) for j, norm in enumerate(row) if i != j]


def judge(figures: Figures) -> Finding:
    """Without attention, every derivative between positions must be exactly zero; with it, none."""
    maps = figures["maps"]
    removed = max(max(off_diagonal(norms)) for name, norms in maps.items() if name.endswith("without attention"))
    least_whole = min(min(off_diagonal(norms)) for name, norms in maps.items() if name.endswith("whole"))
    reason = (
        "The derivative of a position's output with respect to another position has a norm of at least "
        f"{least_whole:.2g} in a whole block, and of at most {removed:g} when attention's output is removed, with "
        "pre-norm and post-norm."
    )
    return Finding(Verdict.HOLDS if removed == 0 < least_whole else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[HeatMap | Table, ...]:
    """Show the Jacobians."""
    labels = [str(position) for position in range(1, LENGTH + 1)]
    maps = figures["maps"]
    heat_maps = tuple(
        HeatMap(
            caption=f"Norm of the Jacobian between positions: {name}",
            values=norms,
            row_labels=labels,
            column_labels=labels,
            row_axis="output",
            column_axis="input",
        )
        for name, norms in maps.items()
        if name.startswith("pre")
    )
    table = Table(
        caption="Largest norm between different positions",
        columns=("block", "norm"),
        rows=[(name, f"{max(off_diagonal(norms)):.3g}") for name, norms in maps.items()],
    )
    return *heat_maps, table


CLAIM = Claim(
    number=47,
    title="Only attention relates positions",
    sentence="The feed-forward network and the norm of a block act on each vector by itself; attention is the only "
    "place where vectors meet.",
    lectures=("S3",),
    source="Vaswani et al. 2017, sections 3.1 and 3.3",
    refutation="With attention's output removed, some derivative of a position's output with respect to another "
    "position is not exactly zero; or, in a whole block, some is.",
    evidence=Measurement(measure=measure, seconds=5),
    judge=judge,
    exhibits=exhibits,
)
