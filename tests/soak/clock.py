"""A wall clock that can be set for one process: a small library before libc adds what a mapped file says.

libfaketime would do the same; but with it sleeping fails in Python, unless time that only runs forward jumps, too.
"""

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


def built(folder: Path) -> str:
    """The library, made in this folder; empty where there is no C compiler."""
    if (compiler := shutil.which("cc")) is None:
        return ""
    made = folder / "clock.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)], check=True)
    return str(made)


class Clock:
    """`env` goes to the process; `jump` sets its wall clock, also while it runs."""

    def __init__(self, library: str, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("q", 0))
        self.env = {"LD_PRELOAD": library, "SOAK_CLOCK": str(file)} if library else {}

    def jump(self, seconds: int) -> None:
        """So far from the true time it is from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))
