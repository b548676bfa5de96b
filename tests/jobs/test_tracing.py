"""One trace from the API through the job to its attempt, and what is kept of it where nobody listens."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import falaj
from falaj.core import tracing
from falaj.core.label import Label
from falaj.jobs import job_tracing
from tests.api.small import serving
from tests.collector import Collector
from tests.jobs.lab import until
from tests.town import Town

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # pragma: allowlist secret
PARENT = f"00-{TRACE}-{SPAN}-01"
WORK = """
import os, pathlib
from falaj import worker
here = worker.attempt()
with here.span("epoch"):
    with here.span("batch"):
        pass
print(os.environ["FALAJ_TRACEPARENT"], flush=True)
(pathlib.Path(here.outputs["model"]) / "weights.txt").write_text("1")
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as one:
        monkeypatch.setenv(tracing.ENDPOINT_VARIABLE, one.url)
        yield one


def test_one_trace_from_the_call_to_the_last_phase_of_its_attempt(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path / "house")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    try:
        with serving(town.house, listen="127.0.0.1:0") as server, town.house.working():
            monkeypatch.setenv("TRACEPARENT", PARENT)
            here = falaj.connect(server.url, token=town.tokens["amal"])
            program = tmp_path / "program/work.py"
            program.parent.mkdir()
            program.write_text(WORK)
            job = here.jobs.submit(
                str(program), project="fraud", outputs={"model": "model:fraud/m"}, cpus=0.1, memory="100MiB"
            )
            monkeypatch.delenv("TRACEPARENT")
            until(lambda: here.jobs.show(job.ref), lambda one: one.over)
            shown = here.jobs.show(job.ref)
            lines = here.jobs.logs(job.ref).lines
            collector.until(lambda one: one.named("attempt") and one.named("batch") and one.named("run"))
            here.close()
    finally:
        town.close()
    assert shown.state == "succeeded", shown.note
    named = {span["name"]: span for span in collector.spans}
    assert {named[name]["traceId"] for name in ("jobs.add", "attempt", "stage in", "run", "publish", "epoch")} == {
        TRACE
    }
    asked, attempt = named["jobs.add"], named["attempt"]
    assert asked["parentSpanId"] == SPAN
    assert attempt["parentSpanId"] == named["wait"]["parentSpanId"] == asked["spanId"]
    for name in ("stage in", "run", "publish", "epoch"):
        assert named[name]["parentSpanId"] == attempt["spanId"], name
    assert named["batch"]["parentSpanId"] == named["epoch"]["spanId"]
    assert attempt["attributes"]["falaj.state"] == "succeeded"
    assert lines == (f"00-{TRACE}-{attempt['spanId']}-01",)
    assert int(named["run"]["startTimeUnixNano"]) >= int(attempt["startTimeUnixNano"]) - 10**9


FACTS = [
    {"kind": "span", "name": "good", "began": 110.0, "ended": 111.0, "span": "1" * 16, "parent": "2" * 16, "slot": 3},
    {"kind": "span", "name": "n" * 500, "began": 110, "ended": 110, "span": "zz", "parent": 7, "failed": "f" * 999},
    {"kind": "span", "name": "too early", "began": 1.0, "ended": 111.0},
    {"kind": "span", "name": "too late", "began": 110.0, "ended": 1e12},
    {"kind": "span", "name": "no time", "began": float("nan"), "ended": "x"},
    {"kind": "span"},
    {"kind": "metric", "name": "not one", "began": 110.0, "ended": 111.0},
]


def record(label: str = "", **more: Any) -> Any:
    body = {"trace": PARENT, "attempt": {"id": "a-1"}, "submitted": 100.0, **more}
    return SimpleNamespace(body=body, label=Label.parse(label))


def test_what_attempts_say_is_bounded_and_stays_in_their_own_trace(collector: Collector) -> None:
    job_tracing.send_spans(record(), FACTS)
    job_tracing.send_spans(record(trace=""), FACTS)
    job_tracing.send_spans(record(trace=f"00-{TRACE}-{SPAN}-00"), FACTS)
    collector.until(lambda one: len(one.spans) >= 2)
    good, long = collector.spans
    mine = tracing.SpanContext(TRACE, SPAN).below("a-1")
    assert (good["traceId"], good["spanId"], good["parentSpanId"]) == (TRACE, "1" * 16, "2" * 16)
    assert good["attributes"] == {"falaj.slot": "3"}
    assert (len(long["name"]), long["parentSpanId"], len(long["status"]["message"])) == (80, mine.span, 256)


def test_spans_of_a_job_on_labelled_data_leave_without_its_texts(collector: Collector) -> None:
    named = [
        {**FACTS[0], "name": name, "span": f"{number}" * 16} for number, name in enumerate(("Amal Rashed", "run"), 1)
    ]
    job_tracing.send_spans(record("AE-PDPL,sensitive"), [{**named[0], "failed": "Amal Rashed"}, named[1]])
    collector.until(lambda one: len(one.spans) >= 2)
    assert [span["name"] for span in collector.spans] == ["span", "run"]
    assert collector.spans[0]["status"]["message"] == "failed"


def test_attempts_are_told_of_the_trace_and_never_of_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    body = record().body
    monkeypatch.delenv(tracing.ENDPOINT_VARIABLE, raising=False)
    mine = tracing.SpanContext(TRACE, SPAN).below("a-1").header
    assert job_tracing.build_trace_environment(body) == {"FALAJ_TRACEPARENT": mine}
    assert job_tracing.build_trace_environment({**body, "trace": ""}) == {}
    monkeypatch.setenv(tracing.ENDPOINT_VARIABLE, "http://collector:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    assert job_tracing.build_trace_environment({**body, "trace": ""}) == {
        tracing.ENDPOINT_VARIABLE: "http://collector:4318"
    }
    monkeypatch.setenv(tracing.ENDPOINT_VARIABLE, "http://user:secret@collector:4318")  # pragma: allowlist secret
    assert job_tracing.build_trace_environment({**body, "trace": ""}) == {}
    assert "secret" not in str(job_tracing.build_trace_environment(body))
    assert os.environ["OTEL_EXPORTER_OTLP_HEADERS"]
