"""An ear: one reader of the log with a cursor that survives it."""

import logging
import re
from collections.abc import Iterable
from fnmatch import translate

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Corrupt
from falaj.core.ports import EventRow, Key
from falaj.flows.triggers import OWN
from falaj.store.envelope import open_events
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Fact, Record

_log = logging.getLogger(__name__)

PAGE = 500
KEEP_EVERY = 1000
"""So many events may be read again after a crash; those that led to something never are."""
KEEP_S = 3600.0
MOST_VERBS = 16
"""More kinds of events than this are looked for in the whole log, and not each by itself."""


class Ear:
    """Reads what is new in the log, of every tenant."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._key = Key(HOUSE, "ear", HOUSE, name)
        self._record: Record | None = None
        self._read, self._passed, self._kept_at = 0, 0, 0.0
        self.pos = self._edge = ""

    def open(self, ctx: Context) -> None:
        """Go on where the one before stopped."""
        with self._ledger.read(ctx) as tx:
            self._record = tx.key(self._key)
        self.pos = self._record.body["pos"] if self._record is not None else ""
        self._read, self._kept_at = 0, ctx.now()

    def hear(self, verbs: Iterable[str], end: str) -> tuple[list[Fact], bool]:
        """The next events of these kinds (with * and ?) up to `end`, oldest first, and whether there are more."""
        chosen = sorted(set(verbs))
        every = len(chosen) > MOST_VERBS or any(letter in verb for verb in chosen for letter in "*?")
        asked = [{}] if every else [{"verb": verb} for verb in chosen]
        pages = [self._ledger.store.events(self.pos, limit=PAGE, **where) for where in asked]
        # Where a page is full there may be more behind it; nothing after that may be read yet.
        edge = min([end, *(page[-1].pos for page in pages if len(page) == PAGE)])
        rows = sorted((row for page in pages for row in page if row.pos <= edge), key=lambda row: row.pos)
        self._edge, self._passed = max(edge, self.pos), len(rows)
        wanted = re.compile("|".join(map(translate, chosen)) or r"(?!)")
        return self._opened([row for row in rows if row.verb not in OWN and wanted.match(row.verb)]), edge < end

    def _opened(self, rows: list[EventRow]) -> list[Fact]:
        """What they say. One that somebody tampered with is for `audit verify` to tell of, and stops no other."""
        try:
            return open_events(self._ledger.cipher, rows)
        except Corrupt as error:
            if len(rows) == 1:
                _log.warning("event cannot be read", extra={"event": rows[0].id, "reason": error.message})
                return []
        return [fact for row in rows for fact in self._opened([row])]

    def done(self) -> None:
        """All that was heard is done with: go on behind it."""
        self.pos, self._read = self._edge, self._read + self._passed

    def skip(self, end: str) -> None:
        """Nobody listens: go on behind all there is."""
        self.pos = self._edge = end

    def keep(self, ctx: Context, *, acted: bool) -> None:
        """Write down how far it is, where reading it again would cost something."""
        due = ctx.now() - self._kept_at >= KEEP_S and self._record is not None and self.pos > self._record.body["pos"]
        if acted or due or self._read >= KEEP_EVERY or self._record is None:
            with self._ledger.write(ctx) as tx:
                self.write(tx)

    def write(self, tx: Writer) -> None:
        """The same inside a transaction: what was read and what it led to are kept together or not at all."""
        rev = self._record.rev if self._record is not None else None
        self._record = tx.put(self._key, {"pos": self.pos}, rev=rev)
        tx.emit("flows.heard", self._record.ref, tenant=HOUSE, read=self._read)
        self._read, self._kept_at = 0, self._record.at
