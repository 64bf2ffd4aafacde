"""The reward of whole translations, and the gradient of its expectation, against enumeration."""

import dataclasses
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.gradients import check_gradient
from tests.models.random_models import fresh_variables
from tests.tasks.test_translation import CONFIG, PAD, PAIRS
from transformer.attention import Normalizer
from transformer.config import UserError
from transformer.data.tokenizers.train_tokenizer import train_bpe
from transformer.layers.functional_module import Precision
from transformer.models.recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from transformer.models.registry import build
from transformer.tasks.sequence_level_training import (
    SequenceObjective,
    expected_reward_surrogate,
    gleu,
    is_first_occurrence,
)
from transformer.tasks.task import StateView
from transformer.tasks.translation import Translation
from transformer.tasks.translation_data import TranslationConfig, TranslationSplit, encode_pairs


def counted_gleu(output: list[int], reference: list[int]) -> float:
    """From Counters of n-grams, as the paper's sentence says it."""
    told: Counter = Counter()
    wanted: Counter = Counter()
    for size in range(1, 5):
        told.update(tuple(output[i : i + size]) for i in range(len(output) - size + 1))
        wanted.update(tuple(reference[i : i + size]) for i in range(len(reference) - size + 1))
    both = (told & wanted).total()
    return both / max(told.total(), wanted.total()) if told or wanted else 1.0


