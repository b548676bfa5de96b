"""Finds the rows of Arrow batches that name a person: in declared columns by equality, elsewhere by the identifier.

Used in the isolated helper for files, and in the platform for rows that it wrote itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from falaj.privacy.search.person_pattern import PersonPattern

_MAX_EXACT_FLOAT = 1 << 53  # whole numbers up to this are exact in a float64 column


def find_rows(batch: Any, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first column that names the person, and the row, for each such row of a batch."""
    import numpy as np
    import pyarrow as pa

    column_by_row = locate_rows(batch, pattern, columns)
    if not column_by_row:
        return
    rows = np.array(sorted(column_by_row))
    matching_rows = batch.take(pa.array(rows))
    names = [
        f"{name} ({position})" if name in matching_rows.schema.names[:position] else name
        for position, name in enumerate(matching_rows.schema.names)
    ]
    values = [matching_rows.column(position).to_pylist() for position in range(len(names))]
    for position, row in enumerate(rows.tolist()):
        yield (
            f"column {column_by_row[row]}",
            {name: column[position] for name, column in zip(names, values, strict=True)},
        )


def locate_rows(batch: Any, pattern: PersonPattern, columns: Sequence[str]) -> dict[int, str]:
    """The rows of a batch that name the person, each with the first column that does."""
    import numpy as np

    where: dict[int, str] = {}
    for number, name in enumerate(batch.schema.names):
        mask = compute_row_mask(batch.column(number), pattern, is_declared=name in columns)
        for row in np.flatnonzero(mask).tolist() if mask is not None else ():
            where.setdefault(row, name)
    return where


def compute_row_mask(column: Any, pattern: PersonPattern, *, is_declared: bool) -> Any:
    """Which rows of a column name the person, as a numpy mask; None where none of its type can."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    arrow_type = column.type
    if kinds.is_dictionary(arrow_type):
        return compute_row_mask(column.dictionary_decode(), pattern, is_declared=is_declared)
    if kinds.is_struct(arrow_type):
        masks = [compute_row_mask(field, pattern, is_declared=is_declared) for field in column.flatten()]
        return _combine_masks(masks)
    if kinds.is_map(arrow_type):
        return _mask_items(column, [column.keys, column.items], pattern, is_declared=is_declared)
    if kinds.is_list(arrow_type) or kinds.is_large_list(arrow_type) or kinds.is_fixed_size_list(arrow_type):
        return _mask_items(column, [column.flatten()], pattern, is_declared=is_declared)
    if not (is_declared or pattern.is_distinctive):
        return None
    return _mask_values(column, pattern, is_declared=is_declared)


def _mask_values(column: Any, pattern: PersonPattern, *, is_declared: bool) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    arrow_type = column.type
    if kinds.is_integer(arrow_type) or kinds.is_floating(arrow_type):
        number = pattern.number
        if number is None or (kinds.is_floating(arrow_type) and number > _MAX_EXACT_FLOAT):
            return None
        widened = column.cast(pa.float64() if kinds.is_floating(arrow_type) else pa.int64(), safe=False)
        return _to_numpy_mask(pc.equal(widened, pa.scalar(number, widened.type)))
    if kinds.is_decimal(arrow_type) or kinds.is_date(arrow_type) or kinds.is_timestamp(arrow_type):
        column = column.cast(pa.string())
    elif kinds.is_binary(arrow_type) or kinds.is_large_binary(arrow_type) or kinds.is_fixed_size_binary(arrow_type):
        return _mask_bytes(column, pattern, is_declared=is_declared)
    elif not (kinds.is_string(arrow_type) or kinds.is_large_string(arrow_type)):
        try:
            column = column.cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
    mask = _to_numpy_mask(pc.match_substring_regex(column, pattern.equals)) if is_declared else None
    if pattern.is_distinctive:
        mask = _combine_masks([mask, _to_numpy_mask(pc.match_substring_regex(column, pattern.contains))])
    return mask


def _mask_bytes(column: Any, pattern: PersonPattern, *, is_declared: bool) -> Any:
    import numpy as np

    mask = np.zeros(len(column), bool)
    for row, value in enumerate(column.to_pylist()):
        if value is None:
            continue
        is_named = is_declared and pattern.is_value(value.decode("utf-8", "replace"))
        mask[row] = is_named or (pattern.is_distinctive and pattern.find_in_bytes(value) >= 0)
    return mask


def _mask_items(column: Any, items: Sequence[Any], pattern: PersonPattern, *, is_declared: bool) -> Any:
    """Rows of a list or a map, some item of which names the person."""
    import numpy as np
    import pyarrow.compute as pc

    named_rows = np.zeros(len(column), bool)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(len(column)), lengths)
    for values in items:
        mask = compute_row_mask(values, pattern, is_declared=is_declared)
        if mask is not None:
            if len(mask) != len(parents):  # nulls with items behind them
                mask = mask[: len(parents)] | bool(mask.any())
            named_rows[parents[: len(mask)][mask]] = True
    return named_rows


def _to_numpy_mask(values: Any) -> Any:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def _combine_masks(masks: Sequence[Any]) -> Any:
    present_masks = [mask for mask in masks if mask is not None]
    total_mask = present_masks[0] if present_masks else None
    for mask in present_masks[1:]:
        total_mask = total_mask | mask
    return total_mask
