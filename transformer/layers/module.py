"""The fence around Flax NNX: modules hold parameters, and everything past this file is pure functions.

Outside, parameters are nested dicts of arrays keyed by name. A module is built abstractly once; binding
arrays to it gives an object whose methods are pure functions of those arrays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Key

from transformer.attention.blocks import Initializer

Params = dict[str, Any]
MakeInitializer = Callable[[int, int], Initializer]  # from fan-in and fan-out
CONSTANTS = (jax.nn.initializers.zeros, jax.nn.initializers.ones)


class Module(nnx.Module):
    """An object that holds parameters and other modules; its methods never assign to it."""


class Keys:
    """A stream of keys for a constructor: each call gives a fresh one."""

    def __init__(self, key: Key[Array, ""]):
        self._key = key
        self._count = 0

    def __call__(self) -> Key[Array, ""]:
        """The next key of the stream."""
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


class Parameter:
    """Makes the parameters of one precision: `Parameter(dtype)(keys, initializer, shape, axes)`."""

    def __init__(self, dtype: Any = jnp.float32):
        self.dtype = dtype

    def __call__(
        self, keys: Keys, initializer: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]
    ) -> nnx.Param:
        """One trainable array whose dimensions carry the logical names `axes` (transformer.axes, or the family's own).

        Errors: ValueError where there are more or fewer names than dimensions.
        """
        if len(shape) != len(axes):
            raise ValueError(
                f"a parameter of shape {shape} has {len(shape)} dimensions and {len(axes)} logical axes {axes}: name "
                "one for each"
            )
        # A constant draws no key, so that models which differ in norms or biases alone begin with the same matrices.
        key = None if initializer in CONSTANTS else keys()
        return nnx.Param(initializer(key, shape, self.dtype), out_sharding=axes)


def stack(make: Callable[[Keys], Module], count: int, keys: Keys) -> Module:
    """`count` modules of one structure as one module whose parameters carry a leading `layers` axis."""
    build = nnx.vmap(
        lambda key: make(Keys(key)),
        in_axes=0,
        out_axes=0,
        transform_metadata={nnx.PARTITION_NAME: "layers"},
    )
    return build(jax.random.split(keys(), count))


def scan(
    function: Callable[[tuple[Any, ...], Any, Any], tuple[Any, Any]],
    stacked: Module,
    carry: Any,
    inputs: Any,
    *,
    period: int = 1,
    unroll: int = 1,
    checkpoint: Callable[..., Any] | None = None,
) -> tuple[Any, Any]:
    """Run `function(blocks, carry, input) -> (carry, output)` over the layers of a stacked module, `period` at a time.

    `inputs` and the returned outputs have a leading axis of periods. `unroll` periods are compiled in line.
    `checkpoint` is a policy of jax.checkpoint by which each call's forward pass is kept; None keeps everything.
    """
    definition, state = nnx.split(stacked)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), nnx.to_pure_dict(state))

    def body(carry: Any, group: Any) -> tuple[Any, Any]:
        states, group_input = group
        blocks = tuple(
            nnx.merge(definition, jax.tree.map(lambda leaf: leaf[number], states))  # noqa: B023
            for number in range(period)
        )
        return function(blocks, carry, group_input)

    if checkpoint is not None:
        # Within a loop nothing could merge the two passes again; layers that are compiled in line could.
        body = jax.checkpoint(body, policy=checkpoint, prevent_cse=unroll > 1)
    return jax.lax.scan(body, carry, (grouped, inputs), unroll=unroll)


class Functional[M: Module]:
    """A module as pure functions of its parameters.

    `make(keys)` builds the module; it is run abstractly here, so that no array is made before `init`.
    """

    def __init__(self, make: Callable[[Keys], M]):
        self._make = make
        with nnx.use_eager_sharding(False):
            abstract = nnx.eval_shape(lambda: make(Keys(jax.random.key(0))))
        self._definition, self._state = nnx.split(abstract)

    def init(self, key: Key[Array, ""]) -> Params:
        """Fresh parameters; pure, so that it can run under jit with output shardings."""
        with nnx.use_eager_sharding(False):
            _, state = nnx.split(self._make(Keys(key)))
        return nnx.to_pure_dict(state)

    def shapes(self) -> Params:
        """The shape and type of every parameter, without any array."""
        return nnx.to_pure_dict(self._state)

    def axes(self) -> Params:
        """The logical axis names of every parameter: a tuple where `shapes` has an array."""
        specs = nnx.to_pure_dict(nnx.get_partition_spec(self._state))
        return jax.tree.map(tuple, specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))

    def bind(self, params: Params) -> M:
        """The module with these arrays in it."""
        return nnx.merge(self._definition, params)
