"""Gradients at initialization: those of a run's own first step, and the image that Xiong et al. 2020 draw of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from launch.config_files import load_config, load_function
from tests.contracts.cases import CASES
from transformer.config import UserError, to_config
from transformer.models.model import leaves_by_path
from transformer.studies.ablations import initial_gradients as module
from transformer.studies.ablations.ablation import Ablation, DepthSweep, build_ablation
from transformer.studies.ablations.initial_gradients import compute_initial_gradient_norms, measure_depth_sweeps
from transformer.training.build import build_components, make_jitted_train_step
from transformer.training.config import apply_overrides, resolve_config
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.partitioning import shard_batch, single_device_placement

FILE = Path(__file__).resolve().parents[2] / "experiments/ablations/configs/norm_placement.py"
TINY = {
    "task.dataset": "reversal/length=4,num_symbols=5,train=64,validation=4,test=4",
    "task.bucket_lengths": (5,),
    "task.tokens_per_batch": 40,
    "task.num_decoded_examples": 1,
    "task.num_probe_examples": 1,
    "model.width": 8,
    "model.heads": 2,
    "model.feed_forward": 12,
    "model.encoder_layers": 1,
    "model.decoder_layers": 2,
    "model.max_length": 8,
}


@pytest.fixture(scope="module")
def base() -> Mapping[str, Any]:
    """The norm study's own base config."""
    return load_config(str(FILE)).to_dict()


def study(arms: Sequence[str], stacks: Mapping[str, DepthSweep]) -> Ablation:
    """The norm study, of some arms and with other stacks."""
    make = load_function(str(FILE), "get_ablation")
    assert make is not None
    spec = make(build_ablation)
    kept = {arm: spec.arms[arm] for arm in arms}
    return dataclasses.replace(spec, arms=kept, reference=arms[0], initial_gradients=stacks)


def own_stack(name: str, **changes: Any) -> DepthSweep:
    """One of the study's own stacks."""
    make = load_function(str(FILE), "get_ablation")
    assert make is not None
    return dataclasses.replace(make(build_ablation).initial_gradients[name], **changes)


@pytest.mark.slow
def test_they_are_what_the_first_step_of_a_run_descends(base: Mapping[str, Any], tmp_path: Path) -> None:
    changes = {**TINY, "model.dropout": 0.3, "seed": 7, "steps": 10}
    descent = {"algorithm": "sgd", "learning_rate": 1.0, "schedule": "constant", "warmup_steps": 0, "beta1": 0.0}
    experiment = resolve_config(apply_overrides(base, {**changes, "optimizer": descent}))
    setting = build_components(experiment, tmp_path, single_device_placement())
    state = setting.init_state(jax.random.key(7))
    path = "decoder/feed_forward/expand/kernel"
    before_LxExF = np.array(leaves_by_path(state.variables.params)[path], np.float64)
    batch = shard_batch(setting.task.training_batches(7)[0], setting.placement)
    state, _ = make_jitted_train_step(experiment, setting)(state, batch)
    descended_LxExF = before_LxExF - np.array(leaves_by_path(state.variables.params)[path], np.float64)
    expected_L = np.sqrt(np.sum(descended_LxExF**2, axis=(1, 2)))
    other = resolve_config(apply_overrides(base, {**changes, "seed": 8}))
    found, of_other = compute_initial_gradient_norms([experiment, other], setting.task)
    # What is left of a float32 after a parameter was subtracted from it.
    np.testing.assert_allclose(found, expected_L, rtol=1e-4)
    assert expected_L.shape == (2,)
    assert not np.allclose(of_other, expected_L, rtol=1e-2)


