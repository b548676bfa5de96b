"""Loads: what was counted, as whoever looks at an endpoint is told it."""

from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Invalid, NotFound
from falaj.serve.request_counts import latency_bucket
from falaj.serve.traffic_operations import compute_histograms
from tests.infer import models
from tests.serve.ground import NOON, REF, counted
from tests.serve.laptop import SMALL
from tests.town import Town, refusal


def test_the_load_and_the_traffic_of_an_endpoint(town: Town, tmp_path: Path) -> None:
    mona: Any = town.as_("mona")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    model = town.as_("amal").catalog.publish("model:fraud/loads", str(models.mlp(tmp_path / "model"))).ref
    mona.serve.deploy(REF, model, **SMALL)
    counts, now = town.house.desks["serve"].counts, town.house.system().now()
    slow = {latency_bucket(100): 5, latency_bucket(9000): 5}
    rows = [counted(now - 3600 + 60 * minute, errors=1, latency_us=slow) for minute in range(1, 60)]
    counts.append([*rows, counted(now - 30, "canary", 2, requests=2)])
    (load,) = mona.serve.loads(project="fraud")
    assert (load.ref, round(load.requests_s * 60), round(load.errors, 3)) == (REF, 2, 0.0)
    assert mona.serve.loads(project="other") == ()
    told = mona.serve.traffic(REF, since_s=3600, beats=6)
    assert sum(one.requests for one in told.beats if one.arm == "base") == 590
    assert {one.arm for one in told.beats} == {"base", "canary"}
    assert len({one.at for one in told.beats}) == 6
    base = next(one for one in told.beats if one.arm == "base")
    assert base.p50_ms < 1 < 8 < base.p95_ms < 10
    assert [(one.arm, sum(one.counts)) for one in told.spreads] == [("base", 590), ("canary", 2)]
    assert isinstance(refusal(lambda: town.as_("sara").serve.traffic(REF)), NotFound)
    assert town.as_("sara").serve.loads() == ()
    assert isinstance(refusal(lambda: mona.serve.traffic(REF, beats=0)), Invalid)
    assert isinstance(refusal(lambda: mona.serve.loads(since_s=1e9)), Invalid)


def test_times_of_arms_lie_over_the_same_edges() -> None:
    rows = [counted(NOON, latency_us={latency_bucket(us): 1 for us in (100, 5000)}), counted(NOON, "canary", 2, 1)]
    base, canary = compute_histograms(rows)
    assert base.edges_ms == canary.edges_ms
    assert len(base.edges_ms) == len(base.counts) + 1
    assert (sum(base.counts), sum(canary.counts)) == (2, 1)
    assert base.edges_ms[0] <= 0.1 < 5 < base.edges_ms[-1]
    assert base.edges_ms == tuple(sorted(set(base.edges_ms)))
    assert compute_histograms([]) == ()


@pytest.mark.parametrize("us", [0, 3, 9, 100, 10**6])
def test_a_time_lies_between_two_edges(us: int) -> None:
    (one,) = compute_histograms([counted(NOON, latency_us={latency_bucket(us): 1})])
    assert one.edges_ms[0] <= us / 1000 < one.edges_ms[-1]
