"""Normalizers: from logits to weights over the keys. A masked key or row is exactly zero, value and gradient."""

import enum
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer.attention.argument_checks import MAP_AXES, check_array, check_member
from transformer.attention.masks import check_allowed_array
from transformer.attention.random_arrays import draw_array

Allowed = Bool[Array, "#B #H #Q #K"]


class Normalizer(enum.Enum):
    """How logits become weights.

    Attributes:
        SOFTMAX: exp(s_k) / sum_j exp(s_j).
        SPARSEMAX: The nearest point of the simplex (Martins & Astudillo 2016).
        ENTMAX15: 1.5-entmax (Peters et al. 2019).
        HARD: One key, sampled from the softmax in training and the most probable one in evaluation. Its weights carry
            no gradient, but the sample's log-probability does, for REINFORCE.
        STRAIGHT_THROUGH: The same sample, with the softmax's gradient.
    """

    SOFTMAX = "softmax"
    SPARSEMAX = "sparsemax"
    ENTMAX15 = "entmax15"
    HARD = "hard"
    STRAIGHT_THROUGH = "straight_through"


SAMPLING_NORMALIZERS = frozenset({Normalizer.HARD, Normalizer.STRAIGHT_THROUGH})


class Reweighting(enum.Enum):
    """What the weights are multiplied by after normalization; they then need not sum to one.

    Attributes:
        NONE: Nothing.
        GAUSSIAN: exp(-(s - p_t)^2 / (2 (D / 2)^2)) around the mask's center, D half the width of its window (Luong et
            al. 2015, equation 10).
    """

    NONE = "none"
    GAUSSIAN = "gaussian"


class NormalizedWeights(NamedTuple):
    """The result of a normalizer.

    Attributes:
        values: The weights that multiply the values.
        probabilities: The weights before sampling or reweighting.
        log_prob: Log-probability of each query's sampled key, differentiable; None if nothing is sampled.
    """

    values: Float[Array, "B H Q K"]
    probabilities: Float[Array, "B H Q K"]
    log_prob: Float[Array, "B H Q"] | None = None


def normalize(
    logits_BxHxQxK: Float[Array, "B H Q K"],
    allowed: Allowed | None,
    kind: Normalizer = Normalizer.SOFTMAX,
    *,
    key: Key[Array, ""] | None = None,
    train: bool = False,
) -> NormalizedWeights:
    """Compute the weights of the allowed keys by softmax, sparsemax, 1.5-entmax, or by sampling one key.

    Args:
        logits_BxHxQxK: Logits.
        allowed: True where a key is visible; None allows all.
        kind: The normalizer.
        key: Random key, for sampling normalizers in training.
        train: Whether sampling normalizers sample; otherwise they take the most probable key.

    Returns:
        The weights; exactly 0 for a key that is not allowed.

    Raises:
        TypeError: If a sampling normalizer has no `key` in training, if `kind` is not a `Normalizer`, or if `allowed`
            is not boolean.
        ValueError: If shapes do not match.
    """
    check_member("kind", kind, Normalizer)
    match kind:
        case Normalizer.SOFTMAX:
            weights = softmax(logits_BxHxQxK, allowed)
        case Normalizer.SPARSEMAX:
            weights = sparsemax(logits_BxHxQxK, allowed)
        case Normalizer.ENTMAX15:
            weights = entmax15(logits_BxHxQxK, allowed)
        case Normalizer.HARD | Normalizer.STRAIGHT_THROUGH:
            if train and key is None:
                raise TypeError(f"normalizer={kind.value} draws a sample in training; give attend() a key")
            return _sample_weights(logits_BxHxQxK, allowed, key if train else None, kind)
    return NormalizedWeights(weights, weights)


