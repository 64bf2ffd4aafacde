"""Several real processes on this machine make the run that one makes, and end together."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.runs import one_of_several
from tests.runs.test_array_digests import digest_by_hand
from tests.training import small_run
from tests.training.small_run import without_clock
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.runs import distributed
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.jsonl_reading import HEAD_RECORDS, read_records
from transformer.runs.run_directory import RunDirectory
from transformer.training import build, driver, partitioning
from transformer.training import config as experiment

CONFIG: dict[str, Any] = {
    **small_run.CONFIG,
    "name": "several",
    "steps": 4,
    "seed": 3,
    "log_every": 1,
    "eval_every": 2,
    "checkpoint_every": 2,
    # Adam as it is would make as much of the rounding of a gradient that is zero as of any other: beside an epsilon of
    # 1000 it is plain descent.
    "optimizer": {**small_run.CONFIG["optimizer"], "learning_rate": 500.0, "epsilon": 1000.0, "warmup_steps": 2},
}


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    said: str


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scenario(NamedTuple):
    """So many processes of so many devices each; `killed`: they train two more runs, of which one ends one of them."""

    count: int
    devices: int
    killed: bool


# Processes that train compile all of their programs each: `make test` only lets two meet, decide and end.
TOGETHER = pytest.param(Scenario(2, 2, False), id="2x2", marks=pytest.mark.slow)
SURVIVED_BY_NONE = pytest.param(Scenario(2, 2, True), id="2x2-killed", marks=pytest.mark.slow)
FOUR = pytest.param(Scenario(4, 1, True), id="4x1-killed", marks=pytest.mark.slow)


def together(scenario: Scenario, folder: Path, root: Path) -> list[Ended]:
    """Start the processes, and wait until all have ended."""
    count, devices, killed = scenario
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        distributed.ADDRESS: f"127.0.0.1:{free_port()}",
        distributed.COUNT: str(count),
    }
    command = [sys.executable, "-m", "tests.runs.one_of_several", str(folder), *["killed"] * killed]
    started = []
    with contextlib.ExitStack() as stack:
        for index in range(count):
            own = {**environment, distributed.INDEX: str(index)}
            out = stack.enter_context((folder / f"said-{index}.txt").open("w"))
            started.append(subprocess.Popen(command, cwd=root, env=own, stdout=out, stderr=subprocess.STDOUT))
            stack.callback(started[-1].kill)
        codes = [process.wait(timeout=900) for process in started]
    return [Ended(code, (folder / f"said-{index}.txt").read_text()) for index, code in enumerate(codes)]


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Here all is on one device, to compare with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a single process."""
    folder = tmp_path_factory.mktemp("alone")
    driver.train(experiment.resolve_config(CONFIG), folder / "run")
    return folder / "run"


class Several(NamedTuple):
    """What some processes left: their folder, how they ended, and what each found."""

    folder: Path
    ended: list[Ended]
    found: list[dict[str, Any]]


@pytest.fixture(scope="module", params=[TOGETHER, FOUR])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Several:
    """Processes that did all of tests/runs/one_of_several.py."""
    scenario: Scenario = request.param
    folder = tmp_path_factory.mktemp("several")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    saved = Checkpoints(folder / "from_one", max_to_keep=1)
    saved.save(1, one_of_several.state_of(1, one_of_several.mesh_of(jax.devices()[:8])), {})
    saved.close()
    with RunDirectory.claim(folder / "held", {}):
        ended = together(scenario, folder, root)
    found = [folder / f"found-{index}.json" for index in range(scenario.count)]
    missing = [each.said for each, file in zip(ended, found, strict=True) if not file.exists()]
    assert not missing, "\n\n".join(missing)
    assert scenario.killed or [each.code for each in ended] == [0] * scenario.count, ended
    return Several(folder, ended, [json.loads(file.read_text()) for file in found])


