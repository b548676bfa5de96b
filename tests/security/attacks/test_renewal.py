"""Threat-model row "a credential outlives what its issuer allowed": a renewal keeps the origin, the limits and the last
moment of the token that was shown, and a workload's or a build system's token cannot be renewed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Denied, Invalid, Unauthenticated
from falaj.core.ref import Ref
from falaj.govern.people import GUEST_ACTOR
from falaj.govern.people_records import TrustRule, WorkloadIdentity
from tests.govern.test_people import Issuer
from tests.govern.village import Village

HOUR = 3600.0


@pytest.fixture
def village(tmp_path: Path) -> Iterator[Village]:
    ground = Village(tmp_path, {"https://ci.example": Issuer(sub="repo:bank/scoring")})
    yield ground
    ground.house.ledger.close()


@pytest.fixture
def admin(village: Village) -> CallContext:
    return village.open_bank()


def test_token_of_seconds_stays_one_of_seconds(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("auditor",), hours=11 / HOUR)
    layla = village.ctx(village.who(issued))
    with pytest.raises(Denied, match="allows renewals"):
        village.people.renew(layla, hours=8760)
    renewed = village.people.renew(layla)
    assert renewed.expires == pytest.approx(issued.expires)
    village.house.time += 12
    assert village.refused(renewed)


def test_renewals_of_renewals_end_where_the_first_token_says(village: Village, admin: CallContext) -> None:
    village.people.add(admin, "nightly", ("auditor",), service=True, projects=("metrics",))
    token = village.people.token(admin, "nightly", hours=1, renewable=3)
    begun, until = village.house.now(), token.renewable_until
    assert until == begun + 3 * HOUR
    for _ in range(4):
        village.house.time += 0.6 * HOUR
        token = village.people.renew(village.ctx(village.who(token)))
        assert token.renewable_until == until
        assert token.expires <= until
    village.house.time = until
    assert village.refused(token)


def test_renewal_keeps_the_maker_and_the_limits(village: Village, admin: CallContext) -> None:
    village.people.add(admin, "nightly", ("auditor",), service=True, projects=("metrics",))
    token = village.people.token(admin, "nightly", hours=1, renewable=3)
    village.people.change(admin, "nightly", roles=("auditor", "data-scientist"), projects=("fraud", "metrics"))
    renewed = village.who(village.people.renew(village.ctx(village.who(token))))
    assert (renewed.roles, renewed.projects) == ({"auditor"}, {"metrics"})
    assert renewed.credential_by == "bank/fatima"


@pytest.mark.parametrize("renewable", [0.5, 50_000.0, float("nan"), -1.0])
def test_ceiling_is_bounded(village: Village, admin: CallContext, renewable: float) -> None:
    village.people.add(admin, "nightly", ("auditor",), service=True, projects=("metrics",))
    with pytest.raises(Invalid):
        village.people.token(admin, "nightly", hours=1, renewable=renewable)


def test_workload_and_exchanged_tokens_cannot_be_renewed(village: Village, admin: CallContext) -> None:
    now = village.house.now()
    run = village.tokens.verify(
        village.tokens.issue(WorkloadIdentity("r7", "uae", "bank", frozenset({"service"})), now), now
    )
    village.trust(admin, "ci", TrustRule("https://ci.example", "falaj", "repo:bank/*", "uae", projects=("fraud",)))
    exchanged = village.people.exchange(village.ctx(GUEST_ACTOR), "bank", "ci", "true")
    build = village.tokens.verify(exchanged.token, now)
    assert exchanged.expires - now <= 900
    for actor in (
        run,
        build,
        Actor("oidc.x", "bank"),
        replace(GUEST_ACTOR, tenant="bank"),
        Actor("falaj", SYSTEM_TENANT),
    ):
        with pytest.raises(Denied):
            village.people.renew(village.ctx(actor))


def test_exchanged_token_ends_with_its_trust(village: Village, admin: CallContext) -> None:
    now = village.house.now()
    wide = TrustRule("https://ci.example", "falaj", "repo:bank/*", "uae", roles=("service", "ml-engineer"))
    village.trust(admin, "ci", wide)
    token = village.people.exchange(village.ctx(GUEST_ACTOR), "bank", "ci", "true").token
    assert village.tokens.verify(token, now).roles == {"service", "ml-engineer"}
    village.people.distrust(admin, "ci")
    village.trust(admin, "ci", replace(wide, roles=("service",), projects=("fraud",)))
    narrowed = village.tokens.verify(token, now)
    assert (narrowed.roles, narrowed.projects) == ({"service"}, {"fraud"})
    village.people.distrust(admin, "ci")
    with pytest.raises(Unauthenticated):
        village.tokens.verify(token, now)


def test_administrator_alone_trusts_no_build_system(village: Village, admin: CallContext) -> None:
    rule = TrustRule("https://ci.example", "falaj", "repo:bank/*", "uae", roles=("data-scientist",))
    waiting = village.people.trust(admin, "ci", rule)
    assert waiting.state == "waiting"
    assert village.people.trust(admin, "ci", rule).state == "waiting"
    puppet = village.ctx(village.who(village.enroll(admin, "puppet", ("approver",))))
    with pytest.raises(Denied, match="credential was made by the person who asks"):
        village.approvals.give(puppet, Ref.parse(waiting.approval))
    with pytest.raises(Unauthenticated):
        village.people.exchange(village.ctx(GUEST_ACTOR), "bank", "ci", "true")
    village.trust(admin, "ci", rule)
    token = village.people.exchange(village.ctx(GUEST_ACTOR), "bank", "ci", "true").token
    assert village.tokens.verify(token, village.house.now()).credential_by == "bank/fatima"
    # Another rule is another question.
    assert village.people.trust(admin, "wider", replace(rule, roles=("data-scientist", "service"))).state == "waiting"
