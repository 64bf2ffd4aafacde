"""What attend() and its stages refuse before anything is computed: one line for each way that a call does not fit."""

import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.arguments import (
    MAP,
    check_array,
    check_floats,
    check_heads,
    check_member,
    is_array,
    shown,
)
from transformer.attention.masks import Mask, check_broadcast, check_mask
from transformer.attention.parameters import (
    Additive,
    Concat,
    Cosine,
    General,
    Location,
    Mlp,
    Parameters,
    Score,
    ScoreParameters,
    check_parameters,
    check_scale,
    unrelated,
)
from transformer.attention.positions import T5, Position, PositionParameters, Shaw, TransformerXL
from transformer.attention.spec import AttentionSpec


def check_call(
    q: Array,
    k: Array,
    v: Array,
    spec: AttentionSpec,
    mask: Mask,
    bias: Array | None,
    params: Parameters,
) -> None:
    """Refuse arrays, masks and parameters that do not fit each other, naming both sides.

    Errors: ValueError for shapes and values, TypeError for arguments of another type and for parameters of another
    score or position.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        check_array(name, array)
    if not isinstance(spec, AttentionSpec):
        inside = str(spec) if isinstance(spec, Score) else "score=Score.COSINE, ..."
        raise TypeError(f"spec is {shown(spec)}; it must be an AttentionSpec, such as AttentionSpec({inside})")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} differ in their batch, the first size")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"k {k.shape} and v {v.shape} differ in length or heads")
    check_heads("q", q.shape[2], q.shape, "k", k.shape[2], k.shape)
    _check_own(params)
    check_parameters(spec.score, spec.position, params)
    _check_score(q.shape, k.shape, params, "k")
    _check_position(q, v.shape[3], params)
    check_mask(mask, batch=q.shape[0], heads=q.shape[2], queries=q.shape[1], keys=k.shape[1])
    _check_bias(bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))


def check_choices(kind: Score, position: Position) -> None:
    """Refuse what is no score or position, and two that have no meaning together.

    Errors: TypeError that lists the members, ValueError that says why the two do not go together.
    """
    check_member("kind", kind, Score)
    check_member("position", position, Position)
    why = unrelated(kind, position)
    if why is not None:
        raise ValueError(f"score={kind.value} x position={position.value} has no meaning: {why}")


def check_keys(k: Array, kind: Score, position: Position, params: Parameters) -> None:
    """Refuse what `prepare_keys` cannot prepare: of a score's parameters the side that meets the keys.

    Errors: as those of `check_call`.
    """
    check_choices(kind, position)
    check_array("k", k)
    _check_own(params)
    check_parameters(kind, position, params)
    depth = k.shape[3:]
    match params.score:
        case General(weight):
            name, fits = "weight_HxDxC", weight.shape[2:] == depth
        case Additive(weight):
            name, fits = "keys_HxCxA", weight.shape[1:2] == depth
        case Concat(weight) | Mlp(weight):
            # The rows behind these meet the query.
            name, fits = "weight_HxIxA", weight.shape[1:2] > depth
        case _:
            return
    if weight.ndim != 3 or not fits or weight.shape[0] % k.shape[2]:
        raise ValueError(
            f"params.score.{name} has shape {weight.shape}; k {k.shape} needs a multiple of its {k.shape[2]} heads "
            f"and its depth, {k.shape[3]}"
        )


def check_queries(
    q: Array,
    prepared: Array,
    depth: int,
    kind: Score,
    position: Position,
    params: Parameters,
    *,
    scale: float | None,
    positions: Array | None,
    bias: Array | None,
) -> None:
    """Refuse what `score` cannot compute of prepared keys, whose depth was `depth` before.

    Errors: as those of `check_call`.
    """
    check_array("q", q)
    check_array("prepared", prepared)
    _check_own(params)
    check_parameters(kind, position, params)
    check_scale(scale, kind)
    if q.shape[0] != prepared.shape[0]:
        raise ValueError(f"q {q.shape} and prepared {prepared.shape} differ in their batch, the first size")
    check_heads("q", q.shape[2], q.shape, "prepared", prepared.shape[2], prepared.shape)
    _check_score(q.shape, (*prepared.shape[:3], depth), params, "prepared")
    match params.score:
        case General():
            own = q.shape[2:]
        case Additive() | Concat() | Mlp():
            own = params.score.score_HxA.shape
        case _:
            own = prepared.shape[2:]
    if prepared.shape[2:] != own:
        raise ValueError(f"prepared {prepared.shape} needs to end in {own}; give keys prepared with these very params")
    _check_position(q, None, params)
    if positions is not None:
        fitting = ((q.shape[0], q.shape[1]), (1, q.shape[1]))
        whole = is_array(positions) and jnp.issubdtype(positions.dtype, jnp.integer)
        if not whole or positions.shape not in fitting:
            needed = " or ".join(map(str, fitting))
            raise ValueError(f"positions is {shown(positions)}; q {q.shape} needs whole numbers of shape {needed}")
    _check_bias(bias, (q.shape[0], q.shape[2], q.shape[1], prepared.shape[1]))


def check_weights(weights: Array, v: Array) -> None:
    """Refuse weights and values that `read` cannot join.

    Errors: as those of `check_call`.
    """
    check_array("weights", weights, MAP)
    check_array("v", v)
    if weights.shape[0] != v.shape[0]:
        raise ValueError(f"weights {weights.shape} and v {v.shape} differ in their batch, the first size")
    if weights.shape[3] != v.shape[1]:
        raise ValueError(f"weights {weights.shape} are of {weights.shape[3]} keys, v {v.shape} of {v.shape[1]}")
    check_heads("weights", weights.shape[1], weights.shape, "v", v.shape[2], v.shape)


def _check_own(params: Parameters) -> None:
    """Whether these are `Parameters` at all, and no part of them."""
    if isinstance(params, Parameters):
        return
    role = "position" if isinstance(params, PositionParameters) else "score"
    inside = f"{role}={type(params).__name__}(...)" if isinstance(params, PositionParameters | ScoreParameters) else ""
    raise TypeError(f"params is {shown(params)}; it must be Parameters({inside})")


def _check_bias(bias: Array | None, logits: tuple[int, int, int, int]) -> None:
    if bias is None:
        return
    check_broadcast("bias", bias, logits)
    if bias.dtype == bool:
        raise TypeError("bias has numbers of type bool, which would be added as 0 and 1; give mask=Mask(allowed=...)")
    check_floats("bias", bias)


def _check_score(q: tuple[int, ...], k: tuple[int, ...], params: Parameters, keys: str) -> None:
    """Whether parameters fit queries and keys of these shapes; `keys` is the name of the argument."""
    heads, depth, key_depth = q[2], q[3], k[3]
    score = params.score
    needed: dict[str, tuple[int, ...]] = {}
    match score:
        case General():
            needed = {"weight_HxDxC": (heads, depth, key_depth)}
        case Additive():
            inner = score.score_HxA.shape[-1]
            needed = {"keys_HxCxA": (heads, key_depth, inner), "queries_HxDxA": (heads, depth, inner)}
            needed["score_HxA"] = (heads, inner)
        case Concat() | Mlp():
            inner = score.score_HxA.shape[-1]
            needed = {"weight_HxIxA": (heads, key_depth + depth, inner), "score_HxA": (heads, inner)}
            if isinstance(score, Mlp):
                needed["bias_HxA"] = (heads, inner)
        case Location():
            needed = {"weight_HxDxN": (heads, depth, max(score.weight_HxDxN.shape[-1], k[1]))}
        case _:
            if depth != key_depth:
                raise ValueError(f"q {q} and {keys} {k} differ in depth, which a product of them needs equal")
    for name, shape in needed.items():
        found = getattr(score, name).shape
        if found != shape:
            raise ValueError(f"params.score.{name} has shape {found}; q {q} and {keys} {k} need {shape}")
    if isinstance(score, Cosine) and not isinstance(score.sharpening, (int, float)):
        found, whole = score.sharpening.shape, (q[0], heads, q[1])
        if len(found) != 3 or any(size not in (1, full) for size, full in zip(found, whole, strict=True)):
            raise ValueError(f"params.score.sharpening has shape {found}, which does not broadcast against {whole}")


def _check_position(q: Array, value_depth: int | None, params: Parameters) -> None:
    heads, depth = q.shape[2], q.shape[3]
    match params.position:
        case Shaw():
            tables = [("keys_PxD", params.position.keys_PxD, depth)]
            if params.position.values_PxD is not None and value_depth is not None:
                tables.append(("values_PxD", params.position.values_PxD, value_depth))
            for name, table, width in tables:
                if table.ndim != 2 or table.shape[0] % 2 == 0 or table.shape[1] != width:
                    raise ValueError(f"params.position.{name} has shape {table.shape}; it needs (2 clip + 1, {width})")
        case T5(table_PxH, bidirectional, longest):
            least = 4 if bidirectional else 2
            if table_PxH.ndim != 2 or table_PxH.shape[0] < least or table_PxH.shape[1] != heads:
                raise ValueError(
                    f"params.position.table_PxH has shape {table_PxH.shape}; it needs at least {least} buckets "
                    f"for {heads} heads"
                )
            exact = table_PxH.shape[0] // least
            if longest <= exact:
                raise ValueError(
                    f"params.position.longest={longest} must be above {exact}, the distances that have buckets alone"
                )
        case TransformerXL(weight_ExHxD, content_HxD, position_HxD):
            width = weight_ExHxD.shape[0]
            even = width + width % 2
            for name, table, shape in (
                ("weight_ExHxD", weight_ExHxD, (even, heads, depth)),
                ("content_HxD", content_HxD, (heads, depth)),
                ("position_HxD", position_HxD, (heads, depth)),
            ):
                if table.shape != shape:
                    raise ValueError(
                        f"params.position.{name} has shape {table.shape}; q {q.shape} needs {shape}, the width even"
                    )
        case _:
            pass
