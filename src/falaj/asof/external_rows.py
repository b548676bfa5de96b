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

from falaj.asof.arrow_columns import cast_to_kind, combine_chunks
from falaj.asof.entity_keys import KeyColumn, build_key_column, cast_key_column
from falaj.asof.label_lookup import name_key_fields
from falaj.asof.moments import Moments, to_moments
from falaj.asof.records import MISSING_MOMENT, ViewPlan
from falaj.asof.row_files import RowSchema, list_partition_segments, write_rows
from falaj.asof.row_sources import LabelQuery, RowSource, SegmentRows, VisibleRows, cluster_columns
from falaj.core.errors import CorruptData, Invalid, NotFound

ENGINES = ("", "kernel", "polars", "duckdb")
_SORT_BYTES_PER_ROW = 80
"""What sorting takes: key, event, created and their sorted copies, the order, one column."""


@dataclass(frozen=True, slots=True)
class ExternalRows:
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
    def opened(self, plan: ViewPlan, query: LabelQuery) -> Iterator[SegmentRows | RowSource]:
        """The rows, ready to be looked at."""
        names = sorted(
            {window.of for window in plan.windows if window.of} | _list_stored_names(plan) & set(plan.wanted)
        )
        needed = self._list_needed_columns(plan, names)
        num_rows = _count_rows(self.paths, () if self.sql else needed)
        if not self.sql and num_rows * _SORT_BYTES_PER_ROW <= self.memory_bytes:
            yield self._load_into_memory(plan, query)
            return
        needed_fields = tuple(field for field in plan.stored if field.name in names)
        schema = RowSchema(name_key_fields(plan), {"": needed_fields})
        with TemporaryDirectory(prefix="falaj-rows-") as folder:
            tables = (self._normalize_table(table, plan, names) for table in self._iterate_tables(needed, folder))
            write_rows(tables, schema, Path(folder), memory_bytes=self.memory_bytes // 2)
            yield SegmentRows(list_partition_segments(Path(folder)))

    def _load_into_memory(self, plan: ViewPlan, query: LabelQuery) -> RowSource:
        types = {field.name: field.type for field in plan.stored}
        keys, created = self._get_key_names(plan), [self.created] if self.created else []
        table = self._read_columns([*keys, self.event, *created])
        event = to_moments(table[self.event], self.zone)
        known_at = event if not self.created else to_moments(table[self.created], self.zone)
        known_at = np.where(known_at == MISSING_MOMENT, event, known_at)
        column = build_key_column(
            [combine_chunks(table[name]) for name in keys], [key.type for key in plan.keys], self.zone
        )
        row_numbers = np.arange(len(event))
        is_usable = column.valid & (event != MISSING_MOMENT)
        if not bool(np.all(is_usable)):
            (row_numbers,) = np.nonzero(is_usable)
            column, event, known_at = column.take(row_numbers), event[row_numbers], known_at[row_numbers]

        def read_raw(name: str) -> pa.Array:
            source_name = self.columns.get(name, name)
            values = cast_to_kind(
                combine_chunks(self._read_columns([source_name])[source_name]), types[name], self.zone
            )
            return values if len(values) == len(row_numbers) else values.take(pa.array(row_numbers))

        per_label = query.known is not None and len(np.unique(query.known)) > 1
        if plan.windows or self.engine in {"", "kernel"} or (self.engine == "polars" and per_label):
            return cluster_columns(column, event, known_at, row_numbers, read_raw)
        return _ExternalJoin(self.engine, column, event, known_at, read_raw)

    def _get_key_names(self, plan: ViewPlan) -> list[str]:
        return list(self.keys) if self.keys else [key.name for key in plan.keys]

    def _list_needed_columns(self, plan: ViewPlan, names: Sequence[str]) -> list[str]:
        """The columns of the files that it takes."""
        ranks = [self.event, *([self.created] if self.created else [])]
        return list(
            dict.fromkeys([*self._get_key_names(plan), *ranks, *(self.columns.get(name, name) for name in names)])
        )

    def _read_columns(self, names: Sequence[str]) -> pa.Table:
        """Columns of all files, in the order of files and rows. Polars reads Parquet in a third of Arrow's time."""
        import polars as pl

        try:
            frame = pl.scan_parquet(list(self.paths), glob=False).select(list(dict.fromkeys(names))).collect()
        except pl.exceptions.PolarsError:
            raise Invalid("these files do not fit together", "give files with the same columns and types") from None
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())

    def _iterate_tables(self, needed: Sequence[str], folder: str) -> Iterator[pa.Table]:
        """The columns that are needed, a batch at a time, in order."""
        if self.sql:
            yield from _query_rows(self.sql, self.paths, Path(folder), self.memory_bytes)
            return
        for path in self.paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1 << 17, columns=list(needed)):
                    yield pa.Table.from_batches([batch])

    def _normalize_table(self, table: pa.Table, plan: ViewPlan, names: Sequence[str]) -> pa.Table:
        _check_columns(table.schema, self._list_needed_columns(plan, names))
        event = to_moments(table[self.event], self.zone)
        parts = [
            cast_key_column(combine_chunks(table[name]), key.type, self.zone)
            for name, key in zip(self._get_key_names(plan), plan.keys, strict=True)
        ]
        is_usable = event != MISSING_MOMENT
        for part in parts:
            is_usable &= part.is_valid().to_numpy(zero_copy_only=False)
        normalized = {key.name: part for key, part in zip(name_key_fields(plan), parts, strict=True)}
        normalized |= {"event": pa.array(event)}
        if self.created:
            known_at = to_moments(table[self.created], self.zone)
            normalized["created"] = pa.array(np.where(known_at == MISSING_MOMENT, event, known_at))
        types = {field.name: field.type for field in plan.stored}
        for name in names:
            normalized[name] = cast_to_kind(combine_chunks(table[self.columns.get(name, name)]), types[name], self.zone)
        return pa.table(normalized).filter(pa.array(is_usable))


