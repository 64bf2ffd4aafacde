"""One run on several processes: how they find one another, how the first decides, and how they end together.

A process learns of the others in one of these ways, the first that applies:

    the flags of launch.train      --coordinator=HOST:PORT --processes=N --process=I
    the environment                JAX_COORDINATOR_ADDRESS=HOST:PORT JAX_NUM_PROCESSES=N JAX_PROCESS_ID=I
                                   (Kubernetes, or any launcher; I counts from 0, HOST is where I is 0)
    Slurm                          srun with more than one task: SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS,
                                   SLURM_PROCID, SLURM_LOCALID
    Open MPI                       mpirun with more than one process: OMPI_COMM_WORLD_SIZE ..., from version 5 on
                                   with mpi4py installed
    a TPU pod                      the metadata of the TPU's machine or of GKE (read by jax)

A process that another launcher started as one of several (transformer.runs.launchers) does not train alone: it is told
to name the others by flags. `--processes=1` says that it is the only one.

Every process runs the same program on the same data and makes the same programs in the same order. Where
their answers could differ (is the directory free, which checkpoint is the newest) the first decides for all.

They end together. A process that fails tells the others, which name it and end (transformer.runs.news); one that was
killed or stopped counts as lost after `HEARTBEAT` seconds, and jax ends the others and names it. A process that lives
but makes no progress (its data hang, say) is ended by its watchdog (transformer.runs.watchdog). What is told to stop,
by a signal to any of them, stops behind the same step in all (transformer.runs.pulse).
"""

import contextlib
import dataclasses
import ipaddress
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer.config import UserError
from transformer.runs.directory import RunDirectory
from transformer.runs.launchers import joined_by, refuse_unknown
from transformer.storage import locate

HEARTBEAT = 60  # seconds
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

_BLOCK = 1024  # bytes


def start(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    heartbeat: int = HEARTBEAT,
    environment: Mapping[str, str] = os.environ,
    files: Path = Path("/"),
) -> bool:
    """Join the other processes of this run, before jax is used; False for a single process.

    `heartbeat` is after how many seconds of silence a process counts as lost.

    Errors: UserError for incomplete or invalid settings.
    """
    if heartbeat < 1:
        raise UserError(f"--heartbeat={heartbeat} must be at least 1 second")
    settings: dict[str, Any] | None
    flags = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    variables = {name: environment.get(name) or None for name in (ADDRESS, COUNT, INDEX)}
    given = next((each for each in (flags, variables) if any(value is not None for value in each.values())), None)
    if given is not None and _says_alone(*given.values()):
        return False
    settings = joined_by(environment) if given is None else _explicit(given)
    if settings is None and not _has_tpu(environment, files):
        refuse_unknown(environment)
        return False
    if settings is not None and on_loopback(str(settings.get("coordinator_address"))):
        if not environment.get("JAX_COORDINATOR_BIND_ADDRESS"):
            settings["coordinator_bind_address"] = settings["coordinator_address"]
        _listen_to_this_machine()
    # jax would treat SIGTERM as a notice of preemption and go on; transformer.runs.signals hears it.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(**settings or {}, heartbeat_timeout_seconds=heartbeat)
    except ValueError:
        if settings is not None:
            raise
        refuse_unknown(environment)
        return False  # a TPU without signs of a pod
    return True


def on_loopback(address: str) -> bool:
    """Whether HOST:PORT is this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen_to_this_machine() -> None:
    """Let the collectives of CPU devices listen on loopback: gloo would where the host's name leads."""
    # jax has no setting for it.
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    def make_client() -> Any:
        client = distributed.global_state.client
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(client, hostname="127.0.0.1"))

    registered = xla_bridge._backend_factories["cpu"]
    xla_bridge._backend_factories["cpu"] = dataclasses.replace(registered, factory=make_client)


def _says_alone(address: object, count: object, index: object) -> bool:
    """Whether what is given says that this process is the only one."""
    return address is None and str(count) == "1" and str(index or 0) == "0"


def _explicit(given: Mapping[str, str | int | None]) -> dict[str, Any]:
    """The arguments of jax.distributed.initialize from the address, the count and the index under any names."""
    (address, host), (count, total), (index, number) = given.items()
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise UserError(
            f"{' and '.join(name for name in given if name not in missing)} without {' and '.join(missing)}: "
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
    # Otherwise jax asks the cluster for the rest, and under Slurm gives this process one of the machine's devices.
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


def primary() -> bool:
    """Whether this process is the first, which decides for all and writes what is written once."""
    return jax.process_index() == 0


def decided[T](decide: Callable[[], T]) -> T:
    """Call `decide` on the first process and return its value, which JSON must be able to hold, on all of them.

    A UserError is raised on all of them; any other error ends the first process, and with it the others.
    """
    if jax.process_count() == 1:
        return decide()
    message: dict[str, Any] = {}
    if primary():
        try:
            message["value"] = decide()
        except UserError as error:
            message["mistake"] = str(error)
    message = json.loads(_told(json.dumps(message).encode()))
    if "mistake" in message:
        raise UserError(message["mistake"])
    return message["value"]


def in_turn[T](make: Callable[[], T]) -> T:
    """Call `make` on every process, on the first one before the others: it can write files that they then read.

    Errors: as `decided`.
    """
    made: list[T] = []
    decided(lambda: made.append(make()))
    return made[0] if made else make()


@contextlib.contextmanager
def claimed(path: str | Path, config: Mapping[str, Any], *, may_change: Collection[str] = ()) -> Iterator[RunDirectory]:
    """The run directory that the first process claims for all of them, until all have left the context.

    Errors: as `RunDirectory.claim`, on every process.
    """
    with contextlib.ExitStack() as stack:
        held: list[RunDirectory] = []

        def claim() -> bool:
            held.append(stack.enter_context(RunDirectory.claim(path, config, may_change=may_change)))
            return held[0].fresh

        # A barrier before the first waits for a lease: gloo gives processes half a minute for their first exchange.
        decided(lambda: None)
        fresh = decided(claim)
        yield held[0] if held else RunDirectory(locate(path), fresh)
        decided(lambda: None)


def _told(message: bytes) -> bytes:
    """The message of the first process."""
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    # In whole blocks, since each length compiles another program.
    block = np.zeros(-(-length // _BLOCK) * _BLOCK, np.uint8)
    if primary():
        block[:length] = np.frombuffer(message, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(block), np.uint8)[:length].tobytes()
