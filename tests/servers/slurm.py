"""A real Slurm: munged, slurmctld and two slurmd of their own, all from one folder and on loopback."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.servers.process import Missing, Server, find_program, free_ports, wait_until

_INSTALL = "Slurm is missing: apt-get install slurm-wlm munge"
_SBIN = Path("/usr/sbin")
NODES = ("n1", "n2")

# Preemption between partitions, two GPUs that are files, and nothing that needs cgroups or a database.
_CONF = """\
ClusterName=falaj
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctld}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=5
SlurmctldTimeout=2
KillWait=5
MinJobAge={min_job_age}
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=DEFAULT CPUs=4 CoresPerSocket=4 RealMemory=2000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} Gres=gpu:a100:2 Feature=rack1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} Feature=rack2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 DefaultTime=10 PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=60 DefaultTime=10 PriorityTier=10
"""
_GRES = "NodeName=n1 Name=gpu Type=a100 File=/dev/null\nNodeName=n1 Name=gpu Type=a100 File=/dev/zero\n"


class SlurmServer(Server):
    """One cluster of two nodes: `conf` is its slurm.conf. `kill()` ends the controller, `kill_node` a node."""

    def __init__(self, min_job_age: int = 300) -> None:
        self._programs = programs()
        super().__init__()
        self._min_job_age = min_job_age
        self._munge: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        # Jobs run as other users, who must be able to come here.
        self.folder.chmod(0o755)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def address(self) -> str:
        return f"slurm:?conf={self.conf}"

    def prepare(self) -> None:
        for node in tuple(self._nodes):
            self.kill_node(node)
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o600)
        ports = dict(zip(("ctld", *NODES), free_ports(), strict=False))
        said = {"host": socket.gethostname().partition(".")[0], "folder": self.folder, "min_job_age": self._min_job_age}
        self.conf.write_text(_CONF.format_map(said | ports))
        (self.folder / "gres.conf").write_text(_GRES)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        if self._munge is None:
            self._munge = self._start_munge(log)
        controller = subprocess.Popen(
            [self._programs["slurmctld"], "-D", "-f", str(self.conf)], stdout=log, stderr=log, cwd=self.folder
        )
        for node in NODES:
            if node not in self._nodes:
                self.start_node(node)
        return controller

    def ready(self) -> bool:
        done = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        return done.stdout.split() == ["idle", "idle"] or "alloc" in done.stdout

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's own commands against this cluster."""
        environment = os.environ | {"SLURM_CONF": str(self.conf)}
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)

    def start_node(self, node: str) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [self._programs["slurmd"], "-D", "-N", node, "-f", str(self.conf)]
            # Its step daemons inherit where it stands: that is how `kill_node` knows them.
            spool = self.folder / f"spool-{node}"
            self._nodes[node] = subprocess.Popen(command, stdout=log, stderr=log, cwd=spool)

    def kill_node(self, node: str) -> None:
        """End a node as a power cut would: its daemon, its step daemons and all they started."""
        daemon = self._nodes.pop(node)
        daemon.kill()
        daemon.wait()
        for pid in _steps(self.folder / f"spool-{node}"):
            for child in (*_descendants(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def lose_node(self, node: str) -> None:
        """Kill it, and say so as the site's own watch would: Slurm alone needs half a minute to find out."""
        self.kill_node(node)
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=dead")

    def bring_back(self, node: str) -> None:
        self.start_node(node)
        self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_until(self.ready, self.ready_s)

    def _remove(self) -> None:
        for node in tuple(self._nodes):
            self.kill_node(node)
        self.kill()
        if self._munge is not None:
            self._munge.kill()
            self._munge.wait()
            self._munge = None
        super()._remove()

    def _start_munge(self, log: int) -> subprocess.Popen[bytes]:
        where = self.folder / "munge"
        options = [f"--{name}-file={where / name}" for name in ("key", "pid", "log", "seed")]
        command = [self._programs["munged"], "--foreground", "--force", f"--socket={where / 'socket'}", *options]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)


def programs() -> dict[str, str]:
    """The paths of the daemons; Missing if one is not installed."""
    try:
        return {name: find_program(name, _SBIN) for name in ("munged", "slurmctld", "slurmd")}
    except Missing as missing:
        raise Missing(_INSTALL) from missing


def _steps(spool: Path) -> list[int]:
    """The step daemons of one node, by where they stand."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text().startswith("slurmstepd") and (entry / "cwd").readlink() == spool:
                found.append(int(entry.name))
    return found


def _descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                found += [*_descendants(int(child)), int(child)]
    return found


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every user can reach, as the shared file system of a site is."""
    made = Path("/tmp") / f"falaj-shared-{uuid.uuid4().hex[:8]}"
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)
