"""Losses of token predictions."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.logical_axes import current_placement, target_platform
from transformer.models.model import Aux, AuxiliaryLoss

# The default number of logits held at once: half a GiB of float32, and on a GPU 4 GiB. Chunks cost a GPU much: the
# backward pass computes all logits again, and adds to the gradient of the whole table once a chunk.
LOGITS_AT_ONCE = 2**27
LOGITS_AT_ONCE_ON_GPUS = 2**30


class TokenLoss(NamedTuple):
    """Sums over the tokens that count.

    Attributes:
        smoothed: The cross-entropy with label smoothing, in nats.
        cross_entropy: The cross-entropy without it, in nats.
        correct: The number of labels that are the most probable token.
        squared_log_normalizer: log(Z)^2 of the softmax's denominators Z, if it is asked for; else None.
    """

    smoothed: Float[Array, ""]
    cross_entropy: Float[Array, ""]
    correct: Float[Array, ""]
    squared_log_normalizer: Float[Array, ""] | None = None


def token_loss(
    logits_BxTxV: Float[Array, "B T V"],
    labels_BxT: Int[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    label_smoothing: float,
    *,
    num_tokens: int | None = None,
    has_z_loss: bool = False,
) -> TokenLoss:
    """Sum the cross-entropy against (1 - e) one_hot(label) + e / V, with label smoothing e over V tokens.

    Label smoothing is that of Szegedy et al. 2016, section 7. Of several tokens with the largest logit the first is the
    prediction, as in argmax and greedy decoding.

    Args:
        logits_BxTxV: The logits; sums are computed in float32 at least.
        labels_BxT: The true tokens.
        counts_BxT: Which tokens count.
        label_smoothing: The smoothing e, from 0 to below 1.
        num_tokens: V, the number of tokens, if there are more logits; those behind it have no share of the smoothing.
        has_z_loss: Whether to sum log(Z)^2 too.

    Returns:
        The sums with and without smoothing, and the number of correct predictions.

    Example:
        ```python
        import jax.numpy as jnp
        from transformer.tasks.losses import token_loss

        logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]]))
        sums = token_loss(logits, jnp.array([[0]]), jnp.array([[True]]), label_smoothing=0.0)
        sums.cross_entropy  # 0.693, log 2
        ```
    """
    logits_BxTxV = logits_BxTxV.astype(jnp.promote_types(logits_BxTxV.dtype, jnp.float32))
    cross_entropy_BxT, normalizer_BxT, largest_BxT = _cross_entropies(logits_BxTxV, labels_BxT)
    # Without smoothing the program stays that of recorded runs.
    uniform_BxT = normalizer_BxT - _mean_logits(logits_BxTxV, num_tokens if label_smoothing else None)
    smoothed_BxT = (1 - label_smoothing) * cross_entropy_BxT + label_smoothing * uniform_BxT
    correct_BxT = _are_most_probable(logits_BxTxV, largest_BxT, labels_BxT)
    sums = _sum_of_counted(smoothed_BxT, cross_entropy_BxT, correct_BxT, counts_BxT)
    return _with_squared_normalizer(sums, normalizer_BxT, counts_BxT) if has_z_loss else sums


def _mean_logits(logits_BxTxV: Array, num_tokens: int | None) -> Array:
    """Return the mean of each position's logits of the first `num_tokens` tokens, or of all."""
    is_token_V = _are_tokens(logits_BxTxV.shape[-1], num_tokens)
    if is_token_V is None:
        return jnp.mean(logits_BxTxV, axis=-1)
    # Not a slice, for which a sharded vocabulary would be gathered.
    return jnp.mean(logits_BxTxV, axis=-1, where=is_token_V)


def _are_tokens(rows: int, num_tokens: int | None) -> Array | None:
    """Return which rows of a table are of a token; None if all are."""
    return None if num_tokens is None or num_tokens >= rows else jnp.arange(rows) < num_tokens


