"""Links between a replica and what it stands on: proxies that can fall silent, break every connection, or be slow."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

OPEN, SILENT, SLOW = "open", "silent", "slow"
T = TypeVar("T")


class Links:
    """All links of a ground, on one loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._made: list[Link] = []

    def add(self, to: int) -> "Link":
        """A link to a port of this machine."""
        link = Link(self, to)
        self.run(link.listen())
        self._made.append(link)
        return link

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        """End them all."""
        for link in self._made:
            self.run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Link:
    """`port` is what the replica is told. What lies in a silent link arrives when it is open again, as in a network."""

    def __init__(self, links: Links, to: int) -> None:
        self._links, self._to = links, to
        self.port = 0
        self._passes = asyncio.Event()
        self._passes.set()
        self._slow = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def set(self, state: str) -> None:
        """Let pass, fall silent, or be slow."""

        async def change() -> None:
            self._slow = state == SLOW
            self._passes.clear() if state == SILENT else self._passes.set()

        self._links.run(change())

    def reset(self) -> None:
        """Break every connection there is."""

        async def break_all() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._links.run(break_all())

    async def close(self) -> None:
        """Accept nobody any more, and let everybody go."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accepted(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        try:
            far, forth = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            back.transport.abort()
            return
        self._writers |= {back, forth}
        ways: list[Awaitable[None]] = [self._pass(near, forth), self._pass(far, back)]
        await asyncio.gather(*ways)
        self._writers -= {back, forth}

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._passes.wait()
                if self._slow:
                    await asyncio.sleep(0.05 + len(data) / 250_000)
                sink.write(data)
                await sink.drain()
        sink.close()
