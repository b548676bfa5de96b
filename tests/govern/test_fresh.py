"""Small facts kept for a second: never older, never from a transaction that was undone, never past a change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falaj.backends.sqlite import SqliteStore
from falaj.core.context import Actor, Context
from falaj.core.errors import Unavailable
from falaj.core.ref import Ref
from falaj.govern.fresh import AHEAD, STALE_S, Fresh
from falaj.store.ledger import Ledger, Writer

THING = Ref("thing", "p", "n")
CTX = Context(Actor("layla", "bank"), "home")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(SqliteStore(f"sqlite:{tmp_path}/ledger.db"))
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr("falaj.govern.fresh.monotonic", lambda: time[0])
    return time


def write(ledger: Ledger, tx: Writer, value: str) -> None:
    old = tx.get(THING)
    record = tx.put(THING, {"value": value}, rev=old.rev if old else None)
    tx.emit("write", record.ref)


def kept(ledger: Ledger) -> Fresh[Ref, str]:
    def load(ref: Ref) -> str:
        with ledger.read(CTX) as tx:
            record = tx.get(ref)
        return str(record.body["value"]) if record else ""

    return Fresh(ledger, load, limit=2)


def test_a_value_is_kept_for_a_second_and_no_longer(ledger: Ledger, clock: list[float]) -> None:
    fresh = kept(ledger)
    assert fresh.get(THING) == ""
    with ledger.write(CTX) as tx:
        write(ledger, tx, "new")
    clock[0] = STALE_S - 0.01
    assert fresh.get(THING) == ""
    clock[0] = STALE_S
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
        clock[0] += STALE_S
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
    fresh: Fresh[str, str] = Fresh(ledger, slow)
    assert fresh.get("k") == "old"
    assert fresh.get("k") == "new"


def test_memory_is_bounded(ledger: Ledger, clock: list[float]) -> None:
    loads: list[int] = []
    fresh: Fresh[int, None] = Fresh(ledger, loads.append, limit=2)
    for key in (1, 2, 3, 3, 1):
        fresh.get(key)
    assert loads == [1, 2, 3, 1]
    assert len(fresh._kept) <= 2


def test_what_is_asked_for_is_read_again_before_it_is_too_old(ledger: Ledger, clock: list[float]) -> None:
    asked: list[Callable[[], None]] = []
    ledger.beside = asked.append
    fresh = kept(ledger)
    assert fresh.get(THING) == ""
    with ledger.write(CTX) as tx:
        write(ledger, tx, "new")
    clock[0] = STALE_S * AHEAD
    assert (fresh.get(THING), asked) == ("", [])
    clock[0] += 0.1 * STALE_S
    assert (fresh.get(THING), fresh.get(THING), len(asked)) == ("", "", 1)
    asked.pop()()
    assert fresh.get(THING) == "new"
    clock[0] += STALE_S - 0.01
    assert (fresh.get(THING), len(asked)) == ("new", 1)


def test_what_cannot_be_read_ahead_is_read_by_who_finds_it_too_old(ledger: Ledger, clock: list[float]) -> None:
    def load(key: str) -> str:
        if fails:
            raise Unavailable("the store is away")
        return key

    def refuse(work: Callable[[], None]) -> None:
        raise Unavailable("nobody reads ahead any more")

    fails, asked = list[str](), list[Callable[[], None]]()
    fresh: Fresh[str, str] = Fresh(ledger, load)
    fresh.get("k")
    clock[0] = 0.9 * STALE_S
    ledger.beside = refuse
    assert fresh.get("k") == "k"
    ledger.beside = asked.append
    assert fresh.get("k") == "k"
    fails.append("k")
    asked.pop()()
    assert fresh.get("k") == "k"
    clock[0] = STALE_S
    with pytest.raises(Unavailable):
        fresh.get("k")


def test_a_reading_that_took_long_does_not_replace_a_later_one(ledger: Ledger, clock: list[float]) -> None:
    def load(key: str) -> str:
        if clock[0] == 0.8 * STALE_S:
            clock[0] = STALE_S
            assert fresh.get(key) == "later"
            return "earlier"
        return "later" if clock[0] else "first"

    asked: list[Callable[[], None]] = []
    ledger.beside = asked.append
    fresh: Fresh[str, str] = Fresh(ledger, load)
    fresh.get("k")
    clock[0] = 0.8 * STALE_S
    assert fresh.get("k") == "first"
    asked.pop()()
    assert fresh.get("k") == "later"
