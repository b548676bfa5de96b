"""Tenants, people, tokens and policies as records: what is kept, what is shown once, what ends at once."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unauthenticated
from falaj.core.operation import PERMISSION_GROUPS, list_operations
from falaj.core.ref import Ref
from falaj.govern.accounts import SERVICE_ROLES, AccountDirectory
from falaj.govern.people import GUEST_ACTOR, PeopleService
from falaj.govern.people_records import TrustRule
from falaj.govern.policy_service import PolicyService
from falaj.govern.roles import PERSON_ROLES
from tests.govern.village import Village


@pytest.fixture
def village(tmp_path: Path) -> Iterator[Village]:
    made = Village(tmp_path)
    yield made
    made.house.ledger.close()


@pytest.fixture
def root(village: Village) -> CallContext:
    issued = village.accounts.found(village.ctx(Actor("house", SYSTEM_TENANT)))
    assert issued is not None
    return village.ctx(village.who(issued))


@pytest.fixture
def admin(village: Village, root: CallContext) -> CallContext:
    return village.ctx(village.who(village.redeem(village.people.add_tenant(root, "bank", "fatima", "First Bank"))))


def test_whom_another_replica_suspended_or_revoked_is_nobody_when_looked_up(
    village: Village, admin: CallContext
) -> None:
    issued = village.enroll(admin, "amal", ("ml-engineer",))
    elsewhere = AccountDirectory(village.house.ledger, "home")
    digest = hashlib.sha256(issued.token.split("_", 2)[2].encode()).hexdigest()
    asked = (issued.id, digest, admin.now())
    assert elsewhere.lookup(*asked) is not None
    village.people.suspend(admin, "amal")
    assert elsewhere.lookup(*asked) is None
    village.people.resume(admin, "amal")
    assert elsewhere.lookup(*asked) is not None
    village.people.revoke(admin, issued.id)
    assert elsewhere.lookup(*asked) is None


# First start, tenants.


def test_first_start_makes_one_account_and_no_second(village: Village) -> None:
    ctx = village.ctx(Actor("house", SYSTEM_TENANT))
    issued = village.accounts.found(ctx)
    assert issued is not None
    assert village.who(issued).roles == {"operator", "tenant-admin"}
    assert village.accounts.found(ctx) is None


def test_two_installations_tokens_do_not_cross(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    villages = [Village(tmp_path / name) for name in "ab"]
    issued = [v.accounts.found(v.ctx(Actor("house", SYSTEM_TENANT))) for v in villages]
    assert issued[0] is not None
    assert issued[1] is not None
    assert issued[0].token != issued[1].token
    assert villages[0].refused(issued[1])
    assert villages[1].refused(issued[0])
    for one in villages:
        one.house.ledger.close()


def test_only_the_house_keeps_tenants(village: Village, admin: CallContext) -> None:
    for ctx in (admin, replace(admin, tenant=SYSTEM_TENANT)):
        with pytest.raises(Denied):
            village.people.add_tenant(ctx, "other", "omar")
        with pytest.raises(Denied):
            village.people.suspend_tenant(ctx, "bank")
        with pytest.raises(Denied):
            village.people.resume_tenant(ctx, "bank")
        with pytest.raises(Denied):
            village.people.list_tenants(ctx)


def test_a_suspended_tenant_stops_at_once_and_comes_back(
    village: Village, root: CallContext, admin: CallContext
) -> None:
    assert village.accounts.standing(admin.actor)[:2] == (True, True)
    village.people.suspend_tenant(root, "bank")
    assert village.accounts.standing(admin.actor)[:2] == (False, True)
    assert village.people.list_tenants(root)[0].suspended
    village.people.resume_tenant(root, "bank")
    assert village.accounts.standing(admin.actor)[:2] == (True, True)
    with pytest.raises(NotFound):
        village.people.suspend_tenant(root, "nobody")


def test_an_unknown_tenant_is_not_active(village: Village) -> None:
    assert village.accounts.standing(Actor("x", "nowhere"))[:2] == (False, True)


@pytest.mark.parametrize("name", ["house", "guest", "", "Bank", "a/b", "../x", "oidc.x", "run.7", "x" * 64, "a b", "é"])
def test_names_that_nobody_can_have(village: Village, root: CallContext, name: str) -> None:
    with pytest.raises(Invalid):
        village.people.add_tenant(root, name, "fatima")
    with pytest.raises(Invalid):
        village.people.add(root, name, ("auditor",))


# Tokens.


def test_the_secret_is_shown_once_and_kept_nowhere(village: Village, admin: CallContext, tmp_path: Path) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",), jurisdiction="AE", projects=("fraud",))
    secret = issued.token.rpartition("_")[2] if issued.token.count("_") == 2 else issued.token[20:]
    actor = village.who(issued)
    assert (actor.id, actor.tenant, actor.kind, actor.jurisdiction) == ("layla", "bank", "person", "AE")
    assert (actor.roles, actor.projects, actor.strong) == ({"data-scientist"}, {"fraud"}, False)
    shown = village.people.show(admin, Ref("person", "people", "layla"))
    assert shown.tokens == (issued.id,)
    log = b"".join(fact.raw for tenant in ("bank", SYSTEM_TENANT) for fact in village.house.ledger.tail(tenant=tenant))
    for hidden in (secret.encode(), hashlib.sha256(secret.encode()).hexdigest().encode()):
        assert hidden not in log
    assert secret not in repr(shown)
    for file in tmp_path.rglob("ledger.db*"):
        assert secret.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"),
        lambda t: t + "A",
        lambda t: t[:-1],
        lambda t: t.replace("fj_", "fj_0", 1),
        lambda t: t.swapcase().replace("FJ_", "fj_", 1),
        lambda t: t + "\n",
        lambda t: "fj_",
        lambda t: f"fj_{'0' * 16}_{'A' * 43}",
        lambda t: "fj_" + t[3:19] + "_" + hashlib.sha256(t[20:].encode()).hexdigest()[:43],
    ],
)
def test_a_token_that_differs_anywhere_is_refused(village: Village, admin: CallContext, change: Any) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",))
    with pytest.raises(Unauthenticated) as refusal:
        village.identity.whois(change(issued.token), village.house.now())
    assert "layla" not in str(refusal.value)


def test_a_token_ends(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",), hours=1)
    village.house.time += 3599
    assert village.who(issued).expires == issued.expires
    village.house.time += 1
    assert village.refused(issued)
    assert village.people.show(admin, Ref("person", "people", "layla")).tokens == ()


def test_reading_who_someone_is_writes_nothing(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",))
    before = len(village.house.ledger.tail(tenant="bank")) + len(village.house.ledger.tail(tenant=SYSTEM_TENANT))
    for _ in range(5):
        village.who(issued)
    assert (
        len(village.house.ledger.tail(tenant="bank")) + len(village.house.ledger.tail(tenant=SYSTEM_TENANT)) == before
    )


def test_a_service_account_has_short_tokens_and_no_human_role(village: Village, admin: CallContext) -> None:
    minter = village.ctx(replace(admin.actor, id="mona", roles=frozenset(PERSON_ROLES)))
    with pytest.raises(Invalid, match="named projects"):
        village.people.add(admin, "loader", ("service",), service=True)
    village.people.add(admin, "loader", ("service",), service=True, projects=("fraud",))
    with pytest.raises(Denied, match="rights that you do not have"):
        village.people.token(admin, "loader")
    issued = village.people.token(minter, "loader")
    assert village.who(issued).kind == "service"
    assert issued.expires == village.house.now() + 3600
    with pytest.raises(Invalid, match="24 hours"):
        village.people.token(minter, "loader", hours=25)
    for role in sorted(PERSON_ROLES - SERVICE_ROLES):
        with pytest.raises(Invalid, match=role):
            village.people.add(admin, "loader2", (role,), service=True, projects=("fraud",))
        with pytest.raises(Invalid, match=role):
            village.people.change(admin, "loader", roles=(role,))
    with pytest.raises(Invalid, match="service"):
        village.people.add(admin, "omar", ("service",))


@pytest.mark.parametrize("hours", [-1.0, 8761.0, float("inf"), float("nan")])
def test_a_lifetime_has_bounds(village: Village, admin: CallContext, hours: float) -> None:
    with pytest.raises(Invalid):
        village.people.add(admin, "layla", ("auditor",), hours=hours)


def test_a_new_token_does_not_end_the_old_one_but_revoking_does(village: Village, admin: CallContext) -> None:
    first = village.enroll(admin, "layla", ("auditor",))
    second = village.people.renew(village.ctx(village.who(first)))
    assert village.who(first).id == village.who(second).id == "layla"
    village.people.revoke(admin, first.id)
    assert village.refused(first)
    assert village.who(second).id == "layla"
    with pytest.raises(NotFound):
        village.people.revoke(admin, first.id)


def test_people_renew_for_themselves_only(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("auditor",))
    layla = village.ctx(village.who(issued))
    assert village.who(village.people.renew(layla)).id == "layla"
    for actor in (
        GUEST_ACTOR,
        replace(layla.actor, id="run.7", kind="workload"),
        replace(layla.actor, id="oidc.layla"),
    ):
        with pytest.raises(Denied):
            village.people.renew(village.ctx(actor))


# Accounts.


def test_suspending_ends_every_token_at_once_and_runs_on_their_behalf(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",))
    layla = village.who(issued)
    run = Actor("run.r7", "bank", "workload", behalf="layla")
    assert village.accounts.standing(run)[:2] == (True, True)
    village.people.suspend(admin, "layla")
    assert village.refused(issued)
    assert village.accounts.standing(layla)[:2] == (True, False)
    assert village.accounts.standing(run)[:2] == (True, False)
    village.people.resume(admin, "layla")
    assert village.who(issued).id == "layla"


def test_someone_only_the_provider_knows_can_be_suspended(village: Village, admin: CallContext) -> None:
    alien = Actor("oidc.Omar", "bank", subject="https://login.example#Omar")
    assert village.accounts.standing(alien) == (True, True, True)  # and the provider vouches for who it is
    village.people.suspend(admin, "oidc.Omar")
    assert village.accounts.standing(alien) == (True, False, True)
    assert village.accounts.standing(replace(alien, tenant=SYSTEM_TENANT)) == (True, True, True)


def test_a_removed_name_is_never_given_again(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",))
    village.people.remove(admin, "layla")
    assert village.refused(issued)
    with pytest.raises(Conflict):
        village.people.add(admin, "layla", ("data-scientist",))
    for act in (village.people.suspend, village.people.resume, village.people.remove, village.people.token):
        with pytest.raises(NotFound):
            act(admin, "layla")


def test_nobody_changes_their_own_account(village: Village, admin: CallContext) -> None:
    with pytest.raises(Denied):
        village.people.change(admin, "fatima", roles=("tenant-admin", "data-scientist"))
    for act in (village.people.suspend, village.people.resume, village.people.remove):
        with pytest.raises(Denied):
            act(admin, "fatima")


def test_a_change_of_roles_holds_for_tokens_already_given(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",))
    village.people.change(admin, "layla", roles=("auditor", "auditor"), projects=("risk", "fraud"), jurisdiction="AE")
    actor = village.who(issued)
    assert (actor.roles, actor.projects, actor.jurisdiction) == ({"auditor"}, {"fraud", "risk"}, "AE")
    with pytest.raises(Invalid):
        village.people.change(admin, "layla", roles=("owner",))
    with pytest.raises(Invalid):
        village.people.change(admin, "layla", projects=("../x",))


def test_a_change_that_is_undone_was_never_seen(village: Village, admin: CallContext) -> None:
    issued = village.enroll(admin, "layla", ("data-scientist",))
    village.who(issued)
    with pytest.raises(NotFound), village.house.ledger.write(admin):  # noqa: PT012 - both acts are one transaction
        village.people.suspend(admin, "layla")
        village.people.suspend(admin, "nobody")
    assert village.who(issued).id == "layla"


def test_another_replica_sees_a_change_within_a_second(
    village: Village, admin: CallContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("falaj.govern.timed_cache.monotonic", lambda: clock)
    issued = village.enroll(admin, "layla", ("data-scientist",))
    other = Village(tmp_path)
    assert other.who(issued).id == "layla"
    village.people.suspend(admin, "layla")
    clock = 1.01
    assert other.refused(issued)
    other.house.ledger.close()


def test_a_tenant_sees_and_touches_only_its_own_people(village: Village, root: CallContext, admin: CallContext) -> None:
    clinic = village.ctx(village.who(village.redeem(village.people.add_tenant(root, "clinic", "omar"))))
    issued = village.enroll(admin, "layla", ("data-scientist",))
    assert [person.name for person in village.people.list(admin)] == ["fatima", "layla"]
    assert [person.name for person in village.people.list(clinic)] == ["omar"]
    assert village.people.list(admin, prefix="la")[0].roles == ("data-scientist",)
    for act in (village.people.suspend, village.people.remove, village.people.token):
        with pytest.raises(NotFound):
            act(clinic, "layla")
    with pytest.raises(NotFound):
        village.people.show(clinic, Ref("person", "people", "layla"))
    with pytest.raises(NotFound):
        village.people.revoke(clinic, issued.id)
    assert village.who(issued).id == "layla"


def test_whoami(village: Village, admin: CallContext) -> None:
    caller = village.people.whoami(admin)
    assert (caller.id, caller.tenant, caller.kind, caller.roles) == ("fatima", "bank", "person", ("tenant-admin",))


def test_every_change_is_an_event_in_its_tenants_log(village: Village, admin: CallContext) -> None:
    village.people.add(admin, "layla", ("auditor",))
    village.people.change(admin, "layla", roles=("dpo",))
    village.people.suspend(admin, "layla")
    village.people.resume(admin, "layla")
    village.people.revoke_run(admin, "r7")
    village.people.remove(admin, "layla")
    assert village.verbs("bank") == [
        *("people.add", "people.code", "people.token", "people.enroll"),  # fatima
        *("people.add", "people.code"),  # layla
        "people.change",
        "people.suspend",
        "people.resume",
        "people.revoke-run",
        "people.remove",
    ]
    assert "people.add-tenant" in village.verbs(SYSTEM_TENANT)


def test_every_verb_is_documented_and_in_a_group() -> None:
    for room in (PeopleService, PolicyService):
        for verb in list_operations(room).values():
            assert verb.group in PERMISSION_GROUPS
            assert "Example:" in verb.doc
            assert all(param.help for param in verb.params if param.name != "what"), verb.name


# Runs and build systems.


def test_a_runs_tokens_end_when_revoked(village: Village, admin: CallContext) -> None:
    from falaj.govern.people_records import WorkloadIdentity

    now = village.house.now()
    token = village.tokens.issue(WorkloadIdentity("r7", "uae", "bank", frozenset({"service"})), now)
    assert village.tokens.verify(token, now).run == "r7"
    village.people.revoke_run(admin, "r7")
    village.people.revoke_run(admin, "r7")
    with pytest.raises(Unauthenticated):
        village.tokens.verify(token, now)


class Issuer:
    """Checks nothing but that the token is the one it knows: the real check is the identity suite's."""

    def __init__(self, **claims: str) -> None:
        self.given = claims

    def claims(self, token: str, now: float, audience: str) -> Mapping[str, Any] | None:
        return self.given if (token, audience) == ("true", "falaj") else None


