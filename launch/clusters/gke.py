"""Train on TPU slices or on GPU nodes of a GKE cluster: a JobSet with one pod on every host."""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from launch.clusters.gpu_nodes import GPUS_PER_NODE, parse_gpu_topology
from launch.clusters.launcher_common import (
    DRY_RUN,
    ENV,
    MISTAKE,
    NAME,
    TrainCommand,
    build_train_argv,
    check_config_fits,
    check_flag_value,
    check_max_restarts,
    format_shell_command,
    make_run_name,
    parse_env,
    require_shared_storage,
    require_tool,
    run_launcher,
    run_tool,
)
from launch.clusters.tpu_slices import parse_slice
from launch.command import Arguments, Command, Flag
from transformer.config import UserError
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE

COMMAND = Command(
    name="clusters.gke",
    description=(
        "Train on TPU slices or on GPU nodes of a GKE cluster that has the JobSet controller (0.10 or newer). The "
        "flags of the train command follow after --. A JobSet runs it in a pod on every host. Pods that fail are "
        "restarted and resume from the last checkpoint, unless they fail by a user error (exit code 2). Restarts after "
        "a preemption do not count towards --max_restarts."
    ),
    example=(
        "--image=us-docker.pkg.dev/project/headwise/headwise:1 --topology=v5p:4x4x8 -- "
        "--config=experiments/demo.py --workdir=gs://bucket/demo"
    ),
    flags=(
        Flag("image", "a container image with the checkout and its dependencies", required=True),
        Flag(
            "topology",
            "the slice, such as v5e:4x4 or v5p:4x8x8, or the GPUs, as gpu:16 (default: the config's topology)",
        ),
        Flag(
            "slices",
            "the number of slices of this topology, which divide the mesh axis data",
            value_type=int,
            default=1,
        ),
        Flag("gpu_type", "the type of the GPUs, by the GKE label of their nodes, such as nvidia-h100-80gb"),
        GPUS_PER_NODE,
        NAME,
        Flag("namespace", "the Kubernetes namespace (default: kubectl's own)"),
        Flag("service_account", "a Kubernetes service account that can read and write the bucket"),
        Flag("queue", "the Kueue queue to submit to"),
        Flag("spot", "use spot nodes, which may be preempted", value_type=bool, default=False),
        Flag("priority_class", "the Kubernetes priority class of the pods"),
        Flag("volumes", "persistent volume claims and buckets to mount, as CLAIM:/PATH,gs://BUCKET:/PATH:ro"),
        Flag(
            "grace_seconds",
            "seconds from SIGTERM to SIGKILL (fewer on a node that is preempted)",
            value_type=int,
            default=240,
        ),
        Flag("ttl_seconds", "delete the JobSet this many seconds after it has ended (default: never)", value_type=int),
        Flag("checkout_dir", "the checkout in the image (default: the image's own working directory)"),
        Flag("python", "the Python interpreter in the image", default="python"),
        Flag(
            "run_as_root",
            "run the pods as root, where the nodes' devices belong to it",
            value_type=bool,
            default=False,
        ),
        Flag("max_restarts", "the maximum number of restarts after failures", value_type=int, default=10),
        ENV,
        DRY_RUN,
    ),
)
JOB, CONTAINER = "slice", "train"
# The ports of jax's coordinator on TPU hosts, of libtpu's processes, and of libtpu between slices.
COORDINATOR_PORT, LIBTPU_PORT, MEGASCALE_PORT = 8482, 8471, 8080
# The messages by which Kubernetes' job controller says why a job failed, as the rules of a JobSet match them.
MISTAKE_MESSAGE = f"failed with exit code {MISTAKE} matching FailJob rule"
VOLUME = r"(?:gs://(?P<bucket>[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9])|(?P<claim>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?))"
VOLUME += r":(?P<path>/[^:,]+)(?P<read_only>:ro)?"
LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class NodePool(NamedTuple):
    """The nodes of a run.

    Attributes:
        num_slices: The number of TPU slices; 1 for GPUs.
        num_hosts: The number of nodes of a slice, or of GPU nodes, each of which has one pod.
        description: One node, in words.
        selector: The labels of the nodes.
        resource: The Kubernetes name of their accelerators, and of the taint that pods must tolerate.
        accelerators_per_host: The number of accelerators on each.
        num_devices: The number of devices of the run that jax lists.
        is_tpu: Whether they are hosts of a TPU slice.
    """

    num_slices: int
    num_hosts: int
    description: str
    selector: Mapping[str, str]
    resource: str
    accelerators_per_host: int
    num_devices: int
    is_tpu: bool

    @property
    def num_processes(self) -> int:
        """The number of all nodes, and so of the processes."""
        return self.num_slices * self.num_hosts


