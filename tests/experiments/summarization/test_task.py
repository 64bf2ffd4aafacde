"""The summaries task: its batches, what models that copy and models that do not are asked, and its answers."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.summarization.data import KINDS, is_held_out, write_summary
from experiments.summarization.signature import TRANSLATION_WITH_COPYING
from experiments.summarization.task import UNKNOWN, OOVTarget, Summarization, SummarizationConfig
from tests.models.random_models import fresh_variables
from transformer.attention import Capture
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.registry import FAMILIES
from transformer.models.task_interface import TRANSLATION
from transformer.tasks.sequence_generation_base import BEGIN, END, PAD
from transformer.tasks.task import PredictionRequest, StateView

SMALL: dict[str, Any] = {
    "max_facts": 2,
    "num_fillers": 1,
    "eval_sizes": (3,),
    "batch_size": 4,
    "num_eval_examples": 6,
    "num_probe_examples": 2,
    "num_known_names": 20,
}


@functools.cache
def task_of(unseen: OOVTarget = OOVTarget.COPIED) -> Summarization:
    return Summarization(SummarizationConfig(oov_target=unseen, **SMALL))


@functools.cache
def view_of(task: Summarization) -> StateView:
    """A model that has learned nothing."""
    family = FAMILIES["experiments.summarization.model"]
    model = family.build(
        family.config_class(width=4, embedding_width=3, coverage_loss_weight=1.0), task.interface, Precision()
    )
    return StateView(model, fresh_variables(model), {}, {}, np.int32(0), False)


def test_what_is_asked_of_a_model_is_decided_by_what_unseen_words_become() -> None:
    copies, alike = task_of().interface, task_of(OOVTarget.UNKNOWN).interface
    assert (copies.signature, alike.signature) == (TRANSLATION_WITH_COPYING, TRANSLATION)
    # Two names of each of three facts and of one sentence that does not count.
    assert copies.vocabularies["joint"] - copies.vocabularies["source"] == 8
    assert alike.vocabularies == {"joint": copies.vocabularies["source"]}


@pytest.mark.parametrize("unseen", OOVTarget)
def test_a_batch_has_articles_and_their_summaries_one_step_apart(unseen: OOVTarget) -> None:
    task = task_of(unseen)
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    words = len(task.lexicon.words)
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    assert any(
        (task.training_batches(seed)[step]["source"] != batch["source"]).any() for seed, step in ((3, 8), (4, 7))
    )
    assert batch["source"].max() < words
    for row in range(4):
        labels = batch["labels"][row].tolist()
        length = labels.index(END)
        assert batch["target"][row].tolist() == [BEGIN, *labels[:length], *[PAD] * (len(labels) - length - 1)]
        if unseen is OOVTarget.UNKNOWN:
            assert "copied" not in batch
            assert max(labels) < words
            continue
        copied, source = batch["copied"][row], batch["source"][row]
        np.testing.assert_array_equal((copied >= words), source == UNKNOWN)
        np.testing.assert_array_equal(np.where(copied < words, copied, UNKNOWN), source)
        assert {label for label in labels if label >= words} <= set(copied.tolist())
        assert UNKNOWN not in labels
    assert task.denominators(batch)["tokens"] == (batch["labels"] != PAD).sum()


def test_what_is_held_out_has_names_that_are_never_trained_on() -> None:
    task = task_of()
    (evaluation,) = (each for each in task.evaluations if (each.name, each.split) == ("summaries of 3", "test"))
    assert sum(len(batch["source"]) for batch in evaluation.batches) == 8
    rows = np.concatenate([batch["labels"] for batch in evaluation.batches])
    # The references themselves: everything is right.
    report = evaluation.finish({}, {"tokens": rows})
    assert report.scalars["exact_match/3"] == report.scalars["oov_recall/3"] == report.scalars["rouge_l/3"] == 1
    texts = [sample["source"].split() for sample in report.samples]
    texts += [article.words for article in task._probe_articles]
    assert [sample["target"].split().count(".") for sample in report.samples] == [3] * len(report.samples)
    fresh = [word for text in texts for word in text if word not in task.lexicon.word_ids]
    assert len(fresh) > 15
    assert all(map(is_held_out, fresh))


def test_each_name_is_linked_to_its_place_and_origins_have_names() -> None:
    task = task_of()
    sites = (
        FAMILIES["experiments.summarization.model"]
        .build(
            FAMILIES["experiments.summarization.model"].config_class(width=2, embedding_width=2),
            task.interface,
            Precision(),
        )
        .sites
    )
    labels = task.axis_labels(sites).with_axis_names(sites)
    assert labels.tokens["origin"] == (("written", "copied"),) * 2
    assert labels.gold_alignments is not None
    (links,) = labels.gold_alignments.values()
    for words, said, of_row in zip(labels.tokens["source"], labels.tokens["target"], links, strict=True):
        assert said[-1] == "<end>"
        assert [said[link.query] for link in of_row] == [words[link.key] for link in of_row]
        assert len(of_row) == 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("unseen", OOVTarget)
def test_a_text_is_summarized_with_words_of_its_own(unseen: OOVTarget, options: dict) -> None:
    task = task_of(unseen)
    view = view_of(task)
    answers = task.predict(
        view, PredictionRequest(["The mill near Oslo now belongs to Ann-Marie.", "Ben runs"], decoding=options)
    )
    texts = answers.labels.tokens["source"]
    assert texts == (("the", "mill", "near", "Oslo", "now", "belongs", "to", "Ann-Marie", "."), ("Ben", "runs"))
    for line, text in zip(answers.lines, texts, strict=True):
        beyond = set(line.split()) - set(task.lexicon.words)
        assert beyond <= (set(text) if unseen is OOVTarget.COPIED else set())
    labels = answers.labels.with_axis_names(view.model.sites)
    maps = answers.capture_maps(Capture(tuple(site.name for site in view.model.sites)))
    for site in view.model.sites:
        for row, words in enumerate(labels.tokens["target"]):
            weights = np.asarray(maps[site.name].weights)[0, row, 0, : len(words)]
            np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_what_is_written_and_what_is_copied_are_the_words_of_the_summary_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = task_of()
    (evaluation,) = (each for each in task.evaluations if (each.name, each.split) == ("copying", "validation"))
    (batch, *_), words = evaluation.batches, len(task.lexicon.words)
    batch = {**batch, "labels": np.int32([[5, words, 6, END], [words + 1, END, PAD, PAD]])}
    p_gen = np.float32([[0.25, 0.5, 0.75, 1], [0.125, 0.5, 100, 100]])
    aux = SimpleNamespace(extras={"p_gen": p_gen})
    monkeypatch.setattr(task, "score_target", lambda *given: (None, aux, {}))
    sums, _ = evaluation.step(None, batch, None)
    assert {name: float(value) for name, value in sums.items()} == {
        "copied": 0.625,
        "copied_words": 2,
        "written": 2.5,
        "written_words": 4,
    }


@pytest.mark.slow
def test_copying_is_measured_where_true_summaries_have_unseen_names() -> None:
    task = task_of()
    view = view_of(task)
    (evaluation,) = (each for each in task.evaluations if (each.name, each.split) == ("copying", "validation"))
    assert evaluation.applies(view.model.sites)
    assert not evaluation.applies(view_of(task_of(OOVTarget.UNKNOWN)).model.sites)
    sums = jax.device_get([evaluation.step(view, batch, jax.random.key(0))[0] for batch in evaluation.batches])
    labels = np.concatenate([batch["labels"] for batch in evaluation.batches])
    assert sum(each["copied_words"] for each in sums) == (labels >= len(task.lexicon.words)).sum()
    assert sum(each["written_words"] for each in sums) == ((labels > PAD) & (labels < len(task.lexicon.words))).sum()
    assert 0 < sums[0]["copied"] < sums[0]["copied_words"]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (" ", {}, "has no words to summarize"),
        ("to " * 60, {}, "has 60 words, and this run's articles at most"),
        ("one two three four five six seven eight nine", {}, "has 9 words that the vocabulary lacks.* at most 8"),
        ("Ben runs", {"num_samples": 2}, "leave out --target_language, --num_samples"),
        ("Ben runs", {"max_new_tokens": 999}, "--max_new_tokens=999: a summary has at most 46 words"),
    ],
)
def test_texts_that_are_no_articles_are_refused_in_one_line(text: str, options: dict, said: str) -> None:
    task = task_of()
    nothing = StateView(None, Variables({}, {}), {}, {}, np.int32(0), False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=said) as error:
        task.predict(nothing, PredictionRequest([text], decoding=options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min_facts": 3, "max_facts": 2}, "min_facts=3 and max_facts=2 must rise"),
        ({"eval_sizes": ()}, r"eval_sizes=\(\) must hold at least a value"),
        ({"eval_sizes": (9,)}, f"at most {len(KINDS)} facts"),
        ({"oov_prob": 1.5}, "oov_prob=1.5 must be at most 1"),
        ({"oov_prob": 0.0, "num_known_names": 3}, "num_known_names=3 must be at least 14 if oov_prob=0"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_articles_that_cannot_be_drawn_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        SummarizationConfig(**wrong)


def test_a_model_with_fewer_positions_than_a_summary_may_have_is_refused() -> None:
    """Summaries have room to say more than is true, which articles of facts alone are too short to show."""
    task = Summarization(
        SummarizationConfig(
            max_facts=8, num_fillers=0, eval_sizes=(8,), batch_size=1, num_eval_examples=1, oov_target=OOVTarget.UNKNOWN
        )
    )
    shortest = max(given.positions or 0 for given in task.interface.inputs.values())
    family = FAMILIES["encoder_decoder"]
    with pytest.raises(UserError, match=f"more than config.model.max_length={shortest}"):
        family.build(family.config_class(width=8, heads=2, max_length=shortest), task.interface, Precision())


def test_summaries_of_facts_are_what_the_labels_say() -> None:
    task = task_of()
    for article, words in zip(task._probe_articles, task.axis_labels(()).tokens["target"], strict=True):
        assert list(words[:-1]) == write_summary(article.facts)
