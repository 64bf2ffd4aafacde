"""An evaluation over its batches: what is added up, in what type, and by which keys its steps draw."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.model import Variables
from transformer.runs.preemption import ProgressMonitor
from transformer.tasks.task import Evaluation, EvaluationReport
from transformer.training.compiled_evaluation import CompiledEvaluation
from transformer.training.partitioning import single_device_placement
from transformer.training.state import TrainState

LOSSES = (2.0**24, 1.0, 1.0)  # in float32 the sum is the first


def test_sums_are_exact_over_batches_that_each_draw_by_a_key_of_their_own() -> None:
    keys: list[bytes] = []

    def step(state: TrainState, batch: Mapping[str, Any], key: Any) -> tuple[Any, Any]:
        keys.append(np.asarray(jax.random.key_data(key)).tobytes())
        return {"loss": jnp.sum(batch["loss"])}, {"loss": batch["loss"]}

    def finish(sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        np.testing.assert_array_equal(rows["loss"], LOSSES)
        return EvaluationReport({"loss": float(sums["loss"])})

    batches = [{"loss": np.array([loss], np.float32)} for loss in LOSSES]
    evaluation = Evaluation("loss", "validation", batches, step, finish)  # type: ignore[arg-type]
    compiled = CompiledEvaluation(evaluation, step, single_device_placement(), ProgressMonitor())  # type: ignore[arg-type]
    state = TrainState(jnp.int32(3), jax.random.key(0), Variables({}, {}), {}, {}, {}, {})
    assert compiled(state).scalars == {"loss": 2.0**24 + 2}
    assert len(set(keys)) == len(LOSSES)
    first_time, keys[:] = list(keys), []
    compiled(state)
    assert keys == first_time  # one state is measured alike whenever it is
