"""The table of the contracts: every toy, and every registered task on every registered model."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.contracts import hard_attention, players, pointer, two_players
from transformer.axes import Placement
from transformer.training.averages import Average, AverageKind
from transformer.training.experiment import Setting, assemble, resolve
from transformer.training.state import TrainState, by_path

TRANSLATION = {
    "name": "contract",
    "steps": 1,
    "task": {
        "name": "translation",
        "dataset": "phrases/train=64,validation=16,test=16",
        "vocabulary": 200,
        "lengths": (48,),
        "tokens_per_batch": 16 * 48,
        "probed": 3,
    },
    "model": {
        "family": "encoder_decoder",
        "embedding_rows": 200,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.0,
        "longest": 48,
    },
    "optimizer": {},
}

LANGUAGE_MODELLING = {
    "name": "contract",
    "steps": 1,
    "task": {
        "name": "language_modelling",
        "dataset": "python_docs",
        "tokenizer": "characters",
        "batching": "packed",
        "context": 32,
        "rows": 16,
        "prompts": ("The ",),
        "continued": 4,
        "probed": 3,
        "probed_length": 12,
    },
    "model": {
        "family": "decoder",
        "embedding_rows": 128,
        "layers": 2,
        "width": 16,
        "heads": 4,
        "key_heads": 2,
        "feed_forward": 32,
        "activation": "swiglu",
        "norm": "rms",
        "positions": "rotary_halves",
        "biases": "none",
        "longest": 36,
    },
    "optimizer": {},
}

MASKED_LANGUAGE_MODELLING = LANGUAGE_MODELLING | {
    "task": {
        "name": "masked_language_modelling",
        "dataset": "python_docs",
        "tokenizer": "bytes",
        "context": 32,
        "rows": 16,
        "probed": 3,
        "probed_length": 12,
    },
    "model": {
        "family": "encoder",
        "embedding_rows": 264,
        "layers": 2,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "longest": 32,
    },
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table.

    `metric` is (split, name, what must hold of its first and last report). `holds` asserts what else is true of the
    last state. `attends`: the share of queries that look where they should by the end. `sampled` says why
    accumulation cannot equal the large batch. `rounding`: how far, relatively, losses may drift apart over some steps
    that are computed in another order.
    """

    name: str
    assemble: Callable[[Path, Placement], Setting]
    steps: int
    learning_rate: float
    metric: tuple[str, str, Callable[[float, float], bool]]
    averages: Mapping[str, Average] = dataclasses.field(default_factory=dict)
    holds: Callable[[TrainState], None] = lambda state: None
    attends: float = 0.0
    sampled: str = ""
    rounding: float = 1e-6


def toy(task: Any, model: Any) -> Callable[[Path, Placement], Setting]:
    return lambda folder, placement: Setting(task(), model(), {}, placement, None, None)  # type: ignore[arg-type]


def registered(config: Mapping[str, Any]) -> Callable[[Path, Placement], Setting]:
    return lambda folder, placement: assemble(resolve(config), folder, placement)


def baseline_follows_the_reward(state: TrainState) -> None:
    assert 0.6 < float(state.extra["baseline"]) <= 1


def direction_is_the_largest_singular_one(state: TrainState) -> None:
    kernel = np.asarray(state.variables.params["critic"]["expand"]["kernel"])
    right = np.linalg.svd(kernel)[2][0]
    assert abs(right @ np.asarray(state.variables.state["critic"].u)) > 0.99
    assert set(state.averages["target"]) == {path for path in by_path(state.variables.params) if "generator" in path}


CASES = (
    Case(
        "pointer",
        toy(pointer.WhereIsIt, pointer.model),
        steps=120,
        learning_rate=0.01,
        metric=("train", "accuracy", lambda first, last: last > 0.95 and first < 0.9),
        attends=0.95,
    ),
    Case(
        "hard_attention",
        toy(hard_attention.FindTheMark, hard_attention.model),
        steps=200,
        learning_rate=0.03,
        metric=("train", "reward", lambda first, last: last > 0.8 and first < 0.5),
        holds=baseline_follows_the_reward,
        attends=0.95,
        sampled="every micro-batch draws its own glimpses: equal in expectation alone",
    ),
    Case(
        "two_players",
        toy(two_players.Duel, players.model),
        steps=200,
        learning_rate=0.01,
        metric=("validation", "distance", lambda first, last: last < 0.4 and last < 0.7 * first),
        # Each player answers the other's rounding, and scores are small sums of large terms.
        rounding=3e-5,
        # Long enough that the players' going around one another averages out, whatever they began with.
        averages={"target": Average(AverageKind.EXPONENTIAL, decay=0.97, patterns=("generator/*",))},
        holds=direction_is_the_largest_singular_one,
    ),
    Case(
        "translation x encoder_decoder",
        registered(TRANSLATION),
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
        averages={"mean": Average(AverageKind.MEAN, start=16, every=4)},
    ),
    Case(
        "language_modelling x decoder",
        registered(LANGUAGE_MODELLING),
        steps=24,
        learning_rate=0.01,
        metric=("train", "cross_entropy", lambda first, last: last < 0.9 * first),
    ),
    Case(
        "masked_language_modelling x encoder",
        registered(MASKED_LANGUAGE_MODELLING),
        steps=24,
        learning_rate=0.01,
        metric=("train", "loss", lambda first, last: last < 0.9 * first),
    ),
)
