"""Synthetic tasks: made-up data of the real shapes, to compile programs before data or devices are ready."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from transformer.data.batches import EncodedPairs
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer, special_token
from transformer.tasks.task import Task
from transformer.tasks.text_data import Documents, TextConfig, TokenizerKind
from transformer.tasks.translation_data import TranslationConfig, TranslationSplit, special_tokens

# Rarely has a text with digits and marks more characters; the real number is known only once the text is read.
CHARACTERS = 128


def synthetic_tokenizer(vocabulary: int, roles: tuple[str, ...]) -> Tokenizer:
    """An untrained tokenizer of exactly `vocabulary` tokens: the numbers from 0, and the special tokens of `roles`."""
    words = {str(number): number for number in range(max(vocabulary - len(roles), 1))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([special_token(role) for role in roles])
    return Tokenizer(backend, **{role: backend.token_to_id(special_token(role)) for role in roles})


def synthetic_tokenizer_of_kind(kind: TokenizerKind, vocabulary: int, roles: tuple[str, ...]) -> Tokenizer:
    """Stands in for `open_tokenizer`: an untrained tokenizer of about the size that this kind will have."""
    match kind:
        case TokenizerKind.BYTES:
            return byte_tokenizer(roles)
        case TokenizerKind.CHARACTERS:
            return synthetic_tokenizer(CHARACTERS, roles)
        case TokenizerKind.BPE | TokenizerKind.GIVEN:
            return synthetic_tokenizer(vocabulary, roles)


def synthetic_documents(
    config: TextConfig, roles: tuple[str, ...], *, texts: int = 1
) -> tuple[Tokenizer, dict[str, Documents]]:
    """Stands in for `load_documents`: the vocabulary that the config gives, and two made-up documents a split.

    Each holds `texts` of `config.context` tokens that follow one another, with their labels.
    """
    # The real text may have several documents, which need an end token.
    roles = tuple(dict.fromkeys((*roles, "end")))
    tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocabulary, roles)
    document = np.arange(texts * config.context + 1, dtype=np.int32) % (tokenizer.vocabulary - len(roles))
    return tokenizer, {name: [document, document] for name in ("train", *config.eval_splits)}


def synthetic_splits(config: TranslationConfig) -> tuple[Tokenizer, dict[str, TranslationSplit]]:
    """Stands in for `load_splits`: pairs that are all as long as the longest of `config.lengths`.

    A batch of any length has about the same number of positions; at the greatest length attention costs the most,
    and rounding up to a row a device adds the most positions.
    """
    tokenizer = synthetic_tokenizer(config.vocabulary, ("pad", "begin", "end", "unknown"))
    special = special_tokens(tokenizer)
    words = np.arange(max(config.lengths) - 1) % max(tokenizer.vocabulary - 4, 1)
    sentence = " ".join(map(str, words))
    ids = np.array([*words, special.end], np.int32)
    count = max(config.num_probe_examples, config.num_decoded_examples)
    language = config.languages[1] if config.languages else "target"
    encoded = EncodedPairs([ids] * count, [ids] * count, pad=special.pad, begin=special.begin)
    return tokenizer, {
        name: TranslationSplit(name, [SentencePair(sentence, sentence, language)] * count, encoded)
        for name in ("train", config.validation_split, config.test_split)
    }


def abstract_batch(task: Task) -> Mapping[str, Any]:
    """The shapes and types of a training batch; of a synthetic task, the largest."""
    batch = task.source(0)[0]
    return {name: jax.ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype) for name, value in batch.items()}
