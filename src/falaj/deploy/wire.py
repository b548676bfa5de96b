"""One question to one address: by TLS or plain, with a name of its own choice. Verifying is the point of it."""

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from falaj.core.errors import Invalid, Unavailable

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    date: str
    at: float
    """This machine's clock, halfway between asking and hearing."""


@dataclass(frozen=True, slots=True)
class Place:
    """An address taken apart."""

    secure: bool
    host: str
    port: int

    @staticmethod
    def of(url: str) -> "Place":
        """From https://host:port; plain http on loopback is what a newcomer has."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid(f"{url[:80]!r} is no address to ask", "https://falaj.example:8470")
        return Place(parts.scheme == "https", parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))

    @property
    def name(self) -> str:
        """As a Host header has it."""
        usual = 443 if self.secure else 80
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == usual else f"{shown}:{self.port}"


def addresses(place: Place) -> list[str]:
    """Every address behind a name: one for each replica, where the name is that of replicas."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{place.host} cannot be found: {error.strerror}", "check the name") from error
    return sorted({str(one[4][0]) for one in found})


def ask(place: Place, path: str, context: ssl.SSLContext | None, address: str = "") -> Answer:
    """GET a path; Unavailable with the reason when nothing sound comes back."""
    begun = time.time()
    try:
        with socket.create_connection((address or place.host, place.port), timeout=TIMEOUT_S) as plain:
            if context is None:
                return _asked(plain, place, path, begun)
            with context.wrap_socket(plain, server_hostname=place.host) as safe:
                return _asked(safe, place, path, begun)
    except ssl.SSLError as error:
        raise Unavailable(f"TLS failed: {error.reason or error.verify_message}", "check --ca") from error  # type: ignore[attr-defined]
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no answer: {str(error) or type(error).__name__}", "is it running?") from error


def _asked(line: socket.socket, place: Place, path: str, begun: float) -> Answer:
    line.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.name}\r\nConnection: close\r\n\r\n".encode())
    response = http.client.HTTPResponse(line, method="GET")
    response.begin()
    body = response.read()
    return Answer(response.status, body, response.getheader("date", ""), (begun + time.time()) / 2)
