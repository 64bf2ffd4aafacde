"""Axes: the letters in array names, the logical axes of arrays, and the rules that place them on a mesh.

Shape letters, used in names such as `weights_BxHxQxK` and in jaxtyping: B batch, R row (example x beam),
Q query length, K key length, S source length, T target length, H heads, D head depth, E model width,
F feed-forward width, L layers, V vocabulary, G key and value heads.

A mesh has four axes, of size 1 where they are not used: `data` and `fsdp` divide the batch, `fsdp` the parameters as
well, `tensor` heads, feed-forward networks and the vocabulary, `sequence` the positions of activations. (`expert` is
the name that mixtures of experts will take.)
"""

import contextlib
import contextvars
import enum
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

# Of parameters: embed to vocabulary. Of activations: batch, length, and those that they share with parameters.
LOGICAL_AXES = frozenset(
    {
        "batch",
        "embed",
        "features",
        "feed_forward",
        "groups",
        "head_depth",
        "heads",
        "layers",
        "length",
        "positions",
        "vocabulary",
    }
)

# Where each logical axis lies: the names of mesh axes, or none for "whole on every device".
Rules = Mapping[str, tuple[str, ...]]

_WHOLE: Rules = {name: () for name in sorted(LOGICAL_AXES)}
_FSDP: Rules = {**_WHOLE, "batch": ("data", "fsdp"), "embed": ("fsdp",)}
_TENSOR: Rules = {name: ("tensor",) for name in ("heads", "groups", "feed_forward", "vocabulary")}

# dp: every parameter is whole on every device. fsdp: parameters, and with them the optimiser's moments, are divided
# along the model's width (Rajbhandari et al. 2020, ZeRO stage 3). tp: heads, feed-forward networks and the vocabulary
# are divided as well (Shoeybi et al. 2019, Megatron). sp: fsdp, and the positions of every sequence are divided.
RULES: Mapping[str, Rules] = {
    "dp": {**_WHOLE, "batch": ("data",)},
    "fsdp": _FSDP,
    "fsdp+tp": {**_FSDP, **_TENSOR},
    "sp": {**_FSDP, "length": ("sequence",)},
}

# The logical names of an array's dimensions; None for one that is whole on every device.
Names = tuple[str | None, ...]


class DividedAttention(enum.Enum):
    """How attention reaches across positions that are divided over devices.

    ring: keys and values travel from device to device, and partial results are combined by their log-sum-exp (Liu et
    al. 2023, Ring Attention); memory linear in a device's own positions. gather: every device gets all keys and values.
    """

    RING = "ring"
    GATHER = "gather"


class Placement(NamedTuple):
    """A mesh, where on it each logical axis lies, and how attention reaches across divided positions."""

    mesh: Mesh
    rules: Rules
    attention: DividedAttention = DividedAttention.RING

    def axes(self, name: str) -> tuple[str, ...]:
        """The mesh axes of more than one device along which a logical axis is divided."""
        return tuple(axis for axis in self.rules[name] if self.mesh.shape[axis] > 1)

    def parts(self, name: str) -> int:
        """Into how many parts a logical axis is divided."""
        return math.prod(self.mesh.shape[axis] for axis in self.rules[name])

    def even_axes(self, name: str, *sizes: int) -> tuple[str, ...]:
        """As `axes`, but none where one of these sizes cannot be divided evenly."""
        return self.axes(name) if all(size % self.parts(name) == 0 for size in sizes) else ()

    def spec(self, names: Names) -> PartitionSpec:
        """The PartitionSpec of an array whose dimensions carry the logical names `names`.

        Errors: as `resolve`.
        """
        return resolve(names, {name: self.axes(name) for name in self.rules})

    def even_spec(self, names: Names, shape: tuple[int, ...]) -> PartitionSpec:
        """As `spec`, but whole in each dimension that cannot be divided evenly."""
        sizes = zip(names, shape, strict=True)
        return self.spec(tuple(name if name and self.even_axes(name, size) else None for name, size in sizes))


def resolve(names: Names, rules: Rules) -> PartitionSpec:
    """The PartitionSpec of an array whose dimensions carry the logical names `names`.

    Errors: ValueError for a name that is no logical axis or has no rule (JAX itself would silently
    replicate it), and for two dimensions that land on one mesh axis.
    """
    for name in names:
        if name is not None and (name not in LOGICAL_AXES or name not in rules):
            raise ValueError(f"logical axis {name!r} in {names} has no rule; known axes: {sorted(LOGICAL_AXES)}")
    placed = [() if name is None else rules[name] for name in names]
    used = [axis for axes in placed for axis in axes]
    if len(set(used)) != len(used):
        raise ValueError(f"the rules put two dimensions of {names} on one mesh axis: {placed}")
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in placed])


_placement: contextvars.ContextVar[Placement | None] = contextvars.ContextVar("placement", default=None)


@contextlib.contextmanager
def placed(placement: Placement) -> Iterator[None]:
    """Trace what is inside for this placement: `place` and what asks for it (attention) then know the mesh.

    It is entered inside the function that is compiled, so that no trace is ever used for another placement.
    """
    token = _placement.set(placement)
    try:
        with jax.sharding.use_abstract_mesh(placement.mesh.abstract_mesh):
            yield
    finally:
        _placement.reset(token)


def placement() -> Placement | None:
    """The placement that is being traced for; None outside of one, where all is on one device."""
    return _placement.get()


def place(x: jax.Array, *names: str | None) -> jax.Array:
    """The array, told to lie where the placement in context puts its logical axes; unchanged where there is none.

    For activations: a dimension that cannot be divided evenly, such as a decoding step's one position, is whole.
    """
    here = placement()
    if here is None or here.mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(here.mesh, here.even_spec(names, x.shape)))
