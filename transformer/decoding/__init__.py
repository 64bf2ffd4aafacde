"""Decoding with any model family's cache: greedy search, beam search and sampling."""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.decoding.beam import BeamSearch, FinishedHypothesisRule
    from transformer.decoding.constraints import Constraints, NoRepeatedTokens, TokenRule
    from transformer.decoding.ensemble import Ensemble
    from transformer.decoding.generation import (
        CoveragePenalty,
        DecodedSequences,
        DecodingStrategy,
        SpecialTokens,
        generate,
    )
    from transformer.decoding.greedy import GreedySearch, Hypotheses
    from transformer.decoding.sampling import Sampling
    from transformer.decoding.shallow_fusion import ShallowFusion
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "BeamSearch",
    "Constraints",
    "CoveragePenalty",
    "DecodedSequences",
    "DecodingStrategy",
    "Ensemble",
    "FinishedHypothesisRule",
    "GreedySearch",
    "Hypotheses",
    "NoRepeatedTokens",
    "Sampling",
    "ShallowFusion",
    "SpecialTokens",
    "TokenRule",
    "generate",
]
