"""How one call of attention lies on a mesh, and what of its arrays a device has."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from transformer.axes import DividedAttention, placement


class Division(NamedTuple):
    """The mesh axes that divide examples, heads, key heads and positions: none for what lies whole on every device.

    `how` a query reaches the keys of other devices, where positions are divided.
    """

    mesh: Mesh
    batch: tuple[str, ...]
    heads: tuple[str, ...]
    groups: tuple[str, ...]
    length: tuple[str, ...]
    how: DividedAttention

    @property
    def crosses(self) -> DividedAttention | None:
        """How keys of other devices are reached; None where every device has all positions."""
        return self.how if self.length else None

    def parts(self, name: str) -> int:
        """Into how many parts "batch", "heads", "groups" or "length" is divided."""
        return math.prod(self.mesh.shape[axis] for axis in getattr(self, name))

    def place_in(self, name: str) -> Array:
        """Which of these parts a device has, asked by the device itself."""
        axes = getattr(self, name)
        return jax.lax.axis_index(axes) if axes else jnp.int32(0)

    def spec(self, *names: str | None) -> PartitionSpec:
        """Where an array lies whose dimensions are so divided.

        The first dimension also names the axes of one device: over an axis that no dimension names, gradients would be
        added up.
        """
        axes = [() if name is None else getattr(self, name) for name in names]
        alone = tuple(axis for axis, size in self.mesh.shape.items() if size == 1)
        return PartitionSpec((*axes[0], *alone) or None, *[of_dimension or None for of_dimension in axes[1:]])

    def lay(self, x: Array, *names: str | None) -> Array:
        """The array, told to lie so."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.spec(*names)))

    def on_each[R](self, body: Callable[..., R], inputs: Any, outputs: Any) -> Callable[..., R]:
        """`body` as a program that each device runs on its own parts of the inputs, by `jax.shard_map`."""
        # Which values differ between devices is not tracked: kernels do not say it of theirs.
        return jax.shard_map(body, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def specs_of_terms(self, terms: Any) -> list[PartitionSpec]:
        """Where each leaf of `Terms` lies: facts of queries with their queries, those of keys whole."""
        return [self._spec_of_term(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(terms)]

    def _spec_of_term(self, path: str, leaf: Array) -> PartitionSpec:
        match path:
            case ".mask.segments[0]" | ".mask.order[0]":
                return self.spec("batch", "length")
            case ".mask.centre" | ".mask.allowed" | ".bias":
                names = ("batch", "heads", "length", None)
                return self.spec(*[name if size > 1 else None for name, size in zip(names, leaf.shape, strict=False)])
            case ".position.slopes_H":
                return self.spec("heads")
            case ".position.table_PxH":
                return self.spec(None, "heads")
            case _ if path.startswith(".mask."):
                return self.spec("batch")
        raise AssertionError(f"{path}: how this lies on a mesh is not said")

    def own_groups(self, x_BxKxGxD: Array, heads: int) -> Array:
        """Of key heads that lie whole: those that a device's own query heads read, asked by the device itself.

        `heads` counts the query heads of all devices. Neighbours that read the same key head share it.
        """
        groups = x_BxKxGxD.shape[2]
        if not self.heads or self.groups:
            return x_BxKxGxD
        own, serves = heads // self.parts("heads"), heads // groups
        alike = math.gcd(own, serves)
        first = self.place_in("heads") * own
        return jnp.take(x_BxKxGxD, (first + jnp.arange(0, own, alike)) // serves, axis=2)


def division_of(q: Array, k: Array) -> Division | None:
    """How the placement in context divides a call; None where all is on one device.

    What cannot be divided evenly lies whole on every device: examples, heads or key heads that are too few, and
    positions unless both the queries and the keys can be, such as those of a prompt or of a step of decoding.
    """
    here = placement()
    if here is None or here.mesh.size == 1:
        return None
    (batch, queries, heads), (keys, groups) = q.shape[:3], k.shape[1:3]
    of_heads = here.even_axes("heads", heads)
    of_groups = here.even_axes("groups", groups) if here.axes("groups") == of_heads else ()
    length = here.even_axes("length", queries, keys)
    return Division(here.mesh, here.even_axes("batch", batch), of_heads, of_groups, length, here.attention)
