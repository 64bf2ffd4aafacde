"""`attend` and the public stages of attention that it composes."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from transformer.attention.argument_checks import describe_value, is_array
from transformer.attention.attend_checks import (
    check_attend_call,
    check_log_sum,
    check_prepare_keys_call,
    check_score_and_position,
    check_score_call,
    check_weighted_sum_call,
)
from transformer.attention.attention_spec import (
    AttentionParameters,
    AttentionSpec,
    Backend,
    check_logit_modification,
    resolve_logit_modification,
)
from transformer.attention.backends import (
    AttentionVariant,
    CallShape,
    choose_backend,
    log_backend_choice,
    uses_interpret_mode,
)
from transformer.attention.blockwise import LogitScaling, LogitTerms, log_sum_exp_blockwise
from transformer.attention.capture import (
    Capture,
    CapturedAttention,
    capture_from_queries_and_keys,
    capture_weights,
    check_capture,
)
from transformer.attention.indexed_function import IndexedFunction, index_function
from transformer.attention.inverted_dropout import dropout
from transformer.attention.kernels import attend_with_kernel, log_sum_exp_with_kernel
from transformer.attention.logit_modification import LogitModification
from transformer.attention.masks import (
    Mask,
    dense_mask,
    query_positions,
    with_indexed_function,
    zero_hidden_keys,
    zero_padded_queries,
)
from transformer.attention.normalizers import (
    NormalizedWeights,
    Reweighting,
    add_sinks,
    gaussian_reweight,
    log_sum_exp,
    normalize,
)
from transformer.attention.positions import SCHEMES, AttentionPosition, PositionScheme, resolve_position_scheme
from transformer.attention.pytree_dataclass import pytree_dataclass, static_field
from transformer.attention.reference_mode import is_tracing_reference
from transformer.attention.requested_activations import LOGITS, WEIGHTS, is_requested
from transformer.attention.scores import ScoreFunction, ScoreKind, repeat_heads, resolve_score_function, score_class
from transformer.attention.sharded_attention import ShardedProgram, attend_sharded, attention_sharding


class AttentionAux(NamedTuple):
    """Everything that `attend` returns beside the output.

    Attributes:
        captured: Maps and statistics as requested by `capture`; None without a request.
        log_prob: Log-probability of each query's sampled key, differentiable, for the normalizers `hard` and
            `straight_through`; else None.
        log_sum_exp: log sum_k exp(s_k) of each row's logits if requested by `log_sum_exp=True`; else None.
    """

    captured: CapturedAttention | None
    log_prob: Float[Array, "B H Q"] | None = None
    log_sum_exp: Float[Array, "B H Q"] | None = None


@pytree_dataclass
class PreparedKeys:
    """Keys that `prepare_keys` has transformed for one score and position scheme.

    A pytree whose only leaf is `keys`, so that caches, scans, shardings and beam search carry it like an array. The
    static fields let `score` refuse keys that were prepared for another score.

    Attributes:
        keys: [B, K, H, A] for scores with a hidden layer (A units), [B, K, H, D] for `general`, else [B, K, G, D]. A
            shape or a sharding where a program is only described.
        kind: The score that the keys were prepared for.
        position: The position scheme that was applied to them.
        depth: Size of a key vector before it was prepared (C).
    """

    # An array; where a program is described alone, a shape or a sharding.
    keys: Any
    kind: ScoreKind = static_field()
    position: AttentionPosition = static_field()
    depth: int = static_field()


def prepare_keys(
    k_BxKxGxC: Float[Array, "B K G C"],
    kind: ScoreKind,
    position: AttentionPosition = AttentionPosition.NONE,
    params: AttentionParameters | None = None,
) -> PreparedKeys:
    """Compute the part of a score that depends on the keys alone.

    Call it once per memory, outside a loop over queries, and pass the result to `score`.

    Args:
        k_BxKxGxC: Keys, G key heads of C features each.
        kind: The score function.
        position: The position scheme; `rotary` rotates each key by its index.
        params: The trained parameters of the score and the position scheme; None where neither has any.

    Returns:
        The prepared keys. Their gradient reaches `k_BxKxGxC` and `params`.

    Raises:
        TypeError: If `kind` or `position` is not a member of its enum, or if `params` belong to another score.
        ValueError: If shapes do not match, or if the score does not support the position scheme.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from transformer.attention import AttentionParameters, General, Score, prepare_keys, score

        q, k = jax.random.normal(jax.random.key(0), (2, 1, 5, 3, 8))
        params = AttentionParameters(General(jnp.ones((3, 8, 8))))
        keys = prepare_keys(k, Score.GENERAL, params=params)
        score(q, keys, Score.GENERAL, params=params).shape  # (1, 3, 5, 5)
        ```
    """
    params = AttentionParameters() if params is None else params
    check_prepare_keys_call(k_BxKxGxC, kind, position, params)
    keys = _transform_keys(
        k_BxKxGxC, resolve_score_function(kind, params.score), resolve_position_scheme(position, params.position)
    )
    return PreparedKeys(keys, kind, position, k_BxKxGxC.shape[-1])


def score(
    q_BxQxHxD: Float[Array, "B Q H D"],
    prepared: PreparedKeys | Float[Array, "B K _ _"],
    kind: ScoreKind,
    position: AttentionPosition = AttentionPosition.NONE,
    params: AttentionParameters | None = None,
    *,
    scale: float | None = None,
    modification: LogitModification | None = None,
    positions: Int[Array, "#B Q"] | None = None,
    bias: Float[Array, "#B #H #Q #K"] | None = None,
) -> Float[Array, "B H Q K"]:
    """Compute the logits of every query head against keys from `prepare_keys`.

    The equations are those of the classes in `SCORES` and `SCHEMES`. Relative positions and `bias` are added.

    Args:
        q_BxQxHxD: Queries, H heads of D features each.
        prepared: Keys from `prepare_keys`. The scores that need no preparation (dot, scaled_dot,
            squared_distance and location) also take the plain array, [B, K, G, D], unless the position scheme rotates
            the keys.
        kind: The score function.
        position: The position scheme.
        params: The trained parameters of the score and the position scheme; None where neither has any.
        scale: Factor on the logits, for scaled_dot only; None means 1 / sqrt(D).
        modification: A function of the scaled logits; None changes nothing.
        positions: The position of each query; None means its index.
        bias: Added to the scaled logits.

    Returns:
        The logits, in float32 or wider whatever the inputs' type.

    Raises:
        TypeError: If `kind` or `position` is not a member of its enum, if `params` belong to another score, or if the
            keys need preparation and were not prepared, or if `modification` is not a function.
        ValueError: If the keys were prepared for another score or position, if shapes do not match, or if the score has
            no such scale or position scheme.
    """
    params = AttentionParameters() if params is None else params
    keys, depth = _unwrap_prepared_keys(prepared, kind, position)
    check_logit_modification(modification)
    check_score_call(q_BxQxHxD, keys, depth, kind, position, params, scale=scale, positions=positions, bias=bias)
    consecutive = positions is None
    if positions is None:
        positions = jnp.arange(q_BxQxHxD.shape[1], dtype=jnp.int32)[None]
    function, scheme = resolve_score_function(kind, params.score), resolve_position_scheme(position, params.position)
    return _compute_logits(
        q_BxQxHxD,
        keys,
        function,
        scheme,
        positions,
        consecutive=consecutive,
        scale=scale,
        modification=index_function(modification, q_BxQxHxD.shape[0], q_BxQxHxD.shape[2]),
        bias=bias,
    )


def weighted_sum(
    weights_BxHxQxK: Float[Array, "B H Q K"], v_BxKxGxD: Float[Array, "B K G D"]
) -> Float[Array, "B Q H D"]:
    """Compute the weighted sum of the values, o_q = sum_k w_qk v_k, in the values' type.

    Args:
        weights_BxHxQxK: Attention weights.
        v_BxKxGxD: Values. Each of the G value heads serves H / G neighboring query heads.

    Returns:
        The output of each query and head.

    Raises:
        ValueError: If the weights and values do not match in batch, keys or heads.
        TypeError: If either is not an array of floating-point numbers.
    """
    check_weighted_sum_call(weights_BxHxQxK, v_BxKxGxD)
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
    params: AttentionParameters | None = None,
    key: Key[Array, ""] | None = None,
    train: bool = False,
    capture: Capture | None = None,
    log_sum_exp: bool = False,
) -> tuple[Float[Array, "B Q H Dv"], AttentionAux]:
    """Compute Attention(Q, K, V) = normalize(score(Q, K) + bias) V.

    `attend(q, k, v)` is softmax(Q K' / sqrt(D)) V with every query seeing every key (Vaswani et al. 2017, equation 1).
    Keys and values may have fewer heads than queries, G dividing H: grouped-query attention (Ainslie et al. 2023),
    multi-query attention for G = 1 (Shazeer 2019). Softmax and log-sum-exp are computed in float32 or wider. A query
    that sees no key gives exactly 0.

    Padding, NaN included, has no effect on the output or on gradients. Padding means queries beyond `query_lengths`,
    and keys and values that a single field of the mask, or a bias of minus infinity, hides from every query. The
    exception is a key-value cache: what `causal` or `window` hides behind a `query_offset` is read and must be finite.

    Inside a mesh placement (`transformer.logical_axes`) the call is sharded as `attention_sharding` says, with the same
    result as on one device.

    Args:
        q_BxQxHxD: Queries, H heads of D features each.
        k_BxKxGxC: Keys, G key heads of C features each; C = D for inner products.
        v_BxKxGxDv: Values.
        spec: The score, normalizer, reweighting, position scheme and backend; the default is scaled dot product with
            softmax.
        mask: Which keys each query may see; by default all of them.
        bias: Added to the logits; minus infinity hides a key.
        params: Trained parameters of the score and of the position scheme, sinks, and a modification of the logits that
            has arrays; None where there are none.
        key: Random key for sampling normalizers and for `spec.dropout`; used in training only.
        train: Whether to apply dropout and sampling.
        capture: Which maps and statistics to return; None captures nothing. Weights are captured before dropout.
        log_sum_exp: Whether to return the log-sum-exp of each row's logits.

    Returns:
        The output, and an `AttentionAux`. Its `log_sum_exp` [B, H, Q] is log sum_k exp(s_k) over the keys that a query
        sees, and over its head's sink if there are sinks: differentiable, and minus infinity for a query that sees
        none. It combines two calls on parts of the keys, only one of which may have the sinks, and
        exp(s_k - log_sum_exp) are the softmax's weights.

    Raises:
        ValueError: If arrays, masks or heads do not match each other; if the chosen backend, or ring attention, does
            not support the combination; if `spec.dropout` is used in training without a `key`; or if `log_sum_exp` is
            requested of sparsemax or entmax15, which have none.
        TypeError: If an argument has another type, such as a string or an array for `spec`, `mask`, `capture` or
            `log_sum_exp`; if `params` do not belong to the score; or if a sampling normalizer has no `key` in training.

    Example:
        ```python
        import jax
        from transformer.attention import Capture, Mask, attend

        q = k = v = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
        output, aux = attend(q, k, v, mask=Mask(causal=True), capture=Capture(sites=("here",)))
        output.shape  # (1, 5, 2, 8)
        aux.captured.weights.shape  # (1, 2, 5, 5)
        ```
    """
    params = AttentionParameters() if params is None else params
    check_attend_call(q_BxQxHxD, k_BxKxGxC, v_BxKxGxDv, spec, mask, bias, params)
    check_capture(capture)
    check_log_sum(log_sum_exp, spec)
    if train and spec.dropout > 0 and key is None:
        raise ValueError(f"dropout={spec.dropout} drops weights in training and key=None; give attend() a key")
    q = zero_padded_queries(mask, q_BxQxHxD)
    k = zero_hidden_keys(mask, k_BxKxGxC, q.shape[1], bias)
    v = zero_hidden_keys(mask, v_BxKxGxDv, q.shape[1], bias)
    shards = attention_sharding(q, k)
    variant = AttentionVariant.from_call(spec, mask, params, bias=bias is not None, train=train)
    shape = CallShape.from_arrays(q, k, v, shards)
    # The softmax is in `_attend_dense` (EINSUM), `blockwise.attend_query_block` (BLOCKWISE), or in the kernel of a
    # library (XLA, CUDNN, SPLASH; transformer.attention.kernels).
    backend = choose_backend(spec, variant, shape)
    if is_tracing_reference() or is_requested(LOGITS) or is_requested(WEIGHTS):
        backend = Backend.EINSUM
    else:
        log_backend_choice(backend, variant, shape)
    function = resolve_score_function(spec.score, params.score)
    scheme = resolve_position_scheme(spec.position, params.position)
    mask = with_indexed_function(mask, q.shape[0], q.shape[2])
    modification = index_function(resolve_logit_modification(spec, params), q.shape[0], q.shape[2])

    if backend is Backend.EINSUM:
        # The compiler divides this program, by where its inputs lie: each query with all keys.
        if shards is not None:
            q = shards.constrain(q, "batch", "length", "heads", None)
            k = shards.constrain(k, "batch", None, "groups", None)
            v = shards.constrain(v, "batch", None, "groups", None)
        output, attended = _attend_dense(
            q,
            k,
            v,
            spec,
            mask,
            bias,
            function,
            scheme,
            modification,
            params.sinks_H,
            key,
            train,
            capture,
            wants_log_sum=log_sum_exp,
        )
        return output if shards is None else shards.constrain(output, "batch", "length", "heads", None), attended

    q = function.query(scheme.encode_queries(q, query_positions(mask, q.shape[1])))
    k = _transform_keys(k, function, scheme)
    terms = LogitTerms(mask, bias, scheme if scheme.adds_position_bias else None, modification, params.sinks_H)
    scaling = LogitScaling(function.scale(q.shape[-1], spec.scale), spec.temperature)
    interpret = uses_interpret_mode(backend, shape)
    if shards is not None:
        program = ShardedProgram(shards, scaling, backend, interpret, q.shape[2])
        output, captured, log_sum = attend_sharded(q, k, v, terms, program, capture, wants_log_sum=log_sum_exp)
        return output, AttentionAux(captured, log_sum_exp=log_sum)

    keep = capture is not None or log_sum_exp
    output, log_sum = attend_with_kernel(q, k, v, terms, scaling, backend, interpret=interpret, keep=keep)
    if log_sum_exp and log_sum is None:
        # In blocks: a kernel's own comes in the type of its inputs, or without a gradient.
        log_sum = log_sum_exp_blockwise(q, k, terms, scaling)
    compute_log_sum = functools.partial(
        log_sum_exp_with_kernel, *jax.lax.stop_gradient((q, k, v, terms)), scaling, backend, interpret=interpret
    )
    captured = capture_from_queries_and_keys(
        q, k, capture, terms=terms, scaling=scaling, log_sum=compute_log_sum if log_sum is None else log_sum
    )
    return output, AttentionAux(captured, log_sum_exp=log_sum if log_sum_exp else None)


def _attend_dense(
    q: Array,
    k: Array,
    v: Array,
    spec: AttentionSpec,
    mask: Mask,
    bias: Array | None,
    function: ScoreFunction,
    scheme: PositionScheme,
    modification: IndexedFunction | None,
    sinks_H: Array | None,
    key: Array | None,
    train: bool,
    capture: Capture | None,
    *,
    wants_log_sum: bool,
) -> tuple[Array, AttentionAux]:
    """The reference implementation, with the whole map of logits and weights in memory."""
    positions = query_positions(mask, q.shape[1])
    prepared = _transform_keys(k, function, scheme)
    logits = _compute_logits(
        q,
        prepared,
        function,
        scheme,
        positions,
        consecutive=True,
        scale=spec.scale,
        modification=modification,
        bias=bias,
    )
    if spec.temperature != 1:
        logits = logits / spec.temperature
    logits = checkpoint_name(logits, LOGITS)
    dropout_key = None
    if train and spec.dropout > 0:
        assert key is not None
        # Which key a sampler draws must tell nothing of which weights are dropped.
        key, dropout_key = jax.random.split(key)
    allowed = dense_mask(mask, queries=q.shape[1], keys=k.shape[1])
    log_sum = log_sum_exp(logits, allowed) if wants_log_sum or sinks_H is not None else None
    weights = normalize(logits, allowed, spec.normalizer, key=key, train=train)
    if sinks_H is not None:
        assert log_sum is not None
        share, log_sum = add_sinks(log_sum, sinks_H)
        values = weights.values * share[..., None]
        weights = NormalizedWeights(values, values)
    if spec.reweighting is Reweighting.GAUSSIAN:
        assert mask.center is not None
        assert mask.window is not None
        weights = gaussian_reweight(weights, mask.center, sum(mask.window) / 2)
    weights = weights._replace(values=checkpoint_name(weights.values, WEIGHTS))
    dropped = dropout(weights.values, spec.dropout, dropout_key)
    output = weighted_sum(dropped, v)
    from_positions = scheme.position_values(dropped, positions)
    if from_positions is not None:
        output = output + from_positions.astype(output.dtype)
    captured = capture_weights(weights.values, capture, logits=logits, mask=mask)
    return output, AttentionAux(captured, weights.log_prob, log_sum if wants_log_sum else None)


def _transform_keys(k: Array, function: ScoreFunction, scheme: PositionScheme) -> Array:
    return function.prepare(scheme.encode_keys(k, jnp.arange(k.shape[1], dtype=jnp.int32)[None]))


def _compute_logits(
    q: Array,
    prepared: Array,
    function: ScoreFunction,
    scheme: PositionScheme,
    positions: Array,
    *,
    consecutive: bool,
    scale: float | None,
    modification: IndexedFunction | None,
    bias: Array | None,
) -> Array:
    """modification((score + position products) scale) + position bias + bias, in float32 or wider."""
    heads, keys = q.shape[2], prepared.shape[1]
    logits_BxHxQxK = function.logits(function.query(scheme.encode_queries(q, positions)), prepared)
    position_products = scheme.position_logits(q, prepared, positions, consecutive=consecutive)
    if position_products is not None:
        logits_BxHxQxK = logits_BxHxQxK + position_products
    logits_BxHxQxK = logits_BxHxQxK * function.scale(scheme.num_products * q.shape[-1], scale)
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    key_1x1xK = jnp.arange(keys, dtype=jnp.int32)[None, None]
    if modification is not None:
        logits_BxHxQxK = modification(positions[:, None, :, None], key_1x1xK[:, None], logits_BxHxQxK)
    position_bias = scheme.position_bias(positions, key_1x1xK, heads, dtype)
    for term in (position_bias, bias):
        if term is not None:
            logits_BxHxQxK = logits_BxHxQxK + term.astype(dtype)
    return logits_BxHxQxK


def _unwrap_prepared_keys(
    prepared: PreparedKeys | Array, kind: ScoreKind, position: AttentionPosition
) -> tuple[Array, int]:
    """The array of keys prepared for this score and position, and the depth of the keys before preparation."""
    check_score_and_position(kind, position)
    call = f"prepare_keys(k, {kind}, {position}, params)"
    if isinstance(prepared, PreparedKeys):
        if (prepared.kind, prepared.position) != (kind, position):
            raise ValueError(
                f"prepared holds keys for {prepared.kind} and {prepared.position}, not for {kind} and {position}; "
                f"give {call}"
            )
        return prepared.keys, prepared.depth
    if not is_array(prepared):
        raise TypeError(f"prepared is {describe_value(prepared)}; give {call}")
    if not score_class(kind).uses_raw_keys or SCHEMES[position].rotates_features:
        raise TypeError(f"prepared is {describe_value(prepared)}, keys that are not prepared for {kind}; give {call}")
    return prepared, prepared.shape[-1] if prepared.ndim else 0
