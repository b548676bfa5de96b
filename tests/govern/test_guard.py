"""The guard, in a real house: what it lets through, what it refuses, what it leaves behind."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Conflict, CorruptData, Denied, FalajError, NotFound
from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.server import connect
from falaj.services import SERVICES
from tests.people import enroll
from tests.town import LABEL, TEAM, Town, refusal

BLOB = "blob:fraud/customers"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path / "house")
    yield town
    town.close()


@pytest.fixture
def stocked(town: Town) -> Town:
    town.as_("amal").store.put(BLOB, b"rows", label=LABEL)
    return town


def test_what_is_read_is_an_event_about_the_exact_version(stocked: Town) -> None:
    stocked.as_("amal").store.show(BLOB)
    [event] = stocked.events(verb="store.show")
    assert (event.actor, str(event.subject)) == ("amal", f"{BLOB}@v1")
    assert event.policy
    assert event.rules == ("role-data-scientist-see",)


def test_an_act_outside_the_ledger_leaves_intent_and_outcome(stocked: Town) -> None:
    stocked.as_("amal").store.get(BLOB).read()
    phases = [event.body["phase"] for event in stocked.events(verb="store.get")]
    assert phases == ["intent", "outcome"]


def test_an_act_that_fails_says_how(stocked: Town) -> None:
    house = stocked.house
    for file in (Path(house.settings.home) / "blobs").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    assert refusal(lambda: stocked.as_("amal").store.get(BLOB).read()).code == "corrupt"


def test_a_refusal_is_an_event(stocked: Town) -> None:
    error = refusal(lambda: stocked.as_("fatima").store.get(BLOB))
    assert isinstance(error, Denied)
    [event] = stocked.events(verb="guard.deny")
    assert (event.actor, event.body["action"], event.body["about"]) == ("fatima", "store.get", BLOB)


def test_the_log_about_a_thing_has_what_was_refused(stocked: Town) -> None:
    """Refusals are found by what they are about, among what was done to it; also where it never came to be."""
    amal, log = stocked.as_("amal"), stocked.as_("omar").audit.log
    refusal(lambda: stocked.as_("fatima").store.get(BLOB))
    refusal(lambda: amal.store.put("blob:fraud/never", b"x", label="AE-CBUAE", zone="eu-west"))
    refusal(lambda: amal.store.put(f"{BLOB}2", b"x", label="AE-CBUAE", zone="eu-west"))
    amal.store.show(BLOB)
    told = [(each.verb, each.actor) for each in log(BLOB).entries]
    assert told[:2] == [("store.show", "amal"), ("guard.deny", "fatima")]
    assert [each for each in told if each[0] == "guard.deny"] == [("guard.deny", "fatima")]
    assert [each.body["action"] for each in log("blob:fraud/never").entries] == ["store.put"]
    assert [each.verb for each in log(BLOB, verb="store.show guard.deny").entries] == ["store.show", "guard.deny"]
    assert {each.verb for each in log(BLOB, verb="store.show").entries} == {"store.show"}
    assert [each.verb for each in log(BLOB, actor="fatima").entries] == ["guard.deny"]
    first = log(BLOB, limit=1)
    assert [each.verb for each in log(BLOB, older=first.older, limit=1).entries] == ["guard.deny"]


def test_another_tenant_cannot_tell_that_a_thing_exists(stocked: Town) -> None:
    there = refusal(lambda: stocked.as_("sara").store.get(BLOB))
    nowhere = refusal(lambda: stocked.as_("sara").store.get("blob:fraud/nothing"))
    assert type(there) is type(nowhere) is NotFound
    assert there.message.replace("customers", "nothing") == nowhere.message
    assert there.hint == nowhere.hint


def test_who_may_not_see_a_project_hears_that_there_is_nothing(stocked: Town) -> None:
    token = enroll(stocked.as_("fatima"), "visitor", ("data-scientist",), projects=("other",), jurisdiction="AE")
    stocked.tokens["visitor"] = token
    assert isinstance(refusal(lambda: stocked.as_("visitor").store.show(BLOB)), NotFound)
    assert stocked.as_("visitor").store.list().entries == ()
    assert [event.body["about"] for event in stocked.events(verb="guard.deny")] == [BLOB]


def test_labels_travel_with_lineage_and_cannot_be_left_behind(stocked: Town) -> None:
    amal = stocked.as_("amal")
    derived = amal.store.put("blob:fraud/scores", b"scores", inputs=(BLOB,), label="AE-HEALTH,confidential")
    label = amal.store.show(derived).label
    assert label == Label.parse("AE-PDPL,AE-HEALTH,sensitive,purpose=fraud")
    [made] = [e for e in stocked.events(verb="store.put") if str(e.subject) == str(derived) and e.inputs]
    assert [str(ref) for ref in made.inputs] == [f"{BLOB}@v1"]


def test_a_new_version_is_never_under_a_lower_label(stocked: Town) -> None:
    amal = stocked.as_("amal")
    again = amal.store.put(BLOB, b"other rows", label="NONE")
    assert amal.store.show(again).label.covers(Label.parse(LABEL))


def test_a_purpose_is_demanded_and_checked(stocked: Town) -> None:
    assert "fraud" in refusal(lambda: stocked.as_("amal", "").store.get(BLOB)).message
    assert isinstance(refusal(lambda: stocked.as_("amal", "marketing").store.get(BLOB)), Denied)


def test_a_named_request_happens_once(town: Town) -> None:
    house, room = town.house, town.house.desks["approvals"]
    verb = list_operations(type(room))["ask"]
    ctx = house.context(town.actor("amal"), request_id="request-1")
    wish = {"action": "zones.grant", "digest": "sha256:" + "a" * 64, "reason": "first"}
    first = house.guard.call("approvals", room, verb, ctx, wish)
    again = house.guard.call("approvals", room, verb, ctx, wish)
    assert first == again
    asked = [
        event for event in town.events(verb="approvals.ask", actor="amal") if event.body["action"] == "zones.grant"
    ]
    assert len(asked) == 1
    other = {**wish, "digest": "sha256:" + "b" * 64}
    with pytest.raises(Conflict):
        house.guard.call("approvals", room, verb, ctx, other)


def test_a_permit_is_only_for_what_the_call_named(stocked: Town) -> None:
    """A verb that asks for storage beyond its declared references gets nothing."""

    class Nosy:
        def show(self, ctx: Any, name: Ref) -> str:
            ctx.permit("read", "blob:fraud/other", "ae-dubai")
            return "opened"

    house = stocked.house
    show = list_operations(type(house.desks["store"]))["show"]
    with pytest.raises(Denied, match="never named"):
        house.guard.call(
            "store", Nosy(), show, house.context(stocked.actor("amal"), purpose="fraud"), {"name": Ref.parse(BLOB)}
        )


def test_a_logged_decision_replays_bit_for_bit(stocked: Town) -> None:
    stocked.as_("amal").store.show(BLOB)
    [event] = stocked.events(verb="store.show")
    told = stocked.as_("amal").policy.explain(event.id)
    assert told.same
    assert told.allowed


def test_a_new_rule_of_the_tenant_binds_at_once_and_the_past_still_replays(stocked: Town) -> None:
    stocked.as_("amal").store.show(BLOB)
    [before] = stocked.events(verb="store.show")
    rule = 'forbid (principal, action in Action::"see", resource) when { resource.project == "fraud" };'
    stocked.as_("fatima").policy.add("hide-fraud", rule)
    assert isinstance(refusal(lambda: stocked.as_("amal").store.show(BLOB)), NotFound)
    assert stocked.as_("amal").policy.explain(before.id).same


def test_a_suspended_account_and_tenant_stop_at_once(stocked: Town) -> None:
    amal, boss, admin = stocked.as_("amal"), stocked.as_("fatima"), stocked.as_("admin")
    boss.people.suspend("amal")
    assert isinstance(refusal(lambda: amal.store.show(BLOB)), (Denied, NotFound))
    boss.people.resume("amal")
    assert amal.store.show(BLOB).size_bytes == 4
    admin.people.suspend_tenant("bank")
    assert isinstance(refusal(lambda: amal.store.show(BLOB)), (Denied, NotFound))


def test_lists_show_exactly_what_direct_questions_would(town: Town) -> None:
    """Random things under random labels; each person's list equals the things they can show one by one."""
    dice = random.Random(7)
    boss = town.as_("fatima")
    boss.policy.add(
        "no-secrets", 'forbid (principal, action in Action::"see", resource) when { resource.classification >= 3 };'
    )
    town.tokens["narrow"] = enroll(boss, "narrow", ("data-scientist",), projects=("a",), jurisdiction="AE")
    made = []
    for n in range(24):
        level = dice.choice(["open", "confidential", "sensitive", "secret"])
        name = f"blob:{dice.choice('abc')}/t{n}"
        town.as_("salem").store.put(name, bytes([n]), label=f"AE-PDPL,{level},purpose=fraud")
        made.append(name)
    for who in ("amal", "narrow", "fatima", "badr", "omar", "sara"):
        direct = {name for name in made if _can(lambda w=who, n=name: town.as_(w).store.show(n))}
        listed = {str(entry.ref.bare) for entry in _listed(town, who)}
        assert listed == direct, who


