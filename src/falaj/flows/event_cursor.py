"""An ear: one reader of the log with a cursor that survives it."""

import logging
import re
from collections.abc import Iterable
from fnmatch import translate

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import CorruptData
from falaj.core.ports import EventRow, RecordKey
from falaj.flows.triggers import IGNORED_VERBS
from falaj.store.envelope import decrypt_events
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord, LoggedEvent

_log = logging.getLogger(__name__)

PAGE_SIZE = 500
SAVE_INTERVAL_EVENTS = 1000
"""So many events may be read again after a crash; those that led to something never are."""
SAVE_INTERVAL_S = 3600.0
MAX_SEARCHED_VERBS = 16
"""More kinds of events than this are looked for in the whole log, and not each by itself."""


class EventCursor:
    """Reads what is new in the log, of every tenant."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._key = RecordKey(SYSTEM_TENANT, "ear", SYSTEM_TENANT, name)
        self._record: LedgerRecord | None = None
        self._unsaved_count, self._page_count, self._saved_at = 0, 0, 0.0
        self.pos = self._read_until = ""

    def open(self, ctx: CallContext) -> None:
        """Go on where the one before stopped."""
        with self._ledger.read(ctx) as tx:
            self._record = tx.key(self._key)
        self.pos = self._record.body["pos"] if self._record is not None else ""
        self._unsaved_count, self._saved_at = 0, ctx.now()

    def hear(self, verbs: Iterable[str], end: str) -> tuple[list[LoggedEvent], bool]:
        """The next events of these kinds (with * and ?) up to `end`, oldest first, and whether there are more."""
        verb_names = sorted(set(verbs))
        reads_all = len(verb_names) > MAX_SEARCHED_VERBS or any(
            wildcard in verb for verb in verb_names for wildcard in "*?"
        )
        searches = [{}] if reads_all else [{"verb": verb} for verb in verb_names]
        pages = [self._ledger.store.events(self.pos, limit=PAGE_SIZE, **search_fields) for search_fields in searches]
        # Where a page is full there may be more behind it; nothing after that may be read yet.
        read_until = min([end, *(page[-1].pos for page in pages if len(page) == PAGE_SIZE)])
        rows = sorted((row for page in pages for row in page if row.pos <= read_until), key=lambda row: row.pos)
        self._read_until, self._page_count = max(read_until, self.pos), len(rows)
        verb_pattern = re.compile("|".join(map(translate, verb_names)) or r"(?!)")
        return self._decode_events(
            [row for row in rows if row.verb not in IGNORED_VERBS and verb_pattern.match(row.verb)]
        ), read_until < end

    def _decode_events(self, rows: list[EventRow]) -> list[LoggedEvent]:
        """What they say. One that somebody tampered with is for `audit verify` to tell of, and stops no other."""
        try:
            return decrypt_events(self._ledger.cipher, rows)
        except CorruptData as error:
            if len(rows) == 1:
                _log.warning("event cannot be read", extra={"event": rows[0].id, "reason": error.message})
                return []
        return [logged_event for row in rows for logged_event in self._decode_events([row])]

    def done(self) -> None:
        """All that was heard is done with: go on behind it."""
        self.pos, self._unsaved_count = self._read_until, self._unsaved_count + self._page_count

    def skip(self, end: str) -> None:
        """Nobody listens: go on behind all there is."""
        self.pos = self._read_until = end

    def keep(self, ctx: CallContext, *, has_acted: bool) -> None:
        """Write down how far it is, where reading it again would cost something."""
        is_due = (
            ctx.now() - self._saved_at >= SAVE_INTERVAL_S
            and self._record is not None
            and self.pos > self._record.body["pos"]
        )
        if has_acted or is_due or self._unsaved_count >= SAVE_INTERVAL_EVENTS or self._record is None:
            with self._ledger.write(ctx) as tx:
                self.write(tx)

    def write(self, tx: LedgerWriter) -> None:
        """The same inside a transaction: what was read and what it led to are kept together or not at all."""
        rev = self._record.rev if self._record is not None else None
        self._record = tx.put(self._key, {"pos": self.pos}, rev=rev)
        tx.emit("flows.heard", self._record.ref, tenant=SYSTEM_TENANT, read=self._unsaved_count)
        self._unsaved_count, self._saved_at = 0, self._record.at
