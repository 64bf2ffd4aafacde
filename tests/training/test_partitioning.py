"""Eight devices compute what one computes, and the state lies where the rules say."""

import dataclasses
import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.golden import make_partition_specs
from transformer.config import UserError, from_config
from transformer.costs.topologies import topology_devices
from transformer.layers.functional_module import Precision
from transformer.logical_axes import Placement
from transformer.models import decoder
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import Model, leaves_by_path
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.losses import token_loss
from transformer.tasks.task import LossAux, Objective, StateView
from transformer.training.build import jit_for_one_call
from transformer.training.initial_state import init_state
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import (
    OptimizerAlgorithm,
    OptimizerConfig,
    hyperparameters,
    make_optimizer,
)
from transformer.training.parameter_averages import AverageKind, ParameterAverage
from transformer.training.partitioning import (
    ShardingConfig,
    is_axis_names,
    make_mesh,
    make_placement,
    probe_placement,
    shard_batch,
    state_shardings,
    trace_with_placement,
)
from transformer.training.step import StepMetrics, make_train_step

ROWS, LENGTH, VOCABULARY, HEADS = 16, 6, 20, 8
AVERAGES = {"mean": ParameterAverage(AverageKind.MEAN)}
FSDP = ShardingConfig(data=2, fsdp=4, rules="fsdp")
TENSOR = ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp")


def on(config: ShardingConfig, devices: int) -> Placement:
    return make_placement(config, jax.devices()[:devices])


class Reading:
    """Predict tokens from tokens."""

    def __init__(self) -> None:
        self.objectives = (Objective("read", self.loss),)

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {}

    def prepare_batch(self, view: StateView, batch: Any, key: Any) -> tuple[Any, Any]:
        return batch, view.task_state

    def denominators(self, batch: Any) -> dict[str, Any]:
        return {"tokens": jnp.sum(batch["labels"] != 0).astype(jnp.float32)}

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        logits, aux = view.model.apply(view.variables, batch, train=view.train, key=key)
        loss = token_loss(logits, batch["labels"], batch["labels"] != 0, 0.1).smoothed / denominators["tokens"]
        return loss, LossAux(aux.state, view.task_state, {"loss": loss})


def batch_of(seed: int) -> dict[str, np.ndarray]:
    """Rows of uneven lengths, the last ones all padding, as a part-filled batch has them."""
    random = np.random.default_rng(seed)
    lengths = np.where(np.arange(ROWS) < ROWS - 3, random.integers(1, LENGTH + 1, ROWS), 0)[:, None]
    tokens = random.integers(3, VOCABULARY, (3, ROWS, LENGTH)).astype(np.int32)
    return dict(zip(("source", "target", "labels"), np.where(np.arange(LENGTH) < lengths, tokens, 0), strict=True))


@pytest.fixture(scope="module")
def model() -> Model:
    shape = InputSpec((ROWS, LENGTH))
    interface = TaskInterface({"source": shape, "target": shape}, {"joint": VOCABULARY}, pad_id=0, bos_id=1, eos_id=2)
    config = EncoderDecoderConfig(
        encoder_layers=1, decoder_layers=1, width=16, heads=HEADS, feed_forward=32, dropout=0.0, max_length=LENGTH
    )
    return build(config, interface, Precision())


# Plain descent where numbers are compared: its update is linear in the gradient.
CONFIGS = {
    algorithm: OptimizerConfig(algorithm, 0.5, LearningRateSchedule.CONSTANT, warmup_steps=0, beta1=beta1)
    for algorithm, beta1 in ((OptimizerAlgorithm.ADAM, 0.9), (OptimizerAlgorithm.SGD, 0.0))
}


def optimizers(algorithm: OptimizerAlgorithm) -> dict[str, Any]:
    return {"read": make_optimizer(CONFIGS[algorithm], 10)}


def first_state(model: Model, algorithm: OptimizerAlgorithm) -> Any:
    """The maker of the first state, of a key."""
    return functools.partial(
        init_state,
        model,
        Reading(),
        made := optimizers(algorithm),
        AVERAGES,
        dict.fromkeys(made, hyperparameters(CONFIGS[algorithm])),
    )


def numbers(metrics: StepMetrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.values.items()}


def two_steps(model: Model, placement: Placement) -> tuple[Any, list[Any], Any]:
    made = optimizers(OptimizerAlgorithm.SGD)
    make = first_state(model, OptimizerAlgorithm.SGD)
    shardings = state_shardings(model, jax.eval_shape(make, jax.random.key(0)), placement)
    state = jit_for_one_call(make, placement, shardings)(jax.random.key(0))
    step = trace_with_placement(placement, make_train_step(model, Reading(), made, AVERAGES))
    step = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))
    found = []
    for seed in range(2):
        state, metrics = step(state, shard_batch(batch_of(seed), placement))
        found.append(metrics)
    return state, found, step


