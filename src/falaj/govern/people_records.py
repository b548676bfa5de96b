"""What the people and policy desks remember and answer with."""

from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.label import ANY_VALUE
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """An organisation on this installation."""

    name: str
    title: str = ""
    suspended: bool = False
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class AccountPerson:
    """A person or a service account of a tenant, as the house keeps it."""

    name: str
    kind: str = "person"
    roles: tuple[str, ...] = ()
    projects: tuple[str, ...] = ("*",)
    jurisdiction: str = ""
    suspended: bool = False
    subject: str = ""
    """What an identity provider calls the same human, so that two accounts never count as two people."""
    since: float = 0.0
    enrolled: float = 0.0
    """When the person redeemed the enrolment code; 0 before that, and for service accounts."""
    confirmed: float = 0.0
    """When somebody but the maker of the account confirmed who enrolled; 0 before that. Labelled data waits for it."""
    requested_roles: tuple[str, ...] = ()
    """Deciding roles that count once a second person has confirmed who holds the account."""
    tokens: tuple[str, ...] = ()
    """Ids of tokens that still live."""


@dataclass(frozen=True, slots=True)
class EnrolmentTicket:
    """A one-time code with which a person gets a token. The ledger keeps only the hash of the code."""

    person: Ref
    state: str
    """`ready`: the code can be redeemed. `waiting`: a second person must approve first. `service`: the account has no
    code; a person who holds its rights makes tokens with `people.token`."""
    code: str = ""
    expires: float = 0.0
    approval: str = ""
    """The approval that a reset waits for."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token, shown this once. The house keeps only its hash."""

    person: Ref
    token: str
    id: str
    expires: float
    renewable_until: float = 0.0
    """No renewal of this token lives longer than this."""
    confirmation: str = ""
    """The approval that the person's deciding roles wait for; empty where none waits."""
    fingerprint: str = ""
    """What the person tells whoever confirms, so that both speak of the same enrolment."""


@dataclass(frozen=True, slots=True)
class CallerInfo:
    """Who the house takes you for."""

    id: str
    tenant: str
    kind: str
    roles: tuple[str, ...]
    projects: tuple[str, ...]
    jurisdiction: str
    strong: bool
    behalf: str
    zone: str
    run: str
    expires: float
    credential_by: str
    """The person who made the credential that this call carries."""


@dataclass(frozen=True, slots=True)
class WorkloadIdentity:
    """What a workload token says: one run, in one zone, for one audience, for a few minutes."""

    run: str
    zone: str
    tenant: str
    roles: frozenset[str]
    projects: frozenset[str] = ANY_VALUE
    behalf: str = ""
    jurisdiction: str = ""
    audience: str = "falaj"
    trust: str = ""
    """The trust rule that a build system's token was exchanged under."""
    makers: tuple[str, ...] = ()
    """Who made the credential of the person that the workload acts for (`Actor.makers`)."""


@dataclass(frozen=True, slots=True)
class TrustRule:
    """A build system whose tokens may be exchanged for workload tokens, and what they may then do."""

    issuer: str
    audience: str
    subject: str
    """The exact subject, or a beginning of it with a star at the end."""
    zone: str
    roles: tuple[str, ...] = ("service",)
    projects: tuple[str, ...] = ("*",)
    jurisdiction: str = ""
    name: str = ""
    state: str = "trusted"
    """`waiting` until a second person approved it; then `trusted`."""
    approval: str = ""
    """The approval that it waits for."""


@dataclass(frozen=True, slots=True)
class ExchangedToken:
    """A workload token given for a build system's token."""

    token: str
    expires: float


@dataclass(frozen=True, slots=True)
class PolicyText:
    """One rule, as `falaj policy show` prints it."""

    COLUMNS: ClassVar = ("name", "layer", "effect", "says")

    name: str
    layer: str
    effect: str
    says: str
    text: str
    rev: int = 0


@dataclass(frozen=True, slots=True)
class DecisionExplanation:
    """A decision in full: the answer, the rules, in words, and whether it is the one that was logged."""

    allowed: bool
    action: str
    rules: tuple[str, ...]
    reason: str
    hint: str
    policy: str
    facts: str
    logged: str = ""
    """The id of the event that was replayed."""
    same: bool = True
    """False when the replay differs from what the log says: then the log or the policy was tampered with."""


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One role and what it may do, family by family."""

    role: str
    allows: dict[str, str]
