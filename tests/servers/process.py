"""The life of a server process: start, wait until it answers, stop, kill, start again on the same data and port."""

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self

COMPONENTS = Path(__file__).parents[2] / ".components"


class Missing(Exception):
    """A component is not installed; the message says what to install."""


class Failed(Exception):
    """A server ended or did not answer in time; the message carries the end of its log."""


class Server:
    """One process and its folder. A subclass says which command to run and when it is ready."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    stop_s: ClassVar[float] = 10
    ready_s: ClassVar[float] = 60

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"falaj-{type(self).__name__.lower()}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Make what the server needs before its first start; choose ports."""

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        """Start the process with its output going to the file descriptor `log`."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the server answers; may raise OSError while it does not."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise Failed(f"{type(self).__name__} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start and wait until the server answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = self.launch(log.fileno())
        try:
            wait_until(self._answers, self.ready_s)
        except TimeoutError as late:
            self.kill()
            raise Failed(f"{type(self).__name__} did not answer in {self.ready_s:.0f} s\n{self.log_tail()}") from late

    def stop(self) -> None:
        """End the process politely, then by force; no process is no error."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the process as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop if running, and start again with the same data, address and port."""
        self.stop()
        self.start()

    def log_tail(self, num_lines: int = 30) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def __enter__(self) -> Self:
        # Another process may take a port between the moment it was found free and the moment it is bound.
        for last_try in (False, False, True):
            try:
                self.prepare()
                self.start()
            except Failed:
                if last_try:
                    self._remove()
                    raise
            except BaseException:
                self._remove()
                raise
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        process = self._process
        if process is not None and process.poll() is not None:
            raise Failed(f"{type(self).__name__} ended with status {process.returncode}\n{self.log_tail()}")
        with contextlib.suppress(OSError):
            return self.ready()
        return False

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(with_signal)
            try:
                process.wait(self.stop_s)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def wait_until(answers: Callable[[], bool], deadline_s: float) -> None:
    """Poll `answers` until it is true; TimeoutError after `deadline_s`."""
    end = time.monotonic() + deadline_s
    pause_s = 0.01
    while not answers():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.25)


def free_ports(*companions: int) -> Iterator[int]:
    """Ports of 127.0.0.1 that nobody uses, each once; with each port P, P + companion is free as well."""
    # Below the kernel's range for outgoing connections, so that no client socket takes one meanwhile.
    candidates = list(range(11000, 22000))
    random.shuffle(candidates)
    for port in candidates:
        if all(_bindable(port + offset) for offset in (0, *companions)):
            yield port
    raise Failed("no free port on 127.0.0.1")


def listens(port: int) -> bool:
    """Whether something accepts connections on 127.0.0.1:`port`."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def find_program(name: str, *folders: Path) -> str:
    """The path of a program on PATH or in one of `folders`; Missing if there is none."""
    found = shutil.which(name) or next((str(f / name) for f in folders if (f / name).is_file()), None)
    if found is None:
        raise Missing(name)
    return found


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
