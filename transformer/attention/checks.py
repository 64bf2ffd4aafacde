"""What attend() refuses before anything is computed: one clear line for each way in which a call does not fit."""

from jaxtyping import Array

from transformer.attention.masks import Mask, check_broadcast, check_mask
from transformer.attention.positions import T5, Shaw, TransformerXL
from transformer.attention.scores import Additive, Concat, General, Location, Mlp, Parameters, check_parameters
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
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} differ in their batch, the first size")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"k {k.shape} and v {v.shape} differ in length or heads")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"q {q.shape} has {q.shape[2]} heads, which the {k.shape[2]} heads of k {k.shape} do not divide"
        )
    if k.shape[1] == 0:
        raise ValueError(f"k {k.shape} holds no key")
    check_parameters(spec.score, spec.position, params)
    _check_depths(q, k, v, params)
    check_mask(mask, batch=q.shape[0], heads=q.shape[2], queries=q.shape[1], keys=k.shape[1])
    if bias is not None:
        check_broadcast("bias", bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))


def _check_depths(q: Array, k: Array, v: Array, params: Parameters) -> None:
    heads, depth, key_depth = q.shape[2], q.shape[3], k.shape[3]
    needed: dict[str, tuple[int, ...]]
    match params.score:
        case General():
            needed = {"weight_HxDxC": (heads, depth, key_depth)}
        case Additive(score_HxA=score_HxA):
            inner = score_HxA.shape[-1]
            needed = {
                "keys_HxCxA": (heads, key_depth, inner),
                "queries_HxDxA": (heads, depth, inner),
                "score_HxA": (heads, inner),
            }
        case Concat(score_HxA=score_HxA):
            needed = {"weight_HxIxA": (heads, key_depth + depth, score_HxA.shape[-1]), "score_HxA": score_HxA.shape}
        case Mlp(score_HxA=score_HxA):
            inner = score_HxA.shape[-1]
            needed = {
                "weight_HxIxA": (heads, key_depth + depth, inner),
                "bias_HxA": (heads, inner),
                "score_HxA": (heads, inner),
            }
        case Location(weight_HxDxN=weight_HxDxN):
            longest = max(weight_HxDxN.shape[-1], k.shape[1])
            needed = {"weight_HxDxN": (heads, depth, longest)}
        case _:
            needed = {}
            if depth != key_depth:
                raise ValueError(
                    f"q {q.shape} and k {k.shape} differ in depth, the last size; their score is a product"
                )
    for name, shape in needed.items():
        found = getattr(params.score, name).shape
        if found != shape:
            raise ValueError(f"params.score.{name} has shape {found}; q {q.shape} and k {k.shape} need {shape}")
    match params.position:
        case Shaw(keys_PxD, values_PxD):
            if keys_PxD.shape[0] % 2 == 0 or keys_PxD.shape[1] != depth:
                raise ValueError(f"params.position.keys_PxD has shape {keys_PxD.shape}; it needs (2 clip + 1, {depth})")
            if values_PxD is not None and (values_PxD.shape[0] % 2 == 0 or values_PxD.shape[1] != v.shape[3]):
                raise ValueError(
                    f"params.position.values_PxD has shape {values_PxD.shape}; it needs (2 clip + 1, {v.shape[3]})"
                )
        case T5(table_PxH, bidirectional, longest):
            exact = table_PxH.shape[0] // (4 if bidirectional else 2)
            if table_PxH.shape[1] != heads or exact < 1:
                raise ValueError(
                    f"params.position.table_PxH has shape {table_PxH.shape}; it needs at least "
                    f"{4 if bidirectional else 2} buckets for each of {heads} heads"
                )
            if longest <= exact:
                raise ValueError(
                    f"params.position.longest={longest} must be above {exact}, the distances with a bucket of their own"
                )
        case TransformerXL():
            width = params.position.weight_ExHxD.shape[0]
            for name, shape in {
                "weight_ExHxD": (width, heads, depth),
                "content_HxD": (heads, depth),
                "position_HxD": (heads, depth),
            }.items():
                found = getattr(params.position, name).shape
                if found != shape:
                    raise ValueError(f"params.position.{name} has shape {found}; q {q.shape} needs {shape}")
        case _:
            pass
