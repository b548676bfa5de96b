"""Finds the rows of Arrow batches that name a person: in declared columns by equality, elsewhere by the identifier.

Used in the isolated helper for files, and in the platform for rows that it wrote itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from falaj.privacy.search.person_pattern import PersonPattern

_LARGEST_EXACT = 1 << 53  # whole numbers up to this are exact in a float64 column


def find_rows(batch: Any, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first column that names the person, and the row, for each such row of a batch."""
    import numpy as np
    import pyarrow as pa

    where = locate_rows(batch, pattern, columns)
    if not where:
        return
    rows = np.array(sorted(where))
    taken = batch.take(pa.array(rows))
    names = [
        f"{name} ({at})" if name in taken.schema.names[:at] else name for at, name in enumerate(taken.schema.names)
    ]
    values = [taken.column(at).to_pylist() for at in range(len(names))]
    for at, row in enumerate(rows.tolist()):
        yield f"column {where[row]}", {name: column[at] for name, column in zip(names, values, strict=True)}


def locate_rows(batch: Any, pattern: PersonPattern, columns: Sequence[str]) -> dict[int, str]:
    """The rows of a batch that name the person, each with the first column that does."""
    import numpy as np

    where: dict[int, str] = {}
    for number, name in enumerate(batch.schema.names):
        mask = row_mask(batch.column(number), pattern, is_declared=name in columns)
        for row in np.flatnonzero(mask).tolist() if mask is not None else ():
            where.setdefault(row, name)
    return where


def row_mask(column: Any, pattern: PersonPattern, *, is_declared: bool) -> Any:
    """Which rows of a column name the person, as a numpy mask; None where none of its type can."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if kinds.is_dictionary(kind):
        return row_mask(column.dictionary_decode(), pattern, is_declared=is_declared)
    if kinds.is_struct(kind):
        masks = [row_mask(field, pattern, is_declared=is_declared) for field in column.flatten()]
        return _any_of(masks)
    if kinds.is_map(kind):
        return _of_items(column, [column.keys, column.items], pattern, is_declared=is_declared)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return _of_items(column, [column.flatten()], pattern, is_declared=is_declared)
    if not (is_declared or pattern.is_distinctive):
        return None
    return _of_values(column, pattern, is_declared=is_declared)


def _of_values(column: Any, pattern: PersonPattern, *, is_declared: bool) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_integer(kind) or kinds.is_floating(kind):
        number = pattern.number
        if number is None or (kinds.is_floating(kind) and number > _LARGEST_EXACT):
            return None
        wide = column.cast(pa.float64() if kinds.is_floating(kind) else pa.int64(), safe=False)
        return _as_mask(pc.equal(wide, pa.scalar(number, wide.type)))
    if kinds.is_decimal(kind) or kinds.is_date(kind) or kinds.is_timestamp(kind):
        column = column.cast(pa.string())
    elif kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return _of_bytes(column, pattern, is_declared=is_declared)
    elif not (kinds.is_string(kind) or kinds.is_large_string(kind)):
        try:
            column = column.cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
    mask = _as_mask(pc.match_substring_regex(column, pattern.equals)) if is_declared else None
    if pattern.is_distinctive:
        mask = _any_of([mask, _as_mask(pc.match_substring_regex(column, pattern.contains))])
    return mask


def _of_bytes(column: Any, pattern: PersonPattern, *, is_declared: bool) -> Any:
    import numpy as np

    mask = np.zeros(len(column), bool)
    for row, value in enumerate(column.to_pylist()):
        if value is None:
            continue
        named = is_declared and pattern.is_value(value.decode("utf-8", "replace"))
        mask[row] = named or (pattern.is_distinctive and pattern.find_in_bytes(value) >= 0)
    return mask


def _of_items(column: Any, items: Sequence[Any], pattern: PersonPattern, *, is_declared: bool) -> Any:
    """Rows of a list or a map, some item of which names the person."""
    import numpy as np
    import pyarrow.compute as pc

    named = np.zeros(len(column), bool)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(len(column)), lengths)
    for values in items:
        mask = row_mask(values, pattern, is_declared=is_declared)
        if mask is not None:
            if len(mask) != len(parents):  # nulls with items behind them
                mask = mask[: len(parents)] | bool(mask.any())
            named[parents[: len(mask)][mask]] = True
    return named


def _as_mask(values: Any) -> Any:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def _any_of(masks: Sequence[Any]) -> Any:
    present = [mask for mask in masks if mask is not None]
    total = present[0] if present else None
    for mask in present[1:]:
        total = total | mask
    return total
