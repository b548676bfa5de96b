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

from falaj.core.errors import Corrupt, Invalid
from falaj.feed.cache import Cache, Kept
from falaj.feed.order import Ids
from falaj.feed.pieces import Block, Column, Pieces

WINDOW_BYTES, LEAST, MOST = 1 << 26, 4, 64
"""A window is of so many bytes when decoded, but of no fewer and no more pieces. Part of the order: never to change."""

NARROW, AT_ONCE = 16, 65536
"""Columns of so few bytes a value are gathered so many rows at a time, in eight megabytes or less."""

WIDE = 256
"""Rows of so many bytes are brought to their batches one by one; what that takes to know is little beside them."""

MANY = 100_000
"""So many rows are decoded by all processors at once."""


class Values:
    """A column that Arrow holds."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def pick(self, rows: Ids) -> list[Any]:
        """As Python's own values."""
        return list(self._array.take(rows).to_pylist())


class Narrow(Block):
    """Columns of which those of plain numbers stay with Arrow and are taken in one call. By numpy it takes half as long
    again, and Python's lock is let go for each: this thread and the reader's would wake each other all the time."""

    def __init__(self, plain: Mapping[str, Any], rest: Mapping[str, Column], names: Sequence[str]) -> None:
        import pyarrow as pa

        super().__init__(rest)
        self._names, self._kinds = names, [_kind(array.type) for array in plain.values()]
        self._plain = pa.RecordBatch.from_arrays(list(plain.values()), list(plain))

    def pick(self, rows: Ids) -> dict[str, Any]:
        """The values of these rows."""
        import pyarrow as pa
        from pyarrow import compute

        found = super().pick(rows)
        if self._kinds:
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._plain):
                raise IndexError(f"there are rows 0 to {len(self._plain) - 1}")
            pool = pa.system_memory_pool()  # the C library keeps what is given back
            taken = compute.take(self._plain, pa.array(rows), boundscheck=False, memory_pool=pool)
            arrays = map(np.asarray, map(_Own, taken.columns, self._kinds))
            found.update(zip(taken.schema.names, arrays, strict=True))
        return {name: found[name] for name in self._names}


class _Own:
    """An array of Arrow's that nobody else knows of, as one that may be written into; Arrow's own views may not."""

    def __init__(self, array: Any, kind: str) -> None:
        self._array, buffer = array, array.buffers()[1]
        self.__array_interface__ = {
            "data": (buffer.address, False),
            "shape": (len(array),),
            "typestr": kind,
            "version": 3,
        }


