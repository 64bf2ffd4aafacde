"""Which launcher started this process as one of several, as its environment says; what jax is to be told of it."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from transformer.config import UserError

_OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_ORTE = "OMPI_MCA_orte_hnp_uri"  # the address of mpirun, up to Open MPI 4
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_GKE_HOSTS, _GKE_INDEX = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"
_ALONE = "or --processes=1 to train alone"


class Launcher(NamedTuple):
    """One that jax cannot join by itself, and the variables in which it says how many processes and which this is."""

    name: str
    size: str
    rank: str


OTHERS = (
    Launcher("MPICH, Intel MPI or another launcher with PMI", "PMI_SIZE", "PMI_RANK"),
    Launcher("MVAPICH2", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    Launcher("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    Launcher("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    Launcher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    Launcher("torchrun", "WORLD_SIZE", "RANK"),
    Launcher("Kubeflow", "NUM_PROCESSES", "PROCESS_ID"),
)
# Launchers that say which process this is, and not always of how many.
RANKS = {"PMIX_RANK": "a launcher with PMIx", "PALS_RANKID": "Cray PALS", "ALPS_APP_PE": "Cray ALPS"}


def joined_by(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The arguments of jax.distributed.initialize for a launcher that jax can join; None for others and for none.

    Errors: UserError for Open MPI 5 or newer without an mpi4py that works with it.
    """
    if all(name in environment for name in _OPEN_MPI) and _number(environment, _OPEN_MPI[0]) > 1:
        return {"cluster_detection_method": "mpi4py" if _by_mpi4py(environment) else "ompi"}
    if all(name in environment for name in _SLURM) and _number(environment, "SLURM_NTASKS") > 1:
        return {"cluster_detection_method": "slurm"}
    return None


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Refuse to train alone in a process that something has started as one of several.

    Errors: UserError naming the launcher, and the flags that join the processes.
    """
    for name, size, rank in OTHERS:
        if size in environment and rank in environment and (count := _number(environment, size)) > 1:
            raise UserError(
                f"{name} started this process as number {environment[rank]} of {count} ({size}, {rank}), and does "
                "not say where the first is: give "
                f"--coordinator=HOST:PORT --processes=${size} --process=${rank}, {_ALONE}"
            )
    hosts = environment.get(_GKE_HOSTS, "").split(",")
    if len(hosts) > 1:
        raise UserError(
            f"{_GKE_HOSTS} names {len(hosts)} hosts, and jax finds no TPU here (is libtpu installed, and JAX_PLATFORMS "
            f"not cpu?): give --coordinator={hosts[0]}:8482 --processes={len(hosts)} --process=${_GKE_INDEX}, {_ALONE}"
        )
    sizes = {_OPEN_MPI[0], *(launcher.size for launcher in OTHERS)}
    for rank, name in RANKS.items():
        if rank in environment and not sizes & set(environment):
            raise UserError(
                f"{name} started this process as number {environment[rank]} ({rank}), and does not say of how many: "
                f"give --coordinator=HOST:PORT --processes=N --process=${rank}, {_ALONE}"
            )


def _by_mpi4py(environment: Mapping[str, str]) -> bool:
    """Whether the processes of Open MPI find each other by mpi4py: from version 5 on, nothing else says where they are.

    Errors: as `joined_by`.
    """
    version = environment.get("OMPI_VERSION", "").partition(".")[0]
    if not (int(version) >= 5 if version.isdecimal() else _ORTE not in environment):
        return False
    count = _number(environment, _OPEN_MPI[0])
    given = f"give --coordinator=HOST:PORT --processes=${_OPEN_MPI[0]} --process=${_OPEN_MPI[1]}, {_ALONE}"
    if find_spec("mpi4py") is None:
        raise UserError(
            f"Open MPI started {count} processes, which find each other by mpi4py, and it is not installed: "
            f"pip install mpi4py; or {given}"
        )
    from mpi4py import MPI

    # One that was built for another MPI takes each process for the only one.
    if MPI.COMM_WORLD.Get_size() != count:
        raise UserError(
            f"Open MPI started {count} processes, and mpi4py sees {MPI.COMM_WORLD.Get_size()}: it uses another MPI "
            f"({' '.join(MPI.Get_library_version().split())[:60]}); build it with this one: "
            f"pip install --force-reinstall --no-binary=mpi4py mpi4py; or {given}"
        )
    return True


def _number(environment: Mapping[str, str], name: str) -> int:
    """Errors: UserError for a variable that is no number of processes."""
    if not environment[name].isdecimal():
        raise UserError(
            f"{name}={environment[name]} in the environment is no number of processes: unset it or correct it"
        )
    return int(environment[name])
