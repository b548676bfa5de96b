"""One launcher under test: a real process on a folder, with the files it leaves."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falaj.core.outbox import read_outbox
from tests.servers.process import wait_until

NURSERY = [sys.executable, "-c", "from falaj.worker.fork_server import main; raise SystemExit(main())"]


def framed(request: Mapping[str, object]) -> bytes:
    """A request as a nursery reads it."""
    data = json.dumps(request).encode()
    return len(data).to_bytes(4, "big") + data


class SlotUnderTest:
    """Started at once; `end()` waits for it and gives what it wrote into its exit file."""

    def __init__(
        self, folder: Path, *command: str, env: dict[str, str] | None = None, slot: int = 0, **more: Any
    ) -> None:
        self.folder = folder
        slots = more.pop("slots", [{"index": 0, "node": "n", "processes": more.pop("processes", 1)}])
        document = {"attempt": "a-1", "job": "job:p/n", "command": list(command), "slots": slots, "folder": str(folder)}
        (folder / "context.json").write_text(json.dumps(document | {"telemetry_s": 0, "grace_s": 5} | more))
        self.slot = slot
        self.process = self.launch(env)

    def launch(self, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "falaj.worker", str(self.folder / "context.json"), str(self.slot)]
        return subprocess.Popen(words, env=os.environ | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def says(self, text: str, name: str = "slot-0.log") -> None:
        wait_until(lambda: text in self.log(name), 20)

    def log(self, name: str = "slot-0.log") -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text()
        return ""

    def end(self) -> dict[str, Any]:
        said = self.process.communicate(timeout=30)[0]
        assert self.process.returncode >= 0, said
        how: dict[str, Any] = json.loads((self.folder / f"slot-{self.slot}.exit").read_text())
        assert how["code"] == self.process.returncode
        return how

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def facts(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in read_outbox(self.folder / "outbox")[0] if fact["kind"] == kind]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(*pids: int) -> None:
    """Wait until none of these lives."""
    wait_until(lambda: not any(lives(pid) for pid in pids), 20)
