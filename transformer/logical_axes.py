"""Axes: the letters in array names, the logical axes of arrays, and the rules that place them on a mesh.

Shape letters, used in names such as `weights_BxHxQxK` and in jaxtyping: B batch, R row (example x beam),
Q query length, K key length, S source length, T target length, H heads, D head depth, E model width,
F feed-forward width, L layers, V vocabulary, G key and value heads.

A mesh has five axes, of size 1 where they are not used: `data`, `fsdp` and `expert` divide the batch, `fsdp` the
parameters as well, `expert` the experts of a mixture, `tensor` heads, feed-forward networks and the vocabulary,
`sequence` the positions of activations.
"""

import contextlib
import contextvars
import difflib
import enum
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Devices that are neighbors on a later axis are nearer to each other, and later axes exchange more in every layer.
MESH_AXES = ("data", "fsdp", "expert", "tensor", "sequence")

# Of parameters: embed to vocabulary. Of activations: batch, expert_batch (the batch of an array that has experts as
# well), length, and those that they share with parameters. A family names others of its own (`unknown_axis`).
LOGICAL_AXES = frozenset(
    {
        "batch",
        "embed",
        "expert_batch",
        "experts",
        "features",
        "feed_forward",
        "groups",
        "head_dim",
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
# Experts lie apart under all rules, and outside of their layers the devices that have them divide the batch among them
# (Lepikhin et al. 2020, GShard; Fedus et al. 2021, Switch Transformer): where an array that is laid out by "batch"
# becomes one that is laid out by "experts" and "expert_batch", the compiler inserts the all-to-all.
_DATA: Rules = {**_WHOLE, "batch": ("data", "expert"), "expert_batch": ("data",), "experts": ("expert",)}
_FSDP: Rules = {**_DATA, "batch": ("data", "fsdp", "expert"), "expert_batch": ("data", "fsdp"), "embed": ("fsdp",)}
_TENSOR: Rules = {name: ("tensor",) for name in ("heads", "groups", "feed_forward", "vocabulary")}
_POSITIONS: Rules = {"length": ("sequence",)}

# dp: every parameter but those of experts is whole on every device. fsdp: parameters, and with them the optimizer's
# moments, are divided along the model's width (Rajbhandari et al. 2020, ZeRO stage 3). tp: heads, feed-forward networks
# and the vocabulary are divided as well (Shoeybi et al. 2019, Megatron). sp: fsdp, and the positions of every sequence
# are divided. sp+tp: both at once.
RULES: Mapping[str, Rules] = {
    "dp": _DATA,
    "fsdp": _FSDP,
    "fsdp+tp": {**_FSDP, **_TENSOR},
    "sp": {**_FSDP, **_POSITIONS},
    "sp+tp": {**_FSDP, **_TENSOR, **_POSITIONS},
}

# The logical names of an array's dimensions; None for one that is whole on every device.
Names = tuple[str | None, ...]


class SequenceParallel(enum.Enum):
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
    attention: SequenceParallel = SequenceParallel.RING

    def axes(self, name: str) -> tuple[str, ...]:
        """The mesh axes of more than one device along which a logical axis is divided.

        Raises:
            UserError: As `rule`.
        """
        return tuple(axis for axis in rule(name, self.rules) if self.mesh.shape[axis] > 1)

    def parts(self, name: str) -> int:
        """Into how many parts a logical axis is divided.

        Raises:
            UserError: As `rule`.
        """
        return math.prod(self.mesh.shape[axis] for axis in rule(name, self.rules))

    def even_axes(self, name: str, *sizes: int) -> tuple[str, ...]:
        """As `axes`, but none where one of these sizes cannot be divided evenly."""
        return self.axes(name) if all(size % self.parts(name) == 0 for size in sizes) else ()

    def spec(self, names: Names) -> PartitionSpec:
        """The PartitionSpec of an array whose dimensions carry the logical names `names`.

        Raises:
            UserError: As `resolve`.
        """
        return resolve(names, {name: self.axes(name) for name in self.rules})

    def even_spec(self, names: Names, shape: tuple[int, ...]) -> PartitionSpec:
        """As `spec`, but whole in each dimension that cannot be divided evenly.

        Raises:
            UserError: As `check_count` and `resolve`.
        """
        check_count(names, shape)
        sizes = zip(names, shape, strict=True)
        return self.spec(tuple(name if name and self.even_axes(name, size) else None for name, size in sizes))


def rule(name: str, rules: Rules) -> tuple[str, ...]:
    """The mesh axes on which the rules lay a logical axis.

    Raises:
        ValueError: For a name that has no rule (JAX itself would silently replicate it), as `unknown_axis` says it.
    """
    if name not in rules:
        raise ValueError(unknown_axis(name, rules))
    return rules[name]


def unknown_axis(name: str, rules: Rules) -> str:
    """What is said of a name that is no logical axis: the known ones, the nearest first, and how to name another."""
    near = sorted(rules, key=lambda known: (-difflib.SequenceMatcher(None, name, known).ratio(), known))
    return (
        f"logical axis {name!r} has no rule; known, the nearest first: {', '.join(near)}; a family names one of its "
        f"own with the mesh axes on which it lies, () for whole: FAMILY.logical_axes={{{name!r}: ()}}"
    )


def check_count(names: Names, shape: tuple[int, ...]) -> None:
    """Raise ValueError where there are more or fewer names than dimensions."""
    if len(names) != len(shape):
        raise ValueError(
            f"{len(names)} logical axes {names} for the {len(shape)} dimensions of shape {shape}: say one for each, "
            "None for a dimension that is whole"
        )


def resolve(names: Names, rules: Rules) -> PartitionSpec:
    """The PartitionSpec of an array whose dimensions carry the logical names `names`.

    Raises:
        UserError: As `rule`
        ValueError: For two dimensions that land on one mesh axis.
    """
    placed = [() if name is None else rule(name, rules) for name in names]
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


def divided() -> bool:
    """Whether what is being traced is divided over several devices."""
    placed = placement()
    return placed is not None and placed.mesh.size > 1


def place(x: jax.Array, *names: str | None) -> jax.Array:
    """The array, told to lie where the placement in context puts its logical axes; unchanged where there is none.

    For activations: a dimension that cannot be divided evenly, such as a decoding step's one position, is whole.

    Raises:
        ValueError: Naming the array's shape and the names: for more or fewer names than dimensions anywhere; for an
            unknown name wherever a placement is in context, also one of a single device; for two dimensions that would
            be divided along one mesh axis.
    """
    placed = placement()
    try:
        if placed is None:
            check_count(names, x.shape)
            return x
        spec = placed.even_spec(names, x.shape)
    except ValueError as error:
        said = ", ".join(("x", *map(repr, names)))
        raise ValueError(f"place({said}) of an array of shape {x.shape}: {error}") from None
    return x if placed.mesh.size == 1 else jax.lax.with_sharding_constraint(x, NamedSharding(placed.mesh, spec))
