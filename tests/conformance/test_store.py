"""What every Store must do, asked of real SQLite and real PostgreSQL."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.errors import Invalid, StaleRevision
from falaj.core.ports import EventRow, LedgerStore, RecordKey, RecordQuery, StoredRow, SupportsDump, SupportsGroupCommit

ENGINES = ("sqlite", "postgresql")
Open = Callable[[], LedgerStore]


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Each call opens the same database once more, as another process would."""
    made: list[LedgerStore] = []
    file = f"sqlite:{tmp_path}/ledger.db"
    url: str = file if request.param == "sqlite" else request.getfixturevalue("new_postgres")()

    def open_it() -> LedgerStore:
        made.append(SqliteLedgerStore(url) if request.param == "sqlite" else PostgresLedgerStore(url, {"wait_s": 5}))
        return made[-1]

    yield open_it
    for store in made:
        store.close()


@pytest.fixture
def store(opened: Open) -> LedgerStore:
    return opened()


def key(name: str = "a", **other: str) -> RecordKey:
    return RecordKey(**{"tenant": "t", "kind": "thing", "project": "p", "name": name} | other)


def row(name: str = "a", rev: int = 1, cell: str = "c", at: float = 1.0, **terms: str) -> StoredRow:
    return StoredRow(key(name), rev, cell, b"\x00body\xff", at, tuple(sorted(terms.items())))


def event(n: int, tenant: str = "t", zone: str = "z", inputs: tuple[str, ...] = ()) -> EventRow:
    subject = RecordKey(tenant, "thing", "p", f"n{n}", "r1")
    return EventRow(
        f"id{n}", tenant, zone, f"verb{n % 2}", f"actor{n % 3}", subject, float(n), f"req{n}", b"l" * 32, b"\0d", inputs
    )


def write(store: LedgerStore, *rows: StoredRow, events: tuple[EventRow, ...] = ()) -> None:
    txn = store.begin(write=True)
    for item in rows:
        txn.put(item, 0)
    if events:
        txn.append(events)
    txn.commit()


def names(store: LedgerStore, **asked: object) -> list[str]:
    txn = store.begin(write=False)
    found = [r.key.name for r in txn.find(RecordQuery("t", "thing", **asked)).rows]  # type: ignore[arg-type]
    txn.rollback()
    return found


def test_a_row_comes_back_as_it_was(store: LedgerStore) -> None:
    write(store, row(color="red", size="l"))
    txn = store.begin(write=False)
    assert txn.get(key()) == row(color="red", size="l")
    assert txn.get(key("b")) is None
    assert txn.get(key(version="v1")) is None
    txn.rollback()


def test_creating_twice_and_stale_revisions_are_refused_and_harm_nothing(store: LedgerStore) -> None:
    write(store, row())
    txn = store.begin(write=True)
    with pytest.raises(StaleRevision):
        txn.put(row(), 0)
    with pytest.raises(StaleRevision):
        txn.put(row(rev=8), 7)
    with pytest.raises(StaleRevision):
        txn.delete(key(), 7)
    txn.put(row(rev=2, cell="d"), 1)
    txn.commit()
    txn = store.begin(write=False)
    assert txn.get(key()) == row(rev=2, cell="d")
    txn.rollback()


def test_rollback_leaves_nothing(store: LedgerStore) -> None:
    txn = store.begin(write=True)
    txn.put(row(color="red"), 0)
    txn.append([event(1)])
    txn.rollback()
    assert names(store) == names(store, terms={"color": "red"}) == []
    assert store.events() == []


def test_a_reader_keeps_its_snapshot(store: LedgerStore) -> None:
    write(store, row("a"))
    reader = store.begin(write=False)
    assert reader.get(key("a"))
    write(store, row("b"))
    assert reader.get(key("b")) is None
    reader.rollback()
    assert names(store) == ["a", "b"]


def test_a_reader_cannot_write(store: LedgerStore) -> None:
    txn = store.begin(write=False)
    for act in (lambda: txn.put(row(), 0), lambda: txn.delete(key(), 1), lambda: txn.append([event(1)])):
        with pytest.raises(Invalid):
            act()
    txn.rollback()


def test_terms_follow_the_record(store: LedgerStore) -> None:
    write(store, row("a", color="red", size="l"), row("b", color="red", size="s"))
    assert names(store, terms={"color": "red"}) == ["a", "b"]
    assert names(store, terms={"color": "red", "size": "s"}) == ["b"]
    txn = store.begin(write=True)
    txn.put(row("a", rev=2, color="blue"), 1)
    txn.delete(key("b"), 1)
    txn.commit()
    assert names(store, terms={"color": "red"}) == names(store, terms={"size": "l"}) == []
    assert names(store, terms={"color": "blue"}) == ["a"]


