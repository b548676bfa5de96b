"""Live: tells open pages at which desks something changed, and no more than that; they look again, as themselves.

One reader of the log serves every open page of this process. Looking at a page is recorded, too: what only looked is no
change, else every page would wake every other for ever.
"""

import asyncio
from typing import Any

from falaj.api.answers import EVENTS, SECURITY
from falaj.api.app import App
from falaj.api.routes import Ask
from falaj.api.stream import left
from falaj.api.streams import HEARTBEAT_S, LAST, Streams
from falaj.core.errors import FalajError
from falaj.desks import actions

PAGE, GATHER_S = 1000, 0.4
STREAMS_EACH = 32
MANY = 20_000
"""So many events at once are not read one by one: everything changed."""
EVERYTHING = "*"


class Live:
    """The open pages of this process."""

    def __init__(self, app: App) -> None:
        self._app, self._ledger = app, app.house.ledger
        looks = (verb for verb, group in actions().items() if group in ("see", "read", "audit"))
        self._quiet = frozenset((*looks, "console.sign_in", "console.sign_out"))
        self._pages: dict[asyncio.Queue[set[str]], str] = {}
        self._streams = Streams(self._ledger, STREAMS_EACH, "pages")
        self._reading: asyncio.Task[None] | None = None
        self._pos = ""

    async def serve(self, ask: Ask) -> None:
        """One page's stream: `data: jobs queues` after each change."""
        with self._streams.one(ask.caller):
            heard: asyncio.Queue[set[str]] = asyncio.Queue()
            self._pages[heard] = ask.caller.tenant
            self._start()
            self._app.unhurried()
            gone = asyncio.ensure_future(left(ask.receive))
            stopping = asyncio.ensure_future(self._app.stopping.wait())
            try:
                await self._stream(ask, heard, {gone, stopping})
            finally:
                del self._pages[heard]
                gone.cancel()
                stopping.cancel()

    async def _stream(self, ask: Ask, heard: "asyncio.Queue[set[str]]", ends: set[asyncio.Future[Any]]) -> None:
        headers = [(b"content-type", EVENTS), (b"x-accel-buffering", b"no"), *SECURITY]
        await ask.send({"type": "http.response.start", "status": 200, "headers": headers})
        said = b": ok\n\n"
        while not any(end.done() for end in ends):
            await ask.send({"type": "http.response.body", "body": said, "more_body": True})
            news = asyncio.ensure_future(heard.get())
            done, _ = await asyncio.wait({news, *ends}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if not await self._welcome(ask):
                news.cancel()
                break
            if news in done:
                said = b"data: " + " ".join(sorted(news.result())).encode() + b"\n\n"
                continue
            news.cancel()
            said = b": here\n\n"
        last = LAST if self._app.stopping.is_set() else b""
        await ask.send({"type": "http.response.body", "body": last})

    async def _welcome(self, ask: Ask) -> bool:
        """A session that was ended a second ago is sent nothing more."""
        try:
            await self._app.gate.identify(ask)
        except FalajError:
            return False
        return True

    def _start(self) -> None:
        if self._reading is None or self._reading.done():
            self._pos = self._ledger.store.end()
            self._reading = asyncio.get_running_loop().create_task(self._read_on())

    async def _read_on(self) -> None:
        turn = self._streams.turn
        while self._pages:
            await self._streams.moved(turn)
            await asyncio.sleep(GATHER_S)
            turn = self._streams.turn
            changed = (await self._app.lanes.outside(self._changes)).unwrap()
            for heard, tenant in self._pages.items():
                desks = {desk for whose, desk in changed if whose in (tenant, EVERYTHING)}
                if desks:
                    heard.put_nowait(desks)

    def _changes(self) -> set[tuple[str, str]]:
        """(tenant, desk) of what changed since the last look. Only names of verbs are read; nothing is opened."""
        found, num_read = set[tuple[str, str]](), 0
        while rows := self._ledger.store.events(self._pos, limit=PAGE):
            self._pos, num_read = rows[-1].pos, num_read + len(rows)
            found |= {(row.tenant, row.verb.partition(".")[0]) for row in rows if row.verb not in self._quiet}
            if num_read >= MANY:
                self._pos = self._ledger.store.end()
                return {(EVERYTHING, EVERYTHING)}
            if len(rows) < PAGE:
                break
        return found
