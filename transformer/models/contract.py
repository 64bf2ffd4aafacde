"""What every model family gives to tasks, decoding and training."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, Captured
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.layers.module import Functional

PyTree = Any
Inputs = Mapping[str, jax.Array | np.ndarray]


class Variables(NamedTuple):
    """What a model is made of: `params` are trained; `state` (batch statistics and the like) is carried."""

    params: PyTree
    state: PyTree


class Aux(NamedTuple):
    """What a forward pass returns beside its outputs.

    `maps` is diagnostic and cut off from the gradient; `extras` is differentiable; `state` is the next state.
    """

    maps: Mapping[str, Captured]
    extras: Mapping[str, Array]
    state: PyTree


class Cache(NamedTuple):
    """What decoding carries from step to step.

    `layers`: [layer, row, ...] and `rows`: [row, ...] are re-ordered by beams (row = example x beam);
    `examples`: [layer, example, ...] or [example, ...] is the same for all beams and never tiled.
    """

    layers: PyTree
    rows: PyTree
    examples: PyTree


class Need(enum.Enum):
    """What a task predicts from what, which a family of models can do or not."""

    TRANSLATION = "a target from a source"
    CONTINUATION = "each token from those before it"
    FILLING = "hidden tokens from those around them"


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a task asks of a model, known before it is built.

    `inputs`: the shapes and types of the largest batch; `vocabularies`: sizes by name; `pad`, `begin` and `end`
    are token numbers, None where the task has no such token; `need` is what only some families do; `decoded` is the
    greatest length of a prompt with what is generated behind it.
    """

    inputs: Mapping[str, jax.ShapeDtypeStruct]
    vocabularies: Mapping[str, int]
    pad: int | None
    begin: int | None
    end: int | None
    need: Need | None = None
    decoded: int = 0


def check_longest(longest: int, interface: Interface) -> None:
    """Refuse a task whose sequences do not fit the `longest` positions of a model.

    Errors: UserError naming the input, its length and the two keys that can change it.
    """
    for name, shape in interface.inputs.items():
        if len(shape.shape) > 1 and shape.shape[1] > longest:
            raise UserError(
                f"the task's longest {name} has {shape.shape[1]} positions, more than config.model.longest={longest}; "
                "shorten it (config.task.lengths or config.task.context) or raise config.model.longest"
            )
    if interface.decoded > longest:
        raise UserError(
            f"the task's prompts with what follows have up to {interface.decoded} tokens, more than "
            f"config.model.longest={longest}; lower config.task.continued, shorten config.task.prompts, or raise it"
        )


@dataclasses.dataclass(frozen=True)
class Precision:
    """The type that parameters are kept in, and the type that a forward pass computes in."""

    parameters: str = "float32"
    compute: str = "float32"

    def __post_init__(self) -> None:
        for name in (self.parameters, self.compute):
            if not jnp.issubdtype(jnp.dtype(name), jnp.floating):
                raise ValueError(f"precision {name!r} is no floating-point type; say float32 or bfloat16")


@dataclasses.dataclass(frozen=True)
class Model:
    """A family's module as pure functions of variables.

    The module's methods take (state, inputs, *, train, key, capture) and return (outputs, Aux): `forward`, and for
    families that score tokens `hidden`, whose outputs `logits` scores. A family that decodes also has the methods
    `init_cache` and `step` (transformer.decode).
    """

    functional: Functional
    sites: tuple[Site, ...]

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

        Errors: ValueError for a site to capture that the model does not have.
        """
        if capture is not None:
            unknown = set(capture.sites) - {site.name for site in self.sites}
            if unknown:
                raise ValueError(f"capture.sites names {sorted(unknown)}; known: {[site.name for site in self.sites]}")
        module = self.functional.bind(variables.params)
        outputs, aux = getattr(module, method)(variables.state, inputs, train=train, key=key, capture=capture)
        if capture is not None:
            aux = aux._replace(maps={site: found.of_layers(capture.layers) for site, found in aux.maps.items()})
        return outputs, aux

    def logits(self, variables: Variables, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every token from outputs of the method `hidden`, or a part of them, in at least float32."""
        return self.functional.bind(variables.params).logits(hidden)

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """The prefill: a cache for `beams` rows an example and `length` steps, and the first step's tokens."""
        return self.functional.bind(variables.params).init_cache(inputs, beams=beams, length=length)

    def step(self, variables: Variables, cache: Cache, tokens_R: Int[Array, " R"]) -> tuple[Float[Array, "R V"], Cache]:
        """One step of decoding: the next token's logits and the cache that has seen `tokens_R`."""
        return self.functional.bind(variables.params).step(cache, tokens_R)


def count_parameters(shapes: PyTree) -> int:
    """The number of scalars in a tree of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
