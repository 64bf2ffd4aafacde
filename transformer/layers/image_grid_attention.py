"""Attention over the grid of an image: from a question, and of the grid over itself (SAGAN, Zhang et al. 2019)."""

import enum
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec
from transformer.attention.capture import Capture, CapturedAttention, capture_weights
from transformer.attention.normalizers import softmax
from transformer.attention.scores import INNER_PRODUCT
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig
from transformer.layers.grid_positions import GridPositionEmbeddings, GridPositionEncoding
from transformer.layers.linear import Linear

_SPEC = AttentionSpec(INNER_PRODUCT)


class ImageReadout(enum.Enum):
    """How an image is summarized for an answer.

    Attributes:
        ATTENTION: Sums over its grid, weighted by attention from the question.
        MEAN: The mean over its grid.
        NOTHING: Not at all: the question alone answers, and no image is read.
    """

    ATTENTION = "attention"
    MEAN = "mean"
    NOTHING = "nothing"


class GridFeatures(Module):
    """The features of an image's grid in row-major order, with position vectors.

    Without them, neither a weighted sum nor a correlation could distinguish positions that look alike.

    Args:
        config: The convolutions.
        positions: The kind of position vectors.
        image: Height, width and channels of the images.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        config: GridEncoderConfig,
        positions: GridPositionEncoding,
        image: Sequence[int],
        *,
        builder: ParameterBuilder,
    ):
        """Build the encoder and the position vectors."""
        height, width, channels = image
        self.encoder = GridEncoder(config, channels, builder=builder)
        self.positions = GridPositionEmbeddings(
            positions, config.stages(height, width)[-1], config.width, builder=builder
        )

    def __call__(self, image_BxYxXxI: Float[Array, "B Y X I"]) -> Float[Array, "B L C"]:
        """Compute the features of all L grid positions."""
        grid_BxRxWxC = self.encoder(image_BxYxXxI)
        return self.positions(grid_BxRxWxC.reshape(grid_BxRxWxC.shape[0], -1, grid_BxRxWxC.shape[-1]))


def grid_softmax(
    logits_BxL: Float[Array, "B L"], capture: Capture | None
) -> tuple[Float[Array, "B L"], CapturedAttention | None]:
    """Compute the softmax over grid positions, in float32 or wider inside.

    Args:
        logits_BxL: A logit per position.
        capture: Which maps and statistics to capture; None captures nothing.

    Returns:
        The weights in the logits' type, and what was captured, as a map of one query.
    """
    logits_Bx1x1xL = logits_BxL.astype(jnp.promote_types(logits_BxL.dtype, jnp.float32))[:, None, None]
    weights_Bx1x1xL = softmax(logits_Bx1x1xL)
    return weights_Bx1x1xL[:, 0, 0].astype(logits_BxL.dtype), capture_weights(
        weights_Bx1x1xL, capture, logits=logits_Bx1x1xL
    )


def stack_layer_maps(site: str, captured_layers: Sequence[CapturedAttention | None]) -> dict[str, CapturedAttention]:
    """The entries of `Aux.maps` for successive glimpses at an image, one layer each.

    Args:
        site: Name of the site.
        captured_layers: What each glimpse captured, or None.

    Returns:
        The site with the stacked maps; empty if nothing was captured.
    """
    captured = [layer for layer in captured_layers if layer is not None]
    return {site: jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured)} if captured else {}


def glimpse_site(name: str, config: GridEncoderConfig, image: Sequence[int], num_glimpses: int) -> Site:
    """The attention site of some glimpses: the answer is the only query, grid positions are the keys.

    Args:
        name: Name of the site.
        config: The convolutions.
        image: Height and width of the images, in pixels; more entries are ignored.
        num_glimpses: Number of glimpses, which are the site's layers.

    Returns:
        The site.

    Raises:
        UserError: If the strides of the convolutions do not divide the image.
    """
    query, key = Axis("answer", AxisKind.SLOTS, num_positions=1), config.axis("grid", *image[:2])
    return Site(name, query, key, layers=tuple(map(str, range(num_glimpses))), heads=("0",))


class GridSelfAttention(Module):
    """Self-attention over a grid: y_j = gamma o_j + x_j, o_j = W_v sum_i beta_ji W_h x_i (Zhang et al. 2019, eqs. 1-3).

    beta_ji is the softmax over positions i of (W_f x_i)' (W_g x_j), without a scale. gamma is a scalar that begins at
    0, so that the block is the identity.

    Args:
        channels: Input and output features.
        reduction: f, g and h have channels / reduction features, at least one.
        builder: Makes the parameters.
    """

    def __init__(self, channels: int, *, reduction: int = 8, builder: ParameterBuilder):
        self.channels, self.inner = channels, max(channels // reduction, 1)
        outer, inner = (("embed", channels),), (("groups", 1), ("head_dim", self.inner))
        self.query = Linear(outer, inner, bias=False, builder=builder)
        self.key = Linear(outer, inner, bias=False, builder=builder)
        self.value = Linear(outer, inner, bias=False, builder=builder)
        self.output = Linear(inner, outer, bias=False, builder=builder)
        self.gamma = builder.parameter(jax.nn.initializers.zeros, (1,), ("features",))

    @jax.named_scope("attention")
    def __call__(
        self,
        x_BxYxXxC: Float[Array, "B Y X C"],
        *,
        kernels: Mapping[str, Array] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Y X C"], CapturedAttention | None]:
        """Apply the block.

        Args:
            x_BxYxXxC: The grid.
            kernels: Kernels that replace the layer's own ("query", "key", "value", "output"), such as spectrally
                normalized ones.
            capture: Which maps and statistics to capture; None captures nothing.

        Returns:
            The new grid, and what was captured.
        """
        batch, rows, columns, _ = x_BxYxXxC.shape
        x_BxNxC, replacements = x_BxYxXxC.reshape(batch, rows * columns, -1), kernels or {}
        q, k, v = (
            layer(x_BxNxC, replacements.get(name))
            for name, layer in (("query", self.query), ("key", self.key), ("value", self.value))
        )
        read_BxNx1xD, attended = attend(q, k, v, spec=_SPEC, capture=capture)
        o_BxNxC = self.output(read_BxNx1xD, replacements.get("output"))
        y_BxNxC = jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * o_BxNxC + x_BxNxC
        return y_BxNxC.reshape(x_BxYxXxC.shape), attended.captured