def softmax(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed | None = None) -> Float[Array, "B H Q K"]:
    """Compute the softmax over the allowed keys: w_k = exp(s_k) / sum_j exp(s_j).

    A key that is not allowed has weight and gradient exactly 0. A row without any allowed key is all zeros with
    zero gradient, where a softmax over large negative logits would average the padding.

    Args:
        logits_BxHxQxK: Logits.
        allowed: True where a key is visible; None allows all.

    Returns:
        The weights, in the logits' type.

    Raises:
        TypeError: If the logits are not floating-point numbers or `allowed` is not boolean.
        ValueError: If `allowed` does not broadcast against the logits.
    """
    return _softmax(logits_BxHxQxK, _resolve_allowed(logits_BxHxQxK, allowed))


# Compiled as one where nothing else is: the infinities in it, which `jax_debug_infs` would refuse, never leave it.
_jit_inline = functools.partial(jax.jit, inline=True)


@jax.custom_jvp
@_jit_inline
def _softmax(logits: Float[Array, "B H Q K"], allowed: Allowed) -> Float[Array, "B H Q K"]:
    # Hidden logits never reach a difference: infinity minus infinity would be NaN.
    masked_logits = jnp.where(allowed, logits, -jnp.inf)
    unnormalized = jnp.exp(masked_logits - _largest_allowed_logit(logits, allowed))
    total = jnp.sum(unnormalized, axis=-1, keepdims=True)
    return unnormalized / jnp.where(total > 0, total, 1)


@_softmax.defjvp
def _softmax_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """dw_k = w_k (ds_k - sum_j w_j ds_j): two passes over the map, where automatic differentiation takes many."""
    logits, allowed = primals
    weights = _softmax(logits, allowed)
    change = jnp.where(allowed, tangents[0], 0)
    return weights, weights * (change - jnp.sum(weights * change, axis=-1, keepdims=True))


def sparsemax(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed | None = None) -> Float[Array, "B H Q K"]:
    """Compute the point of the simplex nearest to the logits (Martins & Astudillo 2016, equation 1, algorithm 1).

    w_k = max(s_k - tau, 0) with tau such that they sum to one; exactly 0 outside the support.

    Args:
        logits_BxHxQxK: Logits.
        allowed: True where a key is visible; None allows all.

    Returns:
        The weights, in the logits' type; a row without any allowed key is all zeros.

    Raises:
        TypeError: If the logits are not floating-point numbers or `allowed` is not boolean.
        ValueError: If `allowed` does not broadcast against the logits.

    Example:
        ```python
        import jax.numpy as jnp
        from transformer.attention import sparsemax

        sparsemax(jnp.array([[[[2.0, 1.5, 0.0]]]]))  # [[[[0.75, 0.25, 0.0]]]]
        ```
    """
    return _sparsemax(logits_BxHxQxK, _resolve_allowed(logits_BxHxQxK, allowed))


@_jit_inline
def _sparsemax(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed) -> Float[Array, "B H Q K"]:
    shifted = jnp.where(allowed, logits_BxHxQxK - _largest_allowed_logit(logits_BxHxQxK, allowed), 0)
    ordered = _sort_descending(shifted, allowed)
    # Sorted logits s_(1) >= ... : the support is the longest head with 1 + k s_(k) > sum of the first k.
    rank = jnp.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype)[None, None, None]
    total = jnp.cumsum(jnp.where(jnp.isfinite(ordered), ordered, 0), axis=-1)
    inside = jnp.isfinite(ordered) & (1 + rank * ordered > total)
    # The tau of the whole support is the largest. A logit is held against it and not against the smallest of the
    # support, since a compiler may round the same logit twice: what falls on the wrong side here weighs nothing.
    edge = jnp.max((total - 1) / rank, axis=-1, keepdims=True, where=inside, initial=-jnp.inf)
    # Given the support, tau is a smooth function of its logits: derivatives of every order follow by themselves.
    support = allowed & (shifted > edge)
    count = jnp.maximum(jnp.sum(support, axis=-1, keepdims=True), 1)
    tau = (jnp.sum(shifted, axis=-1, keepdims=True, where=support) - 1) / count
    # A key at the support's very edge may come out below zero by a rounding.
    return jnp.where(support & (shifted > tau), shifted - tau, 0)


