"""Fine-tuning on the examples of a prompt, to compare with reading them (Brown et al. 2020, figure 2.1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from experiments.in_context_learning.data import Episode, format_pairs
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.model import Model, Variables


def make_pair_rows(tokenizer: Tokenizer, episodes: Sequence[Episode], length: int) -> dict[str, np.ndarray]:
    """Return every pair of each episode as a row of its own, "ab>QX;", without examples before it.

    Args:
        tokenizer: The tokenizer of characters.
        episodes: The episodes, of N pairs each.
        length: The length of a row.

    Returns:
        `tokens`, `labels` (the next tokens) and `answers` (whether a label belongs to the answer or ends it), each
        [B, N, T], and `lengths` [B, N].
    """
    shape = len(episodes), len(episodes[0].pairs), length
    tokens, labels, answers = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
    lengths = np.zeros(shape[:2], np.int32)
    for row, episode in enumerate(episodes):
        encoded = tokenizer.encode([format_pairs([pair]) for pair in episode.pairs])
        for place, (numbers, pair) in enumerate(zip(encoded, episode.pairs, strict=True)):
            count = len(numbers) - 1
            tokens[row, place, :count], labels[row, place, :count] = numbers[:-1], numbers[1:]
            answers[row, place, len(pair.source) : count] = True
            lengths[row, place] = count
    return {"tokens": tokens, "labels": labels, "answers": answers, "lengths": lengths}


def count_correct_after_fine_tuning(
    model: Model,
    variables: Variables,
    rows: Mapping[str, Array],
    shots: Sequence[int],
    *,
    steps: int,
    learning_rate: float,
) -> Float[Array, " S"]:
    """Count the episodes whose answer is right after fine-tuning a copy of the model on the pairs before it.

    For each number k of pairs, every episode has a copy of its own, which Adam updates on the mean of -log p(token)
    over the answers of its first k pairs, in one batch. It then answers the next pair.

    Args:
        model: The model.
        variables: Its variables, which every copy starts with.
        rows: The rows of `make_pair_rows`.
        shots: The numbers of pairs.
        steps: The number of updates.
        learning_rate: Adam's learning rate.

    Returns:
        The counts.
    """
    optimizer = optax.adam(learning_rate)

    def logits(params: Any, episode: Mapping[str, Array]) -> Float[Array, "N T V"]:
        inputs = {name: episode[name] for name in ("tokens", "lengths")}
        return model.apply(variables._replace(params=params), inputs, train=False)[0]

    def loss(params: Any, episode: Mapping[str, Array], num_shots: Int[Array, ""]) -> Array:
        nats_NxT = optax.softmax_cross_entropy_with_integer_labels(logits(params, episode), episode["labels"])
        shown_NxT = episode["answers"] & (jnp.arange(len(nats_NxT)) < num_shots)[:, None]
        return jnp.sum(nats_NxT, where=shown_NxT) / jnp.maximum(jnp.sum(shown_NxT), 1)

    def is_correct(episode: Mapping[str, Array], num_shots: Int[Array, ""]) -> Array:
        def update(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, episode, num_shots), state)
            return (optax.apply_updates(params, updates), state), None

        start = variables.params, optimizer.init(variables.params)
        (params, _), _ = jax.lax.scan(update, start, None, steps)
        query = jax.tree.map(lambda values: values[num_shots][None], dict(episode))
        right_1xT = jnp.argmax(logits(params, query), axis=-1) == query["labels"]
        return jnp.all(right_1xT | ~query["answers"])

    def count(num_shots: Int[Array, ""]) -> Array:
        return jnp.sum(jax.vmap(is_correct, (0, None))(dict(rows), num_shots)).astype(jnp.float32)

    return jax.lax.map(count, jnp.asarray(shots))
