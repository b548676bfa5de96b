"""Whose attempts run in a cage on this machine, what that cage is, and what the machine can enforce of it.

`sandbox` is "off", "best" (attempts of every tenant but the house's own people, who hold the keys anyway, as far as the
kernel allows) or "required" (everybody's, wholly, or nothing starts).
"""

import hashlib
import json
import os
import subprocess  # nosec B404 - our own interpreter, to try what the kernel allows
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from falaj.core.context import HOUSE
from falaj.core.errors import Invalid, Unavailable
from falaj.core.execute import Attempt

CHOICES = ("off", "best", "required")
OPTIONS = (
    "sandbox",
    "hidden",
    "platform",
    "online",
    "egress",
    "writable",
    "processes",
    "file_mib",
    "tmp_mib",
    "shm_mib",
)
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.cage_probe import main; main()"
_SOURCES = str(Path(__file__).parents[2])
_FIRST_UID, _UIDS = 1_879_048_192, 268_435_454
"""Numbers that systemd and the user namespaces of containers leave alone."""
_REPLICA = ("python", "-m", "falaj.infer")
_PRIVATE = ("~root", "/home", "/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # nosec B108
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Powers:
    """What this machine enforces, and by what; empty where it cannot."""

    user: str
    files: str
    processes: str
    network: str
    calls: str

    @property
    def missing(self) -> tuple[str, ...]:
        """What it cannot."""
        return tuple(name for name in ("user", "files", "processes", "network", "calls") if not getattr(self, name))

    @property
    def method(self) -> str:
        """How a cage is made here; empty where none can be."""
        return "namespaces" if self.network else "landlock" if self.files and self.calls else ""


@cache
def powers(folder: str) -> Powers:
    """For attempts below this folder, whose file system matters too; tried in processes beside us, once."""
    words = [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCES, folder]
    try:
        done = subprocess.run(words, capture_output=True, timeout=60, check=True)  # noqa: S603  # nosec B603
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        found = {}
    spaces, landlock = bool(found.get("namespaces")), int(found.get("landlock", 0))
    apart = "a user of its own" if spaces and found.get("users") else ""
    return Powers(
        apart if os.geteuid() == 0 else "the platform's, which is not root",
        "a read-only root of its own" if spaces else "Landlock" if landlock else "",
        "a process namespace" if spaces else "Landlock" if landlock >= 6 else "",
        "a network namespace and a proxy" if spaces else "",
        "seccomp" if found.get("seccomp") else "",
    )


def check(choice: str, folder: str) -> None:
    """Invalid when there is no such choice, Unavailable when this machine must enforce what it cannot."""
    if choice not in CHOICES:
        raise Invalid(f"sandbox is {choice!r:.40}", f"it is one of {', '.join(CHOICES)}")
    if choice == "required" and (missing := powers(folder).missing):
        raise Unavailable(
            f"the sandbox is required, and this machine cannot enforce: {', '.join(missing)}",
            'allow user namespaces, run as root, or set sandbox = "best"; see docs/sandbox.md',
        )


class Cages:
    """The cages of one executor's attempts, by its options."""

    def __init__(self, options: Mapping[str, str], root: Path) -> None:
        self._choice = options.get("sandbox", "off")
        self._options, self._root = options, root
        check(self._choice, str(root))

    def document(self, attempt: Attempt, folder: str) -> dict[str, Any]:
        """What the launcher is told; nothing where the attempt runs in no cage."""
        apart = self._choice == "required" or (self._choice == "best" and attempt.tenant != HOUSE)
        if not apart or not (method := powers(str(self._root)).method):
            return {}
        given: Mapping[str, Any] = attempt.context
        replica = attempt.command[:3] == _REPLICA
        folders, ports = self._of_replica(attempt) if replica else ([], [])
        writable = [given.get("code"), given.get("checkpoints"), *(given.get("outputs") or {}).values()]
        memory = sum(slot.amounts.get("memory", 0) for slot in attempt.slots)
        number = int.from_bytes(hashlib.sha256(f"{attempt.tenant} {attempt.job}".encode()).digest()[:8], "big")
        return {
            "method": method,
            "uid": _FIRST_UID + number % _UIDS if method == "namespaces" else 0,
            "network": "listen" if replica else "own",
            "hidden": self._hidden(),
            "shown": self._shown(attempt, given),
            "writable": [str(Path(folder, path)) for path in (*writable, *self._words("writable"), *folders) if path],
            "platform": _address(self._options.get("platform", "")),
            "ports": ports,
            "egress": self._words("egress"),
            "processes": int(self._options.get("processes", "4096")),
            "file_bytes": int(self._options.get("file_mib", "0")) * _MIB,
            "tmp_bytes": int(self._options.get("tmp_mib", "1024")) * _MIB,
            "shm_bytes": int(self._options.get("shm_mib", "0") or max(memory, 64)) * _MIB,
        }

    def _of_replica(self, attempt: Attempt) -> tuple[list[str], list[int]]:
        """The folders and ports of a server of models: the platform's, and the online store's where it looks features
        up. That store knows no users, so where the sandbox is required an operator must have named it."""
        found = [_address(self._options.get("platform", ""))]
        online = self._options.get("online", "")
        if self._choice == "required" or '"features"' not in attempt.env.get("FALAJ_PARAM_SERVE", ""):
            online = ""
        folder = online.removeprefix("lmdb:").partition("?")[0] if online.startswith("lmdb:") else ""
        found += [_address(online, 6379)] if online and not folder else []
        return [os.path.expanduser(folder)] if folder else [], [one[1] for one in found if one]  # noqa: PTH111

    def _words(self, name: str) -> list[str]:
        return [word for word in self._options.get(name, "").split(",") if word]

    def _hidden(self) -> list[str]:
        named = ("~", *_PRIVATE, str(self._root), *self._words("hidden"))
        return sorted({os.path.expanduser(path) for path in named} - {"/"})  # noqa: PTH111

    def _shown(self, attempt: Attempt, given: Mapping[str, Any]) -> list[str]:
        """What lies below hidden folders and is needed all the same: Python, ourselves, the inputs."""
        active = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in os.environ]
        needed = [sys.prefix, sys.base_prefix, _SOURCES, *active, *self._root.glob("falaj-worker-*.pyz")]
        inputs = [path for path in (given.get("inputs") or {}).values() if Path(str(path)).is_absolute()]
        everything = {os.path.realpath(path) for path in (*needed, *inputs)}
        hidden = [os.path.realpath(path) for path in self._hidden()]
        below = {path for path in everything if any(f"{path}/".startswith(f"{one}/") for one in hidden)}
        own = os.path.realpath(attempt.folder or self._root / attempt.id)
        return sorted(path for path in below if not path.startswith(f"{own}/") and Path(path).exists())


def _address(url: str, usual: int = 80) -> tuple[str, int] | None:
    """Host and port of an address."""
    parts = urlsplit(url)
    return (parts.hostname, parts.port or (443 if parts.scheme == "https" else usual)) if parts.hostname else None
