"""What a run trains by patterns, and the rate of each layer: on shapes, and a step on a line in NumPy."""

from typing import Any

import jax
import numpy as np
import pytest
from optax.contrib import MuonDimensionNumbers

from tests.training.test_step import SGD, Regression, batch_of, gradient, steps
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model, leaves_by_path
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.task import Objective
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import (
    OptimizerAlgorithm,
    OptimizerConfig,
    check_trainable_patterns,
    count_layers_above,
    describe_trainable,
    hyperparameters,
    make_optimizer,
)

SIZES = {"width": 8, "heads": 2, "feed_forward": 8, "max_length": 8}


def model(family: str, **changes: Any) -> Model:
    config = registry.model_config({"family": family, **({} if "recurrent" in family else SIZES), **changes})
    inputs = {"vectors": InputSpec((2, 4, 3), np.float32)}
    interface = TaskInterface(inputs, {"tokens": 11, "joint": 11, "numbers": 1}, pad_id=0, bos_id=1, eos_id=2)
    return registry.build(config, interface, Precision())


def above(family: str, **changes: Any) -> dict[str, np.ndarray]:
    """How many layers stand above each parameter; that each array broadcasts against its own."""
    made = model(family, **changes)
    found = count_layers_above(made, registry.FAMILIES[family].embedding_patterns)
    for path, leaf in leaves_by_path(made.functional.shapes()).items():
        assert np.broadcast_shapes(found[path].shape, leaf.shape) == leaf.shape, path
    return found


def test_the_layers_of_a_stack_count_down_to_its_top_and_what_enters_it_stands_lowest() -> None:
    found = above("decoder", layers=3, tie_embeddings=False, output_bias=True)
    assert found["layers/attention/query/kernel"].ravel().tolist() == [2, 1, 0]
    assert found["layers/feed_forward_residual/norm/bias"].ravel().tolist() == [2, 1, 0]
    assert {path: int(found[path]) for path in found if not path.startswith("layers/")} == {
        "embedding/table": 3,
        "positions/table": 3,
        "norm/bias": 0,
        "norm/scale": 0,
        "output_bias/bias": 0,
        "unembedding/kernel": 0,
    }


@pytest.mark.parametrize(
    ("family", "front", "behind"),
    [
        ("xlnet", ("embedding/table", "blank"), ("output_bias/bias",)),
        ("regression_decoder", ("embed/kernel", "embed/bias", "positions/table"), ("head/kernel", "norm/scale")),
    ],
)
def test_whatever_enters_the_first_layer_stands_lowest(
    family: str, front: tuple[str, ...], behind: tuple[str, ...]
) -> None:
    found = above(family, layers=3)
    assert {path: int(found[path]) for path in (*front, *behind)} == dict.fromkeys(front, 3) | dict.fromkeys(behind, 0)


def test_of_two_stacks_each_counts_its_own_and_embeddings_stand_below_the_higher() -> None:
    found = above("encoder_decoder", encoder_layers=1, decoder_layers=2, positions="t5")
    assert found["encoder/attention/key/kernel"].ravel().tolist() == [0]
    assert found["decoder/cross/key/kernel"].ravel().tolist() == [1, 0]
    assert found["embedding/table"] == found["decoder_relative/table"] == 2


def test_blocks_that_are_one_entry_of_a_stack_are_counted_one_by_one() -> None:
    found = above("decoder", layers=6, experts={"count": 3, "every_n_layers": 3})
    assert found["layers/dense/attention/key/kernel"].squeeze().tolist() == [[5, 4], [2, 1]]
    assert found["layers/last/experts/networks/expand/kernel"].ravel().tolist() == [3, 0]


def test_a_model_without_stacked_layers_has_no_rates_of_layers() -> None:
    with pytest.raises(UserError, match=r"layer_decay needs a model of stacked layers"):
        above("recurrent_encoder_decoder")


PARAMETERS = {"embedding/table": (3, 2), "layers/w/kernel": (2, 2), "layers/w/bias": (2, 2), "head/kernel": (2,)}
HEIGHTS = {"embedding/table": 2, "layers/w/kernel": np.array([[1], [0]]), "layers/w/bias": np.array([[1], [0]])}