def _cross_entropies(logits_BxTxV: Array, labels_BxT: Array) -> tuple[Array, Array, Array]:
    """Return each token's cross-entropy, the logarithm of its softmax's denominator, and its largest logit."""
    largest_BxT = jax.lax.stop_gradient(jnp.max(logits_BxTxV, axis=-1))
    exponentials_BxTxV = jnp.exp(logits_BxTxV - largest_BxT[..., None])
    normalizer_BxT = largest_BxT + jnp.log(jnp.sum(exponentials_BxTxV, axis=-1))
    label_logit_BxT = jnp.take_along_axis(logits_BxTxV, labels_BxT[..., None], axis=-1)[..., 0]
    return normalizer_BxT - label_logit_BxT, normalizer_BxT, largest_BxT


def _are_most_probable(logits_BxTxV: Array, largest_BxT: Array, labels_BxT: Array) -> Array:
    # The argmax, derived from the maximum: argmax itself over the vocabulary is slow on CPUs.
    token_V = jnp.arange(logits_BxTxV.shape[-1], dtype=labels_BxT.dtype)
    among_largest_BxTxV = logits_BxTxV >= largest_BxT[..., None]
    first_BxT = jnp.min(jnp.where(among_largest_BxTxV, token_V, token_V.size), axis=-1)
    return labels_BxT == first_BxT


def _sum_of_counted(smoothed_BxT: Array, cross_entropy_BxT: Array, correct_BxT: Array, counts_BxT: Array) -> TokenLoss:
    smoothed, plain, correct = (
        jnp.sum(jnp.where(counts_BxT, value, 0)) for value in (smoothed_BxT, cross_entropy_BxT, correct_BxT)
    )
    return TokenLoss(smoothed, plain, correct.astype(plain.dtype))


