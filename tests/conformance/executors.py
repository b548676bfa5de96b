"""The executors the suite is asked of. Another one is a function that opens it, and a line in EXECUTORS.

A Lab is one executor with a cluster behind it, and the few things that are different on each.
"""

import contextlib
import itertools
import os
import pwd
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.process import ProcessExecutor
from falaj.backends.ray import RayExecutor
from falaj.backends.slurm import SlurmExecutor
from falaj.core.executor import FINISHED_PHASES, Attempt, AttemptStatus, Executor, Slot
from falaj.worker.attempt_context import build_document
from falaj.worker.launcher_archive import get_launcher_archive
from tests.servers.kube_cluster import KubeCluster
from tests.servers.process import Missing, wait_until
from tests.servers.ray import RayServer
from tests.servers.slurm import SlurmServer

_NUMBER = itertools.count(1)


@dataclass
class Lab:
    """What the suite needs to know of one executor."""

    executor: Executor
    nodes: tuple[str, ...]
    """Names of at least two nodes, as `capacity` gives them."""
    folder: Callable[[str], str] = lambda _: ""
    """Where the folder of an attempt lies, for executors that share one with us; nothing for others."""
    lose: Callable[[str], None] | None = None
    """Make the node, or whatever runs slot 0 of a handle, vanish without a word."""
    reopen: Callable[[], Executor] | None = None
    """Another executor on the same cluster, as after a restart of the platform."""
    patience_s: float = 15.0
    """How long anything may take."""
    amounts: Mapping[str, int] = field(default_factory=lambda: {"cpu": 500, "memory": 128})
    python: str = "python3"
    options: Mapping[str, str] = field(default_factory=dict)

    def attempt(self, *command: str, slots: int = 1, processes: int = 1, **more: Any) -> Attempt:
        """An attempt of a command of this many slots, one to a node, with an id of its own."""
        name = f"t{os.getpid()}-{next(_NUMBER)}"
        places = [Slot(at, self.nodes[at], amounts=self.amounts, processes=processes) for at in range(slots)]
        facts = {key: more.pop(key) for key in ("stage", "after", "telemetry_s", "inputs") if key in more}
        bare = Attempt(name, "job:lab/test", "lab", "lab", tuple(places), command, **more)
        known = replace(
            bare, folder=self.folder(name), options=self.options | bare.options, launcher=get_launcher_archive()
        )
        return replace(known, context=build_document(known, **({"telemetry_s": 0} | facts)))

    def status(self, handle: str) -> AttemptStatus:
        (status,) = self.executor.poll([handle])
        return status

    def until(self, handle: str, *phases: str) -> AttemptStatus:
        """Its status once its phase is one of these (over, when none is named)."""
        wanted = phases or tuple(FINISHED_PHASES)
        seen: list[AttemptStatus] = []

        def there() -> bool:
            seen[:] = [self.status(handle)]
            return seen[0].phase in wanted

        try:
            wait_until(there, self.patience_s)
        except TimeoutError:
            pytest.fail(f"{handle} is not {wanted} but {seen[0]}; it said {self.lines(handle)}")
        return seen[0]

    def says(self, handle: str, text: str, slot: int = 0) -> None:
        """Wait until a slot has written a line with this text."""
        wait_until(lambda: any(text in line for line in self.lines(handle, slot)), self.patience_s)

    def lines(self, handle: str, slot: int = 0) -> list[str]:
        return list(self.executor.logs(handle, slot).lines)


@dataclass(frozen=True)
class Entry:
    """How to open an executor, and what of the suite it does not do: name of a test, and why."""

    open: Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Lab]]
    gaps: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[pytest.MarkDecorator, ...] = ()


@contextlib.contextmanager
def _process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    del request
    url = f"process:{tmp_path}/attempts?nodes=2&cpus=2000&memory=2048&gpus=4&model=H100"

    def lose(handle: str) -> None:
        pid = (tmp_path / handle / "slot-0.pid").read_text().split('"pid": ')[1].split(",")[0]
        os.kill(int(pid), signal.SIGKILL)

    def folder(name: str) -> str:
        return str(tmp_path / name)

    executor = ProcessExecutor(url, {})
    names = tuple(node.name for node in executor.capacity())
    yield Lab(executor, names, folder, lose, lambda: ProcessExecutor(url, {}))
    executor.close()


@contextlib.contextmanager
def _slurm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    server: SlurmServer = request.getfixturevalue("slurm_server")
    options = {"user": pwd.getpwuid(os.geteuid()).pw_name}

    def lose(handle: str) -> None:
        del handle
        server.lose_node("n1")
        request.addfinalizer(lambda: server.bring_back("n1"))

    def folder(name: str) -> str:
        return str(tmp_path / name)

    def reopen() -> SlurmExecutor:
        return SlurmExecutor(server.address, options)

    yield Lab(reopen(), ("n1", "n2"), folder, lose, reopen, patience_s=60)


@contextlib.contextmanager
def _ray(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    server: RayServer = request.getfixturevalue("ray_server")
    token = tmp_path / "token"
    token.write_text(server.token)

    def bring_back() -> None:
        server.tell("add", "127.0.0.3")
        wait_until(server.ready, server.ready_s)

    def lose(handle: str) -> None:
        del handle
        request.addfinalizer(bring_back)
        server.tell("kill", "127.0.0.3")

    def reopen() -> RayExecutor:
        return RayExecutor(server.address, {"token": f"file:{token}"})

    lab = Lab(reopen(), ("127.0.0.3", "127.0.0.4"), lose=lose, reopen=reopen, patience_s=60)
    yield lab
    lab.executor.close()


@contextlib.contextmanager
def _kubernetes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    del request, tmp_path
    try:
        cluster = KubeCluster()
    except Missing as missing:
        pytest.skip(str(missing))
    assert cluster.kubelets is not None
    kubelets = cluster.kubelets
    lab = Lab(cluster.executor(), ("n1", "n2"), lose=lambda _: kubelets.lose("n1"), reopen=cluster.executor)
    yield lab
    lab.executor.close()
    cluster.close()


EXECUTORS: dict[str, Entry] = {
    "process": Entry(_process),
    "slurm": Entry(_slurm),
    "ray": Entry(_ray, marks=(pytest.mark.slow,)),
    "kubernetes": Entry(_kubernetes),
}
