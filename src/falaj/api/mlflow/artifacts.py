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

from falaj.api.argument_decoding import ArgumentDecoder
from falaj.api.body_streams import ResponseStreamWriter
from falaj.api.mlflow.coding import (
    API_BASE,
    MlflowContext,
    MlflowEndpoint,
    MlflowRequest,
    decode_query,
    render_mlflow_error,
)
from falaj.api.mlflow.resource_refs import require_logged_model_ref, require_run_ref, require_trace_ref
from falaj.api.responses import HttpResponse
from falaj.api.routes import HttpRoute, OperationCall, RequestContext, is_plain_name
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import Invalid, NotFound
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.services import load_service_class
from falaj.snapshot.tree_reader import TreeSnapshot
from falaj.track.name_mapping import parse_workspace

if TYPE_CHECKING:
    from falaj.api.app import HttpApplication

ARTIFACTS_ROOT = f"{API_BASE}2.0/mlflow-artifacts/artifacts"
ARTIFACT_SCHEME = "mlflow-artifacts:/"
REGISTRY_PREFIX = "registry"


class ArtifactLocation(NamedTuple):
    """A thing that has files, and the path of one of them or of a folder; empty for all."""

    owner: Ref
    path: str

    @property
    def arguments(self) -> dict[str, Any]:
        """What the verbs about files are told."""
        return {"run": self.owner, "path": self.path}


class ListArtifactsRequest(MlflowRequest):
    """Which folder."""

    path: str = ""
    run_id: str = ""
    run_uuid: str = ""
    artifact_directory_path: str = ""


def locate_artifact(context: MlflowContext, path: str) -> ArtifactLocation:
    """What a path means, or NotFound. The path is plain already, part by part."""
    match path.split("/"):
        case [number, "models", model, "artifacts", *path_parts] if number.isdecimal():
            return ArtifactLocation(require_logged_model_ref(context, model), "/".join(path_parts))
        case [number, "traces", trace, "artifacts", *path_parts] if number.isdecimal():
            return ArtifactLocation(require_trace_ref(context, trace), "/".join(path_parts))
        case [number, run, "artifacts", *path_parts] if number.isdecimal():
            return ArtifactLocation(require_run_ref(context, run), "/".join(path_parts))
        case [prefix, project, name, version, *path_parts] if prefix == REGISTRY_PREFIX:
            return ArtifactLocation(Ref("model", project, name, version), "/".join(path_parts))
    raise NotFound("there are no artefacts at this path", "paths begin with a run's artifact_uri")


def require_plain_path(path: str) -> str:
    """A path from a query or a body, or Invalid: the same rules as for a path of ours."""
    if path and not all(map(is_plain_name, path.split("/"))):
        raise Invalid(f"{path[:80]!r} is no path of artefacts", "no empty part, no dots alone, no backslash")
    return path


def list_artifacts(context: MlflowContext, location: ArtifactLocation) -> list[dict[str, Any]]:
    """What lies directly under a place, by full path."""
    if location.owner.kind == "model":
        return _list_version_files(context, location)
    artifact_entries = context.call("track", "artifacts", **location.arguments)
    return [
        {"path": entry.path, "is_dir": entry.folder, **({} if entry.folder else {"file_size": entry.size_bytes})}
        for entry in artifact_entries
    ]


def _list_run_artifacts(context: MlflowContext, request: ListArtifactsRequest) -> Any:
    run = require_run_ref(context, request.run_id or request.run_uuid)
    return {"files": list_artifacts(context, ArtifactLocation(run, require_plain_path(request.path)))}


def _list_logged_model_artifacts(context: MlflowContext, request: ListArtifactsRequest) -> Any:
    location = ArtifactLocation(
        require_logged_model_ref(context, context.named["model"]), require_plain_path(request.artifact_directory_path)
    )
    return {"files": list_artifacts(context, location)}


ENDPOINTS = (
    MlflowEndpoint("GET 2.0 artifacts/list", "track.artifacts", ListArtifactsRequest, _list_run_artifacts),
    MlflowEndpoint(
        "GET 2.0 logged-models/{model}/artifacts/directories",
        "track.artifacts",
        ListArtifactsRequest,
        _list_logged_model_artifacts,
    ),
)


