"""What is said of tables: right, in every format; nothing of people; and no file that breaks whoever publishes it."""

import contextlib
import gzip
import json
import os
import random
import resource
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.content import duck_engine, table_statistics
from falaj.content.duck_engine import find_table_files
from falaj.content.records import TableColumn, TableDescription
from falaj.content.table_statistics import DescribeRequest, describe_files, describe_table, warn_undeclared_columns
from falaj.core.errors import Invalid, NotFound

NAN = float("nan")
OLD, NEW = (datetime(year, 1, 1, tzinfo=UTC).replace(tzinfo=None) for year in (1900, 2200))
ROWS = pa.table(
    {
        "id": [3, 1, 2, None],
        "price": [1.5, NAN, -0.5, None],
        "name": ["b" * 100, "a", None, "é"],
        "ok": [True, False, None, True],
        "day": [date(2024, 1, 2), date(1969, 12, 31), None, None],
        "when": pa.array([datetime(2024, 1, 1, 4, tzinfo=UTC)] * 4, pa.timestamp("us", "Asia/Dubai")),
        "sum": pa.array([Decimal("1.10"), Decimal("-2.00"), None, None], pa.decimal128(10, 2)),
        "where": [{"city": "Dubai", "at": {"x": 1}}, None, {"city": None, "at": {"x": 3}}, None],
        "tags": [["a"], [], None, None],
        "blob": [b"\xff", b"", None, None],
    }
)


def here(path: Path, **categories: str) -> TableDescription:
    """The same as `describe`, without a child process."""
    files = find_table_files(path)
    assert files is not None
    return describe_files(DescribeRequest(files, categories, {}))


def columns(table: TableDescription) -> dict[str, TableColumn]:
    return {column.name: column for column in table.columns}


def test_everything_that_is_known_of_a_parquet_table(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "it's [a] *.parquet", row_group_size=2)
    found = describe_table(tmp_path)
    assert found is not None
    assert (found.rows, found.format, found.files) == (4, "parquet", 1)
    assert found.columns == (
        TableColumn("id", "BIGINT", 1, 3, "1", "3", 2.0),
        TableColumn("price", "DOUBLE", 1, 3, "-0.5", "1.5", 0.5),
        TableColumn("name", "VARCHAR", 1, 3, "a", "é", None),
        TableColumn("ok", "BOOLEAN", 1, 2, "false", "true", 0.666666666667),
        TableColumn("day", "DATE", 2, 2, "1969-12-31", "2024-01-02"),
        TableColumn("when", "TIMESTAMP WITH TIME ZONE", 0, 1, "2024-01-01T04:00:00+00:00", "2024-01-01T04:00:00+00:00"),
        TableColumn("sum", "DECIMAL(10,2)", 2, 2, "-2.00", "1.10", -0.45),
        TableColumn("where", 'STRUCT(city VARCHAR, "at" STRUCT(x BIGINT))', 2),
        TableColumn("where.city", "VARCHAR", 3, 1, "Dubai", "Dubai"),
        TableColumn("where.at", "STRUCT(x BIGINT)", 2),
        TableColumn("where.at.x", "BIGINT", 2, 2, "1", "3", 2.0),
        TableColumn("tags", "VARCHAR[]", 2),
        TableColumn("blob", "BLOB", 2),
    )


def test_long_texts_are_cut(tmp_path: Path) -> None:
    pq.write_table(ROWS.slice(0, 1), tmp_path / "t.parquet")
    assert columns(here(tmp_path))["name"].low == "b" * 64


@pytest.mark.parametrize("write", [
    lambda rows, path: pf.write_feather(rows, path / "t.feather"),
    lambda rows, path: pf.write_feather(rows, path / "t.arrow", compression="uncompressed"),
    lambda rows, path: _stream(rows, path / "t.arrows"),
])  # fmt: skip
def test_arrow_says_the_same(tmp_path: Path, write: Any) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "p").mkdir()
    write(ROWS, tmp_path / "a")
    pq.write_table(ROWS, tmp_path / "p" / "t.parquet")
    assert here(tmp_path / "a").columns == here(tmp_path / "p").columns


