"""C-18: attention is differentiable, so that nobody needs to supervise its weights."""

from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

STEP, SEED, EXAMPLES = 1e-5, 1, 8
KINDS = {"softmax": "soft attention", "hard": "hard attention, one word is drawn"}


def measure() -> Figures:
    """Compare gradients of a translation loss with differences in float64, for soft and for hard attention."""
    import jax

    with jax.enable_x64(True):
        return {"rows": [row for kind in KINDS for row in _compare_slopes(kind)]}


def _compare_slopes(kind: str) -> list[dict[str, Any]]:
    """Return the slope of the loss along a random direction of each parameter, by gradient and by difference."""
    import jax
    import numpy as np
    import optax

    from experiments.claims.symbol_translation import draw_batch, make_model
    from transformer.layers.functional_module import Precision
    from transformer.models.model import Variables

    inputs, labels = draw_batch(jax.random.key(SEED), EXAMPLES)
    model = make_model(Precision("float64", "float64", "float64"), normalizer=kind)
    variables = model.init(jax.random.key(SEED))

    @jax.jit
    def loss(params: Any) -> jax.Array:
        key = jax.random.key(SEED + 1)
        logits, _ = model.apply(Variables(params, variables.state), inputs, train=True, key=key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(variables.params))
    paths, structure = jax.tree_util.tree_flatten_with_path(variables.params)
    leaves = [leaf for _, leaf in paths]
    random = np.random.default_rng(SEED)
    rows = []
    for number, (path, leaf) in enumerate(paths):
        direction = random.standard_normal(leaf.shape)
        direction /= np.linalg.norm(direction)
        moved = [[*leaves[:number], leaf + step * direction, *leaves[number + 1 :]] for step in (STEP, -STEP)]
        losses = [float(loss(jax.tree.unflatten(structure, moved_leaves))) for moved_leaves in moved]
        slopes = {
            "gradient": float((gradients[number] * direction).sum()),
            "difference": (losses[0] - losses[1]) / (2 * STEP),
        }
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        rows.append({"kind": kind, "parameter": name, **slopes, "norm": float(np.linalg.norm(gradients[number]))})
    return rows


def _is_attention(row: Figures) -> bool:
    return row["parameter"].startswith("attention/")


def judge(figures: Figures) -> Finding:
    """Soft attention's gradients must be the slopes of the loss and not zero; the condition is hard attention."""
    soft = [row for row in figures["rows"] if row["kind"] == "softmax"]
    hard = [row for row in figures["rows"] if row["kind"] == "hard" and _is_attention(row)]
    scale = max(abs(row["difference"]) for row in soft)
    error = max(abs(row["gradient"] - row["difference"]) for row in soft) / scale
    reached = [row for row in soft if _is_attention(row)]
    reason = (
        f"For all {len(soft)} parameters of a recurrent model with soft attention, the gradient of the translation "
        f"loss equals its slope within {error:.0e} of the largest slope, and the score's {len(reached)} have "
        f"gradients that are not zero: the loss of the words alone trains them. If one word is drawn instead, the "
        f"largest gradient of the score's parameters is {max(row['norm'] for row in hard):g}, and it needs an "
        "estimator such as REINFORCE."
    )
    if error > 1e-5 or min(row["norm"] for row in reached) == 0:
        return Finding(Verdict.FAILS, reason)
    return Finding(Verdict.CONDITIONAL if max(row["norm"] for row in hard) == 0 else Verdict.HOLDS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the parameters of the score, and how well all the others agree."""
    return (
        Table(
            caption="Slope of the translation loss along a random direction of each parameter: gradient and difference",
            columns=("attention", "parameter", "gradient", "difference", "norm of the gradient"),
            rows=[
                (
                    KINDS[row["kind"]],
                    row["parameter"],
                    f"{row['gradient']:.6f}",
                    f"{row['difference']:.6f}",
                    f"{row['norm']:.2g}",
                )
                for row in figures["rows"]
                if row["kind"] == "softmax" or _is_attention(row)
            ],
        ),
    )


CLAIM = Claim(
    number=18,
    title="Nobody supervises the weights",
    sentence="Every step of attention is differentiable, so that the weights are learned from the translations alone.",
    lectures=("S3",),
    source="Bahdanau et al. 2015, section 3.1; Xu et al. 2015, section 4",
    refutation="The gradient of some parameter differs from the slope of the loss by more than 1e-5 of the largest "
    "slope, or that of a parameter of the score is zero. A condition: with hard attention it is zero.",
    evidence=Measurement(measure=measure, seconds=12),
    judge=judge,
    exhibits=exhibits,
)
