"""Checks of the arguments of `attend` and its stages, made before anything is computed."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.argument_checks import (
    MAP_AXES,
    check_array,
    check_floats,
    check_heads,
    check_member,
    describe_value,
    is_array,
)
from transformer.attention.attention_spec import (
    AttentionParameters,
    AttentionSpec,
    check_logit_modification,
    check_scale,
    incompatible_reason,
)
from transformer.attention.masks import Mask, check_broadcast, check_mask
from transformer.attention.normalizers import Normalizer
from transformer.attention.positions import SCHEMES, AttentionPosition, PositionScheme
from transformer.attention.pytree_dataclass import is_pytree
from transformer.attention.scores import (
    Score,
    ScoreFunction,
    ScoreKind,
    check_score_kind,
    resolve_score_function,
    score_class,
    score_name,
)


def check_attend_call(
    q: Array, k: Array, v: Array, spec: AttentionSpec, mask: Mask, bias: Array | None, params: AttentionParameters
) -> None:
    """Check that the arguments of `attend` match each other.

    Args:
        q: Queries, [B, Q, H, D].
        k: Keys, [B, K, G, C].
        v: Values, [B, K, G, Dv].
        spec: The attention's configuration.
        mask: The mask.
        bias: Added to the logits, or None.
        params: The parameters of the score and the position scheme.

    Raises:
        ValueError: If shapes or values do not match; names both sides.
        TypeError: If an argument has another type, or if `params` belong to another score or position scheme.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        check_array(name, array)
    if not isinstance(spec, AttentionSpec):
        inside = str(spec) if isinstance(spec, Score) else "score=Score.COSINE, ..."
        raise TypeError(f"spec is {describe_value(spec)}; it must be an AttentionSpec, such as AttentionSpec({inside})")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} differ in their batch, the first size")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"k {k.shape} and v {v.shape} differ in length or heads")
    check_heads("q", q.shape[2], q.shape, "k", k.shape[2], k.shape)
    _check_parameters(spec.score, spec.position, params)
    resolve_score_function(spec.score, params.score).check(q.shape, k.shape, "k")
    if params.position is not None:
        params.position.check(q, v.shape[3])
    check_logit_modification(params.logit_modification, "params.logit_modification")
    if not is_pytree(params.logit_modification):
        raise TypeError(
            f"params.logit_modification={params.logit_modification} has no arrays; "
            "give spec=AttentionSpec(logit_modification=...)"
        )
    if params.sinks_H is not None:
        check_floats("params.sinks_H", params.sinks_H)
        if params.sinks_H.shape != q.shape[2:3]:
            raise ValueError(f"params.sinks_H has shape {params.sinks_H.shape}; q {q.shape} needs ({q.shape[2]},)")
    check_mask(mask, batch=q.shape[0], heads=q.shape[2], queries=q.shape[1], keys=k.shape[1])
    _check_bias(bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))


def check_score_and_position(kind: ScoreKind, position: AttentionPosition) -> None:
    """Check that a score and a position scheme are valid and can be combined.

    Raises:
        TypeError: If either is not a member of its enum.
        ValueError: If the two cannot be combined; says why.
    """
    check_score_kind("kind", kind)
    check_member("position", position, AttentionPosition)
    why = incompatible_reason(kind, position)
    if why is not None:
        raise ValueError(f"score={score_name(kind)} x position={position.value} has no meaning: {why}")


def check_prepare_keys_call(
    k: Array, kind: ScoreKind, position: AttentionPosition, params: AttentionParameters
) -> None:
    """Check the arguments of `prepare_keys`, including the parameters that multiply the keys.

    Raises:
        ValueError: If shapes do not match, or if the score and the position scheme cannot be combined.
        TypeError: If an argument has another type, or if `params` belong to another score or position scheme.
    """
    check_score_and_position(kind, position)
    check_array("k", k)
    _check_parameters(kind, position, params)
    side = None if params.score is None else params.score.key_parameter(k.shape[3])
    if side is None:
        return
    name, fits = side
    weight = getattr(params.score, name)
    if weight.ndim != 3 or not fits or weight.shape[0] % k.shape[2]:
        raise ValueError(
            f"params.score.{name} has shape {weight.shape}; k {k.shape} needs a multiple of its {k.shape[2]} heads "
            f"and its depth, {k.shape[3]}"
        )


