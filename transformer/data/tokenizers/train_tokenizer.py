"""Train tokenizers on the run's training text: joint and byte-level byte-pair encoding, words, characters, bytes."""

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transformer.config import UserError, lookup_by_name, refuse_single_text
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.token_text import WORD_START, byte_characters
from transformer.data.tokenizers.tokenizer import ROLES, language_tag

_JOINT_ROLES = ("pad", "begin", "end", "unknown")
# A run of letters and digits, or one other character, with the space before it.
# How the unknown word of a vocabulary of words is written: as a word, since it stands for one.
UNKNOWN_WORD = f"{WORD_START}UNK"
_PIECE = rf"{WORD_START}?[\p{{L}}\p{{M}}\p{{N}}]+|{WORD_START}?[^\p{{L}}\p{{M}}\p{{N}}{WORD_START}]|{WORD_START}"


def special_token(role: str) -> str:
    """Return how the special token of a role is written.

    Raises:
        UserError: If the role is unknown.
    """
    lookup_by_name(role, dict.fromkeys(ROLES), "roles")
    return f"<{role}>"


def train_bpe(texts: Iterable[str], size: int, languages: Sequence[str] = ()) -> FastTokenizer:
    """Train joint byte-pair encoding (Sennrich et al. 2016), with a tag for each language.

    Words are split at spaces and around punctuation; no merge crosses either. Spaces are part of the pieces, so that
    decoding returns the text, except for white space at its ends.

    Args:
        texts: The training texts, of both sides.
        size: The largest number of tokens.
        languages: The target languages that have tags.

    Raises:
        TypeError: If `texts` or `languages` is a single text.
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
    return add_special_tokens(backend, _JOINT_ROLES)


def train_words(texts: Iterable[str], size: int, languages: Sequence[str] = ()) -> FastTokenizer:
    """Make a tokenizer of the most frequent words of some texts, with a tag for each language.

    Words are split at white space only. All others become one unknown word, which is decoded as "UNK".

    Args:
        texts: The training texts, of both sides.
        size: The largest number of tokens, special ones included.
        languages: The target languages that have tags.

    Raises:
        UserError: If `size` leaves no room for a word.
        TypeError: If `texts` or `languages` is a single text.

    Example:
        ```python
        from transformer.data.tokenizers.train_tokenizer import train_words

        tokenizer = train_words(["a dog", "a cat", "a dog"], size=6)
        (ids,) = tokenizer.encode(["a cat"])
        tokenizer.decode(ids)  # "a UNK"
        ```
    """
    refuse_single_text(texts, "texts")
    refuse_single_text(languages, "languages")
    roles = [role for role in _JOINT_ROLES if role != "unknown"]
    special = [*map(special_token, roles), *map(language_tag, languages)]
    if size <= len(special) + 1:
        raise UserError(f"size={size} must be above {len(special) + 1}, the special tokens of a vocabulary of words")
    counts = Counter(f"{WORD_START}{word}" for text in texts for word in text.split())
    # By frequency, then in the order of Unicode: the same texts in another order give the same tokenizer.
    words = sorted(counts.keys() - {UNKNOWN_WORD}, key=lambda word: (-counts[word], word))
    tokens = [*special, UNKNOWN_WORD, *words[: size - len(special) - 1]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_WORD))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=WORD_START, split=False)]
    )
    backend.decoder = decoders.Metaspace(replacement=WORD_START)
    backend.add_special_tokens(special)
    numbers = {role: vocabulary[special_token(role)] for role in roles}
    return FastTokenizer.from_roles(backend, numbers | {"unknown": vocabulary[UNKNOWN_WORD]})


def train_byte_bpe(texts: Iterable[str], size: int, roles: Sequence[str] = ("end",)) -> FastTokenizer:
    """Train byte-level byte-pair encoding (Radford et al. 2019, section 2.2); it can encode every text.

    The 256 bytes come first, then the merges, then the special tokens.

    Args:
        texts: The training texts.
        size: The largest number of tokens.
        roles: The roles of the special tokens.

    Raises:
        UserError: If `size` is less than the bytes and the special tokens.
        TypeError: If `texts` is a single text.

    Example:
        ```python
        from transformer.data.tokenizers.train_tokenizer import train_byte_bpe

        tokenizer = train_byte_bpe(["one text", "another text"], size=260)
        (ids,) = tokenizer.encode(["one text"])
        tokenizer.labels(ids)  # ["o", "n", "e", "▁tex", "t"]
        tokenizer.decode(ids)  # "one text"
        ```
    """
    refuse_single_text(texts, "texts")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    min_size = len(alphabet) + len(roles)
    if size < min_size:
        raise UserError(
            f"size={size} must be at least {min_size}: {len(alphabet)} bytes and {len(roles)} special tokens"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size - len(roles), initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return add_special_tokens(backend, roles)


def character_tokenizer(texts: Iterable[str], roles: Sequence[str] = ()) -> FastTokenizer:
    """Make a tokenizer with one token for every character of some texts.

    Characters are in the order of Unicode; special tokens follow.

    Args:
        texts: The texts.
        roles: The roles of the special tokens.

    Raises:
        UserError: If the texts have no character.
        TypeError: If `texts` is a single text.
    """
    refuse_single_text(texts, "texts")
    characters = sorted(set[str]().union(*texts))
    if not characters:
        raise UserError("the training text is empty, so it has no characters")
    vocabulary = {character: number for number, character in enumerate(characters)}
    # Byte-pair encoding without merges leaves single characters.
    unknown_token = special_token("unknown") if "unknown" in roles else None
    if unknown_token is not None:
        # The model's own unknown token must be in its vocabulary.
        vocabulary[unknown_token] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown_token))
    backend.decoder = decoders.Fuse()
    return add_special_tokens(backend, roles)


def byte_tokenizer(roles: Sequence[str] = ()) -> FastTokenizer:
    """Make a tokenizer of the 256 bytes of UTF-8, numbered by value, followed by special tokens; nothing is trained."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    # Without the expression that splits words, which would only take time.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return add_special_tokens(backend, roles)


def add_special_tokens(backend: tokenizers.Tokenizer, roles: Sequence[str]) -> FastTokenizer:
    """Make a tokenizer of a vocabulary and a special token for every role, appended if it lacks them.

    Args:
        backend: The vocabulary and how texts are split; it is changed.
        roles: The roles of the special tokens.

    Raises:
        TypeError: If `roles` is a single string.
    """
    refuse_single_text(roles, "roles")
    backend.add_special_tokens([special_token(role) for role in roles])
    return FastTokenizer.from_roles(backend, {role: backend.token_to_id(special_token(role)) for role in roles})
