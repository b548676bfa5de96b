"""Replicas see each other, with their versions, for as long as they are there."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sql import schema
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.ports import LedgerStore
from falaj.core.release import VERSION
from falaj.core.replica_info import ReplicaInfo
from falaj.store import replica_presence
from falaj.store.ledger import Ledger
from falaj.store.replica_presence import ReplicaPresence
from tests.servers.process import wait_until


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], LedgerStore]]:
    if request.param == "sqlite":
        yield lambda: SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db")
        return
    url = request.getfixturevalue("postgres_url")
    yield lambda: PostgresLedgerStore(url)


def test_they_see_each_other_come_and_go(opened: Callable[[], LedgerStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_presence, "HEARTBEAT_INTERVAL_S", 0.05)
    with closing(Ledger(opened())) as one, closing(Ledger(opened())) as two:
        first = ReplicaPresence(one, "replica-a", "api", "https://a:8470")
        second = ReplicaPresence(two, "replica-b", "gateway", "https://b:8471")
        first.start()
        assert [(x.id, x.version, x.schema, x.role, x.at) for x in first.seen] == [
            ("replica-a", VERSION, schema.NEWEST_VERSION, "api", "https://a:8470")
        ]
        second.start()
        wait_until(lambda: {x.id for x in first.seen} == {"replica-a", "replica-b"}, 20)
        second.stop()
        wait_until(lambda: {x.id for x in first.seen} == {"replica-a"}, 20)
        # Its place is taken by the next one: names of leases do not grow with every start.
        third = ReplicaPresence(two, "replica-c", "api", "https://c:8470")
        third.start()
        assert third._slot == 2
        for one_ in (third, first):
            one_.stop()


def test_one_whom_the_store_left_behind_says_so(opened: Callable[[], LedgerStore]) -> None:
    with closing(Ledger(opened())) as ledger, closing(opened()) as store:
        here = ReplicaPresence(ledger, "replica-a", "api", "https://a:8470")
        here.start()
        assert here.welcome
        raise_ = schema.SET_NUMBER.format(name="oldest", value=schema.NEWEST_VERSION + 1)
        if isinstance(store, PostgresLedgerStore):
            store._query_rows(f"{raise_} RETURNING 1", ())
        else:
            assert isinstance(store, SqliteLedgerStore)
            store._run_write(lambda txn: txn.run(raise_))
        here._send_heartbeat()
        assert not here.welcome
        here.stop()


@pytest.mark.parametrize(
    "text", ["", "replica-a", "a b c d e f", "a 0.1.0 3 api x https://a", "a 0.1.0 -3 api 1 https://a"]
)
def test_a_strange_text_is_somebody_who_knows_nothing(text: str) -> None:
    assert ReplicaInfo.decode(text).schema == 0


def test_a_replica_reads_as_it_was_written() -> None:
    one = ReplicaInfo("replica-1", "0.1.0", 3, "api", float(int(time.time())), "https://[::1]:8470")
    assert ReplicaInfo.decode(one.encode()) == one
