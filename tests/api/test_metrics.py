"""Metrics: what is written is what Prometheus reads, whatever names there are; and counts that stay within bounds."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from falaj.api import platform_metrics
from falaj.api.metrics import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    EdgeMetrics,
    MetricFamily,
    format_families,
    make_histogram_rows,
    make_labelled_family,
)
from falaj.api.platform_metrics import PlatformMetrics
from falaj.core.errors import Unavailable
from falaj.store.reconcile_loop import LoopRunner
from tests.town import Town


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"": 0.0},
        {'"': 1e-9, "\\": 1 / 3, "\\n": -1.5, "\n": 2.0, 'a"b\\"\nc': 1e300, "{},=": math.inf, "\u0661": 7.0},
    ],
)
def test_what_is_written_is_read_again(values: dict[str, float]) -> None:
    (family,) = parsed(format_families([make_labelled_family("name", "falaj_x", "Something.", values)]).decode())
    assert (family.type, family.documentation) == ("gauge", "Something.")
    assert {one.labels["name"]: one.value for one in family.samples} == {
        key: pytest.approx(value) for key, value in values.items()
    }


def test_histograms_add_up() -> None:
    rows = make_histogram_rows({"a": "b"}, (0.1, 2.5), (3, 0, 4), 9.5)
    (family,) = parsed(format_families([MetricFamily("falaj_x_seconds", "Time.", HISTOGRAM, rows)]).decode())
    found = {(one.name, one.labels.get("le")): one.value for one in family.samples}
    assert found == {
        ("falaj_x_seconds_bucket", "0.1"): 3, ("falaj_x_seconds_bucket", "2.5"): 3,
        ("falaj_x_seconds_bucket", "+Inf"): 7, ("falaj_x_seconds_sum", None): 9.5, ("falaj_x_seconds_count", None): 7,
    }  # fmt: skip


def test_the_edge_counts_answers() -> None:
    metrics = EdgeMetrics()
    for seconds in (0.0005, 0.2, 60.0):
        metrics.count("jobs.add", 200, seconds)
    metrics.count("store.get", 200)  # bulk: an answer, and no time
    metrics.refused["denied"] += 1
    found = {family.name: family for family in parsed(format_families(metrics.families()).decode())}
    assert [one.value for one in found["falaj_requests"].samples] == [3, 1]
    assert found["falaj_request_seconds"].samples[-1].value == 3
    assert found["falaj_refused"].samples[0].labels == {"reason": "denied"}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("figures"))
    yield made
    made.close()


def named(found: list[MetricFamily]) -> dict[str, MetricFamily]:
    assert len({family.name for family in found}) == len(found), "a family is written once"
    return {family.name: family for family in found}


def value(family: MetricFamily, **labels: str) -> float:
    return next(number for _, told, number in family.rows if labels.items() <= told.items())


def test_every_room_is_counted(town: Town, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n")
    town.as_("salem").catalog.publish("dataset:fraud/tx", str(tmp_path), label="AE-PDPL,sensitive,purpose=fraud")
    found = named(PlatformMetrics(town.house).families())
    assert value(found["falaj_catalog_versions"], kind="dataset") == 1
    assert value(found["falaj_blobs_bytes"], zone="ae-dubai") > 0
    assert value(found["falaj_ledger_events_total"], verb="catalog.publish") == 1
    assert found["falaj_audit_unsealed_logs"].rows[0][2] >= 1
    assert found["falaj_audit_oldest_unsealed_seconds"].rows[0][2] >= 0
    assert not found["falaj_figures_failed_total"].rows
    assert not found["falaj_figures_cut"].rows
    kinds = {family.kind for family in found.values()}
    assert kinds == {COUNTER, GAUGE, HISTOGRAM}
    names = " ".join(found)
    for room in ("ledger", "loop", "jobs", "cluster", "audit", "blobs", "catalog", "feature", "endpoint", "watch",
                 "incident", "flow", "hook", "sweep", "trace"):  # fmt: skip
        assert room in names, room
    people = {"amal", "salem", *town.tokens.values()}
    assert not people & {text for family in found.values() for _, labels, _ in family.rows for text in labels.values()}


def test_figures_are_kept_a_while_and_a_room_that_fails_keeps_its_last(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def part(look: Any) -> list[MetricFamily]:
        counted.append(1)
        if len(counted) > 1:
            raise Unavailable("the store is away", "later")
        return [make_labelled_family("a", "falaj_test", "Test.", {"b": 1.0})]

    monkeypatch.setattr(platform_metrics, "METRICS_COLLECTORS", {"jobs": (math.inf, part)})
    mine = PlatformMetrics(town.house)
    assert value(named(mine.families())["falaj_test"]) == 1
    assert value(named(mine.families())["falaj_test"]) == 1
    assert len(counted) == 1
    monkeypatch.setattr(platform_metrics, "METRICS_COLLECTORS", {"jobs": (0.0, part)})
    mine._cached_families.clear()
    found = named(mine.families())
    assert "falaj_test" not in found
    assert value(found["falaj_figures_failed_total"], room="jobs") == 1


def test_no_more_is_counted_than_the_bound(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_metrics, "MAX_COUNTED_RECORDS", 1)
    found = named(PlatformMetrics(town.house).families())
    assert value(found["falaj_figures_cut"], room="store") == 1


def test_loops_say_how_they_do(town: Town) -> None:
    class Rests:
        name, every_s = "rests", 1.0

        def step(self, iteration: Any) -> bool:
            del iteration
            return False

    class Fails(Rests):
        name = "fails"

        def step(self, iteration: Any) -> bool:
            raise Unavailable("away", "later")

    loops = LoopRunner(town.house.ledger, "me", [Rests(), Fails()])
    loops.run_once()
    house = SimpleNamespace(turned=loops.turned)
    found = named(list(platform_metrics._loop_families(house)))  # type: ignore[arg-type]
    assert [value(found["falaj_loop_steps_total"], loop=name) for name in ("rests", "fails")] == [1, 1]
    assert [value(found["falaj_loop_failures_total"], loop=name) for name in ("rests", "fails")] == [0, 1]
    assert value(found["falaj_loop_leads"], loop="rests") == 1
