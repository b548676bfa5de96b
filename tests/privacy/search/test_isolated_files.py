"""Files of every readable format are searched in the helper; what cannot be read is said to be unread."""

import gzip
import io
import json
import os
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from falaj.privacy.search.isolated_files import (
    STATE_CLEAR,
    STATE_FOUND,
    STATE_UNREAD,
    FileFinding,
    FilesRequest,
    FileToSearch,
    search_files,
)

WHO, OTHER = "784-1990-1234567-1", "784-1985-7654321-9"
NAMES = ("Mariam", "Hamad")
CSV = "id,name,salary\n{},Mariam,1\n{},Hamad,2\n"


def _table(first: str) -> pa.Table:
    return pa.table({"id": [first, OTHER], "name": list(NAMES), "salary": [1, 2]})


def _parquet(path: Path, first: str) -> None:
    pq.write_table(_table(first), path)


def _arrow(path: Path, first: str) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _table(first).schema) as writer:
        writer.write_table(_table(first))


def _arrow_stream(path: Path, first: str) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _table(first).schema) as writer:
        writer.write_table(_table(first))


def _nested(path: Path, first: str) -> None:
    people = [[{"id": first, "name": "Mariam"}], None, [], [{"id": OTHER, "name": "Hamad"}]]
    pq.write_table(pa.table({"people": people, "name": ["Mariam", "b", "c", "Hamad"]}), path)


def _numbers(path: Path, first: str) -> None:
    ids = [int(text.replace("-", "")) for text in (first, OTHER)]
    pq.write_table(pa.table({"a": ids, "name": list(NAMES)}), path)


def _zipped(path: Path, first: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/rows.csv", CSV.format(first, OTHER))


def _escaped(first: str) -> str:
    """JSON with every digit of the identifier as an escaped Arabic-Indic one."""
    digits = first.translate({ord(str(digit)): chr(0x660 + digit) for digit in range(10)})
    return json.dumps([{"id": digits, "name": "Mariam"}])


def _gzipped(path: Path, first: str) -> None:
    path.write_bytes(gzip.compress(CSV.format(first, OTHER).encode()))


def _text(form: str, encoding: str = "utf-8") -> Callable[[Path, str], None]:
    def write(path: Path, first: str) -> None:
        path.write_bytes(form.replace("FIRST", first).replace("OTHER", OTHER).encode(encoding))

    return write


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "rows.parquet": _parquet,
    "named.bin": _parquet,
    "rows.arrow": _arrow,
    "rows.arrows": _arrow_stream,
    "rows.orc": lambda path, first: orc.write_table(_table(first), path),
    "nested.parquet": _nested,
    "numbers.parquet": _numbers,
    "rows.csv": _text("id,name\nFIRST,Mariam\nOTHER,Hamad\n"),
    "semicolons.csv": _text("id;name\nFIRST;Mariam\nOTHER;Hamad\n"),
    "excel.csv": _text("id,name\nFIRST,Mariam\nOTHER,Hamad\n", "utf-16"),
    "rows.tsv": _text("id\tname\nFIRST\tMariam\nOTHER\tHamad\n"),
    "rows.jsonl": _text('{"id": "FIRST", "name": "Mariam"}\n{"id": "OTHER", "name": "Hamad"}\n'),
    "rows.json": _text('{"rows": [{"id": "FIRST", "name": "Mariam"}, {"id": "OTHER", "name": "Hamad"}]}'),
    "escaped.json": lambda path, first: path.write_text(_escaped(first)) and None,
    "escaped.jsonl": lambda path, first: path.write_text(_escaped(first)[1:-1] + "\n") and None,
    "notes.txt": _text("first line\nMariam is FIRST\n" + "x" * 3000 + "\nHamad is OTHER\n"),
    "rows.csv.gz": _gzipped,
    "rows.zip": _zipped,
}


def _search(path: Path, *columns: str, subject: str = WHO, rows: bool = True) -> FileFinding:
    (finding,) = search_files(FilesRequest(subject, (FileToSearch(str(path), path.name, columns),), rows))
    return finding


def test_every_format_gives_the_persons_rows_and_nobody_elses(tmp_path: Path) -> None:
    for folder, first in (("with", WHO), ("without", OTHER)):
        (tmp_path / folder).mkdir()
        for name, write in WRITERS.items():
            write(tmp_path / folder / name, first)
    for folder, state in (("with", STATE_FOUND), ("without", STATE_CLEAR)):
        asks = tuple(FileToSearch(str(tmp_path / folder / name), name) for name in WRITERS)
        findings = dict(zip(WRITERS, search_files(FilesRequest(WHO, asks, True)), strict=True))
        assert {name: finding.state for name, finding in findings.items()} == dict.fromkeys(WRITERS, state)
        for name, finding in findings.items():
            text = json.dumps(finding.rows, ensure_ascii=False)
            assert ("Mariam" in text) == (state == STATE_FOUND), name
            assert "Hamad" not in text, name


def test_short_identifier_is_found_in_declared_columns_only(tmp_path: Path) -> None:
    pq.write_table(pa.table({"patient_id": [73, 74], "amount": [5, 73]}), tmp_path / "rows.parquet")
    finding = _search(tmp_path / "rows.parquet", "patient_id", subject="73")
    assert [row["amount"] for row in finding.rows] == [5]
    assert _search(tmp_path / "rows.parquet", subject="73").state == STATE_CLEAR
    (tmp_path / "rows.csv").write_text("patient_id,amount\n73,5\n74,73\n")
    assert [row["amount"] for row in _search(tmp_path / "rows.csv", "patient_id", subject="73").rows] == ["5"]
    (tmp_path / "rows.jsonl").write_text('{"patient_id": 73, "amount": 5}\n{"patient_id": 74, "amount": 73}\n')
    assert [row["amount"] for row in _search(tmp_path / "rows.jsonl", "patient_id", subject="73").rows] == [5]


def test_what_cannot_be_read_is_unread_and_clear_bytes_are_found_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(os.urandom(3 << 20))
    assert _search(tmp_path / "weights.bin").state == STATE_UNREAD
    (tmp_path / "weights.bin").write_bytes(b"\0" * (2 << 20) + WHO.encode() + os.urandom(1000))
    assert _search(tmp_path / "weights.bin").state == STATE_FOUND
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE people (id)")
    assert "SQLite" in _search(tmp_path / "rows.db").reason
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 nothing of the kind")
    assert _search(tmp_path / "cut.parquet").state == STATE_UNREAD
    (tmp_path / "deep.zip").write_bytes(_nested_zips(6))
    assert _search(tmp_path / "deep.zip").state == STATE_UNREAD


def _nested_zips(depth: int) -> bytes:
    data = b"id\n1\n"
    for _ in range(depth):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("inner.zip", data)
        data = buffer.getvalue()
    return data


def test_a_match_across_two_pieces_of_a_long_line_is_found(tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("x" * ((1 << 20) - 5) + " " + WHO + " " + "y" * 100)
    assert _search(tmp_path / "line.txt").state == STATE_FOUND


@pytest.mark.parametrize("column", ["id", "name"])
def test_files_after_a_broken_one_are_still_searched(tmp_path: Path, column: str) -> None:
    (tmp_path / "broken.orc").write_bytes(b"ORC" + os.urandom(5000))
    _parquet(tmp_path / "rows.parquet", WHO)
    asks = tuple(FileToSearch(str(tmp_path / name), name, (column,)) for name in ("broken.orc", "rows.parquet"))
    assert [finding.state for finding in search_files(FilesRequest(WHO, asks))] == [STATE_UNREAD, STATE_FOUND]
