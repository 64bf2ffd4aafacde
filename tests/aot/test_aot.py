"""Proving a step against a topology: bytes counted by hand, what is advised, and what a search finds."""

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from transformer.aot import mesh_and_remat_search
from transformer.aot.aot_compile import (
    AotReport,
    compile_ahead_of_time,
    largest_traced_arrays,
    parse_needed_bytes,
    resolve_topology,
)
from transformer.aot.mesh_and_remat_search import (
    Candidate,
    CompiledCandidate,
    fitting_candidates,
    possible_meshes,
    search_meshes,
    suggest_smaller_step,
)
from transformer.config import UserError
from transformer.costs.chips import TPU_CHIPS
from transformer.costs.compiled_program import CollectiveTotal, collective_totals
from transformer.tasks import registry
from transformer.training.build import build_components
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.partitioning import ShardingConfig, make_placement

LAYERS, WIDTH, HIDDEN, VOCABULARY, CONTEXT, ROWS = 2, 64, 128, 256, 32, 16
# Of one layer: four projections and their biases, two of the feed-forward network, two norms. Of the whole: the
# embeddings of tokens and positions, and the last norm. Matrices are divided along the width, vectors are whole.
LAYER = 4 * (WIDTH * WIDTH + WIDTH) + 2 * WIDTH * HIDDEN + HIDDEN + WIDTH + 4 * WIDTH
PARAMETERS = LAYERS * LAYER + (VOCABULARY + CONTEXT) * WIDTH + 2 * WIDTH
VECTORS = LAYERS * (4 * WIDTH + HIDDEN + WIDTH + 4 * WIDTH) + 2 * WIDTH

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs libtpu, the TPU compiler, which has wheels for Linux alone",
)


def experiment(**sections: Any) -> ExperimentConfig:
    values: dict[str, Any] = {
        "name": "small",
        "steps": 10,
        "topology": "cpu:4",
        "task": {"name": "language_modeling", "dataset": "nowhere", "tokenizer": "existing", "vocab_size": VOCABULARY}
        | {"context_length": CONTEXT, "batch_size": ROWS, "test_split": "", "probe_length": 8, "batching": "packed"},
        "model": {"family": "decoder", "layers": LAYERS, "width": WIDTH, "heads": 2, "feed_forward": HIDDEN}
        | {"max_length": CONTEXT},
        "optimizer": {"algorithm": "adam", "warmup_steps": 2},
        "sharding": {"data": 1, "fsdp": -1, "rules": "fsdp"},
    }
    for name, section in sections.items():
        values[name] = {**values[name], **section} if isinstance(section, dict) and name in values else section
    return resolve_config(values)


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build_task(*_: Any) -> None:
        raise AssertionError("a report reads no data")

    monkeypatch.setattr(registry, "build_task", build_task)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def divided() -> AotReport:
    return compile_ahead_of_time(experiment(parameter_averages={"ema": {"kind": "exponential", "decay": 0.9}}), "cpu:4")


@pytest.mark.slow
def test_bytes_a_device_are_those_counted_by_hand(divided: AotReport) -> None:
    share = 4 * ((PARAMETERS - VECTORS) // 4 + VECTORS)
    assert divided.num_parameters == PARAMETERS
    assert divided.mesh_shape == {"data": 1, "fsdp": 4, "expert": 1, "tensor": 1, "sequence": 1}
    assert divided.resident_bytes["parameters"] == share
    assert divided.resident_bytes["averages"] >= share
    # Two moments a parameter and their counter.
    assert 2 * share <= divided.resident_bytes["optimizer"] <= 2 * share + 16
    # Four arrays of numbers and one of truth values, a quarter of the rows each, and the rows' own numbers.
    assert divided.resident_bytes["batch"] == ROWS // 4 * (CONTEXT * (4 * 4 + 1) + 4)
    assert divided.program is not None
    # The rows' numbers are for evaluations: no training step reads them.
    assert divided.program.argument_bytes == sum(divided.resident_bytes.values()) - ROWS // 4 * 4
    assert divided.peak_bytes == divided.program.peak_bytes
    assert divided.batch_size == ROWS


def test_a_cpu_has_no_memory_of_its_own_to_judge_by(divided: AotReport) -> None:
    assert divided.device_memory_bytes is None
    assert divided.step_estimate is None
    assert divided.fits
    assert suggest_smaller_step(divided) == []


def test_the_operations_are_six_a_weight_and_token_and_those_of_attention(divided: AotReport) -> None:
    weights = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + VOCABULARY * WIDTH
    tokens = ROWS * CONTEXT
    assert divided.flops == 6 * weights * tokens + 12 * LAYERS * WIDTH * CONTEXT * tokens


def test_the_topology_is_the_flag_else_the_configs() -> None:
    assert resolve_topology(experiment(), "v5e:2x2") == "v5e:2x2"
    assert resolve_topology(experiment(), None) == "cpu:4"
    with pytest.raises(UserError, match=r"--topology=v5p:8x8x4, or set config\.topology"):
        resolve_topology(experiment(topology=""), None)


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("memory required for HLO temporaries (33.99G) exceeds available HBM (15.75G)", 1000 + round(33.99 * 2**30)),
        ("Ran out of memory in memory space hbm. Used 20.50M of 15.75M hbm.", round(20.5 * 2**20)),
        ("something else", None),
    ],
)
def test_what_the_compiler_said_is_read(message: str, needed: int | None) -> None:
    assert parse_needed_bytes(message, 1000) == needed


