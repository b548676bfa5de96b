"""Rows that lie in files of others: Parquet as it is, or what SQL makes of it.

Three engines find the row that a label sees: our kernel after a sort (the fastest, so the one that is taken), Polars
join_asof and DuckDB. They give the same rows: of rows with one event and created, the one of the later file, and there
the later row, is the newest. What does not fit in memory, and what SQL makes, goes into segments for the while.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from falaj.asof.arrow import typed, whole
from falaj.asof.keys import KeyColumn, key_column, typed_key
from falaj.asof.looking import bare_keys
from falaj.asof.moments import Moments, moments
from falaj.asof.records import MISSING, ViewPlan
from falaj.asof.rows import RowSchema, parts_in, write_rows
from falaj.asof.sources import Asked, OwnRows, Sight, Source, clustered
from falaj.core.errors import Corrupt, Invalid, NotFound

ENGINES = ("", "kernel", "polars", "duckdb")
_BYTES_A_ROW = 80
"""What sorting takes: key, event, created and their sorted copies, the order, one column."""


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """Where rows of a view lie in Parquet, and what their columns are called there."""

    paths: Sequence[Path]
    event: str
    created: str = ""
    """The event itself where there is none."""
    keys: Sequence[str] = ()
    """In the order of the plan's keys; called as there when empty."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Stored name to that in the files, where they differ."""
    zone: str = ""
    """Of moments without one."""
    sql: str = ""
    """A query over `rows`, by DuckDB, whose answer is taken in place of the files."""
    engine: str = ""
    memory_bytes: int = 512 << 20
    """What sorting may take; beyond it, rows go through segments on disk. The answer is the same."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise Invalid("there is no such engine", f"engines are {', '.join(ENGINES[1:])}; leave it to us")

    @contextmanager
    def opened(self, plan: ViewPlan, asked: Asked) -> Iterator[OwnRows | Source]:
        """The rows, ready to be looked at."""
        names = sorted({window.of for window in plan.windows if window.of} | _stored(plan) & set(plan.wanted))
        needed = self._needed(plan, names)
        num_rows = _survey(self.paths, () if self.sql else needed)
        if not self.sql and num_rows * _BYTES_A_ROW <= self.memory_bytes:
            yield self._in_memory(plan, asked)
            return
        wanted = tuple(each for each in plan.stored if each.name in names)
        schema = RowSchema(bare_keys(plan), {"": wanted})
        with TemporaryDirectory(prefix="falaj-rows-") as folder:
            tables = (self._normal(table, plan, names) for table in self._tables(needed, folder))
            write_rows(tables, schema, Path(folder), memory_bytes=self.memory_bytes // 2)
            yield OwnRows(parts_in(Path(folder)))

    def _in_memory(self, plan: ViewPlan, asked: Asked) -> Source:
        types = {each.name: each.type for each in plan.stored}
        keys, created = self._key_names(plan), [self.created] if self.created else []
        table = self._read([*keys, self.event, *created])
        event = moments(table[self.event], self.zone)
        known = event if not self.created else moments(table[self.created], self.zone)
        known = np.where(known == MISSING, event, known)
        column = key_column([whole(table[name]) for name in keys], [key.type for key in plan.keys], self.zone)
        number = np.arange(len(event))
        good = column.valid & (event != MISSING)
        if not bool(np.all(good)):
            (number,) = np.nonzero(good)
            column, event, known = column.take(number), event[number], known[number]

        def raw(name: str) -> pa.Array:
            there = self.columns.get(name, name)
            found = typed(whole(self._read([there])[there]), types[name], self.zone)
            return found if len(found) == len(number) else found.take(pa.array(number))

        per_label = asked.known is not None and len(np.unique(asked.known)) > 1
        if plan.windows or self.engine in {"", "kernel"} or (self.engine == "polars" and per_label):
            return clustered(column, event, known, number, raw)
        return _Joining(self.engine, column, event, known, raw)

    def _key_names(self, plan: ViewPlan) -> list[str]:
        return list(self.keys) if self.keys else [key.name for key in plan.keys]

    def _needed(self, plan: ViewPlan, names: Sequence[str]) -> list[str]:
        """The columns of the files that it takes."""
        ranks = [self.event, *([self.created] if self.created else [])]
        return list(dict.fromkeys([*self._key_names(plan), *ranks, *(self.columns.get(name, name) for name in names)]))

    def _read(self, names: Sequence[str]) -> pa.Table:
        """Columns of all files, in the order of files and rows. Polars reads Parquet in a third of Arrow's time."""
        import polars as pl

        try:
            frame = pl.scan_parquet(list(self.paths), glob=False).select(list(dict.fromkeys(names))).collect()
        except pl.exceptions.PolarsError:
            raise Invalid("these files do not fit together", "give files with the same columns and types") from None
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())

    def _tables(self, needed: Sequence[str], folder: str) -> Iterator[pa.Table]:
        """The columns that are needed, a batch at a time, in order."""
        if self.sql:
            yield from _asked_of_sql(self.sql, self.paths, Path(folder), self.memory_bytes)
            return
        for path in self.paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1 << 17, columns=list(needed)):
                    yield pa.Table.from_batches([batch])

    def _normal(self, table: pa.Table, plan: ViewPlan, names: Sequence[str]) -> pa.Table:
        _check_columns(table.schema, self._needed(plan, names))
        event = moments(table[self.event], self.zone)
        parts = [
            typed_key(whole(table[name]), key.type, self.zone)
            for name, key in zip(self._key_names(plan), plan.keys, strict=True)
        ]
        good = event != MISSING
        for part in parts:
            good &= part.is_valid().to_numpy(zero_copy_only=False)
        made = {key.name: part for key, part in zip(bare_keys(plan), parts, strict=True)}
        made |= {"event": pa.array(event)}
        if self.created:
            known = moments(table[self.created], self.zone)
            made["created"] = pa.array(np.where(known == MISSING, event, known))
        types = {each.name: each.type for each in plan.stored}
        for name in names:
            made[name] = typed(whole(table[self.columns.get(name, name)]), types[name], self.zone)
        return pa.table(made).filter(pa.array(good))


