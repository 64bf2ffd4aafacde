"""Tokenizers: text to token numbers and back, and the special tokens."""

import dataclasses
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers

from transformer.config import Range, UserError, refuse_single_text, suggest_nearest
from transformer.data.tokenizers.checked_backend import MAX_GROWTH, library_errors, without_stderr
from transformer.data.tokenizers.token_text import (
    CONTINUATION_PREFIX,
    WORD_START,
    TokenEncoding,
    byte_characters,
    detect_token_encoding,
    label_tokens,
    piece_bytes,
)
from transformer.storage.paths import storage_of

_MOST_BYTE_TOKENS = 2**9  # of a tokenizer of bytes, special ones included; a greater one is not looked at
_TRIAL_TEXTS = (
    " Hello, World! It's 3.50 $ for 12 \u201cr\u00e9sum\u00e9s\u201d\t(a-b_c@d.e)\r\n",
    "\u65e5\u672c\u8a9e \u0416 \u0e20 \ufdfa \ufb01 e\u0301 \u00a0\u200b\ufeff\u2028\ue000\U0001f600\x00\x7f",
    "",
)
_ID_FIELDS = {"pad": "pad_id", "begin": "bos_id", "end": "eos_id", "unknown": "unk_id", "mask": "mask_id"}

ROLES = tuple(_ID_FIELDS)
"""The roles of special tokens, as tokenizer_roles.json names them."""

FILE, ROLES_FILE = "tokenizer.json", "tokenizer_roles.json"


