"""Synthetic tasks: the shapes of the real task without its data."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tasks.conftest import make_task
from transformer.data.batches import BucketedPairBatches, EncodedPairs
from transformer.tasks.registry import build_synthetic_task, build_task, task_config
from transformer.tasks.synthetic_data import abstract_batch


def shapes(batch: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(value.shape), str(value.dtype)) for name, value in batch.items()}


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Whatever a synthetic task would write or look up by a relative path shows here.
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("batching", ["windows", "packed"])
@pytest.mark.parametrize("rows_multiple", [1, 2])
def test_language_modeling_has_the_real_shapes(
    text_file: Path, tmp_path: Path, batching: str, rows_multiple: int
) -> None:
    values = {
        "name": "language_modeling",
        "context_length": 24,
        "batch_size": 4,
        "tokenizer": "bytes",
        "batching": batching,
    }
    values |= {"num_probe_examples": 2, "probe_length": 8, "prompts": ("The ",)}
    real = build_task(task_config({**values, "dataset": str(text_file)}), tmp_path, rows_multiple)
    told = build_synthetic_task(task_config({**values, "dataset": "nowhere/at/all"}), rows_multiple)
    assert shapes(abstract_batch(told)) == shapes(real.training_batches(0)[0])
    assert told.interface.inputs == real.interface.inputs
    assert told.probe_batch["tokens"].shape == real.probe_batch["tokens"].shape
    assert [e.name for e in told.evaluations] == ["loss", "loss"]
    # The text is one document; of several, as is made up, one more token stands for their ends.
    assert told.interface.vocabularies == {"tokens": 257}
    assert real.interface.vocabularies == {"tokens": 256}


@pytest.mark.parametrize("name", ["segment_lm", "permutation_lm"])
def test_tasks_over_segments_make_up_text_for_all_rows(name: str) -> None:
    """As launch.compile needs it: a batch at the defaults, whose rows are many and follow one another."""
    config = task_config({"name": name})
    assert abstract_batch(build_synthetic_task(config))["tokens"].shape == (config.batch_size, config.context_length)


def test_masked_language_modeling_has_the_real_shapes(text_file: Path, tmp_path: Path) -> None:
    real = make_task(text_file, tmp_path, "masked_lm", whole_word_masking=True)
    told = build_synthetic_task(dataclasses.replace(real.config, dataset="nowhere"))
    assert shapes(abstract_batch(told)) == shapes(real.training_batches(0)[0])
    assert told.interface.vocabularies["tokens"] == real.interface.vocabularies["tokens"] + 1
    hidden = told.training_batches(0)[0]["tokens"]
    assert hidden.min() >= 0
    assert hidden.max() < 258


@pytest.mark.parametrize("tokenizer", ["existing", "bpe"])
def test_the_vocabulary_is_the_one_that_the_config_names(tokenizer: str) -> None:
    config = task_config(
        {"name": "masked_lm", "dataset": "x", "tokenizer": tokenizer, "vocab_size": 30_522, "test_split": ""}
    )
    task = build_synthetic_task(config)
    assert task.interface.vocabularies == {"tokens": 30_522}
    assert len(task.axis_labels(()).titles) == config.num_probe_examples


@pytest.mark.parametrize("rows_multiple", [1, 8, 64])
def test_translation_makes_up_the_largest_of_its_batches(rows_multiple: int) -> None:
    config = task_config(
        {
            "name": "translation",
            "dataset": "wmt14_translate/de-en",
            "vocab_size": 300,
            "bucket_lengths": (8, 16, 32),
            "tokens_per_batch": 256,
            "num_decoded_examples": 4,
        }
    )
    # A text of every length gives a batch of every shape.
    texts = [np.full(length, 5, np.int32) for length in range(1, 33)]
    source = BucketedPairBatches(
        EncodedPairs(texts, texts, pad_id=0, bos_id=1),
        lengths=(8, 16, 32),
        tokens=256,
        seed=0,
        rows_multiple=rows_multiple,
    )
    batches = [source[step] for step in range(source.batches_per_epoch)]
    largest = max(batches, key=lambda batch: batch["source"].shape[0] * batch["source"].shape[1] ** 2)
    assert len({batch["source"].shape for batch in batches}) == 3
    told = build_synthetic_task(config, rows_multiple)
    assert shapes(abstract_batch(told)) == shapes(largest)
    assert max(batch["source"].size for batch in batches) == np.prod(abstract_batch(told)["source"].shape)
    assert told.interface.vocabularies == {"joint": 300}
    # Its sentences are those that its tokenizer cuts into just these numbers, so that maps have their labels.
    assert [len(row) for row in told.axis_labels(()).tokens["source"]] == [32] * config.num_probe_examples
    assert told.training_batches(0)[0]["source"][0].tolist() == [*range(31), told.tokenizer.eos_id]


def test_a_batch_of_three_million_tokens_is_quickly_told(tmp_path: Path) -> None:
    values = {
        "name": "language_modeling",
        "dataset": "x",
        "tokenizer": "existing",
        "vocab_size": 50_257,
        "test_split": "",
    }
    task = build_synthetic_task(
        task_config({**values, "context_length": 2048, "batch_size": 1536, "batching": "packed"}), 128
    )
    assert shapes(abstract_batch(task))["tokens"] == ((1536, 2048), "int32")
    assert not list(tmp_path.iterdir())


def test_every_made_up_token_is_of_the_vocabulary() -> None:
    for name in ("language_modeling", "masked_lm"):
        task = build_synthetic_task(
            task_config({"name": name, "dataset": "x", "vocab_size": 40, "context_length": 64, "batch_size": 2})
        )
        batch = task.training_batches(0)[0]
        assert np.max(batch["tokens"]) < 40
