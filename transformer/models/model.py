"""What every model family gives to tasks, decoding and training."""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, Captured
from transformer.attention.sites import Site
from transformer.layers.functional_module import Functional, Module

PyTree = Any
Inputs = Mapping[str, jax.Array | np.ndarray]


class Variables(NamedTuple):
    """What a model is made of: `params` are trained; `state` (batch statistics and the like) is carried."""

    params: PyTree
    state: PyTree


class AuxiliaryLoss(NamedTuple):
    """A term that a model itself adds to what is minimized: weight x total / denominator.

    Such as the balance of a router, or the doubly stochastic penalty of Xu et al. 2015. `total` is a sum over what
    `denominator` counts in the batch (examples, tokens, routed tokens); where an update is computed in microbatches,
    both are added up, so that a term that is a sum over examples is the large batch's. `weight` is of the config.
    """

    total: Float[Array, ""]
    denominator: Float[Array, ""] | float
    weight: Float[Array, ""] | float


NO_LOSSES: Mapping[str, AuxiliaryLoss] = {}


class Aux(NamedTuple):
    """What a forward pass returns beside its outputs.

    `maps` is diagnostic and cut off from the gradient; `extras` is differentiable; `state` is the next state;
    `losses` are what the model adds to the loss of whatever task it serves, by name.
    """

    maps: Mapping[str, Captured]
    extras: Mapping[str, Array]
    state: PyTree
    losses: Mapping[str, AuxiliaryLoss] = NO_LOSSES


class Cache(NamedTuple):
    """What decoding carries from step to step.

    `layers`: [layer, row, ...] and `rows`: [row, ...] are re-ordered by beams (row = example x beam);
    `examples`: [layer, example, ...] or [example, ...] belongs to all beams alike and is never tiled. `weights` are
    parameters in the arrangement that steps read fastest, the same in every step.
    """

    layers: PyTree
    rows: PyTree
    examples: PyTree
    weights: PyTree = ()


@dataclasses.dataclass(frozen=True)
class Model:
    """A family's module as pure functions of variables.

    The module's methods take (state, inputs, *, train, key, capture) and return (outputs, Aux): `forward`, and for
    families that score tokens `hidden`, whose outputs `logits` scores. Its `initial_state(key)` is what it carries
    between steps. A family that decodes also has `init_cache(state, inputs, *, beams, length)`, which gives the cache
    and the first tokens, and `step(state, cache, tokens, *, key, capture)`, which gives logits, cache and Aux
    (transformer.decoding). `max_length` is the greatest number of positions of a sequence, None where there is none.
    `forward_methods` are the methods that together bring a batch through all of its parameters
    (transformer.costs.flops): of several players, one each. The outputs of `hidden` are scored.
    """

    functional: Functional
    sites: tuple[Site, ...]
    max_length: int | None = None
    forward_methods: tuple[str, ...] = dataclasses.field(default=("forward",), kw_only=True)

    def init(self, key: Key[Array, ""]) -> Variables:
        """Fresh variables; pure, so that it can run under jit with output shardings."""
        params = self.functional.init(key)
        return Variables(params, self.functional.bind(params).initial_state(key))

    def axes(self) -> Variables:
        """The logical axes of every parameter; state is whole on every device."""
        state = jax.eval_shape(self.init, jax.random.key(0)).state
        return Variables(self.functional.axes(), jax.tree.map(lambda leaf: (None,) * leaf.ndim, state))

    def apply(
        self,
        variables: Variables,
        inputs: Inputs,
        *,
        method: str = "forward",
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[PyTree, Aux]:
        """Run a method of the module: dropout and the like act only when `train`, by `key`.

        Raises:
            ValueError: For a site to capture that the model does not have.
        """
        self._check(capture)
        module = self.functional.bind(variables.params)
        outputs, aux = getattr(module, method)(variables.state, inputs, train=train, key=key, capture=capture)
        return outputs, _select_layers(aux, capture)

    def logits(self, variables: Variables, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every token from outputs of the method `hidden`, or a part of them, in at least float32."""
        return self.functional.bind(variables.params).logits(hidden)

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """The prefill: a cache for `beams` rows an example and `length` steps, and the first step's tokens."""
        module = self.functional.bind(variables.params)
        return module.init_cache(variables.state, inputs, beams=beams, length=length)

    def step(
        self,
        variables: Variables,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """One step of decoding: the next token's logits, the cache that has seen `tokens_R`, and the maps asked for.

        V may be the length of a source, for models that point. `key` is for models that draw here; none of the
        library's families does, and hard attention reads its likeliest key. Maps have one query a row.

        Raises:
            ValueError: For a site to capture that the model does not have.
        """
        self._check(capture)
        module = self.functional.bind(variables.params)
        logits, cache, aux = module.step(variables.state, cache, tokens_R, key=key, capture=capture)
        return logits, cache, _select_layers(aux, capture)

    def _check(self, capture: Capture | None) -> None:
        known = [site.name for site in self.sites]
        if capture is not None and (unknown := sorted(set(capture.sites) - set(known))):
            raise ValueError(f"capture.sites names {unknown}; known: {known}")


def _select_layers(aux: Aux, capture: Capture | None) -> Aux:
    if capture is None:
        return aux
    return aux._replace(maps={site: captured.of_layers(capture.layers) for site, captured in aux.maps.items()})


def count_parameters(shapes: PyTree) -> int:
    """The number of scalars in a tree of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


class StatelessModule(Module):
    """A module without batch statistics or the like: `Variables.state` is empty."""

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Nothing; the key is not needed."""
        return {}


def replace_with_averaged(params: Any, average: Mapping[str, jax.Array | np.ndarray]) -> Any:
    """The parameters with the averaged ones in their place, each in the parameter's type."""

    def chosen(path: Any, leaf: Any) -> Any:
        own = average.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        return leaf if own is None else own if own.dtype == leaf.dtype else own.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(chosen, params)


def leaves_by_path(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """The leaves of a tree by their path, names joined with "/"; `is_leaf` as in `jax.tree`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def matches_any_pattern(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path matches one of the patterns, those of fnmatch."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
