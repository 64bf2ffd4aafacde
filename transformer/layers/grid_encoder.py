"""An image as a grid of features: the convolutions beneath every attention over images."""

import dataclasses
import math

import jax
from jaxtyping import Array, Float

from transformer.attention.sites import Axis, AxisKind
from transformer.config import Config, LayersIfAny, Positive, UserError
from transformer.layers.convolution import Convolution2D, Window
from transformer.layers.functional_module import Builder, Module
from transformer.layers.norm import LayerNorm

_KERNEL = 3


@dataclasses.dataclass(frozen=True)
class GridEncoderConfig(Config):
    """Stages of convolutions of 3 x 3, each to so many `channels`, the first of a stage with its stride.

    `blocks` residual blocks of two convolutions (He et al. 2016, Identity mappings) follow in each stage.

    Raises:
        UserError: For no stage, for lists of two lengths, and for numbers below 1 (`blocks`: 0).
    """

    channels: tuple[Positive, ...] = (32, 64, 128)
    strides: tuple[Positive, ...] = (2, 2, 2)
    blocks: LayersIfAny = 0

    def _check(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise UserError(
                f"channels={self.channels} and strides={self.strides} of the convolutions must name one of each for "
                "every stage, at least one"
            )

    @property
    def width(self) -> int:
        """The features of a place of the grid."""
        return self.channels[-1]

    def stages(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """The rows and columns behind each stage, of an image of so many pixels."""
        sizes = []
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
            sizes.append((height, width))
        return tuple(sizes)

    def axis(self, name: str, height: int, width: int) -> Axis:
        """The places of the grid as the axis of a map over such an image.

        Raises:
            UserError: For an image that the strides do not divide.
        """
        stride = math.prod(self.strides)
        if height % stride or width % stride:
            raise UserError(
                f"images of {height} x {width} pixels are not divided by {stride}, the product of the strides "
                f"{self.strides} of the convolutions"
            )
        return Axis(name, AxisKind.GRID, shape=(height // stride, width // stride), stride=float(stride))


class ResidualBlock(Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))), each norm over the features of a place.

    He et al. 2016 (Identity mappings, figure 4e) have batch norms.
    """

    def __init__(self, channels: int, *, builder: Builder):
        windows, outputs = (Window(_KERNEL), Window(_KERNEL)), ("features", channels)
        self.first_norm = LayerNorm(channels, builder=builder)
        self.first = Convolution2D(channels, outputs, windows, builder=builder)
        self.second_norm = LayerNorm(channels, builder=builder)
        self.second = Convolution2D(channels, outputs, windows, builder=builder)

    def __call__(self, x_BxYxXxC: Float[Array, "B Y X C"]) -> Float[Array, "B Y X C"]:
        """The grid with what the block adds to it."""
        y = self.first(jax.nn.relu(self.first_norm(x_BxYxXxC)))
        return x_BxYxXxC + self.second(jax.nn.relu(self.second_norm(y)))


class Stage(Module):
    """relu(norm(conv(x))) with a stride, and residual blocks behind it."""

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int, *, builder: Builder):
        windows = (Window(_KERNEL, stride), Window(_KERNEL, stride))
        # The norm that follows has a bias of its own.
        self.convolution = Convolution2D(inputs, ("features", outputs), windows, bias=False, builder=builder)
        self.norm = LayerNorm(outputs, builder=builder)
        self.blocks = blocks
        for number in range(blocks):
            setattr(self, f"block_{number}", ResidualBlock(outputs, builder=builder))

    def __call__(self, x_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B V W C"]:
        """The next stage's grid."""
        y = jax.nn.relu(self.norm(self.convolution(x_BxYxXxI)))
        for number in range(self.blocks):
            y = getattr(self, f"block_{number}")(y)
        return y


class GridEncoder(Module):
    """Stages of convolutions in a row, from images of `inputs` channels."""

    def __init__(self, config: GridEncoderConfig, inputs: int, *, builder: Builder):
        self.count = len(config.channels)
        sizes = zip((inputs, *config.channels), config.channels, config.strides, strict=False)
        for number, size in enumerate(sizes):
            setattr(self, f"stage_{number}", Stage(*size, config.blocks, builder=builder))

    def __call__(self, image_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B V W C"]:
        """The features of every place of the grid."""
        y = image_BxYxXxI
        for number in range(self.count):
            y = getattr(self, f"stage_{number}")(y)
        return y
