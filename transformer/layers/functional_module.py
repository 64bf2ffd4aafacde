"""The interface to Flax NNX: modules hold parameters, and all code outside this file is pure functions.

Outside, parameters are nested dicts of arrays keyed by name. A module is built abstractly once; binding arrays to it
gives an object whose methods are pure functions of those arrays.
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
from transformer.layers.initialization import InitializationRule, ParameterRole

Params = dict[str, Any]
CONSTANTS = (jax.nn.initializers.zeros, jax.nn.initializers.ones)


class Module(nnx.Module):
    """An object that holds parameters and other modules; its methods never assign to it."""


@dataclasses.dataclass(frozen=True)
class Precision(Config, path="config.precision"):
    """The types of parameters and computation.

    Attributes:
        parameters: The type in which parameters are stored.
        compute: The type in which a forward pass computes.
        logits: The type in which the logits of a head are stored: "float32", which means the type of computation if
            that is wider, or the type of computation. Losses compute in float32 or wider in either case.

    Raises:
        UserError: If a type is not a floating-point type, or `logits` is neither float32 nor `compute`.
    """

    parameters: str = "float32"
    compute: str = "float32"
    logits: str = "float32"

    def _check(self) -> None:
        for key, name in dataclasses.asdict(self).items():
            try:
                is_floating = jnp.issubdtype(jnp.dtype(name), jnp.floating)
            except TypeError:
                is_floating = False
            if not is_floating:
                raise UserError(f"config.precision.{key}={name!r} is no floating-point type; say float32 or bfloat16")
        if self.logits not in ("float32", self.compute):
            raise UserError(
                f"config.precision.logits={self.logits!r} must be float32 or config.precision.compute={self.compute!r}"
            )

    @property
    def logits_dtype(self) -> jnp.dtype:
        """The type in which logits are stored."""
        compute = jnp.dtype(self.compute)
        return compute if self.logits == self.compute else jnp.promote_types(compute, jnp.float32)


Rule = Callable[[ParameterRole, int, int], Initializer]  # from what a matrix is for, its fan-in and its fan-out
FLOAT32, XAVIER = Precision(), InitializationRule()


class ParameterBuilder:
    """Makes the parameters of one model.

    A constructor passes its builder on to its submodules; each parameter takes the next key of one stream.

    Args:
        key: The random key from which the stream is derived.
        precision: The types of parameters and computation.
        rule: The initialization, from a matrix's role, fan-in and fan-out.
    """

    def __init__(self, key: Key[jax.Array, ""], precision: Precision = FLOAT32, rule: Rule = XAVIER):
        self.precision, self.rule = precision, rule
        self.dtype, self.logits_dtype = jnp.dtype(precision.compute), precision.logits_dtype
        self._keys = (jax.random.fold_in(key, number) for number in itertools.count(1))

    def with_rule(self, rule: Rule) -> "ParameterBuilder":
        """A copy of the builder with another rule; both draw from the same stream of keys."""
        builder = copy.copy(self)
        builder.rule = rule
        return builder

    def parameter(self, initializer: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
        """Make one trainable array.

        Args:
            initializer: Its distribution; constants draw no key.
            shape: Its shape.
            axes: The logical name of each dimension (`transformer.logical_axes`, or the family's own).

        Returns:
            The parameter, in the parameters' type.

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

    def stack[M: Module](self, make: Callable[["ParameterBuilder"], M], count: int, axis: str = "layers") -> M:
        """Build `count` modules of the same structure as one module whose parameters have a leading axis.

        Args:
            make: Builds one module.
            count: Number of modules.
            axis: Logical name of the leading axis.

        Returns:
            The stacked module, for `scan_layers`, `group_layers` or `split_stacked`.
        """
        build = nnx.vmap(
            lambda key: make(ParameterBuilder(key, self.precision, self.rule)),
            in_axes=0,
            out_axes=0,
            transform_metadata={nnx.PARTITION_NAME: axis},
        )
        return build(jax.random.split(next(self._keys), count))


def group_layers(stacked: Module, period: int) -> tuple[Callable[[Params], tuple[Any, ...]], Params]:
    """Split a stacked module into groups of successive layers.

    Args:
        stacked: The module from `ParameterBuilder.stack`.
        period: Layers of a group.

    Returns:
        A function from the parameters of one group to its layers, and the parameters with a leading axis of groups and
        an axis of the layers within a group.
    """
    definition, state = nnx.split(stacked)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), nnx.to_pure_dict(state))

    def bind(params: Params) -> tuple[Any, ...]:
        return tuple(nnx.merge(definition, index_leading_axis(params, number)) for number in range(period))

    return bind, grouped


