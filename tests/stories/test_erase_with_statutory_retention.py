"""A person is in a table of a bank, one of a hospital, one under no such law, a feature view and a model.

Nothing is destroyed where a duty to keep stands; the rest is erased; what is retained is unreadable by every door; and
once each period is over the same plan finishes. Killed anywhere it ends the same.
"""

import gzip
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import Conflict, Denied, NotFound
from falaj.core.ref import Ref
from falaj.privacy.erasing import erase
from tests.infer import models
from tests.privacy.erasures import FusedClient, Killed, approve, erase_approved
from tests.town import LABEL, Town, refusal

BANK, HEALTH = "AE-CBUAE,sensitive,purpose=fraud", "AE-HEALTH,sensitive,purpose=fraud"
DEFINITIONS = f'''
from falaj.features import Entity, Feature, Source, view

customer = Entity("fraud/customer", keys={{"customer_id": "string"}}, subject="customer_id", about="A person")
spend = view("fraud/spend", customer, Source("dataset:fraud/plain", event="at"),
             features=[Feature("note", "string")], label="{LABEL}", owner="amal")
care = view("fraud/care", customer, Source("dataset:fraud/health", event="at"),
            features=[Feature("note", "string")], label="{HEALTH}", owner="amal", sealed=True)
'''
PEOPLE = [f"person-{number}" for number in range(4)]
WHO = PEOPLE[2]
WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}
YEAR_S = 365.25 * 86_400
NAMES = ("bank", "health", "plain")


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house")
    yield made
    made.close()


def plant(town: Town, folder: Path) -> tuple[dict[str, Ref], Ref]:
    """Publish the tables, the views and a model that learned from two of the tables."""
    amal, now = town.as_("amal"), round(time.time() * 1e6)
    town.as_("dana").privacy.add_purpose("fraud", "legal-duty", ("AE-PDPL",), WORDS, 365)
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    moments = pa.array([now - 3_600_000_000] * len(PEOPLE), pa.timestamp("us", "UTC"))
    refs = {}
    for name, label in zip(NAMES, (BANK, HEALTH, LABEL), strict=True):
        table = pa.table({"customer_id": PEOPLE, "at": moments, "note": [f"{name} of {one}" for one in PEOPLE]})
        pq.write_table(table, folder / f"{name}.parquet")
        refs[name] = amal.catalog.publish(f"dataset:fraud/{name}", str(folder / f"{name}.parquet"), label=label).ref
    (folder / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(folder / "features.py"))
    amal.features.materialize("view:fraud/spend")
    amal.features.materialize("view:fraud/care")
    inputs = {"bank": refs["bank"], "plain": refs["plain"]}
    model = town.as_("mona").catalog.publish("model:fraud/scorer", str(models.mlp(folder / "mlp")), inputs=inputs).ref
    salem = town.as_("salem").catalog
    salem.record_event(refs["bank"], "end-of-relationship", "2024-06-30", "the account was closed")
    salem.record_event(refs["health"], "last-procedure", "2024-06-30", "the file of the hospital")
    return refs, model


def people_of(here: Any, name: str | Ref, folder: Path) -> list[str]:
    """Who is in a table, as its reader gets it."""
    out = here.catalog.checkout(name, str(folder / f"out-{time.monotonic_ns()}")).folder
    return sorted(pq.read_table(next(Path(out).glob("*.parquet"))).column("customer_id").to_pylist())


def run_until_done(town: Town, request: Ref, *, killed: bool) -> Any:
    """Run it to its end; with `killed`, kill the client after ever more calls, so that each run gets further."""
    fuse = 1 if killed else 1_000_000
    while True:
        try:
            return erase(FusedClient(town.as_("salem"), fuse), request, WHO)  # type: ignore[arg-type]
        except Killed:
            fuse += 1 + fuse // 8


