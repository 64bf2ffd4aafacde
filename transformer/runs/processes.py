"""One run on several processes: how they find one another, who decides, and how they end together.

A process learns of the others in one of these ways, the first that applies:

    the flags of launch.train      --coordinator=HOST:PORT --processes=N --process=I
    the environment                JAX_COORDINATOR_ADDRESS=HOST:PORT JAX_NUM_PROCESSES=N JAX_PROCESS_ID=I
                                   (Kubernetes, or any launcher; I counts from 0, HOST is where I is 0)
    Slurm                          srun with more than one task: SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS,
                                   SLURM_PROCID, SLURM_LOCALID
    Open MPI                       mpirun with more than one process: OMPI_MCA_orte_hnp_uri, OMPI_COMM_WORLD_SIZE ...
    a TPU pod                      what the TPU's own machine or GKE says (jax asks for it)

Every process runs the same program on the same data and makes the same programs in the same order. What one alone can
know (is the directory free, which checkpoint is the newest) the first decides for all.

They end together. A process that fails ends at once, without the farewell that jax would wait for; one that was killed,
or has stopped, is missed after `HEARTBEAT` seconds. Those that it leaves end with an error of the collective operation
that they were in, or are ended by jax, which says which process was lost. A process that lives but does not get on (its
data hang, say) is not missed: its heart beats, and the others wait.
"""

import contextlib
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
from transformer.storage import locate
from transformer.runs.directory import RunDirectory

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
    """Join the other processes of this run, before jax is used; False where there are none.

    `heartbeat` is after how many seconds of silence a process counts as lost.

    Errors: UserError for what is given by halves or cannot be.
    """
    if heartbeat < 1:
        raise UserError(f"--heartbeat={heartbeat} must be at least 1 second")
    settings: dict[str, Any] = {}
    flags = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    variables = {name: environment.get(name) or None for name in (ADDRESS, COUNT, INDEX)}
    if any(value is not None for value in flags.values()):
        settings = _explicit(flags)
    elif any(value is not None for value in variables.values()):
        settings = _explicit(variables)
    recognised = bool(settings) or _started_by_slurm(environment) or _started_by_mpi(environment)
    if not (recognised or _has_tpu(environment, files)):
        return False
    # It would take SIGTERM for a notice of preemption and live on; what a run goes on from is its last checkpoint.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(**settings, heartbeat_timeout_seconds=heartbeat)
    except ValueError:
        if recognised:
            raise
        return False  # a TPU that nothing says is part of a pod
    return True


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


def _started_by_slurm(environment: Mapping[str, str]) -> bool:
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    return all(name in environment for name in names) and int(environment["SLURM_NTASKS"]) > 1


def _started_by_mpi(environment: Mapping[str, str]) -> bool:
    return "OMPI_MCA_orte_hnp_uri" in environment and int(environment.get("OMPI_COMM_WORLD_SIZE", "1")) > 1


def _has_tpu(environment: Mapping[str, str], files: Path) -> bool:
    if environment.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu" or find_spec("libtpu") is None:
        return False
    return any(next(files.glob(pattern), None) for pattern in ("dev/accel*", "dev/vfio/[0-9]*"))


def primary() -> bool:
    """Whether this process is the first, which decides for all and writes what is written once."""
    return jax.process_index() == 0


def decided[T](decide: Callable[[], T]) -> T:
    """What `decide` returns on the first process, on all of them: it is called there alone. JSON must hold it.

    A UserError is raised on all of them; what else is raised ends the first process, and with it the others.
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
    """What `make` returns here, called on the first process before it is on the others.

    So the first can make files that the others then find. Errors: as `decided`.
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

        # All meet before one waits for a lease: gloo gives a process half a minute to come to the first exchange.
        decided(lambda: None)
        fresh = decided(claim)
        yield held[0] if held else RunDirectory(locate(path), fresh)
        decided(lambda: None)


def _told(message: bytes) -> bytes:
    """The message of the first process."""
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    # In whole blocks: another length is another program to compile.
    block = np.zeros(-(-length // _BLOCK) * _BLOCK, np.uint8)
    if primary():
        block[:length] = np.frombuffer(message, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(block), np.uint8)[:length].tobytes()
