"""Load on an endpoint, from beside its caller: so many at once for so long, and how long answers took."""

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import httptools
import msgspec

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid, Unavailable
from falaj.core.ref import Ref
from falaj.jobs.report import format_table
from falaj.serve.endpoint_client import EndpointClient, build_input_tensor
from falaj.serve.records import EndpointAddress
from falaj.track.text_charts import format_sparkline, plot_curves

MAX_CONCURRENT_CALLERS, MAX_TEST_S = 1024, 3600.0
_SAMPLE_VALUES: dict[str, Any] = {"BOOL": False, "BYTES": "a", "FP16": 0.5, "FP32": 0.5, "FP64": 0.5, "BF16": 0.5}


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """What was measured at one number of callers."""

    at_once: int
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    failed: int
    reasons: dict[str, int]
    """Statuses that were not 200, and connections that broke, with how often."""


@dataclass(frozen=True, slots=True)
class LoadTestResult:
    """A load test."""

    TEXT: ClassVar[str] = "lines"

    endpoint: Ref
    levels: tuple[LoadLevel, ...]
    lines: tuple[str, ...]


@client_command
def load_test(
    here: Client,
    endpoint: Annotated[Ref, "which endpoint"],
    inputs: Annotated[dict[str, Any] | None, "values by the name of the input; made up when left out"] = None,
    seconds: Annotated[float, "how long at each level"] = 5.0,
    at_once: Annotated[tuple[int, ...], "how many callers at once, level after level"] = (1, 8, 64),
    rate: Annotated[float, "requests a second in all; as fast as answers come when 0"] = 0.0,
    *,
    token: Annotated[str, "who calls; FALAJ_TOKEN, or who you are signed in as, when left out"] = "",
) -> LoadTestResult:
    """Put load on an endpoint through the gateway: requests a second and how long they took, as table and plots.

    Each caller asks again as soon as it is answered, or in its turn where a rate is given; then the time is counted
    from when its turn was, so that a server that stalls cannot hide it.

    Example:
        falaj serve load-test endpoint:fraud/score --seconds 5 --at-once 1,8,64
    """
    if (
        not at_once
        or not all(0 < caller_count <= MAX_CONCURRENT_CALLERS for caller_count in at_once)
        or not 0 < seconds <= MAX_TEST_S
        or rate < 0
    ):
        raise Invalid(
            "that is no load", f"1 to {MAX_CONCURRENT_CALLERS} at once, up to {MAX_TEST_S:.0f} seconds, a rate from 0"
        )
    reach: EndpointAddress = here.serve.url(endpoint)
    with EndpointClient(here, reach.url, token=token) as endpoint_client:
        body = msgspec.json.encode({"inputs": _build_tensors(endpoint_client, inputs)})
        levels, latency_curves = [], []
        with here.progress.task(f"asking {endpoint}", len(at_once), "levels") as task:
            for caller_count_at_level in at_once:
                load_generator = _LoadGenerator(endpoint_client, body, rate)
                asyncio.run(load_generator.run(caller_count_at_level, seconds))
                levels.append(_summarize_level(caller_count_at_level, load_generator))
                latency_curves.append((f"{caller_count_at_level} at once", _latency_curve(load_generator.took)))
                task.advance(1)
    return LoadTestResult(endpoint, tuple(levels), tuple(_render_lines(levels, latency_curves)))


def _build_tensors(endpoint_client: EndpointClient, inputs: dict[str, Any] | None) -> list[dict[str, Any]]:
    inputs_by_name = {input_metadata["name"]: input_metadata for input_metadata in endpoint_client.metadata()["inputs"]}
    if inputs is None:
        return [_sample_tensor(input_metadata) for input_metadata in inputs_by_name.values()]
    unknown_names = sorted(set(inputs) - set(inputs_by_name))
    if unknown_names:
        raise Invalid(f"the model has no input {unknown_names[0][:80]!r}", f"it has: {', '.join(inputs_by_name)[:500]}")
    return [build_input_tensor(name, inputs_by_name[name]["datatype"], value) for name, value in inputs.items()]


def _sample_tensor(input_metadata: dict[str, Any]) -> dict[str, Any]:
    shape = [1 if size < 0 else size for size in input_metadata["shape"]]
    data = [_SAMPLE_VALUES.get(input_metadata["datatype"], 1)] * math.prod(shape)
    return {"name": input_metadata["name"], "datatype": input_metadata["datatype"], "shape": shape, "data": data}


