"""Scores, how well a query fits a key: each one class, with its parameters, its equation, and what it refuses."""

import enum
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.argument_checks import check_positive
from transformer.attention.component import (
    AnyArray,
    AttentionComponent,
    AttentionSizes,
    Keys,
    Logits,
    ParameterSpec,
    Queries,
    xavier_uniform,
    zeros,
)
from transformer.attention.pytree_dataclass import pytree_dataclass

Prepared = Float[Array, "B K _ _"]
Shapes = dict[str, tuple[int, ...]]


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


class ScoreFunction(AttentionComponent):
    """One score, and what is to be known of it.

    `product`: it is an inner product of a vector of the query's and one of the key's, without trained parameters,
    which kernels that work in blocks can compute; `dot`: of the query and the key themselves. `raw`: keys need no
    preparation. `scaled`: it has a scale. `hidden`: a hidden layer stands between a query and its logit.
    """

    product = dot = raw = scaled = hidden = False

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        """The shapes that the parameters must have for queries and keys of these shapes."""
        return {}

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        """Refuse parameters that do not fit queries and keys of these shapes; `keys` is the name of the argument."""
        for name, needed in self.shapes(q, k).items():
            shape = getattr(self, name).shape
            if shape != needed:
                raise ValueError(f"params.score.{name} has shape {shape}; q {q} and {keys} {k} need {needed}")

    def key_side(self, depth: int) -> tuple[str, bool] | None:
        """The field that meets the keys, and whether it fits keys of this depth; None where no field does."""
        return None

    def query(self, q_BxQxHxD: Queries) -> Queries:
        """The queries as their product with the prepared keys takes them."""
        return q_BxQxHxD

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        """All of the score that depends on the keys alone."""
        return k_BxKxGxC

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        """The score of each of `query` with each of `prepare`, before it is scaled."""
        return grouped_products(q_BxQxHxD, prepared)

    def scale(self, depth: int, given: float | None) -> float:
        """What the logits are multiplied with."""
        return 1.0


INNER_PRODUCT = Score.DOT
"""That of families whose equations compare two vectors as they are."""


class Dot(ScoreFunction):
    """q . k (Luong et al. 2015, section 3.1)."""

    parameters = "none"
    product = dot = raw = True

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        if q[3] != k[3]:
            raise ValueError(f"q {q} and {keys} {k} differ in depth, which a product of them needs equal")


class ScaledDot(Dot):
    """q . k / sqrt(D) (Vaswani et al. 2017, equation 1); a given scale replaces 1 / sqrt(D)."""

    scaled = True

    def scale(self, depth: int, given: float | None) -> float:
        return 1 / math.sqrt(depth) if given is None else given


