"""The toys: tasks and families of under sixty lines in files of this folder."""

from typing import Any

import jax
import numpy as np

from tests.contracts.case import Case, Metric, falls
from tests.contracts.library_cases import TRANSLATION
from transformer.models.model import leaves_by_path
from transformer.training.state import TrainState


def toy(task: str, family: str = "") -> dict[str, dict[str, Any]]:
    """The config of a task and a family in files of their own."""
    return {"task": {"name": f"{__package__}.{task}"}, "model": {"family": f"{__package__}.{family or task}"}}


def baseline_follows_the_reward(state: TrainState) -> None:
    assert 0.6 < float(state.task_state["baseline"]) <= 1


def direction_is_the_largest_singular_one(state: TrainState) -> None:
    kernel = np.asarray(state.variables.params["critic"]["expand"]["kernel"])
    right = np.linalg.svd(kernel)[2][0]
    assert abs(right @ np.asarray(state.variables.state["critic"].u)) > 0.99
    assert set(state.averages["target"]) == {
        path for path in leaves_by_path(state.variables.params) if "generator" in path
    }


def statistics_have_moved(state: TrainState) -> None:
    mean, variance = jax.tree.map(np.asarray, state.variables.state["norm"])
    assert np.abs(mean).max() > 0.01
    # All but a few of 64 features vary less than the ones that the statistics began with.
    assert np.mean(variance < 0.5) > 0.9


DESCENT = {"algorithm": "adam", "learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0, "beta1": 0.5}

TOYS = (
    Case(
        "pointer",
        **toy("pointer"),
        steps=120,
        metric=Metric("train", "accuracy", lambda first, last: last > 0.95 and first < 0.9),
        attends=0.95,
        # Rounding alone makes 1.2e-6 of the loss of step 14 on the mesh of tensor and sequence.
        rounding=3e-6,
        meshes=("fsdp", "sequence"),
        daily=("plain", "resumed", "mapped", "vectorized"),
        keeps_tree=True,
    ),
    Case(
        "hard_attention",
        **toy("hard_attention"),
        steps=200,
        learning_rate=0.03,
        metric=Metric("train", "reward", lambda first, last: last > 0.8 and first < 0.5),
        holds=baseline_follows_the_reward,
        attends=0.95,
        sampled="every microbatch draws its own glimpses: equal in expectation alone",
        meshes=("data", "tensor"),
        daily=("plain", "resumed", "accumulated", "mapped", "vectorized"),
        keeps_tree=True,
    ),
    Case(
        "two_players",
        **toy("two_players", "players"),
        steps=200,
        metric=Metric("validation", "distance", lambda first, last: last < 0.4 and last < 0.7 * first),
        # Each player answers the other's rounding, and scores are small sums of large terms.
        rounding=3e-5,
        # Long enough that the players' going around one another averages out, whatever they began with.
        averages={"target": {"kind": "exponential", "decay": 0.97, "patterns": ("generator/*",)}},
        # Two time scales (Heusel et al. 2017): the critic is quicker. On this road no score meets the kink of the hinge
        # within the steps that meshes compare, where rounding alone would send the players apart.
        rates={"generator": 0.5},
        holds=direction_is_the_largest_singular_one,
        daily=(),  # paired_digits x sagan has two players by day
        keeps_tree=True,
    ),
    Case(
        "pointer from another run",
        **toy("pointer"),
        steps=20,
        learning_rate=0.001,
        begins_from={**toy("pointer"), "steps": 100, "optimizer": DESCENT},
        # Where it stands from the first step on; the run that it begins from started at 0.4.
        metric=Metric("train", "accuracy", lambda first, last: first > 0.9 and last > 0.95),
        daily=(),
        keeps_tree=True,
    ),
    Case(
        "memory",
        **toy("memory"),
        steps=60,
        learning_rate=0.03,
        metric=falls("auxiliary/sharpness", to=0.5),
        meshes=("sequence", "tensor"),
        keeps_tree=True,
    ),
    Case(
        "patches",
        **toy("patches"),
        steps=60,
        learning_rate=0.03,
        metric=Metric("train", "accuracy", lambda first, last: last > 0.95 and first < 0.9),
        meshes=("fsdp", "data"),
        daily=(),  # image_classification x vit reads patches by day
        keeps_tree=True,
    ),
    Case(
        "normed_translator",
        TRANSLATION,
        {"family": f"{__package__}.normed_translator", "width": 16},
        steps=24,
        metric=falls("cross_entropy"),
        holds=statistics_have_moved,
        sampled="every microbatch has its own statistics: those of the large batch are not their mean",
        daily=(),  # paired_digits x sagan keeps statistics by day
        keeps_tree=True,
    ),
)