@pytest.mark.parametrize(
    ("wanted", "subject", "trusted"),
    [
        ("repo:bank/scoring:main", "repo:bank/scoring:main", True),
        ("repo:bank/*", "repo:bank/scoring:main", True),
        ("repo:bank/scoring", "repo:bank/scoring:main", False),
        ("repo:bank/*", "repo:bankrobber/x", False),
        ("repo:bank/*", "", False),
    ],
)
def test_a_trusted_build_system_gets_a_workload_token(tmp_path: Path, wanted: str, subject: str, trusted: bool) -> None:
    village = Village(tmp_path, {"https://ci.example": Issuer(sub=subject)})
    root = village.ctx(Actor("root", SYSTEM_TENANT))
    admin = village.ctx(village.who(village.redeem(village.people.add_tenant(root, "bank", "fatima"))))
    village.trust(admin, "ci", TrustRule("https://ci.example", "falaj", wanted, "uae", projects=("fraud",)))
    guest = village.ctx(GUEST_ACTOR)
    if trusted:
        given = village.people.exchange(guest, "bank", "ci", "true")
        actor = village.tokens.verify(given.token, village.house.now())
        assert (actor.tenant, actor.kind, actor.zone, actor.roles) == ("bank", "workload", "uae", {"service"})
        assert (actor.projects, actor.behalf) == ({"fraud"}, "")
        assert "people.exchange" in village.verbs("bank")
        village.people.distrust(admin, "ci")
    for tenant, trust, token in (
        ("bank", "ci", "false"),
        ("bank", "no", "true"),
        ("other", "ci", "true"),
        ("", "", ""),
    ):
        with pytest.raises(Unauthenticated):
            village.people.exchange(guest, tenant, trust, token)
    with pytest.raises(Unauthenticated):
        village.people.exchange(guest, "bank", "ci", "true")
    village.house.ledger.close()


def test_what_a_build_system_cannot_be_trusted_with(village: Village, admin: CallContext) -> None:
    good = TrustRule("https://ci.example", "falaj", "repo:bank/*", "uae")
    for bad in (
        replace(good, roles=("approver",)),
        replace(good, subject="*"),
        replace(good, subject=""),
        replace(good, issuer=""),
        replace(good, audience=""),
        replace(good, zone=""),
    ):
        with pytest.raises(Invalid):
            village.people.trust(admin, "ci", bad)
