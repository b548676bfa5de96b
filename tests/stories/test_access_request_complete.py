"""A person asks what is held about them; the data protection officer, who may read none of it, gives a complete answer.

The person is in v1 of a table and not in v2, in CSV and in Parquet, and under two purposes. A view whose rows
cannot be read is named, and leaves no empty folder behind.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.api.remote_client import RemoteClient
from falaj.core.errors import CorruptData, Denied, FalajError, Invalid
from falaj.core.ref import Ref
from falaj.features.definition_operations import DefinitionOperations
from tests.api.small import serving
from tests.printed import draw_pages, print_pdf, read_pages, shows_words
from tests.town import LABEL, Town, refusal

WHO, OTHER = "784-1990-1234567-1", "784-1985-7654321-9"
WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}
MARKETING = "AE-PDPL,confidential,purpose=marketing"
DEFINITIONS = f'''
from falaj.features import Entity, Feature, Source, view

client = Entity("fraud/client", keys={{"emirates_id": "string"}}, subject="emirates_id", about="A client")
score = view("fraud/score", client, Source("dataset:fraud/scores", event="at"),
             features=[Feature("points", "int64", about="points between 0 and 100")], label="{LABEL}", owner="amal")
'''


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    made = Town(folder / "house", listen="127.0.0.1:0")
    dana, amal, mona = made.as_("dana"), made.as_("amal"), made.as_("mona", "marketing")
    dana.privacy.add_purpose("fraud", "legal-duty", ("AE-PDPL",), WORDS, 365)
    dana.privacy.add_purpose("marketing", "consent", ("AE-PDPL",), {"ar": "للتسويق", "en": "for marketing"}, 30)
    for people in ((WHO, OTHER), (OTHER,)):  # v2 is without the person
        table = pa.table({"emirates_id": list(people), "income": [1000 * len(each) for each in people]})
        pq.write_table(table, folder / "income.parquet")
        amal.catalog.publish("dataset:fraud/income", str(folder / "income.parquet"), label=LABEL)
    text = f"id,mail\n{WHO.replace('-', '')},mariam@example.ae\n{OTHER},hamad@example.ae\n"
    (folder / "mails.csv").write_text(text)
    mona.catalog.publish("dataset:ads/mails", str(folder / "mails.csv"), label=MARKETING)
    moments = pa.array([1_700_000_000_000_000] * 2, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"emirates_id": [WHO, OTHER], "at": moments, "points": [7, 8]}), folder / "scores.parquet")
    amal.catalog.publish("dataset:fraud/scores", str(folder / "scores.parquet"), label=LABEL)
    (folder / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(folder / "features.py"))
    amal.features.materialize("view:fraud/score")
    yield made
    made.close()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_officer_without_data_rights_gives_a_complete_answer(town: Town, tmp_path: Path) -> None:
    dana = town.as_("dana")
    for ref in ("dataset:fraud/income@v1", "dataset:ads/mails@v1"):
        assert isinstance(refusal(lambda ref=ref: dana.catalog.open(ref)), Denied), "dana may read no data"
    request = dana.privacy.ask("access", WHO, received="2026-11-01T09:00:00+04:00").ref
    answer = dana.privacy.access(request, WHO, str(tmp_path / "answer"))
    assert (answer.complete, answer.unsearched) == (True, ())
    told = json.loads((tmp_path / "answer" / "answer.json").read_text())
    assert sorted(told["held"]) == [
        "dataset:ads/mails@v1", "dataset:fraud/income@v1", "dataset:fraud/scores@v1",
        "record dataset:ads/mails@v1", "record dataset:fraud/income@v1", "record dataset:fraud/scores@v1",
        "view:fraud/score@v1",
    ]  # fmt: skip
    files = {name: _rows(tmp_path / "answer" / held["file"]) for name, held in told["held"].items()}
    assert [row["income"] for row in files["dataset:fraud/income@v1"]] == [str(1000 * len(WHO))]
    assert [row["mail"] for row in files["dataset:ads/mails@v1"]] == ["mariam@example.ae"]
    texts = {language: (tmp_path / "answer" / f"answer.{language}.html").read_text() for language in ("ar", "en")}
    for text in texts.values():
        assert WHO in text
        assert OTHER not in text
        assert "hamad" not in text
        assert "points between 0 and 100" in text, "columns are explained as they were declared"
    assert 'dir="rtl"' in texts["ar"]
    assert "1 November 2026" in texts["en"]
    assert "نوفمبر" in texts["ar"]
    assert WORDS["ar"] in texts["ar"]
    events = [event for event in town.events() if event.verb == "privacy.disclose" and event.subject.bare == request]
    assert events, "the log says under which request the platform read"
    assert not any(WHO in f"{event.body}" for event in town.events())


def test_letter_says_how_long_each_law_keeps_the_data(town: Town, tmp_path: Path) -> None:
    amal, salem, dana = town.as_("amal"), town.as_("salem"), town.as_("dana")
    who = "784-1991-2222222-2"
    names = {"officer": "Mariam Al Suwaidi", "officer_ar": "مريم السويدي"}
    dana.privacy.set_organisation(names)
    for name, law in (("accounts", "AE-CBUAE"), ("care", "AE-HEALTH"), ("calls", "AE-PDPL")):
        (tmp_path / "rows.csv").write_text(f"id,about\n{who},{name}\n")
        label = f"{law},sensitive,purpose=fraud"
        amal.catalog.publish(f"dataset:fraud/{name}", str(tmp_path / "rows.csv"), label=label)
    salem.catalog.record_event("dataset:fraud/accounts@v1", "end-of-relationship", "2024-06-30", "file 44")
    dana.catalog.hold("dataset:fraud/calls@v1", "case 9")
    dana.privacy.access(dana.privacy.ask("access", who).ref, who, str(tmp_path / "answer"))
    english, arabic = ((tmp_path / "answer" / f"answer.{one}.html").read_text() for one in ("en", "ar"))
    assert "until 1 July 2029 (AE-CBUAE)" in english
    assert "for as long as the law demands; the end has no date yet (AE-HEALTH)" in english
    assert "the end has no date yet (a legal duty)" in english
    assert "case 9" not in english, "a hold may be about the person"
    assert "مريم السويدي" in arabic
    assert "Federal Law" not in arabic, "laws have their Arabic names"
    held = json.loads((tmp_path / "answer" / "answer.json").read_text())["held"]
    assert held["dataset:fraud/accounts@v1"]["duties"][0]["law"] == "AE-CBUAE"
    assert "case 9" not in (tmp_path / "answer" / "answer.json").read_text()


def test_answer_is_given_only_for_the_open_request_of_this_person(town: Town, tmp_path: Path) -> None:
    dana, amal = town.as_("dana"), town.as_("amal")
    request = dana.privacy.ask("access", WHO).ref
    assert isinstance(refusal(lambda: dana.privacy.disclose(request, OTHER)), Denied)
    assert isinstance(refusal(lambda: amal.privacy.disclose(request, WHO)), Denied), "her roles do not let her"
    erasure = dana.privacy.ask("erasure", WHO).ref
    assert isinstance(refusal(lambda: dana.privacy.disclose(erasure, WHO)), Invalid)
    dana.privacy.answer(request, "handed over")
    assert isinstance(refusal(lambda: dana.privacy.disclose(request, WHO)), FalajError), "it was answered"
    assert not list(tmp_path.iterdir())


def test_view_that_cannot_be_read_is_named(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dana = town.as_("dana")
    about = DefinitionOperations.about

    def broken(self: Any, ctx: Any, view: Ref) -> Any:
        if "score" in str(view):
            raise CorruptData("its chapters do not belong together", "ingest it anew")
        return about(self, ctx, view)

    monkeypatch.setattr(DefinitionOperations, "about", broken)
    answer = dana.privacy.access(dana.privacy.ask("access", WHO).ref, WHO, str(tmp_path / "answer"))
    assert not answer.complete
    assert answer.unsearched == ("view:fraud/score@v1: its chapters do not belong together",)
    assert "its chapters do not belong together" in (tmp_path / "answer" / "answer.en.html").read_text()
    told = json.loads((tmp_path / "answer" / "answer.json").read_text())
    assert "dataset:fraud/income@v1" in told["held"]
    assert "view:fraud/score@v1" not in told["held"]


def test_answer_and_search_over_the_network(town: Town, tmp_path: Path) -> None:
    with serving(town.house) as server, RemoteClient(server.url, token=town.tokens["dana"], purpose="x") as dana:
        request = dana.privacy.ask("portability", WHO).ref
        answer = dana.privacy.access(request, WHO, str(tmp_path / "answer"))
        assert answer.complete
        assert _rows(tmp_path / "answer" / "data" / "dataset-ads-mails-v1.csv")[0]["mail"] == "mariam@example.ae"
        erasure = dana.privacy.ask("erasure", WHO).ref
        matches = {match.ref for match in dana.privacy.search(erasure, WHO).matches}
        assert {"dataset:fraud/income@v1", "dataset:ads/mails@v1", "view:fraud/score@v1"} <= matches
        assert "dataset:fraud/income@v2" not in matches


@pytest.mark.slow
def test_letter_prints_in_both_languages(town: Town, tmp_path: Path) -> None:
    dana = town.as_("dana")
    dana.privacy.access(dana.privacy.ask("access", WHO).ref, WHO, str(tmp_path / "answer"))
    for language, title in (("ar", "الرد على طلبكم"), ("en", "Answer to your request")):
        pdf = print_pdf(tmp_path / "answer" / f"answer.{language}.html", tmp_path / f"{language}.pdf")
        draw_pages(pdf, tmp_path / "pages")
        assert shows_words(read_pages(pdf)[0], title)
