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
from falaj.core.executor import KIND_FEATURE_REPLICA, REPLICA_KINDS, Attempt
from falaj.core.minimal_environment import get_minimal_environment
from falaj.core.online_rows import build_tenant_address

SANDBOX_CHOICES = ("off", "best", "required")
SANDBOX_OPTIONS = (
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
_PROBE_SOURCE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.sandbox_probe import main; main()"
_SOURCES_FOLDER = str(Path(__file__).parents[2])
_FIRST_UID, _UID_COUNT = 1_879_048_192, 268_435_454
"""Numbers that systemd and the user namespaces of containers leave alone."""
_PRIVATE_PATHS = ("~root", "/home", "/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # nosec B108
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class IsolationSupport:
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
def probe_isolation(folder: str) -> IsolationSupport:
    """For attempts below this folder, whose file system matters too; tried in processes beside us, once."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE_SOURCE, _SOURCES_FOLDER, folder]
    try:
        completed = subprocess.run(  # noqa: S603  # nosec B603
            command, env=get_minimal_environment(), capture_output=True, timeout=60, check=True
        )
        capabilities: dict[str, Any] = json.loads(completed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        capabilities = {}
    has_namespaces, landlock_version = bool(capabilities.get("namespaces")), int(capabilities.get("landlock", 0))
    own_user_text = "a user of its own" if has_namespaces and capabilities.get("users") else ""
    return IsolationSupport(
        own_user_text if os.geteuid() == 0 else "the platform's, which is not root",
        "a read-only root of its own" if has_namespaces else "Landlock" if landlock_version else "",
        "a process namespace" if has_namespaces else "Landlock" if landlock_version >= 6 else "",
        "a network namespace and a proxy" if has_namespaces else "",
        "seccomp" if capabilities.get("seccomp") else "",
        "Landlock and seccomp" if capabilities.get("functions") else "",
    )


def require_sandbox_support(choice: str, folder: str) -> None:
    """Invalid when there is no such choice, Unavailable when this machine must enforce what it cannot."""
    if choice not in SANDBOX_CHOICES:
        raise Invalid(f"sandbox is {choice!r:.40}", f"it is one of {', '.join(SANDBOX_CHOICES)}")
    if choice == "required" and (missing := probe_isolation(folder).missing):
        raise Unavailable(
            f"the sandbox is required, and this machine cannot enforce: {', '.join(missing)}",
            'allow user namespaces, run as root, or set sandbox = "best"; see docs/sandbox.md',
        )


class SandboxProfiles:
    """The cages of one executor's attempts, by its options."""

    def __init__(self, options: Mapping[str, str], root: Path) -> None:
        self._choice = options.get("sandbox", "off")
        self._options, self._root = options, root
        require_sandbox_support(self._choice, str(root))

    def documents(self, attempt: Attempt, folder: str) -> dict[str, Any]:
        """What the launcher is told: the sandbox of the attempt's processes, and that of the launcher's own commands;
        nothing where the attempt runs without."""
        if self._choice == "off" or (self._choice == "best" and attempt.by_owner):
            return {}
        if not (sandbox_method := probe_isolation(str(self._root)).method):
            raise Invalid(
                "this machine has neither namespaces nor Landlock, so it cannot sandbox attempts",
                'run them on another cluster, or accept the risk with sandbox = "off"; see docs/sandbox.md',
            )
        self._require_reachable_ranks(attempt, sandbox_method)
        profiles = {"cage": self._make_attempt_profile(attempt, folder, sandbox_method)}
        if attempt.context.get("stage") or attempt.context.get("after"):
            profiles["own_sandbox"] = self._make_shared_profile(attempt, sandbox_method, "own commands")
        return profiles

    def _require_reachable_ranks(self, attempt: Attempt, sandbox_method: str) -> None:
        """Refuse an attempt whose ranks would wait in vain: they connect to each other on ports of their choice."""
        tcp_ports = self._options.get("tcp_ports", "")
        if tcp_ports not in ("", "any"):
            raise Invalid(f'tcp_ports: expected "any" or nothing, got {tcp_ports!r:.40}', "see docs/sandbox.md")
        rank_count = sum(slot.processes for slot in attempt.slots)
        if sandbox_method == "landlock" and not tcp_ports and rank_count > 1 and attempt.framework != "plain":
            raise Invalid(
                "this machine has no namespaces, so its sandbox lets the ranks of an attempt not connect to each other",
                "run it with one process or on another cluster, allow namespaces, or let attempts connect to any port "
                "with the cluster option tcp_ports=any; see docs/sandbox.md",
            )

    def _make_attempt_profile(self, attempt: Attempt, folder: str, sandbox_method: str) -> dict[str, Any]:
        """The sandbox of an attempt's processes."""
        document: Mapping[str, Any] = attempt.context
        is_replica = attempt.kind in REPLICA_KINDS
        readable, services = self._get_replica_access(attempt) if is_replica else ([], [])
        writable = [document.get("code"), document.get("checkpoints"), *(document.get("outputs") or {}).values()]
        return self._make_shared_profile(attempt, sandbox_method) | {
            "listen": attempt.listen if is_replica else "",
            "writable": [str(Path(folder, path)) for path in (*writable, *self._list_option("writable")) if path],
            "readable": readable,
            "services": services,
            "egress": [] if is_replica else self._list_option("egress"),
            "tcp_ports": self._options.get("tcp_ports", ""),
        }

    def _make_shared_profile(self, attempt: Attempt, sandbox_method: str, identity_suffix: str = "") -> dict[str, Any]:
        """What holds for the processes of an attempt and for the launcher's own commands alike: each `identity_suffix`
        is another user, sees nothing of the platform's, and reaches the platform alone."""
        memory_mib = sum(slot.amounts.get("memory", 0) for slot in attempt.slots)
        # The attempt's id is random: no submitter can choose a job's name so that it runs as the user of another's.
        identity_text = " ".join(filter(None, (attempt.tenant, attempt.id, identity_suffix)))
        hash_number = int.from_bytes(hashlib.sha256(identity_text.encode()).digest()[:8], "big")
        return {
            "method": sandbox_method,
            "uid": _FIRST_UID + hash_number % _UID_COUNT if sandbox_method == "namespaces" else 0,
            "network": "own",
            "hidden": self._list_hidden(),
            "shown": self._list_shown(attempt, attempt.context),
            "platform": _parse_address(self._options.get("platform", "")),
            "required": self._choice == "required",
            "processes": int(self._options.get("processes", "4096")),
            "file_bytes": int(self._options.get("file_mib", "0")) * _MIB,
            "tmp_bytes": int(self._options.get("tmp_mib", "1024")) * _MIB,
            "shm_bytes": (int(self._options.get("shm_mib", "0")) or max(memory_mib, 64)) * _MIB,
        }

    def _get_replica_access(self, attempt: Attempt) -> tuple[list[str], list[tuple[str, int]]]:
        """The folders that a replica reads and the services it connects to: the online features of its own tenant."""
        online_url = self._options.get("online", "")
        if attempt.kind != KIND_FEATURE_REPLICA:
            online_url = ""
        online_url = build_tenant_address(online_url, attempt.tenant) if online_url else ""
        folder = os.path.expanduser(online_url.removeprefix("lmdb:")) if online_url.startswith("lmdb:") else ""  # noqa: PTH111
        parts = urlsplit("" if folder else online_url)
        path = dict(parse_qsl(parts.query)).get("socket", "")
        servers = [] if path else parts.netloc.rpartition("@")[2].split(",")
        addresses = [
            (path, 0) if path else None,
            *(_parse_address(f"//{server}", 6379) for server in servers if server),
        ]
        addresses += [_parse_address(f"//{service_text}") for service_text in self._list_option("services")]
        return [folder] if folder and Path(folder).is_dir() else [], [address for address in addresses if address]

    def _list_option(self, name: str) -> list[str]:
        return [word for word in self._options.get(name, "").split(",") if word]

    def _list_hidden(self) -> list[str]:
        hidden_paths = ("~", *_PRIVATE_PATHS, str(self._root), *self._list_option("hidden"))
        return sorted({os.path.expanduser(path) for path in hidden_paths} - {"/"})  # noqa: PTH111

    def _list_shown(self, attempt: Attempt, document: Mapping[str, Any]) -> list[str]:
        """What lies below hidden folders and is needed all the same: Python, ourselves, the inputs."""
        active_environments = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in os.environ]
        needed_paths = [
            sys.prefix,
            sys.base_prefix,
            _SOURCES_FOLDER,
            *active_environments,
            *self._root.glob("falaj-worker-*.pyz"),
        ]
        inputs = [path for path in (document.get("inputs") or {}).values() if Path(str(path)).is_absolute()]
        candidate_paths = {os.path.realpath(path) for path in (*needed_paths, *inputs)}
        hidden_paths = [os.path.realpath(path) for path in self._list_hidden()]
        # Landlock shows nothing that is not named; the read-only root of namespaces shows what is not hidden.
        must_name_paths = probe_isolation(str(self._root)).method == "landlock"
        shown_paths = {
            path
            for path in candidate_paths
            if must_name_paths or any(f"{path}/".startswith(f"{parent}/") for parent in hidden_paths)
        }
        own_folder = os.path.realpath(attempt.folder or self._root / attempt.id)
        return sorted(path for path in shown_paths if not path.startswith(f"{own_folder}/") and Path(path).exists())


def _parse_address(url: str, default_port: int = 80) -> tuple[str, int] | None:
    """Host and port of an address; None where it has no host, or the port 0 of a server that has not chosen one."""
    parts = urlsplit(url)
    port = (443 if parts.scheme == "https" else default_port) if parts.port is None else parts.port
    return (parts.hostname, port) if parts.hostname and port else None
