"""Rows that are remembered on PostgreSQL: nothing that rests on one which has changed is told, or answered."""

from collections.abc import Iterator
from typing import Any

import pytest

from falaj.backends import postgres_append, postgres_memory
from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.postgres_append import _PendingAppend
from falaj.backends.postgres_memory import Memory, Seen
from falaj.backends.series_postgres import PostgresSeriesStore
from falaj.core.errors import StaleRevision
from falaj.core.ports import EventRow, RecordKey, SeriesBlock, StoredRow
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger
from tests.store.remembered import CTX, KEYS, MADE, ONE, THREE, TWO, Counted, another, counted, look


@pytest.fixture(params=[0, 1000], ids=["own", "pool"])
def store(postgres_url: str, request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    monkeypatch.setattr(postgres_append, "DEDICATED_CONNECTION_AFTER", request.param)
    with counted(postgres_url) as made:
        yield made


@pytest.fixture
def other(postgres_url: str) -> Iterator[Ledger]:
    with another(postgres_url) as made:
        yield made


def say(store: PostgresLedgerStore, *verbs: str) -> list[Any]:
    """Members of one group, each of which looks at one thing and tells of it."""
    ledger, found = Ledger(store), list[Any]()
    with ledger.group():
        store.ahead(KEYS)
        for verb in verbs:
            with ledger.write(CTX) as tx:
                found.append(tx.need(ONE).body["n"])
                tx.emit(verb, tx.need(ONE).ref)
    return found


def change(ledger: Ledger, ref: Ref = ONE) -> None:
    with ledger.write(CTX) as tx:
        old = tx.need(ref)
        tx.emit("change", tx.put(ref, {"n": old.body["n"] + 1}, rev=old.rev).ref)


def verbs(store: PostgresLedgerStore) -> list[str]:
    return [row.verb for row in store.events()]


def test_what_is_remembered_is_not_asked_for_again(store: Counted) -> None:
    assert say(store, "a", "b") == [1, 1]
    assert store.asked == []
    assert verbs(store) == [*MADE, "a", "b"]


def test_what_rests_on_a_row_that_others_changed_is_not_told(store: Counted, other: Ledger) -> None:
    change(other)
    with pytest.raises(StaleRevision):
        say(store, "a", "b")
    assert verbs(store) == [*MADE, "change"]
    assert say(store, "a", "b") == [2, 2]
    assert verbs(store) == [*MADE, "change", "a", "b"]


def test_what_nobody_looked_at_counts_as_well_since_the_group_may_rest_on_it(store: Counted, other: Ledger) -> None:
    change(other, TWO)
    with pytest.raises(StaleRevision):
        say(store, "a")


def test_a_row_made_anew_at_the_same_revision_is_another(store: Counted, other: Ledger) -> None:
    with other.write(CTX) as tx:
        tx.delete(ONE, 1)
        tx.emit("delete", ONE.at("r1"))
    with other.write(CTX) as tx:
        tx.emit("make", tx.put(ONE, {"n": 7}).ref)
    with pytest.raises(StaleRevision):
        say(store, "a")
    assert say(store, "a") == [7]


def test_a_row_that_is_gone_is_noticed(store: Counted, other: Ledger) -> None:
    with other.write(CTX) as tx:
        tx.delete(TWO, 1)
        tx.emit("delete", TWO.at("r1"))
    with pytest.raises(StaleRevision):
        say(store, "a")


def test_measurements_that_ride_are_written_with_the_rest_or_not_at_all(
    store: Counted, other: Ledger, postgres_url: str
) -> None:
    series, ledger = PostgresSeriesStore(postgres_url), Ledger(store)

    def log(name: str) -> None:
        with ledger.group():
            store.ahead(KEYS)
            with ledger.write(CTX) as tx:
                assert tx.ride(series, (SeriesBlock("acme", "one", "", name, "uae", "", "", 1, 1.0, b"x", True),))
                tx.emit("log", tx.need(ONE).ref)

    log("first")
    change(other)
    with pytest.raises(StaleRevision):
        log("second")
    log("third")
    assert [block.id for block in series.read("acme", ("one",), "")] == ["first", "third"]
    series.close()


@pytest.mark.parametrize("changed", [False, True])
def test_who_tells_nothing_is_answered_after_another_look(store: Counted, other: Ledger, changed: bool) -> None:
    if changed:
        change(other)
        with pytest.raises(StaleRevision):
            look(store)
        look(store)
        assert say(store, "a") == [2]
    else:
        look(store)
        assert say(store, "a") == [1]


@pytest.mark.parametrize("changed", [False, True])
def test_a_member_that_changes_something_proves_what_those_before_it_saw(
    store: Counted, other: Ledger, changed: bool
) -> None:
    ledger = Ledger(store)

    def both() -> None:
        with ledger.group():
            store.ahead(KEYS)
            with ledger.write(CTX) as tx:
                tx.emit("a", tx.need(ONE).ref)
            with ledger.write(CTX) as tx:
                tx.emit("b", tx.put(THREE, {"n": 1}).ref)

    if changed:
        change(other)
        with pytest.raises(StaleRevision):
            both()
        assert verbs(store) == [*MADE, "change"]
    both()
    assert verbs(store)[-2:] == ["a", "b"]


@pytest.mark.parametrize("changed", [False, True])
def test_another_question_proves_what_was_remembered(store: Counted, other: Ledger, changed: bool) -> None:
    ledger = Ledger(store)

    def ask() -> int:
        with ledger.group():
            store.ahead(KEYS)
            with ledger.write(CTX) as tx:
                found: int = tx.need(ONE).body["n"]
                tx.emit("a", tx.need(ONE).ref)
            with ledger.read(CTX) as reader:
                assert len(reader.find("thing").records) == 2
        return found

    if changed:
        change(other)
        with pytest.raises(StaleRevision):
            ask()
        assert verbs(store) == [*MADE, "change"]
    assert ask() == 1 + changed


@pytest.mark.parametrize("changed", [False, True])
def test_a_group_that_gives_its_snapshot_up_still_proves_what_it_saw(
    store: Counted, other: Ledger, changed: bool
) -> None:
    ledger = Ledger(store)
    if changed:
        change(other)

    def ask() -> None:
        with ledger.group():
            store.ahead(KEYS)
            with ledger.write(CTX) as tx:
                tx.emit("a", tx.need(ONE).ref)
            with ledger.look(CTX) as reader:
                assert reader.need(ONE).body == {"n": 1 + changed}

    if changed:
        with pytest.raises(StaleRevision):
            ask()
        assert verbs(store) == [*MADE, "change"]
    else:
        ask()
        assert verbs(store) == [*MADE, "a"]


def test_what_this_process_writes_is_read_anew(store: Counted) -> None:
    change(Ledger(store))
    assert say(store, "a") == [2]


def test_those_who_tell_together_do_not_suffer_for_what_one_of_them_saw(store: Counted) -> None:
    def event(name: str) -> EventRow:
        return EventRow(name, "t", "z", name, "a", RecordKey("t", "k", "p", "n", "r1"), 1.0, "", b"l" * 32, b"d")

    old = {KEYS[0]: Seen(StoredRow(KEYS[0], 9, "", b"", 0.0), "1")}
    good, bad = store._event_appender._append_batch(
        [_PendingAppend([event("good")], {}, {}), _PendingAppend([event("bad")], {}, old)]
    )
    assert good is None
    assert isinstance(bad, StaleRevision)
    assert verbs(store) == [*MADE, "good"]


def test_memory_has_an_end_and_keeps_nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_memory, "MOST", 2)
    keys = [RecordKey("t", "k", "p", f"n{n}") for n in range(4)]
    seen = [Seen(StoredRow(key, 1, "", b"", 0.0), "1") for key in keys]
    memory = Memory()
    memory.keep({keys[0]: seen[0], keys[1]: None})
    assert memory.recall(keys[:1]) == {keys[0]: seen[0]}
    assert memory.recall(keys[:2]) is None
    memory.keep({keys[1]: seen[1], keys[2]: seen[2]})
    assert memory.recall(keys[:1]) is None
    assert memory.recall(keys[1:3]) == {keys[1]: seen[1], keys[2]: seen[2]}
    memory.forget(keys)
    memory.keep({keys[3]: Seen(StoredRow(keys[3], 1, "", b"x" * (postgres_memory.LARGEST + 1), 0.0), "1")})
    assert memory.recall(keys[3:]) is None


def test_memory_counts_what_it_holds_and_not_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_memory, "MOST_BYTES", 100)
    keys = [RecordKey("t", "k", "p", f"n{n}") for n in range(3)]
    memory = Memory()

    def keep(key: RecordKey, rev: int) -> None:
        memory.keep({key: Seen(StoredRow(key, rev, "", b"x" * 40, 0.0), "1")})

    keep(keys[0], 1)
    for rev in range(1, 10):  # written over, or read again: the same forty bytes
        memory.forget((keys[1],) if rev % 2 else ())
        keep(keys[1], rev)
    assert memory.recall(keys[:2]) is not None
    keep(keys[2], 1)
    assert memory.recall(keys[:1]) is None
    assert memory.recall(keys[2:]) is not None
