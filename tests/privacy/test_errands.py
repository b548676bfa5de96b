"""Access, the record of processing, the reach of a breach: every planted record is found, and nothing of others."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from falaj.asof.encrypted_online_store import EncryptedOnlineStore
from falaj.asof.service_reader import ServiceReader
from falaj.asof.space_keys import make_key_finder
from falaj.audit.signed_note import decode_base64
from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.infer.feature_lookup import parse_plan
from falaj.serve.sealed_blocks import RowOwner
from falaj.store.codec import to_plain
from tests.infer import models
from tests.privacy.erasures import approve, erase_approved
from tests.serve.ground import logged
from tests.town import LABEL, Town, refusal

DEFINITIONS = f'''
from falaj.features import Entity, Feature, Source, view

patient = Entity("fraud/patient", keys={{"patient_id": "int64"}}, subject="patient_id", about="A person")
file = view("fraud/file", patient, Source("dataset:fraud/files", event="at"), features=[Feature("note", "string")],
            label="{LABEL}", owner="amal")
'''
PEOPLE = [71, 72, 73, 74]
WHO, AT = "73", 2
SCORE = Ref.parse("endpoint:fraud/score")
WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}
TEXT = "sha256:" + hashlib.sha256(b"words").hexdigest()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    made = Town(folder / "house")
    made.as_("dana").privacy.add_purpose("fraud", "consent", ("AE-PDPL",), WORDS, 365)
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    amal, now = made.as_("amal"), round(time.time() * 1e6)
    moments = pa.array([now - 3_600_000_000] * len(PEOPLE), pa.timestamp("us", "UTC"))
    rows = {"patient_id": PEOPLE, "at": moments, "note": [f"note of {one}" for one in PEOPLE]}
    pq.write_table(pa.table(rows), folder / "files.parquet")
    amal.catalog.publish("dataset:fraud/files", str(folder / "files.parquet"), label=LABEL)
    (folder / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(folder / "features.py"))
    amal.features.materialize("view:fraud/file")
    mona = made.as_("mona")
    mona.serve.add(SCORE, mona.catalog.publish("model:fraud/mlp", str(models.mlp(folder / "mlp")), label=LABEL).ref)
    lines = [logged(time.time(), f"q{at}", str(one)) for at, one in enumerate(PEOPLE)]
    made.house.desks["serve"].journal.append(RowOwner("bank", SCORE, "ae-dubai"), lines)
    yield made
    made.close()


def _all_of(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())


def test_access_gives_all_of_a_person_and_nothing_of_others(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    salem.privacy.consent("fraud", WHO, TEXT, "ar", "app")
    salem.privacy.consent("fraud", "71", TEXT, "ar", "app")
    asked = salem.privacy.ask("access", WHO)
    assert [one.regime for one in asked.clocks] == ["AE-PDPL"]
    assert isinstance(refusal(lambda: salem.privacy.access(asked.ref, "71", str(tmp_path / "x"))), Denied)
    assert not list(tmp_path.iterdir()), "nothing is left behind by a refusal"
    done = salem.privacy.access(asked.ref, WHO, str(tmp_path / "answer"))
    assert (done.rows, done.complete) == (3, False)
    assert "too short" in done.unsearched[0], "73 is told from other numbers by declared columns only"
    folder = tmp_path / "answer"
    held = json.loads((folder / "answer.json").read_text())
    assert sorted(held["held"]) == ["dataset:fraud/files@v1", str(SCORE), "view:fraud/file@v1"]
    data = json.loads((folder / "data.json").read_text())
    assert [row["request_id"] for row in data[str(SCORE)]] == ["q2"]
    assert [one["person"] for one in held["consents"]] == [asked.person]
    whole = _all_of(folder)
    assert f"note of {WHO}" in whole
    assert not [one for one in PEOPLE if str(one) != WHO and f"note of {one}" in whole]
    manifest = (folder / "manifest.json").read_bytes()
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert json.loads(manifest)["files"].keys() == files - {"manifest.json", "signature.json", "proof.json"}
    for name, digest in json.loads(manifest)["files"].items():
        assert digest == "sha256:" + hashlib.sha256((folder / name).read_bytes()).hexdigest()
    signed = json.loads((folder / "signature.json").read_text())
    assert done.manifest == "sha256:" + hashlib.sha256(manifest).hexdigest()
    key = Ed25519PublicKey.from_public_bytes(decode_base64(signed["key"]))
    key.verify(decode_base64(signed["signature"]), done.manifest.encode())
    assert isinstance(refusal(lambda: salem.privacy.access(asked.ref, WHO, str(folder))), Invalid)


def test_a_withdrawal_counts_with_the_next_read(town: Town, tmp_path: Path) -> None:
    amal, salem = town.as_("amal"), town.as_("salem")
    reader = amal.features.reader("view:fraud/file")
    asks: dict[str, list[Any]] = {"patient_id": PEOPLE}

    plan = amal.features.open("view:fraud/file").plan
    assert len(plan.barred) == 2, "restricted, and for this purpose"
    raw = LmdbOnlineStore(f"lmdb:{town.house.settings.home}/online/bank")
    replica = ServiceReader(
        plan, EncryptedOnlineStore(raw, make_key_finder(amal.features.unlock("view:fraud/file").spaces))
    )

    def notes() -> tuple[list[Any], ...]:
        answers = (amal.features.read("view:fraud/file", asks), reader.read(asks), replica.read(asks))
        return tuple(answer.columns["note"] for answer in answers)

    assert parse_plan(to_plain(plan)) == plan, "replicas of endpoints get it so"
    whole = [f"note of {one}" for one in PEOPLE]
    assert notes() == (whole, whole, whole)
    salem.privacy.withdraw("fraud", WHO)
    without = [None if str(one) == WHO else f"note of {one}" for one in PEOPLE]
    assert notes() == (without, without, without)
    store = town.house.online("bank")
    for space, field in plan.barred:
        store.delete(space, [int(WHO).to_bytes(8, "little")])
        assert field.name == "patient_id"
    assert notes() == (whole, whole, whole), "an online store that was lost"
    assert salem.privacy.remark() == 1
    assert notes() == (without, without, without)
    labels = pa.table({"patient_id": PEOPLE, "moment": pa.array([round(time.time() * 1e6)] * 4, pa.int64())})
    table = amal.features.table(labels, "view:fraud/file", moment="moment")
    assert table.column("patient_id").to_pylist() == [one for one in PEOPLE if str(one) != WHO]
    salem.privacy.consent("fraud", WHO, TEXT, "ar", "app")
    assert notes() == (whole, whole, whole)
    reader.close()
    raw.close()


def test_the_record_of_processing_is_what_was_done(town: Town, tmp_path: Path) -> None:
    dana = town.as_("dana")
    made = dana.privacy.ropa("PDPL", str(tmp_path / "record"))
    record = json.loads((tmp_path / "record" / "ropa.json").read_text())
    things = {one["name"]: one for one in record["things"]}
    assert {"dataset:fraud/files", "view:fraud/file", "model:fraud/mlp"} <= things.keys()
    assert things["dataset:fraud/files"]["purposes"] == ["fraud"]
    done = {(one["thing"], one["act"], one["by"]): one["acts"] for one in record["activity"]}
    said = [(event, {ref.bare for ref in (event.subject, *event.inputs)}) for event in town.events()]
    for (thing, act, who), acts in done.items():
        seen = [
            one for one, refs in said if (one.verb, one.behalf or one.actor) == (act, who) and Ref.parse(thing) in refs
        ]
        assert acts == sum(int(one.body.get("times", 1)) for one in seen), (thing, act, who)
    assert ("dataset:fraud/files", "catalog.publish", "amal") in done
    assert made.acts == sum(done.values())
    arabic = (tmp_path / "record" / "ropa.ar.html").read_text()
    assert WORDS["ar"] in arabic
    assert "no certification" in (tmp_path / "record" / "ropa.en.html").read_text()
    assert isinstance(refusal(lambda: dana.privacy.ropa("XX", str(tmp_path))), NotFound)
    again = dana.privacy.ropa("EU-GDPR", str(tmp_path / "other"))
    assert again.things == 0


def test_the_reach_of_a_breach_and_what_is_held(town: Town) -> None:
    dana, salem = town.as_("dana"), town.as_("salem")
    found = dana.privacy.report("seen by a stranger", about=("dataset:fraud/files@v1",))
    assert [(clock.regime, clock.duty) for clock in found.clocks] == [
        ("AE-PDPL", "breach"),
        ("AE-PDPL", "breach-people"),
    ]
    reach = dana.privacy.radius(found.ref)
    assert any(one.startswith("dataset:fraud/file.rows1") for one in reach.affected)
    assert reach.tables_of_people == {"dataset:fraud/files@v1": len(PEOPLE)}
    assert "amal" in reach.users
    assert "ae-dubai" in reach.zones
    salem.catalog.hold("dataset:fraud/files@v1", "case 1")
    held = {str(one.ref): one for one in salem.privacy.holds()}
    assert held["dataset:fraud/files@v1"].holds == ("case 1",)
    assert held["dataset:fraud/files@v1"].laws == ("legal hold", "breach")
    assert all(one.open_ended and not one.until for one in held.values())
    assert any(name.startswith("dataset:fraud/file.rows1") for name in held), "what was made from it is kept, too"
    salem.catalog.release("dataset:fraud/files@v1", "case 1")
    refused = refusal(lambda: salem.catalog.delete("dataset:fraud/files@v1", "tidy", force=True))
    assert str(found.ref) in refused.message, "evidence of a breach under investigation"
    dana.privacy.notify(found.ref, "AE-PDPL", "2026/9")
    dana.privacy.notify(found.ref, "AE-PDPL", "no prejudice: nothing was copied", to="people", not_owed=True)
    dana.privacy.settle(found.ref, "the account was closed")
    assert salem.privacy.holds() == ()


def test_record_of_processing_lists_the_duties_that_deletions_ask(town: Town, tmp_path: Path) -> None:
    amal, salem, dana = town.as_("amal"), town.as_("salem"), town.as_("dana")
    refs = []
    for day, count in (("2024-06-30", 1), ("2025-06-30", 2)):
        pq.write_table(pa.table({"n": [count]}), tmp_path / "t.parquet")
        label = "AE-CBUAE,sensitive,purpose=fraud"
        refs.append(amal.catalog.publish("dataset:fraud/ledger", str(tmp_path / "t.parquet"), label=label).ref)
        salem.catalog.record_event(refs[-1], "end-of-relationship", day, "file 44")
    dana.catalog.hold(refs[0], "case 7")
    record = dana.privacy.ropa("AE-CBUAE", str(tmp_path / "record")).record
    duties = {one["law"]: one for one in next(one for one in record["things"] if "ledger" in one["name"])["duties"]}
    kept = {one.ref: one for one in dana.privacy.holds()}
    assert duties["AE-CBUAE"]["until"] == kept[refs[1]].until, "of several versions the latest end counts"
    assert (duties["legal hold"]["until"], kept[refs[0]].open_ended) == (0.0, True)
    assert refusal(lambda: salem.catalog.delete(refs[1], "tidy")).message.endswith("until 2030-07-01")
    page = (tmp_path / "record" / "ropa.en.html").read_text()
    assert "kept until 1 July 2030" in page
    assert "kept; its end has no date yet" in page
    assert "حجز قانوني" in (tmp_path / "record" / "ropa.ar.html").read_text()
    dana.catalog.release(refs[0], "case 7")


def test_table_with_the_person_is_never_accepted(town: Town, tmp_path: Path) -> None:
    salem, dana = town.as_("salem"), town.as_("dana")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "list.csv").write_text("patient_id,b\n74,2\n")
    (tmp_path / "list" / "note.txt").write_text("files of other formats are not written anew\n")
    listed = town.as_("amal").catalog.publish("dataset:fraud/list", str(tmp_path / "list"), label=LABEL).ref
    asked = salem.privacy.ask("erasure", "74").ref
    waiting = erase_approved(town, asked, "74")
    assert (waiting.state, waiting.undecided) == ("waiting", (str(listed),))
    assert str(listed) in waiting.matches[0]
    assert isinstance(refusal(lambda: dana.privacy.decide(asked, "dataset:fraud/x@v1", "accept", "x")), NotFound)
    error = refusal(lambda: dana.privacy.decide(asked, str(listed), "accept", "deleted by hand tomorrow"))
    assert isinstance(error, Denied)
    assert "was found in" in error.message
    dana.privacy.decide(asked, str(listed), "retire", "deleted by hand tomorrow")
    still = salem.privacy.erase(asked, "74")
    assert (still.state, still.undecided) == ("found", ())
    assert isinstance(refusal(lambda: salem.privacy.certify(asked, "74")), Conflict), "it is still there"
    salem.catalog.delete(listed, "request")
    done = salem.privacy.erase(asked, "74")
    assert done.state == "partial", "74 is too short to be told from other numbers"
    assert "dataset:fraud/files@v1" not in {str(one.ref) for one in salem.catalog.list(kind="dataset").versions}
    left = salem.catalog.checkout("dataset:fraud/files", str(tmp_path / "out")).folder
    assert pq.read_table(next(Path(left).glob("*.parquet"))).column("patient_id").to_pylist() == [71, 72, 73]
    certificate = salem.privacy.certificate(asked)
    statement = json.loads(certificate.statement)
    assert (certificate.state, statement["state"]) == ("partial", "partial")
    assert "Partial" in statement["title"]["en"]
    assert "too short" in statement["not_searched"][0]["reason"]
    assert salem.privacy.certificate(asked) == certificate


def test_reads_of_people_cover_every_version(town: Town, tmp_path: Path) -> None:
    amal, salem = town.as_("amal"), town.as_("salem")
    for version, people in enumerate(([81, 82], [82])):
        table = pa.table({"patient_id": people, "note": [f"note of {person}" for person in people]})
        pq.write_table(table, tmp_path / f"{version}.parquet")
        amal.catalog.publish("dataset:fraud/folk", str(tmp_path / f"{version}.parquet"), label=LABEL)
    salem.catalog.hold("dataset:fraud/folk@v1", "case 2026-7 Dubai Courts")
    assert "dataset:fraud/folk@v1" in {str(kept.ref) for kept in salem.privacy.holds()}
    salem.privacy.access(salem.privacy.ask("access", "81").ref, "81", str(tmp_path / "answer"))
    assert "dataset:fraud/folk@v1" in json.loads((tmp_path / "answer" / "answer.json").read_text())["held"]
    request = salem.privacy.ask("erasure", "81").ref
    held = salem.privacy.erase(request, "81", plan=True)
    assert [text for text in held.held if "folk@v1" in text], "the hold on a version that is not the newest"
    approve(town, request)
    refused = refusal(lambda: salem.privacy.erase(request, "81"))
    assert "asks for a copy" in refused.message, "the person waits for an answer to the access request"
    salem.catalog.release("dataset:fraud/folk@v1", "case 2026-7 Dubai Courts")
