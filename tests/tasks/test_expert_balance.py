"""How evenly experts are used over an evaluation's text: the gates of what counts, summed over all its batches."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts.cases import CASES
from transformer.attention.capture import Capture, CapturedAttention
from transformer.tasks.language_modeling import expert_importance_cv, expert_importance_sums, with_expert_gates
from transformer.tasks.task import StateView
from transformer.training.build import build_components
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.partitioning import single_device_placement

SITE = "decoder/experts"


def test_importances_are_sums_of_what_counts() -> None:
    gates = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 1, 5)).astype(np.float32)
    counts = np.arange(5) < np.array([5, 0, 2, 4])[:, None]
    (sums,) = expert_importance_sums(
        {SITE: CapturedAttention(jnp.asarray(gates), {}, {})}, jnp.asarray(counts)
    ).values()
    for layer in range(2):
        np.testing.assert_allclose(sums[layer], gates[layer, :, 0][counts].sum(axis=0), rtol=1e-5)


def test_the_variation_is_the_deviation_over_the_mean() -> None:
    found = expert_importance_cv({f"importance/{SITE}": np.array([[2.0, 2, 2, 2], [4, 0, 0, 0]]), "loss": np.array(1)})
    assert found == {f"importance_cv/{SITE}/0": 0.0, f"importance_cv/{SITE}/1": pytest.approx(3**0.5)}


@pytest.mark.slow
def test_an_evaluation_reports_it_for_every_block_with_experts(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "language_modeling x decoder with experts")
    experiment = case.experiment(OptimizerAlgorithm.SGD, 0.1)
    task = dataclasses.replace(experiment.task, prompts=())
    setting = build_components(dataclasses.replace(experiment, task=task), tmp_path, single_device_placement())
    variables = jax.jit(setting.model.init)(jax.random.key(0))
    view = StateView(setting.model, variables, {}, {}, jnp.int32(0), train=False)
    (evaluation,) = (each for each in setting.task.evaluations if each.split == "validation")
    step: Any = jax.jit(lambda variables, batch: evaluation.step(view._replace(variables=variables), batch, None)[0])
    batches = [evaluation.batches[number] for number in range(2)]
    sums = jax.tree.map(lambda *each: np.sum(np.stack(each), axis=0), *(step(variables, batch) for batch in batches))
    report = evaluation.finish(sums, None).scalars
    # The router begins at zero: without noise every position takes the first two of four experts, half of each.
    assert report[f"importance_cv/{SITE}/0"] == pytest.approx(1.0, abs=1e-6)
    assert [name for name in report if name.startswith("importance_cv")] == [f"importance_cv/{SITE}/0"]
    np.testing.assert_allclose(sums[f"importance/{SITE}"], [[sums["tokens"] / 2] * 2 + [0, 0]])
    assert with_expert_gates(view).capture == Capture((SITE,))


def test_a_model_without_experts_is_asked_for_nothing(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "language_modeling x decoder")
    setting = build_components(case.experiment(OptimizerAlgorithm.SGD, 0.1), tmp_path, single_device_placement())
    view = StateView(setting.model, setting.abstract_state.variables, {}, {}, jnp.int32(0), train=False)
    assert with_expert_gates(view) is view
    assert expert_importance_sums({}, jnp.ones((1, 1), bool)) == {}
