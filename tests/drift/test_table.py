"""Whole tables: the same from every form of file, in pieces, and from stored profiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.drift import table_comparison as ours
from falaj.drift.profiles import build_profile, encode_profile, read_profile
from falaj.drift.table_comparison import ColumnRoles, compare_tables, profile_table, tally_table

ROWS = 6000


def rows(seed: int, shift: float = 0.0, count: int = ROWS) -> pa.Table:
    chance = np.random.default_rng(seed)
    amount = chance.gamma(2.0, 50.0, count) + shift * 70
    amount[::50] = np.nan
    columns: dict[str, Any] = {
        "amount": amount,
        "age": chance.integers(18, 90, count),
        "city": chance.choice(["Dubai", "Al Ain", "Ajman"], count, p=[0.6, 0.3, 0.1]),
        "paid": chance.random(count) < 0.7,
    }
    return pa.table(columns)


def written(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=1000)
    elif path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    elif path.suffix == ".arrow":
        pa.feather.write_feather(table, str(path), compression="uncompressed")
    else:
        path.mkdir()
        pa.parquet.write_table(table.slice(0, 2500), path / "part-0.parquet")
        pa.parquet.write_table(table.slice(2500), path / "part-1.parquet")
    return path


def arrays(table: pa.Table) -> dict[str, Any]:
    return {name: table.column(name).to_numpy() for name in table.column_names}


@pytest.mark.parametrize("form", ["rows.parquet", "rows.csv", "rows.arrow", "folder", "memory"])
def test_every_form_of_table_is_counted_alike(tmp_path: Path, form: str) -> None:
    reference, now = rows(1), rows(2, 0.3)
    wanted = build_profile(arrays(reference))
    where: Any = arrays(now) if form == "memory" else written(now, tmp_path / form)
    tally, found = compare_tables(wanted, where)
    assert (tally.rows, tally.seen) == (ROWS, ROWS)
    assert [one.column for one in found if one.alarm] == ["amount"]
    again = tally_table(wanted, arrays(now))
    assert (tally.counts == again.counts).all()
    if form != "memory":
        assert profile_table(written(reference, tmp_path / f"then-{form}")).counts == wanted.counts


def test_more_rows_than_the_sample_are_counted_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "SAMPLE_ROWS", 1500)
    monkeypatch.setattr(ours, "_PIECE_ROWS", 700)
    table = rows(3)
    made = profile_table(arrays(table), ColumnRoles(label="paid", segment="city"))
    (amount,) = (axis for axis in made.axes if axis.name == "amount")
    assert made.rows == ROWS
    assert all(sum(counts) == ROWS for counts in made.counts)
    finite = arrays(table)["amount"]
    assert (amount.low, amount.high) == (np.nanmin(finite), np.nanmax(finite))
    assert not any(one.alarm for one in compare_tables(made, arrays(rows(4)))[1])
    assert set(made.segments) == {"Dubai", "Al Ain", "Ajman"}


def test_a_stored_profile_is_as_good_as_the_table(tmp_path: Path) -> None:
    then, now = written(rows(1), tmp_path / "then.parquet"), written(rows(2, 0.3), tmp_path / "now.parquet")
    stored = read_profile(encode_profile(profile_table(then)))
    assert compare_tables(stored, now)[1] == compare_tables(then, now)[1]


def test_odd_tables(tmp_path: Path) -> None:
    made = profile_table(arrays(rows(1)), ColumnRoles(leave_out=("age",)))
    assert [axis.name for axis in made.axes] == ["amount", "city", "paid"]
    _, found = compare_tables(made, {"amount": np.asarray(rows(2).column("amount"))})
    assert {one.column: one.measure for one in found if one.alarm} == {"city": "gone", "paid": "gone"}
    nested = pa.table({"a": pa.array([[1], [2]]), "b": [1.5, None], "d": pa.array(["x", None]).dictionary_encode()})
    path = written(nested, tmp_path / "nested.parquet")
    assert [axis.name for axis in profile_table(path).axes] == ["b", "d"]
    assert [sum(counts[-4:]) for counts in profile_table(path).counts] == [1, 1]  # missing
    kinds = {
        "when": pa.array([0, 10**15, None], pa.timestamp("us")),
        "day": pa.array([0, 9000, None], pa.date32()),
        "price": pa.array([1, 2, None], pa.int64()).cast(pa.decimal128(21, 2)),
        "whole": pa.array([1, None, 3]),
    }
    path = written(pa.table(kinds), tmp_path / "kinds.parquet")
    assert [sum(counts) for counts in profile_table(path).counts] == [3] * 4
    with pytest.raises(Invalid, match="no rows"):
        profile_table({"a": np.empty(0)})
    with pytest.raises(Invalid, match="no column 'z'"):
        profile_table(arrays(rows(1)), ColumnRoles(label="z"))
    with pytest.raises(NotFound, match="no table"):
        profile_table(tmp_path / "nothing.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(CorruptData, match="cannot be read"):
        profile_table(tmp_path / "broken.parquet")
