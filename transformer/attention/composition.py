"""The public stages of attention, and attend(), which composes them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention import positions as relative
from transformer.attention.backends import Combination, choose, circumstances, interpreted, log_choice
from transformer.attention.blockwise import Form, Terms
from transformer.attention.capture import Capture, Captured, capture_products, capture_weights, check_capture
from transformer.attention.checks import check_call, check_weights
from transformer.attention.divided import Program, attend_divided
from transformer.attention.division import Division, division_of
from transformer.attention.drop import dropout
from transformer.attention.masks import Mask, clear_keys, clear_queries, dense, query_positions
from transformer.attention.normalisers import Reweighting, gaussian, normalise
from transformer.attention.parameters import Parameters
from transformer.attention.positions import Position, Shaw
from transformer.attention.products import attend_products, log_sum_products
from transformer.attention.scores import prepare_keys, product_keys, product_queries, repeat_heads, scaling, score
from transformer.attention.spec import AttentionSpec, Backend


class Attended(NamedTuple):
    """What attend() returns beside its output: the maps asked for, and of a hard sample its log-probability."""

    captured: Captured | None
    log_prob: Float[Array, "B H Q"] | None = None


def read(weights_BxHxQxK: Float[Array, "B H Q K"], v_BxKxGxD: Float[Array, "B K G D"]) -> Float[Array, "B Q H D"]:
    """The weighted sum of the values, o_q = sum_k w_qk v_k, in the values' type.

    Each of the G value heads is read by its H / G neighbouring query heads.

    Errors: ValueError for weights and values that do not fit each other, TypeError for what is no array of
    floating-point numbers.
    """
    check_weights(weights_BxHxQxK, v_BxKxGxD)
    values = repeat_heads(v_BxKxGxD, weights_BxHxQxK.shape[1])
    return jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxQxK.astype(v_BxKxGxD.dtype), values)


def attend(
    q_BxQxHxD: Float[Array, "B Q H D"],
    k_BxKxGxC: Float[Array, "B K G C"],
    v_BxKxGxDv: Float[Array, "B K G Dv"],
    *,
    spec: AttentionSpec = AttentionSpec(),  # noqa: B008 (frozen)
    mask: Mask = Mask(),  # noqa: B008
    bias: Float[Array, "#B #H #Q #K"] | None = None,
    params: Parameters | None = None,
    key: Key[Array, ""] | None = None,
    train: bool = False,
    capture: Capture | None = None,
) -> tuple[Float[Array, "B Q H Dv"], Attended]:
    """Attention(Q, K, V) = normalise(score(Q, K) + bias) V, and its maps and head statistics when asked for.

    `attend(q, k, v)` is softmax(Q K' / sqrt(D)) V, every query seeing every key (Vaswani et al. 2017, equation 1).
    Keys and values may have fewer heads than queries, G dividing H: grouped-query attention (Ainslie et al. 2023),
    multi-query for G = 1 (Shazeer 2019). Softmax and log-sum-exp are at least float32. A query that may see no key
    gives exactly 0. What stands in padding, NaN included (queries beyond `query_lengths`; keys and values that
    `key_lengths` or `allowed` hides from every query), has no effect on output or gradient. `key` and `train` matter to
    the normalisers that draw a sample and to `spec.dropout`, which zeroes weights in training alone and behind whatever
    is captured.

    Traced for a placement (`transformer.axes`), it is divided over the mesh as `division_of` says, and gives what one
    device would.

    Errors: ValueError for arrays, masks or heads that do not fit each other, for a combination that the named
    backend, or a ring, does not take, and for dropout in training without a key; TypeError for an argument of another
    type, such as a string or an array for `spec`, `mask` or `capture`, and for parameters that are not the score's own.
    """
    params = Parameters() if params is None else params
    check_call(q_BxQxHxD, k_BxKxGxC, v_BxKxGxDv, spec, mask, bias, params)
    check_capture(capture)
    q_BxQxHxD = clear_queries(mask, q_BxQxHxD)
    k_BxKxGxC, v_BxKxGxDv = clear_keys(mask, k_BxKxGxC), clear_keys(mask, v_BxKxGxDv)
    if train and spec.dropout > 0 and key is None:
        raise ValueError(f"dropout={spec.dropout} drops weights in training and key=None; give attend() a key")
    combination = Combination.of(spec, mask, bias=bias is not None, train=train)
    division = division_of(q_BxQxHxD, k_BxKxGxC)
    at = circumstances(q_BxQxHxD, k_BxKxGxC, v_BxKxGxDv, division)
    backend = choose(spec, combination, at)
    log_choice(backend, combination, at)
    if backend is Backend.EINSUM:
        run = functools.partial(_dense, spec=spec, mask=mask, bias=bias, params=params, key=key, train=train)
        return _laid_out(run, q_BxQxHxD, k_BxKxGxC, v_BxKxGxDv, division, capture)
    q = product_queries(q_BxQxHxD, spec.score, spec.position, params, query_positions(mask, q_BxQxHxD.shape[1]))
    k = product_keys(k_BxKxGxC, spec.score, spec.position, params)
    in_blocks = spec.position if spec.position in relative.BIASES else Position.NONE
    terms = Terms(mask, bias, None if in_blocks is Position.NONE else params.position)
    form = Form(in_blocks, scaling(spec.score, q_BxQxHxD.shape[-1], spec.scale), spec.temperature)
    interpret = interpreted(backend, at)
    if division is not None:
        program = Program(division, form, backend, interpret, q.shape[2])
        output, captured = attend_divided(q, k, v_BxKxGxDv, terms, program, capture)
        return output, Attended(captured)
    output, kept = attend_products(q, k, v_BxKxGxDv, terms, form, backend, interpret=interpret)
    inputs = jax.lax.stop_gradient((q, k, v_BxKxGxDv, terms))
    again = functools.partial(log_sum_products, *inputs, form, backend, interpret=interpret)
    log_sum = again if kept is None else kept
    return output, Attended(capture_products(q, k, capture, terms=terms, form=form, log_sum=log_sum))


def _laid_out(
    run: Callable[..., tuple[Array, Attended]],
    q: Array,
    k: Array,
    v: Array,
    division: Division | None,
    capture: Capture | None,
) -> tuple[Array, Attended]:
    """The dense program, which the compiler divides by where its inputs lie: each query with all keys."""
    if division is None:
        return run(q, k, v, capture)
    k, v = (division.lay(x, "batch", None, "groups", None) for x in (k, v))
    output, attended = run(division.lay(q, "batch", "length", "heads", None), k, v, capture)
    return division.lay(output, "batch", "length", "heads", None), attended


def _dense(
    q: Array,
    k: Array,
    v: Array,
    capture: Capture | None,
    *,
    spec: AttentionSpec,
    mask: Mask,
    bias: Array | None,
    params: Parameters,
    key: Array | None,
    train: bool,
) -> tuple[Array, Attended]:
    """The reference: every logit, every weight."""
    positions = query_positions(mask, q.shape[1])
    prepared = prepare_keys(k, spec.score, spec.position, params)
    logits = score(q, prepared, spec.score, spec.position, params, scale=spec.scale, positions=positions, bias=bias)
    if spec.temperature != 1:
        logits = logits / spec.temperature
    allowed = dense(mask, queries=q.shape[1], keys=k.shape[1])
    dropout_key = None
    if train and spec.dropout > 0:
        assert key is not None
        # Which key a sampler draws must tell nothing of which weights are dropped.
        key, dropout_key = jax.random.split(key)
    weights = normalise(logits, allowed, spec.normaliser, key=key, train=train)
    if spec.reweighting is Reweighting.GAUSSIAN:
        assert mask.centre is not None
        assert mask.window is not None
        weights = gaussian(weights, mask.centre, sum(mask.window) / 2)
    used = dropout(weights.values, spec.dropout, dropout_key)
    output = read(used, v)
    if isinstance(params.position, Shaw) and params.position.values_PxD is not None:
        output = output + relative.relative_values(params.position, used, positions).astype(output.dtype)
    captured = capture_weights(weights.values, capture, logits=logits, mask=mask)
    return output, Attended(captured, weights.log_prob)
