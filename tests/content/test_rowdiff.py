"""Row differences: exact against a reference of a few lines, in every format, and silent about people."""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.content.duck_engine import find_table_files
from falaj.content.row_diff import (
    HIDDEN_VALUE,
    MAX_SAMPLES,
    DiffRequest,
    RetypedColumn,
    RowSample,
    TableDiff,
    diff_files,
    diff_tables,
)
from falaj.core.errors import Invalid

NAN = float("nan")


def diff(tmp_path: Path, before: pa.Table, after: pa.Table, *key: str, **categories: str) -> TableDiff:
    """The difference, without a child process."""
    for name, table in (("before", before), ("after", after)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    sides = [find_table_files(tmp_path / f"{name}.parquet") for name in ("before", "after")]
    return diff_files(DiffRequest(sides[0], sides[1], key, categories))


def counts(found: TableDiff) -> tuple[int, int, int]:
    return found.rows_added, found.rows_removed, found.rows_changed


def same(value: Any) -> Any:
    """Equal for values that count as equal: all NaN, both zeros, one instant in any zone; also inside."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, same(value[name])) for name in sorted(value))
    if isinstance(value, list):
        return ("list", *map(same, value))
    return value


def reference(before: Sequence[Any], after: Sequence[Any], key: Sequence[str]) -> tuple[int, int, int, int]:
    """(added, removed, changed, keys that occur twice on a side), by brute force."""
    sides = [[same(row) for row in rows] for rows in (before, after)]
    if not key:
        left, right = Counter(sides[0]), Counter(sides[1])
        return (right - left).total(), (left - right).total(), 0, 0
    keys = [Counter(tuple(same(row[name]) for name in key) for row in rows) for rows in (before, after)]
    twice = {found for side in keys for found, count in side.items() if count > 1}

    def of(rows: Sequence[Any], loose: bool) -> list[tuple[Any, Any]]:
        pairs = [(tuple(same(row[name]) for name in key), same(row)) for row in rows]
        return [pair for pair in pairs if (pair[0] in twice) == loose]

    left, right = (Counter(row for _, row in of(rows, True)) for rows in (before, after))
    was, now = (dict(of(rows, False)) for rows in (before, after))
    changed = sum(was[found] != now[found] for found in was.keys() & now.keys())
    added, removed = (right - left).total(), (left - right).total()
    return added + len(now.keys() - was.keys()), removed + len(was.keys() - now.keys()), changed, len(twice)


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=4))])
KIND = pa.schema(
    [
        ("k", pa.int8()),
        ("k2", pa.string()),
        ("f", pa.float64()),
        ("d", pa.decimal128(5, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.float32())),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.float64())]))])),
        ("b", pa.binary()),
    ]
)
FLOATS = st.sampled_from([0.0, -0.0, NAN, 1.5, float("inf")])
DEEP = st.fixed_dictionaries({"z": FLOATS})
ROW = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(0, 2),
        "k2": st.none() | st.sampled_from(["", "a", "é"]),
        "f": st.none() | FLOATS,
        "d": st.none() | st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal("-1.00")]),
        "t": st.none() | st.builds(lambda zone: datetime(2024, 1, 1, tzinfo=UTC).astimezone(zone), ZONES),
        "l": st.none() | st.lists(st.none() | FLOATS, max_size=2),
        "s": st.none() | st.fixed_dictionaries({"x": st.none() | st.just(1), "y": st.none() | DEEP}),
        "b": st.none() | st.sampled_from([b"", b"\0", b"\xff"]),
    }
)  # fmt: skip


@given(
    before=st.lists(ROW, max_size=7),
    after=st.lists(ROW, max_size=7),
    shared=st.lists(ROW, max_size=4),
    key=st.sampled_from([(), ("k",), ("k", "k2"), ("f",), ("s",), ("k", "k2", "f", "d", "t", "l", "s", "b")]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_agrees_with_brute_force(tmp_path: Path, before: Any, after: Any, shared: Any, key: tuple[str, ...]) -> None:
    left, right = [*before, *shared], [*shared, *after]
    found = diff(tmp_path, pa.Table.from_pylist(left, KIND), pa.Table.from_pylist(right, KIND), *key)
    assert (*counts(found), found.duplicate_keys) == reference(left, right, key)
    assert (found.rows_before, found.rows_after) == (len(left), len(right))
    shown = Counter(sample.how for sample in found.samples)
    for how, count in zip(("added", "removed", "changed"), counts(found), strict=True):
        assert shown[how] <= min(count, MAX_SAMPLES)
        assert (shown[how] > 0) == (count > 0)


def test_a_key_a_change_and_what_is_shown(tmp_path: Path) -> None:
    before = pa.table({"id": [1, 2, 3, 4], "v": ["a", "b", "c" * 200, None], "w": [1, 2, 3, 4], "old": [0] * 4})
    after = pa.table({"id": [1, 2, 3, 5], "v": ["a", "B", "c" * 199, "e"], "w": [1, 2, 4, 5], "new": [0] * 4})
    found = diff(tmp_path, before, after, "id")
    assert counts(found) == (1, 1, 2)
    assert found.key == ("id",)
    assert (found.columns_added, found.columns_removed) == (("new",), ("old",))
    assert found.columns_changed == {"v": 2, "w": 1}
    assert found.samples == (
        RowSample("added", {}, {"id": "5", "v": "e", "w": "5"}),
        RowSample("removed", {"id": "4", "w": "4"}, {}),
        RowSample("changed", {"id": "2", "v": "b"}, {"id": "2", "v": "B"}),
        RowSample("changed", {"id": "3", "v": "c" * 64, "w": "3"}, {"id": "3", "v": "c" * 64, "w": "4"}),
    )
    shifts = {(shift.column, shift.statistic): (shift.before, shift.after) for shift in found.statistics}
    assert shifts[("id", "high")] == ("4", "5")
    assert shifts[("w", "mean")] == ("2.5", "3.0")
    assert shifts[("v", "nulls")] == ("1", "0")
    assert ("id", "low") not in shifts


def test_a_key_that_occurs_twice_is_named(tmp_path: Path) -> None:
    before = pa.table({"id": [1, 1, 2], "v": ["a", "b", "c"]})
    after = pa.table({"id": [1, 2, 2], "v": ["a", "c", "d"]})
    found = diff(tmp_path, before, after, "id")
    assert counts(found) == (1, 1, 0)
    assert found.duplicate_keys == 2
    assert [s.before for s in found.samples if s.how == "duplicate"] == [{"id": "1"}, {"id": "2"}]


def test_people_are_not_shown(tmp_path: Path) -> None:
    secret = "784-1990-1234567-1"
    before = pa.table(
        {"eid": [secret, "x"], "home": [{"city": secret}, {"city": "b"}], "v": [1, 2], "w": [{"c": secret}] * 2}
    )
    after = pa.table(
        {"eid": [secret, "y"], "home": [{"city": "q"}, {"city": secret}], "v": [3, 2], "w": [{"c": secret}] * 2}
    )
    for key in ((), ("eid",)):
        found = diff(tmp_path, before, after, *key, eid="personal", home="sensitive", **{"w.c": "personal"})
        assert secret not in repr(found)
        assert found.samples[0].after["eid"] == HIDDEN_VALUE
    assert found.columns_changed == {"home": 1, "v": 1}
    assert (
        RowSample(
            "changed",
            {"eid": HIDDEN_VALUE, "home": HIDDEN_VALUE, "v": "1"},
            {"eid": HIDDEN_VALUE, "home": HIDDEN_VALUE, "v": "3"},
        )
        in found.samples
    )
    assert {shift.column for shift in found.statistics} == {"v"}


def test_nothing_is_shown_while_a_declared_column_is_on_neither_side(tmp_path: Path) -> None:
    before, after = pa.table({"id": [1, 2], "mail": ["a@x", "b@x"]}), pa.table({"id": [1, 3], "mail": ["c@x", "d@x"]})
    found = diff(tmp_path, before, after, "id", email="personal")
    assert counts(found) == (1, 1, 1)
    assert "@x" not in repr(found)
    assert {value for one in found.samples for value in (*one.before.values(), *one.after.values())} == {HIDDEN_VALUE}
    assert found.statistics == ()
    other = pa.table({"email": ["e@x", "f@x"]})
    assert diff(tmp_path, before, before.append_column("email", other["email"]), "id", email="personal").samples == ()


def test_types_that_changed(tmp_path: Path) -> None:
    before = pa.table({"i": pa.array([1, 2], pa.int32()), "n": [1.0, 2.5], "s": [1, 2], "l": [[1], [2]]})
    after = pa.table({"i": pa.array([1, 2], pa.int64()), "n": [1, 2], "s": ["1", "x"], "l": ["[1]", "[2]"]})
    found = diff(tmp_path, before, after, "i")
    assert counts(found) == (0, 0, 1)
    assert found.columns_changed == {"n": 1, "s": 1}
    assert found.columns_retyped[0] == RetypedColumn("i", "INTEGER", "BIGINT")
    assert [column.name for column in found.columns_retyped] == ["i", "n", "s", "l"]


def test_nothing_in_common(tmp_path: Path) -> None:
    found = diff(tmp_path, pa.table({"a": [1, 2]}), pa.table({"b": [1]}))
    assert (found.rows_before, found.rows_after) == (2, 1)
    assert counts(found) == (1, 2, 0)
    assert (found.columns_added, found.columns_removed) == (("b",), ("a",))
    assert found.samples == ()


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="'x' is not a column of both"):
        diff(tmp_path, pa.table({"a": [1], "x": [1]}), pa.table({"a": [1]}), "a", "x")


def test_every_format_and_a_side_without_files(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    pq.write_table(table.slice(0, 1), tmp_path / "1.parquet")
    pq.write_table(table.slice(1, 1), tmp_path / "2.parquet")
    pf.write_feather(table, tmp_path / "t.feather")
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,z\n")
    (tmp_path / "t.jsonl").write_text('{"a":2,"b":"y"}\n{"a":1,"b":"x"}\n')
    parts = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    assert counts(diff_tables(parts, [tmp_path / "t.feather"])) == (0, 0, 0)
    assert counts(diff_tables(parts, [tmp_path / "t.jsonl"], ["a"])) == (0, 0, 0)
    assert counts(diff_tables(parts, [tmp_path / "t.csv"], ["a"])) == (0, 0, 1)
    assert counts(diff_tables([], parts, ["a"])) == (2, 0, 0)
    assert counts(diff_tables(parts, [])) == (0, 2, 0)
    for before, after in (([], []), ([tmp_path / "t.csv", *parts], parts)):
        with pytest.raises(Invalid):
            diff_tables(before, after)


def test_one_key_for_a_million_rows_is_no_product_of_them(tmp_path: Path) -> None:
    one = pa.table({"k": [1] * 200_000, "v": list(range(200_000))})
    other = pa.table({"k": [1] * 200_000, "v": list(range(1, 200_001))})
    assert counts(diff(tmp_path, one, other, "k")) == (1, 1, 0)


@pytest.mark.slow
def test_ten_million_rows_in_bounded_memory(tmp_path: Path) -> None:
    import resource

    rows = 1_000_000
    for side, shift in (("before", 0), ("after", 1)):
        with pq.ParquetWriter(
            tmp_path / f"{side}.parquet", pa.schema([("k", pa.int64()), ("v", pa.string())])
        ) as writer:
            for part in range(10):
                numbers = range(part * rows + shift, (part + 1) * rows + shift)
                values = [f"value {(number * 7919) % 1_000_003} of a row that is not short" for number in numbers]
                writer.write_table(pa.table({"k": list(numbers), "v": values}))
    for key in ((), ("k",)):
        found = diff_tables([tmp_path / "before.parquet"], [tmp_path / "after.parquet"], key)
        assert counts(found) == (1, 1, 0)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2_500_000
