"""A court holds version 1 of a table, version 2 is the newest: an erasure names the hold and destroys no key."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import Denied, NotFound
from falaj.core.ref import Ref
from tests.privacy.erasures import erase_approved
from tests.town import LABEL, Town, refusal

CASE = "case 2026-7 Dubai Courts"
PEOPLE = ["person-1", "person-2"]
WHO = PEOPLE[0]
DEFINITION = """
from falaj.features import Entity

customer = Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id", about="A person")
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house")
    yield made
    made.close()


def publish(town: Town, folder: Path, people: list[str], note: str) -> Ref:
    pq.write_table(pa.table({"customer_id": people, "note": [note] * len(people)}), folder / "court.parquet")
    published: Ref = (
        town.as_("amal").catalog.publish("dataset:fraud/court", str(folder / "court.parquet"), label=LABEL).ref
    )
    return published


def test_hold_on_an_old_version(town: Town, tmp_path: Path) -> None:
    salem, dana = town.as_("salem"), town.as_("dana")
    (tmp_path / "features.py").write_text(DEFINITION)
    town.as_("amal").features.apply(str(tmp_path / "features.py"))
    old, new = publish(town, tmp_path, PEOPLE, "one"), publish(town, tmp_path, PEOPLE, "two")
    dana.catalog.hold(old, CASE)
    assert [(kept.ref, kept.holds) for kept in salem.privacy.holds()] == [(old, (CASE,))]
    sealed = town.house.keyring.subject_seal("bank", "ae-dubai", WHO, b"what names them")

    request = salem.privacy.ask("erasure", WHO).ref
    planned = salem.privacy.erase(request, WHO, plan=True)
    actions = {item.ref: (item.action, item.law) for item in planned.items}
    assert actions[str(old)] == ("restrict", "legal hold")
    assert actions[str(new)] == ("erase", "")
    assert {item.zones for item in planned.items if item.ref.startswith("dataset:")} == {("ae-dubai",)}
    held = erase_approved(town, request, WHO)
    assert held.state == "retained"
    assert [text for text in held.held if str(old) in text and "legal hold" in text]
    assert town.house.keyring.subject_open("bank", "ae-dubai", sealed) == b"what names them"
    assert salem.catalog.show(old).state == "live"
    assert "restricted" in refusal(lambda: salem.catalog.open(old)).message
    assert isinstance(refusal(lambda: salem.catalog.open(new)), NotFound)
    assert isinstance(refusal(lambda: salem.catalog.delete(old, "quietly", force=True)), Denied)

    dana.catalog.release(old, CASE)
    assert [plan.request for plan in salem.privacy.retained(due=True)] == [request]
    assert salem.privacy.erase(request, WHO).ok
    assert isinstance(refusal(lambda: salem.catalog.open(old)), NotFound)
    assert isinstance(refusal(lambda: town.house.keyring.subject_open("bank", "ae-dubai", sealed)), NotFound)
