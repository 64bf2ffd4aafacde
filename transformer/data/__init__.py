"""Data: data sets, tokenizers, and batches as a pure function of seed and step."""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.data.batches import (
        PROBE_SEED,
        TEST_SEED,
        VALIDATION_SEED,
        Batch,
        BatchSource,
        Bucket,
        BucketPlan,
        GeneratedBatches,
        OneEpoch,
        fingerprint,
        random_generator,
    )
    from transformer.data.datasets.text import open_text_dataset
    from transformer.data.datasets.translation import open_translation_dataset
    from transformer.data.images import scale_pixels, unscale_pixels
    from transformer.data.png import encode_png
    from transformer.data.tokenizers.load import load_tokenizer
    from transformer.data.tokenizers.tokenizer import Tokenizer, has_tokenizer
    from transformer.data.tokenizers.train_tokenizer import character_tokenizer, train_bpe, train_words
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PROBE_SEED",
    "TEST_SEED",
    "VALIDATION_SEED",
    "Batch",
    "BatchSource",
    "Bucket",
    "BucketPlan",
    "GeneratedBatches",
    "OneEpoch",
    "Tokenizer",
    "character_tokenizer",
    "encode_png",
    "fingerprint",
    "has_tokenizer",
    "load_tokenizer",
    "open_text_dataset",
    "open_translation_dataset",
    "random_generator",
    "scale_pixels",
    "train_bpe",
    "train_words",
    "unscale_pixels",
]
