"""Multi-head attention: four projections around attend(), and the parameters of scores that have any."""

import math
from typing import assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.attend import attend
from transformer.attention.capture import Capture, Captured
from transformer.attention.masks import Mask
from transformer.attention.scores import (
    Additive,
    Concat,
    Cosine,
    General,
    Location,
    Mlp,
    Parameters,
    Score,
)
from transformer.attention.scores import (
    ScoreParameters as ScoreArrays,
)
from transformer.attention.spec import AttentionSpec
from transformer.layers.linear import Linear, xavier_uniform
from transformer.layers.module import Initializer, Keys, Module, Parameter


class ScoreParameters(Module):
    """The trained part of a score between heads of one depth: empty for the dot products.

    Additive, concat and mlp have a hidden layer of the head's depth. Cosine's sharpening is one number a head and
    starts at sqrt(D), where its logits spread as far as scaled products of random vectors do at most. Location has a
    row for each of `longest` keys and reads no key, so that the keys' projection stays as it began.
    """

    def __init__(self, score: Score, heads: int, depth: int, longest: int, *, parameter: Parameter, keys: Keys):
        self.score = score

        def matrix(rows: int, columns: int) -> object:
            axes = ("heads", "head_depth", "head_depth")
            return parameter(keys, xavier_uniform(rows, columns), (heads, rows, columns), axes)

        def vector(initializer: Initializer) -> object:
            return parameter(keys, initializer, (heads, depth), ("heads", "head_depth"))

        match score:
            case Score.DOT | Score.SCALED_DOT:
                pass
            case Score.GENERAL:
                self.weight = matrix(depth, depth)
            case Score.ADDITIVE:
                self.keys, self.queries = matrix(depth, depth), matrix(depth, depth)
                self.vector = vector(xavier_uniform(depth, 1))
            case Score.CONCAT:
                self.weight, self.vector = matrix(2 * depth, depth), vector(xavier_uniform(depth, 1))
            case Score.MLP:
                self.weight, self.vector = matrix(2 * depth, depth), vector(xavier_uniform(depth, 1))
                self.bias = vector(jax.nn.initializers.zeros)
            case Score.COSINE:
                start = jax.nn.initializers.constant(math.log(math.sqrt(depth)))
                self.log_sharpening = parameter(keys, start, (heads,), ("heads",))
            case Score.LOCATION:
                axes = ("heads", "head_depth", "positions")
                self.weight = parameter(keys, xavier_uniform(depth, longest), (heads, depth, longest), axes)
            case _:
                assert_never(score)

    def __call__(self, dtype: jnp.dtype) -> ScoreArrays | None:
        """The parameters as attend() takes them, in the type that it computes in."""

        def cast(array: object) -> Array:
            return jnp.asarray(array[...], dtype)  # type: ignore[index]

        match self.score:
            case Score.GENERAL:
                return General(cast(self.weight))
            case Score.ADDITIVE:
                return Additive(cast(self.keys), cast(self.queries), cast(self.vector))
            case Score.CONCAT:
                return Concat(cast(self.weight), cast(self.vector))
            case Score.MLP:
                return Mlp(cast(self.weight), cast(self.bias), cast(self.vector))
            case Score.COSINE:
                return Cosine(jnp.exp(cast(self.log_sharpening))[None, :, None])
            case Score.LOCATION:
                return Location(cast(self.weight))
            case _:
                return None


class MultiHeadAttention(Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O (Vaswani et al. 2017, section 3.2.2).

    head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i) with depth D = width / heads. `longest` is the greatest number of
    keys, which only a score by location needs to know.

    Errors: ValueError when `heads` does not divide `width`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool,
        spec: AttentionSpec,
        longest: int,
        parameter: Parameter,
        keys: Keys,
    ):
        if width % heads:
            raise ValueError(f"width={width} is not divisible by heads={heads}")
        model = (("embed", width),)
        split = (("heads", heads), ("head_depth", width // heads))
        self.query = Linear(model, split, bias=bias, parameter=parameter, keys=keys)
        self.key = Linear(model, split, bias=bias, parameter=parameter, keys=keys)
        self.value = Linear(model, split, bias=bias, parameter=parameter, keys=keys)
        self.output = Linear(split, model, bias=bias, parameter=parameter, keys=keys)
        self.score = ScoreParameters(spec.score, heads, width // heads, longest, parameter=parameter, keys=keys)
        self.spec = spec

    def keys_and_values(
        self, memory_BxKxE: Float[Array, "B K E"]
    ) -> tuple[Float[Array, "B K H D"], Float[Array, "B K H D"]]:
        """The projected keys and values of a memory: what a decoder caches."""
        return self.key(memory_BxKxE), self.value(memory_BxKxE)

    def read(
        self,
        x_BxQxE: Float[Array, "B Q E"],
        k_BxKxHxD: Float[Array, "B K H D"],
        v_BxKxHxD: Float[Array, "B K H D"],
        *,
        mask: Mask,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Q E"], Captured | None]:
        """Attend from x to keys and values that are already projected."""
        output_BxQxHxD, attended = attend(
            self.query(x_BxQxE),
            k_BxKxHxD,
            v_BxKxHxD,
            spec=self.spec,
            mask=mask,
            params=Parameters(score=self.score(x_BxQxE.dtype)),
            capture=capture,
        )
        return self.output(output_BxQxHxD), attended.captured

    def __call__(
        self,
        x_BxQxE: Float[Array, "B Q E"],
        memory_BxKxE: Float[Array, "B K E"],
        *,
        mask: Mask,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Q E"], Captured | None]:
        """Attend from x to a memory; self-attention where both are the same."""
        return self.read(x_BxQxE, *self.keys_and_values(memory_BxKxE), mask=mask, capture=capture)


def write_cache(
    cache_RxKxHxD: Float[Array, "R K H D"],
    new_Rx1xHxD: Float[Array, "R 1 H D"],
    position_R: jnp.ndarray,
) -> Float[Array, "R K H D"]:
    """The cache with each row's new key or value at that row's position."""
    here_RxK = jnp.arange(cache_RxKxHxD.shape[1])[None] == position_R[:, None]
    return jnp.where(here_RxK[:, :, None, None], new_Rx1xHxD, cache_RxKxHxD)
