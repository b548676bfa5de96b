"""Parquet and Arrow files: row groups and record batches are the pieces.

Numbers, bools and times become arrays (times as whole numbers of their unit), lists of one fixed length and binaries of
one width arrays of two dimensions. Floats have NaN for null. Texts, binaries, lists, and whole numbers or bools with
nulls anywhere become Python lists, with None for null.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import CorruptData, Invalid
from falaj.feed.file_cache import FileCache, SourceFile
from falaj.feed.permutation import Ids
from falaj.feed.piece_source import Column, ColumnBlock, PieceSource

WINDOW_BYTES, MIN_WINDOW_PIECES, MAX_WINDOW_PIECES = 1 << 26, 4, 64
"""A window is of so many bytes when decoded, but of no fewer and no more pieces. Part of the order: never to change."""

NARROW_VALUE_BYTES, MAX_GATHERED_ROWS = 16, 65536
"""Columns of so few bytes a value are gathered so many rows at a time, in eight megabytes or less."""

WIDE_ROW_BYTES = 256
"""Rows of so many bytes are brought to their batches one by one; what that takes to know is little beside them."""

PARALLEL_DECODE_ROWS = 100_000
"""So many rows are decoded by all processors at once."""


class ArrowColumn:
    """A column that Arrow holds."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def pick(self, rows: Ids) -> list[Any]:
        """As Python's own values."""
        return list(self._array.take(rows).to_pylist())


class NarrowBlock(ColumnBlock):
    """Columns of which those of plain numbers stay with Arrow and are taken in one call. By numpy it takes half as long
    again, and Python's lock is let go for each: this thread and the reader's would wake each other all the time."""

    def __init__(
        self, arrow_columns: Mapping[str, Any], other_columns: Mapping[str, Column], names: Sequence[str]
    ) -> None:
        import pyarrow as pa

        super().__init__(other_columns)
        self._names, self._typestrs = names, [_to_typestr(array.type) for array in arrow_columns.values()]
        self._arrow_batch = pa.RecordBatch.from_arrays(list(arrow_columns.values()), list(arrow_columns))

    def pick(self, rows: Ids) -> dict[str, Any]:
        """The values of these rows."""
        import pyarrow as pa
        from pyarrow import compute

        values = super().pick(rows)
        if self._typestrs:
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._arrow_batch):
                raise IndexError(f"there are rows 0 to {len(self._arrow_batch) - 1}")
            pool = pa.system_memory_pool()  # the C library keeps what is given back
            taken = compute.take(self._arrow_batch, pa.array(rows), boundscheck=False, memory_pool=pool)
            arrays = map(np.asarray, map(_WritableArray, taken.columns, self._typestrs))
            values.update(zip(taken.schema.names, arrays, strict=True))
        return {name: values[name] for name in self._names}


class _WritableArray:
    """An array of Arrow's that nobody else knows of, as one that may be written into; Arrow's own views may not."""

    def __init__(self, array: Any, typestr: str) -> None:
        self._array, buffer = array, array.buffers()[1]
        self.__array_interface__ = {
            "data": (buffer.address, False),
            "shape": (len(array),),
            "typestr": typestr,
            "version": 3,
        }


def _check_schemas(files: Sequence[Path], schemas: Sequence[Any], columns: Sequence[str] | None) -> None:
    """Refuse files of different schemas, and columns that they do not have."""
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise Invalid(
                f"{file} has other columns than {files[0].name}",
                f"{_format_schema(schema)}; {_format_schema(schemas[0])}",
            )
    if missing := sorted(set(columns or ()) - set(schemas[0].names)):
        raise Invalid(f"{files[0]} has no column {', '.join(missing)}", f"it has: {', '.join(schemas[0].names)}")


