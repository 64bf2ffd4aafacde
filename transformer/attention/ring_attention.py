"""Ring attention: softmax attention with sharded positions, where keys and values travel from device to device."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.blockwise import (
    BLOCK,
    Gradients,
    LogitScaling,
    LogitTerms,
    add_sinks_to_output,
    any_key_within_reach,
    blockwise_backward,
    blockwise_forward,
    cast_gradients,
    gradient_delta,
)
from transformer.attention.masks import mask_for_block
from transformer.attention.pytree_dataclass import field_axes


class Ring(NamedTuple):
    """The ring of devices around which keys and values travel.

    With `num_chunks` 2, device p holds the p-th chunk from the beginning and the p-th from the end of 2 size
    equal chunks. Causal attention is then balanced; with one chunk the last device computes the most and the
    first next to nothing (Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.3.2).

    Attributes:
        axes: The mesh axes that form the ring.
        size: Number of devices in it.
        num_chunks: Contiguous chunks of positions per device: 1 or 2.
    """

    axes: tuple[str, ...]
    size: int
    num_chunks: int = 1

    def next(self, arrays: Any) -> Any:
        """Send these arrays to the next device and return those of the previous one."""
        pairs = [(place, (place + 1) % self.size) for place in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axes, pairs), arrays)

    def place(self) -> Array:
        """This device's index in the ring."""
        return jax.lax.axis_index(self.axes)

    def starts(self, place: Array, length: int) -> tuple[Array, ...]:
        """The first position of each chunk of the device at `place`; `length` is a chunk's number of positions."""
        return (place * length, (2 * self.size - 1 - place) * length)[: self.num_chunks]

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of query and key chunks that may interact: with two, early queries see no late key."""
        return ((0, 0),) if self.num_chunks == 1 else ((0, 0), (1, 0), (1, 1))

    def split_into_chunks(self, x: Array, axis: int) -> tuple[Array, ...]:
        """This device's chunks of an array that is sharded in order along `axis`."""
        if self.num_chunks == 1:
            return (x,)
        halves = jnp.split(x, 2, axis=axis)
        # Half j goes to the device j from the nearer end: one of the even and one of the odd halves to each.
        even, odd = (
            jax.lax.ppermute(chunk, self.axes, [(place, self._owner(2 * place + parity)) for place in range(self.size)])
            for parity, chunk in enumerate(halves)
        )
        return _swap_unless(self.place() % 2 == 0, even, odd)

    def join_chunks(self, chunks: tuple[Array, ...], axis: int) -> Array:
        """The inverse of `split_into_chunks`: this device's part of the array sharded in order."""
        if self.num_chunks == 1:
            return chunks[0]
        halves = _swap_unless(self.place() % 2 == 0, *chunks)
        even, odd = (
            jax.lax.ppermute(chunk, self.axes, [(self._owner(2 * place + parity), place) for place in range(self.size)])
            for parity, chunk in enumerate(halves)
        )
        return jnp.concatenate([even, odd], axis=axis)

    def _owner(self, half_index: int) -> int:
        return min(half_index, 2 * self.size - 1 - half_index)


def _swap_unless(keep: Array, first: Array, second: Array) -> tuple[Array, Array]:
    return jnp.where(keep, first, second), jnp.where(keep, second, first)


