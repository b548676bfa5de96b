"""A real PKCS#11 token in software: SoftHSM2 with its token in a temporary folder."""

import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.servers.process import Missing, find_program

_INSTALL = "SoftHSM2 is missing: apt-get install softhsm2"
_LIBRARIES = ("/usr/lib/softhsm", "/usr/lib/*/softhsm", "/usr/local/lib/softhsm", "/opt/homebrew/lib/softhsm")


class SoftHsm:
    """One token. The library reads SOFTHSM2_CONF once per process, so a process has one of these at a time."""

    label = "falaj-test"

    def __init__(self) -> None:
        self.library = library()
        self._program = program()
        self.pin, self.so_pin = secrets.token_hex(8), secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix="falaj-softhsm-"))
        self._before: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a child process needs to see the same token."""
        return {"SOFTHSM2_CONF": str(self.folder / "softhsm2.conf")}

    def __enter__(self) -> Self:
        tokens = self.folder / "tokens"
        tokens.mkdir()
        (self.folder / "softhsm2.conf").write_text(f"directories.tokendir = {tokens}\nlog.level = ERROR\n")
        command = [self._program, "--init-token", "--free", "--label", self.label]
        command += ["--pin", self.pin, "--so-pin", self.so_pin]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | self.environment)
        self._before = os.environ.get("SOFTHSM2_CONF")
        os.environ.update(self.environment)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            os.environ.pop("SOFTHSM2_CONF", None)
        else:
            os.environ["SOFTHSM2_CONF"] = self._before
        shutil.rmtree(self.folder, ignore_errors=True)


def library() -> str:
    """The path of libsofthsm2.so; Missing if it is not installed."""
    for pattern in _LIBRARIES:
        for found in Path("/").glob(f"{pattern[1:]}/libsofthsm2.so"):
            return str(found)
    raise Missing(_INSTALL)


def program() -> str:
    """The path of softhsm2-util; Missing if it is not installed."""
    try:
        return find_program("softhsm2-util")
    except Missing as missing:
        raise Missing(_INSTALL) from missing
