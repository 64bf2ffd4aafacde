"""A decoder's training step over made-up tokens, lowered for any devices: what the tests of costs compile."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.costs.flops import training_flops
from transformer.layers.functional_module import Precision
from transformer.logical_axes import Placement
from transformer.models.decoder import DecoderConfig
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.losses import token_loss
from transformer.tasks.task import LossAux, Objective, StateView
from transformer.training.initial_state import init_state
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import (
    OptimizerAlgorithm,
    OptimizerConfig,
    hyperparameters,
    make_optimizer,
)
from transformer.training.partitioning import (
    ShardingConfig,
    batch_sharding,
    make_placement,
    state_shardings,
    trace_with_placement,
)
from transformer.training.state import TrainState
from transformer.training.step import make_train_step

VOCABULARY = 512


class NextToken:
    """Predict each token from those before it."""

    def __init__(self) -> None:
        self.objectives = (Objective("language", self.loss),)

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {}

    def prepare_batch(self, view: StateView, batch: Any, key: Any) -> tuple[Any, Any]:
        return batch, view.task_state

    def denominators(self, batch: Any) -> dict[str, Any]:
        return {"tokens": jnp.float32(batch["tokens"].size)}

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        logits, aux = view.model.apply(view.variables, {"tokens": batch["tokens"]}, train=view.train, key=key)
        loss = token_loss(logits, batch["labels"], batch["labels"] >= 0, 0.0).smoothed / denominators["tokens"]
        return loss, LossAux(aux.state, view.task_state, {"loss": loss})


class Training(NamedTuple):
    """A step and all that it takes, as shapes with their shardings."""

    placement: Placement
    state: TrainState
    batch: dict[str, jax.ShapeDtypeStruct]
    make: Any
    step: Any
    flops: float

    def lowered(self) -> jax.stages.Lowered:
        return self.step.lower(self.state, self.batch)


def training(
    config: DecoderConfig, sharding: ShardingConfig, devices: Sequence[Any], *, rows: int, compute: str = "float32"
) -> Training:
    """The training step of a decoder by Adam on a mesh over `devices`; nothing is computed."""
    placement = make_placement(sharding, devices)
    shape = (rows, config.max_length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(shape, placement))
    interface = TaskInterface({"tokens": InputSpec(shape)}, {"tokens": VOCABULARY}, pad_id=0, bos_id=1, eos_id=2)
    model = build(config, interface, Precision(compute=compute))
    by_adam = OptimizerConfig(OptimizerAlgorithm.ADAM, 1e-3, LearningRateSchedule.CONSTANT, warmup_steps=0)
    task, optimizers = NextToken(), {"language": make_optimizer(by_adam, 10)}
    make = functools.partial(
        init_state, model, task, optimizers, {}, dict.fromkeys(optimizers, hyperparameters(by_adam))
    )  # type: ignore[arg-type]
    abstract = jax.eval_shape(make, jax.random.key(0))
    shardings = state_shardings(model, abstract, placement)
    placed = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), abstract, shardings
    )
    step = trace_with_placement(placement, make_train_step(model, task, optimizers, {}))  # type: ignore[arg-type]
    batch = {"tokens": tokens, "labels": tokens}
    return Training(
        placement,
        placed,
        batch,
        jax.jit(trace_with_placement(placement, make), out_shardings=shardings),
        jax.jit(step, donate_argnums=0, out_shardings=(shardings, None)),
        training_flops(model, batch),
    )
