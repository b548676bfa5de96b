"""Made-up rows and labels, as nasty as they come: ties, nulls, gaps of years, text of all kinds, edges of numbers."""

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from falaj.asof.arrow_columns import to_arrow_type
from falaj.asof.records import FeatureField, ViewPlan
from falaj.asof.row_files import RowSchema, SegmentRows, list_partition_segments, write_rows
from tests.asof.oracle import Row, as_of, cell

EDGE = (1 << 63) - 1
YEARS = 10 * 365 * 86_400_000_000
TIMES = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1901, 5, 3, 4, 5, 6, 7, tzinfo=UTC),
    datetime(2200, 1, 1, tzinfo=UTC),
]
POOLS: dict[str, list[Any]] = {
    "int64": [0, 1, -1, 7, EDGE, -EDGE - 1],
    "string": ["", "a", "\u00e9", "e\u0301", "\u65e5\u672c", "a\0b", "\U0001f600", "A"],
    "bytes": [b"", b"\0", b"\0\0", b"a\xff"],
    "bool": [True, False],
    "time": TIMES,
    "int32": [0, -(1 << 31), (1 << 31) - 1],
    "float32": [0.0, -0.0, 1.5, float("nan"), float("inf")],
    "float64": [0.0, -0.0, 1.5, float("nan"), float("-inf"), 5e-324, 0.1],
    "list[int64]": [[], [EDGE, None, -EDGE - 1]],
    "list[string]": [[], ["", None, "\u65e5"]],
}
FEATURES = tuple(FeatureField(f"f_{kind.strip(']').replace('[', '_')}", kind) for kind in POOLS)
SHAPES = [("int64",), ("string",), ("time",), ("bool",), ("int64", "string"), ("string", "bytes", "time")]
MOMENTS = [0, 1, 2, 3, 10, 11, -1, -5, YEARS, YEARS + 1, -YEARS]
EXTREMES = [*MOMENTS, EDGE, -EDGE]


class World(NamedTuple):
    schema: RowSchema
    rows: list[Row]
    labels: list[tuple[tuple[Any, ...], int | None]]
    ttl: int
    known_at: str | int | None

    @property
    def plan(self) -> ViewPlan:
        names = tuple(field.name for field in self.schema.columns)
        return ViewPlan("view:p/v@v1", "v", self.schema.keys, self.schema.columns, names, names, self.ttl)

    def table(self, rows: list[Row] | None = None) -> pa.Table:
        """Rows as they come in."""
        rows = self.rows if rows is None else rows
        made = _keys(self.schema, [row.key for row in rows])
        made |= {
            name: pa.array([getattr(row, name) for row in rows], pa.int64()) for name in ("event", "created", "seq")
        }
        for at, field in enumerate(self.schema.columns):
            made[field.name] = pa.array([row.values[at] for row in rows], to_arrow_type(field.type, large=True))
        return pa.table(made)

    def label_table(self) -> pa.Table:
        made = {"y": pa.array([None if at % 3 == 0 else str(at) for at in range(len(self.labels))], pa.string())}
        made |= _keys(self.schema, [key for key, _ in self.labels])
        return pa.table(made | {"at": pa.array([at for _, at in self.labels], pa.int64())})

    def write(self, folder: Path, cuts: list[list[Row]], partitions: list[int]) -> SegmentRows:
        parts = []
        for place, (rows, count) in enumerate(zip(cuts, partitions, strict=True)):
            write_rows([self.table(rows)], self.schema, folder / str(place), partitions=count)
            parts += list_partition_segments(folder / str(place), tuple(self.schema.faces))
        return SegmentRows(parts)

    def expected(self) -> list[list[tuple[int, Any]]]:
        """By label, by column: the status and value."""
        answer = []
        for key, at in self.labels:
            status, row = as_of(self.rows, key, at, self.ttl, at if self.known_at == "label" else self.known_at)
            answer.append([cell(status, row, column) for column in range(len(self.schema.columns))])
        return answer


def _keys(schema: RowSchema, keys: list[tuple[Any, ...]]) -> dict[str, pa.Array]:
    kinds = [to_arrow_type(field.type) for field in schema.keys]
    return {
        field.name: pa.array([key[at] for key in keys], kind)
        for at, (field, kind) in enumerate(zip(schema.keys, kinds, strict=True))
    }


@st.composite
def worlds(draw: st.DrawFn, extremes: bool = True, most: int = 40) -> World:
    shape = draw(st.sampled_from(SHAPES))
    features = tuple(draw(st.lists(st.sampled_from(FEATURES), min_size=1, max_size=3, unique=True)))
    faces = {"": features[:1], "hr": features[1:]} if draw(st.booleans()) and features[1:] else {"": features}
    schema = RowSchema(tuple(FeatureField(f"k{at}", kind) for at, kind in enumerate(shape)), faces)
    # Few keys and moments, so that rows meet: the ties are what is hard.
    some_key = st.tuples(*(st.sampled_from(POOLS[kind][:4]) for kind in shape))
    key = st.sampled_from(draw(st.lists(some_key, min_size=1, max_size=3)))
    some_moment = st.sampled_from(EXTREMES if extremes else MOMENTS)
    moment = st.sampled_from(draw(st.lists(some_moment, min_size=1, max_size=4)))
    values = st.tuples(*(st.sampled_from([None, *POOLS[field.type]]) for field in features))
    drawn = draw(st.lists(st.tuples(key, moment, moment, values), max_size=most))
    seqs = draw(st.permutations(range(len(drawn)))) if draw(st.booleans()) else range(len(drawn))
    rows = [Row(who, *when, seq, cells) for seq, (who, *when, cells) in zip(seqs, drawn, strict=True)]
    ttl = draw(st.sampled_from([0, 1, 2, 9, YEARS]))
    asked = st.one_of(moment, moment, some_moment, st.none())
    if not extremes:
        asked = st.one_of(asked, moment.map(lambda at: at + ttl), moment.map(lambda at: at + ttl - 1))
    who = st.tuples(*(st.sampled_from([None, *POOLS[kind]]) for kind in shape))
    labels = draw(st.lists(st.tuples(st.one_of(key, key, who), asked), max_size=25))
    known_at = draw(st.sampled_from([None, "label", 2, YEARS, draw(moment)]))
    return World(schema, rows, labels, ttl, known_at)


def bits(value: Any) -> Any:
    """A value in a form that is equal only where every bit is."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return value


def answer_of(table: pa.Table, names: tuple[str, ...]) -> list[list[tuple[int, Any]]]:
    values = [table[name].to_pylist() for name in names]
    statuses = [table[f"{name}__status"].to_pylist() for name in names]
    return [[(statuses[at][row], bits(values[at][row])) for at in range(len(names))] for row in range(table.num_rows)]


def same(table: pa.Table, world: World) -> None:
    """The labels are as they were, and every cell is what brute force says."""
    labels = world.label_table()
    assert table.select(labels.schema.names).equals(labels)
    want = [[(status, bits(value)) for status, value in row] for row in world.expected()]
    assert answer_of(table, world.plan.names) == want
