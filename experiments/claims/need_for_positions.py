"""C-28: a Transformer needs position encodings."""

import statistics

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

# A text has the words 1 and 2 once among others, and ends with the word 0: which of the two comes first?
LENGTH, TOKENS = 12, 8
STEPS, ROWS, TEST_ROWS = 300, 64, 2048
LEARNING_RATE, SEEDS = 3e-3, (1, 2, 3)
SIZES = {"layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "norm_placement": "pre", "max_length": 32}
MODELS = {
    "encoder without positions": ("encoder", "none"),
    "encoder with positions": ("encoder", "learned"),
    "causal decoder without positions": ("decoder", "none"),
    "causal decoder with positions": ("decoder", "learned"),
}


def measure() -> Figures:
    """Train each model to tell the order of two words of a text, and measure its accuracy on new texts."""
    import jax
    import jax.numpy as jnp

    from experiments.claims.training import train
    from transformer.layers.functional_module import Precision
    from transformer.models.model import Variables
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import InputSpec, TaskInterface

    interface = TaskInterface({"tokens": InputSpec((ROWS, LENGTH + 1))}, {"tokens": TOKENS})

    def draw(key: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
        fillers, places = jax.random.split(key)
        tokens_BxT = jax.random.randint(fillers, (rows, LENGTH), 3, TOKENS)
        places_BxT = jnp.argsort(jax.random.uniform(places, (rows, LENGTH)), axis=1)
        index_B = jnp.arange(rows)
        tokens_BxT = tokens_BxT.at[index_B, places_BxT[:, 0]].set(1).at[index_B, places_BxT[:, 1]].set(2)
        first_B = jnp.where(places_BxT[:, 0] < places_BxT[:, 1], 1, 2)
        return jnp.pad(tokens_BxT, ((0, 0), (0, 1))), first_B

    def accuracies(family: str, positions: str) -> list[float]:
        section = {"family": family, "positions": positions, "dropout": 0.0, "attention_dropout": 0.0, **SIZES}
        model = build(model_config(section), interface, Precision())

        def logits(variables: Variables, tokens_BxT: jax.Array) -> jax.Array:
            return model.apply(variables, {"tokens": tokens_BxT}, train=False)[0][:, -1]

        def loss(variables: Variables, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            tokens_BxT, first_B = batch
            log_probabilities_BxV = jax.nn.log_softmax(logits(variables, tokens_BxT))
            return -jnp.mean(jnp.take_along_axis(log_probabilities_BxV, first_B[:, None], axis=1))

        def accuracy(seed: jax.Array) -> jax.Array:
            start = model.init(jax.random.key(seed))
            variables = train(
                loss, start, lambda key: draw(key, ROWS), steps=STEPS, learning_rate=LEARNING_RATE, seed=seed
            )
            tokens_BxT, first_B = draw(jax.random.key(0), TEST_ROWS)
            return jnp.mean(jnp.argmax(logits(variables, tokens_BxT), -1) == first_B)

        return [float(value) for value in jax.jit(jax.vmap(accuracy))(jnp.array(SEEDS))]

    return {"accuracies": {name: accuracies(*kind) for name, kind in MODELS.items()}, "steps": STEPS}


def judge(figures: Figures) -> Finding:
    """Without positions an encoder must guess, and with them not; to hold alone, so must a causal decoder."""
    accuracies = figures["accuracies"]
    means = {name: statistics.mean(values) for name, values in accuracies.items()}
    encoder, decoder = accuracies["encoder without positions"], accuracies["causal decoder without positions"]
    reason = (
        "Asked which of two words comes first, an encoder without positions is right in "
        f"{means['encoder without positions']:.3f} of the texts and with them in "
        f"{means['encoder with positions']:.3f}; a causal decoder is right in "
        f"{means['causal decoder without positions']:.3f} without them ({len(encoder)} seeds, {figures['steps']} "
        "steps)."
    )
    guesses = all(abs(accuracy - 0.5) < 0.05 for accuracy in encoder)
    if not guesses or means["encoder with positions"] < 0.9:
        return Finding(Verdict.FAILS, reason)
    if all(abs(accuracy - 0.5) < 0.05 for accuracy in decoder):
        return Finding(Verdict.HOLDS, reason)
    return Finding(Verdict.CONDITIONAL, f"{reason} Condition: nothing else tells the order; a causal mask does.")


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the accuracies."""
    table = Table(
        caption="Which of two words comes first in a text: accuracy on 2,048 new texts; guessing is 0.5",
        columns=("model", *(f"seed {seed}" for seed in SEEDS)),
        rows=[
            (name, *(f"{accuracy:.3f}" for accuracy in accuracies))
            for name, accuracies in figures["accuracies"].items()
        ],
    )
    return (table,)


CLAIM = Claim(
    number=28,
    title="Position encodings are required",
    sentence="Attention does not see the order of its inputs, so that a Transformer cannot do without position "
    "encodings.",
    lectures=("S2",),
    source="Vaswani et al. 2017, section 3.5; Haviv et al. 2022; Kazemnejad et al. 2023",
    refutation="An encoder without positions tells the order of two words with an accuracy that differs from 0.5 by "
    "0.05 with some seed, or one with positions with less than 0.9 on average.",
    evidence=Measurement(measure=measure, seconds=60),
    judge=judge,
    exhibits=exhibits,
)
