"""Labels of tokens: text instead of a vocabulary's own writing, characters that were divided, bytes that are none."""

import itertools
import re

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.marian import MarianTokenizer
from transformer.data.tokenizers.token_text import byte_characters, label_tokens

EMOJI, CHINESE = "🙂".encode(), "语".encode()


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        ([b"The", b" qu", b"ick"], ["The", "▁qu", "ick"]),
        ([b" " + EMOJI[:2], EMOJI[2:3], EMOJI[3:] + b"!"], ["▁🙂⟨1/3⟩", "🙂⟨2/3⟩", "🙂⟨3/3⟩!"]),
        ([CHINESE[:1], CHINESE[1:] + CHINESE[:2], CHINESE[2:]], ["语⟨1/2⟩", "语⟨2/2⟩语⟨1/2⟩", "语⟨2/2⟩"]),
        # Cut in the middle, never begun, and interrupted by a token that is no text.
        ([b"a", CHINESE[:2]], ["a", "<0xE8><0xAF>"]),
        ([CHINESE[1:], b"b"], ["<0xAF><0xAD>", "b"]),
        ([CHINESE[:1], "<end>", CHINESE[1:]], ["<0xE8>", "<end>", "<0xAF><0xAD>"]),
        ([b"\n", b"  ", b"", "[MASK]"], ["\n", "▁▁", "", "[MASK]"]),
        ([CHINESE[:1], b"", CHINESE[1:]], ["语⟨1/2⟩", "", "语⟨2/2⟩"]),
        ([], []),
    ],
)
def test_a_token_is_labeled_by_the_text_that_it_adds(tokens: list[str | bytes], labels: list[str]) -> None:
    assert label_tokens(tokens) == labels


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=8), st.lists(st.integers(0, 40), max_size=10))
def test_the_labels_of_any_cuts_spell_the_text(text: str, cuts: list[int]) -> None:
    text = text.encode("utf-8", "replace").decode()
    if "⟨" in text:
        return
    whole = text.encode()
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    labels = label_tokens([whole[start:end] for start, end in itertools.pairwise(places)])
    # A character of several parts is written once: where its first part is.
    once = re.sub(r"(.)⟨1/\d+⟩", r"\1", "".join(labels), flags=re.DOTALL)
    joined = re.sub(r".⟨\d+/\d+⟩", "", once, flags=re.DOTALL)
    assert joined == text.replace(" ", "▁")
    parts = [part for label in labels for part in re.findall(r".⟨(\d+)/(\d+)⟩", label, flags=re.DOTALL)]
    assert all(1 <= int(part) <= int(count) and int(count) > 1 for part, count in parts)


def byte_level(*merges: tuple[str, str]) -> FastTokenizer:
    """Byte-level BPE as GPT-2 writes it, with an end token."""
    pieces = [*byte_characters(), *("".join(pair) for pair in merges)]
    backend = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    end = backend.token_to_id("<|endoftext|>")
    return FastTokenizer(backend, bos_id=end, eos_id=end)


def test_byte_level_pieces_are_shown_as_text() -> None:
    made = byte_level(("Ġ", "q"), ("Ġq", "u"), ("ð", "Ł"))
    (ids,) = made.encode([" qué 🙂\n"])
    assert made.pieces(ids) == ["Ġqu", "Ã", "©", "Ġ", "ðŁ", "Ļ", "Ĥ", "Ċ"]
    shown = made.labels([made.eos_id or 0, *ids, 9999])
    assert shown == [
        "<|endoftext|>", "▁qu", "é⟨1/2⟩", "é⟨2/2⟩", "▁", "🙂⟨1/3⟩", "🙂⟨2/3⟩", "🙂⟨3/3⟩", "\n", "<unknown>",
    ]  # fmt: skip


def test_pieces_of_words_mark_where_a_word_begins() -> None:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "play": 2, "##ing": 3, "now": 4}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[UNK]", "[CLS]"])
    made = FastTokenizer(backend, bos_id=1, unk_id=0)
    (ids,) = made.encode(["playing now !"])
    assert made.labels([1, *ids]) == ["[CLS]", "▁play", "ing", "▁now", "[UNK]"]


def test_bytes_behind_pieces_join_to_a_character() -> None:
    pieces = ["<unk>", "▁the", "s", *(f"<0x{byte:02X}>" for byte in CHINESE)]
    made = MarianTokenizer(b"", b"", {"<pad>": 8, "</s>": 9, **{piece: n for n, piece in enumerate(pieces)}})
    assert made.labels([1, 2, 3, 4, 5, 9, 77]) == ["▁the", "s", "语⟨1/3⟩", "语⟨2/3⟩", "语⟨3/3⟩", "</s>", "<unk>"]


def test_characters_stand_as_they_are() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({" ": 0, "a": 1, "▁": 2}, "a"))
    backend.decoder = decoders.Fuse()
    assert FastTokenizer(backend).labels([0, 1, 2]) == [" ", "a", "▁"]
