"""The catalog's pages: what a reader finds on them, and what is kept from whoever may not."""

from pathlib import Path
from typing import Any

import pytest

from falaj.catalog.lifecycle_records import AliasBinding
from falaj.console.pages.catalog import ROUTES
from falaj.console.pages.catalog.lineage import find_derived_features
from falaj.console.pages.catalog.schema import compute_mean_position
from falaj.console.pages.catalog.stage_history import find_earlier_versions
from falaj.content.records import TableColumn
from falaj.core.ref import Ref
from tests.console.ground import Ground, Visitor

DATA, MODEL = "/console/catalog/dataset:fraud/transactions", "/console/catalog/model:fraud/scorer"


def test_the_list_is_filtered_by_its_address(amal: Visitor) -> None:
    rows = {row["id"] for row in amal.get("/console/catalog?kind=dataset&project=fraud").main.all("tbody tr")}
    assert {"row-dataset-fraud-transactions", "row-dataset-fraud-customers"} <= rows
    found = amal.get("/console/catalog?q=SCOR&kind=model").main.all("tbody tr")
    assert [row.all("td")[2].text for row in found] == ["v3"]
    held = amal.get("/console/catalog?alias=production").main.all("tbody tr")
    assert [(row.all("td")[2].text, row.one(".badge[data-state]").text) for row in held] == [("v1", "production")]
    assert amal.get("/console/catalog?q=nothing-like-it").main.one(".empty")
    assert "row-dataset-fraud-transactions" in amal.get("/console/catalog?kind=nonsense").html


def test_a_name_and_its_versions(amal: Visitor) -> None:
    page = amal.get(MODEL).main
    rows = page.one("#versions").all("tbody tr")
    assert [row.all("td")[0].text for row in rows] == ["scorer@v3", "scorer@v2", "scorer@v1"]
    assert [head.text for head in page.one("#versions").all("th")][4:6] == ["accuracy", "auc"]
    assert rows[0].all("a")[-1]["href"] == f"{MODEL}@v3/diff"
    assert "production → scorer@v1" in page.one("#about").text


def test_a_version_tells_its_label_columns_and_origin(amal: Visitor) -> None:
    page = amal.get(f"{DATA}@v3").main
    assert "Federal Decree-Law 45/2021" in page.one("#label").text
    rows = {row["id"]: row for row in page.one("#schema").all("tbody tr")}
    assert "personal" in rows["column-customer-id"].text
    assert "not kept" in rows["column-customer-id"].text, "statistics of people's values"
    assert 0 < float(rows["column-amount"].one("meter")["value"]) < 1
    assert f"{MODEL}@v3" in {link["href"] for link in page.one("#origins").all("a")}
    model = amal.get(f"{MODEL}@v3").main
    assert "no group differs" in model.one("#evidence").text
    assert "onnx" in model.one("#model").text
    assert "scorer@v1" in amal.get(f"{MODEL}@production").main.one("h1").text, "an alias leads to what it means"


def test_rows_are_read_by_whoever_may_read_them(platform: Ground, amal: Visitor) -> None:
    preview = amal.get(f"{DATA}@v3/files").main.one("#preview")
    rows = preview.all("tbody tr")
    assert len(rows) == 50
    assert {row.all("td")[1].text for row in rows} == {"•••"}, "a personal column is shown"
    assert "c1" not in preview.text.split()
    aimless = platform.visitor("amal", purpose="marketing").get(f"{DATA}@v3/files").main
    assert not aimless.all("#preview")
    assert aimless.one(".notice.denied"), "it does not say what it would take"
    auditor = platform.visitor("omar").get(f"{DATA}@v3/files").main
    assert auditor.one(".notice.denied")
    assert not auditor.all("#preview")


def test_nothing_is_shown_while_a_declared_column_is_not_found(platform: Ground, amal: Visitor, tmp_path: Path) -> None:
    here, file = platform.as_("amal"), tmp_path / "t.csv"
    name, pages = "dataset:fraud/renamed", []
    for text in ("id,email\n71,a@x.ae\n", "id,mail\n72,b@x.ae\n", "id,mail\n73,c@x.ae,9\n"):
        file.write_text(text)
        ref = here.catalog.publish(name, str(file), columns={} if pages else {"email": "personal"}).ref
        pages.append([amal.get(f"/console/catalog/{ref}{page}").main for page in ("", "/files")])
    assert "71" in pages[0][1].one("#preview").text
    for version, files in pages[1:]:
        assert not {"72", "73"} & set(files.one("#preview").text.split())
        assert "x.ae" not in version.text + files.text
        row = {row["id"]: row for row in version.one("#schema").all("tbody tr")}["column-email"]
        assert "personal" in row.text
    assert "column-id" not in {row["id"] for row in pages[2][0].one("#schema").all("tbody tr")}


def test_files_are_handed_out_as_files(platform: Ground, amal: Visitor) -> None:
    card = amal.get(f"{MODEL}@v3/file?path=README.md")
    assert card.html.startswith("# Scorer of card payments")
    assert card.headers["content-type"] == "application/octet-stream"
    assert card.headers["content-disposition"] == 'attachment; filename="README.md"'
    assert amal.get(f"{MODEL}@v3/file?path=../../etc/passwd").status == 404
    assert platform.visitor("omar").get(f"{DATA}@v3/file?path=transactions.csv").status == 403
    bill = amal.get(f"{MODEL}@v3/provenance?form=cyclonedx")
    assert bill.json["bomFormat"] == "CycloneDX"
    page = amal.get(f"{MODEL}@v3/files").main
    assert page.one("#preview pre").text.startswith("# Scorer of card payments"), "markdown is text here"
    assert "Not text" in amal.get(f"{MODEL}@v3/files?path=model.onnx").main.one("#preview").text


