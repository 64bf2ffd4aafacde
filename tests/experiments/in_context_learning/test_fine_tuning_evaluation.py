"""Fine-tuning on the pairs of an episode, against Adam on a table of bigrams by hand."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.in_context_learning.data import Episode, Pair
from experiments.in_context_learning.fine_tuning_evaluation import count_correct_after_fine_tuning, make_pair_rows
from experiments.in_context_learning.task import InContextLearningConfig, Problem, build_synthetic_task
from transformer.config import UserError
from transformer.data.tokenizers.train_tokenizer import character_tokenizer
from transformer.models.model import Variables

TOKENIZER = character_tokenizer(["abcABC>;"])
EPISODES = (
    Episode((Pair("ab", "BA"), Pair("ba", "AB"), Pair("bb", "BB")), "reverse"),
    Episode((Pair("a", "A"), Pair("cab", "CAB"), Pair("cc", "CC")), "capitals"),
)
BIGRAMS: Any = SimpleNamespace(apply=lambda variables, inputs, train: (variables.params[inputs["tokens"]], None))


def test_rows_are_single_pairs_and_mark_their_answers() -> None:
    rows = make_pair_rows(TOKENIZER, EPISODES, 9)
    assert rows["lengths"].tolist() == [[5, 5, 5], [3, 7, 5]]
    for episode, tokens, labels, answers in zip(EPISODES, rows["tokens"], rows["labels"], rows["answers"], strict=True):
        for pair, read, following, answer in zip(episode.pairs, tokens, labels, answers, strict=True):
            size = len(pair.source) + len(pair.target) + 1
            assert TOKENIZER.decode(read[:size].tolist()) == f"{pair.source}>{pair.target}"
            assert TOKENIZER.decode(following[answer].tolist()) == f"{pair.target};"


def answer_by_hand(table: np.ndarray, rows: dict[str, np.ndarray], known: int, steps: int, rate: float) -> bool:
    """Whether a table of next-token logits has the answer of pair `known` after Adam on the pairs before it."""
    table, first, second = table.copy(), np.zeros_like(table), np.zeros_like(table)
    shown = rows["answers"][:known]
    before, after = rows["tokens"][:known][shown], rows["labels"][:known][shown]
    for step in range(1, steps + 1):
        gradient = np.zeros_like(table)
        for token, label in zip(before, after, strict=True):
            likelihoods = np.exp(table[token]) / np.exp(table[token]).sum()
            gradient[token] += (likelihoods - np.eye(len(table))[label]) / len(before)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        table -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    asked = rows["answers"][known]
    return bool((table[rows["tokens"][known][asked]].argmax(-1) == rows["labels"][known][asked]).all())


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.3), (20, 0.1)])
def test_answers_are_those_of_adam_by_hand(steps: int, rate: float) -> None:
    rows, shots = make_pair_rows(TOKENIZER, EPISODES, 9), (0, 1, 2)
    counts = []
    for seed in range(12):
        table = np.random.default_rng(seed).normal(size=(TOKENIZER.vocab_size,) * 2)
        counted = count_correct_after_fine_tuning(
            BIGRAMS,
            Variables(jnp.asarray(table), {}),
            {name: jnp.asarray(values) for name, values in rows.items()},
            shots,
            steps=steps,
            learning_rate=rate,
        )
        by_episode = [{name: values[number] for name, values in rows.items()} for number in range(len(EPISODES))]
        by_hand = [sum(answer_by_hand(table, each, known, steps, rate) for each in by_episode) for known in shots]
        np.testing.assert_array_equal(counted, by_hand)
        counts.append(by_hand)
    assert np.sum(counts) > 0 or steps == 1  # what was learned answers some


def test_the_task_evaluates_it_at_the_end_where_updates_are_asked_for() -> None:
    asked: dict[str, Any] = {"problem": Problem.STRING_EDITS, "alphabet_size": 8, "shots": (0, 2), "batch_size": 4}
    plain, tuned = (
        build_synthetic_task(InContextLearningConfig(**asked, num_eval_examples=8, fine_tuning_steps=steps)).evaluations
        for steps in (0, 3)
    )
    added = tuned[len(plain) :]
    assert [(each.split, each.name) for each in added] == [
        (split, f"{name}_fine_tuned") for split in ("validation", "test") for name in ("unseen", "seen")
    ]
    assert all(each.at_end for each in added)
    assert not any("fine_tuned" in each.name for each in plain)


def test_styles_have_nothing_to_fine_tune_on() -> None:
    with pytest.raises(UserError, match=r"config\.task\.fine_tuning_steps=3 says nothing of problem=style"):
        InContextLearningConfig(problem=Problem.STYLE, fine_tuning_steps=3)
