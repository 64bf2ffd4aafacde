"""A whole run in a bucket on loopback: stopped and resumed it equals one on a disk, and what reads runs reads it."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from launch import cli, convert, generate, maps
from launch.config_files import recorded_config
from tests.training import small_run, written_run
from tests.training.bucket_server import BucketServer, running
from tests.training.small_run import Killed, console_killed_at, without_clock
from transformer.config import UserError
from transformer.maps.report.page import write_report
from transformer.maps.report.report_server import describe_missing_files, file_versions
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.runs.jsonl_reading import read_records
from transformer.storage import lease
from transformer.storage.paths import parse_path
from transformer.storage.storage import DirectoryLost
from transformer.tasks.task import EvaluationReport
from transformer.training import build, driver, partitioning
from transformer.training import config as experiment
from transformer.training.background_compile import Program
from transformer.training.compiled_evaluation import CompiledEvaluation
from transformer.training.init_from import build_initial_state, copy_source_tokenizer
from transformer.training.run_loading import load_run
from transformer.training.state import TrainState
from transformer.training.writers.console import ConsoleWriter
from transformer.training.writers.writer import Progress, Report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("gcsfs") is None, reason="needs the extra gcs")]

STEPS, SAVED, STOPPED = 4, 2, 4
CONFIG: dict[str, Any] = {
    **small_run.CONFIG,
    "name": "bucket",
    "steps": STEPS,
    "seed": 3,
    "log_every": 1,
    "eval_every": 2,
    "maps_every": 1,
    "head_statistics_every": 1,
    "checkpoint_every": SAVED,
}


class ConstantEvaluation(CompiledEvaluation):
    """An evaluation that has something to say and nothing to compile."""

    def __call__(self, state: TrainState) -> EvaluationReport:
        return EvaluationReport({"width": 16.0}, ({"source": "one", "output": "eins", "target": "eins"},))

    def programs(self, abstract: TrainState) -> Iterator[Program]:
        return iter(())


def evaluated(model: Any, evaluations: Any, placement: Any, monitor: Any) -> list[CompiledEvaluation]:
    return [ConstantEvaluation(evaluation, None, placement, monitor) for evaluation in evaluations]  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[BucketServer]:
    """A bucket that all clients find, and one device: sharding has its tests."""
    with running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        patch.setattr(driver, "compile_evaluations", evaluated)
        yield server


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on a disk."""
    folder = tmp_path_factory.mktemp("runs") / "disk"
    driver.train(experiment.resolve_config(CONFIG), folder)
    return folder


@pytest.fixture(scope="module")
def run(server: BucketServer) -> Path:
    """A run in the bucket that was stopped behind its checkpoint, and resumed."""
    run = parse_path("gs://bucket/runs/one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ConsoleWriter", console_killed_at(STOPPED))
        with pytest.raises(Killed):
            driver.train(experiment.resolve_config(CONFIG), run)
    assert read_records(run / "metrics.jsonl")[-1]["step"] > SAVED
    assert MapStore.open_existing(run / "maps").steps == (0, 1, 2, 3)
    driver.train(experiment.resolve_config(CONFIG), run)
    return run


def test_stopped_and_resumed_in_a_bucket_equals_uninterrupted_on_a_disk(disk: Path, run: Path) -> None:
    assert [record["step"] for record in without_clock(disk, "train")] == [1, 2, 3, 4]
    assert without_clock(disk) == without_clock(run)
    for name in ("samples.jsonl", "heads.jsonl"):
        assert (disk / name).read_bytes() == (run / name).read_bytes()
    for name in ("tokenizer.json", "tokenizer_roles.json", "config.json"):
        assert (disk / name).read_bytes() == (run / name).read_bytes()
    one, other = MapStore.open_existing(disk / "maps"), MapStore.open_existing(run / "maps")
    assert one.steps == other.steps == (0, 1, 2, 3, 4)
    for site in one.sites:
        np.testing.assert_array_equal(one.read(site.name, 4), other.read(site.name, 4))
        np.testing.assert_array_equal(one.statistics(site.name).values, other.statistics(site.name).values)


def test_its_state_is_loaded_bit_for_bit(disk: Path, run: Path) -> None:
    leaves = []
    for at in (disk, run):
        _, _, state = load_run(at)
        assert int(state.step) == STEPS
        state = state._replace(key=jax.random.key_data(state.key))
        leaves.append({path: np.asarray(leaf).tobytes() for path, leaf in leaves_by_path(state).items()})
    assert leaves[0] == leaves[1]