class ArtifactRoutes:
    """The routes that carry bytes."""

    def __init__(self, app: "HttpApplication") -> None:
        self._app = app
        operations = list_operations(load_service_class("track"))
        self._attach_call, self._fetch_call = (
            OperationCall("track", operations[n], ArgumentDecoder("track", operations[n])) for n in ("attach", "fetch")
        )

    def mount(self) -> None:
        """Add them to the router."""
        add_route = self._app.router.add
        add_route(HttpRoute("GET", ARTIFACTS_ROOT, "track.artifacts", self._serve_listing))
        add_route(HttpRoute("GET", f"{ARTIFACTS_ROOT}/{{path}}", "track.fetch", self._serve_download))
        add_route(HttpRoute("PUT", f"{ARTIFACTS_ROOT}/{{path}}", "track.attach", self._serve_upload))
        add_route(HttpRoute("DELETE", f"{ARTIFACTS_ROOT}/{{path}}", "track.detach", self._serve_delete))

    async def _serve_upload(self, request: RequestContext) -> HttpResponse | None:
        context, location = await self._locate_request(request)
        if location.owner.kind == "model" or not location.path:
            raise Invalid("a file cannot be put here", "log it to a run; versions never change")
        return await self._app.streamed(self._attach_call, request, context.ctx, location.arguments)

    async def _serve_download(self, request: RequestContext) -> HttpResponse | None:
        context, location = await self._locate_request(request)
        if location.owner.kind != "model":
            return await self._app.streamed(self._fetch_call, request, context.ctx, location.arguments)
        self._app.unhurried()
        response_stream = ResponseStreamWriter(request.send, request.receive, context.ctx.request)
        try:
            send_file = lambda: response_stream.push(_read_version_file(context, location))  # noqa: E731
            _, error = await self._app.lanes.streaming(context.ctx.actor, send_file)
        finally:
            response_stream.close()
        return None if error is None or response_stream.started else render_mlflow_error(error, context.ctx.request)

    async def _serve_delete(self, request: RequestContext) -> HttpResponse:
        context, location = await self._locate_request(request)
        if location.owner.kind == "model":
            raise Invalid("versions never change", "delete the version")
        _, error = await self._app.lanes.short(lambda: context.call("track", "detach", **location.arguments))
        return (
            HttpResponse(200, b"{}", context.ctx.request)
            if error is None
            else render_mlflow_error(error, context.ctx.request)
        )

    async def _serve_listing(self, request: RequestContext) -> HttpResponse:
        context = self._create_context(request)
        path = require_plain_path(decode_query(ListArtifactsRequest, request.query).path.rstrip("/"))
        # What is registered is read from the bytes of its tree: no lane waits for a disk.
        call_executor = self._app.lanes
        body, error = await (call_executor.outside if path.startswith(REGISTRY_PREFIX) else call_executor.inside)(
            _encode_listing, context, path
        )
        return (
            HttpResponse(200, body, context.ctx.request)
            if error is None
            else render_mlflow_error(error, context.ctx.request)
        )

    def _create_context(self, request: RequestContext) -> MlflowContext:
        ctx = self._app.gate.context(request, request.caller, is_repeatable=False)
        return MlflowContext(self._app.house, ctx, parse_workspace(request.text(b"x-mlflow-workspace")), request.named)

    async def _locate_request(self, request: RequestContext) -> tuple[MlflowContext, ArtifactLocation]:
        if request.query:
            # A file name with a question mark that its client did not escape; its beginning is another file.
            raise Invalid("a path of artefacts has no query", "escape a question mark as %3F")
        context = self._create_context(request)
        location = (await self._app.lanes.inside(locate_artifact, context, request.named["path"])).unwrap()
        return context, location


def _encode_listing(context: MlflowContext, path: str) -> bytes:
    """What lies directly under a path, each by its own name."""
    files = list_artifacts(context, locate_artifact(context, path))
    encoded: bytes = msgspec.json.encode(
        {"files": [{**entry, "path": entry["path"].rpartition("/")[2]} for entry in files]}
    )
    return encoded


def _open_snapshot(context: MlflowContext, version: Ref) -> TreeSnapshot:
    """A registered version, opened for this caller by the catalog."""
    opened_version = context.call("catalog", "open", name=version)

    def fetch_bytes(digest: str, start: int, stop: int | None) -> Iterator[bytes]:
        return context.house.transfers.get(context.ctx, opened_version.ticket, digest, start, stop)

    return TreeSnapshot(opened_version.tree, fetch_bytes)


def _read_version_file(context: MlflowContext, location: ArtifactLocation) -> ByteStream:
    snapshot = _open_snapshot(context, location.owner)
    entry = snapshot.entry(location.path.encode())
    return ByteStream(snapshot.read(entry), entry.size)


def _list_version_files(context: MlflowContext, location: ArtifactLocation) -> list[dict[str, Any]]:
    """Files by path and, once each, the folders among them."""
    folder_prefix = f"{location.path}/" if location.path else ""
    entries_by_path: dict[str, dict[str, Any]] = {}
    for entry in _open_snapshot(context, location.owner).entries(folder_prefix.encode()):
        name, slash, _ = entry.path.decode("utf-8", "replace").removeprefix(folder_prefix).partition("/")
        path = folder_prefix + name
        entries_by_path[path] = (
            {"path": path, "is_dir": True} if slash else {"path": path, "is_dir": False, "file_size": entry.size}
        )
    return list(entries_by_path.values())
