"""Two things in a ledger on PostgreSQL, and a store that notes what it asks: for what is read ahead, and remembered."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from falaj.backends.postgres import PostgresStore
from falaj.core.context import Actor, Context
from falaj.core.ref import Ref
from falaj.store.envelope import key_of
from falaj.store.ledger import Ledger

CTX = Context(Actor("ann", "acme"), "uae")
ONE, TWO, THREE = (Ref.parse(f"thing:p/{name}") for name in ("one", "two", "three"))
KEYS = [key_of(ref, "acme") for ref in (ONE, TWO)]
MADE = ["make", "make"]


class Counted(PostgresStore):
    """Notes what it asks outside transactions, and how often it begins one."""

    def __init__(self, url: str) -> None:
        self.asked: list[str] = []
        super().__init__(url, {"connections": 3, "wait_s": 3})

    def _ask(self, text: str, values: Sequence[Any]) -> list[Any]:
        self.asked.append(text)
        return super()._ask(text, values)

    def _begun(self, words: str) -> Any:
        self.asked.append(words)
        return super()._begun(words)


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
    made = PostgresStore(url, {"connections": 2})
    yield Ledger(made)
    made.close()


def look(store: PostgresStore) -> None:
    """Have both read, and so remembered; nothing is told."""
    ledger = Ledger(store)
    with ledger.group():
        store.ahead(KEYS)
        with ledger.read(CTX) as reader:
            reader.need(ONE)
