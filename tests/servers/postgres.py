"""A real PostgreSQL: its own cluster in a temporary folder, trusted connections on loopback."""

import os
import pwd
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.servers.process import Missing, Server, find_program, free_ports

_INSTALL = "PostgreSQL is missing: apt-get install postgresql (needs initdb and postgres on PATH)"


class PostgresServer(Server):
    """One cluster; data survives `restart()` and `kill()`. `settings` are server settings, such as max_connections."""

    # SIGTERM waits for every client to leave; SIGINT ends their sessions.
    stop_signal = signal.SIGINT

    def __init__(self, **settings: str) -> None:
        self._initdb, self._postgres = programs()
        super().__init__()
        self.port = 0
        # Without fsync a killed server still finds its writes in the page cache; only a dead machine would lose them.
        self._settings = {"listen_addresses": "127.0.0.1", "fsync": "off", "max_connections": "200"} | settings

    def prepare(self) -> None:
        self.port = next(free_ports())
        if (self.folder / "data").exists():
            return
        if os.geteuid() == 0:
            os.chown(self.folder, *pwd.getpwnam("postgres")[2:4])
        command = [self._initdb, "-D", "data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(command, check=True, capture_output=True, **self._as_owner())

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [self._postgres, "-D", "data", "-p", str(self.port), "-k", str(self.folder), *options]
        return subprocess.Popen(command, stdout=log, stderr=log, **self._as_owner())

    def ready(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Make an empty database with a name of its own, and return its URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def execute(self, statement: str | sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement)

    def _as_owner(self) -> dict[str, Any]:
        # PostgreSQL refuses to run as root.
        owner = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        return owner | {"cwd": self.folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}}


def programs() -> tuple[str, str]:
    """The paths of initdb and postgres, newest version first; Missing if there are none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda f: int(f.parent.name), reverse=True)
    try:
        return find_program("initdb", *folders), find_program("postgres", *folders)
    except Missing as missing:
        raise Missing(_INSTALL) from missing