class _LoadGenerator:
    """Callers that ask again and again, on one event loop."""

    def __init__(self, endpoint_client: EndpointClient, body: bytes, rate: float) -> None:
        parts = urlsplit(endpoint_client.url)
        self._host, self._tls = parts.hostname or "", endpoint_client.context if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        lines = [f"POST {parts.path}/infer HTTP/1.1", f"host: {parts.netloc}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in endpoint_client.headers.items()]
        self.request = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body
        self._rate = rate
        self.took: list[float] = []
        self.reasons: Counter[str] = Counter()
        self.lasted = 0.0
        self.until = 0.0

    async def run(self, at_once: int, seconds: float) -> None:
        """Ask until the time is over, and wait for what is still asked."""
        started_at = time.perf_counter()
        self.until = started_at + seconds
        pause = at_once / self._rate if self._rate else 0.0
        await asyncio.gather(
            *(self._run_caller(started_at + caller_number * pause / at_once, pause) for caller_number in range(at_once))
        )
        self.lasted = time.perf_counter() - started_at

    async def _run_caller(self, first_due: float, pause: float) -> None:
        connection: _LoadConnection | None = None
        next_due = first_due
        while (now := time.perf_counter()) < self.until:
            if pause and next_due > now:
                await asyncio.sleep(next_due - now)
            asked_at = next_due if pause else now
            try:
                if connection is None or connection.closed:
                    connection = await self._open_connection()
                status = await asyncio.wait_for(connection.ask(self.request), 60.0)
            except (OSError, TimeoutError, httptools.HttpParserError) as error:
                status, connection = type(error).__name__, None
            if status == "200":
                self.took.append(time.perf_counter() - asked_at)
            else:
                self.reasons[status] += 1
            next_due += pause
        if connection is not None:
            connection.close()

    async def _open_connection(self) -> "_LoadConnection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _LoadConnection(loop), self._host, self._port, ssl=self._tls
        )
        return connection


class _LoadConnection(asyncio.Protocol):
    """One connection; one question at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._status_future: asyncio.Future[str] | None = None
        self.closed = False

    def ask(self, request: bytes) -> asyncio.Future[str]:
        """The status of the answer, once all of it is here."""
        self._status_future = self._loop.create_future()
        self._transport.write(request)
        return self._status_future

    def close(self) -> None:
        """No more questions."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._status_future is not None and not self._status_future.done():
            self._status_future.set_exception(exc or ConnectionResetError())

    def on_message_complete(self) -> None:
        """Called by the parser."""
        keeps_alive, status = self._parser.should_keep_alive(), str(self._parser.get_status_code())
        self._parser = httptools.HttpResponseParser(self)
        if not keeps_alive:
            self.closed = True
            self._transport.close()
        if self._status_future is not None and not self._status_future.done():
            self._status_future.set_result(status)


def _summarize_level(at_once: int, load_generator: _LoadGenerator) -> LoadLevel:
    durations = sorted(load_generator.took)
    if not durations:
        reasons_text = ", ".join(f"{name} {count} times" for name, count in load_generator.reasons.most_common(3))
        raise Unavailable(f"nothing was answered: {reasons_text}", "falaj serve show says how it stands")
    p50, p95, p99 = (
        durations[min(len(durations) - 1, int(len(durations) * share))] * 1e3 for share in (0.5, 0.95, 0.99)
    )
    failed = sum(load_generator.reasons.values())
    return LoadLevel(
        at_once,
        len(durations) / load_generator.lasted,
        p50,
        p95,
        p99,
        len(durations) + failed,
        failed,
        dict(load_generator.reasons),
    )


def _latency_curve(durations: list[float]) -> list[tuple[float, float]]:
    """How long the fastest share of requests took, in milliseconds, share by share."""
    ordered = sorted(durations)
    return [(share, ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] * 1e3) for share in range(101)]


def _render_lines(levels: list[LoadLevel], latency_curves: list[tuple[str, list[tuple[float, float]]]]) -> list[str]:
    rows = [
        (
            str(load_level.at_once),
            f"{load_level.per_s:,.0f}",
            f"{load_level.p50_ms:.2f}",
            f"{load_level.p95_ms:.2f}",
            f"{load_level.p99_ms:.2f}",
            f"{load_level.requests:,}",
            f"{load_level.failed:,}",
        )
        for load_level in levels
    ]
    lines = format_table(("at once", "a second", "p50 ms", "p95 ms", "p99 ms", "requests", "failed"), rows)
    if len(levels) > 1:
        lines += ["", f"a second, level by level: {format_sparkline([load_level.per_s for load_level in levels])}"]
    lines += ["", "milliseconds by share of requests, the fastest first (logarithmic)"]
    lines += plot_curves(latency_curves, 60, 12, is_logarithmic=True).splitlines()
    for load_level in levels:
        if load_level.failed:
            reasons_text = ", ".join(f"{name}: {count}" for name, count in sorted(load_level.reasons.items()))
            lines.append(f"{load_level.at_once} at once: {load_level.failed} failed ({reasons_text})")
    return lines
