"""One question to one address: by TLS or plain, with a name of its own choice. Verifying is the point of it."""

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from falaj.core.errors import Invalid, Unavailable

PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """What came back."""

    status: int
    body: bytes
    date: str
    at: float
    """This machine's clock, halfway between asking and hearing."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """An address taken apart."""

    secure: bool
    host: str
    port: int

    @staticmethod
    def of(url: str) -> "ServerAddress":
        """From https://host:port; plain http on loopback is what a newcomer has."""
        url_parts = urlsplit(url)
        if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
            raise Invalid(f"{url[:80]!r} is no address to ask", "https://falaj.example:8470")
        return ServerAddress(
            url_parts.scheme == "https",
            url_parts.hostname,
            url_parts.port or (443 if url_parts.scheme == "https" else 80),
        )

    @property
    def name(self) -> str:
        """As a Host header has it."""
        default_port = 443 if self.secure else 80
        bracketed_host = f"[{self.host}]" if ":" in self.host else self.host
        return bracketed_host if self.port == default_port else f"{bracketed_host}:{self.port}"


def resolve_addresses(server_address: ServerAddress) -> list[str]:
    """Every address behind a name: one for each replica, where the name is that of replicas."""
    try:
        address_infos = socket.getaddrinfo(server_address.host, server_address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{server_address.host} cannot be found: {error.strerror}", "check the name") from error
    return sorted({str(address_info[4][0]) for address_info in address_infos})


def fetch_response(
    server_address: ServerAddress, path: str, ssl_context: ssl.SSLContext | None, address: str = ""
) -> ProbeResponse:
    """GET a path; Unavailable with the reason when nothing sound comes back."""
    started_at = time.time()
    try:
        with socket.create_connection(
            (address or server_address.host, server_address.port), timeout=PROBE_TIMEOUT_S
        ) as tcp_socket:
            if ssl_context is None:
                return _exchange_request(tcp_socket, server_address, path, started_at)
            with ssl_context.wrap_socket(tcp_socket, server_hostname=server_address.host) as tls_socket:
                return _exchange_request(tls_socket, server_address, path, started_at)
    except ssl.SSLError as error:
        raise Unavailable(f"TLS failed: {error.reason or error.verify_message}", "check --ca") from error  # type: ignore[attr-defined]
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no answer: {str(error) or type(error).__name__}", "is it running?") from error


def _exchange_request(
    connection: socket.socket, server_address: ServerAddress, path: str, started_at: float
) -> ProbeResponse:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {server_address.name}\r\nConnection: close\r\n\r\n".encode())
    response = http.client.HTTPResponse(connection, method="GET")
    response.begin()
    body = response.read()
    return ProbeResponse(response.status, body, response.getheader("date", ""), (started_at + time.time()) / 2)
