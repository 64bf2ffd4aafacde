"""The command that compiles a config for its pod, and the one that does so for all of them."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.pods import compile_experiments
from launch import cli, compile
from launch.config_files import load_config
from transformer.aot import aot_compile, mesh_and_remat_search
from transformer.costs.topologies import parse_topology
from transformer.models.model import leaves_by_path
from transformer.training.build import build_components
from transformer.training.config import resolve_config

CHECKOUT = Path(__file__).resolve().parents[2]
CONFIG = """
from ml_collections import ConfigDict

def get_config(topology="cpu:2"):
    return ConfigDict(dict(
        name="small", steps=10, num_microbatches=1, topology=topology,
        task=dict(name="language_modeling", dataset="nowhere", tokenizer="existing", vocab_size=128, context_length=16,
                  batch_size=8, test_split="", probe_length=8),
        model=dict(family="decoder", layers=1, width=16, heads=2, feed_forward=32, max_length=16, remat="none"),
        optimizer=dict(algorithm="adam", warmup_steps=2),
        sharding=dict(data=-1, fsdp=1, tensor=1, sequence=1, rules="dp"),
    ))
"""


@pytest.fixture(autouse=True)
def environment_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the command says to jax of a topology is for its own process; here it must not outlive a test.
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(CONFIG, encoding="utf-8")
    return f"--config={tmp_path / 'small.py'}"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.run(compile.COMMAND, compile.main, words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


@pytest.mark.slow
def test_a_config_that_fits_prints_its_page_and_its_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(compile.COMMAND, compile.main, [config]) == 0
    page = capsys.readouterr().out
    assert page.startswith("small on cpu:2 (cpu): needs ")
    for line in ("mesh          data=2, rules dp", "batch         8 rows in 1 microbatch, remat none", "all-reduce"):
        assert line in page
    assert cli.run(compile.COMMAND, compile.main, [config, "--json", "--config.num_microbatches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(compile_experiments.RECORDED_KEYS) <= set(found)
    assert (found["num_microbatches"], found["fits"], found["device_memory"], found["largest_arrays"] != []) == (
        2,
        True,
        None,
        True,
    )
    assert found["fingerprint"] not in page


@pytest.mark.slow
def test_equal_programs_have_one_fingerprint(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    prints = []
    # The numbers of the optimizer are no part of the program; its algorithm is.
    for words in ((), ("--config.optimizer.warmup_steps=3",), ("--config.optimizer.algorithm=sgd",)):
        assert cli.run(compile.COMMAND, compile.main, [config, "--json", *words]) == 0
        prints.append(json.loads(capsys.readouterr().out)["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topology=v7:2x2",), "topology='v7:2x2' is not a topology"),
        (("--topology=gpu:1",), "needs a GPU"),
        (("--topology=h100:12",), "topology='h100:12' has more than the 8 GPUs of one host: use h100:2x8"),
        (("--topology=h100:8", "--compiler_python=/nowhere/python"), "--compiler_python=/nowhere/python is no program"),
        (("--topology=h100:8", "--compiler_python=/bin/false"), "--compiler_python=/bin/false has no Python 3.12 or"),
        (("--config.sharding.tensor=3",), "config.sharding.tensor=3 divides nothing"),
        (("--config.sharding.data=3",), "does not make 2 cpu devices"),
        (("--config.task.batch_size=7",), "config.task.batch_size=7 cannot be"),
        (("--config.topology=",), "pass --topology=v5p:8x8x4, or set config.topology"),
        (("--max_candidates=0",), "--max_candidates=0 must be at least 1"),
    ],
)
def test_a_users_mistake_is_told_before_anything_compiles(
    config: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, config, *words)


def test_what_does_not_fit_ends_with_1_and_says_what_would_help(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_smaller_device(*given: Any) -> aot_compile.AotReport:
        found = real(*given)
        return found._replace(device_memory_bytes=(found.peak_bytes or 0) - 1)

    real = aot_compile.compile_ahead_of_time
    monkeypatch.setattr(aot_compile, "compile_ahead_of_time", on_a_smaller_device)
    with pytest.raises(SystemExit) as left:
        cli.run(compile.COMMAND, compile.main, [config])
    assert left.value.code == 1
    page = capsys.readouterr().out
    assert "does not fit: " in page.splitlines()[0]
    assert "largest arrays, bytes per device:" in page
    assert "--config.model.remat=dots" in page


@pytest.mark.slow
def test_a_search_prints_the_best_and_its_flags(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(compile.COMMAND, compile.main, [config, "--search_mesh", "--max_candidates=2"]) == 0
    said = capsys.readouterr()
    head, *rows, _, best = said.out.splitlines()
    assert head.split()[:2] == ["mesh", "remat"]
    assert [row.endswith("fits") for row in rows] == [True, True]
    assert best.startswith("best: --config.sharding.rules=")
    assert said.err.count("compiled ") == 2
    assert (
        len(mesh_and_remat_search.possible_meshes(resolve_config(load_config(config.partition("=")[2]).to_dict()), 2))
        == 3
    )
    words = best.removeprefix("best: ").split()
    assert cli.run(compile.COMMAND, compile.main, [config, *words]) == 0


def test_another_environments_python_gets_the_other_flags(config: str, tmp_path: Path) -> None:
    """Its exit code is the command's, and it finds the same code."""
    python = tmp_path / "python"
    # Called first to see whether it can run this package.
    script = f'#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$PYTHONPATH" "$@" > {tmp_path}/words\nexit 1\n'
    python.write_text(script, encoding="utf-8")
    python.chmod(0o700)
    with pytest.raises(SystemExit) as left:
        cli.run(compile.COMMAND, compile.main, [config, f"--compiler_python={python}", "--topology=h100:8", "--json"])
    assert left.value.code == 1
    path, *words = (tmp_path / "words").read_text(encoding="utf-8").split()
    assert path.split(os.pathsep)[0] == str(CHECKOUT)
    assert words == ["-m", "launch.compile", config, "--topology=h100:8", "--json"]


