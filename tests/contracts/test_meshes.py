"""Every toy and every family on eight devices computes what it computes on one, however the mesh divides it."""

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.contracts.case import Case
from tests.contracts.cases import CASES
from tests.contracts.conftest import MakeAlone
from transformer.config import UserError
from transformer.logical_axes import Placement, SequenceParallel
from transformer.models.model import leaves_by_path
from transformer.models.registry import FAMILIES
from transformer.tasks.task import Task
from transformer.training.build import TrainingComponents, hyperparameters_by_objective, jit_for_one_call
from transformer.training.config import ExperimentConfig
from transformer.training.initial_state import init_state
from transformer.training.partitioning import (
    ShardingConfig,
    make_placement,
    shard_host_batches,
    state_shardings,
    trace_with_placement,
)
from transformer.training.state import TrainState
from transformer.training.step import make_train_step

STEPS = 20
MESHES = {
    "data": ShardingConfig(data=8),
    "fsdp": ShardingConfig(data=2, fsdp=4, rules="fsdp"),
    "tensor": ShardingConfig(data=4, tensor=2, rules="fsdp+tp"),
    "sequence": ShardingConfig(data=4, sequence=2, rules="sp"),
    "fsdp alone": ShardingConfig(data=1, fsdp=4, rules="fsdp"),
    "tensor alone": ShardingConfig(data=1, tensor=2, rules="fsdp+tp"),
    "fsdp and tensor": ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"),
    "sequence by gathering": ShardingConfig(data=4, sequence=2, rules="sp", sequence_attention=SequenceParallel.GATHER),
    "tensor and sequence": ShardingConfig(data=2, tensor=2, sequence=2, rules="sp+tp"),
    "fsdp and sequence": ShardingConfig(data=2, fsdp=2, sequence=2, rules="sp"),
    # Of a model without experts their axis divides the batch alone.
    "expert": ShardingConfig(data=4, expert=2),
    "fsdp and expert": ShardingConfig(data=2, fsdp=2, expert=2, rules="fsdp"),
}
# The whole table; `make test` takes of every case the meshes that it names, so that each of the four that a run would
# choose has several cases, most of them toys, which compile in a second or two; `make slow` takes all the others.
PAIRS = [
    pytest.param(case, mesh, id=f"{case.name}-{mesh}", marks=[] if mesh in case.meshes else [pytest.mark.slow])
    for case in CASES
    for mesh in MESHES
]


class Trained(NamedTuple):
    """The first state, the metrics of every step, the gradients of the first, and the last state, by leaf."""

    first: TrainState
    losses: list[dict[str, float]]
    gradients: dict[str, np.ndarray]
    bits: dict[str, bytes]
    denominators: list[dict[str, float]]


def descending(case: Case) -> ExperimentConfig:
    """The case under plain descent, whose first moment is the gradient itself."""
    return case.descending(0.02)


def train(step: Callable[[TrainState, Any], Any], state: TrainState, task: Task, steps: int) -> Trained:
    first = jax.device_get(state._replace(key=None))  # a step consumes its state
    source, losses, denominators, gradients = task.training_batches(5), [], [], {}
    for number in range(steps):
        state, metrics = step(state, source[number])
        values, counted = jax.device_get((metrics.values, metrics.denominators))
        losses.append({name: float(value) for name, value in values.items() if name.endswith("loss")})
        denominators.append({name: float(value) for name, value in counted.items()})
        if not gradients:
            traces = {path: leaf for path, leaf in leaves_by_path(state.optimizers).items() if "mu" in path.split("/")}
            gradients = {path: np.asarray(leaf) for path, leaf in traces.items()}
    state = jax.device_get(state._replace(key=jax.random.key_data(state.key)))
    return Trained(
        first, losses, gradients, {path: leaf.tobytes() for path, leaf in leaves_by_path(state).items()}, denominators
    )


