"""How tokenizers write text in their pieces: the bytes that every token adds to a text, and where words begin."""

import enum
import json
import re
from collections.abc import Iterator

import tokenizers

WORD_START = "▁"
_CONTINUES = "##"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Writing(enum.Enum):
    """What the characters of a piece mean."""

    BYTES = "bytes"
    """Each character stands for one byte (GPT-2)."""
    WORDS = "words"
    """A piece is a word behind a space, or the rest of one behind "##" (BERT)."""
    SPACES = "spaces"
    """"▁" is a space, "<0x0A>" a byte (SentencePiece)."""
    PLAIN = "plain"
    """The characters are the text."""


def writing_of(backend: tokenizers.Tokenizer) -> Writing:
    """How a tokenizer writes, known by its decoder."""
    if backend.decoder is None:
        return Writing.PLAIN
    stages = list(_stages(json.loads(backend.decoder.__getstate__())))
    kinds = {stage["type"] for stage in stages}
    if "ByteLevel" in kinds:
        return Writing.BYTES
    if "WordPiece" in kinds:
        return Writing.WORDS
    replaces_spaces = any(stage.get("pattern") == {"String": WORD_START} for stage in stages)
    return Writing.SPACES if "Metaspace" in kinds or replaces_spaces else Writing.PLAIN


def _stages(decoder: dict) -> Iterator[dict]:
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _stages(part)
    else:
        yield decoder


def byte_characters() -> list[str]:
    """The character that stands for each byte in GPT-2's vocabulary (Radford et al. 2019, section 2.2).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


def bytes_of(piece: str, writing: Writing) -> bytes:
    """The bytes that a piece adds to a text; a word's first piece brings the space before it."""
    if writing is Writing.BYTES:
        return b"".join(_BYTE_OF[c] if c in _BYTE_OF else c.encode() for c in piece)
    if writing is Writing.WORDS:
        return (piece.removeprefix(_CONTINUES) if piece.startswith(_CONTINUES) else f" {piece}").encode()
    if writing is Writing.SPACES:
        if byte := _BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace(WORD_START, " ").encode()
    return piece.encode()


_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}
