"""Marian's tokenizers: a SentencePiece model for each side, and one vocabulary (Junczys-Dowmunt et al. 2018)."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer.config import NonNegativeInt, UserError, convert_value, refuse_single_text
from transformer.data.tokenizers.token_text import TokenEncoding, label_tokens, piece_bytes
from transformer.data.tokenizers.tokenizer import (
    EncodedTextWithOffsets,
    language_tags,
    save_special_token_roles,
    special_token_ids_by_role,
    trim_at_end_token,
)
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import storage_of

_SOURCE, _TARGET, _VOCABULARY = "source.spm", "target.spm", "vocab.json"
_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"
_TAG = re.compile(r">>(.+)<<")


@dataclasses.dataclass(frozen=True)
class MarianTokenizer:
    """A tokenizer that encodes with the source's model and decodes with the target's.

    It has the methods of transformer.data.tokenizers.tokenizer.Tokenizer.

    Attributes:
        source: The SentencePiece model of the source.
        target: The SentencePiece model of the target.
        ids_by_piece: The vocabulary of both sides.

    Raises:
        UserError: If the vocabulary lacks a special token.
    """

    source: bytes = dataclasses.field(repr=False)
    target: bytes = dataclasses.field(repr=False)
    ids_by_piece: dict[str, int] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        for token in (_PAD, _END, _UNKNOWN):
            if token not in self.ids_by_piece:
                raise UserError(f"{_VOCABULARY} has no {token}: name the vocabulary of a Marian model")

    @staticmethod
    def open(folder: Path) -> "MarianTokenizer":
        """Read source.spm, target.spm and vocab.json.

        Raises:
            UserError: If files are missing or damaged, or sentencepiece is not installed.
        """
        for name in (_SOURCE, _TARGET, _VOCABULARY):
            if not (folder / name).is_file():
                raise UserError(f"{folder} has no {name}, which a Marian tokenizer needs")
        if (folder / "target_vocab.json").is_file():
            raise UserError(f"{folder} has a vocabulary for each side; only Marian models with one for both are read")
        numbers = convert_value(
            Mapping[str, NonNegativeInt], read_json_object(folder / _VOCABULARY), str(folder / _VOCABULARY)
        )
        opened = MarianTokenizer((folder / _SOURCE).read_bytes(), (folder / _TARGET).read_bytes(), numbers)
        for model, name in ((opened.source, _SOURCE), (opened.target, _TARGET)):
            _load_processor(model, str(folder / name))
        return opened

    def save(self, directory: Path) -> None:
        """Write the three files and the roles into a directory."""
        numbers = json.dumps(self.ids_by_piece, ensure_ascii=False).encode()
        for name, content in ((_SOURCE, self.source), (_TARGET, self.target), (_VOCABULARY, numbers)):
            storage_of(directory).replace(directory / name, content)
        save_special_token_roles(directory, {"sentencepiece": True} | special_token_ids_by_role(self))

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return max(self.ids_by_piece.values()) + 1

    @property
    def pad_id(self) -> int:
        """The padding token."""
        return self.ids_by_piece[_PAD]

    @property
    def bos_id(self) -> int:
        """The token that the decoder reads first: padding, as Marian has no begin token."""
        return self.pad_id

    @property
    def eos_id(self) -> int:
        """The end token."""
        return self.ids_by_piece[_END]

    @property
    def unk_id(self) -> int:
        """The token of a piece that the vocabulary lacks."""
        return self.ids_by_piece[_UNKNOWN]

    @property
    def mask_id(self) -> None:
        """None: there is no mask token."""
        return None

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """The numbers of the tokens that stand for no text."""
        tags = (number for piece, number in self.ids_by_piece.items() if _TAG.fullmatch(piece))
        return frozenset({self.pad_id, self.eos_id, self.unk_id, *tags})

    @functools.cached_property
    def _pieces(self) -> dict[int, str]:
        return {number: piece for piece, number in self.ids_by_piece.items()}

    @functools.cached_property
    def _source_processor(self) -> Any:
        return _load_processor(self.source, _SOURCE)

    @functools.cached_property
    def _target_processor(self) -> Any:
        return _load_processor(self.target, _TARGET)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode source texts without special tokens."""
        return self._encode_pieces(self._source_processor, texts)

    def encode_to_arrays(self, texts: Sequence[str], dtype: npt.DTypeLike = np.int32) -> list[np.ndarray]:
        """Encode source texts without special tokens, into arrays."""
        return [np.array(ids, dtype) for ids in self.encode(texts)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[EncodedTextWithOffsets]:
        """Refuse to tell which characters each token is of.

        Raises:
            UserError: Always.
        """
        raise UserError(
            "the run's tokenizer is one of SentencePiece, which does not tell the characters of a token: use one in "
            "tokenizer.json"
        )

    def encode_masked(self, text: str) -> list[int]:
        """Encode a source text; there is no mask token that it could contain."""
        return self.encode([text])[0]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode target texts without special tokens."""
        return self._encode_pieces(self._target_processor, texts)

    def _encode_pieces(self, model: Any, texts: Sequence[str]) -> list[list[int]]:
        refuse_single_text(texts, "texts")
        encoded = model.encode(list(texts), out_type=str)
        return [[self.ids_by_piece.get(piece, self.unk_id) for piece in pieces] for pieces in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode token numbers to a target text up to the first end token, without special tokens."""
        text_ids = [
            number for number in trim_at_end_token(ids, self.bos_id, self.eos_id) if number not in self.special_ids
        ]
        return self._target_processor.decode_pieces(self.pieces(text_ids)).strip()

    def continuation(self, before: Sequence[int], ids: Iterable[int]) -> str:
        """Return the target text that token numbers add after others, up to the first end token."""
        text_ids = [
            [n for n in trim_at_end_token(sequence, self.bos_id, self.eos_id) if n not in self.special_ids]
            for sequence in (before, ids)
        ]
        text, full_text = (
            self._target_processor.decode_pieces(self.pieces(sequence))
            for sequence in (text_ids[0], [*text_ids[0], *text_ids[1]])
        )
        return full_text.removeprefix(text)

    @property
    def leading_ids(self) -> list[int]:
        """The tokens before every text: none."""
        return []

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens as written in the vocabulary."""
        return [self._pieces.get(int(number), _UNKNOWN) for number in ids]

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Return readable labels of a text's tokens (transformer.data.tokenizers.token_text)."""
        numbers = [int(number) for number in ids]
        textless = self.special_ids | (set(numbers) - self._pieces.keys())
        pieces = zip(numbers, self.pieces(numbers), strict=True)
        return label_tokens(
            [piece if n in textless else piece_bytes(piece, TokenEncoding.SPACES) for n, piece in pieces]
        )

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each token adds to a text, by token number; none for special tokens."""
        pieces = self.pieces(range(self.vocab_size))
        return [
            b"" if n in self.special_ids else piece_bytes(piece, TokenEncoding.SPACES) for n, piece in enumerate(pieces)
        ]

    def first_bytes(self) -> list[bytes]:
        """Return the bytes that each token adds to an empty text: `token_bytes` without a leading space."""
        return [text.removeprefix(b" ") for text in self.token_bytes()]

    def word_starts(self) -> np.ndarray:
        """Return whether each token begins a word, [V]; special tokens are words of their own."""
        return np.array([n in self.special_ids or text[:1].isspace() for n, text in enumerate(self.token_bytes())])

    @property
    def languages(self) -> list[str]:
        """The target languages that can be asked for; empty if there is only one."""
        return sorted(match[1] for piece in self.ids_by_piece if (match := _TAG.fullmatch(piece)))

    def language_tag_ids(self, language: str) -> list[int]:
        """Return the tokens before a source that ask for a target language; none if there is only one language.

        Raises:
            UserError: If the model was not trained for the language.
        """
        return language_tags(language, self.languages, self.ids_by_piece.get(f">>{language}<<"))


def _load_processor(model: bytes, name: str) -> Any:
    """Return a SentencePiece model, ready to use.

    Raises:
        UserError: If sentencepiece is not installed, or the bytes are not a model.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError("Marian's tokenizer needs sentencepiece: pip install sentencepiece") from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(f"{name} is no SentencePiece model: {' '.join(str(error).split())[:200]}") from error
