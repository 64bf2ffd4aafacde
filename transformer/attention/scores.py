"""Score functions: a class each, with its equation and parameters."""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.argument_checks import check_member, check_positive
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
    """The score function: how well a query matches a key.

    Attributes:
        DOT: q . k.
        SCALED_DOT: q . k / sqrt(D).
        GENERAL: q' W k.
        ADDITIVE: v' tanh(W1 k + W2 q).
        CONCAT: v' tanh(W [k ; q]).
        MLP: v' relu(W [k ; q] + b).
        COSINE: beta q . k / (|q| |k|).
        SQUARED_DISTANCE: -|q - k|^2 / (2 h^2).
        LOCATION: Row k of W q.
    """

    DOT = "dot"
    SCALED_DOT = "scaled_dot"
    GENERAL = "general"
    ADDITIVE = "additive"
    CONCAT = "concat"
    MLP = "mlp"
    COSINE = "cosine"
    SQUARED_DISTANCE = "squared_distance"
    LOCATION = "location"


class ScoreFunction(AttentionComponent):
    """A score function and its parameters.

    Attributes:
        is_product: Whether it is an inner product of a vector computed from the query and one computed from the key,
            without trained parameters, as blockwise kernels need it.
        is_dot_product: Whether it is the inner product of the query and the key themselves.
        uses_raw_keys: Whether keys need no preparation.
        takes_scale: Whether it has a scale.
        needs_equal_depths: Whether a query and a key must have as many features.
        ranks_keys_for_zero_query: Whether keys get different logits from a query of zeros, by what they are.
    """

    is_product = is_dot_product = uses_raw_keys = takes_scale = False
    needs_equal_depths = ranks_keys_for_zero_query = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        steps = ("query", "prepare", "logits")
        own = [step for step in steps if getattr(cls, step) is not getattr(ScoreFunction, step)]
        contradictions = {
            "is_dot_product": own,
            "is_product": [step for step in own if step == "logits"],
            "uses_raw_keys": [step for step in own if step == "prepare"],
        }
        for name, contradicting in contradictions.items():
            # Kernels would compute something else than such a class, without a word.
            if getattr(cls, name) and contradicting:
                raise TypeError(f"{cls.__name__} has its own {contradicting[0]}: set {name} = False in it")

    def parameter_shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        """The shapes that the parameters need for queries and keys of these shapes."""
        return {}

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        """Check that the parameters match queries and keys of these shapes.

        Args:
            q: Shape of the queries.
            k: Shape of the keys.
            keys: Name of the keys' argument, for the error.

        Raises:
            ValueError: If a parameter, or the depth of queries and keys, does not match.
        """
        for name, needed in self.parameter_shapes(q, k).items():
            shape = getattr(self, name).shape
            if shape != needed:
                raise ValueError(f"params.score.{name} has shape {shape}; q {q} and {keys} {k} need {needed}")

    def key_parameter(self, depth: int) -> tuple[str, bool] | None:
        """The parameter that multiplies the keys, and whether it fits keys of this depth; None if no parameter does."""
        return None

    def query(self, q_BxQxHxD: Queries) -> Queries:
        """Transform the queries before the product with the prepared keys."""
        return q_BxQxHxD

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        """Compute the part of the score that depends on the keys alone."""
        return k_BxKxGxC

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        """Compute the logits, before scaling.

        Args:
            q_BxQxHxD: Queries from `query`.
            prepared: Keys from `prepare`.

        Returns:
            The logits, in float32 or wider.
        """
        return grouped_products(q_BxQxHxD, prepared)

    def scale(self, depth: int, override: float | None) -> float:
        """The factor on the logits.

        Args:
            depth: Features of a query head.
            override: The scale of the call, or None.

        Returns:
            For scaled_dot `override`, or 1 / sqrt(depth) if None; else 1.
        """
        return 1.0


INNER_PRODUCT = Score.DOT
"""That of families whose equations compare two vectors as they are."""
DEFAULT_SCORE = Score.SCALED_DOT
"""That of attention unless a call or a config names another."""
ADDITIVE_SCORE = Score.ADDITIVE
"""That of recurrent decoders and LSTMNs unless a config names another."""


class Dot(ScoreFunction):
    """The dot product q . k (Luong et al. 2015, section 3.1)."""

    parameters = "none"
    is_product = is_dot_product = uses_raw_keys = needs_equal_depths = True

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        if q[3] != k[3]:
            raise ValueError(f"q {q} and {keys} {k} differ in depth, which a product of them needs equal")


class ScaledDot(Dot):
    """The scaled dot product q . k / sqrt(D) (Vaswani et al. 2017, equation 1); `scale` replaces 1 / sqrt(D)."""

    takes_scale = True

    def scale(self, depth: int, override: float | None) -> float:
        return 1 / math.sqrt(depth) if override is None else override


