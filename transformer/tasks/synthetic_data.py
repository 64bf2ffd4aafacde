"""Synthetic tasks: data of the real shapes, to compile programs before data or devices are ready."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from transformer.data.batches import EncodedPairs
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.train_tokenizer import add_special_tokens, byte_tokenizer
from transformer.tasks.task import Task
from transformer.tasks.text_data import EncodedText, TextConfig, TokenizerKind
from transformer.tasks.translation_data import TranslationConfig, TranslationSplit, pad_begin_end_ids

# Few texts have more characters; the real number is known only once the text is read.
CHARACTERS = 128


def synthetic_tokenizer(vocab_size: int, roles: tuple[str, ...]) -> FastTokenizer:
    """Return an untrained tokenizer whose words are the numbers from 0.

    Args:
        vocab_size: The number of tokens, special ones included.
        roles: The special tokens.
    """
    words = {str(number): number for number in range(max(vocab_size - len(roles), 1))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return add_special_tokens(backend, roles)


def synthetic_tokenizer_of_kind(kind: TokenizerKind, vocab_size: int, roles: tuple[str, ...]) -> FastTokenizer:
    """Return an untrained tokenizer of about the size of a trained one, in place of `load_or_train_tokenizer`.

    Args:
        kind: The kind of tokenizer.
        vocab_size: The vocabulary size of a BPE.
        roles: The special tokens.
    """
    match kind:
        case TokenizerKind.BYTES:
            return byte_tokenizer(roles)
        case TokenizerKind.CHARACTERS:
            return synthetic_tokenizer(CHARACTERS, roles)
        case TokenizerKind.BPE | TokenizerKind.EXISTING:
            return synthetic_tokenizer(vocab_size, roles)


def synthetic_encoded_text(config: TextConfig, roles: tuple[str, ...], *, texts: int = 1) -> EncodedText:
    """Return two synthetic documents for each split, in place of `load_encoded_text`.

    Args:
        config: The text's config.
        roles: The special tokens.
        texts: Rows of `config.context_length` tokens in a document; one token is added for the labels.
    """
    # The real text may have several documents, which need an end token.
    roles = tuple(dict.fromkeys((*roles, "end")))
    tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, roles)
    document = np.arange(texts * config.context_length + 1, dtype=np.int32) % (tokenizer.vocab_size - len(roles))
    return EncodedText(tokenizer, {name: [document, document] for name in ("train", *config.eval_splits)})


def synthetic_encoded_splits(config: TranslationConfig) -> tuple[FastTokenizer, dict[str, TranslationSplit]]:
    """Return a tokenizer and pairs of the largest of `config.bucket_lengths`, in place of `load_encoded_splits`.

    Batches of all lengths have about the same number of positions; at the greatest length attention costs the most, and
    rounding up to a row per device adds the most positions.
    """
    tokenizer = synthetic_tokenizer(config.vocab_size, ("pad", "begin", "end", "unknown"))
    pad_id, bos_id, eos_id = pad_begin_end_ids(tokenizer)
    words = np.arange(max(config.bucket_lengths) - 1) % max(tokenizer.vocab_size - 4, 1)
    sentence = " ".join(map(str, words))
    ids = np.array([*words, eos_id], np.int32)
    count = max(config.num_probe_examples, config.num_decoded_examples)
    language = config.languages[1] if config.languages else "target"
    encoded = EncodedPairs([ids] * count, [ids] * count, pad_id=pad_id, bos_id=bos_id)
    return tokenizer, {
        name: TranslationSplit(name, [SentencePair(sentence, sentence, language)] * count, encoded)
        for name in ("train", config.validation_split, config.test_split)
    }


def abstract_batch(task: Task) -> Mapping[str, Any]:
    """Return the shapes and types of a training batch; of a synthetic task, those of the largest batch."""
    batch = task.training_batches(0)[0]
    return {name: jax.ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype) for name, value in batch.items()}
