"""Whether a file holds a person is found by bounds and keys alone; what is known of a table shrinks with its rows."""

import io
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.asof.records import FeatureField
from falaj.content.records import TableColumn, TableDescription
from falaj.features import row_removal
from falaj.features.erasure_case import subtract_table_rows
from falaj.features.records import EntityDef
from falaj.features.row_removal import Person, find_person_rows


def person(value: Any, kind: str = "string") -> Person:
    key = FeatureField("who", kind)
    return Person(EntityDef("p/person", (key,), "who"), key, value)


def holds(column: pa.Array, who: Person, rows: int = 3, *, bounds: bool = True) -> bool:
    """Whether a file with this column, so many rows a group, is said to hold somebody."""
    data = io.BytesIO()
    pq.write_table(pa.table({"who": column}), data, row_group_size=rows, write_statistics=bounds)
    with pq.ParquetFile(pa.BufferReader(data.getvalue())) as file:
        return bool(find_person_rows(file, ("who",), who))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)), min_size=1, max_size=40),
    st.integers(1, 9),
    st.sampled_from([0, 40, 1 << 20]),
    st.sampled_from([0, 1 << 20]),
)
def test_a_file_is_written_without_the_person_and_else_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str | None, int]], group: int, room: int, most: int
) -> None:
    """Whether what was read to find them was kept or not, and whether a group fits in memory."""
    struct = [{"n": number} for _, number in pairs]
    table = pa.table({"n": [number for _, number in pairs], "who": [who for who, _ in pairs], "s": struct})
    data, path = io.BytesIO(), tmp_path_factory.mktemp("rewrite") / "x.parquet"
    pq.write_table(table, data, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch, pq.ParquetFile(pa.BufferReader(data.getvalue())) as file:
        patch.setattr(row_removal, "_MAX_GROUP_BYTES", most)
        patch.setattr(row_removal, "_MAX_SLICED_ROWS", 2)
        theirs = find_person_rows(file, ("who",), person("b"), room)
        gone = row_removal._rewrite_file(file, path, ("who",), person("b"), theirs)
        num_groups = file.num_row_groups
    mask = [who == "b" for who, _ in pairs]
    assert pq.read_table(path).equals(table.filter(pa.array([not one for one in mask])))
    assert sum(one.num_rows for one in gone) == sum(mask)
    assert (
        not gone
        or pa.concat_tables(gone).column("n").to_pylist() == table.filter(pa.array(mask)).column("n").to_pylist()
    )
    assert bool(theirs) == any(mask)
    assert pq.ParquetFile(path).num_row_groups <= num_groups


@given(st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=1, max_size=12), st.text(max_size=4), st.booleans())
def test_texts_are_found_wherever_they_are(names: list[str | None], who: str, bounds: bool) -> None:
    column = pa.array(names, pa.string())
    for one in {who, *(name for name in names if name is not None)}:
        assert holds(column, person(one), bounds=bounds) == (one in names)


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=12), st.integers(-60, 60))
def test_numbers_are_found_by_number_and_by_text(numbers: list[int], who: int) -> None:
    column = pa.array(numbers, pa.int64())
    assert holds(column, person(who, "int64")) == (who in numbers)
    assert holds(column, person(str(who))) == (who in numbers), "a table of somebody else's has the key as a number"


@pytest.mark.parametrize("column", [pa.array([b"a", b"c"], pa.binary()), pa.array(["a", "c"]).dictionary_encode()])
def test_bounds_of_other_types_keep_nobody_out(column: pa.Array) -> None:
    assert holds(column, person("c"))


def test_groups_that_cannot_hold_them_are_not_read() -> None:
    data = io.BytesIO()
    pq.write_table(pa.table({"who": [f"p{n:06d}" for n in range(50_000)]}), data, row_group_size=5000)
    fetched = []

    class Counted(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            fetched.append(len(buffer))
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> bytes:
            fetched.append(size or 0)
            return super().read(size)

    with pq.ParquetFile(Counted(data.getvalue())) as file:
        fetched.clear()
        assert not find_person_rows(file, ("who",), person("q"))
        assert fetched == []
        assert find_person_rows(file, ("who",), person("p033333"))
        assert sum(fetched) < len(data.getvalue()) / 5


def test_what_is_known_of_a_table_without_some_rows() -> None:
    before = TableDescription(
        10,
        (
            TableColumn("who", "varchar", 1, 9, "a", "z"),
            TableColumn("age", "bigint", 2, 8, "20", "90", 44.5),
            TableColumn("city", "varchar", 0, 3, "Abu Dhabi", "Sharjah"),
            TableColumn("at", "timestamp", 0, 9, "2026-01-01", "2026-02-01"),
            TableColumn("note", "varchar", 3, category="sensitive"),
        ),
    )
    rows: dict[str, Any] = {"who": ["m", "m"], "age": [90, None], "city": ["Dubai", "Dubai"], "note": [None, "x"]}
    rows["at"] = [datetime(2026, 1, 9, tzinfo=UTC)] * 2
    found = subtract_table_rows(before, [pa.RecordBatch.from_pydict(rows)], ("who",))
    assert found == TableDescription(
        8,
        (
            TableColumn("who", "varchar", 1, category="personal"),
            TableColumn("age", "bigint", 1),  # its highest may have been theirs alone
            TableColumn("city", "varchar", 0, None, "Abu Dhabi", "Sharjah"),
            TableColumn("at", "timestamp", 0),
            TableColumn("note", "varchar", 2, category="sensitive"),
        ),
    )
    assert subtract_table_rows(None, [], ()) is None
