"""Which scores there are, and the trained parts of an attention: of its score, and of its relative positions."""

import enum
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from transformer.attention import positions as relative
from transformer.attention.positions import Position, PositionParameters, Rotary


class Score(enum.Enum):
    """A compatibility function of query and key."""

    DOT = "dot"
    SCALED_DOT = "scaled_dot"
    GENERAL = "general"
    ADDITIVE = "additive"
    CONCAT = "concat"
    MLP = "mlp"
    COSINE = "cosine"
    LOCATION = "location"


# The scores that are an inner product of a vector of the query's and one of the key's, without parameters: what
# kernels that work in blocks can compute.
PRODUCTS = frozenset({Score.DOT, Score.SCALED_DOT, Score.COSINE})


class General(NamedTuple):
    """W of q' W k, one for each head."""

    weight_HxDxC: Float[Array, "H D C"]


class Additive(NamedTuple):
    """W1, W2 and v of v' tanh(W1 k + W2 q)."""

    keys_HxCxA: Float[Array, "H C A"]
    queries_HxDxA: Float[Array, "H D A"]
    score_HxA: Float[Array, "H A"]


class Concat(NamedTuple):
    """W and v of v' tanh(W [k ; q])."""

    weight_HxIxA: Float[Array, "H I A"]
    score_HxA: Float[Array, "H A"]


class Mlp(NamedTuple):
    """W, b and v of v' relu(W [k ; q] + b)."""

    weight_HxIxA: Float[Array, "H I A"]
    bias_HxA: Float[Array, "H A"]
    score_HxA: Float[Array, "H A"]


class Cosine(NamedTuple):
    """The sharpening beta, a number or one for each query (a Turing machine emits it)."""

    sharpening: Float[Array, "#B #H #Q"] | float = 1.0


class Location(NamedTuple):
    """W of W q, a row for each key position up to the longest memory."""

    weight_HxDxN: Float[Array, "H D N"]


ScoreParameters = General | Additive | Concat | Mlp | Cosine | Location


# Which parameters a score takes; the dot products have none, and cosine has a default.
PARAMETERS: dict[Score, type] = {
    Score.GENERAL: General,
    Score.ADDITIVE: Additive,
    Score.CONCAT: Concat,
    Score.MLP: Mlp,
    Score.COSINE: Cosine,
    Score.LOCATION: Location,
}


class Parameters(NamedTuple):
    """The trained parts of an attention: of its score, and of its relative positions."""

    score: ScoreParameters | None = None
    position: PositionParameters | None = None


def unrelated(kind: Score, position: Position) -> str | None:
    """Why this score has no such positions; None when the two have a meaning together."""
    if position in relative.ROTARIES and kind not in PRODUCTS:
        return f"position={position.value} turns the two sides of a product, which score={kind.value} has not"
    if position in (Position.SHAW, Position.TRANSFORMER_XL) and kind not in (Score.DOT, Score.SCALED_DOT):
        return f"position={position.value} is a term of the dot product, which score={kind.value} is not"
    return None


def check_parameters(kind: Score, position: Position, params: Parameters) -> None:
    """Refuse parameters that are not the score's or the position's own.

    Errors: TypeError that says which are needed; ValueError for a sharpening that is no finite positive number.
    """
    for role, owner, needed, given in (
        ("score", kind.value, PARAMETERS.get(kind), params.score),
        ("position", position.value, relative.PARAMETERS.get(position), params.position),
    ):
        optional = needed in (Cosine, Rotary)
        if given is None and (needed is None or optional):
            continue
        if needed is None or not isinstance(given, needed):
            found = "nothing" if given is None else type(given).__name__
            wanted = "no parameters" if needed is None else f"params.{role}={needed.__name__}(...)"
            raise TypeError(f"{role}={owner} takes {wanted}; params.{role} is {found}")
    if isinstance(params.score, Cosine):
        check_positive("sharpening", params.score.sharpening)


def check_scale(scale: float | None, kind: Score) -> None:
    """Refuse a scale of a score that has none, and one that is not finite and above 0.

    Errors: ValueError that names the scale and the score.
    """
    if scale is None:
        return
    check_positive("scale", scale)
    if kind is not Score.SCALED_DOT:
        raise ValueError(f"scale={scale} belongs to score=scaled_dot alone; score is {kind.value}")


def check_positive(name: str, value: Array | float) -> None:
    """Refuse what is no real number, finite and above 0 (of a traced array the numbers are not known).

    Errors: ValueError that names the argument and its value.
    """
    if isinstance(value, jax.core.Tracer):
        return
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "fiuV" or not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name}={value} must be finite and above 0")
