"""Train on a TPU slice of a GKE cluster: a JobSet with one pod on every host."""

import json
import re
import sys
from typing import Any

from launch.clusters.launcher_common import (
    DRY_RUN,
    NAME,
    TrainCommand,
    build_train_argv,
    check_flag_value,
    check_max_restarts,
    format_shell_command,
    make_run_name,
    require_shared_storage,
    require_tool,
    run_launcher,
    run_tool,
)
from launch.clusters.tpu_slices import TpuSlice, parse_slice
from launch.command import Arguments, Command, Flag
from transformer.config import UserError

COMMAND = Command(
    name="clusters.gke",
    description=(
        "Train on a TPU slice of a GKE cluster that has the JobSet controller. The flags of the train command follow "
        "after --. A JobSet runs it in a pod on every host of the slice. Pods that fail are restarted and resume from "
        "the last checkpoint, unless they fail by a user error (exit code 2)."
    ),
    example=(
        "--image=us-docker.pkg.dev/project/headwise/headwise:1 --topology=v5p:4x4x8 -- "
        "--config=experiments/demo.py --workdir=gs://bucket/demo"
    ),
    flags=(
        Flag("image", "a container image with the checkout and its dependencies", required=True),
        Flag("topology", "the slice, such as v5e:4x4 or v5p:4x8x8 (default: the config's topology)"),
        NAME,
        Flag("namespace", "the Kubernetes namespace (default: kubectl's own)"),
        Flag("service_account", "a Kubernetes service account that can read and write the bucket"),
        Flag("queue", "the Kueue queue to submit to"),
        Flag("spot", "use spot nodes, which may be preempted", value_type=bool, default=False),
        Flag("checkout_dir", "the checkout in the image (default: the image's own working directory)"),
        Flag("python", "the Python interpreter in the image", default="python"),
        Flag("max_restarts", "the maximum number of restarts of the pods", value_type=int, default=10),
        DRY_RUN,
    ),
)
JOB, CONTAINER = "slice", "train"
# The ports of jax's coordinator on TPU hosts, and of libtpu's processes.
COORDINATOR_PORT, LIBTPU_PORT = 8482, 8471
# A pod's name is that of the run, JOB, its index, the pod's index and five letters: 63 characters in all.
LONGEST_SUFFIX = len(f"-{JOB}-0--") + len("abcde")
LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


def main(arguments: Arguments, training: TrainCommand) -> None:
    """Create the JobSet with kubectl, or print the call."""
    require_shared_storage(training)
    check_max_restarts(arguments.max_restarts)
    tpu = parse_slice(arguments.topology, training.topology)
    name = make_run_name(arguments.name, training.workdir, 63 - LONGEST_SUFFIX - len(str(tpu.num_hosts - 1)))
    manifest = json.dumps(build_job_set(arguments, training, tpu, name), indent=2)
    namespace = (f"--namespace={_label('namespace', arguments.namespace)}",) if arguments.namespace else ()
    # create refuses a name that is taken; apply would report no change and start nothing.
    create = ("kubectl", "create", *namespace, "--validate=strict", "--filename=-")
    delete = ("kubectl", "delete", *namespace, "jobset", name)
    if arguments.dry_run:
        print(f"# {tpu.num_hosts} pods, each on a {tpu.machine_type} with {tpu.chips_per_host} chips")
        print(format_shell_command(create, stdin=manifest))
        return
    require_tool("kubectl", training.environment)
    if run_tool(create, training.environment, stdin=manifest):
        print(
            f"nothing was started; delete a run of the same name with: {format_shell_command(delete)}", file=sys.stderr
        )
        raise SystemExit(1)
    follow = ("kubectl", "logs", *namespace, "--follow", f"--selector=jobset.sigs.k8s.io/jobset-name={name}")
    # Without this flag kubectl follows at most five pods, and refuses a slice of six.
    follow = (*follow, f"--max-log-requests={tpu.num_hosts}", "--prefix")
    print(f"follow the logs with: {format_shell_command(follow)}\nstop the run with: {format_shell_command(delete)}")


def build_job_set(arguments: Arguments, training: TrainCommand, tpu: TpuSlice, name: str) -> dict[str, Any]:
    """Build the manifest of a run: a jobset.x-k8s.io/v1alpha2 with one replicated job for the slice.

    Args:
        arguments: The launcher's flags.
        training: The train command.
        tpu: The slice, of which every host gets one indexed pod.
        name: The name of the run.

    Returns:
        The manifest, as JSON values.
    """
    labels = {"kueue.x-k8s.io/queue-name": _label("queue", arguments.queue)} if arguments.queue else {}
    job = {
        "parallelism": tpu.num_hosts,
        "completions": tpu.num_hosts,
        "completionMode": "Indexed",
        # The JobSet restarts all pods together; a single pod could not join the others.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [2]},
                }
            ]
        },
        "template": {"spec": _pod(arguments, training, tpu, name)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            # Two jobs never share the node pool of a slice.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
            **({"labels": labels} if labels else {}),
        },
        "spec": {
            "coordinator": {"replicatedJob": JOB, "jobIndex": 0, "podIndex": 0},
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {
                "maxRestarts": arguments.max_restarts,
                "rules": [
                    {"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                ],
            },
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pod(arguments: Arguments, training: TrainCommand, tpu: TpuSlice, name: str) -> dict[str, Any]:
    selector = {
        "cloud.google.com/gke-tpu-accelerator": tpu.generation.gke_node_label,
        "cloud.google.com/gke-tpu-topology": tpu.topology,
    }
    tolerations = [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    if arguments.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        tolerations.append({"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"})
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": selector,
        "tolerations": tolerations,
        # The hosts talk over their own network, not the pods'.
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "containers": [_container(arguments, training, tpu, name)],
    }
    if arguments.service_account:
        pod["serviceAccountName"] = _label("service_account", arguments.service_account)
    return pod


def _container(arguments: Arguments, training: TrainCommand, tpu: TpuSlice, name: str) -> dict[str, Any]:
    # The first pod's name in the cluster's DNS, from the names of set, job, job index and pod index.
    coordinator = f"{name}-{JOB}-0-0.{name}:{COORDINATOR_PORT}"
    words = build_train_argv(check_flag_value("python", arguments.python), training)
    joined = (f"--coordinator_address={coordinator}", f"--num_processes={tpu.num_hosts}", "--process_id=$(PROCESS)")
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": check_flag_value("image", arguments.image),
        # Kubernetes reads $(NAME) in a command as a variable, and $$ as a dollar.
        "command": [*(word.replace("$", "$$") for word in words), *(joined if tpu.num_hosts > 1 else ())],
        "env": [
            {
                "name": "PROCESS",
                "valueFrom": {
                    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
                },
            }
        ],
        "ports": [{"containerPort": COORDINATOR_PORT}, {"containerPort": LIBTPU_PORT}],
        "resources": {"limits": {"google.com/tpu": str(tpu.chips_per_host)}},
    }
    if arguments.checkout_dir:
        container["workingDir"] = check_flag_value("checkout_dir", arguments.checkout_dir)
    return container


def _label(flag: str, value: str) -> str:
    if not re.fullmatch(LABEL, value):
        raise UserError(
            f"--{flag}={value} is not a Kubernetes name: use at most 63 lower-case letters, digits and -, with a "
            "letter or digit at both ends"
        )
    return value


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
