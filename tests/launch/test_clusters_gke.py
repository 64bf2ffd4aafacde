"""The GKE launcher: its manifest against the public schema, what the pods run, and a stand-in of kubectl."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jax._src.clusters.cloud_tpu_cluster import GkeTpuCluster

from launch.clusters import gke
from launch.clusters.launcher_common import run_launcher
from tests.launch.engines import HOSTILE, Engines, last_of_each_flag

OWN = ("--image=registry/image:1", "--topology=v5p:4x4x8")
TRAIN = ("--", "--config=experiments/demo.py", "--workdir=gs://bucket/demo")
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


@pytest.fixture
def engines(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", engines.environment["PATH"])
    engines.add("kubectl")
    return engines


@pytest.fixture(scope="session")
def schema(root: Path) -> dict[str, Any]:
    return json.loads((root / "tests" / "golden" / "jobset_v1alpha2.json").read_text())


def launch(*words: str) -> int:
    try:
        return run_launcher(gke.COMMAND, gke.main, last_of_each_flag(words))
    except SystemExit as ended:
        return int(str(ended.code))


def manifest(engines: Engines, *words: str) -> dict[str, Any]:
    """What kubectl gets."""
    engines.forget()
    assert launch(*words) == 0
    (call,) = engines.calls("kubectl")
    return json.loads(call.typed)


def faults(value: Any, node: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    """Where `value` leaves JSON Schema as the recorded file uses it: types, unknown and missing fields."""
    if "$ref" in node:
        return faults(value, schema["$defs"][node["$ref"].removeprefix("#/$defs/")], schema, path)
    if "anyOf" in node:
        options = [faults(value, option, schema, path) for option in node["anyOf"]]
        return [] if [] in options else options[0]
    kind = node.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path} is not of type {kind}"]
    found = []
    if isinstance(value, dict):
        found += [f"{path} lacks {name}" for name in node.get("required", ()) if name not in value]
        for name, item in value.items():
            below = node.get("properties", {}).get(name, node.get("additionalProperties", True))
            if below is False:
                found.append(f"{path}.{name} is unknown")
            elif below is not True:
                found += faults(item, below, schema, f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += faults(item, node.get("items", {}), schema, f"{path}[{number}]")
    return found


def template_of(job_set: dict[str, Any]) -> dict[str, Any]:
    return job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


def pod_of(job_set: dict[str, Any]) -> dict[str, Any]:
    return template_of(job_set)["spec"]


def expanded(word: str, variables: dict[str, str]) -> str:
    """A word of a pod's command as the kubelet passes it on: $(NAME) is a variable where there is one, $$ is $."""

    def meant(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\((.*?)\)", meant, word)


def processes(job_set: dict[str, Any], tmp_path: Path) -> list[list[str]]:
    """The words that the pods of a set run, and before them their slice, as the kubelet and a shell make them."""
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = pod_of(job_set)["containers"]
    (tmp_path / "python").write_text('#!/bin/sh\necho "$MEGASCALE_SLICE_ID" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    found = []
    for part in range(replicated["replicas"]):
        for index in range(job["completions"]):
            fields = {
                "metadata.labels['jobset.sigs.k8s.io/job-index']": str(part),
                "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
            }
            variables: dict[str, str] = {}
            for each in container["env"]:
                field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
                variables[each["name"]] = fields[field] if field else expanded(each["value"], variables)
            command = [expanded(word, variables) for word in container["command"]]
            environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found.append(done.stdout.split())
    return found


def test_several_slices_are_a_job_each_whose_pods_are_numbered_as_jax_does(engines, tmp_path, monkeypatch):
    found = manifest(engines, *OWN[:1], "--topology=v5p:2x2x2", "--slices=3", *TRAIN)
    (replicated,) = found["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (3, 2, 2)
    # A slice is a node pool, and two jobs never share one.
    assert found["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    container = pod_of(found)["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["MEGASCALE_NUM_SLICES"] == "3"
    assert {"containerPort": 8080} in container["ports"]
    ran = processes(found, tmp_path)
    # What jax finds out by itself on GKE, from the same variables and those that GKE sets for a slice.
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "first,second")
    for name in ("MEGASCALE_NUM_SLICES", "MEGASCALE_COORDINATOR_ADDRESS"):
        monkeypatch.setenv(name, variables[name])
    monkeypatch.setattr(GkeTpuCluster, "wait_for_coordinator", lambda address, timeout: None)
    assert len(ran) == GkeTpuCluster.get_process_count() == 6
    for number, (part, *words) in enumerate(ran):
        monkeypatch.setenv("MEGASCALE_SLICE_ID", part)
        monkeypatch.setenv("TPU_WORKER_ID", str(number % 2))
        assert words == [
            *("-m", "launch.train", *TRAIN[1:], "--grace_seconds=240"),
            f"--coordinator_address={GkeTpuCluster.get_coordinator_address(0, None)}",
            f"--num_processes={GkeTpuCluster.get_process_count()}",
            f"--process_id={GkeTpuCluster.get_process_id()}",
        ]
    # One slice has none of it.
    alone = manifest(engines, *OWN[:1], "--topology=v5p:2x2x2", *TRAIN)
    assert "MEGASCALE" not in json.dumps(alone)
    assert [words[-1] for words in processes(alone, tmp_path)] == ["--process_id=0", "--process_id=1"]


def test_hostile_words_pass_the_shell_of_several_slices(engines, tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MEGASCALE_SLICE_ID": "1", "PROCESS": "1"}
    for word in HOSTILE:
        words = (*TRAIN[1:], f"--config.name={word}")
        found = manifest(engines, *OWN[:1], "--topology=v5p:2x2x2", "--slices=2", "--", *words)
        command = [expanded(item, {}) for item in pod_of(found)["containers"][0]["command"]]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert tuple(done.stdout.split("\0")[2:-5]) == words


def test_a_bucket_is_mounted_by_the_driver_of_gke(engines):
    found = manifest(engines, *OWN, "--volumes=gs://data.sets:/data:ro,gs://scratch:/mnt,claim:/other", *TRAIN)
    assert template_of(found)["metadata"] == {"annotations": {"gke-gcsfuse/volumes": "true"}}
    read, write, claim = pod_of(found)["volumes"]
    assert read == {
        "name": "volume-0",
        "csi": {
            "driver": "gcsfuse.csi.storage.gke.io",
            "readOnly": True,
            "volumeAttributes": {
                "bucketName": "data.sets",
                "mountOptions": "implicit-dirs",
                "hostNetworkPodKSA": "true",
            },
        },
    }
    # Who is not root can write.
    assert write["csi"]["volumeAttributes"]["mountOptions"] == "implicit-dirs,file-mode=666,dir-mode=777"
    assert claim == {"name": "volume-2", "persistentVolumeClaim": {"claimName": "claim"}}
    assert pod_of(found)["containers"][0]["volumeMounts"][0] == {
        "name": "volume-0",
        "mountPath": "/data",
        "readOnly": True,
    }
    assert "metadata" not in template_of(manifest(engines, *OWN, "--volumes=claim:/data", *TRAIN))


def test_pods_are_root_only_if_asked(engines):
    assert "securityContext" not in pod_of(manifest(engines, *OWN, *TRAIN))
    assert pod_of(manifest(engines, *OWN, "--run_as_root", *TRAIN))["securityContext"] == {"runAsUser": 0}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--topology=v5e:1x1",),
        ("--topology=v5p:16x16x24", "--spot", "--checkout_dir=app", "--max_restarts=0"),
        ("--namespace=team", "--service_account=trainer", "--queue=multislice-queue", "--name=other"),
        ("--volumes=data:/data:ro,scratch:/mnt/scratch", "--priority_class=high", "--ttl_seconds=0"),
        ("--topology=gpu:16", "--gpu_type=nvidia-h100-80gb", "--spot"),
        ("--topology=tpu7x:2x2x2",),
        ("--slices=12", "--env=NAME=value"),
        ("--volumes=gs://datasets:/data:ro,gs://scratch.example.org:/mnt/scratch", "--run_as_root"),
    ],
)
def test_manifests_keep_the_public_schema(engines, schema, words):
    found = manifest(engines, *OWN, *words, *TRAIN)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert faults(found, schema, schema) == []
    # Enumerations, which the recorded schema lacks, from the definitions of JobSet, Job and Pod.
    spec = found["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    actions = [rule["action"] for rule in spec["failurePolicy"]["rules"]]
    assert actions == ["FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    assert {rule["action"] for rule in job["podFailurePolicy"]["rules"]} == {"FailJob"}
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["operator"] in ("In", "NotIn")
    assert job["completionMode"] == "Indexed"
    # A Job's podFailurePolicy is allowed with this restart policy alone.
    assert pod_of(found)["restartPolicy"] == "Never"
    assert pod_of(found)["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_the_schema_finds_planted_faults(engines, schema):
    def fault(change: Any) -> list[str]:
        found = manifest(engines, *OWN, *TRAIN)
        change(found)
        return faults(found, schema, schema)

    assert fault(lambda m: m["spec"].update(replicatedjobs=[])) == [".spec.replicatedjobs is unknown"]
    assert fault(lambda m: m["spec"]["replicatedJobs"][0].pop("name")) == [".spec.replicatedJobs[0] lacks name"]
    assert fault(lambda m: m["spec"]["failurePolicy"].update(maxRestarts="3")) == [
        ".spec.failurePolicy.maxRestarts is not of type integer"
    ]
    assert fault(lambda m: m["spec"]["network"].update(enableDNSHostnames="yes")) != []
    assert fault(lambda m: pod_of(m).update(nodeSelector={"a": 1})) != []
    assert fault(lambda m: pod_of(m)["containers"][0].update(command="python")) != []
    assert fault(lambda m: pod_of(m)["containers"][0]["resources"]["limits"].update(tpu=[])) != []
    assert fault(lambda m: pod_of(m)["containers"][0]["resources"]["limits"].update(tpu=4)) == []


def test_a_slice_is_one_job_with_a_pod_on_every_host(engines):
    found = manifest(engines, *OWN, *TRAIN)
    (replicated,) = found["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    # v5p:4x4x8 is 128 chips on 32 hosts of 4.
    assert (replicated["replicas"], job["parallelism"], job["completions"], job["backoffLimit"]) == (1, 32, 32, 0)
    pod = pod_of(found)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x8",
    }
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"google.com/tpu": "4"}}
    assert container["image"] == "registry/image:1"
    assert "workingDir" not in container
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 10


def outcome(job_set: dict[str, Any], exit_code: int | None) -> str:
    """What the controllers of Kubernetes and JobSet do after a pod's exit code; None: its node went.

    Messages and reasons are those of Kubernetes' job controller.
    """
    job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
        if exit_code is not None and exit_code in rule.get("onExitCodes", {}).get("values", ()):
            assert rule["onExitCodes"]["operator"] == "In"
            name = rule["onExitCodes"]["containerName"]
            reason = "PodFailurePolicy"
            message = f"Container {name} for pod team/demo-slice-0-7-abcde failed with exit code {exit_code} "
            message += f"matching {rule['action']} rule at index {index}"
            break
        if exit_code is None and {"type": "DisruptionTarget", "status": "True"} in rule.get("onPodConditions", ()):
            reason = "PodFailurePolicy"
            message = "Pod team/demo-slice-0-2-abcde has condition DisruptionTarget "
            message += f"matching {rule['action']} rule at index {index}"
            break
    for rule in job_set["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [".*"])
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            return rule["action"]
    return "RestartJobSet"


def test_only_failures_use_up_the_restarts_and_a_mistake_ends_the_run(engines):
    found = manifest(engines, *OWN, *TRAIN)
    assert outcome(found, 2) == "FailJobSet"
    assert outcome(found, 75) == outcome(found, None) == "RestartJobSetAndIgnoreMaxRestarts"
    assert {outcome(found, code) for code in (1, 22, 134, 137, 143)} == {"RestartJobSet"}


def test_gpus_are_nodes_with_shared_memory(engines):
    found = manifest(engines, OWN[0], "--topology=gpu:16", "--gpu_type=nvidia-h100-80gb", *TRAIN)
    assert "annotations" not in found["metadata"]
    job, pod = found["spec"]["replicatedJobs"][0]["template"]["spec"], pod_of(found)
    assert (job["parallelism"], pod["nodeSelector"]) == (2, {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"})
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert pod["containers"][0]["command"][-2:] == ["--num_processes=2", "--process_id=$(PROCESS)"]


def test_the_pods_find_the_first_of_them_by_the_name_that_jobset_gives_it(engines):
    found = manifest(engines, *OWN, *TRAIN)
    # <set>-<job>-<job index>-<pod index>.<subdomain>; the subdomain is the set's name unless it says another.
    replicated = found["spec"]["replicatedJobs"][0]["name"]
    assert found["spec"]["coordinator"] == {"replicatedJob": replicated, "jobIndex": 0, "podIndex": 0}
    assert "subdomain" not in found["spec"]["network"]
    container = pod_of(found)["containers"][0]
    assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == (
        "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    )
    command = [expanded(word, {container["env"][0]["name"]: "7"}) for word in container["command"]]
    assert command[-3:] == [
        f"--coordinator_address=demo-28bfad-{replicated}-0-0.demo-28bfad:8482",
        "--num_processes=32",
        "--process_id=7",
    ]
    assert {"containerPort": 8482} in container["ports"]
    # One host needs nobody.
    alone = pod_of(manifest(engines, *OWN[:1], "--topology=v5e:2x4", *TRAIN))["containers"][0]
    assert alone["command"] == ["python", "-m", "launch.train", *TRAIN[1:], "--grace_seconds=240"]
    assert alone["resources"] == {"limits": {"google.com/tpu": "8"}}


def test_flags_reach_the_manifest_and_kubectl(engines, capsys):
    words = ("--namespace=team", "--service_account=trainer", "--queue=research", "--spot", "--max_restarts=3")
    words = (*words, "--grace_seconds=90", "--ttl_seconds=600", "--priority_class=high")
    words = (*words, "--volumes=datasets:/data:ro,scratch:/mnt/scratch")
    words = (*words, "--env=LIBTPU_INIT_ARGS='--xla_a=1 --xla_b=2' NAME=$(PROCESS)")
    found = manifest(engines, *OWN, *words, "--checkout_dir=app", "--python=python3", "--name=other", *TRAIN)
    (call,) = engines.calls("kubectl")
    assert call.words == ["create", "--namespace=team", "--validate=strict", "--filename=-"]
    assert found["metadata"]["name"] == "other"
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 3
    pod = pod_of(found)
    assert pod["serviceAccountName"] == "trainer"
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert "cloud.google.com/gke-spot" in {toleration["key"] for toleration in pod["tolerations"]}
    assert (pod["terminationGracePeriodSeconds"], pod["priorityClassName"]) == (90, "high")
    assert found["spec"]["ttlSecondsAfterFinished"] == 600
    assert [volume["persistentVolumeClaim"] for volume in pod["volumes"]] == [
        {"claimName": "datasets", "readOnly": True},
        {"claimName": "scratch"},
    ]
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/data", "readOnly": True},
        {"name": "volume-1", "mountPath": "/mnt/scratch"},
    ]
    assert pod["containers"][0]["env"][1:] == [
        {"name": "LIBTPU_INIT_ARGS", "value": "--xla_a=1 --xla_b=2"},
        {"name": "NAME", "value": "$$(PROCESS)"},
    ]
    assert "--grace_seconds=90" in pod["containers"][0]["command"]
    assert pod["containers"][0]["workingDir"] == "app"
    assert pod["containers"][0]["command"][0] == "python3"
    said = capsys.readouterr().out
    assert (
        "kubectl logs --namespace=team --follow --selector=jobset.sigs.k8s.io/jobset-name=other --max-log-requests="
        in said
    )
    assert "kubectl delete --namespace=team jobset other" in said


def test_hostile_words_reach_python_as_they_are(engines, schema):
    for word in HOSTILE:
        words = ("--", *TRAIN[1:2], f"--workdir=gs://bucket/{word}", f"--config.name={word}", f"--data_dir={word}")
        found = manifest(engines, *OWN, *words)
        assert faults(found, schema, schema) == []
        variables = {"PROCESS": "0", "HOME": "planted"}
        command = [expanded(item, variables) for item in pod_of(found)["containers"][0]["command"]]
        assert command[1:-4] == ["-m", "launch.train", *words[1:]]
    # Planted: unescaped, the word would not come through.
    assert expanded("$$(PROCESS) $(PROCESS) $", {"PROCESS": "0"}) != "$$(PROCESS) $(PROCESS) $"


def test_pods_names_are_short_enough(engines):
    workdir = "gs://bucket/" + "a" * 100
    name = manifest(engines, *OWN, *TRAIN[:2], f"--workdir={workdir}")["metadata"]["name"]
    assert len(f"{name}-slice-0-31-abcde") == 63
    assert launch(*OWN, f"--name={'a' * 47}", *TRAIN) == 2
    assert launch(*OWN, f"--name={'a' * 46}", *TRAIN) == 0
    name = manifest(engines, *OWN, "--slices=11", *TRAIN[:2], f"--workdir={workdir}")["metadata"]["name"]
    assert len(f"{name}-slice-10-31-abcde") == 63


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--name=Demo",), "--name=Demo is not a valid name of a run"),
        (("--namespace=a/b",), "--namespace=a/b is not a Kubernetes name"),
        (("--namespace=-n",), "--namespace=-n is not a Kubernetes name"),
        (("--service_account=A",), "--service_account=A is not a Kubernetes name"),
        (("--queue=$(x)",), "--queue=$(x) is not a Kubernetes name"),
        (("--max_restarts=-1",), "--max_restarts=-1 must be at least 0"),
        (("--image=-x",), "--image='-x' must not"),
        (("--image=",), "clusters.gke needs --image=VALUE"),
        (("--topology=gpu:8",), "GPUs on GKE need --gpu_type"),
        (("--gpu_type=nvidia-l4",), "--gpu_type=nvidia-l4 is for GPUs, and the topology is a TPU slice"),
        (("--priority_class=High",), "--priority_class=High is not a Kubernetes name"),
        (("--volumes=data",), "--volumes=data: 'data' is not CLAIM:/PATH"),
        (("--volumes=gs://bucket/folder:/data",), "is not CLAIM:/PATH or gs://BUCKET:/PATH"),
        (("--slices=0",), "--slices=0 must be at least 1"),
        (("--slices=2", "--topology=v5e:2x4"), "--slices=2 of v5e:2x4: GKE joins slices of several hosts"),
        (("--slices=2", "--topology=gpu:8", "--gpu_type=nvidia-l4"), "--slices=2 is for TPUs"),
        (("--env=--xla_a=1",), "--env=--xla_a=1: '--xla_a=1' is not of the form NAME=VALUE"),
        (("--grace_seconds=0",), "--grace_seconds=0 must be at least 1"),
        (("--ttl_seconds=-1",), "--ttl_seconds=-1 must be at least 0"),
    ],
)
def test_mistakes_are_told_before_kubectl_is_called(engines, capsys, words, says):
    assert launch(*OWN, *words, *TRAIN) == 2
    assert says in capsys.readouterr().err
    assert engines.calls() == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--config.sharding.data=1", "--config.sharding.fsdp=-1", "--config.sharding.rules=fsdp"),
            "config.sharding.data=1 must be a multiple of the 2 slices",
        ),
        (("--data_dir=gs://bucket/data",), "--data_dir=gs://bucket/data is in a bucket"),
    ],
)
def test_mistakes_of_the_train_command_are_told_as_well(engines, capsys, words, says):
    assert launch(*OWN, "--slices=2", *TRAIN, *words) == 2
    assert says in capsys.readouterr().err
    assert engines.calls() == []


def test_a_refusal_of_kubectl_is_passed_on_with_what_would_help(engines, capsys):
    engines.add("kubectl", 'sys.exit("Error from server (AlreadyExists): jobsets \\"demo-28bfad\\" already exists")')
    assert launch(*OWN, *TRAIN) == 1
    assert "nothing was started; delete a run of the same name with: kubectl delete jobset demo-28bfad" in (
        capsys.readouterr().err
    )


def test_the_dry_run_is_a_script_of_the_very_call_and_makes_none(engines, tmp_path, capsys):
    words = (*OWN, "--namespace=team", *TRAIN, "--config.name=a'b $(touch harm) END_OF_INPUT")
    assert launch("--dry_run", *words) == 0
    text = capsys.readouterr().out
    assert engines.calls() == []
    subprocess.run(["bash", "-c", text], env=engines.environment, cwd=tmp_path, check=True)
    (shown,) = engines.calls()
    made = manifest(engines, *words)
    (call,) = engines.calls()
    assert (shown.words, json.loads(shown.typed)) == (call.words, made)
    assert not (tmp_path / "harm").exists()
