"""Parameters between a family's tensors and our tree: one plan, by which both reading and writing go."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.huggingface.conversion_spec import Entry, Family, Inexpressible
from transformer.huggingface.tensor_layouts import Layout, Shape
from transformer.models.model import PyTree, leaves_by_path

Shapes = Mapping[str, Shape]


class Slot(NamedTuple):
    """One tensor of a file: its name and shape, the leaves in it, and its layer (None: not stacked)."""

    tensor: str
    shape: Shape
    leaves: tuple[str, ...]
    leaf_shapes: tuple[Shape, ...]
    layer: int | None
    layout: Layout


class FileNames(NamedTuple):
    """The tensors of a file by the family's names for them; `left_out` are parameters that no model of ours has."""

    tensors: dict[str, str]
    aliases: dict[str, str]
    left_out: list[str]


def plan(family: Family, shapes: Shapes) -> list[Slot]:
    """The tensors of a model with leaves of these shapes, by path.

    Raises:
        Inexpressible: Naming the leaves that the family has no tensor for.
    """
    slots = [slot for entry in family.entries for slot in _slots(entry, shapes)]
    placed = {leaf for slot in slots for leaf in slot.leaves}
    homeless = [leaf for leaf in shapes if leaf not in placed]
    if homeless:
        raise Inexpressible(family.model_type, [f"it has no tensor for the parameter {leaf}" for leaf in homeless])
    return slots


def _slots(entry: Entry, shapes: Shapes) -> Iterable[Slot]:
    if not entry.stands(shapes):
        return
    whole = tuple(tuple(shapes[leaf]) for leaf in entry.leaves)
    if "{layer}" not in entry.tensor:
        yield Slot(entry.tensor, entry.layout.tensor_shape(whole), entry.leaves, whole, None, entry.layout)
        return
    single = tuple(shape[1:] for shape in whole)
    shape = entry.layout.tensor_shape(single)
    for layer in range(whole[0][0]):
        yield Slot(entry.tensor.format(layer=layer), shape, entry.leaves, single, layer, entry.layout)


def sort_names(family: Family, names: Iterable[str], slots: list[Slot]) -> FileNames:
    """Match the tensors of a file with those of the plan.

    Raises:
        UserError: Naming an unknown or a missing tensor.
    """
    known = {slot.tensor for slot in slots}
    tensors: dict[str, str] = {}
    aliases: dict[str, str] = {}
    left_out, extra = [], []
    for name in names:
        spelled = respell(family, name, known | family.aliases.keys())
        if spelled in known:
            if spelled in tensors:
                raise UserError(f"the tensors {tensors[spelled]!r} and {name!r} are both {spelled}")
            tensors[spelled] = name
        elif spelled in family.aliases:
            aliases[spelled] = name
        elif _matches(family.left_out, name):
            left_out.append(name)
        elif not _matches(family.harmless, name):
            extra.append(name)
    # Some files hold only the alias.
    for alias, name in list(aliases.items()):
        original = family.aliases[alias]
        if original in known and original not in tensors:
            tensors[original] = name
    for slot in slots:
        if slot.tensor not in tensors:
            raise UserError(f"the tensor {slot.tensor!r} of shape {slot.shape} is missing{_also(extra)}")
    if extra:
        raise UserError(f"the tensor {extra[0]!r} has no place in a {family.model_type} model of this config")
    return FileNames(tensors, aliases, left_out)


def respell(family: Family, name: str, known: Iterable[str]) -> str:
    """The family's name for a tensor, from the name that a file gives it."""
    for old, new in family.renamed.items():
        name = re.sub(old, new, name)
    return family.prefix + name if name not in known and family.prefix + name in known else name


def _also(extra: list[str]) -> str:
    return f"; the file has {extra[0]!r} besides" if extra else ""


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def to_tensors(slots: list[Slot], params: PyTree) -> dict[str, np.ndarray]:
    """The tensors of a plan from our parameters."""
    leaves = {path: np.asarray(leaf) for path, leaf in leaves_by_path(params).items()}
    return {
        slot.tensor: slot.layout.write(
            [leaves[leaf] if slot.layer is None else leaves[leaf][slot.layer] for leaf in slot.leaves]
        )
        for slot in slots
    }


def from_tensors(slots: list[Slot], tensors: Iterable[tuple[str, np.ndarray]], dtype: Any = np.float32) -> PyTree:
    """Our parameters, in one type, from the tensors of a plan by name: the inverse of `to_tensors`.

    Each tensor is freed before the next is read.
    """
    places = {slot.tensor: slot for slot in slots}
    leaves: dict[str, np.ndarray] = {}
    for slot in slots:
        for leaf, shape in zip(slot.leaves, slot.leaf_shapes, strict=True):
            leaves[leaf] = np.empty(shape if slot.layer is None else (slot.layer + 1, *shape), dtype)
    for name, tensor in tensors:
        slot = places[name]
        for leaf, part in zip(slot.leaves, slot.layout.read(tensor, slot.leaf_shapes), strict=True):
            leaves[leaf][... if slot.layer is None else slot.layer] = part
    tree: dict[str, Any] = {}
    for path, array in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = array
    return tree


def shapes_of(tree: PyTree) -> Shapes:
    """The shapes of the leaves by path."""
    return {path: tuple(leaf.shape) for path, leaf in leaves_by_path(tree).items()}
