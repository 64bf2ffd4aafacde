"""Two authors: their texts are those of their chains, and who wrote one is judged by its likelihood."""

import numpy as np
import pytest

from experiments.in_context_learning.data import (
    AUTHORS,
    CHARACTERS,
    NEVER,
    character_transitions,
    classify_author,
    log_likelihood,
    sample_text,
)

PLACES = {character: place for place, character in enumerate(CHARACTERS)}


@pytest.mark.parametrize("name", AUTHORS)
def test_a_text_has_the_steps_of_its_authors_chain(name: str) -> None:
    table = character_transitions(AUTHORS[name])
    np.testing.assert_allclose(table.sum(axis=1), 1, atol=1e-12)
    text = sample_text(AUTHORS[name], np.random.default_rng(0), 24_000)
    counted = np.zeros_like(table)
    np.add.at(counted, ([PLACES[each] for each in text[:-1]], [PLACES[each] for each in text[1:]]), 1)
    often = counted.sum(axis=1) > 800
    assert often.sum() > 8
    np.testing.assert_allclose(counted[often] / counted[often].sum(axis=1, keepdims=True), table[often], atol=0.05)
    assert counted[table == 0].sum() == 0


def test_a_likelihood_is_the_product_of_its_steps() -> None:
    table = character_transitions(AUTHORS["soft"])
    steps = [table[PLACES[first], PLACES[second]] for first, second in ("lu", "u,", ", ", " m")]
    assert log_likelihood(AUTHORS["soft"], "bal", "u, m") == pytest.approx(np.log(np.prod(steps)))
    # What neither writes says nothing of who wrote it.
    assert [log_likelihood(style, "a", "a,b") - log_likelihood(style, "a", ",") for style in AUTHORS.values()] == [
        pytest.approx(2 * NEVER)
    ] * 2


def test_the_judge_knows_the_authors_by_their_texts_and_not_by_what_is_before() -> None:
    random = np.random.default_rng(1)
    for name, style in AUTHORS.items():
        texts = [sample_text(style, random, 48) for _ in range(50)]
        assert np.mean([classify_author(" ", text) == name for text in texts]) > 0.95
        other = next(each for each in AUTHORS if each != name)
        assert (
            np.mean([classify_author(sample_text(AUTHORS[other], random, 20) + " ", text) == name for text in texts])
            > 0.95
        )
