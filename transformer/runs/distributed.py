"""The processes of a distributed run: joining them, and decisions that the first process makes for all."""

import contextlib
import dataclasses
import ipaddress
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory

HEARTBEAT = 60  # seconds
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
_OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_ORTE = "OMPI_MCA_orte_hnp_uri"  # the address of mpirun, up to Open MPI 4
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_GKE_HOSTS, _GKE_INDEX = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"
_ALONE_ADVICE = "or --num_processes=1 to train alone"
_BROADCAST_BLOCK = 1024  # bytes
_MESSAGE_LENGTH = 4096  # bytes
_logger = logging.getLogger(__name__)


def join_processes(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    heartbeat: int = HEARTBEAT,
    environment: Mapping[str, str] = os.environ,
    files: Path = Path("/"),
) -> bool:
    """Join the other processes of this run, before jax is used.

    Args:
        coordinator: The address HOST:PORT of the first process; None reads the environment or asks the launcher.
        processes: The number of processes.
        process: The index of this process.
        heartbeat: The seconds of silence after which a process counts as lost.
        environment: The environment variables.
        files: The root of the file system, for tests.

    Returns:
        Whether there are other processes.

    Raises:
        UserError: If settings are incomplete or invalid, or a launcher has started several processes that cannot be
            joined.
    """
    if heartbeat < 1:
        raise UserError(f"--heartbeat_timeout={heartbeat} must be at least 1 second")
    settings: dict[str, Any] | None
    flags = {"--coordinator_address": coordinator, "--num_processes": processes, "--process_id": process}
    variables = {name: environment.get(name) or None for name in (ADDRESS, COUNT, INDEX)}
    explicit = next((group for group in (flags, variables) if any(value is not None for value in group.values())), None)
    if explicit is not None and _is_single_process(*explicit.values()):
        return False
    settings = launcher_arguments(environment) if explicit is None else _explicit_settings(explicit)
    if settings is None and not _has_tpu(environment, files):
        refuse_unknown_launcher(environment)
        return False
    if settings is not None and is_loopback(str(settings.get("coordinator_address"))):
        if not environment.get("JAX_COORDINATOR_BIND_ADDRESS"):
            settings["coordinator_bind_address"] = settings["coordinator_address"]
        _listen_on_loopback()
    # jax would treat SIGTERM as a preemption notice and continue; transformer.runs.preemption handles it.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(**settings or {}, heartbeat_timeout_seconds=heartbeat)
    except ValueError:
        if settings is not None:
            raise
        refuse_unknown_launcher(environment)
        return False  # a TPU without signs of a pod
    return True


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is a loopback address."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_primary() -> bool:
    """Whether this is the first process, which decides for all and writes the shared files."""
    return jax.process_index() == 0


def run_on_primary[T](decide: Callable[[], T]) -> T:
    """Call a function on the first process and return its value on all processes.

    An error other than UserError ends the first process, and with it the others.

    Args:
        decide: The function; its value must be ready for JSON.

    Raises:
        UserError: If `decide` raises one, on all processes.
    """
    if jax.process_count() == 1:
        return decide()
    message: dict[str, Any] = {}
    if is_primary():
        try:
            message["value"] = decide()
        except UserError as error:
            message["mistake"] = str(error)
    message = json.loads(_broadcast(json.dumps(message).encode()))
    if "mistake" in message:
        raise UserError(message["mistake"])
    return message["value"]


def run_on_primary_first[T](make: Callable[[], T]) -> T:
    """Call a function on the first process, then on the others, so that it can write files that they read.

    Raises:
        UserError: If the function raises one on the first process, on all processes.
    """
    results: list[T] = []
    run_on_primary(lambda: results.append(make()))
    return results[0] if results else make()


@contextlib.contextmanager
def claim_run_directory(
    path: Path | RunDirectory, config: Mapping[str, Any], *, may_change: Collection[str] = ()
) -> Iterator[RunDirectory]:
    """Claim a run directory on the first process, for all processes, until all have left the context.

    Args:
        path: The path of the run directory, or the directory that this process has locked (`RunDirectory.lock`).
        config: The resolved config.
        may_change: Dotted keys that may differ from those of an existing run.

    Raises:
        UserError: If the directory cannot be claimed (`RunDirectory.claim`), on every process.
    """
    directory = RunDirectory.at(path)
    with contextlib.ExitStack() as stack:
        claimed: list[RunDirectory] = []

        def claim() -> bool:
            claimed.append(stack.enter_context(RunDirectory.claim(directory, config, may_change=may_change)))
            return claimed[0].is_new

        # A barrier before the first waits for a lease: gloo gives processes half a minute for their first exchange.
        run_on_primary(lambda: None)
        fresh = run_on_primary(claim)
        yield claimed[0] if claimed else dataclasses.replace(directory, is_new=fresh)
        run_on_primary(lambda: None)


