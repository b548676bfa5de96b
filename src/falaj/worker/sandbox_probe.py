"""What this machine's kernel lets a cage have, for attempts below a folder: tried in children, told as JSON."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from falaj.core.errors import FalajError
from falaj.worker import sandbox_kernel as kernel
from falaj.worker.isolated_process import find_isolation_gaps
from falaj.worker.sandbox import Sandbox, SandboxProfile
from falaj.worker.syscall_filter import build_attempt_rules, install_filter

_NOBODY_UID = 65534


def main() -> None:
    """Write what was found to the standard output."""
    capabilities = {
        "namespaces": _works_in_child(_try_namespaces),
        "landlock": kernel.get_landlock_version()
        if _works_in_child(lambda: kernel.restrict_with_landlock(readable_paths=["/"]))
        else 0,
        "seccomp": _works_in_child(lambda: install_filter(build_attempt_rules())),
        "functions": not find_isolation_gaps(),
        "users": os.geteuid() == 0 and _works_in_child(lambda: os.setresuid(*[_NOBODY_UID] * 3)),
    }
    sys.stdout.write(json.dumps(capabilities))


def _try_namespaces() -> None:
    """The whole cage, built as for an attempt and entered."""
    with tempfile.TemporaryDirectory(prefix="probe-", dir=sys.argv[1]) as folder:
        sandbox = Sandbox(SandboxProfile("namespaces", _NOBODY_UID), Path(folder), 0, f"{folder}/outbox")
        try:
            sandbox.build()
            if not _works_in_child(lambda: sandbox.enter(sandbox.work)):
                raise PermissionError("a cage can be made, and not entered")
        finally:
            sandbox.end()


def _works_in_child(action: Callable[[], object]) -> bool:
    """Whether it works, in a child that keeps what it changed to itself."""
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError, KeyError, FalajError):
            action()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0
