"""Triton's own clients through the gateway to a real server of a real model, over both protocols."""

import json
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.gateway.echo import KEY
from tests.gateway.stand_in import Ground
from tests.infer import models

NAME = "fraud.score"
X = np.random.default_rng(3).standard_normal((3, 32)).astype(np.float32)


class Real:
    """A replica as a job would start it."""

    revision, host = 1, "127.0.0.1"

    def __init__(self, home: Path) -> None:
        model = {"name": NAME, "version": "1", "folder": str(models.mlp(home / "model"))}
        config = {"models": [model], "hop": "127.0.0.1:0", "hop_key": KEY}
        (home / "config.json").write_text(json.dumps(config))
        command = [sys.executable, "-m", "falaj.infer", str(home / "config.json")]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.port = int(json.loads(self.child.stdout.readline())["hop"].rpartition(":")[2])

    def end(self) -> int:
        """SIGTERM: it drains."""
        self.child.terminate()
        code = self.child.wait(20)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    home = tmp_path_factory.mktemp("real")
    real = Real(home)
    ground = Ground(home / "house", sample=0.0)
    ground.add(real)
    ground.open()
    yield ground
    assert real.end() == 0
    ground.close()


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packed", [None, "gzip"])
def test_http_clients_are_answered(served: Ground, binary: bool, packed: str | None) -> None:
    headers = served.headers()
    with triton_http.InferenceServerClient(served.doors.http.rpartition("/")[2]) as client:
        assert client.is_server_ready()
        assert client.is_model_ready(NAME, headers=headers)
        assert client.get_model_metadata(NAME, headers=headers)["inputs"][0]["name"] == "x"
        assert client.get_model_config(NAME, "1", headers=headers)["name"] == NAME
        given = triton_http.InferInput("x", [3, 32], "FP32")
        given.set_data_from_numpy(X, binary_data=binary)
        wanted = triton_http.InferRequestedOutput("y", binary_data=binary)
        got = client.infer(
            NAME,
            [given],
            outputs=[wanted],
            request_id="mine",
            headers=headers,
            request_compression_algorithm=packed,
            response_compression_algorithm=packed,
        )
        np.testing.assert_allclose(got.as_numpy("y"), models.mlp_of(X), rtol=1e-4, atol=1e-5)
        assert got.get_response()["id"] == "mine"
        bad = triton_http.InferInput("x", [1, 3], "FP32")
        bad.set_data_from_numpy(np.zeros((1, 3), np.float32), binary_data=binary)
        with pytest.raises(InferenceServerException, match="32"):
            client.infer(NAME, [bad], headers=served.headers())


def test_grpc_clients_are_answered_and_streams_too(served: Ground) -> None:
    headers = served.headers()
    given = triton_grpc.InferInput("x", [3, 32], "FP32")
    given.set_data_from_numpy(X)
    with triton_grpc.InferenceServerClient(served.doors.grpc) as client:
        assert client.is_model_ready(NAME, headers=headers)
        assert client.get_model_metadata(NAME, headers=headers).inputs[0].name == "x"
        got = client.infer(NAME, [given], request_id="mine", headers=headers, client_timeout=20)
        np.testing.assert_allclose(got.as_numpy("y"), models.mlp_of(X), rtol=1e-4, atol=1e-5)
        assert client.get_inference_statistics(NAME, headers=headers).model_stats[0].name == NAME
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
        for number in range(5):
            client.async_stream_infer(NAME, [given], request_id=str(number))
        client.async_stream_infer("fraud.other", [given])
        told = [answers.get(timeout=20) for _ in range(6)]
        client.stop_stream()
    good = [result for result, error in told if error is None]
    assert sorted(result.get_response().id for result in good) == list("01234")
    for result in good:
        np.testing.assert_allclose(result.as_numpy("y"), models.mlp_of(X), rtol=1e-4, atol=1e-5)
    (error,) = [error for _, error in told if error is not None]
    assert "no endpoint" in str(error)
