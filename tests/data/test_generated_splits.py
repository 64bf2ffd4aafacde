"""No example of a generated set stands in two splits, at the sets' defaults and at small sizes."""

import collections
import functools
import itertools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.attention_probes.task import CORPORA
from experiments.few_shot.data import open_character_set
from experiments.text_retrieval.data import generate_number_words
from transformer.config import UserError
from transformer.data.datasets.example_splits import hash_split
from transformer.data.datasets.fine_tuning import open_examples
from transformer.data.datasets.image_datasets import open_image_dataset
from transformer.data.datasets.question_answering import open_questions
from transformer.data.datasets.synthetic_fine_tuning import PROBLEMS, sample_splits
from transformer.data.datasets.text import open_text_dataset
from transformer.data.datasets.translation import open_translation_dataset
from transformer.data.datasets.word_labels import open_word_labels
from transformer.data.labeled_text_batches import LabeledExample
from transformer.tasks.registry import build_task, task_config

Splits = Mapping[str, Sequence[Hashable]]


def test_a_tenth_of_all_texts_is_for_the_test_and_a_twentieth_validates() -> None:
    counts = collections.Counter(hash_split(f"text {number}") for number in range(20_000))
    shares = {split: count / counts.total() for split, count in counts.items()}
    assert shares == pytest.approx({"train": 0.85, "validation": 0.05, "test": 0.1}, abs=0.01)


def pairs(name: str) -> Splits:
    opened = open_translation_dataset(name, prepared_dir="unused")
    return {split: [(pair.source, pair.language) for pair in opened.split(split)] for split in SPLITS}


def texts(name: str) -> Splits:
    """Lines of a document that has several, as digit_words' has, else documents."""
    opened = open_text_dataset(name, prepared_dir="unused")
    return {split: [line for text in opened.split(split) for line in text.splitlines()] for split in SPLITS}


@functools.cache
def opened_examples(name: str) -> Mapping[str, Sequence[LabeledExample]]:
    return open_examples(name)


def examples(name: str) -> Splits:
    return {split: [each.texts for each in of_split] for split, of_split in opened_examples(name).items()}


def words(name: str) -> Splits:
    return {split: [each.words for each in of_split] for split, of_split in open_word_labels(name).items()}


def questions(name: str) -> Splits:
    return {
        split: [(each.question, each.context) for each in of_split] for split, of_split in open_questions(name).items()
    }


def images(name: str) -> Splits:
    opened = open_image_dataset(name)
    return {split: [image.tobytes() for image in opened.split(split).pixels] for split in SPLITS}


def numbers(options: str) -> Splits:
    return {split: [each.source for each in of_split] for split, of_split in generate_number_words(options).items()}


def characters(name: str) -> Splits:
    opened = open_character_set(name, data_dir=None, image_size=20)
    return {split: [drawing.tobytes() for each in opened.splits[split] for drawing in each] for split in SPLITS}


SPLITS = ("train", "validation", "test")
OPENED: Mapping[str, tuple[Callable[[str], Splits], tuple[str, ...]]] = {
    "pairs": (
        pairs,
        (
            *("phrases/train=2000", "help_desk", "copy", "reversal"),
            "phrases/train=300,validation=40,test=40",
            "help_desk/train=300,validation=40,test=40",
            "copy/length=3,num_symbols=6,train=200,validation=20,test=20",
            "copy/length=24,min_length=2,test_length=24,num_symbols=16,train=96000",
            "reversal/length=5,min_length=1,num_symbols=9,test_length=3,train=400,validation=30,test=30",
        ),
    ),
    "texts": (
        texts,
        (
            *("digit_words", "repeated"),
            "repeated/num_symbols=4,min_segment_length=2,max_segment_length=4,length=12,train=200,validation=30,test=30",
        ),
    ),
    "examples": (
        examples,
        (
            *("word_order", *(f"grammar/{problem}" for problem in PROBLEMS)),
            *(f"grammar/{problem}/train=64,validation=16,test=16" for problem in PROBLEMS),
            "word_order/max_length=4,train=64,validation=16,test=16",
        ),
    ),
    "words": (words, ("grammar/entities", "grammar/entities/train=64,validation=16,test=16")),
    "questions": (questions, ("grammar/unanswerable_questions", "grammar/questions/train=200,validation=20,test=20")),
    "images": (images, ("digits/train=500,validation=50,test=100", "digits/size=8,train=64,validation=16,test=16")),
    "numbers": (numbers, ("", "train=64,validation=16,test=16")),
    "characters": (characters, ("strokes/train=6,validation=2,test=2",)),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, (_, names) in OPENED.items() for name in names],
    ids=lambda each: each or "-",
)
def test_no_example_of_a_generated_set_stands_in_two_splits(kind: str, name: str) -> None:
    splits = OPENED[kind][0](name)
    assert all(splits[split] for split in SPLITS)
    for first, second in itertools.combinations(SPLITS, 2):
        shared = {*splits[first]} & {*splits[second]}
        assert not shared, f"{len(shared)} of {second} in {first}: {min(shared, key=repr)!r}"


def taller(text: str) -> frozenset[tuple[str, ...]]:
    """Who is taller than whom, in any order and in either direction."""
    stated = re.findall(r"(\w+) is (taller|smaller) than (\w+)", text)
    return frozenset((a, b) if how == "taller" else (b, a) for a, how, b in stated)


