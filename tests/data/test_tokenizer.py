"""Sub-word tokenizers: texts come back as they were, and pieces know their words."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import UserError
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.tokenizer import UnknownTextWarning, has_tokenizer, language_tag, word_indices
from transformer.data.tokenizers.train_tokenizer import train_bpe

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3

TEXTS = [
    "Zwei junge Männer sind im Freien in der Nähe vieler Büsche.",
    "Der Hund läuft; »schön«, sagt er - ganz ohne Maß!",
    "a man &apos;s hat , it is n&apos;t his ( or is it ? )",
    "on Friday, the 17th of May: twenty-one past 7.30 p.m.",
    "l'été à Noël coûte 3,50 € où ça ?",
    '¿Qué? 100% of "it" & more... #1/2 @home <tag> a_b',
]


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return train_bpe(TEXTS * 3, 300, ["de", "fr"])


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back(tokenizer: FastTokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text])
    assert UNKNOWN not in ids
    assert tokenizer.decode([*ids, END, *ids]) == text  # what stands behind the end is not read
    assert tokenizer.decode(ids) == text


@given(st.lists(st.sampled_from("abde Männer,. &;'-äöüß7"), max_size=30).map("".join))
def test_any_text_of_known_letters_comes_back(text: str) -> None:
    tokenizer = _trained()
    plain = " ".join(text.split())
    (ids,) = tokenizer.encode([plain])
    assert tokenizer.decode(ids) == plain


_CACHE: list[FastTokenizer] = []


def _trained() -> FastTokenizer:
    if not _CACHE:
        _CACHE.append(train_bpe(["abde Männer , . & ; ' - äöüß7 aa ab,c d.e"] * 3, 60))
    return _CACHE[0]


def test_what_the_vocabulary_lacks_is_named_once_in_its_order(tokenizer: FastTokenizer) -> None:
    assert tokenizer.unknown_parts(["der 漢 Hund", "字 und 漢"]) == ["漢", "字"]
    with pytest.warns(UnknownTextWarning) as warned:
        tokenizer.warn_of_unknown_parts(["der 漢 Hund", "字 und 漢"])
    assert [str(warning.message) for warning in warned] == [
        "the vocabulary lacks '漢', '字': the model reads <unknown> there"
    ]
    with pytest.warns(
        UnknownTextWarning, match=r"'一', '丁', '七', '万', '丈', '三', '上', '下', '不', '与' \.\.\.: the"
    ):
        tokenizer.warn_of_unknown_parts(["一 丁 七 万 丈 三 上 下 不 与 丐"])


def test_known_texts_raise_no_warning(tokenizer: FastTokenizer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.warn_of_unknown_parts(TEXTS)


def test_special_tokens_have_their_numbers_and_are_not_said(tokenizer: FastTokenizer) -> None:
    assert tokenizer.pieces([PAD, BEGIN, END, UNKNOWN]) == ["<pad>", "<begin>", "<end>", "<unknown>"]
    (ids,) = tokenizer.encode(["der Hund"])
    assert tokenizer.decode([BEGIN, *tokenizer.language_tag_ids("de"), *ids, PAD, PAD]) == "der Hund"
    assert tokenizer.decode([]) == tokenizer.decode([END]) == ""
    assert not set(ids) & {PAD, BEGIN, END, UNKNOWN}


def test_an_unseen_letter_is_unknown(tokenizer: FastTokenizer) -> None:
    (ids,) = tokenizer.encode(["der 犬"])
    assert UNKNOWN in ids


def test_the_vocabulary_is_at_most_what_was_asked(tokenizer: FastTokenizer) -> None:
    assert tokenizer.vocab_size <= 300
    assert max(max(ids) for ids in tokenizer.encode(TEXTS)) < tokenizer.vocab_size


def test_frequent_words_become_one_piece() -> None:
    tokenizer = train_bpe(["haus haus haus maus"] * 50, 60)
    (ids,) = tokenizer.encode(["haus"])
    assert tokenizer.pieces(ids) == ["▁haus"]


def test_no_piece_crosses_a_space_or_punctuation() -> None:
    tokenizer = train_bpe(["so, so, so-so; it's so 7.5"] * 100, 200)
    (ids,) = tokenizer.encode(["so, so-so; it's so 7.5"])
    assert tokenizer.pieces(ids) == ["▁so", ",", "▁so", "-", "so", ";", "▁it", "'", "s", "▁so", "▁7", ".", "5"]


def test_a_tag_asks_for_a_language(tokenizer: FastTokenizer) -> None:
    assert tokenizer.languages == ["de", "fr"]
    for language in tokenizer.languages:
        (number,) = tokenizer.language_tag_ids(language)
        assert tokenizer.pieces([number]) == [language_tag(language)] == [f"<2{language}>"]
    assert tokenizer.language_tag_ids("de") != tokenizer.language_tag_ids("fr")


def test_one_language_needs_no_tag() -> None:
    tokenizer = train_bpe(TEXTS, 200)
    assert tokenizer.languages == []
    assert tokenizer.language_tag_ids("de") == []


def test_a_language_that_was_not_trained_is_refused(tokenizer: FastTokenizer) -> None:
    with pytest.raises(UserError, match="language='es' was not trained; "):
        tokenizer.language_tag_ids("es")


def test_a_text_that_looks_like_a_tag_asks_for_nothing(tokenizer: FastTokenizer) -> None:
    (ids,) = tokenizer.encode(["say <2de> <end> <pad>"])
    assert not set(ids) & {PAD, BEGIN, END, *tokenizer.language_tag_ids("de")}


@pytest.mark.parametrize(
    ("text", "words"),
    [("a man", 2), ("a man , here", 4), ("it is n&apos;t", 3), ("l'été à Noël", 3), ("twenty-one", 1), ("Maß !", 2)],
)
def test_pieces_belong_to_the_words_between_spaces(tokenizer: FastTokenizer, text: str, words: int) -> None:
    (ids,) = tokenizer.encode([text])
    pieces = tokenizer.pieces(ids)
    found = word_indices(pieces)
    assert len(found) == len(pieces)
    assert sorted(set(found)) == list(range(words))
    joined = ["".join(p for p, w in zip(pieces, found, strict=True) if w == word) for word in range(words)]
    assert [one.replace("▁", "") for one in joined] == text.split()


def test_what_was_saved_is_loaded(tokenizer: FastTokenizer, tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    tokenizer.save(tmp_path)
    assert has_tokenizer(tmp_path)
    again = load_tokenizer(tmp_path)
    assert isinstance(again, FastTokenizer)
    assert list(again.ids_by_role.values()) == [PAD, BEGIN, END, UNKNOWN, None]
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert (again.vocab_size, again.languages) == (tokenizer.vocab_size, tokenizer.languages)


def test_training_twice_gives_the_same_tokenizer(tokenizer: FastTokenizer) -> None:
    assert train_bpe(TEXTS * 3, 300, ["de", "fr"]).encode(TEXTS) == tokenizer.encode(TEXTS)
