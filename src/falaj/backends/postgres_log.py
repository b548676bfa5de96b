"""Reading the log on PostgreSQL: as far as it is final, and never the same silence twice.

Whoever follows events of one kind asks again and again from the last one there was. Other kinds fill the log meanwhile,
so each question would read more than the one before. What lies below the oldest open transaction never changes: that
nothing of that kind is there is remembered, and the next question begins behind it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from falaj.backends.postgres_poll import EPOCH, FINAL, PollState
from falaj.backends.sql import statements as sql
from falaj.core.ports import TABLES, EventRow

_FINAL = FINAL
# An earlier epoch came in by a restore: its xids are another cluster's and all of it is final.
_VISIBLE = f"(epoch < {EPOCH} OR xid < {_FINAL})"
_END = f"SELECT {EPOCH}, {_FINAL}"
_COLUMNS = TABLES["events"]
_LAST = 2**63 - 1
# With the same snapshot: how far the log is final.
_AND_END = f"UNION ALL SELECT {EPOCH}, {_FINAL}, 0{', NULL' * (len(_COLUMNS) - 3)}"
_POINTED = frozenset({"zone", "id", "request", "name"})
"""Questions that an index answers however long the log is."""
_RECENT_S = 600.0
_MOST = 1000


class _Silence(NamedTuple):
    """Between two cursors nothing fits a question."""

    after: str
    upto: str


class Tail:
    """The log after a cursor. Threads share it: what one of them remembers is true for all."""

    def __init__(self, ask: Callable[[str, Sequence[Any]], list[Any]], poll: PollState) -> None:
        self._ask, self._poll = ask, poll
        self._silences: dict[tuple[tuple[str, str], ...], _Silence] = {}
        self._marks, self._marked = ("", ""), -_RECENT_S

    def read(self, after: str, limit: int, where: dict[str, str]) -> list[EventRow]:
        """Events after a cursor that fit, in order, as far as they are final."""
        after = sql.cursor(*sql.place(after))
        key = tuple(sorted(where.items()))
        known = self._silences.get(key)
        known = known if known is not None and known.after <= after else _Silence(after, after)
        start = max(after, known.upto)
        if self._poll.is_silent_after(start):
            return []
        text, values = _question(where, near=self._near(start) and not _POINTED & where.keys())
        *rows, (epoch, xid, *_) = sorted(self._ask(text, [*sql.place(start), *values, limit]), key=_in_order)
        end = sql.cursor(epoch, xid - 1, _LAST)
        self._mark(end)
        if len(rows) < limit:  # a full page says nothing of what is behind it
            self._remember(key, _Silence(sql.cursor(*rows[-1][:3]) if rows else known.after, max(start, end)))
        return [sql.event_of(row) for row in rows]

    def end(self) -> str:
        """The cursor behind everything that is final."""
        if (news := self._poll.news()) is not None:
            return news.end
        ((epoch, xid),) = self._ask(_END, ())
        end = sql.cursor(epoch, xid - 1, _LAST)
        self._mark(end)
        return end

    def forget(self) -> None:
        """A restore brings a past of its own."""
        self._silences.clear()

    def _near(self, cursor: str) -> bool:
        """Whether a cursor is of the last minutes."""
        return cursor >= self._marks[0] and time.monotonic() - self._marked < _RECENT_S

    def _mark(self, end: str) -> None:
        """Keep the end of now, and the one that was so before it."""
        if time.monotonic() - self._marked >= _RECENT_S / 2:
            self._marks, self._marked = (self._marks[1] or end, end), time.monotonic()

    def _remember(self, key: tuple[tuple[str, str], ...], silence: _Silence) -> None:
        if len(self._silences) >= _MOST:
            self._silences.clear()
        self._silences[key] = silence


def _question(where: dict[str, str], *, near: bool) -> tuple[str, list[Any]]:
    """The statement, and its values between the cursor and the limit.

    `near`: little is left to read. The engine knows no cursors and would rather look through all there ever was of a
    kind; what IS TRUE is no condition that it has an index for, so it reads on from the cursor.
    """
    parts, values = list[str](), list[Any]()
    for column, value in where.items():
        if column == "inputs":
            parts.append("inputs <> ''")
        elif column == "verb" and " " in value:
            parts.append("verb = ANY(?)")
            values.append(value.split())
        else:
            parts.append(f"{column} = ?")
            values.append(value)
    fits = " AND ".join(parts)
    fits = f"({fits}) IS TRUE" if fits and near else fits
    asked = " AND ".join(filter(None, ("(epoch, xid, seq) > (?, ?, ?)", _VISIBLE, fits)))
    text = f"""(SELECT {", ".join(_COLUMNS)} FROM events WHERE {asked} ORDER BY epoch, xid, seq LIMIT ?)
        {_AND_END}"""  # noqa: S608 # nosec B608
    return text, values


def _in_order(row: Sequence[Any]) -> tuple[bool, Sequence[Any]]:
    """As the log is read, and how far it is final at the end."""
    return row[3] is None, row[:3]