class Run:
    """A case on one placement: its compiled step and its first state, as often as it is asked for.

    The first state is made there, but where one is given: then it is brought there.
    """

    def __init__(self, case: Case, placement: Placement, folder: Path, first: TrainState | None = None):
        folder.mkdir()
        self.case, self.first = case, first
        experiment = descending(case)
        self.setting: TrainingComponents = case.assemble(experiment, folder, placement)
        model, task, made = self.setting.model, self.setting.task, self.setting.optimizers
        make = functools.partial(
            init_state, model, task, made, experiment.parameter_averages, hyperparameters_by_objective(experiment, task)
        )
        placement = self.setting.placement
        self.shardings = state_shardings(model, jax.eval_shape(make, jax.random.key(0)), placement)
        self.initialize = jit_for_one_call(make, placement, self.shardings)
        step = trace_with_placement(placement, make_train_step(model, task, made, experiment.parameter_averages))
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, None))

    def begin(self) -> TrainState:
        key = jax.random.key(7)
        if self.first is not None:
            return jax.device_put(self.first._replace(key=key), self.shardings)
        variables = self.case.variables(self.setting, key)
        return self.initialize(key) if variables is None else self.initialize(key, variables)

    def train(self, steps: int) -> Trained:
        step = shard_host_batches(self.step, self.setting.placement)
        return train(step, self.begin(), self.setting.task, steps)


@pytest.fixture(scope="module")
def trained(alone: MakeAlone) -> Callable[[Case], Trained]:
    """A case on one device, trained once by the program of the contracts."""

    @functools.cache
    def made(name: str) -> Trained:
        one = alone(name, keeps_tree=True)  # its leaves are what a mesh divides
        # Called as the loop calls it: for other arguments it would compile again.
        return train(lambda *given: one.step(*given, False), one.initial(descending(one.case)), one.setting.task, STEPS)

    return lambda case: made(case.name)


@pytest.mark.parametrize(("case", "mesh"), PAIRS)
def test_a_mesh_computes_what_one_device_does(
    case: Case, mesh: str, alone: MakeAlone, trained: Callable[[Case], Trained], tmp_path: Path
) -> None:
    config = MESHES[mesh]
    count = int(np.prod([size for size in config.sizes().values()]))
    inputs = alone(case.name, keeps_tree=True).setting.task.interface.inputs.values()
    if odd := [given.positions for given in inputs if (given.positions or 0) % config.sequence]:
        # Words of a grammar are as many as they are.
        with pytest.raises(UserError, match=f"sequence={config.sequence} does not divide the {odd[0]} positions"):
            Run(case, make_placement(config, jax.devices()[:count]), tmp_path / "task")
        return
    expected = trained(case)
    # Of a case that takes one mesh, one program there: the others make their first state on each of theirs.
    first = expected.first if case.meshes == (mesh,) else None
    run = Run(case, make_placement(config, jax.devices()[:count]), tmp_path / "task", first)
    found = run.train(STEPS)
    assert found.denominators == expected.denominators  # the very same examples, at every step
    for number, (losses, of_one) in enumerate(zip(found.losses, expected.losses, strict=True)):
        assert losses == pytest.approx(of_one, rel=case.rounding, abs=case.rounding), f"step {number}"
    assert found.gradients.keys() == expected.gradients.keys() != set()
    # A gradient that is zero but for rounding, such as that of a key's bias, has no digits to compare: sums of float32
    # are known to some epsilons of their largest terms.
    nothing = 2 * np.finfo(np.float32).eps * max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for path, gradient in expected.gradients.items():
        atol = max(1e-5 * np.abs(gradient).max(), nothing)
        np.testing.assert_allclose(found.gradients[path], gradient, rtol=0, atol=atol, err_msg=path)
    assert run.train(2).bits == run.train(2).bits
    assert run.step._cache_size() == 1  # the state comes back where it was: nothing is compiled twice


def test_every_mesh_that_a_run_would_choose_has_several_cases_in_every_test_run() -> None:
    counts = collections.Counter(mesh for case in CASES for mesh in case.meshes)
    assert min(counts[mesh] for mesh in ("data", "fsdp", "tensor", "sequence")) >= 2


def test_every_family_is_a_case_that_the_whole_table_puts_on_every_mesh() -> None:
    assert set(FAMILIES.all_names()) <= {case.model["family"] for case in CASES}
