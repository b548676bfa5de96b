"""What governance remembers and answers with. Frozen dataclasses, nothing else; one section per subject."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, NamedTuple

from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.govern.legal_calendars import UTC_CALENDAR, Calendar
from falaj.govern.legal_periods import DutyDeadline, LegalCitation, RegimeExemption, RetentionPeriod

# Places: zones, regimes, grants, and the question whether a thing may go there.


@dataclass(frozen=True, slots=True)
class ZoneOperator:
    """Who runs a zone, and under whose law that company stands."""

    name: str = ""
    domicile: str = ""


@dataclass(frozen=True, slots=True)
class LegalZone:
    """A legal place: where it stands, whose law holds there, what it may keep, who runs it, where its keys are."""

    COLUMNS: ClassVar = ("id", "jurisdiction", "regimes", "max_class", "custody", "active")

    id: str
    region: str
    """ISO 3166-1 or 3166-2: where the machines stand."""
    jurisdiction: str
    """Whose law holds: a country, or a free zone with its own law (AE-DIFC, AE-ADGM)."""
    regimes: tuple[str, ...] = ()
    """The regimes it is cleared for."""
    max_class: int = 0
    operator: ZoneOperator = field(default_factory=ZoneOperator)
    custody: str = "in-zone"
    """Where its keys are held: in-zone, external (then `key_jurisdiction` says where) or none (it can hold no key)."""
    key_jurisdiction: str = ""
    store: str = ""
    """The address of its blob store."""
    executors: tuple[str, ...] = ()
    backup_zone: str = ""
    egress_class: int = 3
    """The highest class that may leave it for the outside at all."""
    active: bool = True
    valid_from: float = 0.0
    valid_to: float = 0.0
    """0: without end."""


@dataclass(frozen=True, slots=True)
class TransferBasis:
    """One lawful way out of a regime's home, and what it demands."""

    id: str
    title: str
    documents: tuple[str, ...] = ()
    """The documents a grant on this basis must name, each by digest."""
    obligations: tuple[str, ...] = ()
    source: LegalCitation = LegalCitation()


@dataclass(frozen=True, slots=True)
class LegalRegime:
    """A law as data, with its source, how far that was checked, and the day someone must look again."""

    COLUMNS: ClassVar = ("id", "version", "status", "localisation", "home", "review_by", "title")

    id: str
    version: int
    title: str
    effective_from: str
    review_by: str
    status: str
    checked: str
    sources: tuple[str, ...]
    localisation: str
    """conditional, or deny-abroad: then nothing but its own grants opens the border."""
    home: tuple[str, ...]
    """Jurisdictions where its data is at home; `*` is everywhere."""
    clearable: tuple[str, ...] = ()
    """Jurisdictions of the same country where a zone may be declared cleared for it."""
    adequate: tuple[str, ...] = ()
    """Jurisdictions its authority has approved; never for a deny-abroad regime."""
    aliases: tuple[str, ...] = ()
    bases: Mapping[str, TransferBasis] = field(default_factory=dict)
    usual: str = ""
    """The basis that hints name first."""
    calendar: Calendar = UTC_CALENDAR
    """Time zone, weekend and public holidays its periods are counted in; a profile names it by id."""
    retention: RetentionPeriod | None = None
    """The shortest time its data is kept; None where the law sets none."""
    deadlines: Mapping[str, DutyDeadline] = field(default_factory=dict)
    """By duty: request, breach, breach-people, grievance."""
    exemptions: tuple[RegimeExemption, ...] = ()
    """Data and controllers it does not apply to; decided for each label by itself (govern/applicability.py)."""
    special_categories: tuple[str, ...] = ()
    """Categories of data with rules of their own."""
    record_contents: tuple[str, ...] = ()
    """What a record of processing must contain, in the order of the law."""
    lawful_bases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    citations: Mapping[str, LegalCitation] = field(default_factory=dict)
    """Where the values that have no `source` of their own come from, by field (regimes.CITED_FIELDS)."""
    reviewed_by: str = ""
    """Who compared the profile with its sources last."""
    reviewed_on: str = ""

    def reaches(self, jurisdiction: str) -> bool:
        """True when a zone there may be cleared for this regime without a grant."""
        return (
            "*" in self.home
            or jurisdiction in self.home
            or jurisdiction in self.clearable
            or jurisdiction in self.adequate
        )


@dataclass(frozen=True, slots=True)
class TransferGrant:
    """Leave for exactly this to go from here to there, on this basis, for these purposes, until then.

    It counts only while two people's approval of its exact digest stands. `dst` is a zone, or `outside:GB`.
    """

    id: str
    tenant: str
    regime: str
    basis: str
    src: str
    dst: str
    scope: str
    purposes: tuple[str, ...]
    documents: Mapping[str, str]
    not_before: float
    expires: float
    max_bytes: int = 0
    """The largest single movement; 0: no limit."""
    author: str = ""
    reason: str = ""
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class GrantState:
    """A grant as lists show it: with its digest, where it stands, and the approval it waits for."""

    grant: TransferGrant
    digest: str
    state: str
    approval: Ref
    more: str = ""
    """On the last of a list that goes on: `after` of what follows."""


SUPPORTED_OBLIGATIONS = ("encrypt", "notify_dpo", "retain_copy_in", "until")
"""The obligations every path of the platform meets by itself; `notify_dpo` by the officer's voice and notice."""