def _listed(town: Town, who: str) -> tuple[Any, ...]:
    try:
        entries: tuple[Any, ...] = town.as_(who).store.list(limit=1000).entries
    except FalajError:
        return ()
    return entries


def _can(act: Any) -> bool:
    try:
        act()
    except FalajError:
        return False
    return True


def test_an_administrator_reads_no_data_and_an_auditor_writes_none(stocked: Town) -> None:
    for boss in ("fatima", "admin"):
        assert isinstance(refusal(lambda b=boss: stocked.as_(b).store.get(BLOB)), (Denied, NotFound))
        assert isinstance(refusal(lambda b=boss: stocked.as_(b).store.copy(BLOB, to="eu-west")), (Denied, NotFound))
    assert isinstance(refusal(lambda: stocked.as_("omar").store.put("blob:fraud/x", b"", label="NONE")), Denied)
    assert isinstance(refusal(lambda: stocked.as_("omar").store.get(BLOB)), Denied)


def test_tenants_do_not_interfere(tmp_path: Path) -> None:
    """What the clinic observes is the same whether or not the bank is busy beside it."""
    quiet, busy = Town(tmp_path / "quiet"), Town(tmp_path / "busy")
    try:
        for n in range(20):
            busy.as_("amal").store.put(f"blob:trial/t{n % 5}", bytes([n]), label=LABEL)
        assert _observe(quiet) == _observe(busy)
    finally:
        quiet.close()
        busy.close()


