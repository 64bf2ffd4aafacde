"""A convolutional encoder of images into a grid of features, used below every attention over images."""

import dataclasses
import math

import jax
from jaxtyping import Array, Float

from transformer.attention.sites import Axis, AxisKind
from transformer.config import Config, NumLayersOrZero, PositiveInt, UserError
from transformer.layers.convolution import Convolution2D, ConvolutionWindow
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.norm import LayerNorm

_KERNEL = 3


@dataclasses.dataclass(frozen=True)
class GridEncoderConfig(Config):
    """Stages of 3 x 3 convolutions.

    Attributes:
        channels: Output features of each stage.
        strides: Stride of the first convolution of each stage.
        blocks_per_stage: Residual blocks of two convolutions that follow in each stage (He et al. 2016, Identity
            mappings).

    Raises:
        UserError: If there is no stage, if `channels` and `strides` differ in length, or if a number is out of range.
    """

    channels: tuple[PositiveInt, ...] = (32, 64, 128)
    strides: tuple[PositiveInt, ...] = (2, 2, 2)
    blocks_per_stage: NumLayersOrZero = 0

    def _check(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise UserError(
                f"channels={self.channels} and strides={self.strides} of the convolutions must name one of each for "
                "every stage, at least one"
            )

    @property
    def width(self) -> int:
        """The features of a grid position."""
        return self.channels[-1]

    def stages(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """The rows and columns after each stage, for an image of this many pixels."""
        sizes = []
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
            sizes.append((height, width))
        return tuple(sizes)

    def axis(self, name: str, height: int, width: int) -> Axis:
        """The grid as the axis of a map over images of this size.

        Args:
            name: Name of the axis.
            height: Pixels of a column.
            width: Pixels of a row.

        Returns:
            The axis.

        Raises:
            UserError: If the product of the strides does not divide the image's sides.
        """
        stride = math.prod(self.strides)
        if height % stride or width % stride:
            raise UserError(
                f"images of {height} x {width} pixels are not divided by {stride}, the product of the strides "
                f"{self.strides} of the convolutions"
            )
        return Axis(name, AxisKind.GRID, shape=(height // stride, width // stride), stride=float(stride))


class ResidualBlock(Module):
    """A residual block x + conv(relu(norm(conv(relu(norm(x)))))), with layer norms over the features of a position.

    He et al. 2016 (Identity mappings, figure 4e) use batch normalization instead.
    """

    def __init__(self, channels: int, *, builder: ParameterBuilder):
        windows, outputs = (ConvolutionWindow(_KERNEL), ConvolutionWindow(_KERNEL)), ("features", channels)
        self.first_norm = LayerNorm(channels, builder=builder)
        self.first = Convolution2D(channels, outputs, windows, builder=builder)
        self.second_norm = LayerNorm(channels, builder=builder)
        self.second = Convolution2D(channels, outputs, windows, builder=builder)

    def __call__(self, x_BxYxXxC: Float[Array, "B Y X C"]) -> Float[Array, "B Y X C"]:
        """Apply the block."""
        y = self.first(jax.nn.relu(self.first_norm(x_BxYxXxC)))
        return x_BxYxXxC + self.second(jax.nn.relu(self.second_norm(y)))


class Stage(Module):
    """A stage relu(norm(conv(x))) with a stride, followed by residual blocks.

    Args:
        inputs: Input features.
        outputs: Output features.
        stride: Stride of the convolution.
        blocks: Number of residual blocks.
        builder: Makes the parameters.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int, *, builder: ParameterBuilder):
        windows = (ConvolutionWindow(_KERNEL, stride), ConvolutionWindow(_KERNEL, stride))
        # The norm that follows has a bias of its own.
        self.convolution = Convolution2D(inputs, ("features", outputs), windows, bias=False, builder=builder)
        self.norm = LayerNorm(outputs, builder=builder)
        self.blocks = blocks
        for number in range(blocks):
            setattr(self, f"block_{number}", ResidualBlock(outputs, builder=builder))

    def __call__(self, x_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B V W C"]:
        """Compute the stage's grid."""
        y = jax.nn.relu(self.norm(self.convolution(x_BxYxXxI)))
        for number in range(self.blocks):
            y = getattr(self, f"block_{number}")(y)
        return y


class GridEncoder(Module):
    """Stages of convolutions over images.

    Args:
        config: The stages.
        inputs: Channels of an image.
        builder: Makes the parameters.
    """

    def __init__(self, config: GridEncoderConfig, inputs: int, *, builder: ParameterBuilder):
        self.count = len(config.channels)
        sizes = zip((inputs, *config.channels), config.channels, config.strides, strict=False)
        for number, size in enumerate(sizes):
            setattr(self, f"stage_{number}", Stage(*size, config.blocks_per_stage, builder=builder))

    def __call__(self, image_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B V W C"]:
        """Compute the features of every grid position."""
        y = image_BxYxXxI
        for number in range(self.count):
            y = getattr(self, f"stage_{number}")(y)
        return y
