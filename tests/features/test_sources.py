"""Where rows come from: files of every kind, SQL, databases, lakes; what only grew is read from where it ended."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import falaj
from falaj.core.errors import Invalid, Unavailable, UserCodeFailed
from tests.servers.peers import peer
from tests.servers.process import Missing
from tests.town import refusal

ROWS = {
    "id": [1, 2, 3],
    "at": ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"],
    "x": [1.5, 2.5, None],
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with falaj.connect(str(tmp_path_factory.mktemp("sources") / "house")) as found:
        yield found


def defined(here: Any, folder: Path, name: str, source: str) -> str:
    (folder / "features.py").write_text(f"""
from falaj.features import Entity, Feature, Source, view
thing = Entity("lake/thing", keys={{"id": "int64"}})
found = view("lake/{name}", thing, {source}, features=[Feature("x", "float64")])
""")
    here.features.apply(str(folder / "features.py"))
    return f"view:lake/{name}"


def values(here: Any, view: str) -> list[Any]:
    labels = pa.table({"id": [1, 2, 3, 4], "moment": pa.array([1_800_000_000_000_000] * 4, pa.int64())})
    return list(here.features.table(labels, view, moment="moment").column("x").to_pylist())


def _write(path: Path, kind: str, rows: dict[str, list[Any]]) -> None:
    table = pa.table(rows)
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "csv":
        pyarrow.csv.write_csv(table, path)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "arrow"])
def test_files(here: Any, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    _write(folder / f"a.{kind}", kind, ROWS)
    (folder / "_note.txt").write_text("not a table")
    here.catalog.publish(f"dataset:lake/{kind}", str(folder))
    view = defined(here, tmp_path, kind, f'Source("dataset:lake/{kind}", event="at")')
    assert values(here, view) == [1.5, 2.5, None, None], "straight from the source"
    assert here.features.ingest(view).rows == 3
    assert here.features.ingest(view).note == "nothing new"
    assert values(here, view) == [1.5, 2.5, None, None]
    _write(folder / f"b.{kind}", kind, {"id": [4], "at": ["2026-01-01T00:00:00Z"], "x": [9.0]})
    here.catalog.publish(f"dataset:lake/{kind}", str(folder))
    assert here.features.ingest(view).rows == 1, "what was known was read again"
    assert values(here, view) == [1.5, 2.5, None, 9.0]
    (folder / f"a.{kind}").unlink()
    here.catalog.publish(f"dataset:lake/{kind}", str(folder))
    assert here.features.ingest(view).rows == 1
    assert values(here, view) == [None, None, None, 9.0], "what is gone from the source is still there"


def test_a_query_over_files(here: Any, tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", "parquet", ROWS)
    here.catalog.publish("dataset:lake/asked", str(tmp_path / "a.parquet"))
    query = 'Source("dataset:lake/asked", event="at", query="select * exclude (x), x * 2 as x from rows where id < 3")'
    view = defined(here, tmp_path, "asked", query)
    assert values(here, view) == [3.0, 5.0, None, None]
    broken = defined(here, tmp_path, "broken", 'Source("dataset:lake/asked", event="at", query="select nothing")')
    assert isinstance(refusal(lambda: here.features.ingest(broken)), UserCodeFailed)
    assert here.features.about(broken).stream.generation == 0


def test_delta(here: Any, tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "lake"), pa.table(ROWS))
    here.catalog.publish("dataset:lake/delta", f"delta:{tmp_path / 'lake'}")
    view = defined(here, tmp_path, "delta", 'Source("dataset:lake/delta", event="at")')
    assert here.features.ingest(view).rows == 3
    assert values(here, view) == [1.5, 2.5, None, None]


ICEBERG = """
import sys
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
home = sys.argv[1]
catalog = SqlCatalog("here", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
catalog.create_namespace("lake")
at = pa.array([1767225600000000, 1767312000000000, 1767398400000000], pa.timestamp("us", "UTC"))
rows = pa.table({"id": [1, 2, 3], "at": at, "x": [1.5, 2.5, None]})
table = catalog.create_table("lake.rows", schema=rows.schema)
table.append(rows)
print(table.metadata_location)
table.delete("id = 1")
print(table.metadata_location)
"""


def test_iceberg(here: Any, tmp_path: Path) -> None:
    """A table that another program wrote, and what it deleted since."""
    try:
        python = peer("iceberg", "pyiceberg[sql-sqlite,pyarrow]==0.12.0") / "python"
    except Missing as missing:
        pytest.skip(str(missing))
    (tmp_path / "warehouse").mkdir()
    done = subprocess.run([python, "-c", ICEBERG, str(tmp_path)], capture_output=True, text=True, check=True)
    first, second = (line.removeprefix("file://") for line in done.stdout.split())
    here.catalog.publish("dataset:lake/iceberg", f"iceberg:{first}")
    view = defined(here, tmp_path, "iceberg", 'Source("dataset:lake/iceberg", event="at")')
    assert here.features.ingest(view).rows == 3
    assert values(here, view) == [1.5, 2.5, None, None]
    here.catalog.publish("dataset:lake/iceberg", f"iceberg:{second}")
    here.features.ingest(view)
    assert values(here, view) == [None, 2.5, None, None], "what was deleted there is still here"


def test_postgresql(here: Any, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as base:
        base.execute("create table t (id bigint, at timestamptz, x double precision, secret text)")
        base.execute("insert into t values (1, '2026-01-01 00:00:00+04', 7.5, 'a'), (2, '2026-01-02Z', null, 'b')")
    source = 'Source(sql="adbc:postgresql", query="select id, at, x from t", event="at", uri="PAY_DATABASE")'
    view = defined(here, tmp_path, "postgresql", source)
    monkeypatch.setenv("PAY_DATABASE", postgres_url)
    assert here.features.ingest(view).rows == 2
    assert values(here, view) == [7.5, None, None, None]
    wrong = source.replace("x from t", "y from t")
    told = refusal(lambda: here.features.ingest(defined(here, tmp_path, "wrong", wrong)))
    assert isinstance(told, UserCodeFailed)
    assert '"y"' in told.message
    monkeypatch.setenv("PAY_DATABASE", "postgresql://amal:weir-9@127.0.0.1:1/none")  # pragma: allowlist secret
    told = refusal(lambda: here.features.ingest(view))
    assert isinstance(told, Unavailable)
    assert "weir-9" not in str(told)


def test_databases(here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with duckdb.connect(str(tmp_path / "d.db")) as engine:
        engine.execute("create table t as select 1 as id, timestamptz '2026-01-01 00:00:00+04' as at, 7.0::double as x")
    source = f'Source(sql="duckdb:{tmp_path / "d.db"}", query="select * from t", event="at")'  # noqa: S608
    view = defined(here, tmp_path, "duck", source)
    here.features.ingest(view)
    assert values(here, view) == [7.0, None, None, None]

    with sqlite3.connect(tmp_path / "s.db") as plain:
        plain.execute("create table t (id integer, at text, x real)")
        plain.execute("insert into t values (2, '2026-01-01T00:00:00Z', 8.0)")
    plain.close()
    view = defined(here, tmp_path, "adbc", 'Source(sql="adbc:sqlite", query="select * from t", event="at")')
    monkeypatch.setenv("FALAJ_ADBC_URI", str(tmp_path / "s.db"))
    here.features.ingest(view)
    assert values(here, view) == [None, 8.0, None, None]


def test_kafka_without_a_client_says_what_to_install(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = defined(here, tmp_path, "topic", 'Source("kafka:events", event="at")')
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    found = refusal(lambda: here.features.ingest(view))
    assert isinstance(found, Invalid)
    assert "falaj[kafka]" in found.hint


def test_records_need_not_be_alike(here: Any, tmp_path: Path) -> None:
    """A column that the first record lacks, and values of several kinds in one."""
    at = "2026-01-01T00:00:00Z"
    rows: list[dict[str, Any]] = [{"id": 1, "at": at}, {"id": 2, "at": at, "x": 2}, {"id": 3, "at": at, "x": "much"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    here.catalog.publish("dataset:lake/ragged", str(tmp_path / "rows.jsonl"))
    view = defined(here, tmp_path, "ragged", 'Source("dataset:lake/ragged", event="at")')
    done = here.features.ingest(view)
    assert (done.rows, done.quarantined) == (2, 1)
    assert values(here, view) == [None, 2.0, None, None]
    pushed = defined(here, tmp_path, "pushed", 'Source("push", event="at")')
    assert here.features.push(pushed, rows[:2]).taken == 2
    assert values(here, pushed) == [None, 2.0, None, None]
    assert "no record" in refusal(lambda: here.features.push(pushed, [1, 2])).message


def test_a_dataset_without_tables(here: Any, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    here.catalog.publish("dataset:lake/none", str(tmp_path / "note.txt"))
    view = defined(here, tmp_path, "none", 'Source("dataset:lake/none", event="at")')
    assert "holds no table" in refusal(lambda: here.features.ingest(view)).message
