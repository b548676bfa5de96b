"""What the desk of sweeps takes and gives. Frozen, plain, the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.jobs.records import JobSpec

SAMPLER_NAMES, STOPPER_NAMES = ("tpe", "random", "grid", "qmc"), ("asha", "median", "none")
GOAL_NAMES, TAKE_NAMES = ("min", "max"), ("best", "last")
RUNNING, STOPPING, FINISHED, FAILED, STOPPED = "running", "stopping", "finished", "failed", "stopped"
ENDED_STATES = frozenset({FINISHED, FAILED, STOPPED})
TRIAL_RUNNING, TRIAL_SUCCEEDED, TRIAL_STOPPED, TRIAL_FAILED, TRIAL_CANCELLED = (
    "running",
    "succeeded",
    "stopped",
    "failed",
    "cancelled",
)
"""A trial runs (or waits to), succeeded, was stopped early, failed, or was cancelled by somebody."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is searched, and how."""

    STRUCTURE: ClassVar = (
        "space", "metric", "goal", "trials", "at_once", "sampler", "stopper", "min_steps", "eta", "take", "seed",
        "gang", "give_up",
    )  # fmt: skip

    space: Annotated[tuple[str, ...], "what to vary: lr=log:1e-5..1e-1,width=64|128|256,depth=int:2..8"] = ()
    metric: Annotated[str, "the metric of the run that says how good it is"] = ""
    goal: Annotated[str, "min or max: where good is"] = "min"
    trials: Annotated[int, "how many trials in all"] = 20
    at_once: Annotated[int, "how many at most are asked for and not over"] = 4
    sampler: Annotated[str, "tpe, random, grid or qmc"] = "tpe"
    stopper: Annotated[str, "who stops bad trials early: asha, median or none"] = "asha"
    min_steps: Annotated[int, "no trial is stopped before this step of its metric"] = 1
    eta: Annotated[int, "one of so many goes on, and looks are so many times further apart"] = 3
    take: Annotated[str, "best or last: which value of the metric counts"] = "best"
    seed: Annotated[int, "the same seed and the same results give the same next trial"] = 0
    gang: Annotated[bool, "ask for all at-once together, and for the next when all of them are over"] = False
    give_up: Annotated[int, "end the sweep when so many trials failed before any was good"] = 3

    @property
    def brief(self) -> str:
        """As people say it."""
        return f"{self.goal} {self.metric} over {', '.join(self.space)} by {self.sampler}, {self.stopper}"


@dataclass(frozen=True, slots=True)
class TrialView:
    """One trial as people see it."""

    STRUCTURE: ClassVar = ("number", "state", "job", "run", "outputs")
    COLUMNS: ClassVar[tuple[str, ...]] = ("number", "state", "value", "step", "params", "note", "job")

    number: int
    state: str
    value: float | None
    """The best (or last) value of the metric so far; nothing when there is none, or it is no number."""
    step: int
    params: Mapping[str, Any]
    note: str
    job: Ref
    run: Ref
    outputs: Mapping[str, Ref] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepView:
    """A sweep as its people see it; its trials best first."""

    STRUCTURE: ClassVar = (
        "ref", "state", "progress", "metric", "submitted_at", "author", "plan", "spec", "inputs", "outputs", "code",
        "ended_at", "trials",
    )  # fmt: skip
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "state", "progress", "metric", "value", "note", "submitted_at")

    ref: Ref
    state: str
    progress: str
    metric: str
    value: float | None
    """Of the best trial so far."""
    best: int
    """Its number; 0 when there is none."""
    note: str
    submitted_at: float
    author: str
    plan: SweepPlan
    spec: JobSpec
    inputs: Mapping[str, Ref]
    outputs: Mapping[str, Ref]
    """The names that the best trial's outputs get; pinned once they are there."""
    code: Ref | None = None
    importance: Mapping[str, float] = field(default_factory=dict)
    """How much of the metric's change each parameter explains; together 1."""
    ended_at: float = 0.0
    trials: tuple[TrialView, ...] = ()

    @property
    def over(self) -> bool:
        """True when nothing will change any more."""
        return self.state in ENDED_STATES


@dataclass(frozen=True, slots=True)
class SweepPage:
    """Some sweeps and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("sweeps", "next")

    sweeps: tuple[SweepView, ...]
    next: str = ""


RecordFields = dict[str, Any]
"""A sweep or a trial as it lies in its record: see trials.py."""
