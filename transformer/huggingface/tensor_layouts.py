"""How a tensor of another library stores one or several of our parameters; conversion is exact and reversible."""

import dataclasses
import enum
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]


class TensorAxes(enum.Enum):
    """The axes of a tensor in a file.

    Attributes:
        VECTOR: One axis.
        IN_OUT: A matrix of inputs and outputs.
        OUT_IN: A matrix of outputs and inputs.
        LEADING_ONE_IN_OUT: IN_OUT after an axis of size one.
        TWO_LEADING_ONES_IN: The inputs after two axes of size one.
        SAME: The axes of our parameter; of several, which share the last axis.
        OUTPUTS_FIRST: The same with the last axis in front.
        CONVOLUTION: [outputs, channels, rows, columns], where ours is [rows, columns, channels, outputs].
    """

    VECTOR = "vector"
    IN_OUT = "in_out"
    OUT_IN = "out_in"
    LEADING_ONE_IN_OUT = "leading_one_in_out"
    TWO_LEADING_ONES_IN = "two_leading_ones_in"
    SAME = "same"
    OUTPUTS_FIRST = "outputs_first"
    CONVOLUTION = "convolution"


class FusedOrder(enum.Enum):
    """How several parameters share the output axis.

    Attributes:
        BLOCKS: Concatenated.
        HEADS: Interleaved within every head.
        GROUPS: Interleaved within every group of query heads that share a key and a value: queries, key, value.
        UNITS: Interleaved one by one.
    """

    BLOCKS = "blocks"
    HEADS = "heads"
    GROUPS = "groups"
    UNITS = "units"


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """How a tensor arranges one or several parameters of ours; reading and writing are exact inverses.

    Attributes:
        axes: The axes of the tensor.
        num_input_axes: How many leading axes of our parameter are inputs of the matrix; all others are outputs.
        order: How several parameters share the output axis.
    """

    axes: TensorAxes
    num_input_axes: int
    order: FusedOrder = FusedOrder.BLOCKS

    def tensor_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape of the tensor that holds parameters of these shapes."""
        rows = math.prod(shapes[0][: self.num_input_axes])
        columns = sum(math.prod(shape[self.num_input_axes :]) for shape in shapes)
        match self.axes:
            case TensorAxes.VECTOR:
                return (rows * columns,)
            case TensorAxes.IN_OUT:
                return (rows, columns)
            case TensorAxes.OUT_IN:
                return (columns, rows)
            case TensorAxes.LEADING_ONE_IN_OUT:
                return (1, rows, columns)
            case TensorAxes.TWO_LEADING_ONES_IN:
                return (1, 1, rows)
            case TensorAxes.SAME:
                return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
            case TensorAxes.OUTPUTS_FIRST:
                return (shapes[0][-1], *shapes[0][:-1])
            case TensorAxes.CONVOLUTION:
                height, width, channels, outputs = shapes[0]
                return (outputs, channels, height, width)

    def read(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """Return the parameters in a tensor.

        Args:
            tensor: The tensor of the file.
            shapes: The shape of each parameter.

        Returns:
            The parameters, in these shapes.
        """
        rows = math.prod(shapes[0][: self.num_input_axes])
        if self.axes is TensorAxes.CONVOLUTION:
            return [tensor.transpose(2, 3, 1, 0)]
        if self.axes is TensorAxes.OUTPUTS_FIRST:
            return [np.moveaxis(tensor, 0, -1)]
        matrix = (tensor.T if self.axes is TensorAxes.OUT_IN else tensor).reshape(rows, -1)
        match self.order:
            case FusedOrder.BLOCKS:
                ends = np.cumsum([math.prod(shape[self.num_input_axes :]) for shape in shapes])[:-1]
                parts = np.split(matrix, ends, axis=1)
            case FusedOrder.HEADS:
                # [rows, H, leaves, D]: every leaf has heads of one depth.
                by_head = matrix.reshape(rows, -1, len(shapes), shapes[0][-1])
                parts = [by_head[:, :, leaf_index] for leaf_index in range(len(shapes))]
            case FusedOrder.GROUPS:
                groups, depth = shapes[-1][-2:]
                by_group = matrix.reshape(rows, groups, -1, depth)
                parts = [by_group[:, :, :-2], by_group[:, :, -2], by_group[:, :, -1]]
            case FusedOrder.UNITS:
                parts = [matrix[:, number :: len(shapes)] for number in range(len(shapes))]
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def write(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Return the tensor that holds these parameters: the inverse of `read`."""
        rows = math.prod(leaves[0].shape[: self.num_input_axes])
        if self.axes is TensorAxes.CONVOLUTION:
            return np.ascontiguousarray(leaves[0].transpose(3, 2, 0, 1))
        if self.axes is TensorAxes.OUTPUTS_FIRST:
            return np.ascontiguousarray(np.moveaxis(leaves[0], -1, 0))
        match self.order:
            case FusedOrder.BLOCKS:
                matrix = np.concatenate([leaf.reshape(rows, -1) for leaf in leaves], axis=1)
            case FusedOrder.HEADS:
                by_head = [leaf.reshape(rows, -1, leaf.shape[-1]) for leaf in leaves]
                matrix = np.stack(by_head, axis=2).reshape(rows, -1)
            case FusedOrder.GROUPS:
                groups, depth = leaves[-1].shape[-2:]
                by_group = [leaf.reshape(rows, groups, -1, depth) for leaf in leaves]
                matrix = np.concatenate(by_group, axis=2).reshape(rows, -1)
            case FusedOrder.UNITS:
                matrix = np.stack([leaf.reshape(rows, -1) for leaf in leaves], axis=2).reshape(rows, -1)
        tensor = matrix.T if self.axes is TensorAxes.OUT_IN else matrix
        return np.ascontiguousarray(tensor.reshape(self.tensor_shape([leaf.shape for leaf in leaves])))


