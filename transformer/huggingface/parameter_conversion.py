"""Conversion of parameters between the tensors of a Hugging Face file and our tree, in both directions by one plan."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.huggingface.conversion_spec import ConversionSpec, InexpressibleModelError, TensorEntry
from transformer.huggingface.safetensors_files import FLOAT_TYPES, TensorHeader
from transformer.huggingface.tensor_layouts import Shape, TensorLayout
from transformer.models.model import PyTree, leaves_by_path

Shapes = Mapping[str, Shape]
_ALIGNMENT = 64  # bytes


class PlannedTensor(NamedTuple):
    """One tensor of a file and the parameters that it holds.

    Attributes:
        tensor_name: Its name.
        shape: Its shape.
        leaf_paths: The paths of the parameters.
        leaf_shapes: Their shapes; of a stacked parameter that of one layer, or of one expert of it.
        stack_index: The index into stacked parameters: of the layer and of the expert, as far as the tensor is of one.
        layout: How the tensor arranges them.
    """

    tensor_name: str
    shape: Shape
    leaf_paths: tuple[str, ...]
    leaf_shapes: tuple[Shape, ...]
    stack_index: tuple[int, ...]
    layout: TensorLayout


class MatchedTensorNames(NamedTuple):
    """The names that a file gives to its tensors.

    Attributes:
        tensors: The file's name of each tensor, by the name in the conversion spec.
        aliases: The file's name of each second copy, by the name in the conversion spec.
        dropped: Names of parameters that no model of ours has.
    """

    tensors: dict[str, str]
    aliases: dict[str, str]
    dropped: list[str]


def plan_file_tensors(family: ConversionSpec, shapes: Shapes) -> list[PlannedTensor]:
    """Plan the tensors of a model with parameters of these shapes.

    Args:
        family: The conversion spec.
        shapes: The shape of each parameter, by path.

    Returns:
        The tensors of the file.

    Raises:
        InexpressibleModelError: If a parameter has no tensor in the spec.
    """
    plan = [planned for entry in family.tensor_entries for planned in _plan_tensors(entry, shapes)]
    placed = {leaf for planned in plan for leaf in planned.leaf_paths}
    homeless = [leaf for leaf in shapes if leaf not in placed]
    if homeless:
        raise InexpressibleModelError(
            family.model_type, [f"it has no tensor for the parameter {leaf}" for leaf in homeless]
        )
    return plan


def _plan_tensors(entry: TensorEntry, shapes: Shapes) -> Iterable[PlannedTensor]:
    if not entry.applies_to(shapes):
        return
    axes = [axis for axis in ("layer", "expert") if f"{{{axis}}}" in entry.tensor_name]
    full_shapes = tuple(tuple(shapes[leaf]) for leaf in entry.leaf_paths)
    single = tuple(shape[len(axes) :] for shape in full_shapes)
    shape = entry.layout.tensor_shape(single)
    for index in np.ndindex(full_shapes[0][: len(axes)]):
        name = entry.name_at(**dict(zip(axes, index, strict=True)))
        yield PlannedTensor(name, shape, entry.leaf_paths, single, index, entry.layout)


def match_tensors(
    family: ConversionSpec, headers: Mapping[str, TensorHeader], plan: list[PlannedTensor]
) -> MatchedTensorNames:
    """Match the tensors of a file with those of a plan.

    Args:
        family: The conversion spec.
        headers: The headers of the tensors in the file, by name.
        plan: The plan.

    Returns:
        The file's names.

    Raises:
        UserError: If a tensor is unknown, missing, duplicate, or of another shape or type; gives its name.
    """
    planned_names = {planned.tensor_name for planned in plan}
    tensors: dict[str, str] = {}
    aliases: dict[str, str] = {}
    dropped, extra = [], []
    for name in headers:
        spelled = canonical_tensor_name(family, name, planned_names | family.tensor_aliases.keys())
        if spelled in planned_names:
            if spelled in tensors:
                raise UserError(f"the tensors {tensors[spelled]!r} and {name!r} are both {spelled}")
            tensors[spelled] = name
        elif spelled in family.tensor_aliases:
            aliases[spelled] = name
        elif _matches_any(family.dropped_tensors, name):
            dropped.append(name)
        elif not _matches_any(family.ignored_tensors, name):
            extra.append(name)
    # Some files hold only the alias.
    for alias, name in list(aliases.items()):
        original = family.tensor_aliases[alias]
        if original in planned_names and original not in tensors:
            tensors[original] = name
    for planned in plan:
        if planned.tensor_name not in tensors:
            raise UserError(
                f"the tensor {planned.tensor_name!r} of shape {planned.shape} is missing{_describe_extra(extra)}"
            )
    if extra:
        raise UserError(f"the tensor {extra[0]!r} has no place in a {family.model_type} model of this config")
    for planned in plan:
        name = tensors[planned.tensor_name]
        header = headers[name]
        if header.shape != planned.shape:
            raise UserError(f"the tensor {name!r} has the shape {header.shape}; its config asks for {planned.shape}")
        if header.dtype not in FLOAT_TYPES:
            raise UserError(f"the tensor {name!r} holds {header.dtype}; only {', '.join(FLOAT_TYPES)} can be read")
    return MatchedTensorNames(tensors, aliases, dropped)


def canonical_tensor_name(family: ConversionSpec, name: str, known_names: Iterable[str]) -> str:
    """Return the conversion spec's name of a tensor from the file's name."""
    for old, new in family.tensor_renames.items():
        name = re.sub(old, new, name)
    return (
        family.optional_prefix + name
        if name not in known_names and family.optional_prefix + name in known_names
        else name
    )


def _describe_extra(extra: list[str]) -> str:
    return f"; the file has {extra[0]!r} besides" if extra else ""


def _matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def params_to_tensors(plan: list[PlannedTensor], params: PyTree) -> Iterator[tuple[str, np.ndarray]]:
    """Convert our parameters to the tensors of a plan, one at a time.

    Yields:
        The name and value of each tensor, in the order of the plan.
    """
    leaves = {path: np.asarray(leaf) for path, leaf in leaves_by_path(params).items()}
    for planned in plan:
        parts = [leaves[leaf][planned.stack_index] for leaf in planned.leaf_paths]
        yield planned.tensor_name, planned.layout.write(parts)


def tensors_to_params(
    plan: list[PlannedTensor], tensors: Iterable[tuple[str, np.ndarray]], dtype: Any = np.float32
) -> PyTree:
    """Convert the tensors of a plan to our parameters: the inverse of `params_to_tensors`.

    Each tensor is freed before the next is read.

    Args:
        plan: The plan.
        tensors: Name and value of each tensor of the plan.
        dtype: The type of the parameters.

    Returns:
        The tree of parameters, as NumPy arrays.
    """
    places = {planned.tensor_name: planned for planned in plan}
    shapes: dict[str, Shape] = {}
    for planned in plan:
        for leaf, shape in zip(planned.leaf_paths, planned.leaf_shapes, strict=True):
            # The last of a stack comes last.
            shapes[leaf] = (*(number + 1 for number in planned.stack_index), *shape)
    leaves = {leaf: _allocate_aligned(shape, dtype) for leaf, shape in shapes.items()}
    for name, tensor in tensors:
        planned = places[name]
        for leaf, part in zip(planned.leaf_paths, planned.layout.read(tensor, planned.leaf_shapes), strict=True):
            leaves[leaf][planned.stack_index] = part
    tree: dict[str, Any] = {}
    for path, array in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent_name in parents:
            node = node.setdefault(parent_name, {})
        node[last] = array
    return tree


def _allocate_aligned(shape: Shape, dtype: Any) -> np.ndarray:
    """Return an array that begins where jax takes it over without a copy on a CPU."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def parameter_shapes(tree: PyTree) -> Shapes:
    """Return the shape of every parameter, by path."""
    return {path: tuple(leaf.shape) for path, leaf in leaves_by_path(tree).items()}
