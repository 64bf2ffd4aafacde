"""The files for JobSet and SkyPilot: their commands are ours, their numbers agree, and the engines read them.

A JobSet is checked by its public schema, as recorded in tests/golden. SkyPilot's own parser needs an environment of its
own, which `make engines` makes before it runs this file.
"""

import copy
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import train
from launch.flag_parsing import parse_arguments
from transformer.costs.topologies import topology_size
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
ENGINES = Path(os.environ.get("HEADWISE_ENGINES", ".engines"))
CHECK_SKYPILOT = """
import sys, yaml, sky
task = sky.Task.from_yaml_config(yaml.safe_load(sys.stdin))
print(sorted(str(accelerator) for resources in task.resources for accelerator in resources.accelerators))
"""
python = ENGINES / "bin" / "python"
needs_engines = pytest.mark.skipif(not python.exists(), reason="needs SkyPilot: make engines")


@pytest.fixture
def text(root: Path, request: pytest.FixtureRequest) -> str:
    return (root / "launch" / "clusters" / request.param).read_text(encoding="utf-8")


def with_all_comments_switched_on(text: str) -> str:
    """The file with every line `# key: value` and `# - item` below its head as a line of its own."""
    head = text.index("\n\n") if text.startswith("#") and "\n\n" in text else text.index("apiVersion")
    return text[:head] + re.sub(r"(?m)^( *)# (?=(- |[\w./-]+: |[\w./-]+:$|  ))", r"\1", text[head:])


