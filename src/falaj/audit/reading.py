"""Reading the log: newest first although a log is read oldest first, and finding acts that were never finished."""

import threading
from collections.abc import Iterator, Mapping
from heapq import merge

from falaj.audit.merkle import TILE_WIDTH
from falaj.audit.prove import index_of, number_at
from falaj.audit.records import Entry, Intent
from falaj.audit.seal import Log
from falaj.core.errors import Invalid
from falaj.core.event import Event
from falaj.core.ports import EventRow
from falaj.core.ref import Ref
from falaj.store.envelope import open_event
from falaj.store.ledger import Ledger

PAGE = 1000
DENY = "guard.deny"
_SLACK_S = 3600.0
"""Events may enter the log out of the order of their clocks, but not by more than this."""


class Backwards:
    """One log from its end: windows of growing width, each asked of the store with the filters in the query."""

    def __init__(
        self, ledger: Ledger, log: Log, where: Mapping[str, str], since: float = 0.0, refused: str = ""
    ) -> None:
        """With `refused`, a reference, refusals about it are found as well: their subject is the guard's desk."""
        self._ledger, self._log, self._where, self._since = ledger, log, dict(where), since
        self._refused = refused if DENY in where.get("verb", DENY).split() else ""

    def newest(self, limit: int, older: str = "") -> tuple[list[EventRow], str]:
        """At most `limit` rows, newest first, and the cursor of what is older (empty at the end)."""
        upto, before = self._place(older)
        bound, width = (older if before is None else ""), max(TILE_WIDTH, 2 * limit)
        found: list[EventRow] = []
        while True:
            low = max(0, upto - width)
            after = self._position(low - 1) if low else ""
            window = [row for row in self._window(after, bound) if before is None or row.at < before]
            found += [row for row in reversed(window) if row.at >= self._since]
            stale = bool(window) and max(row.at for row in window) < self._since - _SLACK_S
            if len(found) > limit or not low or stale:
                break
            upto, bound, width = low, self._after(after), width * 4
        return found[:limit], found[limit - 1].pos if len(found) > limit else ""

    def _place(self, older: str) -> tuple[int, float | None]:
        """The index where to begin, and the time when `older` is one."""
        size = self._log.head.size
        if not older:
            return size, None
        if len(older) > 20:
            return (index_of(self._log, older) if older <= self._log.head.pos else size), None
        try:
            before = float(older)
        except ValueError as error:
            raise Invalid(
                f"{older[:40]!r} is neither a cursor nor a time",
                "give `older` of the page before, or seconds since 1970",
            ) from error
        number = number_at(self._log, before + _SLACK_S, after=True) if self._log.head.number else 0
        return (self._log.checkpoint(number).size if number else 0) if number < self._log.head.number else size, before

    def _position(self, index: int) -> str:
        return self._log.positions(index // TILE_WIDTH)[index % TILE_WIDTH]

    @staticmethod
    def _after(pos: str) -> str:
        """A bound that lets `pos` itself through."""
        return pos + "\x7f"

    def _window(self, after: str, bound: str) -> Iterator[EventRow]:
        rows = self._rows(after, bound, self._where)
        if not self._refused:
            return rows
        said = {name: value for name, value in self._where.items() if name == "actor"}
        denials = self._rows(after, bound, {**said, "verb": DENY})
        return merge(rows, filter(self._tells, denials), key=lambda row: row.pos)

    def _tells(self, row: EventRow) -> bool:
        """Whether a refusal is about the reference; without a version, about any of its versions."""
        about = str(open_event(self._ledger.cipher, row).event.body.get("about", ""))
        return about == self._refused or ("@" not in self._refused and about.startswith(f"{self._refused}@"))

    def _rows(self, after: str, bound: str, where: Mapping[str, str]) -> Iterator[EventRow]:
        while True:
            rows = self._ledger.store.events(after, tenant=self._log.tenant, zone=self._log.zone, limit=PAGE, **where)
            for row in rows:
                if bound and row.pos >= bound:
                    return
                yield row
            if len(rows) < PAGE:
                return
            after = rows[-1].pos


def filters(about: str, verb: str, actor: str) -> dict[str, str]:
    """What `log` was asked for as the store's own filters; `about` is a reference or a request id."""
    where = {"verb": verb, "actor": actor}
    if ":" in about:
        ref = Ref.parse(about)
        where |= {"kind": ref.kind, "project": ref.project, "name": ref.name, "version": ref.version}
    else:
        where["request"] = about
    return {name: value for name, value in where.items() if value}


def entry_of(ledger: Ledger, row: EventRow) -> Entry:
    """A row of the log, opened for reading."""
    return as_entry(open_event(ledger.cipher, row).event)


def as_entry(event: Event) -> Entry:
    """An event as people read it; what names a person stays closed."""
    body = {name: str(value) for name, value in event.body.items()}
    return Entry(
        event.id, event.at, event.verb, event.actor, event.subject, event.zone, event.inputs, event.request,
        event.behalf, event.policy, event.rules, body, bool(event.sealed),
    )  # fmt: skip


class Unfinished:
    """Intents without outcome, per log; remembers how far it has read, so that asking often is cheap."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._read: dict[tuple[str, str], tuple[str, dict[tuple[str, str], list[Intent]]]] = {}

    def of(self, tenant: str, zone: str, before: float) -> tuple[Intent, ...]:
        """What was begun before that time and has no recorded end, oldest first."""
        with self._lock:
            after, waiting = self._read.get((tenant, zone), ("", {}))
            while facts := self._ledger.tail(after, tenant=tenant, zone=zone, limit=PAGE):
                for fact in facts:
                    _follow(waiting, fact.event)
                after = facts[-1].pos
                self._read[tenant, zone] = (after, waiting)
            found = [intent for intents in waiting.values() for intent in intents if intent.at < before]
        return tuple(sorted(found, key=lambda intent: intent.at))


def _follow(waiting: dict[tuple[str, str], list[Intent]], event: Event) -> None:
    phase, at = event.body.get("phase"), (event.request, event.verb)
    if phase == "intent":
        intent = Intent(event.id, event.at, event.verb, event.actor, event.subject, event.request)
        waiting.setdefault(at, []).append(intent)
    elif phase == "outcome" and at in waiting:
        waiting[at].pop(0)
        if not waiting[at]:
            del waiting[at]
