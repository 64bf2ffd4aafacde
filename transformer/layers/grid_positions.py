"""Position embeddings of image patches."""

import enum
from typing import assert_never

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.rotary import sinusoids
from transformer.config import UserError
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole


class GridPositionEncoding(enum.Enum):
    """How the patches of an image are given their positions.

    Attributes:
        NONE: Not at all, so that an image is a set of patches.
        LEARNED: A vector per position, class tokens included (Dosovitskiy et al. 2021, section 3.1).
        LEARNED_2D: A vector of half the width per row and one per column, concatenated; class tokens have none
            (appendix D.4).
        SINUSOIDAL_2D: Sines and cosines of the column, then of the row, a quarter of the width each; class tokens have
            none (Beyer et al. 2022, Better plain ViT baselines).
    """

    NONE = "none"
    LEARNED = "learned"
    LEARNED_2D = "learned_2d"
    SINUSOIDAL_2D = "sinusoidal_2d"

    def check(self, width: int) -> None:
        """Check that the width divides into the parts of the vector.

        Raises:
            UserError: If it is not a multiple of 2 for learned_2d, or of 4 for sinusoidal_2d.
        """
        parts = {GridPositionEncoding.LEARNED_2D: 2, GridPositionEncoding.SINUSOIDAL_2D: 4}.get(self, 1)
        if width % parts:
            raise UserError(
                f"vectors of width={width} are added to the features of a place, no multiple of {parts}, which the "
                f"position embeddings {self.value} need"
            )


class GridPositionEmbeddings(Module):
    """The position vectors of a grid, in row-major order after the class tokens.

    Args:
        kind: The kind of vectors.
        shape: Rows and columns.
        width: Features of a vector.
        num_class_tokens: Number of class tokens.
        builder: Makes the parameters.

    Raises:
        UserError: If the kind cannot have this width.
    """

    def __init__(
        self,
        kind: GridPositionEncoding,
        shape: tuple[int, int],
        width: int,
        *,
        num_class_tokens: int = 0,
        builder: ParameterBuilder,
    ):
        kind.check(width)
        self.kind, self.shape, self.width, self.num_class_tokens = kind, shape, width, num_class_tokens
        rows, columns = shape

        def table(count: int, size: int):
            return builder.parameter(
                builder.rule(ParameterRole.POSITIONS, count, size), (count, size), ("positions", "embed")
            )

        self.table = table(num_class_tokens + rows * columns, width) if kind is GridPositionEncoding.LEARNED else None
        halves = kind is GridPositionEncoding.LEARNED_2D
        self.rows = table(rows, width // 2) if halves else None
        self.columns = table(columns, width // 2) if halves else None

    def __call__(self, x_BxNxE: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
        """Add the position vectors to class tokens and patches."""
        match self.kind:
            case GridPositionEncoding.NONE:
                return x_BxNxE
            case GridPositionEncoding.LEARNED:
                assert self.table is not None
                added = self.table[...]
            case GridPositionEncoding.LEARNED_2D:
                assert self.rows is not None
                assert self.columns is not None
                added = self._combine_axes(self.rows[...], self.columns[...])
            case GridPositionEncoding.SINUSOIDAL_2D:
                rows, columns = self.shape
                added = self._combine_axes(
                    self._sinusoid_table(columns), self._sinusoid_table(rows), columns_first=True
                )
            case _:
                assert_never(self.kind)
        return x_BxNxE + added.astype(x_BxNxE.dtype)[None]

    def _sinusoid_table(self, count: int) -> Float[Array, "N F"]:
        """Sines and cosines of n / 10000^(k / (width / 4 - 1)), k from 0 to width / 4 - 1."""
        quarter = self.width // 4
        # The slowest wave has a length of 10,000, so that the base is taken to the power of k / (quarter - 1).
        base = 10000.0 ** (quarter / max(quarter - 1, 1))
        return jnp.concatenate(sinusoids(jnp.arange(count), 2 * quarter, base, jnp.dtype(jnp.float32)), axis=-1)

    def _combine_axes(self, first: Array, second: Array, *, columns_first: bool = False) -> Array:
        """[class tokens + rows x columns, width]: row vectors beside column vectors, or the other way around."""
        rows, columns = self.shape
        if columns_first:
            halves = jnp.tile(first, (rows, 1)), jnp.repeat(second, columns, axis=0)
        else:
            halves = jnp.repeat(first, columns, axis=0), jnp.tile(second, (rows, 1))
        return jnp.pad(jnp.concatenate(halves, axis=-1), ((self.num_class_tokens, 0), (0, 0)))
