"""Context: who asks, from where, for what purpose, and what the guard decided. Rooms get one with every call."""

import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Denied
from falaj.core.event import new_id
from falaj.core.label import ANY, Label
from falaj.core.permit import Permit

HOUSE = "house"
"""The tenant and project of the platform's own things: zones, tenants, replicas."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, a service account or a workload, as identity has proven it."""

    id: str
    tenant: str
    kind: str = "person"
    roles: frozenset[str] = frozenset()
    projects: frozenset[str] = ANY
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
class Decision:
    """What the guard found: the answer, the rules that gave it, and what they were evaluated over."""

    allowed: bool
    rules: tuple[str, ...] = ()
    policy: str = ""
    reason: str = ""
    hint: str = ""
    obligations: tuple[str, ...] = ()
    facts: str = ""
    """What the rules were asked about, frozen, so that the decision can be replayed."""


def _unasked(kind: str) -> frozenset[str]:
    raise Denied(
        f"nobody asked which things of kind {kind} may be listed", "this is a path that did not pass the guard"
    )


def _unjudged(record: Any) -> str:
    raise Denied(
        f"nothing checked whether the values of {record.ref} may be shown", "this is a path that did not pass the guard"
    )


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a verb may know of its caller; never global, never thread-local."""

    actor: Actor
    zone: str
    tenant: str = ""
    request: str = field(default_factory=new_id)
    keyed: bool = False
    """True when the caller named the request, so that a repeat must find the first outcome."""
    purpose: str = ""
    now: Callable[[], float] = time.time
    decision: Decision | None = None
    label: Label | None = None
    """What the thing being written must carry: the join of its inputs' labels and the one declared."""
    permits: tuple[Permit, ...] = ()
    asker: Callable[[str, str, str, Label | None], Permit] | None = None
    """The guard's window: asks place() about one more movement of a thing this call named, which carries the label."""
    cells: Callable[[str], frozenset[str]] = _unasked
    """The cells of a kind that this caller may see; lists put them into their query."""
    peer: str = ""
    """The network address of a caller who has no credential yet; recorded when an enrolment code is redeemed."""
    withheld: Callable[[Any], str] = _unjudged
    """Why this caller may not read the values of a record; empty when they may. Searches must not compare those."""
    attempt_kind: str = "job"
    """What attempts of a job added by this call are (core.execute.ATTEMPT_KINDS). Services of the platform set it for
    calls of their own; no request, argument or token can."""

    def __post_init__(self) -> None:
        if not self.tenant:
            object.__setattr__(self, "tenant", self.actor.tenant)

    def ruled(
        self,
        decision: Decision | None,
        asker: Callable[[str, str, str, Label | None], Permit],
        cells: Callable[[str], frozenset[str]],
        withheld: Callable[[Any], str],
    ) -> "Context":
        """The same caller with the guard's decision and windows; written out, since every call passes here."""
        return Context(
            self.actor, self.zone, self.tenant, self.request, self.keyed, self.purpose, self.now, decision, self.label,
            self.permits, asker, cells, self.peer, withheld, self.attempt_kind,
        )  # fmt: skip

    def meaning(self, purpose: str, label: Label | None) -> "Context":
        """The same caller for another purpose, writing what must carry that label; written out for the same reason."""
        return Context(
            self.actor, self.zone, self.tenant, self.request, self.keyed, purpose, self.now, self.decision, label,
            self.permits, self.asker, self.cells, self.peer, self.withheld, self.attempt_kind,
        )  # fmt: skip

    def permit(self, op: str, thing: str, zone: str) -> Permit:
        """The guard's permit to do `op` on `thing` in `zone`, or Denied: nobody asked, so nobody may."""
        for permit in self.permits:
            if permit.op == op and permit.thing == thing and permit.dst == zone:
                return permit
        if self.asker is not None:
            return self.asker(op, thing, zone, self.label)
        raise Denied(
            f"there is no permit to {op} {thing} in zone {zone}", "this is a path that did not pass the guard", thing
        )
