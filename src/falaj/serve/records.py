"""What the desk of endpoints takes and gives. Frozen, plain, the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref

STARTING, READY, DRAINING = "starting", "ready", "draining"
CANARY, SHADOW, AB = "canary", "shadow", "ab"
RUNNING, PROMOTED, ROLLED_BACK, STOPPED, INCONCLUSIVE = "running", "promoted", "rolled back", "stopped", "inconclusive"


@dataclass(frozen=True, slots=True)
class ReplicaNeeds:
    """What one replica needs, and how it runs its model."""

    STRUCTURE: ClassVar = (
        "cpus", "memory", "gpus", "gpu_models", "threads", "queue", "band", "cluster", "zone", "image",
    )  # fmt: skip

    cpus: float = 0.0
    """0: one core, and on a small machine of the platform's own an eighth of its cores."""
    memory: str = "1GiB"
    gpus: float = 0.0
    gpu_models: tuple[str, ...] = ()
    threads: int = 0
    """Threads of one run; 0: one for each whole core."""
    queue: str = ""
    band: str = "high"
    cluster: str = ""
    zone: str = ""
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values are secrets, by reference: what `password=env:NAME` of the online store points at."""


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """How many replicas, and when there are more or fewer."""

    STRUCTURE: ClassVar = ("least", "most", "concurrency", "latency_ms", "idle_s", "keep_s")

    least: int = 1
    """0: none while nobody asks; the first request waits for one."""
    most: int = 1
    concurrency: float = 8.0
    """Requests in flight that one replica should have."""
    latency_ms: float = 0.0
    """More replicas also when the slowest twentieth takes longer; 0: not looked at."""
    idle_s: float = 300.0
    """So long without a request before the last replica goes."""
    keep_s: float = 300.0
    """So long the replicas of the revision before stay after a switch: going back is then at once."""


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """What the gateway holds callers to, and what it writes down."""

    STRUCTURE: ClassVar = (
        "per_s", "burst", "timeout_s", "hold_s", "retries", "hedge_ms", "sample", "keep_days", "tell_s", "sticky",
    )  # fmt: skip

    per_s: float = 0.0
    """Requests a second of one caller; 0: no bound of its own."""
    burst: int = 0
    timeout_s: float = 30.0
    hold_s: float = 60.0
    """How long a request waits for the first replica."""
    retries: float = 0.1
    """Retries are at most this share of requests."""
    hedge_ms: float = 0.0
    """Ask a second replica after so long, and take the first answer; 0: never."""
    sample: float = 0.01
    """The share of requests whose bodies are kept."""
    keep_days: int = 30
    tell_s: float = 10.0
    """How often replicas tell what they counted of what their model is given and answers."""
    sticky: str = ""
    """The header (metadata in gRPC) whose value keeps a caller with one arm; `falaj-key` when empty."""


@dataclass(frozen=True, slots=True)
class EndpointRevision:
    """One model version behind an endpoint. Never changed, only added."""

    STRUCTURE: ClassVar = ("number", "model", "made_at", "made_by", "needs", "features", "code", "root")
    COLUMNS: ClassVar[tuple[str, ...]] = ("number", "model", "made_at", "made_by", "message")

    number: int
    model: Ref
    """Pinned."""
    made_at: float
    made_by: str
    needs: ReplicaNeeds = ReplicaNeeds()
    features: Ref | None = None
    """The feature service, pinned, that the model was trained on: callers then send keys."""
    code: Ref | None = None
    root: str = ""
    """The digest of the model's tree, as it was approved."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """How a new revision gets its traffic, where it does not get all of it as soon as it is ready."""

    kind: str
    """canary, shadow or ab."""
    share: float = 0.1
    judge: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What the judge looks at; see judge.py."""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """All that is said of a new revision beside its model. What is left out is as it was in the revision before."""

    needs: ReplicaNeeds | None = None
    scale: ScalePolicy | None = None
    rules: EndpointRules | None = None
    trial: TrialRequest | None = None
    raw: bool = False
    """Callers send the model's own inputs, though it was trained on a feature service."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the model is given for a feature that is not there."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A change of traffic that is being watched."""

    STRUCTURE: ClassVar = (
        "kind", "arms", "shares", "judge", "plan", "begun_at", "state", "ended_at", "step", "step_at", "bound_us",
    )  # fmt: skip

    kind: str
    """canary, shadow or ab."""
    arms: Mapping[str, int]
    """Name to revision; `base` is what was there before."""
    shares: Mapping[str, float]
    """Name to share of the traffic, summing to 1; of a shadow, the share that is copied."""
    judge: bool = False
    """Decide and act without anybody."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What the judge looks at: metric names, margins, steps, how long at most; see judge.py."""
    begun_at: float = 0.0
    state: str = RUNNING
    why: str = ""
    """The verdict in words, with the figures."""
    ended_at: float = 0.0
    step: int = 0
    """Which of the plan's steps it is at."""
    step_at: float = 0.0
    """When this step began; 0 while the new revision is not ready, and the base has all traffic."""
    bound_us: float = 0.0
    """Answers that take longer count as slow; 0: not known yet."""


