"""The importance of heads and branches, as the training step measures it, against differences of a gate in NumPy.

The reference multiplies by a gate the rows of a head in the output projection, or the last matrix and bias of a branch,
and takes central differences of every example's loss in float64. It shares the parameters with the step, and no code.
"""

import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import PAD, VOCABULARY, build, exact, kind_of, lively
from tests.oracles import transformer as oracle
from transformer.attention.attention_spec import Backend
from transformer.attention.capture import Capture, CapturedAttention, fill_importance
from transformer.attention.importance import initial_gates
from transformer.attention.statistics import ENTROPY
from transformer.layers.functional_module import Precision
from transformer.layers.lora import LoraConfig, LoraTarget
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Remat
from transformer.models import registry
from transformer.models.model import Model, Variables, leaves_by_path
from transformer.models.task_interface import IMAGE_CLASSIFICATION, InputSpec, Modality, TaskInterface
from transformer.tasks.losses import token_loss
from transformer.tasks.task import LossAux, Objective, StateView
from transformer.training.initial_state import init_state
from transformer.training.optimizer import OptimizerConfig, hyperparameters, make_optimizer
from transformer.training.partitioning import ShardingConfig, make_placement, shard_batch, trace_with_placement
from transformer.training.step import gates_of_objective, make_train_step

ROWS, LENGTH, EPSILON = 8, 6, 1e-4
Importance = dict[str, dict[str, np.ndarray]]


class Case(NamedTuple):
    """A model, and how its step is arranged."""

    family: str = "encoder_decoder"
    model: Mapping[str, Any] = {}
    microbatches: int = 1
    sharding: ShardingConfig = ShardingConfig(data=1)
    length: int = LENGTH
    rows: int = ROWS


PLAIN = Case()
CASES = {
    "plain": PLAIN,
    "accumulated": PLAIN._replace(microbatches=4, model={"backend": Backend.BLOCKWISE, "kv_heads": 1}),
    "norm_of_the_branch": PLAIN._replace(
        microbatches=2, model={"norm_placement": NormPlacement.SANDWICH, "remat": Remat.ATTENTION, "layer_scale": 0.1}
    ),
    "post": PLAIN._replace(model={"norm_placement": NormPlacement.POST, "scan_unroll": 2, "residual_multiplier": 0.5}),
    "output": Case("decoder", {"norm_placement": NormPlacement.OUTPUT, "remat": Remat.FULL}),
    "parallel": Case("decoder", {"norm_placement": NormPlacement.PARALLEL_NORMS, "remat": Remat.DOTS}),
    "splash": Case("decoder", {"backend": Backend.SPLASH, "max_length": 128, "layers": 1}, length=128, rows=2),
    "tensor_parallel": PLAIN._replace(
        microbatches=2, sharding=ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"), model={"heads": 4}
    ),
    "ring": Case(
        "decoder",
        {"backend": Backend.BLOCKWISE},
        sharding=ShardingConfig(data=1, fsdp=2, sequence=4, rules="sp"),
        length=8,
    ),
}
DAILY = ("plain", "accumulated", "tensor_parallel")