def test_the_largest_arrays_of_a_refused_program_are_those_of_its_loops_and_products() -> None:
    def traced(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return carry, carry @ carry

        _, kept = jax.lax.scan(body, x, length=6)
        return jnp.broadcast_to(kept, (50, *kept.shape)).sum()

    found = largest_traced_arrays(jax.make_jaxpr(traced)(jnp.zeros((8, 8), jnp.float32)).jaxpr, devices=2)
    assert [(each.num_bytes, each.shape) for each in found] == [
        (6 * 64 * 4 // 2, "float32[6,8,8]"),
        (128, "float32[8,8]"),
    ]


def judged(memory: float, held: dict[str, int], needed: int | None, **sections: Any) -> AotReport:
    """A report that did not fit, as the compiler of a device with `memory` bytes would have left it."""
    sizes = {"data": 1, "fsdp": 1, "expert": 1, "tensor": 1, "sequence": 1} | sections.pop("mesh", {})
    return AotReport(
        experiment(**sections),
        *("v5e:2x2", "TPU v5 lite", sizes, PARAMETERS, ROWS, held, int(memory), math.nan, 1e9, None, None, needed, ()),
    )


def test_a_state_that_is_too_large_is_to_be_divided_or_given_more_devices() -> None:
    held = {"parameters": 4000, "optimizer": 8000, "batch": 10**9}
    (one,) = suggest_smaller_step(
        judged(10_000, held, None, mesh={"data": 4}, sharding={"fsdp": 1, "data": -1, "rules": "dp"})
    )
    assert set(one.flags) == {
        "--config.sharding.data=1",
        "--config.sharding.fsdp=-1",
        "--config.sharding.tensor=1",
        "--config.sharding.rules=fsdp",
    }
    # 16,000 bytes with the gradients; nine tenths of 1,000 are free for them.
    both = suggest_smaller_step(
        judged(1000, held, None, mesh={"data": 4}, sharding={"fsdp": 1, "data": -1, "rules": "dp"})
    )
    assert [bool(each.flags) for each in both] == [True, False]
    assert "at least 18 devices" in both[1].reason
    (only,) = suggest_smaller_step(judged(2000, held, None, mesh={"fsdp": 4}))
    assert only.flags == ()
    assert "at least 36 devices" in only.reason


@pytest.mark.parametrize(
    ("remat", "needed", "flags"),
    [
        ("none", 12_000, ["--config.model.remat=dots", "--config.num_microbatches=2"]),
        ("dots", 100_000, ["--config.model.remat=full", "--config.num_microbatches=16"]),
        ("full", 30_000, ["--config.num_microbatches=4"]),
    ],
)
def test_activations_that_are_too_large_are_computed_again_or_cut(remat: str, needed: int, flags: list[str]) -> None:
    report = judged(10_000, {"parameters": 500, "optimizer": 1000, "batch": 10}, needed, model={"remat": remat})
    assert [flag for each in suggest_smaller_step(report) for flag in each.flags] == flags


def test_one_row_that_is_too_large_is_to_be_divided_itself() -> None:
    held = {"parameters": 500, "optimizer": 1000, "batch": 10}
    report = judged(10_000, held, 30_000, model={"remat": "full"}, num_microbatches=16)
    (only,) = suggest_smaller_step(report)
    assert only.flags == ()  # one device has no other to divide with
    report = judged(10_000, held, 30_000, mesh={"fsdp": 4}, model={"remat": "full"}, num_microbatches=4)
    (only,) = suggest_smaller_step(report)
    # Two devices a row, and as many microbatches again: still one row at once.
    assert only.flags == (
        "--config.sharding.rules=fsdp+tp",
        *("--config.sharding.data=1", "--config.sharding.fsdp=2", "--config.sharding.tensor=2"),
        "--config.num_microbatches=8",
    )


def test_advice_for_divided_positions_keeps_them_divided() -> None:
    held = {"parameters": 4000, "optimizer": 8000, "batch": 10**9}
    sharding = {"fsdp": 1, "data": -1, "sequence": 2, "rules": "sp"}
    (one,) = suggest_smaller_step(judged(10_000, held, None, mesh={"data": 4, "sequence": 2}, sharding=sharding))
    assert "--config.sharding.rules=sp" in one.flags
    assert "sharded over 4 devices" in one.reason
    (only,) = suggest_smaller_step(judged(10_000, held, None, mesh={"fsdp": 4, "sequence": 2}, sharding=sharding))
    assert only.flags == ()  # nothing is left to divide them over
    assert "at least 16 devices" in only.reason


def test_advice_for_divided_experts_keeps_them_divided() -> None:
    held = {"parameters": 4000, "optimizer": 8000, "batch": 10**9}
    sharding = {"fsdp": 1, "data": -1, "expert": 2, "rules": "dp"}
    (one,) = suggest_smaller_step(judged(10_000, held, None, mesh={"data": 4, "expert": 2}, sharding=sharding))
    assert "--config.sharding.rules=fsdp" in one.flags
    assert "sharded over 4 devices" in one.reason
    (only,) = suggest_smaller_step(judged(9000, held, None, mesh={"fsdp": 1, "expert": 2}, sharding=sharding))
    assert only.flags == ()  # all that is left divides experts
    assert "at least 4 devices" in only.reason
    # Two rows a device are 32 on 16 devices, half of which divide experts.
    held = {"parameters": 500, "optimizer": 1000, "batch": 10}
    mesh = {"data": 4, "expert": 2}
    (only,) = suggest_smaller_step(judged(10_000, held, 12_000, mesh=mesh, model={"remat": "full"}, sharding=sharding))
    assert "1 rows per device instead of 2" in only.reason


def test_a_mesh_divides_the_experts_part_of_the_state_by_their_axis() -> None:
    model = experiment().model
    formulas = mesh_and_remat_search._StepFormulas(model, 1.0, 1.0, 8, 3000, 1000, 0.75, 1, 0, 0.0, 4)  # type: ignore[arg-type]
    sharding = ShardingConfig(data=1, fsdp=2, expert=3, rules="fsdp")
    full = mesh_and_remat_search.Remat.FULL
    assert formulas.min_bytes(sharding, full) == pytest.approx(4000 / 2 * (0.25 + 0.75 / 3))


def test_meshes_are_the_factorings_that_the_sizes_allow() -> None:
    found = possible_meshes(experiment(), 8)
    sizes = {(mesh.data, mesh.fsdp, mesh.tensor): mesh.rules for mesh in found}
    # Two heads: tensor is 1 or 2.
    assert sizes == {
        (8, 1, 1): "dp",
        (4, 2, 1): "fsdp",
        (2, 4, 1): "fsdp",
        (1, 8, 1): "fsdp",
        (4, 1, 2): "fsdp+tp",
        (2, 2, 2): "fsdp+tp",
        (1, 4, 2): "fsdp+tp",
    }
    divided = possible_meshes(experiment(sharding={"sequence": 2, "rules": "sp"}), 8)
    assert {(mesh.data, mesh.fsdp, mesh.tensor, mesh.sequence) for mesh in divided} == {
        (4, 1, 1, 2),
        (2, 2, 1, 2),
        (1, 4, 1, 2),
        (2, 1, 2, 2),
        (1, 2, 2, 2),
    }
    assert {mesh.rules for mesh in divided if mesh.tensor == 2} == {"sp+tp"}
    apart = possible_meshes(experiment(sharding={"expert": 2}), 8)
    assert {mesh.data * mesh.fsdp * mesh.tensor * mesh.expert for mesh in apart} == {8}
    assert {mesh.expert for mesh in apart} == {2}


@needs_libtpu
def test_candidates_leave_out_what_cannot_fit_by_formula() -> None:
    small = fitting_candidates(experiment(), "v5e:2x2")
    assert {each.remat.value for each in small} == {"none", "dots", "attention", "full"}
    assert [each.step_seconds for each in small] == sorted(each.step_seconds for each in small)
    # 1.6 billion parameters: 19 GB with their moments, 26 with their gradients, on chips of 17.
    large = fitting_candidates(
        experiment(model={"width": 8192, "feed_forward": 32768}, task={"vocab_size": 512}), "v5e:2x2"
    )
    assert large
    assert all(each.sharding.fsdp * each.sharding.tensor > 1 for each in large)
    with pytest.raises(UserError, match=r"no mesh of topology=v5e:2x2 fits config\.name=small by the estimate"):
        next(search_meshes(experiment(model={"width": 32768, "feed_forward": 131072}), "v5e:2x2", 1))


def test_a_search_settles_a_mesh_by_the_first_policy_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def proven(experiment: ExperimentConfig, topology: str) -> AotReport:
        policy = experiment.model.remat.value
        asked.append((experiment.sharding.fsdp, policy))
        if experiment.sharding.tensor > 1:
            raise UserError("cannot be divided so")
        report = judged(1000, {"parameters": 1, "optimizer": 2, "batch": 1}, 2000)
        fits = policy == "attention" or experiment.sharding.fsdp == 1
        return report._replace(device_memory_bytes=None, program=object()) if fits else report  # type: ignore[arg-type]

    monkeypatch.setattr(mesh_and_remat_search, "compile_ahead_of_time", proven)
    found = list(search_meshes(experiment(), "cpu:2", 10))
    assert all(isinstance(each, CompiledCandidate) for each in found)
    assert [(each.candidate.sharding.fsdp, each.candidate.remat.value) for each in found if each.report.fits] == [
        (1, "none"),
        (2, "attention"),
    ]
    assert [policy for fsdp, policy in asked if fsdp == 2] == ["none", "dots", "attention"]
    # Its flags, given to the config, are the candidate.
    candidate: Candidate = found[-1].candidate
    said = dict(flag.removeprefix("--config.").split("=") for flag in candidate.flags)
    again = experiment(
        sharding={name: int(said[f"sharding.{name}"]) for name in ("data", "fsdp", "tensor")}
        | {"rules": said["sharding.rules"]},
        model={"remat": said["model.remat"]},
    )
    assert candidate.apply_to(experiment()).to_config()["sharding"] == again.to_config()["sharding"]
    assert candidate.apply_to(experiment()).model == again.model
    assert len(list(search_meshes(experiment(), "cpu:2", 2))) == 2


@pytest.mark.slow
@needs_libtpu
def test_the_collectives_of_a_step_on_a_tpu_slice_are_those_recorded() -> None:
    report = compile_ahead_of_time(experiment(precision={"compute": "bfloat16"}), "v5e:2x2")
    assert report.fits
    assert report.device_memory_bytes == TPU_CHIPS["v5e"].memory_bytes
    assert report.program is not None
    assert report.step_estimate is not None
    assert report.program.loops_without_trip_count == ()
    # A change here is a change of what every step on a pod sends: look at why, then record it anew.
    assert dict(collective_totals(report.program.collectives)) == {
        ("all-gather", ("fsdp",)): CollectiveTotal(num_executions=27, num_bytes=301_056),
        ("reduce-scatter", ("fsdp",)): CollectiveTotal(num_executions=3, num_bytes=196_608),
        ("all-to-all", ("fsdp",)): CollectiveTotal(num_executions=2, num_bytes=49_152),
        ("all-reduce", ("fsdp",)): CollectiveTotal(num_executions=4, num_bytes=12_620),
    }


@pytest.mark.slow
@needs_libtpu
def test_a_step_that_the_tpu_cannot_hold_is_refused_and_what_is_advised_helps() -> None:
    # 1.6 billion parameters: 19 GB with their moments, on chips of 17.
    planted = experiment(
        model={"layers": 32, "width": 2048, "heads": 16, "feed_forward": 8192},
        sharding={"fsdp": 1, "data": -1, "rules": "dp"},
        precision={"compute": "bfloat16"},
    )
    report = compile_ahead_of_time(planted, "v5e:2x2")
    assert not report.fits
    assert report.peak_bytes is not None
    assert report.peak_bytes > 19e9
    # The hidden layer of every position, kept for the backward pass of all layers.
    assert "8192" in report.largest_arrays[0].shape
    (suggestion,) = suggest_smaller_step(report)
    helped = dataclasses.replace(
        planted, sharding=dataclasses.replace(planted.sharding, rules="fsdp", data=1, fsdp=-1, tensor=1)
    )
    assert "--config.sharding.rules=fsdp" in suggestion.flags
    assert compile_ahead_of_time(helped, "v5e:2x2").fits


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"positions": "shaw"}, r"config\.sharding\.sequence=2 with sequence_attention=ring .* position=shaw"),
        ({"score": "additive"}, r"config\.sharding\.sequence=2 with sequence_attention=ring .* score=additive"),
        ({"backend": "einsum"}, r"config\.model\.backend=einsum is another"),
    ],
)
def test_attention_that_no_ring_computes_is_refused_before_it_is_traced(model: dict[str, str], says: str) -> None:
    sharding = {"data": 1, "fsdp": 1, "sequence": 2, "rules": "sp"}
    small = experiment(model=model, sharding=sharding)
    placement = make_placement(small.sharding, jax.devices()[:2])
    with pytest.raises(UserError, match=says):
        build_components(small, Path(), placement, synthetic=True)
    gathering = experiment(model=model, sharding=sharding | {"sequence_attention": "gather"})
    build_components(gathering, Path(), make_placement(gathering.sharding, jax.devices()[:2]), synthetic=True)
