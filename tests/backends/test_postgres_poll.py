"""Pollers share their looks at the log and at leases: an idle platform costs PostgreSQL little, and misses nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.core.ports import EventRow, RecordKey, StoredRow
from tests.replica import Replica
from tests.servers.process import wait_until

MOST_COMMITS_PER_S = 5.0
CLUSTERS = 5
WINDOW_S, MOST_WINDOWS = 10.0, 9
"""A start writes for a while, longer on a busy machine: the first quiet window ends the test."""


@pytest.fixture
def opened(new_postgres: Callable[[], str]) -> Iterator[tuple[PostgresLedgerStore, PostgresLedgerStore]]:
    url = new_postgres()
    one, two = PostgresLedgerStore(url), PostgresLedgerStore(url)
    yield one, two
    one.close()
    two.close()


def event(name: str) -> EventRow:
    key = RecordKey("t", "thing", "p", name, "r1")
    return EventRow(f"id-{name}", "t", "z", "verb", "actor", key, 1.0, "req", b"l" * 32, b"d", ())


def append(store: PostgresLedgerStore, name: str) -> None:
    txn = store.begin(write=True)
    txn.append([event(name)])
    txn.commit()


def names(store: PostgresLedgerStore, after: str = "") -> list[str]:
    return [row.subject.name for row in store.events(after, kind="thing")]


def test_a_poller_sees_what_this_process_committed_at_once(
    opened: tuple[PostgresLedgerStore, PostgresLedgerStore],
) -> None:
    store, _ = opened
    with store.polling():
        assert names(store) == []
        for number in range(5):
            append(store, f"n{number}")
            assert names(store) == [f"n{each}" for each in range(number + 1)]


def test_a_poller_sees_what_others_committed_soon_and_skips_nothing(
    opened: tuple[PostgresLedgerStore, PostgresLedgerStore],
) -> None:
    store, other = opened
    seen: list[str] = []
    cursor = ""
    with store.polling():
        for number in range(40):
            append(other, f"n{number:02}")
            for row in store.events(cursor, kind="thing"):
                seen.append(row.subject.name)
                cursor = row.pos
        wait_until(lambda: names(store, cursor) != [] or len(seen) == 40, 20)
        seen += names(store, cursor)
    assert seen == [f"n{number:02}" for number in range(40)]


def test_an_event_that_commits_late_is_not_passed_over(opened: tuple[PostgresLedgerStore, PostgresLedgerStore]) -> None:
    store, other = opened
    late = other.begin(write=True)
    late.put(
        StoredRow(RecordKey("t", "thing", "p", "late"), 1, "", b"body", 1.0, ()), 0
    )  # which begins it with the engine
    late.append([event("late")])
    append(store, "early")
    with store.polling():
        assert names(store) in ([], ["early"])
        late.commit()
        wait_until(lambda: set(names(store)) == {"late", "early"}, 20)


def test_a_follower_takes_a_lease_soon_after_it_is_given_back(
    opened: tuple[PostgresLedgerStore, PostgresLedgerStore],
) -> None:
    one, two = opened
    assert one.lease("loop:x", "one", 60.0, time.time())
    with two.polling():
        assert two.lease("loop:x", "two", 60.0, time.time()) is None
        one.release("loop:x", "one")
        wait_until(lambda: two.lease("loop:x", "two", 60.0, time.time()) is not None, 20)


def test_an_idle_platform_with_five_clusters_commits_little(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    url = new_postgres()
    environment = {"FALAJ_STORE": url, "FALAJ_GATEWAY": "127.0.0.1:0", "FALAJ_GATEWAY_GRPC": ""}
    with Replica(tmp_path / "home", environment) as replica, psycopg.connect(url, autocommit=True) as connection:
        admin = replica.as_()
        for number in range(CLUSTERS):
            admin.clusters.add(f"c{number}", f"process:?nodes=2&cpus=4&folder={tmp_path / f'c{number}'}")
        rates: list[float] = []
        while len(rates) < MOST_WINDOWS and (not rates or rates[-1] >= MOST_COMMITS_PER_S):
            rates.append(commit_rate(connection))
    assert rates[-1] < MOST_COMMITS_PER_S, rates


def commit_rate(connection: "psycopg.Connection[tuple[int]]") -> float:
    """Commits per second over one window."""
    before, started_at = commits(connection), time.monotonic()
    threading.Event().wait(WINDOW_S)  # the rate over this time is what is measured
    return (commits(connection) - before) / (time.monotonic() - started_at)


def commits(connection: "psycopg.Connection[tuple[int]]") -> int:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return row[0]