def meaning(problem: str, texts: Sequence[str]) -> Hashable:
    """What a text of the grammars says, however it is ordered."""
    match problem:
        case "acceptability":
            return texts[0].removesuffix("s")
        case "entailment":
            return taller(texts[0]), texts[1]
        case "similarity":
            return frozenset(frozenset(text.split(" and ")) for text in texts)
        case _:
            return taller(texts[0]), texts[0].split(" . ")[1], frozenset(texts[1:])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_nothing_that_is_tested_is_trained_on_in_other_words(problem: str) -> None:
    opened = opened_examples(f"grammar/{problem}")
    said = {split: {meaning(problem, each.texts) for each in of_split} for split, of_split in opened.items()}
    for first, second in itertools.combinations(SPLITS, 2):
        assert not said[first] & said[second]
    # A table of what is trained on knows no answer.
    assert len(said["test"]) > 10


def held_out_and_trained(
    section: Mapping[str, Any], folder: Path, evaluation_name: str, steps: int
) -> tuple[dict[str, set[bytes]], set[bytes]]:
    """The texts of an evaluation by split, and those of some training batches."""
    task = build_task(task_config(section), folder)
    held_out = {
        evaluation.split: {row.tobytes() for batch in evaluation.batches for row in batch["tokens"]}
        for evaluation in task.evaluations
        if evaluation.name == evaluation_name
    }
    source = task.training_batches(1)
    return held_out, {row.tobytes() for step in range(steps) for row in source[step]["tokens"]}


SMALL_CORPORA = (
    "two_offset_copy/num_kinds=2,far_offset=2,num_questions=2",
    "retrieval/max_pairs=3,num_letters=3,num_digits=3,num_questions=2",
    "sorting/num_letters=3",
    "agreement/max_attractors=1",
    "brackets/num_kinds=2,max_depth=2,max_length=10",
)


@pytest.mark.parametrize("dataset", [*CORPORA, *SMALL_CORPORA])
def test_no_text_of_a_probe_corpus_is_of_two_splits(dataset: str, tmp_path: Path) -> None:
    small = {"batch_size": 16, "num_eval_examples": 32} if "/" in dataset else {}
    direction = {"direction": "bidirectional"} if "clue" in dataset else {}
    section = {"name": "experiments.attention_probes.task", "dataset": dataset, **small, **direction}
    held_out, trained = held_out_and_trained(section, tmp_path, "marks", 10)
    assert not held_out["validation"] & held_out["test"]
    assert not (held_out["validation"] | held_out["test"]) & trained


def test_no_news_is_of_two_splits(tmp_path: Path) -> None:
    held_out, trained = held_out_and_trained({"name": "experiments.news_articles.task"}, tmp_path, "loss", 20)
    assert not held_out["validation"] & held_out["test"]
    assert not (held_out["validation"] | held_out["test"]) & trained


@pytest.mark.parametrize(
    ("open_set", "name"),
    [
        (examples, "word_order/max_length=3"),
        (pairs, "copy/length=1,num_symbols=2"),
        (texts, "repeated/num_symbols=2,min_segment_length=2,max_segment_length=2,length=4"),
    ],
)
def test_a_set_that_is_too_small_to_hold_out_anything_is_refused(open_set: Callable[[str], Splits], name: str) -> None:
    with pytest.raises(UserError, match=f"{name.partition('/')[0]} has too few different examples to hold some out"):
        open_set(name)


def test_a_corpus_that_is_too_small_to_hold_out_anything_is_refused(tmp_path: Path) -> None:
    section = {
        "name": "experiments.attention_probes.task",
        "dataset": "retrieval/max_pairs=2,num_letters=2,num_digits=2,num_questions=1",
    }
    with pytest.raises(UserError, match=r"retrieval/.* has too few different examples .* none is left for validation"):
        build_task(task_config(section), tmp_path)


def test_no_long_sequence_of_bits_is_trained_on_and_short_ones_are(tmp_path: Path) -> None:
    """There are four sequences of one vector of two bits."""
    values = {"name": "experiments.neural_turing_machine.task", "num_bits": 2, "max_size": 8, "eval_sizes": (1, 30)}
    task = build_task(task_config({**values, "num_eval_examples": 16, "num_probe_examples": 2}), tmp_path)
    tested = {
        evaluation.name: {row.tobytes() for row in np.asarray(evaluation.batches[0]["vectors"])}
        for evaluation in task.evaluations
        if evaluation.split == "test"
    }
    source = task.training_batches(1)
    batches = [np.asarray(source[step]["vectors"]) for step in range(60)]
    trained = {row[:3].tobytes() for batch in batches for row in batch if not row[3:].any()}
    assert len(tested["size_1"]) <= 4
    assert tested["size_1"] & trained
    assert len(tested["size_30"]) == 16
    assert batches[0].shape[1] < 61  # the longest of training


def test_of_a_set_of_many_examples_training_leaves_out_what_is_held_out() -> None:
    def sample(random: np.random.Generator) -> list[int]:
        return [int(random.integers(40))]

    splits = sample_splits("numbers", "train=200,validation=4,test=6", sample)
    assert [len(splits[split]) for split in SPLITS] == [200, 4, 6]
    assert len({*splits["train"]}) == 40 - len({*splits["validation"], *splits["test"]})
    assert not {*splits["validation"]} & {*splits["test"]}
    with pytest.raises(UserError, match=r"numbers has too few different examples .* none is left for validation"):
        sample_splits("numbers", "test=1000", sample)
