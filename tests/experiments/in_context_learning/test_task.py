"""The task of episodes: rows and shots, answers counted by hand, links, and texts judged by their author."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.in_context_learning.data import AUTHORS, is_held_out
from experiments.in_context_learning.task import (
    InContextLearning,
    InContextLearningConfig,
    Problem,
    build_synthetic_task,
    build_task,
    count_correct_answers,
)
from transformer.attention import Axis, Site
from transformer.config import UserError, from_config
from transformer.tasks.task import StateView

FEW = {"batch_size": 4, "num_eval_examples": 8}
SMALL = FEW | {"alphabet_size": 8, "shots": (0, 2)}  # of pairs
TOKENS = Axis("tokens")
SITE = Site("decoder/self", TOKENS, TOKENS, layers=("0",), heads=("0",), causal=True)


def task_of(problem: Problem, **changes: Any) -> InContextLearning:
    return build_synthetic_task(
        InContextLearningConfig(problem=problem, **((FEW if problem is Problem.STYLE else SMALL) | changes))
    )


def texts(task: InContextLearning, batch: Any) -> list[str]:
    """The rows with what follows their last token."""
    rows = zip(batch["tokens"], batch["labels"], batch["lengths"], strict=True)
    return [task.tokenizer.decode([*tokens[:length], labels[length - 1]]) for tokens, labels, length in rows]


def of_model(logits: Any) -> StateView:
    """A view of a model that answers this."""
    aux = SimpleNamespace(state={}, maps={}, losses={})
    model: Any = SimpleNamespace(apply=lambda variables, inputs, **options: (logits(inputs), aux))
    return StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", Problem)
def test_a_batch_is_of_seed_and_step_and_predicts_what_follows(problem: Problem) -> None:
    task = task_of(problem)
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    assert all(
        (other["tokens"] != batch["tokens"]).any()
        for other in (task.training_batches(3)[8], task.training_batches(4)[7])
    )
    given = task.interface.inputs["tokens"]
    assert (batch["tokens"].shape, batch["tokens"].dtype) == (given.shape, given.dtype)
    for row, length in enumerate(batch["lengths"]):
        np.testing.assert_array_equal(batch["tokens"][row, 1:length], batch["labels"][row, : length - 1])
        assert (batch["shots"][row, length:] == -1).all()
    assert float(task.denominators(batch)["tokens"]) == batch["lengths"].sum()
    if problem is Problem.STYLE:
        assert (batch["shots"] == -1).all()
        return
    for text, labels, shots in zip(texts(task, batch), batch["labels"], batch["shots"], strict=True):
        pairs = [pair.split(">") for pair in text.removesuffix(";").split(";")]
        assert len(pairs) == 3
        said = [task.tokenizer.decode(labels[shots == known].tolist()) for known in range(3)]
        assert said == [f"{target};" for _, target in pairs]


def test_the_loss_is_that_of_the_real_tokens() -> None:
    task = task_of(Problem.STRING_EDITS)
    batch, random = task.training_batches(0)[0], np.random.default_rng(0)
    assert len(set(batch["lengths"])) > 1
    logits = random.standard_normal((*batch["tokens"].shape, task.tokenizer.vocab_size))
    view = of_model(lambda inputs: logits)
    loss, _ = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, task.denominators(batch), None))()
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    nats = [
        -logs[row, place, batch["labels"][row, place]] for row in range(4) for place in range(batch["lengths"][row])
    ]
    assert float(loss) == pytest.approx(np.mean(nats), rel=1e-5)


def test_an_answer_is_right_if_all_of_it_is() -> None:
    labels = np.int32([[5, 1, 2, 3, 4, 3], [5, 2, 2, 3, 1, 3]])
    batch = {"labels": labels, "shots": np.int32([[-1, 0, 0, -1, 1, 1], [-1, 0, 0, -1, 1, 1]])}
    said = np.int32([[0, 1, 2, 0, 4, 3], [5, 2, 2, 3, 1, 2]])  # the second one's answer behind one pair lacks its end
    assert count_correct_answers(np.eye(6)[said], batch, (0, 1)).tolist() == [2, 1]


def test_few_shots_are_measured_on_rules_that_training_never_has() -> None:
    task = task_of(Problem.WORD_TRANSLATION)
    names = [(each.name, each.split, each.at_end) for each in task.evaluations]
    assert names == [(name, split, split == "test") for split in ("validation", "test") for name in ("unseen", "seen")]

    def knowing(evaluation: Any, batch: Any) -> Any:
        answers = jnp.eye(task.tokenizer.vocab_size)[batch["labels"]] * 30
        return evaluation.step(of_model(lambda inputs: answers), batch, None)[0]

    for evaluation in task.evaluations:
        found: dict[str, Any] = {"right": 0, "loss": 0, "tokens": 0, "examples": 0}
        step = jax.jit(functools.partial(knowing, evaluation))
        for batch in evaluation.batches:
            for text in texts(task, batch):
                sides = zip(*(pair.split(">") for pair in text[:-1].split(";")), strict=True)
                known = dict(zip(*map("".join, sides), strict=True))
                if len(known) == 6:
                    letters = sorted(known)
                    rule = f"{''.join(letters)} to {''.join(known[letter] for letter in letters)}"
                    assert is_held_out(rule) == (evaluation.name == "unseen")
            found = {name: found[name] + np.asarray(value) for name, value in step(batch).items()}
        report = evaluation.finish(found, None)
        scalars = {name.removeprefix(f"{evaluation.name}_"): value for name, value in report.scalars.items()}
        assert scalars["accuracy_0"] == scalars["accuracy_2"] == 1
        assert scalars["bayes_optimal_accuracy_0"] < scalars["bayes_optimal_accuracy_2"] < 1


def test_links_lead_to_where_a_letters_translation_stands() -> None:
    task = task_of(Problem.WORD_TRANSLATION, shots=(8,))
    labels = task.axis_labels((SITE,))
    assert labels.gold_alignments is not None
    links, tokens = labels.gold_alignments["decoder/self"][0], labels.tokens["tokens"][0]
    assert labels.gold_alignments["decoder/self"][-1] == ()
    source, image = labels.titles[0].split(" to ")
    assert len(links) > 20
    for query, key, _ in links:
        assert key < query + 1
        # Behind the query comes the letter that stands at the key: the letter four places before is its source.
        assert image[source.index(tokens[query - 3])] == tokens[key] == image[source.index(tokens[key - 4])]
    sure = {link.query for link in links if link.sure}
    assert all(len([link for link in links if link.query == query]) == 1 for query in sure)
    # Random tokens that repeat show which of the heads are induction heads.
    assert labels.periods == (None, None, 18)
    repeated = labels.tokens["tokens"][-1]
    assert repeated[:18] == repeated[18:]


def test_a_texts_style_is_judged_by_its_author() -> None:
    task = task_of(Problem.STYLE, text_length=60, prompt_length=20, num_eval_examples=16)
    evaluation = task.evaluations[0]
    (batch, *_) = evaluation.batches
    assert batch["tokens"].shape == (4, 20)
    whole = np.concatenate([batch["tokens"] for batch in evaluation.batches])
    prompts = [task.tokenizer.decode(row) for row in whole.tolist()]
    # A model that says every prompt again follows its author; one that says another's mostly does not.
    again = evaluation.finish({}, {"tokens": np.concatenate([whole, whole], axis=1)})
    assert again.scalars["style_accuracy"] > 0.9
    assert again.scalars["style_accuracy_of_authors"] > 0.9
    assert again.samples[0] == {"prompt": prompts[0], "output": prompts[0] * 2}
    titles = set(task.axis_labels((SITE,)).titles[:-1])
    assert titles <= set(AUTHORS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alphabet_size": 1},
        {"min_word_length": 2, "problem": Problem.STRING_EDITS},
        {"shots": ()},
        {"shots": (1, 1)},
        {"prompt_length": 96, "problem": Problem.STYLE},
        {"alphabet_size": 8, "problem": Problem.STYLE},
        {"num_letters": 5, "problem": Problem.STRING_EDITS},
        {"text_length": 48},
        {"batch_size": 0},
        {"num_repeated_sequences": -1},
        {"num_letters": 2, "alphabet_size": 2, "shots": (0,)},
    ],
)
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        InContextLearningConfig(**wrong)


def test_repeated_tokens_need_not_be_mapped() -> None:
    assert from_config(InContextLearningConfig, {"num_repeated_sequences": 0}).num_repeated_sequences == 0
    with pytest.raises(UserError, match="num_repeated_sequences=-1 must be at least 0"):
        from_config(InContextLearningConfig, {"num_repeated_sequences": -1})


def test_the_tokenizer_of_a_run_is_kept(tmp_path: Path) -> None:
    config = InContextLearningConfig(**SMALL)
    first = build_task(config, tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    again = build_task(config, tmp_path)
    np.testing.assert_array_equal(first.training_batches(0)[0]["tokens"], again.training_batches(0)[0]["tokens"])
