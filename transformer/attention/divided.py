"""Softmax of products on a mesh: each device runs its own program on its own examples, heads and positions.

Where examples and heads alone are divided no device needs another. Where positions are, keys and values travel around
a ring (`ring.py`) or are gathered. What is captured each device computes of its own rows, and small sums are added up.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from transformer.attention.blockwise import Form, Terms
from transformer.attention.capture import (
    Capture,
    Captured,
    Products,
    maps_of,
    of_chosen_heads,
    statistics_of,
    switched,
)
from transformer.attention.division import Division
from transformer.attention.library import splash_kernel
from transformer.attention.masks import of_part
from transformer.attention.positions import Alibi, Position, alibi_slopes
from transformer.attention.products import attend_products, log_sum_products
from transformer.attention.ring import Ring, attend_in_ring
from transformer.attention.spec import Backend
from transformer.axes import DividedAttention


class Program(NamedTuple):
    """What every device runs: the form of the logits, the backend, and of how many query heads it has a part."""

    division: Division
    form: Form
    backend: Backend
    interpret: bool
    heads: int


def attend_divided(
    q: Array, k: Array, v: Array, terms: Terms, program: Program, capture: Capture | None
) -> tuple[Array, Captured | None]:
    """As `attend_products` on one device, and what is captured beside it."""
    division, backend = program.division, program.backend
    if program.form.position is Position.ALIBI:
        # The slopes of a device's heads are not those of an attention that has no others.
        terms = terms._replace(position=Alibi(jnp.asarray(alibi_slopes(program.heads), jnp.float32)))
    leaves, tree = jax.tree.flatten(terms)
    q_spec, k_spec, row_spec = _specs(division)
    inputs = (q_spec, k_spec, k_spec, division.specs_of_terms(terms))
    kernels, kernel_specs = _kernel_in_parts(q, k, terms, program)

    def attend(q: Array, k: Array, v: Array, leaves: list[Array], *kernels: Any) -> tuple[Array, ...]:
        k, v = (division.own_groups(x, program.heads) for x in (k, v))
        terms = jax.tree.unflatten(tree, leaves)
        if division.crosses is DividedAttention.RING:
            return attend_in_ring(q, k, v, terms, program.form, Ring(division.length, division.parts("length")))
        k, v = (_gathered(x, division) for x in (k, v))
        kernel = kernels[0] if kernels else None
        found = attend_products(
            q, k, v, _own_terms(terms, q, program), program.form, backend, interpret=program.interpret, kernel=kernel
        )
        return tuple(x for x in found if x is not None)

    def log_sum_again(q: Array, k: Array, v: Array, leaves: list[Array]) -> Array:
        k, v = (_gathered(division.own_groups(x, program.heads), division) for x in (k, v))
        terms = _own_terms(jax.tree.unflatten(tree, leaves), q, program)
        again = Backend.BLOCKWISE if division.length else backend
        return log_sum_products(q, k, v, terms, program.form, again, interpret=program.interpret)

    keeps = backend is Backend.BLOCKWISE
    outputs = (q_spec, row_spec) if keeps else (q_spec,)
    output, *log_sum = division.on_each(attend, (*inputs, *kernel_specs), outputs)(q, k, v, leaves, *kernels)
    if capture is None:
        return output, None
    q, k, v, leaves, log_sum = jax.lax.stop_gradient((q, k, v, leaves, log_sum))

    def find() -> Captured:
        lse = log_sum[0] if keeps else division.on_each(log_sum_again, inputs, row_spec)(q, k, v, leaves)
        return _captured(
            q, k, jax.tree.unflatten(tree, leaves), lse, program, dataclasses.replace(capture, observe=None)
        )

    return output, switched(capture, find)


def _captured(q: Array, k: Array, terms: Terms, log_sum: Array, program: Program, capture: Capture) -> Captured:
    """Statistics of each device's own rows, added up; maps by the devices that have their examples and heads."""
    division = program.division
    leaves, tree = jax.tree.flatten(terms)

    def products(here: Division, q: Array, k: Array, leaves: list[Array], log_sum: Array) -> Products:
        k = _gathered(here.own_groups(k, program.heads), here)
        terms = _own_terms(jax.tree.unflatten(tree, leaves), q, program._replace(division=here))
        return Products(q, k, terms, program.form, log_sum, first_example=here.place_in("batch") * len(q))

    def statistics(*parts: Any) -> tuple[dict, dict]:
        found = statistics_of(products(division, *parts), capture)
        over = division.length if capture.by_example else division.batch + division.length
        return jax.lax.psum(found, over) if over else found

    def maps(*parts: Any) -> tuple:
        # Which heads are wanted is asked of all of them, which no device has.
        return maps_of(products(whole, *parts), dataclasses.replace(capture, heads=None))

    def run(here: Division, body: Any, output: PartitionSpec) -> Any:
        q_spec, k_spec, row_spec = _specs(here)
        inputs = (q_spec, k_spec, here.specs_of_terms(terms), row_spec)
        return here.on_each(body, inputs, output)(q, k, leaves, log_sum)

    # The few examples that are mapped are not worth a program for rows on one device and their pools on another.
    whole = division._replace(length=())
    of_heads = division.spec("batch", "heads") if capture.by_example else division.spec("heads")
    sums, counts = run(division, statistics, of_heads)
    found = run(whole, maps, whole.spec("batch", "heads")) if capture.maps else (None, None, None)
    weights, pooled, top = jax.tree.map(lambda x: of_chosen_heads(x, capture), found)
    return Captured(weights, sums, counts, pooled, top)


def _specs(division: Division) -> tuple[PartitionSpec, PartitionSpec, PartitionSpec]:
    """Where queries, keys (or values) and one number of each row lie."""
    q_spec, k_spec = (division.spec("batch", "length", heads, None) for heads in ("heads", "groups"))
    return q_spec, k_spec, division.spec("batch", "heads", "length")


def _gathered(x_BxKxGxD: Array, division: Division) -> Array:
    """The keys of all devices between which positions are divided; their gradients are added up and divided again."""
    return jax.lax.all_gather(x_BxKxGxD, division.length, axis=1, tiled=True) if division.length else x_BxKxGxD


def _own_terms(terms: Terms, q: Array, program: Program) -> Terms:
    """The terms as a device's own queries, `q`, have them beside all keys."""
    division = program.division
    if not division.length:
        return terms
    if program.backend is Backend.SPLASH and terms.mask.facts() <= {"causal"}:
        return terms  # the kernel knows, and every query sees a key
    start = division.place_in("length") * q.shape[1]
    return terms._replace(mask=of_part(terms.mask, len(q), start, 0))


def _kernel_in_parts(q: Array, k: Array, terms: Terms, program: Program) -> tuple[tuple, tuple]:
    """Splash's kernel where positions are divided, and where its tables of blocks lie; else none."""
    division = program.division
    if program.backend is not Backend.SPLASH or not division.length:
        return (), ()
    heads = program.heads // division.parts("heads")
    kernel = splash_kernel(
        terms.mask, q.shape[1], k.shape[1], heads, interpret=program.interpret, parts=division.parts("length")
    )
    return (kernel,), (kernel.manual_sharding_spec(NamedSharding(division.mesh, division.spec(None, "length"))),)
