"""Softmax of products of queries and keys, by the fused program that was chosen."""

from typing import Any

from jaxtyping import Array

from transformer.attention.blockwise import Form, Terms, attend_blockwise, log_sum_blockwise
from transformer.attention.library import dot_product_attention, splash_attention, splash_log_sum
from transformer.attention.spec import Backend


def attend_products(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    form: Form,
    backend: Backend,
    *,
    interpret: bool,
    kernel: Any = None,
) -> tuple[Array, Array | None]:
    """softmax((scale q . k + terms) / temperature) v, and its log-sum-exp where the program keeps it.

    `kernel`: the part of splash's that a device runs, where positions are divided.
    """
    match backend:
        case Backend.BLOCKWISE:
            return attend_blockwise(q, k, v, terms, form)
        case Backend.SPLASH:
            factor = form.scale / form.temperature
            return splash_attention(q, k, v, terms.mask, factor, interpret=interpret, kernel=kernel), None
        case _:
            return dot_product_attention(q, k, v, terms, form, backend), None


def log_sum_products(
    q: Array, k: Array, v: Array, terms: Terms, form: Form, backend: Backend, *, interpret: bool
) -> Array:
    """The log-sum-exp of each row, by one more pass of the kernel, or in blocks: what only capturing should pay."""
    if backend is Backend.SPLASH:
        return splash_log_sum(q, k, v, terms.mask, form.scale / form.temperature, interpret=interpret)
    return log_sum_blockwise(q, k, terms, form)
