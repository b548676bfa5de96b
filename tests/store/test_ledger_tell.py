"""Telling on PostgreSQL: columns as the engine reads them, and the connection that does nothing else."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends import postgres_append
from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.postgres_arrays import encode_columns, prepare_column_statement
from falaj.core.errors import FalajError, Invalid
from falaj.core.ports import EventRow, RecordKey

KILL = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database()"""
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    "bytea": st.binary(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float8": st.floats(allow_nan=False),
    "bool": st.booleans(),
}


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresLedgerStore]:
    made = PostgresLedgerStore(postgres_url, {"connections": 4, "wait_s": 3})
    yield made
    made.close()


def event(name: str, data: bytes = b"d") -> EventRow:
    return EventRow(name, "t", "z", "v", "a", RecordKey("t", "k", "p", "n", "r1"), 1.0, "", b"l" * 32, data)


def tell(store: PostgresLedgerStore, *names: str) -> None:
    txn = store.begin(write=True)
    txn.append([event(name) for name in names])
    txn.commit()


def ids(store: PostgresLedgerStore) -> list[str]:
    return [row.id for row in store.events()]


@pytest.mark.parametrize("kind", VALUES)
def test_the_engine_reads_a_column_as_it_was_written(kind: str, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.lists(VALUES[kind]))
        def check(values: list[Any]) -> None:
            query, given = f"SELECT $1::{kind}[]".encode(), encode_columns((kind,), [(value,) for value in values])
            found = connection.pgconn.exec_params(query, given, param_formats=[1], result_format=1)
            expected = connection.execute(f"SELECT %b::{kind}[]", (values,), binary=True)
            assert found.get_value(0, 0) == expected.pgresult.get_value(0, 0)  # type: ignore[union-attr]

        check()


def test_a_statement_takes_its_columns_in_order() -> None:
    made = prepare_column_statement("INSERT INTO t SELECT * FROM unnest(%b::text[], %b::bigint[])")
    assert made.text == b"INSERT INTO t SELECT * FROM unnest($1::text[], $2::bigint[])"
    assert made.kinds == ("text", "bigint")
    one = [
        encode_columns((kind,), [(value,) for value in values])[0]
        for kind, values in (("text", "ab"), ("bigint", (1, 2)))
    ]
    assert encode_columns(made.kinds, [("a", 1), ("b", 2)]) == one
    assert encode_columns(made.kinds, []) == [*encode_columns(("text",), []), *encode_columns(("bigint",), [])]


@pytest.mark.parametrize(("kind", "value"), [("text", "\ud800"), ("bigint", 2**63), ("bigint", "1"), ("float8", "x")])
def test_what_is_no_value_of_its_kind_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(Invalid):
        encode_columns((kind,), [(value,)])


def test_who_tells_often_does_it_on_one_connection(store: PostgresLedgerStore, postgres_url: str) -> None:
    for n in range(postgres_append.DEDICATED_CONNECTION_AFTER):
        tell(store, f"e{n}")
    with psycopg.connect(postgres_url, autocommit=True) as other:
        count = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'falaj'"
        )
        before = other.execute(count).fetchone()
        tell(store, "own-1")
        tell(store, "own-2", "own-3")
        after = other.execute(count).fetchone()
    assert before is not None
    assert after == (before[0] + 1,)
    assert ids(store) == [
        *(f"e{n}" for n in range(postgres_append.DEDICATED_CONNECTION_AFTER)),
        "own-1",
        "own-2",
        "own-3",
    ]


def test_a_connection_that_broke_is_replaced_and_nothing_is_told_twice(
    store: PostgresLedgerStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_append, "DEDICATED_CONNECTION_AFTER", 0)
    tell(store, "first")
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(KILL)
    tell(store, "second")
    assert ids(store) == ["first", "second"]


def test_where_no_more_connections_are_to_be_had_the_pools_tell(
    store: PostgresLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Any:
        raise psycopg.OperationalError("too many")

    monkeypatch.setattr(postgres_append, "DEDICATED_CONNECTION_AFTER", 0)
    monkeypatch.setattr(store._event_appender._dedicated_connection, "_connect", none)
    tell(store, "told")
    assert ids(store) == ["told"]


def test_an_event_that_cannot_be_kept_leaves_the_connection_good(
    store: PostgresLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_append, "DEDICATED_CONNECTION_AFTER", 0)
    tell(store, "first")
    own = store._event_appender._dedicated_connection._connection
    with pytest.raises(Invalid):
        tell(store, "nul\0")
    tell(store, "second")
    assert store._event_appender._dedicated_connection._connection is own
    assert ids(store) == ["first", "second"]


def test_after_its_end_nothing_is_held(store: PostgresLedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_append, "DEDICATED_CONNECTION_AFTER", 0)
    tell(store, "first")
    held = store._event_appender._dedicated_connection._connection
    assert held is not None
    store.close()
    assert held.closed
    with pytest.raises(FalajError):
        store.events()