@pytest.mark.slow
def test_a_gpu_that_is_not_there_gets_its_program(config: str) -> None:
    """Attention in float32 is not cuDNN's, and the page says why; two GPUs sum their gradients."""
    if importlib.util.find_spec("jax_cuda13_plugin") is None and importlib.util.find_spec("jax_cuda12_plugin") is None:
        pytest.skip("needs jax's CUDA plugin, which has the compiler for NVIDIA GPUs")
    words = [sys.executable, "-m", "launch.compile", config, "--topology=h100:2", "--json"]
    found = {}
    for compute in ("float32", "bfloat16"):
        done = subprocess.run(
            [*words, f"--config.precision.compute={compute}"], cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found[compute] = json.loads(done.stdout)
    assert {each["device"] for each in found.values()} == {"NVIDIA H100 80GB HBM3"}
    assert all(any(total["axes"] == ["data"] for total in each["collectives"]) for each in found.values())
    assert found["bfloat16"]["attention_kernels"] == {"cudnn$fmhaSoftmax": 1, "cudnn$fmhaSoftmaxBackward": 1}
    assert [each["reason"] for each in found["bfloat16"]["attention"]] == [None]
    assert found["float32"]["attention_kernels"] == {}
    assert [each["reason"] for each in found["float32"]["attention"]] == [
        "backend=cudnn takes bfloat16 and float16, not float32"
    ]
    assert found["float32"]["float32_flops"] > found["bfloat16"]["float32_flops"]
    for each in found.values():
        assert 0 < each["source_lines"][0]["bytes"] < each["bytes_moved"]
        assert any(line["line"].startswith("transformer") for line in each["source_lines"])


def test_every_experiment_is_in_the_gate() -> None:
    names = compile_experiments.list_configs(CHECKOUT / "experiments")
    assert "experiments/demo.py" in names
    assert "experiments/pods/configs/gpt3.py" in names
    assert sum(name.startswith(compile_experiments.WEAK) for name in names) == 7
    assert len(set(names)) == len(names)
    assert all((CHECKOUT / name.partition(":")[0]).is_file() for name in names)


def test_every_config_names_a_pod_that_exists() -> None:
    for name in compile_experiments.list_configs(CHECKOUT / "experiments"):
        pod = load_config(str(CHECKOUT / name)).get("topology", "")
        assert pod, name
        parse_topology(pod)
        assert name.partition(":")[2] in ("", pod) or not name.startswith(compile_experiments.WEAK)


def test_the_record_holds_each_experiment_and_says_what_changed(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(compile.COMMAND, compile.main, [config, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    found = {key: whole[key] for key in compile_experiments.RECORDED_KEYS} | {"commit": "0123456789abcdef"}
    found |= {"device_memory": 2 * 10**10, "step_seconds": 1.5, "mfu": 0.5, "communication_share": 0.25}
    found |= {f"{kind}_seconds": 0.1 for kind in ("compute", "memory", "communication")} | {"exposed_share": 0.125}
    monkeypatch.setattr(
        compile_experiments, "compile_config", lambda root, name, python: "no pod" if "demo" in name else found
    )
    results = tmp_path / "pods.json"
    words = [f"--results_file={results}", "--filter=weak_scaling"]
    assert cli.run(compile_experiments.COMMAND, compile_experiments.main, words) == 0
    assert "7 of 7 fit" in capsys.readouterr().out
    records: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    assert list(records) == [
        name
        for name in compile_experiments.list_configs(CHECKOUT / "experiments")
        if name.startswith(compile_experiments.WEAK)
    ]
    page = results.with_suffix(".md").read_text(encoding="utf-8")
    assert "## Weak scaling" in page
    assert "| 1.5 s | 25.0 % | 12.5 % | 50.0 % | 01234567 |" in page
    links = re.findall(r"\]\((\.\./[^)]+)\)", page)
    assert len(links) >= 3
    folder = CHECKOUT / "experiments" / "pods" / "results"
    assert all((folder / link.partition("#")[0]).is_file() for link in links), links
    with pytest.raises(SystemExit) as left:
        cli.run(compile_experiments.COMMAND, compile_experiments.main, [f"--results_file={results}", "--filter=demo"])
    assert left.value.code == 1
    assert "experiments/demo.py: no pod" in capsys.readouterr().out
    found["fingerprint"] = "other"
    records["experiments/renamed.py"] = found
    results.write_text(json.dumps(records), encoding="utf-8")
    assert cli.run(compile_experiments.COMMAND, compile_experiments.main, words) == 0
    assert "fingerprint was " in capsys.readouterr().out
    assert "experiments/renamed.py" not in json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is no JSON object but a list"),
        ("[" * 200_000, "too deep"),
        ({"experiments/demo.py": []}, "experiments/demo.py"),
        ({"experiments/demo.py": {}}, "name is missing"),
        ({"mesh": {"data": "x"}}, r"mesh\['data'\]='x'"),
        ({"versions": {}}, r"versions\.jax is missing"),
        ({"step_seconds": "1"}, "step_seconds='1'"),
        ({"peak_bytes": -1}, "peak_bytes=-1"),
    ],
)
def test_a_record_of_pods_that_is_none_is_told_in_a_line(
    change: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_experiments, "compile_config", lambda root, name, python: pytest.fail("it compiles"))
    results = tmp_path / "pods.json"
    if isinstance(change, dict) and "experiments/demo.py" not in change:
        records = json.loads((CHECKOUT / "experiments" / "pods" / "results" / "pods.json").read_text())
        change = {"experiments/demo.py": records["experiments/pods/configs/gpt2.py"] | change}
    results.write_text(change if isinstance(change, str) else json.dumps(change))
    assert (
        cli.run(
            compile_experiments.COMMAND,
            compile_experiments.main,
            [f"--results_file={results}", "--filter=weak_scaling"],
        )
        == 2
    )
    told = capsys.readouterr().err
    assert re.search(says, told)
    assert str(results) in told
    assert told.count("\n") == 1


def test_the_record_of_pods_is_as_its_schema_says() -> None:
    assert compile_experiments.read_pod_records(CHECKOUT / "experiments" / "pods" / "results" / "pods.json")


def test_a_config_without_a_pod_and_one_that_cannot_be_are_told(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text(CONFIG.replace(", topology=topology", ""), encoding="utf-8")
    assert "names no topology" in str(compile_experiments.compile_config(CHECKOUT, str(tmp_path / "none.py")))
    (tmp_path / "wrong.py").write_text(CONFIG.replace("cpu:2", "v5p:3x3x3"), encoding="utf-8")
    assert "is not a slice of v5p" in str(compile_experiments.compile_config(CHECKOUT, str(tmp_path / "wrong.py")))


SHARDED = ("--config.sharding.rules=fsdp+tp", "--config.sharding.fsdp=2", "--config.sharding.tensor=2")


def test_the_sharding_of_every_parameter_is_that_of_a_run(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [config, "--sharding", "--topology=cpu:8", *SHARDED]
    assert cli.run(compile.COMMAND, compile.main, [*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {axis: size for axis, size in found["mesh"].items() if size > 1} == {"data": 2, "fsdp": 2, "tensor": 2}
    values = load_config(config.partition("=")[2]).to_dict()
    sharding = {"data": -1, "fsdp": 2, "tensor": 2, "rules": "fsdp+tp"}
    components = build_components(resolve_config({**values, "sharding": sharding}), Path(), synthetic=True)
    leaves = leaves_by_path(components.abstract_state.variables.params)
    assert [each["path"] for each in found["parameters"]] == list(leaves)
    for each in found["parameters"]:
        leaf = leaves[each["path"]]
        assert tuple(each["shape"]) == leaf.shape
        spec = tuple(tuple(axes) if isinstance(axes, list) else axes for axes in each["spec"])
        assert spec == tuple(leaf.sharding.spec)
        assert each["bytes_per_device"] == math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    assert found["bytes_per_device"] == sum(each["bytes_per_device"] for each in found["parameters"])
    assert found["bytes_per_device"] < found["bytes"] / 2


def test_the_sharding_is_a_table_and_needs_neither_devices_nor_a_topology(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [config, "--sharding", "--config.topology=", *SHARDED, "--config.sharding.data=512"]
    words += ["--config.task.batch_size=2048"]
    assert cli.run(compile.COMMAND, compile.main, words) == 0
    page = capsys.readouterr().out
    assert page.startswith("small on data=512 x fsdp=2 x tensor=2, rules fsdp+tp: 18.24 kB of parameters, ")
    (row,) = [line for line in page.splitlines() if line.startswith("layers/feed_forward/expand/kernel ")]
    # 16 x 32 numbers of four bytes, a quarter on each device.
    assert re.split(r"\s{2,}", row) == [
        "layers/feed_forward/expand/kernel",
        "(1, 16, 32)",
        "(layers, embed, feed_forward)",
        "(None, fsdp, tensor)",
        "512",
    ]
    says = refused(capsys, config, "--sharding", "--topology=cpu:6", *SHARDED)
    assert "config.sharding asks for data=-1 x fsdp=2 x tensor=2, which does not make 6" in says
