"""Reading the log: newest first although a log is read oldest first, and finding acts that were never finished."""

import threading
from collections.abc import Iterator, Mapping
from heapq import merge

from falaj.audit.log_sealing import SealedLog
from falaj.audit.merkle import TILE_WIDTH
from falaj.audit.proofs import find_checkpoint_at, find_event_index
from falaj.audit.records import LogEntry, UnfinishedIntent
from falaj.core.errors import Invalid
from falaj.core.event import Event
from falaj.core.ports import EventRow
from falaj.core.ref import Ref
from falaj.store.envelope import decrypt_event
from falaj.store.ledger import Ledger

PAGE_SIZE = 1000
DENY_ACTION = "guard.deny"
_CLOCK_SLACK_S = 3600.0
"""Events may enter the log out of the order of their clocks, but not by more than this."""


class LogReader:
    """One log from its end: windows of growing width, each asked of the store with the filters in the query."""

    def __init__(
        self, ledger: Ledger, log: SealedLog, filters: Mapping[str, str], not_before: float = 0.0, refused_ref: str = ""
    ) -> None:
        """With `refused_ref`, a reference, refusals about it are found as well: their subject is the guard's desk."""
        self._ledger, self._log, self.filters, self.not_before = ledger, log, dict(filters), not_before
        self.refused_ref = refused_ref if DENY_ACTION in filters.get("verb", DENY_ACTION).split() else ""

    def newest(self, limit: int, older_than: str = "") -> tuple[list[EventRow], str]:
        """At most `limit` rows, newest first, and the cursor of what is older (empty at the end)."""
        end_index, before_time = self.parse_start(older_than)
        end_cursor, window_size = (older_than if before_time is None else ""), max(TILE_WIDTH, 2 * limit)
        rows: list[EventRow] = []
        while True:
            low = max(0, end_index - window_size)
            start_cursor = self.get_cursor(low - 1) if low else ""
            window_rows = [
                row for row in self.read_window(start_cursor, end_cursor) if before_time is None or row.at < before_time
            ]
            rows += [row for row in reversed(window_rows) if row.at >= self.not_before]
            is_too_old = bool(window_rows) and max(row.at for row in window_rows) < self.not_before - _CLOCK_SLACK_S
            if len(rows) > limit or not low or is_too_old:
                break
            end_index, end_cursor, window_size = low, self.include_cursor(start_cursor), window_size * 4
        return rows[:limit], rows[limit - 1].pos if len(rows) > limit else ""

    def parse_start(self, older_than: str) -> tuple[int, float | None]:
        """The index where to begin, and the time when `older_than` is one."""
        size = self._log.head.size
        if not older_than:
            return size, None
        if len(older_than) > 20:
            return (find_event_index(self._log, older_than) if older_than <= self._log.head.pos else size), None
        try:
            before_time = float(older_than)
        except ValueError as error:
            raise Invalid(
                f"{older_than[:40]!r} is neither a cursor nor a time",
                "give `older` of the page before, or seconds since 1970",
            ) from error
        number = (
            find_checkpoint_at(self._log, before_time + _CLOCK_SLACK_S, is_after=True) if self._log.head.number else 0
        )
        return (
            self._log.checkpoint(number).size if number else 0
        ) if number < self._log.head.number else size, before_time

    def get_cursor(self, index: int) -> str:
        return self._log.positions(index // TILE_WIDTH)[index % TILE_WIDTH]

    @staticmethod
    def include_cursor(cursor: str) -> str:
        """A bound that lets `cursor` itself through."""
        return cursor + "\x7f"

    def read_window(self, start_cursor: str, end_cursor: str) -> Iterator[EventRow]:
        rows = self.read_rows(start_cursor, end_cursor, self.filters)
        if not self.refused_ref:
            return rows
        actor_filter = {name: value for name, value in self.filters.items() if name == "actor"}
        denials = self.read_rows(start_cursor, end_cursor, {**actor_filter, "verb": DENY_ACTION})
        return merge(rows, filter(self.is_about_ref, denials), key=lambda row: row.pos)

    def is_about_ref(self, row: EventRow) -> bool:
        """Whether a refusal is about the reference; without a version, about any of its versions."""
        event_about = str(decrypt_event(self._ledger.cipher, row).event.body.get("about", ""))
        return event_about == self.refused_ref or (
            "@" not in self.refused_ref and event_about.startswith(f"{self.refused_ref}@")
        )

    def read_rows(self, after: str, end_cursor: str, filters: Mapping[str, str]) -> Iterator[EventRow]:
        while True:
            rows = self._ledger.store.events(
                after, tenant=self._log.tenant, zone=self._log.zone, limit=PAGE_SIZE, **filters
            )
            for row in rows:
                if end_cursor and row.pos >= end_cursor:
                    return
                yield row
            if len(rows) < PAGE_SIZE:
                return
            after = rows[-1].pos


def build_filters(ref_or_request: str, operation: str, actor: str) -> dict[str, str]:
    """What `log` was asked for as the store's own filters; `ref_or_request` is a reference or a request id."""
    store_filters = {"verb": operation, "actor": actor}
    if ":" in ref_or_request:
        ref = Ref.parse(ref_or_request)
        store_filters |= {"kind": ref.kind, "project": ref.project, "name": ref.name, "version": ref.version}
    else:
        store_filters["request"] = ref_or_request
    return {name: value for name, value in store_filters.items() if value}


def open_entry(ledger: Ledger, row: EventRow) -> LogEntry:
    """A row of the log, opened for reading."""
    return to_entry(decrypt_event(ledger.cipher, row).event)


def to_entry(event: Event) -> LogEntry:
    """An event as people read it; what names a person stays closed."""
    body = {name: str(value) for name, value in event.body.items()}
    return LogEntry(
        event.id, event.at, event.verb, event.actor, event.subject, event.zone, event.inputs, event.request,
        event.behalf, event.policy, event.rules, body, bool(event.sealed),
    )  # fmt: skip


class UnfinishedIntents:
    """Intents without outcome, per log; remembers how far it has read, so that asking often is cheap."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self.progress_by_log: dict[tuple[str, str], tuple[str, dict[tuple[str, str], list[UnfinishedIntent]]]] = {}

    def of(self, tenant: str, zone: str, begun_before: float) -> tuple[UnfinishedIntent, ...]:
        """What was begun before that time and has no recorded end, oldest first."""
        with self._lock:
            after, open_intents = self.progress_by_log.get((tenant, zone), ("", {}))
            while logged_events := self._ledger.tail(after, tenant=tenant, zone=zone, limit=PAGE_SIZE):
                for logged_event in logged_events:
                    _apply_event(open_intents, logged_event.event)
                after = logged_events[-1].pos
                self.progress_by_log[tenant, zone] = (after, open_intents)
            old_intents = [
                intent for intents in open_intents.values() for intent in intents if intent.at < begun_before
            ]
        return tuple(sorted(old_intents, key=lambda intent: intent.at))


def _apply_event(open_intents: dict[tuple[str, str], list[UnfinishedIntent]], event: Event) -> None:
    phase, intent_key = event.body.get("phase"), (event.request, event.verb)
    if phase == "intent":
        intent = UnfinishedIntent(event.id, event.at, event.verb, event.actor, event.subject, event.request)
        open_intents.setdefault(intent_key, []).append(intent)
    elif phase == "outcome" and intent_key in open_intents:
        open_intents[intent_key].pop(0)
        if not open_intents[intent_key]:
            del open_intents[intent_key]