def find_node_pool(arguments: Arguments, training: TrainCommand) -> NodePool:
    """Return the nodes that --topology names.

    Raises:
        UserError: If it is neither a TPU slice nor a number of GPUs, or --gpu_type or --slices do not fit it.
    """
    slices = arguments.slices
    if slices < 1:
        raise UserError(f"--slices={slices} must be at least 1")
    if (arguments.topology or training.topology).startswith("gpu:"):
        share = parse_gpu_topology(arguments.topology, training.topology, arguments.gpus_per_node)
        if arguments.gpu_type is None:
            raise UserError(
                "GPUs on GKE need --gpu_type, the label of their nodes, such as --gpu_type=nvidia-h100-80gb"
            )
        if slices > 1:
            raise UserError(f"--slices={slices} is for TPUs: give the number of all GPUs by --topology")
        return NodePool(
            num_slices=1,
            num_hosts=share.num_nodes,
            description=f"a node with {share.gpus_per_node} GPUs {_check_label('gpu_type', arguments.gpu_type)}",
            selector={"cloud.google.com/gke-accelerator": arguments.gpu_type},
            resource="nvidia.com/gpu",
            accelerators_per_host=share.gpus_per_node,
            num_devices=share.num_gpus,
            is_tpu=False,
        )
    tpu = parse_slice(arguments.topology, training.topology)
    if arguments.gpu_type is not None:
        raise UserError(f"--gpu_type={arguments.gpu_type} is for GPUs, and the topology is a TPU slice: omit it")
    if slices > 1 and tpu.num_hosts == 1:
        raise UserError(
            f"--slices={slices} of {tpu.generation_name}:{tpu.topology}: GKE joins slices of several hosts, and this "
            "is one host; use a larger topology"
        )
    return NodePool(
        num_slices=slices,
        num_hosts=tpu.num_hosts,
        description=f"a {tpu.machine_type} with {tpu.chips_per_host} chips",
        selector={
            "cloud.google.com/gke-tpu-accelerator": tpu.generation.gke_node_label,
            "cloud.google.com/gke-tpu-topology": tpu.topology,
        },
        resource="google.com/tpu",
        accelerators_per_host=tpu.chips_per_host,
        num_devices=slices * tpu.num_devices,
        is_tpu=True,
    )


def main(arguments: Arguments, training: TrainCommand) -> None:
    """Create the JobSet with kubectl, or print the call."""
    require_shared_storage(training)
    check_max_restarts(arguments.max_restarts)
    for flag, minimum in (("grace_seconds", 1), ("ttl_seconds", 0)):
        value = getattr(arguments, flag)
        if value is not None and value < minimum:
            raise UserError(f"--{flag}={value} must be at least {minimum}")
    nodes = find_node_pool(arguments, training)
    check_config_fits(training, nodes.num_devices, nodes.num_slices)
    # What a pod's name adds to that of the run: JOB, its index, the pod's index and five letters, 63 characters in all.
    suffix = f"-{JOB}-{nodes.num_slices - 1}-{nodes.num_hosts - 1}-abcde"
    name = make_run_name(arguments.name, training.workdir, 63 - len(suffix))
    manifest = json.dumps(build_job_set(arguments, training, nodes, name), indent=2)
    namespace = (f"--namespace={_check_label('namespace', arguments.namespace)}",) if arguments.namespace else ()
    # create refuses a name that is taken; apply would report no change and start nothing.
    create = ("kubectl", "create", *namespace, "--validate=strict", "--filename=-")
    delete = ("kubectl", "delete", *namespace, "jobset", name)
    if arguments.dry_run:
        print(f"# {nodes.num_processes} pods, each on {nodes.description}")
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
    follow = (*follow, f"--max-log-requests={nodes.num_processes}", "--prefix")
    print(f"follow the logs with: {format_shell_command(follow)}\nstop the run with: {format_shell_command(delete)}")


