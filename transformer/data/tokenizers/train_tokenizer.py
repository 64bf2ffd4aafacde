"""Tokenizers made from the run's own training text: joint and byte-level byte-pair encoding, characters, bytes."""

from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transformer.config import UserError, choice, refuse_single_text
from transformer.data.tokenizers.token_text import WORD_START, byte_characters
from transformer.data.tokenizers.tokenizer import ROLES, Tokenizer, language_tag

_JOINT_ROLES = ("pad", "begin", "end", "unknown")
# A run of letters and digits, or one other character, with the space before it.
_PIECE = rf"{WORD_START}?[\p{{L}}\p{{M}}\p{{N}}]+|{WORD_START}?[^\p{{L}}\p{{M}}\p{{N}}{WORD_START}]|{WORD_START}"


def special_token(role: str) -> str:
    """How the special token of a role is written.

    Raises:
        UserError: For what is no role.
    """
    choice(role, dict.fromkeys(ROLES), "roles")
    return f"<{role}>"


def train_bpe(texts: Iterable[str], size: int, languages: Sequence[str] = ()) -> Tokenizer:
    """Joint byte-pair encoding of at most `size` tokens (Sennrich et al. 2016), with a tag a language.

    Words are split at spaces and around punctuation; no merge crosses either. Spaces are part of the pieces,
    so that decoding gives the text back, but for white space at its ends.
    """
    refuse_single_text(texts, "texts")
    refuse_single_text(languages, "languages")
    special = [special_token(role) for role in _JOINT_ROLES]
    backend = tokenizers.Tokenizer(models.BPE(unk_token=special_token("unknown")))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=WORD_START, split=False),
            pre_tokenizers.Split(tokenizers.Regex(_PIECE), behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=WORD_START)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *map(language_tag, languages)], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return _with_roles(backend, _JOINT_ROLES)


def train_byte_bpe(texts: Iterable[str], size: int, roles: Sequence[str] = ("end",)) -> Tokenizer:
    """Byte-level byte-pair encoding of at most `size` tokens (Radford et al. 2019, section 2.2).

    The 256 bytes come first, then the merges, then the special tokens of `roles`; every text can be encoded.

    Raises:
        UserError: If `size` does not hold the bytes and the special tokens.
    """
    refuse_single_text(texts, "texts")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(alphabet) + len(roles)
    if size < least:
        raise UserError(f"size={size} must be at least {least}: {len(alphabet)} bytes and {len(roles)} special tokens")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size - len(roles), initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return _with_roles(backend, roles)


def character_tokenizer(texts: Iterable[str], roles: Sequence[str] = ()) -> Tokenizer:
    """One token for every character that the texts have, in the order of Unicode, then the tokens of `roles`.

    Raises:
        UserError: If the texts have no character.
    """
    refuse_single_text(texts, "texts")
    known = sorted(set[str]().union(*texts))
    if not known:
        raise UserError("the training text is empty, so it has no characters")
    vocabulary = {character: number for number, character in enumerate(known)}
    # Byte-pair encoding without merges leaves single characters.
    unknown = special_token("unknown") if "unknown" in roles else None
    if unknown is not None:
        # The model's own unknown token must be in its vocabulary.
        vocabulary[unknown] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    backend.decoder = decoders.Fuse()
    return _with_roles(backend, roles)


def byte_tokenizer(roles: Sequence[str] = ()) -> Tokenizer:
    """The 256 bytes of UTF-8, each its own number, then the tokens of `roles`; nothing is trained."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    # Without the expression that splits words, which would only take time.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _with_roles(backend, roles)


def _with_roles(backend: tokenizers.Tokenizer, roles: Sequence[str]) -> Tokenizer:
    """The tokenizer with a special token for every role, behind what it has if it lacks them."""
    refuse_single_text(roles, "roles")
    backend.add_special_tokens([special_token(role) for role in roles])
    return Tokenizer(backend, **{role: backend.token_to_id(special_token(role)) for role in roles})