@dataclasses.dataclass(frozen=True)
class Reading:
    """Predict tokens from tokens: the mean cross-entropy over the real ones."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (Objective("read", self.loss),)

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {}

    def prepare_batch(self, view: StateView, batch: Any, key: Any) -> tuple[Any, Any]:
        return batch, view.task_state

    def denominators(self, batch: Any) -> dict[str, Any]:
        return {"tokens": jnp.sum(batch["labels"] != PAD).astype(jnp.float32)}

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        inputs = {name: array for name, array in batch.items() if name != "labels"}
        logits, aux = view.model.apply(view.variables, inputs, train=True, key=key, capture=view.capture)
        loss = token_loss(logits, batch["labels"], batch["labels"] != PAD, 0.0).cross_entropy / denominators["tokens"]
        return loss, LossAux.from_aux(aux, view.task_state, {"loss": loss})


def batch_of(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of uneven lengths."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, case.length + 1, (case.rows, 1))
    arrays = random.integers(PAD + 3, VOCABULARY, (3, case.rows, case.length)).astype(np.int32)
    source, target, labels = np.where(np.arange(case.length) < lengths, arrays, PAD)
    if case.family == "decoder":
        return {"tokens": target, "lengths": lengths[:, 0].astype(np.int32), "labels": labels}
    return {"source": source, "target": target, "labels": labels}


class Trial(NamedTuple):
    """A case with its parameters, and its step."""

    case: Case
    config: Any
    variables: Variables
    start: Callable[[], Any]
    step: Callable[..., Any]

    def measure(self, batch: Mapping[str, np.ndarray], observe: bool = True) -> Mapping[str, CapturedAttention]:
        placement = make_placement(self.case.sharding, jax.devices()[: self.num_devices])
        return self.step(self.start(), shard_batch(batch, placement), observe)[1].maps

    @property
    def num_devices(self) -> int:
        return int(np.prod(list(self.case.sharding.sizes().values())))


def trial_of(case: Case) -> Trial:
    options = {"heads": 2, "dropout": 0.0, **case.model}
    model, config = build(case.family, **options)
    variables, optimizers = lively(model), {"read": make_optimizer(OptimizerConfig(), 10)}
    hyper = {"read": hyperparameters(OptimizerConfig())}
    capture = Capture(tuple(site.name for site in model.sites), maps=False, statistics=(ENTROPY,))
    step = make_train_step(model, Reading(), optimizers, {}, num_microbatches=case.microbatches, capture=capture)
    trial = Trial(case, config, variables, lambda: start(), step)
    placement = make_placement(case.sharding, jax.devices()[: trial.num_devices])

    def start() -> Any:
        return init_state(model, Reading(), optimizers, {}, hyper, jax.random.key(1), variables)

    return trial._replace(step=jax.jit(trace_with_placement(placement, step)))


def example_losses(trial: Trial, weights: Any, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """The share of every example in the loss."""
    kind = kind_of(trial.config)
    if trial.case.family == "decoder":
        logits = oracle.decoder(kind, weights, batch["tokens"], lengths=batch["lengths"]).logits
    else:
        logits = oracle.encoder_decoder(kind, weights, batch["source"], batch["target"], pad=PAD).logits
    shifted = logits - logits.max(-1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    labels, real = batch["labels"], batch["labels"] != PAD
    of_labels = np.take_along_axis(log_probability, labels[..., None], -1)[..., 0]
    return -np.where(real, of_labels, 0).sum(1) / real.sum()


def importance_by_differences(trial: Trial, batch: Mapping[str, np.ndarray]) -> Importance:
    """The sum over examples of |dL/dg|, for every gate."""
    params = exact(trial.variables.params)

    def difference(gate: Callable[[Any, float], None]) -> float:
        losses = []
        for factor in (1 + EPSILON, 1 - EPSILON):
            weights = copy.deepcopy(params)
            gate(weights, factor)
            losses.append(example_losses(trial, weights, batch))
        return np.abs((losses[0] - losses[1]) / (2 * EPSILON)).sum()

    def scale(weights: Any, path: tuple[str, ...], layer: int, factor: float) -> None:
        leaf = functools.reduce(lambda tree, name: tree[name], path, weights)
        for name in leaf:
            leaf[name][layer] *= factor

    def gate_branch(stack: str, name: str, layer: int) -> Callable[[Any, float], None]:
        last = (name, "contract" if name == "feed_forward" else "output")
        norm = {NormPlacement.SANDWICH: "output_norm", NormPlacement.OUTPUT: "norm"}.get(trial.config.norm_placement)
        path = last if norm is None else (f"{name}_residual", norm)
        return lambda weights, factor: scale(weights, (stack, *path), layer, factor)

    def gate_head(stack: str, name: str, layer: int, head: int) -> Callable[[Any, float], None]:
        def gate(weights: Any, factor: float) -> None:
            weights[stack][name]["output"]["kernel"][layer, head] *= factor

        return gate

    stacks = {"decoder/self": ("layers", "attention")}
    if trial.case.family == "encoder_decoder":
        stacks = {
            "encoder/self": ("encoder", "attention"),
            "decoder/self": ("decoder", "attention"),
            "decoder/cross": ("decoder", "cross"),
        }
    expected: Importance = {}
    for site, (stack, name) in stacks.items():
        kernel = params[stack][name]["output"]["kernel"]
        layers, heads = range(len(kernel)), range(kernel.shape[1])
        expected[site] = {
            "importance": np.array(
                [[difference(gate_head(stack, name, layer, head)) for head in heads] for layer in layers]
            ),
            "branch_importance": np.array([[difference(gate_branch(stack, name, layer))] for layer in layers]),
        }
        if name == "attention":
            branches = [[difference(gate_branch(stack, "feed_forward", layer))] for layer in layers]
            expected[site]["feed_forward_importance"] = np.array(branches)
    return expected


def assert_importance(maps: Mapping[str, CapturedAttention], expected: Importance, rows: int) -> None:
    assert set(maps) == set(expected)
    for site, captured in maps.items():
        assert set(captured.sums) == {"entropy", *expected[site]}
        for name, values in expected[site].items():
            np.testing.assert_array_equal(captured.counts[name], np.full(values.shape, rows))
            np.testing.assert_allclose(captured.means()[name], values, rtol=1e-4, err_msg=f"{site} {name}")
            assert values.min() > 0


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in CASES]
)
def test_importance_is_the_difference_that_a_gate_makes(name: str) -> None:
    trial = trial_of(CASES[name])
    batch = batch_of(trial.case)
    maps = trial.measure(batch)
    assert_importance(maps, importance_by_differences(trial, batch), trial.case.rows)
    # In a step that does not observe it is zero.
    unobserved = trial.measure(batch, observe=False)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(unobserved))


def test_what_an_objective_does_not_train_is_not_passed_through_for_its_sake() -> None:
    # A probe of frozen layers: its backward pass ends above them.
    model, _ = build("decoder", heads=2, dropout=0.0)
    capture = Capture(tuple(site.name for site in model.sites), maps=False)
    parameters = leaves_by_path(lively(model).params)
    above = {path: leaf for path, leaf in parameters.items() if not path.startswith("layers/")}
    assert set(gates_of_objective(model, capture, parameters)) == {"decoder/self"}
    assert gates_of_objective(model, capture, above) == {}


class FamilyCase(NamedTuple):
    """A config, its inputs, the method that reads them, and the sites and layers whose gates are no other stream's."""

    model: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    interface: TaskInterface
    site: str
    method: str = "forward"
    layers: slice = slice(None)


