"""The fence around Flax NNX: modules hold parameters, and everything past this file is pure functions.

Outside, parameters are nested dicts of arrays keyed by name. A module is built abstractly once; binding
arrays to it gives an object whose methods are pure functions of those arrays.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Key

from transformer.attention.component import Initializer
from transformer.config import Config, UserError
from transformer.layers.initialization import Initialize, Role

Params = dict[str, Any]
CONSTANTS = (jax.nn.initializers.zeros, jax.nn.initializers.ones)


class Module(nnx.Module):
    """An object that holds parameters and other modules; its methods never assign to it."""


@dataclasses.dataclass(frozen=True)
class Precision(Config, path="config.precision"):
    """The type that parameters are kept in, and the type that a forward pass computes in."""

    parameters: str = "float32"
    compute: str = "float32"

    def _check(self) -> None:
        for key, name in dataclasses.asdict(self).items():
            try:
                known = jnp.issubdtype(jnp.dtype(name), jnp.floating)
            except TypeError:
                known = False
            if not known:
                raise UserError(f"config.precision.{key}={name!r} is no floating-point type; say float32 or bfloat16")


Rule = Callable[[Role, int, int], Initializer]  # from what a matrix is for, its fan-in and its fan-out
FLOAT32, XAVIER = Precision(), Initialize()


class Builder:
    """Makes the parameters of one model: from a stream of keys, in one precision, its matrices by one rule.

    A constructor hands its builder on to the modules within: each parameter draws the stream's next key. `dtype` is the
    type that the forward pass computes in.
    """

    def __init__(self, key: Key[jax.Array, ""], precision: Precision = FLOAT32, rule: Rule = XAVIER):
        self.precision, self.rule = precision, rule
        self.dtype = jnp.dtype(precision.compute)
        self._keys = (jax.random.fold_in(key, number) for number in itertools.count(1))

    def with_rule(self, rule: Rule) -> "Builder":
        """The same builder with another rule; both draw from one stream."""
        other = copy.copy(self)
        other.rule = rule
        return other

    def parameter(self, initializer: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
        """Make one trainable array.

        Args:
            initializer: Its distribution.
            shape: Its shape.
            axes: The logical name of each dimension (`transformer.logical_axes`, or the family's own).

        Raises:
            ValueError: If there are more or fewer names than dimensions.
        """
        if len(shape) != len(axes):
            raise ValueError(
                f"a parameter of shape {shape} has {len(shape)} dimensions and {len(axes)} logical axes {axes}: name "
                "one for each"
            )
        # A constant draws no key, so that models which differ in norms or biases alone begin with the same matrices.
        key = None if initializer in CONSTANTS else next(self._keys)
        return nnx.Param(initializer(key, shape, jnp.dtype(self.precision.parameters)), out_sharding=axes)

    def stack[M: Module](self, make: Callable[["Builder"], M], count: int, axis: str = "layers") -> M:
        """`count` modules of one structure as one module whose parameters carry a leading axis of this name."""
        build = nnx.vmap(
            lambda key: make(Builder(key, self.precision, self.rule)),
            in_axes=0,
            out_axes=0,
            transform_metadata={nnx.PARTITION_NAME: axis},
        )
        return build(jax.random.split(next(self._keys), count))


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

    `inputs` and the returned outputs have a leading axis of periods. `scan_unroll` periods are compiled in line.
    `checkpoint` is a policy of jax.checkpoint by which each call's forward pass is kept; None keeps everything.
    """
    definition, state = nnx.split(stacked)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), nnx.to_pure_dict(state))

    def body(carry: Any, group: Any) -> tuple[Any, Any]:
        states, group_input = group
        blocks = tuple(nnx.merge(definition, entry(states, number)) for number in range(period))
        return function(blocks, carry, group_input)

    if checkpoint is not None:
        # Within a loop nothing could merge the two passes again; layers that are compiled in line could.
        body = jax.checkpoint(body, policy=checkpoint, prevent_cse=unroll > 1)
    return jax.lax.scan(body, carry, (grouped, inputs), unroll=unroll)


def entry(tree: Any, number: int) -> Any:
    """The entry of this number of every leaf's leading axis."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def unstacked(stacked: Module, count: int) -> tuple[Params, ...]:
    """The parameters of each layer of a stacked module by itself."""
    params = nnx.to_pure_dict(nnx.state(stacked))
    return tuple(entry(params, number) for number in range(count))


def layer_of(stacked: Module, params: Params) -> Any:
    """One layer of a stacked module, with these parameters in it."""
    return nnx.merge(nnx.graphdef(stacked), params)


def one_by_one(stacked: Module) -> tuple[Callable[[Params, Array], Array], Params]:
    """A stacked module as f(params, x), each module of its own entry of x, and its parameters."""
    definition, state = nnx.split(stacked)

    def of_one(params: Params, x: Array) -> Array:
        return nnx.merge(definition, params)(x)

    return jax.vmap(of_one), nnx.to_pure_dict(state)


class Functional[M: Module]:
    """A module as pure functions of its parameters.

    `make(builder)` builds the module, in this precision; it is run abstractly first, so that no array is made before
    `init`.
    """

    def __init__(self, make: Callable[[Builder], M], precision: Precision = FLOAT32):
        self._make, self._precision = make, precision
        with nnx.use_eager_sharding(False):
            abstract = nnx.eval_shape(lambda: make(Builder(jax.random.key(0), precision)))
        self._definition, self._state = nnx.split(abstract)

    def init(self, key: Key[Array, ""]) -> Params:
        """Fresh parameters; pure, so that it can run under jit with output shardings."""
        with nnx.use_eager_sharding(False):
            _, state = nnx.split(self._make(Builder(key, self._precision)))
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