def _observe(town: Town) -> list[str]:
    """A walk of the clinic's scientist over names both tenants may use; times are not compared."""
    sara, seen = town.as_("sara", "care"), []
    dice = random.Random(11)
    for n in range(40):
        name = f"blob:trial/t{dice.randrange(6)}"
        act = dice.choice(["put", "get", "show", "list", "copy", "usage", "check"])
        seen.append(f"{n} {act} {name}: {_outcome(sara, act, name, n)}")
    return seen


def _outcome(sara: Any, act: str, name: str, n: int) -> str:
    try:
        if act == "put":
            return str(sara.store.put(name, bytes([n]), label="AE-HEALTH,sensitive,purpose=care"))
        if act == "get":
            return repr(sara.store.get(name).read())
        if act == "list":
            return repr([(str(e.ref), e.digest) for e in sara.store.list().entries])
        if act == "usage":
            return repr(sara.store.usage())
        if act == "check":
            return repr(sara.zones.check(name, to="eu-west"))
        found = sara.store.show(name) if act == "show" else sara.store.copy(name, to="eu-west")
        return repr(replace(found, made_at=0.0))
    except FalajError as error:
        return f"{error.code}: {error.message} {error.hint}"


def test_every_role_meets_every_verb_without_an_unexpected_error(stocked: Town) -> None:
    """No role, on any verb with nothing given, gets anything but an answer or one of our errors; guests get nothing."""
    house = stocked.house
    for who in [*TEAM, "fatima", "admin", "sara"]:
        for desk, room in house.desks.items():
            for verb in list_operations(type(room)).values():
                if any(param.required for param in verb.params) or verb.outside:
                    continue
                ctx = house.context(stocked.actor(who))
                arguments = {param.name: param.default for param in verb.params}
                _can(lambda d=desk, v=verb, c=ctx, a=arguments: house.call(d, v.name, c, a))
    nobody = replace(stocked.actor("amal"), roles=frozenset())
    assert isinstance(
        refusal(
            lambda: house.call(
                "store", "list", house.context(nobody), {"project": "", "name": "", "after": "", "limit": 1}
            )
        ),
        Denied,
    )


