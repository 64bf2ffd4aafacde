"""How tokenizers write text in their pieces: the bytes that a token adds, where words begin, and readable labels."""

import enum
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tokenizers
import tokenizers.decoders
import tokenizers.models

from transformer.config import UserError

WORD_START = "▁"
WORD_END = "</w>"
CONTINUATION_PREFIX = "##"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# The number of bytes of a UTF-8 character by its first byte; no character begins with another byte.
_SIZES = ((0x00, 0x7F, 1), (0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))


class TokenEncoding(enum.Enum):
    """What the characters of a piece mean."""

    BYTES = "bytes"
    """Each character stands for one byte (GPT-2)."""
    WORDS = "words"
    """A piece is a word after a space, or with "##" the continuation of one (BERT)."""
    WORD_ENDS = "word_ends"
    """"</w>" ends a word; a space follows, except at the end of the text (GPT-1)."""
    BYTE_WORD_ENDS = "byte_word_ends"
    """Each character stands for one byte, and "</w>" ends a word as in `WORD_ENDS` (CLIP)."""
    SPACES = "spaces"
    """"▁" is a space, "<0x0A>" a byte (SentencePiece)."""
    JOINED = "joined"
    """Pieces are words, with spaces between them."""
    PLAIN = "plain"
    """The characters are the text."""

    @property
    def marks_word_ends(self) -> bool:
        """Whether pieces say where a word ends, not where it begins."""
        return self in (TokenEncoding.WORD_ENDS, TokenEncoding.BYTE_WORD_ENDS)


# The stages of a decoder: any combination of SentencePiece's, or a single one of the others.
_SENTENCEPIECE = {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}

_SINGLE_STAGE = {
    "ByteLevel": TokenEncoding.BYTES,
    "WordPiece": TokenEncoding.WORDS,
    "BPEDecoder": TokenEncoding.WORD_ENDS,
    "Fuse": TokenEncoding.PLAIN,
}


def detect_token_encoding(backend: tokenizers.Tokenizer) -> TokenEncoding:
    """Return how a tokenizer writes text, known from its decoder.

    Raises:
        UserError: If the decoder is unknown, or does not match the tokenizer's model.
    """
    described = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    stages = [] if described is None else list(_flatten_stages(described))
    if backend.decoder is not None and described == json.loads(byte_word_end_decoder().__getstate__()):
        return TokenEncoding.BYTE_WORD_ENDS
    if isinstance(backend.model, tokenizers.models.BPE):
        suffix = backend.model.end_of_word_suffix or None
        if backend.model.continuing_subword_prefix or suffix != next((stage.get("suffix") for stage in stages), None):
            raise UserError(
                f"the tokenizer's pieces have the prefix {backend.model.continuing_subword_prefix!r} or the suffix "
                f"{suffix!r}, which its decoder does not read back"
            )
    if described is None:
        return TokenEncoding.JOINED
    kinds = {stage["type"] for stage in stages}
    if (
        len(kinds) == 1
        and kinds <= _SINGLE_STAGE.keys()
        and stages[0].get("prefix", CONTINUATION_PREFIX) == CONTINUATION_PREFIX
    ):
        return _SINGLE_STAGE[kinds.pop()]
    spaces = [stage for stage in stages if stage["type"] == "Metaspace" or stage.get("pattern")]
    marks = {stage.get("replacement") or stage["pattern"].get("String") for stage in spaces}
    if kinds <= _SENTENCEPIECE and marks == {WORD_START} and all(stage.get("content", " ") == " " for stage in stages):
        return TokenEncoding.SPACES
    raise UserError(
        f"the tokenizer's decoder {json.dumps(described)[:200]} is not read: only those of byte-level BPE, WordPiece, "
        "SentencePiece, GPT-1 and CLIP are"
    )


