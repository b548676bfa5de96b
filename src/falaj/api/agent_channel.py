"""The channel of agents: a zone's agent keeps one answer open, in which questions come to it, and posts its answers.

Who it is, its certificate says. What it says of bytes that lie in its zone counts only with the ticket of whoever the
bytes belong to: the caller by their token, the agent by its certificate, in one request.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from falaj.api.body_streams import wait_for_disconnect
from falaj.api.responses import REQUEST_HEADER, SECURITY_HEADERS, HttpResponse
from falaj.api.routes import HttpRoute, RequestContext
from falaj.core.agent_relay import get_relay
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError
from falaj.core.event import generate_id
from falaj.store.codec import from_json, to_json

if TYPE_CHECKING:
    from falaj.api.app import HttpApplication

LISTEN_PATH, ANSWER_PATH, TOKEN_PATH = "/v1/agents/listen", "/v1/agents/answer", "/v1/agents/token"
KEEP_PATH, FIND_PATH = "/v1/bytes/keep", "/v1/bytes/find"
AGENT_ADDRESS_HEADER = b"falaj-door"
HEARTBEAT_INTERVAL_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What an agent answers to one question."""

    id: str
    result: Any = None
    error: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RemotePiece:
    """Bytes that an agent wrote into its zone, under which ticket they came, and what it calls them."""

    ticket: str
    digest: str
    size: int
    key: str


@dataclass(frozen=True, slots=True)
class PieceLookup:
    """Bytes that somebody wants of an agent."""

    ticket: str
    digest: str


@dataclass(frozen=True, slots=True)
class AttemptIdentity:
    """An attempt that runs in an agent's zone."""

    tenant: str
    run: str
    attempt: str


