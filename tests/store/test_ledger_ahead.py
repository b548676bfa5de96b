"""Reading ahead on PostgreSQL: what a group is known to want comes in one trip, and is as true as a snapshot."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from falaj.backends.postgres import PostgresStore
from falaj.core.context import Actor, Context
from falaj.core.errors import Stale
from falaj.core.ref import Ref
from falaj.store.envelope import key_of
from falaj.store.ledger import Ledger

CTX = Context(Actor("ann", "acme"), "uae")
ONE, TWO, NONE = (Ref.parse(f"thing:p/{name}") for name in ("one", "two", "none"))
KEYS = [key_of(ref, "acme") for ref in (ONE, TWO, ONE, NONE)]


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


@pytest.fixture
def store(postgres_url: str) -> Iterator[Counted]:
    made = Counted(postgres_url)
    with Ledger(made).write(CTX) as tx:
        for ref in (ONE, TWO):
            tx.emit("make", tx.put(ref, {"n": 1}).ref)
    made.asked.clear()
    yield made
    made.close()


def test_what_a_group_wants_is_read_in_one_trip_and_without_a_transaction(store: Counted) -> None:
    ledger = Ledger(store)
    with ledger.group():
        store.ahead(KEYS)
        assert store.asked == [], "nothing is read before somebody asks"
        for ref, there in ((TWO, True), (ONE, True), (NONE, False), (ONE, True)):
            with ledger.write(CTX) as tx:
                assert (tx.get(ref) is not None) == there
                tx.emit("say", ref.at("r1"))
    assert len(store.asked) == 1
    assert [row.verb for row in store.events()] == ["make", "make", "say", "say", "say", "say"]
    store.ahead(KEYS)  # outside a group nobody would come back to it
    with ledger.read(CTX) as reader:
        assert reader.get(ONE) is not None


def test_another_question_sees_the_same_moment_or_is_told_to_ask_again(store: Counted, postgres_url: str) -> None:
    ledger, other = Ledger(store), Ledger(PostgresStore(postgres_url, {"connections": 2}))
    with ledger.group():
        store.ahead(KEYS)
        with ledger.read(CTX) as reader:
            assert reader.need(ONE).body == {"n": 1}
            assert len(reader.find("thing").records) == 2
    with ledger.group():
        store.ahead(KEYS)
        with ledger.write(CTX) as tx:
            tx.emit("before", tx.need(ONE).ref)
        with ledger.read(CTX) as outer:
            assert outer.need(ONE).body == {"n": 1}
            with other.write(CTX) as tx:
                tx.emit("change", tx.put(ONE, {"n": 2}, rev=1).ref)
            with ledger.read(CTX) as unharmed:
                assert unharmed.need(TWO).body == {"n": 1}
                assert len(unharmed.find("thing").records) == 2
            with pytest.raises(Stale):
                outer.need(TWO)
        with ledger.write(CTX) as tx:
            assert tx.need(ONE).body == {"n": 2}, "who asks again sees what is"
            assert len(tx.find("thing").records) == 2
            tx.emit("after", ONE.at("r2"))
    assert [row.verb for row in store.events()] == ["make", "make", "change", "before", "after"]
    with ledger.group():
        store.ahead(KEYS)
        with ledger.write(CTX) as tx:
            tx.emit("again", tx.put(ONE, {"n": tx.need(ONE).body["n"] + 1}, rev=2).ref)
    with other.read(CTX) as reader:
        assert reader.need(ONE).body == {"n": 3}
    other.close()
