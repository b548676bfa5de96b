"""Load that does not wait: requests at a fixed rate, by connections that are kept as long as the other side keeps them.

Nothing is sent twice. A request that got no answer, or another one than was wanted, has failed.
"""

import asyncio
import base64
import itertools
import json
import random
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ANSWER_S = 30.0
LINES = 48
"""Connections to one address, as a client's pool has them: who finds none free waits, and the wait counts."""
MIX = {"infer": 64, "show": 14, "list": 4, "get": 6, "put": 2, "log": 10}
"""Of 100 requests."""


class Ask(NamedTuple):
    """One request: what kind, to which pool, and what must be true once it is acknowledged."""

    kind: str
    pool: str
    path: str
    body: bytes
    headers: dict[str, str]
    effect: str = ""


@dataclass
class Told:
    """What came of it."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    effects: dict[str, list[str]] = field(default_factory=dict)
    """Acknowledged effects by kind."""
    gaps: dict[str, float] = field(default_factory=dict)
    """The longest time without an answer, by pool."""
    took: list[float] = field(default_factory=list)
    asked: int = 0
    opened: int = 0
    """Connections."""
    seconds: float = 0.0

    def summary(self) -> dict[str, int]:
        """Failures by kind and cause, and the seconds in which they came."""
        words = [line.split(" ", 3) for line in self.failed]
        return Counter(f"{second.partition('.')[0]} {kind} {cause}" for second, kind, cause, *_ in words)


class Pool:
    """Connections to one address."""

    def __init__(self, address: str, context: ssl.SSLContext, told: Told) -> None:
        self.host, _, port = address.rpartition(":")
        self.port, self.address, self._context, self._told = int(port), address, context, told
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._free = asyncio.Semaphore(LINES)

    async def call(self, ask: Ask) -> tuple[int, bytes]:
        async with self._free:
            return await self._call(ask)

    async def _call(self, ask: Ask) -> tuple[int, bytes]:
        reader, writer = await self._line()
        try:
            head = "".join(f"{name}: {value}\r\n" for name, value in ask.headers.items())
            start = f"POST {ask.path} HTTP/1.1\r\nhost: {self.address}\r\ncontent-length: {len(ask.body)}\r\n{head}\r\n"
            writer.write(start.encode() + ask.body)
            status, keep, body = await _answer(reader)
        except BaseException:
            writer.close()
            raise
        if keep:
            self._idle.append((reader, writer))
        else:
            writer.close()
        return status, body

    async def _line(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        self._told.opened += 1
        return await asyncio.open_connection(
            self.host, self.port, ssl=self._context, server_hostname=self.host, ssl_handshake_timeout=ANSWER_S
        )

    def close(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    status, keep = int(head.split(" ", 2)[1]), fields.get("connection") != "close"
    if fields.get("transfer-encoding") != "chunked":
        return status, keep, await reader.readexactly(int(fields.get("content-length", 0)))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return status, keep, b"".join(parts)


class Load(threading.Thread):
    """`start`, then `stop`. Asks `make` for the next request at a fixed rate, whatever became of the last."""

    def __init__(self, addresses: dict[str, str], ca: str, per_s: float, make: Callable[[], Ask]) -> None:
        super().__init__(name="load", daemon=True)
        self._addresses, self._per_s, self._make = addresses, per_s, make
        self._context = ssl.create_default_context(cafile=ca)
        self._ending = threading.Event()
        self.told = Told()
        self._last: dict[str, float] = {}
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._go())
        except BaseException as error:
            self.broken = error
            raise

    def stop(self) -> Told:
        """No more, and what came of all that was asked."""
        self._ending.set()
        self.join(ANSWER_S + 10)
        assert self.broken is None, self.broken
        assert not self.is_alive()
        return self.told

    async def _go(self) -> None:
        pools = {name: Pool(at, self._context, self.told) for name, at in self._addresses.items()}
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        began = loop.time()
        self._last = dict.fromkeys(pools, began)
        while not self._ending.is_set():
            due = int((loop.time() - began) * self._per_s)
            for _ in range(due - self.told.asked):
                self.told.asked += 1
                ask = self._make()
                task = loop.create_task(self._one(pools[ask.pool], ask))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.005)
        self.told.seconds = loop.time() - began
        if tasks:
            await asyncio.wait(tasks, timeout=ANSWER_S)
        for pool in pools.values():
            pool.close()

    async def _one(self, pool: Pool, ask: Ask) -> None:
        began, told = time.perf_counter(), self.told
        try:
            async with asyncio.timeout(ANSWER_S):
                status, body = await pool.call(ask)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            told.answers[ask.kind, 0] += 1
            told.failed.append(f"{time.time():.2f} {ask.kind} {type(error).__name__} {error}")
            return
        now = time.perf_counter()
        told.took.append(now - began)
        told.answers[ask.kind, status] += 1
        if status != 200:
            told.failed.append(f"{time.time():.2f} {ask.kind} {status} {body[:300].decode('utf-8', 'replace')}")
            return
        loop = asyncio.get_running_loop()
        told.gaps[ask.pool] = max(told.gaps.get(ask.pool, 0.0), loop.time() - self._last[ask.pool])
        self._last[ask.pool] = loop.time()
        if ask.effect:
            told.effects.setdefault(ask.kind, []).append(ask.effect)


class Mixed:
    """Requests of every kind by their share: inference, looks, lists, bytes there and back, metrics."""

    def __init__(self, token: str, run: str, blob: str, seed: int = 7) -> None:
        self._chance, self._count = random.Random(seed), itertools.count()
        self._kinds = [kind for kind, share in MIX.items() for _ in range(share)]
        self._auth = {"authorization": f"Bearer {token}"}
        self._run, self._blob = run, blob
        row = [self._chance.random() for _ in range(32)]
        self._row = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32], "data": row}]}).encode()

    def __call__(self) -> Ask:
        kind, number = self._chance.choice(self._kinds), next(self._count)
        json_ = {**self._auth, "content-type": "application/json"}
        if kind == "infer":
            return Ask(kind, "gateway", "/v2/models/fraud.score/infer", self._row, json_)
        if kind == "put":
            name = f"blob:fraud/b{number}"
            said = base64.urlsafe_b64encode(json.dumps({"name": name}).encode()).decode().rstrip("=")
            headers = {**self._auth, "content-type": "application/octet-stream", "falaj-args": said}
            return Ask(kind, "api", "/v1/store/put", f"bytes {number}".encode(), headers, name)
        given: dict[str, Any] = {"name": self._blob}
        path, effect = f"/v1/store/{kind}", ""
        if kind == "list":
            given = {"project": "fraud", "limit": 20}
        elif kind == "log":
            point = {"key": "loss", "value": float(number), "step": number, "at": time.time()}
            path, given, effect = "/v1/track/log", {"run": self._run, "metrics": [point]}, str(number)
            json_ |= {"idempotency-key": uuid.uuid4().hex}
        return Ask(kind, "api", path, json.dumps(given).encode(), json_, effect)