def build_job_set(arguments: Arguments, training: TrainCommand, nodes: NodePool, name: str) -> dict[str, Any]:
    """Build the manifest of a run: a jobset.x-k8s.io/v1alpha2 with a job for every slice, or one for all GPUs.

    Args:
        arguments: The launcher's flags.
        training: The train command.
        nodes: The nodes, of which every one gets one indexed pod.
        name: The name of the run.

    Returns:
        The manifest, as JSON values.
    """
    labels = {"kueue.x-k8s.io/queue-name": _check_label("queue", arguments.queue)} if arguments.queue else {}
    # Two jobs never share the node pool of a slice; a node pool of GPUs is no unit of anything.
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"} if nodes.is_tpu else {}
    exits = {"containerName": CONTAINER, "operator": "In", "values": [MISTAKE, EXIT_CODE_RESTARTABLE]}
    job = {
        "parallelism": nodes.num_hosts,
        "completions": nodes.num_hosts,
        "completionMode": "Indexed",
        # The JobSet restarts all pods together; a single pod could not join the others.
        "backoffLimit": 0,
        # What the rules of the JobSet below tell apart: mistakes, runs that were told to stop, and nodes that went.
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": exits},
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": _build_pod(arguments, training, nodes, name),
    }
    policy = {"onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            **({"annotations": exclusive} if exclusive else {}),
            **({"labels": labels} if labels else {}),
        },
        "spec": {
            "coordinator": {"replicatedJob": JOB, "jobIndex": 0, "podIndex": 0},
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {
                "maxRestarts": arguments.max_restarts,
                # The first rule that matches holds; a job that fails for another reason restarts all, and counts.
                "rules": [
                    {
                        "name": "mistake",
                        "action": "FailJobSet",
                        **policy,
                        "onJobFailureMessagePatterns": [MISTAKE_MESSAGE],
                    },
                    {"name": "preempted", "action": "RestartJobSetAndIgnoreMaxRestarts", **policy},
                ],
            },
            "replicatedJobs": [{"name": JOB, "replicas": nodes.num_slices, "template": {"spec": job}}],
            **({} if arguments.ttl_seconds is None else {"ttlSecondsAfterFinished": arguments.ttl_seconds}),
        },
    }


