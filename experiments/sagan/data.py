"""Pairs of digits: images whose halves show the same digit, drawn differently, and a fixed classifier.

The classifier compares with stored drawings and is not trained: it is the same in every run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.data.batches import random_generator
from transformer.data.synthetic_glyphs import draw_glyphs

# Of the classifier's own drawings, which no batch has.
_SEED = 2**42
_DRAWINGS_PER_GLYPH, _NUM_CALIBRATION_DRAWINGS, _CONFIDENT_QUANTILE = 64, 20, 0.99


class PairBatch(NamedTuple):
    """Images of digit pairs.

    Attributes:
        images: Images from -1 to 1, twice as wide as high.
        glyph_indices: The index of the glyph on both halves of each.
    """

    images: Float[np.ndarray, "B pixels columns 1"]
    glyph_indices: Int[np.ndarray, " B"]


def sample_pairs(random: np.random.Generator, glyphs: Sequence[str], rows: int, pixels: int) -> PairBatch:
    """Sample images of `pixels` x 2 `pixels`, each with one of the glyphs on both halves.

    Args:
        random: The random generator.
        glyphs: The glyphs.
        rows: The number of images.
        pixels: The height of an image.

    Returns:
        The images.
    """
    chosen_B = random.integers(0, len(glyphs), rows)
    halves = draw_glyphs([glyphs[number] for number in (*chosen_B, *chosen_B)], pixels, random)
    images = np.concatenate([halves[:rows], halves[rows:]], axis=2)[..., None]
    return PairBatch((2 * images - 1).astype(np.float32), chosen_B.astype(np.int32))


def split_halves(images_BxYxXxC: Float[Array, "B Y X C"]) -> Float[Array, "N Y H C"]:
    """Split every image into its left and right half, one after the other: 2 B images."""
    batch, rows, columns, colors = images_BxYxXxC.shape
    cut = images_BxYxXxC.reshape(batch, rows, 2, columns // 2, colors)
    return jnp.swapaxes(cut, 1, 2).reshape(2 * batch, rows, columns // 2, colors)


class ClassifierPredictions(NamedTuple):
    """A classifier's predictions for images of one glyph.

    Attributes:
        glyph_indices: The index of the glyph.
        is_confident: Whether the classifier is confident.
        features: The features that it is based on.
    """

    glyph_indices: Int[Array, " N"]
    is_confident: Bool[Array, " N"]
    features: Float[Array, "N F"]


class NearestNeighborClassifier(NamedTuple):
    """A classifier that labels an image with the nearest of 64 drawings of every glyph.

    The distance is the root mean square over pixels. The classifier is confident within `max_distance`, which contains
    the nearest neighbor of 99 % of other drawings. The features are the distances to the nearest drawing of every
    glyph.

    Attributes:
        drawings_GxKxP: The drawings.
        max_distance: The distance up to which it is confident.
    """

    drawings_GxKxP: Float[np.ndarray, "G K P"]
    max_distance: float

    @classmethod
    def from_glyphs(cls, glyphs: Sequence[str], pixels: int) -> "NearestNeighborClassifier":
        """Build the classifier of images of these glyphs, `pixels` a side."""
        random = random_generator(_SEED)

        def sample_drawings(count: int) -> Float[np.ndarray, "N P"]:
            names = [name for name in glyphs for _ in range(count)]
            return (2 * draw_glyphs(names, pixels, random) - 1).reshape(len(names), -1)

        drawings_GxKxP = sample_drawings(_DRAWINGS_PER_GLYPH).reshape(len(glyphs), _DRAWINGS_PER_GLYPH, -1)
        calibration = sample_drawings(_NUM_CALIBRATION_DRAWINGS)
        distances = np.sqrt(
            np.mean((calibration[:, None] - drawings_GxKxP.reshape(1, -1, calibration.shape[1])) ** 2, axis=-1)
        )
        return cls(drawings_GxKxP, float(np.quantile(distances.min(axis=1), _CONFIDENT_QUANTILE)))

    def __call__(self, images_NxYxXxC: Float[Array, "N Y X 1"]) -> ClassifierPredictions:
        """Classify images."""
        glyphs, _, pixels = self.drawings_GxKxP.shape
        flat_NxP = images_NxYxXxC.reshape(len(images_NxYxXxC), pixels).astype(jnp.float32)
        known_MxP = jnp.asarray(self.drawings_GxKxP.reshape(-1, pixels))
        square_NxM = jnp.sum(flat_NxP**2, -1, keepdims=True) + jnp.sum(known_MxP**2, -1) - 2 * flat_NxP @ known_MxP.T
        distance_NxM = jnp.sqrt(jnp.maximum(square_NxM, 0) / pixels)
        nearest_NxG = jnp.min(distance_NxM.reshape(len(flat_NxP), glyphs, -1), axis=-1)
        return ClassifierPredictions(
            jnp.argmin(nearest_NxG, -1), jnp.min(nearest_NxG, -1) <= self.max_distance, nearest_NxG
        )