def test_terms_that_come_and_go_in_one_transaction_are_found_as_they_stand(store: LedgerStore) -> None:
    write(store, row("a", color="red"))
    txn = store.begin(write=True)
    txn.put(row("a", 2, color="blue"), 1)
    txn.put(row("b", 1, color="blue"), 0)
    assert [r.key.name for r in txn.find(RecordQuery("t", "thing", terms={"color": "blue"})).rows] == ["a", "b"]
    txn.put(row("a", 3, color="red"), 2)
    txn.put(row("b", 2, color="green"), 1)
    txn.put(row("b", 3, color="blue"), 2)
    txn.delete(key("a"), 3)
    txn.put(row("a", 1, color="red"), 0)
    txn.commit()
    assert (names(store, terms={"color": "red"}), names(store, terms={"color": "blue"})) == (["a"], ["b"])
    assert names(store, terms={"color": "green"}) == []


def test_what_a_writer_knows_of_the_row_before_is_as_good_as_read(store: LedgerStore) -> None:
    write(store, row(color="red", size="l"))
    known = ("c", (("size", "l"), ("color", "red")))
    txn = store.begin(write=True)
    txn.put(replace(row(rev=2, color="blue", size="l"), before=known), 1)
    with pytest.raises(StaleRevision):
        txn.put(replace(row(rev=2, color="green"), before=known), 1)
    txn.put(replace(row(rev=3, cell="d", size="l"), before=("c", (("color", "blue"), ("size", "l")))), 2)
    txn.commit()
    assert names(store, terms={"color": "red"}) == names(store, terms={"color": "blue"}) == []
    assert names(store, terms={"size": "l"}) == names(store, cells=frozenset({"d"})) == ["a"]
    assert names(store, cells=frozenset({"c"})) == []
    txn = store.begin(write=False)
    assert txn.get(key()) == row(rev=3, cell="d", size="l")
    txn.rollback()


def test_find_filters_in_the_query_and_pages_without_gap_or_repeat(store: LedgerStore) -> None:
    rows = [row(f"n{i:02}", cell=f"c{i % 3}", at=float(i % 4), parity=str(i % 2)) for i in range(20)]
    write(store, *rows)
    cells = frozenset({"c0", "c2", "elsewhere"})
    wanted = [r for r in rows if r.cell in cells and dict(r.terms)["parity"] == "1"]
    for newest in (False, True):
        seen: list[StoredRow] = []
        query = RecordQuery("t", "thing", terms={"parity": "1"}, cells=cells, newest=newest, limit=3)
        txn = store.begin(write=False)
        while True:
            page = txn.find(query)
            assert len(page.rows) <= 3
            seen += page.rows
            if not page.next:
                break
            query = replace(query, after=page.next)
        txn.rollback()
        ordered = sorted(wanted, key=lambda r: (r.at, r.key.name), reverse=True) if newest else wanted
        assert seen == ordered
    assert names(store, prefix="n1") == [f"n1{i}" for i in range(10)]
    assert names(store, name="n05") == ["n05"]
    assert names(store, project="q") == names(store, cells=frozenset()) == []


def test_names_sort_by_bytes_on_every_engine(store: LedgerStore) -> None:
    given = ["Zebra", "apple", "a-b", "a.b", "ab", "éclair", "日本"]
    write(store, *[row(name) for name in given])
    assert names(store) == sorted(given, key=str.encode)


def test_a_bad_cursor_is_the_callers_fault(store: LedgerStore) -> None:
    txn = store.begin(write=False)
    for after in ("x", "[1]", '["a","b"]', '{"a":1}', "[[],1,2]"):
        with pytest.raises(Invalid):
            txn.find(RecordQuery("t", "thing", after=after))
    txn.rollback()
    for pos in ("x", "1" * 39, "g" * 40):
        with pytest.raises(Invalid):
            store.events(pos)
    with pytest.raises(Invalid):
        store.events(nonsense="x")


def test_cells_are_distinct_and_of_one_tenant_and_kind(store: LedgerStore) -> None:
    other = replace(row("x", cell="foreign"), key=key("x", tenant="u"))
    write(store, *[row(f"n{i}", cell=f"c{i % 5}") for i in range(30)], other)
    txn = store.begin(write=False)
    assert txn.cells("t", "thing") == {f"c{i}" for i in range(5)}
    assert txn.cells("t", "nothing") == frozenset()
    txn.rollback()


