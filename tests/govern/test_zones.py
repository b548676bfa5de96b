"""Zones: the desk on a real ledger, grants from proposal to revocation, and what the guard sees of them, when."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.govern.approvals import ApprovalService
from falaj.govern.grants import digest_grant
from falaj.govern.records import DataMovement, GrantState, LegalZone, TransferGrant
from falaj.govern.residency_cache import SNAPSHOT_MAX_AGE_S, ResidencyCache
from falaj.govern.zone_manifest import create_first_zone
from falaj.govern.zones import ZoneService
from falaj.store.codec import from_json, to_json, to_plain
from falaj.store.ledger import Ledger
from tests.govern.places import DAY, DOCUMENT, NOW, REGIMES, Town, keep_document, label, town

THING = Ref("dataset", "fraud", "transactions", "v1")
DOCUMENTS = {"contract": DOCUMENT}
OFFICERS = {"eman": "dpo"}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path) as made:
        keep_document(made)
        made.zones.add(made.house, "eu-west", "IE-D", "IE", ("GDPR", "NONE"), 2, "dir:{home}/eu")
        amal = made.who("amal")
        with made.ledger.write(amal) as tx:
            tx.put(THING, {}, label=label("AE-PDPL", purposes=frozenset({"fraud"})))
            tx.emit("publish", THING)
        yield made


def propose(there: Town, **more: object) -> GrantState:
    asked = {
        "basis": "AE-PDPL:23a", "src": "home", "dst": "eu-west", "scope": "dataset:fraud/*", "purposes": ("fraud",),
        "documents": DOCUMENTS, **more,
    }  # fmt: skip
    return there.zones.grant(there.who("amal", "bank", "data-steward"), **asked)  # type: ignore[arg-type]


def approve(there: Town, state: GrantState, *names: str) -> None:
    for name in names or ("badr", "eman"):
        there.approvals.give(there.who(name, "bank", OFFICERS.get(name, "approver")), state.approval)


def check(there: Town, to: str = "eu-west", **more: str) -> tuple[bool, tuple[str, ...]]:
    verdict = there.zones.check(there.who("amal"), THING, to, **{"purpose": "fraud", **more})
    return verdict.allowed, verdict.rules


ABROAD = (False, ("regime-not-cleared:AE-PDPL",))
GRANTED = (True, ("granted:AE-PDPL",))


# Zones


def test_the_first_zone_is_cleared_for_all_that_can_be_at_home_there() -> None:
    zone = create_first_zone(Settings(), REGIMES)
    assert (zone.id, zone.jurisdiction, zone.max_class) == ("home", "AE", 3)
    assert zone.regimes == ("AE-ADGM", "AE-CBUAE", "AE-DIFC", "AE-HEALTH", "AE-PDPL", "NONE")
    assert create_first_zone(Settings(jurisdiction="DE"), REGIMES).regimes == ("EU-GDPR", "NONE")
    assert create_first_zone(Settings(), None).regimes == zone.regimes
    with pytest.raises(Invalid):
        create_first_zone(Settings(jurisdiction="Mars"), REGIMES)


def test_the_first_zone_is_made_once(here: Town) -> None:
    here.zones.ensure(here.house, replace(create_first_zone(Settings(), REGIMES), max_class=0))
    assert here.zones.show(here.house, "home").max_class == 3
    assert here.events(SYSTEM_TENANT).count("zones.add") == 2


def test_a_zone_is_declared_changed_shown_and_retired(here: Town) -> None:
    more = {
        "operator": "Acme",
        "domicile": "IE",
        "custody": "external",
        "key_jurisdiction": "AE",
        "backup_zone": "eu-west",
    }
    made = here.zones.add(here.house, "eu-north", "SE-AB", "SE", ("EU-GDPR",), 1, "", more)
    assert (made.operator.name, made.custody, made.backup_zone) == ("Acme", "external", "eu-west")
    changed = here.zones.change(
        here.house, "eu-north", {"max_class": "sensitive", "regimes": "GDPR, NONE", "valid_to": "9d"}
    )
    assert (changed.max_class, changed.regimes, changed.valid_to) == (2, ("EU-GDPR", "NONE"), NOW + 9 * DAY)
    assert here.zones.show(here.house, "eu-north") == changed
    assert here.zones.show(here.house, "zone:house/eu-north") == changed
    assert [z.id for z in here.zones.list(here.house)] == ["eu-north", "eu-west", "home"]
    assert here.zones.retire(here.house, "eu-north").active is False
    assert not here.zones.view("bank", NOW).zones["eu-north"].active
    assert here.events(SYSTEM_TENANT) == ["zones.add", "zones.add", "zones.add", "zones.change", "zones.retire"]


def test_zones_belong_to_the_house(here: Town) -> None:
    admin = here.who("amal", "bank", "tenant-admin", "security-officer")
    with pytest.raises(Denied):
        here.zones.add(admin, "mine", "AE-DU", "AE")
    with pytest.raises(Denied):
        here.zones.change(admin, "eu-west", {"max_class": "3"})
    with pytest.raises(Denied):
        here.zones.retire(admin, "eu-west")


def test_a_tenant_sees_the_place_and_not_where_its_machines_answer(here: Town) -> None:
    assert here.zones.show(here.house, "eu-west").store == "dir:{home}/eu"
    assert here.zones.show(here.who("amal"), "eu-west").store == ""
    assert all(zone.store == "" for zone in here.zones.list(here.who("amal")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "Dubai"}, "no name"),
        ({"id": "outside"}, "no name"),
        ({"id": "../x"}, "no name"),
        ({"region": "Dubai"}, "region"),
        ({"region": "IE-D"}, "is not in AE"),
        ({"jurisdiction": "ae"}, "no jurisdiction"),
        ({"regimes": ("XX",)}, "no profile"),
        ({"regimes": ("EU-GDPR",)}, "cannot be cleared for EU-GDPR"),
        ({"max_class": 4}, "class"),
        ({"store": "no address"}, "address"),
        ({"store": "file:///srv/eu"}, "speaks .file."),
        ({"more": {"store": "ftp://eu"}}, "speaks .ftp."),
        ({"more": {"custody": "somewhere"}}, "held"),
        ({"more": {"custody": "external"}}, "place"),
        ({"more": {"key_jurisdiction": "AE"}}, "place"),
        ({"more": {"custody": "external", "key_jurisdiction": "mars"}}, "jurisdiction"),
        ({"more": {"egress_class": "9"}}, "class"),
        ({"more": {"valid_from": "2d", "valid_to": "1d"}}, "end before"),
        ({"more": {"valid_to": "someday"}}, "no time"),
        ({"more": {"jurisdiction": "AE"}}, "a zone has no jurisdiction"),
        ({"more": {"executors": "process"}}, "address"),
    ],
)
def test_a_zone_that_is_wrong_is_refused(here: Town, change: dict[str, object], said: str) -> None:
    fine = {"id": "ae-dubai", "region": "AE-DU", "jurisdiction": "AE", "regimes": ("AE-PDPL",), "max_class": 1}
    with pytest.raises(Invalid, match=said):
        here.zones.add(here.house, **{**fine, **change})  # type: ignore[arg-type]


def test_zones_that_do_not_exist_or_are_stood_in(here: Town) -> None:
    with pytest.raises(NotFound):
        here.zones.show(here.house, "mars")
    with pytest.raises(NotFound):
        here.zones.change(here.house, "mars", {})
    with pytest.raises(NotFound):
        here.zones.change(here.house, "eu-west", {"backup_zone": "mars"})
    with pytest.raises(Conflict):
        here.zones.add(here.house, "eu-west", "IE-D", "IE")
    with pytest.raises(Conflict):
        here.zones.retire(here.house, "home")


def test_regimes_are_shown_with_source_and_review_day(here: Town) -> None:
    shown = here.zones.regimes(here.who("amal"))
    assert len(shown) == len({regime.id for regime in shown}) == 7
    assert all(regime.sources and regime.review_by for regime in shown)


# Grants


def test_a_grant_counts_once_two_people_approved_it_and_until_it_ends(here: Town) -> None:
    assert check(here) == ABROAD
    state = propose(here, more={"expires": "90d", "reason": "the processor is in Dublin"})
    assert state.state == "waiting"
    assert check(here) == ABROAD
    approve(here, state, "badr")
    assert check(here) == ABROAD
    approve(here, state, "eman")
    assert check(here) == GRANTED
    assert [s.state for s in here.zones.grants(here.who("amal"))] == ["active"]
    here.clock.forward(90 * DAY - 1)
    assert check(here) == GRANTED
    here.clock.forward(1)
    assert check(here) == ABROAD
    assert [s.state for s in here.zones.grants(here.who("amal"))] == ["expired"]


def test_one_grant_is_found_by_its_name(here: Town) -> None:
    wanted, _ = propose(here), propose(here, scope="dataset:fraud/other")
    assert here.zones.grants(here.who("amal"), name=wanted.grant.id) == (wanted,)
    assert here.zones.grants(here.who("amal"), name="g-0") == ()


def test_a_grant_is_revoked_at_once(here: Town) -> None:
    state = propose(here)
    approve(here, state)
    assert check(here) == GRANTED
    ref = Ref("grant", "zones", state.grant.id)
    assert here.zones.revoke(here.who("dana", "bank", "dpo"), ref, "the contract ended").state == "revoked"
    assert check(here) == ABROAD
    assert here.zones.grants(here.who("amal"), state="active") == ()


def test_no_from_one_person_ends_a_grant_in_force(here: Town) -> None:
    state = propose(here)
    approve(here, state)
    here.approvals.refuse(here.who("dana", "bank", "dpo"), state.approval, "no")
    assert check(here) == ABROAD
    assert [s.state for s in here.zones.grants(here.who("amal"))] == ["refused"]


def test_the_proposer_has_no_voice_by_any_account_or_question(here: Town) -> None:
    state = propose(here)
    for who in (here.who("amal", "bank", "approver"), here.who("amal-2", "bank", "approver", subject="bank/amal")):
        with pytest.raises(Denied):
            here.approvals.give(who, state.approval)
    approve(here, state, "badr")
    assert check(here) == ABROAD


def test_an_easier_question_about_the_same_digest_opens_nothing(here: Town) -> None:
    """Someone writes the question themselves: one voice, or one that lets the proposer speak."""
    state = propose(here)
    with here.ledger.write(here.who("mallory")) as tx:
        record = tx.need(state.approval)
        easy = {**record.body, "needs": 1, "asker": "mallory", "barred": []}
        tx.put(state.approval, easy, rev=record.rev)
        tx.emit("tamper", record.ref)
    approve(here, state, "badr", "amal")
    assert check(here) == ABROAD


def test_a_grant_that_is_changed_after_approval_is_void(here: Town) -> None:
    state = propose(here)
    approve(here, state)
    ref = Ref("grant", "zones", state.grant.id)
    changes: dict[str, object] = {"scope": "dataset:fraud/tr*", "purposes": ("fraud", "x"), "expires": NOW + 99 * DAY}
    changes |= {"documents": {"contract": "x"}, "dst": "home"}
    for name, value in changes.items():
        wider = replace(state.grant, **{name: value})
        assert digest_grant(wider) != state.digest
        with here.ledger.write(here.who("mallory")) as tx:
            rev = tx.need(ref).rev
            tx.put(ref, to_plain(wider), rev=rev)
            tx.emit("tamper", ref.at(f"r{rev + 1}"))
        here.zones.residency_cache.forget()
        assert here.zones.view("bank", NOW).grants == ()


def test_a_grant_of_another_tenant_is_not_ours(here: Town) -> None:
    state = propose(here)
    approve(here, state)
    assert here.zones.view("rival", NOW).grants == ()
    move = DataMovement("copy", label("AE-PDPL"), str(THING), "rival", "home", "eu-west", "fraud")
    assert not here.zones.verdict(move, NOW).allowed
    assert here.zones.verdict(replace(move, tenant="bank"), NOW).allowed
    assert here.zones.grants(here.who("spy", "rival")) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"basis": "AE-PDPL:24"}, "no transfer basis"),
        ({"basis": "AE-PDPL"}, "no transfer basis"),
        ({"basis": "XX:1"}, "no profile"),
        ({"basis": "NONE:1"}, "no transfer basis"),
        ({"documents": {}}, "demands: contract"),
        ({"documents": {"contract": "trust me"}}, "digest"),
        ({"scope": "*"}, "selects nothing"),
        ({"scope": "dataset:*/x"}, "selects nothing"),
        ({"scope": "dataset:fraud/[a-z]"}, "selects nothing"),
        ({"purposes": ()}, "named purposes"),
        ({"purposes": ("*",)}, "named purposes"),
        ({"dst": "home"}, "one place to another"),
        ({"dst": "outside:mars"}, "no jurisdiction"),
        ({"more": {"expires": "367d"}}, "a year at most"),
        ({"more": {"not_before": "400d", "expires": "800d"}}, "a year at most"),
        ({"more": {"expires": "2001-01-01"}}, "before it begins"),
        ({"more": {"not_before": "5d", "expires": "4d"}}, "before it begins"),
        ({"more": {"max_bytes": "-1"}}, "whole number"),
        ({"more": {"forever": "yes"}}, "a grant has no forever"),
    ],
)
def test_a_grant_that_is_wrong_cannot_be_proposed(here: Town, change: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        propose(here, **change)
    assert here.zones.grants(here.who("amal")) == ()


def test_a_grant_between_zones_that_do_not_exist(here: Town) -> None:
    for change in ({"src": "mars"}, {"dst": "mars"}):
        with pytest.raises(NotFound):
            propose(here, **change)


def test_a_view_from_abroad_by_grant(here: Town) -> None:
    assert check(here, "outside:GB") == ABROAD
    approve(here, propose(here, dst="outside:GB"))
    assert check(here, "outside:GB") == GRANTED
    assert check(here, "outside:FR") == ABROAD
    assert check(here) == ABROAD


def test_check_says_what_place_says_of_every_operation(here: Town) -> None:
    assert check(here, "home", op="read") == (True, ("cleared:AE-PDPL",))
    assert check(here, "home", op="delete") == (True, ())
    assert check(here, "home", purpose="fun") == (False, ("purpose",))
    assert check(here, "mars") == (False, ("zone-unknown",))
    assert check(here, op="teleport") == (False, ("op-unknown",))
    with pytest.raises(NotFound):
        here.zones.check(here.who("amal"), THING.at("v9"), "home")


# What the guard sees, and when


def test_another_replica_sees_a_revocation_within_a_second(here: Town) -> None:
    state = propose(here)
    approve(here, state)
    ticks = [0.0]
    replica = ResidencyCache(here.ledger, REGIMES, clock=lambda: ticks[0])
    assert [g.id for g in replica.of("bank", NOW).grants] == [state.grant.id]
    here.zones.revoke(here.who("dana", "bank", "dpo"), Ref("grant", "zones", state.grant.id), "over")
    ticks[0] = SNAPSHOT_MAX_AGE_S
    assert replica.of("bank", NOW).grants == ()
    assert SNAPSHOT_MAX_AGE_S < 1


def test_the_view_is_kept_between_changes(here: Town) -> None:
    ticks = [0.0]
    kept = ResidencyCache(here.ledger, REGIMES, clock=lambda: ticks[0])
    first = kept.of("bank", NOW)
    assert kept.of("bank", NOW) is first
    kept.forget()
    assert kept.of("bank", NOW) is not first


def test_the_view_is_read_again_beside_those_who_ask(here: Town) -> None:
    ticks, asked = [0.0], list[Callable[[], None]]()
    here.ledger.beside = asked.append
    kept = ResidencyCache(here.ledger, REGIMES, clock=lambda: ticks[0])
    first = kept.of("bank", NOW)
    ticks[0] = 0.8 * SNAPSHOT_MAX_AGE_S
    assert kept.of("bank", NOW) is kept.of("bank", NOW) is first
    (again,) = asked
    again()
    second = kept.of("bank", NOW)
    assert second is not first
    ticks[0] = 1.2 * SNAPSHOT_MAX_AGE_S
    assert kept.of("bank", NOW) is second


def test_a_clock_that_goes_back_is_not_trusted(here: Town) -> None:
    ticks = [100.0]
    kept = ResidencyCache(here.ledger, REGIMES, clock=lambda: ticks[0])
    first = kept.of("bank", NOW)
    ticks[0] = 0.0
    assert kept.of("bank", NOW) is not first


def test_what_is_not_yet_durable_is_seen_by_nobody_else(here: Town) -> None:
    with pytest.raises(ZeroDivisionError), here.ledger.write(here.house):  # noqa: PT012
        here.zones.add(here.house, "ghost", "AE-DU", "AE")
        here.zones.residency_cache.forget()
        assert "ghost" in here.zones.view("bank", NOW).zones
        raise ZeroDivisionError
    assert "ghost" not in here.zones.view("bank", NOW).zones


def test_a_store_that_does_not_answer_is_no_yes(here: Town) -> None:
    here.ledger.close()
    here.zones.residency_cache.forget()
    with pytest.raises(Exception, match="closed"):
        here.zones.view("bank", NOW)


def test_a_view_needs_a_time(here: Town) -> None:
    assert here.zones.view(here.who("amal")).zones.keys() == {"home", "eu-west"}
    with pytest.raises(Invalid):
        here.zones.view("bank")


def test_desks_share_approvals_or_make_their_own(here: Town) -> None:
    alone = ZoneService(here.ledger, REGIMES)
    assert alone.view("bank", NOW).zones.keys() == {"home", "eu-west"}


# The wire


def test_what_the_desk_gives_survives_the_wire(here: Town) -> None:
    state = propose(here)
    amal = here.who("amal")
    results = {
        "grant": state,
        "grants": here.zones.grants(amal),
        "show": here.zones.show(amal, "home"),
        "regimes": here.zones.regimes(amal),
        "check": here.zones.check(amal, THING, "eu-west"),
    }
    verbs = list_operations(ZoneService)
    for name, value in results.items():
        assert from_json(verbs[name].result, to_json(value)) == value
    approval = here.approvals.show(amal, state.approval)
    assert from_json(list_operations(ApprovalService)["show"].result, to_json(approval)) == approval


@pytest.mark.parametrize(("name", "desk"), [("zones", ZoneService), ("approvals", ApprovalService)])
def test_every_verb_teaches_by_an_example(name: str, desk: type) -> None:
    for verb in list_operations(desk).values():
        assert "Example:" in verb.doc, verb.name
        assert f"falaj {name} {verb.name.replace('_', '-')}" in verb.doc
        assert all(param.help for param in verb.params), verb.name
        assert len(verb.params) <= 7


def test_types_for_the_guard(here: Town) -> None:
    places = here.zones.view("bank", NOW)
    zones, regimes, grants = places
    assert isinstance(zones["home"], LegalZone)
    assert regimes["GDPR"].id == "EU-GDPR"
    assert grants == ()
    assert isinstance(here.ledger, Ledger)
    assert isinstance(here.house, CallContext)
    assert isinstance(propose(here).grant, TransferGrant)
