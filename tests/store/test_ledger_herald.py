"""The herald on PostgreSQL: every commit is heard elsewhere, after silence and after a lost connection too."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.postgres_pool import create_pool
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger

CTX = CallContext(Actor("ann", "acme"), "uae")
THING = Ref.parse("thing:p/a@r1")
LISTENS = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND query IN ('NOTIFY falaj', 'LISTEN falaj')"""


@pytest.fixture
def two(postgres_url: str) -> Iterator[tuple[Ledger, Ledger, threading.Semaphore]]:
    """One that speaks, one that hears, and what it heard: once when each of them began."""
    mine, other = (Ledger(PostgresLedgerStore(postgres_url, {"connections": 2})) for _ in range(2))
    heard = threading.Semaphore(0)
    mine.on_commit(lambda: None)
    other.on_commit(heard.release)
    assert heard.acquire(timeout=10)
    yield mine, other, heard
    mine.close()
    other.close()


def say(ledger: Ledger) -> None:
    with ledger.write(CTX) as tx:
        tx.emit("say", THING)


def test_what_is_said_again_and_again_is_heard_again_and_again(
    two: tuple[Ledger, Ledger, threading.Semaphore],
) -> None:
    mine, _, heard = two
    for _ in range(3):
        say(mine)
        assert heard.acquire(timeout=10)


def test_after_a_lost_connection_it_speaks_and_hears_on(
    two: tuple[Ledger, Ledger, threading.Semaphore], postgres_url: str
) -> None:
    mine, _, heard = two
    say(mine)
    assert heard.acquire(timeout=10)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert len(connection.execute(LISTENS).fetchall()) == 2
    assert heard.acquire(timeout=10), "it looks when it begins again"
    for _ in range(20):
        say(mine)
        if heard.acquire(timeout=1):
            break
    else:
        pytest.fail("nothing is heard any more")


def test_who_only_speaks_to_itself_is_not_woken_by_it(
    two: tuple[Ledger, Ledger, threading.Semaphore], postgres_url: str
) -> None:
    mine, other, heard = two
    say(other)  # its own bell rings for its own commit, once, and not again for the word about it
    assert heard.acquire(timeout=10)
    say(mine)
    assert heard.acquire(timeout=10)
    while heard.acquire(timeout=0.5):  # whoever is about to speak may say it again for the note about it
        pass
    say(other)
    assert heard.acquire(timeout=10)
    assert not heard.acquire(timeout=0.5)


def test_what_was_never_listened_to_can_be_closed(postgres_url: str) -> None:
    store = PostgresLedgerStore(postgres_url, {"connections": 2})
    say(Ledger(store))
    store.close()
    store._notifier.say()
    store.close()


def test_the_connection_that_came_back_last_is_lent_first(postgres_url: str) -> None:
    pool = create_pool(postgres_url, 3, 10.0)
    pool.open(wait=True)
    lent = [pool.getconn() for _ in range(3)]
    for one in lent:
        pool.putconn(one)
    for _ in range(4):
        with pool.connection() as connection:
            assert connection is lent[-1]
    with pool.connection(), pool.connection() as second:
        assert second is lent[-2]
    pool.close()