def move_time(town: Town, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call from here on run so much later."""
    plain = type(town.house).context
    moved = {"now": lambda: time.time() + seconds}
    monkeypatch.setattr(
        type(town.house), "context", lambda house, actor, **more: replace(plain(house, actor, **more), **moved)
    )


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_erase_with_statutory_retention(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    refs, model = plant(town, tmp_path)
    salem, dana = town.as_("salem"), town.as_("dana")
    sealed = town.house.keyring.subject_seal("bank", "ae-dubai", WHO, b"what names them")
    request = salem.privacy.ask("erasure", WHO).ref

    planned = salem.privacy.erase(request, WHO, plan=True)
    by_ref = {item.ref: item for item in planned.items}
    assert planned.state == "planned"
    assert (by_ref[str(refs["bank"])].action, by_ref[str(refs["bank"])].law[:8]) == ("restrict", "AE-CBUAE")
    assert (by_ref[str(refs["health"])].action, by_ref[str(refs["health"])].law[:9]) == ("restrict", "AE-HEALTH")
    assert by_ref[str(refs["plain"])].action == "erase"
    assert by_ref[str(model)].action == "decide"
    assert by_ref["view:fraud/spend"].action == "forget"
    assert by_ref[str(refs["bank"])].until < by_ref[str(refs["health"])].until
    assert salem.privacy.erase(request, WHO).state == "planned", "nobody approved it"
    assert people_of(salem, refs["plain"], tmp_path) == PEOPLE, "a plan destroyed something"
    mine = dana.privacy.plan(request).approval
    assert isinstance(refusal(lambda: salem.approvals.give(mine)), Denied)
    assert isinstance(refusal(lambda: salem.privacy.start_erasure(request, WHO)), Denied)
    approve(town, request)

    held = run_until_done(town, request, killed=killed)
    while held.state == "waiting":
        for name in held.undecided:
            dana.privacy.decide(request, name, "retrain", "with the next data")
        held = run_until_done(town, request, killed=killed)
    assert held.state == "retained"
    assert any(str(refs["bank"]) in text and "until 2029-" in text and "AE-CBUAE" in text for text in held.held)
    assert any(str(refs["health"]) in text and "until 2049-" in text and "AE-HEALTH" in text for text in held.held)
    assert town.house.keyring.subject_open("bank", "ae-dubai", sealed) == b"what names them", "no key was destroyed"
    assert salem.privacy.request(request).state == "retained"
    _unreadable(town, refs, tmp_path)
    assert isinstance(refusal(lambda: salem.privacy.certify(request, WHO)), Conflict)
    assert isinstance(refusal(lambda: salem.catalog.delete(refs["bank"], "quietly", force=True)), Denied)
    assert isinstance(refusal(lambda: salem.catalog.lift(refs["bank"], "to look at it")), Denied)
    assert not salem.privacy.retained(due=True)
    assert salem.privacy.erase(request, WHO).state == "retained"

    move_time(town, 3 * YEAR_S, monkeypatch)
    assert str(refs["bank"]) not in {str(one.ref) for one in town.as_("salem").privacy.holds()}
    assert [plan.request for plan in town.as_("salem").privacy.retained(due=True)] == [request]
    part = run_until_done(town, request, killed=killed)
    assert (part.state, len(part.held) < len(held.held)) == ("retained", True), "the hospital's period goes on"
    assert isinstance(refusal(lambda: town.as_("salem").catalog.open(refs["bank"])), NotFound)
    assert isinstance(refusal(lambda: town.as_("salem").catalog.open(refs["health"])), Denied)
    assert not town.as_("salem").privacy.retained(due=True)
    monkeypatch.undo()
    move_time(town, 26 * YEAR_S, monkeypatch)
    assert [plan.request for plan in town.as_("salem").privacy.retained(due=True)] == [request]
    done = run_until_done(town, request, killed=killed)
    while done.state == "waiting":
        for name in done.undecided:
            town.as_("dana").privacy.decide(request, name, "retire", "it is old")
        done = run_until_done(town, request, killed=killed)
    assert done.ok
    assert town.as_("salem").privacy.plan(request).state == "done"
    for name in ("bank", "health", "plain"):
        assert isinstance(refusal(lambda name=name: town.as_("salem").catalog.open(refs[name])), NotFound)
        assert people_of(town.as_("salem"), f"dataset:fraud/{name}", tmp_path) == [one for one in PEOPLE if one != WHO]
    assert isinstance(refusal(lambda: town.house.keyring.subject_open("bank", "ae-dubai", sealed)), NotFound)


def _unreadable(town: Town, refs: dict[str, Ref], folder: Path) -> None:
    """What is retained opens for nobody; what was made without the person goes on."""
    amal, salem, mona = town.as_("amal"), town.as_("salem"), town.as_("mona")
    for name in ("bank", "health"):
        for person in (amal, salem, mona):
            told = refusal(lambda here=person, name=name: here.catalog.open(refs[name]))
            assert isinstance(told, Denied)
            assert "restricted" in told.message
        assert isinstance(refusal(lambda name=name: salem.catalog.copy(refs[name], "eu-west")), Denied)
        told = refusal(lambda name=name: amal.jobs.submit("true", project="fraud", inputs={"data": refs[name]}))
        assert isinstance(told, Denied)
        assert people_of(amal, f"dataset:fraud/{name}", folder) == [one for one in PEOPLE if one != WHO]
    assert isinstance(refusal(lambda: amal.catalog.open(refs["plain"])), NotFound)
    labels = pa.table({"customer_id": PEOPLE, "moment": pa.array([round(time.time() * 1e6)] * len(PEOPLE), pa.int64())})
    for view in ("view:fraud/spend", "view:fraud/care"):
        answer = amal.features.read(view, {"customer_id": PEOPLE})
        assert answer.statuses["note"] == ["NOT_FOUND" if one == WHO else "PRESENT" for one in PEOPLE], view
        table = amal.features.table(labels, view, moment="moment")
        notes = dict(zip(table.column("customer_id").to_pylist(), table.column("note").to_pylist(), strict=True))
        assert notes.get(WHO) is None, view
        assert all(notes[one] for one in PEOPLE if one != WHO), view


def test_a_file_that_cannot_be_rewritten_is_restricted_whole(town: Town, tmp_path: Path) -> None:
    """An archive of the bank: only the search of all bytes finds the person, and no start of the period is recorded."""
    salem = town.as_("salem")
    (tmp_path / "list.csv.gz").write_bytes(gzip.compress(f"who,amount\n{WHO},2\n{PEOPLE[0]},3\n".encode()))
    listed = town.as_("amal").catalog.publish("dataset:fraud/list", str(tmp_path / "list.csv.gz"), label=BANK).ref
    request = salem.privacy.ask("erasure", WHO).ref
    held = erase_approved(town, request, WHO)
    assert (held.state, held.undecided, held.matches) == ("retained", (), ()), held
    assert [text for text in held.held if str(listed) in text and "until further notice" in text]
    assert "restricted" in refusal(lambda: town.as_("amal").catalog.open(listed)).message
    assert salem.privacy.erase(request, WHO).state == "retained"
    salem.catalog.record_event(listed, "end-of-relationship", "2001-06-30", "the file says so")
    assert [plan.due for plan in salem.privacy.retained(due=True)] == [True]
    done = salem.privacy.erase(request, WHO)
    assert done.ok, done
    assert isinstance(refusal(lambda: salem.catalog.open(listed)), NotFound)
