"""Open streams: each caller's own are counted, and a commit wakes every one of them, however they interleave."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from falaj.api.open_streams import OpenStreams
from falaj.api.responses import HttpError
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db"))
    yield made
    made.close()


def say(ledger: Ledger) -> None:
    with ledger.write(CallContext(Actor("a", "acme"), "uae")) as tx:
        tx.emit("say", Ref("thing", "p", "n", "r1"))


def test_who_has_many_open_holds_up_nobody_of_the_same_name_elsewhere(ledger: Ledger) -> None:
    async def opened() -> None:
        streams = OpenStreams(ledger, 2, "pages")
        with ExitStack() as stack:
            for tenant in ("bank", "bank", "other", "other"):
                stack.enter_context(streams.one(Actor("amal", tenant)))
            with pytest.raises(HttpError, match="2 pages"), streams.one(Actor("amal", "bank")):
                pass
        with streams.one(Actor("amal", "bank")):
            assert len(streams._open) == 1

    asyncio.run(opened())


def test_no_turn_is_missed_by_whoever_remembers_the_last(ledger: Ledger) -> None:
    async def heard() -> None:
        streams = OpenStreams(ledger, 2, "pages")
        with streams.one(Actor("amal", "bank")), streams.one(Actor("omar", "bank")):
            first = second = streams.turn
            await asyncio.to_thread(say, ledger)
            assert await streams.moved(first), "one takes its turn"
            assert streams.turn != first
            assert await streams.moved(second), "the other has not looked since, and hears of it all the same"
            waiting = asyncio.ensure_future(streams.moved(streams.turn))
            await asyncio.to_thread(say, ledger)
            assert await asyncio.wait_for(waiting, 10)
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            end.set_result(None)
            assert await streams.moved(streams.turn, end)

    asyncio.run(heard())
