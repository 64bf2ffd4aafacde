"""Programs run in turn in fresh processes, and their ratios are those of one round."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.alternating_runs import BenchmarkResult, ResultRow, run_alternating
from experiments.benchmarks.benchmark import Benchmark, BenchmarkProgram, PythonInterpreter
from experiments.benchmarks.catalog import BENCHMARKS
from experiments.benchmarks.report import results_table, write_result
from transformer.config import UserError

# It writes down that it was called, and takes as long as the settings say of this call.
FAKE = """
import json, os, sys
settings = json.loads(sys.argv[1])
with open(settings["log"], "a") as log:
    log.write(settings["name"] + "\\n")
calls = open(settings["log"]).read().split().count(settings["name"])
print("libraries talk")
print(json.dumps({"seconds": settings["seconds"][calls - 1], "cache": os.environ.get("JAX_COMPILATION_CACHE_DIR")}))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    """A program of a name that takes the seconds given for each of its calls."""
    (tmp_path / "fake.py").write_text(FAKE)

    def made(name: str, *seconds: Any, interpreter: PythonInterpreter = PythonInterpreter.OWN) -> BenchmarkProgram:
        settings = {"name": name, "seconds": seconds, "log": str(tmp_path / "log")}
        return BenchmarkProgram((str(tmp_path / "fake.py"),), settings, interpreter)

    return made


def test_each_round_begins_with_the_next_and_a_ratio_is_of_one_round(fake: Any, tmp_path: Path) -> None:
    # The machine is twice as slow in the second round: the ratios do not feel it.
    programs = {
        "ours": fake("ours", [1.0, 1.0, 9.0], [2.0, 2.0], [1.0]),
        "peer": fake("peer", [3.0], [6.0], [2.0, 3.0, 4.0], interpreter=PythonInterpreter.PEERS),
    }
    said: list[str] = []
    result = run_alternating(Benchmark("work", programs, 10, "tokens"), 3, sys.executable, said.append)
    assert (tmp_path / "log").read_text().split() == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert said[2] == "round 2 of 3: peer"
    ours, peer = result.rows
    assert (ours.name, ours.rounds, ours.seconds, ours.ratio) == ("ours", (1.0, 2.0, 1.0), 1.0, 1.0)
    assert (peer.name, peer.rounds, peer.seconds, peer.ratio) == ("peer", (3.0, 6.0, 3.0), 3.0, 3.0)
    assert result.facts["ours"]["cache"] is None  # nothing is found compiled
    assert result.left_out == ()


def test_one_process_may_measure_several_rows(fake: Any) -> None:
    # A row may have the name of its program.
    programs = {"loop": fake("loop", {"bare": [1.0, 1.0], "loop": [1.5, 1.1]})}
    bare, looped = run_alternating(Benchmark("loop", programs, 1, "steps"), 1, None).rows
    assert (bare.name, looped.name, looped.ratio) == ("bare", "loop", 1.3)


def test_the_table_says_the_rates_of_what_a_program_counts() -> None:
    row = ResultRow("product", (0.5,), 0.5, 1.0, 1.0, 1.0)
    counted = {"product": {"flops": 4e9, "bytes": 1e9}}
    shown = results_table(Benchmark("parts", {}, 1, "steps"), BenchmarkResult((row,), {"parts": {"work": counted}}, ()))
    assert shown.endswith("8 GFLOP/s  2.0 GB/s")


def test_without_peers_theirs_are_left_out_and_said_to_be(fake: Any, tmp_path: Path) -> None:
    programs = {"ours": fake("ours", [0.5]), "peer": fake("peer", [1.0], interpreter=PythonInterpreter.PEERS)}
    benchmark = Benchmark("the work", programs, 10, "tokens")
    result = run_alternating(benchmark, 1, None)
    assert [row.name for row in result.rows] == ["ours"]
    shown = results_table(benchmark, result)
    assert "500.00" in shown  # milliseconds
    assert "peer: not measured, it needs --peer_python=PYTHON" in shown
    written = json.loads(write_result("work", benchmark, result, tmp_path / "bench").read_text())
    assert written["left_out"] == ["peer"]
    assert written["rows"][0]["seconds"] == 0.5
    assert written["programs"]["ours"]["settings"]["name"] == "ours"
    assert written["machine"]["processor"]


def test_a_record_does_not_say_where_the_data_lay(tmp_path: Path) -> None:
    config = {
        "name": "work",
        "task": {"name": "experiments.captioning.task", "data_dir": "/data/of/one/machine", "rows": 8},
    }
    benchmark = Benchmark("the work", {"ours": BenchmarkProgram((), {"config": config})}, 10, "tokens")
    file = write_result("work", benchmark, BenchmarkResult((), {"ours": {}}, ()), tmp_path)
    kept = json.loads(file.read_text())["programs"]["ours"]["settings"]["config"]
    assert kept == {"name": "work", "task": {"name": "experiments.captioning.task", "data_dir": "DIR", "rows": 8}}


def test_a_program_that_fails_ends_with_its_last_line(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such device')")
    broken = BenchmarkProgram((str(tmp_path / "broken.py"),), {})
    with pytest.raises(UserError, match="the program of broken failed with exit code 1: RuntimeError: no such device"):
        run_alternating(Benchmark("work", {"broken": broken}, 1, "steps"), 1, None)
    peer = {"peer": fake("peer", [1.0], interpreter=PythonInterpreter.PEERS)}
    with pytest.raises(UserError, match=r"--peer_python=/nowhere/python does not run: .*No such file"):
        run_alternating(Benchmark("work", peer, 1, "steps"), 1, "/nowhere/python")


# What a bare machine has beside jax, flax, optax and numpy; flax itself needs absl, orbax and others.
BLOCKED = ("grain", "tensorflow_datasets", "tokenizers", "zarr", "ml_collections", "scipy.stats", "sentencepiece")
BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {blocked}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import runpy
runpy.run_module("experiments.benchmarks.programs.decoder_training_step", run_name="{name}")
"""


def test_a_step_on_a_bare_machine_finds_all_that_it_imports(root: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BARE.format(blocked=BLOCKED, name="imported")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_step_is_measured_on_a_bare_machine(root: Path) -> None:
    tiny = {"layers": 1, "width": 8, "heads": 2, "feed_forward": 16, "context": 8, "rows": 2, "vocabulary": 11}
    settings = {**BENCHMARKS["decoder_1m"].programs["headwise"].settings, **tiny, "warmup_steps": 1, "steps": 2}
    script = BARE.format(blocked=BLOCKED, name="__main__")
    words = [sys.executable, "-c", script, json.dumps(settings)]
    ended = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert len(found["seconds"]) == 2
    assert 2 < found["loss"] < 3  # about log 11
    # Tokens, positions; four maps with biases; two more; three norms.
    assert found["parameters"] == 11 * 8 + 8 * 8 + 4 * (64 + 8) + (128 + 16) + (128 + 8) + 3 * 16
