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
    generated: HalfPredictions, real: HalfPredictions, truths: Int[np.ndarray, " N"]
) -> dict[str, float]:
    """Compute metrics of generated images, and of the classifier itself on real images.

    `consistency`: the fraction of images with confidently the same digit on both halves; `digit_match`: with the same
    reading, confident or not; `confident`: the fraction of halves. `effective_classes`: exp of the entropy of the
    generated digits. `frechet_distance`: between features of generated and real images. `real/accuracy`,
    `real/consistency`: of the classifier on real halves and images.

    Args:
        generated: The predictions of generated images.
        real: The predictions of real images.
        truths: The digits of the real images.

    Returns:
        The metrics by name.
    """
    _, counts = np.unique(generated.glyphs, return_counts=True)
    shares = counts / counts.sum()
    return {
        "consistency": float(is_consistent(generated).mean()),
        "digit_match": float(np.mean(generated.glyphs[:, 0] == generated.glyphs[:, 1])),
        "confident": float(generated.is_confident.mean()),
        "effective_classes": float(np.exp(-np.sum(shares * np.log(shares)))),
        "frechet_distance": frechet_distance(generated.features, real.features),
        "real/accuracy": float(np.mean(real.glyphs == truths[:, None])),
        "real/consistency": float(is_consistent(real).mean()),
    }


def frechet_distance(first: Float[np.ndarray, "N F"], second: Float[np.ndarray, "M F"]) -> float:
    """Compute |m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) from the means and covariances of two sets of features.

    It is the squared Frechet distance of two normal distributions (Dowson and Landau 1982), as in the FID (Heusel et
    al. 2017) but with the features of another network.

    Args:
        first: Features [example, feature].
        second: Features of the other set.

    Returns:
        The distance.
    """
    wide = [np.asarray(features, np.float64) for features in (first, second)]
    mean, second_mean = (features.mean(axis=0) for features in wide)
    covariance, second_covariance = (np.atleast_2d(np.cov(features, rowvar=False)) for features in wide)
    # tr (C C')^(1/2) is that of the symmetric (R C' R)^(1/2), where R R = C.
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    root_trace = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ second_covariance @ root), 0)).sum()
    mean_distance = np.sum((mean - second_mean) ** 2)
    return float(max(mean_distance + np.trace(covariance) + np.trace(second_covariance) - 2 * root_trace, 0.0))