def assert_same_run(run: Path, reference: Path) -> None:
    """The same lines in the same order, losses within 1e-6 of each other, and the same maps at the same steps."""
    lines, expected = without_clock(run), without_clock(reference)
    assert [(line["step"], line["split"], *line) for line in lines] == [
        (line["step"], line["split"], *line) for line in expected
    ]
    for line, other in zip(lines, expected, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-6)
        for name in set(line) - {"split"}:
            assert line[name] == pytest.approx(other[name], rel=1e-5), name
    heads, others = (read_records(at / "heads.jsonl", HEAD_RECORDS) for at in (run, reference))
    assert [set(line) for line in heads] == [set(line) for line in others]
    for line, other in zip(heads, others, strict=True):
        for statistic in set(line) - {"step", "site"}:
            np.testing.assert_allclose(line[statistic], other[statistic], atol=1e-4, rtol=1e-4)
    store, plain = MapStore.open_existing(run / "maps"), MapStore.open_existing(reference / "maps")
    assert store.steps == plain.steps == (0, 2, 4)
    for step in plain.steps:
        got, wanted = store.read("decoder/self", step), plain.read("decoder/self", step)
        np.testing.assert_allclose(got, wanted, atol=0.01)  # a step of the quantizer, where rounding differs
    values, wanted = store.statistics("decoder/self"), plain.statistics("decoder/self")
    assert values.names == wanted.names
    np.testing.assert_allclose(values.values, wanted.values, atol=1e-4, rtol=1e-4)


def final_state(run: Path, devices: int) -> dict[str, np.ndarray]:
    """The arrays of the last checkpoint, restored onto so many devices."""
    made = experiment.resolve_config(CONFIG)
    placement = partitioning.make_placement(made.sharding, jax.devices()[:devices])
    setting = build.build_components(made, run, placement)
    checkpoints = Checkpoints.open_read_only(run / "checkpoints")
    assert checkpoints.latest() == CONFIG["steps"]
    state = checkpoints.read(CONFIG["steps"]).restore(setting.abstract_state)
    assert len(jax.tree.leaves(state.variables)[0].sharding.device_set) == devices
    state = state._replace(key=jax.random.key_data(state.key))
    return {path: np.asarray(leaf) for path, leaf in leaves_by_path(state).items()}


def test_they_find_one_another_and_a_mistake_is_everybodys(group: Several) -> None:
    assert {found["processes"] for found in group.found} == {len(group.ended)}
    assert {found["devices"] for found in group.found} == {4}
    for found in group.found:
        assert "held is in use by process" in found["refusal"]


def test_they_make_the_run_of_one(group: Several, alone: Path) -> None:
    assert_same_run(group.folder / "several", alone)
    # What is written once is written by one of them: samples, events, and the record of one start.
    assert len(json.loads((group.folder / "several" / "environment.json").read_text())) == 1
    assert len(list((group.folder / "several" / "tensorboard").iterdir())) == 1
    assert "of 4 processes" in group.ended[0].said or "of 2 processes" in group.ended[0].said
    assert all("perplexity" not in each.said for each in group.ended[1:])


