"""C-34: local attention is differentiable and cheaper than global attention."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS, HALF_WIDTH = (64, 256, 1024, 4096), 10
WIDTH, SOURCE = 64, 24


def measure() -> Figures:
    """Count the FLOPs of one decoded token over the length, and measure gradients of the predicted center."""
    import jax
    import jax.numpy as jnp

    from transformer.attention import AttentionSpec, Reweighting, attend, local_predictive, predicted_center
    from transformer.costs.flops import count_matmul_flops
    from transformer.layers.functional_module import Precision
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import TaskInterface

    def step_flops(length: int, window: int) -> int:
        section = {
            "family": "decoder",
            "layers": 1,
            "width": WIDTH,
            "heads": 1,
            "feed_forward": WIDTH,
            "max_length": 2 * max(LENGTHS),
            "attention_windows": (window,),
        }
        model = build(model_config(section), TaskInterface({}, {"tokens": 8}), Precision())
        variables = model.shapes()
        inputs = {"tokens": jax.ShapeDtypeStruct((1, 1), jnp.int32), "lengths": jax.ShapeDtypeStruct((1,), jnp.int32)}
        cache, tokens = jax.eval_shape(
            lambda variables, inputs: model.init_cache(variables, inputs, num_beams=1, length=length), variables, inputs
        )
        return count_matmul_flops(
            jax.make_jaxpr(lambda v, c, t: model.step(v, c, t)[0])(variables, cache, tokens).jaxpr
        )

    flops = {
        label: [step_flops(length, window) for length in LENGTHS]
        for label, window in (("global", 0), (f"window of {HALF_WIDTH}", HALF_WIDTH))
    }

    keys = jax.random.split(jax.random.key(0), 5)
    q_BxQxHxD = jax.random.normal(keys[0], (1, 1, 1, WIDTH))
    k_BxKxHxD, v_BxKxHxD = (jax.random.normal(key, (1, SOURCE, 1, WIDTH)) for key in keys[1:3])
    weight_HxDxA = jax.random.normal(keys[3], (1, WIDTH, WIDTH)) / WIDTH**0.5
    score_HxA = jax.random.normal(keys[4], (1, WIDTH)) / WIDTH**0.5

    def gradients(reweighting: Reweighting) -> dict[str, float]:
        def loss(q: jax.Array, k: jax.Array, center_params: tuple[jax.Array, jax.Array]) -> jax.Array:
            center = predicted_center(q, *center_params, jnp.array([SOURCE]))
            mask = local_predictive(center, HALF_WIDTH)
            return jnp.sum(attend(q, k, v_BxKxHxD, spec=AttentionSpec(reweighting=reweighting), mask=mask)[0] ** 2)

        query_gradient, key_gradient, center_gradients = jax.grad(loss, (0, 1, 2))(
            q_BxQxHxD, k_BxKxHxD, (weight_HxDxA, score_HxA)
        )
        center_norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in center_gradients))
        return {
            "query": float(jnp.linalg.norm(query_gradient)),
            "keys": float(jnp.linalg.norm(key_gradient)),
            "center": float(center_norm),
        }

    return {
        "flops": flops,
        "gradients": {
            "local-p": gradients(Reweighting.GAUSSIAN),
            "local-p without its Gaussian": gradients(Reweighting.NONE),
        },
    }


def judge(figures: Figures) -> Finding:
    """Cost must be flat where a global one grows, and keys have gradients; the center has one by the Gaussian alone."""
    everywhere, local = figures["flops"]["global"], figures["flops"][f"window of {HALF_WIDTH}"]
    gaussian, plain = figures["gradients"]["local-p"], figures["gradients"]["local-p without its Gaussian"]
    reason = (
        f"From {LENGTHS[0]} to {LENGTHS[-1]:,} positions the FLOPs of a decoded token grow "
        f"{everywhere[-1] / everywhere[0]:.1f} times with global attention and {local[-1] / local[0]:.2f} times with "
        f"a window of {HALF_WIDTH}. Inside the window, queries and keys have gradients. The predicted center has one "
        f"of norm {gaussian['center']:.2g} through local-p's Gaussian, and {plain['center']:g} without it."
    )
    cheaper = local[-1] == local[0] and everywhere[-1] > 2 * everywhere[0]
    if not (cheaper and min(gaussian["query"], gaussian["keys"], gaussian["center"]) > 0):
        return Finding(Verdict.FAILS, reason)
    if plain["center"] > 0:
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL,
        f"{reason} Condition: for the place of the window, local-p with its Gaussian; local-m does not predict it.",
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show FLOPs over the length, and the gradients."""
    chart = LineChart(
        caption=f"FLOPs of one decoded token, a decoder block of width {WIDTH}",
        x_label="positions",
        y_label="FLOPs",
        x_scale="log",
        y_scale="log",
        series={label: Series(LENGTHS, values) for label, values in figures["flops"].items()},
    )
    table = Table(
        caption="Gradient norms",
        columns=("attention", "query", "keys", "predicted center"),
        rows=[
            (label, *(f"{norms[name]:.3g}" for name in ("query", "keys", "center")))
            for label, norms in figures["gradients"].items()
        ],
    )
    return chart, table


CLAIM = Claim(
    number=34,
    title="Local attention is differentiable and cheaper",
    sentence="Attention within a window around one place costs less than attention to everything and, unlike hard "
    "attention, can be trained by gradients.",
    lectures=("S4",),
    source="Luong et al. 2015, section 3.2",
    refutation="The FLOPs of a decoded token grow with the length under a window, or not twofold without one; or "
    "query, keys or the predicted center of local-p have no gradient.",
    evidence=Measurement(measure=measure, seconds=8),
    judge=judge,
    exhibits=exhibits,
)
