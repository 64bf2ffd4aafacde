"""Models of random parameters, and how they are run step by step."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention import Capture
from transformer.models.model import Model, Variables


def random_variables(model: Model) -> Variables:
    """Normal parameters, the same every time, of a model without state."""
    normal = np.random.default_rng(1).normal
    shapes = model.functional.shapes()
    return Variables(jax.tree.map(lambda leaf: 0.7 * normal(size=leaf.shape).astype(leaf.dtype), shapes), {})


def fresh_variables(model: Model, seed: int = 0) -> Variables:
    """Variables about as large as those of `model.init`, which compiles for longer than most models' passes."""
    normal = np.random.default_rng(seed).normal

    def draw(path: Any, leaf: Any) -> jax.Array:
        constant = {"scale": 1, "bias": 0}.get(path[-1].key)
        drawn = 0.3 * normal(size=leaf.shape) if constant is None else np.full(leaf.shape, constant)
        return jax.device_put(drawn.astype(leaf.dtype))

    params = jax.tree_util.tree_map_with_path(draw, model.functional.shapes())
    initial, key = model.functional.bind(params).initial_state, jax.random.key(seed)
    return Variables(params, jax.jit(initial)(key) if jax.tree.leaves(jax.eval_shape(initial, key)) else {})


def decode(
    model: Model, variables: Variables, inputs: Any, said_RxT: np.ndarray, num_beams: int, asked: Capture | None
) -> tuple[Any, Any, Any]:
    """`stepped`, to be traced."""
    cache, first_R = model.init_cache(variables, inputs, num_beams=num_beams, length=said_RxT.shape[1])

    def advance(cache: Any, tokens_R: Any) -> Any:
        logits_RxV, cache, aux = model.step(variables, cache, tokens_R, capture=asked)
        return cache, (logits_RxV, aux.maps)

    return first_R, *jax.lax.scan(advance, cache, jnp.asarray(said_RxT.T))[1]


def stepped(
    model: Model,
    variables: Variables,
    inputs: Mapping[str, Any],
    said_RxT: np.ndarray,
    num_beams: int,
    asked: Capture | None,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """The first tokens, and the logits [T, R, V] and maps of every step of decoding that is given what was said."""
    run = jax.jit(lambda variables, inputs: decode(model, variables, inputs, said_RxT, num_beams, asked))
    return jax.device_get(run(variables, inputs))


def whole_and_stepped(
    model: Model,
    variables: Variables,
    inputs: Mapping[str, Any],
    said_RxT: np.ndarray,
    num_beams: int,
    asked: Capture | None,
    whole_inputs: Mapping[str, Any] | None = None,
) -> tuple[tuple[np.ndarray, Any], tuple[np.ndarray, np.ndarray, Any]]:
    """What `model.apply` gives, and what `stepped` gives: one program, which compiles sooner than two.

    Args:
        model: The model.
        variables: Its variables.
        inputs: The inputs of the decoding.
        said_RxT: The tokens that the steps are given.
        num_beams: Rows an example.
        asked: Which maps to capture.
        whole_inputs: The inputs of `model.apply`, if others.

    Returns:
        Outputs and auxiliary results of the whole pass; first tokens, logits [T, R, V] and maps of the steps.
    """

    @jax.jit
    def run(variables: Variables, inputs: Any, whole_inputs: Any) -> Any:
        whole = model.apply(variables, whole_inputs, train=False, capture=asked)
        return whole, decode(model, variables, inputs, said_RxT, num_beams, asked)

    return jax.device_get(run(variables, inputs, inputs if whole_inputs is None else whole_inputs))
