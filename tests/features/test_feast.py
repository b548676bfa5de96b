"""A Feast repository read as definitions of ours, and the same values from the same files.

`feast_rides` is a repository; `recorded.json` is what `describe` said of it and `history.json` what Feast 0.67.0 itself
answered (`values.py history`, its DuckDB engine). The slow test makes both anew with a real Feast and compares.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from falaj.asof.external_rows import ExternalRows
from falaj.asof.records import STATUS_NAMES, FeatureField
from falaj.asof.training_sets import JoinedView, build_training_set
from falaj.core.errors import FalajError, Invalid, NotFound, UserCodeFailed
from falaj.features.change_planning import DefinitionState, compile_service, plan_changes
from falaj.features.feast_import import (
    PYTHON_VARIABLE,
    describe_repository,
    import_feast_repository,
    translate_repository,
)
from falaj.features.records import ColumnPick, DefinitionSet, ServiceDef, ViewDef
from falaj.store.codec import from_plain, to_plain
from falaj.worker.function_sandbox import FunctionSandbox
from tests.features.feast_rides import values

FEAST = "0.67.0"
RIDES = Path(__file__).parent / "feast_rides"
RECORDED = RIDES / "recorded.json"


def test_entities_views_and_services_come_over() -> None:
    made, notes = import_feast_repository(RECORDED)
    assert {one.name: one.keys for one in made.entities} == {
        "rides/driver": (FeatureField("driver_id", "int64"),),
        "rides/driver_customer": (FeatureField("driver_id", "int64"), FeatureField("customer_id", "string")),
    }
    views = {one.name: one for one in made.views}
    hourly = views["rides/driver_hourly"]
    assert (hourly.ttl_us, hourly.owner, hourly.tags) == (86_400_000_000, "amal@example.com", {"team": "driving"})
    assert (hourly.source.address, hourly.source.event, hourly.source.created, hourly.source.zone) == (
        *("dataset:rides/trips", "event_timestamp"),
        *("created", "UTC"),
    )
    assert hourly.features[0].express == {"col": "conv"}
    kinds = ["float32", "float64", "int64", "string", "bool", "time", "list[float32]", "int32"]
    assert [one.type for one in hourly.features] == kinds
    assert not views["rides/pairs"].online
    assert views["rides/driver_fresh"].source.kind == "push"
    (scorer,) = made.services
    assert ColumnPick("rides/driver_fresh", ("speed",), {}, {"driver_id": "other_driver_id"}) in scorer.picks
    assert scorer.request == (FeatureField("price", "float64"),)
    with closing(FunctionSandbox("price_rate", scorer.computed[0].source)) as function:
        assert function({"price": [2.0], "acc_rate": [3.0]}) == {"price_rate": [6.0]}
    left = [note for note in notes if "is left out" in note]
    assert [note.split(":")[0] for note in left] == ["view world is left out", "on demand doubled is left out"]
    assert "view driver_hourly: publish data/trips.parquet as dataset:rides/trips" in notes


def test_what_comes_over_can_be_applied_and_kept() -> None:
    made, _ = import_feast_repository(RECORDED, project="taxi")
    assert {one.act for one in plan_changes(made, DefinitionState()).changes} == {"new"}
    assert all(one.name.startswith("taxi/") for one in (*made.entities, *made.views, *made.services))
    assert from_plain(DefinitionSet, to_plain(made)) == made


def test_the_same_files_give_the_values_feast_gives(tmp_path: Path) -> None:
    values.rows(tmp_path)
    expected = json.loads((RIDES / "history.json").read_text())
    assert _history(tmp_path) == {_name(row): [row[name] for name in values.WANTED] for row in expected}


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["driver_id"], row["customer_id"], datetime.fromisoformat(row["event_timestamp"]))


def _history(folder: Path) -> dict[tuple[Any, ...], list[Any]]:
    made, _ = import_feast_repository(RECORDED)
    entities = {one.name: one for one in made.entities}
    views = {f"view:{one.name}@v1": _Kept(one, entities[one.entity]) for one in made.views}
    columns = {"rides/driver_hourly": values.WANTED[:-1], "rides/pairs": values.WANTED[-1:]}
    service = ServiceDef("rides/all", tuple(ColumnPick(*one) for one in columns.items()))
    joined = []
    for one in compile_service(service, views, "service:rides/all@v1").views:
        view: ViewDef = views[one.ref].definition
        theirs = {feature.name: feature.express["col"] for feature in view.features if feature.express}
        file, source = folder / view.source.more["path"], view.source
        rows = ExternalRows([file], source.event, source.created, columns=theirs, zone=source.zone)
        joined.append(JoinedView(one, rows))
    found = build_training_set(pa.table(values.LABELS), "event_timestamp", joined, status=True).to_pylist()
    statuses = {STATUS_NAMES[row["trips__status"]] for row in found}
    assert statuses == {"PRESENT", "NOT_FOUND", "EXPIRED", "FUTURE"}  # Feast has one null for the three of them
    key = ("driver_id", "customer_id", "event_timestamp")
    return {tuple(row[name] for name in key): [row[name] for name in values.WANTED] for row in found}


class _Kept:
    def __init__(self, definition: ViewDef, entity: Any) -> None:
        self.definition, self.entity = definition, entity


def _with(**changes: Any) -> tuple[DefinitionSet, tuple[str, ...]]:
    from falaj.features.feast_import import FeastRepository

    body = json.loads(RECORDED.read_text())
    view = next(one for one in body["views"] if one["name"] == "driver_hourly")
    source = changes.pop("source", {})
    view |= changes
    view["source"] |= source
    return translate_repository(from_plain(FeastRepository, {**body, "views": [view], "services": [], "demands": []}))


def test_types_that_feast_does_not_say_are_seen_in_the_file() -> None:
    body = json.loads(RECORDED.read_text())
    for one in body["entities"]:
        one["type"] = "UNKNOWN"
    made, notes = _translated(body)
    assert made.entities[0].keys == (FeatureField("driver_id", "int64"),)
    for one in body["views"]:
        one["source"]["columns"] = {}
    made, notes = _translated(body)
    assert made.entities[0].keys == (FeatureField("driver_id", "string"),)
    assert any("taken as string" in note for note in notes)


def _translated(body: Any) -> tuple[DefinitionSet, tuple[str, ...]]:
    from falaj.features.feast_import import FeastRepository

    return translate_repository(from_plain(FeastRepository, body))


def test_a_view_without_a_schema_has_the_columns_of_its_file() -> None:
    made, notes = _with(features=[])
    found = {one.name: one.type for one in made.views[0].features}
    assert found == {
        "conv_rate": "float32",
        "acc_rate": "float64",
        "trips": "int64",
        "city": "string",
        "active": "bool",
        "last_at": "time",
        "rank": "int32",
    }
    assert any("scores is left out" in note for note in notes)


def test_services_take_what_was_taken_over() -> None:
    body = json.loads(RECORDED.read_text())
    hourly = next(one for one in body["views"] if one["name"] == "driver_hourly")
    hourly["features"][0][1] = "MAP"
    made, notes = _translated(body)
    assert made.services[0].picks[0].columns == ("acc_rate",)
    assert "conv_rate" not in made.services[0].computed[0].inputs
    assert any("conv_rate is left out: MAP has no counterpart" in note for note in notes)
    assert plan_changes(made, DefinitionState()).changes


def test_sources_of_other_kinds() -> None:
    made, _ = _with(source={"mapping": {'the "id"': "driver_id"}})
    assert made.views[0].source.query == 'select *, "the ""id""" as "driver_id" from rows'
    made, notes = _with(source={"kind": "KafkaSource", "topic": "trips", "servers": "broker:9092"})
    assert "FALAJ_KAFKA=broker:9092" in notes[0]
    assert (made.views[0].source.kind, made.views[0].source.address) == ("kafka", "trips")
    made, notes = _with(source={"kind": "SnowflakeSource", "query": "select * from trips"})
    assert (made.views[0].source.kind, made.views[0].source.address) == ("sql", "adbc:snowflake")
    made, notes = _with(source={"kind": "AthenaSource"})
    assert made.views == ()
    assert "AthenaSource has no counterpart" in notes[0]
    assert any("aggregations is not taken over" in note for note in _with(special="aggregations")[1])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"project": 3}', '{"project": "a", "views": [{"name": "x"}]}'])
