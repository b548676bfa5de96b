"""Whole tables against each other: Parquet, Arrow or CSV files, folders of them, or columns in memory. Read in pieces,
so that memory does not grow with rows; a stored profile in place of the reference is read once for ever.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.drift.compare import compare
from falaj.drift.profile import profile_of, with_counts
from falaj.drift.records import INPUT, NUMBER, Axis, Finding, Profile, Quality, Rules
from falaj.drift.tally import Tally, as_numbers

Columns = dict[str, NDArray[Any]]
Table = str | Path | Mapping[str, Any]
SAMPLE = 100_000
"""Rows by which axes are cut."""
_PIECE, _WHOLE = 8_192, 6_000_000
_KINDS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc", ".csv": "csv"}


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns are what. All others are inputs."""

    label: str = ""
    predictions: tuple[str, ...] = ()
    segment: str = ""
    leave_out: tuple[str, ...] = ()
    """Keys, moments: what changes from row to row and says nothing."""


def profile_table(table: Table, roles: Roles | None = None, **about: Any) -> Profile:
    """A profile of a whole table: cut by a sample of its rows, then counted in full. What `about` may hold besides:
    source, quality, weights, seed, tensors (as `profile_of`)."""
    roles, seed = roles or Roles(), int(about.get("seed", 0))
    drawn = _Drawn(seed)
    for piece in pieces(table, without=roles.leave_out):
        drawn.add(piece)
    if not drawn.rows:
        raise Invalid("the table has no rows", "name one that has some")
    first = _profiled(drawn.sample(), roles, about)
    if drawn.whole:
        return first
    bare = replace(first, axes=tuple(drawn.widened(axis) for axis in first.axes))
    return with_counts(bare, tally_table(bare, table))


def tally_table(profile: Profile, table: Table) -> Tally:
    """The rows of a table, counted as a profile cuts them."""
    tally = Tally(profile, seed=0)
    names = [axis.name for axis in profile.axes]
    for piece in pieces(table, only=[*names, profile.segment]):
        tally.add(piece)
    return tally


def compare_tables(
    reference: Profile | Table, current: Table, rules: Rules | None = None, roles: Roles | None = None
) -> tuple[Tally, tuple[Finding, ...]]:
    """What differs between two tables, and the counts of the second. Columns that it has not are said first."""
    profile = reference if isinstance(reference, Profile) else profile_table(reference, roles)
    tally = tally_table(profile, current)
    there = set(column_names(current))
    gone = [axis for axis in profile.axes if axis.name not in there and axis.role == INPUT]
    lost = tuple(
        Finding(
            "quality", axis.name, measure="gone", value=1.0, p=0.0, rows=tally.rows, alarm=True,
            said=f"the column {axis.name} is not there any more",
        )
        for axis in gone
    )  # fmt: skip
    names = {one.column for one in lost}
    found = compare(profile, tally, rules or Rules())
    return tally, lost + tuple(one for one in found if not one.column or one.column not in names)


def column_names(table: Table) -> list[str]:
    """Of all columns."""
    if isinstance(table, Mapping):
        return list(table)
    return list(_dataset(*_files(table)).schema.names)