def test_the_log_is_read_in_order_by_filter_and_by_cursor(store: LedgerStore) -> None:
    write(store, events=(event(1, inputs=("a:b/c@v1", "a:b/d@v2")), event(2, zone="y")))
    write(store, events=(event(3), event(4, tenant="u")))
    seen = store.events()
    assert [e.id for e in seen] == ["id1", "id2", "id3", "id4"]
    assert [e.pos for e in seen] == sorted({e.pos for e in seen})
    assert seen[0].inputs == ("a:b/c@v1", "a:b/d@v2")
    assert replace_pos(seen[2]) == event(3)
    assert [e.id for e in store.events(seen[1].pos, limit=1)] == ["id3"]
    assert [e.id for e in store.events(tenant="t", zone="z")] == ["id1", "id3"]
    for where in ({"id": "id3"}, {"request": "req3"}, {"name": "n3"}, {"verb": "verb1", "actor": "actor0"}):
        assert [e.id for e in store.events(**where)] == ["id3"], where
    assert store.logs() == [("t", "y"), ("t", "z"), ("u", "z")]


def test_the_log_is_read_by_several_verbs_and_by_what_has_inputs(store: LedgerStore) -> None:
    """The same before and after the engine has noted what it knows of: a few commits, then thousands of events."""
    made = [event(n, zone="yz"[n % 2], inputs=("a:b/c@v1",) if n % 7 == 0 else ()) for n in range(1, 301)]
    made += [event(n, tenant="u", inputs=("a:b/c@v1",)) for n in range(301, 304)]
    noise = [event(n, tenant="w")._replace(verb="later") for n in range(1000, 7000)]
    for events in (made[:4], made[4:8], made[8:40], made[40:] + noise):
        write(store, events=tuple(events))
        seen = [one for one in store.events(limit=10_000) if one.verb != "later"]
        for where in ({}, {"tenant": "t"}, {"tenant": "t", "zone": "z"}, {"tenant": "u"}, {"actor": "actor1"}):
            kept = [one for one in seen if all(getattr(one, name) == value for name, value in where.items())]
            edges = [one.id for one in kept if one.inputs]
            assert [one.id for one in store.events(inputs="any", **where)] == edges, where
            assert [one.id for one in store.events(inputs="any", limit=2, **where)] == edges[:2]
            both = [one.id for one in kept]
            assert [one.id for one in store.events(verb="verb1 verb0 none", **where)] == both, where
            after = kept[0].pos if kept else ""
            assert [one.id for one in store.events(after, verb="verb0 verb1", **where)] == both[1:], where
            odd = [one.id for one in kept if one.verb == "verb1" and one.inputs]
            assert [one.id for one in store.events(verb="verb1", inputs="any", **where)] == odd, where


def test_what_is_seldom_said_is_found_among_much_else(store: LedgerStore) -> None:
    made = [event(n) for n in range(1, 400)]
    for at, kind in ((100, "rare"), (399, "rare"), (250, "rarer")):
        made[at - 1] = made[at - 1]._replace(subject=RecordKey("t", kind, "p", f"n{at}", "r1"))
    made[300] = made[300]._replace(subject=RecordKey("t", "thing", "rare", "rare", "r1"), request="often said")
    write(store, events=tuple(made))
    assert [one.id for one in store.events(kind="rare")] == ["id100", "id399"]
    assert [one.id for one in store.events(kind="rare", verb=" verb1 ")] == ["id399"]
    assert [one.id for one in store.events(kind="thing", project="rare")] == ["id301"]
    assert [one.id for one in store.events(request="often said")] == ["id301"]
    assert store.events(kind="never") == []


def replace_pos(row: EventRow) -> EventRow:
    return row._replace(pos="")


def test_a_lease_has_one_holder_and_its_token_only_grows(opened: Open) -> None:
    one, two = opened(), opened()
    assert one.lease("l", "a", 10, 100.0) == 1
    assert two.lease("l", "b", 10, 105.0) is None
    assert one.lease("l", "a", 10, 109.0) == 1, "extending keeps the token"
    assert two.lease("l", "b", 10, 112.0) is None
    assert two.lease("l", "b", 10, 119.0) == 2, "run out at its very end"
    assert one.lease("l", "a", 10, 120.0) is None
    one.release("l", "a")
    assert one.lease("l", "a", 10, 120.0) is None, "only the holder can release"
    two.release("l", "b")
    assert one.lease("l", "a", 10, 120.0) == 3
    assert one.lease("l", "a", 10, 200.0) == 4, "the same owner after it ran out leads anew"


