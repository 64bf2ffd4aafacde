"""Byte-level BPE, characters and bytes: every text comes back, and each token knows the bytes that it adds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from transformer.config import UserError
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.train_tokenizer import (
    byte_tokenizer,
    character_tokenizer,
    train_bpe,
    train_byte_bpe,
    train_words,
)
from transformer.decoding.stop_sequences import build_stop_table
from transformer.runs.trust import check_trusted
from transformer.tasks.decoding_config import DecodingConfig

TEXT = "To be, or not to be:\n  that is the question — 'tis nobler?\n\n" * 4
STRANGE = "\u0000\n\r\n\t  x  naïve 犬🐕‍🦺 <end> <mask> \u2028 e\u0301 ▁ Ġ ## \x85"

MADE: dict[str, Callable[[], FastTokenizer]] = {
    "bpe": lambda: train_byte_bpe([TEXT], 300, ("end", "mask")),
    "bytes": lambda: byte_tokenizer(("pad", "end")),
    "characters": lambda: character_tokenizer([TEXT, STRANGE], ("mask",)),
}
BYTES = byte_tokenizer()
BPE = train_byte_bpe([TEXT], 280)


@pytest.fixture(params=MADE)
def tokenizer(request: pytest.FixtureRequest) -> FastTokenizer:
    return MADE[request.param]()


@pytest.mark.parametrize("text", [TEXT, STRANGE, "", " ", "\n"])
def test_every_text_comes_back(tokenizer: FastTokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert not set(ids) & tokenizer.special_ids
    written = tokenizer.token_bytes()
    assert len(written) == tokenizer.vocab_size
    assert b"".join(written[number] for number in ids) == text.encode()
    assert all(written[number] == b"" for number in tokenizer.special_ids)


@given(st.text(max_size=40))
def test_any_text_comes_back_from_bytes(text: str) -> None:
    for made in (BYTES, BPE):
        (ids,) = made.encode([text])
        assert made.decode(ids) == text
        assert b"".join(made.token_bytes()[number] for number in ids) == text.encode()
    assert BYTES.encode([text]) == [list(text.encode())] == [BYTES.encode_to_arrays([text])[0].tolist()]


@pytest.mark.parametrize("text", [TEXT, STRANGE, "", "<end>"])
def test_arrays_have_the_tokens_of_the_library(tokenizer: FastTokenizer, text: str) -> None:
    for dtype in (np.uint16, np.int32):
        arrays = tokenizer.encode_to_arrays([text, "to"], dtype)
        assert [array.dtype for array in arrays] == [dtype, dtype]
        expected = [tokenizer.backend.encode(each, add_special_tokens=False).ids for each in (text, "to")]
        assert [array.tolist() for array in arrays] == expected


def test_tokens_that_are_more_than_bytes_stay_so_in_arrays() -> None:
    backend = byte_tokenizer(("end",)).backend
    backend.add_tokens(["ques"])
    spaced = byte_tokenizer().backend
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    lower = byte_tokenizer().backend
    lower.normalizer = normalizers.Lowercase()
    for changed in (backend, spaced, lower):
        tokenizer = FastTokenizer(changed)
        (expected,) = tokenizer.encode([TEXT])
        assert expected != list(TEXT.encode())
        assert tokenizer.encode_to_arrays([TEXT])[0].tolist() == expected


def test_characters_are_those_of_the_text_in_order() -> None:
    made = character_tokenizer(["banana", "cab"])
    assert (made.vocab_size, made.special_ids, made.unk_id, made.eos_id) == (4, frozenset(), None, None)
    assert made.pieces(range(4)) == ["a", "b", "c", "n"]
    assert made.encode(["cabn", "a"]) == [[2, 0, 1, 3], [0]]
    asked = character_tokenizer(["ab"], ("end", "mask"))
    assert (asked.vocab_size, asked.eos_id, asked.mask_id) == (4, 2, 3)


def test_an_unknown_character_is_named_or_has_its_token() -> None:
    with pytest.raises(UserError, match="no token for the character 'z', which its training text lacked"):
        character_tokenizer(["banana"]).encode(["ban", "zany"])
    # A special token is no character of the text, even when it is written there.
    with pytest.raises(UserError, match="the character '<'"):
        character_tokenizer(["mask"], ("mask",)).encode(["<mask>"])
    made = character_tokenizer(["ab"], ("unknown", "mask"))
    assert made.encode(["abca"]) == [[0, 1, made.unk_id, 0]]
    assert made.decode([0, 2, 1]) == "ab"
    with pytest.raises(UserError, match="is empty"):
        character_tokenizer([""])


def test_byte_level_bpe_has_the_size_that_was_asked() -> None:
    made = train_byte_bpe([TEXT], 290, ("pad", "end"))
    assert made.vocab_size == 290
    assert (made.pad_id, made.eos_id) == (288, 289)
    assert made.decode([*made.encode(["To be"])[0], made.eos_id, 5]) == "To be"
    assert len(made.encode([TEXT])[0]) < len(TEXT.encode()) / 2
    # GPT-2 never merges across a word's start, so "be" keeps its space and loses its comma.
    assert made.pieces(made.encode([" to be, or"])[0])[-3:] == ["Ġbe", ",", "Ġor"]
    with pytest.raises(UserError, match="size=256 must be at least 257"):
        train_byte_bpe([TEXT], 256)
    with pytest.raises(UserError, match="did you mean 'end'"):
        train_byte_bpe([TEXT], 300, ("ende",))


def test_words_start_where_white_space_is() -> None:
    made = character_tokenizer(["a b\n"], ("mask",))
    assert made.word_starts().tolist() == [True, True, False, False, True]
    starts = BPE.word_starts()
    pieces = BPE.pieces(BPE.encode(["not to be"])[0])
    found = [starts[number] for number in BPE.encode(["not to be"])[0]]
    assert found == [piece.startswith("Ġ") for piece in pieces]
    assert sum(found) == 2


def test_what_was_saved_is_loaded_with_its_roles(tokenizer: FastTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert isinstance(again, FastTokenizer)
    assert again.ids_by_role == tokenizer.ids_by_role
    assert again.encode([TEXT, STRANGE]) == tokenizer.encode([TEXT, STRANGE])
    assert again.token_bytes() == tokenizer.token_bytes()
    assert again.special_ids == tokenizer.special_ids


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it has no tokenizer"):
        load_tokenizer(tmp_path)
    BYTES.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(tmp_path)


def test_joint_pieces_bring_their_spaces() -> None:
    made = train_bpe([TEXT], 120)
    (ids,) = made.encode(["or not to be"])
    assert b"".join(made.token_bytes()[number] for number in ids) == b" or not to be"


def test_a_vocabulary_of_words_has_the_most_frequent_ones(tmp_path: Path) -> None:
    made = train_words(["b b , a", "a  c UNK", "UNK"], 9, ("de",))
    tokens = ["<pad>", "<begin>", "<end>", "<2de>", "▁UNK", "▁a", "▁b", "▁,", "▁c"]
    assert made.pieces(range(made.vocab_size)) == tokens
    made.save(tmp_path)
    text = " a b, <pad> c\u00a0naïve UNK\n"
    for each in (made, load_tokenizer(tmp_path)):
        assert isinstance(each, FastTokenizer)
        assert each.is_word_level
        assert not BPE.is_word_level
        (ids,) = each.encode([text])
        assert (ids, each.unk_id) == ([5, 4, 4, 8, 4, 4], 4)
        assert each.token_texts(text) == text.split()
        assert each.decode(ids) == "a UNK UNK c UNK UNK"
        assert each.decode_words([*ids, 2, 4], {1: "b,", 4: "naïve", 7: "never"}) == "a b, UNK c naïve UNK"
        assert each.language_tag_ids("de") == [3]
    assert train_words(["a b"], 5).encode(["b a"]) == [[3, 4]]
    with pytest.raises(UserError, match="size=4 must be above 4"):
        train_words(["a"], 4)


def test_tiny_shakespeare_has_65_characters(shared_data: Path) -> None:
    text = (shared_data / "tinyshakespeare" / "input.txt").read_text()
    made = character_tokenizer([text])
    assert made.vocab_size == 65
    (ids,) = made.encode([text[:100_000]])
    alphabet = sorted(set(text))
    assert ids == [alphabet.index(character) for character in text[:100_000]]


def test_one_text_is_not_taken_for_its_letters() -> None:
    """Everything that reads several texts or names refuses one, which is a sequence of letters too."""
    for act in (
        lambda: BPE.encode("text"),
        lambda: BYTES.encode_targets("text"),
        lambda: byte_tokenizer("end"),
        lambda: character_tokenizer("text"),
        lambda: train_bpe("text", 60),
        lambda: train_bpe([TEXT], 60, "de"),
        lambda: train_byte_bpe("text", 300),
        lambda: build_stop_table("ab", [b"a", b"b"]),
        # Each part of the name would be trusted.
        lambda: check_trusted({"task": {"name": "lab.mi"}}, "lab.mine"),
    ):
        with pytest.raises(TypeError, match=r" is '.*', a single text; give a list of them, \['.*'\]"):
            act()
    with pytest.raises(UserError, match="stop_sequences='ab' is a str; it must be a tuple"):
        DecodingConfig(stop_sequences="ab")  # type: ignore[arg-type]