def engine_check(script: str, document: Any) -> str:
    result = subprocess.run(
        [str(python), "-c", script], input=json.dumps(document), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def schema_errors(value: Any, node: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    """Where `value` leaves JSON Schema as the recorded file uses it: types, unknown and missing fields."""
    if "$ref" in node:
        return schema_errors(value, schema["$defs"][node["$ref"].removeprefix("#/$defs/")], schema, path)
    if "anyOf" in node:
        options = [schema_errors(value, option, schema, path) for option in node["anyOf"]]
        return [] if [] in options else options[0]
    kind = node.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path} is not of type {kind}"]
    errors = []
    if isinstance(value, dict):
        errors += [f"{path} lacks {name}" for name in node.get("required", ()) if name not in value]
        for name, item in value.items():
            below = node.get("properties", {}).get(name, node.get("additionalProperties", True))
            if below is False:
                errors.append(f"{path}.{name} is unknown")
            elif below is not True:
                errors += schema_errors(item, below, schema, f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            errors += schema_errors(item, node.get("items", {}), schema, f"{path}[{number}]")
    return errors


def job_set(text: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The spec of the set, that of its job, and its container."""
    document = yaml.safe_load(text)
    job = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    return document["spec"], job, container


jobset_file = pytest.mark.parametrize("text", ["jobset.yaml"], indirect=True)
skypilot_file = pytest.mark.parametrize("text", ["skypilot.yaml"], indirect=True)


@jobset_file
def test_the_numbers_of_a_job_set_agree(text):
    spec, job, container = job_set(text)
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert str(spec["replicatedJobs"][0]["replicas"]) == environment["SLICES"]
    assert str(job["parallelism"]) == str(job["completions"]) == environment["HOSTS"]
    selector = job["template"]["spec"]["nodeSelector"]
    chips = int(container["resources"]["limits"]["google.com/tpu"]) * job["parallelism"]
    assert chips == topology_size(f"v5e:{selector['cloud.google.com/gke-tpu-topology']}").num_devices
    grace = job["template"]["spec"]["terminationGracePeriodSeconds"]
    assert f"--grace_seconds={grace}" in container["args"][0]
    assert spec["coordinator"]["replicatedJob"] == spec["replicatedJobs"][0]["name"]
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]


@jobset_file
def test_a_job_set_starts_again_uncounted_only_what_was_told_to_stop(text: str) -> None:
    spec, job, _ = job_set(text)
    # JobSet labels pods with NAME-slice-0-0.NAME.
    longest = int(re.search(r"at most (\d+) characters", text)[1])
    assert len(f"{'n' * longest}-{spec['replicatedJobs'][0]['name']}-0-0.{'n' * longest}") == 63
    codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    # A lost peer ends like a crash in compiled code, which may repeat itself: it counts.
    assert codes == [2, EXIT_CODE_RESTARTABLE]
    assert spec["failurePolicy"]["rules"][0]["onJobFailureMessagePatterns"] == [
        "failed with exit code 2 matching FailJob rule"
    ]


@skypilot_file
def test_skypilot_starts_again_uncounted_only_what_was_told_to_stop(text: str) -> None:
    recovery = yaml.safe_load(text)["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == [EXIT_CODE_RESTARTABLE]


@jobset_file
def test_the_command_of_a_job_set_trains_on_every_host_with_its_own_number(text, tmp_path):
    _, _, container = job_set(text)
    (tmp_path / "python").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python").chmod(0o755)
    variables = {"COORDINATOR": "gpt2-slice-0-0.gpt2", "SLICES": "2", "HOSTS": "4", "SLICE": "1", "HOST": "3"}
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    output = subprocess.run(
        [*container["command"], *container["args"]], env=environment, capture_output=True, text=True, check=True
    ).stdout
    words = output.splitlines()
    assert words[:2] == ["-m", "launch.train"]
    assert words[-3:] == ["--coordinator_address=gpt2-slice-0-0.gpt2:8482", "--num_processes=8", "--process_id=7"]
    arguments = parse_arguments(train.COMMAND, words[2:])
    assert arguments.process_id == 7
    assert arguments.workdir == "gs://BUCKET/runs/gpt2"


@skypilot_file
def test_the_command_of_skypilot_trains_and_numbers_gpu_nodes(text, tmp_path):
    task = yaml.safe_load(text)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / ".venv/bin/python").chmod(0o755)
    # Stands for /dev/nvidia0, which is here or not.
    (tmp_path / "ls").write_text("#!/bin/sh\nexit $NO_GPU\n")
    (tmp_path / "ls").chmod(0o755)
    variables = {**task["envs"], "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2"}
    for no_gpu, numbers in (("1", []), ("0", ["--num_processes=2", "--process_id=1"])):
        environment = {**os.environ, **variables, "SKYPILOT_NODE_RANK": "1", "NO_GPU": no_gpu}
        environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        result = subprocess.run(
            ["bash", "-c", task["run"]], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        words = result.stdout.splitlines()
        assert words[:2] == ["-m", "launch.train"]
        assert [word for word in words if word.startswith(("--num_processes", "--process_id"))] == numbers
        assert parse_arguments(train.COMMAND, words[2:]).workdir == task["envs"]["WORKDIR"]
        assert ("--coordinator_address=10.0.0.1:8476" in words) == bool(numbers)


@jobset_file
def test_job_set_s_schema_accepts_the_file_and_all_that_its_comments_offer(root, text):
    schema = json.loads((root / "tests" / "golden" / "jobset_v1alpha2.json").read_text())
    document, full = yaml.safe_load(text), yaml.safe_load(with_all_comments_switched_on(text))
    assert schema_errors(document, schema, schema) == []
    assert schema_errors(full, schema, schema) == []
    pod = full["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert {volume["name"] for volume in pod["volumes"]} == {"data", "shared-memory"}
    wrong = copy.deepcopy(document)
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 0
    assert schema_errors(wrong, schema, schema) == [".spec.replicatedJobs[0].template.spec.backofLimit is unknown"]


@needs_engines
@skypilot_file
def test_skypilot_s_own_parser_accepts_the_file(text):
    document = yaml.safe_load(text)
    assert "tpu-v5litepod-16" in engine_check(CHECK_SKYPILOT, document)
    gpus = {**document["resources"], "accelerators": "H100:8"}
    del gpus["accelerator_args"]
    assert "H100" in engine_check(CHECK_SKYPILOT, {**document, "resources": gpus, "num_nodes": 2})
    with pytest.raises(AssertionError, match="num_nods"):
        engine_check(CHECK_SKYPILOT, {**document, "num_nods": 2})