def test_only_the_house_declares_zones(town: Town) -> None:
    assert town.actor("admin").tenant == SYSTEM_TENANT
    error = refusal(lambda: town.as_("fatima").zones.add("pirate", "AE-DU", "AE", regimes=("AE-HEALTH",), max_class=3))
    assert isinstance(error, Denied)


def test_a_refusal_replays_too(stocked: Town) -> None:
    refusal(lambda: stocked.as_("fatima").store.get(BLOB))
    [event] = stocked.events(verb="guard.deny")
    told = stocked.as_("fatima").policy.explain(event.id)
    assert told.same
    assert not told.allowed


def test_a_token_is_shown_once_and_kept_nowhere(town: Town) -> None:
    house, room = town.house, town.house.desks["people"]
    verb = list_operations(type(room))["renew"]
    ctx = house.context(town.actor("amal"), request_id="request-9")
    first = house.guard.call("people", room, verb, ctx, {"hours": 1.0})
    with pytest.raises(Conflict, match="not shown again"):
        house.guard.call("people", room, verb, ctx, {"hours": 1.0})
    with house.ledger.read(ctx) as tx:
        kept = [record.body for record in tx.find("outcome", limit=100).records]
    assert kept
    assert first.token not in repr(kept)


def test_who_may_not_list_people_cannot_tell_who_exists(town: Town) -> None:
    there = refusal(lambda: town.as_("amal").people.show("person:people/omar"))
    nowhere = refusal(lambda: town.as_("amal").people.show("person:people/nobody"))
    assert type(there) is type(nowhere) is NotFound


def test_step_up_demands_a_second_factor(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    town.close()
    strict = Town.__new__(Town)
    strict.house, strict.tokens = type(town.house)(replace(town.house.settings, step_up=True)), town.tokens
    try:
        error = refusal(lambda: strict.as_("fatima").people.add("late", ("data-scientist",)))
        assert isinstance(error, Denied)
        assert "factor" in error.message
    finally:
        strict.close()


def test_a_desk_that_is_not_as_the_list_says_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy decides by the list: a verb must not be judged as another group than its mark says."""
    listed = SERVICES["secrets"]
    monkeypatch.setitem(
        SERVICES, "secrets", listed._replace(verbs={**listed.verbs, "read": "", "see": "list show reveal"})
    )
    with connect(str(tmp_path / "home")) as here, pytest.raises(CorruptData):
        here.secrets.list()


def test_a_page_is_recorded_whole_before_it_leaves(town: Town) -> None:
    """Each question is an event of its own, as ever; all of them become durable by one commit, on the way out."""
    before, commits = len(town.events()), []
    amal = town.as_("amal")
    town.house.ledger.on_commit(lambda: commits.append(len(town.events())))
    with town.house.guard.one_look():
        amal.zones.list()
        with town.house.guard.one_look():
            amal.people.whoami()
        assert len(town.events()) == before
    assert [event.verb for event in town.events()[before:]] == ["zones.list", "people.whoami"]
    assert commits[0] == before + 2

    def broken() -> None:
        with town.house.guard.one_look():
            amal.zones.list()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert [event.verb for event in town.events()[before:]] == ["zones.list", "people.whoami", "zones.list"]