def _count_rows(paths: Sequence[Path], needed: Sequence[str]) -> int:
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
            raise CorruptData("a file of these rows is not Parquet", "give Parquet files") from None
    return num_rows


def _check_columns(schema: pa.Schema, needed: Sequence[str]) -> None:
    for name in needed:
        if schema.names.count(name) != 1:
            raise Invalid(f"these rows do not have one column {name}", "name the columns as the files do")


def _list_stored_names(plan: ViewPlan) -> set[str]:
    return {field.name for field in plan.stored}


def _query_rows(sql: str, paths: Sequence[Path], folder: Path, memory_bytes: int) -> Iterator[pa.Table]:
    """What a query over `rows` gives. It reads these files and nothing else of this machine or the network."""
    import duckdb

    with duckdb.connect() as connection:
        files = [str(path) for path in paths]
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{max(memory_bytes >> 20, 64)}MiB'")
        connection.execute("SET temp_directory = $1", [str(folder / ".duckdb")])
        connection.execute("SET allowed_paths = $1", [files])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        connection.read_parquet(files).create_view("rows")
        try:
            answer = connection.sql(sql)
            if answer is None:
                raise Invalid("the query over rows gives no rows", "write a SELECT over rows")
            for batch in answer.to_arrow_reader(1 << 17):
                yield pa.Table.from_batches([batch])
        except duckdb.Error as error:
            raise Invalid(f"the query over rows failed: {type(error).__name__}", "try it in DuckDB by hand") from None


@dataclass(frozen=True, slots=True)
class _ExternalJoin:
    """Rows in the order of their files, looked at by an engine of others."""

    engine: str
    keys: KeyColumn
    event: Moments
    created: Moments
    raw: Any

    @property
    def num_rows(self) -> int:
        return len(self.event)

    def see(self, query: LabelQuery, ranks: bool) -> VisibleRows:
        code, label_codes = _encode_keys(self.keys, query.keys)
        known_at = np.full(len(label_codes), np.iinfo(np.int64).max) if query.known is None else query.known
        rows = pa.table({"code": code, "event": self.event, "created": self.created, "row": np.arange(len(code))})
        labels = pa.table(
            {"code": label_codes, "at": query.at, "known": known_at, "label": np.arange(len(label_codes))}
        )
        labels = labels.filter(pa.array((label_codes >= 0) & (query.at != MISSING_MOMENT)))
        row, later = np.full(len(label_codes), -1, np.int64), np.zeros(len(label_codes), np.bool_)
        joined = _join_with_polars(labels, rows) if self.engine == "polars" else _join_with_duckdb(labels, rows)
        label_numbers = joined["label"].to_numpy()
        seen_rows = combine_chunks(joined["row"].cast(pa.int64())).fill_null(-1).to_numpy(zero_copy_only=False)
        row[label_numbers], later[label_numbers] = (
            seen_rows,
            (seen_rows < 0) & combine_chunks(joined["later"]).to_numpy(zero_copy_only=False),
        )
        event = self.event[row] if len(self.event) else np.zeros(len(row), np.int64)
        return VisibleRows(row, later, event, event, event)


def _encode_keys(rows: KeyColumn, labels: KeyColumn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both sides' keys as numbers that are equal where the keys are; -1 for a label whose key has no rows."""
    row_codes = rows.sortable()
    first_rows = np.unique(row_codes, return_index=True)[1]
    distinct = rows.take(first_rows)
    return distinct.places_in(distinct)[np.searchsorted(row_codes[first_rows], row_codes)], labels.places_in(distinct)


def _join_with_polars(labels: pa.Table, rows: pa.Table) -> pa.Table:
    """One instant of knowledge for all labels, since join_asof takes one inequality."""
    import polars as pl

    known_at = labels["known"][0].as_py() if len(labels) else 0
    row_frame = pl.DataFrame(rows).lazy().filter(pl.col("created") <= known_at)
    label_frame = pl.DataFrame(labels).lazy().sort("at")
    newest = label_frame.join_asof(
        row_frame.sort("event", "created", "row"), left_on="at", right_on="event", by="code", check_sortedness=False
    )
    any_row = row_frame.select("code").unique().with_columns(later=pl.lit(value=True))
    joined = newest.join(any_row, on="code", how="left").with_columns(pl.col("later").fill_null(value=False))
    return joined.select("label", "row", "later").collect(engine="streaming").to_arrow()


def _join_with_duckdb(labels: pa.Table, rows: pa.Table) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("labels", labels)
        connection.register("feature_rows", rows)
        return connection.sql(
            """
            SELECT label, max_by(r.row, (r.event, r.created, r.row)) FILTER (r.event <= l.at) AS row,
                   count(r.row) > 0 AS later
            FROM labels l LEFT JOIN feature_rows r ON r.code = l.code AND r.created <= l.known
            GROUP BY label
            """
        ).to_arrow_table()