@dataclass(frozen=True, slots=True)
class EndpointReplica:
    """One process that answers."""

    STRUCTURE: ClassVar = ("name", "revision", "state", "job", "address", "since")
    COLUMNS: ClassVar[tuple[str, ...]] = ("name", "revision", "state", "job", "address", "since", "note")

    name: str
    revision: int
    state: str
    job: Ref
    address: str = ""
    since: float = 0.0
    note: str = ""

    @property
    def brief(self) -> str:
        """As people say it."""
        return f"{self.name} {self.state}"


@dataclass(frozen=True, slots=True)
class EndpointView:
    """An endpoint as its people see it."""

    STRUCTURE: ClassVar = (
        "ref", "state", "name", "url", "traffic", "revisions", "replicas", "scale", "rules", "rollout", "grpc",
    )  # fmt: skip
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "state", "traffic", "replicas", "url")

    ref: Ref
    state: str
    """starting, ready, asleep (none while nobody asks), failing, or stopped."""
    name: str
    """What clients call the model: PROJECT.ENDPOINT."""
    url: str
    traffic: Mapping[str, float]
    """Revision to share."""
    revisions: tuple[EndpointRevision, ...]
    replicas: tuple[EndpointReplica, ...]
    scale: ScalePolicy
    rules: EndpointRules
    rollout: Rollout | None = None
    note: str = ""
    grpc: str = ""
    """host:port where it is called by gRPC."""


@dataclass(frozen=True, slots=True)
class EndpointPage:
    """Some endpoints and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("endpoints", "next")

    endpoints: tuple[EndpointView, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class CallPermit:
    """That somebody may call an endpoint, and how fast."""

    ref: Ref
    name: str
    per_s: float
    burst: int


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Where and how an endpoint is called."""

    ref: Ref
    url: str
    grpc: str
    name: str
    """What clients call the model."""
    example: str


@dataclass(frozen=True, slots=True)
class GatewayAddresses:
    """Where the gateway is reached."""

    http: str = ""
    """https://host:port; empty while no gateway runs."""
    grpc: str = ""
    """host:port"""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where a replica is reached, for the gateway."""

    name: str
    revision: int
    host: str
    port: int
    fingerprint: str = ""
    """SHA-256 of its certificate; empty: it listens on loopback, in the clear."""


@dataclass(frozen=True, slots=True)
class EndpointRoute:
    """All that the gateway knows of one endpoint."""

    tenant: str
    ref: Ref
    name: str
    """PROJECT.ENDPOINT"""
    zone: str
    label: str
    """The cell's text: what logs are kept under."""
    shares: Mapping[str, tuple[int, float]]
    """Arm to (revision, share); the shares sum to 1."""
    shadow: tuple[int, float] | None
    """(revision, share) that is asked, too, and whose answer nobody sees."""
    live: frozenset[int]
    """Revisions that may be asked for by number."""
    places: tuple[ReplicaAddress, ...]
    key: str
    """What the gateway proves itself to replicas with."""
    rules: EndpointRules
    asleep: bool = False
    """Nothing runs, and a request may wake it."""
    features: Mapping[int, Ref] = field(default_factory=dict)
    rev: int = 0


@dataclass(frozen=True, slots=True)
class MetricJudgement:
    """One metric of one arm against the base. Rates are of bad outcomes: errors, slow answers, 1 - quality."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "metric",
        "n",
        "rate",
        "base_rate",
        "low",
        "high",
        "p_worse",
        "p_fine",
        "verdict",
    )

    metric: str
    margin: float
    base_n: float
    base_rate: float
    n: float
    rate: float
    low: float
    high: float
    """Between these lies the difference, with the confidence asked for, however often one looks."""
    p_worse: float
    p_fine: float
    verdict: str
    """worse, fine or wait."""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """How a roll-out stands."""

    STRUCTURE: ClassVar = ("ref", "kind", "state", "arms", "shares", "step", "steps", "slow_ms")
    MARKER: ClassVar = "why"

    ref: Ref
    kind: str
    state: str
    arms: Mapping[str, int]
    shares: Mapping[str, float]
    step: int
    steps: tuple[float, ...]
    readings: tuple[MetricJudgement, ...]
    slow_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class RequestLogLine:
    """One request that was kept, as people read it. Tensors are lists; what cannot be read is left out."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("at", "id", "arm", "revision", "status", "latency_us", "caller")

    at: float
    id: str
    key: str
    arm: str
    revision: int
    status: int
    latency_us: int
    caller: str
    request: Mapping[str, Any]
    response: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestLogPage:
    """Some lines, newest first, and the cursor of the next page, empty at the end."""

    lines: tuple[RequestLogLine, ...]
    next: str = ""
