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

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, StaleRevision, UnrecordedChange
from falaj.core.event import Event
from falaj.core.label import Label
from falaj.core.policy_scope import PolicyScope
from falaj.core.ports import (
    AsyncCommitter,
    EventRow,
    LedgerStore,
    RecordCipher,
    RecordKey,
    RecordQuery,
    SeriesBlock,
    SeriesStore,
    StoredRow,
    StoreTransaction,
    SupportsCommitWatch,
    SupportsEventBundles,
    SupportsSharedPolling,
)
from falaj.core.ref import Ref
from falaj.core.withholding import withhold_texts
from falaj.store import request_outcomes
from falaj.store.commit_listeners import CommitListeners
from falaj.store.envelope import (
    EventFactory,
    decrypt_events,
    decrypt_log_lines,
    decrypt_record,
    encrypt_events,
    encrypt_record,
    to_record_key,
)
from falaj.store.group_commit import AsyncGroupCommit, GroupCommit, notify_callbacks
from falaj.store.ledger_statistics import LedgerStatistics
from falaj.store.newer_fields import carry_newer_fields, list_added_fields
from falaj.store.records import LedgerRecord, LoggedEvent, LogLines, RecordPage
from falaj.store.store_capabilities import supports_group_commit, supports_transactional_append

DERIVED_KINDS = frozenset(
    {
        *("tile", "checkpoint", "outcome", "object", "spent", "node", "trouble", "budget", "ailment", "scaling"),
        "restored-copy",
    }
)
"""Kinds that are derived from events or from bytes outside: a change of them alone needs no event."""

_OPEN_LABEL = Label()
_NO_TERMS: Mapping[str, str] = {}
_MAX_TERM_CHARS = 1024
_MAX_PAGE_RECORDS = 10_000
T = TypeVar("T")
_RecordFacts = tuple[Label | None, str, bool | None, Mapping[str, str] | None, str]
"""Label, zone, restricted, terms, author: what is not said of a record that is written over stays."""