@dataclass(frozen=True, slots=True)
class DutyFacts:
    """What decides how long one version must be kept. Read from the ledger by duty_facts.py."""

    ref: str
    label: Label
    tenant: str
    made_at: float = 0.0
    zones: tuple[str, ...] = ()
    """Where its copies lie."""
    events: Mapping[str, float] = field(default_factory=dict)
    """The recorded date of each event that starts a statutory period, as it counts along lineage."""
    held_sources: tuple[str, ...] = ()
    """Versions it was made from, at any distance, that are under a legal hold."""
    breaches: tuple[str, ...] = ()
    """Open breaches that are about it, or about what it was made from."""
    requests: tuple[str, ...] = ()
    """Open requests of the person in question for a copy of their data."""
    restricted: bool = False
    """True when it is restricted for another reason than an erasure that waits for the end of a duty."""


@dataclass(frozen=True, slots=True)
class KeepingDuty:
    """One reason why a version must be kept: which law, why, until when."""

    STRUCTURE: ClassVar = ("rule", "law", "article", "reason", "hint", "until", "of_ref")
    COLUMNS: ClassVar = ("of_ref", "law", "article", "until", "reason")

    rule: str
    """Of the residency check: hold, min-retain, retain-copy, breach, request, restricted or regime-unknown:R."""
    law: str
    """A regime, `label`, `legal hold`, `breach`, `request` or `restriction`."""
    article: str
    reason: str
    hint: str
    until: float
    """When it ends; 0 while it has no date."""
    of_ref: str


@dataclass(frozen=True, slots=True)
class DataMovement:
    """The question place() answers: may this go there, for this?"""

    op: str
    label: Label
    thing: str
    tenant: str
    src: str = ""
    dst: str = ""
    """A zone; empty for view and egress, whose destination is a jurisdiction."""
    purpose: str = ""
    jurisdiction: str = ""
    """Of the outside destination (a browser is one), from a source we trust."""
    restricted: bool = False
    size: int | None = None
    since: float = 0.0
    """When the thing was written; retention counts from here."""
    facts: "DutyFacts | None" = None
    """Of a deletion: what decides whether the thing must be kept."""
    can: tuple[str, ...] = SUPPORTED_OBLIGATIONS
    """The obligations the caller is able to meet."""


@dataclass(frozen=True, slots=True)
class ResidencyVerdict:
    """The answer: every rule that spoke, in words, what would change it, and what the mover now owes."""

    allowed: bool
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    hint: str = ""
    obligations: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()


class ResidencySnapshot(NamedTuple):
    """The snapshot place() decides over: zones by id, regimes by name and alias, one tenant's grants in force."""

    zones: Mapping[str, LegalZone]
    regimes: Mapping[str, LegalRegime]
    grants: tuple[TransferGrant, ...]


@dataclass(frozen=True, slots=True)
class MisplacedCopy:
    """A copy that place() would not let lie where it lies, or that nothing accounts for."""

    COLUMNS: ClassVar = ("thing", "zone", "rules", "why")

    thing: str
    zone: str
    rules: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class CopyPage:
    """How many things were looked at, their copies by zone, those that lie wrongly, and the cursor of the next page."""

    things: int
    zones: Mapping[str, int]
    misplaced: tuple[MisplacedCopy, ...]
    next: str = ""


# Approvals: who said yes or no to exactly which bytes.


@dataclass(frozen=True, slots=True)
class ApprovalVote:
    """What one actor said, as identity proved that actor at that moment."""

    says: str
    person: str
    actor: str
    kind: str
    roles: tuple[str, ...]
    at: float
    digest: str
    behalf: str = ""
    reason: str = ""
    makers: tuple[str, ...] = ()
    """The persons who made the credential (`Actor.makers`)."""


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """A question put to people about one exact digest, and their answers."""

    action: str
    digest: str
    needs: int
    dpo: int
    """How many of them must be data protection officers."""
    roles: tuple[str, ...]
    asker: str
    """The person who asks; that person's voice never counts."""
    barred: tuple[str, ...]
    """Other persons and accounts whose voice never counts: the authors."""
    reason: str
    asked: float
    expires: float
    about: str = ""
    emergency: bool = False
    voices: tuple[ApprovalVote, ...] = ()
    asker_makers: tuple[str, ...] = ()
    """The persons who made the asker's credential."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """The stored documents it rests on, by what each is for."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else those who decide are shown, such as how many consents are recorded."""


@dataclass(frozen=True, slots=True)
class ApprovalStanding:
    """Where an approval stands: waiting, granted, emergency, refused, expired or lapsed."""

    state: str
    given: int
    missing: int
    missing_dpo: int
    until: float
    why: str
    ratify: bool = False
    """True while an emergency approval holds that others must still ratify."""

    @property
    def granted(self) -> bool:
        """True when enough of the right people said yes, and it still holds."""
        return self.state == "granted"


@dataclass(frozen=True, slots=True)
class ApprovalState:
    """An approval as lists show it."""

    COLUMNS: ClassVar = (
        "ref", "approval.about", "approval.reason", "approval.asker", "standing.state", "standing.why",
        "standing.until",
    )  # fmt: skip

    ref: Ref
    approval: ApprovalQuestion
    standing: ApprovalStanding
    more: str = ""
    """On the last of a list that goes on: `after` of what follows."""


@dataclass(frozen=True, slots=True)
class DeclassificationRecord:
    """A request to lower the label of one exact version, with the method and what proves that it worked."""

    id: str
    thing: Ref
    rev: int
    was: Label
    target: Label
    method: str
    evidence: Mapping[str, str]
    author: str
    reason: str = ""
    result: str = ""
    """The version that was made, once it was."""


# Identity: people, service accounts, tokens.


# Keys and secrets.
