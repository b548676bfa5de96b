"""The event stream: one tenant's log as server-sent events, from any point of it, for as long as the caller listens."""

import asyncio
import logging
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from falaj.api.authentication import RequestAuthenticator
from falaj.api.body_streams import wait_for_disconnect
from falaj.api.call_executor import CallExecutor
from falaj.api.metrics import EdgeMetrics
from falaj.api.open_streams import LAST_EVENT_CHUNK, OpenStreams
from falaj.api.request_deadlines import RequestDeadlines
from falaj.api.responses import EVENT_STREAM_TYPE, REQUEST_HEADER, SECURITY_HEADERS, HttpResponse
from falaj.api.routes import RequestContext
from falaj.core.context import CallContext
from falaj.core.errors import FalajError, Invalid

if TYPE_CHECKING:
    from falaj.server import Server

WATCH_SERVICE, WATCH_OPERATION = "audit", "watch"
"""The verb that says whether one may listen. It is asked, and recorded, when a stream opens; and asked again before
more is sent."""
EVENT_FILTERS = ("verb", "actor", "request", "kind", "project", "name", "version")
PAGE_SIZE = 500
MAX_STREAMS_PER_CALLER = 16
_CURSOR_PATTERN = re.compile(r"[A-Za-z0-9._:+/=-]{0,200}")
_log = logging.getLogger(__name__)


class EventStreamHandler:
    """Every open stream of this process. A commit wakes them; each reads the log on from where it stands."""

    action = f"{WATCH_SERVICE}.{WATCH_OPERATION}"

    def __init__(
        self,
        server: "Server",
        call_executor: CallExecutor,
        authenticator: RequestAuthenticator,
        metrics: EdgeMetrics,
        deadlines: RequestDeadlines,
    ) -> None:
        self._server = server
        self._call_executor = call_executor
        self._authenticator = authenticator
        self._metrics = metrics
        self._deadlines = deadlines
        self._open_streams = OpenStreams(server.ledger, MAX_STREAMS_PER_CALLER, "event streams")
        self._is_stopping = False

    def stop(self) -> None:
        """End every stream, so that the server can."""
        self._is_stopping = True
        self._open_streams.wake()

    async def serve(self, request: RequestContext) -> HttpResponse | None:
        """GET /v1/events; Last-Event-ID or ?after= says where to go on."""
        after, filters = _parse_event_query(request)
        ctx = self._authenticator.context(request, request.caller)
        (await self._call_executor.inside(self._server.call, WATCH_SERVICE, WATCH_OPERATION, ctx, {})).unwrap()
        task = asyncio.current_task()
        if task is not None:
            self._deadlines.close(task)  # a stream lasts as long as its listener
        with self._open_streams.one(ctx.actor):
            self._metrics.open_streams += 1
            try:
                await self._send_events(request, ctx, after, filters)
            finally:
                self._metrics.open_streams -= 1
        return None

    async def _send_events(
        self, request: RequestContext, ctx: CallContext, after: str, filters: dict[str, str]
    ) -> None:
        disconnected = asyncio.ensure_future(wait_for_disconnect(request.receive))
        headers = [
            (b"content-type", EVENT_STREAM_TYPE),
            (REQUEST_HEADER, ctx.request.encode()),
            (b"x-accel-buffering", b"no"),
            *SECURITY_HEADERS,
        ]
        commit_number = self._open_streams.turn
        page = await self._read_page(ctx, after, filters)  # an unreadable cursor is still an answer
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._send_chunk(request, b": ok\n\n")
            while not self._is_stopping and not disconnected.done():
                if page:
                    await self._require_valid_caller(request, ctx)
                for cursor, frame in page:
                    after = cursor
                    await self._send_chunk(request, frame)
                if len(page) < PAGE_SIZE and not await self._open_streams.moved(commit_number, disconnected):
                    await self._send_chunk(request, b": here\n\n")
                    await self._require_valid_caller(request, ctx)
                commit_number = self._open_streams.turn
                page = await self._read_page(ctx, after, filters)
        except FalajError as error:
            _log.info("event stream ended", extra={"request": ctx.request, "why": error.code})
        finally:
            disconnected.cancel()
        await request.send({"type": "http.response.body", "body": LAST_EVENT_CHUNK if self._is_stopping else b""})

    async def _require_valid_caller(self, request: RequestContext, ctx: CallContext) -> None:
        """A caller whose token or right ended a second ago is sent nothing more."""
        if await self._authenticator.identify(request) != ctx.actor:
            raise Invalid("the caller's roles changed", "open the stream again")
        (await self._call_executor.inside(self._server.check, WATCH_SERVICE, WATCH_OPERATION, ctx, {})).unwrap()

    async def _read_page(self, ctx: CallContext, after: str, filters: dict[str, str]) -> list[tuple[str, bytes]]:
        page: list[tuple[str, bytes]] = (
            await self._call_executor.outside(self._read_frames, ctx, after, filters)
        ).unwrap()
        return page

    def _read_frames(self, ctx: CallContext, after: str, filters: dict[str, str]) -> list[tuple[str, bytes]]:
        logged_events = self._server.ledger.tail(after, tenant=ctx.tenant, limit=PAGE_SIZE, **filters)
        return [
            (
                logged_event.pos,
                b"id: %s\nevent: %s\ndata: %s\n\n"
                % (logged_event.pos.encode(), logged_event.event.verb.encode(), logged_event.event.encode()),
            )
            for logged_event in logged_events
        ]

    async def _send_chunk(self, request: RequestContext, data: bytes) -> None:
        await request.send({"type": "http.response.body", "body": data, "more_body": True})


def _parse_event_query(request: RequestContext) -> tuple[str, dict[str, str]]:
    try:
        filters = dict(parse_qsl(request.query.decode("ascii"), strict_parsing=bool(request.query), max_num_fields=16))
    except ValueError:
        raise Invalid("the query cannot be read", f"filters are {', '.join(EVENT_FILTERS)} and after") from None
    after = request.text(b"last-event-id") or filters.pop("after", "")
    filters.pop("after", None)
    unknown = set(filters) - set(EVENT_FILTERS)
    if unknown:
        raise Invalid(f"there is no filter {min(unknown)[:40]!r}", f"filters are {', '.join(EVENT_FILTERS)} and after")
    if not _CURSOR_PATTERN.fullmatch(after):
        raise Invalid("that is no place in the log", "use the id of the last event you saw")
    return after, filters
