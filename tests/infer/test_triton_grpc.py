"""Triton's own gRPC clients against our server, on our HTTP/2 and on grpcio's: everything they can ask of one."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from falaj.oip.grpcio_server import serve_grpcio
from falaj.oip.http2_server import serve_http2
from tests.infer.grpc_stand_in import AUTH, KINDS, Both, both
from tests.infer.models import mlp_of
from tests.oip.grpc_serving import Mirror, certificate, running, secured

ROWS = np.random.default_rng(5).normal(size=(3, 32)).astype(np.float32)
PAIRS = tuple(AUTH.items())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with both(tmp_path_factory.mktemp("models"), datatypes=("FP32", "FP16", "INT64", "BOOL", "BYTES")) as found:
        yield found


@pytest.fixture(params=KINDS)
def url(servers: Both, request: pytest.FixtureRequest) -> str:
    return servers.url(request.param)


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(url) as found:
        yield found


def tensor(name: str, data: Any, datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, data.shape, datatype)
    made.set_data_from_numpy(data)
    return made


def mlp_input(rows: Any = ROWS) -> list[triton.InferInput]:
    return [tensor("x", rows, "FP32")]


ECHOED = {
    "fp32": ROWS, "fp16": ROWS.astype(np.float16), "int64": np.arange(6).reshape(3, 2), "bool": ROWS > 0,
    "bytes": np.array([[b"", b"\x00 "], ["ö".encode(), b"x" * 1000], [b"a", b"b"]], dtype=object),
}  # fmt: skip


def echo_inputs() -> list[triton.InferInput]:
    return [tensor(f"in_{name}", data, name.upper()) for name, data in ECHOED.items()]


def test_health_and_what_it_says_of_itself(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp", headers=AUTH)
    assert client.is_model_ready("mlp", "2", headers=AUTH)
    assert not client.is_model_ready("mlp", "7", headers=AUTH)
    assert "model_repository" in client.get_server_metadata(headers=AUTH).extensions
    about = client.get_model_metadata("mlp", headers=AUTH)
    assert list(about.versions) == ["1", "2"]
    assert [(one.name, one.datatype, list(one.shape)) for one in about.inputs] == [("x", "FP32", [-1, 32])]
    config = client.get_model_config("mlp", "1", headers=AUTH).config
    assert config.max_batch_size > 1
    assert (config.input[0].name, config.input[0].data_type, list(config.input[0].dims)) == ("x", 11, [32])
    client.infer("mlp", mlp_input(), headers=AUTH)
    (stats,) = client.get_inference_statistics("mlp", "2", headers=AUTH).model_stats
    assert stats.inference_stats.success.count >= 1
    assert stats.inference_stats.success.ns > 0
    assert stats.batch_stats[0].batch_size >= 1
    assert len(client.get_inference_statistics(headers=AUTH).model_stats) >= 3
    assert {"mlp", "echo", "spare"} <= {one.name for one in client.get_model_repository_index(headers=AUTH).models}


def test_an_inference(client: triton.InferenceServerClient) -> None:
    found = client.infer(
        "mlp", mlp_input(), request_id="seven", outputs=[triton.InferRequestedOutput("y")], headers=AUTH
    )
    np.testing.assert_allclose(found.as_numpy("y"), mlp_of(ROWS), rtol=1e-4, atol=1e-5)
    response = found.get_response()
    assert (response.id, response.model_name, response.model_version) == ("seven", "mlp", "2")
    assert client.infer("mlp", mlp_input(), model_version="1", headers=AUTH).get_response().model_version == "1"


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_every_datatype_comes_back(client: triton.InferenceServerClient, compression: str | None) -> None:
    found = client.infer("echo", echo_inputs(), headers=AUTH, compression_algorithm=compression)
    for name, data in ECHOED.items():
        np.testing.assert_array_equal(found.as_numpy(f"out_{name}"), data)


def test_typed_contents_are_answered_typed(url: str) -> None:
    asked = service_pb2.ModelInferRequest(model_name="echo")
    for name, data in ECHOED.items():
        if name == "fp16":
            continue
        one = asked.inputs.add(name=f"in_{name}", datatype=name.upper(), shape=data.shape)
        getattr(one.contents, f"{name}_contents").extend(data.reshape(-1).tolist())
    half = asked.inputs.add(name="in_fp16", datatype="FP16", shape=[0, 0])
    half.shape[:] = [3, 0]
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(asked, metadata=PAIRS)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        asked = service_pb2.ModelInferRequest(model_name="mlp")
        one = asked.inputs.add(name="x", datatype="FP32", shape=ROWS.shape)
        one.contents.fp32_contents.extend(ROWS.reshape(-1).tolist())
        found = stub.ModelInfer(asked, metadata=PAIRS)
    np.testing.assert_allclose(found.outputs[0].contents.fp32_contents, mlp_of(ROWS)[:, 0], rtol=1e-4, atol=1e-5)
    assert not found.raw_output_contents


def _refused(client: Any, code: str, model: str = "mlp", **more: Any) -> str:
    more.setdefault("headers", AUTH)
    with pytest.raises(InferenceServerException) as refused:
        client.infer(model, more.pop("inputs", mlp_input()), **more)
    assert refused.value.status() == f"StatusCode.{code}"
    return str(refused.value.message())


def test_what_goes_wrong_is_said(client: triton.InferenceServerClient) -> None:
    assert "no model 'nobody'" in _refused(client, "NOT_FOUND", "nobody")
    _refused(client, "NOT_FOUND", model_version="9")
    _refused(client, "INVALID_ARGUMENT", inputs=mlp_input(ROWS[:, :5].copy()))
    _refused(client, "INVALID_ARGUMENT", inputs=[tensor("x", ROWS.astype(np.float64), "FP64")])
    _refused(client, "INVALID_ARGUMENT", inputs=[tensor("z", ROWS, "FP32")])
    _refused(client, "INVALID_ARGUMENT", outputs=[triton.InferRequestedOutput("nothing")])
    _refused(client, "INVALID_ARGUMENT", outputs=[triton.InferRequestedOutput("y", class_count=2)])
    assert "send Authorization" in _refused(client, "UNAUTHENTICATED", headers={})
    _refused(client, "UNAUTHENTICATED", headers={"authorization": "Bearer wrong"})
    for ask in (client.get_system_shared_memory_status, client.get_trace_settings, client.get_log_settings):
        with pytest.raises(InferenceServerException, match="not offered"):
            ask(headers=AUTH)


def test_models_come_and_go(client: triton.InferenceServerClient) -> None:
    client.load_model("spare", headers=AUTH)
    assert client.is_model_ready("spare", headers=AUTH)
    client.infer("spare", mlp_input(), headers=AUTH)
    client.unload_model("spare", headers=AUTH)
    assert not client.is_model_ready("spare", headers=AUTH)
    with pytest.raises(InferenceServerException):
        client.load_model("nobody", headers=AUTH)
    with pytest.raises(InferenceServerException, match="not taken from callers"):
        client.load_model("spare", headers=AUTH, config="{}", files={"file:1/model.onnx": b"x"})


def test_a_stream(client: triton.InferenceServerClient) -> None:
    got: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: got.put((result, error)), headers=AUTH)
    for number in range(20):
        client.async_stream_infer("mlp", mlp_input(ROWS + np.float32(number)), request_id=str(number))
    client.async_stream_infer("nobody", mlp_input(), request_id="lost")
    client.async_stream_infer("mlp", mlp_input(), request_id="last", enable_empty_final_response=True)
    seen = {}
    for _ in range(22):
        result, error = got.get(timeout=20)
        if error is not None:
            assert "no model" in error.message()
            continue
        response = result.get_response()
        seen[response.id] = result.as_numpy("y")
        if response.id == "last":
            assert response.parameters["triton_final_response"].bool_param
    for number in range(20):
        np.testing.assert_allclose(seen[str(number)], mlp_of(ROWS + np.float32(number)), rtol=1e-3, atol=1e-3)
    client.stop_stream()


def test_a_stream_of_a_stranger_is_ended(url: str) -> None:
    asked = iter([service_pb2.ModelInferRequest(model_name="mlp")])
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.ModelStreamInfer(asked))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_sixty_four_at_once_each_get_their_own(url: str) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            given = [ROWS[: 1 + number % 3] + np.float32(number) for number in range(192)]
            allowed = asyncio.Semaphore(64)

            async def one(rows: Any) -> Any:
                async with allowed:
                    return (await client.infer("mlp", mlp_input(rows), headers=AUTH)).as_numpy("y")

            for rows, found in zip(given, await asyncio.gather(*map(one, given)), strict=True):
                np.testing.assert_allclose(found, mlp_of(rows), rtol=1e-3, atol=1e-3)

            async def asked() -> Any:
                for number in range(5):
                    yield {"model_name": "mlp", "inputs": mlp_input(), "request_id": str(number)}

            stream = client.stream_infer(asked(), headers=AUTH)
            answers = [pair async for pair in stream]
            assert {one.get_response().id for one, _ in answers} == set("01234")
            assert [error for _, error in answers] == [None] * 5

    asyncio.run(main())


@pytest.mark.parametrize("rows", [20_000, 160_000])
def test_large_requests_and_answers(servers: Both, rows: int) -> None:
    """2.5 MB and 20 MB."""
    data = np.random.default_rng(1).normal(size=(rows, 32)).astype(np.float32)
    empty = {name: value[:0] for name, value in ECHOED.items()} | {"fp32": data}
    inputs = [tensor(f"in_{name}", value, name.upper()) for name, value in empty.items() if name == "fp32"]
    inputs += [tensor(f"in_{name}", np.repeat(value[:1, :1], rows, 0), name.upper()) for name, value in ECHOED.items()][
        1:4
    ]
    texts = np.full((rows, 1), b"", dtype=object)
    inputs.append(tensor("in_bytes", texts, "BYTES"))
    with triton.InferenceServerClient(servers.own) as client:
        found = client.infer("echo", inputs, headers=AUTH, outputs=[triton.InferRequestedOutput("out_fp32")])
    np.testing.assert_array_equal(found.as_numpy("out_fp32"), data)


@pytest.mark.parametrize("kind", KINDS)
def test_tls(tmp_path: Path, kind: str) -> None:
    cert, key = certificate(tmp_path)
    options: dict[str, Any] = {"ssl": secured(cert, key)}
    if kind == "grpcio":
        options |= {"serve": serve_grpcio, "cert": cert, "key": key}
    with running(Mirror(), **options) as here:
        trusted = grpc.ssl_channel_credentials(Path(cert).read_bytes())
        with grpc.secure_channel(f"localhost:{here.port}", trusted) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert call(b"x" * 3_000_000) == b"x" * 3_000_000
            assert call(b"big2000000") == b"x" * 2_000_000
        with triton.InferenceServerClient(f"localhost:{here.port}", ssl=True, root_certificates=cert) as client:
            assert client.is_server_ready()


CALLS = st.one_of(
    st.tuples(
        st.sampled_from(("ModelInfer", "ModelMetadata", "ModelReady", "RepositoryIndex", "Nothing")),
        st.binary(max_size=30),
    ),
    st.tuples(
        st.just("ModelInfer"),
        st.builds(
            lambda name, shape, size: service_pb2.ModelInferRequest(
                model_name=name,
                inputs=[service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=shape)],
                raw_input_contents=[b"\0" * size],
            ).SerializeToString(),
            st.sampled_from(("mlp", "nobody")),
            st.lists(st.sampled_from((1, 2, 32)), max_size=3),
            st.sampled_from((0, 128, 256)),
        ),
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=CALLS)
def test_both_servers_answer_the_same(servers: Both, call: tuple[str, bytes]) -> None:
    method, message = call
    said = []
    for channel in _channels(servers):
        try:
            found = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(message, metadata=PAIRS)
        except grpc.RpcError as error:
            found = (error.code(), error.details(), [pair for pair in error.trailing_metadata() if pair[0] != "date"])
        said.append(found)
    assert said[0] == said[1]


def _channels(servers: Both) -> list[Any]:
    made = _OPEN.get(servers.own)
    if made is None:
        made = _OPEN[servers.own] = [grpc.insecure_channel(one) for one in (servers.own, servers.grpcio)]
    return made


_OPEN: dict[str, list[Any]] = {}


@pytest.mark.parametrize("serve", [serve_http2, serve_grpcio])
def test_the_same_messages_in_the_same_words(serve: Any) -> None:
    """What the door says reaches clients alike: messages, errors, metadata, time limits, streams, cancellation."""
    with running(Mirror(), serve=serve) as here, grpc.insecure_channel(f"127.0.0.1:{here.port}") as channel:
        unary = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert unary(b"") == b""
        found, call = unary.with_call(b"meta")
        assert found == b"meta"
        assert dict(call.initial_metadata())["falaj-request"] == "abc"
        with pytest.raises(grpc.RpcError) as refused:
            unary(b"fail8")
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "nö: 100%\n")
        assert dict(refused.value.trailing_metadata())["retry-after"] == "7"
        with pytest.raises(grpc.RpcError) as refused:
            unary(b"keep", timeout=0.2)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        here.until(lambda: here.door.gone == [b"keep"])
        assert here.door.calls[-1].deadline
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        assert list(stream(iter([b"a", b"many", b"", b"big100000"]))) == [b"a", b"0", b"1", b"2", b"", b"x" * 100_000]
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"") == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/other.Service/ModelInfer")(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_draining_under_load_loses_no_call_that_was_taken() -> None:
    with running(Mirror()) as here, grpc.insecure_channel(f"127.0.0.1:{here.port}") as channel:
        unary = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answered: list[bytes] = []
        refused: list[Any] = []

        def ask() -> None:
            while not refused:
                try:
                    answered.append(unary(b"hi"))
                except grpc.RpcError as error:
                    refused.append(error.code())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for one in threads:
            one.start()
        here.until(lambda: len(answered) > 200)
        here.wait(here.server.drain(20))
        for one in threads:
            one.join()
        assert set(refused) == {grpc.StatusCode.UNAVAILABLE}
        assert len(answered) == len(here.door.calls)
