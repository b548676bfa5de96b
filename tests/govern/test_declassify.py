"""Declassification: the only way down, by two people one of whom is an officer, and only as a new version."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.label import ANY_VALUE, Label
from falaj.core.ref import Ref
from falaj.govern.approvals import make_approval_ref
from falaj.govern.declassification import (
    DECLASSIFY_ACTION,
    EVIDENCE_BY_METHOD,
    apply_declassification,
    digest_declassification,
)
from falaj.govern.records import DeclassificationRecord
from falaj.store.codec import to_plain
from tests.govern.places import DAY, DOCUMENT, Town, keep_document, town

HIGH = Label(
    regimes=frozenset({"AE-HEALTH", "AE-PDPL"}),
    classification=2,
    categories=frozenset({"health"}),
    purposes=frozenset({"care"}),
    origin=frozenset({"AE"}),
    holds=frozenset({"case-7"}),
    min_retain_s=99,
)
LOW = Label(regimes=frozenset({"AE-PDPL"}), classification=1)
THING = Ref("dataset", "care", "extract", "v2")
INTO = Ref("dataset", "open", "extract")
EVIDENCE = {"k": "20", "report": DOCUMENT}
WISH = DeclassificationRecord("d-1", THING, 1, HIGH, LOW, "k-anonymity", EVIDENCE, "amal", "for the portal")


def test_what_is_lowered_and_what_never_is() -> None:
    down = apply_declassification(HIGH, WISH)
    assert (down.regimes, down.classification, down.categories) == (frozenset({"AE-PDPL"}), 1, frozenset())
    assert (down.purposes, down.min_retain_s) == (ANY_VALUE, 0)
    assert (down.origin, down.holds) == (HIGH.origin, HIGH.holds)
    assert apply_declassification(HIGH, replace(WISH, target=Label(regimes=frozenset({"NONE"})))).regimes == {"NONE"}


@pytest.mark.parametrize(
    "target",
    [
        Label(classification=3),
        Label(regimes=frozenset({"EU-GDPR"})),
        Label(regimes=frozenset({"AE-PDPL", "NONE"})),
        Label(categories=frozenset({"religion"})),
        Label(min_retain_s=100),
        Label(max_retain_s=5),
        Label(purposes=frozenset()),
        HIGH,
        replace(HIGH, holds=frozenset(), origin=frozenset()),
    ],
)
def test_nothing_is_raised_on_the_way_and_something_must_fall(target: Label) -> None:
    with pytest.raises(Invalid):
        apply_declassification(HIGH, replace(WISH, target=target))


WORDS = st.frozensets(st.sampled_from(["a", "b", "c"]))
LABELS = st.builds(
    Label,
    regimes=WORDS,
    classification=st.integers(0, 3),
    categories=WORDS,
    purposes=st.one_of(st.just(ANY_VALUE), WORDS),
    origin=WORDS,
    holds=WORDS,
    min_retain_s=st.integers(0, 2),
    max_retain_s=st.one_of(st.none(), st.integers(0, 2)),
)


@given(LABELS, LABELS)
def test_the_result_is_strictly_below_and_keeps_holds_and_origin(label: Label, target: Label) -> None:
    try:
        down = apply_declassification(label, replace(WISH, target=target))
    except Invalid:
        return
    assert label.covers(down)
    assert not down.covers(label)
    assert (down.holds, down.origin) == (label.holds, label.origin)


@pytest.mark.parametrize(
    "change",
    [
        {"thing": THING.at("v3")},
        {"rev": 2},
        {"was": LOW},
        {"target": Label()},
        {"method": "aggregated"},
        {"evidence": {**EVIDENCE, "k": "2"}},
        {"author": "x"},
        {"id": "d-2"},
    ],
)
def test_any_change_is_another_digest(change: dict[str, object]) -> None:
    assert digest_declassification(replace(WISH, **change)) != digest_declassification(WISH)


def test_publishing_does_not_change_what_was_approved() -> None:
    assert digest_declassification(replace(WISH, result="dataset:open/extract@v1")) == digest_declassification(WISH)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path) as made:
        keep_document(made)
        with made.ledger.write(made.who("maker")) as tx:
            tx.put(THING.bare, {"newest": "v2"})
            tx.put(THING, {"rows": 7}, label=HIGH, terms={"digest": "b3:x"})
            tx.emit("publish", THING)
        yield made


def wish(there: Town, **more: object) -> DeclassificationRecord:
    asked = {"thing": THING, "target": LOW, "method": "k-anonymity", "evidence": EVIDENCE, "reason": "portal", **more}
    return there.zones.declassify(there.who("amal", "bank", "data-steward"), **asked)  # type: ignore[arg-type]


def agree(there: Town, asked: DeclassificationRecord, **people: str) -> None:
    for name, role in people.items():
        there.approvals.give(
            there.who(name, "bank", role), make_approval_ref(DECLASSIFY_ACTION, digest_declassification(asked))
        )


def lower(there: Town, asked: DeclassificationRecord, into: Ref = INTO) -> Ref:
    return there.zones.lower(
        there.who("amal", "bank", "data-steward"), Ref("declassification", "zones", asked.id), into
    )


def test_two_people_one_an_officer_and_a_new_version_stands(here: Town) -> None:
    asked = wish(here)
    with pytest.raises(Denied, match="2 more people, 1 of the role dpo"):
        lower(here, asked)
    agree(here, asked, badr="approver", eman="approver")
    with pytest.raises(Denied, match="1 of the role dpo"):
        lower(here, asked)
    agree(here, asked, dana="dpo")
    made = lower(here, asked)
    assert made == INTO.at("v1")
    with here.ledger.read(here.who("amal")) as tx:
        new, old = tx.need(made), tx.need(THING)
    assert new.label == apply_declassification(HIGH, asked)
    assert (new.body, new.terms, new.zone) == (old.body, {**old.terms, "newest": "yes"}, old.zone)
    assert old.label == HIGH
    fact = here.ledger.tail(tenant="bank", verb="zones.lower")[0].event
    assert (fact.subject, fact.inputs[0]) == (made, THING)


def test_it_is_published_once_and_the_next_one_is_the_next_version(here: Town) -> None:
    first, second = wish(here), wish(here, target=Label())
    for asked in (first, second):
        agree(here, asked, badr="approver", dana="dpo")
    assert lower(here, first) == INTO.at("v1")
    with pytest.raises(Conflict, match=r"published as dataset:open/extract@v1"):
        lower(here, first)
    assert lower(here, second) == INTO.at("v2")


def test_neither_asker_nor_author_agrees(here: Town) -> None:
    asked = wish(here)
    for name in ("amal", "maker"):
        with pytest.raises(Denied):
            agree(here, asked, **{name: "dpo"})


def test_a_change_after_the_question_voids_it(here: Town) -> None:
    asked = wish(here)
    agree(here, asked, badr="approver", dana="dpo")
    ref = Ref("declassification", "zones", asked.id)
    with here.ledger.write(here.who("mallory")) as tx:
        tx.put(ref, to_plain(replace(asked, target=Label())), rev=1)
        tx.emit("tamper", ref.at("r2"))
    with pytest.raises(Denied, match="nobody asked"):
        lower(here, asked)


def test_the_original_changed_or_restricted(here: Town) -> None:
    asked = wish(here)
    agree(here, asked, badr="approver", dana="dpo")
    with here.ledger.write(here.who("mallory")) as tx:
        tx.put(THING, {"rows": 8}, rev=1)
        tx.emit("tamper", THING)
    with pytest.raises(Conflict, match="changed since"):
        lower(here, asked)


def test_a_restricted_original_stays_as_it_is(here: Town) -> None:
    thing = THING.at("v3")
    with here.ledger.write(here.who("maker")) as tx:
        tx.put(thing, {}, label=HIGH, restricted=True)
        tx.emit("publish", thing)
    asked = wish(here, thing=thing)
    agree(here, asked, badr="approver", dana="dpo")
    with pytest.raises(Conflict, match="restricted"):
        lower(here, asked)


def test_agreement_ends(here: Town) -> None:
    asked = wish(here)
    agree(here, asked, badr="approver", dana="dpo")
    here.clock.forward(30 * DAY)
    with pytest.raises(Denied, match="time is over"):
        lower(here, asked)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "magic"}, "no method"),
        ({"evidence": {}}, "owes evidence: k, report"),
        ({"evidence": {"k": " ", "report": DOCUMENT}}, "owes evidence: k"),
        ({"evidence": {"k": "20", "report": "trust me"}}, "digest"),
        ({"target": HIGH}, "lowers nothing"),
        ({"target": Label(classification=3)}, "raise"),
        ({"thing": THING.bare}, "not a version"),
        ({"reason": " "}, "reason"),
    ],
)
def test_a_wish_that_is_wrong(here: Town, change: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        wish(here, **change)
    assert here.approvals.list(here.who("amal")) == ()


def test_every_method_owes_a_report() -> None:
    assert all("report" in owed for owed in EVIDENCE_BY_METHOD.values())


def test_names_that_cannot_be_published_under(here: Town) -> None:
    asked = wish(here)
    agree(here, asked, badr="approver", dana="dpo")
    with pytest.raises(Invalid, match="name of its own"):
        lower(here, asked, THING.bare)
    with pytest.raises(Invalid, match="published as a dataset"):
        lower(here, asked, Ref("model", "open", "extract"))
    with here.ledger.write(here.who("maker")) as tx:
        tx.put(INTO, {})
        tx.emit("made", INTO.at("r1"))
    with pytest.raises(Conflict, match="no versions"):
        lower(here, asked)
    with pytest.raises(NotFound):
        lower(here, replace(asked, id="d-none"))
    with pytest.raises(Invalid, match="not a declassification"):
        here.zones.lower(here.who("amal"), THING, INTO)
