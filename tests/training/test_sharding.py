"""Eight devices compute what one computes, and the state lies where the rules say."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from transformer.axes import DATA_PARALLEL
from transformer.models.contract import Interface, Model, Precision
from transformer.models.encoder_decoder import EncoderDecoderConfig, build
from transformer.tasks.contract import LossAux, Objective, View
from transformer.tasks.losses import token_loss
from transformer.training.averages import Average, AverageKind
from transformer.training.experiment import compile_once
from transformer.training.optimizer import Algorithm, OptimizerConfig, Schedule, make_optimizer
from transformer.training.sharding import make_mesh, shard_batch, state_shardings
from transformer.training.state import by_path
from transformer.training.step import Metrics, init_state, make_step

ROWS, LENGTH, VOCABULARY, HEADS = 16, 6, 20, 8
AVERAGES = {"mean": Average(AverageKind.MEAN)}


class Reading:
    """Predict tokens from tokens."""

    def __init__(self) -> None:
        self.objectives = (Objective("read", self.loss),)

    def init_extra(self, view: View, key: Any) -> dict[str, Any]:
        return {}

    def prepare(self, view: View, batch: Any, key: Any) -> tuple[Any, Any]:
        return batch, view.extra

    def totals(self, batch: Any) -> dict[str, Any]:
        return {"tokens": jnp.sum(batch["labels"] != 0).astype(jnp.float32)}

    def loss(self, view: View, batch: Any, totals: Any, key: Any) -> tuple[Any, LossAux]:
        logits, aux = view.model.apply(view.variables, batch, train=view.train, key=key)
        loss = token_loss(logits, batch["labels"], batch["labels"] != 0, 0.1).smoothed / totals["tokens"]
        return loss, LossAux(aux.state, view.extra, {"loss": loss})


def batch_of(seed: int) -> dict[str, np.ndarray]:
    """Rows of uneven lengths, the last ones all padding, as a part-filled batch has them."""
    random = np.random.default_rng(seed)
    lengths = np.where(np.arange(ROWS) < ROWS - 3, random.integers(1, LENGTH + 1, ROWS), 0)[:, None]
    tokens = random.integers(3, VOCABULARY, (3, ROWS, LENGTH)).astype(np.int32)
    return dict(zip(("source", "target", "labels"), np.where(np.arange(LENGTH) < lengths, tokens, 0), strict=True))


@pytest.fixture(scope="module")
def model() -> Model:
    shape = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    interface = Interface({"source": shape, "target": shape}, {"joint": VOCABULARY}, pad=0, begin=1, end=2)
    config = EncoderDecoderConfig(
        encoder_layers=1, decoder_layers=1, width=16, heads=HEADS, feed_forward=32, dropout=0.0, longest=LENGTH
    )
    return build(config, interface, Precision())


def optimisers(algorithm: Algorithm) -> dict[str, Any]:
    # Plain descent where numbers are compared: its update is linear in the gradient.
    beta1 = 0.9 if algorithm is Algorithm.ADAM else 0.0
    return {"read": make_optimizer(OptimizerConfig(algorithm, 0.5, Schedule.CONSTANT, warmup=0, beta1=beta1), 10)}


def numbers(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.values.items()}


def two_steps(model: Model, devices: int) -> tuple[Any, list[Any], Any]:
    mesh, made = make_mesh(devices), optimisers(Algorithm.SGD)
    make = functools.partial(init_state, model, Reading(), made, AVERAGES)
    shardings = state_shardings(model, jax.eval_shape(make, jax.random.key(0)), mesh)
    state = compile_once(make, mesh, shardings)(jax.random.key(0))
    step = jax.jit(make_step(model, Reading(), made, AVERAGES), donate_argnums=0, out_shardings=(shardings, None))
    found = []
    for seed in range(2):
        state, metrics = step(state, shard_batch(batch_of(seed), mesh))
        found.append(metrics)
    return state, found, step


def test_eight_devices_make_the_step_of_one(model: Model) -> None:
    assert len(jax.devices()) >= 8
    one, of_one, _ = two_steps(model, 1)
    eight, of_eight, step = two_steps(model, 8)
    for path, leaf in by_path((one.variables, one.averages)).items():
        other = by_path((eight.variables, eight.averages))[path]
        scale = max(1, float(jnp.abs(leaf).max()))
        np.testing.assert_allclose(other, leaf, rtol=0, atol=1e-6 * scale, err_msg=path)
        assert len(other.sharding.device_set) == 8
        assert other.sharding.is_fully_replicated
    for metrics, others in zip(of_one, of_eight, strict=True):
        assert numbers(others) == pytest.approx(numbers(metrics), rel=1e-5)
        assert jax.device_get(others.totals) == jax.device_get(metrics.totals)
    assert step._cache_size() == 1  # the state comes back where it was: nothing is compiled twice


def test_rows_are_divided() -> None:
    batch = batch_of(0)
    placed = shard_batch(batch, make_mesh(8))
    for name, array in placed.items():
        np.testing.assert_array_equal(array, batch[name])
        assert {shard.data.shape for shard in array.addressable_shards} == {(ROWS // 8, LENGTH)}
        assert [shard.index[0].start or 0 for shard in array.addressable_shards] == list(range(0, ROWS, 2))


def test_moments_and_averages_lie_beside_their_parameters(model: Model) -> None:
    make = functools.partial(init_state, model, Reading(), optimisers(Algorithm.ADAM), AVERAGES)
    abstract = jax.eval_shape(make, jax.random.key(0))
    rules = {**DATA_PARALLEL, "heads": "data"}
    shardings = state_shardings(model, abstract, make_mesh(8), rules)
    assert jax.tree.structure(shardings) == jax.tree.structure(abstract)
    axes = {path: names for path, names in by_path_of_names(model.axes().params).items()}
    specs = {path: sharding.spec for path, sharding in by_path(shardings.variables.params).items()}
    divided = {path for path, names in axes.items() if "heads" in names}
    assert divided
    assert divided != set(axes)
    for path, names in axes.items():
        assert specs[path] == PartitionSpec(*["data" if name == "heads" else None for name in names])
        found = [s.spec for p, s in by_path(shardings.optimisers).items() if p.endswith(path)]
        assert found == [specs[path]] * 2  # Adam's first and second moment
        assert shardings.averages["mean"][path].spec == specs[path]
    assert shardings.step.spec == shardings.key.spec == PartitionSpec()
    leaves = zip(jax.tree.leaves(abstract), jax.tree.leaves(shardings), strict=True)
    assert all(sharding.shard_shape(leaf.shape) for leaf, sharding in leaves if leaf.ndim)


def by_path_of_names(axes: Any) -> dict[str, tuple[str | None, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(axes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): names for path, names in leaves}
