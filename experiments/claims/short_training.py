"""Training of small models for seconds, on sequences drawn at every step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.models.model import Model, Variables

# Draws the inputs of a batch by name, and the right answer of each row of logits; a negative one does not count.
DrawBatch = Callable[[jax.Array], tuple[Mapping[str, jax.Array], jax.Array]]


def train_models(model: Model, draw: DrawBatch, *, steps: int, learning_rate: float, seeds: Sequence[int]) -> Variables:
    """Train a model of each seed by cross-entropy with Adam, its rate falling to zero along a cosine.

    Args:
        model: The model, whose `forward` returns logits [..., class].
        draw: Draws a batch from a key; it is traced.
        steps: The number of steps.
        learning_rate: The rate of the first step.
        seeds: The seeds of parameters and batches; all train in one program.

    Returns:
        The trained variables, with a leading axis of seeds.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    )
    keys_S = jnp.stack([jax.random.key(seed) for seed in seeds])

    def start(key: jax.Array) -> tuple[Variables, Any]:
        variables = model.init(key)
        return variables, optimizer.init(variables.params)

    def loss(params: Any, model_state: Any, key: jax.Array) -> jax.Array:
        inputs, labels = draw(key)
        logits, _ = model.apply(Variables(params, model_state), inputs, train=True, key=key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        return losses.mean(where=labels >= 0)

    def step(variables: Variables, state: Any, key: jax.Array) -> tuple[Variables, Any]:
        gradient = jax.grad(loss)(variables.params, variables.state, key)
        updates, state = optimizer.update(gradient, state, variables.params)
        return Variables(optax.apply_updates(variables.params, updates), variables.state), state

    fold_S = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    step_all = jax.jit(lambda variables, state, number: jax.vmap(step)(variables, state, fold_S(keys_S, number)))
    variables, state = jax.jit(jax.vmap(start))(keys_S)
    for number in range(1, 1 + steps):
        variables, state = step_all(variables, state, jnp.int32(number))
    return variables


def select_model(variables: Variables, index: int) -> Variables:
    """Return the variables of one of several models that were trained together."""
    return jax.tree.map(lambda leaf: leaf[index], variables)