@pytree_dataclass
class Cosine(Dot):
    """The cosine score beta q . k / (|q| |k|) (Graves et al. 2014, equations 5 and 6).

    A layer trains the logarithm of beta for each head. It starts at beta = sqrt(D), where the logits spread as far as
    scaled products of random vectors do at most.

    Attributes:
        sharpening: beta, a positive number or one per query (a neural Turing machine emits it).
    """

    sharpening: Float[AnyArray, "#B #H #Q"] | float = 1.0

    parameters = "optional"
    is_dot_product = uses_raw_keys = False

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        start = jax.nn.initializers.constant(math.log(math.sqrt(sizes.head_dim)))
        return {"log_sharpening": ParameterSpec((sizes.heads,), ("heads",), start)}

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> "Cosine":
        return cls(jnp.exp(arrays[0])[None, :, None])

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        super().check(q, k, keys)
        _check_positive_per_query("sharpening", self.sharpening, q)

    def query(self, q_BxQxHxD: Queries) -> Queries:
        beta = self.sharpening
        if not isinstance(beta, (int, float)):
            beta = jnp.moveaxis(jnp.asarray(beta), 1, 2)[..., None]
        return (_normalize_length(q_BxQxHxD) * beta).astype(q_BxQxHxD.dtype)

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        return _normalize_length(k_BxKxGxC).astype(k_BxKxGxC.dtype)


@pytree_dataclass
class General(ScoreFunction):
    """The bilinear score q' W k (Luong et al. 2015, section 3.1).

    Attributes:
        weight_HxDxC: W, one matrix for each head.
    """

    weight_HxDxC: Float[AnyArray, "H D C"]

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        return {"weight": _matrix_spec(sizes, sizes.head_dim, sizes.key_head_dim)}

    def parameter_shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        return {"weight_HxDxC": (q[2], q[3], k[3])}

    def key_parameter(self, depth: int) -> tuple[str, bool]:
        return "weight_HxDxC", self.weight_HxDxC.shape[2:] == (depth,)

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        return jnp.einsum("bkhc,hdc->bkhd", repeat_heads(k_BxKxGxC, len(self.weight_HxDxC)), self.weight_HxDxC)


class _HiddenLayer(ScoreFunction):
    """A score with a hidden layer, v' f(W [k ; q]): the first rows of W multiply the key, the others the query."""

    weight_HxIxA: Float[AnyArray, "H I A"]
    score_HxA: Float[AnyArray, "H A"]

    ranks_keys_for_zero_query = True

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        return {
            "weight": _matrix_spec(sizes, sizes.key_head_dim + sizes.head_dim, sizes.score_hidden_width),
            "vector": _vector_spec(sizes),
        }

    def parameter_shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        heads, inner = q[2], self.score_HxA.shape[-1]
        return {"weight_HxIxA": (heads, k[3] + q[3], inner), "score_HxA": (heads, inner)}

    def key_parameter(self, depth: int) -> tuple[str, bool]:
        return "weight_HxIxA", self.weight_HxIxA.shape[1:2] > (depth,)

    def key_matrix(self, depth: int) -> AnyArray:
        """The part of W that multiplies keys of this depth."""
        return self.weight_HxIxA[:, :depth]

    def query_matrix(self, depth: int) -> AnyArray:
        """The part of W that multiplies queries of this depth."""
        return self.weight_HxIxA[:, -depth:]

    def activation(self, sums_BxHxQxKxA: Array) -> Array:
        """The activation f of the hidden layer."""
        return jnp.tanh(sums_BxHxQxKxA)

    def prepare(self, k_BxKxGxC: Keys) -> Prepared:
        matrix_HxCxA = self.key_matrix(k_BxKxGxC.shape[-1])
        return jnp.einsum("bkhc,hca->bkha", repeat_heads(k_BxKxGxC, matrix_HxCxA.shape[0]), matrix_HxCxA)

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        query_BxHxQxA = jnp.einsum("bqhd,hda->bhqa", q_BxQxHxD, self.query_matrix(q_BxQxHxD.shape[-1]))
        sums = query_BxHxQxA[:, :, :, None] + jnp.moveaxis(prepared, 1, 2)[:, :, None]
        return jnp.einsum("bhqka,ha->bhqk", self.activation(sums), self.score_HxA, preferred_element_type=wide)


