"""What an as-of join must give, said as plainly as it can be: row by row, label by label."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from falaj.asof.records import EXPIRED, FUTURE, NOT_FOUND, NULL, PRESENT


class Row(NamedTuple):
    key: tuple[Any, ...]
    event: int
    created: int
    seq: int
    values: tuple[Any, ...]


def as_of(
    rows: Sequence[Row], key: tuple[Any, ...], at: int | None, ttl: int, known: int | None
) -> tuple[int, Row | None]:
    """The status of a label's row, and the row where it is PRESENT."""
    if at is None or any(part is None for part in key):
        return NOT_FOUND, None
    mine = [row for row in rows if row.key == key and (known is None or row.created <= known)]
    past = [row for row in mine if row.event <= at]
    if not past:
        return (FUTURE if mine else NOT_FOUND), None
    newest = max(past, key=lambda row: (row.event, row.created, row.seq))
    if ttl and newest.event <= at - ttl:
        return EXPIRED, None
    return PRESENT, newest


def cell(status: int, row: Row | None, column: int) -> tuple[int, Any]:
    """The status and value of one feature."""
    if row is None:
        return status, None
    value = row.values[column]
    return (NULL, None) if value is None else (PRESENT, value)
