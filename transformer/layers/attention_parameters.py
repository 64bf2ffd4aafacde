"""The trained parameters of scores and position schemes, as modules."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from transformer.attention.component import AttentionSizes, ParameterSpec
from transformer.attention.positions import PositionScheme
from transformer.attention.scores import ScoreFunction, ScoreKind, score_class, score_name
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ScoreInitialization
from transformer.layers.transformer_config import TransformerConfig


class _TrainedArrays(Module):
    """The arrays that an attention component trains according to its `weights`, each under its name.

    `head_axis` is the logical axis of the heads: "groups" where they may be too few for a mesh.
    """

    def __init__(self, weights: Mapping[str, ParameterSpec], *, builder: ParameterBuilder, head_axis: str = "heads"):
        self.names = tuple(weights)
        for name, (shape, axes, initializer) in weights.items():
            logical_axes = tuple(head_axis if axis == "heads" else axis for axis in axes)
            setattr(self, name, builder.parameter(initializer, shape, logical_axes))

    def arrays(self, dtype: jnp.dtype | None) -> list[Array]:
        """The arrays in this type, or in their own for None."""
        return [jnp.asarray(getattr(self, name)[...], dtype) for name in self.names]


class TrainedScore(_TrainedArrays):
    """The trained parameters of a score; empty for dot products.

    Args:
        score: The score function.
        heads: Number of heads.
        depth: Features of a query head.
        max_length: The longest memory, for the score `location`.
        key_depth: Features of a key head; None means `depth`.
        hidden: Units of the score's hidden layer; None means `depth`.
        initialization: Initialization of the parameters.
        builder: Makes the parameters.
        head_axis: Logical axis of the heads.

    Raises:
        ValueError: If the score needs queries and keys of one size and they differ.
    """

    def __init__(
        self,
        score: ScoreKind,
        heads: int,
        depth: int,
        max_length: int,
        *,
        key_depth: int | None = None,
        hidden: int | None = None,
        initialization: ScoreInitialization = ScoreInitialization.OWN,
        builder: ParameterBuilder,
        head_axis: str = "heads",
    ):
        self.score, self.sizes = score, AttentionSizes(heads, depth, key_depth or depth, hidden or depth, max_length)
        if score_class(score).needs_equal_depths and self.sizes.key_head_dim != depth:
            raise ValueError(
                f"score={score_name(score)} takes queries and keys of one depth; these have {depth} and {key_depth}: "
                "make them equal, or say general"
            )
        weights = {
            name: initialization(name, weight)
            for name, weight in score_class(score).parameter_specs(self.sizes).items()
        }
        super().__init__(weights, builder=builder, head_axis=head_axis)

    def __call__(self, dtype: jnp.dtype) -> ScoreFunction | None:
        """The parameters for `attend`, in the type that it computes in; None if there are none."""
        return score_class(self.score).from_arrays(self.arrays(dtype), self.sizes)


class TrainedPositions(_TrainedArrays):
    """The trained parameters of a layer's position scheme; empty where layers share them or none are trained.

    Args:
        scheme: The class of the position scheme.
        sizes: The layer's sizes.
        builder: Makes the parameters.
    """

    def __init__(self, scheme: type[PositionScheme], sizes: AttentionSizes, *, builder: ParameterBuilder):
        self.scheme, self.sizes = scheme, sizes
        weights = {} if self.scheme.shared_by_layers else self.scheme.parameter_specs(self.sizes)
        super().__init__(weights, builder=builder)

    def __call__(self, shared: PositionScheme | None, dtype: jnp.dtype) -> PositionScheme | None:
        """The parameters for `attend`.

        Args:
            shared: Those of `SharedPositions`, returned if the scheme's parameters are shared.
            dtype: Type that attention computes in; None keeps the parameters' own.

        Returns:
            The scheme with its parameters; None if it takes none.
        """
        return shared if self.scheme.shared_by_layers else self.scheme.from_arrays(self.arrays(dtype), self.sizes)


class SharedPositions(_TrainedArrays):
    """The trained parameters of a position scheme that all layers of a stack share.

    Args:
        config: The configuration of the Transformer.
        bidirectional: Whether later keys have T5 buckets of their own.
        builder: Makes the parameters.
    """

    def __init__(self, config: TransformerConfig, *, bidirectional: bool, builder: ParameterBuilder):
        self.scheme, self.sizes = config.positions.scheme, config.attention_sizes(bidirectional=bidirectional)
        super().__init__(self.scheme.parameter_specs(self.sizes), builder=builder)
        self.norm = config.make_norm(builder) if config.relative_embedding_norm else None

    def __call__(self) -> PositionScheme | None:
        """The parameters that layers read."""
        arrays = self.arrays(None)
        return self.scheme.from_arrays(arrays if self.norm is None else [self.norm(arrays[0])], self.sizes)
