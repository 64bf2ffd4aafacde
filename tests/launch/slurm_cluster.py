"""A real Slurm cluster on this machine: its controller, and two nodes with a GPU each that is none.

Each node is a slurmd in its own UTS and mount namespaces, where it has its own host name and an /etc/hosts that knows
both nodes; nothing of the machine's own configuration is read or changed. It needs root, `slurm-wlm` and `munge`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NODES = ("node1", "node2")
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel", "scontrol", "squeue", "unshare")
KILL_WAIT, GRACE_TIME, NODE_TIMEOUT = 5, 60, 20  # seconds
CONFIGURATION = """\
ClusterName=headwise
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A job that is queued again waits for its old credential to expire.
AuthInfo=socket={folder}/munge.socket,cred_expire=10
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout={node_timeout}
SchedulerParameters=bf_interval=2,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=node1 NodeAddr=127.0.0.1 Port={first} CPUs=8 Gres=gpu:1
NodeName=node2 NodeAddr=127.0.0.1 Port={second} CPUs=8 Gres=gpu:1
PartitionName=low Nodes=node1,node2 Default=YES PriorityTier=1
PartitionName=graced Nodes=node1,node2 PriorityTier=1 GraceTime={grace_time}
PartitionName=high Nodes=node1,node2 PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Why no cluster can be started here; None if one can."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} missing: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "the daemons of Slurm need root"
    tried = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, check=False)
    return "no namespaces here" if tried.returncode else None


class SlurmCluster:
    """A cluster that runs, and its daemons' folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._munged: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        ports = dict(zip(("port", "first", "second"), _free_ports(3), strict=True))
        times = {"kill_wait": KILL_WAIT, "grace_time": GRACE_TIME, "node_timeout": NODE_TIMEOUT}
        configuration = CONFIGURATION.format(host=socket.gethostname(), folder=self.folder, **ports, **times)
        (self.folder / "slurm.conf").write_text(configuration)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        (self.folder / "hosts").write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(NODES)}\n")
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        paths = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        words = [f"--{flag}={self.folder / path}" for flag, path in paths.items()]
        # In a folder of all users munged starts by --force alone, and says so.
        self._munged = subprocess.Popen(
            ["munged", "--foreground", "--force", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.wait(lambda: (self.folder / "munge.socket").exists(), "munged", 30)
        subprocess.run(["slurmctld", "-c", "-i"], env=self.environment, check=True, capture_output=True)
        for node in NODES:
            self.start_node(node)
        self.wait(lambda: self.say("sinfo", "--noheader", "--format=%T").split() == ["idle"], "idle nodes", 60)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        hosts = self.folder / "hosts"
        script = f"hostname {node} && mount --bind '{hosts}' /etc/hosts && exec slurmd -c -N {node}"
        words = ["unshare", "--uts", "--mount", "sh", "-c", script]
        subprocess.run(words, env=self.environment, check=True, capture_output=True)

    def lose_node(self, node: str) -> None:
        """Kill everything on a node, as if its power went."""
        daemon = int((self.folder / f"{node}.pid").read_text())
        name = os.readlink(f"/proc/{daemon}/ns/uts")
        for _ in range(2):  # what was started meanwhile
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns" / "uts") == name:
                        os.kill(int(entry.name), signal.SIGKILL)

    def stop(self) -> None:
        """End all daemons and what they run."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            self.say("scancel", "--user=root", "--signal=KILL", "--full")
        for node in NODES:
            with contextlib.suppress(OSError, ValueError):
                self.lose_node(node)
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / "slurmctld.pid").read_text()), signal.SIGKILL)
        if self._munged is not None:
            self._munged.kill()
            self._munged.wait()

    def say(self, *words: str) -> str:
        """Call a tool of Slurm and return what it prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout

    def state(self, job: str) -> dict[str, str]:
        """What the controller says of a job."""
        shown = self.say("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in shown if "=" in word)

    def wait_for(self, job: str, state: str, seconds: float) -> dict[str, str]:
        """Wait for a job's state."""
        self.wait(lambda: self.state(job)["JobState"] == state, f"{job} {state}", seconds)
        return self.state(job)

    def wait(self, met: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until something is so."""
        until = time.monotonic() + seconds
        while not met():
            if time.monotonic() > until:
                queue = self.say("squeue") if what != "munged" else ""
                log = self.folder / "slurmctld.log"
                tail = "\n".join(log.read_text().splitlines()[-20:]) if log.exists() else ""
                raise AssertionError(f"after {seconds:g} s still no {what}:\n{queue}\n{tail}")
            time.sleep(0.2)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster while the context lasts."""
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
