"""The real Triton Inference Server, from the wheel of PyTriton: what our server is compared with. It runs on the CPU.

Its processes load the libpython of the system, so its environment is made by the system's Python.
"""

import fcntl
import http.client
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.process import COMPONENTS, Missing, Server, free_ports

TRITON = ("nvidia-pytriton==0.7.0", "numpy<2.3")
PYTHON = Path("/usr/bin/python3.11")


def program() -> Path:
    """The Python that has it, installed on first use; Missing where it cannot be."""
    home = COMPONENTS / "peers" / "triton-0.7.0"
    if not PYTHON.is_file():
        raise Missing(f"{PYTHON} is missing: Triton's wheel runs with Debian's Python 3.11 only")
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").is_file():
            shutil.rmtree(home, ignore_errors=True)
            _install(home)
            (home / "ready").touch()
    return home / "bin" / "python"


def _install(home: Path) -> None:
    uv = [sys.executable, "-m", "uv"]
    for command in (
        [*uv, "venv", "-q", "--python", str(PYTHON), str(home)],
        [*uv, "pip", "install", "-q", "--python", str(home / "bin/python"), *TRITON],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"{TRITON[0]} cannot be installed: {done.stderr.strip()[-300:]}")


class TritonServer(Server):
    """One server with the models of a script that binds them (see tests/infer/triton_models.py)."""

    ready_s = 90

    def __init__(self, script: Path) -> None:
        self._program, self._script = program(), script
        super().__init__()
        self.port = 0

    def prepare(self) -> None:
        free = free_ports()
        self.port, self._grpc, self._metrics = next(free), next(free), next(free)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{self._program.parent}:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8",
            "PYTRITON_HOME": str(self.folder / "pytriton"),
        }  # fmt: skip
        ports = [str(one) for one in (self.port, self._grpc, self._metrics)]
        command = [str(self._program), str(self._script), *ports]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/v2/models/echo/ready")
            return connection.getresponse().status == 200
        finally:
            connection.close()