def byte_word_end_decoder() -> tokenizers.decoders.Decoder:
    """Return the decoder of byte-level pieces of which some end a word, as CLIP's class decodes them.

    The decoder in CLIP's files joins the bytes alone and leaves "</w>" in the text; the class then makes it a space.
    """
    space = byte_characters()[ord(" ")]
    stages = [tokenizers.decoders.Replace(WORD_END, space), tokenizers.decoders.ByteLevel()]
    # The library's Strip fails on empty texts.
    return tokenizers.decoders.Sequence([*stages, tokenizers.decoders.Replace(tokenizers.Regex(" $"), "")])


def _flatten_stages(decoder: dict) -> Iterator[dict]:
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _flatten_stages(part)
    else:
        yield decoder


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in GPT-2's vocabulary (Radford et al. 2019, section 2.2).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(0x100)]


def piece_bytes(piece: str, writing: TokenEncoding, decoder: tokenizers.decoders.Decoder | None = None) -> bytes:
    """Return the bytes that a piece adds within a text; a space between words belongs to the piece that writes it.

    Args:
        piece: The piece.
        writing: How the tokenizer writes text.
        decoder: The tokenizer's decoder, which knows which words stand without a space, such as a full stop.
    """
    if writing is TokenEncoding.BYTES:
        return b"".join(_BYTE_OF[c] if c in _BYTE_OF else c.encode() for c in piece)
    if writing is TokenEncoding.BYTE_WORD_ENDS:
        word = piece.removesuffix(WORD_END)
        return piece_bytes(word, TokenEncoding.BYTES) + (b" " if word != piece else b"")
    if writing is TokenEncoding.SPACES:
        if byte := _BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace(WORD_START, " ").encode()
    if writing is TokenEncoding.JOINED:
        return f" {piece}".encode()
    if writing is TokenEncoding.WORDS and decoder is not None:
        return decoder.decode(["x", piece]).removeprefix("x").encode()
    if writing is TokenEncoding.WORD_ENDS and decoder is not None:
        return decoder.decode([piece, "x"]).removesuffix("x").encode()
    return piece.encode()


_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}


class _Character(NamedTuple):
    """A character of a text, or the name of a byte that belongs to none, with the range of its bytes."""

    label: str
    start: int
    end: int


def label_tokens(tokens: Sequence[str | bytes]) -> list[str]:
    """Return a readable label for every token of a text.

    A space is "▁". A character that several tokens share is shown by each, with the number of its part: the first of
    two tokens that make up "é" is "é⟨1/2⟩". A byte that belongs to no character, as at the end of a text that was cut,
    is shown by its number, as "<0xF0>".

    Args:
        tokens: For each token the bytes that it adds; a string is its own label.
    """
    labels: list[str] = []
    stretch: list[bytes] = []
    for token in tokens:
        if isinstance(token, bytes):
            stretch.append(token)
        else:
            labels += [*_label_texts(stretch), token]
            stretch = []
    return labels + _label_texts(stretch)


def _label_texts(tokens: Sequence[bytes]) -> list[str]:
    spans = list(itertools.pairwise(itertools.accumulate(map(len, tokens), initial=0)))
    labels = [""] * len(tokens)
    position = 0
    for label, start, end in _split_characters(b"".join(tokens)):
        while spans[position][1] <= start:
            position += 1
        last = position
        while spans[last][1] < end:
            last += 1
        # Tokens without bytes may stand between those that share a character.
        sharing = [token for token in range(position, last + 1) if spans[token][0] < spans[token][1]]
        for part, token in enumerate(sharing, 1):
            labels[token] += label if len(sharing) == 1 else f"{label}⟨{part}/{len(sharing)}⟩"
    return labels


def _split_characters(text: bytes) -> Iterator[_Character]:
    position = 0
    while position < len(text):
        size = next((size for lowest_byte, high, size in _SIZES if lowest_byte <= text[position] <= high), 1)
        try:
            label = text[position : position + size].decode().replace(" ", WORD_START)
        except UnicodeDecodeError:
            label, size = f"<0x{text[position]:02X}>", 1
        yield _Character(label, position, position + size)
        position += size
