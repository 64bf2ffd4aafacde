"""Batch normalization, a layer with state.

A layer with state has `initial_state(key)` and returns the next state beside its output; nothing is mutated. A model
puts these states into `Variables.state` and returns the next ones as `Aux.state`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer.layers.functional_module import Module, ParameterBuilder


class BatchStatistics(NamedTuple):
    """The running statistics of every feature, used in evaluation.

    Attributes:
        mean: The mean.
        variance: The unbiased variance.
    """

    mean: Float[Array, " F"]
    variance: Float[Array, " F"]


class BatchNorm(Module):
    """Batch normalization, y = scale (x - mean) / sqrt(variance + epsilon) + bias (Ioffe and Szegedy 2015).

    In training, mean and (biased) variance are those of the batch over all axes but the last (algorithm 1), and the
    running statistics are updated: running = (1 - momentum) running + momentum new, where the new variance is unbiased,
    as in PyTorch (algorithm 2 computes it at the end). In evaluation the running statistics are used. Statistics are in
    float32 or wider. On a mesh they are those of the whole batch; under gradient accumulation, those of each
    microbatch.

    Args:
        width: Number of features.
        momentum: Weight of the new statistics.
        epsilon: Added to the variance.
        builder: Makes the parameters.

    Raises:
        ValueError: If `momentum` is not above 0 and at most 1.
    """

    def __init__(
        self,
        width: int,
        *,
        momentum: float = 0.1,
        epsilon: float = 1e-5,
        builder: ParameterBuilder,
    ):
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum={momentum} must be above 0 and at most 1: the share of a step's own statistics")
        self.scale = builder.parameter(jax.nn.initializers.ones, (width,), ("features",))
        self.bias = builder.parameter(jax.nn.initializers.zeros, (width,), ("features",))
        self.width, self.momentum, self.epsilon = width, momentum, epsilon

    def initial_state(self, key: Key[Array, ""] | None = None) -> BatchStatistics:
        """Mean 0 and variance 1; the key is ignored."""
        return BatchStatistics(jnp.zeros(self.width), jnp.ones(self.width))

    def __call__(
        self,
        x: Float[Array, "*B F"],
        state: BatchStatistics,
        *,
        train: bool,
        mask: Bool[Array, "*B"] | None = None,
    ) -> tuple[Float[Array, "*B F"], BatchStatistics]:
        """Normalize each feature.

        Args:
            x: Activations, features last.
            state: The running statistics.
            train: Whether to use and update with the batch's statistics.
            mask: True for the rows or positions that count. Others are left out of the statistics and come out as
                zeros. A batch with none leaves the state unchanged.

        Returns:
            The normalized x, in its type, and the next state (the same in evaluation).
        """
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        broadcast = functools.partial(jax.lax.broadcast_to_rank, rank=x.ndim)
        if mask is not None:
            wide = jnp.where(mask[..., None], wide, 0)
        if train:
            axes = tuple(range(x.ndim - 1))
            counted = jnp.ones(x.shape[:-1], bool) if mask is None else mask
            count = jnp.sum(counted).astype(wide.dtype)
            mean = jnp.sum(wide, axis=axes) / jnp.maximum(count, 1)
            centered = jnp.where(counted[..., None], wide - broadcast(mean), 0)
            variance = jnp.sum(jnp.square(centered), axis=axes) / jnp.maximum(count, 1)
            unbiased = variance * count / jnp.maximum(count - 1, 1)
            state = self._update_statistics(state, BatchStatistics(mean, unbiased), count)
        else:
            mean, variance = (statistic.astype(wide.dtype) for statistic in state)
            centered = wide - broadcast(mean)
        y = centered * broadcast(jax.lax.rsqrt(variance + self.epsilon)) * broadcast(self.scale[...])
        y = y + broadcast(self.bias[...])
        if mask is not None:
            y = jnp.where(mask[..., None], y, 0)
        return y.astype(x.dtype), state

    def _update_statistics(
        self, state: BatchStatistics, batch_statistics: BatchStatistics, count: Array
    ) -> BatchStatistics:
        momentum = jnp.where(count > 0, self.momentum, 0)
        averages = [
            (1 - momentum) * old + momentum * jax.lax.stop_gradient(one)
            for old, one in zip(state, batch_statistics, strict=True)
        ]
        return BatchStatistics(*(one.astype(old.dtype) for one, old in zip(averages, state, strict=True)))
