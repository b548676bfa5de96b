"""One trace through gateway and replica, over both protocols; nothing of those that are not followed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from falaj.core import tracing
from tests.collector import Collector
from tests.gateway.stand_in import Ground
from tests.gateway.test_real import NAME, Real

X = np.zeros((3, 32), np.float32)
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ground, Collector]]:
    home: Path = tmp_path_factory.mktemp("traced")
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv(tracing.ENDPOINT_VARIABLE, collector.url)
        patch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
        real = Real(home)
        ground = Ground(home / "house", sample=0.0)
        ground.add(real)
        ground.open()
        yield ground, collector
        assert real.end() == 0
        ground.close()


def ask(ground: Ground, protocol: str, traceparent: str, model: str = NAME) -> None:
    headers = {**ground.headers(), **({"traceparent": traceparent} if traceparent else {})}
    triton, at = (
        (triton_http, ground.doors.http.rpartition("/")[2]) if protocol == "http" else (triton_grpc, ground.doors.grpc)
    )
    given = triton.InferInput("x", [3, 32], "FP32")
    given.set_data_from_numpy(X)
    with triton.InferenceServerClient(at) as client:
        client.infer(model, [given], headers=headers)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_trace_from_the_gateway_to_the_run_of_the_model(followed: tuple[Ground, Collector], protocol: str) -> None:
    ground, collector = followed
    id_ = TRACE[:-1] + ("1" if protocol == "http" else "2")
    ask(ground, protocol, "")
    ask(ground, protocol, f"00-{TRACE}-{SPAN}-00")
    ask(ground, protocol, f"00-{id_}-{SPAN}-01")

    def mine(one: Collector) -> list[dict[str, str]]:
        return [span for span in tuple(one.spans) if span["traceId"] == id_]

    collector.until(lambda one: len(mine(one)) >= 5)
    by = {(span["service"], span["name"]): span for span in mine(collector)}
    gateway, replica = by["falaj-gateway", "infer"], by["falaj-infer", "infer"]
    assert (gateway["parentSpanId"], replica["parentSpanId"]) == (SPAN, gateway["spanId"])
    assert gateway["attributes"] == {
        "falaj.endpoint": NAME, "falaj.revision": "1", "falaj.arm": "base", "falaj.tries": "1",
        "http.response.status_code": "200",
    }  # fmt: skip
    assert replica["attributes"]["falaj.batch_rows"] == "3"
    parts = [by["falaj-infer", name] for name in ("queue", "compute", "deliver")]
    assert {part["parentSpanId"] for part in parts} == {replica["spanId"]}
    ends = [int(part["endTimeUnixNano"]) for part in parts]
    assert ends == sorted(ends)
    assert {span["traceId"] for span in collector.spans} <= {TRACE[:-1] + "1", TRACE[:-1] + "2"}
