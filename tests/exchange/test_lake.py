"""Delta Lake and Iceberg, written by the real libraries and read back at a snapshot."""

import contextlib
import hashlib
import json
import os
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.utils.config import Config

from falaj.catalog.publish_sources import open_source
from falaj.content.table_statistics import describe_table
from falaj.core.errors import Invalid, NotFound
from falaj.exchange.lake import read_delta_table, read_iceberg_table
from tests.servers.peers import peer
from tests.servers.process import Missing


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    parts = [None if i % 3 == 0 else f"q/{i % 3} é" for i in ids]
    return pa.table({"id": list(ids), "text": [f"row {i}" for i in ids], "part": pa.array(parts, pa.string())})


def read(out: Path) -> list[dict[str, Any]]:
    found = [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: json.dumps(row, default=str))


def ids(out: Path) -> list[int]:
    return sorted(row["id"] for row in read(out))


def digests(out: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


class TestDelta:
    @pytest.fixture
    def table(self, tmp_path: Path) -> str:
        """Versions: 0 rows 0-99; 1 and 100-199; 2 without 0-9; 3 overwritten by 500-509."""
        name = str(tmp_path / "a table é")
        write_deltalake(name, rows(0, 100), partition_by=["part"])
        write_deltalake(name, rows(100, 200), mode="append")
        DeltaTable(name).delete("id < 10")
        write_deltalake(name, rows(500, 510), mode="overwrite")
        return name

    def test_every_version_is_what_it_was(self, table: str, tmp_path: Path) -> None:
        want = {0: [*range(100)], 1: [*range(200)], 2: [*range(10, 200)], 3: [*range(500, 510)]}
        for version, expected in want.items():
            found = read_delta_table(table, version, tmp_path / f"v{version}")
            assert found.source == f"delta:{version}"
            assert (ids(tmp_path / f"v{version}"), found.num_rows) == (expected, len(expected))
        assert read(tmp_path / "v0")[0].keys() == {"id", "text", "part"}
        assert {row["part"] for row in read(tmp_path / "v0")} == {None, "q/1 é", "q/2 é"}
        assert read_delta_table(table, None, tmp_path / "newest").source == "delta:3"
        assert read_delta_table(table, "2100-01-01T00:00:00Z", tmp_path / "time").source == "delta:3"

    def test_the_same_version_gives_the_same_bytes_and_an_append_adds_files_only(
        self, table: str, tmp_path: Path
    ) -> None:
        for out, version in (("a", 0), ("b", 0), ("c", 1)):
            read_delta_table(table, version, tmp_path / out)
        first, again, appended = (digests(tmp_path / out) for out in "abc")
        assert first == again
        assert first.items() < appended.items()

    def test_columns_that_came_later_are_null_before(self, tmp_path: Path) -> None:
        name = str(tmp_path / "t")
        write_deltalake(name, pa.table({"id": [1]}))
        write_deltalake(name, pa.table({"id": [2], "new": ["x"]}), mode="append", schema_mode="merge")
        read_delta_table(name, None, tmp_path / "out")
        assert read(tmp_path / "out") == [{"id": 1, "new": None}, {"id": 2, "new": "x"}]
        read_delta_table(name, 0, tmp_path / "old")
        assert read(tmp_path / "old") == [{"id": 1}]

    def test_deletion_vectors_are_honoured(self, table: str, tmp_path: Path) -> None:
        add = _last_adds(table)[-1]
        file = pq.read_table(Path(table) / unquote(add["path"]))["id"].to_pylist()
        _commit(table, 4, {"add": {**add, "deletionVector": _vector([0, 2])}}, features=["deletionVectors"])
        read_delta_table(table, None, tmp_path / "out")
        assert ids(tmp_path / "out") == sorted({*range(500, 510)} - {file[0], file[2]})

    def test_renamed_columns_are_read_under_their_names(self, tmp_path: Path) -> None:
        name = tmp_path / "t"
        write_deltalake(str(name), pa.table({"col-1": [1, 2]}))
        field = {"name": "id", "type": "long", "nullable": True}
        mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
        schema = json.dumps({"type": "struct", "fields": [{**field, "metadata": mapped}]})
        options = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
        _commit(str(name), 1, {}, {"schemaString": schema, "configuration": options}, ["columnMapping"])
        read_delta_table(str(name), None, tmp_path / "out")
        assert read(tmp_path / "out") == [{"id": 1}, {"id": 2}]

    def test_a_table_without_rows_keeps_its_columns(self, tmp_path: Path) -> None:
        name = str(tmp_path / "t")
        write_deltalake(name, rows(0, 3))
        DeltaTable(name).delete()
        assert read_delta_table(name, None, tmp_path / "out").num_rows == 0
        (file,) = (tmp_path / "out").iterdir()
        assert pq.read_schema(file).names == ["id", "text", "part"]

    def test_types_come_through(self, tmp_path: Path) -> None:
        from datetime import UTC, date, datetime
        from decimal import Decimal

        row = {
            "when": datetime(2024, 1, 2, 3, 4, 5, 6, UTC), "day": date(2024, 1, 2), "sum": Decimal("1.10"),
            "raw": b"\0", "list": [1, None], "map": [("a", 1)], "struct": {"x": {"y": 1.5}}, "flag": True,
        }  # fmt: skip
        kinds = {"map": pa.map_(pa.string(), pa.int64()), "sum": pa.decimal128(10, 2)}
        write_deltalake(str(tmp_path / "t"), pa.table({k: pa.array([v], kinds.get(k)) for k, v in row.items()}))
        read_delta_table(str(tmp_path / "t"), None, tmp_path / "out")
        assert read(tmp_path / "out") == [row]

    def test_pages_are_cut_by_content(self, tmp_path: Path) -> None:
        """Rows deleted early in a file leave most of the bytes behind them as they were."""
        values = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(200_000)]
        name = str(tmp_path / "t")
        write_deltalake(name, pa.table({"id": list(range(200_000)), "v": values}))
        DeltaTable(name).delete("id > 1000 AND id < 1700")
        read_delta_table(name, 0, tmp_path / "a")
        read_delta_table(name, 1, tmp_path / "b")
        (a,), (b,) = ([*(tmp_path / side).iterdir()] for side in "ab")
        old = a.read_bytes()
        new = b.read_bytes()
        kept = sum(new[at : at + 4096] in old for at in range(0, len(new), 65536))
        assert kept > 0.5 * len(new) / 65536

    def test_a_file_that_was_vacuumed_is_named_as_gone(self, table: str, tmp_path: Path) -> None:
        DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(NotFound, match="cleaned up"):
            read_delta_table(table, 0, tmp_path / "out")
        assert read_delta_table(table, None, tmp_path / "now").num_rows == 10

    def test_what_is_not_there(self, table: str, tmp_path: Path) -> None:
        for name, version, words in ((str(tmp_path / "nope"), None, "no Delta table"), (table, 99, "no version 99")):
            with pytest.raises(NotFound, match=words):
                read_delta_table(name, version, tmp_path / "out")

    def test_a_time_gives_the_version_of_then(self, table: str, tmp_path: Path) -> None:
        made = {entry["version"]: entry["timestamp"] for entry in DeltaTable(table).history()}
        for log in (Path(table) / "_delta_log").iterdir():
            os.utime(log)  # as a copy of the table has them
        for version, when in made.items():
            if when < made.get(version + 1, when + 1):
                then = datetime.fromtimestamp(when / 1000, UTC)
                for time in (then.isoformat(), then.replace(tzinfo=None).isoformat()):
                    assert read_delta_table(table, time, tmp_path / f"{time}").source == f"delta:{version}"
        assert read_delta_table(table, "2999-01-01", tmp_path / "late").source == "delta:3"

    def test_a_time_before_the_table_was(self, table: str, tmp_path: Path) -> None:
        for time in ("1999-01-01T00:00:00Z", "1999-01-01"):
            with pytest.raises(NotFound, match=f"no version of {time} or before; its oldest is of 20"):
                read_delta_table(table, time, tmp_path / "out")
            with pytest.raises(NotFound, match="or before"), open_source(f"delta:{table}@{time}"):
                pass
        with pytest.raises(Invalid, match="no time"):
            read_delta_table(table, "2027-13-01", tmp_path / "out")
        with (
            pytest.raises(NotFound, match="'yesterday' is no version or time"),
            open_source(f"delta:{table}@yesterday"),
        ):
            pass

    @pytest.mark.parametrize("path", ["../secret.parquet", "%2E%2E/secret.parquet", "file:///etc/secret.parquet"])
    def test_a_table_cannot_point_outside_itself(self, tmp_path: Path, path: str) -> None:
        pq.write_table(rows(0, 3), tmp_path / "secret.parquet")
        name = str(tmp_path / "t")
        write_deltalake(name, rows(0, 3))
        _commit(name, 1, {"add": {**_last_adds(name)[-1], "path": path}})
        with pytest.raises((Invalid, NotFound)):
            read_delta_table(name, None, tmp_path / "out")

    def test_it_is_a_source_of_versions(self, table: str) -> None:
        with open_source(f"delta:{table}@1") as found:
            assert found.pinned == "delta:1"
            about = describe_table(found.path)
            assert about is not None
            assert (about.rows, about.format, len(about.columns)) == (200, "parquet", 3)
            kept = found.path
        assert not kept.exists()