@pytree_dataclass
class Additive(_HiddenLayer):
    """The additive score v' tanh(W1 k + W2 q) (Bahdanau et al. 2015, appendix A.1.2).

    Attributes:
        keys_HxCxA: W1 of each head.
        queries_HxDxA: W2 of each head.
        score_HxA: v of each head.
    """

    keys_HxCxA: Float[AnyArray, "H C A"]
    queries_HxDxA: Float[AnyArray, "H D A"]
    score_HxA: Float[AnyArray, "H A"]

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        key_spec, query_spec = (
            _matrix_spec(sizes, rows, sizes.score_hidden_width) for rows in (sizes.key_head_dim, sizes.head_dim)
        )
        return {"keys": key_spec, "queries": query_spec, "vector": _vector_spec(sizes)}

    def parameter_shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        heads, inner = q[2], self.score_HxA.shape[-1]
        return {"keys_HxCxA": (heads, k[3], inner), "queries_HxDxA": (heads, q[3], inner), "score_HxA": (heads, inner)}

    def key_parameter(self, depth: int) -> tuple[str, bool]:
        return "keys_HxCxA", self.keys_HxCxA.shape[1:2] == (depth,)

    def key_matrix(self, depth: int) -> AnyArray:
        return self.keys_HxCxA

    def query_matrix(self, depth: int) -> AnyArray:
        return self.queries_HxDxA


@pytree_dataclass
class Concat(_HiddenLayer):
    """The concat score v' tanh(W [k ; q]) (Luong et al. 2015, section 3.1).

    Attributes:
        weight_HxIxA: W of each head, I = C + D.
        score_HxA: v of each head.
    """

    weight_HxIxA: Float[AnyArray, "H I A"]
    score_HxA: Float[AnyArray, "H A"]


@pytree_dataclass
class Mlp(_HiddenLayer):
    """A perceptron with one hidden layer, v' relu(W [k ; q] + b).

    Attributes:
        weight_HxIxA: W of each head, I = C + D.
        bias_HxA: b of each head.
        score_HxA: v of each head.
    """

    weight_HxIxA: Float[AnyArray, "H I A"]
    bias_HxA: Float[AnyArray, "H A"]
    score_HxA: Float[AnyArray, "H A"]

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        weight, vector = super().parameter_specs(sizes).values()
        return {"weight": weight, "bias": vector._replace(initializer=zeros), "vector": vector}

    def parameter_shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
        shapes = super().parameter_shapes(q, k)
        return shapes | {"bias_HxA": shapes["score_HxA"]}

    def activation(self, sums_BxHxQxKxA: Array) -> Array:
        return jax.nn.relu(sums_BxHxQxKxA + self.bias_HxA[:, None, None, :].astype(sums_BxHxQxKxA.dtype))


@pytree_dataclass
class SquaredDistance(ScoreFunction):
    """The negative squared distance -|q - k|^2 / (2 h^2), whose softmax is a Gaussian kernel of the bandwidth h.

    Attention with it is the estimator of Nadaraya (1964) and Watson (1964). A layer trains the logarithm of h for each
    head. It starts at h^2 = sqrt(D) / 2, which is L2 attention, -|q - k|^2 / sqrt(D) (Kim et al. 2021, section 4.1).

    Attributes:
        bandwidth: h, a positive number or one per query.
    """

    bandwidth: Float[AnyArray, "#B #H #Q"] | float = 1.0

    parameters = "optional"
    uses_raw_keys = needs_equal_depths = ranks_keys_for_zero_query = True

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        start = jax.nn.initializers.constant(0.5 * math.log(math.sqrt(sizes.head_dim) / 2))
        return {"log_bandwidth": ParameterSpec((sizes.heads,), ("heads",), start)}

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> "SquaredDistance":
        return cls(jnp.exp(arrays[0])[None, :, None])

    def check(self, q: tuple[int, ...], k: tuple[int, ...], keys: str) -> None:
        if q[3] != k[3]:
            raise ValueError(f"q {q} and {keys} {k} differ in depth, which a distance between them needs equal")
        _check_positive_per_query("bandwidth", self.bandwidth, q)

    def logits(self, q_BxQxHxD: Queries, prepared: Prepared) -> Logits:
        # From the differences: |q|^2 - 2 q . k + |k|^2 would lose the digits of a short distance far from the origin.
        wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
        q_BxHxQx1xD = jnp.moveaxis(q_BxQxHxD, 1, 2)[:, :, :, None].astype(wide)
        k_BxHx1xKxD = jnp.moveaxis(repeat_heads(prepared, q_BxQxHxD.shape[2]), 1, 2)[:, :, None].astype(wide)
        squares_BxHxQxK = jnp.sum(jnp.square(q_BxHxQx1xD - k_BxHx1xKxD), axis=-1)
        h = self.bandwidth
        if not isinstance(h, (int, float)):
            h = jnp.asarray(h, wide)[..., None]
        return -squares_BxHxQxK / (2 * h**2)