def open_tables(files: Sequence[Path], columns: Sequence[str] | None, window: int, cache: Cache | None) -> Pieces:
    """A source over files of one schema."""
    try:
        import pyarrow as pa
    except ImportError:
        raise Invalid("tables are read with pyarrow, which is not installed", "install falaj[train]") from None
    kept = [Kept(file, cache) for file in files]
    scan = _parquet if files[0].suffix == ".parquet" else _arrow
    found = [reading(file.path, lambda: "the footer", partial(scan, file, len(files) < 64)) for file in kept]
    schema = found[0].schema
    for file, other in zip(files, found, strict=True):
        if not other.schema.equals(schema):
            raise Invalid(f"{file} has other columns than {files[0].name}", f"{_said(other.schema)}; {_said(schema)}")
    if missing := sorted(set(columns or ()) - set(schema.names)):
        raise Invalid(f"{files[0]} has no column {', '.join(missing)}", f"it has: {', '.join(schema.names)}")
    wanted = list(columns or schema.names)
    gaps = {name for scanned in found for name in scanned.gaps}
    where = [(nth, group) for nth, scanned in enumerate(found) for group in range(len(scanned.counts))]
    counts = [count for scanned in found for count in scanned.counts]
    size = sum(scanned.size_bytes for scanned in found)
    fitting = WINDOW_BYTES * len(counts) // max(1, size)

    def load(pieces: list[int]) -> Block:
        parts = [
            (nth, [where[piece][1] for piece in some])
            for nth, some in itertools.groupby(pieces, lambda piece: where[piece][0])
        ]
        tables = [_read(found[nth], files[nth], groups, wanted) for nth, groups in parts]
        table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]

        def place(name: str) -> str:
            rows = ", ".join(f"{_rows(found[nth].counts, groups)} of {files[nth]}" for nth, groups in parts)
            return f"{name} in {rows}"

        arrays = {name: joined(table[name]) for name in wanted}
        plain = {name: array for name, array in arrays.items() if narrow and name not in gaps and _plain(array)}
        rest = {name: column(arrays[name], name in gaps, partial(place, name)) for name in wanted if name not in plain}
        return Narrow(plain, rest, wanted) if narrow else Block(rest)

    window, narrow = window or min(max(fitting, LEAST), MOST), size <= NARROW * sum(counts) * len(schema.names)
    pieces = Pieces(
        counts, load, size_bytes=size, window=window, joined=True, dealt=not narrow and size >= WIDE * sum(counts)
    )
    if narrow:
        # A column is near the processor while its values are picked, and no longer: many at once, then.
        pieces.chunk = max(pieces.chunk, min(AT_ONCE, (sum(counts) << 23) // max(1, size)))
    return pieces


def _read(scanned: "Scanned", file: Path, groups: list[int], wanted: list[str]) -> Any:
    try:
        return reading(file, lambda: _rows(scanned.counts, groups), lambda: scanned.read(groups, wanted))
    except Corrupt:
        for group in groups if len(groups) > 1 else ():
            # Which of them it is, is found by asking each.
            _read(scanned, file, [group], wanted)
        raise


def _rows(counts: list[int], groups: list[int]) -> str:
    return "rows " + ", ".join(f"{sum(counts[:group])} to {sum(counts[: group + 1]) - 1}" for group in groups)


class Scanned:
    """What a file says about itself, and how a piece of it is read."""

    def __init__(
        self, schema: Any, counts: list[int], size_bytes: int, gaps: set[str], read: Callable[..., Any]
    ) -> None:
        self.schema, self.counts, self.size_bytes, self.gaps, self.read = schema, counts, size_bytes, gaps, read


def _parquet(file: Kept, keep: bool) -> Scanned:
    from pyarrow import parquet, types

    with parquet.ParquetFile(file.path) as opened:
        about, schema = opened.metadata, opened.schema_arrow
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    spare: list[Any] = []
    gaps = set()
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            known = column.statistics
            if known is not None and known.has_null_count and known.null_count:
                gaps.add(column.path_in_schema.partition(".")[0])

    def read(some: list[int], columns: list[str]) -> Any:
        # Threads must not share a reader. One that is done is kept for the next turn: mapping a file anew costs as much
        # as decoding a small piece. Copies in a cache are let go, though, so that their room is free.
        with file.local() as path:
            try:
                opened = spare.pop()
            except IndexError:
                opened = _opened(path, about, all(types.is_primitive(kind) for kind in schema.types))
            table = opened.read_row_groups(some, columns, use_threads=sum(counts[group] for group in some) > MANY)
        if keep and file.cache is None and not spare:
            spare.append(opened)
        return table

    counts = [group.num_rows for group in groups]
    return Scanned(schema, counts, sum(group.total_byte_size for group in groups), gaps, read)


def _opened(path: Path, about: Any, numbers: bool) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    # Mapped memory is asked for ahead anyway. To buffer it first has one more thread hand over every range, which takes
    # a tenth as long as to decode it.
    opened = parquet.ParquetFile(path, metadata=about, memory_map=True, pre_buffer=False)
    if numbers:
        # Arrow's own pool takes huge pages for many small columns, three times what they need, and clears them in every
        # thread that reads. ParquetFile takes no other pool; its reader does, and has options only for other kinds.
        opened.reader = type(opened.reader)(pa.system_memory_pool())
        opened.reader.open(path, use_memory_map=True, metadata=about)
    return opened


def _arrow(file: Kept, keep: bool) -> Scanned:
    del keep
    import pyarrow as pa
    from pyarrow import ipc

    def batches(path: Path, some: list[int] | None = None) -> tuple[Any, list[Any]]:
        mapped = pa.memory_map(str(path))
        if mapped.read(6) == b"ARROW1":
            opened = ipc.open_file(mapped)
            wanted = range(opened.num_record_batches) if some is None else some
            return opened.schema, [opened.get_batch(number) for number in wanted]
        mapped.seek(0)
        stream = ipc.open_stream(mapped)
        found = list(stream)
        return stream.schema, found if some is None else [found[number] for number in some]

    def read(some: list[int], columns: list[str]) -> Any:
        with file.local() as path:
            return pa.Table.from_batches(batches(path, some)[1]).select(columns)

    schema, found = batches(file.path)
    gaps = {name for batch in found for name in schema.names if batch[name].null_count}
    return Scanned(schema, [len(batch) for batch in found], sum(batch.nbytes for batch in found), gaps, read)


def reading(file: Path, what: Callable[[], str], read: Callable[[], Any]) -> Any:
    """What `read` gives; when Arrow cannot read it, one error that names the file and the place."""
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise Corrupt(f"{what()} of {file} cannot be read: {error}", "copy or write it again") from error


def joined(chunked: Any) -> Any:
    """A column of Arrow's, in one part."""
    import pyarrow as pa

    return chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays(chunked.chunks)


def column(array: Any, gaps: bool, where: Callable[[], str]) -> Column:
    """A column of Arrow's as an array, or as what gives Python's values where no array can hold them."""
    from pyarrow import types

    kind = array.type
    if types.is_floating(kind):
        return _numbers(array)
    plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind)
    if types.is_interval(kind) or gaps or not (plain or types.is_fixed_size_list(kind) or _wide(kind)):
        return Values(array.dictionary_decode() if types.is_dictionary(kind) else array)
    if array.null_count:
        raise Invalid(
            f"there is a null in {where()}, where the file told of none", "write it with statistics, or as floats"
        )
    if plain:
        return _numbers(array if not types.is_temporal(kind) else array.view(f"int{kind.bit_width}"))
    if types.is_fixed_size_list(kind):
        inner = array.flatten()
        numbers = types.is_primitive(kind.value_type) and not inner.null_count
        return _numbers(inner).reshape(len(array), kind.list_size) if numbers else Values(array)
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, kind.byte_width)
    return raw[array.offset : array.offset + len(array)]


def _plain(array: Any) -> bool:
    """Whether it lies in memory as numpy's numbers do."""
    from pyarrow import types

    numbers = types.is_floating(array.type) or types.is_integer(array.type) or types.is_temporal(array.type)
    return bool(numbers and not types.is_interval(array.type) and not array.null_count)


def _kind(kind: Any) -> str:
    from pyarrow import types

    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    return f"{letter}{kind.bit_width // 8}"


def _numbers(array: Any) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _wide(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_fixed_size_binary(kind)) and not types.is_decimal(kind)


def _said(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