@pytest.mark.parametrize("algorithm", OptimizerAlgorithm)
def test_a_layer_learns_by_the_decayed_rate_and_what_decays_its_weights_does_too(algorithm: OptimizerAlgorithm) -> None:
    random = np.random.default_rng(0)
    draw = {path: random.normal(size=(2, *shape)).astype(np.float32) for path, shape in PARAMETERS.items()}
    params, gradients = ({path: jax.numpy.asarray(leaf[n]) for path, leaf in draw.items()} for n in (0, 1))
    decays = algorithm in (OptimizerAlgorithm.ADAMW, OptimizerAlgorithm.MUON)
    decayed = {"weight_decay": 0.3} if decays else {}
    matrices = {"embedding/table": MuonDimensionNumbers((0,), (1,))}
    plain = OptimizerConfig(algorithm, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, **decayed)
    slower = OptimizerConfig(algorithm, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, layer_decay=0.5, **decayed)
    whole = make_optimizer(plain, 9, matrices=matrices)
    layered = make_optimizer(slower, 9, HEIGHTS | {"head/kernel": 0}, matrices=matrices)
    one = whole.update(gradients, whole.init(params), params, 0, hyperparameters(plain))[0]
    other = layered.update(gradients, layered.init(params), params, 0, hyperparameters(slower))[0]
    # By hand: embeddings below two layers, the layers themselves, the head.
    shares = {"embedding/table": 0.25, "head/kernel": 1.0}
    for path in PARAMETERS:
        share = shares.get(path, np.array([[0.5], [1.0]]))
        np.testing.assert_allclose(other[path], share * np.asarray(one[path]), rtol=1e-6)
    assert "layer_decay" not in hyperparameters(plain)  # of one it is another program, the one without


def test_frozen_parameters_keep_their_bits_and_take_no_memory_of_the_optimizer() -> None:
    config = OptimizerConfig(
        OptimizerAlgorithm.ADAM, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, frozen=("*/bias",)
    )
    start, state, (metrics,) = steps(Regression(), [batch_of(0)], config)
    before, after = leaves_by_path(start.variables.params), leaves_by_path(state.variables.params)
    assert {path for path in before if not np.array_equal(before[path], after[path])} == {"line/kernel"}
    moments = {path for path in leaves_by_path(state.optimizers) if "line" in path}
    assert moments
    assert all("kernel" in path for path in moments)
    of_w, _, _ = gradient(*(np.asarray(before[f"line/{name}"], np.float64) for name in ("kernel", "bias")), batch_of(0))
    assert metrics.values["gradient_norm"] == pytest.approx(np.linalg.norm(of_w), rel=1e-5)


def test_what_trains_is_chosen_among_what_the_objective_trains() -> None:
    start, state, _ = steps(
        Regression(), [batch_of(0)], OptimizerConfig(**{**vars(SGD), "trainable": ("*/kernel", "other")})
    )
    before, after = leaves_by_path(start.variables.params), leaves_by_path(state.variables.params)
    assert {path for path in before if not np.array_equal(before[path], after[path])} == {"line/kernel"}


PATHS = {path: 10 for path in ("embedding/table", "layers/query/kernel", "layers/query/bias", "head/kernel")}
BESIDE = {**PATHS, "layers/query/lora/down": 2, "layers/query/lora/up": 2}


@pytest.mark.parametrize(
    ("fields", "paths", "says"),
    [
        ({"trainable": ("haed/*",)}, PATHS, r"optimizer\.trainable: 'haed/\*' matches no parameter .* mean 'head/"),
        ({"frozen": ("head/*", "layers/0/*")}, PATHS, r"optimizer\.frozen: 'layers/0/\*' matches no parameter"),
        ({"frozen": ("*",)}, PATHS, r"leaves the objective 'fit' nothing to train: it trains \*"),
        ({}, BESIDE, r"beside layers/query/kernel, which this run trains itself: say .*'\*/lora/\*'"),
    ],
)
def test_patterns_that_do_nothing_are_refused(fields: dict[str, Any], paths: dict[str, int], says: str) -> None:
    objective = Objective("fit", lambda *_: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match=says) as told:
        check_trainable_patterns(OptimizerConfig(**fields), objective, paths)
    assert "\n" not in str(told.value)
    check_trainable_patterns(OptimizerConfig(trainable=("*/lora/*", "head/*")), objective, BESIDE)
    with pytest.raises(
        UserError, match=r"layer_decay=0\.0 must be above 0; config\.optimizer\.frozen leaves parts alone"
    ):
        OptimizerConfig(layer_decay=0.0)


def test_a_run_says_what_it_trains_where_that_is_not_all() -> None:
    objective = Objective("fit", lambda *_: None)  # type: ignore[arg-type,return-value]
    shapes = {path: (size // 2, 2) for path, size in BESIDE.items()}
    assert describe_trainable(make_optimizer(OptimizerConfig(), 9), objective, shapes) == []
    lora = make_optimizer(OptimizerConfig(trainable=("*/lora/*", "head/*")), 9)
    assert describe_trainable(lora, objective, shapes) == ["fit trains 14 of 44 parameters, in 3 of 6 arrays"]
    entries = {"embedding/table": None, "layers/query/kernel": 2, "layers/query/bias": 2}
    layers = make_optimizer(OptimizerConfig(), 9, num_frozen_entries=entries)
    assert describe_trainable(layers, objective, shapes) == [
        "fit trains 26 of 44 parameters, in 5 of 6 arrays; frozen: embedding and the first 2 of 5 layers of layers"
    ]
