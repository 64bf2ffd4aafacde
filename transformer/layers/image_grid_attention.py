"""Attention over the places of an image: of a question, and of the places themselves (Zhang et al. 2019, SAGAN)."""

import enum
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.api import attend
from transformer.attention.capture import Capture, CapturedAttention, capture_weights
from transformer.attention.normalizers import softmax
from transformer.attention.scores import INNER_PRODUCT
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.attention.spec import AttentionSpec
from transformer.layers.functional_module import Builder, Module
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.grid_positions import GridPositions, GridTable
from transformer.layers.linear import Linear

_SPEC = AttentionSpec(INNER_PRODUCT)


class ImageReadout(enum.Enum):
    """What of an image an answer is made from.

    attention: sums of its places, each weighted by what the question makes of it. mean: their mean. nothing: the
    question alone answers, and no image is read.
    """

    ATTENTION = "attention"
    MEAN = "mean"
    NOTHING = "nothing"


class GridFeatures(Module):
    """The features of every place of an image's grid, row by row, with a vector that says where it stands.

    Without such a vector neither a weighted sum nor a correlation could tell one place from another that looks alike.
    """

    def __init__(self, config: GridEncoderConfig, positions: GridPositions, image: Sequence[int], *, builder: Builder):
        """`image`: its height, width and channels."""
        height, width, channels = image
        self.encoder = GridEncoder(config, channels, builder=builder)
        self.positions = GridTable(positions, config.stages(height, width)[-1], config.width, builder=builder)

    def __call__(self, image_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B L C"]:
        """All places of the grid."""
        grid_BxRxWxC = self.encoder(image_BxYxXxI)
        return self.positions(grid_BxRxWxC.reshape(grid_BxRxWxC.shape[0], -1, grid_BxRxWxC.shape[-1]))


def grid_softmax(
    logits_BxL: Float[Array, "B L"], asked: Capture | None
) -> tuple[Float[Array, "B L"], CapturedAttention | None]:
    """The softmax over the places, in at least float32, and what was asked for of it: a map of one query."""
    logits_Bx1x1xL = logits_BxL.astype(jnp.promote_types(logits_BxL.dtype, jnp.float32))[:, None, None]
    weights_Bx1x1xL = softmax(logits_Bx1x1xL)
    return weights_Bx1x1xL[:, 0, 0].astype(logits_BxL.dtype), capture_weights(
        weights_Bx1x1xL, asked, logits=logits_Bx1x1xL
    )


def stack_glimpses(site: str, looks: Sequence[CapturedAttention | None]) -> dict[str, CapturedAttention]:
    """`Aux.maps` of looks at one image, one after another: a layer each; empty where nothing was asked for."""
    captured = [each for each in looks if each is not None]
    return {site: jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured)} if captured else {}


def grid_site(name: str, config: GridEncoderConfig, image: Sequence[int], looks: int) -> Site:
    """The site of so many looks: the answer is the one query, the places are the keys.

    Raises:
        UserError: For an image that the strides of the convolutions do not divide.
    """
    query, key = Axis("answer", AxisKind.SLOTS, size=1), config.axis("grid", *image[:2])
    return Site(name, query, key, layers=tuple(map(str, range(looks))), heads=("0",))


class GridAttention(Module):
    """y_j = gamma o_j + x_j with o_j = W_v sum_i beta_ji W_h x_i (Zhang et al. 2019, equations 1 to 3).

    beta_ji is the softmax over the places i of (W_f x_i)' (W_g x_j), without a scale; f, g and h have 1 / `reduction`
    of the features, at least one. gamma is one number that begins at 0, so that the block is the identity.
    """

    def __init__(self, channels: int, *, reduction: int = 8, builder: Builder):
        self.channels, self.inner = channels, max(channels // reduction, 1)
        whole, inner = (("embed", channels),), (("groups", 1), ("head_dim", self.inner))
        self.query = Linear(whole, inner, bias=False, builder=builder)
        self.key = Linear(whole, inner, bias=False, builder=builder)
        self.value = Linear(whole, inner, bias=False, builder=builder)
        self.output = Linear(inner, whole, bias=False, builder=builder)
        self.gamma = builder.parameter(jax.nn.initializers.zeros, (1,), ("features",))

    def __call__(
        self,
        x_BxYxXxC: Float[Array, "B Y X C"],
        *,
        kernels: Mapping[str, Array] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Y X C"], CapturedAttention | None]:
        """The grid with what it reads of itself; `kernels` by name stand in for its own (normed ones)."""
        batch, rows, columns, _ = x_BxYxXxC.shape
        x_BxNxC, given = x_BxYxXxC.reshape(batch, rows * columns, -1), kernels or {}
        q, k, v = (
            layer(x_BxNxC, given.get(name))
            for name, layer in (("query", self.query), ("key", self.key), ("value", self.value))
        )
        read_BxNx1xD, attended = attend(q, k, v, spec=_SPEC, capture=capture)
        o_BxNxC = self.output(read_BxNx1xD, given.get("output"))
        y_BxNxC = jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * o_BxNxC + x_BxNxC
        return y_BxNxC.reshape(x_BxYxXxC.shape), attended.captured
