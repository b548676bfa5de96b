"""Reading ahead on PostgreSQL: what a group is known to want comes in one trip, and is as true as a snapshot."""

from collections.abc import Iterator

import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.core.errors import StaleRevision
from falaj.store.envelope import to_record_key
from falaj.store.ledger import Ledger
from tests.store.remembered import CTX, KEYS, ONE, THREE, TWO, Counted, counted

NONE = THREE
ASKED = [*KEYS, KEYS[0], to_record_key(NONE, "acme")]


@pytest.fixture
def store(postgres_url: str) -> Iterator[Counted]:
    with counted(postgres_url, seen=False) as made:
        yield made


def test_what_a_group_wants_is_read_in_one_trip_and_without_a_transaction(store: Counted) -> None:
    ledger = Ledger(store)
    with ledger.group():
        store.ahead(ASKED)
        assert store.asked == [], "nothing is read before somebody asks"
        for ref, there in ((TWO, True), (ONE, True), (NONE, False), (ONE, True)):
            with ledger.write(CTX) as tx:
                assert (tx.get(ref) is not None) == there
                tx.emit("say", ref.at("r1"))
    assert len(store.asked) == 1
    assert [row.verb for row in store.events()] == ["make", "make", "say", "say", "say", "say"]
    store.ahead(ASKED)  # outside a group nobody would come back to it
    with ledger.read(CTX) as reader:
        assert reader.get(ONE) is not None


def test_another_question_sees_the_same_moment_or_is_told_to_ask_again(store: Counted, postgres_url: str) -> None:
    ledger, other = Ledger(store), Ledger(PostgresLedgerStore(postgres_url, {"connections": 2}))
    with ledger.group():
        store.ahead(ASKED)
        with ledger.read(CTX) as reader:
            assert reader.need(ONE).body == {"n": 1}
            assert len(reader.find("thing").records) == 2
    with ledger.group():
        store.ahead(ASKED)
        with ledger.write(CTX) as tx:
            tx.emit("before", tx.need(ONE).ref)
        with ledger.read(CTX) as outer:
            assert outer.need(ONE).body == {"n": 1}
            with other.write(CTX) as tx:
                tx.emit("change", tx.put(ONE, {"n": 2}, rev=1).ref)
            with ledger.read(CTX) as unharmed:
                assert unharmed.need(TWO).body == {"n": 1}
                assert len(unharmed.find("thing").records) == 2
            with pytest.raises(StaleRevision):
                outer.need(TWO)
        with ledger.write(CTX) as tx:
            assert tx.need(ONE).body == {"n": 2}, "who asks again sees what is"
            assert len(tx.find("thing").records) == 2
            tx.emit("after", ONE.at("r2"))
    assert [row.verb for row in store.events()] == ["make", "make", "change", "before", "after"]
    with ledger.group():
        store.ahead(ASKED)
        with ledger.write(CTX) as tx:
            tx.emit("again", tx.put(ONE, {"n": tx.need(ONE).body["n"] + 1}, rev=2).ref)
    with other.read(CTX) as reader:
        assert reader.need(ONE).body == {"n": 3}
    other.close()