def _build_pod(arguments: Arguments, training: TrainCommand, nodes: NodePool, name: str) -> dict[str, Any]:
    selector = dict(nodes.selector)
    tolerations = [{"key": nodes.resource, "operator": "Exists", "effect": "NoSchedule"}]
    if arguments.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        tolerations.append({"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"})
    volumes, mounts = _parse_volumes(arguments.volumes or "")
    if not nodes.is_tpu:
        # NCCL shares memory between the GPUs of a node, of which a container has 64 MiB.
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    container = _build_container(arguments, training, nodes, name)
    if mounts:
        container["volumeMounts"] = mounts
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": arguments.grace_seconds,
        "nodeSelector": selector,
        "tolerations": tolerations,
        # The hosts talk over their own network, not the pods'.
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "containers": [container],
    }
    if volumes:
        pod["volumes"] = volumes
    if arguments.service_account:
        pod["serviceAccountName"] = _check_label("service_account", arguments.service_account)
    if arguments.priority_class:
        pod["priorityClassName"] = _check_label("priority_class", arguments.priority_class)
    if arguments.run_as_root:
        pod["securityContext"] = {"runAsUser": 0}
    # GKE adds the container that mounts buckets to pods of this annotation.
    mounting = {"metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}}}
    return {**(mounting if any("csi" in volume for volume in volumes) else {}), "spec": pod}


def _parse_volumes(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and their mounts from CLAIM:/PATH,gs://BUCKET:/PATH:ro."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, volume_text in enumerate(text.split(",") if text else ()):
        match = re.fullmatch(VOLUME, volume_text)
        if match is None or not volume_text.isprintable():
            raise UserError(
                f"--volumes={text}: {volume_text!r} is not CLAIM:/PATH or gs://BUCKET:/PATH, a persistent volume claim "
                "or a bucket and where to mount it, such as --volumes=datasets:/data:ro"
            )
        read_only = {"readOnly": True} if match["read_only"] else {}
        volume = (
            {"csi": _build_bucket_volume(match["bucket"], read_only)}
            if match["bucket"]
            else {"persistentVolumeClaim": {"claimName": match["claim"], **read_only}}
        )
        volumes.append({"name": f"volume-{number}", **volume})
        mounts.append({"name": f"volume-{number}", "mountPath": match["path"], **read_only})
    return volumes, mounts


def _build_bucket_volume(bucket: str, read_only: Mapping[str, bool]) -> dict[str, Any]:
    """Return the volume of a bucket by GKE's driver of Cloud Storage FUSE."""
    # Files belong to root there, and processes need not be root.
    modes = "" if read_only else ",file-mode=666,dir-mode=777"
    attributes = {
        "bucketName": bucket,
        # Folders are the prefixes of objects, also of those that no tool has made.
        "mountOptions": f"implicit-dirs{modes}",
        # Without it a pod on the network of its host has the rights of the node, not of its service account.
        "hostNetworkPodKSA": "true",
    }
    return {"driver": "gcsfuse.csi.storage.gke.io", **read_only, "volumeAttributes": attributes}


def _build_container(arguments: Arguments, training: TrainCommand, nodes: NodePool, name: str) -> dict[str, Any]:
    # The first pod's name in the cluster's DNS, from the names of set, job, job index and pod index.
    first_pod = f"{name}-{JOB}-0-0.{name}"
    grace = f"--grace_seconds={arguments.grace_seconds}"
    words = build_train_argv(check_flag_value("python", arguments.python), training, grace)
    joined = (f"--coordinator_address={first_pod}:{COORDINATOR_PORT}", f"--num_processes={nodes.num_processes}")
    environment = [_environment_variable("PROCESS", field="annotations['batch.kubernetes.io/job-completion-index']")]
    ports = [COORDINATOR_PORT, *((LIBTPU_PORT,) if nodes.is_tpu else ())]
    # Kubernetes reads $(NAME) in a command as a variable, and $$ as a dollar.
    command = [word.replace("$", "$$") for word in words]
    if nodes.num_slices > 1:
        ports.append(MEGASCALE_PORT)
        # What libtpu reads to join slices.
        environment += [
            _environment_variable("MEGASCALE_NUM_SLICES", str(nodes.num_slices)),
            _environment_variable("MEGASCALE_SLICE_ID", field="labels['jobset.sigs.k8s.io/job-index']"),
            _environment_variable("MEGASCALE_COORDINATOR_ADDRESS", first_pod),
        ]
        # jax and libtpu number processes slice by slice. A shell adds, as Kubernetes cannot, and becomes the command.
        process = f"$$((MEGASCALE_SLICE_ID * {nodes.num_hosts} + PROCESS))"
        command = ["sh", "-c", f'exec "$$@" --process_id={process}', "sh", *command, *joined]
    elif nodes.num_hosts > 1:
        command += [*joined, "--process_id=$(PROCESS)"]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": check_flag_value("image", arguments.image),
        "command": command,
        "env": [*environment, *(_environment_variable(key, value) for key, value in parse_env(arguments.env).items())],
        "ports": [{"containerPort": port} for port in ports],
        "resources": {"limits": {nodes.resource: str(nodes.accelerators_per_host)}},
    }
    if arguments.checkout_dir:
        container["workingDir"] = check_flag_value("checkout_dir", arguments.checkout_dir)
    return container


def _environment_variable(name: str, value: str = "", *, field: str | None = None) -> dict[str, Any]:
    """Return an environment variable of a container, with a value or that of a field of the pod's metadata."""
    if field is not None:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
    # Kubernetes reads $(NAME) here as well.
    return {"name": name, "value": value.replace("$", "$$")}


def _check_label(flag: str, value: str) -> str:
    if not re.fullmatch(LABEL, value):
        raise UserError(
            f"--{flag}={value} is not a Kubernetes name: use at most 63 lower-case letters, digits and -, with a "
            "letter or digit at both ends"
        )
    return value


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
