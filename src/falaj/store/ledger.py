"""The ledger: records and events in one transaction, on any Store. The only mutable state of the house.

A transaction belongs to the thread that opened it: every `write`, `project` or `read` inside it joins it,
whoever its context speaks for. So never hold a lock of your own across one, nor hand its Writer to another thread.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from falaj.core.cell import Cell
from falaj.core.context import Context
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, SilentChange, Stale
from falaj.core.event import Event
from falaj.core.label import Label
from falaj.core.ports import (
    Block,
    CanBundle,
    CanPoll,
    CanWatch,
    Cipher,
    Courier,
    EventRow,
    Key,
    Query,
    Row,
    Series,
    Store,
    Txn,
)
from falaj.core.ref import Ref
from falaj.core.withhold import withhold_texts
from falaj.store import requests
from falaj.store.additions import carried, marked
from falaj.store.bells import Bells
from falaj.store.counts import Counts
from falaj.store.envelope import Voice, key_of, open_events, open_lines, open_record, seal_events, seal_record
from falaj.store.fits import can_group, can_ride
from falaj.store.groups import Aside, Together, tell
from falaj.store.records import Fact, Lines, Page, Record

PROJECTIONS = frozenset(
    {
        *("tile", "checkpoint", "outcome", "object", "spent", "node", "trouble", "budget", "ailment", "scaling"),
        "restored-copy",
    }
)
"""Kinds that are derived from events or from bytes outside: a change of them alone needs no event."""

_OPEN = Label()
_NOTHING: Mapping[str, str] = {}
_MAX_TERM = 1024
_MAX_PAGE = 10_000
T = TypeVar("T")
_Given = tuple[Label | None, str, bool | None, Mapping[str, str] | None, str]
"""Label, zone, restricted, terms, author: what is not said of a record that is written over stays."""


class Ledger:
    """Transactions over records and events, the log's tail, leases."""

    def __init__(self, store: Store, cipher: Cipher | None = None) -> None:
        self.store = store
        self.cipher = cipher
        self.bundled = isinstance(store, CanBundle)
        self.local = _Local()
        self.counts, self.bells = Counts(), Bells()
        self.beside: Callable[[Callable[[], None]], None] | None = None
        """Who reads something ahead of those that will ask for it; None where the store is at hand, or nobody does."""
        self._noting, self._noted = threading.Lock(), 0

    def read(self, ctx: Context) -> "Reader":
        """One snapshot to read from; inside a transaction of this thread, that transaction."""
        return Reader(self, ctx)

    def look(self, ctx: Context) -> "Reader":
        """One snapshot of what is committed now; a group's own may be older than what the log says."""
        return Reader(self, ctx, latest=True)

    def write(self, ctx: Context) -> "Writer":
        """A transaction: commits on a clean exit, and then everything in it is durable; else nothing of it happened."""
        return Writer(self, ctx)

    def project(self, ctx: Context) -> "Writer":
        """A transaction over derived data (PROJECTIONS); no event is demanded and no other kind may change."""
        return Writer(self, ctx, projecting=True)

    def group(self) -> Together:
        """Transactions of this thread inside it become durable together, on exit, or all fail."""
        return Together(self)

    def aside(self, courier: Courier) -> Aside:
        """The same for an event loop, which hears later that they are."""
        return Aside(self, courier)

    def retry(self, ctx: Context, work: Callable[["Writer"], T], tries: int = 8) -> T:
        """Run `work` in a transaction, and again when another writer got in between. No effects outside, please."""
        for _ in range(tries - 1):
            try:
                with self.write(ctx) as tx:
                    return work(tx)
            except Stale:
                if self.local.root is not None:
                    raise
        with self.write(ctx) as tx:
            return work(tx)

    def outcome(self, ctx: Context, fingerprint: str = "") -> str | None:
        """What this caller's named request gave the first time, or None; Conflict when it now asks another thing."""
        if not ctx.keyed:
            return None
        with self.read(ctx) as tx:
            return requests.recall(tx.key(requests.outcome_key(ctx)), fingerprint)

    def tail(self, after: str = "", *, tenant: str = "", zone: str = "", limit: int = 1000, **where: str) -> list[Fact]:
        """The log after a cursor, opened; never skips what commits late."""
        return open_events(self.cipher, self.store.events(after, tenant=tenant, zone=zone, limit=limit, **where))

    def lines(self, after: str, *, tenant: str, zone: str, limit: int) -> Lines:
        """One log after a cursor as it was hashed: opened and held against the hashes, and not read."""
        raws, leaves, pos = list[bytes](), list[bytes](), after
        for at, rows in self._parts(after, tenant, zone, limit):
            pos = at
            raws += open_lines(self.cipher, rows)
            leaves += [row.leaf for row in rows]
        return Lines(raws, leaves, pos)

    def leaves(self, after: str, *, tenant: str, zone: str, limit: int) -> list[tuple[str, bytes, float]]:
        """(cursor, leaf hash, time) of one log, for the audit tree; opens nothing."""
        return [(row.pos, row.leaf, row.at) for row in self.store.events(after, tenant=tenant, zone=zone, limit=limit)]

    def subjects(self, after: str, kind: str, limit: int) -> list[tuple[str, Key]]:
        """(cursor, which revision of what) of the log about things of one kind; opens nothing."""
        return [(row.pos, row.subject) for row in self.store.events(after, kind=kind, limit=limit)]

    def logs(self) -> list[tuple[str, str]]:
        """Every (tenant, zone) that has events."""
        return self.store.logs()

    def probe(self) -> None:
        """Return if the store answers, or answered a poller a moment ago."""
        with self.polling():
            self.store.end()

    def polling(self) -> AbstractContextManager[None]:
        """While entered, reads of the log and of leases by this thread may be a second or two old."""
        return self.store.polling() if isinstance(self.store, CanPoll) else nullcontext()

    def lease(self, name: str, owner: str, ttl_s: float, now: float) -> int | None:
        """Take or extend a lease: a fencing token that only grows, or None while another holds it."""
        self._demand_no_transaction()
        return self.store.lease(name, owner, ttl_s, now)

    def release(self, name: str, owner: str) -> None:
        """Give a lease back before it runs out."""
        self._demand_no_transaction()
        self.store.release(name, owner)

    def on_commit(self, callback: Callable[[], None], kinds: Iterable[str] = ()) -> None:
        """Call back after every commit here (and elsewhere, where the store can tell); be quick, never raise.

        With `kinds`, of commits here only after those with events about such things.
        """
        if self.bells.hang(callback, kinds) and isinstance(self.store, CanWatch):
            self.store.watch(self.bells.ring)

    @property
    def since(self) -> int:
        """After how many changes (`note`) what this thread reads was the newest: all, or those before its group."""
        return self._noted if self.local.since is None else self.local.since

    def note(self) -> int:
        """Count a change that somebody keeps in memory; what a group read that began before it is of the past."""
        with self._noting:
            self._noted += 1
            return self._noted

    @property
    def busy(self) -> bool:
        """True while this thread is inside a transaction or a group: what it reads may yet be undone."""
        return self.local.root is not None or self.local.waiting is not None

    @property
    def together(self) -> object:
        """The group that this thread is in, known by being the same; None outside of any."""
        return self.local.waiting

    @property
    def transacting(self) -> bool:
        """True while this thread is inside a transaction, be it in a group or not."""
        return self.local.root is not None

    def close(self) -> None:
        """Close the store; what was acknowledged is durable already."""
        self.store.close()

    def _parts(self, after: str, tenant: str, zone: str, limit: int) -> Iterable[tuple[str, list[EventRow]]]:
        if isinstance(self.store, CanBundle):
            return self.store.bundles(after, tenant=tenant, zone=zone, limit=limit)
        rows = self.store.events(after, tenant=tenant, zone=zone, limit=limit)
        return [(rows[-1].pos, rows)] if rows else []

    def _demand_no_transaction(self) -> None:
        if self.local.root is not None or self.local.waiting is not None:
            raise Invalid(
                "a lease has no place inside a transaction", "an undone one would hand the same token out twice"
            )


