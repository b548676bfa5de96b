"""How long versions stay and where: holds, retention, deletion with a tombstone, copies that obey place()."""

from pathlib import Path

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.store.collector import Collector
from falaj.store.stored_objects import find_stored_object
from tests.catalog.shelfhouse import approve, model, publish
from tests.documents import keep_contract
from tests.town import LABEL, Town, refusal


@pytest.fixture
def town(shared_town: Town) -> Town:
    return shared_town


@pytest.fixture
def name(project: str) -> str:
    return f"dataset:{project}/tx"


def test_a_hold_keeps_a_version_and_ends_by_name(town: Town, name: str) -> None:
    salem = town.as_("salem").catalog
    v1 = publish(town.as_("amal"), name)
    assert isinstance(refusal(lambda: town.as_("amal").catalog.hold(v1, "case 1")), Denied)
    salem.hold(v1, "case 1")
    assert salem.hold(v1, "case 2").label.holds == {"case 1", "case 2"}
    assert "case 1, case 2" in refusal(lambda: salem.delete(v1, "tidy")).message
    assert isinstance(refusal(lambda: salem.release(v1, "case 3")), NotFound)
    for wrong in ("", "a,b", "*", "x" * 201, "a\nb", "a=b"):
        assert isinstance(refusal(lambda each=wrong: salem.hold(v1, each)), Invalid), wrong
    salem.release(v1, "case 1")
    assert isinstance(refusal(lambda: salem.delete(v1, "tidy", force=True)), Denied)
    assert salem.release(v1, "case 2").label.holds == frozenset()
    assert salem.delete(v1, "tidy").state == "deleted"


def test_a_hold_keeps_what_was_made_from_it_before(town: Town, name: str, project: str) -> None:
    amal, salem = town.as_("amal"), town.as_("salem").catalog
    old, _ = publish(amal, name, "1"), publish(amal, name, "2")
    made = publish(amal, f"dataset:{project}/clean", "m", inputs={"rows": old})
    after = publish(amal, f"model:{project}/m", "l", inputs={"rows": made})
    salem.hold(old, "case 1")
    for one in (made, after):
        told = refusal(lambda each=one: salem.delete(each, "tidy", force=True))
        assert (isinstance(told, Denied), str(old) in told.message) == (True, True), told
    # Whatever is made from exactly the held version is held, and a name goes on from its newest.
    assert salem.show(publish(amal, f"model:{project}/x", inputs={"rows": old})).label.holds == {"case 1"}
    assert not salem.show(publish(amal, name, "3")).label.holds
    salem.release(old, "case 1")
    salem.hold(after, "case 2")
    assert salem.delete(old, "tidy", force=True).state == "deleted", "a hold goes the way of the data, and not back"
    salem.release(after, "case 2")
    assert salem.delete(after, "tidy").state == "deleted"


def test_retention_is_kept(town: Town, name: str) -> None:
    amal = town.as_("amal")
    v1 = publish(amal, name, label=Label(min_retain_s=10 * 86_400))
    told = refusal(lambda: town.as_("salem").catalog.delete(v1, "tidy", force=True))
    assert isinstance(told, Denied)
    assert "10 days" in told.message


def test_deletion_leaves_a_tombstone_and_nothing_to_read(town: Town, name: str) -> None:
    amal, salem = town.as_("amal"), town.as_("salem").catalog
    v1, v2 = publish(amal, name, "one", label=LABEL), publish(amal, name, "two")
    opened = amal.catalog.open(v2)
    amal.catalog.tag(v2, "champion")
    assert isinstance(refusal(lambda: amal.catalog.delete(v2, "mine")), Denied), "a scientist erased data"
    assert isinstance(refusal(lambda: salem.delete(v2, " ")), Invalid)
    stone = salem.delete(v2, "consent withdrawn")
    assert (stone.state, stone.stage, stone.message, stone.zones) == ("deleted", "destroyed", "consent withdrawn", ())
    assert (stone.root, stone.label) == (opened.tree.root, amal.catalog.show(v1).label)
    assert (stone.table, stone.card, stone.tags) == (None, None, {})
    shown = amal.catalog.show(v2)
    assert (shown.state, shown.deleted_by, shown.deleted_at > amal.catalog.show(v1).made_at) == (
        "deleted",
        "salem",
        True,
    )
    assert (amal.catalog.show(v1).deleted_by, amal.catalog.show(v1).deleted_at) == ("", 0.0)
    for act in (
        lambda: amal.catalog.open(v2),
        lambda: list(amal.bytes.get(opened.ticket, opened.tree.batches[0].shard)),
        lambda: amal.catalog.tag(v2, "again"),
        lambda: amal.catalog.promote(v2, "staging"),
        lambda: salem.delete(v2, "twice"),
        lambda: amal.catalog.show(f"{name}@champion"),
    ):
        assert isinstance(refusal(act), NotFound)
    told = refusal(lambda: amal.catalog.open(v2))
    assert (told.message, str(v2) in told.hint) == (f"{v2} was deleted", True), "as if it had never been"
    assert [each.ref for each in amal.catalog.list(name="tx", project=v1.project).versions] == [v1]
    assert amal.catalog.show(name).ref == v1, "the newest of those that are left"
    assert publish(amal, name, "three").version == "v3", "a number was used twice"
    [event] = [each for each in town.events(verb="catalog.delete") if each.subject == v2]
    assert event.body["reason"] == "consent withdrawn"
    assert town.as_("omar").audit.prove(event.id).event


