"""Tokenizers: text to token numbers and back, and the special tokens."""

import abc
import dataclasses
import functools
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from transformer.config import Range, UserError, suggest_nearest
from transformer.data.tokenizers.token_text import (
    CONTINUATION_PREFIX,
    WORD_START,
    TokenEncoding,
    label_tokens,
    piece_bytes,
)
from transformer.storage.paths import storage_of

ID_FIELDS = {"pad": "pad_id", "begin": "bos_id", "end": "eos_id", "unknown": "unk_id", "mask": "mask_id"}
"""The attribute of a tokenizer that has the token of each role."""

ROLES = tuple(ID_FIELDS)
"""The roles of special tokens, as tokenizer_roles.json names them."""

_SHOWN_PARTS = 10  # in a warning

FILE, ROLES_FILE = "tokenizer.json", "tokenizer_roles.json"


def language_tag(language: str) -> str:
    """Return the token that asks for a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


class UnknownTextWarning(UserWarning):
    """A text for a trained model has parts that its vocabulary lacks."""


class EncodedTextWithOffsets(NamedTuple):
    """A text's tokens, and the characters that they are of.

    Attributes:
        ids: The token numbers.
        offsets: The first character of each token and the one after its last, without white space at either end; equal
            for a token of white space alone.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer(abc.ABC):
    """Text to token numbers and back.

    BERT's [CLS] and [SEP] are `bos_id` and `eos_id`; in an encoder-decoder `bos_id` is the token that the decoder
    reads first. Texts cannot contain special tokens: their names in a text are plain characters.

    Args:
        pad_id: The padding token; None, as for the others, if there is none.
        bos_id: The begin token.
        eos_id: The end token.
        unk_id: The token of unknown text.
        mask_id: The mask token.
    """

    def __init__(
        self, *, pad_id: int | None, bos_id: int | None, eos_id: int | None, unk_id: int | None, mask_id: int | None
    ):
        self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.mask_id = pad_id, bos_id, eos_id, unk_id, mask_id

    @property
    def ids_by_role(self) -> dict[str, int | None]:
        """The special token of each role, as tokenizer_roles.json has them; None for none."""
        return {role: getattr(self, field) for role, field in ID_FIELDS.items()}

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""

    @property
    @abc.abstractmethod
    def special_ids(self) -> frozenset[int]:
        """The numbers of the tokens that stand for no text."""

    @property
    def leading_ids(self) -> list[int]:
        """The tokens that a published tokenizer puts before every text: its begin token, or none."""
        return []

    @property
    def template_start_id(self) -> int | None:
        """The token that a published tokenizer puts first before every text, its begin token or not; None for none."""
        return None

    @property
    @abc.abstractmethod
    def token_encoding(self) -> TokenEncoding:
        """What the characters of a piece mean."""

    @property
    @abc.abstractmethod
    def drops_first_space(self) -> bool:
        """Whether the leading space of a text's first token is not written."""

    @property
    @abc.abstractmethod
    def ids_by_language(self) -> Mapping[str, int]:
        """The token that asks for each target language; empty if there is only one language."""

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts without special tokens.

        Args:
            texts: The texts.

        Returns:
            The token numbers of each text.

        Raises:
            UserError: If a character has no token, and there is no token for unknown text.
            TypeError: If `texts` is a single text.
        """

    def encode_to_arrays(self, texts: Sequence[str], dtype: npt.DTypeLike = np.int32) -> list[np.ndarray]:
        """Encode texts as `encode` does, into arrays of a type."""
        return [np.array(ids, dtype) for ids in self.encode(texts)]

    @abc.abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> list[EncodedTextWithOffsets]:
        """Encode texts without special tokens, and tell which characters each token is of.

        Raises:
            UserError: If a character has no token, or the tokenizer does not tell the characters.
        """

    def unknown_parts(self, texts: Sequence[str]) -> list[str]:
        """Return the different parts of texts that have no token, in their order: the unknown token stands for them."""
        parts = (
            text[start:end]
            for text, encoded in zip(texts, self.encode_with_offsets(texts), strict=True)
            for number, (start, end) in zip(*encoded, strict=True)
            if number == self.unk_id
        )
        return list(dict.fromkeys(parts))

    def warn_of_unknown_parts(self, texts: Sequence[str]) -> None:
        """Warn once of the parts of texts that have no token, if there are any."""
        if self.unk_id is not None and (parts := self.unknown_parts(texts)):
            parts_text = ", ".join(map(repr, parts[:_SHOWN_PARTS])) + (" ..." if len(parts) > _SHOWN_PARTS else "")
            (unknown,) = self.pieces([self.unk_id])
            warnings.warn(f"the vocabulary lacks {parts_text}: the model reads {unknown} there", UnknownTextWarning, 3)

    def encode_masked(self, text: str) -> list[int]:
        """Encode a text in which the mask token's name, if there is one, stands for that token.

        Whether white space around the name belongs to it depends on the tokenizer; RoBERTa's takes that in front.
        """
        return self.encode([text])[0]

    def encode_chat(self, text: str) -> list[int]:
        """Encode a text that a chat template has written, in which the names of special tokens stand for these tokens.

        Raises:
            UserError: If the tokenizer cannot tell them from text.
        """
        raise UserError("chat templates need a tokenizer that is read from tokenizer.json or the like")

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode the target side of a translation; as `encode`, unless each side has a model of its own."""
        return self.encode(texts)

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Decode token numbers up to the first end token, without special tokens."""

    @abc.abstractmethod
    def continuation(self, before: Sequence[int], ids: Iterable[int]) -> str:
        """Return the text that token numbers add after others, up to the first end token.

        Both are decoded together: alone, the first would lose the space before it.

        Args:
            before: The tokens before.
            ids: The tokens that continue them.
        """

    @abc.abstractmethod
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens as written in the vocabulary."""

    def decode_token(self, number: int, piece: str) -> bytes:
        """Return the bytes that a token, not a special one, adds within a text."""
        return piece_bytes(piece, self.token_encoding)

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Return readable labels of a text's tokens, alike for all tokenizers (transformer.data.tokenizers.token_text).

        Pieces that are plain text stay as they are.
        """
        numbers = [int(number) for number in ids]
        pieces = self.pieces(numbers)
        if self.token_encoding is TokenEncoding.PLAIN:
            return pieces
        # Numbers beyond the vocabulary have no text either.
        textless = self.special_ids | {number for number in numbers if number >= self.vocab_size}
        numbered = zip(numbers, pieces, strict=True)
        return label_tokens([piece if n in textless else self.decode_token(n, piece) for n, piece in numbered])

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each token adds within a text, by token number; none for special tokens.

        They are exact for byte-level BPE, bytes and characters; for a tokenizer that drops spaces or case they are
        those of the decoded text, with the spaces between words.
        """
        return list(self._token_bytes)

    @functools.cached_property
    def _token_bytes(self) -> tuple[bytes, ...]:
        pieces = enumerate(self.pieces(range(self.vocab_size)))
        return tuple(
            b"" if number in self.special_ids else self.decode_token(number, piece) for number, piece in pieces
        )

    def first_bytes(self) -> list[bytes]:
        """Return the bytes that each token adds to an empty text: `token_bytes` without a dropped leading space."""
        return [text.removeprefix(b" ") if self.drops_first_space else text for text in self._token_bytes]

    def word_starts(self) -> np.ndarray:
        """Return whether each token begins a word, [V].

        It does if it brings white space; special tokens are words of their own.

        Raises:
            UserError: If the tokenizer marks where words end instead of where they begin.
        """
        if self.token_encoding.marks_word_ends:
            raise UserError("the tokenizer marks where words end, not where they begin: whole words cannot be told")
        if self.token_encoding is TokenEncoding.WORDS:
            # A full stop is a word although it adds no space.
            starts = [not piece.startswith(CONTINUATION_PREFIX) for piece in self.pieces(range(self.vocab_size))]
        else:
            starts = [text[:1].isspace() for text in self._token_bytes]
        return np.array([n in self.special_ids or start for n, start in enumerate(starts)])

    @property
    def languages(self) -> list[str]:
        """The target languages that can be asked for; empty if there is only one."""
        return sorted(self.ids_by_language)

    def language_tag_ids(self, language: str) -> list[int]:
        """Return the tokens to put before a source to ask for a target language.

        Returns:
            The tag of the language; none if there is only one language.

        Raises:
            UserError: If the tokenizer has tags, but not this one.
        """
        if not self.ids_by_language:
            return []
        if language not in self.ids_by_language:
            raise UserError(f"language={language!r} was not trained; {suggest_nearest(language, self.languages)}")
        return [self.ids_by_language[language]]

    @abc.abstractmethod
    def save(self, directory: Path) -> None:
        """Write the tokenizer's files and the roles of its special tokens into a directory."""


