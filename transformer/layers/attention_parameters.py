"""The trained parts of scores and of relative positions, as modules."""

import math
from typing import assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.parameters import (
    PRODUCTS,
    Additive,
    Concat,
    Cosine,
    General,
    Location,
    Mlp,
    Score,
    ScoreParameters,
)
from transformer.attention.positions import T5, PositionParameters, Rotary, Shaw, TransformerXL
from transformer.layers.block_config import BlockConfig, Positions
from transformer.layers.initialisation import normal, xavier_uniform
from transformer.layers.module import Initializer, Keys, Module, Parameter


class TrainedScore(Module):
    """The trained part of a score between queries of `depth` and keys of `key_depth`: empty for the dot products.

    Additive, concat and mlp have a `hidden` layer; both sizes are the queries' depth unless given. Cosine's sharpening
    is one number a head and starts at sqrt(D), where its logits spread as far as scaled products of random vectors do
    at most. Location has a row for each of `longest` keys and reads no key, so that the keys' projection stays as it
    began. `head_axis` is the logical axis of the heads: "groups" where they may be too few for a mesh.

    Errors: ValueError for an inner product of queries and keys of two depths.
    """

    def __init__(
        self,
        score: Score,
        heads: int,
        depth: int,
        longest: int,
        *,
        key_depth: int | None = None,
        hidden: int | None = None,
        parameter: Parameter,
        keys: Keys,
        head_axis: str = "heads",
    ):
        self.score = score
        inner, of_keys = hidden or depth, key_depth or depth
        if score in PRODUCTS and of_keys != depth:
            raise ValueError(
                f"score={score.value} multiplies queries and keys of one depth; these have {depth} and {of_keys}: "
                "make them equal, or say general"
            )

        def matrix(rows: int, columns: int) -> object:
            axes = (head_axis, "head_depth", "head_depth")
            return parameter(keys, xavier_uniform(rows, columns), (heads, rows, columns), axes)

        def vector(initializer: Initializer) -> object:
            return parameter(keys, initializer, (heads, inner), (head_axis, "head_depth"))

        match score:
            case Score.DOT | Score.SCALED_DOT:
                pass
            case Score.GENERAL:
                self.weight = matrix(depth, of_keys)
            case Score.ADDITIVE:
                self.keys, self.queries = matrix(of_keys, inner), matrix(depth, inner)
                self.vector = vector(xavier_uniform(inner, 1))
            case Score.CONCAT:
                self.weight, self.vector = matrix(of_keys + depth, inner), vector(xavier_uniform(inner, 1))
            case Score.MLP:
                self.weight, self.vector = matrix(of_keys + depth, inner), vector(xavier_uniform(inner, 1))
                self.bias = vector(jax.nn.initializers.zeros)
            case Score.COSINE:
                start = jax.nn.initializers.constant(math.log(math.sqrt(depth)))
                self.log_sharpening = parameter(keys, start, (heads,), (head_axis,))
            case Score.LOCATION:
                axes = (head_axis, "head_depth", "positions")
                self.weight = parameter(keys, xavier_uniform(depth, longest), (heads, depth, longest), axes)
            case _:
                assert_never(score)

    def __call__(self, dtype: jnp.dtype) -> ScoreParameters | None:
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


class TrainedPositions(Module):
    """What a layer's own relative positions have learned: Shaw's tables, Transformer-XL's projection and biases.

    Empty for every other kind: rotary and ALiBi have no parameters, and T5's table serves all layers.
    """

    def __init__(self, config: BlockConfig, *, parameter: Parameter, keys: Keys):
        self.kind, self.base = config.positions, config.rotary_base
        heads, depth = config.heads, config.depth
        match config.positions:
            case Positions.SHAW:
                distances = 2 * config.furthest + 1
                self.keys = parameter(keys, normal(depth**-0.5), (distances, depth), ("positions", "head_depth"))
                self.values = parameter(keys, normal(depth**-0.5), (distances, depth), ("positions", "head_depth"))
            case Positions.TRANSFORMER_XL:
                initializer = xavier_uniform(config.width, heads * depth)
                axes = ("embed", "heads", "head_depth")
                self.weight = parameter(keys, initializer, (config.width, heads, depth), axes)
                self.content = parameter(keys, jax.nn.initializers.zeros, (heads, depth), ("heads", "head_depth"))
                self.position = parameter(keys, jax.nn.initializers.zeros, (heads, depth), ("heads", "head_depth"))
            case _:
                pass

    def __call__(self, table: T5 | None, dtype: jnp.dtype) -> PositionParameters | None:
        """The parameters as attend() takes them; `table` is the one that all layers share."""
        match self.kind:
            case Positions.ROTARY | Positions.ROTARY_HALVES:
                return Rotary(self.base)
            case Positions.T5:
                return table
            case Positions.SHAW:
                return Shaw(self.keys[...].astype(dtype), self.values[...].astype(dtype))
            case Positions.TRANSFORMER_XL:
                cast = (array[...].astype(dtype) for array in (self.weight, self.content, self.position))
                return TransformerXL(*cast)
            case _:
                return None


class BucketTable(Module):
    """T5's bias for each bucket of distance and each head, one table for all layers (Raffel et al. 2020, 2.1)."""

    def __init__(self, config: BlockConfig, *, bidirectional: bool, parameter: Parameter, keys: Keys):
        initializer = normal(config.width**-0.5)
        self.table = parameter(keys, initializer, (config.buckets, config.heads), ("positions", "heads"))
        self.bidirectional, self.furthest = bidirectional, config.furthest

    def __call__(self) -> T5:
        """The table as attend() takes it."""
        return T5(self.table[...], self.bidirectional, self.furthest)
