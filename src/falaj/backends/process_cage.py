"""Which attempts run in a sandbox on this machine, what that is, and what the machine can enforce of it.

`sandbox` is "off", "best" (all attempts as far as the kernel allows, except those of the only user of an
embedded folder: core.execute.Attempt.by_owner) or "required" (all attempts, fully, or nothing starts). The profile
follows from the kind of the attempt, which only services of the platform choose, and from nothing a submitter writes.
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
from urllib.parse import parse_qsl, urlsplit

from falaj.core.errors import Invalid, Unavailable
from falaj.core.execute import FEATURE_REPLICA, REPLICAS, Attempt
from falaj.core.online import tenant_address
from falaj.core.own_environment import own_environment

CHOICES = ("off", "best", "required")
OPTIONS = (
    "sandbox",
    "hidden",
    "platform",
    "online",
    "egress",
    "services",
    "tcp_ports",
    "writable",
    "processes",
    "file_mib",
    "tmp_mib",
    "shm_mib",
    "disk_mib",
    "log_mib",
)
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.cage_probe import main; main()"
_SOURCES = str(Path(__file__).parents[2])
_FIRST_UID, _UIDS = 1_879_048_192, 268_435_454
"""Numbers that systemd and the user namespaces of containers leave alone."""
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
    functions: str
    """How processes inside isolate functions and parsers of their own (worker/isolated_process.py)."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What it cannot."""
        return tuple(name for name in self.__slots__ if not getattr(self, name))

    @property
    def method(self) -> str:
        """How a cage is made here; empty where none can be."""
        return "namespaces" if self.network else "landlock" if self.files and self.calls else ""


@cache
def powers(folder: str) -> Powers:
    """For attempts below this folder, whose file system matters too; tried in processes beside us, once."""
    words = [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCES, folder]
    try:
        done = subprocess.run(  # noqa: S603  # nosec B603
            words, env=own_environment(), capture_output=True, timeout=60, check=True
        )
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
        "Landlock and seccomp" if found.get("functions") else "",
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

    def documents(self, attempt: Attempt, folder: str) -> dict[str, Any]:
        """What the launcher is told: the sandbox of the attempt's processes, and that of the launcher's own commands;
        nothing where the attempt runs without."""
        if self._choice == "off" or (self._choice == "best" and attempt.by_owner):
            return {}
        if not (method := powers(str(self._root)).method):
            raise Invalid(
                "this machine has neither namespaces nor Landlock, so it cannot sandbox attempts",
                'run them on another cluster, or accept the risk with sandbox = "off"; see docs/sandbox.md',
            )
        self._check_ranks(attempt, method)
        profiles = {"cage": self._profile(attempt, folder, method)}
        if attempt.context.get("stage") or attempt.context.get("after"):
            profiles["own_sandbox"] = self._shared_profile(attempt, method, "own commands")
        return profiles

    def _check_ranks(self, attempt: Attempt, method: str) -> None:
        """Refuse an attempt whose ranks would wait in vain: they connect to each other on ports of their choice."""
        tcp_ports = self._options.get("tcp_ports", "")
        if tcp_ports not in ("", "any"):
            raise Invalid(f'tcp_ports: expected "any" or nothing, got {tcp_ports!r:.40}', "see docs/sandbox.md")
        ranks = sum(slot.processes for slot in attempt.slots)
        if method == "landlock" and not tcp_ports and ranks > 1 and attempt.framework != "plain":
            raise Invalid(
                "this machine has no namespaces, so its sandbox lets the ranks of an attempt not connect to each other",
                "run it with one process or on another cluster, allow namespaces, or let attempts connect to any port "
                "with the cluster option tcp_ports=any; see docs/sandbox.md",
            )

    def _profile(self, attempt: Attempt, folder: str, method: str) -> dict[str, Any]:
        """The sandbox of an attempt's processes."""
        given: Mapping[str, Any] = attempt.context
        replica = attempt.kind in REPLICAS
        readable, services = self._of_replica(attempt) if replica else ([], [])
        writable = [given.get("code"), given.get("checkpoints"), *(given.get("outputs") or {}).values()]
        return self._shared_profile(attempt, method) | {
            "listen": attempt.listen if replica else "",
            "writable": [str(Path(folder, path)) for path in (*writable, *self._words("writable")) if path],
            "readable": readable,
            "services": services,
            "egress": [] if replica else self._words("egress"),
            "tcp_ports": self._options.get("tcp_ports", ""),
        }

    def _shared_profile(self, attempt: Attempt, method: str, who: str = "") -> dict[str, Any]:
        """What holds for the processes of an attempt and for the launcher's own commands alike: each `who` is another
        user, sees nothing of the platform's, and reaches the platform alone."""
        memory = sum(slot.amounts.get("memory", 0) for slot in attempt.slots)
        # The attempt's id is random: no submitter can choose a job's name so that it runs as the user of another's.
        words = " ".join(filter(None, (attempt.tenant, attempt.id, who)))
        number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
        return {
            "method": method,
            "uid": _FIRST_UID + number % _UIDS if method == "namespaces" else 0,
            "network": "own",
            "hidden": self._hidden(),
            "shown": self._shown(attempt, attempt.context),
            "platform": _address(self._options.get("platform", "")),
            "required": self._choice == "required",
            "processes": int(self._options.get("processes", "4096")),
            "file_bytes": int(self._options.get("file_mib", "0")) * _MIB,
            "tmp_bytes": int(self._options.get("tmp_mib", "1024")) * _MIB,
            "shm_bytes": (int(self._options.get("shm_mib", "0")) or max(memory, 64)) * _MIB,
        }

    def _of_replica(self, attempt: Attempt) -> tuple[list[str], list[tuple[str, int]]]:
        """The folders that a replica reads and the services it connects to: the online features of its own tenant."""
        online = self._options.get("online", "")
        if attempt.kind != FEATURE_REPLICA:
            online = ""
        online = tenant_address(online, attempt.tenant) if online else ""
        folder = os.path.expanduser(online.removeprefix("lmdb:")) if online.startswith("lmdb:") else ""  # noqa: PTH111
        parts = urlsplit("" if folder else online)
        path = dict(parse_qsl(parts.query)).get("socket", "")
        servers = [] if path else parts.netloc.rpartition("@")[2].split(",")
        addresses = [(path, 0) if path else None, *(_address(f"//{server}", 6379) for server in servers if server)]
        addresses += [_address(f"//{word}") for word in self._words("services")]
        return [folder] if folder and Path(folder).is_dir() else [], [address for address in addresses if address]

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
        # Landlock shows nothing that is not named; the read-only root of namespaces shows what is not hidden.
        named = powers(str(self._root)).method == "landlock"
        below = {path for path in everything if named or any(f"{path}/".startswith(f"{parent}/") for parent in hidden)}
        own = os.path.realpath(attempt.folder or self._root / attempt.id)
        return sorted(path for path in below if not path.startswith(f"{own}/") and Path(path).exists())


def _address(url: str, usual: int = 80) -> tuple[str, int] | None:
    """Host and port of an address; None where it has no host, or the port 0 of a server that has not chosen one."""
    parts = urlsplit(url)
    port = (443 if parts.scheme == "https" else usual) if parts.port is None else parts.port
    return (parts.hostname, port) if parts.hostname and port else None
