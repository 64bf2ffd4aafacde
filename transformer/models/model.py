"""Model: a module as pure functions of its variables, with the types that these take and return."""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.layers.functional_module import FunctionalModule, Module

PyTree = Any
Inputs = Mapping[str, jax.Array | np.ndarray]


class Variables(NamedTuple):
    """The variables of a model.

    Attributes:
        params: The trained parameters, nested dicts of arrays.
        state: What training updates without a gradient, such as batch statistics.
    """

    params: PyTree
    state: PyTree


@dataclasses.dataclass(frozen=True)
class ForwardPass:
    """What a method of a module knows of the pass that it computes, besides its inputs.

    Attributes:
        train: Whether dropout and the like act.
        key: The random key; None if nothing is random.
        capture: Which maps and statistics to capture; None captures nothing.
    """

    train: bool
    key: Key[Array, ""] | None = None
    capture: Capture | None = None

    @property
    def training_key(self) -> Key[Array, ""] | None:
        """The key in training, for dropout and the like; None outside."""
        return self.key if self.train else None


def split_key(key: Key[Array, ""] | None, count: int = 2) -> tuple[Key[Array, ""] | None, ...]:
    """Split a key into `count` keys; without a key return None for each."""
    return (None,) * count if key is None else tuple(jax.random.split(key, count))


class AuxiliaryLoss(NamedTuple):
    """A loss that is added to the task's own, weight x total / denominator.

    Examples are the load balancing of a mixture of experts, the doubly stochastic penalty of Xu et al. 2015, and
    z-loss. With gradient accumulation, totals and denominators are summed over the microbatches.

    Attributes:
        total: The sum over what `denominator` counts.
        denominator: The number of examples, tokens or routed tokens in the batch.
        weight: The weight in the loss, from the config.
    """

    total: Float[Array, ""]
    denominator: Float[Array, ""] | float
    weight: Float[Array, ""] | float


NO_LOSSES: Mapping[str, AuxiliaryLoss] = {}


class Aux(NamedTuple):
    """The auxiliary results of a forward pass.

    Attributes:
        maps: The captured attention maps by site, without gradient.
        extras: Further outputs by name, differentiable.
        state: The next state.
        losses: The losses that are added to that of the task, by name.
    """

    maps: Mapping[str, CapturedAttention]
    extras: Mapping[str, Array]
    state: PyTree
    losses: Mapping[str, AuxiliaryLoss] = NO_LOSSES


class Cache(NamedTuple):
    """The cache that decoding carries from step to step; a row is an example x a beam.

    Attributes:
        layers: Arrays [layer, row, ...], which beam search reorders.
        rows: Arrays [row, ...], which beam search reorders.
        examples: Arrays [layer, example, ...] or [example, ...], which all beams share; never tiled.
        weights: Parameters in the layout that steps read fastest, the same at every step.
    """

    layers: PyTree
    rows: PyTree
    examples: PyTree
    weights: PyTree = ()


