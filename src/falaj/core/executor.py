"""The port of executors: what the scheduler asks of whatever runs attempts, in words that all of them share.

An attempt is one try of a job: a gang of slots, each on a node that the scheduler chose, each running one launcher
(falaj.worker) that starts the processes of that slot. Amounts are integers: milli-CPU, MiB, milli-GPU.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from falaj.core.data import dataclass
from falaj.core.errors import Denied

if TYPE_CHECKING:
    from falaj.core.errors import FalajError

WAITING, RUNNING, SUCCEEDED, FAILED, LOST, UNKNOWN = "waiting", "running", "succeeded", "failed", "lost", "unknown"
"""What an attempt can be, as its executor sees it. `lost`: its node or its processes are gone and nobody knows how it
ended. `unknown`: this executor never heard of the handle, or forgot it."""

FINISHED_PHASES = frozenset({SUCCEEDED, FAILED, LOST})

SECRET_ENV_VARIABLE = "FALAJ_SECRET_ENV"  # noqa: S105  # nosec B105 - a name
"""The variable in which a launcher receives the secrets of its processes: a JSON object."""

KIND_JOB, KIND_REPLICA, KIND_FEATURE_REPLICA, KIND_BATCH = "job", "replica", "feature-replica", "batch"
"""What an attempt is. Only a service of the platform can ask for anything but a `job` (core.context.Context), and the
sandbox profile follows from this word alone: never from a command, a variable, a file name or a label."""
ATTEMPT_KINDS = (KIND_JOB, KIND_REPLICA, KIND_FEATURE_REPLICA, KIND_BATCH)
REPLICA_KINDS = (KIND_REPLICA, KIND_FEATURE_REPLICA)

EXIT_TRY_AGAIN = 75
"""The exit code of what failed for no fault of its own (EX_TEMPFAIL): tried again, not counted."""
EXIT_YIELDED = 85
"""The exit code of a process that saved a checkpoint and gives its place up: queued again, not counted."""


class PersonRefused(Denied):
    """The cluster does not run attempts of this person; others may run them."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator of a node. A MIG slice is a device of its own, with a model name of its own."""

    index: int
    model: str
    memory_mib: int = 0
    island: int = 0
    """Devices of one island reach each other at full speed (NVLink); others go over PCIe or the CPUs' own link."""
    numa: int = 0
    id: str = ""
    """What the driver calls it (a UUID)."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as its cluster tells of it."""

    name: str
    amounts: Mapping[str, int]
    """cpu in thousandths, memory in MiB, anything else by its own name; GPUs are devices and not here."""
    devices: tuple[Device, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """rack, zone, avx, spot, price (micro-units of money an hour), hazard (expected losses in a thousand hours), …"""
    ready: bool = True
    taken: Mapping[str, int] = field(default_factory=dict)
    """What others than us use of it."""
    taken_devices: tuple[int, ...] = ()
    leaving: float = 0.0
    """When it will be taken away (a spot notice), in seconds since the epoch; 0 when nobody said so."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One worker of an attempt: a launcher on one node."""

    index: int
    node: str
    role: str = "worker"
    amounts: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    milli: int = 1000
    """How much of each device is ours; 1000 is all of it."""
    processes: int = 1
    """How many processes the launcher starts (ranks of the framework)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a job, ready to run. The same id launched twice runs once."""

    id: str
    """Letters, digits and dashes, at most 50, unique in the installation: safe as a folder, a pod and a job name."""
    job: str
    """What people call it."""
    tenant: str
    project: str
    slots: tuple[Slot, ...]
    command: tuple[str, ...]
    framework: str = "plain"
    kind: str = KIND_JOB
    """One of ATTEMPT_KINDS."""
    listen: str = ""
    """Of a replica: the address of its machine on which it is called."""
    by_owner: bool = False
    """True when the owner of an embedded folder submitted it and no other account uses the installation: it
    runs without a sandbox unless one is required. Executors on other machines ignore it."""
    folder: str = ""
    """The attempt's own folder, on executors that share one with us (process, slurm): code, logs, outbox, context."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What the submitter set, never secrets: for the processes alone. It travels in the context."""
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets by the variable that the submitter chose: for the processes alone, written nowhere we can avoid."""
    platform_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """FALAJ_URL and FALAJ_TOKEN, for the launcher's own commands and for the processes."""
    image: str = ""
    user: str = ""
    """Whose identity it runs under there: a Unix user (slurm), a service account (kubernetes)."""
    limit_s: int = 0
    grace_s: int = 30
    context: Mapping[str, object] = field(default_factory=dict)
    """The document the launchers read (worker/attempt_context.py); plain JSON values."""
    launcher: bytes = field(default=b"", repr=False)
    """falaj.worker with falaj.core as one zip application, for nodes that have Python and no Falaj."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What only this kind of executor understands (partition, account, queue, namespace, object, …)."""


@dataclass(frozen=True, slots=True)
class SlotExitStatus:
    """How one slot ended."""

    index: int
    code: int
    """The exit code; 128 + n when signal n ended it."""
    reason: str = ""
    """In words, where the cluster says more than a number: out of memory, node lost, evicted."""


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """What became of a handle."""

    handle: str
    phase: str
    exits: tuple[SlotExitStatus, ...] = ()
    """In the order in which slots ended, where the cluster tells: one that fails ends the others of its gang."""
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""


LOG_END = "end"
"""The cursor of a log that asks for its last lines."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines of one slot's output, oldest first, and where the next question goes on."""

    lines: tuple[str, ...]
    cursor: str
    over: bool = False
    """True when nothing will follow."""


def rendezvous_port(attempt_id: str) -> int:
    """Where the processes of an attempt meet, on clusters that give out no ports: known before any of them runs, below
    the ports of outgoing connections, and another one for the next attempt."""
    return 20_000 + zlib.crc32(attempt_id.encode()) % 10_000


def build_launcher_environment(attempt: Attempt) -> dict[str, str]:
    """The variables an executor adds for a launcher. Names that the submitter chose are not among them: their secrets
    are the value of one variable, which the launcher gives to the attempt's processes only."""
    secrets = {SECRET_ENV_VARIABLE: json.dumps(dict(attempt.secret_env))} if attempt.secret_env else {}
    return {**attempt.platform_env, **secrets}


class Executor(Protocol):
    """Runs attempts on one cluster. Every call is short, may be repeated, and raises Unavailable when the cluster
    does not answer, Invalid when it refuses for a reason that will not change, Conflict when it is not as it was (the
    node that was chosen is gone)."""

    def capacity(self) -> Sequence[NodeInfo]:
        """Every node of the cluster, with what others use of it."""
        ...

    def launch(self, attempt: Attempt) -> str:
        """Start it and give its handle; the same id again gives the same handle and starts nothing."""
        ...

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        """What became of each, in the order asked; one that is not known has the phase `unknown`."""
        ...

    def checkpoint(self, handle: str) -> None:
        """Ask the processes to save a checkpoint now and go on."""
        ...

    def stop(self, handle: str, grace_s: float) -> None:
        """Ask to end (TERM), and end by force after the grace. Returns at once; `poll` tells when it is over."""
        ...

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """What a slot wrote after a cursor, or the last of it (END); known also after the end, until `forget`."""
        ...

    def forget(self, handle: str) -> None:
        """Remove what is kept about an attempt that is over."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsBatchLaunch(Protocol):
    """An executor that starts several attempts sooner, and for less, than one after another."""

    def launch_all(self, attempts: "Sequence[Attempt]") -> "Sequence[str | FalajError]":
        """The handle of each, in the order asked, or what `launch` would have raised for it."""
        ...


@runtime_checkable
class SupportsOutbox(Protocol):
    """An executor that can read what launchers put into their outbox; elsewhere launchers call the platform."""

    def outbox(self, handle: str, after: str = "") -> tuple[list[dict[str, object]], str]:
        """Facts after a cursor, in order for each slot, and the cursor of now."""
        ...


@runtime_checkable
class SupportsSandbox(Protocol):
    """An executor that keeps what attempts run apart from the machine and from each other."""

    def enforced(self) -> Mapping[str, str]:
        """What of it this machine enforces (user, files, processes, network, calls), and by what; empty: it cannot."""
        ...


@runtime_checkable
class SupportsScaling(Protocol):
    """A cluster whose nodes can be asked for and given back."""

    def templates(self) -> Sequence[NodeInfo]:
        """The kinds of nodes it can make; the label `most` says how many of one kind at most."""
        ...

    def scale(self, template: str, count: int) -> None:
        """Have so many nodes of a kind; those that go first are the idle ones named to `retire`."""
        ...

    def retire(self, nodes: Sequence[str]) -> None:
        """Give these nodes back."""
        ...
