"""Two things in a ledger on PostgreSQL, and a store that notes what it asks: for what is read ahead, and remembered."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from falaj.backends.postgres import PostgresLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.store.envelope import to_record_key
from falaj.store.ledger import Ledger

CTX = CallContext(Actor("ann", "acme"), "uae")
ONE, TWO, THREE = (Ref.parse(f"thing:p/{name}") for name in ("one", "two", "three"))
KEYS = [to_record_key(ref, "acme") for ref in (ONE, TWO)]
MADE = ["make", "make"]


class Counted(PostgresLedgerStore):
    """Notes what it asks outside transactions, and how often it begins one."""

    def __init__(self, url: str) -> None:
        self.asked: list[str] = []
        super().__init__(url, {"connections": 3, "wait_s": 3})

    def _query_rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        self.asked.append(statement)
        return super()._query_rows(statement, values)

    def _get_begun_connection(self, statements: str) -> Any:
        self.asked.append(statements)
        return super()._get_begun_connection(statements)


@contextmanager
def counted(url: str, *, seen: bool = True) -> Iterator[Counted]:
    """A store with both things, remembered where they are to have been seen; nothing is noted yet."""
    made = Counted(url)
    with Ledger(made).write(CTX) as tx:
        for ref in (ONE, TWO):
            tx.emit("make", tx.put(ref, {"n": 1}).ref)
    if seen:
        look(made)
    made.asked.clear()
    yield made
    made.close()


@contextmanager
def another(url: str) -> Iterator[Ledger]:
    """The same ledger as somebody else has it open."""
    made = PostgresLedgerStore(url, {"connections": 2})
    yield Ledger(made)
    made.close()


def look(store: PostgresLedgerStore) -> None:
    """Have both read, and so remembered; nothing is told."""
    ledger = Ledger(store)
    with ledger.group():
        store.ahead(KEYS)
        with ledger.read(CTX) as reader:
            reader.need(ONE)