class Ledger:
    """Transactions over records and events, the log's tail, leases."""

    def __init__(self, store: LedgerStore, cipher: RecordCipher | None = None) -> None:
        self.store = store
        self.cipher = cipher
        self.bundled = isinstance(store, SupportsEventBundles)
        self.local = _ThreadState()
        self.counts, self.bells = LedgerStatistics(), CommitListeners()
        self.beside: Callable[[Callable[[], None]], None] | None = None
        """Who reads something ahead of those that will ask for it; None where the store is at hand, or nobody does."""
        self._change_lock, self._change_count = threading.Lock(), 0

    def read(self, ctx: CallContext) -> "LedgerReader":
        """One snapshot to read from; inside a transaction of this thread, that transaction."""
        return LedgerReader(self, ctx)

    def look(self, ctx: CallContext) -> "LedgerReader":
        """One snapshot of what is committed now; a group's own may be older than what the log says."""
        return LedgerReader(self, ctx, reads_latest=True)

    def write(self, ctx: CallContext) -> "LedgerWriter":
        """A transaction: commits on a clean exit, and then everything in it is durable; else nothing of it happened."""
        return LedgerWriter(self, ctx)

    def project(self, ctx: CallContext) -> "LedgerWriter":
        """A transaction over derived data (PROJECTIONS); no event is demanded and no other kind may change."""
        return LedgerWriter(self, ctx, derived_only=True)

    def group(self) -> GroupCommit:
        """Transactions of this thread inside it become durable together, on exit, or all fail."""
        return GroupCommit(self)

    def aside(self, committer: AsyncCommitter) -> AsyncGroupCommit:
        """The same for an event loop, which hears later that they are."""
        return AsyncGroupCommit(self, committer)

    def retry(self, ctx: CallContext, work: Callable[["LedgerWriter"], T], tries: int = 8) -> T:
        """Run `work` in a transaction, and again when another writer got in between. No effects outside, please."""
        for _ in range(tries - 1):
            try:
                with self.write(ctx) as tx:
                    return work(tx)
            except StaleRevision:
                if self.local.root is not None:
                    raise
        with self.write(ctx) as tx:
            return work(tx)

    def outcome(self, ctx: CallContext, fingerprint: str = "") -> str | None:
        """What this caller's named request gave the first time, or None; Conflict when it now asks another thing."""
        if not ctx.keyed:
            return None
        with self.read(ctx) as tx:
            return request_outcomes.read_outcome(tx.key(request_outcomes.make_outcome_key(ctx)), fingerprint)

    def tail(
        self, after: str = "", *, tenant: str = "", zone: str = "", limit: int = 1000, **filters: str
    ) -> list[LoggedEvent]:
        """The log after a cursor, opened; never skips what commits late."""
        return decrypt_events(self.cipher, self.store.events(after, tenant=tenant, zone=zone, limit=limit, **filters))

    def lines(self, after: str, *, tenant: str, zone: str, limit: int) -> LogLines:
        """One log after a cursor as it was hashed: opened and held against the hashes, and not read."""
        raws, leaves, last_cursor = list[bytes](), list[bytes](), after
        for cursor, rows in self._read_event_bundles(after, tenant, zone, limit):
            last_cursor = cursor
            raws += decrypt_log_lines(self.cipher, rows)
            leaves += [row.leaf for row in rows]
        return LogLines(raws, leaves, last_cursor)

    def leaves(self, after: str, *, tenant: str, zone: str, limit: int) -> list[tuple[str, bytes, float]]:
        """(cursor, leaf hash, time) of one log, for the audit tree; opens nothing."""
        return [(row.pos, row.leaf, row.at) for row in self.store.events(after, tenant=tenant, zone=zone, limit=limit)]

    def subjects(self, after: str, kind: str, limit: int) -> list[tuple[str, RecordKey]]:
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
        return self.store.polling() if isinstance(self.store, SupportsSharedPolling) else nullcontext()

    def lease(self, name: str, owner: str, ttl_s: float, now: float) -> int | None:
        """Take or extend a lease: a fencing token that only grows, or None while another holds it."""
        self._require_no_transaction()
        return self.store.lease(name, owner, ttl_s, now)

    def release(self, name: str, owner: str) -> None:
        """Give a lease back before it runs out."""
        self._require_no_transaction()
        self.store.release(name, owner)

    def on_commit(self, callback: Callable[[], None], kinds: Iterable[str] = ()) -> None:
        """Call back after every commit here (and elsewhere, where the store can tell); be quick, never raise.

        With `kinds`, of commits here only after those with events about such things.
        """
        if self.bells.hang(callback, kinds) and isinstance(self.store, SupportsCommitWatch):
            self.store.watch(self.bells.ring)

    @property
    def since(self) -> int:
        """After how many changes (`note`) what this thread reads was the newest: all, or those before its group."""
        return self._change_count if self.local.since is None else self.local.since

    def note(self) -> int:
        """Count a change that somebody keeps in memory; what a group read that began before it is of the past."""
        with self._change_lock:
            self._change_count += 1
            return self._change_count

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

    def _read_event_bundles(
        self, after: str, tenant: str, zone: str, limit: int
    ) -> Iterable[tuple[str, list[EventRow]]]:
        if isinstance(self.store, SupportsEventBundles):
            return self.store.bundles(after, tenant=tenant, zone=zone, limit=limit)
        rows = self.store.events(after, tenant=tenant, zone=zone, limit=limit)
        return [(rows[-1].pos, rows)] if rows else []

    def _require_no_transaction(self) -> None:
        if self.local.root is not None or self.local.waiting is not None:
            raise Invalid(
                "a lease has no place inside a transaction", "an undone one would hand the same token out twice"
            )


class TransactionState:
    """What every Writer of one transaction shares."""

    __slots__ = ("after", "before", "changed", "events", "failed", "labelled", "levels", "said", "touched", "txn")

    def __init__(self, store_transaction: StoreTransaction) -> None:
        self.txn = store_transaction
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


class _ThreadState(threading.local):
    root: TransactionState | None = None
    waiting: list[Callable[[bool], None]] | None = None
    before: list[Callable[[], None]]
    since: int | None = None
    grouped: int = 0
    """How many transactions of the group there are."""
    verbs: list[str]
    kinds: set[str]
    opened: dict[RecordKey, tuple[StoredRow, LedgerRecord]] | None = None
    """What was opened in the group: guard and verb ask for the same."""
    spoke: CallContext | None = None
    voice: EventFactory | None = None


