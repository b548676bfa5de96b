"""Every path of MLflow's REST API that we answer, mounted on the guarded router. What is not here does not exist."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from falaj.api.argument_decoding import check_json_depth
from falaj.api.call_executor import CallOutcome
from falaj.api.mlflow import artifacts, experiments, logged_models, model_registry, runs, traces
from falaj.api.mlflow.coding import (
    MlflowContext,
    MlflowEndpoint,
    create_body_decoder,
    decode_query,
    render_mlflow_error,
)
from falaj.api.responses import HttpResponse
from falaj.api.routes import HttpRoute, RequestContext
from falaj.api.soon import TRIES, Work, pause_s
from falaj.core.context import CallContext
from falaj.core.errors import StaleRevision
from falaj.core.operation import list_operations
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.services import load_service_class
from falaj.store.envelope import to_record_key
from falaj.track.name_mapping import MAIN_PROJECT, parse_workspace

if TYPE_CHECKING:
    from falaj.api.app import HttpApplication

ENDPOINT_MODULES = (experiments, runs, logged_models, model_registry, traces, artifacts)
SERVER_VERSION = b"0+falaj"
"""We are no version of MLflow's server: clients that hear so send the spans of traces as files, in JSON."""
SERVER_INFO = {
    "store_type": "SqlStore",
    "workspaces_enabled": True,
    "trace_archival_enabled": False,
    "multipart_uploads_enabled": False,
    "multipart_downloads_enabled": False,
    "features_enabled": {"gateway": False},
}
MAX_CACHED_REFS, EXTERNAL_CALL_SPANS = 100_000, 60
_encode = msgspec.json.encode


class MlflowRoutes:
    """Turns a request of MLflow's into a visit to our desks."""

    def __init__(self, app: "HttpApplication") -> None:
        self._app = app
        self._max_depth = app.house.settings.limits.body_depth
        self._artifact_routes = artifacts.ArtifactRoutes(app)
        self._cached_refs: dict[tuple[str, str], Ref] = {}
        tracking_service: Any = app.house.desks["track"]
        self._has_async_log = app.lanes.carries and tracking_service.measures.rides()
        """Whether calls that only log what runs say need nobody who waits."""

    def mount(self) -> None:
        """Add every path to the router, and those that need no task to what the door takes in by itself."""
        app = self._app
        for endpoint in (endpoint for endpoint_module in ENDPOINT_MODULES for endpoint in endpoint_module.ENDPOINTS):
            decode_body, run_call = create_body_decoder(endpoint.shape), self._choose_runner(endpoint)
            app.router.add(
                HttpRoute(
                    endpoint.method,
                    endpoint.path,
                    endpoint.action,
                    partial(self._serve_endpoint, endpoint, decode_body, run_call),
                )
            )
            if endpoint.method == "POST" and "{" not in endpoint.path and run_call != app.lanes.outside:
                app.takers[endpoint.path.encode()] = partial(self._prepare_direct_call, endpoint, decode_body, run_call)
        app.router.add(HttpRoute("GET", "/version", "edge.version", self._serve_version))
        app.router.add(HttpRoute("GET", "/api/3.0/mlflow/server-info", "edge.server-info", self._serve_info))
        self._artifact_routes.mount()

    def _choose_runner(self, endpoint: MlflowEndpoint) -> Any:
        """Where it runs: as the verb it comes down to would."""
        service_name, _, operation_name = endpoint.action.partition(".")
        operation = list_operations(load_service_class(service_name))[operation_name]
        call_executor = self._app.lanes
        return (
            call_executor.outside
            if operation.outside
            else call_executor.inside
            if operation.reading
            else call_executor.short
        )

    async def _serve_endpoint(
        self, endpoint: MlflowEndpoint, decode_body: Any, run_call: Any, request: RequestContext
    ) -> HttpResponse:
        app = self._app
        ctx = app.gate.context(request, request.caller, is_repeatable=False)
        if endpoint.method == "GET":
            mlflow_request: Any = decode_query(endpoint.shape, request.query)
        else:
            body = await app.body(request)
            check_json_depth(body, self._max_depth)
            mlflow_request = decode_body(body)
        context, needed_keys = self._create_context(request, ctx, mlflow_request)
        if run_call == app.lanes.outside:
            app.unhurried(EXTERNAL_CALL_SPANS)
        outcome = await run_call(_handle_endpoint, endpoint, context, mlflow_request, needed_keys=needed_keys)
        for try_index in range(TRIES):
            if not isinstance(outcome.error, StaleRevision):
                break
            await asyncio.sleep(pause_s(try_index))
            outcome = await run_call(_handle_endpoint, endpoint, context, mlflow_request, needed_keys=needed_keys)
        return self._to_response(context, outcome)

    def _prepare_direct_call(
        self, endpoint: MlflowEndpoint, decode_body: Any, run_call: Any, request: RequestContext, body: bytes
    ) -> Work:
        """The same for a body that is here, without anybody who waits."""
        ctx = self._app.gate.context(request, request.caller, is_repeatable=False)
        check_json_depth(body, self._max_depth)
        mlflow_request = decode_body(body)
        context, needed_keys = self._create_context(request, ctx, mlflow_request)
        if self._has_async_log and endpoint.light(mlflow_request):
            run_call = self._app.lanes.light
        return Work(
            endpoint.action,
            run_call,
            _handle_endpoint,
            (endpoint, context, mlflow_request),
            needed_keys,
            partial(self._to_response, context),
        )

    def _create_context(
        self, request: RequestContext, ctx: CallContext, mlflow_request: Any
    ) -> tuple[MlflowContext, Sequence[RecordKey]]:
        workspace = (
            parse_workspace(request.text(b"x-mlflow-workspace"))
            if b"x-mlflow-workspace" in request.headers
            else MAIN_PROJECT
        )
        run_location = self._cached_refs.get((ctx.tenant, getattr(mlflow_request, "run_id", "")))
        # What this may cost, a StaleRevision now and then, is made good: the call is tried again.
        needed_keys = (to_record_key(run_location.bare, ctx.tenant),) if run_location is not None else ()
        return MlflowContext(self._app.house, ctx, workspace, request.named, self._cached_refs), needed_keys

    def _to_response(self, context: MlflowContext, outcome: CallOutcome) -> HttpResponse:
        encoded, error = outcome
        if error is not None:
            return render_mlflow_error(error, context.ctx.request)
        if context.found:
            self._cache_refs(context.found)
        return HttpResponse(200, encoded, context.ctx.request)

    def _cache_refs(self, new_refs: Mapping[tuple[str, str], Ref]) -> None:
        """Runs never move. Only now is durable what was read inside a group of calls that commit together."""
        if len(self._cached_refs) > MAX_CACHED_REFS:
            self._cached_refs.clear()
        self._cached_refs.update(new_refs)

    async def _serve_version(self, request: RequestContext) -> HttpResponse:
        ctx = self._app.gate.context(request, request.caller, is_repeatable=False)
        return HttpResponse(200, SERVER_VERSION, ctx.request, b"text/plain; charset=utf-8")

    async def _serve_info(self, request: RequestContext) -> HttpResponse:
        ctx = self._app.gate.context(request, request.caller, is_repeatable=False)
        return HttpResponse(200, _encode(SERVER_INFO), ctx.request)


def _handle_endpoint(endpoint: MlflowEndpoint, context: MlflowContext, mlflow_request: Any) -> bytes:
    encoded: bytes = _encode(endpoint.answer(context, mlflow_request))
    return encoded
