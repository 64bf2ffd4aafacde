"""C-19: attention weights are positive and sum to one."""

from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

QUERIES, KEYS, REAL_KEYS, WIDTH, EXAMPLES, SEED = 8, 12, 7, 16, 64, 1
CASES = {
    "softmax": "softmax",
    "bfloat16": "softmax, inputs in bfloat16",
    "padded": f"softmax, {REAL_KEYS} of {KEYS} keys real: the real ones",
    "hidden": "softmax, the padded keys of the same",
    "one_key": "softmax, one key",
    "far_apart": "softmax, logits 100 times as large",
    "no_key": "softmax, no key to be seen",
    "sparsemax": "sparsemax",
}


def measure() -> Figures:
    """Capture the weights of random queries and keys under several conditions."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from transformer.attention import AttentionSpec, Capture, Mask, Normalizer, attend

    q = jax.random.normal(jax.random.key(SEED), (EXAMPLES, QUERIES, 1, WIDTH))
    k = jax.random.normal(jax.random.key(SEED + 1), (EXAMPLES, KEYS, 1, WIDTH))

    def weights(q: jax.Array, k: jax.Array, **choices: Any) -> np.ndarray:
        _, aux = attend(q, k, k, capture=Capture(sites=("attention",)), **choices)
        assert aux.captured is not None
        return np.asarray(aux.captured.weights, np.float64)

    padded = weights(q, k, mask=Mask(key_lengths=jnp.full(EXAMPLES, REAL_KEYS)))
    cases = {
        "softmax": weights(q, k),
        "bfloat16": weights(q.astype(jnp.bfloat16), k.astype(jnp.bfloat16)),
        "padded": padded[..., :REAL_KEYS],
        "hidden": padded[..., REAL_KEYS:],
        "one_key": weights(q, k[:, :1]),
        "far_apart": weights(100 * q, k),
        "no_key": weights(q, k, mask=Mask(key_lengths=jnp.zeros(EXAMPLES, jnp.int32))),
        "sparsemax": weights(q, k, spec=AttentionSpec(normalizer=Normalizer.SPARSEMAX)),
    }
    return {
        name: {
            "smallest": float(values.min()),
            "largest": float(values.max()),
            "zeros": float((values == 0).mean()),
            "least_sum": float(values.sum(-1).min()),
            "greatest_sum": float(values.sum(-1).max()),
        }
        for name, values in cases.items()
    }


def judge(figures: Figures) -> Finding:
    """Ordinary weights must be positive and sum to one; the conditions are the cases where one of both is not so."""
    ordinary = [figures[name] for name in ("softmax", "bfloat16", "padded")]
    error = max(max(abs(case["least_sum"] - 1), abs(case["greatest_sum"] - 1)) for case in ordinary)
    positive = min(case["smallest"] for case in ordinary) > 0
    reason = (
        f"Softmax weights of real keys are positive and sum to 1 within {error:.0e}. But a weight can be exactly 1 (a "
        f"single key) and exactly 0: every padded key, {figures['far_apart']['zeros']:.0%} of them if logits are 100 "
        f"times as large, because float32 ends, and {figures['sparsemax']['zeros']:.0%} under sparsemax. A query that "
        f"sees no key has weights that sum to {figures['no_key']['greatest_sum']:g}."
    )
    if not positive or error > 1e-5 or figures["hidden"]["largest"] != 0:
        return Finding(Verdict.FAILS, reason)
    exceptions = figures["far_apart"]["zeros"] > 0 or figures["no_key"]["greatest_sum"] == 0
    return Finding(Verdict.CONDITIONAL if exceptions else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the weights of each case."""
    return (
        Table(
            caption=f"Weights of {QUERIES} queries on {KEYS} keys, {EXAMPLES} random examples",
            columns=("case", "smallest", "largest", "exactly 0", "sum of a row"),
            rows=[
                (
                    label,
                    f"{figures[name]['smallest']:.1e}",
                    f"{figures[name]['largest']:.4f}",
                    f"{figures[name]['zeros']:.0%}",
                    f"{figures[name]['least_sum']:.6f} to {figures[name]['greatest_sum']:.6f}",
                )
                for name, label in CASES.items()
            ],
        ),
    )


CLAIM = Claim(
    number=19,
    title="Positive weights that sum to one",
    sentence="Attention weights lie strictly between 0 and 1, and those of one query sum to 1.",
    lectures=("S2", "S3"),
    source="Bahdanau et al. 2015, equation 6; Martins and Astudillo 2016",
    refutation="A softmax weight on a real key is 0 or below with ordinary logits, a row's sum differs from 1 by more "
    "than 1e-5, or a padded key has weight. A condition: large logits give exact zeros, or a query that sees nothing "
    "has no weights.",
    evidence=Measurement(measure=measure, seconds=3),
    judge=judge,
    exhibits=exhibits,
)
