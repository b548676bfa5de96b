"""What mounting needs of this machine: libfuse, its device, and the right to mount."""

import ctypes.util
import os
from pathlib import Path

from tests.servers.process import Missing

_INSTALL = "libfuse is missing: apt-get install fuse3"


def library() -> str:
    """The name of libfuse; Missing if it is not installed."""
    found = ctypes.util.find_library("fuse3") or ctypes.util.find_library("fuse")
    if found is None:
        raise Missing(_INSTALL)
    return found


def usable() -> None:
    """Missing where this machine cannot mount, with the reason."""
    library()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Missing("this user may not use /dev/fuse: a container needs --device /dev/fuse")
    if os.geteuid() == 0 and not _may_mount():
        raise Missing("root may not mount here: a container needs --cap-add SYS_ADMIN")


def _may_mount() -> bool:
    held = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line)[8:], 16)
    return bool(held >> 21 & 1)