def test_csv_and_json_lines(tmp_path: Path) -> None:
    plain = ROWS.select(["id", "price", "ok", "day"])
    for name in ("csv", "tsv", "gz", "json"):
        (tmp_path / name).mkdir()
    pc.write_csv(plain, tmp_path / "csv" / "t.csv")
    pc.write_csv(plain, tmp_path / "tsv" / "t.tsv", pc.WriteOptions(delimiter="\t"))
    (tmp_path / "gz" / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "csv" / "t.csv").read_bytes()))
    lines = (json.dumps({k: v for k, v in row.items() if v == v}, default=str) for row in plain.to_pylist())
    (tmp_path / "json" / "t.jsonl").write_text("\n".join(lines))
    for name, form in (("csv", "csv"), ("tsv", "tsv"), ("gz", "csv"), ("json", "jsonl")):
        found = here(tmp_path / name)
        assert (found.rows, found.format) == (4, form)
        assert columns(found)["id"] == TableColumn("id", "BIGINT", 1, 3, "1", "3", 2.0)
        assert columns(found)["day"] == TableColumn("day", "DATE", 2, 2, "1969-12-31", "2024-01-02")
        assert columns(found)["price"].mean == 0.5


def test_a_type_that_only_later_rows_have(tmp_path: Path) -> None:
    """The first rows are looked at; when a later one does not fit, all of them are."""
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 30_000 + "1.5,word\n")
    found = columns(here(tmp_path))
    assert (found["x"].type, found["x"].high, found["y"].type) == ("DOUBLE", "1.5", "VARCHAR")


def test_several_files_are_one_table(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / f"day={number}"
        folder.mkdir()
        pq.write_table(pa.table({"a": [number], "b": ["x"]}), folder / "part.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [9]}), tmp_path / "other-order.parquet")
    (tmp_path / "README.md").write_text("not a table")
    (tmp_path / "_delta_log").mkdir()
    pq.write_table(pa.table({"other": [1]}), tmp_path / "_delta_log" / "c.parquet")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "other-order.parquet")
    found = here(tmp_path)
    assert (found.rows, found.files, [c.name for c in found.columns]) == (4, 4, ["a", "b"])
    assert columns(found)["a"].high == "9"


def test_two_tables_are_not_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(Invalid, match="different columns"):
        describe_table(tmp_path)
    (tmp_path / "b.parquet").rename(tmp_path / "b.csv")
    with pytest.raises(Invalid, match="several kinds lie together: csv, parquet"):
        describe_table(tmp_path)
    for name, head in (("c", "a,b"), ("d", "a,c")):
        (tmp_path / f"{name}.csv").write_text(f"{head}\n1,2\n")
    with pytest.raises(Invalid, match="several kinds"):
        describe_table(tmp_path)
    for name in ("a.parquet", "b.csv"):
        (tmp_path / name).unlink()
    with pytest.raises(Invalid, match="different columns"):
        describe_table(tmp_path)


def test_no_table_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    assert describe_table(tmp_path) is None
    assert describe_table(tmp_path / "model.bin") is None


def test_a_table_without_rows(tmp_path: Path) -> None:
    pq.write_table(ROWS.slice(0, 0), tmp_path / "t.parquet")
    found = here(tmp_path)
    assert found.rows == 0
    assert {(c.nulls, c.distinct or 0, c.low, c.mean) for c in found.columns} == {(0, 0, "", None)}


def test_infinity_and_nan_have_no_mean(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [float("inf"), 1.0], "b": [NAN, NAN]}), tmp_path / "t.parquet")
    found = describe_table(tmp_path)
    assert found is not None
    assert columns(found)["a"] == TableColumn("a", "DOUBLE", 0, 2, "1.0", "inf")
    assert columns(found)["b"] == TableColumn("b", "DOUBLE", 0, 1)