VECTOR = TensorLayout(TensorAxes.VECTOR, 0)
VECTOR_BY_HEADS = TensorLayout(TensorAxes.VECTOR, 0, FusedOrder.HEADS)
VECTOR_BY_GROUPS = TensorLayout(TensorAxes.VECTOR, 0, FusedOrder.GROUPS)
ROW_VECTOR = TensorLayout(TensorAxes.IN_OUT, 0)
"""[1, n] of a vector."""
TABLE_WITH_LEADING_AXIS = TensorLayout(TensorAxes.LEADING_ONE_IN_OUT, 1)
"""[1, in, out] of a table."""
VECTOR_WITH_LEADING_AXES = TensorLayout(TensorAxes.TWO_LEADING_ONES_IN, 1)
"""[1, 1, n] of a vector."""
SAME_AXES = TensorLayout(TensorAxes.SAME, 1)
"""A tensor with the very axes of our leaf: XLNet keeps heads and their depth apart, as we do."""
VECTORS_BY_UNITS = TensorLayout(TensorAxes.SAME, 1, FusedOrder.UNITS)
"""[experts, 2 out]: the vectors of all experts, of two maps in turn."""
MATRICES_BY_UNITS = TensorLayout(TensorAxes.SAME, 2, FusedOrder.UNITS)
"""[experts, in, 2 out]: the same of matrices."""
OUTPUTS_FIRST = TensorLayout(TensorAxes.OUTPUTS_FIRST, 1)
"""The same with the outputs, our last axis, in front."""
CONVOLUTION = TensorLayout(TensorAxes.CONVOLUTION, 3)
TABLE = TensorLayout(TensorAxes.IN_OUT, 1)
"""A matrix as we keep it, [in, out]: tables, and GPT-2's projections."""
LINEAR = TensorLayout(TensorAxes.OUT_IN, 1)
"""A matrix [out, in], from one of our axes: into heads, or between widths."""
LINEAR_BY_HEADS = TensorLayout(TensorAxes.OUT_IN, 1, FusedOrder.HEADS)
LINEAR_BY_GROUPS = TensorLayout(TensorAxes.OUT_IN, 1, FusedOrder.GROUPS)
FROM_HEADS = TensorLayout(TensorAxes.OUT_IN, 2)
"""A matrix [out, in] whose inputs are heads and their depth."""
TABLE_FROM_HEADS = TensorLayout(TensorAxes.IN_OUT, 2)
