"""The trained parts of scores and of position schemes, as modules."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.component import AttentionSizes, ParameterSpec
from transformer.attention.positions import PositionScheme
from transformer.attention.scores import SCORES, Score, ScoreFunction
from transformer.layers.functional_module import Builder, Module
from transformer.layers.initialization import ScoreInitialization
from transformer.layers.transformer_config import TransformerConfig


class _Trained(Module):
    """The arrays that a block of attention asks for by its `weights`, each under its name.

    `head_axis` is the logical axis of the heads: "groups" where they may be too few for a mesh.
    """

    def __init__(self, weights: Mapping[str, ParameterSpec], *, builder: Builder, head_axis: str = "heads"):
        self.names = tuple(weights)
        for name, (shape, axes, initializer) in weights.items():
            named = tuple(head_axis if axis == "heads" else axis for axis in axes)
            setattr(self, name, builder.parameter(initializer, shape, named))

    def arrays(self, dtype: jnp.dtype | None) -> list[Array]:
        """The arrays in this type; None: in their own."""
        return [jnp.asarray(getattr(self, name)[...], dtype) for name in self.names]


class TrainedScore(_Trained):
    """The trained part of a score between queries of `depth` and keys of `key_depth`: empty for the dot products.

    `hidden` is the width of a score's hidden layer; this and `key_depth` are the queries' depth unless given.
    `max_length`: the keys that a score by location has rows for. `initialization`: how it begins.

    Raises:
        ValueError: For an inner product of queries and keys of two depths.
    """

    def __init__(
        self,
        score: Score,
        heads: int,
        depth: int,
        max_length: int,
        *,
        key_depth: int | None = None,
        hidden: int | None = None,
        initialization: ScoreInitialization = ScoreInitialization.OWN,
        builder: Builder,
        head_axis: str = "heads",
    ):
        self.score, self.sizes = score, AttentionSizes(heads, depth, key_depth or depth, hidden or depth, max_length)
        if SCORES[score].product and self.sizes.key_depth != depth:
            raise ValueError(
                f"score={score.value} multiplies queries and keys of one depth; these have {depth} and {key_depth}: "
                "make them equal, or say general"
            )
        weights = {name: initialization(name, weight) for name, weight in SCORES[score].weights(self.sizes).items()}
        super().__init__(weights, builder=builder, head_axis=head_axis)

    def __call__(self, dtype: jnp.dtype) -> ScoreFunction | None:
        """The parameters as attend() takes them, in the type that it computes in."""
        return SCORES[self.score].of(self.arrays(dtype), self.sizes)


class TrainedPositions(_Trained):
    """What a layer's own relative positions have learned: nothing where all layers share it, or no array is trained."""

    def __init__(self, scheme: type[PositionScheme], sizes: AttentionSizes, *, builder: Builder):
        self.scheme, self.sizes = scheme, sizes
        weights = {} if self.scheme.shared else self.scheme.weights(self.sizes)
        super().__init__(weights, builder=builder)

    def __call__(self, shared: PositionScheme | None, dtype: jnp.dtype) -> PositionScheme | None:
        """The parameters as attend() takes them; `shared` are those that all layers have in common."""
        return shared if self.scheme.shared else self.scheme.of(self.arrays(dtype), self.sizes)


class SharedPositions(_Trained):
    """What the relative positions of all layers of a stack have learned together."""

    def __init__(self, config: TransformerConfig, *, bidirectional: bool, builder: Builder):
        self.scheme, self.sizes = config.positions.scheme, config.sizes(bidirectional=bidirectional)
        super().__init__(self.scheme.weights(self.sizes), builder=builder)

    def __call__(self) -> PositionScheme | None:
        """The parameters as attend() takes them."""
        return self.scheme.of(self.arrays(None), self.sizes)
