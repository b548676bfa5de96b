"""A real Ray cluster: three nodes on loopback with a dashboard that asks for a token, in an environment of its own."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
from pathlib import Path

import httpx

from tests.servers.peers import peer
from tests.servers.process import Server, free_ports

RAY = ("ray[default]==2.60.0",)
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    # A dead node is noticed in two seconds, and a busy machine may be slow to start one.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_raylet_start_wait_time_s": "120",
}


class RayServer(Server):
    """One cluster: `address` and `token`. Drivers run on 127.0.0.2; the other nodes can be killed."""

    ready_s = 180

    def __init__(self) -> None:
        self.bin = peer("ray", *RAY)
        super().__init__()
        self.token = secrets.token_hex(32)
        self.port = self._agent = 0

    @property
    def address(self) -> str:
        return f"ray:http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        free = free_ports()
        self.port, self._agent = next(free), next(free)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        own = {"RAY_TMPDIR": str(self.folder), "RAY_AUTH_TOKEN": self.token, "HOME": str(self.folder)}
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "LANG": "C.UTF-8", **_ENVIRONMENT, **own}
        # -P: beside that file lies this one, whose name is Ray's.
        program = str(Path(__file__).with_name("ray_cluster.py"))
        command = [str(self.bin / "python"), "-P", program, str(self.port), str(self._agent)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.folder, env=environment
        )

    def ready(self) -> bool:
        # Jobs are taken by the agent of the head node, which comes last.
        with socket.create_connection((NODES[0], self._agent), timeout=1):
            return self.alive() == set(NODES)

    def alive(self) -> set[str]:
        """The addresses of the nodes that live, as the cluster knows."""
        try:
            told = httpx.get(
                f"http://127.0.0.1:{self.port}/api/v0/nodes",
                headers={"Authorization": f"Bearer {self.token}"},
                trust_env=False,
                timeout=10,
            )
            nodes = told.json()["data"]["result"]["result"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return set()
        return {node["node_ip"] for node in nodes if node["state"] == "ALIVE"}

    def tell(self, word: str, node: str) -> None:
        """`kill` a node as a power cut would, or `add` one."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {node}\n".encode())
        self._process.stdin.flush()

    def _remove(self) -> None:
        # Dozens of daemons, each with a polite end of its own; the folder goes anyway.
        mark = f"RAY_TMPDIR={self.folder}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
        process = self._process
        super()._remove()
        if process is not None and process.stdin is not None:
            process.stdin.close()