def padded(rows: list[list[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.zeros((len(rows), width), np.int32)
    for row, said in zip(tokens, rows, strict=True):
        row[: len(said)] = said
    return tokens, np.arange(width) < np.array([[len(said)] for said in rows])


def test_the_reward_counts_shared_n_grams_as_often_as_both_have_them() -> None:
    rng = np.random.default_rng(0)
    outputs = [rng.integers(1, 4, rng.integers(0, 9)).tolist() for _ in range(60)]
    references = [rng.integers(1, 4, rng.integers(0, 12)).tolist() for _ in range(60)]
    outputs += [[], [1], [1, 2, 3, 1, 2], [1, 2]]
    references += [[], [1], [1, 2, 3, 1, 2], [2, 1]]
    found = gleu(*padded(outputs, 9), *padded(references, 12))
    expected = [counted_gleu(*pair) for pair in zip(outputs, references, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.asarray(found)[-4:].tolist() == pytest.approx([1, 1, 1, 2 / 3])
    # What stands in padding is no part of a sentence.
    tokens, real = padded(outputs, 9)
    np.testing.assert_array_equal(gleu(np.where(real, tokens, 2), real, *padded(references, 12)), found)


def test_which_sequences_are_new() -> None:
    tokens = np.array([[[1, 2], [1, 2], [2, 1], [1, 2], [2, 1]], [[1, 1], [1, 2], [2, 1], [2, 2], [1, 1]]])
    assert is_first_occurrence(jnp.asarray(tokens)).tolist() == [
        [True, False, True, False, False],
        [True, True, True, True, False],
    ]


def test_reinforce_follows_the_gradient_of_the_expected_reward() -> None:
    """Over all ways to draw two of five sequences: half of the exact gradient, since each draw is part of the mean."""
    rng = np.random.default_rng(1)
    logits, rewards = rng.normal(size=5), rng.random(5)

    def estimate(logits: jax.Array, drawn: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(logits)[drawn][None]
        members = jnp.ones((1, 2), bool)
        return expected_reward_surrogate(
            SequenceObjective.REINFORCE, log_p, jnp.asarray(rewards)[drawn][None], members, 1.0
        )[0]

    with jax.enable_x64(True):
        p = np.exp(logits) / np.exp(logits).sum()
        gradient = jax.jit(jax.grad(estimate))
        mean = sum(
            p[i] * p[j] * np.asarray(gradient(jnp.asarray(logits), jnp.array([i, j])))
            for i, j in itertools.product(range(5), repeat=2)
        )
    exact = p * (rewards - p @ rewards)
    np.testing.assert_allclose(mean, exact / 2, rtol=1e-10)


def test_the_minimum_risk_is_the_mean_reward_of_what_counts() -> None:
    rng = np.random.default_rng(2)
    log_p, rewards = -10 * rng.random((3, 4)), rng.random((3, 4))
    members = np.array([[True] * 4, [True, False, True, False], [False, False, True, False]])
    found = expected_reward_surrogate(SequenceObjective.MRT, jnp.asarray(log_p), jnp.asarray(rewards), members, 0.3)
    for row, (of_row, reward, counts) in enumerate(zip(log_p, rewards, members, strict=True)):
        weights = np.exp(of_row[counts]) ** 0.3
        assert float(found[row]) == pytest.approx(float(weights @ reward[counts] / weights.sum()), rel=1e-5)
    with jax.enable_x64(True):
        check_gradient(
            lambda log_p: expected_reward_surrogate(SequenceObjective.MRT, log_p, rewards, members, 0.3), (log_p,)
        )


def task_of(expectation: SequenceObjective) -> tuple[Translation, StateView]:
    tokenizer = train_bpe(10 * [text for pair in PAIRS for text in (pair.source, pair.target)], 60)
    splits = {
        name: TranslationSplit(name, PAIRS, encode_pairs(tokenizer, PAIRS)) for name in ("train", "validation", "test")
    }
    config = dataclasses.replace(CONFIG, objective=expectation, num_samples=3, nll_weight=0.25, mrt_alpha=0.4)
    task = Translation(config, tokenizer, splits)
    model = build(RecurrentEncoderDecoderConfig(width=8, embedding_width=4), task.interface, Precision())
    return task, StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=True)


@pytest.mark.slow
@pytest.mark.parametrize("expectation", [SequenceObjective.REINFORCE, SequenceObjective.MRT])
def test_the_loss_is_made_of_the_models_own_translations(expectation: SequenceObjective) -> None:
    task, view = task_of(expectation)
    given = dict(task.training_batches(seed=1)[0])
    labels = given["labels"] = np.array(given["labels"])
    labels[-1] = PAD  # a row that only fills the batch up
    batch, extra = jax.jit(lambda batch: task.prepare_batch(view, batch, jax.random.key(3)))(given)
    assert extra == {}
    drawn, rewards = np.asarray(batch["drawn"]), np.asarray(batch["rewards"])
    front = 1 if expectation is SequenceObjective.MRT else 0
    assert drawn.shape == (len(labels), 3 + front, labels.shape[1])
    if front:
        assert (drawn[:, 0] == labels).all()
        assert (rewards[:, 0] == 1).all()
        assert batch["counted"].tolist()[:-1] == np.asarray(is_first_occurrence(jnp.asarray(drawn))).tolist()[:-1]
    assert not np.asarray(batch["counted"])[-1].any()
    words = lambda row: [int(token) for token in row if token not in (PAD, task.interface.eos_id)]  # noqa: E731
    assert rewards[0].tolist() == pytest.approx([counted_gleu(words(row), words(labels[0])) for row in drawn[0]])

    denominators = task.denominators(batch)
    assert float(denominators["drawn"]) == 3 * (len(labels) - 1)
    (objective,) = task.objectives
    loss, aux = jax.jit(lambda batch: objective.loss_fn(view, batch, denominators, jax.random.key(4)))(batch)
    assert float(aux.metrics["sample_reward"]) == pytest.approx(rewards[:-1, front:].mean(), rel=1e-5)

    worth = 0.0
    for row in range(len(labels) - 1):
        log_p = np.zeros(len(drawn[row]))
        for number, said in enumerate(drawn[row]):
            target = [task.interface.bos_id, *said[:-1]]
            inputs = {"source": given["source"][row : row + 1], "target": np.array([target], np.int32)}
            logits = np.asarray(programs.apply(view.model, view.variables, inputs, train=False)[0][0], np.float64)
            every = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            log_p[number] = sum(every[place, token] for place, token in enumerate(said) if token != PAD)
        counts = np.asarray(batch["counted"])[row]
        if front:
            weights = np.exp(0.4 * log_p) * counts
            worth += weights @ rewards[row] / weights.sum()
        else:
            worth += (rewards[row] - rewards[row].mean()) @ log_p / 3
    plain, _ = task_of(SequenceObjective.NLL)
    of_given = plain.denominators(given)
    of_reference = jax.jit(lambda given: plain.objectives[0].loss_fn(view, given, of_given, jax.random.key(4))[0])(
        given
    )
    expected = 0.25 * float(of_reference) - worth / float(denominators["tokens"])
    assert float(loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_reward_of_the_validation_split_is_that_of_its_draws() -> None:
    task, view = task_of(SequenceObjective.MRT)
    (evaluation,) = (each for each in task.evaluations if each.name == "reward")
    assert (evaluation.split, evaluation.at_end) == ("validation", False)
    key, (batch, *others) = jax.random.key(5), evaluation.batches
    assert not others
    sums, prepared = jax.jit(lambda: (evaluation.step(view, batch, key)[0], task.prepare_batch(view, batch, key)[0]))()
    real = (np.asarray(batch["labels"]) != PAD).any(axis=1)
    assert 0 < real.sum() <= CONFIG.num_decoded_examples
    found = evaluation.finish({name: float(value) for name, value in sums.items()}, None).scalars
    assert found == {"sample_reward": pytest.approx(np.asarray(prepared["rewards"])[real, 1:].mean(), rel=1e-5)}


@pytest.mark.slow
def test_a_model_whose_attention_draws_is_refused() -> None:
    task, _ = task_of(SequenceObjective.REINFORCE)
    model = build(
        RecurrentEncoderDecoderConfig(width=8, embedding_width=4, normalizer=Normalizer.HARD),
        task.interface,
        Precision(),
    )
    view = StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=True)
    with pytest.raises(UserError, match=r"config\.task\.objective=reinforce draws translations"):
        task.init_task_state(view, jax.random.key(0))


@pytest.mark.parametrize(("name", "value"), [("num_samples", 0), ("nll_weight", -1.0), ("mrt_alpha", -0.1)])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"config.task.{name}={value}"):
        TranslationConfig(**{name: value})