def trim_at_end_token(ids: Iterable[int], begin: int | None, end: int | None) -> list[int]:
    """Return the numbers up to the first end token, without a leading begin token; GPT-2 has one token for both."""
    trimmed: list[int] = []
    for position, number in enumerate(ids):
        if position == 0 and number == begin:
            continue
        if number == end:
            break
        trimmed.append(int(number))
    return trimmed


TokenNumber = Annotated[int, Range(0, 2**24)]


@dataclasses.dataclass(frozen=True)
class RolesFile:
    """The content of tokenizer_roles.json: the numbers of special tokens, and whether the tokenizer is Marian's."""

    pad: TokenNumber | None = None
    begin: TokenNumber | None = None
    end: TokenNumber | None = None
    unknown: TokenNumber | None = None
    mask: TokenNumber | None = None
    sentencepiece: bool = False


def save_special_token_roles(directory: Path, roles: Mapping[str, int | bool | None]) -> None:
    """Write the roles, the last of a tokenizer's files: if this file exists, all do."""
    storage_of(directory).replace(directory / ROLES_FILE, f"{json.dumps(roles, indent=1)}\n".encode())


def count_special_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, int]:
    """Count how often texts have the characters of each special token, which are not read as that token."""
    pattern = special_token_pattern(tokenizer)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pattern.findall(text))
    return dict(counts.most_common())


def special_token_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return the pattern of the characters of any special token, the longest first; it matches nothing without one."""
    names = {name for name in tokenizer.pieces(sorted(tokenizer.special_ids)) if name}
    return re.compile("|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name)))) or "(?!)")


def note_special_token_counts(counts: Mapping[str, int], text: str) -> None:
    """Print how often a text, such as "the training text", has the characters of special tokens, if it does."""
    if counts:
        names = ", ".join(f"{name} {count:,} times" for name, count in list(counts.items())[:5])
        print(
            f"{text} has {names}: these are read as plain characters, not as special tokens",
            file=sys.stderr,
            flush=True,
        )


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a tokenizer that `save` has written."""
    return (directory / ROLES_FILE).is_file()


def word_indices(pieces: Sequence[str]) -> list[int]:
    """Return the index of the whitespace-separated word that each piece of a text belongs to."""
    words, current = [], -1
    for piece in pieces:
        current += piece.startswith(WORD_START)
        words.append(max(current, 0))
    return words