class Root:
    """What every Writer of one transaction shares."""

    __slots__ = ("after", "before", "changed", "events", "failed", "labelled", "levels", "said", "touched", "txn")

    def __init__(self, txn: Txn) -> None:
        self.txn = txn
        self.said: list[Event] = []
        self.events: list[EventRow] = []
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[bool], None]] = []
        self.changed = False
        self.touched = 0
        self.levels = 1
        self.failed: BaseException | None = None
        self.labelled: set[tuple[str, str, str]] = set()
        """The records written in it whose label limits who may read their values."""


class _Local(threading.local):
    root: Root | None = None
    waiting: list[Callable[[bool], None]] | None = None
    before: list[Callable[[], None]]
    since: int | None = None
    grouped: int = 0
    """How many transactions of the group there are."""
    verbs: list[str]
    kinds: set[str]
    opened: dict[Key, tuple[Row, Record]] | None = None
    """What was opened in the group: guard and verb ask for the same."""
    spoke: Context | None = None
    voice: Voice | None = None


class Reader:
    """Questions to one snapshot."""

    __slots__ = ("_ctx", "_latest", "_ledger", "_own", "_txn")

    def __init__(self, ledger: Ledger, ctx: Context, latest: bool = False) -> None:
        self._ledger = ledger
        self._ctx = ctx
        self._latest = latest
        self._txn: Txn
        self._own = False

    def __enter__(self) -> "Reader":
        root, store = self._ledger.local.root, self._ledger.store
        if self._latest and can_group(store):
            self._own, self._txn = True, store.look()
        else:
            self._own, self._txn = root is None, store.begin(write=False) if root is None else root.txn
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own:
            self._txn.rollback()

    def get(self, ref: Ref, tenant: str = "") -> Record | None:
        """The record of exactly that name and version; a floating version is not resolved here."""
        record = self.key(key_of(ref, tenant or self._ctx.tenant))
        if record is not None and ref.version != record.key.version and ref.version != f"r{record.rev}":
            return None
        return record

    def need(self, ref: Ref, tenant: str = "") -> Record:
        """The record, or NotFound."""
        record = self.get(ref, tenant)
        if record is None:
            raise NotFound(f"there is no {ref}", "check the name; a list shows what you may see", ref)
        return record

    def key(self, key: Key) -> Record | None:
        """The record under a key of any tenant."""
        row = self._txn.get(key)
        if row is None:
            return None
        opened = self._ledger.local.opened
        held = opened.get(key) if opened is not None else None
        if held is not None and (held[0] is row or held[0] == row):
            return held[1]
        record = open_record(self._ledger.cipher, row)
        if opened is not None:
            opened[key] = row, record
        return record

    def cell(self, ref: Ref) -> Cell | None:
        """Where a thing stands for policy: that version, or the name where it has none. Nothing of it is opened."""
        for key in dict.fromkeys((key_of(ref, self._ctx.tenant), key_of(ref.bare, self._ctx.tenant))):
            row = self._txn.get(key)
            if row is not None:
                return Cell.decode(row.cell)
        return None

    def find(
        self,
        kind: str,
        *,
        tenant: str = "",
        project: str = "",
        name: str = "",
        prefix: str = "",
        terms: Mapping[str, str] = _NOTHING,
        cells: frozenset[str] | None = None,
        newest: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> Page:
        """A page of records by name (or newest first), filtered in the query; `cells` None is for the house itself."""
        if not 0 < limit <= _MAX_PAGE:
            raise Invalid(f"a page of {limit} records", f"ask for 1 to {_MAX_PAGE} and follow `next`")
        if cells is not None and not cells:
            return Page(())
        asked = Query(tenant or self._ctx.tenant, kind, project, name, prefix, terms, cells, newest, after, limit)
        found = self._txn.find(asked)
        cipher = self._ledger.cipher
        return Page(tuple([open_record(cipher, row) for row in found.rows]), found.next)

    def cells(self, kind: str, tenant: str = "") -> frozenset[str]:
        """The distinct cells of a tenant's records of one kind, for the guard to ask policy about."""
        return self._txn.cells(tenant or self._ctx.tenant, kind)


class Writer(Reader):
    """Changes and the events that tell of them."""

    __slots__ = ("_projecting", "_root", "_start", "_voice")

    def __init__(self, ledger: Ledger, ctx: Context, projecting: bool = False) -> None:
        self._ledger = ledger
        self._ctx = ctx
        self._projecting = projecting
        self._voice: Voice | None = None

    def __enter__(self) -> "Writer":
        local = self._ledger.local
        root = local.root
        if root is None:
            root = local.root = Root(self._ledger.store.begin(write=True))
        else:
            root.levels += 1
        self._root = root
        self._txn = root.txn
        self._start = root.touched
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        root = self._root
        if root.levels > 1:
            root.levels -= 1
            if error is not None and root.touched != self._start:
                # Half of an inner write is in the transaction: if the outer one swallows the error it must not commit.
                root.failed = root.failed or error
            return
        try:
            if error is None:
                self._check_whole(root)
                # Sealing may have to make a key, which is a write that joins this transaction and speaks in it.
                while root.said:
                    said, root.said = root.said, []
                    root.events += seal_events(self._ledger.cipher, said, self._ledger.bundled)
        except BaseException:
            self._ledger.local.root = None
            _undo(root)
            raise
        self._ledger.local.root = None
        if error is None:
            self._commit(root)
        else:
            _undo(root)

    def put(
        self,
        ref: Ref | Key,
        body: Mapping[str, Any],
        *,
        rev: int | Record | None = None,
        label: Label | None = None,
        zone: str = "",
        restricted: bool | None = None,
        terms: Mapping[str, str] | None = None,
        author: str = "",
    ) -> Record:
        """Create (rev None; Conflict if it exists) or write over exactly revision `rev` (Stale otherwise).

        On an update what is not given is kept, and a label that the context carries is joined to the one kept. Where
        the record that is written over is given as `rev`, it is not read again.
        """
        ctx = self._ctx
        key = key_of(ref, ctx.tenant)
        self._check(key, terms)
        if rev is None:
            label, zone, author = label or ctx.label or _OPEN, zone or ctx.zone, author or ctx.actor.id
            about = label, zone, author, bool(restricted), ctx.now(), dict(terms or _NOTHING)
            record = Record(key, 1, dict(body), *about, marked(key.kind, body))
            self._save(record, None)
        else:
            record, old = self._over(key, rev, body, (label, zone, restricted, terms, author))
            self._save(record, old)
        return record

    def delete(self, ref: Ref | Key, rev: int) -> None:
        """Remove the record at exactly revision `rev`, or Stale."""
        key = key_of(ref, self._ctx.tenant)
        self._check(key, None)
        self._txn.delete(key, rev)
        self._touch(key.kind)

    def emit(
        self,
        verb: str,
        subject: Ref,
        inputs: tuple[Ref, ...] = (),
        *,
        sealed: str = "",
        tenant: str = "",
        **body: str | int | float,
    ) -> Event:
        """Say what happened, in this transaction: subject and inputs must be pinned.

        The log is open to auditors and goes out by hooks: what an event says of a labelled record written here is
        structure, and its texts stay in the record.
        """
        root = self._root
        if root.labelled and (subject.kind, subject.project, subject.name) in root.labelled:
            body = withhold_texts(body, by_person=self._ctx.actor.kind == "person")
        voice = self._voice or self._find_voice()
        if voice.facts and not root.said:
            # Once a transaction is enough to replay the decision that let it happen.
            body["facts"] = voice.facts
        if voice.credential_by:
            body["credential_by"] = voice.credential_by
        event = voice.say(verb, subject, inputs, body, sealed, tenant, self._ctx.now())
        root.said.append(event)
        root.touched += 1
        return event

    @property
    def emitted(self) -> int:
        """How many events this transaction has so far; the guard adds its own where a verb said nothing."""
        return len(self._root.said)

    def remember(self, outcome_json: str, fingerprint: str) -> None:
        """Keep the outcome of a named request; Stale when the same request was just carried out elsewhere."""
        ctx = self._ctx
        if not ctx.keyed:
            return
        key = requests.outcome_key(ctx)
        try:
            terms = {"day": str(requests.day(ctx.now()))}
            self.put(key, requests.outcome_body(outcome_json, fingerprint), terms=terms)
        except Stale:
            raise  # the engine gave the whole transaction up: nothing more can be asked in it
        except Conflict as error:
            requests.recall(self.key(key), fingerprint)
            raise Stale(
                "the same request was carried out a moment ago", "call again: it will find that outcome"
            ) from error

    def ride(self, series: Series, blocks: Sequence[Block]) -> bool:
        """Have measurements durable with this transaction or not at all; False where they lie elsewhere."""
        rides = can_ride(series) and series.ride(blocks, self._root.txn)
        self._root.changed |= rides  # they are written with its events, so there must be one
        return rides

    def before(self, callback: Callable[[], None]) -> None:
        """Call back once when all of the transaction is there and nothing of it durable; an error undoes it."""
        self._root.before.append(callback)

    def after(self, callback: Callable[[bool], None]) -> None:
        """Call back once when the transaction has ended: True when it is durable, False when it is undone."""
        self._root.after.append(callback)

    def _find_voice(self) -> Voice:
        local, ctx = self._ledger.local, self._ctx
        voice = local.voice
        if voice is None or local.spoke is not ctx:
            voice = Voice(ctx)
            local.spoke, local.voice = ctx, voice
        self._voice = voice
        return voice

    def _over(self, key: Key, rev: int | Record, body: Mapping[str, Any], given: _Given) -> tuple[Record, Record]:
        label, zone, restricted, terms, author = given
        # Of a record that is held the store says whether it is the newest, when it is written.
        old, number = (rev, rev.rev) if isinstance(rev, Record) else (self.key(key), rev)
        if old is None or old.rev != number or old.key != key:
            raise _stale(key, number, old.rev if old else 0)
        if label is None:
            label = old.label.join(self._ctx.label) if self._ctx.label else old.label
        zone, author = zone or old.zone, author or old.author
        restricted = old.restricted if restricted is None else restricted
        terms = dict(old.terms if terms is None else terms)
        whole, kept = carried(key.kind, body, old.body, old.kept) if old.kept else (dict(body), marked(key.kind, body))
        return Record(key, number + 1, whole, label, zone, author, restricted, self._ctx.now(), terms, kept), old

    def _save(self, record: Record, old: Record | None) -> None:
        key, row = record.key, seal_record(self._ledger.cipher, record, old)
        try:
            self._txn.put(row, old.rev if old else 0)
        except Stale as error:
            # With a cause it is the engine that asks for a retry, and says nothing about the name.
            if old or error.__cause__ is not None:
                raise
            text = f"{key.kind} {key.project}/{key.name} exists already"
            raise Conflict(text, "choose another name, or write over its revision") from error
        if not record.label.is_open:
            self._root.labelled.add((key.kind, key.project, key.name))
        self._touch(record.key.kind)

    def _check(self, key: Key, terms: Mapping[str, str] | None) -> None:
        if self._projecting and key.kind not in PROJECTIONS:
            raise SilentChange(f"{key.kind} is not derived data", "use ledger.write and emit an event")
        if "\0" in "".join(key):
            raise Invalid("a name holds a NUL character", "use printable characters")
        for field, value in terms.items() if terms else ():
            if len(value) > _MAX_TERM or "\0" in value or "\0" in field:
                raise Invalid(f"the term {field[:80]!r} is too long or holds a NUL", f"at most {_MAX_TERM} characters")

    def _touch(self, kind: str) -> None:
        root = self._root
        root.touched += 1
        if kind not in PROJECTIONS:
            root.changed = True

    def _check_whole(self, root: Root) -> None:
        if root.failed is not None:
            raise root.failed
        if root.changed and not root.said:
            raise SilentChange("a record changed and no event says so", "emit an event in the same transaction")

    def _commit(self, root: Root) -> None:
        if not root.touched:
            _undo(root)
            return
        local = self._ledger.local
        try:
            if root.events:
                root.txn.append(root.events)
            for callback in root.before if local.waiting is None else ():
                callback()
        except BaseException:
            _undo(root)  # an engine may refuse it here; what is not ended holds a connection for ever
            raise
        began = perf_counter()
        try:
            root.txn.commit()
        except BaseException:
            tell(root.after, durable=False)
            raise
        ledger = self._ledger
        verbs, kinds = [event.verb for event in root.events], {event.subject.kind for event in root.events}
        if local.waiting is not None:
            local.waiting.extend(root.after)
            local.before.extend(root.before)
            local.grouped += 1
            local.verbs.extend(verbs)
            local.kinds |= kinds
            return
        ledger.counts.durable(perf_counter() - began, 1, verbs)
        tell(root.after, durable=True)
        ledger.bells.ring(kinds)


def _undo(root: Root) -> None:
    root.txn.rollback()
    tell(root.after, durable=False)


def _stale(key: Key, rev: int, newest: int) -> FalajError:
    now = f"its newest is {newest}" if newest else "it does not exist"
    return Stale(f"{key.kind} {key.project}/{key.name} is not at revision {rev}: {now}", "read it again and retry")
