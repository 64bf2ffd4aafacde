"""Causal language modeling: what is fed, what is divided by what, and what an evaluation covers."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.conftest import make_task, view_of
from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.data.datasets.text import open_text_dataset
from transformer.tasks.registry import task_config
from transformer.tasks.task import StateView
from transformer.tasks.text_data import (
    TokenizerKind,
    evenly_spaced_excerpts,
    load_or_train_tokenizer,
    make_repeated_sequences,
)
from transformer.training.compiled_evaluation import compile_evaluations
from transformer.training.partitioning import single_device_placement
from transformer.training.state import TrainState


def state_of(view: StateView) -> TrainState:
    return TrainState(jnp.int32(0), jax.random.key(3), view.variables, {}, {}, {}, {})


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    z = logits.astype(np.float64)
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def test_the_evaluation_counts_every_token_once_in_nats_and_bits_a_byte(
    language_task: Any, language_view: StateView, text_file: Path
) -> None:
    validation, test, continuations = language_task.evaluations
    assert (validation.at_end, test.at_end, continuations.at_end) == (False, True, False)
    (evaluate,) = compile_evaluations(language_view.model, [validation], single_device_placement())
    report = evaluate(state_of(language_view))
    # By hand: windows of 24 bytes that do not overlap, each read from its own beginning.
    text = text_file.read_bytes()
    lines = text.splitlines(keepends=True)
    held = _between(lines, len(text) * 18 // 20, len(text) // 20)
    stream = np.frombuffer(b"".join(held), np.uint8).astype(np.int32)
    read = jax.jit(lambda variables, tokens: language_view.model.apply(variables, {"tokens": tokens}, train=False)[0])
    total, correct = 0.0, 0
    for start in range(0, len(stream) - 1, 24):
        tokens, labels = stream[start : start + 24][: len(stream) - 1 - start], stream[start + 1 : start + 25]
        found = log_probabilities(np.asarray(read(language_view.variables, tokens[None]))[0])
        total -= found[np.arange(len(labels)), labels].sum()
        correct += int((found.argmax(-1) == labels).sum())
    count = len(stream) - 1
    assert report.scalars["loss"] == pytest.approx(total / count, rel=1e-5)
    assert report.scalars["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    assert report.scalars["bits_per_byte"] == pytest.approx(total / count / math.log(2), rel=1e-5)
    assert report.scalars["accuracy"] == pytest.approx(correct / count)
    assert f"{count} tokens" in report.note


def _between(lines: list[bytes], before: int, size: int) -> list[bytes]:
    """The lines of the validation text: the file is cut at line ends, at 90 % and at 95 % of its characters."""
    taken, found = 0, []
    for line in lines:
        if before <= taken < before + size:
            found.append(line)
        taken += len(line)
    return found


def test_a_loss_is_divided_by_the_tokens_of_the_whole_update(language_task: Any, language_view: StateView) -> None:
    batch = language_task.training_batches(0)[0]
    denominators = language_task.denominators(batch)
    assert float(denominators["tokens"]) == batch["tokens"].size

    @jax.jit
    def run(denominators: Any) -> tuple[Any, Any]:
        loss, aux = language_task._loss(language_view, batch, denominators, jax.random.key(0))
        return loss, aux.metrics

    loss, metrics = run(denominators)
    doubled, _ = run({"tokens": 2 * denominators["tokens"]})
    assert float(loss) == pytest.approx(float(metrics["cross_entropy"]))
    assert float(doubled) == pytest.approx(float(loss) / 2)


def test_packed_documents_are_counted_by_their_labels(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in {"train": "abcdefgh\n", "validation": "bcdefghi\n", "test": "cdefghij\n"}.items():
        (folder / f"{name}.txt").write_text(3 * text)
    task = make_task(
        folder,
        tmp_path,
        "language_modeling",
        batching="packed",
        tokenizer="characters",
        context_length=9,
        probe_length=4,
    )
    batch = task.training_batches(0)[0]
    assert float(task.denominators(batch)["tokens"]) == batch["counts"].sum()
    assert {"segments", "positions"} <= set(batch)


def test_the_bytes_of_an_evaluation_are_those_of_what_is_predicted(tmp_path: Path) -> None:
    folder, text = tmp_path / "texts", 3 * "é🙂ab\n"
    folder.mkdir()
    for name in ("train", "validation", "test"):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    task = make_task(folder, tmp_path, "language_modeling", tokenizer="characters", context_length=4, probe_length=4)
    validation, view = task.evaluations[0], view_of(task, "decoder")
    step = jax.jit(lambda batch: validation.step(view, batch, jax.random.key(0))[0])
    sums = [step(batch) for batch in validation.batches]
    # Of the first character there is no prediction.
    assert sum(float(each["bytes"]) for each in sums) == len(text[1:].encode())


def test_packed_text_is_evaluated_as_it_is_fed_no_row_crossing_documents(tmp_path: Path) -> None:
    task = make_task(
        Path("repeated/num_symbols=8,min_segment_length=3,max_segment_length=5,length=12,train=40,validation=9,test=3"),
        tmp_path,
        "language_modeling",
        batching="packed",
        tokenizer="characters",
        context_length=12,
        prompts=(),
    )
    validation, test = task.evaluations
    texts = open_text_dataset(task.config.dataset, prepared_dir="unused")
    seen = []
    for batch in validation.batches:
        for tokens, labels, counts in zip(batch["tokens"], batch["labels"], batch["counts"], strict=True):
            if counts.any():
                assert list(labels) == [*tokens[1:], task.tokenizer.eos_id]
                seen.append(task.tokenizer.decode(tokens))
    assert seen == texts.split("validation")
    assert len(test.batches) == 1
    for row in task.probe_batch["tokens"][:2]:
        assert any(task.tokenizer.decode(row) in text for text in seen)


def test_the_probe_shows_stretches_of_the_validation_text_and_random_tokens(
    language_task: Any, language_view: StateView
) -> None:
    labels = language_task.axis_labels(())
    assert [len(row) for row in labels.tokens["tokens"]] == [8, 8, 8]
    assert labels.periods == (None, None, 4)
    assert labels.titles[2] == "random tokens, repeated every 4"
    random = language_task.probe_batch["tokens"][2]
    np.testing.assert_array_equal(random[:4], random[4:])
    assert len(set(random)) == 4
    aux = language_task.probe(language_view, Capture(("decoder/self",)), jax.random.key(0))
    assert aux.maps["decoder/self"].weights.shape == (2, 3, 2, 8, 8)


def test_random_tokens_are_ordinary_as_many_as_asked_for_and_the_same_in_every_run(
    text_file: Path, tmp_path: Path
) -> None:
    # The first run trains the tokenizer, which the others find.
    given = {"tokenizer": "bpe", "vocab_size": 300}
    tasks = [
        make_task(text_file, tmp_path, "language_modeling", num_repeated_sequences=count, **given)
        for count in (3, 1, 0)
    ]
    several, one, none = (task.probe_batch["tokens"][2:] for task in tasks)
    assert (several.shape, none.shape) == ((3, 8), (0, 8))
    np.testing.assert_array_equal(several[:1], one)
    assert len({tuple(row) for row in several}) == 3
    assert tasks[0].axis_labels(()).periods == (None, None, 4, 3, 2)
    assert tasks[2].axis_labels(()).periods is None


class FewTokens:
    """A vocabulary of three tokens that mean something, and five that do not."""

    vocab_size = 8
    special_ids = frozenset({0, 2, 4, 5, 7})


@pytest.mark.parametrize(
    ("length", "longest", "shortest"), [(2, 2, 2), (3, 2, 2), (4, 2, 2), (7, 4, 2), (8, 4, 2), (48, 24, 12)]
)
def test_random_tokens_repeat_at_several_periods_and_none_is_special(length: int, longest: int, shortest: int) -> None:
    tokenizer: Any = FewTokens()
    tokens, periods = make_repeated_sequences(tokenizer, 40, length)
    assert (tokens.shape, len(periods)) == ((40, length), 40)
    assert (periods[0], set(periods)) == (longest, set(range(shortest, longest + 1)))
    assert set(tokens.flat) == {1, 3, 6}
    for row, period in zip(tokens, periods, strict=True):
        np.testing.assert_array_equal(row[period:], row[: length - period])
        assert period > 3 or len(set(row[:period])) == period


def test_stretches_lie_within_documents_where_any_is_long_enough() -> None:
    documents = [np.arange(start, start + size) for start, size in ((0, 9), (100, 2), (200, 4), (300, 6))]
    assert [row[0] for row in evenly_spaced_excerpts(documents, 10, 4)] == [0, 1, 2, 3, 4, 5, 200, 300, 301, 302]
    assert [row[0] for row in evenly_spaced_excerpts(documents, 3, 4)] == [0, 4, 302]
    assert all(list(row) == list(range(row[0], row[0] + 4)) for row in evenly_spaced_excerpts(documents, 7, 4))
    # No document has ten tokens: they are joined.
    joined = [*range(9), 100, 101, *range(200, 204), *range(300, 306)]
    np.testing.assert_array_equal(evenly_spaced_excerpts(documents, 2, 10), [joined[:10], joined[-10:]])
    # Behind a memory twice as many are mapped as config.task.probe_length says.
    with pytest.raises(UserError, match=f"has {len(joined)} tokens, fewer than the 64 of a stretch that is mapped"):
        evenly_spaced_excerpts(documents, 1, 64)


@pytest.mark.slow
def test_prompts_are_continued_as_they_would_be_alone(language_task: Any, language_view: StateView) -> None:
    continuations = language_task.evaluations[-1]
    (evaluate,) = compile_evaluations(language_view.model, [continuations], single_device_placement())
    samples = evaluate(state_of(language_view)).samples
    assert [sample["prompt"] for sample in samples] == ["The ", "dog"]
    for sample in samples:
        tokens = list(sample["prompt"].encode())
        apply = jax.jit(
            lambda tokens: language_view.model.apply(language_view.variables, {"tokens": tokens}, train=False)[0]
        )
        said = []
        for _ in range(4):
            logits = np.asarray(apply(np.array([tokens + said])))[0, -1]
            said.append(int(logits.argmax()))
        assert sample["output"].startswith(language_task.tokenizer.decode(said))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"context_length": 1}, "config.task.context_length=1"),
        ({"validation_split": ""}, "config.task.validation_split='' must be the name of a split"),
        ({"batch_size": 0}, "config.task.batch_size=0"),
        ({"num_repeated_sequences": -1}, "config.task.num_repeated_sequences=-1"),
        ({"label_smoothing": 1.0}, "config.task.label_smoothing=1.0"),
        ({"batching": "pakced"}, "packed"),
        ({"tokenizer": "char"}, "config.task.tokenizer='char'"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_config({"name": "language_modeling", **values})


def test_a_split_that_is_not_there_and_a_tokenizer_that_was_not_given_are_refused(
    text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="'holdout'"):
        make_task(text_file, tmp_path, "language_modeling", validation_split="holdout")
    with pytest.raises(UserError, match="the command convert"):
        make_task(text_file, tmp_path, "language_modeling", tokenizer="existing")
    with pytest.raises(UserError, match="the 5000 of a stretch"):
        make_task(text_file, tmp_path, "language_modeling", probe_length=5000, context_length=5000)


def test_prompts_that_the_model_has_no_room_for_are_refused(language_task: Any) -> None:
    with pytest.raises(UserError, match=r"up to 52 tokens, more than config\.model\.max_length=32"):
        view_of(language_task, "decoder", max_length=32)


def test_special_tokens_written_in_training_text_are_counted_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"train": ["one <end> two <end>", "<end>", "<en d>"], "validation": ["<end>"]}
    for number in range(3):
        if number == 2:  # where the run has begun
            (tmp_path / "checkpoints").mkdir()
        tokenizer = load_or_train_tokenizer(tmp_path, TokenizerKind.BYTES, 0, texts, ("end",))
        assert tokenizer.eos_id is not None
        assert tokenizer.eos_id not in tokenizer.encode(texts["train"])[0]
        said = "the training text has <end> 3 times: these are read as plain characters, not as special tokens\n"
        assert capsys.readouterr().err == ("" if number == 2 else said)