def test_their_checkpoints_are_anybodys(group: Several, alone: Path) -> None:
    assert all(found["checkpoints"] for found in group.found)
    assert all(found["gone back"] == [1, [2], ["1", "damaged-2"]] for found in group.found)
    reader = Checkpoints.open_read_only(group.folder / "from_several")
    assert reader.steps() == [2, 3]
    for devices in (1, 2, 4, 8):
        shapes = one_of_several.abstract(one_of_several.state_of(3, one_of_several.mesh_of(jax.devices()[:devices])))
        stored = reader.read(3)
        state, metadata = stored.restore(shapes), stored.metadata
        assert one_of_several.same(state, 3)
        assert metadata == {"step": 3}
    manifest = json.loads((group.folder / "from_several" / "3" / "manifest" / "metadata").read_text())
    for name, array in one_of_several.values(3).items():
        assert manifest["leaves"][name]["digest"] == digest_by_hand(array)
    of_one, of_eight, other = (
        final_state(group.folder / "several", 1),
        final_state(group.folder / "several", 8),
        final_state(alone, 1),
    )
    for path, leaf in of_one.items():
        assert of_eight[path].tobytes() == leaf.tobytes()
        np.testing.assert_allclose(leaf, other[path], rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("group", [SURVIVED_BY_NONE, FOUR], indirect=True, scope="module")
def test_they_begin_a_run_together_with_the_parameters_of_another(group: Several) -> None:
    assert all(found["begun"] for found in group.found)


def test_digests_depend_on_no_sharding_and_find_what_is_wrong_anywhere(group: Several) -> None:
    expected = {name: digest_by_hand(array) for name, array in one_of_several.values(1).items()}
    for found in group.found:
        assert found["digests"]["digests"] == expected
        assert found["digests"]["sound"] == []
        for name in ("divided", "crossed", "whole", "half"):
            assert found["digests"][name] == [name]


def test_their_maps_are_those_of_one_bit_for_bit(group: Several, tmp_path: Path) -> None:
    plain = MapStore.open(tmp_path / "maps", (one_of_several.SITE,), one_of_several.LABELS, "")
    for step in (1, 2):
        plain.write(step, one_of_several.some_maps())
    store = MapStore.open_existing(group.folder / "maps")
    assert store.steps == plain.steps
    for step in plain.steps:
        for part, wanted in zip(
            store.read_quantized("decoder/self", step, "full"),
            plain.read_quantized("decoder/self", step, "full"),
            strict=True,
        ):
            np.testing.assert_array_equal(part, wanted)
    np.testing.assert_array_equal(store.statistics("decoder/self").values, plain.statistics("decoder/self").values)


@pytest.mark.parametrize("group", [SURVIVED_BY_NONE, FOUR], indirect=True, scope="module")
def test_when_one_is_killed_all_end_and_the_run_goes_on_from_there(group: Several, alone: Path) -> None:
    assert group.ended[-1].code == -9
    assert all(each.code != 0 for each in group.ended)
    assert any("Error" in each.said or "heartbeat" in each.said for each in group.ended[:-1])
    killed = group.folder / "killed"
    assert Checkpoints.open_read_only(killed / "checkpoints").latest() == 2
    assert read_records(killed / "metrics.jsonl")[-1]["step"] <= one_of_several.DIES
    driver.train(experiment.resolve_config(CONFIG), killed)  # on another number of processes
    assert_same_run(killed, alone)


GIVEN = {distributed.ADDRESS: "10.0.0.2:8476", distributed.COUNT: "4", distributed.INDEX: "3"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({distributed.INDEX: None}, f"{distributed.ADDRESS} and {distributed.COUNT} without {distributed.INDEX}"),
        ({distributed.ADDRESS: None, distributed.COUNT: ""}, f"{distributed.INDEX} without {distributed.ADDRESS} and"),
        ({distributed.ADDRESS: "10.0.0.2"}, r"JAX_COORDINATOR_ADDRESS=10\.0\.0\.2 is no HOST:PORT"),
        ({distributed.ADDRESS: "host:99999"}, "is no HOST:PORT"),
        ({distributed.COUNT: "four"}, "JAX_NUM_PROCESSES=four must be a whole number"),
        ({distributed.INDEX: "-1"}, "JAX_PROCESS_ID=-1 must be a whole number from 0 on"),
        ({distributed.INDEX: "4"}, "JAX_PROCESS_ID=4 must be from 0 to JAX_NUM_PROCESSES - 1, which is 3"),
    ],
)
def test_what_is_given_by_halves_or_cannot_be_is_refused(changes: dict[str, str | None], said: str) -> None:
    environment = {name: value for name, value in (GIVEN | changes).items() if value is not None}
    with pytest.raises(UserError, match=said):
        distributed.join_processes(environment=environment)


def test_flags_come_before_the_environment() -> None:
    with pytest.raises(UserError, match="--coordinator_address and --num_processes without --process_id"):
        distributed.join_processes("10.0.0.2:8476", 4, environment=GIVEN)
    with pytest.raises(UserError, match="--process_id=4 must be from 0 to --num_processes - 1"):
        distributed.join_processes("10.0.0.2:8476", 4, 4, environment=GIVEN)
    with pytest.raises(UserError, match="--heartbeat_timeout=0 must be at least 1"):
        distributed.join_processes(heartbeat=0, environment={})


