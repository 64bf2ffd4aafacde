"""Compiled training steps of peers and configs are counted, and shown as a table."""

import types
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.alternating_runs import BenchmarkResult, ResultRow
from experiments.benchmarks.benchmark import Benchmark, PythonInterpreter
from experiments.benchmarks.catalog import BENCHMARKS
from experiments.benchmarks.programs.step_compilation import measure
from experiments.benchmarks.report import results_table
from transformer.aot import aot_compile
from transformer.costs import compiled_program

PEER = """
import jax

def lower_step(sizes, devices):
    there = jax.sharding.SingleDeviceSharding(*devices)
    x = jax.ShapeDtypeStruct((sizes["rows"], 256), "float32", sharding=there)
    return jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jax.numpy.sin(y), x)).lower(x)
"""


def test_the_step_of_a_file_is_compiled_and_its_traffic_counted(tmp_path: Path) -> None:
    file = tmp_path / "peer.py"
    file.write_text(PEER)
    found = measure({"topology": "cpu:1", "file": str(file), "sizes": {"rows": 1024}})
    size = 4 * 1024 * 256
    # Three rounds of the loop read and write the array; a copy into the loop may come first.
    assert 6 * size <= found["compiled"]["bytes_moved"] <= 8.1 * size
    assert found["compiled"]["argument_bytes"] == size
    assert found["compiled"]["collectives"] == 0
    assert found["compiled"]["attention_kernels"] == {}
    assert found["seconds"][0] > 0


def test_a_config_is_compiled_with_its_changes(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    file = root / "experiments/language_modeling/configs/gpt.py"
    asked: list[Any] = []
    program = compiled_program.CompiledProgram(8, 4, 4, 2, 1, 100, (), (), (), "same")

    def compile_fake(experiment: Any, topology: str) -> Any:
        asked.append((experiment.run.num_microbatches, experiment.model.remat.value, topology))
        return types.SimpleNamespace(program=program, compile_seconds=2.5)

    monkeypatch.setattr(aot_compile, "compile_ahead_of_time", compile_fake)
    changes = {"num_microbatches": 4, "model": {"remat": "none"}}
    found = measure({"topology": "h100:1", "file": str(file), "changes": changes})
    assert asked == [(4, "none", "h100:1")]
    assert found["seconds"] == [2.5]
    assert (found["compiled"]["bytes_moved"], found["compiled"]["peak_bytes"]) == (100, 11)


def test_compiled_programs_have_a_table_of_their_own() -> None:
    counts = {
        "bytes_moved": 2_027_443_776_914,
        "peak_bytes": 13_288_586_893,
        "collectives": 0,
        "attention_kernels": {"cudnn$fmhaSoftmax": 384},
        "source_lines": [{"line": "layers/linear.py:38", "bytes": 634_740_801_536, "source": "dot_general"}],
    }
    row = ResultRow("ours", (62.4,), 62.4, 1.0, 1.0, 1.0)
    result = BenchmarkResult((row,), {"ours": {"compiled": counts}}, ("nanodo",))
    shown = results_table(Benchmark("a compiled step", {}, 1, "steps"), result).splitlines()
    assert shown[2].split() == ["ours", "2,027.4", "13.29", "0", "62.4", "cudnn$fmhaSoftmax", "384", "x"]
    assert shown[4].split() == ["634.7", "GB", "layers/linear.py:38"]
    assert shown[-1] == "nanodo: not measured, it needs --peer_python=PYTHON"


@pytest.mark.parametrize(
    ("benchmark", "num_microbatches", "context"), [("compiled_gpt2", 32, 1024), ("compiled_1_3b", 8, 2048)]
)
def test_every_program_compiles_the_same_batch(benchmark: str, num_microbatches: int, context: int, root: Path) -> None:
    programs = BENCHMARKS[benchmark].programs
    for name, program in programs.items():
        settings = program.settings
        assert (root / settings["file"]).is_file(), name
        sizes = settings.get("sizes", settings.get("changes", {}).get("task", {}) | settings.get("changes", {}))
        assert sizes["num_microbatches"] == num_microbatches
        assert sizes.get("rows", sizes.get("batch_size")) == 512
        assert sizes.get("context", sizes.get("context_length")) == context
    # What needs a library that this package does not need runs in the peers' environment.
    peers = {name for name, program in programs.items() if program.interpreter is PythonInterpreter.PEERS}
    assert peers == {name for name in programs if name.startswith(("nanodo", "MaxText"))}


def test_the_decoders_of_1_3_billion_parameters_have_as_many_for_every_program(root: Path) -> None:
    """As many as GPT-3 XL, counted by hand from the sizes that each is given."""
    for program in BENCHMARKS["compiled_1_3b"].programs.values():
        settings = program.settings
        sizes = settings.get("sizes") or {**settings["changes"]["model"], "vocabulary": 50257}
        width, inner = sizes["width"], sizes["feed_forward"]
        layer = 4 * width * width + 2 * width * inner + 4 * width + width + inner + 4 * width
        tables = (sizes["vocabulary"] + 2048) * width + 2 * width
        assert sizes["layers"] * layer + tables == 1_315_723_264
