"""What the catalog knows of names and of a version's life: aliases, stages, gates, evidence. Frozen, plain."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.govern.records import KeepingDuty


@dataclass(frozen=True, slots=True)
class NameView:
    """A name, with or without versions."""

    STRUCTURE: ClassVar = ("ref", "newest", "count", "aliases", "author", "made_at", "changed_at")
    MARKER: ClassVar = "about"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "newest", "count", "aliases", "about")

    ref: Ref
    newest: str
    """The newest version that was not deleted; empty when there is none."""
    count: int
    """How many versions there ever were."""
    aliases: Mapping[str, str]
    about: str
    tags: Mapping[str, str]
    author: str
    made_at: float
    changed_at: float


@dataclass(frozen=True, slots=True)
class NamePage:
    """Some names and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("names", "next")

    names: tuple[NameView, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """What stays although it should go, and why."""

    STRUCTURE: ClassVar = ("ref", "why", "do", "duties")

    ref: Ref
    why: str
    do: str = ""
    """What somebody can do about it."""
    duties: tuple[KeepingDuty, ...] = ()
    """Each law, hold or contract that keeps it, and until when; none where something else does."""


@dataclass(frozen=True, slots=True)
class AliasBinding:
    """What an alias meant, from when to when, and who saw to it."""

    STRUCTURE: ClassVar = ("alias", "ref", "since", "until", "by", "how", "approval", "approved_by")
    MARKER: ClassVar = "why"
    COLUMNS: ClassVar[tuple[str, ...]] = ("alias", "ref", "since", "until", "by", "approved_by", "how", "why")

    alias: str
    ref: Ref
    since: float
    until: float = 0.0
    """0 while it still does."""
    by: str = ""
    """Whoever asked for it; a loop may have done it."""
    how: str = ""
    """tag, promote, an emergency and what came of it, rollback, or lapse: the way back from one nobody ratified."""
    why: str = ""
    approval: str = ""
    approved_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule of a gate and what was found."""

    STRUCTURE: ClassVar = ("rule", "passed")

    rule: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """Where the wish to bring a version into a stage stands."""

    STRUCTURE: ClassVar = ("ref", "stage", "state", "next", "evidence", "approval", "digest", "before", "until", "ok")
    MARKER: ClassVar = "why"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "stage", "state", "why", "next")

    ref: Ref
    stage: str
    state: str
    """done, waiting or refused."""
    why: str = ""
    next: str = ""
    """What somebody has to do now, as a command."""
    evidence: tuple[RuleResult, ...] = ()
    approval: Ref | None = None
    digest: str = ""
    """What people are asked to approve: the version, the stage, the gate and the evidence."""
    before: Ref | None = None
    """The version that holds the stage, or held it until now."""
    until: float = 0.0
    """Of an emergency: when it is undone, unless others ratify it."""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class GateRules:
    """What a project demands before a version enters a stage."""

    gate: Ref
    stage: str
    rules: tuple[str, ...]
    digest: str
    own: bool
    """False while nobody said anything and the house's own rules stand."""


@dataclass(frozen=True, slots=True)
class VersionAttestation:
    """What somebody found out about a version: a bias test, a scan, a benchmark. Never changed once it is written."""

    STRUCTURE: ClassVar = ("ref", "of", "kind", "passed", "author", "at")
    ABOUT: ClassVar = "of"
    COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "passed", "author", "at", "metrics", "facts")

    ref: Ref
    of: Ref
    kind: str
    passed: bool
    author: str
    at: float
    facts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