# What mpirun of Open MPI 4.1 and of 5.0.11 set, of what matters here.
OPEN_MPI_4 = {
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.2:5",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
OPEN_MPI_5 = {
    "OMPI_VERSION": "5.0.11",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-23445@1",
    "PRTE_LAUNCHED": "1",
}


def has_mpi4py(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    """Let mpi4py be there, and see so many processes; None: let it be absent."""
    world = SimpleNamespace(Get_size=lambda: size)
    mpi = SimpleNamespace(COMM_WORLD=world, Get_library_version=lambda: "MPICH Version:      4.2")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    monkeypatch.setattr(distributed, "find_spec", lambda name: None if size is None else name)


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, None),
        (
            GIVEN,
            {
                "coordinator_address": "10.0.0.2:8476",
                "num_processes": 4,
                "process_id": 3,
                "cluster_detection_method": "deactivate",
            },
        ),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_NODELIST": "node[1-2]",
                "SLURM_NTASKS": "2",
                "SLURM_PROCID": "1",
                "SLURM_LOCALID": "0",
            },
            {"cluster_detection_method": "slurm"},
        ),
        (
            {**GIVEN, distributed.ADDRESS: "127.0.0.1:8476"},
            {
                "coordinator_address": "127.0.0.1:8476",
                "num_processes": 4,
                "process_id": 3,
                "cluster_detection_method": "deactivate",
                "coordinator_bind_address": "127.0.0.1:8476",
            },
        ),
        ({distributed.COUNT: "1"}, None),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_NODELIST": "node1",
                "SLURM_NTASKS": "1",
                "SLURM_PROCID": "0",
                "SLURM_LOCALID": "0",
            },
            None,
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, None),  # a batch script, not a task of it
        (OPEN_MPI_4, {"cluster_detection_method": "ompi"}),
        ({**OPEN_MPI_4, "OMPI_COMM_WORLD_SIZE": "1"}, None),
        (OPEN_MPI_5, {"cluster_detection_method": "mpi4py"}),
        ({**OPEN_MPI_5, "OMPI_COMM_WORLD_SIZE": "1"}, None),
        # Inside a Slurm job mpirun starts what SLURM_NTASKS counts otherwise.
        (
            {**OPEN_MPI_5, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
            {"cluster_detection_method": "mpi4py"},
        ),
    ],
)
def test_what_starts_the_processes_is_recognized(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], settings: dict[str, Any] | None
) -> None:
    asked: list[dict[str, Any]] = []
    updated: dict[str, Any] = {}
    has_mpi4py(monkeypatch, 2)
    monkeypatch.setattr(distributed, "_listen_on_loopback", lambda: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **given: asked.append(given))
    monkeypatch.setattr(jax.config, "update", updated.__setitem__)
    assert distributed.join_processes(heartbeat=20, environment=environment) == (settings is not None)
    assert asked == ([] if settings is None else [{**settings, "heartbeat_timeout_seconds": 20}])
    # Else the process would live on when it is told to end.
    assert settings is None or updated["jax_enable_preemption_service"] is False


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (
            None,
            "Open MPI started 2 processes, which find each other by mpi4py, and it is not installed: pip install",
        ),
        (1, "Open MPI started 2 processes, and mpi4py sees 1: it uses another MPI (MPICH Version: 4.2)"),
    ],
)
def test_open_mpi_5_needs_an_mpi4py_of_its_own(monkeypatch: pytest.MonkeyPatch, size: int | None, says: str) -> None:
    has_mpi4py(monkeypatch, size)
    with pytest.raises(UserError) as caught:
        distributed.join_processes(environment=OPEN_MPI_5)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--num_processes=$OMPI_COMM_WORLD_SIZE --process_id=$OMPI_COMM_WORLD_RANK" in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PMI_SIZE": "4", "PMI_RANK": "2"}, "number 2 of 4 (PMI_SIZE, PMI_RANK)"),
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}, "MVAPICH2 started this process as number 0 of 2"),
        ({"JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "0"}, "jsrun started"),
        ({"FLUX_JOB_SIZE": "8", "FLUX_TASK_RANK": "7"}, "Flux started this process as number 7 of 8"),
        (
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
            "--num_processes=$SLURM_STEP_NUM_TASKS --process_id=$SLURM_PROCID",
        ),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "10.0.0.2"}, "torchrun started this process"),
        ({"NUM_PROCESSES": "2", "PROCESS_ID": "1", "COORDINATOR_ADDRESS": "a"}, "Kubeflow started this process"),
        ({"PMIX_RANK": "0", "PRTE_LAUNCHED": "1"}, "PMIx started this process as number 0 (PMIX_RANK)"),
        ({"PALS_RANKID": "3"}, "Cray PALS started this process as number 3"),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "cpu"}, "names 2 hosts, and jax finds no TPU here"),
        (
            {"OMPI_COMM_WORLD_SIZE": "two", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            "is no number",
        ),
    ],
)
def test_a_process_of_several_whose_launcher_is_not_known_does_not_train_alone(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
) -> None:
    monkeypatch.setattr(jax.distributed, "initialize", lambda **given: pytest.fail("it joined"))
    with pytest.raises(UserError) as caught:
        distributed.join_processes(environment=environment)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not distributed.join_processes(processes=1, environment=environment)
    assert not distributed.join_processes(environment={**environment, distributed.COUNT: "1"})
    alone = {name: "1" if value.isdecimal() and int(value) > 1 else value for name, value in environment.items()}
    if "PMI_SIZE" in alone or "WORLD_SIZE" in alone:
        assert not distributed.join_processes(environment=alone)