@pytest.mark.parametrize("older", [False, True])
def test_tombstones_are_found_by_their_reason(town: Town, name: str, older: bool) -> None:
    """Also those of a name from before reasons were kept to be found."""
    amal, salem = town.as_("amal"), town.as_("salem").catalog
    made = [publish(amal, name, text, label=LABEL) for text in ("one", "two", "three", "four")]
    if older:
        ctx = town.house.context(town.actor("amal"), purpose="fraud")
        with town.house.ledger.write(ctx) as tx:
            head = tx.need(made[0].bare)
            tx.put(head.key, {key: held for key, held in head.body.items() if key != "findable"}, rev=head.rev)
            tx.emit("catalog.describe", head.ref)
    for ref, why in zip(made, ("erased 77: request 1", "erased 77", "erased 778: request 2"), strict=False):
        salem.delete(ref, why, force=True)
    assert [one.ref for one in amal.catalog.deleted(name, "erased 77").versions] == made[:2]
    assert [one.message for one in salem.deleted(name, "erased 778: whatever").versions] == ["erased 778: request 2"]
    assert amal.catalog.deleted(name, "tidy").versions == ()
    assert isinstance(refusal(lambda: town.as_("sara").catalog.deleted(name, "erased 77")), NotFound)


def test_what_others_were_made_from_goes_only_by_force(town: Town, name: str, project: str) -> None:
    amal, salem = town.as_("amal"), town.as_("salem").catalog
    v1 = publish(amal, name)
    made = publish(amal, f"model:{project}/m", "weights", inputs={"train": v1})
    told = refusal(lambda: salem.delete(v1, "tidy"))
    assert isinstance(told, Conflict)
    assert str(made) in told.message
    assert "audit impact" in told.hint
    assert str(made) in town.as_("omar").audit.impact(v1).affected
    assert salem.delete(v1, "consent withdrawn", force=True).state == "deleted"
    salem.delete(made, "made of it")


def test_what_is_in_a_stage_stays(town: Town, project: str) -> None:
    catalog, salem = town.as_("amal").catalog, town.as_("salem").catalog
    v1 = model(town.as_("amal"), "1", f"model:{project}/m")
    catalog.promote(v1, "staging")
    assert "staging" in refusal(lambda: salem.delete(v1, "tidy", force=True)).message
    asked = catalog.promote(v1, "production")
    approve(town, asked, "badr")
    catalog.promote(v1, "production")
    assert "retired" in refusal(lambda: salem.delete(v1, "tidy", force=True)).hint
    catalog.promote(v1, "retired")
    assert salem.delete(v1, "tidy").stage == "destroyed"


def test_deleted_bytes_go_and_shared_ones_stay(tmp_path: Path) -> None:
    town = Town(tmp_path)
    try:
        amal, salem = town.as_("amal"), town.as_("salem").catalog
        v1, other = publish(amal, "dataset:fraud/a", "one"), publish(amal, "dataset:fraud/b", "both")
        v2 = publish(amal, "dataset:fraud/a", "both")
        bundles = {ref: amal.catalog.open(ref).tree.batches[0].bundle[3:] for ref in (v1, v2, other)}
        salem.delete(v1, "tidy")
        salem.delete(v2, "tidy")
        collector = Collector(town.house.blobs, ("dataset",), grace_s=0.0)
        ctx = town.house.context(town.actor("amal"))
        for _ in range(3):
            collector.collect(ctx)
        with town.house.ledger.read(ctx) as tx:
            left = {ref for ref, hexa in bundles.items() if find_stored_object(tx, "bank", "ae-dubai", hexa)}
        assert left == {v2, other}
        assert b"".join(amal.bytes.get(amal.catalog.open(other).ticket, _piece(amal, other))) == b"shard both"
    finally:
        town.close()


def _piece(here: object, ref: Ref) -> str:
    return str(here.catalog.open(ref).tree.batches[0].shard)  # type: ignore[attr-defined]


def test_a_copy_obeys_the_law_and_is_made_once(town: Town, name: str) -> None:
    amal = town.as_("amal")
    v1 = publish(amal, name, label=LABEL)
    denied = refusal(lambda: amal.catalog.copy(v1, to="eu-west"))
    assert isinstance(denied, Denied)
    assert "falaj zones grant" in denied.hint
    grant = town.as_("salem").zones.grant(
        "AE-PDPL:23a", "ae-dubai", "eu-west", name, ("fraud",), keep_contract(town.as_("salem"))
    )
    for person in ("badr", "dana"):
        town.as_(person).approvals.give(str(grant.approval), grant.digest)
    assert amal.catalog.copy(v1, to="eu-west").zones == ("ae-dubai", "eu-west")
    assert amal.catalog.copy(v1, to="eu-west").zones == ("ae-dubai", "eu-west"), "the second time costs nothing"
    ctx = town.house.context(town.actor("amal"))
    bundle = amal.catalog.open(v1).tree.batches[0].bundle[3:]
    with town.house.ledger.read(ctx) as tx:
        there = find_stored_object(tx, "bank", "eu-west", bundle)
    assert there is not None
    assert there.bundle
    phases = [each.body.get("phase") for each in town.events(verb="catalog.copy") if each.subject == v1]
    assert phases == ["intent", "begin", "done", "outcome", "intent", "outcome"]
    assert isinstance(refusal(lambda: amal.catalog.copy(v1, to="nowhere")), Denied)


def test_pins_are_kept(town: Town, name: str) -> None:
    amal = town.as_("amal")
    v1 = publish(amal, name)
    assert amal.catalog.pin(v1).pinned
    assert amal.catalog.show(v1).pinned
    assert not amal.catalog.unpin(v1).pinned
