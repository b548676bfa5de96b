"""What the desk of watches takes and gives. Frozen, plain, the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.drift.records import DriftFinding, DriftRules

STATE_OK, STATE_SUSPECT, STATE_CONFIRMED, STATE_ACTING, STATE_COOLING, STATE_FROZEN, STATE_PAUSED = (
    "ok",
    "suspect",
    "confirmed",
    "acting",
    "cooling",
    "frozen",
    "paused",
)
ACTION_RETRAIN, ACTION_ROLLBACK, ACTION_ALERT = "retrain", "rollback", "alert"
INCIDENT_OPEN, INCIDENT_ACKNOWLEDGED, INCIDENT_RESOLVED = "open", "acknowledged", "resolved"


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """What follows from a verdict. Nothing, when nothing is said: people are told."""

    STRUCTURE: ClassVar = ("retrain", "rollback", "cool_s", "most_a_day", "approval")

    retrain: Ref | None = None
    """The flow that is run on confirmed drift or loss of quality."""
    params: Mapping[str, str] = field(default_factory=dict)
    """What the flow is given beside endpoint, model, cause and since."""
    rollback: bool = False
    """Go back to the last good revision when the newest one breaks."""
    cool_s: float = 6 * 3600.0
    """After an action nothing else is done for so long."""
    most_a_day: int = 2
    """Retrainings in 24 hours."""
    approval: bool = False
    """A person must agree before a retraining begins."""


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """What is watched, how closely, and what follows."""

    STRUCTURE: ClassVar = ("every_s", "rules", "segment", "target", "season_s", "latency_ms", "errors", "acting")

    every_s: float = 3600.0
    """How long a window is. Windows of too few rows grow until they have enough."""
    rules: DriftRules = field(default_factory=DriftRules)
    segment: str = ""
    """A column whose values are looked at each by itself (and for fairness)."""
    target: str = ""
    """The label's name in the training data, where it is not told by the model."""
    season_s: float = 0.0
    """Compare with the same time of the period before as well (a day, a week), so that what always returns is no
    drift."""
    latency_ms: float = 0.0
    errors: float = 0.02
    """The 95th percentile and the share of failures that are too much; 0: not looked at."""
    acting: ActionPlan = ActionPlan()

    @property
    def brief(self) -> str:
        """As people say it."""
        acting = self.acting
        action_texts = [f"retrains by {acting.retrain}"] if acting.retrain else []
        action_texts += ["goes back from a broken revision"] if acting.rollback else []
        segment_text = f", by {self.segment}" if self.segment else ""
        return (
            f"looks every {self.every_s:g} s{segment_text}; "
            f"{' and '.join(action_texts) or 'tells people, and does nothing else'}"
        )


@dataclass(frozen=True, slots=True)
class MonitorWindow:
    """What was found in one stretch of time."""

    STRUCTURE: ClassVar = (
        "since",
        "until",
        "revision",
        "rows",
        "findings",
        "state",
        "requests",
        "cost",
        "number",
        "errors",
        "p95_ms",
        "labels",
    )
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("since", "until", "revision", "rows", "alarms", "state")

    since: float
    until: float
    revision: int
    rows: int
    findings: tuple[DriftFinding, ...]
    state: str = STATE_OK
    """Of the watch after this window."""
    requests: int = 0
    cost: float = 0.0
    """Slot seconds of its replicas in this time."""
    number: int = 0
    """Of its revision, from 1 on."""
    errors: int = 0
    p95_ms: float = 0.0
    labels: int = 0
    """Answers of any time whose labels came in this one."""
    note: str = ""
    """What was odd about it: too few rows, late ones, clocks that are ahead."""

    @property
    def alarms(self) -> int:
        """How many findings are alarms."""
        return sum(finding.alarm for finding in self.findings)

    @property
    def brief(self) -> str:
        """As people say it."""
        alarm_texts = [finding.said for finding in self.findings if finding.alarm]
        more_text = f" and {len(alarm_texts) - 3} more" if len(alarm_texts) > 3 else ""
        summary = "; ".join(alarm_texts[:3]) + more_text if alarm_texts else "no alarm"
        note_text = f" ({self.note})" if self.note else ""
        return f"revision {self.revision}, {self.until - self.since:g} s, {self.rows:,} rows: {summary}{note_text}"