def entmax15(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed | None = None) -> Float[Array, "B H Q K"]:
    """Compute 1.5-entmax, between softmax and sparsemax (Peters et al. 2019, section 3, algorithm 2).

    w_k = max(s_k / 2 - tau, 0)^2 with tau such that they sum to one; exactly 0 outside the support.

    Args:
        logits_BxHxQxK: Logits.
        allowed: True where a key is visible; None allows all.

    Returns:
        The weights, in the logits' type; a row without any allowed key is all zeros.

    Raises:
        TypeError: If the logits are not floating-point numbers or `allowed` is not boolean.
        ValueError: If `allowed` does not broadcast against the logits.
    """
    return _entmax15(logits_BxHxQxK, _resolve_allowed(logits_BxHxQxK, allowed))


@_jit_inline
def _entmax15(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed) -> Float[Array, "B H Q K"]:
    shifted = jnp.where(allowed, (logits_BxHxQxK - _largest_allowed_logit(logits_BxHxQxK, allowed)) / 2, 0)
    ordered = _sort_descending(shifted, allowed)
    # tau of the k largest alone; the support is where that tau still lies below the k-th.
    rank = jnp.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype)[None, None, None]
    finite = jnp.where(jnp.isfinite(ordered), ordered, 0)
    mean = jnp.cumsum(finite, axis=-1) / rank
    spread = jnp.cumsum(jnp.square(finite), axis=-1) - rank * jnp.square(mean)
    tau_of_rank = mean - jnp.sqrt(jnp.maximum((1 - spread) / rank, 0))
    inside = jnp.isfinite(ordered) & (tau_of_rank <= ordered)
    # As in sparsemax: a logit is held against tau, and tau is a smooth function of the support's logits.
    edge = jnp.max(tau_of_rank, axis=-1, keepdims=True, where=inside, initial=-jnp.inf)
    support = allowed & jnp.isfinite(shifted) & (shifted >= edge)
    count = jnp.maximum(jnp.sum(support, axis=-1, keepdims=True), 1)
    # The select keeps logits of minus infinity out of the squares, whose gradient they would turn into NaN.
    inner = jnp.where(support, shifted, 0)
    mean = jnp.sum(inner, axis=-1, keepdims=True) / count
    spread = jnp.sum(jnp.square(inner - mean), axis=-1, keepdims=True, where=support)
    tau = mean - jnp.sqrt((1 - spread) / count)
    return jnp.where(support, jnp.square(inner - tau), 0)


def log_sum_exp(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed | None = None) -> Float[Array, "B H Q"]:
    """Compute log sum_k exp(s_k) over the allowed keys, such that log w_k = s_k - log_sum_exp.

    Args:
        logits_BxHxQxK: Logits.
        allowed: True where a key is visible; None allows all.

    Returns:
        The log-sum-exp of each row; minus infinity where no key is allowed.

    Raises:
        TypeError: If the logits are not floating-point numbers or `allowed` is not boolean.
        ValueError: If `allowed` does not broadcast against the logits.
    """
    return _log_sum_exp(logits_BxHxQxK, _resolve_allowed(logits_BxHxQxK, allowed))


@_jit_inline
def _log_sum_exp(logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Allowed) -> Float[Array, "B H Q"]:
    largest = _largest_allowed_logit(logits_BxHxQxK, allowed)
    safe = jnp.where(allowed, logits_BxHxQxK - largest, 0)
    total = jnp.sum(jnp.where(allowed, jnp.exp(safe), 0), axis=-1)
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + largest[..., 0], -jnp.inf)


def add_sinks(
    log_sum_BxHxQ: Float[Array, "B H Q"], sinks_H: Float[Array, " H"]
) -> tuple[Float[Array, "B H Q"], Float[Array, "B H Q"]]:
    """Let every row that sees a key see its head's sink as well, a key that has no value.

    Args:
        log_sum_BxHxQ: The log-sum-exp of each row's logits.
        sinks_H: The logit of each head's sink.

    Returns:
        exp(l) / (exp(l) + exp(sink)), the part of a row's weight that stays with its keys, and the log-sum-exp with the
        sink. A row that sees no key keeps 0 and minus infinity.
    """
    sees_any_key = log_sum_BxHxQ != -jnp.inf
    safe = jnp.where(sees_any_key, log_sum_BxHxQ, 0)
    with_sink = jnp.logaddexp(safe, sinks_H.astype(log_sum_BxHxQ.dtype)[None, :, None])
    return jnp.where(sees_any_key, jnp.exp(safe - with_sink), 0), jnp.where(sees_any_key, with_sink, -jnp.inf)


