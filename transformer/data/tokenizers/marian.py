"""Marian's tokenizers: a SentencePiece model a side, and one vocabulary for both (Junczys-Dowmunt et al. 2018)."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import Count, UserError, convert, refuse_single_text
from transformer.data.tokenizers.token_text import TokenEncoding, label_tokens, piece_bytes
from transformer.data.tokenizers.tokenizer import ROLES, language_tags, save_roles, up_to_end
from transformer.json_files import read_object
from transformer.storage.paths import storage_of

_SOURCE, _TARGET, _VOCABULARY = "source.spm", "target.spm", "vocab.json"
_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"
_TAG = re.compile(r">>(.+)<<")


@dataclasses.dataclass(frozen=True)
class MarianTokenizer:
    """Encodes by the source's model, decodes by the target's; has the methods of `tokenizer.Tokenizer`.

    `source` and `target` are the bytes of the SentencePiece models; `numbers` are the tokens of both sides.
    """

    source: bytes = dataclasses.field(repr=False)
    target: bytes = dataclasses.field(repr=False)
    numbers: dict[str, int] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        for token in (_PAD, _END, _UNKNOWN):
            if token not in self.numbers:
                raise UserError(f"{_VOCABULARY} has no {token}: name the vocabulary of a Marian model")

    @staticmethod
    def open(folder: Path) -> "MarianTokenizer":
        """Read source.spm, target.spm and vocab.json.

        Raises:
            UserError: For files that are missing or damaged, and without the extra `sentencepiece`.
        """
        for name in (_SOURCE, _TARGET, _VOCABULARY):
            if not (folder / name).is_file():
                raise UserError(f"{folder} has no {name}, which a Marian tokenizer needs")
        if (folder / "target_vocab.json").is_file():
            raise UserError(f"{folder} has a vocabulary for each side; only Marian models with one for both are read")
        numbers = convert(Mapping[str, Count], read_object(folder / _VOCABULARY), str(folder / _VOCABULARY))
        opened = MarianTokenizer((folder / _SOURCE).read_bytes(), (folder / _TARGET).read_bytes(), numbers)
        for model, name in ((opened.source, _SOURCE), (opened.target, _TARGET)):
            _processor(model, str(folder / name))
        return opened

    def save(self, directory: Path) -> None:
        """Write the three files and the roles into a directory."""
        numbers = json.dumps(self.numbers, ensure_ascii=False).encode()
        for name, content in ((_SOURCE, self.source), (_TARGET, self.target), (_VOCABULARY, numbers)):
            storage_of(directory).replace(directory / name, content)
        save_roles(directory, {"sentencepiece": True} | {role: getattr(self, role) for role in ROLES})

    @property
    def vocabulary(self) -> int:
        """The number of tokens, special ones included."""
        return max(self.numbers.values()) + 1

    @property
    def pad(self) -> int:
        """Fills up a batch."""
        return self.numbers[_PAD]

    @property
    def begin(self) -> int:
        """What the decoder reads first: Marian has no token of its own for it."""
        return self.pad

    @property
    def end(self) -> int:
        """Ends a sentence."""
        return self.numbers[_END]

    @property
    def unknown(self) -> int:
        """Stands for a piece that the vocabulary lacks."""
        return self.numbers[_UNKNOWN]

    @property
    def mask(self) -> None:
        """Marian has no mask."""
        return None

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """The numbers of the tokens that stand for no text."""
        tags = (number for piece, number in self.numbers.items() if _TAG.fullmatch(piece))
        return frozenset({self.pad, self.end, self.unknown, *tags})

    @functools.cached_property
    def _pieces(self) -> dict[int, str]:
        return {number: piece for piece, number in self.numbers.items()}

    @functools.cached_property
    def _reader(self) -> Any:
        return _processor(self.source, _SOURCE)

    @functools.cached_property
    def _writer(self) -> Any:
        return _processor(self.target, _TARGET)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of every source text, without special tokens."""
        return self._numbers_of(self._reader, texts)

    def encode_masked(self, text: str) -> list[int]:
        """Token numbers of a source text: Marian has no mask that could stand in it."""
        return self.encode([text])[0]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of every target text, without special tokens."""
        return self._numbers_of(self._writer, texts)

    def _numbers_of(self, model: Any, texts: Sequence[str]) -> list[list[int]]:
        refuse_single_text(texts, "texts")
        encoded = model.encode(list(texts), out_type=str)
        return [[self.numbers.get(piece, self.unknown) for piece in pieces] for pieces in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """The target text of token numbers up to the first end token; special tokens are left out."""
        kept = [number for number in up_to_end(ids, self.begin, self.end) if number not in self.special]
        return self._writer.decode_pieces(self.pieces(kept)).strip()

    def continuation(self, before: Sequence[int], ids: Iterable[int]) -> str:
        """What token numbers behind others add to their target text, up to the first end token."""
        kept = [[n for n in up_to_end(each, self.begin, self.end) if n not in self.special] for each in (before, ids)]
        text, whole = (self._writer.decode_pieces(self.pieces(each)) for each in (kept[0], [*kept[0], *kept[1]]))
        return whole.removeprefix(text)

    @property
    def opening(self) -> list[int]:
        """Nothing stands before a text."""
        return []

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The tokens as they are written in the vocabulary."""
        return [self._pieces.get(int(number), _UNKNOWN) for number in ids]

    def labels(self, ids: Iterable[int]) -> list[str]:
        """The tokens of a text as a person reads them (transformer.data.tokenizers.token_text)."""
        numbers = [int(number) for number in ids]
        textless = self.special | (set(numbers) - self._pieces.keys())
        pieces = zip(numbers, self.pieces(numbers), strict=True)
        return label_tokens(
            [piece if n in textless else piece_bytes(piece, TokenEncoding.SPACES) for n, piece in pieces]
        )

    def token_bytes(self) -> list[bytes]:
        """The bytes that each token adds to a text, by token number: nothing for special tokens."""
        pieces = self.pieces(range(self.vocabulary))
        return [
            b"" if n in self.special else piece_bytes(piece, TokenEncoding.SPACES) for n, piece in enumerate(pieces)
        ]

    def first_bytes(self) -> list[bytes]:
        """The bytes that each token adds to an empty text: as `token_bytes`, less the space in front."""
        return [text.removeprefix(b" ") for text in self.token_bytes()]

    def word_starts(self) -> np.ndarray:
        """Whether each token begins a word [V]; special tokens are words of their own."""
        return np.array([n in self.special or text[:1].isspace() for n, text in enumerate(self.token_bytes())])

    @property
    def languages(self) -> list[str]:
        """The target languages that can be asked for; empty where there is only one."""
        return sorted(match[1] for piece in self.numbers if (match := _TAG.fullmatch(piece)))

    def tags(self, language: str) -> list[int]:
        """What to put before a source to ask for a target language, or nothing where there is only one.

        Raises:
            UserError: For a language that the model was not trained for.
        """
        return language_tags(language, self.languages, self.numbers.get(f">>{language}<<"))


def _processor(model: bytes, name: str) -> Any:
    """A SentencePiece model, ready to use.

    Raises:
        UserError: Without the extra `sentencepiece`, and for bytes that are no model.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError("Marian's tokenizer needs sentencepiece: pip install sentencepiece") from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(f"{name} is no SentencePiece model: {' '.join(str(error).split())[:200]}") from error