def test_a_tpu_without_its_pod_is_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def initialize(**given: Any) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(distributed, "find_spec", lambda name: name == "libtpu")
    assert not distributed.join_processes(environment={}, files=tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "accel0").touch()
    assert not distributed.join_processes(environment={}, files=tmp_path)
    assert not distributed.join_processes(environment={"JAX_PLATFORMS": "cpu"}, files=tmp_path)
    with pytest.raises(ValueError, match="coordinator_address"):
        distributed.join_processes(environment=GIVEN)


def test_all_meet_before_the_first_waits_for_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []

    @contextlib.contextmanager
    def claim(path: Path, config: Any, *, may_change: Any) -> Iterator[RunDirectory]:
        calls.append("claim")
        yield RunDirectory(path, True)

    def decided(decide: Callable[[], Any]) -> Any:
        calls.append("together")
        return decide()

    monkeypatch.setattr(RunDirectory, "claim", claim)
    monkeypatch.setattr(distributed, "run_on_primary", decided)
    with distributed.claim_run_directory(tmp_path, {}):
        # gloo gives a process 30 seconds to come to the first exchange; a lease is watched for 60.
        assert calls == ["together", "together", "claim"]


def test_one_process_decides_for_itself() -> None:
    assert distributed.is_primary()
    assert distributed.run_on_primary(lambda: [1, 2]) == [1, 2]
    assert distributed.run_on_primary_first(lambda: {"a"}) == {"a"}
    with pytest.raises(UserError, match="no"):
        distributed.run_on_primary(lambda: (_ for _ in ()).throw(UserError("no")))


def test_the_last_word_of_a_process_is_its_exit_code(root: Path) -> None:
    """Also of one that has failed while another would wait for it, which is told by no farewell."""
    program = (
        "import sys\n"
        "from transformer.runs import distributed\n"
        "from launch.platform import exit_process\n"
        "distributed.join_processes(heartbeat=10)\n"
        "import jax\n"
        "distributed.run_on_primary(lambda: 0)\n"
        "from tests.runs.listening import addresses\n"
        "print(*addresses(), flush=True)\n"
        "exit_process(int(sys.argv[1 + jax.process_index()]))\n"
    )
    port, began = free_port(), time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, "3", "4"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)}
            | {distributed.ADDRESS: f"127.0.0.1:{port}", distributed.COUNT: "2", distributed.INDEX: str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for index in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [3, 4]
    # Nobody else can join, which would end the run: jax would listen on all interfaces.
    listening = [address for each in said for address in each.splitlines()[-1].split()]
    assert f"127.0.0.1:{port}" in listening
    assert all(address.startswith("127.0.0.1:") for address in listening)
    assert time.monotonic() - began < 200  # jax's own farewell would take 300 seconds
