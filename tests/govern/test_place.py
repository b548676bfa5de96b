"""place(): a table for every rule, and the properties that must hold whatever the places are."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Denied
from falaj.core.label import ANY_VALUE, Label
from falaj.govern.records import DataMovement, DutyFacts, LegalZone, TransferGrant
from falaj.govern.residency_check import MOVEMENT_OPERATIONS, OUTWARD_OPERATIONS, check_residency, residency_error
from tests.govern.places import DAY, NOW, PDPL, REGIMES, THING, YEAR, ZONES, grant, judge, label, move

OPEN = Label()
INWARD = sorted(MOVEMENT_OPERATIONS - OUTWARD_OPERATIONS - {"delete"})
HEALTH = label("AE-HEALTH", level=2)
BANK = label("AE-CBUAE", level=2)
KEPT = replace(PDPL, min_retain_s=60)
FRAUD = label("AE-PDPL", purposes=frozenset({"fraud"}))


def deletion(of: Label, events: dict[str, float]) -> DataMovement:
    """A deletion of what was made long ago, with these dates recorded."""
    return move("delete", of=of, dst="ae-dubai", since=1, facts=DutyFacts(THING, of, "bank", 1.0, events=events))


ALLOWED = {
    "at home": move(dst="ae-abudhabi"),
    "written where it is born": move("write", src="", dst="ae-dubai"),
    "health stays in the country": move(of=HEALTH, dst="ae-abudhabi"),
    "open and unregulated goes anywhere": move(of=OPEN),
    "no regime, said aloud": move(of=label("NONE", level=0)),
    "by alias": move(of=label("GDPR"), src="eu-west", dst="eu-west"),
    "free zone data onshore, where declared": move(of=label("AE-DIFC"), src="difc", dst="ae-dubai"),
    "out of a retired zone": move(src="ae-retired", dst="ae-dubai"),
    "key held where the data is at home": move(dst="ae-hsm-home"),
    "open things need no key": move(of=OPEN, dst="ae-no-keys"),
    "seen from home": move("view", dst="", jurisdiction="AE"),
    "seen from the free zone": move("view", dst="", jurisdiction="AE-DIFC"),
    "DIFC data seen where it lies": move("view", of=label("AE-DIFC"), dst="", jurisdiction="AE"),
    "carried out at home": move("egress", of=HEALTH, dst="", jurisdiction="AE"),
    "open things to the unknown": move("view", of=OPEN, dst=""),
    "no regime to the unknown": move("view", of=label("NONE", level=0), dst=""),
    "for its purpose": move(of=FRAUD, dst="ae-abudhabi", purpose="fraud"),
    "kept without a purpose": move("backup", of=FRAUD, dst="ae-abudhabi"),
    "restricted, kept": move("replicate", dst="ae-abudhabi", restricted=True),
    "deleted where it should not lie": move("delete", src="us-liar", dst="us-liar", since=NOW - DAY),
    "deleted in a retired zone": move("delete", src="", dst="ae-retired"),
    "health after 25 years": deletion(HEALTH, {"last-procedure": NOW - 25.1 * YEAR}),
    "bank data 5 years after the end": deletion(BANK, {"end-of-relationship": NOW - 5.1 * YEAR}),
    "label's retention over": move("delete", of=KEPT, dst="ae-dubai", since=NOW - 60),
}

DENIED = {
    "unknown zone": (move(dst="mars"), "zone-unknown"),
    "no zone": (move(dst=""), "zone-unknown"),
    "unknown source": (move(src="mars", dst="ae-dubai"), "zone-unknown"),
    "no source": (move(src="", dst="ae-dubai"), "zone-unknown"),
    "unknown source of a view": (move("view", src="mars", dst="", jurisdiction="AE"), "zone-unknown"),
    "unknown zone of a delete": (move("delete", src="", dst="mars"), "zone-unknown"),
    "unknown operation": (move("teleport", dst="ae-dubai"), "op-unknown"),
    "retired": (move(dst="ae-retired"), "zone-inactive"),
    "not valid yet": (move(dst="ae-later"), "zone-inactive"),
    "no longer valid": (move(dst="ae-over"), "zone-inactive"),
    "class": (move(of=label("AE-PDPL", level=3), dst="ae-abudhabi"), "class-ceiling"),
    "unknown regime": (move(of=label("XX-LAW"), dst="ae-dubai"), "regime-unknown:XX-LAW"),
    "unknown regime, delete": (move("delete", of=label("XX-LAW"), dst="ae-dubai"), "regime-unknown:XX-LAW"),
    "unknown regime, view": (move("view", of=label("XX-LAW"), dst="", jurisdiction="AE"), "regime-unknown:XX-LAW"),
    "abroad": (move(), "regime-not-cleared:AE-PDPL"),
    "health abroad": (move(of=HEALTH), "regime-not-cleared:AE-HEALTH"),
    "bank data in a financial free zone": (move(of=BANK, dst="difc"), "regime-not-cleared:AE-CBUAE"),
    "onshore data in a free zone not cleared": (move(dst="difc"), "regime-not-cleared:AE-PDPL"),
    "by alias, abroad": (move(of=label("GDPR"), src="eu-west", dst="ae-dubai"), "regime-not-cleared:EU-GDPR"),
    "a zone that lies about its clearance": (move(dst="us-liar"), "regime-not-cleared:AE-PDPL"),
    "seen from abroad": (move("view", dst="", jurisdiction="GB"), "regime-not-cleared:AE-PDPL"),
    "carried abroad": (move("egress", dst="", jurisdiction="GB"), "regime-not-cleared:AE-PDPL"),
    "DIFC data seen from another country": (
        move("view", of=label("AE-DIFC"), src="difc", dst="", jurisdiction="IN"),
        "regime-not-cleared:AE-DIFC",
    ),
    "no regime, class 1, unknown viewer": (move("view", of=label(level=1), dst=""), "view-jurisdiction-unknown"),
    "unknown viewer": (move("view", dst=""), "view-jurisdiction-unknown"),
    "open but regulated, unknown viewer": (
        move("view", of=label("AE-PDPL", level=0), dst=""),
        "view-jurisdiction-unknown",
    ),
    "a viewer in a place that is none": (move("view", dst="", jurisdiction="ae"), "view-jurisdiction-unknown"),
    "unknown receiver": (move("egress", dst="", jurisdiction="unknown"), "egress-jurisdiction-unknown"),
    "keys abroad": (move(dst="ae-hsm-abroad"), "key-custody"),
    "no keys": (move(dst="ae-no-keys"), "key-custody"),
    "no keys, no regime": (move(of=label(level=1), dst="ae-no-keys"), "key-custody"),
    "another purpose": (move(of=FRAUD, dst="ae-abudhabi", purpose="marketing"), "purpose"),
    "no purpose": (move("read", of=FRAUD, dst="ae-dubai"), "purpose"),
    "no purpose left": (move(of=label(purposes=frozenset()), dst="ae-dubai", purpose="fraud"), "purpose"),
    "restricted": (move("read", dst="ae-dubai", restricted=True), "restricted"),
    "restricted, view": (move("view", dst="", jurisdiction="AE", restricted=True), "restricted"),
    "restricted, delete": (move("delete", dst="ae-dubai", restricted=True), "restricted"),
    "hold": (move("delete", of=label(holds=frozenset({"case-7"})), dst="ae-dubai"), "hold"),
    "label's retention": (move("delete", of=KEPT, dst="ae-dubai", since=NOW - 59), "min-retain"),
    "retention from an unknown day": (move("delete", of=KEPT, dst="ae-dubai"), "min-retain"),
    "health within 25 years": (deletion(HEALTH, {"last-procedure": NOW - 24.9 * YEAR}), "min-retain"),
    "health, last procedure not known": (deletion(HEALTH, {"end-of-relationship": NOW - 26 * YEAR}), "min-retain"),
    "bank data, end not known": (move("delete", of=BANK, dst="ae-dubai", since=1), "min-retain"),
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed(case: str) -> None:
    verdict = judge(ALLOWED[case])
    assert verdict.allowed, verdict
    assert (verdict.reasons, verdict.hint) == ((), "")


@pytest.mark.parametrize("case", DENIED)
def test_denied_by_exactly_that_rule(case: str) -> None:
    question, rule = DENIED[case]
    verdict = judge(question)
    assert not verdict.allowed
    assert verdict.rules == (rule,)
    assert len(verdict.reasons) == 1
    assert verdict.hint


@pytest.mark.parametrize("op", INWARD)
def test_every_inward_operation_is_stopped_at_the_border(op: str) -> None:
    assert judge(move(op)).rules == ("regime-not-cleared:AE-PDPL",)


def test_what_may_leave_a_zone_has_its_own_ceiling() -> None:
    zones = {**ZONES, "ae-dubai": replace(ZONES["ae-dubai"], egress_class=1)}
    secret = move("egress", of=label("AE-PDPL", level=2), dst="", jurisdiction="AE")
    assert check_residency(secret, zones, REGIMES, (), NOW).rules == ("egress-ceiling",)
    assert check_residency(replace(secret, op="view"), zones, REGIMES, (), NOW).allowed


def test_all_that_is_wrong_is_said() -> None:
    worst = move(
        of=label("AE-HEALTH", "AE-PDPL", "XX", level=3, purposes=frozenset({"care"})), purpose="fun", restricted=True
    )
    assert set(judge(worst).rules) == {
        "class-ceiling", "regime-not-cleared:AE-HEALTH", "regime-not-cleared:AE-PDPL", "regime-unknown:XX", "purpose",
        "restricted",
    }  # fmt: skip


def test_the_hint_says_in_words_what_would_allow_it_and_the_command() -> None:
    hint = judge(move(purpose="fraud")).hint
    assert "a transfer grant for AE-PDPL from ae-dubai to eu-west with basis 23a (a contract that" in hint
    assert "or 22, 23b" in hint
    assert "approved by two people: falaj zones grant AE-PDPL:23a --src ae-dubai --dst eu-west" in hint
    assert "--scope 'dataset:fraud/transactions' --purposes fraud --documents contract=document:…" in hint


def test_a_refusal_is_the_verdict_in_an_error() -> None:
    verdict = judge(move())
    error = residency_error(verdict, move())
    assert isinstance(error, Denied)
    assert error.wire() == {"code": "denied", "message": "; ".join(verdict.reasons), "hint": verdict.hint, "ref": THING}


# Grants


GRANTED = move(purpose="fraud")


def test_a_grant_that_fits_opens_the_way_and_obliges() -> None:
    verdict = judge(GRANTED, grant())
    assert verdict.allowed
    assert (verdict.grants, verdict.rules) == (("g-1",), ("granted:AE-PDPL",))
    assert set(verdict.obligations) == {"notify_dpo", f"until:{NOW + DAY:.0f}", "encrypt"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("tenant", "other", ""),
        ("regime", "AE-HEALTH", ""),
        ("basis", "23z", "basis"),
        ("src", "ae-abudhabi", "source"),
        ("dst", "difc", ""),
        ("scope", "dataset:fraud/other*", "scope"),
        ("scope", "model:fraud/trans*", "scope"),
        ("scope", "dataset:other/trans*", "scope"),
        ("scope", "dataset:fraud/transactions@v4", "scope"),
        ("scope", "*", "scope"),
        ("purposes", ("marketing",), "purpose"),
        ("purposes", (), "purpose"),
        ("documents", {}, "documents"),
        ("documents", {"contract": ""}, "documents"),
        ("not_before", NOW + 1, "not yet"),
        ("expires", NOW, "expired"),
        ("max_bytes", 9, "size"),
        ("revoked", True, "revoked"),
    ],
)
def test_one_field_off_and_the_grant_opens_nothing(field: str, value: object, said: str) -> None:
    question = replace(GRANTED, size=10)
    assert judge(question, grant()).allowed
    verdict = judge(question, replace(grant(), **{field: value}))
    assert verdict.rules == ("regime-not-cleared:AE-PDPL",)
    assert (f"does not fit: {said}" in verdict.reasons[0]) == bool(said)


def test_every_field_of_a_grant_that_decides_is_in_the_table_above() -> None:
    deciding = {item.name for item in fields(TransferGrant)} - {"id", "author", "reason"}
    rows = test_one_field_off_and_the_grant_opens_nothing.pytestmark[0].args[1]
    assert {row[0] for row in rows} == deciding


@pytest.mark.parametrize(
    "change",
    [
        {"purpose": ""},
        {"thing": "dataset:fraud/x@v3"},
        {"thing": "nonsense"},
        {"tenant": "b"},
        {"src": "difc"},
        {"dst": "difc"},
    ],
)
def test_a_move_one_field_off_finds_no_grant(change: dict[str, str]) -> None:
    assert "regime-not-cleared:AE-PDPL" in judge(replace(GRANTED, **change), grant()).rules


def test_a_limit_of_bytes_needs_a_known_size() -> None:
    limited = grant(max_bytes=10)
    assert judge(replace(GRANTED, size=10), limited).allowed
    assert not judge(replace(GRANTED, size=11), limited).allowed
    assert not judge(GRANTED, limited).allowed


def test_what_arrived_under_a_grant_may_be_used_there_and_seen_there_while_it_lasts() -> None:
    there = replace(GRANTED, op="read", src="eu-west")
    seen = replace(GRANTED, op="view", src="eu-west", dst="", jurisdiction="IE")
    for question in (there, seen):
        assert judge(question, grant()).allowed
        assert not judge(question, grant(), now=NOW + DAY).allowed
        assert not judge(replace(question, purpose="marketing"), grant()).allowed
    assert not judge(replace(seen, jurisdiction="FR"), grant()).allowed


def test_a_view_from_abroad_has_its_own_grants() -> None:
    seen = move("view", dst="", jurisdiction="GB", purpose="fraud")
    assert judge(seen, grant(dst="outside:GB")).allowed
    assert not judge(seen, grant(dst="outside:FR")).allowed
    assert not judge(seen, grant()).allowed


def test_a_localising_regime_takes_its_own_grants_only() -> None:
    both = move(of=label("AE-HEALTH", "AE-PDPL", level=2), purpose="fraud")
    pdpl, health = grant(), grant("AE-HEALTH", "AE-MOH51-01", id="g-2")
    assert judge(both, pdpl).rules == ("regime-not-cleared:AE-HEALTH",)
    assert judge(both, health).rules == ("regime-not-cleared:AE-PDPL",)
    verdict = judge(both, pdpl, health)
    assert verdict.allowed
    assert set(verdict.grants) == {"g-1", "g-2"}
    assert "retain_copy_in:ae-dubai" in verdict.obligations
    assert not judge(both, pdpl, replace(health, regime="AE-PDPL")).allowed


def test_the_copy_that_must_stay_cannot_be_deleted_while_the_grant_lasts() -> None:
    health = grant("AE-HEALTH", "AE-MOH51-01")
    old = deletion(HEALTH, {"last-procedure": NOW - 26 * YEAR})
    assert judge(old, health).rules == ("retain-copy",)
    assert judge(old, health, now=NOW + DAY).allowed
    assert judge(old, replace(health, revoked=True)).allowed
    assert judge(replace(old, dst="ae-abudhabi"), health).allowed
    assert judge(old, grant()).allowed


def test_a_path_that_cannot_do_what_the_basis_demands_may_not_move() -> None:
    question = move(of=HEALTH, purpose="fraud")
    research = grant("AE-HEALTH", "AE-MOH51-04")
    assert judge(question, research).rules == ("obligation:anonymise",)
    assert judge(replace(question, can=(*question.can, "anonymise")), research).allowed


def test_a_grant_does_not_move_the_key_elsewhere() -> None:
    zones = {**ZONES, "eu-west": replace(ZONES["eu-west"], custody="external", key_jurisdiction="US")}
    assert check_residency(GRANTED, zones, REGIMES, (grant(),), NOW).rules == ("key-custody",)
    zones["eu-west"] = replace(zones["eu-west"], key_jurisdiction="AE")
    assert check_residency(GRANTED, zones, REGIMES, (grant(),), NOW).allowed


# Properties

TAGS = st.sampled_from(
    ["AE-PDPL", "AE-HEALTH", "AE-CBUAE", "AE-DIFC", "DIFC", "AE-ADGM", "EU-GDPR", "GDPR", "NONE", "XX"]
)
PLACES = st.sampled_from(["", "AE", "AE-DIFC", "AE-ADGM", "IE", "US", "unknown"])
PURPOSES = st.sampled_from(["", "fraud", "care"])
LABELS = st.builds(
    Label,
    regimes=st.frozensets(TAGS, max_size=4),
    classification=st.integers(0, 3),
    purposes=st.one_of(st.just(ANY_VALUE), st.frozensets(PURPOSES, max_size=2)),
    holds=st.frozensets(st.just("case"), max_size=1),
    min_retain_s=st.sampled_from([0, 60]),
)
WORLD = st.lists(
    st.builds(
        LegalZone,
        id=st.sampled_from(["a", "b", "c"]),
        region=st.just("AE-DU"),
        jurisdiction=PLACES,
        regimes=st.frozensets(TAGS).map(tuple),
        max_class=st.integers(0, 3),
        custody=st.sampled_from(["in-zone", "external", "none", "?"]),
        key_jurisdiction=PLACES,
        active=st.booleans(),
        valid_to=st.sampled_from([0.0, NOW, NOW + 1]),
    ),
    max_size=3,
).map(lambda zones: {zone.id: zone for zone in zones})
BASES = [(regime.id, basis) for regime in {r.id: r for r in REGIMES.values()}.values() for basis in regime.bases]
GRANTS = st.lists(
    st.tuples(
        st.sampled_from(BASES),
        st.sampled_from("ab"),
        st.sampled_from(["a", "b", "outside:US"]),
        PURPOSES,
        st.booleans(),
    ).map(lambda t: grant(t[0][0], t[0][1], src=t[1], dst=t[2], purposes=(t[3],), revoked=t[4])),
    max_size=6,
)
FACTS = [
    DutyFacts(
        THING,
        Label(),
        "bank",
        NOW - 30 * YEAR,
        events={"end-of-relationship": NOW - 6 * YEAR, "last-procedure": NOW - 26 * YEAR},
    ),
    DutyFacts(
        THING,
        Label(),
        "bank",
        NOW - 30 * YEAR,
        ("a",),
        {"end-of-relationship": NOW - DAY},
        held_sources=("dataset:x/z@v1",),
    ),
    DutyFacts(THING, KEPT, "bank", NOW - 61, breaches=("breach:privacy/b",)),
]
MOVES = st.builds(
    DataMovement,
    op=st.sampled_from([*sorted(MOVEMENT_OPERATIONS), "?"]),
    label=LABELS,
    thing=st.sampled_from([THING, "dataset:x/y", "?"]),
    tenant=st.sampled_from(["bank", "other"]),
    src=st.sampled_from(["", "a", "b", "mars"]),
    dst=st.sampled_from(["", "a", "b", "mars"]),
    purpose=PURPOSES,
    jurisdiction=PLACES,
    restricted=st.booleans(),
    since=st.sampled_from([0.0, NOW - 59, NOW - 61, NOW - 30 * YEAR]),
    facts=st.sampled_from([None, *FACTS]),
)  # fmt: skip


@settings(max_examples=400)
@given(MOVES, TAGS, WORLD, GRANTS)
def test_one_more_regime_never_opens_a_door(
    question: DataMovement, tag: str, zones: dict[str, LegalZone], grants: list[TransferGrant]
) -> None:
    more = replace(question, label=replace(question.label, regimes=question.label.regimes | {tag}))
    if check_residency(more, zones, REGIMES, grants, NOW).allowed:
        assert check_residency(question, zones, REGIMES, grants, NOW).allowed


@settings(max_examples=300)
@given(MOVES, LABELS, WORLD, GRANTS)
def test_a_stricter_label_never_opens_a_door(
    question: DataMovement, other: Label, zones: dict[str, LegalZone], grants: list[TransferGrant]
) -> None:
    joined = replace(question, label=question.label.join(other))
    if check_residency(joined, zones, REGIMES, grants, NOW).allowed:
        assert check_residency(question, zones, REGIMES, grants, NOW).allowed


@settings(max_examples=400)
@given(MOVES, WORLD, GRANTS)
def test_unknown_is_denied_and_the_answer_is_whole(
    question: DataMovement, zones: dict[str, LegalZone], grants: list[TransferGrant]
) -> None:
    verdict = check_residency(question, zones, REGIMES, grants, NOW)
    assert verdict.allowed == (not verdict.reasons)
    assert verdict.allowed or (verdict.rules and verdict.hint and not verdict.obligations)
    named = {question.src} if question.op in OUTWARD_OPERATIONS else {question.dst} | ({question.src} - {""})
    unknown = question.op not in MOVEMENT_OPERATIONS or "XX" in question.label.regimes
    if question.op != "delete":
        unknown = unknown or not named <= set(zones)
    if unknown:
        assert not verdict.allowed


@settings(max_examples=300)
@given(MOVES, WORLD, GRANTS)
def test_without_a_grant_regulated_things_lie_only_where_they_are_at_home(
    question: DataMovement, zones: dict[str, LegalZone], grants: list[TransferGrant]
) -> None:
    verdict = check_residency(question, zones, REGIMES, grants, NOW)
    if not verdict.allowed or question.op in (*OUTWARD_OPERATIONS, "delete"):
        return
    dst = zones[question.dst]
    assert dst.active
    assert question.label.classification <= dst.max_class
    used = {g.regime for g in grants if g.id in verdict.grants}
    for tag in question.label.regimes:
        regime = REGIMES[tag]
        assert (regime.id in dst.regimes and regime.reaches(dst.jurisdiction)) or regime.id in used


@settings(max_examples=200)
@given(MOVES, WORLD, GRANTS)
def test_dropping_or_ending_grants_never_opens_a_door_but_for_deleting(
    question: DataMovement, zones: dict[str, LegalZone], grants: list[TransferGrant]
) -> None:
    if question.op == "delete":
        return
    for fewer in ((), [replace(g, expires=NOW) for g in grants], [replace(g, revoked=True) for g in grants]):
        if check_residency(question, zones, REGIMES, fewer, NOW).allowed:
            assert check_residency(question, zones, REGIMES, grants, NOW).allowed
            assert check_residency(question, zones, REGIMES, fewer, NOW).grants == ()


@settings(max_examples=400)
@given(MOVES, WORLD, GRANTS)
def test_what_was_let_in_may_lie_there(
    question: DataMovement, zones: dict[str, LegalZone], grants: list[TransferGrant]
) -> None:
    """The census finds no copy where place() would not have it: a movement and its result are judged alike."""
    if (
        question.op in (*OUTWARD_OPERATIONS, "delete")
        or not check_residency(question, zones, REGIMES, grants, NOW).allowed
    ):
        return
    lying = replace(question, op="replicate", src=question.dst)
    assert check_residency(lying, zones, REGIMES, grants, NOW).allowed


@settings(max_examples=60)
@given(LABELS, WORLD, GRANTS, st.lists(st.tuples(st.sampled_from("abc"), PURPOSES), max_size=12))
def test_no_walk_of_allowed_moves_ends_where_none_is_allowed(
    carried: Label, zones: dict[str, LegalZone], grants: list[TransferGrant], steps: list[tuple[str, str]]
) -> None:
    copies: set[tuple[str, str]] = set()
    for dst, purpose in steps:
        for src in {zone for zone, _ in copies} or {""}:
            step = DataMovement("copy" if src else "write", carried, THING, "bank", src, dst, purpose)
            if check_residency(step, zones, REGIMES, grants, NOW).allowed:
                copies.add((dst, purpose))
    for zone, purpose in copies:
        census = DataMovement("replicate", carried, THING, "bank", zone, zone, purpose)
        assert check_residency(census, zones, REGIMES, grants, NOW).allowed