@pytree_dataclass
class Cosine(Dot):
    """beta q . k / (|q| |k|) (Graves et al. 2014, equations 5 and 6).

    The sharpening beta is a number or one for each query (a Turing machine emits it). A layer trains the logarithm of
    one for each head, which starts at sqrt(D), where its logits spread as far as scaled products of random vectors do
    at most.
    """

    sharpening: Float[AnyArray, "#B #H #Q"] | float = 1.0

    parameters = "optional"
    dot = raw = False

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        start = jax.nn.initializers.constant(math.log(math.sqrt(sizes.depth)))
        return {"log_sharpening": ParameterSpec((sizes.heads,), ("heads",), start)}

    @classmethod
    def of(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> "Cosine":
        return cls(jnp.exp(arrays[0])[None, :, None])

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        check_positive("sharpening", self.sharpening)
        super().check(q, k, keys)
        if isinstance(self.sharpening, (int, float)):
            return
        shape, whole = self.sharpening.shape, (q[0], q[2], q[1])
        if len(shape) != 3 or any(size not in (1, full) for size, full in zip(shape, whole, strict=True)):
            raise ValueError(f"params.score.sharpening has shape {shape}, which does not broadcast against {whole}")

    def query(self, q_BxQxHxD: Queries) -> Queries:
        beta = self.sharpening
        if not isinstance(beta, (int, float)):
            beta = jnp.moveaxis(jnp.asarray(beta), 1, 2)[..., None]
        return (_unit(q_BxQxHxD) * beta).astype(q_BxQxHxD.dtype)

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        return _unit(k_BxKxGxC).astype(k_BxKxGxC.dtype)


@pytree_dataclass
class General(ScoreFunction):
    """q' W k (Luong et al. 2015, section 3.1), W one for each head."""

    weight_HxDxC: Float[AnyArray, "H D C"]

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        return {"weight": _matrix(sizes, sizes.depth, sizes.key_depth)}

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        return {"weight_HxDxC": (q[2], q[3], k[3])}

    def key_side(self, depth: int) -> tuple[str, bool]:
        return "weight_HxDxC", self.weight_HxDxC.shape[2:] == (depth,)

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        return jnp.einsum("bkhc,hdc->bkhd", repeat_heads(k_BxKxGxC, len(self.weight_HxDxC)), self.weight_HxDxC)


class _HiddenLayer(ScoreFunction):
    """A score behind a hidden layer over [k ; q], v' f(W [k ; q]): the rows of W behind the keys' meet the query."""

    weight_HxIxA: Float[AnyArray, "H I A"]
    score_HxA: Float[AnyArray, "H A"]

    hidden = True

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        return {"weight": _matrix(sizes, sizes.key_depth + sizes.depth, sizes.hidden), "vector": _vector(sizes)}

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        heads, inner = q[2], self.score_HxA.shape[-1]
        return {"weight_HxIxA": (heads, k[3] + q[3], inner), "score_HxA": (heads, inner)}

    def key_side(self, depth: int) -> tuple[str, bool]:
        return "weight_HxIxA", self.weight_HxIxA.shape[1:2] > (depth,)

    def key_matrix(self, depth: int) -> AnyArray:
        """The part of W that keys of this depth meet."""
        return self.weight_HxIxA[:, :depth]

    def query_matrix(self, depth: int) -> AnyArray:
        """The part of W that queries of this depth meet."""
        return self.weight_HxIxA[:, -depth:]

    def activation(self, sums_BxHxQxKxA: Array) -> Array:
        """The hidden layer's f."""
        return jnp.tanh(sums_BxHxQxKxA)

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        matrix_HxCxA = self.key_matrix(k_BxKxGxC.shape[-1])
        return jnp.einsum("bkhc,hca->bkha", repeat_heads(k_BxKxGxC, matrix_HxCxA.shape[0]), matrix_HxCxA)

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        of_query_BxHxQxA = jnp.einsum("bqhd,hda->bhqa", q_BxQxHxD, self.query_matrix(q_BxQxHxD.shape[-1]))
        sums = of_query_BxHxQxA[:, :, :, None] + jnp.moveaxis(prepared, 1, 2)[:, :, None]
        return jnp.einsum("bhqka,ha->bhqk", self.activation(sums), self.score_HxA, preferred_element_type=wide)


@pytree_dataclass
class Additive(_HiddenLayer):
    """v' tanh(W1 k + W2 q) (Bahdanau et al. 2015, appendix A.1.2)."""

    keys_HxCxA: Float[AnyArray, "H C A"]
    queries_HxDxA: Float[AnyArray, "H D A"]
    score_HxA: Float[AnyArray, "H A"]

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        of_keys, of_queries = (_matrix(sizes, rows, sizes.hidden) for rows in (sizes.key_depth, sizes.depth))
        return {"keys": of_keys, "queries": of_queries, "vector": _vector(sizes)}

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        heads, inner = q[2], self.score_HxA.shape[-1]
        return {"keys_HxCxA": (heads, k[3], inner), "queries_HxDxA": (heads, q[3], inner), "score_HxA": (heads, inner)}

    def key_side(self, depth: int) -> tuple[str, bool]:
        return "keys_HxCxA", self.keys_HxCxA.shape[1:2] == (depth,)

    def key_matrix(self, depth: int) -> AnyArray:
        return self.keys_HxCxA

    def query_matrix(self, depth: int) -> AnyArray:
        return self.queries_HxDxA


@pytree_dataclass
class Concat(_HiddenLayer):
    """v' tanh(W [k ; q]) (Luong et al. 2015, section 3.1)."""

    weight_HxIxA: Float[AnyArray, "H I A"]
    score_HxA: Float[AnyArray, "H A"]


@pytree_dataclass
class Mlp(_HiddenLayer):
    """v' relu(W [k ; q] + b), a perceptron with one hidden layer."""

    weight_HxIxA: Float[AnyArray, "H I A"]
    bias_HxA: Float[AnyArray, "H A"]
    score_HxA: Float[AnyArray, "H A"]

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        weight, vector = super().weights(sizes).values()
        return {"weight": weight, "bias": vector._replace(initializer=zeros), "vector": vector}

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        shapes = super().shapes(q, k)
        return shapes | {"bias_HxA": shapes["score_HxA"]}

    def activation(self, sums_BxHxQxKxA: Array) -> Array:
        return jax.nn.relu(sums_BxHxQxKxA + self.bias_HxA[:, None, None, :].astype(sums_BxHxQxKxA.dtype))


@pytree_dataclass
class Location(ScoreFunction):
    """Row k of W q, from the query alone (Luong et al. 2015, equation 8).

    W has a row for each key position up to the longest memory. No key is read, so that their projection stays as it
    began.
    """

    weight_HxDxN: Float[AnyArray, "H D N"]

    raw = indexed = True

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        matrix = _matrix(sizes, sizes.depth, sizes.max_length)
        return {"weight": matrix._replace(axes=("heads", "head_dim", "positions"))}

    def shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        return {"weight_HxDxN": (q[2], q[3], max(self.weight_HxDxN.shape[-1], k[1]))}

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        weight_HxDxK = self.weight_HxDxN[:, :, : prepared.shape[1]]
        return jnp.einsum("bqhd,hdk->bhqk", q_BxQxHxD, weight_HxDxK, preferred_element_type=wide)


SCORES: dict[Score, type[ScoreFunction]] = {
    Score.DOT: Dot,
    Score.SCALED_DOT: ScaledDot,
    Score.GENERAL: General,
    Score.ADDITIVE: Additive,
    Score.CONCAT: Concat,
    Score.MLP: Mlp,
    Score.COSINE: Cosine,
    Score.LOCATION: Location,
}


def resolve_score_function(score: Score, params: ScoreFunction | None) -> ScoreFunction:
    """The score of this name with its parameters, or with its defaults where none are given."""
    return SCORES[score]() if params is None else params


def grouped_products(q_BxQxHxD: Float[Array, "B Q H D"], k_BxKxGxD: Float[Array, "B K G D"]) -> Logits:
    """Q . k in at least float32, where each of the G key heads serves H / G neighboring query heads."""
    wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    batch, queries, heads, depth = q_BxQxHxD.shape
    keys, groups = k_BxKxGxD.shape[1:3]
    if heads == groups:
        return jnp.einsum("bqhd,bkhd->bhqk", q_BxQxHxD, k_BxKxGxD, preferred_element_type=wide)
    grouped = q_BxQxHxD.reshape(batch, queries, groups, heads // groups, depth)
    products = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, k_BxKxGxD, preferred_element_type=wide)
    return products.reshape(batch, heads, queries, keys)


def repeat_heads(x_BxKxGxD: Float[Array, "B K G D"], heads: int) -> Float[Array, "B K H D"]:
    """Each of the G heads, for the H / G query heads that it serves."""
    return jnp.repeat(x_BxKxGxD, heads // x_BxKxGxD.shape[2], axis=2)


def _matrix(sizes: AttentionSizes, rows: int, columns: int) -> ParameterSpec:
    axes = ("heads", "head_dim", "head_dim")
    return ParameterSpec((sizes.heads, rows, columns), axes, xavier_uniform(rows, columns))


def _vector(sizes: AttentionSizes) -> ParameterSpec:
    return ParameterSpec((sizes.heads, sizes.hidden), ("heads", "head_dim"), xavier_uniform(sizes.hidden, 1))


def _unit(x: Array) -> Array:
    """X / |x| in at least float32; a vector of zeros stays zero, value and gradient."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # Any positive factor leaves x / |x| as it is; this one keeps the square of far and tiny vectors within float32.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    x = x / jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return jnp.where(square > 0, x * jax.lax.rsqrt(jnp.where(square > 0, square, 1)), 0)
