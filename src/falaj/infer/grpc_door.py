"""The Open Inference Protocol over gRPC, in front of an engine: its methods, who may call, and what is said back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.core.errors import FalajError, Invalid
from falaj.infer.keys import Keys
from falaj.infer.queue import Done
from falaj.infer.rest_door import EXTENSIONS
from falaj.infer.tracing import tracing_of
from falaj.oip import messages
from falaj.oip.calls import (
    CODES,
    DEADLINE_EXCEEDED,
    INTERNAL,
    UNIMPLEMENTED,
    GrpcCall,
    GrpcReply,
    GrpcVerdict,
    retry_after,
)
from falaj.oip.hpack_cache import Head
from falaj.oip.proto import in_stream, read_ask, stream_error, write_answer
from falaj.oip.tensors import Answer, Ask
from falaj.oip.wire import decode, encode

if TYPE_CHECKING:
    from falaj.infer.engine import Engine

_Reply = Callable[[GrpcReply], Any]
_Cancel = Callable[[], None] | None
_OPEN = frozenset(("ServerLive", "ServerReady"))
"""Asked by whoever watches the server, without a token."""
_NOT_OFFERED = ("SystemSharedMemory", "CudaSharedMemory", "TraceSetting", "LogSettings")


class Grpc:
    """A GrpcDoor. Nothing of a message is read before the caller is known."""

    def __init__(self, engine: "Engine", keys: Keys, *, name: str = "falaj", version: str = "") -> None:
        self._engine, self._keys, self._tracing = engine, keys, tracing_of(engine)
        self._about = {"name": name, "version": version, "extensions": EXTENSIONS}
        self._told: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": engine.ready()},
            "ServerMetadata": lambda _: self._about,
            "ModelReady": lambda said: {"ready": engine.ready(*_named(said))},
            "ModelMetadata": lambda said: engine.metadata(*_named(said)),
            "ModelConfig": lambda said: {"config": engine.config(*_named(said))},
            "ModelStatistics": lambda said: engine.statistics(*_named(said, needed=False)),
            "RepositoryIndex": lambda said: {"models": engine.index(bool(said.get("ready", False)))},
        }

    def grpc(self, call: GrpcCall, reply: _Reply) -> _Cancel:
        """Answer one message, now or later."""
        method = call.method
        try:
            if not call.trusted and method not in _OPEN:
                self._keys.check(call.metadata.get(b"authorization"))
            if method == "ModelInfer":
                return self._infer(call, reply)
            if method == "ModelStreamInfer":
                return self._infer_in_stream(call, reply)
            if method in ("RepositoryModelLoad", "RepositoryModelUnload"):
                self._change(call, reply)
            else:
                reply(self._tell(method, call.message))
        except FalajError as error:
            reply(problem(error))
        return None

    def judge_grpc(self, head: Head, peer: str, _decide: Callable[[GrpcVerdict], Any]) -> GrpcVerdict:
        """Decide by the headers of a call whether its messages are gathered, and inflated."""
        if head.health or head.method in _OPEN:
            return ""
        try:
            self._keys.check(head.metadata.get(b"authorization"))
        except FalajError as error:
            return problem(error)
        return peer or "local"

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token in these headers may call."""
        return self._keys.allow(headers.get(b"authorization"))

    def _infer(self, call: GrpcCall, reply: _Reply) -> _Cancel:
        ask, wanted = read_ask(call.message)
        if call.deadline and not 0 < ask.deadline < call.deadline:
            ask.deadline = call.deadline
        return self._submit(ask, call, partial(_answer, wanted, reply))

    def _submit(self, ask: Ask, call: GrpcCall, done: Done) -> _Cancel:
        ask.name = call.name
        if self._tracing is not None:
            done = self._tracing.noting(ask, call.metadata, call.trusted, done)
        return self._engine.submit(ask, done)

    def _infer_in_stream(self, call: GrpcCall, reply: _Reply) -> _Cancel:
        """As Triton does: a request that fails is told so inside the stream, and the stream goes on."""

        def told(found: GrpcReply) -> None:
            said = in_stream(found.message) if not found.code else stream_error(found.text, ask_id)
            reply(GrpcReply(said, last=found.last))

        ask_id = ""
        try:
            ask, wanted = read_ask(call.message)
        except FalajError as error:
            told(problem(error))
            return None
        ask_id = ask.id
        if call.deadline and not 0 < ask.deadline < call.deadline:
            ask.deadline = call.deadline
        return self._submit(ask, call, partial(_answer, wanted, told))

    def _tell(self, method: str, message: bytes) -> GrpcReply:
        tell = self._told.get(method)
        if tell is None:
            known = "is not offered" if method.startswith(_NOT_OFFERED) else "does not exist"
            return GrpcReply(code=UNIMPLEMENTED, text=f"{method[:60]} {known} (see extensions of ServerMetadata)")
        taken, given = messages.METHODS[method]
        return GrpcReply(encode(given, tell(decode(taken, message))))

    def _change(self, call: GrpcCall, reply: _Reply) -> None:
        said = decode(messages.LOAD_REQUEST, call.message)
        parameters = {name: next(iter(value.values()), None) for name, value in said.get("parameters", {}).items()}
        change = self._engine.load if call.method == "RepositoryModelLoad" else self._engine.unload
        name = _named({"name": said.get("model_name", "")})[0]
        change(name, parameters, lambda failed: reply(problem(failed) if failed is not None else GrpcReply()))


def problem(error: FalajError) -> GrpcReply:
    """An error as gRPC says it; one that may be gone later says when to ask again."""
    code = DEADLINE_EXCEEDED if error.status == 504 else CODES.get(error.code, INTERNAL)
    return GrpcReply(code=code, text=str(error), metadata=retry_after(error))


def _answer(wanted: int, reply: _Reply, answer: Answer | FalajError) -> None:
    if isinstance(answer, FalajError):
        reply(problem(answer))
        return
    try:
        made = GrpcReply(write_answer(answer, wanted))
    except FalajError as error:
        made = problem(error)
    reply(made)


def _named(said: Mapping[str, Any], *, needed: bool = True) -> tuple[str, str]:
    """The model and the version a message names, as far as they can be names."""
    name, version = str(said.get("name", "")), str(said.get("version", ""))
    if (needed and not name) or len(name) > 200 or len(version) > 200 or {"/", "\\", "\0"} & set(name + version):
        raise Invalid("this is no name of a model or a version", "see RepositoryIndex for what there is")
    return name, version
