"""What the desk of privacy remembers and answers with. Frozen dataclasses, nothing else."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from falaj.audit.records import InclusionProof
from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.govern.legal_calendars import UTC_CALENDAR, Calendar
from falaj.govern.legal_periods import DutyDeadline
from falaj.privacy.risks import PrivacyRisk

ACCESS, PORTABILITY, CORRECTION, RESTRICTION, OBJECTION, ERASURE, REVIEW = TYPES = (
    "access", "portability", "correction", "restriction", "objection", "erasure", "human-review",
)  # fmt: skip
OPEN, RETAINED, ANSWERED, REFUSED, CLOSED = STATES = ("open", "retained", "answered", "refused", "closed")
"""retained: an erasure of which a part is restricted until a duty to keep it ends; the rest is erased."""
RETRAIN, RETIRE, ACCEPT = DECISIONS = ("retrain", "retire", "accept")
LANGUAGES = ("ar", "en")


@dataclass(frozen=True, slots=True)
class ProcessingPurpose:
    """What data is used for, why that is lawful, and for how long."""

    COLUMNS: ClassVar = ("name", "basis", "regimes", "retention_days", "dpia")

    name: str
    """The word that labels and --purpose say."""
    basis: str
    """One that every regime of the purpose knows."""
    regimes: tuple[str, ...]
    text: Mapping[str, str]
    """By language (ar, en): what people are told."""
    retention_days: int
    dpia: str = ""
    """The assessment it rests on, where there is one."""
    made_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsentRecord:
    """That a person agreed to a purpose, on which words, and whether that still stands."""

    COLUMNS: ClassVar = ("ref", "person", "purpose", "state", "at", "language", "channel")

    ref: Ref
    person: str
    """The pseudonym."""
    purpose: str
    text: str
    """SHA-256 of the words that were shown."""
    language: str
    channel: str
    at: float
    state: str = "given"
    withdrawn_at: float = 0.0
    document: str = ""
    """The digest of what proves it, where something does."""


@dataclass(frozen=True, slots=True)
class ClockStop:
    """A time during which a clock did not run."""

    reason: str
    since: float
    until: float = 0.0
    """0 while it is still stopped."""


@dataclass(frozen=True, slots=True)
class DutyClock:
    """When one regime wants one duty done, with the rule and the calendar this was computed by."""

    COLUMNS: ClassVar = ("regime", "duty", "state", "due", "latest_at", "done_at", "says")

    regime: str
    version: int
    """Of the regime's profile."""
    due: float
    """0 while the clock is stopped, and where the regime sets no deadline or does not apply."""
    state: str
    """running, at-once (due now, the law names no number of hours), stopped, no-deadline or not-applicable."""
    duty: str
    """request, breach (notify the authority) or breach-people (notify the people)."""
    rule: DutyDeadline | None = None
    calendar: Calendar = UTC_CALENDAR
    received: float = 0.0
    latest_at: float = 0.0
    """When it would be due if it were extended; 0 where it cannot be, or was."""
    extended: bool = False
    stops: tuple[ClockStop, ...] = ()
    because: Mapping[str, str] = field(default_factory=dict)
    """Why the regime does not apply, by language (en, ar)."""
    done_at: float = 0.0
    """When the duty was done."""
    waived: bool = False
    """True where the duty was recorded as not owed; `reference` says why."""
    reference: str = ""

    @property
    def says(self) -> str:
        """Return the rule in words with its article, or why there is none."""
        if self.because:
            return f"not applicable because {self.because['en']}"
        if self.rule is None:
            return "its profile sets no such deadline"
        unit = self.rule.unit.removesuffix("s") if self.rule.count == 1 else self.rule.unit
        count = f"{self.rule.count} {unit}" if self.rule.count else unit
        extension = f", extendable by {self.rule.extension}" if self.rule.extension else ""
        return f"{count}{extension}: {self.rule.source.article} (checked: {self.rule.source.checked})"

    @property
    def is_open(self) -> bool:
        """True until the duty was done or found not to be owed."""
        return not (self.done_at or self.waived)


