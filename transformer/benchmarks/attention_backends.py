"""Time one attention, forward and backward, on every backend, in alternation on the same arrays."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.backends import (
    BACKENDS,
    AttentionVariant,
    CallShape,
    choose_backend,
    limit_exceeded,
    unsupported_reason,
    uses_interpret_mode,
)
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.statistics import STATISTICS


class BackendTimings(NamedTuple):
    """Median seconds of a forward and backward pass by backend, plain and with all head statistics captured.

    `auto` is the backend that would be selected.
    """

    length: int
    auto: Backend
    plain: dict[Backend, float]
    captured: dict[Backend, float]


def time_backends(
    *, length: int, batch_size: int, num_heads: int, head_dim: int, dtype: str, causal: bool, repeats: int
) -> BackendTimings:
    """Time self-attention of random arrays on every backend that supports it on this machine."""
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (batch_size, length, num_heads, head_dim), dtype) for key in keys)
    mask, shape = Mask(causal=causal), CallShape.from_arrays(q, k, v)
    variant = AttentionVariant.from_call(AttentionSpec(), mask, AttentionParameters(), bias=False)
    supported = [
        backend
        for backend in BACKENDS
        if not (
            unsupported_reason(backend, variant)
            or limit_exceeded(backend, shape, variant.features)
            or uses_interpret_mode(backend, shape)
        )
    ]
    statistics_alone = Capture(("here",), maps=False, statistics=tuple(STATISTICS.values()))
    programs = {
        (backend, capture): _jit_gradient(backend, mask, capture)
        for backend in supported
        for capture in (None, statistics_alone)
    }
    times: dict = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            start_seconds = time.perf_counter()
            jax.block_until_ready(program(q, k, v))
            if repeat:  # the first compiles
                times[name].append(time.perf_counter() - start_seconds)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return BackendTimings(
        length,
        choose_backend(AttentionSpec(), variant, shape),
        {backend: medians[backend, None] for backend in supported},
        {backend: medians[backend, statistics_alone] for backend in supported},
    )


def _jit_gradient(backend: Backend, mask: Mask, capture: Capture | None) -> Callable[..., object]:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, object]:
        output, attended = attend(q, k, v, spec=AttentionSpec(backend=backend), mask=mask, capture=capture)
        return jnp.sum(output.astype(jnp.float32)), attended.captured

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
