"""What the desk of privacy remembers and answers with. Frozen dataclasses, nothing else."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from falaj.audit.records import Proof
from falaj.core.data import dataclass
from falaj.core.ref import Ref

ACCESS, PORTABILITY, CORRECTION, RESTRICTION, OBJECTION, ERASURE, REVIEW = TYPES = (
    "access", "portability", "correction", "restriction", "objection", "erasure", "human-review",
)  # fmt: skip
OPEN, ANSWERED, REFUSED, CLOSED = STATES = ("open", "answered", "refused", "closed")
DECISIONS = ("retrain", "retire", "accept")
LANGUAGES = ("ar", "en")


@dataclass(frozen=True, slots=True)
class Purpose:
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
class Consent:
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
class Clock:
    """What one regime says about when something is due."""

    regime: str
    version: int
    due: float
    """0: its profile has no such timer."""
    status: str
    """verified, assumed or pending: how far the number was checked."""
    note: str = ""
    extended: float = 0.0
    """When it is due at the latest, where the regime lets it be extended."""
    done: float = 0.0
    """Of a breach: when the authority was told."""
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Derived:
    """Something that learned from a person's rows, or may hold them, and what is decided about it."""

    ref: str
    why: str
    decision: str = ""
    reason: str = ""
    by: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for, when it is due, and how far it is."""

    COLUMNS: ClassVar = ("ref", "type", "state", "due", "overdue", "person")

    ref: Ref
    type: str
    state: str
    person: str
    received: float
    due: float
    """By the strictest regime; 0 when none says."""
    clocks: tuple[Clock, ...]
    overdue: bool = False
    extended: str = ""
    """Why it takes longer, where it does."""
    answer: str = ""
    """What was answered, or which rule stands against it."""
    closed_at: float = 0.0
    steps: Mapping[str, str] = field(default_factory=dict)
    """Of an erasure: what was done already, and what came of it."""
    held: tuple[str, ...] = ()
    """Of an erasure: what the law keeps for now."""
    derived: tuple[Derived, ...] = ()


@dataclass(frozen=True, slots=True)
class Breach:
    """That data was seen, changed or lost by whom or as it should not, and who was told when."""

    COLUMNS: ClassVar = ("ref", "state", "due", "overdue", "nature")

    ref: Ref
    state: str
    nature: str
    found_at: float
    due: float
    """The first deadline that nobody met yet; 0 when there is none."""
    clocks: tuple[Clock, ...]
    about: tuple[Ref, ...] = ()
    overdue: bool = False
    people: int = 0
    """How many people are concerned, as far as is known."""
    measures: str = ""
    closed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Assessment:
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


@dataclass(frozen=True, slots=True)
class Certificate:
    """That a person was erased: a signed statement, and the proof that the log holds the event which names it."""

    request: Ref
    statement: str
    """JSON with its keys in order."""
    digest: str
    """SHA-256 of the statement; the closing event says the same."""
    signature: str
    """Ed25519 over the statement by the key that signs the log, base64."""
    key: str
    proof: Proof
    """Save it as JSON: falaj_verify.py checks it offline."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Somebody's file signed by the key of the log."""

    digest: str
    signature: str
    key: str


@dataclass(frozen=True, slots=True)
class Page:
    """The cursor of the next page, empty at the end."""

    items: tuple[Request, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class ConsentPage:
    """Some consents and the cursor of the next page, empty at the end."""

    items: tuple[Consent, ...]
    next: str = ""
