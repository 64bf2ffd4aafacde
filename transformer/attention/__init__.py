"""Attention as pure functions of arrays: jax alone, no modules, no configs.

`attend(q, k, v)` composes the stages `prepare_keys`, `score`, `normalise`, `read` and `capture_weights`, which are
public too. Every name below is to be imported from this package; no submodule has a name of these.
"""

from transformer.attention.capture import Capture, Captured, capture_at, captured_at, one_layer
from transformer.attention.composition import PreparedKeys, attend, prepare_keys, read, score
from transformer.attention.drop import dropout
from transformer.attention.masks import (
    Mask,
    clear_keys,
    clear_queries,
    dense,
    local_monotonic,
    local_predictive,
    predicted_centre,
)
from transformer.attention.measure import capture_weights
from transformer.attention.normalisers import (
    Normaliser,
    Reweighting,
    entmax15,
    gaussian,
    log_sum_exp,
    normalise,
    softmax,
    sparsemax,
)
from transformer.attention.positions import T5, Alibi, Position, Rotary, Shaw, TransformerXL
from transformer.attention.scores import Additive, Concat, Cosine, General, Location, Mlp, Score
from transformer.attention.sites import Axis, AxisKind, Site, between
from transformer.attention.spec import AttentionSpec, Backend, Parameters
from transformer.attention.statistics import (
    DIAGONALITY,
    DISTANCE,
    ENTROPY,
    STATISTICS,
    Cells,
    Expectation,
    Mass,
    Reduction,
    Rows,
    added,
    grid_distance,
    induction,
    larger,
    segment,
    span,
    the_first,
)
from transformer.attention.waves import Combination, combine, rotary, sinusoidal

__all__ = [
    "DIAGONALITY",
    "DISTANCE",
    "ENTROPY",
    "STATISTICS",
    "T5",
    "Additive",
    "Alibi",
    "AttentionSpec",
    "Axis",
    "AxisKind",
    "Backend",
    "Capture",
    "Captured",
    "Cells",
    "Combination",
    "Concat",
    "Cosine",
    "Expectation",
    "General",
    "Location",
    "Mask",
    "Mass",
    "Mlp",
    "Normaliser",
    "Parameters",
    "Position",
    "PreparedKeys",
    "Reduction",
    "Reweighting",
    "Rotary",
    "Rows",
    "Score",
    "Shaw",
    "Site",
    "TransformerXL",
    "added",
    "attend",
    "between",
    "capture_at",
    "capture_weights",
    "captured_at",
    "clear_keys",
    "clear_queries",
    "combine",
    "dense",
    "dropout",
    "entmax15",
    "gaussian",
    "grid_distance",
    "induction",
    "larger",
    "local_monotonic",
    "local_predictive",
    "log_sum_exp",
    "normalise",
    "one_layer",
    "predicted_centre",
    "prepare_keys",
    "read",
    "rotary",
    "score",
    "segment",
    "sinusoidal",
    "softmax",
    "span",
    "sparsemax",
    "the_first",
]