# tests/contracts/test_meshes.py holds the same, of other models, in every test run.
@pytest.mark.slow
def test_eight_devices_make_the_step_of_one(model: Model) -> None:
    assert len(jax.devices()) >= 8
    one, of_one, _ = two_steps(model, on(ShardingConfig(), 1))
    eight, of_eight, step = two_steps(model, on(ShardingConfig(), 8))
    for path, leaf in leaves_by_path((one.variables, one.averages)).items():
        other = leaves_by_path((eight.variables, eight.averages))[path]
        scale = max(1, float(jnp.abs(leaf).max()))
        np.testing.assert_allclose(other, leaf, rtol=0, atol=1e-6 * scale, err_msg=path)
        assert len(other.sharding.device_set) == 8
        assert other.sharding.is_fully_replicated
    for metrics, others in zip(of_one, of_eight, strict=True):
        assert numbers(others) == pytest.approx(numbers(metrics), rel=1e-5)
        assert jax.device_get(others.denominators) == jax.device_get(metrics.denominators)
    assert step._cache_size() == 1  # the state comes back where it was: nothing is compiled twice


def test_rows_are_divided() -> None:
    batch = batch_of(0)
    placed = shard_batch(batch, on(FSDP, 8))
    for name, array in placed.items():
        np.testing.assert_array_equal(array, batch[name])
        assert {shard.data.shape for shard in array.addressable_shards} == {(ROWS // 8, LENGTH)}
        assert [shard.index[0].start or 0 for shard in array.addressable_shards] == list(range(0, ROWS, 2))


def test_rows_that_cannot_be_divided_lie_whole() -> None:
    (placed,) = shard_batch({"index": np.arange(6)}, on(ShardingConfig(), 8)).values()
    assert placed.sharding.is_fully_replicated


def abstract_state(model: Model) -> Any:
    make = first_state(model, OptimizerAlgorithm.ADAM)
    return jax.eval_shape(make, jax.random.key(0))


def test_moments_and_averages_lie_beside_their_parameters(model: Model) -> None:
    abstract = abstract_state(model)
    shardings = state_shardings(model, abstract, on(FSDP, 8))
    assert jax.tree.structure(shardings) == jax.tree.structure(abstract)
    axes = leaves_by_path(model.axes().params, is_axis_names)
    specs = {path: sharding.spec for path, sharding in leaves_by_path(shardings.variables.params).items()}
    divided = {path for path, names in axes.items() if "embed" in names}
    assert divided
    assert divided != set(axes)
    for path, names in axes.items():
        assert specs[path] == PartitionSpec(*["fsdp" if name == "embed" else None for name in names])
        found = [s.spec for p, s in leaves_by_path(shardings.optimizers).items() if p.endswith(path)]
        assert found == [specs[path]] * 2  # Adam's first and second moment
        assert shardings.averages["mean"][path].spec == specs[path]
    assert shardings.step.spec == shardings.key.spec == PartitionSpec()
    leaves = zip(jax.tree.leaves(abstract), jax.tree.leaves(shardings), strict=True)
    assert all(sharding.shard_shape(leaf.shape) for leaf, sharding in leaves if leaf.ndim)


def test_the_state_begins_divided() -> None:
    interface = TaskInterface(
        {"tokens": InputSpec((ROWS, LENGTH))}, {"tokens": VOCABULARY}, pad_id=0, bos_id=1, eos_id=2
    )
    config = DecoderConfig(layers=1, width=16, heads=HEADS, feed_forward=32, max_length=LENGTH)
    model, placement = decoder.FAMILY.build(config, interface, Precision()), on(FSDP, 8)
    make = first_state(model, OptimizerAlgorithm.ADAM)
    shardings = state_shardings(model, abstract_state(model), placement)
    state = jit_for_one_call(make, placement, shardings)(jax.random.key(0))
    table = state.variables.params["embedding"]["table"]
    assert {shard.data.shape for shard in table.addressable_shards} == {(VOCABULARY, 16 // 4)}
    alone = jax.jit(make)(jax.random.key(0))
    for path, leaf in leaves_by_path(alone.variables).items():
        np.testing.assert_allclose(leaves_by_path(state.variables)[path], leaf, rtol=1e-6, atol=1e-6, err_msg=path)


@pytest.mark.slow
def test_every_parameter_lies_where_it_is_recorded_to() -> None:
    recorded = json.loads(make_partition_specs.FILE.read_text(encoding="utf-8"))
    for rules, models in make_partition_specs.all_specs().items():
        for name, specs in models.items():
            assert specs == recorded[rules][name], (
                f"{name} under {rules}; if it is meant: {make_partition_specs.__doc__}"
            )


def test_key_heads_too_few_for_the_mesh_lie_whole() -> None:
    shape = InputSpec((ROWS, LENGTH))
    interface = TaskInterface({"source": shape, "target": shape}, {"joint": VOCABULARY}, pad_id=0, bos_id=1, eos_id=2)
    config = EncoderDecoderConfig(
        encoder_layers=1, decoder_layers=1, width=16, heads=HEADS, kv_heads=1, feed_forward=32, max_length=LENGTH
    )
    model = build(config, interface, Precision())
    found = leaves_by_path(state_shardings(model, abstract_state(model), on(TENSOR, 8)).variables.params)
    assert found["decoder/attention/query/kernel"].spec == PartitionSpec(None, "fsdp", "tensor", None)
    assert found["decoder/attention/key/kernel"].spec == PartitionSpec(None, "fsdp", None, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rules": "fspd"}, r"config\.sharding\.rules='fspd' is unknown: did you mean 'fsdp'\?"),
        ({"fsdp": 4}, r"config\.sharding\.fsdp=4 divides nothing under .*rules=dp: say 1, or rules=fsdp or fsdp\+tp"),
        ({"expert": 0}, r"config\.sharding\.expert=0 must be at least 1, or -1"),
        ({"expert": -1}, r"config\.sharding\.data and config\.sharding\.expert are both -1"),
        ({"tensor": 0}, r"config\.sharding\.tensor=0 must be at least 1, or -1"),
        ({"fsdp": -1, "rules": "fsdp"}, r"config\.sharding\.data and config\.sharding\.fsdp are both -1"),
        ({"max_replicated_mb": 0.0}, r"config\.sharding\.max_replicated_mb=0\.0 must be above 0 megabytes"),
        (
            {"sequence_attention": "rings"},
            r"config\.sharding\.sequence_attention='rings' is unknown: did you mean 'ring'\?",
        ),
        ({"model": 2}, r"unknown key config\.sharding\.model"),
    ],
)
def test_what_cannot_be_a_mesh_is_refused_before_any_device_is_asked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_config(ShardingConfig, values, "config.sharding")


@pytest.mark.parametrize(
    "config", [ShardingConfig(data=3), ShardingConfig(fsdp=3, rules="fsdp"), ShardingConfig(data=4)]
)
def test_sizes_that_do_not_make_the_devices_are_refused(config: ShardingConfig) -> None:
    with pytest.raises(UserError, match=r"config\.sharding asks for .*=.*, which does not make 8 cpu devices"):
        make_mesh(config)


@dataclasses.dataclass(frozen=True)
class OnHost:
    """A device as jax describes those of several hosts without a common fabric: each host counts as a slice."""

    id: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100"


def test_a_mesh_spans_hosts() -> None:
    devices: Any = [OnHost(number, slice_index=number // 4) for number in range(8)]
    mesh = make_mesh(ShardingConfig(data=2, tensor=4, rules="fsdp+tp"), devices)
    assert [[device.slice_index for device in row.flat] for row in mesh.devices] == [[0] * 4, [1] * 4]


@dataclasses.dataclass(frozen=True)
class OnSlice:
    """A chip as jax describes those of several slices of 2x2 chips."""

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v4"


def two_slices() -> Any:
    """Two slices of 2x2 chips, in an order that mixes them."""
    corners = [(x, y, 0) for y in range(2) for x in range(2)]
    return [OnSlice(2 * number + part, part, at) for number, at in enumerate(corners) for part in (0, 1)]


@pytest.mark.parametrize(
    "config",
    [
        ShardingConfig(),
        ShardingConfig(data=2, fsdp=-1, rules="fsdp"),
        ShardingConfig(fsdp=2, tensor=2, rules="fsdp+tp"),
        ShardingConfig(data=4, sequence=2, rules="sp"),
    ],
)
def test_slices_divide_the_data_axis_and_no_other(config: ShardingConfig) -> None:
    devices = two_slices()
    mesh = make_mesh(config, devices)
    halves = np.split(mesh.devices, 2)
    assert [{device.slice_index for device in half.flat} for half in halves] == [{0}, {1}]
    assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}


@pytest.mark.parametrize(
    "config",
    [
        ShardingConfig(data=1, fsdp=-1, rules="fsdp"),
        ShardingConfig(fsdp=8, rules="fsdp"),
        ShardingConfig(data=1, tensor=8, rules="fsdp+tp"),
    ],
)
def test_a_data_axis_that_slices_cannot_divide_is_refused(config: ShardingConfig) -> None:
    with pytest.raises(UserError, match=r"config\.sharding\.data=1 must be a multiple of the 2 slices of this run"):
        make_mesh(config, two_slices())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, which knows the slices")
def test_gradients_alone_cross_the_network_between_slices(root: Path) -> None:
    # In a process of its own: the slices are those of a compiler that other tests have told of one.
    done = subprocess.run([sys.executable, "-c", _TWO_SLICES], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["data"] == [[0], [0], [1], [1]]
    # 128 x 128 float32 gradients are sharded over the chips of a slice before they are sent.
    assert said["sent"]
    assert all(size <= 128 * 128 for size in said["sent"])
    # The all-gathers of parameters stay on one slice of eight chips.
    assert said["gathered"]
    assert all(len({chip // 8 for chip in group}) == 1 for group in said["gathered"])


_TWO_SLICES = """
import json, os, re
os.environ.update(JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="true", TPU_SKIP_MDS_QUERY="1")
os.environ.update(TPU_ACCELERATOR_TYPE="v5litepod-8", TPU_WORKER_HOSTNAMES="localhost")
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec as P
from transformer.training.partitioning import ShardingConfig, make_mesh
devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4", num_slices=2).devices
mesh = make_mesh(ShardingConfig(data=4, fsdp=4, rules="fsdp"), devices)
shaped = lambda shape, *spec: jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))
w, x = shaped((128, 128), "fsdp"), shaped((64, 128), ("data", "fsdp"))
step = jax.jit(lambda w, x: w - jax.grad(lambda w: ((x @ w) ** 2).sum())(w), out_shardings=w.sharding)
text = step.lower(w, x).compile().as_text()
sent = re.findall(r"= \\(f32\\[([\\d,]+)\\][^=]* send\\(", text)
groups = re.findall(r" all-gather(?:-start)?\\(.*?replica_groups=\\{(\\{.*?\\})\\}", text)
print(json.dumps({
    "data": [sorted({device.slice_index for device in row.flat}) for row in mesh.devices],
    "sent": [int(np.prod(list(map(int, shape.split(","))))) for shape in sent],
    "gathered": [list(map(int, group.split(","))) for each in groups for group in re.findall(r"\\{(.*?)\\}", each)],
}))
"""


def test_one_axis_takes_what_the_others_leave() -> None:
    mesh = make_mesh(ShardingConfig(data=-1, fsdp=2, tensor=2, rules="fsdp+tp"))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "expert": 1, "tensor": 2, "sequence": 1}


def test_a_parameter_that_the_mesh_does_not_divide_is_refused_by_name(model: Model) -> None:
    with pytest.raises(UserError, match=r"config\.sharding\.fsdp=3 does not divide the 16 of embed in the parameter"):
        state_shardings(model, abstract_state(model), on(ShardingConfig(data=2, fsdp=3, rules="fsdp"), 6))


def test_a_large_parameter_is_not_left_whole_unsaid(model: Model) -> None:
    abstract, placement = abstract_state(model), on(FSDP, 8)
    state_shardings(model, abstract, placement, 0.001)
    with pytest.raises(UserError, match=r"the parameter .* \(.*\) of .* MB would lie whole on every device, above"):
        state_shardings(model, abstract, placement, 0.0001)
    # Data parallel means whole.
    state_shardings(model, abstract, on(ShardingConfig(), 8), 0.0001)


def test_a_pass_over_examples_divides_them_over_all_axes_but_that_of_heads() -> None:
    here = probe_placement(on(TENSOR, 8))
    assert here.partition_spec(("batch", "length", "heads")) == PartitionSpec(("data", "fsdp"), None, "tensor")
    here = probe_placement(on(ShardingConfig(data=2, expert=4), 8))
    assert here.partition_spec(("batch", "length", "heads")) == PartitionSpec(("data", "expert"), None, None)
    assert here.partition_spec(("experts", "expert_batch", "length")) == PartitionSpec("expert", "data", None)
    here = probe_placement(on(ShardingConfig(data=2, fsdp=2, sequence=2, rules="sp"), 8))
    assert here.partition_spec(("batch", "length", "heads")) == PartitionSpec(("data", "fsdp", "sequence"), None, None)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, which knows the slices")
@pytest.mark.parametrize(("topology", "tensor"), [("v5p:4x4x4", 8), ("v5p:2x2x4", 8), ("v6e:4x4", 2), ("v4:4x4x4", 2)])
def test_a_mesh_may_split_the_sides_of_a_slice(topology: str, tensor: int) -> None:
    devices = topology_devices(topology)
    mesh = make_mesh(ShardingConfig(data=-1, tensor=tensor, rules="fsdp+tp"), devices)
    assert mesh.shape["tensor"] == tensor
    assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}
