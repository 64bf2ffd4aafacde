"""What attend() refuses before anything is computed: one clear line for each way in which a call does not fit."""

from jaxtyping import Array

from transformer.attention.masks import Mask, check_broadcast, check_mask
from transformer.attention.positions import T5, Shaw, TransformerXL
from transformer.attention.scores import (
    Additive,
    Concat,
    Cosine,
    General,
    Location,
    Mlp,
    Parameters,
    check_parameters,
)
from transformer.attention.spec import AttentionSpec


def check_call(
    q: Array, k: Array, v: Array, spec: AttentionSpec, mask: Mask, bias: Array | None, params: Parameters
) -> None:
    """Refuse arrays, masks and parameters that do not fit each other, naming both sides.

    Errors: ValueError for shapes and values, TypeError for parameters of another score or position.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 4:
            raise ValueError(f"{name} has shape {array.shape}; attention takes [batch, length, heads, depth]")
        if 0 in array.shape:
            raise ValueError(f"{name} has shape {array.shape}; no size may be 0")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} differ in their batch, the first size")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"k {k.shape} and v {v.shape} differ in length or heads")
    if q.shape[2] % k.shape[2]:
        raise ValueError(
            f"q {q.shape} has {q.shape[2]} heads, which the {k.shape[2]} heads of k {k.shape} do not divide"
        )
    check_parameters(spec.score, spec.position, params)
    _check_score(q, k, params)
    _check_position(q, v, params)
    check_mask(mask, batch=q.shape[0], heads=q.shape[2], queries=q.shape[1], keys=k.shape[1])
    if bias is not None:
        check_broadcast("bias", bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))


def _check_score(q: Array, k: Array, params: Parameters) -> None:
    heads, depth, key_depth = q.shape[2], q.shape[3], k.shape[3]
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
            needed = {"weight_HxDxN": (heads, depth, max(score.weight_HxDxN.shape[-1], k.shape[1]))}
        case _:
            if depth != key_depth:
                raise ValueError(f"q {q.shape} and k {k.shape} differ in depth, which a product of them needs equal")
    for name, shape in needed.items():
        found = getattr(score, name).shape
        if found != shape:
            raise ValueError(f"params.score.{name} has shape {found}; q {q.shape} and k {k.shape} need {shape}")
    if isinstance(score, Cosine) and not isinstance(score.sharpening, (int, float)):
        found, whole = score.sharpening.shape, (q.shape[0], heads, q.shape[1])
        if len(found) != 3 or any(size not in (1, full) for size, full in zip(found, whole, strict=True)):
            raise ValueError(f"params.score.sharpening has shape {found}, which does not broadcast against {whole}")


def _check_position(q: Array, v: Array, params: Parameters) -> None:
    heads, depth = q.shape[2], q.shape[3]
    match params.position:
        case Shaw():
            tables = {
                "keys_PxD": (params.position.keys_PxD, depth),
                "values_PxD": (params.position.values_PxD, v.shape[3]),
            }
            for name, (table, width) in tables.items():
                if table is not None and (table.ndim != 2 or table.shape[0] % 2 == 0 or table.shape[1] != width):
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
