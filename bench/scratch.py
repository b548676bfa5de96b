"""Where benches work: a folder that is gone afterwards; and what keeps those of milliseconds from waiting."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A scratch folder on the disk that holds this repository."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=Path(__file__).resolve().parents[1]))
    path.chmod(0o755)  # attempts run as users of their own, and lie below
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def ahead() -> Iterator[None]:
    """Whatever is started here runs before the rest of this machine, where we may ask for it: both sides of a
    comparison of milliseconds alike, so that it does not tell what else the machine had to do."""
    before = os.sched_getscheduler(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, before, os.sched_param(0))
