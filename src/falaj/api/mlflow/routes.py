"""Every path of MLflow's REST API that we answer, mounted on the guarded router. What is not here does not exist."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from falaj.api.answers import Answer
from falaj.api.lanes import Outcome
from falaj.api.mlflow import artifacts, experiments, outputs, registry, runs, traces
from falaj.api.mlflow.coding import Endpoint, Visit, read_query, reader_of, said
from falaj.api.routes import Ask, Route
from falaj.api.soon import TRIES, Work, pause_s
from falaj.api.wire import check_depth
from falaj.core.context import Context
from falaj.core.errors import Stale
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import verbs_of
from falaj.desks import desk_class
from falaj.store.envelope import key_of
from falaj.track.names import MAIN, project_of

if TYPE_CHECKING:
    from falaj.api.app import App

PARTS = (experiments, runs, outputs, registry, traces, artifacts)
VERSION = b"0+falaj"
"""We are no version of MLflow's server: clients that hear so send the spans of traces as files, in JSON."""
INFO = {
    "store_type": "SqlStore",
    "workspaces_enabled": True,
    "trace_archival_enabled": False,
    "multipart_uploads_enabled": False,
    "multipart_downloads_enabled": False,
    "features_enabled": {"gateway": False},
}
PLACES, OUTSIDE_TIMES = 100_000, 60
_encode = msgspec.json.encode


class Facade:
    """Turns a request of MLflow's into a visit to our desks."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._depth = app.house.settings.limits.body_depth
        self._files = artifacts.Files(app)
        self._places: dict[tuple[str, str], Ref] = {}
        desk: Any = app.house.desks["track"]
        self._carried = app.lanes.carries and desk.measures.rides()
        """Whether calls that only log what runs say need nobody who waits."""

    def mount(self) -> None:
        """Add every path to the router, and those that need no task to what the door takes in by itself."""
        app = self._app
        for one in (one for part in PARTS for one in part.ENDPOINTS):
            read, lane = reader_of(one.shape), self._lane(one)
            app.router.add(Route(one.method, one.path, one.action, partial(self._serve, one, read, lane)))
            if one.method == "POST" and "{" not in one.path and lane != app.lanes.outside:
                app.takers[one.path.encode()] = partial(self._take, one, read, lane)
        app.router.add(Route("GET", "/version", "edge.version", self._version))
        app.router.add(Route("GET", "/api/3.0/mlflow/server-info", "edge.server-info", self._info))
        self._files.mount()

    def _lane(self, one: Endpoint) -> Any:
        """Where it runs: as the verb it comes down to would."""
        desk, _, name = one.action.partition(".")
        verb = verbs_of(desk_class(desk))[name]
        lanes = self._app.lanes
        return lanes.outside if verb.outside else lanes.inside if verb.reading else lanes.short

    async def _serve(self, one: Endpoint, read: Any, lane: Any, ask: Ask) -> Answer:
        app = self._app
        ctx = app.gate.context(ask, ask.caller, repeatable=False)
        if one.method == "GET":
            asked: Any = read_query(one.shape, ask.query)
        else:
            body = await app.body(ask)
            check_depth(body, self._depth)
            asked = read(body)
        visit, needs = self._visit(ask, ctx, asked)
        if lane == app.lanes.outside:
            app.unhurried(OUTSIDE_TIMES)
        outcome = await lane(_within, one, visit, asked, needs=needs)
        for turn in range(TRIES):
            if not isinstance(outcome.error, Stale):
                break
            await asyncio.sleep(pause_s(turn))
            outcome = await lane(_within, one, visit, asked, needs=needs)
        return self._answer(visit, outcome)

    def _take(self, one: Endpoint, read: Any, lane: Any, ask: Ask, body: bytes) -> Work:
        """The same for a body that is here, without anybody who waits."""
        ctx = self._app.gate.context(ask, ask.caller, repeatable=False)
        check_depth(body, self._depth)
        asked = read(body)
        visit, needs = self._visit(ask, ctx, asked)
        if self._carried and one.light(asked):
            lane = self._app.lanes.light
        return Work(one.action, lane, _within, (one, visit, asked), needs, partial(self._answer, visit))

    def _visit(self, ask: Ask, ctx: Context, asked: Any) -> tuple[Visit, Sequence[Key]]:
        workspace = project_of(ask.text(b"x-mlflow-workspace")) if b"x-mlflow-workspace" in ask.headers else MAIN
        place = self._places.get((ctx.tenant, getattr(asked, "run_id", "")))
        # What this may cost, a Stale now and then, is made good: the call is tried again.
        needs = (key_of(place.bare, ctx.tenant),) if place is not None else ()
        return Visit(self._app.house, ctx, workspace, ask.named, self._places), needs

    def _answer(self, visit: Visit, outcome: Outcome) -> Answer:
        answer, error = outcome
        if error is not None:
            return said(error, visit.ctx.request)
        if visit.found:
            self._remember(visit.found)
        return Answer(200, answer, visit.ctx.request)

    def _remember(self, found: Mapping[tuple[str, str], Ref]) -> None:
        """Runs never move. Only now is durable what was read inside a group of calls that commit together."""
        if len(self._places) > PLACES:
            self._places.clear()
        self._places.update(found)

    async def _version(self, ask: Ask) -> Answer:
        ctx = self._app.gate.context(ask, ask.caller, repeatable=False)
        return Answer(200, VERSION, ctx.request, b"text/plain; charset=utf-8")

    async def _info(self, ask: Ask) -> Answer:
        ctx = self._app.gate.context(ask, ask.caller, repeatable=False)
        return Answer(200, _encode(INFO), ctx.request)


def _within(one: Endpoint, visit: Visit, asked: Any) -> bytes:
    answer: bytes = _encode(one.answer(visit, asked))
    return answer
