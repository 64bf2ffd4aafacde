"""Pure functions of models and layers as one program each: run by itself, every operation is compiled by itself."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from transformer.layers.functional_module import FunctionalModule
from transformer.models.model import Cache, Inputs, Model, PyTree, Variables


@functools.partial(jax.jit, static_argnames=("model", "method", "train", "capture"))
def apply(model: Model, variables: Variables, inputs: Inputs, **options: Any) -> Any:
    """What model.apply gives."""
    return model.apply(variables, inputs, **options)


@functools.partial(jax.jit, static_argnames=("model", "num_beams", "length"))
def init_cache(model: Model, variables: Variables, inputs: Inputs, *, num_beams: int, length: int) -> tuple[Cache, Any]:
    """What model.init_cache gives."""
    return model.init_cache(variables, inputs, num_beams=num_beams, length=length)


@functools.partial(jax.jit, static_argnames=("module", "method", "capture"))
def call(module: FunctionalModule, params: PyTree, *inputs: Any, method: str = "__call__", **options: Any) -> Any:
    """What the module with these parameters gives, or a method of it."""
    return getattr(module.bind(params), method)(*inputs, **options)


def initial(init: Callable[[Any], PyTree], seed: int = 0) -> Any:
    """What an `init` draws by the key of this seed."""
    return jax.jit(init)(jax.random.key(seed))
