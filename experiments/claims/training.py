"""The training of the small models of claims: Adam on batches that are drawn anew at every step."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from transformer.models.model import Model, Variables

PyTree = Any
# Draws the inputs of a batch by name, and the right answer of each row of logits; a negative one does not count.
DrawBatch = Callable[["jax.Array"], tuple[Mapping[str, "jax.Array"], "jax.Array"]]


def train(
    loss: Callable[[PyTree, PyTree], Any],
    params: PyTree,
    draw_batch: Callable[[Any], PyTree],
    *,
    steps: int,
    learning_rate: Any,
    seed: Any,
) -> PyTree:
    """Minimize a loss by Adam in one compiled loop; the rate rises for a tenth of the steps and then falls to 0.

    Args:
        loss: The loss of parameters and a batch.
        params: The initial parameters.
        draw_batch: Draws a batch from a random key.
        steps: The number of updates.
        learning_rate: The largest rate; it may be traced.
        seed: The seed of the batches; it may be traced.

    Returns:
        The trained parameters.
    """
    import jax
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.scale_by_schedule(schedule), optax.scale(-1)
    )

    def update(carry: PyTree, key: Any) -> tuple[PyTree, None]:
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, draw_batch(key)), state)
        return (jax.tree.map(lambda leaf, change: leaf + learning_rate * change, params, updates), state), None

    keys = jax.random.split(jax.random.key(seed), steps)
    (params, _), _ = jax.jit(lambda params: jax.lax.scan(update, (params, optimizer.init(params)), keys))(params)
    return params


def train_models(
    model: "Model", draw: DrawBatch, *, steps: int, learning_rate: float, seeds: Sequence[int]
) -> "list[Variables]":
    """Train a model of each seed by cross-entropy, all in one program.

    Args:
        model: The model, whose `forward` returns logits [..., class].
        draw: Draws a batch from a key; it is traced.
        steps: The number of updates.
        learning_rate: The largest rate.
        seeds: The seeds of parameters and batches.

    Returns:
        The trained variables of each seed.
    """
    import jax
    import jax.numpy as jnp
    import optax

    from transformer.models.model import Variables

    def train_one(seed: jax.Array) -> Variables:
        variables = model.init(jax.random.key(seed))

        def loss(params: PyTree, batch: PyTree) -> jax.Array:
            inputs, labels, key = batch
            logits, _ = model.apply(Variables(params, variables.state), inputs, train=True, key=key)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
            return losses.mean(where=labels >= 0)

        params = train(
            loss,
            variables.params,
            lambda key: (*draw(key), key),
            steps=steps,
            learning_rate=learning_rate,
            seed=seed,
        )
        return Variables(params, variables.state)

    trained = jax.jit(jax.vmap(train_one))(jnp.asarray(seeds))
    return [jax.tree.map(lambda leaf, index=index: leaf[index], trained) for index in range(len(seeds))]
