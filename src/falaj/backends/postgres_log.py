"""Reading the log on PostgreSQL: as far as it is final, and never the same silence twice.

Whoever follows events of one kind asks again and again from the last one there was. Other kinds fill the log meanwhile,
so each question would read more than the one before. What lies below the oldest open transaction never changes: that
nothing of that kind is there is remembered, and the next question begins behind it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from falaj.backends.postgres_polling import FINAL_XID, SELECT_EPOCH, PollState
from falaj.backends.sql import statements as sql
from falaj.core.ports import LEDGER_TABLES, EventRow

_FINAL_XID = FINAL_XID
# An earlier epoch came in by a restore: its xids are another cluster's and all of it is final.
_VISIBLE_CONDITION = f"(epoch < {SELECT_EPOCH} OR xid < {_FINAL_XID})"
_SELECT_END = f"SELECT {SELECT_EPOCH}, {_FINAL_XID}"
_EVENT_COLUMNS = LEDGER_TABLES["events"]
_MAX_SEQUENCE = 2**63 - 1
# With the same snapshot: how far the log is final.
_UNION_END = f"UNION ALL SELECT {SELECT_EPOCH}, {_FINAL_XID}, 0{', NULL' * (len(_EVENT_COLUMNS) - 3)}"
_INDEXED_FILTERS = frozenset({"zone", "id", "request", "name"})
"""Questions that an index answers however long the log is."""
_RECENT_CURSOR_S = 600.0
_MAX_SILENT_RANGES = 1000


class _SilentRange(NamedTuple):
    """Between two cursors nothing fits a question."""

    after: str
    upto: str


class FinalLogReader:
    """The log after a cursor. Threads share it: what one of them remembers is true for all."""

    def __init__(self, query_rows: Callable[[str, Sequence[Any]], list[Any]], poll_state: PollState) -> None:
        self._query_rows, self._poll_state = query_rows, poll_state
        self._silent_ranges: dict[tuple[tuple[str, str], ...], _SilentRange] = {}
        self._recent_ends, self._marked_at = ("", ""), -_RECENT_CURSOR_S

    def read(self, after: str, limit: int, filters: dict[str, str]) -> list[EventRow]:
        """Events after a cursor that fit, in order, as far as they are final."""
        after = sql.format_cursor(*sql.parse_cursor(after))
        key = tuple(sorted(filters.items()))
        silent_range = self._silent_ranges.get(key)
        silent_range = (
            silent_range if silent_range is not None and silent_range.after <= after else _SilentRange(after, after)
        )
        start = max(after, silent_range.upto)
        if self._poll_state.is_silent_after(start):
            return []
        statement, values = _build_log_query(
            filters, is_recent=self._is_recent(start) and not _INDEXED_FILTERS & filters.keys()
        )
        *rows, (epoch, xid, *_) = sorted(
            self._query_rows(statement, [*sql.parse_cursor(start), *values, limit]), key=_to_sort_key
        )
        end = sql.format_cursor(epoch, xid - 1, _MAX_SEQUENCE)
        self._remember_end(end)
        if len(rows) < limit:  # a full page says nothing of what is behind it
            self._remember_silence(
                key, _SilentRange(sql.format_cursor(*rows[-1][:3]) if rows else silent_range.after, max(start, end))
            )
        return [sql.to_event(row) for row in rows]

    def end(self) -> str:
        """The cursor behind everything that is final."""
        if (news := self._poll_state.news()) is not None:
            return news.end
        ((epoch, xid),) = self._query_rows(_SELECT_END, ())
        end = sql.format_cursor(epoch, xid - 1, _MAX_SEQUENCE)
        self._remember_end(end)
        return end

    def forget(self) -> None:
        """A restore brings a past of its own."""
        self._silent_ranges.clear()

    def _is_recent(self, cursor: str) -> bool:
        """Whether a cursor is of the last minutes."""
        return cursor >= self._recent_ends[0] and time.monotonic() - self._marked_at < _RECENT_CURSOR_S

    def _remember_end(self, end: str) -> None:
        """Keep the end of now, and the one that was so before it."""
        if time.monotonic() - self._marked_at >= _RECENT_CURSOR_S / 2:
            self._recent_ends, self._marked_at = (self._recent_ends[1] or end, end), time.monotonic()

    def _remember_silence(self, key: tuple[tuple[str, str], ...], silence: _SilentRange) -> None:
        if len(self._silent_ranges) >= _MAX_SILENT_RANGES:
            self._silent_ranges.clear()
        self._silent_ranges[key] = silence


def _build_log_query(filters: dict[str, str], *, is_recent: bool) -> tuple[str, list[Any]]:
    """The statement, and its values between the cursor and the limit.

    `is_recent`: little is left to read. The engine knows no cursors and would rather look through all there ever was of
    a kind; what IS TRUE is no condition that it has an index for, so it reads on from the cursor.
    """
    parts, values = list[str](), list[Any]()
    for column, value in filters.items():
        if column == "inputs":
            parts.append("inputs <> ''")
        elif column == "verb" and " " in value:
            parts.append("verb = ANY(?)")
            values.append(value.split())
        else:
            parts.append(f"{column} = ?")
            values.append(value)
    filter_condition = " AND ".join(parts)
    filter_condition = f"({filter_condition}) IS TRUE" if filter_condition and is_recent else filter_condition
    conditions = " AND ".join(filter(None, ("(epoch, xid, seq) > (?, ?, ?)", _VISIBLE_CONDITION, filter_condition)))
    statement = f"""(SELECT {", ".join(_EVENT_COLUMNS)} FROM events WHERE {conditions} ORDER BY epoch, xid, seq LIMIT ?)
        {_UNION_END}"""  # noqa: S608 # nosec B608
    return statement, values


def _to_sort_key(row: Sequence[Any]) -> tuple[bool, Sequence[Any]]:
    """As the log is read, and how far it is final at the end."""
    return row[3] is None, row[:3]
