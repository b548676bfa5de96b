"""Every kind of record is searched for a person, but for those excluded by name."""

from collections.abc import Iterator

import pytest

from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.privacy.search.ledger_entries import EXCLUDED_KINDS, LISTING_FIELDS, search_records
from falaj.privacy.search.records import STATE_KEPT, SearchCase
from tests.town import Town

WHO = "784-1990-5550001-1"
CTX = CallContext(Actor("writer", "bank", kind="service"), "ae-dubai")
PRIVACY_KINDS = (
    "subject-request", "consent", "certificate", "erasure-plan", "person-search", "refusal", "organisation", "dpia",
)  # fmt: skip
PLUGIN_KINDS = ("a-plugin-kind", "zz-plugin-kind")


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town") / "house")
    yield made
    made.close()


def _search(town: Town, who: str, after: str = "") -> list[tuple[str, str, str]]:
    """Ref, state and the cursor behind each outcome."""
    steps = search_records(town.house._create_search_estate(), SearchCase(CTX, who, "pseudonym"), after)
    return [(outcome.ref, outcome.state, cursor) for outcomes, cursor in steps for outcome in outcomes]


def _plant(town: Town, kind: str, who: str) -> str:
    ref = Ref(kind, "privacy", f"planted-{who[-3:]}")
    with town.house.ledger.write(CTX) as tx:
        tx.emit("test.plant", tx.put(ref, {"remark": f"a letter of {who}"}).ref)
    return f"record {ref}"


def test_every_kind_but_the_excluded_is_searched(town: Town) -> None:
    stored = set(town.house.ledger.store.list_kinds("bank"))
    assert stored >= {"person", "approval", "key"}
    planted = {_plant(town, kind, WHO) for kind in {*stored, *PRIVACY_KINDS, *PLUGIN_KINDS} - set(EXCLUDED_KINDS)}
    assert {(ref, state) for ref, state, _ in _search(town, WHO)} == {(ref, "found") for ref in planted}
    assert set(town.house.ledger.store.list_kinds("bank")) >= set(EXCLUDED_KINDS) - {"object"}, "each of them exists"


def test_search_of_records_goes_on_behind_each_cursor(town: Town) -> None:
    who = "784-1990-5550001-2"
    for kind in (*PRIVACY_KINDS, *PLUGIN_KINDS):
        _plant(town, kind, who)
    outcomes = _search(town, who)
    cursors = [cursor for _, _, cursor in outcomes if cursor]
    assert len(cursors) >= len(PRIVACY_KINDS)
    for number, cursor in enumerate(cursors):
        assert _search(town, who, cursor) == outcomes[number + 1 :]


def test_list_of_sources_in_the_records_of_an_erasure_is_kept(town: Town) -> None:
    who = "784-1990-5550001-3"
    with town.house.ledger.write(CTX) as tx:
        for kind, fields in LISTING_FIELDS.items():
            body = {field: [f"dataset:fraud/{who}@v1"] for field in fields}
            tx.emit("test.plant", tx.put(Ref(kind, "privacy", "listing"), body).ref)
    assert {(ref, state) for ref, state, _ in _search(town, who)} == {
        (f"record {kind}:privacy/listing", STATE_KEPT) for kind in LISTING_FIELDS
    }