def language_tag(language: str) -> str:
    """Return the token that asks for a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


class EncodedTextWithOffsets(NamedTuple):
    """A text's tokens, and the characters that they are of.

    Attributes:
        ids: The token numbers.
        offsets: The first character of each token and the one after its last, without white space at either end; equal
            for a token of white space alone.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library with the numbers of its special tokens.

    BERT's [CLS] and [SEP] are `bos_id` and `eos_id`; in an encoder-decoder `bos_id` is the token that the decoder
    reads first.

    Attributes:
        backend: The tokenizer of the library.
        pad_id: The padding token; None, as for the others, if there is none.
        bos_id: The begin token.
        eos_id: The end token.
        unk_id: The token of unknown text.
        mask_id: The mask token.
    """

    backend: tokenizers.Tokenizer
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    mask_id: int | None = None

    def __post_init__(self) -> None:
        # "<end>" within a text is those characters; only the code can insert the token.
        self.backend.encode_special_tokens = True
        # Published files may enable either, which would silently truncate or pad texts.
        self.backend.no_truncation()
        self.backend.no_padding()
        # With dropout a text has other tokens whenever it is read.
        if rate := getattr(self.backend.model, "dropout", None):
            self.backend.model.dropout = None
            note = f"the tokenizer leaves out merges at random, dropout={rate:g}: this is off, for all texts"
            print(note, file=sys.stderr, flush=True)

    @staticmethod
    def from_roles(backend: tokenizers.Tokenizer, ids: Mapping[str, int | None]) -> "Tokenizer":
        """Return a tokenizer whose special tokens are given by role, such as "pad"."""
        return Tokenizer(backend, **{_ID_FIELDS[role]: number for role, number in ids.items()})

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return self.backend.get_vocab_size()

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """The numbers of the tokens that stand for no text."""
        added = self.backend.get_added_tokens_decoder()
        roles = {number for number in special_token_ids_by_role(self).values() if number is not None}
        return frozenset(roles | {number for number, token in added.items() if token.special})

    @functools.cached_property
    def leading_ids(self) -> list[int]:
        """The tokens that a published tokenizer puts before every text: its begin token, or none."""
        encoded = self.backend.encode("", add_special_tokens=True).ids
        return [number for number in encoded[:1] if number == self.bos_id]

    @functools.cached_property
    def token_encoding(self) -> TokenEncoding:
        """What the characters of a piece mean."""
        return detect_token_encoding(self.backend)

    @functools.cached_property
    def _encodable_characters(self) -> frozenset[str] | None:
        """The only characters that can be encoded; None if every text can."""
        if self.unk_id is not None or self.token_encoding is not TokenEncoding.PLAIN:
            return None
        pieces = self.backend.get_vocab().items()
        return frozenset(piece for piece, number in pieces if number not in self.special_ids)

    def try_encoding(self, folder: Path) -> None:
        """Encode and decode texts and pairs of all kinds of characters, as a check of a stranger's tokenizer.

        Args:
            folder: The folder that it is from, for the message.

        Raises:
            UserError: If the library fails, makes far more tokens than there are characters, or has none for any text.
        """
        texts = (
            _TRIAL_TEXTS
            if self._encodable_characters is None
            else ("".join(sorted(self._encodable_characters)[:100]), "")
        )
        try:
            if self.special_ids.issuperset(self.backend.get_vocab().values()):
                raise UserError("it has no token but special ones")
            with library_errors(), without_stderr():
                for text in texts:
                    for pair in (None, text):
                        ids = self.backend.encode(text, pair, add_special_tokens=True).ids
                        if len(ids) > MAX_GROWTH * (len(text.encode()) + 1):
                            raise UserError(f"it makes {len(ids):,} tokens of {len(text)} characters")
                        self.backend.decode(ids)
        except UserError as error:
            raise UserError(f"the tokenizer in {folder} cannot be used: {error}") from error

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
        refuse_single_text(texts, "texts")
        self._check_characters(texts)
        with library_errors():
            return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_to_arrays(self, texts: Sequence[str], dtype: npt.DTypeLike = np.int32) -> list[np.ndarray]:
        """Encode texts as `encode` does, into arrays; a tokenizer of bytes takes no more memory than these.

        Args:
            texts: The texts.
            dtype: The type of the token numbers.

        Returns:
            The token numbers of each text.
        """
        if self._ids_of_bytes is None:
            return [np.array(ids, dtype) for ids in self.encode(texts)]
        refuse_single_text(texts, "texts")
        ids_of_bytes = self._ids_of_bytes.astype(dtype)
        return [ids_of_bytes[np.frombuffer(text.encode(), np.uint8)] for text in texts]

    @functools.cached_property
    def _ids_of_bytes(self) -> np.ndarray | None:
        """The token of every byte, [256], where all tokens but special ones are single bytes; else None."""
        vocabulary = self.backend.get_vocab(with_added_tokens=False) if self.vocab_size <= _MOST_BYTE_TOKENS else {}
        splits = self.backend.pre_tokenizer
        if (
            vocabulary.keys() != set(byte_characters())
            or not isinstance(self.backend.model, tokenizers.models.BPE)
            or not isinstance(splits, tokenizers.pre_tokenizers.ByteLevel)
            or splits.add_prefix_space
            or self.backend.normalizer is not None
            or not all(token.special for token in self.backend.get_added_tokens_decoder().values())
        ):
            return None
        return np.array([vocabulary[character] for character in byte_characters()])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[EncodedTextWithOffsets]:
        """Encode texts without special tokens, and tell which characters each token is of.

        Args:
            texts: The texts.

        Raises:
            UserError: If a character has no token, and there is no token for unknown text.
        """
        self._check_characters(texts)
        with library_errors():
            encoded = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            EncodedTextWithOffsets(encoding.ids, [_trim_space(text, *pair) for pair in encoding.offsets])
            for text, encoding in zip(texts, encoded, strict=True)
        ]

    def _check_characters(self, texts: Sequence[str]) -> None:
        """Check that all characters can be encoded.

        Raises:
            UserError: If a character has no token.
        """
        if self._encodable_characters is not None:
            for text in texts:
                if foreign := set(text) - self._encodable_characters:
                    first = min(foreign, key=text.index)
                    raise UserError(
                        f"the character {first!r} was not in the training text and the tokenizer has no token "
                        "for the unknown: leave it out, or train with more text, with bytes or with byte-level BPE"
                    )

    def encode_masked(self, text: str) -> list[int]:
        """Encode a text in which the mask token's name stands for that token.

        Whether white space around the name belongs to it depends on the tokenizer; RoBERTa's takes that in front.
        """
        if self.mask_id is None:
            return self.encode([text])[0]
        self._check_characters(text.split(self.backend.id_to_token(self.mask_id)))
        with library_errors():
            return self._mask_reader.encode(text, add_special_tokens=False).ids

    @functools.cached_property
    def _mask_reader(self) -> tokenizers.Tokenizer:
        """The same tokenizer, except that a text can contain the mask token."""
        described = json.loads(self.backend.to_str())
        for token in described["added_tokens"]:
            token["special"] &= token["id"] != self.mask_id
        reader = tokenizers.Tokenizer.from_str(json.dumps(described))
        reader.encode_special_tokens = True
        return reader

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode the target side of a translation; as `encode`, since both sides have one vocabulary."""
        return self.encode(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode token numbers up to the first end token, without special tokens."""
        text = self.backend.decode(trim_at_end_token(ids, self.bos_id, self.eos_id), skip_special_tokens=True)
        # With Metaspace the first piece of every word adds a space; a text has none at its start.
        return text.strip() if isinstance(self.backend.decoder, tokenizers.decoders.Metaspace) else text

    @property
    def is_word_level(self) -> bool:
        """Whether every token is a whole word."""
        return isinstance(self.backend.model, tokenizers.models.WordLevel)

    def token_texts(self, text: str) -> list[str]:
        """Return the part of a text that each token of `encode` stands for, also where that is the unknown token."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return [text[start:end] for start, end in encoding.offsets]

    def decode_words(self, ids: Sequence[int], unknown: Mapping[int, str]) -> str:
        """As `decode`, with words of one's own in place of unknown ones, for a tokenizer of whole words.

        Args:
            ids: The token numbers, without a begin token.
            unknown: What to write at a position of `ids` that has the unknown token.
        """
        start = WORD_START if isinstance(self.backend.decoder, tokenizers.decoders.Metaspace) else ""
        numbered_ids = enumerate(trim_at_end_token(ids, None, self.eos_id))
        pieces = [
            f"{start}{unknown[place]}" if place in unknown else piece
            for place, number, piece in ((place, number, self.pieces([number])[0]) for place, number in numbered_ids)
            if number == self.unk_id or number not in self.special_ids
        ]
        decoder = self.backend.decoder
        return (" ".join(pieces) if decoder is None else decoder.decode(pieces)).strip()

    def continuation(self, before: Sequence[int], ids: Iterable[int]) -> str:
        """Return the text that token numbers add after others, up to the first end token.

        Both are decoded together: alone, the first would lose the space before it.

        Args:
            before: The tokens before.
            ids: The tokens that continue them.
        """
        text_ids = trim_at_end_token(ids, None, self.eos_id)
        text, full_text = (
            self.backend.decode(sequence, skip_special_tokens=True) for sequence in (before, [*before, *text_ids])
        )
        if full_text.startswith(text):
            return full_text[len(text) :]
        # An incomplete character changes how the bytes before it are decoded.
        token_bytes = self.token_bytes()
        return b"".join(token_bytes[number] for number in text_ids).decode(errors="replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens as written in the vocabulary."""
        return [self.backend.id_to_token(int(number)) or "<unknown>" for number in ids]

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
        return label_tokens([piece if n in textless else self._decode_token(n, piece) for n, piece in numbered])

    @functools.cached_property
    def _added_token_bytes(self) -> dict[int, bytes]:
        """The texts of added tokens, which are matched before a text is split."""
        return {number: token.content.encode() for number, token in self.backend.get_added_tokens_decoder().items()}

    def _decode_token(self, number: int, piece: str) -> bytes:
        if self.token_encoding is TokenEncoding.BYTES and number in self._added_token_bytes:
            return self._added_token_bytes[number]
        return piece_bytes(piece, self.token_encoding, self.backend.decoder)

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
            b"" if number in self.special_ids else self._decode_token(number, piece) for number, piece in pieces
        )

    def first_bytes(self) -> list[bytes]:
        """Return the bytes that each token adds to an empty text: `token_bytes` without a dropped leading space."""
        decoder, writing = self.backend.decoder, self.token_encoding
        drops = writing in (TokenEncoding.WORDS, TokenEncoding.JOINED)
        drops |= writing is TokenEncoding.SPACES and decoder.decode([f"{WORD_START}x"]) == "x"
        return [text.removeprefix(b" ") if drops else text for text in self._token_bytes]

    def word_starts(self) -> np.ndarray:
        """Return whether each token begins a word, [V].

        It does if it brings white space; special tokens are words of their own.

        Raises:
            UserError: If the tokenizer marks where words end instead of where they begin.
        """
        if self.token_encoding is TokenEncoding.WORD_ENDS:
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
        return sorted(token[2:-1] for token in self.backend.get_vocab() if _is_language_tag(token))

    def language_tag_ids(self, language: str) -> list[int]:
        """Return the tokens to put before a source to ask for a target language.

        Returns:
            The tag of the language; none if there is only one language.

        Raises:
            UserError: If the tokenizer has tags, but not this one.
        """
        return language_tags(language, self.languages, self.backend.token_to_id(language_tag(language)))

    def save(self, directory: Path) -> None:
        """Write the tokenizer into a directory: `tokenizer.json`, and the roles of its special tokens."""
        storage_of(directory).replace(directory / FILE, self.backend.to_str(pretty=True).encode())
        save_special_token_roles(directory, special_token_ids_by_role(self))


def _trim_space(text: str, start: int, stop: int) -> tuple[int, int]:
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return start, stop


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


def language_tags(language: str, known_languages: Sequence[str], number: int | None) -> list[int]:
    """Return the tokens that ask for a language.

    Args:
        language: The language.
        known_languages: The known languages; empty if there is only one.
        number: The number of the language's tag; None if there is no tag.

    Raises:
        UserError: If the language is not known.
    """
    if not known_languages:
        return []
    if number is None:
        raise UserError(f"language={language!r} was not trained; {suggest_nearest(language, known_languages)}")
    return [number]


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


def special_token_ids_by_role(tokenizer: Any) -> dict[str, int | None]:
    """Return the id of each special token of a tokenizer by role, as tokenizer_roles.json has them; None for none."""
    return {role: getattr(tokenizer, field) for role, field in _ID_FIELDS.items()}


def save_special_token_roles(directory: Path, roles: dict) -> None:
    """Write the roles, the last of a tokenizer's files: if this file exists, all do."""
    storage_of(directory).replace(directory / ROLES_FILE, f"{json.dumps(roles, indent=1)}\n".encode())


def count_special_tokens(tokenizer: Any, texts: Iterable[str]) -> dict[str, int]:
    """Count how often texts have the characters of each special token, which are not read as that token."""
    pattern = special_token_pattern(tokenizer)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pattern.findall(text))
    return dict(counts.most_common())


def special_token_pattern(tokenizer: Any) -> re.Pattern[str]:
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


def _is_language_tag(token: str) -> bool:
    return token.startswith("<2") and token.endswith(">")
