"""A small village for the tests of people and policy: accounts, desks and local identity over one encrypted ledger."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from falaj.backends.local_identity import LocalIdentityProvider
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Unauthenticated
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.govern.accounts import AccountDirectory
from falaj.govern.approvals import ApprovalService
from falaj.govern.authorizer import Authorizer
from falaj.govern.people import GUEST_ACTOR, PeopleService
from falaj.govern.people_records import EnrolmentTicket, IssuedToken, TrustRule
from falaj.govern.policy_service import PolicyService
from falaj.govern.workload_tokens import WorkloadTokens
from tests.govern.keyhouse import House

ACTIONS = {
    f"{desk}.{name}": verb.group
    for desk, room in {"people": PeopleService, "policy": PolicyService}.items()
    for name, verb in list_operations(room).items()
} | {"store.get": "read", "store.list": "see"}


class Village:
    """A replica: accounts, people, policy and identity over one encrypted ledger."""

    def __init__(self, home: Path, issuers: Mapping[str, Any] | None = None) -> None:
        self.house = House(home)
        self.accounts = AccountDirectory(self.house.ledger, "uae")
        self.tokens = WorkloadTokens(
            self.house.ring, self.accounts.stopped, partial(self.accounts.refresh, uncached=True)
        )
        self.approvals = ApprovalService(self.house.ledger, self.accounts.person_of)
        issuer = (issuers or {}).__getitem__
        self.people = PeopleService(self.house.ledger, self.accounts, self.tokens, issuer, self.approvals)
        self.authorizer = Authorizer(ACTIONS)
        self.policy = PolicyService(self.house.ledger, self.authorizer, "uae", self.accounts.standing)
        self.identity = LocalIdentityProvider("local:", {"find": self.accounts.lookup})
        self.policy.keep(self.ctx(Actor("house", SYSTEM_TENANT)))

    def ctx(self, actor: Actor) -> CallContext:
        return replace(self.house.ctx(actor.tenant), actor=actor)

    def who(self, issued: IssuedToken) -> Actor:
        actor = self.identity.whois(issued.token, self.house.now())
        assert actor is not None
        return actor

    def refused(self, issued: IssuedToken) -> bool:
        try:
            self.who(issued)
        except Unauthenticated:
            return True
        return False

    def verbs(self, tenant: str) -> list[str]:
        return [fact.event.verb for fact in self.house.ledger.tail(tenant=tenant) if fact.event.verb.startswith("p")]

    def open_bank(self) -> CallContext:
        """A tenant with its administrator, whose context this gives."""
        root = self.ctx(Actor("root", SYSTEM_TENANT, roles=frozenset({"tenant-admin"})))
        return self.ctx(self.who(self.redeem(self.people.add_tenant(root, "bank", "fatima", "First Bank"))))

    def redeem(self, enrolment: EnrolmentTicket) -> IssuedToken:
        """What the person does who was given the code."""
        return self.people.enroll(self.ctx(GUEST_ACTOR), enrolment.code)

    def trust(self, ctx: CallContext, name: str, rule: TrustRule) -> TrustRule:
        """Trust a build system: the caller asks, somebody of the identity provider approves, the caller repeats it."""
        waiting = self.people.trust(ctx, name, rule)
        assert waiting.state == "waiting"
        self.give_as_provider_person(ctx, Ref.parse(waiting.approval))
        return self.people.trust(ctx, name, rule)

    def enroll(self, ctx: CallContext, name: str, roles: tuple[str, ...], **details: Any) -> IssuedToken:
        """Add a person, who redeems the code."""
        issued = self.redeem(self.people.add(ctx, name, roles, **details))
        if issued.confirmation:
            self.give_as_provider_person(ctx, Ref.parse(issued.confirmation))
        return issued

    def give_as_provider_person(self, ctx: CallContext, approval: Ref) -> None:
        """An approver of the tenant whom the identity provider vouches for approves."""
        approver = Actor("oidc.badr", ctx.tenant, roles=frozenset({"approver"}), subject="https://login#badr")
        self.approvals.give(self.ctx(approver), approval)