def test_the_numbers_of_a_stack_by_hand(base: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def made_up(experiments: Sequence[Any], task: Any) -> list[np.ndarray]:
        layers, placement = experiments[0].model.decoder_layers, experiments[0].model.norm_placement.value
        asked.append((layers, placement, [experiment.run.seed for experiment in experiments]))
        if placement == "post":
            return [np.full(layers, np.nan), np.ones(layers)]
        # The last layer's falls to a half where the depth grows fourfold, from 6 on average at depth 1.
        return [np.linspace(2, 1, layers) * size / np.sqrt(layers) for size in (4.0, 8.0)]

    monkeypatch.setattr(module, "compute_initial_gradient_norms", made_up)
    stack = DepthSweep((2, 8), ("model.encoder_layers", "model.decoder_layers"), TINY, seeds=(5, 6))
    found = to_config(measure_depth_sweeps(base, study(["pre", "post"], {"both": stack})))
    assert asked == [(depth, arm, [5, 6]) for arm in ("pre", "post") for depth in (2, 8)]
    (both,) = found["stacks"]
    assert (both["name"], both["depths"]) == ("both", [2, 8])
    shallow = both["arms"][0]
    assert (shallow["arm"], shallow["depth"]) == ("pre", 2)
    assert shallow["layers"] == pytest.approx([12 / 2**0.5, 6 / 2**0.5])
    assert shallow["low"] == pytest.approx([8 / 2**0.5, 4 / 2**0.5])
    assert shallow["high"] == pytest.approx([16 / 2**0.5, 8 / 2**0.5])
    assert both["ratio"][:2] == [{"arm": "pre", "depth": depth, "last_over_first": 0.5} for depth in (2, 8)]
    assert both["exponent"][0] == {"arm": "pre", "value": pytest.approx(-0.5)}
    assert both["arms"][2]["layers"] == [None, None]
    assert both["ratio"][2] == {"arm": "post", "depth": 2, "last_over_first": None}
    assert both["exponent"][1] == {"arm": "post", "value": None}
    assert "gradient of the training loss" in found["how"]


def test_one_depth_has_no_exponent(base: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "compute_initial_gradient_norms", lambda experiments, task: [np.ones(3)] * len(experiments)
    )
    stack = DepthSweep((3,), ("model.decoder_layers",), TINY)
    (only,) = to_config(measure_depth_sweeps(base, study(["pre", "post"], {"one": stack})))["stacks"]
    assert [entry["value"] for entry in only["exponent"]] == [None, None]


def test_a_stack_that_no_config_has_is_refused(base: Mapping[str, Any]) -> None:
    with pytest.raises(UserError, match=r"unknown key config\.model\.layers"):
        measure_depth_sweeps(base, study(["pre", "post"], {"wrong": DepthSweep((6,), ("model.layers",), TINY)}))


def ratios(stack: Mapping[str, Any]) -> dict[str, float]:
    return {entry["arm"]: entry["last_over_first"] for entry in stack["ratio"]}


@pytest.mark.slow
def test_in_a_decoder_that_reads_an_encoder_post_norms_gradients_grow_toward_the_output(
    base: Mapping[str, Any],
) -> None:
    few = {"task.dataset": "phrases/train=400,validation=20,test=20"}
    stack = own_stack("encoder-decoder's decoder", depths=(6,), overrides=few)
    (found,) = to_config(measure_depth_sweeps(base, study(["post", "pre"], {"decoder": stack})))["stacks"]
    of = ratios(found)
    assert of["post"] >= 4, of
    assert of["pre"] <= 1, of
    grows = next(entry["layers"] for entry in found["arms"] if entry["arm"] == "post")
    assert grows == sorted(grows)


@pytest.mark.slow
def test_in_a_decoder_alone_pre_norms_last_gradient_falls_with_the_root_of_the_depth(base: Mapping[str, Any]) -> None:
    stack = own_stack("decoder alone")
    assert stack.depths == (6, 12, 24)
    (found,) = to_config(measure_depth_sweeps(base, study(["post", "pre"], {"alone": stack})))["stacks"]
    exponents = {entry["arm"]: entry["value"] for entry in found["exponent"]}
    assert -0.6 <= exponents["pre"] <= -0.4, exponents
    assert -0.15 <= exponents["post"] <= 0.15, exponents
    # And no growth toward the output as in the decoder that reads an encoder.
    post = [entry["last_over_first"] for entry in found["ratio"] if entry["arm"] == "post"]
    assert max(post) < 2, post


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_blocks_of_experts_are_measured_where_all_are_alike(every: int, tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "language_modeling x decoder with experts")
    model = {**case.model, "experts": {"count": 4, "every_n_layers": every}}
    experiment = dataclasses.replace(case, model=model).experiment(OptimizerAlgorithm.SGD, 0.1)
    task = build_components(experiment, tmp_path, single_device_placement()).task
    if every == 2:
        with pytest.raises(UserError, match=r"family=decoder has no feed-forward blocks, alike in all its layers"):
            compute_initial_gradient_norms([experiment], task)
        return
    (norms_L,) = compute_initial_gradient_norms([experiment], task)
    assert norms_L.shape == (2,)
    assert (norms_L > 0).all()