def test_a_finished_run_trains_nothing_and_holds_no_lease(
    run: Path, server: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lasting = {name for name in server.names() if "log.txt" not in name and "environment" not in name}
    before = {name: server.objects["bucket", name].content for name in lasting}
    driver.train(experiment.resolve_config(CONFIG), run)
    assert f"complete at step {STEPS}: nothing to train" in capsys.readouterr().out
    assert {name: server.objects["bucket", name].content for name in lasting} == before
    assert not [name for name in server.names() if name.endswith("/lock")]


def test_what_reads_a_run_reads_it_in_a_bucket(run: Path, server: BucketServer) -> None:
    recorded = recorded_config(str(run))
    assert recorded is not None
    assert recorded["name"] == "bucket"
    assert describe_missing_files(run) is None
    seen = file_versions([run])
    assert seen == file_versions([run])
    page = write_report(run)
    assert (str(page), page.stat().length) == ("gs://bucket/runs/one/report.html", len(page.read_bytes()))
    assert "cross_entropy" in page.read_text()
    assert file_versions([run]) == seen  # the page is not made from itself
    metrics = server.objects["bucket", "runs/one/metrics.jsonl"].content
    server.put("bucket", "runs/one/metrics.jsonl", metrics + json.dumps({"step": 5, "split": "train"}).encode() + b"\n")
    assert file_versions([run]) != seen


def test_a_run_in_a_bucket_answers_reads_a_text_and_is_published(
    server: BucketServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "gs://bucket/runs/written"
    written_run.write_run(parse_path(name), written_run.CONFIG, written_run.with_params(5))
    assert cli.run(maps.COMMAND, maps.main, [f"--workdir={name}", "--text=Permission"]) == 0
    assert f"Open this page in a browser: {name}/looks/written-0001.html\n" in capsys.readouterr().out
    assert b"Permission" in server.objects["bucket", "runs/written/looks/written-0001.html"].content
    assert (
        cli.run(generate.COMMAND, generate.main, [f"--workdir={name}", "--text=Permission", "--max_new_tokens=2"]) == 0
    )
    assert f"Open this page in a browser: {name}/generated/0001/report.html\n" in capsys.readouterr().err
    assert cli.run(convert.COMMAND, convert.main, [f"--workdir={name}", f"--save_pretrained={tmp_path / 'out'}"]) == 0
    assert f"parameters of {name} as a gpt2 model" in capsys.readouterr().out
    tokenizer = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert tokenizer == server.objects["bucket", "runs/written/tokenizer.json"].content


def test_another_run_begins_with_its_parameters(disk: Path, run: Path, tmp_path: Path) -> None:
    assert str(run).startswith("gs:")
    made = experiment.resolve_config(
        CONFIG | {"initialize_from": {"run": "gs://bucket/runs/one", "copy_tokenizer": True}}
    )
    copy_source_tokenizer(made.initialize_from, tmp_path)
    setting = build.build_components(made, tmp_path)
    state, report = build_initial_state(made.initialize_from, setting, jax.random.key(0), tmp_path)
    assert report is not None
    assert (report.source.step, report.source.notes) == (STEPS, ())
    found, expected = (leaves_by_path(each.variables) for each in (state, load_run(disk)[2]))
    assert {p: np.asarray(x).tobytes() for p, x in found.items()} == {
        p: np.asarray(x).tobytes() for p, x in expected.items()
    }
    with pytest.raises(UserError, match="is this very run"):
        build_initial_state(made.initialize_from, setting, jax.random.key(0), run)


def test_a_run_whose_lease_is_taken_stops_before_its_checkpoint(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Robbed(ConsoleWriter):
        def write(self, report: Report) -> None:
            if isinstance(report, Progress) and report.step == SAVED:
                key = "bucket", "runs/robbed/lock"
                about = {**json.loads(server.objects[key].content), "holder": "process 1 on host other", "token": "x"}
                server.put(*key, json.dumps(about).encode())
                # What the thread would find out some seconds later.
                (held,) = [each for name, each in lease._leases.items() if name == "runs/robbed"]
                held._lost = "was taken over by process 1 on host other"

    monkeypatch.setattr(driver, "ConsoleWriter", Robbed)
    with pytest.raises(
        DirectoryLost, match=r"^--workdir=gs://bucket/runs/robbed is no longer held by this run: .*taken over"
    ):
        driver.train(experiment.resolve_config(CONFIG), "gs://bucket/runs/robbed")
    assert not [name for name in server.names("runs/robbed/checkpoints") if "commit_success" in name]
