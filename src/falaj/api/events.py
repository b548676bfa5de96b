"""The event stream: one tenant's log as server-sent events, from any point of it, for as long as the caller listens."""

import asyncio
import logging
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from falaj.api.answers import EVENTS, REQUEST_HEADER, SECURITY, Answer
from falaj.api.deadlines import Deadlines
from falaj.api.gate import Gate
from falaj.api.lanes import Lanes
from falaj.api.metrics import Metrics
from falaj.api.routes import Ask
from falaj.api.stream import left
from falaj.api.streams import LAST, Streams
from falaj.core.context import Context
from falaj.core.errors import FalajError, Invalid

if TYPE_CHECKING:
    from falaj.platform import House

DESK, VERB = "audit", "watch"
"""The verb that says whether one may listen. It is asked, and recorded, when a stream opens; and asked again before
more is sent."""
FILTERS = ("verb", "actor", "request", "kind", "project", "name", "version")
PAGE = 500
STREAMS_EACH = 16
_CURSOR = re.compile(r"[A-Za-z0-9._:+/=-]{0,200}")
_log = logging.getLogger(__name__)


class Events:
    """Every open stream of this process. A commit wakes them; each reads the log on from where it stands."""

    action = f"{DESK}.{VERB}"

    def __init__(self, house: "House", lanes: Lanes, gate: Gate, metrics: Metrics, deadlines: Deadlines) -> None:
        self._house = house
        self._lanes = lanes
        self._gate = gate
        self._metrics = metrics
        self._deadlines = deadlines
        self._streams = Streams(house.ledger, STREAMS_EACH, "event streams")
        self._ending = False

    def stop(self) -> None:
        """End every stream, so that the server can."""
        self._ending = True
        self._streams.wake()

    async def serve(self, ask: Ask) -> Answer | None:
        """GET /v1/events; Last-Event-ID or ?after= says where to go on."""
        after, where = _asked(ask)
        ctx = self._gate.context(ask, ask.caller)
        (await self._lanes.inside(self._house.call, DESK, VERB, ctx, {})).unwrap()
        task = asyncio.current_task()
        if task is not None:
            self._deadlines.close(task)  # a stream lasts as long as its listener
        with self._streams.one(ctx.actor):
            self._metrics.open_streams += 1
            try:
                await self._stream(ask, ctx, after, where)
            finally:
                self._metrics.open_streams -= 1
        return None

    async def _stream(self, ask: Ask, ctx: Context, after: str, where: dict[str, str]) -> None:
        gone = asyncio.ensure_future(left(ask.receive))
        headers = [
            (b"content-type", EVENTS),
            (REQUEST_HEADER, ctx.request.encode()),
            (b"x-accel-buffering", b"no"),
            *SECURITY,
        ]
        turn = self._streams.turn
        page = await self._page(ctx, after, where)  # an unreadable cursor is still an answer
        await ask.send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._send(ask, b": ok\n\n")
            while not self._ending and not gone.done():
                if page:
                    await self._still_welcome(ask, ctx)
                for pos, frame in page:
                    after = pos
                    await self._send(ask, frame)
                if len(page) < PAGE and not await self._streams.moved(turn, gone):
                    await self._send(ask, b": here\n\n")
                    await self._still_welcome(ask, ctx)
                turn = self._streams.turn
                page = await self._page(ctx, after, where)
        except FalajError as error:
            _log.info("event stream ended", extra={"request": ctx.request, "why": error.code})
        finally:
            gone.cancel()
        await ask.send({"type": "http.response.body", "body": LAST if self._ending else b""})

    async def _still_welcome(self, ask: Ask, ctx: Context) -> None:
        """A caller whose token or right ended a second ago is sent nothing more."""
        if await self._gate.identify(ask) != ctx.actor:
            raise Invalid("the caller's roles changed", "open the stream again")
        (await self._lanes.inside(self._house.check, DESK, VERB, ctx, {})).unwrap()

    async def _page(self, ctx: Context, after: str, where: dict[str, str]) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = (await self._lanes.outside(self._read, ctx, after, where)).unwrap()
        return found

    def _read(self, ctx: Context, after: str, where: dict[str, str]) -> list[tuple[str, bytes]]:
        facts = self._house.ledger.tail(after, tenant=ctx.tenant, limit=PAGE, **where)
        return [
            (f.pos, b"id: %s\nevent: %s\ndata: %s\n\n" % (f.pos.encode(), f.event.verb.encode(), f.event.encode()))
            for f in facts
        ]

    async def _send(self, ask: Ask, data: bytes) -> None:
        await ask.send({"type": "http.response.body", "body": data, "more_body": True})


def _asked(ask: Ask) -> tuple[str, dict[str, str]]:
    try:
        given = dict(parse_qsl(ask.query.decode("ascii"), strict_parsing=bool(ask.query), max_num_fields=16))
    except ValueError:
        raise Invalid("the query cannot be read", f"filters are {', '.join(FILTERS)} and after") from None
    after = ask.text(b"last-event-id") or given.pop("after", "")
    given.pop("after", None)
    unknown = set(given) - set(FILTERS)
    if unknown:
        raise Invalid(f"there is no filter {min(unknown)[:40]!r}", f"filters are {', '.join(FILTERS)} and after")
    if not _CURSOR.fullmatch(after):
        raise Invalid("that is no place in the log", "use the id of the last event you saw")
    return after, given
