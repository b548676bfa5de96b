"""Whole tables against each other: Parquet, Arrow or CSV files, folders of them, or columns in memory. Read in pieces,
so that memory does not grow with rows; a stored profile in place of the reference is read once for ever.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.drift.drift_tests import compare_tally
from falaj.drift.profiles import build_profile, with_counts
from falaj.drift.records import (
    KIND_NUMBER,
    ROLE_INPUT,
    DataProfile,
    DriftFinding,
    DriftRules,
    ModelQuality,
    ProfileAxis,
)
from falaj.drift.tally import DataTally, to_float_values

ColumnArrays = dict[str, NDArray[Any]]
TableSource = str | Path | Mapping[str, Any]
SAMPLE_ROWS = 100_000
"""Rows by which axes are cut."""
_PIECE_ROWS, _MAX_GROUP_VALUES = 8_192, 6_000_000
_FORMAT_BY_SUFFIX = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc", ".csv": "csv"}


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """Which columns are what. All others are inputs."""

    label: str = ""
    predictions: tuple[str, ...] = ()
    segment: str = ""
    leave_out: tuple[str, ...] = ()
    """Keys, moments: what changes from row to row and says nothing."""


def profile_table(table: TableSource, roles: ColumnRoles | None = None, **options: Any) -> DataProfile:
    """A profile of a whole table: cut by a sample of its rows, then counted in full. What `options` may hold besides:
    source, quality, weights, seed, tensors (as `build_profile`)."""
    roles, seed = roles or ColumnRoles(), int(options.get("seed", 0))
    row_sample = _StreamingSample(seed)
    for piece in iterate_pieces(table, excluded_names=roles.leave_out):
        row_sample.add(piece)
    if not row_sample.rows:
        raise Invalid("the table has no rows", "name one that has some")
    sample_profile = _profile_columns(row_sample.sample(), roles, options)
    if row_sample.whole:
        return sample_profile
    widened_profile = replace(sample_profile, axes=tuple(row_sample.widened(axis) for axis in sample_profile.axes))
    return with_counts(widened_profile, tally_table(widened_profile, table))


def tally_table(profile: DataProfile, table: TableSource) -> DataTally:
    """The rows of a table, counted as a profile cuts them."""
    tally = DataTally(profile, seed=0)
    names = [axis.name for axis in profile.axes]
    for piece in iterate_pieces(table, only_names=[*names, profile.segment]):
        tally.add(piece)
    return tally


def compare_tables(
    reference: DataProfile | TableSource,
    current: TableSource,
    rules: DriftRules | None = None,
    roles: ColumnRoles | None = None,
) -> tuple[DataTally, tuple[DriftFinding, ...]]:
    """What differs between two tables, and the counts of the second. Columns that it has not are said first."""
    profile = reference if isinstance(reference, DataProfile) else profile_table(reference, roles)
    tally = tally_table(profile, current)
    present_names = set(list_column_names(current))
    missing_axes = [axis for axis in profile.axes if axis.name not in present_names and axis.role == ROLE_INPUT]
    missing_findings = tuple(
        DriftFinding(
            "quality",
            axis.name,
            measure="gone",
            value=1.0,
            p=0.0,
            rows=tally.rows,
            alarm=True,
            said=f"the column {axis.name} is not there any more",
        )
        for axis in missing_axes
    )
    names = {finding.column for finding in missing_findings}
    findings = compare_tally(profile, tally, rules or DriftRules())
    return tally, missing_findings + tuple(
        finding for finding in findings if not finding.column or finding.column not in names
    )


def list_column_names(table: TableSource) -> list[str]:
    """Of all columns."""
    if isinstance(table, Mapping):
        return list(table)
    return list(_open_dataset(*_list_files(table)).schema.names)


def iterate_pieces(
    table: TableSource, *, only_names: Sequence[str] = (), excluded_names: Sequence[str] = ()
) -> Iterator[ColumnArrays]:
    """The columns of some thousand rows at a time, as arrays; what cannot be a value of a row is left out."""
    if isinstance(table, Mapping):
        names = [name for name in table if (not only_names or name in only_names) and name not in excluded_names]
        arrays = {name: np.asarray(table[name]) for name in names}
        rows = len(next(iter(arrays.values()), ()))
        yield from (
            {name: values[start : start + _PIECE_ROWS] for name, values in arrays.items()}
            for start in range(0, rows, _PIECE_ROWS)
        )
        return
    import pyarrow as pa

    try:
        yield from _read_pieces(table, only_names, excluded_names)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
        raise CorruptData(f"the table cannot be read: {str(error)[:200]}", "write it anew") from error


def _read_pieces(table: str | Path, only_names: Sequence[str], excluded_names: Sequence[str]) -> Iterator[ColumnArrays]:
    kind, files = _list_files(table)
    schema = _open_dataset(kind, files).schema
    names = [
        schema_field.name
        for schema_field in schema
        if (not only_names or schema_field.name in only_names)
        and schema_field.name not in excluded_names
        and _is_value_type(schema_field.type)
    ]
    if kind == "parquet":
        for file in files:
            yield from _read_parquet(file, names)
        return
    scan_options = {"batch_size": _PIECE_ROWS, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
    yield from (_to_arrays(batch) for batch in _open_dataset(kind, files).to_batches(columns=names, **scan_options))


def _read_parquet(file: str, names: Sequence[str]) -> Iterator[ColumnArrays]:
    """Not through the dataset: it reads whole row groups ahead, which may be the whole file. A group that is small is
    read one column after the other, because a reader of many columns at once holds the dictionaries of all."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file, buffer_size=1 << 16, pre_buffer=False) as parquet_file:
        for group in range(parquet_file.metadata.num_row_groups):
            if parquet_file.metadata.row_group(group).num_rows * len(names) > _MAX_GROUP_VALUES:
                for batch in parquet_file.iter_batches(_PIECE_ROWS, [group], names, use_threads=False):
                    yield _to_arrays(batch)
                continue
            piece: ColumnArrays = {}
            for name in names:
                piece[name] = _to_array(
                    parquet_file.read_row_group(group, [name], use_threads=False).column(0).combine_chunks()
                )
            yield piece