@dataclass(frozen=True, slots=True)
class DerivedItem:
    """Something that learned from a person's rows, or may hold them, and what is decided about it."""

    ref: str
    why: str
    decision: str = ""
    reason: str = ""
    by: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class SubjectRequest:
    """What a person asks for, when it is due, and how far it is."""

    COLUMNS: ClassVar = ("ref", "type", "state", "due", "overdue", "person")

    ref: Ref
    type: str
    state: str
    person: str
    received: float
    due: float
    """By the strictest regime; 0 when none says."""
    clocks: tuple[DutyClock, ...]
    overdue: bool = False
    extended: str = ""
    """Why it takes longer, where it does."""
    answer: str = ""
    """What was answered, or which rule stands against it."""
    closed_at: float = 0.0
    steps: Mapping[str, str] = field(default_factory=dict)
    """Of an erasure: what was done already, and what came of it."""
    held: tuple[str, ...] = ()
    """Of an erasure: what is restricted and retained, until when, under which law."""
    derived: tuple[DerivedItem, ...] = ()


@dataclass(frozen=True, slots=True)
class DataBreach:
    """That data was seen, changed or lost by whom or as it should not, and who was told when."""

    COLUMNS: ClassVar = ("ref", "state", "due", "due_now", "overdue", "nature")

    ref: Ref
    state: str
    nature: str
    found_at: float
    due: float
    """The first deadline that nobody met yet; 0 when there is none."""
    clocks: tuple[DutyClock, ...]
    about: tuple[Ref, ...] = ()
    overdue: bool = False
    due_now: tuple[str, ...] = ()
    """The regimes that want a notice at once and did not get it."""
    people: int = 0
    """How many people are concerned, as far as is known."""
    measures: str = ""
    closed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ImpactAssessment:
    """A data protection impact assessment: one version, approved by somebody else than its author."""

    COLUMNS: ClassVar = ("ref", "purpose", "state", "review_by", "approved_by")

    ref: Ref
    purpose: str
    description: str
    necessity: str
    risks: str
    measures: str
    review_by: str
    """The day somebody must look again; after it, it does not count."""
    state: str = "draft"
    """draft, approved, or expired."""
    author: str = ""
    approved_by: str = ""
    opinion: str = ""
    matrix: tuple[PrivacyRisk, ...] = ()
    """The risks, rated one by one before and after their measures."""
    approved_at: float = 0.0
    written_at: float = 0.0
    approver_roles: tuple[str, ...] = ()
    """The roles of who approved it, when they did."""
    translations: Mapping[str, str] = field(default_factory=dict)
    """What is said in one language only, as `risks.ar`."""


@dataclass(frozen=True, slots=True)
class ErasureCertificate:
    """That a person was erased: a signed statement, and the proof that the log holds the event which names it."""

    request: Ref
    statement: str
    """JSON with its keys in order."""
    digest: str
    """SHA-256 of the statement; the closing event says the same."""
    signature: str
    """Ed25519 over the statement by the key that signs the log, base64."""
    key: str
    proof: InclusionProof
    """Save it as JSON: falaj_verify.py checks it offline."""
    state: str
    """complete: everything was searched afterwards; partial: the statement lists what was not, or is retained."""


@dataclass(frozen=True, slots=True)
class SignedDigest:
    """Somebody's file signed by the key of the log."""

    digest: str
    signature: str
    key: str
    event: str = ""
    """The id of the event in the log that names the digest."""
    proof: InclusionProof | None = None
    """That the log holds this event."""


@dataclass(frozen=True, slots=True)
class RequestPage:
    """The cursor of the next page, empty at the end."""

    items: tuple[SubjectRequest, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class ConsentPage:
    """Some consents and the cursor of the next page, empty at the end."""

    items: tuple[ConsentRecord, ...]
    next: str = ""
