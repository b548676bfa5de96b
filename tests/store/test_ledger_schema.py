"""Schema steps on both engines: an old store with data is brought up to date, a newer one is refused."""

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from falaj.backends import postgres, sqlite, sqlite_file
from falaj.backends.sql import schema
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Unavailable
from falaj.core.ports import LedgerStore, SupportsSchemaUpgrade
from falaj.core.ref import Ref
from falaj.core.replica_info import ReplicaInfo
from falaj.store.ledger import Ledger
from tests.servers.process import wait_until

CTX = CallContext(Actor("ann", "acme"), "uae")


class Engine:
    """One database that can be looked at from below."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    def open(self) -> LedgerStore:
        return sqlite.SqliteLedgerStore(self.url) if self.name == "sqlite" else postgres.PostgresLedgerStore(self.url)

    def make(self, version: int) -> None:
        """The database as a program that knew only `version` would have made it."""
        if self.name == "sqlite":
            connection = sqlite3.connect(self.url.partition(":")[2], isolation_level=None)
            sqlite_file.upgrade_schema(connection, version)
            connection.close()
        else:
            with psycopg.connect(self.url, autocommit=True) as raw:
                postgres._upgrade_schema(raw, version)

    def ask(self, text: str) -> list[tuple[object, ...]]:
        if self.name == "sqlite":
            connection = sqlite3.connect(self.url.partition(":")[2], isolation_level=None)
            try:
                return connection.execute(text).fetchall()
            finally:
                connection.close()
        with psycopg.connect(self.url, autocommit=True) as raw:
            cursor = raw.execute(text)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return Engine("sqlite", f"sqlite:{tmp_path}/ledger.db")
    make: Callable[[], str] = request.getfixturevalue("new_postgres")
    return Engine("postgresql", make())


def test_there_are_steps_to_test() -> None:
    assert schema.NEWEST_VERSION >= 2


@pytest.mark.parametrize("version", range(1, schema.NEWEST_VERSION))
def test_an_old_store_with_data_is_upgraded(engine: Engine, version: int) -> None:
    engine.make(version)
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(version,)]
    insert = "INSERT INTO records (tenant, kind, project, name, version, rev, cell, body, at, terms) VALUES "
    cell = '["thing","p","uae",0,[],[],0]'
    body = '[{"n":1},{"classification":0},"uae","ann",false]'
    blob = f"CAST('{body}' AS BLOB)" if engine.name == "sqlite" else f"'{body}'::bytea"
    engine.ask(f"{insert} ('acme', 'thing', 'p', 'old', '', 1, '{cell}', {blob}, 1.5, '')")
    indexes = "sqlite_master WHERE name" if engine.name == "sqlite" else "pg_indexes WHERE indexname"
    added = ("'records_cell', 'records_at', 'events_subject', 'events_request'", "'events_verb'")
    newest = f"SELECT count(*) FROM {indexes} IN ({', '.join(added[version - 1 :])})"  # noqa: S608
    assert engine.ask(newest) == [(0,)]
    ledger = Ledger(engine.open())
    with ledger.write(CTX) as tx:
        held = tx.need(Ref.parse("thing:p/old"))
        assert held.body == {"n": 1}
        tx.emit("change", tx.put(Ref.parse("thing:p/old"), {"n": 2}, rev=1).ref)
    ledger.close()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST_VERSION,)]
    assert engine.ask(newest) == [(5 if version == 1 else 1,)]


def test_a_store_that_the_next_version_only_added_to_is_worked_with(engine: Engine) -> None:
    engine.open().close()
    engine.ask("ALTER TABLE records ADD COLUMN later TEXT")
    engine.ask(f"UPDATE meta SET value = {schema.NEWEST_VERSION + 1} WHERE name = 'schema'")  # noqa: S608
    ledger = Ledger(engine.open())
    with ledger.write(CTX) as tx:
        tx.emit("make", tx.put(Ref.parse("thing:p/one"), {"n": 1}).ref)
    ledger.close()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST_VERSION + 1,)]


def test_a_store_that_went_on_without_this_version_is_refused_and_left_alone(engine: Engine) -> None:
    engine.open().close()
    engine.ask(f"UPDATE meta SET value = {schema.NEWEST_VERSION + 1} WHERE name = 'schema'")  # noqa: S608
    engine.ask(f"INSERT INTO meta (name, value) VALUES ('oldest', {schema.NEWEST_VERSION + 1})")  # noqa: S608
    with pytest.raises(Unavailable, match="upgrade this installation"):
        engine.open()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST_VERSION + 1,)]


def test_what_takes_away_waits_until_nobody_misses_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    old = engine.open()
    owner = ReplicaInfo("a", "0.0.9", schema.NEWEST_VERSION, "api", 1.0, "https://a").encode()
    assert old.lease("replica:1", owner, 3600.0, time.time())
    last = schema.NEWEST_VERSION + 1
    monkeypatch.setattr(schema, "SCHEMA_STEPS", (*schema.SCHEMA_STEPS, ("DROP INDEX records_at",)))
    monkeypatch.setattr(schema, "NEWEST_VERSION", last)
    monkeypatch.setattr(schema, "CONTRACTING_STEPS", frozenset({last}))
    for module, name in ((sqlite.sqlite_log, "LOG_SCHEMA_STEPS"), (postgres, "_LOG_SCHEMA_STEPS")):
        monkeypatch.setattr(module, name, (*getattr(module, name), ()))
    for upgrade in (sqlite_file.upgrade_schema, postgres._upgrade_schema):
        monkeypatch.setattr(upgrade, "__defaults__", (last, None))
    monkeypatch.setattr(schema.list_pending_steps, "__defaults__", ((), last))
    new = engine.open()
    assert isinstance(new, SupportsSchemaUpgrade)
    assert new.standing(time.time())[:4] == (last - 1, 0, last, (owner,))
    old.release("replica:1", owner)
    new.settle(time.time())
    assert new.standing(time.time())[:4] == (last, last, last, ())
    new.close()
    old.close()


def test_looking_changes_nothing(engine: Engine) -> None:
    engine.make(1)
    kind = sqlite.SqliteLedgerStore if engine.name == "sqlite" else postgres.PostgresLedgerStore
    store = kind(engine.url, {"settle": False})
    assert store.standing(time.time())[:4] == (1, 0, schema.NEWEST_VERSION, ())
    store.close()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(1,)]


def test_a_table_is_changed_between_the_others(
    new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("postgresql", new_postgres())
    engine.open().close()
    last = schema.NEWEST_VERSION + 1
    monkeypatch.setattr(schema, "SCHEMA_STEPS", (*schema.SCHEMA_STEPS, ("ALTER TABLE records ADD COLUMN later TEXT",)))
    monkeypatch.setattr(postgres, "_LOG_SCHEMA_STEPS", (*postgres._LOG_SCHEMA_STEPS, ()))
    monkeypatch.setattr(postgres._upgrade_schema, "__defaults__", (last, None))
    with psycopg.connect(engine.url) as long, psycopg.connect(engine.url, autocommit=True) as raw:
        long.execute("LOCK TABLE records IN ROW EXCLUSIVE MODE")  # as a long transaction that has written does
        opening = threading.Thread(target=lambda: engine.open().close())
        opening.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE%' AND wait_event_type = 'Lock'"
        wait_until(lambda: raw.execute(waits).fetchone() is not None, 60)
        # Behind it, and through although the long one is still there.
        raw.execute("SET statement_timeout = '30s'")
        raw.execute("DELETE FROM records WHERE tenant = 'nobody'")
        long.commit()
        opening.join(60)
        assert not opening.is_alive()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(last,)]


def test_an_index_is_made_while_others_write(new_postgres: Callable[[], str]) -> None:
    engine = Engine("postgresql", new_postgres())
    engine.make(1)
    with psycopg.connect(engine.url, autocommit=True) as raw:
        raw.execute("CREATE INDEX events_request ON events (id)")  # as a start that was ended leaves one behind
        raw.execute("BEGIN")
        raw.execute("INSERT INTO leases (name, owner, token, until) VALUES ('a', 'b', 1, 1.0)")
        opening = threading.Thread(target=lambda: engine.open().close())
        opening.start()
        # A lock on `events` would keep this waiting for as long as the other waits for us.
        engine.ask("INSERT INTO leases (name, owner, token, until) VALUES ('c', 'd', 1, 1.0)")
        insert = "INSERT INTO records (tenant, kind, project, name, version, rev, cell, body, at, terms) VALUES "
        engine.ask(f"{insert} ('acme', 'thing', 'p', 'new', '', 1, 'c', 'b'::bytea, 1.5, '')")
        raw.execute("COMMIT")
        opening.join(60)
        assert not opening.is_alive()
    assert engine.ask("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%(request)'") == [(1,)]


@pytest.mark.parametrize("version", [0, 1])
def test_many_may_start_at_once(engine: Engine, version: int) -> None:
    if version:
        engine.make(version)
    gate = threading.Barrier(4)
    opened: list[LedgerStore] = []

    def start() -> None:
        gate.wait()
        opened.append(engine.open())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(opened) == 4
    for store in opened:
        store.close()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST_VERSION,)]
