"""A gateway's metrics: for the house only, whole, and what was asked is in them."""

from collections.abc import Callable
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.gateway.stand_in import Ground
from tests.gateway.test_doors import INFER, until


def test_what_was_asked_is_counted(ground: Callable[..., Ground], asking: Callable[..., httpx.Client]) -> None:
    one = ground(replicas=2)
    client, house = asking(one), asking(one, "admin")
    for _ in range(5):
        assert client.post(INFER, content=b"{}").status_code == 200
    assert asking(one, "").post(INFER).status_code == 401

    def read() -> dict[str, Any]:
        got = house.get("/metrics")
        assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(parsed(got.text))
        assert all(family.documentation and family.type != "unknown" for family in families)
        return {family.name: family.samples for family in families}

    found: dict[str, Any] = until(
        lambda: (now := read())["falaj_gateway_request_seconds"][-1].value >= 5 and now, within_s=20
    )
    labels = {"tenant": "bank", "endpoint": "endpoint:fraud/score", "arm": "base", "revision": "1"}
    (answers,) = [sample for sample in found["falaj_gateway_requests"] if sample.labels["class"] == "2xx"]
    assert answers.value == 5
    assert {key: answers.labels[key] for key in labels} == labels
    assert found["falaj_gateway_request_seconds"][-2].value > 0
    assert found["falaj_gateway_refused"][0].labels == {"code": "unauthenticated"}
    (ready,) = found["falaj_gateway_replicas"]
    assert (ready.labels, ready.value) == ({"state": "ready"}, 2.0)
    assert found["falaj_gateway_connections"][0].value >= 2
    assert found["falaj_gateway_in_flight"][0].value == 0