TOKENS = np.int32([[5, 9, 3, 8, 7, 6, 4], [6, 4, 8, 11, 2, 3, 5], [4, 4, 7, 2, 9, 3, 8]])
TEXT = TaskInterface({}, {"tokens": VOCABULARY})
IMAGES = TaskInterface(
    {"image": InputSpec((3, 8, 8, 3), jnp.float32, Modality.IMAGE)}, {"classes": 5}, output=IMAGE_CLASSIFICATION.output
)
VECTORS = np.random.default_rng(5).normal(size=(3, 8, 8, 3))
LORA = LoraConfig(rank=2, targets=(LoraTarget.OUTPUT, LoraTarget.FEED_FORWARD))
EXPERTS = {"count": 3, "top_k": 2, "gating": "softmax"}
OF_FAMILIES = {
    "encoder": FamilyCase(
        {"family": "encoder"}, {"tokens": TOKENS, "lengths": np.int32([7, 4, 6])}, TEXT, "encoder/self"
    ),
    "transformer_xl": FamilyCase(
        {"family": "transformer_xl", "memory_length": 4}, {"tokens": TOKENS}, TEXT, "decoder/self"
    ),
    "xlnet": FamilyCase({"family": "xlnet"}, {"tokens": TOKENS}, TEXT, "content/self", "content"),
    # Both streams share their matrices; only the query stream's last layer reaches the logits.
    "xlnet_query": FamilyCase({"family": "xlnet"}, {"tokens": TOKENS}, TEXT, "query/self", layers=slice(1, 2)),
    "vit": FamilyCase({"family": "vit", "patch_size": 4}, {"image": VECTORS}, IMAGES, "encoder/self"),
    "experts": FamilyCase({"family": "decoder", "experts": EXPERTS}, {"tokens": TOKENS}, TEXT, "decoder/self"),
    "lora": FamilyCase({"family": "decoder", "lora": LORA}, {"tokens": TOKENS}, TEXT, "decoder/self"),
}