def first_message_across_processes(message: str | None) -> str | None:
    """Return the message of the first process that has one, on all processes; None if none has.

    All processes call it together.
    """
    if jax.process_count() == 1:
        return message
    has_message = np.asarray(multihost_utils.process_allgather(np.int32(message is not None))).reshape(-1)
    if not has_message.any():
        return None
    text = np.zeros(_MESSAGE_LENGTH, np.uint8)
    content = (message or "").encode()[:_MESSAGE_LENGTH]
    text[: len(content)] = np.frombuffer(content, np.uint8)
    received = np.asarray(multihost_utils.process_allgather(text)).reshape(-1, _MESSAGE_LENGTH)[
        int(np.argmax(has_message))
    ]
    return bytes(received).rstrip(b"\0").decode(errors="replace")


def print_and_log(line: str) -> None:
    """Print a line to stderr and write it to the run's log."""
    with contextlib.suppress(OSError):  # stderr may be a file on a disk that is full
        print(line, file=sys.stderr, flush=True)
    _logger.info("%s", line)  # as a warning it would appear on stderr twice without a log


def _broadcast(message: bytes) -> bytes:
    """Return the message of the first process."""
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    # In whole blocks, since each length compiles another program.
    block = np.zeros(-(-length // _BROADCAST_BLOCK) * _BROADCAST_BLOCK, np.uint8)
    if is_primary():
        block[:length] = np.frombuffer(message, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(block), np.uint8)[:length].tobytes()


class UnsupportedLauncher(NamedTuple):
    """A launcher that jax cannot join by itself.

    Attributes:
        name: Its name.
        size: The variable with the number of processes.
        rank: The variable with the index of this process.
    """

    name: str
    size: str
    rank: str


UNSUPPORTED_LAUNCHERS = (
    UnsupportedLauncher("MPICH, Intel MPI or another launcher with PMI", "PMI_SIZE", "PMI_RANK"),
    UnsupportedLauncher("MVAPICH2", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    UnsupportedLauncher("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    UnsupportedLauncher("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    UnsupportedLauncher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    UnsupportedLauncher("torchrun", "WORLD_SIZE", "RANK"),
    UnsupportedLauncher("Kubeflow", "NUM_PROCESSES", "PROCESS_ID"),
)

# Launchers that set the index of this process, but not always the number of processes.
RANK_VARIABLES = {"PMIX_RANK": "a launcher with PMIx", "PALS_RANKID": "Cray PALS", "ALPS_APP_PE": "Cray ALPS"}


def launcher_arguments(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments of jax.distributed.initialize for a launcher that jax can join.

    Returns:
        The arguments; None for another launcher, and without one.

    Raises:
        UserError: If Open MPI 5 or newer is used without an mpi4py that works with it.
    """
    if all(name in environment for name in _OPEN_MPI) and parse_process_count(environment, _OPEN_MPI[0]) > 1:
        return {"cluster_detection_method": "mpi4py" if _needs_mpi4py(environment) else "ompi"}
    if all(name in environment for name in _SLURM) and parse_process_count(environment, "SLURM_NTASKS") > 1:
        return {"cluster_detection_method": "slurm"}
    return None


def refuse_unknown_launcher(environment: Mapping[str, str]) -> None:
    """Refuse to train alone in a process that a launcher has started as one of several.

    Raises:
        UserError: If it has; the message names the launcher, and the flags that join the processes.
    """
    for name, size, rank in UNSUPPORTED_LAUNCHERS:
        if size in environment and rank in environment and (count := parse_process_count(environment, size)) > 1:
            raise UserError(
                f"{name} started this process as number {environment[rank]} of {count} ({size}, {rank}), and does "
                "not say where the first is: give "
                f"--coordinator_address=HOST:PORT --num_processes=${size} --process_id=${rank}, {_ALONE_ADVICE}"
            )
    hosts = environment.get(_GKE_HOSTS, "").split(",")
    if len(hosts) > 1:
        raise UserError(
            f"{_GKE_HOSTS} names {len(hosts)} hosts, and jax finds no TPU here (is libtpu installed, and JAX_PLATFORMS "
            f"not cpu?): give --coordinator_address={hosts[0]}:8482 --num_processes={len(hosts)} "
            f"--process_id=${_GKE_INDEX}, {_ALONE_ADVICE}"
        )
    sizes = {_OPEN_MPI[0], *(launcher.size for launcher in UNSUPPORTED_LAUNCHERS)}
    for rank, name in RANK_VARIABLES.items():
        if rank in environment and not sizes & set(environment):
            raise UserError(
                f"{name} started this process as number {environment[rank]} ({rank}), and does not say of how many: "
                f"give --coordinator_address=HOST:PORT --num_processes=N --process_id=${rank}, {_ALONE_ADVICE}"
            )


def _needs_mpi4py(environment: Mapping[str, str]) -> bool:
    """Whether Open MPI's processes need mpi4py to find each other, as from version 5 on.

    Raises:
        UserError: If they do and mpi4py is not installed or uses another MPI.
    """
    version = environment.get("OMPI_VERSION", "").partition(".")[0]
    if not (int(version) >= 5 if version.isdecimal() else _ORTE not in environment):
        return False
    count = parse_process_count(environment, _OPEN_MPI[0])
    advice = (
        f"give --coordinator_address=HOST:PORT --num_processes=${_OPEN_MPI[0]} --process_id=${_OPEN_MPI[1]}, "
        f"{_ALONE_ADVICE}"
    )
    if find_spec("mpi4py") is None:
        raise UserError(
            f"Open MPI started {count} processes, which find each other by mpi4py, and it is not installed: "
            f"pip install mpi4py; or {advice}"
        )
    from mpi4py import MPI

    # If mpi4py was built for another MPI, each process believes that it is the only one.
    if MPI.COMM_WORLD.Get_size() != count:
        raise UserError(
            f"Open MPI started {count} processes, and mpi4py sees {MPI.COMM_WORLD.Get_size()}: it uses another MPI "
            f"({' '.join(MPI.Get_library_version().split())[:60]}); build it with this one: "
            f"pip install --force-reinstall --no-binary=mpi4py mpi4py; or {advice}"
        )
    return True


def parse_process_count(environment: Mapping[str, str], name: str) -> int:
    """Parse the number of processes in an environment variable.

    Raises:
        UserError: If it is not a number.
    """
    if not environment[name].isdecimal():
        raise UserError(
            f"{name}={environment[name]} in the environment is no number of processes: unset it or correct it"
        )
    return int(environment[name])


def _listen_on_loopback() -> None:
    """Let the collectives of CPU devices listen on loopback; gloo would listen at the address of the host's name."""
    # jax has no setting for it.
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    def make_client() -> Any:
        client = distributed.global_state.client
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(client, hostname="127.0.0.1"))

    registered = xla_bridge._backend_factories["cpu"]
    xla_bridge._backend_factories["cpu"] = dataclasses.replace(registered, factory=make_client)


def _is_single_process(address: object, count: object, index: object) -> bool:
    """Whether the settings say that this process is the only one."""
    return address is None and str(count) == "1" and str(index or 0) == "0"


def _explicit_settings(settings: Mapping[str, str | int | None]) -> dict[str, Any]:
    """Return the arguments of jax.distributed.initialize from the address, the count and the index, under any names."""
    (address, host), (count, total), (index, number) = settings.items()
    missing = [name for name, value in settings.items() if value is None]
    if missing:
        raise UserError(
            f"{' and '.join(name for name in settings if name not in missing)} without {' and '.join(missing)}: "
            f"say all of {address}=HOST:PORT {count}=N {index}=I, or none for a single process"
        )
    assert host is not None
    assert total is not None
    assert number is not None
    port = re.fullmatch(r".+:(\d{1,5})", str(host))
    if port is None or not 0 < int(port[1]) < 65536:
        raise UserError(f"{address}={host} is no HOST:PORT, such as 10.0.0.2:8476")
    for name, value in ((count, total), (index, number)):
        if not re.fullmatch(r"\d+", str(value)):
            raise UserError(f"{name}={value} must be a whole number from 0 on")
    if not 0 <= int(number) < int(total):
        raise UserError(f"{index}={number} must be from 0 to {count} - 1, which is {int(total) - 1}")
    # Otherwise jax detects the cluster, and under Slurm gives this process only one of the machine's devices.
    return {
        "coordinator_address": str(host),
        "num_processes": int(total),
        "process_id": int(number),
        "cluster_detection_method": "deactivate",
    }


def _has_tpu(environment: Mapping[str, str], files: Path) -> bool:
    if environment.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu" or find_spec("libtpu") is None:
        return False
    return any(next(files.glob(pattern), None) for pattern in ("dev/accel*", "dev/vfio/[0-9]*"))
