"""What the desk of flows takes and gives. Frozen, plain, the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.jobs.records import JobSpec

WAITING, RUNNING, SUCCEEDED, FAILED, SKIPPED, CANCELLED = (
    "waiting", "running", "succeeded", "failed", "skipped", "cancelled",
)  # fmt: skip
ENDED_STATES = frozenset({SUCCEEDED, FAILED, SKIPPED, CANCELLED})
STEP_FUNCTION, STEP_JOB, STEP_OPERATION, STEP_GATE = "function", "job", "verb", "gate"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: a function of the flow's file or a command, each as a job; a verb of the platform; or a gate."""

    STRUCTURE: ClassVar = ("name", "kind", "after", "entry", "retries", "timeout_s", "cache", "always")

    name: str
    kind: str = STEP_FUNCTION
    after: tuple[str, ...] = ()
    """Steps that must be over first beside those whose results are taken."""
    entry: str = ""
    """`file.py:function`, or desk.verb."""
    takes: Mapping[str, Any] = field(default_factory=dict)
    """Parameter to what it is given: a value, {"ref": "dataset:…"}, {"step": name, "out": name} or {"param": name};
    a dict as {"value": …}, and what holds any of these as {"list": […]} or {"map": {…}}. `"text": true`: not opened."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Output to the name its versions get: dataset:…, model:…"""
    spec: JobSpec | None = None
    over: str = ""
    """The parameter whose list is gone through, one job for each; its results come together as a list."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """{"step": name, "out": name} that must be true (with "not": true, false), or {"all": […]} of them; else this step
    and what needs it are skipped."""
    retries: int = 0
    timeout_s: int = 0
    cache: bool = True
    always: bool = False
    """Run even when a step before it failed: notices, tidying up."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """A flow as data: what its Python file said."""

    STRUCTURE: ClassVar = ("steps", "queue", "at_once")

    steps: tuple[StepPlan, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    """Name to default; None: must be given."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    at_once: int = 8
    """Jobs that run at a time."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one run."""

    STRUCTURE: ClassVar = ("name", "state", "jobs", "tries", "started_at", "ended_at")
    COLUMNS: ClassVar[tuple[str, ...]] = ("name", "state", "jobs", "seconds", "cached", "note")

    name: str
    state: str
    jobs: tuple[Ref, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """References (pinned) and small values."""
    tries: int = 0
    cached: str = ""
    """The run whose result was taken."""
    started_at: float = 0.0
    ended_at: float = 0.0
    note: str = ""

    @property
    def seconds(self) -> float:
        """How long it took, once it is over."""
        return round(max(0.0, self.ended_at - self.started_at), 1) if self.ended_at else 0.0


@dataclass(frozen=True, slots=True)
class RunView:
    """One run of a flow as its people see it."""

    STRUCTURE: ClassVar = ("ref", "flow", "state", "steps", "begun_by", "started_at", "ended_at")
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "state", "done", "begun_by", "started_at", "note")

    ref: Ref
    """turn:PROJECT/FLOW-N"""
    flow: Ref
    """Pinned."""
    state: str
    params: Mapping[str, Any]
    steps: tuple[StepView, ...]
    begun_by: str
    """A person, a schedule, a trigger with its event, or a verdict."""
    cause: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    note: str = ""

    @property
    def over(self) -> bool:
        """True when nothing will change any more."""
        return self.state in ENDED_STATES

    @property
    def done(self) -> str:
        """How far it is."""
        return f"{sum(step_view.state in ENDED_STATES for step_view in self.steps)} of {len(self.steps)}"


@dataclass(frozen=True, slots=True)
class FlowView:
    """A flow with its versions' newest plan."""

    STRUCTURE: ClassVar = ("ref", "plan", "code", "made_at", "made_by", "runs", "schedule")
    MARKER: ClassVar = "message"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "steps", "runs", "schedule", "message")

    ref: Ref
    plan: FlowPlan
    code: Ref | None
    made_at: float
    made_by: str
    runs: int = 0
    schedule: str = ""
    message: str = ""

    @property
    def steps(self) -> str:
        """Their names in order."""
        return " → ".join(step.name for step in self.plan.steps)


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("runs", "next")

    runs: tuple[RunView, ...]
    next: str = ""


RecordBody = dict[str, Any]
"""A flow or a run as it lies in its record: see turns.py."""
