"""What the errands of compliance give. Frozen dataclasses, nothing else."""

from collections.abc import Mapping
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.govern.records import MisplacedCopy

OPERATING, EXCEPTIONS, ATTESTED, NOT_SHOWN, NOT_APPLICABLE = STATUSES = (
    "operating", "operating-with-exceptions", "attested", "not-shown", "not-applicable",
)  # fmt: skip
PERIOD, STATE, DOCUMENT = "period", "state", "document"
"""What a measure looks at: the whole period, how things stood when the pack was made, or an attached document."""


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A document that shows what no platform fact can: a policy, a plan, a report. It is attached to the pack."""

    word: str
    """What such a document is declared as, on the platform or where a file is enclosed."""
    title: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CatalogueControl:
    """One control of the catalogue: the measures of its operation, and the documents it takes."""

    id: str
    title: Mapping[str, str]
    files: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    """Names of functions in measures.py."""
    documents: tuple[str, ...] = ()
    """Words of documents in the catalogue. Each must be attached for the control to be shown."""
    not_covered: tuple[str, ...] = ()
    """What an auditor may want to see and no platform fact shows."""


@dataclass(frozen=True, slots=True)
class ControlClause:
    """Where a regime asks for a control, and how far that was checked."""

    control: str
    clauses: tuple[str, ...]
    source: str
    checked: str
    url: str = ""
    quote: str = ""
    """The sentence of the source; empty where it was not read."""


@dataclass(frozen=True, slots=True)
class ControlMap:
    """What one regime or standard asks for, as data with a day on which somebody must look again."""

    id: str
    version: int
    title: Mapping[str, str]
    review_by: str
    notes: tuple[str, ...]
    controls: tuple[ControlClause, ...]
    reviewed_by: str = ""
    reviewed_on: str = ""


@dataclass(frozen=True, slots=True)
class MeasureOperation:
    """How one measure of a control operated: how many samples, which of them failed, where nothing covers the time."""

    COLUMNS: ClassVar = ("measure", "basis", "samples", "exceptions", "gaps", "unknown")

    measure: str
    basis: str
    samples: int = 0
    exceptions: tuple[str, ...] = ()
    """The samples that failed, each by name."""
    gaps: tuple[str, ...] = ()
    """Times of the period in which the control did not operate."""
    unknown: str = ""
    """Why it could not be measured."""
    none_means: str = NOT_APPLICABLE
    """What no sample means: not applicable (nothing to control), or not shown (it should have operated)."""
    evidence: tuple[str, ...] = ()
    """The attached documents that show it, each with the start of its digest."""


@dataclass(frozen=True, slots=True)
class ControlJudgement:
    """A control, its status, and the operation the status follows from."""

    COLUMNS: ClassVar = ("id", "status", "title", "clauses", "reason")

    id: str
    status: str
    title: Mapping[str, str]
    reason: str
    clauses: tuple[str, ...] = ()
    source: str = ""
    checked: str = ""
    files: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    operations: tuple[MeasureOperation, ...] = ()
    url: str = ""
    quote: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceReport:
    """What was packed, and how each control stands."""

    COLUMNS: ClassVar = (
        "regime", "out", "size_bytes", "events", "operating", "exceptions", "attested", "not_shown", "not_applicable",
        "digest",
    )  # fmt: skip

    regime: str
    out: str
    size_bytes: int
    digest: str
    """SHA-256 of evidence.json, which names the digest of everything else: what was vouched for in the log."""
    events: int
    since: float
    until: float
    """The period that was packed: give these to --from and --to to make the same pack again."""
    operating: tuple[str, ...]
    exceptions: tuple[str, ...]
    """Operating with exceptions; each exception is listed in the pack."""
    attested: tuple[str, ...]
    """Shown by an attached document alone."""
    not_shown: tuple[str, ...]
    not_applicable: tuple[str, ...]
    controls: tuple[ControlJudgement, ...]
    note: str = "evidence, not certification; verify with: falaj audit verify"


@dataclass(frozen=True, slots=True)
class CopyCensus:
    """Every copy the platform knows of, judged again."""

    COLUMNS: ClassVar = ("ok", "things", "copies", "zones", "misplaced")

    ok: bool
    things: int
    copies: int
    zones: Mapping[str, int]
    kinds: Mapping[str, int]
    misplaced: tuple[MisplacedCopy, ...]
    unseen: tuple[str, ...]
    """What no census can see from here, said so that nobody believes it was looked at."""


@dataclass(frozen=True, slots=True)
class AccountAccess:
    """One account in an access review."""

    COLUMNS: ClassVar = ("name", "roles", "unused_roles", "last_used", "tokens", "answer", "look")

    name: str
    kind: str
    roles: tuple[str, ...]
    projects: tuple[str, ...]
    suspended: bool
    since: float
    last_used: float
    """0: never, as far back as was looked."""
    tokens: int
    unused_roles: tuple[str, ...]
    answer: str
    """kept or removed, by whom and when; empty while nobody answered."""
    look: tuple[str, ...] = ()
    """Why somebody should look."""


@dataclass(frozen=True, slots=True)
class ComplianceFinding:
    """Something that is not as it should be, whose it is, since when, and what to do."""

    COLUMNS: ClassVar = ("severity", "rule", "about", "owner", "since", "what", "fix")

    severity: str
    """high, medium or low."""
    rule: str
    about: str
    what: str
    owner: str
    since: float
    fix: str


@dataclass(frozen=True, slots=True)
class FindingsReport:
    """All of them, the worst first. `ok` while there is none that is high."""

    COLUMNS: ClassVar = ("ok", "high", "medium", "low")

    ok: bool
    high: int
    medium: int
    low: int
    findings: tuple[ComplianceFinding, ...]
    not_looked: tuple[str, ...] = ()
    """What could not be looked at, and why."""