DAILY_FAMILIES = ("xlnet_query", "experts")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("xlnet_query", "experts") else pytest.mark.slow) for name in OF_FAMILIES],
)
def test_every_family_has_it(name: str) -> None:
    case = OF_FAMILIES[name]
    section = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 12, "dropout": 0.0}
    with jax.enable_x64(True):
        model = registry.build(
            registry.model_config({**section, **case.model}), case.interface, Precision("float64", "float64", "float64")
        )
        variables = lively(model)
        both = jax.jit(functools.partial(both_ways, model, case))(variables.params)
        found, expected = jax.device_get(both)
    for statistic, values in expected.items():
        assert values.min() > 0
        np.testing.assert_allclose(found[statistic], values, rtol=1e-5, err_msg=statistic)


def both_ways(model: Model, case: FamilyCase, params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The importance by the gates' gradient, and by differences of scaled matrices, of the case's layers."""
    site = next(site for site in model.sites if site.name == case.site)
    layers, heads = len(site.layers), len(site.heads)
    capture = Capture((case.site,), maps=False, statistics=(ENTROPY,))

    def losses(params: Any, capture: Capture | None) -> tuple[Any, Any]:
        outputs, aux = model.apply(Variables(params, {}), case.inputs, method=case.method, train=False, capture=capture)
        weights = np.random.default_rng(7).normal(size=outputs.shape)
        return jnp.sum(jnp.tanh(outputs) * weights, axis=tuple(range(1, outputs.ndim))), aux.maps

    def loss(gates: Any) -> tuple[Any, Any]:
        of_examples, maps = losses(params, dataclasses.replace(capture, gates=gates))
        return jnp.sum(of_examples), maps

    gradients, maps = jax.grad(loss, has_aux=True)(initial_gates(model.sites))
    found = {name: mean[case.layers] for name, mean in fill_importance(maps, gradients)[case.site].means().items()}

    def changed(vector: Any) -> Any:
        """The losses with every matrix scaled: the first numbers are of heads, then of both branches of each layer."""
        factors = 1 + vector
        of_heads = factors[: layers * heads].reshape(layers, heads)
        of_attention, of_network = factors[layers * heads :].reshape(2, layers)

        def scale(path: Any, leaf: Any) -> Any:
            where = jax.tree_util.keystr(path, simple=True, separator="/")
            if re.search(r"attention/output/(kernel|lora/down)$", where):
                leaf = leaf * of_heads.reshape(layers, heads, *(1,) * (leaf.ndim - 2))
            if re.search(r"attention/output/(kernel|bias|lora/up)$", where):
                leaf = leaf * of_attention.reshape(layers, *(1,) * (leaf.ndim - 1))
            if re.search(r"contract/(kernel|bias|lora/up)$", where):
                leaf = leaf * of_network.reshape(layers, *(1,) * (leaf.ndim - 1))
            return leaf

        scaled = jax.tree_util.tree_map_with_path(scale, params["layers"])
        return losses({**params, "layers": scaled}, None)[0]

    unit = EPSILON * jnp.eye(layers * (heads + 2))
    slopes = jax.lax.map(lambda step: (changed(step) - changed(-step)) / (2 * EPSILON), unit)
    totals = jnp.sum(jnp.abs(slopes), axis=1)
    of_branches = totals[layers * heads :].reshape(2, layers, 1)
    expected = {
        "importance": totals[: layers * heads].reshape(layers, heads),
        "branch_importance": of_branches[0],
        "feed_forward_importance": of_branches[1],
    }
    return found, {statistic: values[case.layers] for statistic, values in expected.items()}
