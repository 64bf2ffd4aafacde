"""What a score and a position scheme have in common: one class that is its parameters and says all that they are."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

Initializer = Callable[[Any, tuple[int, ...], Any], jax.Array]  # key, which constants ignore; shape; type
AnyArray = Array | np.ndarray
Queries = Float[Array, "B Q H D"]
Keys = Float[Array, "B K G C"]
Values = Float[Array, "B K G Dv"]
Logits = Float[Array, "B H Q K"]
normal, zeros = jax.nn.initializers.normal, jax.nn.initializers.zeros


def xavier_uniform(fan_in: int, fan_out: int) -> Initializer:
    """U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16)."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


@dataclasses.dataclass(frozen=True)
class AttentionSizes:
    """What a layer says of itself, from which the shapes of trained arrays follow, and the settings of a scheme.

    `depth` and `key_depth`: of the heads of queries and of keys; `hidden`: of a score's hidden layer.
    """

    heads: int
    depth: int
    key_depth: int
    hidden: int
    max_length: int
    width: int = 0
    rotary_base: float = 10000.0
    buckets: int = 0
    max_distance: int = 0
    bidirectional: bool = False


class ParameterSpec(NamedTuple):
    """An array that is trained: its shape, the logical names of its axes, and how it begins."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    initializer: Initializer


class AttentionComponent:
    """A score or a position scheme. An instance holds its parameters; what the class says holds of every one.

    `parameters`: whether a call gives them: "none", "optional" where there is a default, or "required".
    `indexed`: it takes a key's index for its position, so that a cache must hold every key at its own place.
    """

    parameters = "required"
    indexed = False

    @classmethod
    def weights(cls, sizes: AttentionSizes) -> Mapping[str, ParameterSpec]:
        """What a layer of these sizes trains, in the order of the fields."""
        return {}

    @classmethod
    def of(cls, arrays: Sequence[Array], sizes: AttentionSizes) -> Any:
        """The parameters of a call, of the arrays of `weights`; None where it takes none."""
        return None if cls.parameters == "none" else cls(*arrays)