def _to_arrays(batch: Any) -> ColumnArrays:
    return {name: _to_array(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _list_files(table: str | Path) -> tuple[str, list[str]]:
    path = Path(table)
    all_paths = sorted(file_path for file_path in path.rglob("*") if file_path.is_file()) if path.is_dir() else [path]
    table_paths = [file_path for file_path in all_paths if file_path.suffix.lower() in _FORMAT_BY_SUFFIX]
    if not table_paths or not path.exists():
        raise NotFound(
            f"there is no table in {str(table)[:200]!r}", "Parquet, Arrow or CSV; a file, or a folder of them"
        )
    kind = _FORMAT_BY_SUFFIX[table_paths[0].suffix.lower()]
    return kind, [str(file_path) for file_path in table_paths if _FORMAT_BY_SUFFIX[file_path.suffix.lower()] == kind]


def _open_dataset(kind: str, files: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        return ds.dataset(list(files), format=kind)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptData(f"the table cannot be read: {str(error)[:200]}", "write it anew") from error


def _is_value_type(kind: Any) -> bool:
    """Whether a row has one number, text, truth or moment of this type."""
    import pyarrow.types as of

    tests = (
        of.is_integer,
        of.is_floating,
        of.is_boolean,
        of.is_string,
        of.is_large_string,
        of.is_binary,
        of.is_decimal,
        of.is_temporal,
    )
    return any(test(kind) for test in tests) or (of.is_dictionary(kind) and _is_value_type(kind.value_type))


def _to_array(column: Any) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.types as of

    if of.is_string(column.type) or of.is_large_string(column.type) or of.is_binary(column.type):
        column = column.dictionary_encode()
    if of.is_dictionary(column.type):
        # One object for each different value, not one for each row.
        values = np.append(column.dictionary.to_numpy(zero_copy_only=False).astype(object), [None])
        return np.asarray(values[column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)])
    if of.is_decimal(column.type):
        column = column.cast(pa.float64())
    if of.is_date(column.type) or of.is_time(column.type):
        column = column.cast(pa.timestamp("us") if of.is_date(column.type) else pa.int64(), safe=False)
    if column.null_count and of.is_integer(column.type):
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _profile_columns(columns: ColumnArrays, roles: ColumnRoles, options: Mapping[str, Any]) -> DataProfile:
    inputs = {name: values for name, values in columns.items() if name != roles.label and name not in roles.predictions}
    for name in (*roles.predictions, *filter(None, (roles.label, roles.segment))):
        if name not in columns:
            raise Invalid(f"the table has no column {name[:80]!r}", f"it has: {', '.join(columns)}"[:300])
    return build_profile(
        inputs,
        predictions={name: columns[name] for name in roles.predictions},
        segment=roles.segment,
        label=columns.get(roles.label),
        label_name=roles.label,
        **{"quality": ModelQuality(), **options},
    )


class _StreamingSample:
    """An even sample of the rows that pass, and the range of every column; all of the rows while they are few."""

    def __init__(self, seed: int) -> None:
        self.rows = 0
        self._drawn_pieces: list[tuple[NDArray[np.float64], ColumnArrays]] = []
        self._ranges: dict[str, tuple[float, float]] = {}
        self._random, self._key_bound = np.random.default_rng(seed), 1.0

    @property
    def whole(self) -> bool:
        """Whether every row is in the sample."""
        return self._key_bound == 1.0

    def add(self, piece: ColumnArrays) -> None:
        rows = len(next(iter(piece.values()), ()))
        keys = self._random.random(rows)
        is_kept = keys < self._key_bound
        self._drawn_pieces.append(
            (keys[is_kept], {name: _filter_column(values, is_kept) for name, values in piece.items()})
        )
        self.rows += rows
        for name, values in piece.items():
            self._update_range(name, values)
        if sum(len(keys) for keys, _ in self._drawn_pieces) > SAMPLE_ROWS:
            self._halve_sample()

    def widened(self, axis: ProfileAxis) -> ProfileAxis:
        """The axis with the least and the greatest finite value of all rows."""
        low, high = self._ranges.get(axis.name, (axis.low, axis.high))
        return replace(axis, low=min(low, axis.low), high=max(high, axis.high)) if axis.kind == KIND_NUMBER else axis

    def sample(self) -> ColumnArrays:
        """The columns of the rows that were drawn; they are given away."""
        return {
            name: np.concatenate([piece_columns.pop(name) for _, piece_columns in self._drawn_pieces])
            for name in tuple(self._drawn_pieces[0][1])
        }

    def _update_range(self, name: str, column: NDArray[Any]) -> None:
        if column.dtype.kind not in "iufmM":
            return
        # Most columns have no infinity: two passes in place of five.
        values = column if column.dtype.kind in "iuf" else to_float_values(column)
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        if not (np.isfinite(low) and np.isfinite(high)):
            values = values[np.isfinite(values)]
            if not len(values):
                return
            low, high = values.min(), values.max()
        previous_range = self._ranges.get(name, (low, high))
        self._ranges[name] = float(min(low, previous_range[0])), float(max(high, previous_range[1]))

    def _halve_sample(self) -> None:
        """Half of them, evenly: keys are drawn alike for all."""
        self._key_bound /= 2
        kept_parts = [(keys < self._key_bound, keys, columns_part) for keys, columns_part in self._drawn_pieces]
        self._drawn_pieces = [
            (keys[is_kept], {name: _filter_column(values, is_kept) for name, values in columns_part.items()})
            for is_kept, keys, columns_part in kept_parts
        ]


def _filter_column(column: NDArray[Any], is_kept: NDArray[np.bool_]) -> NDArray[Any]:
    return column if is_kept.all() else column[is_kept]
