"""Facts and answers of the scheduler, frozen. Amounts are milli-CPU, MiB, milli-GPU; times are whole seconds.

A job asks for roles, each so many slots of one ask; its first role may be elastic. What two jobs must share to be the
same to the scheduler is their shape: it places shapes, and keeps lines of jobs behind them.
"""

from collections.abc import Mapping
from dataclasses import field, fields
from operator import attrgetter
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.executor import Device

BEST_EFFORT, LOW, NORMAL, HIGH, CRITICAL = range(5)
BANDS = ("best-effort", "low", "normal", "high", "critical")

CPU, MEMORY, GPU = "cpu", "memory", "gpu"
MILLI_PER_UNIT = 1000
"""All of one device."""
NEVER = 1 << 60
"""A moment that does not come."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that slots can be put on."""

    name: str
    """Unique over all clusters: `cluster/node`. Ties go to the node that was declared first."""
    cluster: str
    zone: str
    amounts: Mapping[str, int]
    devices: tuple[Device, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False
    price: int = 0
    """Micro-units of money an hour, all of it."""
    hazard: int = 0
    """Expected losses in a thousand hours."""
    leaving: int = NEVER
    """When it goes away; nothing that would outlast it is put there."""
    open: bool = True
    """False while it is drained, ill or unreachable: what runs there may end, nothing new starts."""


TOPOLOGY_LEVELS = {"node": "name", "island": "name", "cluster": "cluster", "zone": "zone"}
"""What every node is in, and which field of it says so; any other level is a label of nodes."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What one slot needs. Equal asks are one class."""

    amounts: tuple[tuple[str, int], ...] = ()
    """Sorted by name; cpu, memory and anything else that nodes count. Never gpu."""
    gpus: int = 0
    """Whole devices, all on one node."""
    milli: int = 0
    """Or a part of one device, 1 to 999."""
    device_mib: int = 0
    """At least so much memory on each device; of a shared one, on our part of it."""
    models: tuple[str, ...] = ()
    """Any of these; empty is any."""
    zones: tuple[str, ...] | None = None
    """Where the law lets it run; None is anywhere."""
    clusters: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    """What the node must say of itself, exactly."""
    spot: bool = False
    """May it lie on a node that can be taken away at short notice."""


@dataclass(frozen=True, slots=True)
class Role:
    """So many slots of one ask."""

    name: str
    ask: SlotRequest
    count: int = 1


@dataclass(frozen=True, slots=True)
class JobShape:
    """All that placement, order and quota need to know of a job. Equal shapes wait in one line."""

    roles: tuple[Role, ...]
    low: int = 0
    high: int = 0
    """How many slots the first role may have instead of its count; 0 when it is not elastic."""
    level: str = ""
    """Keep all slots in one domain of this label: node, island, rack, cluster, or any label of nodes."""
    required: bool = False
    """False: as few domains as can be; True: one, or wait."""
    band: int = NORMAL
    preemptible: bool = True

    @property
    def least(self) -> int:
        """The smallest width it can start with."""
        return self.low or self.roles[0].count

    @property
    def most(self) -> int:
        """The greatest width it can use."""
        return self.high or self.roles[0].count


@dataclass(frozen=True, slots=True)
class SlotPlacement:
    """One slot's place: a node, devices on it, how much of each."""

    node: str
    role: int
    devices: tuple[int, ...] = ()
    milli: int = MILLI_PER_UNIT


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the scheduler sees it, waiting or running."""

    id: str
    queue: str
    """A leaf of the tree."""
    shape: JobShape
    submitted: int
    template: str = ""
    """What its predecessors are known by: who, and which program."""
    deadline: int = NEVER
    limit_s: int = 0
    """It is ended after so long; 0: never."""
    steps: int = 0
    """How many it declared; 0: it did not."""
    done: int = 0
    step_us: int = 0
    """One step in microseconds at the width it last ran with, measured; 0: not yet."""
    seen: int = 0
    """When `done` was counted, while it runs; 0: before it started."""
    served: int = 0
    """Device-seconds (core-seconds where it has none) it was given so far."""
    ran_s: int = 0
    """Seconds it ran so far, in all attempts."""
    evictions: int = 0
    not_before: int = 0
    """Backing off after a refusal of its cluster."""
    # of a job that runs
    spots: tuple[SlotPlacement, ...] = ()
    started: int = 0
    saved: int = 0
    """When it last saved a checkpoint; 0: never in this attempt, or it has none."""
    save_s: int = 0
    """How long saving takes when it is asked to; 0: it does not hear, and saves when it pleases."""
    restart_s: int = 0
    resumes: bool = False
    """True when it goes on from its last checkpoint; else all is lost with it."""
    resized: int = 0
    stopping: int = 0
    """Since when it is being stopped; its places are not free before it is gone."""
    stopped_for: str = ""
    """The job its places are kept for."""
    charged: tuple[tuple[str, int], ...] = ()
    """What is held for it in budgets, by unit; given up for what it cost when it ends."""

    def changed(self, **facts: Any) -> "Job":
        """The same job with other facts: what `dataclasses.replace` makes, in less time."""
        values = [*_read_facts(self)]
        for name, fact in facts.items():
            values[_FACT_POSITIONS[name]] = fact
        return Job(*values)

    @property
    def width(self) -> int:
        """Slots of the first role it has now."""
        return sum([spot.role == 0 for spot in self.spots])

    @property
    def risks(self) -> int:
        """Since when its work would be lost if it were stopped now; NEVER where it saves when it is asked to."""
        if self.resumes and self.save_s:
            return NEVER
        return self.saved if self.resumes and self.saved else self.started


_read_facts = attrgetter(*Job.__slots__)
_FACT_POSITIONS = {name: at for at, name in enumerate(Job.__slots__)}


@dataclass(frozen=True, slots=True)
class QueueBudget:
    """What a queue may spend in a window."""

    unit: str
    """`gpu_s`, `cpu_s` (thousandths of both) or `money` (micro-units)."""
    amount: int
    spent: int = 0
    """Settled in this window."""
    held: int = 0
    """Charged at admission for what runs now, not settled yet."""
    stops: bool = False
    """When it is used up: True, jobs wait; False, they go on as best effort."""
    ends: int = NEVER
    """When its window is over, and it begins anew."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A node of the share tree. Amounts are by quota name: cpu, memory, gpu, and gpu:MODEL for one model."""

    name: str
    """`root/bank/fraud`; its parent is what stands before the last slash."""
    weight: int = 1
    guarantee: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    lend: Mapping[str, int] = field(default_factory=dict)
    """How much of an unused guarantee others may borrow; all of it where nothing is said."""
    top_band: int = HIGH
    """No job of it stands higher."""
    budgets: tuple[QueueBudget, ...] = ()
    usage: int = 0
    """Decayed device-seconds, brought to the moment of the snapshot."""
    ask_band: int = HIGH
    """The highest band that people may raise their jobs to."""


@dataclass(frozen=True, slots=True)
class RuntimeQuantiles:
    """How long jobs of one template and shape ran: quantiles in seconds over the last ones."""

    template: str
    key: str
    """The shape in short: devices and width."""
    count: int
    p25: int
    p90: int
    step_us: int = 0
    """Newest measured time of one step."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A blocked gang's turn to come."""

    job: str
    at: int
    spots: tuple[SlotPlacement, ...]
    cause: str = ""
    """Why it moved later, where it did."""


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What an installation may tune; the defaults are meant to be left alone."""

    half_life_s: int = 86_400
    depth: int = 16
    """So many blocked gangs a pool have a reservation."""
    patience: int = 4
    """A blocked job has its turn reserved when it waited so many times as long as it is expected to run, or a week; at
    once where it is owed to a guarantee, above the normal band, and in danger of its deadline. Sooner would be kinder
    to the few that are large, and dearer for all the others."""
    min_run_s: int = 60
    """Nothing is preempted before it ran so long, except for a guarantee or by a higher band."""
    reclaim_percent: int = 5
    reclaim_window_s: int = 600
    """At most so many percent of a pool are taken back in a window; guarantees are exempt."""
    lost_percent: int = 50
    """Work lost by evictions is at most so much of the work gained."""
    grace_s: int = 600
    """Longest time in seconds that a job may save before it makes room; work that is not saved by then is lost."""
    resize_gap_s: int = 300
    grow: bool = True
    progress_ratio: int = 2
    """A job gives way to one of its queue that has so many times less left to do; 0: never."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "SchedulerOptions":
        """With what an installation says, in words."""
        option_names = {item.name for item in fields(cls)}
        if unknown := sorted(set(settings) - option_names):
            raise Invalid(
                f"the scheduler has no knob {unknown[0]!r:.60}", f"there are {', '.join(sorted(option_names))}"
            )
        if invalid := [name for name, text in settings.items() if not text.isdecimal()]:
            raise Invalid(f"the knob {invalid[0]} is set to {settings[invalid[0]]!r:.60}", "it is a whole number")
        return cls(**{name: type(getattr(cls(), name))(int(text)) for name, text in settings.items()})


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """Everything a decision rests on."""

    now: int
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
    past: tuple[RuntimeQuantiles, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reclaimed: tuple[tuple[str, int, int], ...] = ()
    """(pool, when, milli-GPU) taken back in the last window."""
    knobs: SchedulerOptions = field(default_factory=SchedulerOptions)


@dataclass(frozen=True, slots=True)
class JobStart:
    """Run it there."""

    job: str
    spots: tuple[SlotPlacement, ...]
    band: int
    """Best effort where its budget is used up."""
    why: str
    charged: tuple[tuple[str, int], ...] = ()
    """What budgets hold for it, by unit."""


@dataclass(frozen=True, slots=True)
class JobResize:
    """Let an elastic job have these places instead of those it has."""

    job: str
    spots: tuple[SlotPlacement, ...]
    why: str
    wanted_by: str = ""
    """The job that gets what it gives up; empty when it grows."""


@dataclass(frozen=True, slots=True)
class JobEviction:
    """Save, stop, queue again."""

    job: str
    wanted_by: str
    """The job its places are kept for; empty when its node leaves."""
    grace_s: int
    lost: int
    """Device-seconds of work that go with it."""
    why: str


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a job waits, in one dominant word, and what would start it now."""

    code: str
    """capacity, limit, guarantee-of-others, budget, place, reservation, fragmented, topology, backing-off, stopping,
    impossible, held"""
    text: str
    fix: str = ""
    """The smallest change that starts it now, in words."""
    change: tuple[tuple[str, str], ...] = ()
    """The same for machines: see changes.py."""
    starts: int = NEVER
    """When it is expected to start."""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What one cycle decided, in the order it is to be done."""

    starts: tuple[JobStart, ...] = ()
    resizes: tuple[JobResize, ...] = ()
    evictions: tuple[JobEviction, ...] = ()
    reservations: tuple[Reservation, ...] = ()