ICEBERG = ("pyiceberg[sql-sqlite,pyarrow]==0.12.0",)
MAKE = """
import json, sys
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType
home = sys.argv[1]
catalog = SqlCatalog("here", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
catalog.create_namespace("bank")
def rows(start, stop):
    return pa.table({"id": pa.array(range(start, stop)), "part": [f"p{i % 2}" for i in range(start, stop)]})
table = catalog.create_table("bank.tx", schema=rows(0, 1).schema)
with table.update_spec() as spec:
    spec.add_field("part", IdentityTransform(), "part")
pins = []
def pin():
    pins.append([table.current_snapshot().snapshot_id, table.metadata_location])
table.append(rows(0, 100)); pin()
table.append(rows(100, 200)); pin()
table.delete("id < 10"); pin()
with table.update_schema() as schema:
    schema.add_column("new", LongType())
    schema.rename_column("id", "ident")
table.append(pa.table({"ident": [1000], "part": ["p1"], "new": [7]})); pin()
print(json.dumps(pins))
"""


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str]]]:
    try:
        python = peer("iceberg", *ICEBERG) / "python"
    except Missing as missing:
        pytest.skip(str(missing))
    home = tmp_path_factory.mktemp("iceberg")
    (home / "warehouse").mkdir()
    done = subprocess.run([python, "-c", MAKE, str(home)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout)


class TestIceberg:
    def test_every_snapshot_is_what_it_was(self, iceberg: Any, tmp_path: Path) -> None:
        _, pins = iceberg
        newest = pins[-1][1]
        for (snapshot, _), expected in zip(pins[:3], (range(100), range(200), range(10, 200)), strict=True):
            out = tmp_path / str(snapshot)
            found = read_iceberg_table(newest, snapshot, out)
            assert (found.source, found.num_rows) == (f"iceberg:{snapshot}", len(expected))
            assert ids(out) == [*expected]

    def test_renamed_and_added_columns(self, iceberg: Any, tmp_path: Path) -> None:
        _, pins = iceberg
        read_iceberg_table(pins[-1][1], None, tmp_path / "out")
        found = read(tmp_path / "out")
        assert {tuple(row) for row in found} == {("ident", "part", "new")}
        assert sorted(row["ident"] for row in found) == [*range(10, 200), 1000]
        assert {row["new"] for row in found} == {None, 7}

    def test_the_same_snapshot_gives_the_same_bytes_and_an_append_adds_files_only(
        self, iceberg: Any, tmp_path: Path
    ) -> None:
        _, pins = iceberg
        read_iceberg_table(pins[-1][1], pins[0][0], tmp_path / "a")
        read_iceberg_table(pins[0][1], None, tmp_path / "b")
        read_iceberg_table(pins[-1][1], pins[1][0], tmp_path / "c")
        first, again, appended = (digests(tmp_path / out) for out in "abc")
        assert first == again
        assert first.items() < appended.items()

    def test_a_folder_is_read_at_its_newest_metadata(self, iceberg: Any, tmp_path: Path) -> None:
        home, pins = iceberg
        found = read_iceberg_table(str(home / "warehouse" / "bank" / "tx"), None, tmp_path / "out")
        assert found.source == f"iceberg:{pins[-1][0]}"

    def test_a_table_of_a_catalog(self, iceberg: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A catalog as the user's own configuration names it, over the Iceberg REST protocol."""
        _, pins = iceberg
        with _rest_catalog(pins[-1][1]) as address:
            monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", address)
            monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
            assert read_iceberg_table("mine.bank.tx", pins[0][0], tmp_path / "out").num_rows == 100
            with pytest.raises(NotFound, match="no such Iceberg table"):
                read_iceberg_table("mine.bank.other", None, tmp_path / "out")
        with pytest.raises(Invalid, match="no Iceberg catalog 'yours'"):
            read_iceberg_table("yours.bank.tx", None, tmp_path / "out")

    def test_what_is_not_there(self, iceberg: Any, tmp_path: Path) -> None:
        _, pins = iceberg
        with pytest.raises(NotFound, match="no snapshot 5"):
            read_iceberg_table(pins[-1][1], 5, tmp_path / "out")
        with pytest.raises(NotFound):
            read_iceberg_table(str(tmp_path / "x.metadata.json"), None, tmp_path / "out")
        with pytest.raises(NotFound, match="no Iceberg table"):
            read_iceberg_table(str(tmp_path), None, tmp_path / "out")
        for name in ("nothing", "a/b", ""):
            with pytest.raises((Invalid, NotFound)):
                read_iceberg_table(name, None, tmp_path / "out")

    def test_it_is_a_source_of_versions(self, iceberg: Any) -> None:
        _, pins = iceberg
        with open_source(f"iceberg:{pins[-1][1]}@{pins[1][0]}") as found:
            about = describe_table(found.path)
            assert about is not None
            assert (found.pinned, about.rows) == (f"iceberg:{pins[1][0]}", 200)

    def test_a_file_that_is_gone(self, iceberg: Any, tmp_path: Path) -> None:
        home, pins = iceberg
        victim = next((home / "warehouse").rglob("*.parquet"))
        saved = victim.read_bytes()
        victim.unlink()
        try:
            assert not all(_readable(pins[-1][1], snapshot, tmp_path / str(snapshot)) for snapshot, _ in pins)
        finally:
            victim.write_bytes(saved)


def _readable(table: str, snapshot: int, out: Path) -> bool:
    try:
        read_iceberg_table(table, snapshot, out)
    except NotFound as error:
        return "cleaned up" not in error.message
    return True


@contextlib.contextmanager
def _rest_catalog(location: str) -> Iterator[str]:
    """A server of one table, bank.tx."""
    table = {"metadata-location": location, "metadata": json.loads(Path(location.removeprefix("file://")).read_text())}
    answers = {"/v1/config": {"defaults": {}, "overrides": {}}, "/v1/namespaces/bank/tables/tx": table}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            error = {"error": {"message": "no", "type": "NoSuchTableException", "code": 404}}
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found or error).encode())

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _last_adds(table: str) -> list[dict[str, Any]]:
    log = max((Path(table) / "_delta_log").glob("*.json"))
    return [line["add"] for line in map(json.loads, log.read_text().splitlines()) if "add" in line]


