"""Small facts kept for a second: never older, never from a transaction that was undone, never past a change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Unavailable
from falaj.core.ref import Ref
from falaj.govern.timed_cache import MAX_AGE_S, REFRESH_AHEAD_RATIO, TimedCache
from falaj.store.ledger import Ledger, LedgerWriter

THING = Ref("thing", "p", "n")
CTX = CallContext(Actor("layla", "bank"), "home")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db"))
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr("falaj.govern.timed_cache.monotonic", lambda: time[0])
    return time


def write(ledger: Ledger, tx: LedgerWriter, value: str) -> None:
    old = tx.get(THING)
    record = tx.put(THING, {"value": value}, rev=old.rev if old else None)
    tx.emit("write", record.ref)


def kept(ledger: Ledger) -> TimedCache[Ref, str]:
    def load(ref: Ref) -> str:
        with ledger.read(CTX) as tx:
            record = tx.get(ref)
        return str(record.body["value"]) if record else ""

    return TimedCache(ledger, load, max_entries=2)


def test_a_value_is_kept_for_a_second_and_no_longer(ledger: Ledger, clock: list[float]) -> None:
    fresh = kept(ledger)
    assert fresh.get(THING) == ""
    with ledger.write(CTX) as tx:
        write(ledger, tx, "new")
    clock[0] = MAX_AGE_S - 0.01
    assert fresh.get(THING) == ""
    clock[0] = MAX_AGE_S
    assert fresh.get(THING) == "new"


def test_who_keeps_a_value_themselves_is_given_it_as_it_is_now(ledger: Ledger, clock: list[float]) -> None:
    fresh = kept(ledger)
    assert fresh.get(THING) == ""
    with ledger.write(CTX) as tx:
        write(ledger, tx, "new")
    assert (fresh.get(THING), fresh.anew(THING), fresh.get(THING)) == ("", "new", "new")


def test_a_change_of_our_own_is_seen_at_once_and_only_when_it_is_durable(ledger: Ledger, clock: list[float]) -> None:
    fresh = kept(ledger)
    assert fresh.get(THING) == ""
    with pytest.raises(ZeroDivisionError), ledger.write(CTX) as tx:  # noqa: PT012 - all of it is the transaction
        write(ledger, tx, "undone")
        fresh.changing(tx, THING)
        clock[0] += MAX_AGE_S
        assert fresh.get(THING) == "undone"
        raise ZeroDivisionError
    assert fresh.get(THING) == ""
    with ledger.write(CTX) as tx:
        write(ledger, tx, "done")
        fresh.changing(tx, THING)
    assert fresh.get(THING) == "done"


def test_what_was_read_before_a_change_is_not_kept_after_it(ledger: Ledger, clock: list[float]) -> None:
    def slow(key: str) -> str:
        if not raced:
            raced.append(key)
            with ledger.write(CTX) as tx:
                write(ledger, tx, "changed meanwhile")
                fresh.changing(tx, key)
            return "old"
        return "new"

    raced: list[str] = []
    fresh: TimedCache[str, str] = TimedCache(ledger, slow)
    assert fresh.get("k") == "old"
    assert fresh.get("k") == "new"


def test_memory_is_bounded(ledger: Ledger, clock: list[float]) -> None:
    loads: list[int] = []
    fresh: TimedCache[int, None] = TimedCache(ledger, loads.append, max_entries=2)
    for key in (1, 2, 3, 3, 1):
        fresh.get(key)
    assert loads == [1, 2, 3, 1]
    assert len(fresh.entries) <= 2


def test_what_is_asked_for_is_read_again_before_it_is_too_old(ledger: Ledger, clock: list[float]) -> None:
    asked: list[Callable[[], None]] = []
    ledger.beside = asked.append
    fresh = kept(ledger)
    assert fresh.get(THING) == ""
    with ledger.write(CTX) as tx:
        write(ledger, tx, "new")
    clock[0] = MAX_AGE_S * REFRESH_AHEAD_RATIO
    assert (fresh.get(THING), asked) == ("", [])
    clock[0] += 0.1 * MAX_AGE_S
    assert (fresh.get(THING), fresh.get(THING), len(asked)) == ("", "", 1)
    asked.pop()()
    assert fresh.get(THING) == "new"
    clock[0] += MAX_AGE_S - 0.01
    assert (fresh.get(THING), len(asked)) == ("new", 1)


def test_what_cannot_be_read_ahead_is_read_by_who_finds_it_too_old(ledger: Ledger, clock: list[float]) -> None:
    def load(key: str) -> str:
        if fails:
            raise Unavailable("the store is away")
        return key

    def refuse(work: Callable[[], None]) -> None:
        raise Unavailable("nobody reads ahead any more")

    fails, asked = list[str](), list[Callable[[], None]]()
    fresh: TimedCache[str, str] = TimedCache(ledger, load)
    fresh.get("k")
    clock[0] = 0.9 * MAX_AGE_S
    ledger.beside = refuse
    assert fresh.get("k") == "k"
    ledger.beside = asked.append
    assert fresh.get("k") == "k"
    fails.append("k")
    asked.pop()()
    assert fresh.get("k") == "k"
    clock[0] = MAX_AGE_S
    with pytest.raises(Unavailable):
        fresh.get("k")


def test_a_reading_that_took_long_does_not_replace_a_later_one(ledger: Ledger, clock: list[float]) -> None:
    def load(key: str) -> str:
        if clock[0] == 0.8 * MAX_AGE_S:
            clock[0] = MAX_AGE_S
            assert fresh.get(key) == "later"
            return "earlier"
        return "later" if clock[0] else "first"

    asked: list[Callable[[], None]] = []
    ledger.beside = asked.append
    fresh: TimedCache[str, str] = TimedCache(ledger, load)
    fresh.get("k")
    clock[0] = 0.8 * MAX_AGE_S
    assert fresh.get("k") == "first"
    asked.pop()()
    assert fresh.get("k") == "later"
