"""The courier on PostgreSQL: what an event loop tells is durable before anybody hears of it, and asks the engine
nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.postgres_courier import WAYS, Courier
from falaj.core.errors import FalajError, Invalid, NotFound, StaleRevision, Unavailable
from falaj.core.label import Label
from falaj.core.ports import SupportsAsyncCommit
from falaj.store.group_commit import AsyncGroupCommit
from falaj.store.ledger import Ledger
from tests.store.remembered import CTX, KEYS, MADE, ONE, THREE, TWO, Counted, another, counted, look
from tests.store.test_ledger_tell import KILL


@pytest.fixture
def store(postgres_url: str) -> Iterator[Counted]:
    with counted(postgres_url) as made:
        yield made


@pytest.fixture
def other(postgres_url: str) -> Iterator[Ledger]:
    with another(postgres_url) as made:
        yield made


def carried(store: PostgresLedgerStore, story: Callable[["Load"], Awaitable[Any]]) -> None:
    """Run a story on an event loop of its own, with a courier that stands."""

    async def whole() -> None:
        courier = store.courier()
        assert not courier.stands
        courier.open()
        assert courier.stands
        assert courier.free
        try:
            await story(Load(Ledger(store), courier))
        finally:
            courier.close()
            assert not courier.stands

    asyncio.run(whole())


class Load:
    """Groups of one event loop."""

    def __init__(self, ledger: Ledger, courier: Courier) -> None:
        self.ledger, self.courier = ledger, courier
        self.told: list[bool] = []

    def left(self, *verbs: str, ref: Any = ONE) -> AsyncGroupCommit:
        """A group of members that look at one thing and tell of it, left and not sent."""
        aside = self.ledger.aside(self.courier)
        with aside:
            self.ledger.store.ahead(KEYS)  # type: ignore[attr-defined]
            for verb in verbs:
                with self.ledger.write(CTX) as tx:
                    tx.after(self.told.append)
                    tx.emit(verb, tx.need(ref).ref)
        return aside

    async def send(self, aside: AsyncGroupCommit) -> FalajError | None:
        ended: asyncio.Future[FalajError | None] = asyncio.get_running_loop().create_future()
        aside.send(ended.set_result)
        assert not self.told
        return await asyncio.wait_for(ended, 20)


def verbs(ledger: Ledger) -> list[str]:
    return [fact.event.verb for fact in ledger.tail()]


def test_a_group_is_durable_before_anybody_hears_of_it_and_asks_nothing(store: Counted, other: Ledger) -> None:
    assert isinstance(store, SupportsAsyncCommit)

    async def story(load: Load) -> None:
        aside = load.left("see", "say")
        assert verbs(other) == MADE
        assert await load.send(aside) is None
        assert verbs(other) == [*MADE, "see", "say"]
        assert load.told == [True, True]
        assert not load.ledger.busy

    carried(store, story)
    assert store.asked == []


def test_groups_go_side_by_side_and_each_connection_prepares_once(store: Counted, other: Ledger) -> None:
    async def story(load: Load) -> None:
        for turn in range(3):
            ended = [asyncio.get_running_loop().create_future() for _ in range(WAYS)]
            for way, one in enumerate(ended):
                load.left(f"{turn}{way}").send(one.set_result)
            assert not load.courier.free
            assert await asyncio.gather(*ended) == [None] * WAYS
            assert load.courier.free

    carried(store, story)
    assert sorted(verbs(other)[2:]) == [f"{turn}{way}" for turn in range(3) for way in range(WAYS)]


def test_nothing_is_told_where_a_remembered_row_has_changed(store: Counted, other: Ledger) -> None:
    async def story(load: Load) -> None:
        aside = load.left("see")
        with other.write(CTX) as tx:
            tx.emit("change", tx.put(ONE, {"n": 2}, rev=1).ref)
        assert isinstance(await load.send(aside), StaleRevision)
        assert load.told == [False]
        assert not load.courier.at_hand(KEYS)  # it is read anew by whoever comes next

    carried(store, story)
    assert verbs(other) == [*MADE, "change"]


def change(load: Load, tell: str = "change", ref: Any = ONE, **more: Any) -> None:
    """A member that writes over a thing with what it was and one more."""
    with load.ledger.write(CTX) as tx:
        old = tx.need(ref)
        tx.after(load.told.append)
        new = tx.put(ref, {"n": old.body["n"] + 1}, rev=old, **more)
        if tell:
            tx.emit(tell, new.ref)


def changed(load: Load, *refs: Any, **more: Any) -> AsyncGroupCommit:
    aside = load.ledger.aside(load.courier)
    with aside:
        load.ledger.store.ahead(KEYS)  # type: ignore[attr-defined]
        for ref in refs:
            with suppress(StaleRevision):
                change(load, ref=ref, **more)
    return aside


def numbers(ledger: Ledger) -> list[tuple[int, int]]:
    """Revision and body of both."""
    with ledger.read(CTX) as reader:
        return [(record.rev, record.body["n"]) for record in map(reader.need, (ONE, TWO))]


def test_members_change_what_they_looked_at_and_the_engine_is_asked_nothing(store: Counted, other: Ledger) -> None:
    async def story(load: Load) -> None:
        aside = changed(load, ONE, TWO, ONE)
        assert numbers(other) == [(1, 1), (1, 1)]
        assert await load.send(aside) is None
        assert load.told == [True] * 3
        assert numbers(other) == [(3, 3), (2, 2)]
        assert load.courier.at_hand(KEYS)
        load.told.clear()
        assert await load.send(changed(load, ONE)) is None  # what was just written is what is remembered
        load.told.clear()
        assert await load.send(load.left("see")) is None

    carried(store, story)
    assert numbers(other) == [(4, 4), (2, 2)]
    assert verbs(other) == [*MADE, "change", "change", "change", "change", "see"]
    assert store.asked == []


def test_a_thing_that_is_being_changed_is_not_at_hand_until_that_is_durable(store: Counted) -> None:
    async def story(load: Load) -> None:
        ended: asyncio.Future[FalajError | None] = asyncio.get_running_loop().create_future()
        changed(load, ONE).send(ended.set_result)
        assert not load.courier.free
        assert not load.courier.at_hand(KEYS)
        load.courier.fetch(KEYS)
        assert not load.courier.at_hand(KEYS)
        assert load.courier.at_hand(KEYS[1:])
        assert await ended is None
        assert load.courier.at_hand(KEYS)
        assert load.courier.free

    carried(store, story)


@pytest.mark.parametrize("overtaken", [ONE, TWO], ids=["one", "all"])
def test_nothing_is_changed_where_one_of_several_is_not_as_it_was(
    store: Counted, other: Ledger, overtaken: Any
) -> None:
    async def story(load: Load) -> None:
        aside = changed(load, ONE, TWO)
        with other.write(CTX) as tx:
            tx.emit("first", tx.put(overtaken, {"n": 7}, rev=1).ref)
        assert isinstance(await load.send(aside), StaleRevision)
        assert load.told == [False, False]
        assert not load.courier.at_hand(KEYS)
        load.courier.fetch(KEYS)
        load.told.clear()
        assert await load.send(changed(load, overtaken)) is None

    carried(store, story)
    assert numbers(other) == ([(3, 8), (1, 1)] if overtaken is ONE else [(1, 1), (3, 8)])
    assert verbs(other) == [*MADE, "first", "change"]


def test_nothing_is_changed_where_another_thing_that_was_looked_at_is_not_as_it_was(
    store: Counted, other: Ledger
) -> None:
    async def story(load: Load) -> None:
        aside = changed(load, ONE)
        with other.write(CTX) as tx:
            tx.emit("first", tx.put(TWO, {"n": 7}, rev=1).ref)
        assert isinstance(await load.send(aside), StaleRevision)

    carried(store, story)
    assert numbers(other) == [(1, 1), (2, 7)]


def test_a_member_that_is_undone_changes_nothing(store: Counted, other: Ledger) -> None:
    async def story(load: Load) -> None:
        aside = load.ledger.aside(load.courier)
        with aside:
            store.ahead(KEYS)
            with suppress(NotFound), load.ledger.write(CTX) as tx:
                tx.emit("change", tx.put(ONE, {"n": 9}, rev=tx.need(ONE)).ref)
                raise NotFound("the verb changes its mind", "")
            with pytest.raises(StaleRevision), load.ledger.write(CTX) as tx:
                tx.put(ONE, {"n": 9}, rev=5)
            with load.ledger.write(CTX) as tx:
                tx.after(load.told.append)
                tx.emit("see", tx.need(ONE).ref)
        assert await load.send(aside) is None

    carried(store, story)
    assert numbers(other) == [(1, 1), (1, 1)]
    assert verbs(other) == [*MADE, "see"]


@pytest.mark.parametrize("more", [{"terms": {"a": "b"}}, {"label": Label(classification=2)}], ids=["terms", "cell"])
def test_what_an_index_has_to_follow_is_not_carried(store: Counted, other: Ledger, more: Any) -> None:
    async def story(load: Load) -> None:
        with pytest.raises(StaleRevision):
            changed(load, ONE, **more)
        assert load.told == [False]

    carried(store, story)
    assert numbers(other) == [(1, 1), (1, 1)]


@pytest.mark.parametrize("ask", ["need", "find", "put", "look"])
def test_what_would_have_to_ask_the_engine_undoes_all_of_its_group(store: Counted, other: Ledger, ask: str) -> None:
    async def story(load: Load) -> None:
        ledger = load.ledger

        def more() -> None:
            with ledger.write(CTX) as tx:
                if ask == "need":
                    tx.get(THREE)
                elif ask == "find":
                    tx.find("thing")
                elif ask == "put":
                    tx.put(THREE, {})
                else:
                    with ledger.look(CTX) as reader:
                        reader.get(ONE)

        aside = ledger.aside(load.courier)
        with aside:
            store.ahead(KEYS)
            with ledger.write(CTX) as tx:
                tx.after(load.told.append)
                tx.emit("see", tx.need(ONE).ref)
            with suppress(FalajError):  # whoever does without the answer is none the less undone
                more()
        ended: list[FalajError | None] = []
        aside.send(ended.append)
        assert isinstance(ended[0], StaleRevision)
        assert load.told == [False]
        assert load.courier.at_hand(KEYS)
        load.told.clear()
        assert await load.send(load.left("say")) is None

    carried(store, story)
    assert verbs(other) == [*MADE, "say"]
    assert store.asked == []


def test_what_cannot_be_written_is_told(store: Counted) -> None:
    async def story(load: Load) -> None:
        assert isinstance(await load.send(load.left("\0")), Invalid)
        load.told.clear()
        assert await load.send(load.left("say")) is None
        load.told.clear()
        assert await load.send(load.left()) is None  # nobody said anything

    carried(store, story)


def test_a_connection_that_broke_is_replaced_and_nobody_waits_for_ever(store: Counted, postgres_url: str) -> None:
    async def story(load: Load) -> None:
        aside = load.left("lost")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(KILL)
        ended: list[FalajError | None] = []
        aside.send(ended.append)
        assert isinstance(ended[0], StaleRevision)  # it was noticed before anything was sent
        assert load.told == [False]
        assert not load.courier.stands
        load.courier.open()
        assert load.courier.stands
        load.told.clear()
        look(store)
        assert await load.send(load.left("say")) is None

    carried(store, story)
    assert [verb for verb in verbs(Ledger(store)) if verb not in MADE] == ["say"]


def test_a_group_that_is_larger_than_the_socket_takes_arrives_whole(store: Counted, other: Ledger) -> None:
    async def story(load: Load) -> None:
        aside = load.ledger.aside(load.courier)
        with aside:
            store.ahead(KEYS)
            with load.ledger.write(CTX) as tx:
                for _ in range(200):
                    tx.emit("much", tx.need(ONE).ref, text="x" * 60_000)
        assert await load.send(aside) is None

    carried(store, story)
    assert verbs(other).count("much") == 200


def test_closing_tells_whoever_waits(store: Counted) -> None:
    async def story(load: Load) -> None:
        aside = load.left("open")
        ended: list[FalajError | None] = []
        aside.send(ended.append)
        load.courier.close()
        assert isinstance(ended[0], Unavailable)
        aside = load.left("late")
        aside.send(ended.append)
        assert isinstance(ended[1], StaleRevision)

    carried(store, story)
