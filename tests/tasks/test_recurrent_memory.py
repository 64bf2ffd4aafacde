"""Memory handed on: lanes keep their own where a batch is cut, and long rows are read segment by segment."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_xlnet import small
from tests.tasks.conftest import make_task
from transformer.config import UserError
from transformer.data.text_batches import SegmentBatches
from transformer.models.model import Aux
from transformer.tasks.language_modeling import Batching
from transformer.tasks.permutation_lm import TASK as PERMUTATION
from transformer.tasks.recurrent_memory import (
    memory_report,
    next_memory_state,
    sums_over_segments,
    sums_with_and_without_memory,
)
from transformer.tasks.segment_lm import TASK as SEGMENTS
from transformer.tasks.segment_lm import SegmentLanguageModeling, SegmentLanguageModelingConfig, build_synthetic_task
from transformer.tasks.task import StateView, TaskSpec
from transformer.tasks.text_data import TokenizerKind
from transformer.training.checked_batches import CheckedBatches


def view_of(family: str, train: bool = False, **changes: Any) -> StateView:
    return StateView(*small(family, **changes), {}, {}, jnp.int32(0), train)


def task_of(segments: int = 16, **values: Any) -> SegmentLanguageModeling:
    tokenizer = TokenizerKind.BPE
    return build_synthetic_task(
        SegmentLanguageModelingConfig(
            vocab_size=11,
            tokenizer=tokenizer,
            context_length=2,
            batch_size=2,
            segments_per_eval_text=segments,
            **values,
        )
    )


@pytest.mark.parametrize("task", [PERMUTATION, SEGMENTS])
def test_a_run_takes_the_batches(task: TaskSpec) -> None:
    """Places of a long segment are no tokens of a small vocabulary."""
    made = task.build_synthetic(task.config_class(vocab_size=9, context_length=64, batch_size=2), 1)
    batch = CheckedBatches(made.training_batches(0), made.interface)[0]
    assert batch["tokens"].shape == (2, 64)
    assert batch.get("order", batch["index"]).max() > 9


def test_parts_of_a_batch_fill_their_own_lanes() -> None:
    """The mean over the parts, which the step takes, is the memory of the whole batch."""
    whole = np.random.default_rng(0).standard_normal((6, 2, 4, 8)).astype(np.float32)
    view = SimpleNamespace(task_state={"memory": jnp.zeros_like(whole)}, train=True)
    parts = [np.array([5, 1, 3]), np.array([0, 2, 4])]
    handed = [next_memory_state(view, {"lane": lane}, Aux({}, {"memory": whole[lane]}, {}))["memory"] for lane in parts]
    np.testing.assert_allclose(np.mean(handed, axis=0), whole, rtol=1e-6)


def test_a_row_that_does_not_go_on_where_its_memory_ends_begins_anew() -> None:
    """As where `--skip_batches` passes batches by, or a step makes no update and what it carried is thrown away."""
    task, view = task_of(), view_of("transformer_xl", train=True)
    source, extra = SegmentBatches(np.arange(60), context_length=2, rows=2, seed=0), task.init_task_state(view, None)
    kept, pasts = extra, {}
    for step in (0, 1, 2, 4, 5):
        batch, kept = task.prepare_batch(view._replace(task_state=kept), source[step], None)
        pasts[step] = np.asarray(batch["past"]).tolist()
    assert pasts == {0: [0, 0], 1: [2, 2], 2: [4, 4], 4: [0, 0], 5: [2, 2]}
    # Every row by itself: here the second has another segment than the next.
    batch = {**source[6], "index": source[6]["index"] + np.array([0, 2], np.int32)}
    mixed, _ = task.prepare_batch(view._replace(task_state=kept), batch, None)
    assert np.asarray(mixed["past"]).tolist() == [4, 0]
    # A first segment begins anew, also where by chance it stands behind what was read last.
    first, _ = task.prepare_batch(view._replace(task_state=kept), {**source[6], "past": np.zeros(2, np.int32)}, None)
    assert np.asarray(first["past"]).tolist() == [0, 0]
    # Another epoch begins anew, wherever the last one ended.
    for step in range(source.batches_per_epoch + 1):
        batch, extra = task.prepare_batch(view._replace(task_state=extra), source[step], None)
    assert not np.asarray(batch["past"]).any()


def test_every_segment_is_scored_behind_the_memory_of_those_before_it_and_by_itself() -> None:
    """A model whose memory is the sum of what was read scores its own sum times one more than that."""

    def score(segment: Any) -> Any:
        lengths_B = segment["lengths"]
        held_B = jnp.where(segment["past"] > 0, segment["memory"][:, 0, 0, 0], 0)
        own_B = jnp.sum(jnp.where(jnp.arange(2) < lengths_B[:, None], segment["tokens"], 0), axis=1)
        left = (held_B + own_B)[:, None, None, None].astype(jnp.float32)
        return {"loss": jnp.sum(own_B * (1 + held_B)), "tokens": jnp.sum(lengths_B)}, {"memory": left}

    def hidden(variables: Any, inputs: Any, **options: Any) -> Any:
        return None, Aux({}, {"memory": jnp.zeros((len(inputs["tokens"]), 1, 1, 1))}, {})

    view: Any = SimpleNamespace(model=SimpleNamespace(apply=hidden), variables=None)
    batch = {"tokens": np.int32([[1, 2, 3, 4, 5, 6], [7, 8, 9, 9, 9, 9]]), "lengths": np.array([6, 3])}
    sums = sums_with_and_without_memory(view, batch, 3, score)
    # Sums of segments: 3, 7 and 11 in the first row; 15, 9 and nothing in the second.
    with_memory = 3 + 7 * (1 + 3) + 11 * (1 + 3 + 7) + 15 + 9 * (1 + 15)
    assert {name: float(value) for name, value in sums.items()} == {
        "loss": with_memory,
        "tokens": 9,
        "loss_without_memory": 3 + 7 + 11 + 15 + 9,
    }


def test_the_loss_of_segments_is_the_cross_entropy_of_their_next_tokens() -> None:
    """By a model that believes that every token comes again; smoothing of labels is for training alone."""

    def hidden(variables: Any, inputs: Any, **options: Any) -> Any:
        left = {"memory": jnp.zeros((len(inputs["tokens"]), 1, 2, 1))}
        return 3.0 * jax.nn.one_hot(inputs["tokens"], 11), Aux({}, left, {})

    model: Any = SimpleNamespace(apply=hidden, logits=lambda variables, hidden: hidden, sites=())
    view = StateView(model, None, {}, {}, jnp.int32(0), False)  # type: ignore[arg-type]
    tokens = np.int32([[5, 5, 3, 3], [7, 2, 2, 0]])
    labels = np.int32([[5, 3, 3, 4], [2, 2, 6, 0]])
    batch = {"tokens": tokens, "labels": labels, "lengths": np.array([4, 3])}
    sums, _ = task_of(segments=2, label_smoothing=0.1)._over_segments(view, batch, None)
    again, other = (np.log(np.exp(3) + 10) - logit for logit in (3, 0))
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(
        {"loss": 3 * again + 4 * other, "loss_without_memory": 3 * again + 4 * other, "accuracy": 3, "tokens": 7},
        rel=1e-5,
    )


def test_a_report_of_segments_is_of_means_over_tokens() -> None:
    sums = {"loss": 6.0, "accuracy": 3.0, "loss_without_memory": 12.0, "tokens": 6.0}
    assert memory_report(sums, 4).scalars == {
        "loss": 1,
        "accuracy": 0.5,
        "loss_without_memory": 2,
        "perplexity": pytest.approx(np.e),
        "perplexity_without_memory": pytest.approx(np.e**2),
    }


@pytest.mark.slow
def test_long_rows_are_read_behind_what_stands_before() -> None:
    """The loss over segments with a memory is that of a model that sees as far back; without one it is another."""
    task = task_of(segments=3)
    view = view_of("transformer_xl")
    random = np.random.default_rng(1)
    tokens, labels = random.integers(0, 11, (2, 2, 6))
    batch = {"tokens": tokens, "labels": labels, "lengths": np.array([6, 3])}
    sums, _ = task._over_segments(view, batch, None)
    _, aux = task._loss(view, batch, {"tokens": jnp.float32(1)}, None)
    assert float(sums["tokens"]) == 9
    assert float(sums["loss"]) == pytest.approx(float(aux.metrics["cross_entropy"]), rel=1e-5)
    alone = 0.0
    for begin in (0, 2, 4):
        cut = {"tokens": tokens[:, begin : begin + 2], "labels": labels[:, begin : begin + 2]}
        lengths = np.clip(np.array([6, 3]) - begin, 0, 2)
        _, aux = task._loss(view, {**cut, "lengths": lengths}, {"tokens": jnp.float32(1)}, None)
        alone += float(aux.metrics["cross_entropy"])
    assert float(sums["loss_without_memory"]) == pytest.approx(alone, rel=1e-5)
    assert abs(alone - float(sums["loss"])) > 0.1


def test_a_model_without_a_memory_is_refused_where_the_task_needs_one() -> None:
    task = task_of()
    with pytest.raises(UserError, match="the model has none: say"):
        task.init_task_state(view_of("transformer_xl", memory_length=0), None)
    sums = sums_over_segments(
        view_of("transformer_xl", memory_length=0),
        {"tokens": np.ones((1, 4), int), "lengths": np.array([3])},
        2,
        lambda segment: ({"tokens": jnp.sum(segment["lengths"])}, {}),
        remember=True,
    )
    assert int(sums["tokens"]) == 3


def test_what_a_config_cannot_say_is_refused() -> None:
    for options, said in (
        ({"partial_prediction_k": 200}, "partial_prediction_k=200 of context_length=128"),
        ({"segments_per_eval_text": 0}, "segments_per_eval_text=0"),
    ):
        with pytest.raises(UserError, match=said):
            PERMUTATION.config_class(**options)
    with pytest.raises(UserError, match="batching=packed"):
        SegmentLanguageModelingConfig(batching=Batching.PACKED)


def test_the_keys_of_a_probed_text_are_the_memory_before_it_and_then_itself(text_file: Path, tmp_path: Path) -> None:
    task = make_task(text_file, tmp_path, "permutation_lm", partial_prediction_k=3, segments_per_eval_text=2)
    labels, text = task.axis_labels(()), text_file.read_text(encoding="utf-8")
    for own, whole in zip(labels.tokens["tokens"], labels.tokens["memory and tokens"], strict=True):
        assert whole[8:] == own
        assert "".join(whole).replace("▁", " ") in text
