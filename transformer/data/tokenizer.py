"""Sub-word tokenizers: byte-pair encoding trained on the run's own training text."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transformer.config import UserError, nearest

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")
WORD_START = "▁"
# A run of letters and digits, or one other character, with the space before it.
_PIECE = rf"{WORD_START}?[\p{{L}}\p{{M}}\p{{N}}]+|{WORD_START}?[^\p{{L}}\p{{M}}\p{{N}}{WORD_START}]|{WORD_START}"


def tag(language: str) -> str:
    """The token that asks for a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Joint byte-pair encoding; spaces are part of the pieces, so that decoding gives the text back."""

    backend: tokenizers.Tokenizer

    def __post_init__(self) -> None:
        # A text that has "<end>" in it says those characters; only the code says the token.
        self.backend.encode_special_tokens = True

    @property
    def vocabulary(self) -> int:
        """The number of tokens, special ones included."""
        return self.backend.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of every text, without special tokens."""
        return [encoding.ids for encoding in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers up to the first end token; special tokens are left out."""
        kept: list[int] = []
        for number in ids:
            if number == END:
                break
            kept.append(int(number))
        return self.backend.decode(kept, skip_special_tokens=True).strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The tokens as they are written in the vocabulary."""
        return [self.backend.id_to_token(int(number)) or SPECIAL[UNKNOWN] for number in ids]

    @property
    def languages(self) -> list[str]:
        """The target languages that can be asked for; empty where there is only one."""
        return sorted(token[2:-1] for token in self.backend.get_vocab() if token.startswith("<2"))

    def tags(self, language: str) -> list[int]:
        """What to put before a source to ask for a target language: its tag, or nothing where there is only one.

        Errors: UserError when the tokenizer was trained with tags, but not with this one.
        """
        if not self.languages:
            return []
        number = self.backend.token_to_id(tag(language))
        if number is None:
            raise UserError(f"language={language!r} was not trained; {nearest(language, self.languages)}")
        return [number]

    def save(self, path: Path) -> None:
        """Write the tokenizer as one JSON file."""
        self.backend.save(str(path))

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Read what `save` wrote."""
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))


def word_indices(pieces: Sequence[str]) -> list[int]:
    """The index of the whitespace-separated word that each piece of a text belongs to."""
    words, current = [], -1
    for piece in pieces:
        current += piece.startswith(WORD_START)
        words.append(max(current, 0))
    return words


def train_bpe(texts: Iterable[str], size: int, languages: Sequence[str] = ()) -> Tokenizer:
    """Joint byte-pair encoding of at most `size` tokens (Sennrich et al. 2016), with a tag a language.

    Words are split at spaces and around punctuation; no merge crosses either.
    """
    backend = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=WORD_START, split=False),
            pre_tokenizers.Split(tokenizers.Regex(_PIECE), behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=WORD_START)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*SPECIAL, *map(tag, languages)], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)