def scan_layers(
    function: Callable[[Any, Any, Any], tuple[Any, Any]], stacked: Module, carry: Any, inputs: Any
) -> tuple[Any, Any]:
    """Scan over the layers of a stacked module.

    Args:
        function: `function(layer, carry, input) -> (carry, output)`.
        stacked: The module from `ParameterBuilder.stack`.
        carry: The initial carry.
        inputs: A tree with a leading axis of layers.

    Returns:
        The final carry, and the outputs with a leading axis of layers.
    """
    bind, params = group_layers(stacked, 1)

    def body(carry: Any, layer: tuple[Params, Any]) -> tuple[Any, Any]:
        layer_params, layer_input = layer
        (block,) = bind(layer_params)
        return function(block, carry, layer_input)

    return jax.lax.scan(body, carry, (params, inputs))


def store_inputs_alone(function: Callable[..., Array], *inputs: Array) -> Array:
    """Apply a function that is cheap to compute again: its gradient in bfloat16 or float16 stores only its inputs.

    Autodiff stores several arrays of their size, those of a norm in float32, which cost accelerators more to write and
    read than the function to compute again. In float32 the program stays autodiff's, to the last bit, so that recorded
    runs can be reproduced.

    Args:
        function: A norm, or an elementwise function and the product that takes its result, which is not computed again.
        inputs: Its inputs.

    Returns:
        function(*inputs).
    """
    narrow = jnp.finfo(jnp.result_type(*inputs)).bits < 32
    # Nothing keeps the compiler from merging both passes, which it does where that saves more.
    return jax.checkpoint(function, prevent_cse=False)(*inputs) if narrow else function(*inputs)


def index_leading_axis(tree: Any, number: int) -> Any:
    """Index the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def unstack_layers(stacked: Module, count: int) -> tuple[Params, ...]:
    """The parameters of each layer of a stacked module."""
    params = nnx.to_pure_dict(nnx.state(stacked))
    return tuple(index_leading_axis(params, number) for number in range(count))


def bind_layer(stacked: Module, params: Params) -> Any:
    """One layer of a stacked module, with these parameters."""
    return nnx.merge(nnx.graphdef(stacked), params)


def split_stacked(stacked: Module) -> tuple[Callable[[Params, Array], Array], Params]:
    """Split a stacked module into f(params, x), which applies each module to its own entry of x, and its parameters."""
    definition, state = nnx.split(stacked)

    def apply_one(params: Params, x: Array) -> Array:
        return nnx.merge(definition, params)(x)

    return jax.vmap(apply_one), nnx.to_pure_dict(state)


class FunctionalModule[M: Module]:
    """A module as pure functions of its parameters.

    Args:
        make: Builds the module; it is run abstractly first, so that no array is made before `init`.
        precision: The types of parameters and computation.
    """

    def __init__(self, make: Callable[[ParameterBuilder], M], precision: Precision = FLOAT32):
        self._make, self._precision = make, precision
        with nnx.use_eager_sharding(False):
            abstract = nnx.eval_shape(lambda: make(ParameterBuilder(jax.random.key(0), precision)))
        self._definition, self._state = nnx.split(abstract)

    def init(self, key: Key[Array, ""]) -> Params:
        """Initialize the parameters; pure, so that it can run under jit with output shardings."""
        with nnx.use_eager_sharding(False):
            _, state = nnx.split(self._make(ParameterBuilder(key, self._precision)))
        return nnx.to_pure_dict(state)

    def shapes(self) -> Params:
        """The shape and dtype of every parameter, without making any array."""
        return nnx.to_pure_dict(self._state)

    def axes(self) -> Params:
        """The logical axis names of every parameter, as a tuple in the place of each array of `shapes`."""
        specs = nnx.to_pure_dict(nnx.get_partition_spec(self._state))
        return jax.tree.map(tuple, specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))

    def bind(self, params: Params) -> M:
        """The module with these parameters."""
        return nnx.merge(self._definition, params)
