"""FLOPs of a model, counted in the jaxpr of its forward pass over abstract shapes.

Only matrix products and convolutions are counted, a multiplication and an addition as two; norms, activations,
softmax and sums are left out. The trace is that of the model's equations (`trace_reference`), so that the count is the
model's and not a backend's: attention counts the whole square of queries and keys, whatever causality, windows,
segments or padding hide, and a mixture of experts counts those that each position selects.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from transformer.attention.reference_mode import trace_reference
from transformer.layers.functional_module import Precision
from transformer.models.model import Model, Variables
from transformer.models.model_family import PublishedSize
from transformer.models.registry import build

# The backward pass costs twice as much as the forward pass.
TRAINING_TO_FORWARD_RATIO = 3

PyTree = Any
# The shapes of what a model's methods read.
Shapes = Mapping[str, Any]


class UncountableError(ValueError):
    """The FLOPs of a program cannot be counted before it runs."""


def training_flops(model: Model, inputs: Shapes) -> int:
    """Return the FLOPs of a training step over inputs of these shapes, padding included.

    Recomputation by rematerialization is not included (see `recomputed_flops`).

    Args:
        model: The model.
        inputs: The shapes of its inputs, by name.

    Returns:
        Three times the FLOPs of a forward pass.

    Raises:
        UncountableError: If a loop has an unknown trip count, or if a foreign function is called.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from transformer.costs.flops import training_flops
        from transformer.layers.functional_module import Precision
        from transformer.models.registry import build, model_config
        from transformer.models.task_interface import TaskInterface

        config = model_config({"family": "decoder", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32})
        model = build(config, TaskInterface({}, {"tokens": 11}), Precision())
        training_flops(model, {"tokens": jax.ShapeDtypeStruct((8, 128), jnp.int32)})  # 76578816
        ```
    """
    return TRAINING_TO_FORWARD_RATIO * forward_flops(model, inputs)


def forward_flops(model: Model, inputs: Shapes) -> int:
    """Return the FLOPs of a forward pass over inputs of these shapes, of every method in `Model.forward_methods`.

    Args:
        model: The model.
        inputs: The shapes of its inputs, by name.

    Returns:
        The FLOPs.

    Raises:
        UncountableError: If a loop has an unknown trip count, or if a foreign function is called.
    """
    variables = model.shapes()
    return sum(
        count_matmul_flops(_trace_method(model, method, variables, inputs).jaxpr) for method in model.forward_methods
    )


def recomputed_flops(model: Model, inputs: Shapes) -> int:
    """Return the FLOPs that the backward pass recomputes because of rematerialization.

    It is the count of the gradient minus that of the gradient of the same trace with everything saved. What
    fused attention kernels recompute themselves is left out.

    Args:
        model: The model.
        inputs: The shapes of its inputs, by name.

    Returns:
        The FLOPs; 0 without rematerialization.

    Raises:
        UncountableError: If a loop has an unknown trip count, or if a foreign function is called.
    """
    variables = model.shapes()
    total = 0
    for method in model.forward_methods:
        traced = _trace_method(model, method, variables, inputs)
        if _rematerializes(traced.jaxpr):
            without_remat = _without_rematerialization(traced)
            total += _gradient_flops(traced, variables, inputs) - _gradient_flops(without_remat, variables, inputs)
    return total


def training_flops_per_token(config: Any, size: PublishedSize) -> float:
    """Return the training FLOPs per token: those that one more row adds to a step, divided by the context length.

    6 N + 12 L H D T for N weights applied to every token, L layers, H heads of depth D and the context T (Chowdhery et
    al. 2022, appendix B). A row of an encoder-decoder is a source and a target of that length, and a token a pair of
    both. What a batch computes once is left out, such as Transformer-XL's projection of distances. An image's tokens
    are its patches and the tokens before them.

    Args:
        config: The model config.
        size: The published size, for its vocabulary and context.

    Returns:
        FLOPs per token.

    Raises:
        UncountableError: If a loop has an unknown trip count, or if a foreign function is called.
    """
    model = build(config, size.task_interface, Precision())
    one, two = (training_flops(model, size.batch_shapes(rows)) for rows in (1, 2))
    return (two - one) / size.context_length


def count_matmul_flops(jaxpr: Any) -> int:
    """Count the FLOPs of all matrix products and convolutions of a jaxpr.

    2 x output size x contracted size of a product, 2 x output size x window x input channels per group of a
    convolution. The body of a scan counts as often as it runs, that of a `shard_map` on every device, a Pallas kernel's
    at every point of its grid; of the branches of a condition the most expensive counts. cuDNN's attention counts as
    the dense map of its operands.

    Raises:
        UncountableError: If a loop with an unknown trip count computes products, or if a foreign function is called.
    """
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name in _FLOPS_BY_PRIMITIVE:
        return _FLOPS_BY_PRIMITIVE[name](equation)
    if name in _UNTRACED_PRIMITIVES:
        raise UncountableError(f"{name} calls a program that has no trace: its products cannot be counted")
    if name == "cond":
        return max(count_matmul_flops(branch.jaxpr) for branch in params["branches"])
    inner = sum(map(count_matmul_flops, _inner_jaxprs(params)))
    if inner and name == "while":
        raise UncountableError(
            "a while loop computes products, and how often it turns is not known before it runs: use jax.lax.scan, or "
            "jax.lax.fori_loop with bounds that are known"
        )
    return inner * _num_executions(name, params)


def _num_executions(name: str, params: Mapping[str, Any]) -> int:
    """Return how often an equation runs its inner jaxprs."""
    match name:
        case "scan":
            return params["length"]
        case "shard_map":
            axes, sizes = params["newly_manual_axes"], params["mesh"].shape
            return math.prod(sizes[axis] for axis in (axes or sizes))
        case "pallas_call":
            grid = params["grid_mapping"].grid
            if not all(isinstance(size, int) for size in grid):
                raise UncountableError("a Pallas kernel has a grid whose size is not known before it runs")
            return math.prod(grid)
    return 1


def _dot_flops(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)


def _ragged_dot_flops(equation: Any) -> int:
    """Each row is multiplied by the matrix of its own group only."""
    lhs, rhs = (variable.aval for variable in equation.invars[:2])
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    shared = {*contracted, *batch, *numbers.rhs_group_dimensions}
    return 2 * lhs.size * math.prod(size for axis, size in enumerate(rhs.shape) if axis not in shared)


def _convolution_flops(equation: Any) -> int:
    kernel, numbers = equation.invars[1].aval, equation.params["dimension_numbers"]
    return 2 * equation.outvars[0].aval.size * (kernel.size // kernel.shape[numbers.rhs_spec[0]])


def _cudnn_attention_flops(equation: Any) -> int:
    """Scores and weighted sums of queries [B, Q, H, D] over keys and values, or of [B, H, Q, D] with `layout` 1."""
    q, k, v = (variable.aval.shape for variable in equation.invars[:3])
    length = 2 if equation.params["layout"] else 1
    return 2 * math.prod(q[:3]) * k[length] * (q[3] + v[3])


_FLOPS_BY_PRIMITIVE: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot_flops,
    "ragged_dot_general": _ragged_dot_flops,
    "conv_general_dilated": _convolution_flops,
    "dot_product_attention_fwd_wrapper": _cudnn_attention_flops,
    "dot_product_attention_bwd_wrapper": lambda equation: 2 * _cudnn_attention_flops(equation),
}
_UNTRACED_PRIMITIVES = frozenset({"ffi_call", "pure_callback"})


def _inner_jaxprs(value: Any) -> Iterator[Any]:
    """Iterate over the jaxprs within an equation's parameters."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if hasattr(value, "eqns"):
        yield value
        return
    elif hasattr(value, "jaxpr"):
        yield value.jaxpr
        return
    elif not isinstance(value, (tuple, list)):
        return
    for item in value:
        yield from _inner_jaxprs(item)


def _trace_method(model: Model, method: str, variables: Variables, inputs: Shapes) -> Any:
    """Trace a method by its equations, without dead code; hidden states are mapped to logits."""

    def run(variables: Variables, inputs: Shapes) -> PyTree:
        with trace_reference():
            outputs, aux = model.apply(variables, inputs, method=method, train=False)
            return (model.logits(variables, outputs) if method == "hidden" else outputs), aux

    traced = jax.make_jaxpr(run)(variables, dict(inputs))
    needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
    return traced.replace(jaxpr=needed)


def _gradient_flops(traced: Any, variables: Variables, inputs: Shapes) -> int:
    """Count the FLOPs of the forward and backward pass of a trace with respect to the parameters."""

    def loss(params: PyTree, state: PyTree, inputs: Shapes) -> jax.Array:
        outputs = jaxpr_as_fun(traced)(*jax.tree.leaves((Variables(params, state), inputs)))
        return sum((jnp.sum(output) for output in outputs if jnp.issubdtype(output.dtype, jnp.floating)), jnp.zeros(()))

    return count_matmul_flops(jax.make_jaxpr(jax.grad(loss))(*variables, dict(inputs)).jaxpr)


def _rematerializes(jaxpr: Any) -> bool:
    return any(
        _is_checkpoint(equation) or any(map(_rematerializes, _inner_jaxprs(equation.params))) for equation in jaxpr.eqns
    )


def _is_checkpoint(equation: Any) -> bool:
    return {"policy", "prevent_cse"} <= equation.params.keys()


def _without_rematerialization(program: Any) -> Any:
    """Return the program with checkpoints that save everything."""
    if type(program) in (tuple, list):
        return type(program)(map(_without_rematerialization, program))
    if hasattr(program, "eqns"):
        return program.replace(eqns=[_equation_without_rematerialization(equation) for equation in program.eqns])
    return program.replace(jaxpr=_without_rematerialization(program.jaxpr)) if hasattr(program, "jaxpr") else program


def _equation_without_rematerialization(equation: Any) -> Any:
    params = {name: _without_rematerialization(value) for name, value in equation.params.items()}
    if _is_checkpoint(equation):
        params["policy"] = jax.checkpoint_policies.everything_saveable
    return equation.replace(params=params)
