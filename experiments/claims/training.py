"""The training of the small models of claims: Adam on batches that are drawn anew at every step."""

from collections.abc import Callable
from typing import Any

PyTree = Any


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
