"""The task: groups of pairs in batches, pools, labels, answers, and what it refuses."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.text_retrieval.data import PairData, TextPair
from experiments.text_retrieval.task import TASK, TextRetrieval, TextRetrievalConfig, build_task
from transformer.config import UserError
from transformer.tasks.task import PredictionRequest

SIDES, SPLITS = ("source", "target"), ("train", "validation", "test")
SMALL = TextRetrievalConfig(
    dataset="number_words/train=64,validation=20,test=20",
    vocab_size=160,
    max_tokens=32,
    batch_size=8,
    pool_size=20,
    num_probe_examples=3,
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TextRetrieval:
    return build_task(SMALL, tmp_path_factory.mktemp("run"))


def texts_of(task: TextRetrieval, rows: np.ndarray) -> list[str]:
    return [task.tokenizer.decode([int(token) for token in row if token]) for row in rows]


def test_a_batch_has_whole_groups_and_no_pair_twice(task: TextRetrieval) -> None:
    pairs = {pair.source: (number, pair.target) for number, pair in enumerate(task.splits["train"].pairs)}
    source, other = task.training_batches(1), task.training_batches(2)
    for step in range(3):
        batch = source[step]
        places = []
        for text, target in zip(texts_of(task, batch["source"]), texts_of(task, batch["target"]), strict=True):
            number, expected = pairs[text]
            assert target == expected
            places.append(number)
        assert len(set(places)) == 8
        assert [number + 1 for number in places[::2]] == places[1::2]
        assert all(number % 2 == 0 for number in places[::2])
        np.testing.assert_array_equal(batch["source"], task.training_batches(1)[step]["source"])
        assert (batch["source"] != other[step]["source"]).any()


def test_an_evaluation_ranks_every_text_of_the_pool_once(task: TextRetrieval) -> None:
    evaluation = next(each for each in task.evaluations if each.split == "test")
    # 20 pairs in batches of eight: the last is filled up with four that do not count.
    assert [len(batch["source"]) for batch in evaluation.batches] == [8, 8, 8]
    axes = np.repeat(np.eye(20)[:, None], 2, axis=1)
    perfect = np.concatenate([axes, axes[:4]])
    report = evaluation.finish({}, {"embeddings": perfect})
    assert report.scalars == {
        f"{direction}/{metric}": 1.0
        for direction in ("source_to_target", "target_to_source")
        for metric in ("accuracy", "mean_reciprocal_rank")
    }
    assert report.note == "pools of 20 texts"
    shifted = np.stack([axes[:, 0], np.roll(axes[:, 1], 1, axis=0)], axis=1)
    assert evaluation.finish({}, {"embeddings": shifted}).scalars["source_to_target/accuracy"] == 0
    assert evaluation.at_end


def test_the_probe_is_labeled_with_its_tokens(task: TextRetrieval) -> None:
    labels = task.axis_labels(())
    assert len(labels.titles) == 3
    for row, title in enumerate(labels.titles):
        pair = task.splits["validation"].pairs[row]
        assert title == f"{pair.source} → {pair.target}"
        for side, text in zip(SIDES, pair, strict=True):
            named = labels.tokens[side][row]
            assert len(named) == (task.probe_batch[side][row] != 0).sum()
            assert "".join(named[1:-1]).replace("▁", " ").strip() == text


def test_an_answer_is_the_closest_text_of_the_pool(task: TextRetrieval) -> None:
    view = SimpleNamespace(model=SimpleNamespace(apply=embed_first_tokens), variables={})
    pair = task.splits["test"].pairs[task.pools["test"][5]]
    found = task.predict(view, PredictionRequest([pair.source, pair.source]))  # type: ignore[arg-type]
    assert len(found.lines) == 2
    text, cosine = found.lines[0].rsplit("  ", 1)
    assert text in {each.target for each in task.splits["test"].pairs}
    assert cosine == "1.000"
    with pytest.raises(UserError, match="max_new_tokens is for runs that generate; this one retrieves"):
        task.predict(view, PredictionRequest(["one"], decoding={"max_new_tokens": 3}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="tokens, more than the model's 32 positions"):
        task.predict(view, PredictionRequest(["seven " * 30]))  # type: ignore[arg-type]


def embed_first_tokens(variables: Any, inputs: Any, *, train: bool) -> Any:
    """The same vector for every text: all cosines are one."""
    return jnp.ones((len(inputs["source"]), 2, 1)), None


def test_pairs_that_are_too_long_are_left_out_with_their_group(task: TextRetrieval) -> None:
    pairs = [TextPair("one", "eins"), TextPair("one two three four five six " * 3, "x")] + [TextPair("a", "b")] * 4
    short = dataclasses.replace(SMALL, batch_size=2, pool_size=1, max_tokens=12, num_probe_examples=1)
    made = TextRetrieval(short, task.tokenizer, PairData(dict.fromkeys(SPLITS, pairs), 2))
    assert made.splits["train"].pairs == pairs[2:]
    assert made.data_summary[0].endswith("6 of more than 12 tokens left out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 7}, "batch_size=7 must be a multiple of 2"),
        ({"batch_size": 128}, "has 64 training pairs .* fewer than config.task.batch_size=128"),
        ({"pool_size": 30}, "has 20 distinct pairs in the split 'validation', fewer than config.task.pool_size=30"),
    ],
)
def test_data_that_do_not_suffice_are_refused(changes: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        build_task(dataclasses.replace(SMALL, **changes), tmp_path)


def test_unfit_values_are_refused() -> None:
    with pytest.raises(UserError, match="batch_size=1 leaves a pair without negatives"):
        TextRetrievalConfig(batch_size=1)
    with pytest.raises(UserError, match=r"languages=\('en',\) must be \(source, target\), or empty"):
        TextRetrievalConfig(languages=("en",))


def test_a_synthetic_task_has_the_shapes_of_the_largest_batch() -> None:
    made = TASK.build_synthetic(SMALL, 4)
    batch = made.training_batches(0)[0]
    assert {name: values.shape for name, values in batch.items()} == dict.fromkeys(SIDES, (8, 32))
    assert (batch["source"] != made.interface.pad_id).all()
