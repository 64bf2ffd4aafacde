"""Word alignment: worked out by hand, and against published error rates."""

from pathlib import Path

import numpy as np
import pytest

from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.tasks.translation_metrics import (
    alignment_error_rate,
    argmax_links,
    diagonal_links,
    word_attention_weights,
)
from transformer.tasks.word_alignment_evaluation import read_alignment_files


def test_pieces_of_a_source_word_add_up_and_of_a_target_word_average() -> None:
    # Source: tag, word 0 in two pieces, word 1, end. Target: word 0, word 1 in two pieces, end; then padding.
    weights_TxS = np.array(
        [
            [0.1, 0.2, 0.3, 0.3, 0.1],
            [0.0, 0.5, 0.1, 0.4, 0.0],
            [0.0, 0.1, 0.1, 0.8, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],
            [0.2, 0.2, 0.2, 0.2, 0.2],
        ]
    )
    found = word_attention_weights(weights_TxS, source_words=[-1, 0, 0, 1, -1], target_words=[0, 1, 1, -1])
    np.testing.assert_allclose(found, [[0.5, 0.3], [(0.6 + 0.2) / 2, (0.4 + 0.8) / 2]])
    assert argmax_links(found) == {(0, 0), (1, 1)}


def test_links_are_source_then_target() -> None:
    weights_of_words = np.array([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1]])  # two target words over three source words
    assert argmax_links(weights_of_words) == {(1, 0), (0, 1)}


@pytest.mark.parametrize(
    ("source", "target", "links"),
    [
        (3, 3, {(0, 0), (1, 1), (2, 2)}),
        (5, 3, {(0, 0), (2, 1), (4, 2)}),
        (3, 5, {(0, 0), (0, 1), (1, 2), (2, 3), (2, 4)}),
        (4, 1, {(0, 0)}),
        (1, 3, {(0, 0), (0, 1), (0, 2)}),
    ],
)
def test_the_diagonal(source: int, target: int, links: set[tuple[int, int]]) -> None:
    assert diagonal_links(source, target) == links


def links(text: str) -> WordAlignment:
    return WordAlignment.from_text(text)


@pytest.mark.parametrize(
    ("found", "known", "rate"),
    [
        # |A & S| = 2, |A & P| = 2, |A| = 2, |S| = 2
        ({(0, 0), (1, 1)}, "0-0 1-1", 0.0),
        ({(0, 1), (1, 0)}, "0-0 1-1", 1.0),
        # A possible link costs nothing when found and nothing when missed.
        ({(0, 0), (1, 1)}, "0-0 1p1", 0.0),
        ({(0, 0)}, "0-0 1p1", 0.0),
        # |A & S| = 1, |A & P| = 2, |A| = 3, |S| = 2: 1 - 3 / 5
        ({(0, 0), (1, 1), (2, 2)}, "0-0 1p1 3-3", 0.4),
    ],
)
def test_the_error_rate_by_hand(found: set[tuple[int, int]], known: str, rate: float) -> None:
    assert alignment_error_rate([found], [links(known)]) == pytest.approx(rate)


def test_the_error_rate_is_of_the_whole_corpus() -> None:
    found = [{(0, 0)}, {(0, 1), (1, 0), (2, 2)}]
    known = [links("0-0"), links("0-0 1-1 2-2")]
    # Pooled: agreed 1 + 1 + 1 + 1 of 1 + 3 + 1 + 3; the mean over pairs would be 1 / 3.
    assert alignment_error_rate(found, known) == pytest.approx(1 - 4 / 8)


def test_every_pair_needs_its_truth() -> None:
    with pytest.raises(ValueError, match="shorter"):
        alignment_error_rate([{(0, 0)}, set()], [links("0-0")])


def published(path: Path, start: int) -> list[WordAlignment]:
    """A file of links, counted from `start`."""
    read = []
    for line in path.read_text(encoding="utf-8").splitlines():
        sure, possible = set(), set()
        for item in line.split():
            i, j = (int(number) - start for number in item.replace("p", "-").split("-"))
            possible.add((i, j))
            if "p" not in item:
                sure.add((i, j))
        read.append(WordAlignment(tuple(sure), tuple(possible)))
    return read


@pytest.mark.parametrize(
    ("pair", "output", "percent"),
    [
        ("enfr", "enfr.awesome-align.out", 4.1),
        ("jaen", "jaen.awesome-align.out", 37.4),
        ("enfr", "giza/test.enfr.talp", 8.0),
        ("enfr", "giza/test.enfr.grow-diagonal.talp", 5.9),
        ("enfr", "giza/test.enfr.grow-diagonal-final.talp", 6.2),
    ],
)
def test_published_error_rates(shared_data: Path, pair: str, output: str, percent: float) -> None:
    folder = shared_data / "word_alignment"
    if not folder.is_dir():
        pytest.skip("needs word_alignment in ../shared/data")
    known = published(folder / f"{pair}.gold", start=1)
    found = [set(one.possible) for one in published(folder / output, start=0)]
    assert 100 * alignment_error_rate(found, known) == pytest.approx(percent, abs=0.06)


def test_links_may_count_words_from_one(tmp_path: Path) -> None:
    files = []
    for name, line in {"source": "a b", "target": "x y z", "links": "1-1 1p3 2-2"}.items():
        files.append(tmp_path / name)
        files[-1].write_text(f"{line}\n{line}\n")
    pair, again = read_alignment_files(*files, first=1)
    assert pair == again
    assert pair.word_alignment == WordAlignment(((0, 0), (1, 1)), ((0, 0), (0, 2), (1, 1)))
