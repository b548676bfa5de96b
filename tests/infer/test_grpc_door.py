"""The door of gRPC over a real engine, message by message."""

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from falaj.core.errors import (
    Conflict,
    CorruptData,
    Denied,
    FalajError,
    NotFound,
    QuotaExceeded,
    Unavailable,
    UnrecordedChange,
)
from falaj.infer.grpc_handler import GrpcInferHandler, grpc_error_reply
from falaj.infer.request_queue import DeadlinePassed, QueueFull
from falaj.infer.token_keys import TokenKeys
from falaj.oip.handler_calls import GrpcCall, GrpcReply
from tests.infer.running import POISON, Doubler, engine_of, on_loop, until

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
TOKEN = b"Bearer right"


def keys() -> TokenKeys:
    return TokenKeys([hashlib.sha256(b"right").hexdigest()])


class Asking:
    """A door, and what it answered."""

    def __init__(self, door: GrpcInferHandler) -> None:
        self.door = door
        self.got: list[GrpcReply] = []
        self.cancels: list[Callable[[], None] | None] = []

    def send(self, method: str, message: Any = b"", **more: Any) -> None:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        metadata = {b"authorization": TOKEN} if "metadata" not in more else more.pop("metadata")
        self.cancels.append(self.door.grpc(GrpcCall(method, data, metadata, **more), self.got.append))

    async def ask(self, method: str, message: Any = b"", **more: Any) -> GrpcReply:
        before = len(self.got)
        self.send(method, message, **more)
        await until(lambda: len(self.got) > before)
        return self.got[-1]


def request(x: Any, **fields: Any) -> Any:
    x = np.atleast_2d(np.asarray(x, np.float32))
    made = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[x.tobytes()], **fields)
    made.inputs.add(name="x", datatype="FP32", shape=x.shape)
    return made


def made(reply: GrpcReply) -> Any:
    assert not reply.code, reply.text
    found = service_pb2.ModelInferResponse.FromString(reply.message)
    return np.frombuffer(found.raw_output_contents[0], "<f4").tolist()


@on_loop
async def test_every_method_of_the_service_asks_for_a_token_except_health() -> None:
    engine = await engine_of(Doubler())
    asking = Asking(GrpcInferHandler(engine, keys()))
    for method in [one.name for one in SERVICE.methods] + ["Nothing", "", "../x"]:
        for metadata in ({}, {b"authorization": b"Bearer wrong"}, {b"authorization": b"right"}):
            # Nothing of the message is read before: it is no protobuf.
            found = await asking.ask(method, b"\xff", metadata=metadata)
            assert found.code == (3 if method in ("ServerLive", "ServerReady") else 16), method
        assert (await asking.ask(method, b"\xff", metadata={}, trusted=True)).code != 16
    await engine.close(0.0)


@on_loop
async def test_every_method_answers_or_says_that_it_is_not_offered() -> None:
    engine = await engine_of({"1": Doubler(), "3": Doubler()})
    asking = Asking(GrpcInferHandler(engine, keys(), name="here", version="9"))
    for one in SERVICE.methods:
        request_type = getattr(service_pb2, one.input_type.name)
        given = request_type(name="m") if "name" in one.input_type.fields_by_name else request_type()
        if one.name in ("ModelInfer", "ModelStreamInfer"):
            given = request([[1, 2]])
        found = await asking.ask(one.name, given)
        offered = not one.name.startswith(("SystemShared", "CudaShared", "Trace", "Log", "RepositoryModel"))
        assert (found.code == 0) is offered, (one.name, found.text)
        if offered:
            getattr(service_pb2, one.output_type.name).FromString(found.message)
        elif not one.name.startswith("Repository"):
            assert (found.code, "not offered" in found.text) == (12, True)
    about = service_pb2.ServerMetadataResponse.FromString((await asking.ask("ServerMetadata")).message)
    assert (about.name, about.version) == ("here", "9")
    model = service_pb2.ModelMetadataResponse.FromString(
        (await asking.ask("ModelMetadata", service_pb2.ModelMetadataRequest(name="m"))).message
    )
    assert list(model.versions) == ["1", "3"]
    for name in ("nobody", "", "a/b", "x" * 300):
        code = (await asking.ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=name))).code
        assert code == (5 if name == "nobody" else 3)
    await engine.close(0.0)


@on_loop
async def test_answers_and_errors_of_inference() -> None:
    engine = await engine_of(Doubler())
    asking = Asking(GrpcInferHandler(engine, keys()))
    assert made(await asking.ask("ModelInfer", request([[1, 2]]))) == [3, 5]
    found = await asking.ask("ModelInfer", request([[POISON, 2]]))
    assert (found.code, "poison" in found.text) == (9, True)
    assert (await asking.ask("ModelInfer", b"junk")).code == 3
    found = await asking.ask("ModelStreamInfer", request([[POISON, 2]], id="bad"))
    stream = service_pb2.ModelStreamInferResponse.FromString(found.message)
    assert (found.code, found.last, stream.infer_response.id) == (0, True, "bad")
    assert "poison" in stream.error_message
    stream = service_pb2.ModelStreamInferResponse.FromString((await asking.ask("ModelStreamInfer", b"junk")).message)
    assert "protobuf" in stream.error_message
    await engine.close(0.0)


@on_loop
async def test_the_nearer_of_two_deadlines_counts() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime)
    asking = Asking(GrpcInferHandler(engine, keys()))
    past = time.monotonic() - 1
    found = await asking.ask("ModelInfer", request([[1, 2]]), deadline=past)
    assert found.code == 4
    late = request([[1, 2]])
    late.parameters["timeout"].int64_param = 60_000_000
    assert (await asking.ask("ModelInfer", late, deadline=past)).code == 4
    assert made(await asking.ask("ModelInfer", late, deadline=time.monotonic() + 60)) == [3, 5]
    soon = request([[1, 2]])
    soon.parameters["timeout"].int64_param = 1
    assert (await asking.ask("ModelInfer", soon, deadline=time.monotonic() + 60)).code == 4
    found = await asking.ask("ModelStreamInfer", request([[1, 2]]), deadline=past)
    assert service_pb2.ModelStreamInferResponse.FromString(found.message).error_message
    await engine.close(0.0)


ERRORS: list[tuple[FalajError, int, bool]] = [
    (NotFound("x"), 5, False),
    (Denied("x"), 7, False),
    (QuotaExceeded("x"), 8, True),
    (QueueFull("x"), 8, True),
    (Unavailable("x"), 14, True),
    (DeadlinePassed("x"), 4, False),
    (CorruptData("x"), 15, False),
    (Conflict("x"), 9, False),
    (UnrecordedChange("x"), 13, False),
    (FalajError("x"), 13, False),
]


@pytest.mark.parametrize(("error", "code", "again"), ERRORS, ids=[type(one[0]).__name__ for one in ERRORS])
def test_errors_have_their_codes(error: FalajError, code: int, again: bool) -> None:
    found = grpc_error_reply(error)
    assert (found.code, found.text) == (code, "x")
    assert (dict(found.metadata).get(b"retry-after") == b"1") is again
