"""The Open Inference Protocol over gRPC, in front of an engine: its methods, who may call, and what is said back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.core.errors import FalajError, Invalid
from falaj.infer.request_queue import ResponseCallback
from falaj.infer.request_tracing import create_tracing
from falaj.infer.rest_handler import EXTENSIONS
from falaj.infer.token_keys import TokenKeys
from falaj.oip import grpc_messages
from falaj.oip.handler_calls import (
    DEADLINE_EXCEEDED,
    GRPC_STATUS_CODES,
    INTERNAL,
    UNIMPLEMENTED,
    GrpcAdmission,
    GrpcCall,
    GrpcReply,
    retry_after_header,
)
from falaj.oip.hpack_cache import CallHead
from falaj.oip.infer_messages import (
    decode_infer_request,
    encode_infer_response,
    encode_stream_error,
    wrap_stream_response,
)
from falaj.oip.protobuf import decode_message, encode_message
from falaj.oip.tensors import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from falaj.infer.engine import InferenceEngine

_SendReply = Callable[[GrpcReply], Any]
_CancelCall = Callable[[], None] | None
_UNAUTHENTICATED_METHODS = frozenset(("ServerLive", "ServerReady"))
"""Asked by whoever watches the server, without a token."""
_UNSUPPORTED_METHODS = ("SystemSharedMemory", "CudaSharedMemory", "TraceSetting", "LogSettings")


class GrpcInferHandler:
    """A GrpcDoor. Nothing of a message is read before the caller is known."""

    def __init__(
        self, engine: "InferenceEngine", token_keys: TokenKeys, *, name: str = "falaj", version: str = ""
    ) -> None:
        self._engine, self._token_keys, self._tracing = engine, token_keys, create_tracing(engine)
        self._server_metadata = {"name": name, "version": version, "extensions": EXTENSIONS}
        self._metadata_methods: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": engine.ready()},
            "ServerMetadata": lambda _: self._server_metadata,
            "ModelReady": lambda message: {"ready": engine.ready(*_parse_model_name(message))},
            "ModelMetadata": lambda message: engine.metadata(*_parse_model_name(message)),
            "ModelConfig": lambda message: {"config": engine.config(*_parse_model_name(message))},
            "ModelStatistics": lambda message: engine.statistics(*_parse_model_name(message, is_required=False)),
            "RepositoryIndex": lambda message: {"models": engine.index(bool(message.get("ready", False)))},
        }

    def grpc(self, call: GrpcCall, send_reply: _SendReply) -> _CancelCall:
        """Answer one message, now or later."""
        method = call.method
        try:
            if not call.trusted and method not in _UNAUTHENTICATED_METHODS:
                self._token_keys.check(call.metadata.get(b"authorization"))
            if method == "ModelInfer":
                return self._handle_infer(call, send_reply)
            if method == "ModelStreamInfer":
                return self._infer_in_stream(call, send_reply)
            if method in ("RepositoryModelLoad", "RepositoryModelUnload"):
                self._change_model(call, send_reply)
            else:
                send_reply(self._answer_metadata(method, call.message))
        except FalajError as error:
            send_reply(grpc_error_reply(error))
        return None

    def judge_grpc(
        self, call_head: CallHead, peer_address: str, _decide: Callable[[GrpcAdmission], Any]
    ) -> GrpcAdmission:
        """Decide by the headers of a call whether its messages are gathered, and inflated."""
        if call_head.health or call_head.method in _UNAUTHENTICATED_METHODS:
            return ""
        try:
            self._token_keys.check(call_head.metadata.get(b"authorization"))
        except FalajError as error:
            return grpc_error_reply(error)
        return peer_address or "local"

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token in these headers may call."""
        return self._token_keys.allow(headers.get(b"authorization"))

    def _handle_infer(self, call: GrpcCall, send_reply: _SendReply) -> _CancelCall:
        request, response_flags = decode_infer_request(call.message)
        if call.deadline and not 0 < request.deadline < call.deadline:
            request.deadline = call.deadline
        return self._submit_request(request, call, partial(_send_response, response_flags, send_reply))

    def _submit_request(self, request: InferenceRequest, call: GrpcCall, on_done: ResponseCallback) -> _CancelCall:
        request.name = call.name
        if self._tracing is not None:
            on_done = self._tracing.noting(request, call.metadata, call.trusted, on_done)
        return self._engine.submit(request, on_done)

    def _infer_in_stream(self, call: GrpcCall, send_reply: _SendReply) -> _CancelCall:
        """As Triton does: a request that fails is told so inside the stream, and the stream goes on."""

        def send_in_stream(unary_reply: GrpcReply) -> None:
            stream_message = (
                wrap_stream_response(unary_reply.message)
                if not unary_reply.code
                else encode_stream_error(unary_reply.text, request_id)
            )
            send_reply(GrpcReply(stream_message, last=unary_reply.last))

        request_id = ""
        try:
            request, response_flags = decode_infer_request(call.message)
        except FalajError as error:
            send_in_stream(grpc_error_reply(error))
            return None
        request_id = request.id
        if call.deadline and not 0 < request.deadline < call.deadline:
            request.deadline = call.deadline
        return self._submit_request(request, call, partial(_send_response, response_flags, send_in_stream))

    def _answer_metadata(self, method: str, message: bytes) -> GrpcReply:
        metadata_method = self._metadata_methods.get(method)
        if metadata_method is None:
            support_text = "is not offered" if method.startswith(_UNSUPPORTED_METHODS) else "does not exist"
            return GrpcReply(
                code=UNIMPLEMENTED, text=f"{method[:60]} {support_text} (see extensions of ServerMetadata)"
            )
        request_type, response_type = grpc_messages.METHODS[method]
        return GrpcReply(encode_message(response_type, metadata_method(decode_message(request_type, message))))

    def _change_model(self, call: GrpcCall, send_reply: _SendReply) -> None:
        decoded = decode_message(grpc_messages.LOAD_REQUEST, call.message)
        parameters = {name: next(iter(value.values()), None) for name, value in decoded.get("parameters", {}).items()}
        change_model = self._engine.load if call.method == "RepositoryModelLoad" else self._engine.unload
        name = _parse_model_name({"name": decoded.get("model_name", "")})[0]
        change_model(
            name, parameters, lambda error: send_reply(grpc_error_reply(error) if error is not None else GrpcReply())
        )


def grpc_error_reply(error: FalajError) -> GrpcReply:
    """An error as gRPC says it; one that may be gone later says when to ask again."""
    code = DEADLINE_EXCEEDED if error.status == 504 else GRPC_STATUS_CODES.get(error.code, INTERNAL)
    return GrpcReply(code=code, text=str(error), metadata=retry_after_header(error))


def _send_response(response_flags: int, send_reply: _SendReply, outcome: InferenceResponse | FalajError) -> None:
    if isinstance(outcome, FalajError):
        send_reply(grpc_error_reply(outcome))
        return
    try:
        grpc_reply = GrpcReply(encode_infer_response(outcome, response_flags))
    except FalajError as error:
        grpc_reply = grpc_error_reply(error)
    send_reply(grpc_reply)


def _parse_model_name(decoded: Mapping[str, Any], *, is_required: bool = True) -> tuple[str, str]:
    """The model and the version a message names, as far as they can be names."""
    name, version = str(decoded.get("name", "")), str(decoded.get("version", ""))
    if (is_required and not name) or len(name) > 200 or len(version) > 200 or {"/", "\\", "\0"} & set(name + version):
        raise Invalid("this is no name of a model or a version", "see RepositoryIndex for what there is")
    return name, version
