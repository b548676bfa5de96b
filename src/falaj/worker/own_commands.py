"""The launcher's own commands: they bring code and inputs to a node before the attempt's processes start, and publish
its outputs after they ended.

They hold the attempt's token and run as the launcher's user, so nothing of the attempt's surroundings reaches them: the
launcher's own interpreter in isolated mode, variables of the launcher alone, a working folder that processes cannot
write to, and where the document has a profile for them (`own_sandbox`) a sandbox of their own. In it they see the
attempt's folder, write only to what they bring, and reach only the platform.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from falaj.core.errors import FalajError
from falaj.worker import child_processes
from falaj.worker.attempt_context import FOLDER_PLACEHOLDER, AttemptContext

WORK_FOLDER_NAME = "transfer"
"""The working folder of these commands, in the attempt's folder."""
_EXIT_TRY_AGAIN = 75
_COPIED_VARIABLES = (
    "FALAJ_CA", "FALAJ_URL", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "NO_PROXY", "PATH",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ", "https_proxy", "http_proxy", "no_proxy",
)  # fmt: skip
"""What these commands find of the launcher's own environment, beside its token."""


class LauncherCommands:
    """Commands that run one after another until one fails, in a process forked before the attempt's own sandbox is
    built: the launcher's later children are inside it, and these must not be."""

    def __init__(self, commands: Sequence[Sequence[str]], context: AttemptContext, slot: int, log_path: str) -> None:
        """`commands` are words after the interpreter; `log_path` is where they complain."""
        self._commands, self._context, self._slot, self._log_path = commands, context, slot, log_path
        self._work_folder = f"{context.folder}/{WORK_FOLDER_NAME}"
        self.pid, self._start_pipe = 0, -1

    def fork(self, writable: Sequence[str] = ()) -> None:
        """Have the process that will run them wait. `writable` are the folders that they fill."""
        if not self._commands:
            return
        start_read, self._start_pipe = os.pipe()
        launcher_pid = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(start_read)
            return
        exit_code = child_processes.NOT_EXECUTABLE
        try:
            # What the launcher holds open is no business of ours: pipes to others who wait would never close.
            for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, start_read}:  # noqa: PTH208
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(fd)
            child_processes.initialize_child(launcher_pid)
            encoded_environment = _read_all(start_read)
            exit_code = self._run_all(json.loads(encoded_environment), writable) if encoded_environment else 0
        finally:
            os._exit(exit_code)

    def start(self, launcher_env: Mapping[str, str]) -> int:
        """Let them run; gives the process to wait for, 0 where there is no command. `launcher_env` is the environment
        that the launcher itself was started with."""
        if not self.pid:
            return 0
        environment = {name: launcher_env[name] for name in _COPIED_VARIABLES if launcher_env.get(name)}
        environment |= {
            name: os.environ[name] for name in ("FALAJ_TOKEN",) if name in os.environ
        }  # the carrier renews it
        if traceparent := self._context.env.get("FALAJ_TRACEPARENT", ""):
            environment["FALAJ_TRACEPARENT"] = traceparent
        # By these an executor finds what a dead launcher left.
        environment |= {"FALAJ_ATTEMPT": self._context.attempt, "FALAJ_SLOT": str(self._slot)}
        with contextlib.suppress(BrokenPipeError):  # it was killed, which is seen when it is waited for
            os.write(
                self._start_pipe,
                json.dumps({**environment, "HOME": self._work_folder, "TMPDIR": self._work_folder}).encode(),
            )
        os.close(self._start_pipe)
        pid, self.pid = self.pid, 0
        return pid

    def dismiss(self) -> None:
        """They are not needed any more."""
        if self.pid:
            os.close(self._start_pipe)
            with contextlib.suppress(ChildProcessError):  # it was killed, and seen
                os.waitpid(self.pid, 0)
            self.pid = 0

    def _run_all(self, environment: Mapping[str, str], writable: Sequence[str]) -> int:
        child_processes.redirect_output(self._log_path)
        try:
            Path(self._work_folder).mkdir(0o700, exist_ok=True)
            for command_words in self._commands:
                command = (
                    sys.executable,
                    "-I",
                    *(word.replace(FOLDER_PLACEHOLDER, self._context.folder) for word in command_words),
                )
                if exit_code := self._run_command(command, environment, writable):
                    return exit_code
        except (FalajError, OSError) as error:
            os.write(2, f"falaj: {error}\n".encode())
            return _EXIT_TRY_AGAIN
        return 0

    def _run_command(self, command: Sequence[str], environment: Mapping[str, str], writable: Sequence[str]) -> int:
        if not self._context.own_sandbox:
            return _wait_for_exit(
                child_processes.start_child(command, environment, self._work_folder, "", is_muted=True)
            )
        from falaj.worker.sandbox import Sandbox, read_sandbox_profile

        profile = read_sandbox_profile(self._context.own_sandbox)._replace(writable=tuple(writable), apart=True)
        sandbox = Sandbox(profile, Path(self._context.folder), self._slot, f"{self._work_folder}/outbox")
        sandbox.work = self._work_folder
        # A process for each: the namespaces are its own, and end with it.
        parent = os.getpid()
        middle_pid = os.fork()
        if middle_pid:
            return _wait_for_exit(middle_pid)
        exit_code = _EXIT_TRY_AGAIN
        try:
            child_processes.initialize_child(parent)
            sandbox.build()
            sandbox_environment = sandbox.environment(environment) | {
                "HOME": self._work_folder,
                "TMPDIR": self._work_folder,
            }
            exit_code = _wait_for_exit(
                child_processes.start_child(
                    command,
                    {**environment, **sandbox_environment},
                    self._work_folder,
                    "",
                    is_muted=True,
                    enter_folder=sandbox.enter,
                )
            )
            sandbox.end()
        except FalajError as error:
            os.write(2, f"falaj: {error}\n".encode())
        finally:
            os._exit(exit_code)


def _wait_for_exit(pid: int) -> int:
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return exit_code if exit_code >= 0 else 128 - exit_code


def _read_all(fd: int) -> bytes:
    data = b""
    while part := os.read(fd, 1 << 16):
        data += part
    return data
