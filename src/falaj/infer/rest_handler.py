"""The Open Inference Protocol over HTTP, in front of an engine: routes, who may ask, and what is said back."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec

from falaj.core.errors import FalajError, Invalid, NotFound
from falaj.infer.request_queue import ResponseCallback
from falaj.infer.request_tracing import create_tracing
from falaj.infer.together import Left, One, Turn
from falaj.infer.token_keys import TokenKeys
from falaj.oip.again import Wanted
from falaj.oip.handler_calls import HttpAdmission, HttpCall, HttpReply, NumberedCall, SendNumberedReply
from falaj.oip.http1_parser import RequestHead
from falaj.oip.lot_frames import Lot, TellLot
from falaj.oip.rest_codec import (
    decode_raw_request,
    decode_request,
    encode_response,
    error_reply,
    json_reply,
    parse_json_length,
    status_reply,
)
from falaj.oip.tensors import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from falaj.infer.engine import InferenceEngine

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics", "sequence")
_MAX_ROUTES, _MAX_NAME_CHARS = 4096, 200
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_UNSUPPORTED_PATHS = {
    "trace": "tracing", "logging": "log settings", "systemsharedmemory": "shared memory",
    "cudasharedmemory": "shared memory", "tpusharedmemory": "shared memory", "generate": "generate",
    "generate_stream": "generate",
}  # fmt: skip
_SendReply = Callable[[HttpReply], Any]
_CancelCall = Callable[[], None] | None
_RouteHandler = Callable[[HttpCall, _SendReply], _CancelCall]


class _RestRoute(NamedTuple):
    act: _RouteHandler
    guarded: bool = True
    """Whether a token is asked for."""
    infers: tuple[str, str] | None = None
    """The model and the version that it asks for an inference."""


class _InferRoute(NamedTuple):
    """What is known of inferences by their head."""

    infers: tuple[str, str]
    size: int
    """Of the JSON, as `parse_json_length` says it."""


_NO_INFER_ROUTE = _InferRoute(("", ""), 0)
"""Of what is asked one by one."""


class RestInferHandler:
    """A RestDoor. Nothing of a body is read before the caller is known."""

    def __init__(
        self, engine: "InferenceEngine", token_keys: TokenKeys, *, name: str = "falaj", version: str = ""
    ) -> None:
        self._engine, self._token_keys, self._tracing = engine, token_keys, create_tracing(engine)
        server_metadata = {"name": name, "version": version, "extensions": list(EXTENSIONS)}
        self._fixed_routes: Mapping[tuple[str, ...], tuple[str, _RestRoute]] = {
            ("v2",): ("GET", _RestRoute(_json_route(lambda: server_metadata))),
            ("v2", "health", "live"): ("GET", _RestRoute(_json_route(lambda: {"live": True}), guarded=False)),
            ("v2", "health", "ready"): ("GET", _RestRoute(self._check_server_ready, guarded=False)),
            ("v2", "models", "stats"): ("GET", _RestRoute(_json_route(engine.statistics))),
            ("v2", "repository", "index"): ("POST", _RestRoute(self._list_models)),
            ("metrics",): ("GET", _RestRoute(self._send_metrics)),
        }
        self._model_routes: Mapping[tuple[str, ...], tuple[str, Callable[..., _CancelCall]]] = {
            (): ("GET", partial(self._describe_model, engine.metadata)),
            ("config",): ("GET", partial(self._describe_model, engine.config)),
            ("stats",): ("GET", partial(self._describe_model, engine.statistics)),
            ("ready",): ("GET", self._check_model_ready),
            ("infer",): ("POST", self._handle_infer),
        }
        self._cached_routes: dict[tuple[bytes, bytes], _RestRoute] = {}
        """What answers a method and a path that came before."""

    def rest(self, call: HttpCall, send_reply: _SendReply) -> _CancelCall:
        """Answer one request, now or later."""
        try:
            route = self._cached_routes.get((call.method, call.path)) or self._find_route(call.method, call.path)
            if route.guarded and not call.trusted:
                self._token_keys.check(call.headers.get(b"authorization"))
            return route.act(call, send_reply)
        except FalajError as error:
            send_reply(error_reply(error))
            return None

    def judge(
        self, request_head: RequestHead, peer_address: str, _decide: Callable[[HttpAdmission], Any]
    ) -> HttpAdmission:
        """Decide by the head of a request whether its body is gathered, and inflated."""
        try:
            route = self._cached_routes.get((request_head.method, request_head.path)) or self._find_route(
                request_head.method, request_head.path
            )
            if route.guarded:
                self._token_keys.check(request_head.headers.get(b"authorization"))
                return peer_address or "local"
            answers: list[HttpReply] = []
            route.act(
                HttpCall(request_head.method, request_head.path, request_head.headers), answers.append
            )  # which answers at once
            return answers[0]
        except FalajError as error:
            return error_reply(error)

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token in these headers may call."""
        return self._token_keys.allow(headers.get(b"authorization"))

    def many(self, calls: Sequence[NumberedCall], send_reply: SendNumberedReply) -> Left:
        """Answer requests that came in one piece; what is given back ends those that are not answered yet."""
        groups: dict[tuple[str, str], list[One]] = {}
        started_calls: Left = []
        for number, call in calls:
            route = self._cached_routes.get((call.method, call.path))
            infer_target = route.infers if route is not None and call.trusted else None
            if infer_target is None or b"traceparent" in call.headers:
                started_calls.append((number, self.rest(call, partial(send_reply, number))))
                continue
            try:
                group_item = (number, call.name, parse_json_length(call.headers), call.body)
            except FalajError as error:
                send_reply(number, error_reply(error))
                continue
            if (group := groups.get(infer_target)) is not None:
                group.append(group_item)
            else:
                groups[infer_target] = [group_item]
        return started_calls + self._run_groups(groups, 0.0, send_reply)

    def lot(self, group: Lot, send_reply: SendNumberedReply, send_group_reply: TellLot) -> Left:
        """The same for such as a gateway sent with one head; their numbers are the streams."""
        route = self._cached_routes.get((group.method, group.path))
        infer_target, json_length = route.infers if route is not None else None, 0
        try:
            json_length = parse_json_length(group.headers)
        except FalajError:
            infer_target = None  # each is told so
        if infer_target is None or b"traceparent" in group.headers:
            return [(stream, self.rest(call, partial(send_reply, stream))) for stream, call in group.calls()]
        group_items = list(zip(group.streams, group.names, repeat(json_length), group.bodies, strict=False))
        return Turn(self._engine, self._decode_body, self._submit_request, infer_target, send_reply).take(
            group_items, tell_lot=send_group_reply
        )

    def joins(self, request_head: RequestHead) -> bool:
        """Whether inferences with this head are run as one where several come."""
        infer_route: Any = request_head.lead
        if infer_route is None:
            route = self._cached_routes.get((request_head.method, request_head.path))
            if route is None:
                return False  # the first one of all goes by itself
            infer_route = request_head.lead = _create_infer_route(route, request_head)
        return (
            infer_route is not _NO_INFER_ROUTE
            and self._tracing is None
            and self._engine.joining(*infer_route.infers) is not None
        )

    def alike(
        self, requests: Sequence[tuple[RequestHead, bytes]], received_at: float, send_reply: SendNumberedReply
    ) -> Left:
        """Answer inferences that one turn of the loop read; their heads are such as `joins` said yes to."""
        groups: dict[tuple[str, str], list[One]] = {}
        last_head, group, size = None, list[One](), 0
        for number, (request_head, body) in enumerate(requests):
            if request_head is not last_head:
                try:
                    self._token_keys.check(request_head.headers.get(b"authorization"))
                except FalajError as error:
                    send_reply(number, error_reply(error))
                    continue
                infer_route: Any = request_head.lead
                last_head, size = request_head, infer_route.size
                group = groups.setdefault(infer_route.infers, [])
            group.append((number, b"", size, body))
        return self._run_groups(groups, received_at, send_reply)

    def _run_groups(
        self, groups: Mapping[tuple[str, str], Sequence[One]], received_at: float, send_reply: SendNumberedReply
    ) -> Left:
        started_calls: Left = []
        for (model, version), group in groups.items():
            started_calls += Turn(
                self._engine, self._decode_body, self._submit_request, (model, version), send_reply
            ).take(group, received_at)
        return started_calls

    def _find_route(self, method: bytes, path: bytes) -> _RestRoute:
        allowed_method, route = self._match_path(_split_path(path))
        if allowed_method and method != allowed_method.encode() and (method, allowed_method) != (b"HEAD", "GET"):
            route = _RestRoute(_method_not_allowed(allowed_method))
        if len(self._cached_routes) >= _MAX_ROUTES:
            self._cached_routes.clear()
        self._cached_routes[method, path] = route
        return route

    def _match_path(self, parts: tuple[str, ...]) -> tuple[str, _RestRoute]:
        """The method of a path and what answers it; no method where any is answered the same."""
        if parts in self._fixed_routes:
            return self._fixed_routes[parts]
        match parts:
            case ("v2", "repository", "models", name, "load" | "unload" as action):
                return "POST", _RestRoute(partial(self._change_model, action, _check_model_name(name)))
            case ("v2", "models", name, "versions", version, *path_rest):
                return self._match_model_path(_check_model_name(name), _check_model_name(version), path_rest)
            case ("v2", "models", name, *path_rest):
                return self._match_model_path(_check_model_name(name), "", path_rest)
            case ("v2", feature_path, *_) if feature_path in _UNSUPPORTED_PATHS:
                return "", _RestRoute(_unsupported_route(_UNSUPPORTED_PATHS[feature_path]))
        raise NotFound("nothing is at this address", "GET v2, or POST v2/models/NAME/infer")

    def _match_model_path(self, name: str, version: str, path_rest: Sequence[str]) -> tuple[str, _RestRoute]:
        if path_rest and path_rest[0] in _UNSUPPORTED_PATHS:
            return "", _RestRoute(_unsupported_route(_UNSUPPORTED_PATHS[path_rest[0]]))
        method_and_handler = self._model_routes.get(tuple(path_rest))
        if method_and_handler is None:
            raise NotFound(
                "nothing is at this address", "v2/models/NAME[/versions/VERSION][/infer, ready, config, stats]"
            )
        infer_target = (name, version) if method_and_handler[1] == self._handle_infer else None
        return method_and_handler[0], _RestRoute(partial(method_and_handler[1], name, version), infers=infer_target)

    def _handle_infer(self, model: str, version: str, call: HttpCall, send_reply: _SendReply) -> _CancelCall:
        request, output_choice = self._decode_body(model, version, parse_json_length(call.headers), call.body)
        request.name = call.name
        on_done: ResponseCallback = partial(_send_response, output_choice, send_reply)
        if self._tracing is not None:
            on_done = self._tracing.noting(request, call.headers, call.trusted, on_done)
        return self._engine.submit(request, on_done)

    def _decode_body(self, model: str, version: str, json_bytes: int, body: bytes) -> tuple[InferenceRequest, Wanted]:
        return (
            decode_request(body, json_bytes, model, version)
            if json_bytes
            else self._decode_raw_body(InferenceRequest(model, version, ()), body)
        )

    def _submit_request(self, request: InferenceRequest, output_choice: Wanted, send_reply: _SendReply) -> _CancelCall:
        return self._engine.submit(request, partial(_send_response, output_choice, send_reply))

    def _decode_raw_body(self, request: InferenceRequest, body: bytes) -> tuple[InferenceRequest, Wanted]:
        inputs = self._engine.metadata(request.model, request.version)["inputs"]
        if len(inputs) != 1:
            raise Invalid(f"{request.model[:60]!r} has {len(inputs)} inputs", "send a request with a header in JSON")
        batches = self._engine.config(request.model, request.version).get("max_batch_size", 0) > 0
        return decode_raw_request(body, request, inputs[0], is_batched=batches)

    def _describe_model(
        self, describe: Callable[[str, str], Any], model: str, version: str, _: HttpCall, send_reply: _SendReply
    ) -> None:
        send_reply(json_reply(describe(model, version)))

    def _check_server_ready(self, _: HttpCall, send_reply: _SendReply) -> None:
        if self._engine.ready():
            send_reply(json_reply({"live": True, "ready": True}))
        else:
            send_reply(status_reply(400, "the server is not ready", "wait until its models are loaded"))

    def _check_model_ready(self, model: str, version: str, _: HttpCall, send_reply: _SendReply) -> None:
        if self._engine.ready(model, version):
            send_reply(json_reply({"name": model, "ready": True}))
        else:
            send_reply(status_reply(400, f"{model[:60]!r} is not ready", "see v2/repository/index for what there is"))

    def _send_metrics(self, _: HttpCall, send_reply: _SendReply) -> None:
        send_reply(HttpReply(200, (self._engine.metrics(),), kind=_METRICS_TYPE))

    def _list_models(self, call: HttpCall, send_reply: _SendReply) -> None:
        send_reply(json_reply(self._engine.index(bool(_decode_object(call.body).get("ready", False)))))

    def _change_model(self, action: str, name: str, call: HttpCall, send_reply: _SendReply) -> None:
        parameters = _decode_object(call.body).get("parameters", {})
        if not isinstance(parameters, dict):
            raise Invalid("parameters is no object", 'for example {"parameters": {}}')
        change_model = self._engine.load if action == "load" else self._engine.unload
        change_model(
            name,
            parameters,
            lambda error: send_reply(error_reply(error) if isinstance(error, FalajError) else json_reply({})),
        )


