"""What the errands of compliance give. Frozen dataclasses, nothing else."""

from collections.abc import Mapping
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.govern.records import Misplaced

PRESENT, ABSENT, NOT_APPLICABLE = "present", "absent", "not-applicable"


@dataclass(frozen=True, slots=True)
class Demand:
    """One control of the catalogue: what shows it, and what must be true of the figures for it to be shown."""

    id: str
    title: Mapping[str, str]
    files: tuple[str, ...]
    some: tuple[str, ...] = ()
    """Figures that must not be 0."""
    none: tuple[str, ...] = ()
    """Figures that must be 0."""
    reads: tuple[str, ...] = ()
    """Figures that must be known, whatever they are."""
    unless: str = ""
    """Not applicable while this figure is 0."""
    not_covered: tuple[str, ...] = ()
    """What an auditor may want to see and no platform figure shows."""


@dataclass(frozen=True, slots=True)
class Clause:
    """Where a regime asks for a control, how far that was checked."""

    control: str
    clauses: tuple[str, ...]
    source: str
    checked: str


@dataclass(frozen=True, slots=True)
class ControlMap:
    """What one regime or standard asks for, as data with a day on which somebody must look again."""

    id: str
    version: int
    title: Mapping[str, str]
    review_by: str
    notes: tuple[str, ...]
    controls: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """A control and what was found."""

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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was packed, and how each control stands."""

    COLUMNS: ClassVar = ("regime", "out", "size_bytes", "events", "present", "absent", "not_applicable", "digest")

    regime: str
    out: str
    size_bytes: int
    digest: str
    """SHA-256 of evidence.json, which names the digest of everything else: what was vouched for in the log."""
    events: int
    since: float
    until: float
    """The period that was packed: give these to --from and --to to make the same pack again."""
    present: tuple[str, ...]
    absent: tuple[str, ...]
    not_applicable: tuple[str, ...]
    controls: tuple[Judged, ...]
    note: str = "evidence, not certification; verify with: falaj audit verify"


@dataclass(frozen=True, slots=True)
class Census:
    """Every copy the platform knows of, judged again."""

    COLUMNS: ClassVar = ("ok", "things", "copies", "zones", "misplaced")

    ok: bool
    things: int
    copies: int
    zones: Mapping[str, int]
    kinds: Mapping[str, int]
    misplaced: tuple[Misplaced, ...]
    unseen: tuple[str, ...]
    """What no census can see from here, said so that nobody believes it was looked at."""


@dataclass(frozen=True, slots=True)
class Access:
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
class Finding:
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
class Findings:
    """All of them, the worst first. `ok` while there is none that is high."""

    COLUMNS: ClassVar = ("ok", "high", "medium", "low")

    ok: bool
    high: int
    medium: int
    low: int
    findings: tuple[Finding, ...]
    not_looked: tuple[str, ...] = ()
    """What could not be looked at, and why."""