def gaussian_reweight(
    weights: NormalizedWeights, center_BxHxQ: Float[Array, "B H Q"], half_width: int | float
) -> NormalizedWeights:
    """Multiply the weights by exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D / 2 (Luong et al. 2015, equation 10).

    Args:
        weights: Normalized weights.
        center_BxHxQ: Position p_t of each query.
        half_width: D, in positions.

    Returns:
        The weights with new `values`, which need not sum to one; `probabilities` stay as they are.
    """
    position_K = jnp.arange(weights.values.shape[-1], dtype=weights.values.dtype)
    distance = position_K[None, None, None] - center_BxHxQ[..., None].astype(weights.values.dtype)
    factor = jnp.exp(-jnp.square(distance) / (2 * (half_width / 2) ** 2))
    return weights._replace(values=weights.values * factor)


def _sample_weights(
    logits: Float[Array, "B H Q K"], allowed: Allowed | None, key: Key[Array, ""] | None, kind: Normalizer
) -> NormalizedWeights:
    # The largest of logits with Gumbel noise is a draw from their softmax.
    noisy = logits if key is None else logits + draw_array(jax.random.gumbel, key, logits.shape, logits.dtype)
    return _select_largest(noisy, logits, _resolve_allowed(logits, allowed), kind)


@functools.partial(jax.jit, inline=True, static_argnames="kind")
def _select_largest(
    noisy: Float[Array, "B H Q K"], logits: Float[Array, "B H Q K"], allowed: Allowed, kind: Normalizer
) -> NormalizedWeights:
    probabilities = softmax(logits, allowed)
    sampled_key = jnp.argmax(jnp.where(allowed, noisy, -jnp.inf), axis=-1)
    sample = jnp.where(allowed, jax.nn.one_hot(sampled_key, logits.shape[-1], dtype=logits.dtype), 0)
    log_sum = log_sum_exp(logits, allowed)
    sees_any_key = jnp.isfinite(log_sum)
    sampled_logit = jnp.take_along_axis(logits, sampled_key[..., None], axis=-1)[..., 0]
    log_prob = jnp.where(
        sees_any_key, jnp.where(sees_any_key, sampled_logit, 0) - jnp.where(sees_any_key, log_sum, 0), 0
    )
    if kind is Normalizer.STRAIGHT_THROUGH:
        # The value of the sample, the gradient of the probabilities (their difference to themselves is exactly 0).
        sample = sample + (probabilities - jax.lax.stop_gradient(probabilities))
    return NormalizedWeights(sample, probabilities, log_prob)


def _resolve_allowed(logits: Float[Array, "B H Q K"], allowed: Allowed | None) -> Allowed:
    """The allowed keys as booleans (all True for None), after checking shapes and types."""
    check_array("logits", logits, MAP_AXES)
    if allowed is None:
        return jnp.ones((1, 1, 1, logits.shape[-1]), bool)
    batch, heads, queries, keys = logits.shape
    check_allowed_array("allowed", allowed, (batch, heads, queries, keys))
    return allowed


def _largest_allowed_logit(logits: Float[Array, "B H Q K"], allowed: Allowed) -> Float[Array, "B H Q 1"]:
    """The largest allowed logit of each row, 0 if there is none; without gradient, since it cancels."""
    largest = jnp.max(logits, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf)
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0))


def _sort_descending(shifted: Float[Array, "B H Q K"], allowed: Allowed) -> Float[Array, "B H Q K"]:
    """The allowed logits in descending order, without gradient, followed by minus infinity."""
    masked_logits = jnp.where(allowed, jax.lax.stop_gradient(shifted), -jnp.inf)
    return -jnp.sort(-masked_logits, axis=-1)
