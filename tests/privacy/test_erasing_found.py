"""What only the search finds of a person is erased, or restricted while a duty keeps it."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.api.remote_client import RemoteClient
from falaj.core.errors import Denied, NotFound
from falaj.core.ref import Ref
from tests.api.small import serving
from tests.privacy.erasures import approve, erase_approved
from tests.town import LABEL, Town, refusal

BANK = "AE-CBUAE,sensitive,purpose=fraud"
WHO, OTHER = "784-1990-1234567-1", "784-1985-7654321-9"
ROWS = [{"reference": WHO, "name": "مريم, الكعبي", "n": 1}, {"reference": OTHER, "name": "حمد\nخليفة", "n": 2}]
CSV = f'reference,name,n\r\n{WHO.replace("-", "")},"مريم, الكعبي",1\r\n{OTHER},"حمد\nخليفة",2\r\n'
WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house", listen="127.0.0.1:0")
    made.as_("dana").privacy.add_purpose("fraud", "legal-duty", ("AE-PDPL",), WORDS, 365)
    yield made
    made.close()


def publish(town: Town, file: Path, data: bytes, label: str = LABEL) -> Ref:
    file.write_bytes(data)
    name = f"dataset:fraud/{file.name.replace('.', '-')}"
    published: Ref = town.as_("amal").catalog.publish(name, str(file), label=label).ref
    return published


def read_file(town: Town, name: str | Ref, folder: Path) -> bytes:
    out = Path(town.as_("amal").catalog.checkout(name, str(folder)).folder)
    return next(path for path in out.rglob("rows.*")).read_bytes()


def as_parquet() -> bytes:
    pq.write_table(pa.Table.from_pylist(ROWS), sink := pa.BufferOutputStream())
    return bytes(sink.getvalue().to_pybytes())


def test_rows_are_taken_out_of_every_table_in_which_the_search_finds_them(town: Town, tmp_path: Path) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
    files = {"rows.csv": CSV.encode(), "rows.tsv": CSV.replace(",", "\t").encode("utf-8-sig"), "rows.jsonl": lines}
    refs = {name: publish(town, tmp_path / name, data) for name, data in files.items()}
    refs["rows.parquet"] = publish(town, tmp_path / "rows.parquet", as_parquet())
    packed = publish(town, tmp_path / "rows.csv.gz", gzip.compress(CSV.encode()))
    salem = town.as_("salem")
    request = salem.privacy.ask("erasure", WHO).ref
    planned = {item.ref: item.action for item in salem.privacy.erase(request, WHO, plan=True).items}
    assert {planned[str(ref)] for ref in refs.values()} == {"erase"}
    assert planned[str(packed)] == "decide", "nobody writes rows of archives anew"
    approve(town, request)
    erased = salem.privacy.erase(request, WHO)
    assert [text.split(": ")[0] for text in erased.matches if text.startswith("dataset:")] == [str(packed)]
    for name, ref in refs.items():
        assert isinstance(refusal(lambda ref=ref: salem.catalog.open(ref)), NotFound), name
        left = read_file(town, ref.bare, tmp_path / f"out-{name}")
        assert WHO.encode() not in left
        assert OTHER.encode() in left, name
    assert read_file(town, refs["rows.csv"].bare, tmp_path / "out").decode() == "".join(
        part for part in (CSV.partition("\r\n")[0] + "\r\n", CSV[CSV.index(OTHER) :])
    ), "what others have is left byte by byte"
    newest = town.as_("amal").catalog.show(refs["rows.csv"].bare)
    assert newest.table.rows == 1
    assert newest.inputs["before"] == refs["rows.csv"]
    salem.catalog.delete(packed, "request", force=True)
    assert salem.privacy.erase(request, WHO).ok
    assert salem.privacy.certificate(request).state == "complete"


def test_plan_names_models_that_learned_from_found_rows_and_says_what_is_retained(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    data, bank = (
        publish(town, tmp_path / "rows.csv", CSV.encode()),
        publish(town, tmp_path / "r.csv", CSV.encode(), BANK),
    )
    (tmp_path / "model.json").write_text('{"w": 1}')
    model = town.as_("mona").catalog.publish("model:fraud/m", str(tmp_path / "model.json"), inputs={"data": data}).ref
    request = salem.privacy.ask("erasure", WHO).ref
    planned = salem.privacy.erase(request, WHO, plan=True)
    actions = {item.ref: item.action for item in planned.items}
    assert (actions[str(data)], actions[str(bank)], actions[str(model)]) == ("erase", "restrict", "decide")
    approval = town.as_("badr").approvals.show(town.as_("badr").privacy.plan(request).approval).approval
    assert "1 retained under a duty" in approval.reason
    assert f"falaj privacy plan {request}" in approval.reason
    approve(town, request)
    waiting = salem.privacy.erase(request, WHO)
    assert (waiting.state, waiting.undecided, waiting.matches) == ("waiting", (str(model),), ())
    assert f"falaj privacy decide {request} {model}" in waiting.next
    town.as_("dana").privacy.decide(request, str(model), "retrain", "next week")
    assert "falaj privacy retained --due" in salem.privacy.erase(request, WHO).next


def test_officer_plans_what_a_steward_then_carries_out(town: Town, tmp_path: Path) -> None:
    dana, salem = town.as_("dana"), town.as_("salem")
    refs = [publish(town, tmp_path / "rows.csv", CSV.encode()), publish(town, tmp_path / "rows.parquet", as_parquet())]
    assert isinstance(refusal(lambda: dana.catalog.open(refs[0])), Denied)
    request = dana.privacy.ask("erasure", WHO).ref
    planned = {item.ref: item.action for item in dana.privacy.erase(request, WHO, plan=True).items}
    assert {planned[str(ref)] for ref in refs} == {"erase"}
    approve(town, request)
    assert dana.privacy.erase(request, WHO).state == "found", "rows need somebody who may read them"
    assert salem.privacy.erase(request, WHO).state in ("found", "done")
    assert salem.privacy.certificate(request).state == "complete"


def test_table_under_a_law_goes_on_without_the_person(town: Town, tmp_path: Path) -> None:
    old = publish(town, tmp_path / "rows.csv", CSV.encode(), BANK)
    request = town.as_("salem").privacy.ask("erasure", WHO).ref
    assert erase_approved(town, request, WHO).state == "retained"
    assert "restricted" in refusal(lambda: town.as_("amal").catalog.open(old)).message
    assert OTHER.encode() in read_file(town, old.bare, tmp_path / "out")


def test_blobs_files_of_runs_and_traces_under_a_law_are_restricted_until_it_ends(town: Town, tmp_path: Path) -> None:
    amal, salem = town.as_("amal"), town.as_("salem")
    data = publish(town, tmp_path / "rows.csv", f"reference\n{OTHER}\n".encode(), BANK)
    blob = amal.store.put("blob:fraud/customers", f"id\n{WHO}\n".encode(), label=BANK)
    amal.track.create("experiment:fraud/scoring")
    run = amal.track.start("experiment:fraud/scoring", inputs={"data": data}, tags={"about": f"client {WHO}"}).ref.bare
    amal.track.attach(run, "notes.txt", f"client {WHO}\n".encode())
    kept = {str(holding.ref): holding.laws for holding in town.as_("dana").privacy.holds()}
    assert "AE-CBUAE" in kept[str(blob)][0]
    assert str(blob) not in refusal(lambda: salem.store.delete(blob, "quietly")).hint, "blobs record no events"
    request = salem.privacy.ask("erasure", WHO).ref
    planned = {item.ref.partition(" ")[0]: item for item in salem.privacy.erase(request, WHO, plan=True).items}
    assert {planned[name].action for name in (str(blob), str(run))} == {"restrict"}
    assert "AE-CBUAE" in planned[str(blob)].law
    approve(town, request)
    held = salem.privacy.erase(request, WHO)
    assert (held.state, held.matches) == ("retained", ()), held
    assert [text for text in held.held if text.startswith(str(blob)) and "until further notice" in text]
    for person in (amal, salem):
        assert "restricted" in refusal(lambda here=person: here.store.get(blob).read()).message
        assert isinstance(refusal(lambda here=person: here.track.fetch(run, "notes.txt").read()), Denied)
    assert WHO not in str(amal.track.show(run))
    salem.catalog.record_event(data, "end-of-relationship", "2001-06-30", "the file says so")
    assert [plan.request for plan in salem.privacy.retained(due=True)] == [request], "the run's period is over"
    still = salem.privacy.erase(request, WHO)
    assert still.state == "found", "the run is released to those who may change it"
    assert not [text for text in still.matches if text.startswith(str(blob))], "nobody recorded when the blob's begins"
    amal.track.detach(run, "notes.txt")
    amal.track.log(run, drop=("about",))
    assert salem.privacy.erase(request, WHO).state == "retained"
    assert "restricted" in refusal(lambda: amal.store.get(blob).read()).message


def test_identifier_is_replaced_in_texts_that_nobody_else_could_change(town: Town, tmp_path: Path) -> None:
    amal, salem = town.as_("amal"), town.as_("salem")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    (tmp_path / "plain.csv").write_text("n\n1\n")
    plain = amal.catalog.publish("dataset:fraud/plain", str(tmp_path / "plain.csv"), message=f"asked by {WHO}").ref
    (tmp_path / "rows.csv").write_bytes(CSV.encode())
    rows = amal.catalog.publish(
        "dataset:fraud/rows", str(tmp_path / "rows.csv"), message=f"with {WHO}", label=LABEL
    ).ref
    job = amal.jobs.submit(f"true --client {WHO} --loud", project="fraud").ref
    request = salem.privacy.ask("erasure", WHO).ref
    planned = {item.ref: item.action for item in salem.privacy.erase(request, WHO, plan=True).items}
    assert {planned[str(name)] for name in (plain, rows, job.bare)} == {"erase"}
    approve(town, request)
    assert [text.split(": ")[0] for text in salem.privacy.erase(request, WHO).matches] == [f"record {job.bare}"]
    amal.jobs.cancel(job)
    assert salem.privacy.erase(request, WHO).ok, "the record of a live job is not changed"
    assert salem.privacy.certificate(request).state == "complete"
    assert WHO not in f"{amal.jobs.show(job)}"
    assert amal.catalog.show(plain).message == "asked by [erased]"
    assert amal.catalog.show("dataset:fraud/rows").message == "with [erased]"
    assert OTHER.encode() in read_file(town, "dataset:fraud/rows", tmp_path / "out")


def test_hold_between_plan_and_execution_restricts_what_was_to_be_decided(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    packed = publish(town, tmp_path / "rows.csv.gz", gzip.compress(CSV.encode()))
    request = salem.privacy.ask("erasure", WHO).ref
    salem.privacy.erase(request, WHO, plan=True)
    approve(town, request)
    town.as_("dana").catalog.hold(packed, "case 9")
    assert salem.privacy.erase(request, WHO).state == "retained"
    assert "restricted" in refusal(lambda: salem.catalog.open(packed)).message


def test_what_a_duty_keeps_and_no_plan_names_needs_a_new_plan(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    request = salem.privacy.ask("erasure", WHO).ref
    salem.privacy.erase(request, WHO, plan=True)
    approve(town, request)
    blob = town.as_("amal").store.put("blob:fraud/late", f"id\n{WHO}\n".encode(), label=BANK)
    again = salem.privacy.erase(request, WHO)
    assert again.state == "planned"
    assert str(blob) in {item.ref for item in again.items if item.action == "restrict"}
    approve(town, request)
    assert salem.privacy.erase(request, WHO).state == "retained"


def test_answers_kept_for_repeated_requests_go_with_the_person(town: Town, tmp_path: Path) -> None:
    with (
        serving(town.house) as server,
        RemoteClient(server.url, token=town.tokens["salem"], purpose="fraud") as salem,
    ):
        published = publish(town, tmp_path / "rows.csv", CSV.encode())
        salem.catalog.hold(published, "case 9")
        salem.catalog.release(published, "case 9")
        request = salem.privacy.ask("erasure", WHO).ref
        planned = salem.privacy.erase(request, WHO, plan=True)
        assert not [item.ref for item in planned.items if item.ref.startswith("outcome:")]
        assert ("outcomes:every-zone", "forget") in {(item.ref, item.action) for item in planned.items}
        approve(town, request)
        erased = salem.privacy.erase(request, WHO)
        assert erased.ok, erased
        assert salem.privacy.certificate(request).state == "complete"
