"""Restricted versions are kept and nothing else; data of people who object does not open; two people delete."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.ref import Ref
from tests.catalog.shelfhouse import publish
from tests.town import LABEL, Town, refusal

WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}
VIEWS = f'''
from falaj.features import Entity, Feature, Source, view

customer = Entity("fraud/customer", keys={{"customer": "string"}}, subject="customer", about="A person")
source = Source("dataset:fraud/source", event="at")
plain = view("fraud/plain", customer, source, features=[Feature("n", "int64")], label="{LABEL}", owner="amal")
closed = view("fraud/sealed", customer, source, features=[Feature("n", "int64")], label="{LABEL}", owner="amal",
              sealed=True)
'''


@pytest.fixture
def town(shared_town: Town) -> Town:
    return shared_town


def test_what_is_restricted_opens_for_nobody(town: Town, project: str) -> None:
    amal, salem, dana = town.as_("amal"), town.as_("salem"), town.as_("dana")
    name = publish(amal, f"dataset:{project}/tx", label=LABEL)
    assert isinstance(refusal(lambda: amal.catalog.restrict(name, "mine")), Denied)
    assert isinstance(refusal(lambda: dana.catalog.restrict(name, " ")), Invalid)
    assert dana.catalog.restrict(name, "accuracy contested").restricted
    for here in (amal, salem):
        assert "restricted" in refusal(lambda each=here: each.catalog.open(name)).message
        assert "restricted" in refusal(lambda each=here: each.catalog.copy(name, "eu-west")).message
    assert "restricted" in refusal(lambda: amal.jobs.submit("true", project=project, inputs={"data": name})).message
    assert "restricted" in refusal(lambda: salem.catalog.delete(name, "tidy", force=True)).message
    assert not dana.catalog.lift(name, "it was right").restricted
    assert isinstance(refusal(lambda: dana.catalog.lift(name, "again")), Conflict)
    assert amal.catalog.open(name).ref == name


def test_features_are_not_made_from_what_is_restricted(town: Town, tmp_path: Path) -> None:
    amal, dana = town.as_("amal"), town.as_("dana")
    moments = pa.array([1, 2], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"customer": ["ana", "bo"], "at": moments, "n": [1, 2]}), tmp_path / "t.parquet")
    source = amal.catalog.publish("dataset:fraud/source", str(tmp_path / "t.parquet"), label=LABEL).ref
    (tmp_path / "features.py").write_text(VIEWS)
    amal.features.apply(str(tmp_path / "features.py"))
    dana.catalog.restrict(source, "accuracy contested")
    for act in (amal.features.ingest, amal.features.materialize):
        assert "restricted" in refusal(lambda each=act: each("view:fraud/plain")).message
    dana.catalog.lift(source, "it was right")
    amal.features.materialize("view:fraud/plain")
    rows = Ref("dataset", "fraud", "plain.rows1", "v1")
    dana.catalog.restrict(rows, "accuracy contested")
    people = pa.table({"customer": ["ana", "bo"], "moment": pa.array([9, 9], pa.timestamp("us", "UTC"))})
    for act in (amal.features.table, amal.features.history):
        assert "restricted" in refusal(lambda each=act: each(people, "view:fraud/plain", moment="moment")).message


def test_a_restriction_for_an_erasure_is_lifted_by_two_and_lets_the_version_go(town: Town, project: str) -> None:
    salem, dana, badr = town.as_("salem").catalog, town.as_("dana"), town.as_("badr")
    name = publish(town.as_("amal"), f"dataset:{project}/tx", label=LABEL)
    salem.restrict(name, "erased 77aa", erasure="77aa")
    refused = refusal(lambda: salem.lift(name, "to look at it"))
    assert isinstance(refused, Denied)
    digest = next(word for word in refused.hint.split() if word.startswith("sha256:"))
    asked = town.as_("salem").approvals.ask("catalog.lift", digest, reason="the court asks for it", needs=1)
    badr.approvals.give(asked.ref)
    assert not dana.catalog.lift(name, "order of the court").restricted
    salem.restrict(name, "erased 77aa", erasure="77aa")
    assert salem.delete(name, "the duty ended").state == "deleted"


def test_a_dpo_deletes_personal_data_with_a_second_person(town: Town, project: str) -> None:
    dana, badr = town.as_("dana"), town.as_("badr")
    name = publish(town.as_("amal"), f"dataset:{project}/tx", label=LABEL)
    refused = refusal(lambda: dana.catalog.delete(name, "asked for"))
    assert isinstance(refused, Denied)
    digest = next(word for word in refused.hint.split() if word.startswith("sha256:"))
    asked = dana.approvals.ask("catalog.delete", digest, reason="asked for by letter", needs=1)
    assert isinstance(refusal(lambda: dana.approvals.give(asked.ref)), Denied)
    assert isinstance(refusal(lambda: dana.catalog.delete(name, "asked for")), Denied)
    badr.approvals.give(asked.ref)
    assert dana.catalog.delete(name, "asked for").state == "deleted"
    plain = publish(town.as_("amal"), f"dataset:{project}/weather")
    assert dana.catalog.delete(plain, "nobody needs it").state == "deleted"


def test_refusals_of_people_act_on_reads(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("refusing")
    town = Town(folder / "house")
    amal, salem = town.as_("amal"), town.as_("salem")
    town.as_("dana").privacy.add_purpose("fraud", "consent", ("AE-PDPL",), WORDS, 365)

    def listed(number: int) -> Ref:
        pq.write_table(pa.table({"customer": ["ana", "bo"], "n": [number] * 2}), folder / "t.parquet")
        ref: Ref = amal.catalog.publish("dataset:fraud/list", str(folder / "t.parquet"), label=LABEL).ref
        return ref

    old, weather = listed(1), publish(amal, "dataset:fraud/weather")
    assert amal.catalog.open(old).ref == old
    salem.privacy.withdraw("fraud", "ana")
    refused = refusal(lambda: amal.catalog.open(old))
    assert "took back their consent" in refused.message
    assert salem.catalog.open(old).ref == old, "whoever carries out what people ask for"
    assert amal.catalog.open(weather).ref == weather, "it names nobody"
    assert amal.catalog.open(listed(2)).ref.version == "v2", "it was made since"
    salem.privacy.restrict("bo", "contested")
    assert isinstance(refusal(lambda: amal.catalog.open("dataset:fraud/list@v2")), Denied)
    salem.privacy.lift("bo", "corrected")
    assert amal.catalog.open("dataset:fraud/list@v2").ref.version == "v2"
    town.close()


def test_only_rows_that_a_view_has_open_after_a_withdrawal_and_only_by_way_of_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("storage")
    town = Town(folder / "house")
    amal, salem = town.as_("amal"), town.as_("salem")
    town.as_("dana").privacy.add_purpose("fraud", "consent", ("AE-PDPL",), WORDS, 365)
    table = pa.table({"customer": ["ana", "bo"], "at": pa.array([1, 2], pa.timestamp("us", "UTC")), "n": [1, 2]})
    pq.write_table(table, folder / "t.parquet")
    upload, source = (
        amal.catalog.publish(f"dataset:fraud/{name}", str(folder / "t.parquet"), label=LABEL).ref
        for name in ("list.rows1", "source")
    )
    (folder / "features.py").write_text(VIEWS)
    amal.features.apply(str(folder / "features.py"))
    for name in ("plain", "sealed"):
        amal.features.ingest(f"view:fraud/{name}")
    faked = amal.catalog.publish("dataset:fraud/plain.rows1", str(folder / "t.parquet"), label=LABEL).ref
    salem.privacy.withdraw("fraud", "ana")

    for name in (upload, source, faked):
        assert "took back their consent" in refusal(lambda each=name: amal.catalog.open(each)).message
        refused = refusal(lambda each=name: amal.catalog.open(each, "view:fraud/plain@v1"))
        assert "took back their consent" in refused.message, "what it is called does not make it rows of a view"
        assert salem.catalog.open(name).ref == name
    for name in ("plain", "sealed"):
        view, rows = Ref("view", "fraud", name, "v1"), Ref("dataset", "fraud", f"{name}.rows1", "v1")
        assert isinstance(refusal(lambda each=rows: amal.catalog.open(each)), Denied)
        assert amal.catalog.open(rows, view).ref == rows
        people = pa.table({"customer": ["ana", "bo"], "moment": pa.array([9, 9], pa.timestamp("us", "UTC"))})
        answer = amal.features.table(people, view, moment="moment")
        assert answer.column("n").to_pylist() == [2], "a training set leaves out who withdrew"
    other = refusal(lambda: amal.catalog.open("dataset:fraud/sealed.rows1@v1", "view:fraud/plain@v1"))
    assert isinstance(other, Denied)
    town.close()
