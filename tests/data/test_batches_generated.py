"""Batches that are drawn anew: what is held out is drawn by no step of a run."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.cases import CASES
from transformer.config import UserError
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, GeneratedBatches, random_generator
from transformer.tasks.registry import build_task, task_config

ROOT = Path(__file__).parents[2]
SEEDS, STEPS = range(10), 2001
# Its held-out episodes are of characters that training has not: its generators may be those of a run.
OF_OTHER_CHARACTERS = "experiments.few_shot.task"


def first_numbers(seed: int, steps: int) -> set[bytes]:
    drawn = GeneratedBatches(lambda random: {"bytes": np.frombuffer(random.bytes(16), np.uint8)}, seed)
    return {np.asarray(drawn[step]["bytes"]).tobytes() for step in range(steps)}


@pytest.mark.parametrize("seed", [0, 1, 2, 255, 256, 2**32 - 1])
def test_no_step_of_a_run_draws_what_is_held_out(seed: int) -> None:
    held_out = first_numbers(VALIDATION_SEED, 600) | first_numbers(TEST_SEED, 600)
    assert len(held_out) == 1200
    assert not first_numbers(seed, 1100) & held_out


@pytest.mark.parametrize("seed", [2**32, 2**40 + 1, 2**41 + 1, 2**40 + 2**31])
def test_no_seed_is_held_out_that_some_run_may_meet(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed {seed} is neither"):
        random_generator(seed, 0)


def state_of(random: np.random.Generator) -> int:
    state: dict[str, Any] = random.bit_generator.state  # type: ignore[assignment]
    return state["state"]["state"]


@functools.cache
def states_of_runs() -> frozenset[int]:
    """The initial states of the generators of all steps of all runs."""
    found = set()
    for seed in SEEDS:
        batches = GeneratedBatches(lambda random: {"state": np.array(state_of(random), object)}, seed)
        found |= {batches[step]["state"].item() for step in range(STEPS)}
    assert len(found) == len(SEEDS) * STEPS
    return frozenset(found)


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The initial states of the generators that are made from now on."""
    states: list[int] = []
    make = np.random.default_rng

    def recorded(seed: Any = None) -> np.random.Generator:
        random = make(seed)
        states.append(state_of(random))
        return random

    monkeypatch.setattr(np.random, "default_rng", recorded)
    return states


def drawn_anew() -> list[Any]:
    """The smallest configs of all tasks whose batches are drawn anew, one a task."""
    sections: dict[str, Mapping[str, Any]] = {}
    for case in CASES:
        section = case.config["task"]
        if section["name"].startswith("experiments."):
            sections.setdefault(json.dumps([section["name"], section.get("dataset", "")]), section)
    # Without curved strings a batch draws nothing before its first string, as held-out batches do.
    (scene_text,) = (section for section in sections.values() if section["name"] == "experiments.scene_text.task")
    sections["straight"] = {**scene_text, "curved_fraction": 0.0}
    return [pytest.param(section, id=section["name"].split(".")[1]) for section in sections.values()]


def test_every_task_whose_batches_are_drawn_anew_is_looked_at() -> None:
    projects = {
        f"experiments.{path.parent.name}.{path.stem}"
        for path in ROOT.glob("experiments/*/*task.py")
        if "GeneratedBatches" in path.read_text(encoding="utf-8")
    }
    # It draws pairs of a finite set, whose splits have no numbers in common.
    assert projects - {section.values[0]["name"] for section in drawn_anew()} <= {"experiments.text_retrieval.task"}


@pytest.mark.parametrize("section", drawn_anew())
def test_what_is_held_out_has_a_generator_that_no_run_has(
    section: Mapping[str, Any], seeded: list[int], tmp_path: Path
) -> None:
    task = build_task(task_config(section), tmp_path)
    for evaluation in task.evaluations:
        for batch in evaluation.batches:
            assert batch
    held_out = set(seeded)
    if section["name"] == "experiments.handshake_rl.task":
        # Its worlds are drawn by JAX, from seeds that no batch of a run has.
        seeds = np.concatenate([batch["seeds"] for each in task.evaluations for batch in each.batches])
        assert seeds.min() >= 2**31 > max(task.training_batches(1)[step]["seeds"].max() for step in range(100))
    else:
        assert task.probe_batch
        held_out |= set(seeded)
        assert held_out
    random = np.random.default_rng(0)
    before = state_of(random)
    for seed in (0, 9):
        batches = task.training_batches(seed)
        for source in getattr(batches, "sources", (batches,)):
            assert isinstance(source, GeneratedBatches)
            assert source.seed == seed
            source.draw(random)
    if section["name"] == "experiments.kernel_regression.task":
        assert state_of(random) == before, "its one batch is all of its data"
    elif section["name"] != OF_OTHER_CHARACTERS:
        assert not held_out & states_of_runs()


def test_held_out_pairs_of_sentences_have_a_generator_that_no_run_has(seeded: list[int], tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "masked_lm x encoder of pairs")
    task = build_task(task_config(case.config["task"]), tmp_path)
    del seeded[:]
    assert all(evaluation.batches[0] for evaluation in task.evaluations)
    held_out = set(seeded)
    assert held_out
    del seeded[:]
    for seed in (0, 1):
        batches = task.training_batches(seed)
        assert all(batches[step] for step in (0, 256, 512))
    assert not held_out & set(seeded)


def test_a_run_of_algorithms_has_no_seed_of_held_out_sequences(tmp_path: Path) -> None:
    (section, *_) = (case.config["task"] for case in CASES if case.name == "algorithms x turing")
    task = build_task(task_config(section), tmp_path)
    assert task.training_batches(10**9 - 1)[0]
    for seed in range(10**9, 10**9 + 3):
        with pytest.raises(UserError, match=f"config.seed={seed} is a seed of held-out sequences"):
            task.training_batches(seed)
