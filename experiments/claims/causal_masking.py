"""C-05: a causal mask hides the future."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import HeatMap, Table

LENGTH, WIDTH, SEED, VOCABULARY = 12, 32, 1, 11


def measure() -> Figures:
    """Differentiate a decoder's outputs with respect to its inputs, and change the future of its inputs."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from transformer.attention import Capture, Mask, attend
    from transformer.layers.functional_module import Precision
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import TaskInterface

    q_key, k_key, v_key, token_key, model_key = jax.random.split(jax.random.key(SEED), 5)
    shape = (1, LENGTH, 1, WIDTH)
    q, k, v = (jax.random.normal(key, shape) for key in (q_key, k_key, v_key))
    future_TxT = np.triu(np.ones((LENGTH, LENGTH), bool), 1)

    def attention(k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, k, v, mask=Mask(causal=True))[0][0, :, 0]

    keys_gradient, values_gradient = (
        np.abs(jacobian[:, :, 0, :, 0]).sum((1, 3)) for jacobian in jax.jacobian(attention, argnums=(0, 1))(k, v)
    )
    _, aux = attend(q, k, v, mask=Mask(causal=True), capture=Capture(sites=("attention",)))
    assert aux.captured is not None
    assert aux.captured.weights is not None
    weights_TxT = np.asarray(aux.captured.weights[0, 0], np.float64)

    config = model_config({"family": "decoder", "layers": 2, "width": WIDTH, "heads": 4, "feed_forward": 64})
    model = build(config, TaskInterface({}, {"tokens": VOCABULARY}), Precision())
    variables = model.init(model_key)
    tokens_1xT = jax.random.randint(token_key, (1, LENGTH), 0, VOCABULARY)
    changed_BxT = jnp.stack(
        [
            jnp.where(jnp.arange(LENGTH) > last, (tokens_1xT[0] + 1) % VOCABULARY, tokens_1xT[0])
            for last in range(LENGTH)
        ]
    )
    run = jax.jit(lambda tokens: model.apply(variables, {"tokens": tokens}, train=False)[0])
    original_TxV = np.asarray(run(jnp.repeat(tokens_1xT, LENGTH, axis=0)))[0]
    changed_BxTxV = np.asarray(run(changed_BxT))
    past_changes = [np.abs(changed_BxTxV[last, : last + 1] - original_TxV[: last + 1]).max() for last in range(LENGTH)]
    future_changes = [
        np.abs(changed_BxTxV[last, last + 1 :] - original_TxV[last + 1 :]).max() for last in range(LENGTH - 1)
    ]
    return {
        "length": LENGTH,
        "future_weight": float(weights_TxT[future_TxT].max()),
        "future_gradient": float(max(keys_gradient[future_TxT].max(), values_gradient[future_TxT].max())),
        "past_gradient": float(values_gradient[~future_TxT].min()),
        "first_row_weight": float(weights_TxT[0, 0]),
        "row_sum_error": float(np.abs(weights_TxT.sum(1) - 1).max()),
        "past_logit_change": float(max(past_changes)),
        "future_logit_change": float(min(future_changes)),
        "weights": np.round(weights_TxT, 4).tolist(),
    }


def judge(figures: Figures) -> Finding:
    """It holds if weights, gradients and changes are exactly zero, and not by chance zero everywhere."""
    hidden = figures["future_weight"] == figures["future_gradient"] == figures["past_logit_change"] == 0
    alive = figures["past_gradient"] > 0 and figures["future_logit_change"] > 0
    reason = (
        f"The largest weight on a later position is {figures['future_weight']:g}, the largest gradient "
        f"{figures['future_gradient']:g}. If all later words of a two-layer decoder's input change, its logits up to "
        f"there change by {figures['past_logit_change']:g}, bit for bit, and those after it by at least "
        f"{figures['future_logit_change']:.2g}."
    )
    return Finding(Verdict.HOLDS if hidden and alive else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[HeatMap | Table, ...]:
    """Show the masked map and the figures."""
    labels = [str(position) for position in range(figures["length"])]
    masked = HeatMap(
        caption="Weights under a causal mask: above the diagonal all are exactly 0",
        values=figures["weights"],
        row_labels=labels,
        column_labels=labels,
        row_axis="query",
        column_axis="key",
    )
    table = Table(
        caption="What the future can do",
        columns=("figure", "value"),
        rows=[
            ("largest weight on a later position", f"{figures['future_weight']:g}"),
            ("largest gradient to a later key or value", f"{figures['future_gradient']:g}"),
            ("smallest gradient to a value that is seen", f"{figures['past_gradient']:.2g}"),
            ("weight of the first position on itself", f"{figures['first_row_weight']:g}"),
            ("change of earlier logits if the future changes", f"{figures['past_logit_change']:g}"),
        ],
    )
    return masked, table


CLAIM = Claim(
    number=5,
    title="Masks stop looking ahead",
    sentence="Setting the logits of later positions to minus infinity makes their weights zero, so that a decoder "
    "cannot look ahead.",
    lectures=("S0", "S2", "S3"),
    source="Vaswani et al. 2017, section 3.2.3",
    refutation="A weight on a later position, a gradient to it, or the change of an output when later inputs change is "
    "not exactly 0.",
    evidence=Measurement(measure=measure, seconds=8),
    judge=judge,
    exhibits=exhibits,
)
