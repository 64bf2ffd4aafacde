"""What a masked language model must predict, counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.tasks.masked_lm import MaskedTokens, _choose_words, mask_tokens, word_indices

VOCABULARY, MASK, SPECIAL = 100, 3, 5
ORDINARY = jnp.arange(SPECIAL, VOCABULARY)


def drawn(rows: int, length: int, *, words: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    tokens = random.integers(SPECIAL, VOCABULARY, (rows, length)).astype(np.int32)
    lengths = random.integers(length // 2, length + 1, rows)
    eligible = (np.arange(length) < lengths[:, None]) & (np.arange(length) > 0)
    starts = random.random((rows, length)) < 0.5 if words else np.ones((rows, length), bool)
    return tokens, eligible, np.asarray(word_indices(jnp.asarray(starts)))


@jax.jit
def compiled(tokens: jax.Array, eligible: jax.Array, word: jax.Array, key: jax.Array) -> MaskedTokens:
    return mask_tokens(tokens, eligible, word, key, share=0.15, mask=MASK, ordinary_N=ORDINARY)


def hide(tokens: np.ndarray, eligible: np.ndarray, word: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    masked = compiled(tokens, eligible, word, jax.random.key(seed))
    return np.asarray(masked.tokens), np.asarray(masked.predicted)


def test_fifteen_per_cent_are_predicted_in_the_three_shares() -> None:
    tokens, eligible, word = drawn(400, 128)
    shown, predicted = hide(tokens, eligible, word)
    of_all = eligible.sum()
    # 80 / 10 / 10 of 15 %; a random token is the true one once in 95.
    assert abs((predicted & (shown == MASK)).sum() / of_all - 0.12) < 0.002
    assert abs((predicted & (shown != MASK) & (shown != tokens)).sum() / of_all - 0.015 * 94 / 95) < 0.002
    assert abs((predicted & (shown == tokens)).sum() / of_all - 0.015 * 96 / 95) < 0.002
    np.testing.assert_array_equal(predicted.sum(1), np.round(np.float32(0.15) * eligible.sum(1).astype(np.float32)))


def test_nothing_else_changes_and_special_tokens_are_never_drawn() -> None:
    tokens, eligible, word = drawn(50, 64)
    shown, predicted = hide(tokens, eligible, word)
    assert not (predicted & ~eligible).any()
    np.testing.assert_array_equal(shown[~predicted], tokens[~predicted])
    assert set(np.unique(shown[shown < SPECIAL])) == {MASK}


def test_masks_are_drawn_anew_by_the_key() -> None:
    tokens, eligible, word = drawn(4, 64)
    first, again, other = (hide(tokens, eligible, word, seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()


def test_every_place_is_as_likely() -> None:
    tokens, eligible, word = drawn(1, 40)
    places = np.mean([hide(tokens, eligible, word, seed)[1][0] for seed in range(2000)], axis=0)
    expected = np.round(0.15 * eligible.sum()) / eligible.sum()
    # 2,000 draws of a share of 0.15: three standard errors are 0.024.
    np.testing.assert_allclose(places[eligible[0]], expected, atol=0.03)


def test_whole_words_are_chosen_whole() -> None:
    tokens, eligible, word = drawn(100, 64, words=True)
    _, predicted = hide(tokens, eligible, word)
    for row in range(100):
        for number in np.unique(word[row]):
            members = (word[row] == number) & eligible[row]
            assert predicted[row][members].all() or not predicted[row][members].any()
    share = predicted.sum() / eligible.sum()
    assert 0.145 < share <= 0.151


@pytest.mark.parametrize("longest", [1, 2, 6, 30])
def test_a_word_that_does_not_fit_is_left_out_and_the_next_is_tried(longest: int) -> None:
    random = np.random.default_rng(longest)
    choose = jax.jit(jax.vmap(_choose_words, (0, 0, 0, None)))
    eligible = random.random((200, 64)) < random.uniform(0.05, 1, (200, 1))
    sizes = random.integers(1, longest + 1, (200, 64))
    word = np.stack([np.repeat(np.arange(64), each)[:64] for each in sizes])
    luck = random.random((200, 64)).astype(np.float32)
    chosen = np.asarray(choose(eligible, word, luck, 0.15))
    for row in range(200):
        members = {number: (word[row] == number) & eligible[row] for number in np.unique(word[row])}
        order = sorted((number for number in members if members[number].any()), key=lambda number: luck[row, number])
        room = max(
            int(np.round(np.float32(0.15) * np.float32(eligible[row].sum()))),
            min(members[number].sum() for number in order),
        )
        expected = np.zeros(64, bool)
        for number in order:
            if members[number].sum() <= room:
                expected |= members[number]
                room -= members[number].sum()
        np.testing.assert_array_equal(chosen[row], expected)


def test_a_short_text_has_one_word_to_predict() -> None:
    tokens = np.full((1, 8), 9, np.int32)
    eligible = np.arange(8)[None] < 3
    _, predicted = hide(tokens, eligible, np.zeros((1, 8), np.int32))
    np.testing.assert_array_equal(predicted, eligible)
    _, predicted = hide(tokens, eligible & False, np.arange(8)[None])
    assert not predicted.any()
