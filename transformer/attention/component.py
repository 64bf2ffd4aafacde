"""The base class of scores and position schemes, which hold their own parameters."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from transformer.attention.rotary import NO_SCALING, RotaryScaling

Initializer = Callable[[Any, tuple[int, ...], Any], jax.Array]  # key, which constants ignore; shape; type
AnyArray = Array | np.ndarray
Queries = Float[Array, "B Q H D"]
Keys = Float[Array, "B K G C"]
Values = Float[Array, "B K G Dv"]
Logits = Float[Array, "B H Q K"]
normal, zeros = jax.nn.initializers.normal, jax.nn.initializers.zeros


def xavier_uniform(fan_in: int | float, fan_out: int | float) -> Initializer:
    """The initializer U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16)."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


@dataclasses.dataclass(frozen=True)
class AttentionSizes:
    """A layer's sizes, from which the shapes of trained arrays follow, and the settings of a position scheme.

    Attributes:
        heads: Number of query heads.
        head_dim: Features of a query head.
        key_head_dim: Features of a key head.
        score_hidden_width: Units of a score's hidden layer.
        max_length: The longest memory, for scores with a row for each key position.
        width: Width of the model, which some position schemes use.
        rotary_base: Base of the rotary frequencies.
        rotary_fraction: The part of a head's features that rotate.
        rotary_scaling: How the rotary frequencies are scaled.
        relative_attention_num_buckets: Number of T5's distance buckets.
        relative_attention_max_distance: Where relative distances are clipped, or from where they share T5's last
            bucket.
        bidirectional_buckets: Whether T5 has separate buckets for later keys.
        base_width: The width by which T5's table is initialized: that of the model, or its base width in the maximal
            update parametrization.
    """

    heads: int
    head_dim: int
    key_head_dim: int
    score_hidden_width: int
    max_length: int
    width: int = 0
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_scaling: RotaryScaling = NO_SCALING
    relative_attention_num_buckets: int = 0
    relative_attention_max_distance: int = 0
    bidirectional_buckets: bool = False
    base_width: int = 0


class ParameterSpec(NamedTuple):
    """A trained array.

    Attributes:
        shape: Its shape.
        axes: The logical names of its axes.
        initializer: Its distribution.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    initializer: Initializer


class AttentionComponent:
    """Base class of scores and position schemes. An instance holds its parameters; class attributes describe the kind.

    Attributes:
        parameters: Whether a call must pass parameters: "none", "optional" where there is a default, or "required".
        uses_key_index: Whether a key's index is taken for its position, so that a cache must keep every key at its own
            index.
    """

    parameters = "required"
    uses_key_index = False

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        """The arrays that a layer of these sizes trains, in the order of the fields."""
        return {}

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> Any:
        """Build the parameters of a call.

        Args:
            arrays: The arrays of `parameter_specs`, in order.
            sizes: The layer's sizes.

        Returns:
            An instance of this class; None if it takes no parameters.
        """
        return None if cls.parameters == "none" else cls(*arrays)
