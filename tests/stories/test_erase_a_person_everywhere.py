"""A person asks to be erased: rows, training set, model, online store, journal, keys; it ends in a certificate.

Nothing yields them afterwards: no call, and no backup from before with all the keys that are left. A legal hold blocks
it and says so. Killed anywhere and run again it goes on.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from falaj.audit.service import verify_pack
from falaj.audit.signed_note import decode_base64
from falaj.core.context import Actor
from falaj.core.errors import Conflict, CorruptData, Denied, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.serve.sealed_blocks import RowOwner
from falaj.server import BLOB_HOLDER_KINDS, LocalClient, Server, load_settings, restore_into_store
from falaj.store.collector import Collector
from tests.features.house import town_on
from tests.infer import models
from tests.privacy.erasures import FusedClient, Killed, approve
from tests.serve.ground import logged
from tests.town import LABEL, Town, refusal

pytestmark = pytest.mark.slow
DEFINITIONS = f'''
from falaj.features import Entity, Feature, Service, Source, view

patient = Entity("fraud/patient", keys={{"patient_id": "string"}}, subject="patient_id", about="A person")
file = view("fraud/file", patient, Source("dataset:fraud/files", event="at"), features=[Feature("weight", "float64")],
            label="{LABEL}", owner="amal")
notes = view("fraud/notes", patient, Source("dataset:fraud/files", event="at"), features=[Feature("note", "string")],
             label="{LABEL}", owner="amal", sealed=True)
all_of_it = Service("fraud/all", [file, notes], owner="amal")
'''
PEOPLE = [f"patient-{number}" for number in range(6)]
WHO, AT = PEOPLE[3], 3
SCORE = Ref.parse("endpoint:fraud/score")
WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}
DAY_S = 86_400.0


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    yield from town_on(request, tmp_path, monkeypatch)


def _planted(town: Town, folder: Path) -> tuple[Ref, Ref]:
    """The person in files, views, the online store, a training set, a model and the journal of its endpoint."""
    amal, now = town.as_("amal"), round(time.time() * 1e6)
    town.as_("dana").privacy.add_purpose("fraud", "legal-duty", ("AE-PDPL",), WORDS, 365)
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    ids = [name for name in PEOPLE for _ in range(2)]
    moments = pa.array([now - (at % 2 + 1) * 3_600_000_000 for at in range(len(ids))], pa.timestamp("us", "UTC"))
    rows = {"patient_id": ids, "at": moments, "weight": [50.0 + at for at in range(len(ids))]}
    pq.write_table(pa.table({**rows, "note": [f"note of {one}" for one in ids]}), folder / "files.parquet")
    amal.catalog.publish("dataset:fraud/files", str(folder / "files.parquet"), label=LABEL)
    (folder / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(folder / "features.py"))
    amal.features.materialize("service:fraud/all")
    labels = pa.table({"patient_id": PEOPLE, "moment": pa.array([now] * len(PEOPLE), pa.int64())})
    trained = amal.features.history(labels, "service:fraud/all", name="dataset:fraud/train", moment="moment").published
    mona, score = town.as_("mona"), models.mlp(folder / "mlp")
    model = mona.catalog.publish("model:fraud/scorer", str(score), inputs={"data": trained}, label=LABEL).ref
    mona.serve.add(SCORE, model, plan={"raw": True})
    asked = [logged(time.time(), f"q{at}", one) for at, one in enumerate(PEOPLE)]
    town.house.desks["serve"].journal.append(RowOwner("bank", SCORE, "ae-dubai"), asked)
    return trained, model


def _read(town: Town) -> Any:
    return town.as_("amal").features.read("service:fraud/all", {"patient_id": PEOPLE})


def _keys(town: Town) -> set[str]:
    return {line.key for line in town.as_("salem").serve.logs(SCORE).lines}


def _collected(house: Server) -> None:
    """Bytes that nothing needs any more go, as the background loop has them go in time."""
    collector, ctx = (
        Collector(house.blobs, BLOB_HOLDER_KINDS, grace_s=0.0),
        house.context(Actor("loop", "bank", kind="service")),
    )
    for days in range(1, 9):  # each goes in two steps, and what it was made of after it
        collector.collect(replace(ctx, now=lambda days=days: time.time() + days * DAY_S))


def test_erase_a_person_everywhere(town: Town, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    trained, model = _planted(town, tmp_path)
    salem, dana = town.as_("salem"), town.as_("dana")
    before = _read(town)
    assert before.columns["note"][AT] == f"note of {WHO}"
    salem.privacy.restrict(PEOPLE[0], "contested")
    assert {_read(town).statuses[name][0] for name in ("note", "weight")} == {"NOT_FOUND"}
    salem.privacy.lift(PEOPLE[0], "corrected")
    assert _read(town).columns == before.columns
    (tmp_path / "ledger.backup").write_bytes(b"".join(town.as_("admin").store.backup()))
    laptop = request.node.callspec.params["town"] == "laptop"
    assert not laptop or _yields(tmp_path, "before", trained)
    sealed = town.house.keyring.subject_seal("bank", "ae-dubai", WHO, b"what names them")

    asked = salem.privacy.ask("erasure", WHO)
    assert [one.regime for one in asked.clocks] == ["AE-PDPL"]
    assert isinstance(refusal(lambda: salem.privacy.erase(asked.ref, PEOPLE[2])), Denied)

    salem.catalog.hold(trained, "case 2027-114")
    planned = salem.privacy.erase(asked.ref, WHO)
    assert (planned.state, [text for text in planned.held if str(trained) in text]) != ("planned", [])
    assert WHO in _keys(town), "nothing is destroyed before somebody else approved it"
    assert isinstance(refusal(lambda: salem.privacy.shred(asked.ref, WHO)), Conflict)
    after = _read(town)
    assert {after.statuses[name][AT] for name in after.columns} == {"NOT_FOUND"}, "they are restricted meanwhile"
    salem.catalog.release(trained, "case 2027-114")
    assert WHO in _keys(town), "the end of a hold erases nobody by itself"
    approve(town, asked.ref)

    waiting = _killed_and_gone_on(salem, asked.ref)
    assert waiting.state == "waiting"
    assert str(model) in waiting.undecided
    assert isinstance(refusal(lambda: salem.privacy.certify(asked.ref, WHO)), Conflict)
    assert isinstance(refusal(lambda: salem.privacy.decide(asked.ref, str(model), "retrain", "x")), Denied)
    for thing in waiting.undecided:
        dana.privacy.decide(asked.ref, thing, "retrain", "with the next data")
    done = salem.privacy.erase(asked.ref, WHO, out=str(tmp_path / "certificate"))
    assert done.ok
    assert salem.privacy.erase(asked.ref, WHO).certificate == done.certificate
    _certified(tmp_path / "certificate", done.certificate, str(model))

    _gone_from(town, trained, before, sealed)
    if laptop:
        _collected(town.house)
        assert not _yields(tmp_path, "after", trained)


def _killed_and_gone_on(here: Any, request: Ref) -> Any:
    """Killed after every so many calls; each time it is run again it gets further."""
    from falaj.privacy.erasing import erase

    fuse = 4
    while True:
        try:
            return erase(FusedClient(here, fuse), request, WHO)  # type: ignore[arg-type]
        except Killed:
            fuse = fuse * 2


def _certified(folder: Path, digest: str, model: str) -> None:
    shown = json.loads((folder / "certificate.json").read_text())
    statement = json.loads(shown["statement"])
    assert [one["ref"] for one in statement["derived"] if one["decision"] == "retrain"].count(model) == 1
    assert list(statement["people"]) == ["ae-dubai", "eu-west"]
    assert WHO not in shown["statement"]
    Ed25519PublicKey.from_public_bytes(decode_base64(shown["key"])).verify(
        decode_base64(shown["signature"]), shown["statement"].encode()
    )
    assert json.loads(shown["proof"]["event"])["body"]["digest"] == digest
    assert verify_pack(folder / "proof.json", shown["key"]).ok
    proof = json.loads((folder / "proof.json").read_text())
    (folder / "forged.json").write_text(json.dumps({**proof, "event": proof["event"].replace(digest, "sha256:0")}))
    assert not verify_pack(folder / "forged.json", shown["key"]).ok


def _gone_from(town: Town, trained: Ref, before: Any, sealed: str) -> None:
    """Every way there is to them ends in nothing, and nobody else lost anything."""
    after = _read(town)
    for name, column in after.columns.items():
        assert after.statuses[name][AT] == "NOT_FOUND", name
        assert [one for at, one in enumerate(column) if at != AT] == [
            one for at, one in enumerate(before.columns[name]) if at != AT
        ], name
    assert _keys(town) == set(PEOPLE) - {WHO}
    assert isinstance(refusal(lambda: town.as_("amal").catalog.open(trained)), NotFound)
    assert isinstance(refusal(lambda: town.house.keyring.subject_open("bank", "ae-dubai", sealed)), NotFound)
    assert isinstance(refusal(lambda: town.house.keyring.subject_seal("bank", "ae-dubai", WHO, b"x")), Denied)
    assert not any(WHO in f"{event.body}{event.subject}{event.inputs}" for event in town.events())
    assert town.as_("omar").audit.check().ok


def _yields(folder: Path, name: str, trained: Ref) -> bool:
    """Whether the ledger of the day before, with every key and every byte that is left, gives their rows."""
    home = folder / name
    shutil.copytree(folder / "house", home, ignore=lambda _, names: [one for one in names if "ledger" in one])
    settings = load_settings(str(home), {"zone": "ae-dubai"})
    restore_into_store(settings, str(folder / "ledger.backup"))
    old = Server(settings)
    here = LocalClient(old, Actor("amal", "bank", roles=frozenset({"data-scientist"}), jurisdiction="AE"), "fraud")
    label = pa.table({"patient_id": [WHO], "moment": pa.array([round(time.time() * 1e6)], pa.int64())})
    found = [
        _gives(lambda: here.catalog.checkout(trained, str(folder / f"{name}-out"))),
        _gives(lambda: here.catalog.checkout("dataset:fraud/files@v1", str(folder / f"{name}-files"))),
        _gives(lambda: here.features.table(label, "service:fraud/all", moment="moment")),
        here.features.read("service:fraud/all", {"patient_id": [WHO]}).statuses["note"] != ["NOT_FOUND"],
    ]
    old.close()
    assert len(set(found)) == 1, found
    return found[0]


def _gives(act: Callable[[], Any]) -> bool:
    try:
        act()
    except (NotFound, CorruptData, Unavailable):
        return False
    return True
