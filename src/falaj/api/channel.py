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

from falaj.api.answers import REQUEST_HEADER, SECURITY, Answer
from falaj.api.routes import Ask, Route
from falaj.api.stream import left
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError
from falaj.core.event import new_id
from falaj.core.relay import relay_of
from falaj.store.codec import from_json, to_json

if TYPE_CHECKING:
    from falaj.api.app import App

LISTEN, ANSWER, TOKEN = "/v1/agents/listen", "/v1/agents/answer", "/v1/agents/token"
KEEP, FIND = "/v1/bytes/keep", "/v1/bytes/find"
DOOR_HEADER = b"falaj-door"
HEARTBEAT_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """What an agent answers to one question."""

    id: str
    result: Any = None
    error: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Lying:
    """Bytes that an agent wrote into its zone, under which ticket they came, and what it calls them."""

    ticket: str
    digest: str
    size: int
    key: str


@dataclass(frozen=True, slots=True)
class Sought:
    """Bytes that somebody wants of an agent."""

    ticket: str
    digest: str


@dataclass(frozen=True, slots=True)
class Worker:
    """An attempt that runs in an agent's zone."""

    tenant: str
    run: str
    attempt: str


class Channel:
    """Answers the paths of agents that are no verbs."""

    def __init__(self, app: "App") -> None:
        self._app = app

    def mount(self) -> None:
        """Add the paths."""
        add = self._app.router.add
        add(Route("POST", LISTEN, "agents.listen", self._listen))
        add(Route("POST", ANSWER, "agents.answer", self._answer))
        add(Route("POST", TOKEN, "agents.token", self._token))
        add(Route("POST", KEEP, "bytes.keep", self._keep))
        add(Route("POST", FIND, "bytes.find", self._find))

    async def _listen(self, ask: Ask) -> None:
        """One line for each question, and an empty one now and then: for as long as both sides are there."""
        agent = _agent(ask)
        ctx = self._app.gate.context(ask, agent, repeatable=False)
        loop, desk = asyncio.get_running_loop(), self._app.house.desks["agents"]
        questions: asyncio.Queue[bytes] = asyncio.Queue()

        def tell(message: Mapping[str, Any]) -> None:
            line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
            loop.call_soon_threadsafe(questions.put_nowait, line)

        await self._app.body(ask)
        self._app.unhurried()
        (await self._app.lanes.outside(desk.came, ctx, agent.zone, True)).unwrap()
        headers = [(b"content-type", b"application/jsonl"), (REQUEST_HEADER, ctx.request.encode()), *SECURITY]
        await ask.send({"type": "http.response.start", "status": 200, "headers": headers})
        relay = relay_of(agent.zone)
        end = relay.listen(tell, ask.text(DOOR_HEADER)[:200])
        try:
            await self._pass_on(ask, questions)
        finally:
            end()
            await self._app.lanes.outside(desk.came, ctx, agent.zone, False)

    async def _pass_on(self, ask: Ask, questions: "asyncio.Queue[bytes]") -> None:
        gone = asyncio.ensure_future(left(ask.receive))
        stopping = asyncio.ensure_future(self._app.stopping.wait())
        line = b"\n"
        try:
            while line:
                await ask.send({"type": "http.response.body", "body": line, "more_body": True})
                line = await self._next(ask, questions, (gone, stopping))
        except FalajError as error:  # it was removed while it listened: the end of the answer tells it
            _log.info("agent sent away", extra={"zone": _agent(ask).zone, "why": error.code})
        finally:
            gone.cancel()
            stopping.cancel()
        await ask.send({"type": "http.response.body", "body": b""})

    async def _next(
        self, ask: Ask, questions: "asyncio.Queue[bytes]", ends: "tuple[asyncio.Future[Any], ...]"
    ) -> bytes:
        """The next line; empty at the end."""
        waiting = asyncio.ensure_future(questions.get())
        done, _ = await asyncio.wait({waiting, *ends}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
        if waiting not in done:
            waiting.cancel()
            if done:
                return b""
        await self._app.gate.identify(ask)  # nothing is passed on to an agent that was removed a second ago
        return waiting.result() if waiting in done else b"\n"

    async def _answer(self, ask: Ask) -> Answer:
        agent = _agent(ask)
        ask.request = new_id()
        said: Answered = from_json(Answered, await self._app.body(ask))
        relay_of(agent.zone).answer(said.id, said.result, said.error)
        return Answer(200, b"{}", ask.request)

    async def _token(self, ask: Ask) -> Answer:
        """The next token of an attempt that runs in the agent's zone, by its cluster; of no other."""
        agent = _agent(ask)
        ask.request = new_id()
        said: Worker = from_json(Worker, await self._app.body(ask))
        jobs, ctx = self._app.house.desks["jobs"], replace(self._app.house.system(), tenant=said.tenant)
        token = (await self._app.lanes.outside(jobs.token_for, ctx, agent.zone, said.run, said.attempt)).unwrap()
        return Answer(200, to_json({"token": token}), ask.request)

    async def _keep(self, ask: Ask) -> Answer:
        """Bytes were written in the zone: gives the receipt that whoever sent them needs."""
        agent, ctx = _agent(ask), self._app.gate.context(ask, ask.caller, repeatable=False)
        said: Lying = from_json(Lying, await self._app.body(ask))
        keep = self._app.house.transfers.keep
        receipt, won = (
            await self._app.lanes.outside(keep, ctx, said.ticket, (said.digest, said.size, said.key), agent.zone)
        ).unwrap()
        return Answer(200, to_json({"receipt": receipt, "kept": won}), ctx.request)

    async def _find(self, ask: Ask) -> Answer:
        """What the zone calls bytes that a ticket opens."""
        agent, ctx = _agent(ask), self._app.gate.context(ask, ask.caller, repeatable=False)
        said: Sought = from_json(Sought, await self._app.body(ask))
        find = self._app.house.transfers.find
        key, size = (await self._app.lanes.outside(find, ctx, said.ticket, said.digest, agent.zone)).unwrap()
        return Answer(200, to_json({"key": key, "size": size, "tenant": ctx.tenant}), ctx.request)


def _agent(ask: Ask) -> Actor:
    if ask.agent is None:
        raise Denied("only a zone's agent asks this", "falaj agents invite --zone … lets one join")
    return ask.agent
