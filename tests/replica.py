"""A real server for tests: `falaj up` in a process of its own, as users start it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import falaj
from tests.people import register_officer
from tests.servers.process import wait_until

FALAJ = [sys.executable, "-m", "falaj"]


class Replica:
    """One `falaj up`, alone or among several on one store. `token` is the admin's, of the first on a new store."""

    def __init__(
        self,
        home: Path,
        env: dict[str, str] | None = None,
        *,
        first: bool = True,
        tls: bool = False,
        listen: str = "127.0.0.1:0",
    ) -> None:
        command = [*FALAJ, "up", "--at", str(home), "--log", "ERROR", *(["--listen", listen] if listen else [])]
        command += ["--tls"] if tls else []
        self._ca = {"ca": str(home / "tls" / "ca.pem")} if tls else {}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.url = self.token = self.officer_code = ""
        self._open: list[Any] = []
        self._heard = threading.Event()
        self._first = first
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._heard.wait(60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.url = self.url or _found(r"https?://\S+", line)
            self.token = self.token or _found(r"fj_\w{16}_\S{43}", line)
            self.officer_code = self.officer_code or _found(r"fje_\w{16}_\S{43}", line)
            if self.url and (self.token or not self._first):
                self._heard.set()
        self._heard.set()

    def as_(self, token: str = "") -> Any:
        """The platform with this token, or the admin's."""
        platform = falaj.connect(self.url, token=token or self.token, **self._ca)
        self._open.append(platform)
        if self.officer_code:
            register_officer(platform, self.officer_code)
            self.officer_code = ""
        return platform

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, *exc: object) -> None:
        for platform in self._open:
            platform.close()
        self.kill()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def ready(command: Sequence[str], folder: Path | str, env: dict[str, str] | None = None) -> Iterator[None]:
    """A platform as a unit or a pod starts it, from the folder of its settings; ended as they end it."""
    said: list[str] = []
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        listening = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
        listening.start()
        try:
            wait_until(lambda: any("is ready at" in line for line in said) or process.poll() is not None, 90)
            assert process.poll() is None, said
            yield
        finally:
            process.terminate()
            process.wait(60)
            listening.join(10)


def _found(pattern: str, line: str) -> str:
    match = re.search(pattern, line)
    return match[0] if match else ""