def _with_squared_normalizer(sums: TokenLoss, normalizer_BxT: Array, counts_BxT: Array) -> TokenLoss:
    """Return the sums with that of log(Z)^2."""
    return sums._replace(squared_log_normalizer=jnp.sum(jnp.where(counts_BxT, jnp.square(normalizer_BxT), 0)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _token_loss_in_few_passes(
    logits_BxTxV: Float[Array, "B T V"],
    labels_BxT: Int[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    label_smoothing: float,
    num_tokens: int | None,
    has_z_loss: bool,
) -> TokenLoss:
    """Compute `token_loss` of float32 logits, reading and writing arrays of their size as rarely as possible.

    The gradient is softmax minus target, written out, where autodiff scatters the labels' part into an array of zeros.
    Without label smoothing there is no mean over the vocabulary.
    """
    return _few_passes_forward(logits_BxTxV, labels_BxT, counts_BxT, label_smoothing, num_tokens, has_z_loss)[0]


def _few_passes_forward(
    logits_BxTxV: Array,
    labels_BxT: Array,
    counts_BxT: Array,
    label_smoothing: float,
    num_tokens: int | None,
    has_z_loss: bool,
) -> tuple[TokenLoss, tuple[Array, ...]]:
    normalizer_BxT, prediction_BxT = _reduce_in_one_pass(logits_BxTxV)
    cross_entropy_BxT = normalizer_BxT - jnp.take_along_axis(logits_BxTxV, labels_BxT[..., None], axis=-1)[..., 0]
    smoothed_BxT = cross_entropy_BxT
    if label_smoothing:
        uniform_BxT = normalizer_BxT - _mean_logits(logits_BxTxV, num_tokens)
        smoothed_BxT = (1 - label_smoothing) * cross_entropy_BxT + label_smoothing * uniform_BxT
    correct_BxT = labels_BxT == prediction_BxT
    sums = _sum_of_counted(smoothed_BxT, cross_entropy_BxT, correct_BxT, counts_BxT)
    if has_z_loss:
        sums = _with_squared_normalizer(sums, normalizer_BxT, counts_BxT)
    return sums, (logits_BxTxV, labels_BxT, counts_BxT, normalizer_BxT)


def _reduce_in_one_pass(logits_BxTxV: Array) -> tuple[Array, Array]:
    """Return the log-sum-exp of each token's logits and the first of the largest, reading the logits once.

    The sums of exponentials are relative to the largest logit so far, as in Milakov and Gimelshein 2018, algorithm 3.
    Where a logit is no number, no token is the first of the largest.
    """

    def combine(one: tuple[Array, ...], other: tuple[Array, ...]) -> tuple[Array, ...]:
        (largest_1, sum_1, first_1), (largest_2, sum_2, first_2) = one, other
        largest = jnp.maximum(largest_1, largest_2)
        total = sum_1 * jnp.exp(largest_1 - largest) + sum_2 * jnp.exp(largest_2 - largest)
        is_first = (largest_1 > largest_2) | ((largest_1 == largest_2) & (first_1 < first_2))
        return largest, total, jnp.where(is_first, first_1, first_2)

    dtype, axis, vocabulary = logits_BxTxV.dtype, logits_BxTxV.ndim - 1, logits_BxTxV.shape[-1]
    token_BxTxV = jax.lax.broadcasted_iota(jnp.int32, logits_BxTxV.shape, axis)
    # Not minus infinity, from which the difference to another one is no number.
    start = (jnp.asarray(jnp.finfo(dtype).min, dtype), jnp.zeros((), dtype), jnp.int32(vocabulary))
    operands = (logits_BxTxV, jnp.ones_like(logits_BxTxV), token_BxTxV)
    largest_BxT, total_BxT, first_BxT = jax.lax.reduce(operands, start, combine, (axis,))
    return largest_BxT + jnp.log(total_BxT), jnp.where(jnp.isnan(largest_BxT), vocabulary, first_BxT)


def _few_passes_backward(
    label_smoothing: float, num_tokens: int | None, has_z_loss: bool, saved: tuple[Array, ...], gradient: TokenLoss
) -> tuple[Array, None, None]:
    logits_BxTxV, labels_BxT, counts_BxT, normalizer_BxT = saved
    softmax_BxTxV = jnp.exp(logits_BxTxV - normalizer_BxT[..., None])
    at_label = (1 - label_smoothing) * gradient.smoothed + gradient.cross_entropy
    rows = logits_BxTxV.shape[-1]
    everywhere = label_smoothing * gradient.smoothed / min(num_tokens or rows, rows)
    is_token_V = _are_tokens(rows, num_tokens)
    if is_token_V is not None:
        everywhere = jnp.where(is_token_V, everywhere, 0)
    is_label_BxTxV = jnp.arange(logits_BxTxV.shape[-1], dtype=labels_BxT.dtype) == labels_BxT[..., None]
    target_BxTxV = jnp.where(is_label_BxTxV, at_label, 0) + everywhere
    softmax_weight = gradient.smoothed + gradient.cross_entropy
    if has_z_loss:
        assert gradient.squared_log_normalizer is not None
        softmax_weight = (softmax_weight + 2 * gradient.squared_log_normalizer * normalizer_BxT)[..., None]
    logits_gradient_BxTxV = softmax_weight * softmax_BxTxV - target_BxTxV
    return jnp.where(counts_BxT[..., None], logits_gradient_BxTxV, 0), None, None


_token_loss_in_few_passes.defvjp(_few_passes_forward, _few_passes_backward)


def add_z_loss(aux: Aux, sums: TokenLoss, counts_BxT: Bool[Array, "B T"], weight: float) -> Aux:
    """Add weight x the mean of log(Z)^2 to the losses of a pass, with Z the softmax's denominator of a predicted token.

    It keeps log(Z) near 0, where logits are precise (Chowdhery et al. 2022, PaLM, section 5, with the weight 1e-4).

    Args:
        aux: The auxiliary results of the pass.
        sums: The sums of its loss, with `squared_log_normalizer` if the weight is not 0.
        counts_BxT: Which tokens count.
        weight: The weight; 0 adds nothing.
    """
    if not weight:
        return aux
    assert sums.squared_log_normalizer is not None
    total, count = sums.squared_log_normalizer, jnp.sum(counts_BxT).astype(jnp.float32)
    return aux._replace(losses={**aux.losses, "z_loss": AuxiliaryLoss(total, count, weight)})


def class_loss(logits_BxC: Float[Array, "B C"], labels_B: Int[Array, " B"], counts_B: Bool[Array, " B"]) -> TokenLoss:
    """Apply `token_loss` to one class for each example, without smoothing.

    Args:
        logits_BxC: The logits.
        labels_B: The true classes.
        counts_B: Which examples count.
    """
    return token_loss(logits_BxC[:, None], labels_B[:, None], counts_B[:, None], label_smoothing=0.0)


def chunked_token_loss(
    score: Callable[[Float[Array, "B C E"]], Float[Array, "B C V"]],
    hidden_BxTxE: Float[Array, "B T E"],
    labels_BxT: Int[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    label_smoothing: float,
    *,
    num_tokens: int | None = None,
    logits_at_once: int | None = None,
    has_z_loss: bool = False,
) -> TokenLoss:
    """Compute `token_loss` of score(hidden) without ever holding more logits than `logits_at_once`.

    If there are more, positions are processed in chunks, one after another; the backward pass recomputes the logits of
    each chunk. For hidden states in bfloat16 the gradient is written out. In float32 it stays autodiff's, to the last
    bit, so that recorded runs can be reproduced.

    Args:
        score: The map from hidden states to logits.
        hidden_BxTxE: The hidden states.
        labels_BxT: The true tokens.
        counts_BxT: Which tokens count.
        label_smoothing: The smoothing e, from 0 to below 1.
        num_tokens: The number of tokens over which it smooths, if there are more logits.
        logits_at_once: About how many logits exist at one time on one device; None means 2^30 on GPUs, else 2^27.
        has_z_loss: Whether to sum log(Z)^2 too.
    """
    if logits_at_once is None:
        logits_at_once = LOGITS_AT_ONCE_ON_GPUS if target_platform() == "gpu" else LOGITS_AT_ONCE

    def chunk_loss(hidden: Array, labels: Array, counts: Array) -> TokenLoss:
        if hidden.dtype == jnp.bfloat16:
            return _token_loss_in_few_passes(
                score(hidden).astype(jnp.float32), labels, counts, label_smoothing, num_tokens, has_z_loss
            )
        return token_loss(score(hidden), labels, counts, label_smoothing, num_tokens=num_tokens, has_z_loss=has_z_loss)

    batch, length, _ = hidden_BxTxE.shape
    vocabulary = jax.eval_shape(score, hidden_BxTxE[:, :1]).shape[-1]
    placement = current_placement()
    num_logit_shards, num_length_shards = 1, 1
    if placement is not None:
        num_logit_shards, num_length_shards = (
            placement.num_shards("batch") * placement.num_shards("vocabulary"),
            placement.num_shards("length"),
        )
    # A multiple of the devices between which positions are sharded.
    chunk = max(logits_at_once * num_logit_shards // (batch * vocabulary), 1) * num_length_shards
    if chunk >= length:
        return chunk_loss(hidden_BxTxE, labels_BxT, counts_BxT)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, -length % chunk), *((0, 0),) * (x.ndim - 2)))
        # Strided, so that each chunk has positions of every device.
        return jnp.moveaxis(padded.reshape(batch, chunk, -1, *x.shape[2:]), 2, 0)

    @jax.checkpoint
    def add(sums: TokenLoss, part: tuple[Array, Array, Array]) -> tuple[TokenLoss, None]:
        return jax.tree.map(jnp.add, sums, chunk_loss(*part)), None

    parts = tuple(map(cut, (hidden_BxTxE, labels_BxT, counts_BxT)))
    zero = jnp.zeros((), jnp.promote_types(hidden_BxTxE.dtype, jnp.float32))
    sums, _ = jax.lax.scan(add, TokenLoss(zero, zero, zero, zero if has_z_loss else None), parts)
    return sums
