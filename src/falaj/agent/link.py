"""The link: kept connections from the agent to the platform, and none the other way."""

import http.client
import queue
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from falaj.agent.identity import Identity
from falaj.api.channel import DOOR_HEADER, LISTEN
from falaj.core.errors import Unavailable

CONNECT_S, SILENT_S = 5.0, 15.0
"""The platform says something every five seconds; one that is silent for so long is not there."""
BROKEN = (OSError, http.client.HTTPException)


class Said(NamedTuple):
    """What the platform answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Link:
    """Posts over kept connections; used by many threads."""

    def __init__(self, identity: Identity) -> None:
        parts = urlsplit(identity.address)
        self._identity = identity
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._context = identity.context()
        self._idle: queue.SimpleQueue[http.client.HTTPSConnection] = queue.SimpleQueue()
        self.up = threading.Event()
        """Set while the platform is heard."""

    def renewed(self) -> None:
        """Speak with the new certificate from here on."""
        self._context = self._identity.context()
        self.close()

    def close(self) -> None:
        """Give the kept connections back."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes, answer_s: float = 60.0) -> Said:
        """Send and hear, or Unavailable. A kept connection may have ended meanwhile: then once more, on a new one."""
        kept = self._kept()
        if kept is not None:
            with suppress(*BROKEN):
                return self._over(kept, method, path, headers, body, answer_s)
            kept.close()
        fresh = self._connect(answer_s)
        try:
            return self._over(fresh, method, path, headers, body, answer_s)
        except BROKEN as error:
            fresh.close()
            raise _away(error) from error

    def lines(self, door: str) -> Iterator[bytes]:
        """What the platform asks, line by line, for as long as the connection lasts; empty lines are signs of life."""
        connection = self._connect(SILENT_S)
        try:
            connection.request("POST", LISTEN, b"", {DOOR_HEADER.decode(): door, "content-length": "0"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise Unavailable(f"the platform answered {answer.status}: {answer.read(500)!r}", "join anew")
            self.up.set()
            while line := answer.readline():
                yield line.strip()
        except BROKEN as error:
            raise _away(error) from error
        finally:
            self.up.clear()
            connection.close()

    def _over(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        answer_s: float,
    ) -> Said:
        if connection.sock is not None:
            connection.sock.settimeout(answer_s)
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        said = Said(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        if answer.will_close:
            connection.close()
        else:
            self._idle.put(connection)
        return said

    def _kept(self) -> http.client.HTTPSConnection | None:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        return None

    def _connect(self, answer_s: float) -> http.client.HTTPSConnection:
        made = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=self._context)
        try:
            made.connect()
        except (OSError, ssl.SSLError) as error:
            raise _away(error) from error
        made.sock.settimeout(answer_s)
        return made


def _away(error: BaseException) -> Unavailable:
    return Unavailable(f"the platform cannot be reached: {error!r:.200}", "it is tried again by itself")
