"""C-33: hard attention is cheaper and not differentiable."""

import math

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

KEYS, WIDTH, SEED = 32, 16, 0
SAMPLES = (1, 4, 16, 64, 256, 1024)
REPEATS = 256


def measure() -> Figures:
    """Measure gradients of each normalizer, the noise of REINFORCE's estimate, and the FLOPs of reading a memory."""
    import jax
    import jax.numpy as jnp

    from transformer.attention import AttentionSpec, Normalizer, Score, attend, normalize, score
    from transformer.costs.flops import count_matmul_flops

    query_key, key_key, value_key, target_key, sample_key = jax.random.split(jax.random.key(SEED), 5)
    q_BxQxHxD = jax.random.normal(query_key, (1, 1, 1, WIDTH))
    k_BxKxHxD = jax.random.normal(key_key, (1, KEYS, 1, WIDTH))
    v_BxKxHxD = jax.random.normal(value_key, (1, KEYS, 1, WIDTH))
    target_D = jax.random.normal(target_key, (WIDTH,))

    def reward(context_BxQxHxD: jax.Array) -> jax.Array:
        return -jnp.mean((context_BxQxHxD[0, 0, 0] - target_D) ** 2)

    def gradient(normalizer: Normalizer) -> jax.Array:
        def objective(q: jax.Array) -> jax.Array:
            spec = AttentionSpec(normalizer=normalizer)
            return reward(attend(q, k_BxKxHxD, v_BxKxHxD, spec=spec, key=sample_key, train=True)[0])

        return jax.grad(objective)(q_BxQxHxD)

    gradients = {
        kind.value: float(jnp.linalg.norm(gradient(kind)))
        for kind in (Normalizer.SOFTMAX, Normalizer.HARD, Normalizer.STRAIGHT_THROUGH)
    }

    def logits(q: jax.Array) -> jax.Array:
        return score(q, k_BxKxHxD, Score.SCALED_DOT)

    rewards_K = jax.vmap(lambda v_D: reward(v_D[None, None, None]))(v_BxKxHxD[0, :, 0])

    def expected_reward(q: jax.Array) -> jax.Array:
        return jnp.vdot(normalize(logits(q), None).values[0, 0, 0], rewards_K)

    exact = jax.grad(expected_reward)(q_BxQxHxD)
    baseline = expected_reward(q_BxQxHxD)

    def estimate(key: jax.Array, baseline: jax.Array) -> jax.Array:
        def objective(q: jax.Array) -> jax.Array:
            sample = normalize(logits(q), None, Normalizer.HARD, key=key, train=True)
            advantage = jax.lax.stop_gradient(jnp.vdot(sample.values[0, 0, 0], rewards_K) - baseline)
            assert sample.log_prob is not None
            return advantage * sample.log_prob[0, 0, 0]

        return jax.grad(objective)(q_BxQxHxD)

    keys = jax.random.split(jax.random.key(SEED + 1), max(SAMPLES) * REPEATS)
    errors: dict[str, list[float]] = {}
    for label, reference in (("without baseline", jnp.zeros(())), ("with baseline", baseline)):
        estimates = jax.jit(jax.vmap(lambda key, b=reference: estimate(key, b)))(keys)
        errors[label] = []
        for samples in SAMPLES:
            means = estimates[: samples * REPEATS].reshape(REPEATS, samples, -1).mean(1)
            errors[label].append(
                float(jnp.sqrt(jnp.mean(jnp.sum((means - exact.reshape(-1)) ** 2, -1))) / jnp.linalg.norm(exact))
            )

    def soft(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, k, v)[0]

    def hard(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return v[:, jnp.argmax(score(q, k, Score.SCALED_DOT)[0, 0, 0])]

    flops = {
        label: count_matmul_flops(jax.make_jaxpr(read)(q_BxQxHxD, k_BxKxHxD, v_BxKxHxD).jaxpr)
        for label, read in (("soft", soft), ("hard", hard))
    }
    return {"gradients": gradients, "errors": errors, "flops": flops, "keys": KEYS, "width": WIDTH}


def judge(figures: Figures) -> Finding:
    """It holds, cheaper with a condition, if the weights have no gradient, and reading takes fewer FLOPs."""
    gradients, flops, errors = figures["gradients"], figures["flops"], figures["errors"]
    share = flops["hard"] / flops["soft"]
    single = errors["with baseline"][0]
    reason = (
        f"Through a sampled weight the gradient is {gradients['hard']:g} (soft: {gradients['softmax']:.2g}). Reading "
        f"one of {figures['keys']} keys takes {share:.0%} of soft attention's FLOPs, since every key is still scored, "
        f"but REINFORCE's estimate from one sample has an error of {single:.1f} times the gradient, "
        f"{errors['without baseline'][0]:.1f} without a baseline."
    )
    if gradients["hard"] != 0 or gradients["softmax"] == 0 or share >= 1:
        return Finding(Verdict.FAILS, reason)
    if single < 0.1 and math.isclose(share, 1 / figures["keys"], rel_tol=0.5):
        return Finding(Verdict.HOLDS, reason)
    return Finding(Verdict.CONDITIONAL, f"{reason} Condition: cheaper at inference; training pays in noise.")


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show the noise of the estimate over samples, and gradients and FLOPs."""
    chart = LineChart(
        caption="Error of REINFORCE's estimate of the gradient, relative to the gradient",
        x_label="samples",
        y_label="relative error",
        x_scale="log",
        y_scale="log",
        series={label: Series(SAMPLES, values) for label, values in figures["errors"].items()},
    )
    table = Table(
        caption="Gradient of the query through the weights, and FLOPs of one reading",
        columns=("attention", "gradient norm", "FLOPs"),
        rows=[
            ("soft", f"{figures['gradients']['softmax']:.3g}", f"{figures['flops']['soft']:,}"),
            ("hard", f"{figures['gradients']['hard']:g}", f"{figures['flops']['hard']:,}"),
            ("hard, straight-through", f"{figures['gradients']['straight_through']:.3g}", "as hard"),
        ],
    )
    return chart, table


CLAIM = Claim(
    number=33,
    title="Hard attention is cheaper and not differentiable",
    sentence="Attention that picks one position costs less than a weighted mean of all, but has no gradient, so that "
    "it is trained by reinforcement learning.",
    lectures=("S4",),
    source="Xu et al. 2015, section 4.1; Luong et al. 2015, section 3.2",
    refutation="A gradient passes through the sampled weights, or none through soft ones; or picking takes no fewer "
    "FLOPs.",
    evidence=Measurement(measure=measure, seconds=5),
    judge=judge,
    exhibits=exhibits,
)
