"""C-25: Transformers avoid the vanishing gradients of recurrent networks."""

from collections.abc import Callable

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTH, WIDTH, SEEDS, SCALE = 257, 16, 4, 0.01
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Of the recurrent matrix, as in transformer.benchmarks.gradient_by_distance.
SHRINKING = 0.9
LAYERS, STACK_LENGTH = 24, 16
NAMES = {"vanilla": "RNN", "lstm": "LSTM", "attention": "self-attention"}


def measure() -> Figures:
    """Measure gradient norms at initialization, over the distance in a layer and over the depth of a stack."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from transformer.attention.masks import Mask
    from transformer.benchmarks.layer_types import LAYER_TYPES
    from transformer.layers.functional_module import FunctionalModule, Params
    from transformer.layers.residual import DropRates, NormPlacement
    from transformer.layers.transformer_block import Block, PerLayerInputs
    from transformer.layers.transformer_config import LayerKind, LayerRotary, TransformerConfig

    # Compiles several times faster than the default generator.
    seeds = jax.random.split(jax.random.key(0, impl="rbg"), SEEDS)

    def geometric_mean(norms_for_seed: Callable[[jax.Array], jax.Array]) -> list[float]:
        compiled = jax.jit(norms_for_seed)
        norms_SxN = np.maximum([np.asarray(compiled(seed), np.float64) for seed in seeds], np.finfo(np.float32).tiny)
        return [float(norm) for norm in np.exp(np.log(norms_SxN).mean(0))]

    def norms_by_distance(name: str) -> list[float]:
        module, run = LAYER_TYPES[name].make_layer(WIDTH)

        def norms(key: jax.Array) -> jax.Array:
            init, inputs, direction = jax.random.split(key, 3)
            params = module.init(init)
            if name == "vanilla":
                params["forward"]["recurrent_kernel"] *= SHRINKING
            x_BxTxF = SCALE * jax.random.normal(inputs, (1, LENGTH, WIDTH))
            u_F = jax.random.normal(direction, (WIDTH,))
            gradient_BxTxF = jax.grad(lambda x: run(params, x)[0, -1] @ u_F / jnp.linalg.norm(u_F))(x_BxTxF)
            return jnp.linalg.norm(gradient_BxTxF[0], axis=-1)[::-1]

        values = geometric_mean(norms)
        return [values[distance] for distance in DISTANCES]

    config = TransformerConfig(
        width=WIDTH, heads=2, feed_forward=4 * WIDTH, norm_placement=NormPlacement.PRE, dropout=0.0
    )
    block = FunctionalModule(lambda builder: Block(config, cross=False, experts=False, alpha=1.0, builder=builder))
    layer = PerLayerInputs(LayerKind(0, LayerRotary.GLOBAL), DropRates(0.0, 0.0), None)
    mask = Mask(causal=True)

    def residual_block(params: Params, x: jax.Array) -> jax.Array:
        return block.bind(params)(x, layer, mask=mask)[0]

    def sublayers_alone(params: Params, x: jax.Array) -> jax.Array:
        bound = block.bind(params)
        assert bound.feed_forward is not None
        return bound.feed_forward(bound.attention(x, x, mask=mask)[0])

    def norms_by_depth(apply: Callable[[Params, jax.Array], jax.Array]) -> list[float]:
        def norms(key: jax.Array) -> jax.Array:
            init, inputs, direction = jax.random.split(key, 3)
            params = jax.vmap(block.init)(jax.random.split(init, LAYERS))
            x_BxTxF = jax.random.normal(inputs, (1, STACK_LENGTH, WIDTH))
            u_BxTxF = jax.random.normal(direction, x_BxTxF.shape)

            def output(shifts_LxBxTxF: jax.Array) -> jax.Array:
                # The gradient with respect to a shift of a layer's input is that with respect to the input.
                y, _ = jax.lax.scan(lambda x, at: (apply(at[0], x + at[1]), None), x_BxTxF, (params, shifts_LxBxTxF))
                return jnp.vdot(y, u_BxTxF / jnp.linalg.norm(u_BxTxF))

            gradient = jax.grad(output)(jnp.zeros((LAYERS, *x_BxTxF.shape)))
            return jnp.linalg.norm(gradient.reshape(LAYERS, -1), axis=-1)[::-1]

        return geometric_mean(norms)

    return {
        "seeds": SEEDS,
        "by_distance": {label: norms_by_distance(name) for name, label in NAMES.items()},
        "by_depth": {
            "residual and pre-norm": norms_by_depth(residual_block),
            "neither": norms_by_depth(sublayers_alone),
        },
    }


def judge(figures: Figures) -> Finding:
    """Attention must be flat over the distance where recurrence vanishes; to hold alone, a bare stack too, by depth."""
    near_and_far = {name: (norms[0], norms[-1]) for name, norms in figures["by_distance"].items()}
    fall = {name: near / far for name, (near, far) in near_and_far.items()}
    bare, residual = (figures["by_depth"][name] for name in ("neither", "residual and pre-norm"))
    reason = (
        f"From distance {DISTANCES[0]} to {DISTANCES[-1]}, the gradient falls {fall['RNN']:.1g} times in an RNN and "
        f"{fall['LSTM']:,.0f} times in an LSTM, and {fall['self-attention']:.2f} times in self-attention. Over "
        f"{LAYERS} layers it falls {bare[0] / bare[-1]:.1g} times without residual connections and norms; with both "
        f"it changes {max(residual) / min(residual):.1f} times (geometric means of {figures['seeds']} seeds)."
    )
    flat = fall["self-attention"] < 2 and min(fall["RNN"], fall["LSTM"]) > 100
    if not flat:
        return Finding(Verdict.FAILS, reason)
    if bare[0] / bare[-1] < 100:
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL, f"{reason} Condition: residual connections and norms, for the path through the layers."
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the norms over the distance and over the depth."""
    distance = LineChart(
        caption="Gradient norm of the last output with respect to an input so far back, at initialization",
        x_label="distance",
        y_label="gradient norm",
        x_scale="log",
        y_scale="log",
        series={name: Series(DISTANCES, norms) for name, norms in figures["by_distance"].items()},
    )
    depth = LineChart(
        caption="Gradient norm with respect to the input of a block, at initialization",
        x_label="blocks between it and the output",
        y_label="gradient norm",
        y_scale="log",
        series={name: Series(list(range(1, LAYERS + 1)), norms) for name, norms in figures["by_depth"].items()},
    )
    return distance, depth


CLAIM = Claim(
    number=25,
    title="Transformers avoid vanishing gradients",
    sentence="Gradients of a Transformer do not vanish over long sequences, because it has a few layers where a "
    "recurrent network has a step for each position.",
    lectures=("S2",),
    source="Vaswani et al. 2017, section 4; Hochreiter 1991; Xiong et al. 2020",
    refutation="Between distances of 1 and 256, the gradient falls twofold or more in self-attention, or less than a "
    "hundredfold in an RNN or an LSTM.",
    evidence=Measurement(measure=measure, seconds=12),
    judge=judge,
    exhibits=exhibits,
)
