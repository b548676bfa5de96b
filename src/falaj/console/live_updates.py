"""Live: tells open pages at which desks something changed, and no more than that; they look again, as themselves.

One reader of the log serves every open page of this process. Looking at a page is recorded, too: what only looked is no
change, else every page would wake every other for ever.
"""

import asyncio
from typing import Any

from falaj.api.app import HttpApplication
from falaj.api.body_streams import wait_for_disconnect
from falaj.api.open_streams import HEARTBEAT_INTERVAL_S, LAST_EVENT_CHUNK, OpenStreams
from falaj.api.responses import EVENT_STREAM_TYPE, SECURITY_HEADERS
from falaj.api.routes import RequestContext
from falaj.core.errors import FalajError
from falaj.services import list_actions

PAGE_SIZE, GATHER_WINDOW_S = 1000, 0.4
MAX_STREAMS_PER_CALLER = 32
MAX_EVENTS_READ = 20_000
"""So many events at once are not read one by one: everything changed."""
ALL_SERVICES = "*"


class LiveUpdates:
    """The open pages of this process."""

    def __init__(self, app: HttpApplication) -> None:
        self._app, self._ledger = app, app.house.ledger
        read_actions = (action for action, group in list_actions().items() if group in ("see", "read", "audit"))
        self._ignored_actions = frozenset((*read_actions, "console.sign_in", "console.sign_out"))
        self._tenant_by_queue: dict[asyncio.Queue[set[str]], str] = {}
        self._open_streams = OpenStreams(self._ledger, MAX_STREAMS_PER_CALLER, "pages")
        self._read_task: asyncio.Task[None] | None = None
        self._position = ""

    async def serve(self, request: RequestContext) -> None:
        """One page's stream: `data: jobs queues` after each change."""
        with self._open_streams.one(request.caller):
            change_queue: asyncio.Queue[set[str]] = asyncio.Queue()
            self._tenant_by_queue[change_queue] = request.caller.tenant
            self._start_reading()
            self._app.unhurried()
            disconnect_task = asyncio.ensure_future(wait_for_disconnect(request.receive))
            stopping_task = asyncio.ensure_future(self._app.stopping.wait())
            try:
                await self._send_updates(request, change_queue, {disconnect_task, stopping_task})
            finally:
                del self._tenant_by_queue[change_queue]
                disconnect_task.cancel()
                stopping_task.cancel()

    async def _send_updates(
        self, request: RequestContext, change_queue: "asyncio.Queue[set[str]]", end_tasks: set[asyncio.Future[Any]]
    ) -> None:
        headers = [(b"content-type", EVENT_STREAM_TYPE), (b"x-accel-buffering", b"no"), *SECURITY_HEADERS]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        chunk = b": ok\n\n"
        while not any(end_task.done() for end_task in end_tasks):
            await request.send({"type": "http.response.body", "body": chunk, "more_body": True})
            change_task = asyncio.ensure_future(change_queue.get())
            completed_tasks, _ = await asyncio.wait(
                {change_task, *end_tasks}, timeout=HEARTBEAT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not await self._is_still_welcome(request):
                change_task.cancel()
                break
            if change_task in completed_tasks:
                chunk = b"data: " + " ".join(sorted(change_task.result())).encode() + b"\n\n"
                continue
            change_task.cancel()
            chunk = b": here\n\n"
        last_chunk = LAST_EVENT_CHUNK if self._app.stopping.is_set() else b""
        await request.send({"type": "http.response.body", "body": last_chunk})

    async def _is_still_welcome(self, request: RequestContext) -> bool:
        """A session that was ended a second ago is sent nothing more."""
        try:
            await self._app.gate.identify(request)
        except FalajError:
            return False
        return True

    def _start_reading(self) -> None:
        if self._read_task is None or self._read_task.done():
            self._position = self._ledger.store.end()
            self._read_task = asyncio.get_running_loop().create_task(self._read_events())

    async def _read_events(self) -> None:
        commit_number = self._open_streams.turn
        while self._tenant_by_queue:
            await self._open_streams.moved(commit_number)
            await asyncio.sleep(GATHER_WINDOW_S)
            commit_number = self._open_streams.turn
            changed = (await self._app.lanes.outside(self._read_changes)).unwrap()
            for change_queue, tenant in self._tenant_by_queue.items():
                changed_services = {
                    service for event_tenant, service in changed if event_tenant in (tenant, ALL_SERVICES)
                }
                if changed_services:
                    change_queue.put_nowait(changed_services)

    def _read_changes(self) -> set[tuple[str, str]]:
        """(tenant, desk) of what changed since the last look. Only names of verbs are read; nothing is opened."""
        changes, num_read = set[tuple[str, str]](), 0
        while rows := self._ledger.store.events(self._position, limit=PAGE_SIZE):
            self._position, num_read = rows[-1].pos, num_read + len(rows)
            changes |= {
                (row.tenant, row.verb.partition(".")[0]) for row in rows if row.verb not in self._ignored_actions
            }
            if num_read >= MAX_EVENTS_READ:
                self._position = self._ledger.store.end()
                return {(ALL_SERVICES, ALL_SERVICES)}
            if len(rows) < PAGE_SIZE:
                break
        return changes
