"""Real Prometheus and its promtool, from Debian's package."""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.servers.process import Missing, Server, find_program, free_ports

_INSTALL = "Prometheus is missing: apt-get install prometheus, or run `make components` as root"


class PrometheusServer(Server):
    """One server over a configuration of its own; it forgets everything when it ends."""

    def __init__(self, config: Path) -> None:
        self._program, _ = programs()
        super().__init__()
        self.config, self.port = config, 0

    def prepare(self) -> None:
        self.port = next(free_ports())

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        command = [self._program, f"--config.file={self.config}", f"--storage.tsdb.path={self.folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}"]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/-/ready", trust_env=False, timeout=5).is_success
        except httpx.HTTPError:
            return False

    def ask(self, query: str) -> list[dict[str, Any]]:
        """What an expression gives now."""
        answer = httpx.get(
            f"http://127.0.0.1:{self.port}/api/v1/query", params={"query": query}, trust_env=False, timeout=10
        )
        found: list[dict[str, Any]] = json.loads(answer.text)["data"]["result"]
        return found


def programs() -> tuple[str, str]:
    """The paths of the server and of promtool; Missing if there is none."""
    try:
        return find_program("prometheus"), find_program("promtool")
    except Missing as missing:
        raise Missing(_INSTALL) from missing
