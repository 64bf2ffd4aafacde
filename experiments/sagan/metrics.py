"""Sample quality of generated digit pairs, as classifiers read them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class HalfPredictions(NamedTuple):
    """A classifier's predictions for both halves of images.

    Attributes:
        glyphs: The glyph of the left and the right half.
        is_confident: Whether the classifier is confident of each half.
        features: Features of the whole images.
    """

    glyphs: Int[np.ndarray, "N 2"]
    is_confident: Bool[np.ndarray, "N 2"]
    features: Float[np.ndarray, "N F"]


def is_consistent(predictions: HalfPredictions) -> Bool[np.ndarray, " N"]:
    """Return which images show, with confidence, the same digit on both halves."""
    return predictions.is_confident.all(axis=1) & (predictions.glyphs[:, 0] == predictions.glyphs[:, 1])


def generation_metrics(
    made: HalfPredictions, drawn: HalfPredictions, truths: Int[np.ndarray, " N"]
) -> dict[str, float]:
    """Compute metrics of generated images, and of the classifier itself on real images.

    `consistency`: the fraction of images with confidently the same digit on both halves; `digit_match`: with the same
    reading, confident or not; `confident`: the fraction of halves. `effective_classes`: exp of the entropy of the
    generated digits. `frechet_distance`: between features of generated and real images. `real/accuracy`,
    `real/consistency`: of the classifier on real halves and images.

    Args:
        made: The predictions of generated images.
        drawn: The predictions of real images.
        truths: The digits of the real images.

    Returns:
        The metrics by name.
    """
    _, counts = np.unique(made.glyphs, return_counts=True)
    shares = counts / counts.sum()
    return {
        "consistency": float(is_consistent(made).mean()),
        "digit_match": float(np.mean(made.glyphs[:, 0] == made.glyphs[:, 1])),
        "confident": float(made.is_confident.mean()),
        "effective_classes": float(np.exp(-np.sum(shares * np.log(shares)))),
        "frechet_distance": frechet_distance(made.features, drawn.features),
        "real/accuracy": float(np.mean(drawn.glyphs == truths[:, None])),
        "real/consistency": float(is_consistent(drawn).mean()),
    }


def frechet_distance(one: Float[np.ndarray, "N F"], other: Float[np.ndarray, "M F"]) -> float:
    """Compute |m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) from the means and covariances of two sets of features.

    It is the squared Frechet distance of two normal distributions (Dowson and Landau 1982), as in the FID (Heusel et
    al. 2017) but with the features of another network.

    Args:
        one: Features [example, feature].
        other: Features of the other set.

    Returns:
        The distance.
    """
    wide = [np.asarray(features, np.float64) for features in (one, other)]
    mean, mean_of_other = (features.mean(axis=0) for features in wide)
    covariance, covariance_of_other = (np.atleast_2d(np.cov(features, rowvar=False)) for features in wide)
    # tr (C C')^(1/2) is that of the symmetric (R C' R)^(1/2), where R R = C.
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    both = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ covariance_of_other @ root), 0)).sum()
    apart = np.sum((mean - mean_of_other) ** 2)
    return float(max(apart + np.trace(covariance) + np.trace(covariance_of_other) - 2 * both, 0.0))
