"""A case of the contracts on one device: the step and the maker of first states that all its tests share."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax

from tests.contracts.case import Case
from tests.contracts.flat_parameters import HASH, FlatModule, unflatten
from transformer.training.build import TrainingComponents, hyperparameters_by_objective, jit_for_one_call
from transformer.training.config import ExperimentConfig
from transformer.training.initial_state import init_state
from transformer.training.optimizer import OptimizerAlgorithm, make_optimizer
from transformer.training.partitioning import single_device_placement
from transformer.training.state import TrainState
from transformer.training.step import make_train_step


class Alone:
    """A case with its programs, which serve all numbers of its optimizers and compile when they are first called.

    Its parameters are one vector, unless `case.keeps_tree`.
    """

    def __init__(self, case: Case, folder: Path):
        self.case = case
        self.experiment = case.experiment(OptimizerAlgorithm.ADAM, case.learning_rate)
        self.setting = case.assemble(self.experiment, folder, single_device_placement())
        # Its rate is that of no run: the numbers are the state's.
        sections = case.experiment(OptimizerAlgorithm.ADAM, 123.0).optimizer_of
        self.optimizers = {o.name: make_optimizer(sections(o.name), case.steps) for o in self.setting.task.objectives}
        self.averages = self.experiment.parameter_averages
        if not case.keeps_tree:
            self.setting = self._flattened(self.setting)
        self.initialize = jit_for_one_call(self._make_state, self.setting.placement)
        self.step = jax.jit(self.made(), donate_argnums=0)

    def _flattened(self, setting: TrainingComponents) -> TrainingComponents:
        model = dataclasses.replace(setting.model, functional=FlatModule(setting.model.functional))
        make = functools.partial(init_state, model, setting.task, self.optimizers, self.averages)
        abstract = jax.eval_shape(make, setting.abstract_state.hyperparameters, jax.random.key(0))
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract)
        return setting._replace(model=model, abstract_state=placed)

    def made(self, num_microbatches: int = 1) -> Any:
        """The step, not compiled."""
        return make_train_step(
            self.setting.model, self.setting.task, self.optimizers, self.averages, num_microbatches=num_microbatches
        )

    def initial(self, experiment: ExperimentConfig, key: int = 7) -> TrainState:
        """The first state of an experiment's numbers and a key."""
        hyper, run_key = hyperparameters_by_objective(experiment, self.setting.task), jax.random.key(key)
        if self.case.keeps_tree:
            state = self.initialize(hyper, run_key, self.case.variables(self.setting, run_key))
        else:
            state = self.initialize(hyper, run_key, jax.random.key(key, impl=HASH))
        # Where a restored state will lie: otherwise the step would be compiled for each.
        return jax.device_put(state, jax.devices()[0])

    def _make_state(self, hyper: Any, key: jax.Array, origin: Any) -> TrainState:
        """The first state, of variables, of those that the run draws (None), or of a key that draws one vector."""
        variables = origin if self.case.keeps_tree else self.setting.model.init(origin)
        return init_state(self.setting.model, self.setting.task, self.optimizers, self.averages, hyper, key, variables)

    def by_leaf(self, state: TrainState) -> TrainState:
        """The state with a leaf for each parameter."""
        return unflatten(self.setting.model.functional, state)