def test_nobody_waits_for_the_end_of_a_lease_that_a_wrong_clock_wrote(opened: Open) -> None:
    one, two = opened(), opened()
    assert one.lease("l", "a", 10, 100_000.0) == 1
    assert two.lease("l", "b", 10, 99_950.0) is None, "a clock may be a little off"
    assert two.lease("l", "b", 10, 100.0) == 2
    assert one.lease("l", "a", 10, 101.0) is None


def test_of_many_who_race_for_a_lease_one_wins(opened: Open) -> None:
    store = opened()
    won: list[tuple[str, int]] = []
    gate = threading.Barrier(8)

    def race(owner: str) -> None:
        gate.wait()
        token = store.lease("l", owner, 10, 100.0)
        if token is not None:
            won.append((owner, token))

    run_all([threading.Thread(target=race, args=(f"o{i}",)) for i in range(8)])
    assert len(won) == 1
    assert won[0][1] == 1


def test_concurrent_writers_lose_nothing(opened: Open) -> None:
    stores = [opened(), opened()]
    first = stores[0]
    write(first, row("count", rev=1))

    def add(store: LedgerStore, who: int) -> None:
        for n in range(10):
            while True:
                txn = store.begin(write=True)
                try:
                    held = txn.get(key("count"))
                    assert held is not None
                    txn.put(row("count", rev=held.rev + 1), held.rev)
                    txn.append([event(who * 100 + n)])
                    txn.commit()
                    break
                except StaleRevision:
                    txn.rollback()

    run_all([threading.Thread(target=add, args=(stores[i % 2], i)) for i in range(4)])
    txn = first.begin(write=False)
    held = txn.get(key("count"))
    txn.rollback()
    assert held is not None
    assert held.rev == 41
    assert len({e.id for e in first.events()}) == 40


def test_a_count_and_a_write_are_one_step(opened: Open) -> None:
    """Two writers who each look and then write cannot both have looked first."""
    one, two = opened(), opened()
    done: list[str] = []

    def join(store: LedgerStore, name: str) -> None:
        try:
            txn = store.begin(write=True)
            if len(txn.find(RecordQuery("t", "thing")).rows) == 0:
                gate.wait(timeout=1)
                txn.put(row(name), 0)
                txn.commit()
                done.append(name)
            else:
                txn.rollback()
        except (StaleRevision, threading.BrokenBarrierError):
            txn.rollback()

    gate = threading.Barrier(2)
    run_all([threading.Thread(target=join, args=(one, "a")), threading.Thread(target=join, args=(two, "b"))])
    assert len(done) <= 1
    assert names(one) == done


def test_a_group_is_durable_together_and_undone_one_by_one(opened: Open) -> None:
    store, other = opened(), opened()
    assert isinstance(store, SupportsGroupCommit)
    with store.group():
        write(store, row("a"), events=(event(1),))
        txn = store.begin(write=True)
        txn.put(row("b"), 0)
        txn.append([event(2)])
        txn.rollback()
        write(store, row("c"), events=(event(3),))
        assert names(store) == ["a", "c"], "the thread sees its own group"
        assert names(other) == [], "nobody else does before it is durable"
    assert names(other) == ["a", "c"]
    assert [e.id for e in other.events()] == ["id1", "id3"]


def test_the_cursor_of_now_has_all_before_it_and_the_rest_behind(opened: Open) -> None:
    store = opened()
    first = store.end()
    write(store, row("a"), events=(event(1),))
    second = store.end()
    write(store, row("b"), events=(event(2),))
    assert first < second < store.end()
    assert [e.id for e in store.events(first)] == ["id1", "id2"]
    assert [e.id for e in store.events(second)] == ["id2"]
    assert store.events(store.end()) == []


def test_a_look_sees_what_others_committed_and_nothing_of_the_group(opened: Open) -> None:
    store, other = opened(), opened()
    assert isinstance(store, SupportsGroupCommit)
    write(other, row("a"))
    with store.group():
        write(store, row("b"))
        look = store.look()
        assert [one.key.name for one in look.find(RecordQuery("t", "thing")).rows] == ["a"]
        look.rollback()


def test_a_dump_taken_while_others_write_is_one_moment(opened: Open) -> None:
    store = opened()
    assert isinstance(store, SupportsDump)
    write(store, row("a", color="red"), events=(event(1),))
    rows = store.dump()
    first = next(rows)
    write(store, row("b"), events=(event(2),))
    tables = [table for table, _ in [first, *rows]]
    assert tables == ["records", "events"]


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
