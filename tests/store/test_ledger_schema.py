"""Schema steps on both engines: an old store with data is brought up to date, a newer one is refused."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from falaj.backends import postgres, sqlite
from falaj.backends.sql import schema
from falaj.core.context import Actor, Context
from falaj.core.errors import Unavailable
from falaj.core.ports import Store
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger

CTX = Context(Actor("ann", "acme"), "uae")


class Engine:
    """One database that can be looked at from below."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    def open(self) -> Store:
        return sqlite.SqliteStore(self.url) if self.name == "sqlite" else postgres.PostgresStore(self.url)

    def make(self, version: int) -> None:
        """The database as a program that knew only `version` would have made it."""
        if self.name == "sqlite":
            connection = sqlite3.connect(self.url.partition(":")[2], isolation_level=None)
            sqlite._upgrade(connection, version)
            connection.close()
        else:
            with psycopg.connect(self.url, autocommit=True) as raw:
                postgres._upgrade(raw, version)

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
    assert schema.NEWEST >= 2


@pytest.mark.parametrize("version", range(1, schema.NEWEST))
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
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST,)]
    assert engine.ask(newest) == [(5 if version == 1 else 1,)]


def test_a_newer_store_is_refused_and_left_alone(engine: Engine) -> None:
    engine.open().close()
    engine.ask(f"UPDATE meta SET value = {schema.NEWEST + 1} WHERE name = 'schema'")  # noqa: S608
    with pytest.raises(Unavailable, match="upgrade this installation"):
        engine.open()
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST + 1,)]


@pytest.mark.parametrize("version", [0, 1])
def test_many_may_start_at_once(engine: Engine, version: int) -> None:
    if version:
        engine.make(version)
    gate = threading.Barrier(4)
    opened: list[Store] = []

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
    assert engine.ask("SELECT value FROM meta WHERE name = 'schema'") == [(schema.NEWEST,)]