def _survey(paths: Sequence[Path], needed: Sequence[str]) -> int:
    """How many rows files have, once each has every column."""
    num_rows = 0
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                _check_columns(file.schema_arrow, needed)
                num_rows += int(file.metadata.num_rows)
        except FileNotFoundError:
            raise NotFound("a file of these rows is not there", "fetch the dataset again") from None
        except (pa.ArrowException, OSError):
            raise Corrupt("a file of these rows is not Parquet", "give Parquet files") from None
    return num_rows


def _check_columns(schema: pa.Schema, needed: Sequence[str]) -> None:
    for name in needed:
        if schema.names.count(name) != 1:
            raise Invalid(f"these rows do not have one column {name}", "name the columns as the files do")


def _stored(plan: ViewPlan) -> set[str]:
    return {each.name for each in plan.stored}


def _asked_of_sql(sql: str, paths: Sequence[Path], folder: Path, memory_bytes: int) -> Iterator[pa.Table]:
    """What a query over `rows` gives. It reads these files and nothing else of this machine or the network."""
    import duckdb

    with duckdb.connect() as base:
        files = [str(path) for path in paths]
        base.execute("SET TimeZone = 'UTC'")
        base.execute(f"SET memory_limit = '{max(memory_bytes >> 20, 64)}MiB'")
        base.execute("SET temp_directory = $1", [str(folder / ".duckdb")])
        base.execute("SET allowed_paths = $1", [files])
        base.execute("SET enable_external_access = false")
        base.execute("SET lock_configuration = true")
        base.read_parquet(files).create_view("rows")
        try:
            answer = base.sql(sql)
            if answer is None:
                raise Invalid("the query over rows gives no rows", "write a SELECT over rows")
            for batch in answer.to_arrow_reader(1 << 17):
                yield pa.Table.from_batches([batch])
        except duckdb.Error as error:
            raise Invalid(f"the query over rows failed: {type(error).__name__}", "try it in DuckDB by hand") from None


@dataclass(frozen=True, slots=True)
class _Joining:
    """Rows in the order of their files, looked at by an engine of others."""

    engine: str
    keys: KeyColumn
    event: Moments
    created: Moments
    raw: Any

    @property
    def num_rows(self) -> int:
        return len(self.event)

    def see(self, asked: Asked, ranks: bool) -> Sight:
        code, mine = _codes(self.keys, asked.keys)
        known = np.full(len(mine), np.iinfo(np.int64).max) if asked.known is None else asked.known
        rows = pa.table({"code": code, "event": self.event, "created": self.created, "row": np.arange(len(code))})
        labels = pa.table({"code": mine, "at": asked.at, "known": known, "label": np.arange(len(mine))})
        labels = labels.filter(pa.array((mine >= 0) & (asked.at != MISSING)))
        row, later = np.full(len(mine), -1, np.int64), np.zeros(len(mine), np.bool_)
        found = _by_polars(labels, rows) if self.engine == "polars" else _by_duckdb(labels, rows)
        at = found["label"].to_numpy()
        seen = whole(found["row"].cast(pa.int64())).fill_null(-1).to_numpy(zero_copy_only=False)
        row[at], later[at] = seen, (seen < 0) & whole(found["later"]).to_numpy(zero_copy_only=False)
        event = self.event[row] if len(self.event) else np.zeros(len(row), np.int64)
        return Sight(row, later, event, event, event)


def _codes(rows: KeyColumn, labels: KeyColumn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both sides' keys as numbers that are equal where the keys are; -1 for a label whose key has no rows."""
    code = rows.sortable()
    firsts = np.unique(code, return_index=True)[1]
    distinct = rows.take(firsts)
    return distinct.places_in(distinct)[np.searchsorted(code[firsts], code)], labels.places_in(distinct)


def _by_polars(labels: pa.Table, rows: pa.Table) -> pa.Table:
    """One instant of knowledge for all labels, since join_asof takes one inequality."""
    import polars as pl

    known = labels["known"][0].as_py() if len(labels) else 0
    right = pl.DataFrame(rows).lazy().filter(pl.col("created") <= known)
    left = pl.DataFrame(labels).lazy().sort("at")
    newest = left.join_asof(
        right.sort("event", "created", "row"), left_on="at", right_on="event", by="code", check_sortedness=False
    )
    any_row = right.select("code").unique().with_columns(later=pl.lit(value=True))
    found = newest.join(any_row, on="code", how="left").with_columns(pl.col("later").fill_null(value=False))
    return found.select("label", "row", "later").collect(engine="streaming").to_arrow()


def _by_duckdb(labels: pa.Table, rows: pa.Table) -> pa.Table:
    import duckdb

    with duckdb.connect() as base:
        base.register("labels", labels)
        base.register("feature_rows", rows)
        return base.sql(
            """
            SELECT label, max_by(r.row, (r.event, r.created, r.row)) FILTER (r.event <= l.at) AS row,
                   count(r.row) > 0 AS later
            FROM labels l LEFT JOIN feature_rows r ON r.code = l.code AND r.created <= l.known
            GROUP BY label
            """
        ).to_arrow_table()
