"""Context: who asks, from where, for what purpose, and what the guard decided. Rooms get one with every call."""

import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Denied
from falaj.core.event import generate_id
from falaj.core.label import ANY_VALUE, Label
from falaj.core.transfer_permits import TransferPermit

SYSTEM_TENANT = "house"
"""The tenant and project of the platform's own things: zones, tenants, replicas."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, a service account or a workload, as identity has proven it."""

    id: str
    tenant: str
    kind: str = "person"
    roles: frozenset[str] = frozenset()
    projects: frozenset[str] = ANY_VALUE
    subject: str = ""
    """What the identity provider calls this person; two accounts of one subject are one person."""
    behalf: str = ""
    jurisdiction: str = ""
    """Where the actor looks from; empty is unknown, and unknown sees nothing above the open class."""
    strong: bool = False
    """True when more than one factor proved the identity, recently."""
    run: str = ""
    zone: str = ""
    """The only zone a workload may touch; people and services have none."""
    expires: float = 0.0
    credential: str = ""
    """The id of the local token that proved this identity; empty for other proofs."""
    trust: str = ""
    """The trust rule under which a build system's token was exchanged for this workload's."""
    makers: tuple[str, ...] = ()
    """The persons who made this credential, the direct maker last: each made the credential of the next."""
    owns_folder: bool = False
    """True when the operating system, and not a token, proved this person: the owner of an embedded folder."""

    @property
    def credential_by(self) -> str:
        """The person who made this credential; empty when the actor's own proof (an identity provider) did."""
        return self.makers[-1] if self.makers else ""

    @property
    def person(self) -> str:
        """The human (or machine) behind the account, for four-eyes."""
        return self.subject or f"{self.tenant}/{self.id}"


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What the guard found: the answer, the rules that gave it, and what they were evaluated over."""

    allowed: bool
    rules: tuple[str, ...] = ()
    policy: str = ""
    reason: str = ""
    hint: str = ""
    obligations: tuple[str, ...] = ()
    facts: str = ""
    """What the rules were asked about, frozen, so that the decision can be replayed."""


def _deny_listing(kind: str) -> frozenset[str]:
    raise Denied(
        f"nobody asked which things of kind {kind} may be listed", "this is a path that did not pass the guard"
    )


def _deny_showing(record: Any) -> str:
    raise Denied(
        f"nothing checked whether the values of {record.ref} may be shown", "this is a path that did not pass the guard"
    )


@dataclass(frozen=True, slots=True)
class CallContext:
    """Everything a verb may know of its caller; never global, never thread-local."""

    actor: Actor
    zone: str
    tenant: str = ""
    request: str = field(default_factory=generate_id)
    keyed: bool = False
    """True when the caller named the request, so that a repeat must find the first outcome."""
    purpose: str = ""
    now: Callable[[], float] = time.time
    decision: PolicyDecision | None = None
    label: Label | None = None
    """What the thing being written must carry: the join of its inputs' labels and the one declared."""
    permits: tuple[TransferPermit, ...] = ()
    asker: Callable[[str, str, str, Label | None], TransferPermit] | None = None
    """The guard's window: asks place() about one more movement of a thing this call named, which carries the label."""
    cells: Callable[[str], frozenset[str]] = _deny_listing
    """The cells of a kind that this caller may see; lists put them into their query."""
    peer: str = ""
    """The network address of a caller who has no credential yet; recorded when an enrolment code is redeemed."""
    withheld: Callable[[Any], str] = _deny_showing
    """Why this caller may not read the values of a record; empty when they may. Searches must not compare those."""
    attempt_kind: str = "job"
    """What attempts of a job added by this call are (core.execute.ATTEMPT_KINDS). Services of the platform set it for
    calls of their own; no request, argument or token can."""

    def __post_init__(self) -> None:
        if not self.tenant:
            object.__setattr__(self, "tenant", self.actor.tenant)

    def ruled(
        self,
        decision: PolicyDecision | None,
        permit_issuer: Callable[[str, str, str, Label | None], TransferPermit],
        visible_scopes: Callable[[str], frozenset[str]],
        withhold_reason: Callable[[Any], str],
    ) -> "CallContext":
        """The same caller with the guard's decision and windows; written out, since every call passes here."""
        return CallContext(
            self.actor, self.zone, self.tenant, self.request, self.keyed, self.purpose, self.now, decision, self.label,
            self.permits, permit_issuer, visible_scopes, self.peer, withhold_reason, self.attempt_kind,
        )  # fmt: skip

    def meaning(self, purpose: str, label: Label | None) -> "CallContext":
        """The same caller for another purpose, writing what must carry that label; written out for the same reason."""
        return CallContext(
            self.actor, self.zone, self.tenant, self.request, self.keyed, purpose, self.now, self.decision, label,
            self.permits, self.asker, self.cells, self.peer, self.withheld, self.attempt_kind,
        )  # fmt: skip

    def permit(self, operation: str, resource: str, zone: str) -> TransferPermit:
        """The guard's permit to do `operation` on `resource` in `zone`, or Denied: nobody asked, so nobody may."""
        for permit in self.permits:
            if permit.op == operation and permit.thing == resource and permit.dst == zone:
                return permit
        if self.asker is not None:
            return self.asker(operation, resource, zone, self.label)
        raise Denied(
            f"there is no permit to {operation} {resource} in zone {zone}",
            "this is a path that did not pass the guard",
            resource,
        )