def check_score_call(
    q: Array,
    prepared: Array,
    depth: int,
    kind: ScoreKind,
    position: AttentionPosition,
    params: AttentionParameters,
    *,
    scale: float | None,
    positions: Array | None,
    bias: Array | None,
) -> None:
    """Check the arguments of `score`.

    Args:
        q: Queries, [B, Q, H, D].
        prepared: Prepared keys.
        depth: Size of a key vector before it was prepared.
        kind: The score function.
        position: The position scheme.
        params: The parameters of both.
        scale: Factor on the logits, or None.
        positions: Positions of the queries, or None.
        bias: Added to the logits, or None.

    Raises:
        ValueError: If shapes do not match, or if the score has no such scale or position scheme.
        TypeError: If an argument has another type, or if `params` belong to another score or position scheme.
    """
    check_array("q", q)
    check_array("prepared", prepared)
    _check_parameters(kind, position, params)
    check_scale(scale, kind)
    if q.shape[0] != prepared.shape[0]:
        raise ValueError(f"q {q.shape} and prepared {prepared.shape} differ in their batch, the first size")
    check_heads("q", q.shape[2], q.shape, "prepared", prepared.shape[2], prepared.shape)
    function = resolve_score_function(kind, params.score)
    function.check(q.shape, (*prepared.shape[:3], depth), "prepared")
    unprepared = jax.ShapeDtypeStruct((*prepared.shape[:3], depth), prepared.dtype)
    expected_shape = jax.eval_shape(function.prepare, unprepared).shape[2:]
    if prepared.shape[2:] != expected_shape:
        raise ValueError(
            f"prepared {prepared.shape} needs to end in {expected_shape}; give keys prepared with these very params"
        )
    if params.position is not None:
        params.position.check(q, None)
    if positions is not None:
        fitting = ((q.shape[0], q.shape[1]), (1, q.shape[1]))
        are_integers = is_array(positions) and jnp.issubdtype(positions.dtype, jnp.integer)
        if not are_integers or positions.shape not in fitting:
            needed = " or ".join(map(str, fitting))
            raise ValueError(
                f"positions is {describe_value(positions)}; q {q.shape} needs whole numbers of shape {needed}"
            )
    _check_bias(bias, (q.shape[0], q.shape[2], q.shape[1], prepared.shape[1]))


def check_weighted_sum_call(weights: Array, v: Array) -> None:
    """Check the arguments of `weighted_sum`.

    Raises:
        ValueError: If the weights and values do not match in batch, keys or heads.
        TypeError: If either is not an array of floating-point numbers.
    """
    check_array("weights", weights, MAP_AXES)
    check_array("v", v)
    if weights.shape[0] != v.shape[0]:
        raise ValueError(f"weights {weights.shape} and v {v.shape} differ in their batch, the first size")
    if weights.shape[3] != v.shape[1]:
        raise ValueError(f"weights {weights.shape} are of {weights.shape[3]} keys, v {v.shape} of {v.shape[1]}")
    check_heads("weights", weights.shape[1], weights.shape, "v", v.shape[2], v.shape)


def _check_parameters(kind: ScoreKind, position: AttentionPosition, params: AttentionParameters) -> None:
    """Check that `params` are `AttentionParameters` of this score and position scheme.

    Raises:
        TypeError: If they are not; says which are needed.
    """
    if not isinstance(params, AttentionParameters):
        role = "position" if isinstance(params, PositionScheme) else "score"
        inside = f"{role}={type(params).__name__}(...)" if isinstance(params, PositionScheme | ScoreFunction) else ""
        raise TypeError(f"params is {describe_value(params)}; it must be AttentionParameters({inside})")
    for role, owner, needed, component in (
        ("score", score_name(kind), score_class(kind), params.score),
        ("position", position.value, SCHEMES[position], params.position),
    ):
        if component is None and needed.parameters != "required":
            continue
        if needed.parameters == "none" or not isinstance(component, needed):
            actual_name = "nothing" if component is None else type(component).__name__
            expected = "no parameters" if needed.parameters == "none" else f"params.{role}={needed.__name__}(...)"
            raise TypeError(f"{role}={owner} takes {expected}; params.{role} is {actual_name}")


def check_log_sum(log_sum_exp: bool, spec: AttentionSpec) -> None:
    """Check that the normalizer has a log-sum-exp if it is requested.

    Raises:
        TypeError: If `log_sum_exp` is not a bool.
        ValueError: If the normalizer is sparsemax or entmax15.
    """
    if not isinstance(log_sum_exp, bool):
        raise TypeError(f"log_sum_exp is {describe_value(log_sum_exp)}; it must be True or False")
    if log_sum_exp and spec.normalizer in (Normalizer.SPARSEMAX, Normalizer.ENTMAX15):
        raise ValueError(
            f"log_sum_exp=True and normalizer={spec.normalizer.value}, whose weights have no log-sum-exp; "
            "normalizer=softmax has one"
        )


def _check_bias(bias: Array | None, logits: tuple[int, int, int, int]) -> None:
    if bias is None:
        return
    check_broadcast("bias", bias, logits)
    if bias.dtype == bool:
        raise TypeError("bias has numbers of type bool, which would be added as 0 and 1; give mask=Mask(allowed=...)")
    check_floats("bias", bias)