def open_tables(
    files: Sequence[Path], columns: Sequence[str] | None, window: int, cache: FileCache | None
) -> PieceSource:
    """A source over files of one schema."""
    try:
        import pyarrow as pa
    except ImportError:
        raise Invalid("tables are read with pyarrow, which is not installed", "install falaj[train]") from None
    source_files = [SourceFile(file, cache) for file in files]
    scan_file = _scan_parquet if files[0].suffix == ".parquet" else _scan_arrow
    is_few = len(files) < 64
    scans = [
        read_or_corrupt(file.path, lambda: "the footer", partial(scan_file, file, is_few)) for file in source_files
    ]
    schema = scans[0].schema
    _check_schemas(files, [scanned.schema for scanned in scans], columns)
    selected = list(columns or schema.names)
    columns_with_nulls = {name for scanned in scans for name in scanned.gaps}
    locations = [(number, group) for number, scanned in enumerate(scans) for group in range(len(scanned.counts))]
    counts = [count for scanned in scans for count in scanned.counts]
    size = sum(scanned.size_bytes for scanned in scans)
    fitting = WINDOW_BYTES * len(counts) // max(1, size)

    def load(pieces: list[int]) -> ColumnBlock:
        groups_by_file = [
            (file_number, [locations[piece_number][1] for piece_number in group])
            for file_number, group in itertools.groupby(pieces, lambda piece_number: locations[piece_number][0])
        ]
        tables = [
            _read_groups(scans[file_number], files[file_number], groups, selected)
            for file_number, groups in groups_by_file
        ]
        table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]

        def describe_place(name: str) -> str:
            rows = [f"{_format_rows(scans[nth].counts, groups)} of {files[nth]}" for nth, groups in groups_by_file]
            return f"{name} in {', '.join(rows)}"

        arrays = {name: combine_chunks(table[name]) for name in selected}
        plain_arrays = {
            name: array
            for name, array in arrays.items()
            if narrow and name not in columns_with_nulls and _is_plain_array(array)
        }
        other_columns = {
            name: to_column(arrays[name], name in columns_with_nulls, partial(describe_place, name))
            for name in selected
            if name not in plain_arrays
        }
        return NarrowBlock(plain_arrays, other_columns, selected) if narrow else ColumnBlock(other_columns)

    window = window or min(max(fitting, MIN_WINDOW_PIECES), MAX_WINDOW_PIECES)
    narrow = size <= NARROW_VALUE_BYTES * sum(counts) * len(schema.names)
    dealt = not narrow and size >= WIDE_ROW_BYTES * sum(counts)
    pieces = PieceSource(counts, load, size_bytes=size, window=window, loads_together=True, dealt=dealt)
    if narrow:
        # A column is near the processor while its values are picked, and no longer: many at once, then.
        pieces.chunk = max(pieces.chunk, min(MAX_GATHERED_ROWS, (sum(counts) << 23) // max(1, size)))
    return pieces


def _read_groups(scanned: "ScannedFile", file: Path, groups: list[int], columns: list[str]) -> Any:
    try:
        return read_or_corrupt(
            file, lambda: _format_rows(scanned.counts, groups), lambda: scanned.read(groups, columns)
        )
    except CorruptData:
        for group in groups if len(groups) > 1 else ():
            # Which of them it is, is found by asking each.
            _read_groups(scanned, file, [group], columns)
        raise


def _format_rows(counts: list[int], groups: list[int]) -> str:
    return "rows " + ", ".join(f"{sum(counts[:group])} to {sum(counts[: group + 1]) - 1}" for group in groups)


class ScannedFile:
    """What a file says about itself, and how a piece of it is read."""

    def __init__(
        self,
        schema: Any,
        counts: list[int],
        size_bytes: int,
        columns_with_nulls: set[str],
        read_pieces: Callable[..., Any],
    ) -> None:
        self.schema, self.counts, self.size_bytes, self.gaps, self.read = (
            schema,
            counts,
            size_bytes,
            columns_with_nulls,
            read_pieces,
        )


def _scan_parquet(file: SourceFile, keep_reader: bool) -> ScannedFile:
    from pyarrow import parquet, types

    with parquet.ParquetFile(file.path) as opened:
        metadata, schema = opened.metadata, opened.schema_arrow
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    idle_readers: list[Any] = []
    columns_with_nulls = set()
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            statistics = column.statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                columns_with_nulls.add(column.path_in_schema.partition(".")[0])

    def read_pieces(group_numbers: list[int], columns: list[str]) -> Any:
        # Threads must not share a reader. One that is done is kept for the next turn: mapping a file anew costs as much
        # as decoding a small piece. Copies in a cache are let go, though, so that their room is free.
        with file.local() as path:
            try:
                opened = idle_readers.pop()
            except IndexError:
                opened = _open_parquet(path, metadata, all(types.is_primitive(kind) for kind in schema.types))
            table = opened.read_row_groups(
                group_numbers, columns, use_threads=sum(counts[group] for group in group_numbers) > PARALLEL_DECODE_ROWS
            )
        if keep_reader and file.cache is None and not idle_readers:
            idle_readers.append(opened)
        return table

    counts = [group.num_rows for group in groups]
    return ScannedFile(schema, counts, sum(group.total_byte_size for group in groups), columns_with_nulls, read_pieces)


def _open_parquet(path: Path, metadata: Any, only_numbers: bool) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    # Mapped memory is asked for ahead anyway. To buffer it first has one more thread hand over every range, which takes
    # a tenth as long as to decode it.
    opened = parquet.ParquetFile(path, metadata=metadata, memory_map=True, pre_buffer=False)
    if only_numbers:
        # Arrow's own pool takes huge pages for many small columns, three times what they need, and clears them in every
        # thread that reads. ParquetFile takes no other pool; its reader does, and has options only for other kinds.
        opened.reader = type(opened.reader)(pa.system_memory_pool())
        opened.reader.open(path, use_memory_map=True, metadata=metadata)
    return opened


def _scan_arrow(file: SourceFile, keep_reader: bool) -> ScannedFile:
    del keep_reader
    import pyarrow as pa
    from pyarrow import ipc

    def load_batches(path: Path, batch_numbers: list[int] | None = None) -> tuple[Any, list[Any]]:
        mapped = pa.memory_map(str(path))
        if mapped.read(6) == b"ARROW1":
            opened = ipc.open_file(mapped)
            selected = range(opened.num_record_batches) if batch_numbers is None else batch_numbers
            return opened.schema, [opened.get_batch(number) for number in selected]
        mapped.seek(0)
        stream = ipc.open_stream(mapped)
        loaded = list(stream)
        return stream.schema, loaded if batch_numbers is None else [loaded[number] for number in batch_numbers]

    def read_pieces(batch_numbers: list[int], columns: list[str]) -> Any:
        with file.local() as path:
            return pa.Table.from_batches(load_batches(path, batch_numbers)[1]).select(columns)

    schema, loaded = load_batches(file.path)
    columns_with_nulls = {name for batch in loaded for name in schema.names if batch[name].null_count}
    return ScannedFile(
        schema, [len(batch) for batch in loaded], sum(batch.nbytes for batch in loaded), columns_with_nulls, read_pieces
    )


def read_or_corrupt(file: Path, describe_part: Callable[[], str], read: Callable[[], Any]) -> Any:
    """What `read` gives; when Arrow cannot read it, one error that names the file and the place."""
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise CorruptData(f"{describe_part()} of {file} cannot be read: {error}", "copy or write it again") from error


def combine_chunks(chunked: Any) -> Any:
    """A column of Arrow's, in one part."""
    import pyarrow as pa

    return chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays(chunked.chunks)


def to_column(array: Any, has_nulls: bool, describe_place: Callable[[], str]) -> Column:
    """A column of Arrow's as an array, or as what gives Python's values where no array can hold them."""
    from pyarrow import types

    kind = array.type
    if types.is_floating(kind):
        return _to_numbers(array)
    is_plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind)
    if (
        types.is_interval(kind)
        or has_nulls
        or not (is_plain or types.is_fixed_size_list(kind) or _is_fixed_binary(kind))
    ):
        return ArrowColumn(array.dictionary_decode() if types.is_dictionary(kind) else array)
    if array.null_count:
        raise Invalid(
            f"there is a null in {describe_place()}, where the file told of none",
            "write it with statistics, or as floats",
        )
    if is_plain:
        return _to_numbers(array if not types.is_temporal(kind) else array.view(f"int{kind.bit_width}"))
    if types.is_fixed_size_list(kind):
        inner = array.flatten()
        are_numbers = types.is_primitive(kind.value_type) and not inner.null_count
        return _to_numbers(inner).reshape(len(array), kind.list_size) if are_numbers else ArrowColumn(array)
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, kind.byte_width)
    return raw[array.offset : array.offset + len(array)]


def _is_plain_array(array: Any) -> bool:
    """Whether it lies in memory as numpy's numbers do."""
    from pyarrow import types

    are_numbers = types.is_floating(array.type) or types.is_integer(array.type) or types.is_temporal(array.type)
    return bool(are_numbers and not types.is_interval(array.type) and not array.null_count)


def _to_typestr(kind: Any) -> str:
    from pyarrow import types

    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    return f"{letter}{kind.bit_width // 8}"


def _to_numbers(array: Any) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _is_fixed_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_fixed_size_binary(kind)) and not types.is_decimal(kind)


def _format_schema(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
