"""Rehearsals: a task over made-up data of the real shapes, for whoever compiles before there are data or devices."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from transformer.data.batches import EncodedPairs
from transformer.data.datasets.translation import Pair
from transformer.data.tokenizer import Tokenizer
from transformer.data.tokenizer_training import byte_tokenizer, token_of
from transformer.tasks.contract import Task
from transformer.tasks.text_data import Documents, TextConfig, TokenizerKind
from transformer.tasks.translation_data import Split, TranslationConfig, special_tokens

# An alphabet is known only once its text is read; an alphabet with digits and marks has rarely more characters.
CHARACTERS = 128


def made_up_tokenizer(vocabulary: int, roles: tuple[str, ...]) -> Tokenizer:
    """A tokenizer of exactly `vocabulary` tokens, numbers written out and special ones; nothing is trained."""
    words = {str(number): number for number in range(max(vocabulary - len(roles), 1))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([token_of(role) for role in roles])
    return Tokenizer(backend, **{role: backend.token_to_id(token_of(role)) for role in roles})


def made_up_documents(config: TextConfig, roles: tuple[str, ...]) -> tuple[Tokenizer, dict[str, Documents]]:
    """What `load_documents` returns, of the vocabulary that the config names and of a few rows of text."""
    # A text of several documents has an end token; whether there are several, the data alone could say.
    roles = (*roles, "end")
    match config.tokenizer:
        case TokenizerKind.BYTES:
            tokenizer = byte_tokenizer(roles)
        case TokenizerKind.CHARACTERS:
            tokenizer = made_up_tokenizer(CHARACTERS, roles)
        case TokenizerKind.BPE | TokenizerKind.GIVEN:
            tokenizer = made_up_tokenizer(config.vocabulary, roles)
    document = np.arange(config.context + 1, dtype=np.int32) % (tokenizer.vocabulary - len(roles))
    return tokenizer, {name: [document, document] for name in ("train", *config.evaluated)}


def made_up_splits(config: TranslationConfig) -> tuple[Tokenizer, dict[str, Split]]:
    """What `load_splits` returns: pairs that are all as long as the longest of `config.lengths`.

    All lengths have about the same positions a batch; of the longest attention has the most to do, and a batch that
    needs a row on every device the most positions.
    """
    tokenizer = made_up_tokenizer(config.vocabulary, ("pad", "begin", "end", "unknown"))
    special = special_tokens(tokenizer)
    words = np.arange(max(config.lengths) - 1) % max(tokenizer.vocabulary - 4, 1)
    sentence = " ".join(map(str, words))
    ids = np.array([*words, special.end], np.int32)
    count = max(config.probed, config.shown)
    language = config.languages[1] if config.languages else "target"
    encoded = EncodedPairs([ids] * count, [ids] * count, pad=special.pad, begin=special.begin)
    return tokenizer, {
        name: Split(name, [Pair(sentence, sentence, language)] * count, encoded)
        for name in ("train", config.validation, config.test)
    }


def abstract_batch(task: Task) -> Mapping[str, Any]:
    """The shapes and types of a training batch; of a rehearsed task, of its largest."""
    batch = task.source(0)[0]
    return {name: jax.ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype) for name, value in batch.items()}
