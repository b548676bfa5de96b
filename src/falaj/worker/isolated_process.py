"""Starts helper processes of the platform that read untrusted bytes or run untrusted functions.

The helper is a module of ours with `main(arguments)`. Before it is imported, the process gives up everything that it
does not need to compute: files (Landlock), sockets, programs, signals and every other process (seccomp), capabilities,
the environment. It needs no namespaces and no root, so it also works inside a job's sandbox. What this kernel cannot
enforce is reported by `find_isolation_gaps`, logged once, and fatal with `required=True`.
"""

import json
import os
import shutil
import subprocess  # nosec B404 - starts our own interpreter with a fixed environment
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypedDict, Unpack

from falaj.core.errors import Unavailable
from falaj.worker import sandbox_kernel as kernel
from falaj.worker import syscall_filter

_BOOT_SOURCE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.isolated_entry "
    "import run_isolated_module; run_isolated_module()"
)
_SOURCES_FOLDER = str(Path(__file__).parents[2])
_LOCALE_VARIABLES = ("LANG", "LC_ALL", "TZ")
_StreamOption = int | IO[Any] | None


@dataclass(frozen=True)
class IsolationLimits:
    """Limits of one helper process; 0 is no limit."""

    memory_bytes: int = 0
    cpu_seconds: int = 0
    file_bytes: int = 0


class IsolationOptions(TypedDict, total=False):
    """Further options of `start_isolated`."""

    devices: Iterable[str]
    """Device files that the helper may use, beside /dev/null and the like."""
    environment: Mapping[str, str]
    required: bool
    """Start nothing where the kernel leaves a gap."""
    stdin: _StreamOption
    stdout: _StreamOption
    stderr: _StreamOption


class IsolatedProcess(subprocess.Popen[bytes]):
    """A helper process; its private folder is removed when it has been waited for."""

    private_folder = ""

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        code = super().poll()
        if code is not None:
            shutil.rmtree(self.private_folder, ignore_errors=True)
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code."""
        code = super().wait(timeout)
        shutil.rmtree(self.private_folder, ignore_errors=True)
        return code


@cache
def find_isolation_gaps() -> tuple[str, ...]:
    """What this kernel cannot enforce on helper processes: "files", "network", "calls"; empty when all of it."""
    isolates_files = sys.platform == "linux" and kernel.get_landlock_version() > 0
    filters_calls = syscall_filter.is_supported()
    return (() if isolates_files else ("files",)) + (() if filters_calls else ("network", "calls"))


def start_isolated(
    module: str,
    arguments: Sequence[str] = (),
    *,
    readable: Iterable[str] = (),
    writable: Iterable[str] = (),
    pass_fds: Sequence[int] = (),
    limits: IsolationLimits = IsolationLimits(),  # noqa: B008 - frozen
    **options: Unpack[IsolationOptions],
) -> IsolatedProcess:
    """Start `main(arguments)` of one of our modules in a process that reads `readable`, writes `writable` and computes.

    Its environment holds the locale, HOME and TMPDIR (an empty private folder, also its working folder) and
    `environment`. The process is killed when this one ends. Unavailable with `required` where the kernel leaves a gap.
    """
    gaps = find_isolation_gaps()
    if gaps and options.get("required"):
        raise Unavailable(
            f"helper processes must be isolated, and this kernel cannot enforce: {', '.join(gaps)}",
            "use a kernel with Landlock and seccomp (Linux 5.13 or newer), or sandbox = 'best'",
        )
    _warn_about_gaps(gaps)
    folder = tempfile.mkdtemp(prefix="falaj-isolated-")
    launch_options = {
        "module": module,
        "arguments": list(arguments),
        "readable": [os.path.abspath(path) for path in readable],  # noqa: PTH100 - paths come as text
        "writable": [os.path.abspath(path) for path in writable],  # noqa: PTH100
        "devices": list(options.get("devices", ())),
        "limits": asdict(limits),
        "gaps": list(gaps),
        "parent": os.getpid(),
    }
    folder_variables = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), folder)
    environment = (
        {name: os.environ[name] for name in _LOCALE_VARIABLES if name in os.environ}
        | folder_variables
        | dict(options.get("environment", {}))
    )
    command = [sys.executable, "-I", "-B", "-c", _BOOT_SOURCE, _SOURCES_FOLDER, json.dumps(launch_options)]

    def start_process() -> IsolatedProcess:
        return IsolatedProcess(
            command,
            cwd=folder,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,
            stdin=options.get("stdin", subprocess.DEVNULL),
            stdout=options.get("stdout", subprocess.DEVNULL),
            stderr=options.get("stderr"),
        )

    try:
        process = _get_starter_thread(os.getpid()).submit(start_process).result()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    process.private_folder = folder
    return process


@cache
def _warn_about_gaps(gaps: tuple[str, ...]) -> None:
    if gaps:
        import logging

        text = "this kernel cannot isolate helper processes: %s are not enforced (falaj doctor)"
        logging.getLogger("falaj.worker").warning(text, ", ".join(gaps))


@cache
def _get_starter_thread(_pid: int) -> ThreadPoolExecutor:
    """A thread that lives as long as this process: the kernel ends a helper with the thread that started it."""
    return ThreadPoolExecutor(1, "isolated-process")
