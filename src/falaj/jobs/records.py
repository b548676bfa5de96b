"""What the desk of jobs takes and gives. Frozen, plain, the same on the wire."""

import shlex
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref

WAITING, ON_HOLD, STARTING, RUNNING, STOPPING = "waiting", "held", "starting", "running", "stopping"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
ENDED_STATES = frozenset({SUCCEEDED, FAILED, CANCELLED})
STATES = (WAITING, ON_HOLD, STARTING, RUNNING, STOPPING, SUCCEEDED, FAILED, CANCELLED)
LIVE_STATES = (WAITING, ON_HOLD, STARTING, RUNNING, STOPPING)
WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400)
"""Bounds by which waits of attempts are counted: from at once to a day."""


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """So many slots that each need this much."""

    STRUCTURE: ClassVar = ("name", "count", "cpus", "memory", "gpus", "gpu_models", "gpu_memory", "processes")

    name: str = "worker"
    count: int = 1
    cpus: float = 1.0
    memory: str = "1GiB"
    gpus: float = 0.0
    """Whole devices, or a part of one."""
    gpu_models: tuple[str, ...] = ()
    gpu_memory: str = ""
    processes: int = 0
    """Processes of a slot; one for each GPU when 0."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Anything else that nodes count, by its name."""

    @property
    def brief(self) -> str:
        """As people say it."""
        gpus = f", {self.gpus:g} GPU{'' if self.gpus == 1 else 's'} {'|'.join(self.gpu_models)}" if self.gpus else ""
        return f"{self.count} x {self.name} of {self.cpus:g} CPU, {self.memory}{gpus}".rstrip()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is to be run, and what it needs. References stand beside it, where the guard sees them."""

    STRUCTURE: ClassVar = (
        "roles", "min_workers", "max_workers", "framework", "queue", "band", "deadline", "limit_s", "retries",
        "retry_on", "image", "topology", "isolation", "spot", "cluster", "zone", "steps", "every_s", "save_s",
        "restart_s", "grace_s", "experiment",
    )  # fmt: skip

    command: tuple[str, ...]
    roles: tuple[RoleSpec, ...] = (RoleSpec(),)
    min_workers: int = 0
    max_workers: int = 0
    """The first role may have from min to max slots; 0: exactly its count."""
    framework: str = "plain"
    queue: str = ""
    band: str = "normal"
    deadline: float = 0.0
    limit_s: int = 0
    retries: int = 0
    retry_on: tuple[int, ...] = ()
    """Exit codes that are tried again; any when empty."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable to secret:project/name, or secret://tenant/zone/project/name#version."""
    image: str = ""
    topology: str = ""
    """Keep the slots in one node, island, rack or cluster if it can be; with :required, or wait."""
    isolation: str = "none"
    """none, soft or hard: how a part of a GPU is kept apart from the other parts."""
    spot: bool = False
    cluster: str = ""
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    """How many there are to do, where it is known."""
    every_s: int = 0
    save_s: int = 0
    restart_s: int = 0
    """It saves a checkpoint every so often; saving and starting again take so long. All 0: it never does."""
    grace_s: int = 30
    experiment: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """What only one kind of executor understands."""

    @property
    def brief(self) -> str:
        """As people say it."""
        return f"{shlex.join(self.command)} on {', '.join(role.brief for role in self.roles)}"

    @property
    def resumes(self) -> bool:
        """True when it says that it goes on from its last checkpoint."""
        return self.every_s > 0


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt."""

    STRUCTURE: ClassVar = ("number", "id", "cluster", "nodes", "width", "started", "ended", "code", "admitted")
    COLUMNS: ClassVar[tuple[str, ...]] = ("number", "id", "cluster", "nodes", "width", "started", "ended", "outcome")

    number: int
    id: str
    cluster: str
    nodes: tuple[str, ...]
    width: int
    started: float = 0.0
    ended: float = 0.0
    outcome: str = ""
    """Empty while it lasts; else succeeded, failed, lost, evicted, cancelled, … and why."""
    code: int = 0
    admitted: float = 0.0
    """When it was given its places; its files are brought there until it starts."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its people see it."""

    STRUCTURE: ClassVar = (
        "ref", "state", "queue", "band", "width", "submitted_at", "author", "run", "spec", "inputs", "outputs",
        "code", "after", "zones", "attempts", "ran_s", "gpu_s", "evictions", "ended_at", "reason", "starts_at",
        "saved_at", "person",
    )  # fmt: skip
    KIND: ClassVar = "job"
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "state", "queue", "band", "width", "progress", "note", "submitted_at")

    ref: Ref
    state: str
    queue: str
    band: str
    width: int
    """Slots of all its roles, that it has or asks for."""
    progress: str
    note: str
    """Why it waits, or how it ended."""
    submitted_at: float
    author: str
    run: Ref
    spec: JobSpec
    inputs: Mapping[str, Ref]
    outputs: Mapping[str, Ref]
    """What it writes; pinned once it is published."""
    code: Ref | None
    after: tuple[Ref, ...]
    zones: tuple[str, ...]
    """Where the law lets it run."""
    attempts: tuple[AttemptView, ...]
    step: int = 0
    steps: int = 0
    ran_s: int = 0
    gpu_s: int = 0
    evictions: int = 0
    ended_at: float = 0.0
    reason: str = ""
    starts_at: float = 0.0
    """Of one that waits, where a list was asked why: the reason in one word, and the expected start if one is known."""
    saved_at: float = 0.0
    """When its attempt last saved a checkpoint; 0 for never."""
    person: str = ""
    """Whose it is, whoever asked: a run asks for jobs in somebody's name."""

    @property
    def over(self) -> bool:
        """True when nothing will change any more."""
        return self.state in ENDED_STATES


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("jobs", "next")

    jobs: tuple[JobView, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of one slot's output, and where the next question goes on."""

    TEXT: ClassVar[str] = "lines"

    lines: tuple[str, ...]
    next: str
    attempt: int
    over: bool
    """True when this attempt will say nothing more."""


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """Why a job waits, and what would start it."""

    STRUCTURE: ClassVar = ("job", "state", "reason", "fix", "commands", "change", "starts_at")
    MARKER: ClassVar = "text"
    ABOUT: ClassVar = "job"

    job: Ref
    state: str
    reason: str
    """In one word: capacity, limit, budget, …"""
    text: str
    fix: str = ""
    commands: tuple[str, ...] = ()
    """The fix as it is typed."""
    change: Mapping[str, str] = field(default_factory=dict)
    starts_at: float = 0.0
    """When it is expected to start; 0 when nobody can say."""


@dataclass(frozen=True, slots=True)
class ReportReply:
    """The answer to a launcher that reported."""

    taken: int
    token: str = ""
    """The next token; the old one ends within minutes."""
    stop: bool = False


JobBody = dict[str, Any]
"""A job as it lies in its record: see life.py."""