class TestCsvThatDoesNotFit:
    """A file is described as its header says or not at all, and then the line that stands in the way is named."""

    ROWS = "".join(f"{number},x{number},{number}\n" for number in range(5000))

    @pytest.mark.parametrize(("text", "said"), [
        ("id,a\n1,2\n3,4,5", "line 3 has 3 fields, and the first row 2"),
        ("id,a,b\n1,2,3\n3,4\n", "line 3 has 2 fields, and the first row 3"),
        ("id,a,b,c\n1,2,3\n4,5,6\n", "line 2 has 3 fields, and the first row 4"),
        ("id\n1,2\n3,4\n", "line 2 has 2 fields, and the first row 1"),
        ("# made by hand\n\nid,a\n1,2\n3\n", "line 5 has 1 field, and the first row 2"),
        ("id,a,b\n" + ROWS.replace("\n99,x99,", "\n99,x99,7,"), "line 101 has 4 fields, and the first row 3"),
        ("id,a,b\n" + ROWS.replace("\n4900,x4900,", "\n4900,"), "line 4,902 has 2 fields, and the first row 3"),
        ("id,a,b\n" + ROWS * 8 + "1,2,3,4\n", "line 40,002 has 4 fields, and the first row 3"),
        ('id,a\n1,"two\nlines"\n2,3,4\n', "line 4 has 3 fields, and the first row 2"),
        ("id,a\r\n1,2\r\n3,4\r5,6\r\n", "line 3 ends in a carriage return alone"),
        ("id,a\n1,2\r\n3,x\udcff\n", "line 3 is no text in UTF-8"),
        ('id,a\r\n1,"x" y\n2,3\n', "line 2 has quotes that do not match"),
    ])  # fmt: skip
    @pytest.mark.parametrize("ending", ["csv", "csv.gz"])
    def test_the_line_is_named(self, tmp_path: Path, text: str, said: str, ending: str) -> None:
        data = text.encode(errors="surrogateescape")
        (tmp_path / "good.csv").write_text("id,a\n1,2\n")
        (tmp_path / f"odd one.{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
        with pytest.raises(Invalid) as error:
            here(tmp_path / f"odd one.{ending}")
        assert error.value.message.startswith(f"in 'odd one.{ending}' {said}")

    def test_the_file_is_named(self, tmp_path: Path) -> None:
        for number in range(3):
            (tmp_path / f"day={number}").mkdir()
            (tmp_path / f"day={number}" / "part.csv").write_text("id,a\n" + "1,2\n" * 9 + "1,2,3\n" * (number == 1))
        with pytest.raises(Invalid, match=r"in 'day=1/part.csv' line 11 has 3 fields, and the first row 2"):
            describe_table(tmp_path)

    @pytest.mark.parametrize("odd", ["\r\n", "\n"])
    @pytest.mark.parametrize("at", [0, 99, 4900])
    def test_lines_may_end_in_two_ways(self, tmp_path: Path, odd: str, at: int) -> None:
        usual = "\n" if odd == "\r\n" else "\r\n"
        lines = ["id,a,b", *self.ROWS.splitlines()]
        (tmp_path / "t.csv").write_bytes(
            "".join(f"{x}{odd if n == at else usual}" for n, x in enumerate(lines)).encode()
        )
        found = here(tmp_path)
        assert found.rows == 5000
        assert columns(found)["b"] == TableColumn("b", "BIGINT", 0, columns(found)["b"].distinct, "0", "4999", 2499.5)

    def test_an_empty_file_has_no_columns(self, tmp_path: Path) -> None:
        for text in ("", "\n\r\n", "# nothing\n"):
            (tmp_path / "t.csv").write_text(text)
            assert here(tmp_path) == TableDescription(0, (), "csv", 1)
        (tmp_path / "u.csv").write_text("id,a\n1,2\n")
        found = here(tmp_path)
        assert (found.rows, found.files, list(columns(found))) == (1, 2, ["id", "a"])

    def test_what_still_is_read(self, tmp_path: Path) -> None:
        """Comments, quotes that come late, texts with commas under one name, files that are written differently."""
        (tmp_path / "a.csv").write_text("# made by hand\nid,a\n" + "1,x\n" * 30_000 + '2,"y, ""z"\n')
        (tmp_path / "b.csv").write_text("a;id\nw;3\n")
        found = columns(here(tmp_path))
        assert (found["id"].high, found["a"].high, found["a"].low) == ("3", 'y, "z', "w")
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "t.csv").write_text("text\nHello, world\nfoo\n")
        assert here(tmp_path / "c").columns == (TableColumn("text", "VARCHAR", 0, 2, "Hello, world", "foo"),)

    @given(data=st.data())
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_it_is_right_or_it_is_refused(self, tmp_path: Path, data: st.DataObject) -> None:
        width = data.draw(st.integers(1, 4))
        odd = data.draw(st.sampled_from([(), (1, 2, 3, 4, 5)]))
        widths = data.draw(st.lists(st.sampled_from((width, *odd)), min_size=1, max_size=30))
        ends = data.draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(widths) + 1, max_size=len(widths) + 1))
        sign = data.draw(st.sampled_from(",;\t|"))
        rows = [[f"c{n}" for n in range(width)], *([str(n) for n in range(each)] for each in widths)]
        text = "".join(sign.join(row) + end for row, end in zip(rows, ends, strict=True))
        (tmp_path / "t.csv").write_bytes(text.encode())
        # A larger file that begins with the same line must hide nothing of it.
        beside = data.draw(st.sampled_from([0, 50]))
        alike = [rows[0], *([[str(n) for n in range(width)]] * beside)]
        (tmp_path / "u.csv").write_bytes("".join(sign.join(row) + ends[0] for row in alike).encode() * bool(beside))
        misfit = next((line for line, each in enumerate(widths, 2) if each != width), 0)
        if misfit and (width > 1 or sign == ","):
            with pytest.raises(Invalid, match=f"in 't.csv' line {misfit} has "):
                here(tmp_path)
        elif not misfit:
            found = here(tmp_path)
            assert (found.rows, [c.name for c in found.columns]) == (len(widths) + beside, rows[0])

    def test_files_that_begin_alike_are_guessed_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        looked, sniff = [], duck_engine.DuckEngine.sniff_dialect
        monkeypatch.setattr(
            duck_engine.DuckEngine, "sniff_dialect", lambda *given: looked.append(given[1]) or sniff(*given)
        )
        for number in range(20):
            (tmp_path / f"{number:02}.csv").write_text("id,a,b\n" + self.ROWS[: 13 * number + 2].rpartition("\n")[0])
        (tmp_path / "other.csv").write_text("b;a;id\n1;2;3\n")
        assert (here(tmp_path).files, len(looked)) == (21, 2)


