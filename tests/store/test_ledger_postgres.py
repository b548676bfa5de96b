"""What only PostgreSQL can do wrong: late commits, foreign transaction ids, retries, lost connections, notices."""

import threading
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from falaj.audit.lineage_graphs import LineageGraphs
from falaj.backends import postgres, postgres_log
from falaj.backends.postgres import PostgresLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, Invalid, StaleRevision, Unavailable
from falaj.core.ports import EventRow, RecordKey, RecordQuery, StoredRow, StoreTransaction
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, LedgerWriter
from tests.store.test_ledger import check_what_comes_first

CTX = CallContext(Actor("ann", "acme"), "uae")
THING = Ref.parse("thing:p/a")
KILL = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database()"""


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresLedgerStore]:
    made = PostgresLedgerStore(postgres_url, {"connections": 6, "wait_s": 3})
    yield made
    made.close()


def event(name: str) -> EventRow:
    return EventRow(name, "t", "z", "v", "a", RecordKey("t", "k", "p", "n", "r1"), 1.0, "", b"l" * 32, b"d")


def begun(store: PostgresLedgerStore) -> StoreTransaction:
    """One that the engine knows of: what only tells events is over in one statement."""
    txn = store.begin(write=True)
    txn.put(StoredRow(RecordKey("t", "k", "p", uuid.uuid4().hex), 1, "c", b"", 1.0), 0)
    return txn


def ids(rows: list[EventRow]) -> list[str]:
    return [row.id for row in rows]


def test_a_late_commit_is_never_skipped(store: PostgresLedgerStore) -> None:
    """The early transaction takes the lower number and the lower id, and commits last."""
    early, late = begun(store), begun(store)
    early.append([event("early")])
    late.append([event("late")])
    late.commit()
    assert store.events() == [], "what is committed above an open transaction is not read yet"
    cursor = ""
    early.commit()
    rows = store.events(cursor)
    assert ids(rows) == ["early", "late"]


def test_an_edge_that_commits_late_is_not_lost_to_lineage(store: PostgresLedgerStore) -> None:
    """The graph was read while the earlier transaction was open, and goes on behind what it has read."""
    ledger, graphs = Ledger(store), LineageGraphs()
    early, late = begun(store), begun(store)
    early.append([event("early")._replace(inputs=("k:p/a@r1",))])
    late.append([event("late")._replace(inputs=("k:p/b@r1",))])
    late.commit()
    assert graphs.of(ledger, "t").around("k:p/n@r1", "up").edges == ()
    early.commit()
    found = graphs.of(ledger, "t").around("k:p/n@r1", "up")
    assert {edge.input for edge in found.edges} == {"k:p/a@r1", "k:p/b@r1"}
    assert len(found.edges) == 2


def test_a_higher_number_with_a_lower_transaction_id_is_in_its_place(store: PostgresLedgerStore) -> None:
    """`first` has the lower xid but writes, and so numbers, its event after `second`: the order is by xid."""
    first, second = store.begin(write=True), store.begin(write=True)
    first.put(StoredRow(RecordKey("t", "k", "p", "n"), 1, "c", b"", 1.0), 0)
    second.append([event("second")])
    second.commit()
    third = store.begin(write=True)
    third.append([event("third")])
    third.commit()
    assert store.events() == []
    first.append([event("first")])
    first.commit()
    rows = store.events()
    assert ids(rows) == ["first", "second", "third"]
    for n, row in enumerate(rows):
        assert ids(store.events(row.pos)) == ["first", "second", "third"][n + 1 :]


def test_a_reader_that_follows_the_log_under_load_misses_nothing(store: PostgresLedgerStore) -> None:
    done = threading.Event()
    seen: list[str] = []

    def follow() -> None:
        cursor = ""
        while True:
            last = done.is_set()
            rows = store.events(cursor, limit=7)
            seen.extend(ids(rows))
            cursor = rows[-1].pos if rows else cursor
            if last and not rows:
                return

    def write(who: int) -> None:
        for n in range(25):
            txn = store.begin(write=True)
            txn.append([event(f"{who}-{n}-{part}") for part in "ab"])
            txn.rollback() if n % 5 == 4 else txn.commit()

    writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    follower = threading.Thread(target=follow)
    for thread in (*writers, follower):
        thread.start()
    for thread in writers:
        thread.join(60)
    done.set()
    follower.join(60)
    wanted = {f"{who}-{n}-{part}" for who in range(4) for n in range(25) if n % 5 != 4 for part in "ab"}
    assert len(seen) == len(set(seen)), "nothing twice"
    assert set(seen) == wanted


def test_transaction_ids_of_another_cluster_begin_a_new_epoch(store: PostgresLedgerStore, postgres_url: str) -> None:
    for name in ("one", "two"):
        txn = store.begin(write=True)
        txn.append([event(name)])
        txn.commit()
    old = store.events()
    store.close()
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute("UPDATE events SET xid = xid + 1000000000")
    again = PostgresLedgerStore(postgres_url, {"connections": 2})
    try:
        assert ids(again.events()) == ["one", "two"], "readable at once, not in a thousand million transactions"
        cursor = again.events()[-1].pos
        assert cursor > old[-1].pos
        txn = again.begin(write=True)
        txn.append([event("three")])
        txn.commit()
        assert ids(again.events(cursor)) == ["three"]
        assert ids(again.events()) == ["one", "two", "three"]
    finally:
        again.close()
    once_more = PostgresLedgerStore(postgres_url, {"connections": 2})
    assert ids(once_more.events()) == ["one", "two", "three"]
    once_more.close()


def test_a_replica_that_starts_among_writers_does_not_take_them_for_foreign(
    store: PostgresLedgerStore, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as starting:
        starting.execute("SELECT pg_current_xact_id()")
        txn = store.begin(write=True)
        txn.append([event("younger")])
        txn.commit()
        assert starting.execute("SELECT count(*) FROM events").fetchone() == (1,)
        assert starting.execute(postgres._SELECT_FOREIGN_XIDS).fetchone() is None


def test_two_who_look_and_then_write_cannot_both_be_right(store: PostgresLedgerStore) -> None:
    """Write skew: each sees an empty list and adds to it. One must be told to look again."""
    one, two = store.begin(write=True), store.begin(write=True)
    for txn, name in ((one, "a"), (two, "b")):
        assert txn.find(RecordQuery("t", "k")).rows == ()
        txn.put(StoredRow(RecordKey("t", "k", "p", name), 1, "c", b"", 1.0), 0)
    one.commit()
    with pytest.raises(StaleRevision):
        two.commit()
    reader = store.begin(write=False)
    assert [row.key.name for row in reader.find(RecordQuery("t", "k")).rows] == ["a"]
    reader.rollback()


def test_a_retry_asked_by_the_engine_is_not_taken_for_a_taken_name(store: PostgresLedgerStore) -> None:
    ledger = Ledger(store)
    with pytest.raises(StaleRevision) as caught, ledger.write(CTX) as tx:  # noqa: PT012
        assert tx.find("thing").records == ()
        rival = store.begin(write=True)
        assert rival.find(RecordQuery("acme", "thing")).rows == ()
        rival.put(StoredRow(RecordKey("acme", "thing", "p", "a"), 1, "c", b"", 1.0), 0)
        rival.commit()
        tx.emit("add", tx.put(THING, {}).ref)
    assert caught.type is StaleRevision
    with pytest.raises(Conflict) as plain, ledger.write(CTX) as tx:
        tx.put(THING, {})
    assert plain.type is Conflict


def test_a_group_that_meets_another_writer_is_undone_whole_and_can_be_run_again(store: PostgresLedgerStore) -> None:
    ledger, heard = Ledger(store), list[bool]()

    def together(rival: bool) -> None:
        with ledger.group():
            with ledger.write(CTX) as tx:
                tx.after(heard.append)
                tx.emit("add", tx.put(THING, {}).ref)
            if rival:
                other = store.alone(write=True)
                assert other.find(RecordQuery("acme", "thing")).rows == ()
                other.put(StoredRow(RecordKey("acme", "thing", "p", "b"), 1, "c", b"{}", 1.0), 0)
                other.commit()
            with ledger.write(CTX) as tx:
                assert not rival or tx.get(Ref.parse("thing:p/b")) is None
                tx.emit("say", THING.at("r1"))

    with pytest.raises(StaleRevision):
        together(rival=True)
    assert heard == [False]
    assert store.events() == []
    together(rival=False)
    assert heard == [False, True]
    assert [row.verb for row in store.events()] == ["add", "say"]


def test_the_first_of_a_group_can_be_undone_before_the_others_begin(store: PostgresLedgerStore) -> None:
    ledger = Ledger(store)
    with ledger.group():
        with pytest.raises(ZeroDivisionError), ledger.write(CTX) as tx:  # noqa: PT012
            tx.put(THING, {"n": 1})
            raise ZeroDivisionError
        with ledger.write(CTX) as tx:
            tx.emit("add", tx.put(THING, {"n": 2}).ref)
        with ledger.read(CTX) as reader:
            assert reader.need(THING).body == {"n": 2}
        broken = store.begin(write=True)
        with pytest.raises(Invalid):
            broken.put(StoredRow(RecordKey("acme", "thing", "p", "b"), 2**70, "c", b"", 1.0), 0)
        broken.rollback()
    with ledger.read(CTX) as reader:
        assert reader.need(THING).body == {"n": 2}


def test_a_broken_connection_is_replaced_before_the_body_runs(store: PostgresLedgerStore, postgres_url: str) -> None:
    ledger = Ledger(store)
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute(KILL)
    with ledger.write(CTX) as tx:
        tx.emit("add", tx.put(THING, {}).ref)
    with pytest.raises(Unavailable), ledger.write(CTX) as tx:  # noqa: PT012
        tx.need(THING)
        with psycopg.connect(postgres_url, autocommit=True) as raw:
            raw.execute(KILL)
        tx.emit("change", tx.put(THING, {}, rev=1).ref)
    with ledger.read(CTX) as tx:
        assert tx.need(THING).rev == 1


def test_a_connection_lost_in_the_commit_says_that_nobody_knows(store: PostgresLedgerStore, postgres_url: str) -> None:
    txn = begun(store)
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute(KILL)
    with pytest.raises(Unavailable, match="may have been recorded"):
        txn.commit()
    assert store.events() == []


def test_other_replicas_hear_of_a_commit(store: PostgresLedgerStore, postgres_url: str) -> None:
    other = Ledger(PostgresLedgerStore(postgres_url, {"connections": 2}))
    mine, heard = Ledger(store), threading.Semaphore(0)
    other.on_commit(heard.release)
    mine.on_commit(lambda: None)
    assert heard.acquire(timeout=10), "once when the watch begins"
    with mine.write(CTX) as tx:
        tx.emit("say", THING.at("r1"))
    assert heard.acquire(timeout=10)
    other.close()


def test_a_server_that_is_not_there_is_unavailable_and_named(postgres_url: str) -> None:
    with pytest.raises(Unavailable):
        PostgresLedgerStore("postgresql://nobody@127.0.0.1:1/none", {"wait_s": 0.5})


def test_a_group_that_is_lost_holds_nothing_any_more(postgres_url: str) -> None:
    """Whoever waits for its locks may hold every connection that its other members would ask for."""
    store, other = PostgresLedgerStore(postgres_url, {"connections": 1, "wait_s": 3}), PostgresLedgerStore(postgres_url)
    ledger, elsewhere = Ledger(store), Ledger(other)
    with elsewhere.write(CTX) as tx:
        tx.emit("make", tx.put(THING, {"n": 1}).ref)

    def together() -> None:
        with ledger.group():
            with ledger.write(CTX) as tx:
                assert tx.need(THING).rev == 1
                tx.emit("make", tx.put(Ref.parse("thing:p/b"), {"n": 1}).ref)
            with elsewhere.write(CTX) as tx:
                tx.emit("change", tx.put(THING, {"n": 2}, rev=1).ref)
            with pytest.raises(StaleRevision), ledger.write(CTX) as tx:
                tx.emit("change", tx.put(THING, {"n": 3}, rev=1).ref)
            with ledger.read(CTX) as seen:  # by the only connection there is
                assert seen.need(THING).body == {"n": 2}
            with psycopg.connect(postgres_url) as raw:
                raw.execute("LOCK TABLE records IN ACCESS EXCLUSIVE MODE NOWAIT")

    with pytest.raises(StaleRevision):
        together()
    store.close()
    other.close()


def test_what_only_tells_events_meets_nobody(store: PostgresLedgerStore, postgres_url: str) -> None:
    """Neither alone nor in a group, whoever changes what it has read meanwhile."""
    ledger, other = Ledger(store), Ledger(PostgresLedgerStore(postgres_url, {"connections": 2}))
    with other.write(CTX) as tx:
        tx.emit("make", tx.put(THING, {"n": 1}).ref)
    with ledger.group():
        with ledger.write(CTX) as tx:
            assert tx.need(THING).body == {"n": 1}
            tx.emit("look", THING.at("r1"))
        with other.write(CTX) as tx:
            tx.emit("change", tx.put(THING, {"n": 2}, rev=1).ref)
        with ledger.write(CTX) as tx:
            tx.emit("say", THING.at("r1"))
    assert [row.verb for row in store.events()] == ["make", "change", "look", "say"]
    other.close()


def test_a_member_that_writes_after_others_changed_what_it_read_looks_again(
    store: PostgresLedgerStore, postgres_url: str
) -> None:
    ledger, other = Ledger(store), Ledger(PostgresLedgerStore(postgres_url, {"connections": 2}))
    with other.write(CTX) as tx:
        tx.emit("make", tx.put(THING, {"n": 1}).ref)
    seen: list[int] = []

    def count(tx: LedgerWriter) -> None:
        found = tx.need(THING)
        seen.append(found.body["n"])
        if len(seen) == 1:
            with other.write(CTX) as theirs:
                theirs.emit("change", theirs.put(THING, {"n": 2}, rev=1).ref)
        tx.emit("note", tx.put(Ref.parse("note:p/a"), {"of": found.body["n"]}).ref)

    with ledger.group():
        with ledger.write(CTX) as tx:
            tx.emit("before", THING.at("r1"))
        ledger.retry(CTX, count)
    assert seen == [1, 2]
    with other.read(CTX) as reader:
        assert reader.need(Ref.parse("note:p/a")).body == {"of": 2}
    assert [row.verb for row in store.events()] == ["make", "change", "before", "note"]
    other.close()


def test_events_that_are_told_together_do_not_suffer_for_one_that_cannot_be_kept(store: PostgresLedgerStore) -> None:
    told, refused = list[str](), list[str]()

    def tell(name: str) -> None:
        txn = store.begin(write=True)
        txn.append([event(name)])
        try:
            txn.commit()
            told.append(name)
        except Invalid:
            refused.append(name)

    threads = [threading.Thread(target=tell, args=(f"bad\0{n}" if n % 4 == 0 else f"good{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(told), len(refused)) == (12, 4)
    assert sorted(ids(store.events())) == sorted(told)


def test_what_must_be_durable_first_is_asked_once_all_is_there_and_can_undo_a_group(store: PostgresLedgerStore) -> None:
    check_what_comes_first(Ledger(store), store)


def test_a_look_in_a_group_that_only_reads_needs_no_second_connection(postgres_url: str) -> None:
    store = PostgresLedgerStore(postgres_url, {"connections": 1, "wait_s": 3})
    ledger = Ledger(store)
    with ledger.group():
        with ledger.write(CTX) as tx:
            assert tx.get(THING) is None
            tx.emit("say", THING.at("r1"))
        with ledger.look(CTX) as seen:
            assert seen.get(THING) is None
        with ledger.read(CTX) as reader:
            assert reader.get(THING) is None
    assert [row.verb for row in store.events()] == ["say"]
    store.close()


def told(store: PostgresLedgerStore, name: str, kind: str = "k") -> None:
    txn = store.begin(write=True)
    txn.append([event(name)._replace(subject=RecordKey("t", kind, "p", "n", "r1"))])
    txn.commit()


def test_what_was_silent_is_not_read_again_and_a_late_commit_is_heard(store: PostgresLedgerStore) -> None:
    """Whoever follows one kind asks from its last event on; the others must not make each question longer."""
    told(store, "first")
    cursor = store.events(kind="k")[-1].pos
    late = begun(store)
    late.append([event("late")])
    for n in range(20):
        told(store, f"other{n}", "other")
    assert store.events(cursor, kind="k") == [], "the late one is not final, and nothing after it is"
    late.commit()
    assert ids(store.events(cursor, kind="k")) == ["late"]
    after = store.events(cursor, kind="k")[-1].pos
    assert store.events(after, kind="k") == []
    with psycopg.connect(store.pool.conninfo, autocommit=True) as raw:
        raw.execute("UPDATE events SET kind = 'k' WHERE id = 'other3'")
    assert store.events(after.upper(), kind="k") == [], "nobody looks there again, however the cursor is written"
    told(store, "new")
    assert ids(store.events(after, kind="k")) == ["new"]
    assert ids(store.events(cursor, kind="k", limit=1)) == ["late"], "an older cursor is answered from where it is"


def test_a_full_page_says_nothing_of_what_is_behind_it(store: PostgresLedgerStore) -> None:
    for n in range(5):
        told(store, f"{n}")
    found, cursor = [], ""
    while rows := store.events(cursor, kind="k", limit=2):
        found += ids(rows)
        cursor = rows[-1].pos
    assert found == ["0", "1", "2", "3", "4"]
    assert store.events(limit=0) == []
    assert len(store.events(kind="k")) == 5


def test_what_is_near_is_read_from_the_cursor_on(store: PostgresLedgerStore) -> None:
    """The engine cannot tell how little is behind a cursor, and would look through all there ever was of a kind."""
    told(store, "first")
    for where in ({"kind": "k"}, {"tenant": "t", "kind": "k"}, {"verb": "a b"}):
        text, values = postgres_log._build_log_query(where, is_recent=True)
        with psycopg.connect(store.pool.conninfo, autocommit=True) as raw:
            raw.execute("SET enable_seqscan = off")
            plan = raw.execute(f"EXPLAIN {text.replace('?', '%s')}", [0, 0, 0, *values, 10]).fetchall()
        used = {word for (line,) in plan for word in line.split() if word.startswith("events_")}
        assert used == {"events_pkey"}, plan


def test_a_connection_that_broke_in_a_commit_comes_back_clean(
    store: PostgresLedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    txn = begun(store)
    txn.append([event("nul\0")])
    with pytest.raises(Invalid):
        txn.commit()
    one, two = begun(store), begun(store)
    for mine, name in ((one, "x"), (two, "y")):
        mine.find(RecordQuery("t", "k"))
        mine.append([event(name)])
    one.commit()
    with pytest.raises(StaleRevision):
        two.commit()
    assert not [record for record in caplog.records if record.name == "psycopg.pool"]
    assert ids(store.events()) == ["x"]
