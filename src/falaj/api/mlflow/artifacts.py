"""Artefacts: bytes in and out by the paths MLflow's clients build. A path names a thing of ours and a file of it.

    <experiment>/<run>/artifacts/…            a run's files
    <experiment>/models/<model>/artifacts/…   a logged model's
    <experiment>/traces/<trace>/artifacts/…   a trace's spans
    registry/<project>/<name>/<version>/…     a registered version's, to read

The first three are ids that our records know, the last is a reference. No path is ever one of a disk: files lie under
their digests, and the names are data.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from falaj.api.answers import Answer
from falaj.api.mlflow.coding import BASE, Endpoint, Question, Visit, read_query, said
from falaj.api.mlflow.ids import output_ref, run_ref, trace_ref
from falaj.api.routes import Ask, Call, Route, is_plain
from falaj.api.stream import Outlet
from falaj.api.wire import Arguments
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import verbs_of
from falaj.desks import desk_class
from falaj.snapshot.read import Snapshot
from falaj.track.names import project_of

if TYPE_CHECKING:
    from falaj.api.app import App

ROOT = f"{BASE}2.0/mlflow-artifacts/artifacts"
SCHEME = "mlflow-artifacts:/"
REGISTRY = "registry"


class Place(NamedTuple):
    """A thing that has files, and the path of one of them or of a folder; empty for all."""

    owner: Ref
    path: str

    @property
    def arguments(self) -> dict[str, Any]:
        """What the verbs about files are told."""
        return {"run": self.owner, "path": self.path}


class Listing(Question):
    """Which folder."""

    path: str = ""
    run_id: str = ""
    run_uuid: str = ""
    artifact_directory_path: str = ""


def place_of(visit: Visit, path: str) -> Place:
    """What a path means, or NotFound. The path is plain already, part by part."""
    match path.split("/"):
        case [number, "models", model, "artifacts", *rest] if number.isdecimal():
            return Place(output_ref(visit, model), "/".join(rest))
        case [number, "traces", trace, "artifacts", *rest] if number.isdecimal():
            return Place(trace_ref(visit, trace), "/".join(rest))
        case [number, run, "artifacts", *rest] if number.isdecimal():
            return Place(run_ref(visit, run), "/".join(rest))
        case [head, project, name, version, *rest] if head == REGISTRY:
            return Place(Ref("model", project, name, version), "/".join(rest))
    raise NotFound("there are no artefacts at this path", "paths begin with a run's artifact_uri")


def plain_path(path: str) -> str:
    """A path from a query or a body, or Invalid: the same rules as for a path of ours."""
    if path and not all(map(is_plain, path.split("/"))):
        raise Invalid(f"{path[:80]!r} is no path of artefacts", "no empty part, no dots alone, no backslash")
    return path


def listed(visit: Visit, place: Place) -> list[dict[str, Any]]:
    """What lies directly under a place, by full path."""
    if place.owner.kind == "model":
        return _version_files(visit, place)
    found = visit.call("track", "artifacts", **place.arguments)
    return [
        {"path": one.path, "is_dir": one.folder, **({} if one.folder else {"file_size": one.size_bytes})}
        for one in found
    ]


def _list_run(visit: Visit, asked: Listing) -> Any:
    run = run_ref(visit, asked.run_id or asked.run_uuid)
    return {"files": listed(visit, Place(run, plain_path(asked.path)))}


def _list_output(visit: Visit, asked: Listing) -> Any:
    place = Place(output_ref(visit, visit.named["model"]), plain_path(asked.artifact_directory_path))
    return {"files": listed(visit, place)}


ENDPOINTS = (
    Endpoint("GET 2.0 artifacts/list", "track.artifacts", Listing, _list_run),
    Endpoint("GET 2.0 logged-models/{model}/artifacts/directories", "track.artifacts", Listing, _list_output),
)


class Files:
    """The routes that carry bytes."""

    def __init__(self, app: "App") -> None:
        self._app = app
        verbs = verbs_of(desk_class("track"))
        self._attach, self._fetch = (Call("track", verbs[n], Arguments("track", verbs[n])) for n in ("attach", "fetch"))

    def mount(self) -> None:
        """Add them to the router."""
        add = self._app.router.add
        add(Route("GET", ROOT, "track.artifacts", self._list))
        add(Route("GET", f"{ROOT}/{{path}}", "track.fetch", self._get))
        add(Route("PUT", f"{ROOT}/{{path}}", "track.attach", self._put))
        add(Route("DELETE", f"{ROOT}/{{path}}", "track.detach", self._delete))

    async def _put(self, ask: Ask) -> Answer | None:
        visit, place = await self._place(ask)
        if place.owner.kind == "model" or not place.path:
            raise Invalid("a file cannot be put here", "log it to a run; versions never change")
        return await self._app.streamed(self._attach, ask, visit.ctx, place.arguments)

    async def _get(self, ask: Ask) -> Answer | None:
        visit, place = await self._place(ask)
        if place.owner.kind != "model":
            return await self._app.streamed(self._fetch, ask, visit.ctx, place.arguments)
        self._app.unhurried()
        outlet = Outlet(ask.send, ask.receive, visit.ctx.request)
        try:
            push = lambda: outlet.push(_version_file(visit, place))  # noqa: E731
            _, error = await self._app.lanes.streaming(visit.ctx.actor, push)
        finally:
            outlet.close()
        return None if error is None or outlet.started else said(error, visit.ctx.request)

    async def _delete(self, ask: Ask) -> Answer:
        visit, place = await self._place(ask)
        if place.owner.kind == "model":
            raise Invalid("versions never change", "delete the version")
        _, error = await self._app.lanes.short(lambda: visit.call("track", "detach", **place.arguments))
        return Answer(200, b"{}", visit.ctx.request) if error is None else said(error, visit.ctx.request)

    async def _list(self, ask: Ask) -> Answer:
        visit = self._visit(ask)
        path = plain_path(read_query(Listing, ask.query).path.rstrip("/"))
        # What is registered is read from the bytes of its tree: no lane waits for a disk.
        lanes = self._app.lanes
        body, error = await (lanes.outside if path.startswith(REGISTRY) else lanes.inside)(_listing, visit, path)
        return Answer(200, body, visit.ctx.request) if error is None else said(error, visit.ctx.request)

    def _visit(self, ask: Ask) -> Visit:
        ctx = self._app.gate.context(ask, ask.caller, repeatable=False)
        return Visit(self._app.house, ctx, project_of(ask.text(b"x-mlflow-workspace")), ask.named)

    async def _place(self, ask: Ask) -> tuple[Visit, Place]:
        if ask.query:
            # A file name with a question mark that its client did not escape; its beginning is another file.
            raise Invalid("a path of artefacts has no query", "escape a question mark as %3F")
        visit = self._visit(ask)
        found = (await self._app.lanes.inside(place_of, visit, ask.named["path"])).unwrap()
        return visit, found


def _listing(visit: Visit, path: str) -> bytes:
    """What lies directly under a path, each by its own name."""
    files = listed(visit, place_of(visit, path))
    answer: bytes = msgspec.json.encode({"files": [{**one, "path": one["path"].rpartition("/")[2]} for one in files]})
    return answer


def _snapshot(visit: Visit, version: Ref) -> Snapshot:
    """A registered version, opened for this caller by the catalog."""
    opened = visit.call("catalog", "open", name=version)

    def fetch(digest: str, start: int, stop: int | None) -> Iterator[bytes]:
        return visit.house.transfers.get(visit.ctx, opened.ticket, digest, start, stop)

    return Snapshot(opened.tree, fetch)


def _version_file(visit: Visit, place: Place) -> Stream:
    snapshot = _snapshot(visit, place.owner)
    entry = snapshot.entry(place.path.encode())
    return Stream(snapshot.read(entry), entry.size)


def _version_files(visit: Visit, place: Place) -> list[dict[str, Any]]:
    """Files by path and, once each, the folders among them."""
    inside = f"{place.path}/" if place.path else ""
    found: dict[str, dict[str, Any]] = {}
    for entry in _snapshot(visit, place.owner).entries(inside.encode()):
        name, slash, _ = entry.path.decode("utf-8", "replace").removeprefix(inside).partition("/")
        path = inside + name
        found[path] = (
            {"path": path, "is_dir": True} if slash else {"path": path, "is_dir": False, "file_size": entry.size}
        )
    return list(found.values())
