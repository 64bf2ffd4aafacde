"""Tokenizers of the `tokenizers` library, which are read from tokenizer.json."""

import functools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers

from transformer.config import UserError, refuse_single_text
from transformer.data.tokenizers.checked_backend import MAX_GROWTH, library_errors, without_stderr
from transformer.data.tokenizers.token_text import (
    WORD_START,
    TokenEncoding,
    byte_characters,
    detect_token_encoding,
    piece_bytes,
)
from transformer.data.tokenizers.tokenizer import (
    FILE,
    ID_FIELDS,
    EncodedTextWithOffsets,
    Tokenizer,
    save_special_token_roles,
    trim_at_end_token,
)
from transformer.storage.paths import storage_of

_MOST_BYTE_TOKENS = 2**9  # of a tokenizer of bytes, special ones included; a greater one is not looked at
_TRIAL_TEXTS = (
    " Hello, World! It's 3.50 $ for 12 \u201cr\u00e9sum\u00e9s\u201d\t(a-b_c@d.e)\r\n",
    "\u65e5\u672c\u8a9e \u0416 \u0e20 \ufdfa \ufb01 e\u0301 \u00a0\u200b\ufeff\u2028\ue000\U0001f600\x00\x7f",
    "",
)


class FastTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, with the numbers of its special tokens.

    Args:
        backend: The tokenizer of the library.
        pad_id: The padding token; None, as for the others, if there is none.
        bos_id: The begin token.
        eos_id: The end token.
        unk_id: The token of unknown text.
        mask_id: The mask token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        pad_id: int | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        unk_id: int | None = None,
        mask_id: int | None = None,
    ):
        super().__init__(pad_id=pad_id, bos_id=bos_id, eos_id=eos_id, unk_id=unk_id, mask_id=mask_id)
        self.backend = backend
        # "<end>" within a text is those characters; only the code can insert the token.
        backend.encode_special_tokens = True
        # Published files may enable either, which would silently truncate or pad texts.
        backend.no_truncation()
        backend.no_padding()
        # With dropout a text has other tokens whenever it is read.
        if rate := getattr(backend.model, "dropout", None):
            backend.model.dropout = None
            note = f"the tokenizer leaves out merges at random, dropout={rate:g}: this is off, for all texts"
            print(note, file=sys.stderr, flush=True)

    @staticmethod
    def from_roles(backend: tokenizers.Tokenizer, ids: Mapping[str, int | None]) -> "FastTokenizer":
        """Return a tokenizer whose special tokens are given by role, such as "pad"."""
        return FastTokenizer(backend, **{ID_FIELDS[role]: number for role, number in ids.items()})

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        roles = {number for number in self.ids_by_role.values() if number is not None}
        return frozenset(roles | {number for number, token in added.items() if token.special})

    @functools.cached_property
    def leading_ids(self) -> list[int]:
        encoded = self.backend.encode("", add_special_tokens=True).ids
        return [number for number in encoded[:1] if number == self.bos_id]

    @functools.cached_property
    def template_start_id(self) -> int | None:
        encoded = self.backend.encode("", add_special_tokens=True).ids
        return encoded[0] if encoded and encoded[0] != self.eos_id else None

    @functools.cached_property
    def token_encoding(self) -> TokenEncoding:
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
        refuse_single_text(texts, "texts")
        self._check_characters(texts)
        with library_errors():
            return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_to_arrays(self, texts: Sequence[str], dtype: npt.DTypeLike = np.int32) -> list[np.ndarray]:
        """Encode texts as `encode` does, into arrays; a tokenizer of bytes takes no more memory than these."""
        if self._ids_of_bytes is None:
            return super().encode_to_arrays(texts, dtype)
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
                        f"the tokenizer has no token for the character {first!r}, which its training text lacked, and "
                        "none for the unknown: leave it out, choose other data, or train a tokenizer with more text, "
                        "with bytes or with byte-level BPE"
                    )

    def encode_masked(self, text: str) -> list[int]:
        if self.mask_id is None:
            return super().encode_masked(text)
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

    def encode_chat(self, text: str) -> list[int]:
        with library_errors():
            return self._chat_reader.encode(text, add_special_tokens=False).ids

    @functools.cached_property
    def _chat_reader(self) -> tokenizers.Tokenizer:
        """The same tokenizer, except that a text can contain special tokens."""
        return tokenizers.Tokenizer.from_str(self.backend.to_str())

    def decode(self, ids: Iterable[int]) -> str:
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
        return [self.backend.id_to_token(int(number)) or "<unknown>" for number in ids]

    @functools.cached_property
    def ids_by_language(self) -> Mapping[str, int]:
        tags = ((token, number) for token, number in self.backend.get_vocab().items() if _is_language_tag(token))
        return {token[2:-1]: number for token, number in tags}

    @property
    def drops_first_space(self) -> bool:
        if self.token_encoding is TokenEncoding.SPACES:
            return self.backend.decoder.decode([f"{WORD_START}x"]) == "x"
        return self.token_encoding in (TokenEncoding.WORDS, TokenEncoding.JOINED)

    @functools.cached_property
    def _added_token_bytes(self) -> dict[int, bytes]:
        """The texts of added tokens, which are matched before a text is split."""
        return {number: token.content.encode() for number, token in self.backend.get_added_tokens_decoder().items()}

    def decode_token(self, number: int, piece: str) -> bytes:
        is_of_bytes = self.token_encoding in (TokenEncoding.BYTES, TokenEncoding.BYTE_WORD_ENDS)
        if is_of_bytes and number in self._added_token_bytes:
            return self._added_token_bytes[number]
        return piece_bytes(piece, self.token_encoding, self.backend.decoder)

    def save(self, directory: Path) -> None:
        storage_of(directory).replace(directory / FILE, self.backend.to_str(pretty=True).encode())
        save_special_token_roles(directory, self.ids_by_role)


def _trim_space(text: str, start: int, stop: int) -> tuple[int, int]:
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return start, stop


def _is_language_tag(token: str) -> bool:
    return token.startswith("<2") and token.endswith(">")