def _create_infer_route(route: _RestRoute, request_head: RequestHead) -> _InferRoute:
    try:
        return (
            _InferRoute(route.infers, parse_json_length(request_head.headers))
            if route.infers is not None
            else _NO_INFER_ROUTE
        )
    except FalajError:  # it is told so when it is asked
        return _NO_INFER_ROUTE


def _send_response(output_choice: Wanted, send_reply: _SendReply, outcome: InferenceResponse | FalajError) -> None:
    if isinstance(outcome, FalajError):
        send_reply(error_reply(outcome))
        return
    try:
        http_reply = encode_response(outcome, output_choice)
    except FalajError as error:
        http_reply = error_reply(error)
    send_reply(http_reply)


def _json_route(get_value: Callable[[], Any]) -> _RouteHandler:
    def handle_route(_: HttpCall, send_reply: _SendReply) -> None:
        send_reply(json_reply(get_value()))

    return handle_route


def _method_not_allowed(allowed_method: str) -> _RouteHandler:
    def handle_route(_: HttpCall, send_reply: _SendReply) -> None:
        refusal_reply = status_reply(405, "this address takes another method", allowed_method)
        refusal_reply.headers = ((b"allow", allowed_method.encode()),)
        send_reply(refusal_reply)

    return handle_route


def _unsupported_route(feature_name: str) -> _RouteHandler:
    def handle_route(_: HttpCall, send_reply: _SendReply) -> None:
        send_reply(status_reply(501, f"{feature_name} is not offered", "see extensions in GET v2 for what is"))

    return handle_route


def _decode_object(body: bytes) -> dict[str, Any]:
    """The object in a body; an empty one for an empty body."""
    try:
        decoded = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Invalid(f"the body is no JSON: {str(error)[:200]}", "send an object, or nothing") from error
    if not isinstance(decoded, dict):
        raise Invalid("the body is no object", "send {} or nothing")
    return decoded


def _split_path(path: bytes) -> tuple[str, ...]:
    try:
        return tuple(unquote(segment, errors="strict") for segment in path.decode("ascii").strip("/").split("/"))
    except ValueError as error:
        raise Invalid("the path is no path", "ASCII, with UTF-8 written as %XX") from error


def _check_model_name(name: str) -> str:
    """A name of a model or a version, as far as it can be one: never a path."""
    if not 0 < len(name) <= _MAX_NAME_CHARS or name in (".", "..") or not name.isprintable() or {"/", "\\"} & set(name):
        raise Invalid("this is no name of a model or a version", "see v2/repository/index for what there is")
    return name