class LedgerReader:
    """Questions to one snapshot."""

    __slots__ = ("_ctx", "_ledger", "_owns_transaction", "_reads_latest", "_store_transaction")

    def __init__(self, ledger: Ledger, ctx: CallContext, reads_latest: bool = False) -> None:
        self._ledger = ledger
        self._ctx = ctx
        self._reads_latest = reads_latest
        self._store_transaction: StoreTransaction
        self._owns_transaction = False

    def __enter__(self) -> "LedgerReader":
        transaction, store = self._ledger.local.root, self._ledger.store
        if self._reads_latest and supports_group_commit(store):
            self._owns_transaction, self._store_transaction = True, store.look()
        else:
            self._owns_transaction, self._store_transaction = (
                transaction is None,
                store.begin(write=False) if transaction is None else transaction.txn,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owns_transaction:
            self._store_transaction.rollback()

    def get(self, ref: Ref, tenant: str = "") -> LedgerRecord | None:
        """The record of exactly that name and version; a floating version is not resolved here."""
        record = self.key(to_record_key(ref, tenant or self._ctx.tenant))
        if record is not None and ref.version != record.key.version and ref.version != f"r{record.rev}":
            return None
        return record

    def need(self, ref: Ref, tenant: str = "") -> LedgerRecord:
        """The record, or NotFound."""
        record = self.get(ref, tenant)
        if record is None:
            raise NotFound(f"there is no {ref}", "check the name; a list shows what you may see", ref)
        return record

    def key(self, key: RecordKey) -> LedgerRecord | None:
        """The record under a key of any tenant."""
        row = self._store_transaction.get(key)
        if row is None:
            return None
        opened_records = self._ledger.local.opened
        cached = opened_records.get(key) if opened_records is not None else None
        if cached is not None and (cached[0] is row or cached[0] == row):
            return cached[1]
        record = decrypt_record(self._ledger.cipher, row)
        if opened_records is not None:
            opened_records[key] = row, record
        return record

    def cell(self, ref: Ref) -> PolicyScope | None:
        """Where a thing stands for policy: that version, or the name where it has none. Nothing of it is opened."""
        for key in dict.fromkeys((to_record_key(ref, self._ctx.tenant), to_record_key(ref.bare, self._ctx.tenant))):
            row = self._store_transaction.get(key)
            if row is not None:
                return PolicyScope.decode(row.cell)
        return None

    def find(
        self,
        kind: str,
        *,
        tenant: str = "",
        project: str = "",
        name: str = "",
        prefix: str = "",
        terms: Mapping[str, str] = _NO_TERMS,
        scopes: frozenset[str] | None = None,
        newest_first: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> RecordPage:
        """A page of records by name (or newest first), filtered in the query; `scopes` None is for the house itself."""
        if not 0 < limit <= _MAX_PAGE_RECORDS:
            raise Invalid(f"a page of {limit} records", f"ask for 1 to {_MAX_PAGE_RECORDS} and follow `next`")
        if scopes is not None and not scopes:
            return RecordPage(())
        query = RecordQuery(
            tenant or self._ctx.tenant, kind, project, name, prefix, terms, scopes, newest_first, after, limit
        )
        row_page = self._store_transaction.find(query)
        cipher = self._ledger.cipher
        return RecordPage(tuple([decrypt_record(cipher, row) for row in row_page.rows]), row_page.next)

    def cells(self, kind: str, tenant: str = "") -> frozenset[str]:
        """The distinct cells of a tenant's records of one kind, for the guard to ask policy about."""
        return self._store_transaction.cells(tenant or self._ctx.tenant, kind)


class LedgerWriter(LedgerReader):
    """Changes and the events that tell of them."""

    __slots__ = ("_change_count_before", "_derived_only", "_event_factory", "_transaction")

    def __init__(self, ledger: Ledger, ctx: CallContext, derived_only: bool = False) -> None:
        self._ledger = ledger
        self._ctx = ctx
        self._derived_only = derived_only
        self._event_factory: EventFactory | None = None

    def __enter__(self) -> "LedgerWriter":
        thread_state = self._ledger.local
        transaction = thread_state.root
        if transaction is None:
            transaction = thread_state.root = TransactionState(self._ledger.store.begin(write=True))
        else:
            transaction.levels += 1
        self._transaction = transaction
        self._store_transaction = transaction.txn
        self._change_count_before = transaction.touched
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._transaction
        if transaction.levels > 1:
            transaction.levels -= 1
            if error is not None and transaction.touched != self._change_count_before:
                # Half of an inner write is in the transaction: if the outer one swallows the error it must not commit.
                transaction.failed = transaction.failed or error
            return
        try:
            if error is None:
                self._require_events(transaction)
                # Sealing may have to make a key, which is a write that joins this transaction and speaks in it.
                while transaction.said:
                    events, transaction.said = transaction.said, []
                    transaction.events += encrypt_events(self._ledger.cipher, events, self._ledger.bundled)
        except BaseException:
            self._ledger.local.root = None
            _roll_back(transaction)
            raise
        self._ledger.local.root = None
        if error is None:
            self._commit_transaction(transaction)
        else:
            _roll_back(transaction)

    def put(
        self,
        ref: Ref | RecordKey,
        body: Mapping[str, Any],
        *,
        rev: int | LedgerRecord | None = None,
        label: Label | None = None,
        zone: str = "",
        restricted: bool | None = None,
        terms: Mapping[str, str] | None = None,
        author: str = "",
    ) -> LedgerRecord:
        """Create (rev None; Conflict if it exists) or write over exactly revision `rev` (StaleRevision otherwise).

        On an update what is not given is kept, and a label that the context carries is joined to the one kept. Where
        the record that is written over is given as `rev`, it is not read again.
        """
        ctx = self._ctx
        key = to_record_key(ref, ctx.tenant)
        self._require_valid_key(key, terms)
        if rev is None:
            label, zone, author = label or ctx.label or _OPEN_LABEL, zone or ctx.zone, author or ctx.actor.id
            record_facts = label, zone, author, bool(restricted), ctx.now(), dict(terms or _NO_TERMS)
            record = LedgerRecord(key, 1, dict(body), *record_facts, list_added_fields(key.kind, body))
            self._save_record(record, None)
        else:
            record, previous = self._build_next_revision(key, rev, body, (label, zone, restricted, terms, author))
            self._save_record(record, previous)
        return record

    def delete(self, ref: Ref | RecordKey, rev: int) -> None:
        """Remove the record at exactly revision `rev`, or StaleRevision."""
        key = to_record_key(ref, self._ctx.tenant)
        self._require_valid_key(key, None)
        self._store_transaction.delete(key, rev)
        self._count_change(key.kind)

    def emit(
        self,
        operation: str,
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
        transaction = self._transaction
        if transaction.labelled and (subject.kind, subject.project, subject.name) in transaction.labelled:
            body = withhold_texts(body, by_person=self._ctx.actor.kind == "person")
        event_factory = self._event_factory or self._get_event_factory()
        if event_factory.facts and not transaction.said:
            # Once a transaction is enough to replay the decision that let it happen.
            body["facts"] = event_factory.facts
        if event_factory.credential_by:
            body["credential_by"] = event_factory.credential_by
        event = event_factory.say(operation, subject, inputs, body, sealed, tenant, self._ctx.now())
        transaction.said.append(event)
        transaction.touched += 1
        return event

    @property
    def emitted(self) -> int:
        """How many events this transaction has so far; the guard adds its own where a verb said nothing."""
        return len(self._transaction.said)

    def remember(self, outcome_json: str, fingerprint: str) -> None:
        """Keep the outcome of a named request; StaleRevision when the same request was just carried out elsewhere."""
        ctx = self._ctx
        if not ctx.keyed:
            return
        key = request_outcomes.make_outcome_key(ctx)
        try:
            terms = {"day": str(request_outcomes.to_day_number(ctx.now()))}
            self.put(key, request_outcomes.make_outcome_body(outcome_json, fingerprint), terms=terms)
        except StaleRevision:
            raise  # the engine gave the whole transaction up: nothing more can be asked in it
        except Conflict as error:
            request_outcomes.read_outcome(self.key(key), fingerprint)
            raise StaleRevision(
                "the same request was carried out a moment ago", "call again: it will find that outcome"
            ) from error

    def ride(self, series: SeriesStore, blocks: Sequence[SeriesBlock]) -> bool:
        """Have measurements durable with this transaction or not at all; False where they lie elsewhere."""
        is_appended = supports_transactional_append(series) and series.ride(blocks, self._transaction.txn)
        self._transaction.changed |= is_appended  # they are written with its events, so there must be one
        return is_appended

    def before(self, callback: Callable[[], None]) -> None:
        """Call back once when all of the transaction is there and nothing of it durable; an error undoes it."""
        self._transaction.before.append(callback)

    def after(self, callback: Callable[[bool], None]) -> None:
        """Call back once when the transaction has ended: True when it is durable, False when it is undone."""
        self._transaction.after.append(callback)

    def _get_event_factory(self) -> EventFactory:
        thread_state, ctx = self._ledger.local, self._ctx
        event_factory = thread_state.voice
        if event_factory is None or thread_state.spoke is not ctx:
            event_factory = EventFactory(ctx)
            thread_state.spoke, thread_state.voice = ctx, event_factory
        self._event_factory = event_factory
        return event_factory

    def _build_next_revision(
        self, key: RecordKey, rev: int | LedgerRecord, body: Mapping[str, Any], record_facts: _RecordFacts
    ) -> tuple[LedgerRecord, LedgerRecord]:
        label, zone, restricted, terms, author = record_facts
        # Of a record that is held the store says whether it is the newest, when it is written.
        previous, revision = (rev, rev.rev) if isinstance(rev, LedgerRecord) else (self.key(key), rev)
        if previous is None or previous.rev != revision or previous.key != key:
            raise _stale_revision_error(key, revision, previous.rev if previous else 0)
        if label is None:
            label = previous.label.join(self._ctx.label) if self._ctx.label else previous.label
        zone, author = zone or previous.zone, author or previous.author
        restricted = previous.restricted if restricted is None else restricted
        terms = dict(previous.terms if terms is None else terms)
        merged_body, newer_fields = (
            carry_newer_fields(key.kind, body, previous.body, previous.kept)
            if previous.kept
            else (dict(body), list_added_fields(key.kind, body))
        )
        return LedgerRecord(
            key, revision + 1, merged_body, label, zone, author, restricted, self._ctx.now(), terms, newer_fields
        ), previous

    def _save_record(self, record: LedgerRecord, previous: LedgerRecord | None) -> None:
        key, row = record.key, encrypt_record(self._ledger.cipher, record, previous)
        try:
            self._store_transaction.put(row, previous.rev if previous else 0)
        except StaleRevision as error:
            # With a cause it is the engine that asks for a retry, and says nothing about the name.
            if previous or error.__cause__ is not None:
                raise
            text = f"{key.kind} {key.project}/{key.name} exists already"
            raise Conflict(text, "choose another name, or write over its revision") from error
        if not record.label.is_open:
            self._transaction.labelled.add((key.kind, key.project, key.name))
        self._count_change(record.key.kind)

    def _require_valid_key(self, key: RecordKey, terms: Mapping[str, str] | None) -> None:
        if self._derived_only and key.kind not in DERIVED_KINDS:
            raise UnrecordedChange(f"{key.kind} is not derived data", "use ledger.write and emit an event")
        if "\0" in "".join(key):
            raise Invalid("a name holds a NUL character", "use printable characters")
        for field, value in terms.items() if terms else ():
            if len(value) > _MAX_TERM_CHARS or "\0" in value or "\0" in field:
                raise Invalid(
                    f"the term {field[:80]!r} is too long or holds a NUL", f"at most {_MAX_TERM_CHARS} characters"
                )

    def _count_change(self, kind: str) -> None:
        transaction = self._transaction
        transaction.touched += 1
        if kind not in DERIVED_KINDS:
            transaction.changed = True

    def _require_events(self, transaction: TransactionState) -> None:
        if transaction.failed is not None:
            raise transaction.failed
        if transaction.changed and not transaction.said:
            raise UnrecordedChange("a record changed and no event says so", "emit an event in the same transaction")

    def _commit_transaction(self, transaction: TransactionState) -> None:
        if not transaction.touched:
            _roll_back(transaction)
            return
        thread_state = self._ledger.local
        try:
            if transaction.events:
                transaction.txn.append(transaction.events)
            for callback in transaction.before if thread_state.waiting is None else ():
                callback()
        except BaseException:
            _roll_back(transaction)  # an engine may refuse it here; what is not ended holds a connection for ever
            raise
        started = perf_counter()
        try:
            transaction.txn.commit()
        except BaseException:
            notify_callbacks(transaction.after, durable=False)
            raise
        ledger = self._ledger
        operations, kinds = (
            [event.verb for event in transaction.events],
            {event.subject.kind for event in transaction.events},
        )
        if thread_state.waiting is not None:
            thread_state.waiting.extend(transaction.after)
            thread_state.before.extend(transaction.before)
            thread_state.grouped += 1
            thread_state.verbs.extend(operations)
            thread_state.kinds |= kinds
            return
        ledger.counts.durable(perf_counter() - started, 1, operations)
        notify_callbacks(transaction.after, durable=True)
        ledger.bells.ring(kinds)


def _roll_back(transaction: TransactionState) -> None:
    transaction.txn.rollback()
    notify_callbacks(transaction.after, durable=False)


def _stale_revision_error(key: RecordKey, rev: int, newest_revision: int) -> FalajError:
    actual = f"its newest is {newest_revision}" if newest_revision else "it does not exist"
    return StaleRevision(
        f"{key.kind} {key.project}/{key.name} is not at revision {rev}: {actual}", "read it again and retry"
    )
