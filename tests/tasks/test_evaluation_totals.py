"""Totals of evaluations: a batch whole has those of its halves together, and rows that only fill it add nothing."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts.cases import CASES
from transformer.layers.functional_module import Precision
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.registry import TASKS, build_task, task_config
from transformer.tasks.task import StateView

CASE_OF = {case.task["name"]: case for case in CASES}


class Decodes(Exception):
    """An evaluation takes a model step by step."""


class Rows:
    """In place of a model: what it gives a row is drawn by the row's own inputs, in the shapes of a real model's."""

    def __init__(self, model: Any):
        self.real, self.sites, self.max_length = model, model.sites, model.max_length
        self.variables = jax.eval_shape(model.init, jax.random.key(0))
        self.shapes: dict[str, Any] = {}

    def apply(self, variables: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
        inputs = {name: np.asarray(values) for name, values in inputs.items()}
        asked = str((options, {name: values.shape[1:] for name, values in inputs.items()}))
        if asked not in self.shapes:
            shapes = jax.eval_shape(lambda v, i: self.real.apply(v, i, **options), self.variables, inputs)
            self.shapes[asked] = len(next(iter(inputs.values()))), shapes
        rows, shapes = self.shapes[asked]
        seeds = [
            zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in row))
            for row in zip(*inputs.values(), strict=True)
        ]

        def drawn(leaf: Any) -> Any:
            if rows not in leaf.shape[:2]:
                return jnp.zeros(leaf.shape, leaf.dtype)
            axis = leaf.shape.index(rows)
            of_row = leaf.shape[:axis] + leaf.shape[axis + 1 :]
            each = [np.random.default_rng(seed).random(of_row) for seed in seeds]
            return jnp.asarray(np.stack(each, axis), leaf.dtype)

        return jax.tree.map(drawn, shapes)

    def init_cache(self, *given: Any, **options: Any) -> Any:
        raise Decodes

    def logits(self, variables: Any, hidden: Any) -> Any:
        width = jax.eval_shape(self.real.logits, self.variables, hidden).shape[-1]
        return hidden @ jnp.asarray(np.random.default_rng(0).standard_normal((hidden.shape[-1], width)), jnp.float32)


def totals(evaluation: Any, view: StateView, batch: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """The sums of an evaluation's step; None if it decodes, which takes a real model."""
    try:
        sums, _ = evaluation.step(view, batch, jax.random.key(0))
    except Decodes:
        return None
    return {
        jax.tree_util.keystr(path): np.asarray(value, np.float64)
        for path, value in jax.tree_util.tree_leaves_with_path(sums)
    }


def with_empty_rows(name: str, values: np.ndarray, examples: int) -> np.ndarray:
    """As many rows again that only fill the batch, for each of the sequences of an example."""
    parts = values.reshape(-1, examples, *values.shape[1:])
    empty = np.full_like(parts, -1 if name == "index" else 0)
    return np.concatenate([parts, empty], axis=1).reshape(-1, *values.shape[1:])


# Whose evaluations run a model within a loop of the compiler or step by step, or have rows instead of sums.
OTHERS = {
    "permutation_lm",
    "segment_lm",
    "experiments.meta_rl.task",
    "experiments.handshake_rl.task",
    "experiments.sagan.task",
    "experiments.in_context_learning.linear_regression_task",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TASKS.all_names()) - OTHERS))
def test_totals_of_a_batch_are_those_of_its_halves_and_of_no_row_that_fills_it(name: str, tmp_path: Path) -> None:
    task: Any = build_task(task_config(CASE_OF[name].config["task"]), tmp_path)
    model: Any = Rows(build_model(model_config(CASE_OF[name].config["model"]), task.interface, Precision()))
    view, measured = StateView(model, model.variables, {}, {}, jnp.int32(0), train=False), 0
    for evaluation in {each.name: each for each in task.evaluations if each.applies(model.sites)}.values():
        batch = {name: np.asarray(values) for name, values in evaluation.batches[0].items()}
        whole = totals(evaluation, view, batch)
        if whole is None:
            continue
        measured += 1
        # As microbatches are cut: the sequences of an example, which lie a batch apart, stay together.
        parts = [totals(evaluation, view, {name: values[part::2] for name, values in batch.items()}) for part in (0, 1)]
        for total, value in whole.items():
            both = sum(part[total] for part in parts if part is not None)
            np.testing.assert_allclose(both, value, rtol=1e-5, atol=1e-5, err_msg=f"{evaluation.name}: {total}")
        # Pairs of texts are drawn, as many as a batch has rows for.
        if "index" in batch and "follows" not in batch:
            rows = {name: with_empty_rows(name, values, len(batch["index"])) for name, values in batch.items()}
            filled = totals(evaluation, view, rows)
            assert filled is not None
            for total, value in whole.items():
                np.testing.assert_allclose(
                    filled[total], value, rtol=1e-5, atol=1e-5, err_msg=f"{evaluation.name}: {total}"
                )
    assert measured
