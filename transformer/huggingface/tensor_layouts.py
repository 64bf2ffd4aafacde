"""How a tensor of another library holds one or several of our leaves; conversion is exact and reversible."""

import dataclasses
import enum
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]


class Form(enum.Enum):
    """A tensor's axes: one (vector), or a matrix's inputs and outputs in either order.

    one_in_out has an axis of one in front, one_one_in two. ours has the axes of our leaf, outputs_first the same with
    the last in front. convolution is [outputs, channels, rows, columns], where ours is
    [rows, columns, channels, outputs].
    """

    VECTOR = "vector"
    IN_OUT = "in_out"
    OUT_IN = "out_in"
    ONE_IN_OUT = "one_in_out"
    ONE_ONE_IN = "one_one_in"
    OURS = "ours"
    OUTPUTS_FIRST = "outputs_first"
    CONVOLUTION = "convolution"


class Fusion(enum.Enum):
    """How several leaves share the output axis: concatenated, or interleaved within every head."""

    BLOCKS = "blocks"
    HEADS = "heads"


@dataclasses.dataclass(frozen=True)
class Layout:
    """A tensor of some form; the first `inputs` axes of our leaf are the matrix's inputs, all others its outputs."""

    form: Form
    inputs: int
    fusion: Fusion = Fusion.BLOCKS

    def tensor_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The tensor's shape, from those of its leaves."""
        rows = math.prod(shapes[0][: self.inputs])
        columns = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        match self.form:
            case Form.VECTOR:
                return (rows * columns,)
            case Form.IN_OUT:
                return (rows, columns)
            case Form.OUT_IN:
                return (columns, rows)
            case Form.ONE_IN_OUT:
                return (1, rows, columns)
            case Form.ONE_ONE_IN:
                return (1, 1, rows)
            case Form.OURS:
                return shapes[0]
            case Form.OUTPUTS_FIRST:
                return (shapes[0][-1], *shapes[0][:-1])
            case Form.CONVOLUTION:
                height, width, channels, outputs = shapes[0]
                return (outputs, channels, height, width)

    def read(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """The leaves in a tensor."""
        rows = math.prod(shapes[0][: self.inputs])
        if self.form is Form.CONVOLUTION:
            return [tensor.transpose(2, 3, 1, 0)]
        if self.form is Form.OUTPUTS_FIRST:
            return [np.moveaxis(tensor, 0, -1)]
        matrix = (tensor.T if self.form is Form.OUT_IN else tensor).reshape(rows, -1)
        match self.fusion:
            case Fusion.BLOCKS:
                ends = np.cumsum([math.prod(shape[self.inputs :]) for shape in shapes])[:-1]
                parts = np.split(matrix, ends, axis=1)
            case Fusion.HEADS:
                # [rows, H, leaves, D]: every leaf has heads of one depth.
                by_head = matrix.reshape(rows, -1, len(shapes), shapes[0][-1])
                parts = [by_head[:, :, number] for number in range(len(shapes))]
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def write(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """The tensor of leaves: the inverse of `read`."""
        rows = math.prod(leaves[0].shape[: self.inputs])
        if self.form is Form.CONVOLUTION:
            return np.ascontiguousarray(leaves[0].transpose(3, 2, 0, 1))
        if self.form is Form.OUTPUTS_FIRST:
            return np.ascontiguousarray(np.moveaxis(leaves[0], -1, 0))
        match self.fusion:
            case Fusion.BLOCKS:
                matrix = np.concatenate([leaf.reshape(rows, -1) for leaf in leaves], axis=1)
            case Fusion.HEADS:
                by_head = [leaf.reshape(rows, -1, leaf.shape[-1]) for leaf in leaves]
                matrix = np.stack(by_head, axis=2).reshape(rows, -1)
        tensor = matrix.T if self.form is Form.OUT_IN else matrix
        return np.ascontiguousarray(tensor.reshape(self.tensor_shape([leaf.shape for leaf in leaves])))


VECTOR = Layout(Form.VECTOR, 0)
VECTOR_BY_HEADS = Layout(Form.VECTOR, 0, Fusion.HEADS)
ROW = Layout(Form.IN_OUT, 0)
"""[1, n] of a vector."""
ONE_TABLE = Layout(Form.ONE_IN_OUT, 1)
"""[1, in, out] of a table."""
ONE_ONE = Layout(Form.ONE_ONE_IN, 1)
"""[1, 1, n] of a vector."""
OURS = Layout(Form.OURS, 1)
"""A tensor with the very axes of our leaf: XLNet keeps heads and their depth apart, as we do."""
OUTPUTS_FIRST = Layout(Form.OUTPUTS_FIRST, 1)
"""The same with the outputs, our last axis, in front."""
CONVOLUTION = Layout(Form.CONVOLUTION, 3)
TABLE = Layout(Form.IN_OUT, 1)
"""A matrix as we keep it, [in, out]: tables, and GPT-2's projections."""
LINEAR = Layout(Form.OUT_IN, 1)
"""A matrix [out, in], from one of our axes: into heads, or between widths."""
LINEAR_BY_HEADS = Layout(Form.OUT_IN, 1, Fusion.HEADS)
FROM_HEADS = Layout(Form.OUT_IN, 2)
"""A matrix [out, in] whose inputs are heads and their depth."""
TABLE_FROM_HEADS = Layout(Form.IN_OUT, 2)
