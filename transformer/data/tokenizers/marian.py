"""Marian's tokenizers: a SentencePiece model for each side, and one vocabulary (Junczys-Dowmunt et al. 2018)."""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import NonNegativeInt, UserError, convert_value, refuse_single_text
from transformer.data.tokenizers.token_text import WORD_START, TokenEncoding
from transformer.data.tokenizers.tokenizer import (
    EncodedTextWithOffsets,
    Tokenizer,
    save_special_token_roles,
    trim_at_end_token,
)
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import storage_of

_SOURCE, _TARGET, _VOCABULARY = "source.spm", "target.spm", "vocab.json"
_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"
_TAG = re.compile(r">>(.+)<<")


class MarianTokenizer(Tokenizer):
    """A tokenizer that encodes with the source's model and decodes with the target's.

    Marian has no begin token: the decoder reads the padding token first.

    Args:
        source: The SentencePiece model of the source.
        target: The SentencePiece model of the target.
        ids_by_piece: The vocabulary of both sides.

    Raises:
        UserError: If the vocabulary lacks a special token.
    """

    def __init__(self, source: bytes, target: bytes, ids_by_piece: Mapping[str, int]):
        for token in (_PAD, _END, _UNKNOWN):
            if token not in ids_by_piece:
                raise UserError(f"{_VOCABULARY} has no {token}: name the vocabulary of a Marian model")
        pad, end, self._unknown = (ids_by_piece[token] for token in (_PAD, _END, _UNKNOWN))
        super().__init__(pad_id=pad, bos_id=pad, eos_id=end, unk_id=self._unknown, mask_id=None)
        self.source, self.target, self.ids_by_piece = source, target, ids_by_piece
        self._pieces = {number: piece for piece, number in ids_by_piece.items()}

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
        numbers = json.dumps(dict(self.ids_by_piece), ensure_ascii=False).encode()
        for name, content in ((_SOURCE, self.source), (_TARGET, self.target), (_VOCABULARY, numbers)):
            storage_of(directory).replace(directory / name, content)
        save_special_token_roles(directory, {"sentencepiece": True, **self.ids_by_role})

    @property
    def vocab_size(self) -> int:
        return max(self.ids_by_piece.values()) + 1

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        special = (self.ids_by_piece[token] for token in (_PAD, _END, _UNKNOWN))
        return frozenset({*special, *self.ids_by_language.values()})

    @functools.cached_property
    def ids_by_language(self) -> Mapping[str, int]:
        return {match[1]: number for piece, number in self.ids_by_piece.items() if (match := _TAG.fullmatch(piece))}

    @property
    def token_encoding(self) -> TokenEncoding:
        return TokenEncoding.SPACES

    @property
    def drops_first_space(self) -> bool:
        return True

    @functools.cached_property
    def _source_processor(self) -> Any:
        return _load_processor(self.source, _SOURCE)

    @functools.cached_property
    def _target_processor(self) -> Any:
        return _load_processor(self.target, _TARGET)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode_pieces(self._source_processor, texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[EncodedTextWithOffsets]:
        """Refuse to tell which characters each token is of.

        Raises:
            UserError: Always.
        """
        raise UserError(
            "the run's tokenizer is one of SentencePiece, which does not tell the characters of a token: use one in "
            "tokenizer.json"
        )

    def unknown_parts(self, texts: Sequence[str]) -> list[str]:
        refuse_single_text(texts, "texts")
        encoded = self._source_processor.encode(list(texts), out_type=str)
        pieces = dict.fromkeys(piece for text_pieces in encoded for piece in text_pieces)
        return [piece.removeprefix(WORD_START) for piece in pieces if piece not in self.ids_by_piece]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode_pieces(self._target_processor, texts)

    def _encode_pieces(self, model: Any, texts: Sequence[str]) -> list[list[int]]:
        refuse_single_text(texts, "texts")
        encoded = model.encode(list(texts), out_type=str)
        return [[self.ids_by_piece.get(piece, self._unknown) for piece in pieces] for pieces in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        text_ids = [
            number for number in trim_at_end_token(ids, self.bos_id, self.eos_id) if number not in self.special_ids
        ]
        return self._target_processor.decode_pieces(self.pieces(text_ids)).strip()

    def continuation(self, before: Sequence[int], ids: Iterable[int]) -> str:
        text_ids = [
            [n for n in trim_at_end_token(sequence, self.bos_id, self.eos_id) if n not in self.special_ids]
            for sequence in (before, ids)
        ]
        text, full_text = (
            self._target_processor.decode_pieces(self.pieces(sequence))
            for sequence in (text_ids[0], [*text_ids[0], *text_ids[1]])
        )
        return full_text.removeprefix(text)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.get(int(number), _UNKNOWN) for number in ids]


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
