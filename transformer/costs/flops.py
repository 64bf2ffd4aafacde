"""Floating-point operations of training by the formulas of the model families (`Family.operations`)."""

from collections.abc import Mapping
from typing import Any

from transformer.models.family import Size
from transformer.models.registry import operations

# By how much a training step exceeds a forward pass: backward costs twice as much as forward.
TRAINING = 3


def training_flops(config: Any, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> float | None:
    """One training step over a batch of arrays or their shapes, padding included; None for a family without formula.

    What rematerialisation computes again is no part of a step's operations (`Operations.recomputed`).
    """
    counted = operations(config, batch, vocabularies)
    return None if counted is None else TRAINING * counted.forward


def training_flops_a_token(config: Any, size: Size) -> float | None:
    """What one more row of the size's context adds to a training step, divided by its length; None without a formula.

    6 N + 12 L H D T for N weights that meet every token, L layers, H heads of depth D and the context T (Chowdhery et
    al. 2022, appendix B). An encoder-decoder's row is a source and a target of that length, and its token a pair of
    both. What a batch computes once, Transformer-XL's projection of distances, is left out. A picture's tokens are its
    patches, and those in front of them.
    """

    def step(rows: int) -> float | None:
        return training_flops(config, size.batch(rows), size.interface.vocabularies)

    one, two = step(1), step(2)
    return None if one is None or two is None else (two - one) / size.context
