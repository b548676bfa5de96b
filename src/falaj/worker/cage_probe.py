"""What this machine's kernel lets a cage have, for attempts below a folder: tried in children, told as JSON."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from falaj.core.errors import FalajError
from falaj.worker import cage_kernel as kernel
from falaj.worker.cage import Cage, Told
from falaj.worker.isolated_process import find_isolation_gaps
from falaj.worker.syscall_filter import build_attempt_rules, install_filter

_NOBODY = 65534


def main() -> None:
    """Write what was found to the standard output."""
    found = {
        "namespaces": _works(_namespaces),
        "landlock": kernel.landlock_version() if _works(lambda: kernel.landlock(reads=["/"])) else 0,
        "seccomp": _works(lambda: install_filter(build_attempt_rules())),
        "functions": not find_isolation_gaps(),
        "users": os.geteuid() == 0 and _works(lambda: os.setresuid(*[_NOBODY] * 3)),
    }
    sys.stdout.write(json.dumps(found))


def _namespaces() -> None:
    """The whole cage, built as for an attempt and entered."""
    with tempfile.TemporaryDirectory(prefix="probe-", dir=sys.argv[1]) as folder:
        cage = Cage(Told("namespaces", _NOBODY), Path(folder), 0, f"{folder}/outbox")
        try:
            cage.build()
            if not _works(lambda: cage.enter(cage.work)):
                raise PermissionError("a cage can be made, and not entered")
        finally:
            cage.end()


def _works(attempt: Callable[[], object]) -> bool:
    """Whether it works, in a child that keeps what it changed to itself."""
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError, KeyError, FalajError):
            attempt()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0
