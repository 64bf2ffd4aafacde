"""The places of a picture as a memory, for models that hold a question against each of them."""

import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.capture import Capture, Captured, capture_weights
from transformer.attention.normalizers import softmax
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.grid_positions import GridPositions, GridTable
from transformer.layers.module import Builder, Module


class Look(enum.Enum):
    """What of a picture an answer is made from.

    attention: sums of its places, each weighted by what the question makes of it. mean: their mean. nothing: the
    question alone answers, and no picture is read.
    """

    ATTENTION = "attention"
    MEAN = "mean"
    NOTHING = "nothing"


class Places(Module):
    """The features of every place of a picture's grid, row by row, with a vector that says where it stands.

    Without such a vector neither a weighted sum nor a correlation could tell one place from another that looks alike.
    """

    def __init__(
        self, config: GridEncoderConfig, positions: GridPositions, picture: Sequence[int], *, builder: Builder
    ):
        """`picture`: its height, width and channels."""
        height, width, channels = picture
        self.encoder = GridEncoder(config, channels, builder=builder)
        self.positions = GridTable(positions, config.stages(height, width)[-1], config.width, builder=builder)

    def __call__(self, picture_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B L C"]:
        """All places of the grid."""
        grid_BxRxWxC = self.encoder(picture_BxYxXxI)
        return self.positions(grid_BxRxWxC.reshape(grid_BxRxWxC.shape[0], -1, grid_BxRxWxC.shape[-1]))


def weigh(logits_BxL: Float[Array, "B L"], asked: Capture | None) -> tuple[Float[Array, "B L"], Captured | None]:
    """The softmax over the places, in at least float32, and what was asked for of it: a map of one query."""
    logits_Bx1x1xL = logits_BxL.astype(jnp.promote_types(logits_BxL.dtype, jnp.float32))[:, None, None]
    weights_Bx1x1xL = softmax(logits_Bx1x1xL)
    return weights_Bx1x1xL[:, 0, 0].astype(logits_BxL.dtype), capture_weights(
        weights_Bx1x1xL, asked, logits=logits_Bx1x1xL
    )


def as_layers(site: str, looks: Sequence[Captured | None]) -> dict[str, Captured]:
    """`Aux.maps` of looks at one picture, one after another: a layer each; empty where nothing was asked for."""
    captured = [each for each in looks if each is not None]
    return {site: jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured)} if captured else {}


def site_of(name: str, config: GridEncoderConfig, picture: Sequence[int], looks: int) -> Site:
    """The site of so many looks: the answer is the one query, the places are the keys.

    Errors: UserError for a picture that the strides of the convolutions do not divide.
    """
    query, key = Axis("answer", AxisKind.SLOTS, size=1), config.axis("grid", *picture[:2])
    return Site(name, query, key, layers=tuple(map(str, range(looks))), heads=("0",))