class TestPeople:
    SECRET = "secret-784-1990-1234567-1"

    def write(self, path: Path) -> None:
        row = {"id": 1, "Email": self.SECRET, "email": self.SECRET, "home": {"city": self.SECRET, "n": 77777}}
        for number, form in enumerate(("parquet", "feather", "jsonl")):
            folder = path / str(number)
            folder.mkdir()
            table = pa.Table.from_pylist([row] * 3)
            if form == "parquet":
                pq.write_table(table, folder / "t.parquet")
            elif form == "feather":
                pf.write_feather(table, folder / "t.feather")
            else:
                (folder / "t.jsonl").write_text(json.dumps(row))

    def test_nothing_of_a_declared_column_is_shown(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        for folder in sorted(tmp_path.iterdir()):
            found = here(folder, email="personal", home="sensitive")
            assert self.SECRET not in repr(found)
            assert "77777" not in repr(found)
            hidden = [column for column in found.columns if column.category]
            assert len(hidden) == 5
            for column in hidden:
                assert (column.distinct, column.low, column.high, column.mean) == (None, "", "", None)
            assert {c.name: c.category for c in hidden}["home.n"] == "sensitive"
            assert columns(found)["id"].low == "1"

    def test_a_field_inside_can_be_declared_alone(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        found = columns(here(tmp_path / "0", **{"home.city": "personal"}))
        assert (found["home.city"].category, found["home.city"].low) == ("personal", "")
        assert (found["home.n"].category, found["home.n"].low) == ("", "77777")
        assert found["home"].low == ""

    def test_a_declared_column_that_is_not_there_is_the_callers_mistake(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        with pytest.raises(NotFound, match="emial"):
            describe_table(tmp_path / "0", {"emial": "personal"})

    def test_while_a_column_of_earlier_versions_is_not_found_no_values_are_shown(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        for folder in sorted(tmp_path.iterdir()):
            found = describe_table(folder, {"home": "sensitive"}, {"EMAIL": "personal", "iban": "personal"})
            assert found is not None
            assert self.SECRET not in repr(found)
            assert {(c.distinct, c.low, c.high, c.mean) for c in found.columns} == {(None, "", "", None)}
            assert found.columns[-1] == TableColumn("iban", "", category="personal")
            assert (columns(found)["Email"].category, columns(found)["id"].category) == ("personal", "")
            found = describe_table(folder, {"home": "sensitive"}, {"EMAIL": "personal"})
            assert found is not None
            assert self.SECRET not in repr(found)
            assert columns(found)["id"].low == "1"

    def test_an_error_quotes_no_row(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes(b"a,b\n1,2\n" + self.SECRET.encode() + b",\xff\xfe\n")
        (tmp_path / "u.jsonl").write_text('{"a": "' + self.SECRET)
        for name in ("t.csv", "u.jsonl"):
            with pytest.raises(Invalid) as error:
                describe_table(tmp_path / name)
            assert self.SECRET not in str(error.value)

    def test_suggestions(self) -> None:
        named = [
            TableColumn(name, "VARCHAR") for name in ("E-Mail", "home_phone", "IBAN", "dob", "emirates_id", "lastName")
        ]
        ibans = "AE070331234567890123456", "AE460261001015025912501"  # pragma: allowlist secret
        shown = [
            TableColumn("a", "VARCHAR", low="784-1984-1234567-1", high="784-1999-7654321-2"),
            TableColumn("b", "VARCHAR", low=ibans[0], high=ibans[1]),
            TableColumn("c", "VARCHAR", low="+971 50 123 4567", high="+971501234567"),
            TableColumn("d", "VARCHAR", low="a@b.ae", high="z@y.com"),
        ]
        assert len(warn_undeclared_columns([*named, *shown])) == len(named) + len(shown)
        quiet = [
            TableColumn("amount", "DOUBLE", low="1"),
            TableColumn("rebirth_cycle_x", "INT"),
            TableColumn("idea", "VARCHAR", low="x"),
        ]
        assert warn_undeclared_columns([TableColumn("email", "VARCHAR", category="personal"), quiet[0], quiet[2]]) == ()
        assert "'d' looks like an e-mail address" in warn_undeclared_columns(shown)[3]


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_footers_and_rows_say_the_same(tmp_path: Path, data: st.DataObject) -> None:
    """What comes from a Parquet footer equals what reading every row gives, as Arrow files have no footer to ask."""
    size = data.draw(st.integers(1, 30))
    kinds = {
        "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        "u": (pa.uint64(), st.integers(0, 2**64 - 1)),
        "s": (pa.string(), st.text(max_size=80)),
        "f": (pa.float64(), st.floats()),
        "b": (pa.bool_(), st.booleans()),
        "d": (pa.date32(), st.dates(date(1, 1, 1))),
        "t": (pa.timestamp("us"), st.datetimes(OLD)),
        "n": (pa.timestamp("ns"), st.datetimes(OLD, NEW)),
    }
    drawn = {
        name: pa.array(data.draw(st.lists(st.none() | some, min_size=size, max_size=size)), kind)
        for name, (kind, some) in kinds.items()
    }
    table = pa.table(drawn)
    for name in ("p", "a"):
        (tmp_path / name).mkdir(exist_ok=True)
    pq.write_table(table, tmp_path / "p" / "t.parquet", row_group_size=data.draw(st.integers(1, 30)))
    pf.write_feather(table, tmp_path / "a" / "t.feather")
    assert here(tmp_path / "p").columns == here(tmp_path / "a").columns


def test_a_large_parquet_table_is_described_by_its_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(ROWS, tmp_path / "t.parquet")
    monkeypatch.setattr(table_statistics, "MAX_READ_BYTES", 10)
    found = here(tmp_path)
    assert found.rows == 4
    assert columns(found)["id"] == TableColumn("id", "BIGINT", 1, None, "1", "3", None)
    assert columns(found)["name"].high == "é"


class TestHostile:
    """Each either is described or is refused in our words, soon and in little memory; nothing runs."""

    def refused(self, path: Path) -> str:
        with pytest.raises(Invalid) as error:
            describe_table(path)
        assert str(path) not in str(error.value)
        return error.value.message

    @pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.feather", "t.arrows"])
    @pytest.mark.parametrize(
        "data", [b"", b"x", b"PAR1", b"PAR1" + b"\xff" * 20 + b"PAR1", b"ARROW1\0\0" + b"\xff" * 99]
    )
    def test_no_table_at_all(self, tmp_path: Path, name: str, data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(Invalid):
            here(tmp_path)

    @pytest.mark.parametrize("form", ["parquet", "feather", "arrow"])
    def test_flipped_and_lost_bytes(self, tmp_path: Path, form: str) -> None:
        """In one child, since some of these kill it: the parent always hears an answer."""
        good = tmp_path / f"good.{form}"
        table = pa.table({"a": list(range(500)), "s": [f"text {i}" * 3 for i in range(500)]})
        pq.write_table(table, good) if form == "parquet" else pf.write_feather(
            table, good, compression="lz4" if form == "feather" else "uncompressed"
        )
        dice, data = random.Random(7), good.read_bytes()
        for turn in range(8):
            bad = bytearray(data)
            for _ in range(1 + turn % 3):
                bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
            path = tmp_path / f"{turn}.{form}"
            path.write_bytes(bad if turn % 4 else bad[: dice.randrange(len(bad))])
            with contextlib.suppress(Invalid):
                describe_table(path)

    def test_one_line_of_a_gigabyte(self, tmp_path: Path) -> None:
        with (tmp_path / "t.csv").open("wb") as file:
            file.write(b"a,b\n" + b"1,2\n" * 50_000)
            file.truncate(1 << 30)
        assert "longer than" in self.refused(tmp_path / "t.csv")

    def test_a_million_columns(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text(",".join(f"c{i}" for i in range(200_000)) + "\n")
        self.refused(tmp_path / "t.csv")
        wide = pa.schema([(f"c{i}", pa.int8()) for i in range(duck_engine.MAX_COLUMNS + 1)])
        pq.write_table(wide.empty_table(), tmp_path / "t.parquet")
        assert "columns" in self.refused(tmp_path / "t.parquet")
        end = (100 << 20).to_bytes(4, "little") + b"PAR1"
        with (tmp_path / "u.parquet").open("wb") as file:
            file.truncate(200 << 20)
            file.seek(0, os.SEEK_END)
            file.write(end)
        assert "more columns" in self.refused(tmp_path / "u.parquet")

    def test_many_columns_are_described(self, tmp_path: Path) -> None:
        count = duck_engine.MAX_COLUMNS
        pq.write_table(pa.table({f"c{i}": [i, None] for i in range(count)}), tmp_path / "t.parquet")
        found = describe_table(tmp_path)
        assert found is not None
        assert len(found.columns) == count
        assert found.columns[-1] == TableColumn(
            f"c{count - 1}", "BIGINT", 1, 1, str(count - 1), str(count - 1), count - 1.0
        )

    def test_depths(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
        self.refused(tmp_path / "a.jsonl")
        (tmp_path / "deep.parquet").write_bytes(_deep_parquet(100_000))
        self.refused(tmp_path / "deep.parquet")

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "t.parquet")
        (tmp_path / "u.parquet").mkdir()
        (tmp_path / "v.parquet").symlink_to("/dev/zero")
        assert describe_table(tmp_path) is None
        assert describe_table(tmp_path / "t.parquet") is None

    def test_a_child_that_is_killed_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pq.write_table(ROWS, tmp_path / "t.parquet")
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
        monkeypatch.setattr(duck_engine, "MAX_READ_S", -59.9)
        with pytest.raises(Invalid, match="not read within"):
            describe_table(tmp_path)
        assert list((tmp_path / "tmp").iterdir()) == []

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        pq.write_table(ROWS, tmp_path / "t.parquet")
        (tmp_path / "t.parquet").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
        with pytest.raises(Invalid, match="UTF-8"):
            describe_table(tmp_path)

    @pytest.mark.parametrize(
        "name", ["new\nline", "quote'\"; DROP TABLE x; --", "*", "[a-z]?", "{a,b}", "x" * 200, "$HOME"]
    )
    def test_odd_names_of_files_and_columns(self, tmp_path: Path, name: str) -> None:
        pq.write_table(pa.table({name: [1], f"{name}'s": [{name: 2}]}), tmp_path / f"{name}.parquet")
        found = here(tmp_path)
        assert [column.name for column in found.columns] == [name, f"{name}'s", f"{name}'s.{name}"]

    def test_nothing_from_the_current_folder_is_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
        for name in ("duckdb", "pyarrow", "falaj", "msgspec", "json"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(7)\n")
        monkeypatch.chdir(tmp_path)
        found = describe_table(tmp_path / "t.parquet")
        assert found is not None
        assert found.rows == 1
        assert not (tmp_path / "ran").exists()

    def test_the_engine_sees_nothing_but_the_table(self, tmp_path: Path) -> None:
        import duckdb

        pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
        (tmp_path / "other.csv").write_text("a\n1\n")
        files = find_table_files(tmp_path / "t.parquet")
        assert files is not None
        with duck_engine.open_engine(files) as engine:
            for query in (
                f"FROM read_csv('{tmp_path}/other.csv')",
                f"FROM read_text('{tmp_path}/other.csv')",
                "SELECT * FROM glob('/etc/*')",
                f"COPY (SELECT 1) TO '{tmp_path}/made.csv'",
                f"COPY (SELECT 1) TO '{tmp_path}/t.parquet'",
                f"ATTACH '{tmp_path}/made.db'",
                "INSTALL httpfs",
                "LOAD httpfs",
                "SET enable_external_access=true",
                "SET threads=8",
                "SELECT * FROM 'https://example.com/x.parquet'",
            ):
                with pytest.raises(duckdb.Error):
                    engine.engine.execute(query)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other.csv", "t.parquet"]

    def test_a_child_that_takes_too_long_or_too_much_is_ended(self, tmp_path: Path) -> None:
        """Five thousand million rows in a few kilobytes: read to the end, or given up, in bounded memory."""
        data = pa.record_batch({"a": pa.array([None] * 1_000_000, pa.null())})
        with pa.OSFile(str(tmp_path / "t.arrows"), "wb") as sink, pa.ipc.new_stream(sink, data.schema) as writer:
            for _ in range(2000):
                writer.write(data)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        try:
            found = describe_table(tmp_path)
        except Invalid:
            found = None
        assert found is None or found.rows == 2_000_000_000
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 1_500_000)

    def test_without_the_packages_it_says_which(self) -> None:
        code = (
            "import sys; sys.modules['duckdb'] = None\n"
            "from falaj.content import duck_engine\n"
            "try:\n    duck_engine._import_duckdb()\nexcept Exception as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "falaj[tables]" in done.stdout


def test_it_says_the_same_every_time(tmp_path: Path) -> None:
    dice = random.Random(1)
    rows = {"a": [dice.random() * 1e6 for _ in range(300_000)], "b": [str(dice.random()) for _ in range(300_000)]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet", row_group_size=10_000)
    first, *others = (here(tmp_path) for _ in range(4))
    assert all(other == first for other in others)
    assert first.columns[0].mean == pytest.approx(sum(rows["a"]) / 300_000)
    distinct = first.columns[1].distinct
    assert distinct is not None
    assert abs(distinct - 300_000) < 30_000


def _stream(rows: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)


def _deep_parquet(depth: int) -> bytes:
    """A footer by hand: groups inside groups, `depth` of them. Thrift's compact form."""

    def number(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    # field 4 name, field 5 num_children; the innermost has field 1 type, field 3 repetition
    group = b"\x48" + number(1) + b"g" + b"\x15" + number(2) + b"\0"
    leaf = b"\x15" + number(2) + b"\x25" + number(2) + b"\x18" + number(1) + b"x" + b"\0"
    schema = b"\xfc" + number(depth + 1) + group * depth + leaf
    footer = b"\x15" + number(2) + b"\x19" + schema + b"\x16" + number(0) + b"\x19\x0c" + b"\0"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