def test_what_lies_between_two_versions(amal: Visitor) -> None:
    page = amal.get(f"{DATA}@v3/diff").main
    added = next(row for row in page.one("#columns").all("tbody tr") if row.all("td")[0].text == "city")
    assert added.one(".badge").text == "added"
    assert [one.one(".value").text for one in page.one(".stats").all(".stat")] == ["0", "0", "1", "600"]
    assert "there is nothing before it" in amal.get(f"{DATA}@v1/diff").main.one(".empty").text


@pytest.mark.slow
def test_rows_are_compared_by_a_key(amal: Visitor) -> None:
    rows = amal.get(f"{DATA}@v2/diff?with=v1&key=id").main.one("#rows")
    assert [one.text for one in rows.all(".stat .value")] == ["0", "0", "600"]
    assert rows.all("del")
    assert rows.all("ins")


def test_lineage_is_walked_from_a_column_to_a_live_endpoint(amal: Visitor) -> None:
    page = amal.get(f"{DATA}@v1/lineage?column=amount").main
    nodes = {link["href"]: link.text for link in page.all("svg a.node")}
    assert "amount" in [node.text for node in page.all("svg a.node text.name")]
    assert f"{MODEL}@v1/lineage" in nodes, "a model of the graph leads on to its own"
    assert "ready" in nodes["/console/serve/endpoint:fraud/scorer"]
    assert len([one for one in nodes if "watch:" in one]) == 1, "a watch once, not once a window"
    column = amal.get("/console/catalog/dataset:fraud/cards@v1/lineage?column=fils").main
    told = {link["href"]: link.text for link in column.all("svg a.node")}
    assert "balance" in told["/console/features/view:fraud/card-stats@v1"]
    assert "/console/features/service:fraud/scoring@v1" in told
    up = amal.get(f"{MODEL}@v2/lineage?direction=up&depth=1").main
    assert f"{DATA}@v2/lineage" in {link["href"] for link in up.all("svg a.node")}


def test_strangers_find_nothing(platform: Ground) -> None:
    sara = platform.visitor("sara")
    for path in (path for route in ROUTES for path in route.walk if ":" in path):
        assert sara.get(f"/console/{path}").status == 404, path
    assert not sara.get("/console/catalog").main.all("tbody tr")
    assert not sara.get("/console/find?q=scorer").main.all(".card")


def test_search_goes_over_every_room(amal: Visitor) -> None:
    page = amal.get("/console/find?q=scor").main
    groups = {card["id"].removeprefix("found-") for card in page.all(".card")}
    assert groups >= {"model", "code", "service", "experiment", "run", "job", "endpoint"}
    assert "found-flow" in amal.get("/console/find?q=retr").html
    assert amal.get("/console/find?q=nothing-like-it").main.one(".empty")
    pasted = amal.get("/console/find?q=dataset:fraud/transactions@v2").main
    assert f"{DATA}@v2" in {link["href"] for link in pasted.all("a")}
    assert amal.get("/console/find?q=%25'%20or%201=1").status == 200


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"features": [{"name": "city", "express": None}]}, ["city"]),
        ({"features": [{"name": "x", "express": {"op": "div", "of": [{"col": "city"}, {"lit": 1}]}}]}, ["x"]),
        ({"features": [{"name": "city", "express": {"col": "town"}}]}, []),
        ({"windows": [{"name": "last_city", "column": "city"}]}, ["last_city"]),
    ],
)
def test_features_of_a_column(definition: dict[str, Any], expected: list[str]) -> None:
    given = {"source": {"address": "dataset:fraud/cards"}, **definition}
    assert find_derived_features(given, "dataset:fraud/cards", "city") == expected
    assert (
        find_derived_features({**given, "source": {"address": "dataset:fraud/other"}}, "dataset:fraud/cards", "city")
        == []
    )
    assert find_derived_features({**given, "source": {"address": "push"}}, "dataset:fraud/cards", "city") == []


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (TableColumn("a", "BIGINT", low="0", high="10", mean=2.5), 0.25),
        (TableColumn("a", "BIGINT", low="3", high="3", mean=3.0), None),
        (TableColumn("a", "VARCHAR", low="a", high="z"), None),
        (TableColumn("a", "DOUBLE", low="nan", high="1", mean=0.5), None),
    ],
)
def test_where_a_mean_lies(column: TableColumn, expected: float | None) -> None:
    assert compute_mean_position(column) == expected


def test_the_way_back_is_what_was_there_before() -> None:
    ref = Ref.parse("model:fraud/scorer")
    past = tuple(
        AliasBinding("production", ref.at(version), since, until)
        for version, since, until in (("v1", 1.0, 2.0), ("v2", 2.0, 3.0), ("v1", 3.0, 4.0), ("v3", 4.0, 0.0))
    )
    assert find_earlier_versions(past, "production") == ("v3", ["v1", "v2"])
    assert find_earlier_versions(past, "staging") == ("", [])