@pytree_dataclass
class Location(ScoreFunction):
    """The location score, row k of W q, from the query alone (Luong et al. 2015, equation 8).

    No key is read, so the projection of the keys stays as it was initialized.

    Attributes:
        weight_HxDxN: W of each head, with a row for each key position up to the longest memory, N.
    """

    weight_HxDxN: Float[AnyArray, "H D N"]

    uses_raw_keys = uses_key_index = True

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        matrix = _matrix_spec(sizes, sizes.head_dim, sizes.max_length)
        return {"weight": matrix._replace(axes=("heads", "head_dim", "positions"))}

    def parameter_shapes(self, q: tuple[int, ...], k: tuple[int, ...]) -> Shapes:
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
    Score.SQUARED_DISTANCE: SquaredDistance,
    Score.LOCATION: Location,
}


ScoreKind = Score | type[ScoreFunction]
"""A score function of the library, or a class of one's own."""


def score_class(kind: ScoreKind) -> type[ScoreFunction]:
    """The class of a score function."""
    return SCORES[kind] if isinstance(kind, Score) else kind


def score_name(kind: ScoreKind) -> str:
    """The name of a score function in messages: the word in a config, or the name of a class of one's own."""
    return kind.value if isinstance(kind, Score) else kind.__name__


def check_score_kind(name: str, kind: Any) -> None:
    """Check that a value is a score function: a member of `Score`, or a class that derives from `ScoreFunction`.

    Raises:
        TypeError: If it is not.
    """
    if isinstance(kind, ScoreFunction):
        raise TypeError(
            f"{name} is a {type(kind).__name__} with its parameters; give {name}={type(kind).__name__}, and the "
            "parameters as params=AttentionParameters(score=...)"
        )
    is_own = isinstance(kind, type) and issubclass(kind, ScoreFunction) and kind not in SCORES.values()
    if not is_own:  # one of the library has one name, its member
        check_member(name, kind, Score)


def resolve_score_function(score: ScoreKind, params: ScoreFunction | None) -> ScoreFunction:
    """The score function with its parameters, or with defaults if `params` is None."""
    return score_class(score)() if params is None else params


def grouped_products(q_BxQxHxD: Float[Array, "B Q H D"], k_BxKxGxD: Float[Array, "B K G D"]) -> Logits:
    """Compute q . k in float32 or wider, where each of the G key heads serves H / G neighboring query heads."""
    wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    batch, queries, heads, depth = q_BxQxHxD.shape
    keys, groups = k_BxKxGxD.shape[1:3]
    if heads == groups:
        return jnp.einsum("bqhd,bkhd->bhqk", q_BxQxHxD, k_BxKxGxD, preferred_element_type=wide)
    grouped = q_BxQxHxD.reshape(batch, queries, groups, heads // groups, depth)
    products = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, k_BxKxGxD, preferred_element_type=wide)
    return products.reshape(batch, heads, queries, keys)


def repeat_heads(x_BxKxGxD: Float[Array, "B K G D"], heads: int) -> Float[Array, "B K H D"]:
    """Repeat each of the G heads for the H / G query heads that it serves."""
    return jnp.repeat(x_BxKxGxD, heads // x_BxKxGxD.shape[2], axis=2)


def _matrix_spec(sizes: AttentionSizes, rows: int, columns: int) -> ParameterSpec:
    axes = ("heads", "head_dim", "head_dim")
    return ParameterSpec((sizes.heads, rows, columns), axes, xavier_uniform(rows, columns))


def _vector_spec(sizes: AttentionSizes) -> ParameterSpec:
    return ParameterSpec(
        (sizes.heads, sizes.score_hidden_width), ("heads", "head_dim"), xavier_uniform(sizes.score_hidden_width, 1)
    )


def _check_positive_per_query(name: str, value: AnyArray | float, q: tuple[int, ...]) -> None:
    """Check that a parameter is above 0, and a number or an array that broadcasts against [B, H, Q]."""
    check_positive(name, value)
    if isinstance(value, (int, float)):
        return
    shape, full_shape = value.shape, (q[0], q[2], q[1])
    if len(shape) != 3 or any(size not in (1, full) for size, full in zip(shape, full_shape, strict=True)):
        raise ValueError(f"params.score.{name} has shape {shape}, which does not broadcast against {full_shape}")


def _normalize_length(x: Array) -> Array:
    """Normalize to length 1, x / |x|, in float32 or wider; a vector of zeros stays zero, value and gradient."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # Any positive factor leaves x / |x| as it is; this one keeps the square of far and tiny vectors within float32.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    x = x / jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return jnp.where(square > 0, x * jax.lax.rsqrt(jnp.where(square > 0, square, 1)), 0)
