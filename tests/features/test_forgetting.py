"""Features forget a person: online, in rows, pushes, training sets, samples of reads; and they stay forgotten."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import NotFound
from tests.features.house import town_on
from tests.people import with_approval
from tests.town import LABEL, Town, refusal

DEFINITIONS = f'''
from falaj.features import Entity, Feature, Service, Source, Window, view

patient = Entity("fraud/patient", keys={{"patient_id": "string"}}, subject="patient_id", about="A person")
file = view("fraud/file", patient, Source("dataset:fraud/files", event="at"), features=[Feature("weight", "float64")],
            label="{LABEL}", owner="amal")
notes = view("fraud/notes", patient, Source("dataset:fraud/files", event="at"), features=[Feature("note", "string")],
             label="{LABEL}", owner="amal", sealed=True)
visits = view("fraud/visits", patient, Source("push", event="at"), features=[Feature("cost", "float64")],
              windows=[Window("sum", "cost", "30d")], label="{LABEL}", owner="amal")
all_of_it = Service("fraud/all", [file, notes, visits], owner="amal")
'''
PEOPLE = [f"p{number}" for number in range(8)]


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    yield from town_on(request, tmp_path, monkeypatch)


def _files(now: int) -> pa.Table:
    ids = [name for name in PEOPLE for _ in range(3)]
    moments = pa.array([now - (at % 3 + 1) * 3_600_000_000 for at in range(len(ids))], pa.timestamp("us", "UTC"))
    weights = [50.0 + at for at in range(len(ids))]
    return pa.table({"patient_id": ids, "at": moments, "weight": weights, "note": [f"note of {one}" for one in ids]})


def _visits(now: int) -> list[dict[str, Any]]:
    return [{"patient_id": name, "at": now - 60_000_000, "cost": 10.0 + at} for at, name in enumerate(PEOPLE)]


def test_a_person_is_forgotten_and_stays_so(town: Town, tmp_path: Path) -> None:
    amal, now = town.as_("amal"), round(time.time() * 1e6)
    (tmp_path / "features.py").write_text(DEFINITIONS)
    pq.write_table(_files(now), tmp_path / "files.parquet")
    amal.catalog.publish("dataset:fraud/files", str(tmp_path / "files.parquet"), label=LABEL)
    amal.features.apply(str(tmp_path / "features.py"))
    amal.features.materialize("service:fraud/all")
    amal.features.push("view:fraud/visits", _visits(now))
    labels = pa.table({"patient_id": PEOPLE, "moment": pa.array([now] * len(PEOPLE), pa.int64())})
    trained = amal.features.history(labels, "service:fraud/all", name="dataset:fraud/train", moment="moment").published
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.json").write_text("{}")
    model = amal.catalog.publish("model:fraud/scorer", str(tmp_path / "model"), inputs={"data": trained}).ref
    amal.features.push("view:fraud/visits", _visits(now))
    before = amal.features.read("service:fraud/all", {"patient_id": PEOPLE})
    assert before.columns["note"][3] == "note of p3"
    assert before.columns["sum_cost_30d"][3] == 26.0
    held = b"".join(path.read_bytes() for path in (tmp_path / "house" / "online").glob("bank/*"))
    assert b"note of" not in held, "a sealed view lies open in the online store"

    salem, badr = town.as_("salem"), town.as_("badr")
    for alone in (
        lambda: salem.features.erase("entity:fraud/patient", "p3"),
        lambda: salem.features.forget("view:fraud/visits", {"patient_id": ["p3"]}),
    ):
        assert "one person alone erases nobody" in refusal(alone).message
    assert amal.features.read("service:fraud/all", {"patient_id": PEOPLE}).columns == before.columns
    assert salem.features.erase("entity:fraud/patient", "p3", dry=True).dry, "to look takes one person"
    report = with_approval(
        lambda: salem.features.erase("entity:fraud/patient", "p3", reason="asked on 2026-11-01"), salem, badr
    )
    other = refusal(lambda: salem.features.erase("entity:fraud/patient", "p4"))
    assert "one person alone" in other.message, "the approval was about p3"
    assert report.ok, report.kept
    assert model in {touched.ref for touched in report.models}
    assert trained in report.removed

    after = amal.features.read("service:fraud/all", {"patient_id": PEOPLE})
    for name, column in after.columns.items():
        assert after.statuses[name][3] == "NOT_FOUND", name
        assert [one for at, one in enumerate(column) if at != 3] == [
            one for at, one in enumerate(before.columns[name]) if at != 3
        ], name
    history = amal.features.table(labels, "service:fraud/all", moment="moment")
    assert history.column("weight").to_pylist()[3] is None
    assert history.column("note").to_pylist()[4] == "note of p4"
    assert isinstance(refusal(lambda: amal.catalog.open(trained)), NotFound)
    (newest,) = [one.ref for one in amal.catalog.list(kind="dataset", project="fraud", name="train").versions]
    folder = amal.catalog.checkout(newest, str(tmp_path / "out")).folder
    assert "p3" not in pq.read_table(next(Path(folder).glob("*.parquet"))).column("patient_id").to_pylist()

    # The source still has the person, and somebody pushes again: kept out, and others come in.
    amal.features.ingest("view:fraud/file", full=True)
    amal.features.push("view:fraud/visits", _visits(now))
    amal.features.materialize("service:fraud/all")
    again = amal.features.read("service:fraud/all", {"patient_id": PEOPLE})
    assert {again.statuses[name][3] for name in again.columns} == {"NOT_FOUND"}
    assert again.columns["sum_cost_30d"][4] == 3 * 14.0