@dataclass(frozen=True, slots=True)
class Incident:
    """A finding that lasted, as people work on it."""

    STRUCTURE: ClassVar = (
        "ref",
        "endpoint",
        "state",
        "what",
        "since",
        "opened_at",
        "findings",
        "acknowledged_by",
        "acknowledged_at",
        "resolved_by",
        "resolved_at",
    )
    MARKER: ClassVar = "said"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "state", "what", "since", "said")

    ref: Ref
    """incident:PROJECT/ENDPOINT-N"""
    endpoint: Ref
    state: str
    what: str
    said: str
    since: float
    """When it began, as the windows tell."""
    opened_at: float
    findings: tuple[DriftFinding, ...] = ()
    acknowledged_by: str = ""
    acknowledged_at: float = 0.0
    resolved_by: str = ""
    resolved_at: float = 0.0
    cause: str = ""
    notes: tuple[str, ...] = ()
    more: str = ""
    """On the last of a list that goes on: `after` of what follows."""


@dataclass(frozen=True, slots=True)
class WatchVerdict:
    """What was decided, on what evidence, and what came of it."""

    STRUCTURE: ClassVar = (
        "id",
        "at",
        "action",
        "cause",
        "state",
        "evidence",
        "flow",
        "what",
        "since",
        "revision",
        "run",
    )
    MARKER: ClassVar = "said"
    COLUMNS: ClassVar[tuple[str, ...]] = ("at", "action", "cause", "state", "said")

    id: str
    """The same cause has the same id, whoever decides and however often."""
    at: float
    action: str
    """retrain, rollback or alert."""
    cause: str
    said: str
    state: str
    """proposed, waiting (for a person), begun, done, failed, refused."""
    evidence: tuple[DriftFinding, ...] = ()
    flow: str = ""
    outcome: str = ""
    what: str = ""
    """The kind of trouble: drift, quality, service, fairness or breakage."""
    since: float = 0.0
    """When the trouble began, as the windows tell."""
    revision: int = 0
    run: str = ""
    """The run of the flow."""


@dataclass(frozen=True, slots=True)
class WatchView:
    """A watch as its people see it."""

    STRUCTURE: ClassVar = ("ref", "state", "revision", "plan", "windows", "alarms", "last", "verdicts", "incidents")
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "state", "revision", "windows", "alarms", "note")

    ref: Ref
    """The endpoint."""
    state: str
    revision: int
    plan: WatchPlan
    baseline: str
    """Where the reference comes from."""
    windows: int
    alarms: int
    last: MonitorWindow | None
    verdicts: tuple[WatchVerdict, ...] = ()
    incidents: tuple[Ref, ...] = ()
    note: str = ""
    paused: str = ""
    """Why, and by whom."""
    more: str = ""
    """On the last of a list that goes on: `after` of what follows."""


@dataclass(frozen=True, slots=True)
class WindowPage:
    """Some windows, newest first, and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("windows", "next")

    windows: tuple[MonitorWindow, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class AxisView:
    """One column then and now, as it is drawn: the share of rows in every bin."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("name", "role", "kind")

    name: str
    role: str
    kind: str
    bins: tuple[str, ...]
    """What they are called; the odd ones last."""
    then: tuple[float, ...]
    now: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """What came in some time against the reference: everything that a report shows."""

    ref: Ref | None
    revision: int
    baseline: str
    since: float
    until: float
    rows: int
    seen: int
    """Rows that came; some are left out where counting all of them would cost too much."""
    findings: tuple[DriftFinding, ...]
    axes: tuple[AxisView, ...]
    windows: tuple[MonitorWindow, ...] = ()
    segment: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChallengeResult:
    """A shadow beside the champion, on the same requests. Losses are between 0 and 1, and less is better."""

    ref: Ref
    champion: int
    challenger: int
    """Revisions."""
    pairs: int
    """Requests that both answered, among those that were kept."""
    labelled: int
    same: float
    """How often both said the same."""
    champion_loss: float
    challenger_loss: float
    low: float
    high: float
    """The challenger loses less by between these, however often one looks."""
    p_better: float
    p_worse: float
    verdict: str
    """better, fine (worse by the margin at most), worse or wait."""
    said: str
