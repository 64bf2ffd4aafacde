"""How good drawn canvases are, by what a judge makes of them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Judged(NamedTuple):
    """A judge's readings of the left and right halves of canvases; the features of a canvas are those of both."""

    glyphs: Int[np.ndarray, "N 2"]
    sure: Bool[np.ndarray, "N 2"]
    features: Float[np.ndarray, "N F"]


def consistent(judged: Judged) -> Bool[np.ndarray, " N"]:
    """Which canvases have, surely, the same glyph on both halves."""
    return judged.sure.all(axis=1) & (judged.glyphs[:, 0] == judged.glyphs[:, 1])


def measure(made: Judged, drawn: Judged, truths: Int[np.ndarray, " N"]) -> dict[str, float]:
    """Numbers of the canvases that were made, and of the judge itself on those that were drawn.

    `consistent`: the share with, surely, one glyph on both halves; `equal`: with the same reading, sure or not; `sure`:
    the share of halves. `different`: how many different glyphs the made halves show, exp of their entropy.
    `distance_of_features`: `frechet` between both. `drawn/right`, `drawn/consistent`: what the judge says of the halves
    and canvases that were drawn.
    """
    _, counts = np.unique(made.glyphs, return_counts=True)
    shares = counts / counts.sum()
    return {
        "consistent": float(consistent(made).mean()),
        "equal": float(np.mean(made.glyphs[:, 0] == made.glyphs[:, 1])),
        "sure": float(made.sure.mean()),
        "different": float(np.exp(-np.sum(shares * np.log(shares)))),
        "distance_of_features": frechet(made.features, drawn.features),
        "drawn/right": float(np.mean(drawn.glyphs == truths[:, None])),
        "drawn/consistent": float(consistent(drawn).mean()),
    }


def frechet(one: Float[np.ndarray, "N F"], other: Float[np.ndarray, "M F"]) -> float:
    """|m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) of the means and covariances of two sets of features.

    The squared Frechet distance of two normal distributions (Dowson and Landau 1982), as Heusel et al. 2017 take it of
    the features of another network.
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