@dataclasses.dataclass(frozen=True)
class Model:
    """A module as pure functions of variables.

    The module's methods take (state, inputs, forward_pass), a `ForwardPass`, and return (outputs, Aux): `forward`, and
    for families that predict tokens `hidden`, whose outputs `logits` maps to logits. Its `initial_state(key)` makes the
    state. A family that decodes also has `init_cache(state, inputs, *, num_beams, length)`, which returns the cache and
    the first tokens, and `step(state, cache, tokens, forward_pass)`, which returns logits, cache and Aux.

    Attributes:
        functional: The module as functions of its parameters.
        sites: Its attention sites.
        max_length: The largest number of positions of a sequence; None if unlimited.
        forward_methods: The methods that together use all parameters once, for counting FLOPs; a model of several
            players has one for each. The outputs of `hidden` are mapped to logits as well.
        width_ratio: m of the maximal update parametrization, by which the learning rate of hidden matrices is divided
            (transformer.models.decoder.DecoderConfig); 1 for the standard parametrization.

    Example:
        ```python
        import jax, jax.numpy as jnp
        from transformer.layers.functional_module import Precision
        from transformer.models.registry import build, model_config
        from transformer.models.task_interface import TaskInterface

        config = model_config({"family": "decoder", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32})
        model = build(config, TaskInterface({}, {"tokens": 11}), Precision())
        variables = model.init(jax.random.key(0))
        logits, aux = model.apply(variables, {"tokens": jnp.zeros((3, 7), jnp.int32)}, train=False)
        logits.shape  # (3, 7, 11)
        ```
    """

    functional: FunctionalModule
    sites: tuple[Site, ...]
    max_length: int | None = None
    forward_methods: tuple[str, ...] = dataclasses.field(default=("forward",), kw_only=True)
    width_ratio: float = dataclasses.field(default=1.0, kw_only=True)

    def init(self, key: Key[Array, ""]) -> Variables:
        """Initialize the variables; pure, so that it can run under jit with output shardings."""
        params = self.functional.init(key)
        return Variables(params, self.functional.bind(params).initial_state(key))

    def shapes(self) -> Variables:
        """Return the shape and dtype of every variable, without making any array or tracing the initializers again."""

        def initial_state(params: PyTree) -> PyTree:
            return self.functional.bind(params).initial_state(jax.random.key(0))

        params = self.functional.shapes()
        return Variables(params, jax.eval_shape(initial_state, params))

    def axes(self) -> Variables:
        """Return the logical axes of every parameter; the state is replicated."""
        state = jax.tree.map(lambda leaf: (None,) * leaf.ndim, self.shapes().state)
        return Variables(self.functional.axes(), state)

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
        """Run a method of the module.

        Args:
            variables: The variables.
            inputs: The inputs by name, [B, ...].
            method: The name of the method.
            train: Whether dropout and the like act.
            key: The random key for them.
            capture: Which maps and statistics to capture; None captures nothing.

        Returns:
            The outputs of the method, and its auxiliary results.

        Raises:
            ValueError: If `capture` names a site that the model does not have.
        """
        self._check(capture)
        module = self.functional.bind(variables.params)
        outputs, aux = getattr(module, method)(variables.state, inputs, ForwardPass(train, key, capture))
        return outputs, _select_layers(aux, capture)

    def logits(self, variables: Variables, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logits from outputs of the method `hidden`, or a part of them, in float32 or wider."""
        return self.functional.bind(variables.params).logits(hidden)

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Prefill the cache.

        Args:
            variables: The variables.
            inputs: The source or the prompts.
            num_beams: The number of rows of each example.
            length: The largest number of decoding steps.

        Returns:
            The cache, and the tokens that the first step reads.

        Raises:
            UserError: If the family does not decode.
        """
        module = self.functional.bind(variables.params)
        if not hasattr(module, "init_cache"):
            raise UserError(
                f"this model cannot generate: its class {type(module).__name__} has no methods init_cache and step; "
                "add them as docs/guides/your_own_model.md says"
            )
        return module.init_cache(variables.state, inputs, num_beams=num_beams, length=length)

    def step(
        self,
        variables: Variables,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Decode one step.

        Args:
            variables: The variables.
            cache: The cache of the previous steps.
            tokens_R: The token that each row reads.
            key: The random key, for models that sample here. None of the library's families does; hard attention takes
                its most probable key.
            capture: Which maps to capture, with one query per row; None captures nothing.

        Returns:
            The logits of the next token (V is the length of the source for pointer networks), the cache including
            `tokens_R`, and the auxiliary results.

        Raises:
            ValueError: If `capture` names a site that the model does not have.
        """
        self._check(capture)
        module = self.functional.bind(variables.params)
        logits, cache, aux = module.step(variables.state, cache, tokens_R, ForwardPass(False, key, capture))
        return logits, cache, _select_layers(aux, capture)

    def _check(self, capture: Capture | None) -> None:
        site_names = [site.name for site in self.sites]
        if capture is not None and (unknown := sorted(set(capture.sites) - set(site_names))):
            raise ValueError(f"capture.sites names {unknown}; known: {site_names}")


def _select_layers(aux: Aux, capture: Capture | None) -> Aux:
    if capture is None:
        return aux
    return aux._replace(maps={site: captured.select_layers(capture.layers) for site, captured in aux.maps.items()})


def count_parameters(shapes: PyTree) -> int:
    """Return the number of scalars in a tree of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


class StatelessModule(Module):
    """Base class of modules without state such as batch statistics: `Variables.state` is empty."""

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Return the empty state."""
        return {}


def replace_with_averaged(params: Any, average: Mapping[str, jax.Array | np.ndarray]) -> Any:
    """Replace parameters by their averages.

    Args:
        params: The parameters.
        average: Averages by path; parameters without one stay as they are.

    Returns:
        The parameters, each average cast to its parameter's type.
    """

    def averaged(path: Any, leaf: Any) -> Any:
        value = average.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        return leaf if value is None else value if value.dtype == leaf.dtype else value.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(averaged, params)


def leaves_by_path(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return the leaves of a tree by path, whose names are joined by "/".

    Args:
        tree: The tree.
        is_leaf: Says what else counts as a leaf, as in `jax.tree`.

    Returns:
        A leaf for each path.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def matches_any_pattern(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path matches one of the fnmatch patterns."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
