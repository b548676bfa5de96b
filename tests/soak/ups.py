"""One `falaj up` that is started again and again on the same home and port, with a clock of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from tests.servers.process import free_ports, wait_until
from tests.soak.clock import Clock

READY_S = 90.0
"""So long after a fault has ended may it take until everything answers again, on a machine that others use, too."""


class Up:
    """`start`, then any of `kill`, `pause`, `stop`. What it says is in a file."""

    def __init__(self, home: Path, env: Mapping[str, str], clock: Clock, log: Path) -> None:
        ports = free_ports()
        self.port, self.gateway = next(ports), next(ports)
        self.clock, self._home, self._log = clock, home, log
        own = {"FALAJ_GATEWAY": f"127.0.0.1:{self.gateway}", "FALAJ_GATEWAY_GRPC": ""}
        plain = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
        self._env = {**plain, **env, **own, **clock.env}
        self.process: subprocess.Popen[bytes] | None = None
        self.bearer = ""
        """Who asks whether it is ready; nobody before there is anybody."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process; 0 while there is none."""
        return self.process.pid if self.process is not None and self.process.poll() is None else 0

    def start(self) -> None:
        """Start it; it is ready when `ready` says so."""
        words = ["up", "--at", str(self._home), "--listen", f"127.0.0.1:{self.port}", "--log", "WARNING"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "falaj", *words], env=self._env, stdout=log, stderr=log
            )

    def ready(self) -> bool:
        """Whether it and all its dependencies answer; before there is a token, whether it answers."""
        path = "/status" if self.bearer else "/ready"
        headers = {"authorization": f"Bearer {self.bearer}"} if self.bearer else {}
        try:
            answer = httpx.get(f"{self.url}{path}", headers=headers, timeout=5, trust_env=False)
        except httpx.HTTPError:
            return False
        if not self.bearer:
            return answer.status_code in (200, 401)
        dependencies = answer.json()["dependencies"] if answer.status_code == 200 else []
        return bool(dependencies) and all(dependency["answers"] for dependency in dependencies)

    def await_ready(self, deadline_s: float = READY_S) -> float:
        """How long it took; started again where it ended by itself, as whoever keeps services does."""
        began = time.monotonic()

        def look() -> bool:
            if not self.pid:
                self.start()
            return self.ready()

        wait_until(look, deadline_s)
        return time.monotonic() - began

    def token(self) -> str:
        """The admin's, which the first start on a new store says."""
        found = re.search(r"fj_\w{16}_\S{43}", self._log.read_text())
        return found[0] if found else ""

    def kill(self) -> None:
        """kill -9."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self, deadline_s: float = 60.0) -> int:
        """End it politely; its exit code."""
        if self.process is None:
            return 0
        self._signal(signal.SIGTERM)
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.pid:
            os.kill(self.pid, number)
