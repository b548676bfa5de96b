"""Triton's own HTTP client against our server, in the clear: everything it can ask of one."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.infer.models import mlp_of
from tests.infer.stand_in import BEARER, Served, served

ROWS = np.random.default_rng(5).normal(size=(3, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("models"), datatypes=("FP32", "FP16", "INT64", "BOOL", "BYTES")) as here:
        yield here


@pytest.fixture
def client(server: Served) -> Iterator[triton.InferenceServerClient]:
    found = triton.InferenceServerClient(server.url, concurrency=2)
    yield found
    found.close()


def auth() -> dict[str, Any]:
    """Made anew for each call: the client writes into it."""
    return {"headers": dict(BEARER)}


def mlp_input(*, binary: bool = True) -> list[triton.InferInput]:
    one = triton.InferInput("x", ROWS.shape, "FP32")
    one.set_data_from_numpy(ROWS, binary_data=binary)
    return [one]


def test_health_and_what_it_says_of_itself(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp", **auth())
    assert client.is_model_ready("mlp", "2", **auth())
    assert not client.is_model_ready("mlp", "7", **auth())
    assert not client.is_model_ready("mlp")
    assert "binary_tensor_data" in client.get_server_metadata(**auth())["extensions"]
    assert client.get_model_metadata("mlp", **auth())["inputs"][0]["shape"] == [-1, 32]
    assert client.get_model_config("mlp", "1", **auth())["max_batch_size"] > 1
    client.infer("mlp", mlp_input(), **auth())
    (stats,) = client.get_inference_statistics("mlp", "2", **auth())["model_stats"]
    assert stats["inference_stats"]["success"]["count"] >= 1
    assert len(client.get_inference_statistics(**auth())["model_stats"]) >= 3


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("answer", [None, "gzip", "deflate"])
def test_inference_however_it_travels(
    client: triton.InferenceServerClient,
    binary_in: bool,
    binary_out: bool | None,
    packed: str | None,
    answer: str | None,
) -> None:
    outputs = None if binary_out is None else [triton.InferRequestedOutput("y", binary_data=binary_out)]
    found = client.infer(
        "mlp",
        mlp_input(binary=binary_in),
        outputs=outputs,
        request_id="r-1",
        request_compression_algorithm=packed,
        response_compression_algorithm=answer,
        **auth(),
    )
    np.testing.assert_allclose(found.as_numpy("y"), mlp_of(ROWS), rtol=1e-4, atol=1e-5)
    told = found.get_response()
    assert (told["id"], told["model_name"], told["model_version"]) == ("r-1", "mlp", "2")
    assert found.get_output("y")["shape"] == [3, 1]


@pytest.mark.parametrize("binary", [True, False])
def test_many_rows_at_once(client: triton.InferenceServerClient, binary: bool) -> None:
    rows = np.random.default_rng(6).normal(size=(2000, 32)).astype(np.float32)
    one = triton.InferInput("x", rows.shape, "FP32")
    one.set_data_from_numpy(rows, binary_data=binary)
    found = client.infer("mlp", [one], outputs=[triton.InferRequestedOutput("y", binary_data=binary)], **auth())
    np.testing.assert_allclose(found.as_numpy("y"), mlp_of(rows), rtol=1e-3, atol=1e-4)


def echo_inputs(*, binary: bool) -> tuple[list[triton.InferInput], dict[str, Any]]:
    sent = {
        "FP32": np.array([[1.5, -0.0, np.finfo("f4").max]], np.float32),
        "FP16": np.array([[0.1, -2]], np.float16),
        "INT64": np.array([[-(1 << 63), (1 << 63) - 1]], np.int64),
        "BOOL": np.array([[True, False]]),
        "BYTES": np.array([["ä", "", "long" * 2000]], object),
    }
    inputs = []
    for datatype, array in sent.items():
        one = triton.InferInput(f"in_{datatype.lower()}", array.shape, datatype)
        one.set_data_from_numpy(array, binary_data=binary or datatype == "FP16")
        inputs.append(one)
    return inputs, sent


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_every_kind_of_tensor(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool) -> None:
    inputs, sent = echo_inputs(binary=binary_in)
    names = {datatype: f"out_{datatype.lower()}" for datatype in sent}
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in names.values()]
    found = client.infer("echo", inputs, outputs=outputs, **auth())
    for datatype, array in sent.items():
        told = found.as_numpy(names[datatype])
        if datatype == "BYTES":
            told = np.array([[one if isinstance(one, str) else one.decode() for one in told.ravel()]], object)
        assert told.shape == array.shape
        assert (told == array).all()


def test_bytes_that_a_model_cannot_take_are_its_own_business(client: triton.InferenceServerClient) -> None:
    inputs, _ = echo_inputs(binary=True)
    for odd, said in ((b"\r\n\t", None), (b"\xff", "UTF-8")):
        array = np.array([[odd]], object)
        inputs[-1].set_shape(array.shape)
        inputs[-1].set_data_from_numpy(array)
        if said is None:
            assert client.infer("echo", inputs, **auth()).as_numpy("out_bytes").tolist() == [[odd]]
        else:
            with pytest.raises(InferenceServerException, match=said):
                client.infer("echo", inputs, **auth())


def test_parameters_of_requests(client: triton.InferenceServerClient) -> None:
    found = client.infer("mlp", mlp_input(), priority=1, timeout=30_000_000, parameters={"mine": "x"}, **auth())
    np.testing.assert_allclose(found.as_numpy("y"), mlp_of(ROWS), rtol=1e-4, atol=1e-5)


def test_many_at_once(client: triton.InferenceServerClient) -> None:
    waiting = [client.async_infer("mlp", mlp_input(), **auth()) for _ in range(20)]
    for one in waiting:
        np.testing.assert_allclose(one.get_result().as_numpy("y"), mlp_of(ROWS), rtol=1e-4, atol=1e-5)


def test_a_body_built_ahead(client: triton.InferenceServerClient) -> None:
    body, length = client.generate_request_body(mlp_input())
    answer = client._post("v2/models/mlp/infer", body, {**BEARER, "Inference-Header-Content-Length": length}, None)
    said = answer.get("inference-header-content-length")
    parsed = client.parse_response_body(bytes(answer.read()), header_length=int(said))
    np.testing.assert_allclose(parsed.as_numpy("y"), mlp_of(ROWS), rtol=1e-4, atol=1e-5)


def test_the_repository(client: triton.InferenceServerClient) -> None:
    index = client.get_model_repository_index(**auth())
    assert {"name": "spare", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"} in index
    client.load_model("spare", config=json.dumps({"queue": 9}), **auth())
    assert client.is_model_ready("spare", **auth())
    client.unload_model("spare", **auth())
    assert not client.is_model_ready("spare", **auth())
    with pytest.raises(InferenceServerException, match="no 'none'"):
        client.load_model("none", **auth())


@pytest.mark.parametrize("packed", [None, "gzip"])
@pytest.mark.parametrize(
    ("model", "status", "said"), [("none", "404", "no model"), ("mlp", "401", "token"), ("echo", "400", "inputs")]
)
def test_errors_are_read_as_they_are_meant(
    client: triton.InferenceServerClient, model: str, status: str, said: str, packed: str | None
) -> None:
    headers = {} if status == "401" else dict(BEARER)
    with pytest.raises(InferenceServerException, match=said) as found:
        client.infer(model, mlp_input(), headers=headers, response_compression_algorithm=packed)
    assert found.value.status() == status


def test_what_is_not_offered_says_so(client: triton.InferenceServerClient) -> None:
    for ask in (client.get_trace_settings, client.get_log_settings, client.get_system_shared_memory_status):
        with pytest.raises(InferenceServerException, match="not offered"):
            ask(**auth())
    shared = triton.InferInput("x", ROWS.shape, "FP32")
    shared.set_shared_memory("region", 384)
    with pytest.raises(InferenceServerException, match="shared memory"):
        client.infer("mlp", [shared], **auth())
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer("mlp", mlp_input(), outputs=[triton.InferRequestedOutput("y", class_count=1)], **auth())


def test_the_client_of_coroutines(server: Served) -> None:
    async def talk() -> None:
        async with triton_aio.InferenceServerClient(server.url) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("mlp", **auth()))["name"] == "mlp"
            every = [
                client.infer("mlp", mlp_input(), response_compression_algorithm="gzip", **auth()) for _ in range(8)
            ]
            for one in await asyncio.gather(*every):
                np.testing.assert_allclose(one.as_numpy("y"), mlp_of(ROWS), rtol=1e-4, atol=1e-5)
            with pytest.raises(InferenceServerException, match="no model"):
                await client.infer("none", mlp_input(), **auth())

    asyncio.run(talk())