def _commit(
    table: str, version: int, action: Mapping[str, Any], meta: Mapping[str, Any] | None = None, features: Any = ()
) -> None:
    """Append a commit by hand: what other writers do and this library cannot."""
    folder = Path(table) / "_delta_log"
    lines = [json.loads(line) for log in sorted(folder.glob("*.json")) for line in log.read_text().splitlines()]
    old = next(line["metaData"] for line in reversed(lines) if "metaData" in line)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [*features],
        "writerFeatures": [*features],
    }
    made = [{"protocol": protocol}] if features else []
    made += [{"metaData": {**old, **(meta or {})}}, *([dict(action)] if action else [])]
    if "deletionVector" in action.get("add", {}):
        made.insert(-1, {"remove": {"path": action["add"]["path"], "deletionTimestamp": 1, "dataChange": True}})
    (folder / f"{version:020}.json").write_text("".join(json.dumps(line) + "\n" for line in made))


def _vector(numbers: list[int]) -> dict[str, Any]:
    """An inline deletion vector: a roaring bitmap of row numbers, in Z85."""
    container = struct.pack("<IIHHI", 12346, 1, 0, len(numbers) - 1, 16) + struct.pack(f"<{len(numbers)}H", *numbers)
    raw = struct.pack("<IQI", 1681511377, 1, 0) + container
    padded = raw + bytes(-len(raw) % 4)
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = ""
    for at in range(0, len(padded), 4):
        value = int.from_bytes(padded[at : at + 4], "big")
        text += "".join(digits[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(raw), "cardinality": len(numbers)}
