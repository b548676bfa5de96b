"""The link: kept connections from the agent to the platform, and none the other way."""

import http.client
import queue
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from falaj.agent.agent_identity import AgentIdentity
from falaj.api.agent_channel import AGENT_ADDRESS_HEADER, LISTEN_PATH
from falaj.core.errors import Unavailable

CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S = 5.0, 15.0
"""The platform says something every five seconds; one that is silent for so long is not there."""
CONNECTION_ERRORS = (OSError, http.client.HTTPException)


class PlatformResponse(NamedTuple):
    """What the platform answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class PlatformLink:
    """Posts over kept connections; used by many threads."""

    def __init__(self, identity: AgentIdentity) -> None:
        url_parts = urlsplit(identity.address)
        self._identity = identity
        self._host, self._port = url_parts.hostname or "", url_parts.port or 443
        self._ssl_context = identity.context()
        self._idle_connections: queue.SimpleQueue[http.client.HTTPSConnection] = queue.SimpleQueue()
        self.up = threading.Event()
        """Set while the platform is heard."""

    def renewed(self) -> None:
        """Speak with the new certificate from here on."""
        self._ssl_context = self._identity.context()
        self.close()

    def close(self) -> None:
        """Give the kept connections back."""
        with suppress(queue.Empty):
            while True:
                self._idle_connections.get_nowait().close()

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float = 60.0
    ) -> PlatformResponse:
        """Send and hear, or Unavailable. A kept connection may have ended meanwhile: then once more, on a new one."""
        idle_connection = self._take_idle_connection()
        if idle_connection is not None:
            with suppress(*CONNECTION_ERRORS):
                return self._send_over(idle_connection, method, path, headers, body, timeout_s)
            idle_connection.close()
        new_connection = self._open_connection(timeout_s)
        try:
            return self._send_over(new_connection, method, path, headers, body, timeout_s)
        except CONNECTION_ERRORS as error:
            new_connection.close()
            raise _unreachable_error(error) from error

    def lines(self, proxy_url: str) -> Iterator[bytes]:
        """What the platform asks, line by line, for as long as the connection lasts; empty lines are signs of life."""
        connection = self._open_connection(SILENCE_TIMEOUT_S)
        try:
            connection.request(
                "POST", LISTEN_PATH, b"", {AGENT_ADDRESS_HEADER.decode(): proxy_url, "content-length": "0"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise Unavailable(f"the platform answered {response.status}: {response.read(500)!r}", "join anew")
            self.up.set()
            while line := response.readline():
                yield line.strip()
        except CONNECTION_ERRORS as error:
            raise _unreachable_error(error) from error
        finally:
            self.up.clear()
            connection.close()

    def _send_over(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> PlatformResponse:
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        platform_response = PlatformResponse(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
        if response.will_close:
            connection.close()
        else:
            self._idle_connections.put(connection)
        return platform_response

    def _take_idle_connection(self) -> http.client.HTTPSConnection | None:
        with suppress(queue.Empty):
            return self._idle_connections.get_nowait()
        return None

    def _open_connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=CONNECT_TIMEOUT_S, context=self._ssl_context
        )
        try:
            connection.connect()
        except (OSError, ssl.SSLError) as error:
            raise _unreachable_error(error) from error
        connection.sock.settimeout(timeout_s)
        return connection


def _unreachable_error(error: BaseException) -> Unavailable:
    return Unavailable(f"the platform cannot be reached: {error!r:.200}", "it is tried again by itself")