def pieces(table: Table, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> Iterator[Columns]:
    """The columns of some thousand rows at a time, as arrays; what cannot be a value of a row is left out."""
    if isinstance(table, Mapping):
        names = [name for name in table if (not only or name in only) and name not in without]
        arrays = {name: np.asarray(table[name]) for name in names}
        rows = len(next(iter(arrays.values()), ()))
        yield from ({name: one[at : at + _PIECE] for name, one in arrays.items()} for at in range(0, rows, _PIECE))
        return
    import pyarrow as pa

    try:
        yield from _read(table, only, without)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
        raise Corrupt(f"the table cannot be read: {str(error)[:200]}", "write it anew") from error


def _read(table: str | Path, only: Sequence[str], without: Sequence[str]) -> Iterator[Columns]:
    kind, files = _files(table)
    schema = _dataset(kind, files).schema
    names = [
        one.name for one in schema
        if (not only or one.name in only) and one.name not in without and _is_value(one.type)
    ]  # fmt: skip
    if kind == "parquet":
        for file in files:
            yield from _parquet(file, names)
        return
    read = {"batch_size": _PIECE, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
    yield from (_arrays(batch) for batch in _dataset(kind, files).to_batches(columns=names, **read))


def _parquet(file: str, names: Sequence[str]) -> Iterator[Columns]:
    """Not through the dataset: it reads whole row groups ahead, which may be the whole file. A group that is small is
    read one column after the other, because a reader of many columns at once holds the dictionaries of all."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file, buffer_size=1 << 16, pre_buffer=False) as opened:
        for group in range(opened.metadata.num_row_groups):
            if opened.metadata.row_group(group).num_rows * len(names) > _WHOLE:
                for batch in opened.iter_batches(_PIECE, [group], names, use_threads=False):
                    yield _arrays(batch)
                continue
            made: Columns = {}
            for name in names:
                made[name] = _array(opened.read_row_group(group, [name], use_threads=False).column(0).combine_chunks())
            yield made


def _arrays(batch: Any) -> Columns:
    return {name: _array(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _files(table: str | Path) -> tuple[str, list[str]]:
    path = Path(table)
    every = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    known = [one for one in every if one.suffix.lower() in _KINDS]
    if not known or not path.exists():
        raise NotFound(
            f"there is no table in {str(table)[:200]!r}", "Parquet, Arrow or CSV; a file, or a folder of them"
        )
    kind = _KINDS[known[0].suffix.lower()]
    return kind, [str(one) for one in known if _KINDS[one.suffix.lower()] == kind]


def _dataset(kind: str, files: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        return ds.dataset(list(files), format=kind)
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"the table cannot be read: {str(error)[:200]}", "write it anew") from error


def _is_value(kind: Any) -> bool:
    """Whether a row has one number, text, truth or moment of this type."""
    import pyarrow.types as of

    tests = (of.is_integer, of.is_floating, of.is_boolean, of.is_string, of.is_large_string, of.is_binary,
             of.is_decimal, of.is_temporal)  # fmt: skip
    return any(test(kind) for test in tests) or (of.is_dictionary(kind) and _is_value(kind.value_type))


def _array(column: Any) -> NDArray[Any]:
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


def _profiled(columns: Columns, roles: Roles, about: Mapping[str, Any]) -> Profile:
    inputs = {name: one for name, one in columns.items() if name != roles.label and name not in roles.predictions}
    for name in (*roles.predictions, *filter(None, (roles.label, roles.segment))):
        if name not in columns:
            raise Invalid(f"the table has no column {name[:80]!r}", f"it has: {', '.join(columns)}"[:300])
    return profile_of(
        inputs, predictions={name: columns[name] for name in roles.predictions}, segment=roles.segment,
        label=columns.get(roles.label), label_name=roles.label,
        **{"quality": Quality(), **about},
    )  # fmt: skip


class _Drawn:
    """An even sample of the rows that pass, and the range of every column; all of the rows while they are few."""

    def __init__(self, seed: int) -> None:
        self.rows = 0
        self._parts: list[tuple[NDArray[np.float64], Columns]] = []
        self._ranges: dict[str, tuple[float, float]] = {}
        self._chance, self._bound = np.random.default_rng(seed), 1.0

    @property
    def whole(self) -> bool:
        """Whether every row is in the sample."""
        return self._bound == 1.0

    def add(self, piece: Columns) -> None:
        rows = len(next(iter(piece.values()), ()))
        keys = self._chance.random(rows)
        kept = keys < self._bound
        self._parts.append((keys[kept], {name: _cut(one, kept) for name, one in piece.items()}))
        self.rows += rows
        for name, one in piece.items():
            self._widen(name, one)
        if sum(len(keys) for keys, _ in self._parts) > SAMPLE:
            self._thin()

    def widened(self, axis: Axis) -> Axis:
        """The axis with the least and the greatest finite value of all rows."""
        low, high = self._ranges.get(axis.name, (axis.low, axis.high))
        return replace(axis, low=min(low, axis.low), high=max(high, axis.high)) if axis.kind == NUMBER else axis

    def sample(self) -> Columns:
        """The columns of the rows that were drawn; they are given away."""
        return {name: np.concatenate([part.pop(name) for _, part in self._parts]) for name in tuple(self._parts[0][1])}

    def _widen(self, name: str, column: NDArray[Any]) -> None:
        if column.dtype.kind not in "iufmM":
            return
        # Most columns have no infinity: two passes in place of five.
        values = column if column.dtype.kind in "iuf" else as_numbers(column)
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        if not (np.isfinite(low) and np.isfinite(high)):
            values = values[np.isfinite(values)]
            if not len(values):
                return
            low, high = values.min(), values.max()
        was = self._ranges.get(name, (low, high))
        self._ranges[name] = float(min(low, was[0])), float(max(high, was[1]))

    def _thin(self) -> None:
        """Half of them, evenly: keys are drawn alike for all."""
        self._bound /= 2
        kept = [(keys < self._bound, keys, part) for keys, part in self._parts]
        self._parts = [
            (keys[which], {name: _cut(one, which) for name, one in part.items()}) for which, keys, part in kept
        ]


def _cut(column: NDArray[Any], which: NDArray[np.bool_]) -> NDArray[Any]:
    return column if which.all() else column[which]