def attend_in_ring(
    q: Array, k: Array, v: Array, terms: LogitTerms, scaling: LogitScaling, ring: Ring, block: int = BLOCK
) -> tuple[Array, Array]:
    """Compute softmax((scale q . k + terms) / temperature) v of a device's own queries and all keys.

    Every device of the ring runs it on its own positions: in as many steps as there are devices it attends to the keys
    and values that it holds, passes them on, and combines the partial results by their log-sum-exp (Liu et al. 2023,
    Ring Attention; Milakov & Gimelshein 2018). The backward pass goes round again from the log-sum-exp, and the
    gradients of keys and values travel with them, so that memory is linear in a device's own positions. Steps in which
    positions alone hide every key from a chunk of queries are skipped.

    Args:
        q: The device's own queries.
        k: The device's own keys.
        v: The device's own values.
        terms: Mask, bias and position bias of its own queries and all keys.
        scaling: Scale and temperature.
        ring: The ring.
        block: Queries and keys of one block.

    Returns:
        The output of its own queries and their log-sum-exp.
    """
    without_sinks = dataclasses.replace(terms, sinks_H=None)
    leaves, tree = jax.tree.flatten(without_sinks)
    axes = [names.index("queries") if "queries" in names else None for names in field_axes(without_sinks)]
    leaf_chunks = [
        (leaf,) * ring.num_chunks if axis is None or leaf.shape[axis] == 1 else ring.split_into_chunks(leaf, axis)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    leaves_by_chunk = tuple([leaf[part] for leaf in leaf_chunks] for part in range(ring.num_chunks))
    qs, ks, vs = (ring.split_into_chunks(x, 1) for x in (q, k, v))
    outputs, log_sums = _attend(qs, ks, vs, leaves_by_chunk, tree, scaling, ring, block)
    return add_sinks_to_output(ring.join_chunks(outputs, 1), ring.join_chunks(log_sums, 2), terms)


Chunks = tuple[Array, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _attend(
    qs: Chunks, ks: Chunks, vs: Chunks, leaves: Any, tree: Any, scaling: LogitScaling, ring: Ring, block: int
) -> tuple[Chunks, Chunks]:
    """The outputs and log-sum-exps of each chunk of queries."""
    terms = [tree.unflatten(chunk_leaves) for chunk_leaves in leaves]
    wide = jnp.promote_types(qs[0].dtype, jnp.float32)

    def step(index: Array, carry: list, key_values: Any) -> tuple[list, Any]:
        ring_k, ring_v = key_values
        for pair in _chunk_pairs(terms, qs, ks, ring, index):

            def compute(partial: Any, pair: ChunkPair = pair) -> Any:
                k, v = ring_k[pair.keys], ring_v[pair.keys]
                return _combine_outputs(
                    partial, blockwise_forward(qs[pair.queries], k, v, pair.terms, scaling, block, wide)
                )

            carry = _replace_at(carry, pair.queries, _compute_if_visible(pair.reach, compute, carry[pair.queries]))
        return carry, key_values

    empty = [
        (jnp.zeros((*q.shape[:3], vs[0].shape[3]), wide), jnp.full((len(q), q.shape[2], q.shape[1]), -jnp.inf, wide))
        for q in qs
    ]
    carry, _ = _scan_ring(ring, step, empty, (ks, vs))
    outputs, log_sums = zip(*carry, strict=True)
    return tuple(output.astype(vs[0].dtype) for output in outputs), log_sums


def _forward_rule(
    qs: Chunks, ks: Chunks, vs: Chunks, leaves: Any, tree: Any, scaling: LogitScaling, ring: Ring, block: int
) -> tuple:
    outputs, log_sums = _attend(qs, ks, vs, leaves, tree, scaling, ring, block)
    return (outputs, log_sums), (qs, ks, vs, leaves, outputs, log_sums)


def _backward_rule(tree: Any, scaling: LogitScaling, ring: Ring, block: int, residuals: Any, cotangents: Any) -> tuple:
    qs, ks, vs, leaves, outputs, log_sums = residuals
    terms = [tree.unflatten(chunk_leaves) for chunk_leaves in leaves]
    d_outputs, d_log_sums = cotangents
    wide = log_sums[0].dtype
    deltas = [gradient_delta(*chunk) for chunk in zip(outputs, log_sums, d_outputs, d_log_sums, strict=True)]

    def step(index: Array, carry: list, traveling: Any) -> tuple[list, Any]:
        ring_k, ring_v, d_ks, d_vs = traveling
        for pair in _chunk_pairs(terms, qs, ks, ring, index):

            def compute(sums: Gradients, pair: ChunkPair = pair) -> Gradients:
                queries, keys = pair.queries, pair.keys
                from_output = d_outputs[queries], deltas[queries], log_sums[queries]
                new = blockwise_backward(
                    qs[queries], ring_k[keys], ring_v[keys], pair.terms, *from_output, scaling, block, wide
                )
                d_terms = new.terms
                if pair.terms.bias is not None:
                    d_terms = [_pad_to_all_keys(d_terms[0], sums.terms[0], pair.start), *d_terms[1:]]
                return jax.tree.map(jnp.add, sums, new._replace(terms=d_terms))

            d_q, d_terms = carry[pair.queries]
            sums = Gradients(d_q, d_ks[pair.keys], d_vs[pair.keys], d_terms)
            sums = _compute_if_visible(pair.reach, compute, sums)
            carry = _replace_at(carry, pair.queries, (sums.q, sums.terms))
            d_ks, d_vs = _replace_at(d_ks, pair.keys, sums.k), _replace_at(d_vs, pair.keys, sums.v)
        return carry, (ring_k, ring_v, d_ks, d_vs)

    def zeros(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, wide), tree)

    carry = [(zeros(q), zeros(chunk_terms.differentiable_arrays())) for q, chunk_terms in zip(qs, terms, strict=True)]
    carry, (*_, d_ks, d_vs) = _scan_ring(ring, step, carry, (ks, vs, zeros(list(ks)), zeros(list(vs))))
    # One step further they are home.
    d_ks, d_vs = ring.next((d_ks, d_vs))
    gradients = [
        cast_gradients(q, k, v, chunk_terms, Gradients(d_q, d_k, d_v, d_terms))
        for q, k, v, chunk_terms, (d_q, d_terms), d_k, d_v in zip(qs, ks, vs, terms, carry, d_ks, d_vs, strict=True)
    ]
    return tuple(tuple(chunks) for chunks in zip(*gradients, strict=True))


_attend.defvjp(_forward_rule, _backward_rule)


def _scan_ring(ring: Ring, step: Callable[[Array, Any, Any], Any], carry: Any, arrays: Any) -> tuple[Any, Any]:
    """Run `step(index, carry, arrays)` at each place of the ring; the arrays travel between two steps."""

    def scan_step(state: Any, index: Array) -> tuple[Any, None]:
        carry, traveling = step(index, *state)
        return (carry, ring.next(traveling)), None

    last = ring.size - 1
    state, _ = jax.lax.scan(scan_step, (carry, arrays), jnp.arange(last))
    return step(jnp.int32(last), *state)


def _compute_if_visible[T](reach: Array | None, compute: Callable[[T], T], carry: T) -> T:
    return compute(carry) if reach is None else jax.lax.cond(reach, compute, lambda same: same, carry)


class ChunkPair(NamedTuple):
    """A chunk of queries and one of keys.

    Attributes:
        queries: Which chunk of queries.
        keys: Which chunk of keys.
        start: Position of the first key.
        terms: Their mask, bias and position bias.
        reach: Whether a query may see any key; None if certainly so.
    """

    queries: int
    keys: int
    start: Array
    terms: LogitTerms
    reach: Array | None


def _chunk_pairs(terms: Sequence[LogitTerms], qs: Chunks, ks: Chunks, ring: Ring, index: Array) -> Iterator[ChunkPair]:
    """The pairs that are computed in step `index`."""
    length, key_length = qs[0].shape[1], ks[0].shape[1]
    starts = ring.starts(ring.place(), length)
    key_starts = ring.starts((ring.place() - index) % ring.size, key_length)
    for queries, keys in ring.pairs():
        key_terms = _restrict_to_keys(terms[queries], key_starts[keys], key_length)
        block_mask = mask_for_block(key_terms.mask, len(qs[0]), starts[queries], key_starts[keys])
        reach = any_key_within_reach(
            block_mask, jnp.arange(length, dtype=jnp.int32), jnp.arange(key_length, dtype=jnp.int32)
        )
        modification = key_terms.modification
        if modification is not None:
            modification = modification.shifted(key_starts[keys])
        block_terms = dataclasses.replace(key_terms, mask=block_mask, modification=modification)
        yield ChunkPair(queries, keys, key_starts[keys], block_terms, reach)


def _replace_at(parts: list, place: int, new: Any) -> list:
    return [new if index == place else part for index, part in enumerate(parts)]


def _restrict_to_keys(terms: LogitTerms, start: Array, keys: int) -> LogitTerms:
    """The terms restricted to some keys."""

    def cut(axes: tuple[str | None, ...], leaf: Array) -> Array:
        axis = axes.index("keys") if "keys" in axes else None
        if axis is None or leaf.shape[axis] == 1:
            return leaf
        return jax.lax.dynamic_slice_in_dim(leaf, start, keys, axis=axis)

    leaves, tree = jax.tree.flatten(terms)
    return jax.tree.unflatten(tree, map(cut, field_axes(terms), leaves))


def _pad_to_all_keys(columns: Array, like: Array, start: Array) -> Array:
    """The inverse for gradients: zeros except in the columns of these keys."""
    if like.shape[3] == 1:
        return columns
    return jax.lax.dynamic_update_slice_in_dim(jnp.zeros_like(like), columns, start, axis=3)


def _combine_outputs(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Combine two partial outputs, [B, Q, H, D], and log-sum-exps, [B, H, Q]."""
    log_sum = jnp.logaddexp(first[1], second[1])
    finite = jnp.where(jnp.isfinite(log_sum), log_sum, 0)

    def share(part: tuple[Array, Array]) -> Array:
        return part[0] * jnp.moveaxis(jnp.exp(part[1] - finite), 1, 2)[..., None]

    return share(first) + share(second), log_sum
