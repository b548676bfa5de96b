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

from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid, Unavailable
from falaj.core.ref import Ref
from falaj.jobs.report import tabled
from falaj.serve.calling import Caller, tensor
from falaj.serve.records import Reach
from falaj.track.draw import draw, spark

MOST_AT_ONCE, MOST_S = 1024, 3600.0
_ZEROS: dict[str, Any] = {"BOOL": False, "BYTES": "a", "FP16": 0.5, "FP32": 0.5, "FP64": 0.5, "BF16": 0.5}


@dataclass(frozen=True, slots=True)
class Level:
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
class Loaded:
    """A load test."""

    TEXT: ClassVar[str] = "lines"

    endpoint: Ref
    levels: tuple[Level, ...]
    lines: tuple[str, ...]


@errand
def load_test(
    here: Here,
    endpoint: Annotated[Ref, "which endpoint"],
    inputs: Annotated[dict[str, Any] | None, "values by the name of the input; made up when left out"] = None,
    seconds: Annotated[float, "how long at each level"] = 5.0,
    at_once: Annotated[tuple[int, ...], "how many callers at once, level after level"] = (1, 8, 64),
    rate: Annotated[float, "requests a second in all; as fast as answers come when 0"] = 0.0,
    *,
    token: Annotated[str, "who calls; FALAJ_TOKEN, or who you are signed in as, when left out"] = "",
) -> Loaded:
    """Put load on an endpoint through the gateway: requests a second and how long they took, as table and plots.

    Each caller asks again as soon as it is answered, or in its turn where a rate is given; then the time is counted
    from when its turn was, so that a server that stalls cannot hide it.

    Example:
        falaj serve load-test endpoint:fraud/score --seconds 5 --at-once 1,8,64
    """
    if not at_once or not all(0 < one <= MOST_AT_ONCE for one in at_once) or not 0 < seconds <= MOST_S or rate < 0:
        raise Invalid("that is no load", f"1 to {MOST_AT_ONCE} at once, up to {MOST_S:.0f} seconds, a rate from 0")
    reach: Reach = here.serve.url(endpoint)
    with Caller(here, reach.url, token=token) as caller:
        body = msgspec.json.encode({"inputs": _tensors(caller, inputs)})
        levels, shapes = [], []
        with here.progress.task(f"asking {endpoint}", len(at_once), "levels") as task:
            for number in at_once:
                load = _Load(caller, body, rate)
                asyncio.run(load.run(number, seconds))
                levels.append(_level(number, load))
                shapes.append((f"{number} at once", _curve(load.took)))
                task.advance(1)
    return Loaded(endpoint, tuple(levels), tuple(_said(levels, shapes)))


def _tensors(caller: Caller, inputs: dict[str, Any] | None) -> list[dict[str, Any]]:
    known = {one["name"]: one for one in caller.metadata()["inputs"]}
    if inputs is None:
        return [_made_up(one) for one in known.values()]
    unknown = sorted(set(inputs) - set(known))
    if unknown:
        raise Invalid(f"the model has no input {unknown[0][:80]!r}", f"it has: {', '.join(known)[:500]}")
    return [tensor(name, known[name]["datatype"], value) for name, value in inputs.items()]


def _made_up(one: dict[str, Any]) -> dict[str, Any]:
    shape = [1 if size < 0 else size for size in one["shape"]]
    data = [_ZEROS.get(one["datatype"], 1)] * math.prod(shape)
    return {"name": one["name"], "datatype": one["datatype"], "shape": shape, "data": data}


class _Load:
    """Callers that ask again and again, on one event loop."""

    def __init__(self, caller: Caller, body: bytes, rate: float) -> None:
        parts = urlsplit(caller.url)
        self._host, self._tls = parts.hostname or "", caller.context if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        lines = [f"POST {parts.path}/infer HTTP/1.1", f"host: {parts.netloc}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in caller.headers.items()]
        self.request = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body
        self._rate = rate
        self.took: list[float] = []
        self.reasons: Counter[str] = Counter()
        self.lasted = 0.0
        self.until = 0.0

    async def run(self, at_once: int, seconds: float) -> None:
        """Ask until the time is over, and wait for what is still asked."""
        began = time.perf_counter()
        self.until = began + seconds
        pause = at_once / self._rate if self._rate else 0.0
        await asyncio.gather(*(self._caller(began + number * pause / at_once, pause) for number in range(at_once)))
        self.lasted = time.perf_counter() - began

    async def _caller(self, first: float, pause: float) -> None:
        line: _Line | None = None
        due = first
        while (now := time.perf_counter()) < self.until:
            if pause and due > now:
                await asyncio.sleep(due - now)
            asked = due if pause else now
            try:
                if line is None or line.closed:
                    line = await self._connected()
                status = await asyncio.wait_for(line.ask(self.request), 60.0)
            except (OSError, TimeoutError, httptools.HttpParserError) as error:
                status, line = type(error).__name__, None
            if status == "200":
                self.took.append(time.perf_counter() - asked)
            else:
                self.reasons[status] += 1
            due += pause
        if line is not None:
            line.close()

    async def _connected(self) -> "_Line":
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: _Line(loop), self._host, self._port, ssl=self._tls)
        return line


class _Line(asyncio.Protocol):
    """One connection; one question at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[str] | None = None
        self.closed = False

    def ask(self, request: bytes) -> asyncio.Future[str]:
        """The status of the answer, once all of it is here."""
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """No more questions."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())

    def on_message_complete(self) -> None:
        """Called by the parser."""
        keeps, status = self._parser.should_keep_alive(), str(self._parser.get_status_code())
        self._parser = httptools.HttpResponseParser(self)
        if not keeps:
            self.closed = True
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


def _level(at_once: int, load: _Load) -> Level:
    took = sorted(load.took)
    if not took:
        why = ", ".join(f"{name} {count} times" for name, count in load.reasons.most_common(3))
        raise Unavailable(f"nothing was answered: {why}", "falaj serve show says how it stands")
    p50, p95, p99 = (took[min(len(took) - 1, int(len(took) * share))] * 1e3 for share in (0.5, 0.95, 0.99))
    failed = sum(load.reasons.values())
    return Level(at_once, len(took) / load.lasted, p50, p95, p99, len(took) + failed, failed, dict(load.reasons))


def _curve(took: list[float]) -> list[tuple[float, float]]:
    """How long the fastest share of requests took, in milliseconds, share by share."""
    ordered = sorted(took)
    return [(share, ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] * 1e3) for share in range(101)]


def _said(levels: list[Level], shapes: list[tuple[str, list[tuple[float, float]]]]) -> list[str]:
    rows = [
        (str(one.at_once), f"{one.per_s:,.0f}", f"{one.p50_ms:.2f}", f"{one.p95_ms:.2f}", f"{one.p99_ms:.2f}",
         f"{one.requests:,}", f"{one.failed:,}")
        for one in levels
    ]  # fmt: skip
    lines = tabled(("at once", "a second", "p50 ms", "p95 ms", "p99 ms", "requests", "failed"), rows)
    if len(levels) > 1:
        lines += ["", f"a second, level by level: {spark([one.per_s for one in levels])}"]
    lines += ["", "milliseconds by share of requests, the fastest first (logarithmic)"]
    lines += draw(shapes, 60, 12, log=True).splitlines()
    for one in levels:
        if one.failed:
            why = ", ".join(f"{name}: {count}" for name, count in sorted(one.reasons.items()))
            lines.append(f"{one.at_once} at once: {one.failed} failed ({why})")
    return lines
