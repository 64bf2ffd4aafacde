"""Attention compiled as users compile it: the other tests compile at XLA's lowest level, to which nobody trains."""

import pytest

from tests.attention import support_cases as support
from tests.attention.support_cases import Cell
from tests.attention.test_backend_support import cover, faults_of, faults_of_all
from transformer.attention.attention_spec import Backend
from transformer.attention.backends import AttentionVariant
from transformer.attention.normalizers import Normalizer
from transformer.attention.positions import AttentionPosition
from transformer.attention.scores import Score

# XLA's own default.
LEVEL = 3
CAUSAL = frozenset({"causal"})
CELLS = [
    Cell(Backend.EINSUM, AttentionVariant(features=CAUSAL)),
    # Its support is found by comparing logits, which a compiler may compute twice and round in two ways.
    Cell(Backend.EINSUM, AttentionVariant(score=Score.ADDITIVE, normalizer=Normalizer.ENTMAX15, features=CAUSAL)),
    Cell(
        Backend.BLOCKWISE,
        AttentionVariant(position=AttentionPosition.T5, features=frozenset({"causal", "key_lengths"})),
    ),
    Cell(Backend.XLA, AttentionVariant(position=AttentionPosition.ALIBI, features=frozenset({"causal", "segments"}))),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_at_the_users_level_a_cell_is_the_oracles(cell: Cell) -> None:
    assert faults_of(cell, LEVEL) == []


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", Normalizer, ids=lambda choice: choice.value)
def test_at_the_users_level_every_normalizer_is_the_oracles(normalizer: Normalizer) -> None:
    assert faults_of(Cell(Backend.EINSUM, AttentionVariant(normalizer=normalizer, features=CAUSAL)), LEVEL) == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA], ids=lambda choice: choice.value)
def test_at_the_users_level_a_pairwise_cover_is_the_oracles(backend: Backend) -> None:
    everywhere = [cell for cell in support.supported() if cell.backend not in (Backend.SPLASH, Backend.CUDNN)]
    assert faults_of_all([cell for cell in cover(everywhere, 2) if cell.backend is backend], LEVEL) == []
