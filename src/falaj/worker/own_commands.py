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
from falaj.worker import family
from falaj.worker.context import FOLDER, Context

WORK = "transfer"
"""The working folder of these commands, in the attempt's folder."""
_TRY_AGAIN = 75
_VARIABLES = (
    "FALAJ_CA", "FALAJ_URL", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "NO_PROXY", "PATH",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ", "https_proxy", "http_proxy", "no_proxy",
)  # fmt: skip
"""What these commands find of the launcher's own environment, beside its token."""


class OwnCommands:
    """Commands that run one after another until one fails, in a process forked before the attempt's own sandbox is
    built: the launcher's later children are inside it, and these must not be."""

    def __init__(self, commands: Sequence[Sequence[str]], context: Context, slot: int, log: str) -> None:
        """`commands` are words after the interpreter; `log` is where they complain."""
        self._commands, self._context, self._slot, self._log = commands, context, slot, log
        self._work = f"{context.folder}/{WORK}"
        self.pid, self._start_pipe = 0, -1

    def fork(self, writable: Sequence[str] = ()) -> None:
        """Have the process that will run them wait. `writable` are the folders that they fill."""
        if not self._commands:
            return
        start_signal, self._start_pipe = os.pipe()
        launcher = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(start_signal)
            return
        code = family.NOT_EXECUTABLE
        try:
            # What the launcher holds open is no business of ours: pipes to others who wait would never close.
            for file in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, start_signal}:  # noqa: PTH208
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(file)
            family.settle(launcher)
            env = _read_all(start_signal)
            code = self._run_all(json.loads(env), writable) if env else 0
        finally:
            os._exit(code)

    def start(self, launcher_env: Mapping[str, str]) -> int:
        """Let them run; gives the process to wait for, 0 where there is no command. `launcher_env` is the environment
        that the launcher itself was started with."""
        if not self.pid:
            return 0
        env = {name: launcher_env[name] for name in _VARIABLES if launcher_env.get(name)}
        env |= {name: os.environ[name] for name in ("FALAJ_TOKEN",) if name in os.environ}  # the carrier renews it
        if trace := self._context.env.get("FALAJ_TRACEPARENT", ""):
            env["FALAJ_TRACEPARENT"] = trace
        # By these an executor finds what a dead launcher left.
        env |= {"FALAJ_ATTEMPT": self._context.attempt, "FALAJ_SLOT": str(self._slot)}
        with contextlib.suppress(BrokenPipeError):  # it was killed, which is seen when it is waited for
            os.write(self._start_pipe, json.dumps({**env, "HOME": self._work, "TMPDIR": self._work}).encode())
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

    def _run_all(self, env: Mapping[str, str], writable: Sequence[str]) -> int:
        family.write_to(self._log)
        try:
            Path(self._work).mkdir(0o700, exist_ok=True)
            for words in self._commands:
                command = (sys.executable, "-I", *(word.replace(FOLDER, self._context.folder) for word in words))
                if code := self._run(command, env, writable):
                    return code
        except (FalajError, OSError) as error:
            os.write(2, f"falaj: {error}\n".encode())
            return _TRY_AGAIN
        return 0

    def _run(self, command: Sequence[str], env: Mapping[str, str], writable: Sequence[str]) -> int:
        if not self._context.own_sandbox:
            return _ended(family.start(command, env, self._work, "", mute=True))
        from falaj.worker.cage import Cage, told_in

        profile = told_in(self._context.own_sandbox)._replace(writable=tuple(writable), apart=True)
        sandbox = Cage(profile, Path(self._context.folder), self._slot, f"{self._work}/outbox")
        sandbox.work = self._work
        # A process for each: the namespaces are its own, and end with it.
        parent = os.getpid()
        between = os.fork()
        if between:
            return _ended(between)
        code = _TRY_AGAIN
        try:
            family.settle(parent)
            sandbox.build()
            inside = sandbox.environment(env) | {"HOME": self._work, "TMPDIR": self._work}
            code = _ended(family.start(command, {**env, **inside}, self._work, "", mute=True, enter=sandbox.enter))
            sandbox.end()
        except FalajError as error:
            os.write(2, f"falaj: {error}\n".encode())
        finally:
            os._exit(code)


def _ended(pid: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _read_all(file: int) -> bytes:
    data = b""
    while part := os.read(file, 1 << 16):
        data += part
    return data
