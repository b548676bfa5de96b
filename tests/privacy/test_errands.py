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

from falaj.audit.note import unb64
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.infer.features import plan_of
from falaj.serve.blocks import Whose
from falaj.store.codec import to_plain
from tests.infer import models
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
    made.house.desks["serve"].journal.append(Whose("bank", SCORE, "ae-dubai"), lines)
    yield made
    made.close()


def _all_of(folder: Path) -> str:
    texts = [path.read_text() for path in folder.glob("*.json")]
    return "".join([*texts, *(str(pq.read_table(path).to_pydict()) for path in sorted(folder.glob("*.parquet")))])


def test_access_gives_all_of_a_person_and_nothing_of_others(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    salem.privacy.consent("fraud", WHO, TEXT, "ar", "app")
    salem.privacy.consent("fraud", "71", TEXT, "ar", "app")
    asked = salem.privacy.ask("access", WHO)
    assert [one.regime for one in asked.clocks] == ["AE-PDPL"]
    assert isinstance(refusal(lambda: salem.privacy.access(asked.ref, "71", str(tmp_path / "x"))), Denied)
    done = salem.privacy.access(asked.ref, WHO, str(tmp_path / "answer"))
    assert (done.rows, done.unsearched) == (2, ())
    folder = tmp_path / "answer"
    held = json.loads((folder / "answer.json").read_text())
    assert sorted(held["held"]) == ["dataset:fraud/files@v1", "view:fraud/file@v1"]
    assert [one["id"] for one in held["asked_of_models"][str(SCORE)]] == ["q2"]
    assert [one["person"] for one in held["consents"]] == [asked.person]
    whole = _all_of(folder)
    assert whole.count(f"note of {WHO}") == 2
    assert not [one for one in PEOPLE if str(one) != WHO and f"note of {one}" in whole]
    manifest = (folder / "manifest.json").read_bytes()
    for name, digest in json.loads(manifest)["files"].items():
        assert digest == "sha256:" + hashlib.sha256((folder / name).read_bytes()).hexdigest()
    signed = json.loads((folder / "signature.json").read_text())
    assert done.manifest == "sha256:" + hashlib.sha256(manifest).hexdigest()
    key = Ed25519PublicKey.from_public_bytes(unb64(signed["key"]))
    key.verify(unb64(signed["signature"]), done.manifest.encode())
    assert isinstance(refusal(lambda: salem.privacy.access(asked.ref, WHO, str(folder))), Invalid)


def test_a_withdrawal_counts_with_the_next_read(town: Town, tmp_path: Path) -> None:
    amal, salem = town.as_("amal"), town.as_("salem")
    reader = amal.features.reader("view:fraud/file")
    asks: dict[str, list[Any]] = {"patient_id": PEOPLE}

    def notes() -> tuple[list[Any], list[Any]]:
        return amal.features.read("view:fraud/file", asks).columns["note"], reader.read(asks).columns["note"]

    plan = amal.features.open("view:fraud/file").plan
    assert len(plan.barred) == 2, "restricted, and for this purpose"
    assert plan_of(to_plain(plan)) == plan, "replicas of endpoints get it so"
    whole = [f"note of {one}" for one in PEOPLE]
    assert notes() == (whole, whole)
    salem.privacy.withdraw("fraud", WHO)
    without = [None if str(one) == WHO else f"note of {one}" for one in PEOPLE]
    assert notes() == (without, without)
    store = town.house.online("bank")
    for space, field in plan.barred:
        store.delete(space, [int(WHO).to_bytes(8, "little")])
        assert field.name == "patient_id"
    assert notes() == (whole, whole), "an online store that was lost"
    assert salem.privacy.remark() == 1
    assert notes() == (without, without)
    labels = pa.table({"patient_id": PEOPLE, "moment": pa.array([round(time.time() * 1e6)] * 4, pa.int64())})
    table = amal.features.table(labels, "view:fraud/file", moment="moment")
    assert table.column("patient_id").to_pylist() == [one for one in PEOPLE if str(one) != WHO]
    salem.privacy.consent("fraud", WHO, TEXT, "ar", "app")
    assert notes() == (whole, whole)
    reader.close()


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
    arabic = (tmp_path / "record" / "ropa.ar.md").read_text()
    assert WORDS["ar"] in arabic
    assert "no certification" in (tmp_path / "record" / "ropa.en.md").read_text()
    assert isinstance(refusal(lambda: dana.privacy.ropa("XX", str(tmp_path))), NotFound)
    again = dana.privacy.ropa("EU-GDPR", str(tmp_path / "other"))
    assert again.things == 0


def test_the_reach_of_a_breach_and_what_is_held(town: Town) -> None:
    dana, salem = town.as_("dana"), town.as_("salem")
    found = dana.privacy.report("seen by a stranger", about=("dataset:fraud/files@v1",))
    assert [one.regime for one in found.clocks] == ["AE-PDPL"]
    reach = dana.privacy.radius(found.ref)
    assert any(one.startswith("dataset:fraud/file.rows1") for one in reach.affected)
    assert reach.tables_of_people == {"dataset:fraud/files@v1": len(PEOPLE)}
    assert "amal" in reach.users
    assert "ae-dubai" in reach.zones
    salem.catalog.hold("dataset:fraud/files@v1", "case 1")
    assert [(str(one.ref), one.holds) for one in salem.privacy.holds()] == [("dataset:fraud/files@v1", ("case 1",))]
    salem.catalog.release("dataset:fraud/files@v1", "case 1")


def test_what_nobody_can_search_waits_for_a_decision(town: Town, tmp_path: Path) -> None:
    salem, dana = town.as_("salem"), town.as_("dana")
    (tmp_path / "list.csv").write_text("patient_id,b\n74,2\n")
    listed = town.as_("amal").catalog.publish("dataset:fraud/list", str(tmp_path / "list.csv"), label=LABEL).ref
    asked = salem.privacy.ask("erasure", "74").ref
    waiting = salem.privacy.erase(asked, "74")
    assert (waiting.state, waiting.undecided) == ("waiting", (str(listed),))
    assert isinstance(refusal(lambda: dana.privacy.decide(asked, "dataset:fraud/x@v1", "accept", "x")), NotFound)
    dana.privacy.decide(asked, str(listed), "accept", "deleted by hand tomorrow")
    assert salem.privacy.erase(asked, "74").ok
    assert "dataset:fraud/files@v1" not in {str(one.ref) for one in salem.catalog.list(kind="dataset").versions}
    left = salem.catalog.checkout("dataset:fraud/files", str(tmp_path / "out")).folder
    assert pq.read_table(next(Path(left).glob("*.parquet"))).column("patient_id").to_pylist() == [71, 72, 73]
    certificate = salem.privacy.certificate(asked)
    assert json.loads(certificate.statement)["derived"][0]["decision"] == "accept"
    assert salem.privacy.certificate(asked) == certificate