class AgentChannelHandler:
    """Answers the paths of agents that are no verbs."""

    def __init__(self, app: "HttpApplication") -> None:
        self._app = app

    def mount(self) -> None:
        """Add the paths."""
        add_route = self._app.router.add
        add_route(HttpRoute("POST", LISTEN_PATH, "agents.listen", self._serve_listen))
        add_route(HttpRoute("POST", ANSWER_PATH, "agents.answer", self._serve_answer))
        add_route(HttpRoute("POST", TOKEN_PATH, "agents.token", self._serve_token))
        add_route(HttpRoute("POST", KEEP_PATH, "bytes.keep", self._serve_keep))
        add_route(HttpRoute("POST", FIND_PATH, "bytes.find", self._serve_find))

    async def _serve_listen(self, request: RequestContext) -> None:
        """One line for each question, and an empty one now and then: for as long as both sides are there."""
        agent = _require_agent(request)
        ctx = self._app.gate.context(request, agent, is_repeatable=False)
        loop, agent_service = asyncio.get_running_loop(), self._app.house.desks["agents"]
        outgoing_lines: asyncio.Queue[bytes] = asyncio.Queue()

        def send_message(message: Mapping[str, Any]) -> None:
            line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
            loop.call_soon_threadsafe(outgoing_lines.put_nowait, line)

        await self._app.body(request)
        self._app.unhurried()
        (await self._app.lanes.outside(agent_service.came, ctx, agent.zone, True)).unwrap()
        headers = [(b"content-type", b"application/jsonl"), (REQUEST_HEADER, ctx.request.encode()), *SECURITY_HEADERS]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        relay = get_relay(agent.zone)
        detach_connection = relay.listen(send_message, request.text(AGENT_ADDRESS_HEADER)[:200])
        try:
            await self._forward_lines(request, outgoing_lines)
        finally:
            detach_connection()
            await self._app.lanes.outside(agent_service.came, ctx, agent.zone, False)

    async def _forward_lines(self, request: RequestContext, outgoing_lines: "asyncio.Queue[bytes]") -> None:
        disconnected = asyncio.ensure_future(wait_for_disconnect(request.receive))
        stop_waiter = asyncio.ensure_future(self._app.stopping.wait())
        line = b"\n"
        try:
            while line:
                await request.send({"type": "http.response.body", "body": line, "more_body": True})
                line = await self._next_line(request, outgoing_lines, (disconnected, stop_waiter))
        except FalajError as error:  # it was removed while it listened: the end of the answer tells it
            _log.info("agent sent away", extra={"zone": _require_agent(request).zone, "why": error.code})
        finally:
            disconnected.cancel()
            stop_waiter.cancel()
        await request.send({"type": "http.response.body", "body": b""})

    async def _next_line(
        self,
        request: RequestContext,
        outgoing_lines: "asyncio.Queue[bytes]",
        end_futures: "tuple[asyncio.Future[Any], ...]",
    ) -> bytes:
        """The next line; empty at the end."""
        line_waiter = asyncio.ensure_future(outgoing_lines.get())
        done, _ = await asyncio.wait(
            {line_waiter, *end_futures}, timeout=HEARTBEAT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
        )
        if line_waiter not in done:
            line_waiter.cancel()
            if done:
                return b""
        await self._app.gate.identify(request)  # nothing is passed on to an agent that was removed a second ago
        return line_waiter.result() if line_waiter in done else b"\n"

    async def _serve_answer(self, request: RequestContext) -> HttpResponse:
        agent = _require_agent(request)
        request.request = generate_id()
        agent_reply: AgentReply = from_json(AgentReply, await self._app.body(request))
        get_relay(agent.zone).answer(agent_reply.id, agent_reply.result, agent_reply.error)
        return HttpResponse(200, b"{}", request.request)

    async def _serve_token(self, request: RequestContext) -> HttpResponse:
        """The next token of an attempt that runs in the agent's zone, by its cluster; of no other."""
        agent = _require_agent(request)
        request.request = generate_id()
        attempt_identity: AttemptIdentity = from_json(AttemptIdentity, await self._app.body(request))
        job_service, ctx = (
            self._app.house.desks["jobs"],
            replace(self._app.house.system(), tenant=attempt_identity.tenant),
        )
        token = (
            await self._app.lanes.outside(
                job_service.token_for, ctx, agent.zone, attempt_identity.run, attempt_identity.attempt
            )
        ).unwrap()
        return HttpResponse(200, to_json({"token": token}), request.request)

    async def _serve_keep(self, request: RequestContext) -> HttpResponse:
        """Bytes were written in the zone: gives the receipt that whoever sent them needs."""
        agent, ctx = _require_agent(request), self._app.gate.context(request, request.caller, is_repeatable=False)
        remote_piece: RemotePiece = from_json(RemotePiece, await self._app.body(request))
        record_remote_piece = self._app.house.transfers.keep
        receipt, is_recorded = (
            await self._app.lanes.outside(
                record_remote_piece,
                ctx,
                remote_piece.ticket,
                (remote_piece.digest, remote_piece.size, remote_piece.key),
                agent.zone,
            )
        ).unwrap()
        return HttpResponse(200, to_json({"receipt": receipt, "kept": is_recorded}), ctx.request)

    async def _serve_find(self, request: RequestContext) -> HttpResponse:
        """What the zone calls bytes that a ticket opens."""
        agent, ctx = _require_agent(request), self._app.gate.context(request, request.caller, is_repeatable=False)
        piece_lookup: PieceLookup = from_json(PieceLookup, await self._app.body(request))
        find_remote_piece = self._app.house.transfers.find
        key, size = (
            await self._app.lanes.outside(find_remote_piece, ctx, piece_lookup.ticket, piece_lookup.digest, agent.zone)
        ).unwrap()
        return HttpResponse(200, to_json({"key": key, "size": size, "tenant": ctx.tenant}), ctx.request)


def _require_agent(request: RequestContext) -> Actor:
    if request.agent is None:
        raise Denied("only a zone's agent asks this", "falaj agents invite --zone … lets one join")
    return request.agent
