"""Softmax attention over positions that are divided: keys and values travel from device to device."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.blockwise import (
    BLOCK,
    Gradients,
    LogitForm,
    LogitTerms,
    backward,
    centre_of,
    forward,
    in_types_of,
    reachable,
)
from transformer.attention.fields import axes_of
from transformer.attention.masks import of_part


class Ring(NamedTuple):
    """The mesh axes around which keys and values travel, and how many devices stand around it."""

    axes: tuple[str, ...]
    size: int

    def next(self, held: Any) -> Any:
        """What the device before this one held; what this one held goes to the device behind it."""
        pairs = [(place, (place + 1) % self.size) for place in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axes, pairs), held)


def attend_in_ring(
    q: Array, k: Array, v: Array, terms: LogitTerms, form: LogitForm, ring: Ring, block: int = BLOCK
) -> tuple[Array, Array]:
    """softmax((scale q . k + terms) / temperature) v of a device's own queries and all keys, and the log-sum-exp.

    Run by each device of the ring on its own positions: in as many steps as there are devices it attends to the keys
    and values that it holds and hands them on, and combines the partial results by their log-sum-exp (Liu et al.
    2023, Ring Attention; Milakov & Gimelshein 2018). The backward pass goes round again from the log-sum-exp, and the
    gradients of keys and values travel with them, so that memory is linear in a device's own positions. `terms` are
    those of its queries and of all keys. What the positions alone hide from all of a device's queries it skips.
    """
    leaves, tree = jax.tree.flatten(terms)
    return _attend(q, k, v, leaves, tree, form, ring, block)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _attend(
    q: Array, k: Array, v: Array, leaves: list[Array], tree: Any, form: LogitForm, ring: Ring, block: int
) -> tuple:
    terms = tree.unflatten(leaves)
    wide = jnp.promote_types(q.dtype, jnp.float32)

    def step(index: Array, carry: Any, held: Any) -> tuple[Any, Any]:
        _, chunk, reach = _chunk(terms, q, k, ring, index)

        def compute(carry: Any) -> Any:
            return _combined(carry, forward(q, held[0], held[1], chunk, form, block, wide))

        return _where_reached(reach, compute, carry), held

    rows = (q.shape[0], q.shape[2], q.shape[1])
    empty = jnp.zeros((*q.shape[:3], v.shape[3]), wide), jnp.full(rows, -jnp.inf, wide)
    (output, log_sum), _ = _around(ring, step, empty, (k, v))
    return output.astype(v.dtype), log_sum


def _forward_rule(
    q: Array, k: Array, v: Array, leaves: list[Array], tree: Any, form: LogitForm, ring: Ring, block: int
) -> tuple:
    output, log_sum = _attend(q, k, v, leaves, tree, form, ring, block)
    return (output, log_sum), (q, k, v, leaves, output, log_sum)


def _backward_rule(tree: Any, form: LogitForm, ring: Ring, block: int, kept: Any, cotangents: Any) -> tuple:
    q, k, v, leaves, output, log_sum = kept
    terms = tree.unflatten(leaves)
    d_output, d_log_sum = cotangents
    wide = log_sum.dtype
    centre = centre_of(output, log_sum, d_output, d_log_sum)

    def step(index: Array, carry: Any, held: Any) -> tuple[Any, Any]:
        start, chunk, reach = _chunk(terms, q, k, ring, index)
        k_held, v_held, d_k, d_v = held

        def compute(sums: Gradients) -> Gradients:
            new = backward(q, k_held, v_held, chunk, d_output, centre, log_sum, form, block, wide)
            whole = _of_all_keys(new.terms[0], sums.terms[0], start), new.terms[1]
            return jax.tree.map(jnp.add, sums, new._replace(terms=whole))

        d_q, d_terms = carry
        sums = _where_reached(reach, compute, Gradients(d_q, d_k, d_v, d_terms))
        return (sums.q, sums.terms), (k_held, v_held, sums.k, sums.v)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, wide), (q, k, v, (terms.bias, terms.position)))
    d_q, d_k, d_v, d_terms = zeros
    (d_q, d_terms), (*_, d_k, d_v) = _around(ring, step, (d_q, d_terms), (k, v, d_k, d_v))
    # One step further they are home.
    d_k, d_v = ring.next((d_k, d_v))
    return in_types_of(q, k, v, terms, Gradients(d_q, d_k, d_v, d_terms))


_attend.defvjp(_forward_rule, _backward_rule)


def _around(ring: Ring, step: Callable[[Array, Any, Any], Any], carry: Any, held: Any) -> tuple[Any, Any]:
    """`step(index, carry, held)` at each place of the ring; between two steps what is held travels."""

    def one(both: Any, index: Array) -> tuple[Any, None]:
        carry, held = step(index, *both)
        return (carry, ring.next(held)), None

    last = ring.size - 1
    both, _ = jax.lax.scan(one, (carry, held), jnp.arange(last))
    return step(jnp.int32(last), *both)


def _where_reached[T](reach: Array | None, compute: Callable[[T], T], carry: T) -> T:
    return compute(carry) if reach is None else jax.lax.cond(reach, compute, lambda same: same, carry)


def _chunk(terms: LogitTerms, q: Array, k: Array, ring: Ring, index: Array) -> tuple[Array, LogitTerms, Array | None]:
    """Of the keys that are held in step `index`: the first, their terms, and whether a query may see any of them."""
    place = jax.lax.axis_index(ring.axes)
    queries, keys = q.shape[1], k.shape[1]
    start = (place - index) % ring.size * keys

    held = _held(terms, start, keys)
    part = of_part(held.mask, len(q), place * queries, start)
    reach = reachable(part, jnp.arange(queries, dtype=jnp.int32), jnp.arange(keys, dtype=jnp.int32))
    return start, dataclasses.replace(held, mask=part), reach


def _held(terms: LogitTerms, start: Array, keys: int) -> LogitTerms:
    """The terms of the held keys alone, of arrays with an axis of all keys."""

    def cut(axes: tuple[str, ...], leaf: Array) -> Array:
        axis = axes.index("keys") if "keys" in axes else None
        if axis is None or leaf.shape[axis] == 1:
            return leaf
        return jax.lax.dynamic_slice_in_dim(leaf, start, keys, axis=axis)

    leaves, tree = jax.tree.flatten(terms)
    return jax.tree.unflatten(tree, map(cut, axes_of(terms), leaves))


def _of_all_keys(columns: Array | None, like: Array | None, start: Array) -> Array | None:
    """The other way: zeros but for the columns of the held keys."""
    if columns is None or like is None or like.shape[3] == 1:
        return columns
    return jax.lax.dynamic_update_slice_in_dim(jnp.zeros_like(like), columns, start, axis=3)


def _combined(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two partial outputs, [B, Q, H, D], and log-sum-exps, [B, H, Q], as one."""
    log_sum = jnp.logaddexp(left[1], right[1])
    finite = jnp.where(jnp.isfinite(log_sum), log_sum, 0)

    def share(part: tuple[Array, Array]) -> Array:
        return part[0] * jnp.moveaxis(jnp.exp(part[1] - finite), 1, 2)[..., None]

    return share(left) + share(right), log_sum