def test_what_is_no_description_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "told.json"
    path.write_text(text)
    with pytest.raises(Invalid):
        import_feast_repository(path)


def test_names_that_cannot_be_are_told() -> None:
    body = json.loads(RECORDED.read_text())
    body["entities"][1]["key"] = "driver__id"
    with pytest.raises(FalajError, match="entity rides/"):
        _translated(body)


def test_without_feast_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(NotFound, match="no Feast repository"):
        describe_repository(tmp_path)
    (tmp_path / "feature_store.yaml").write_text("project: x\n")
    with pytest.raises(Invalid, match="Feast is not installed here"):
        describe_repository(tmp_path)
    with pytest.raises(UserCodeFailed, match="No module named 'feast'"):
        describe_repository(tmp_path, sys.executable)
    with pytest.raises(Invalid, match="cannot be run"):
        describe_repository(tmp_path, str(tmp_path / "no-python"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_real_feast_says_and_answers_what_was_recorded(tmp_path: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE) or _feast()
    folder = tmp_path / "rides"
    shutil.copytree(RIDES, folder, ignore=shutil.ignore_patterns("*.json", "__pycache__"))
    values.rows(folder)
    assert json.loads(describe_repository(folder, python)) == json.loads(RECORDED.read_text())
    command = [python, "-W", "ignore", "values.py", "history", "."]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout) == json.loads((RIDES / "history.json").read_text())


def _feast() -> str:
    """A Python with Feast, made once for this machine."""
    home = Path(tempfile.gettempdir()) / f"falaj-feast-{FEAST}-{os.getuid()}"
    python = home / "bin" / "python"
    if not (home / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, timeout=300)
        command = [str(python), "-m", "pip", "install", "--quiet", f"feast[duckdb]=={FEAST}"]
        subprocess.run(command, check=True, timeout=900, capture_output=True)
        (home / "made").touch()
    return str(python)
