"""The one way out: a POST to an address that we resolved, checked and connect to ourselves.

A name is resolved once; every address it has must be allowed, and the connection goes to one of those very addresses,
so a name that means something else a moment later changes nothing. No redirects, no proxies, no cookies; what comes
back is read up to a bound, within one deadline for all of it, and is not kept.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from http.client import HTTPException, HTTPResponse
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from falaj.core.errors import Denied, Invalid, Unavailable

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
ALLOWED_PORTS = frozenset({443, 8443})
SEND_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES, MAX_URL_CHARS = 65_536, 2048
ResolveFunction = Callable[[str, int], Iterable[str]]
IpAddress = IPv4Address | IPv6Address
# What the world's lists of special addresses leave out of `is_global`, or libraries have had wrong at some time.
_BLOCKED_NETWORKS = tuple(
    ip_network(text)
    for text in ("0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "169.254.0.0/16", "192.0.0.0/24", "192.88.99.0/24",
                 "198.18.0.0/15", "224.0.0.0/3", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16",
                 "fc00::/7", "fe80::/10", "ff00::/8")
)  # fmt: skip


class WebhookTarget(NamedTuple):
    """Where a hook goes."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def usual(self) -> bool:
        """True when it is one that the open internet has: TLS, and a port of the web."""
        return self.secure and self.port in ALLOWED_PORTS

    @property
    def authority(self) -> str:
        """As the Host header names it."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.secure else 80) else f"{name}:{self.port}"


def parse_webhook_url(url: str, private_networks: tuple[str, ...] = ()) -> WebhookTarget:
    """Where an address leads, or Invalid. `private_networks`: networks beside the open internet that the installation
    allows."""
    hint = "https://host/path; no user, no fragment, port 443 or 8443"
    try:
        split_url = urlsplit(url)
        host, port = (split_url.hostname or "").encode("idna").decode("ascii"), split_url.port
    except (ValueError, UnicodeError) as error:
        raise Invalid("that is no address of a hook", hint) from error
    is_plain = url.isascii() and url.isprintable() and len(url) <= MAX_URL_CHARS and " " not in url and "\\" not in url
    if (
        not is_plain
        or not host
        or "@" in split_url.netloc
        or split_url.fragment
        or split_url.scheme not in ("https", "http")
    ):
        raise Invalid("that is no address of a hook", hint)
    is_secure = split_url.scheme == "https"
    path = (split_url.path or "/") + (f"?{split_url.query}" if split_url.query else "")
    target = WebhookTarget(is_secure, host, port or (443 if is_secure else 80), path)
    if not private_networks and (not is_secure or target.port not in ALLOWED_PORTS):
        raise Invalid(f"hooks go by https to the ports {sorted(ALLOWED_PORTS)}", hint)
    if not is_secure and host not in ("127.0.0.1", "::1", "localhost"):
        raise Invalid(
            "hooks go by https", "plain http reaches this machine only, where the setting hooks.private is on"
        )
    return target


def is_public_address(address: str) -> bool:
    """True when an address is one of the open internet."""
    parsed = _parse_address(address)
    return parsed is not None and parsed.is_global and not any(parsed in net for net in _BLOCKED_NETWORKS)


def is_private_allowed(address: str, private_networks: tuple[str, ...]) -> bool:
    """True when an address lies in a network that the installation says hooks may reach."""
    parsed = _parse_address(address)
    return parsed is not None and any(parsed in network for network in parse_networks(private_networks))


@cache
def parse_networks(private_networks: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks that a setting names, or Invalid."""
    try:
        return tuple(ip_network(network_text, strict=False) for network_text in private_networks)
    except ValueError as error:
        raise Invalid("the setting hooks.private names what is no network", "10.20.0.0/16, fd00:1::/32 …") from error


@cache
def make_tls_context(ca: str) -> ssl.SSLContext:
    """Whose certificates receivers may have: the usual authorities, and those in a file; read when first needed."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        context.load_verify_locations(ca)
    return context


def _parse_address(address: str) -> IpAddress | None:
    try:
        parsed: IpAddress = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    # An IPv4 address inside an IPv6 one is what it is.
    return getattr(parsed, "ipv4_mapped", None) or parsed


def resolve_host(host: str, port: int) -> list[str]:
    """Every address of a name, as the machine's resolver says."""
    try:
        address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{host[:100]} has no address", "check the name") from error
    return list(dict.fromkeys(str(address_info[4][0]) for address_info in address_infos))


class WebhookPoster(NamedTuple):
    """How messages leave: which resolver, which networks beside the open internet, which authorities are trusted."""

    private: tuple[str, ...] = ()
    resolve: ResolveFunction = resolve_host
    ca: str = ""
    timeout_s: float = SEND_TIMEOUT_S

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """POST, and the status that came back. Denied, before a byte is sent, when the place is not allowed."""
        deadline = time.monotonic() + self.timeout_s
        target = parse_webhook_url(url, self.private)
        addresses = list(self.resolve(target.host, target.port))
        is_private_target = bool(addresses) and all(is_private_allowed(address, self.private) for address in addresses)
        is_public_target = bool(addresses) and target.usual and all(map(is_public_address, addresses))
        if not is_private_target and not is_public_target:
            raise Denied(f"{target.host} is not a place that hooks may go to", "addresses of the open internet, by TLS")
        try:
            with self._open_connection(addresses[0], target, deadline) as connection:
                connection.settimeout(_remaining_s(deadline))
                connection.sendall(_encode_head(target, headers, len(body)) + body)
                return _read_status(connection, deadline)
        except (OSError, HTTPException, ValueError) as error:
            # The text of an error may hold what the other side chose to say; its kind is enough.
            raise Unavailable(
                f"no answer: {type(error).__name__}", "the receiver must answer in time, by TLS"
            ) from error

    def _open_connection(self, address: str, target: WebhookTarget, deadline: float) -> socket.socket:
        plain_socket = socket.create_connection((address, target.port), timeout=_remaining_s(deadline))
        if not target.secure:
            return plain_socket
        try:
            plain_socket.settimeout(_remaining_s(deadline))
            return make_tls_context(self.ca).wrap_socket(plain_socket, server_hostname=target.host)
        except OSError:
            plain_socket.close()
            raise


def _encode_head(target: WebhookTarget, headers: Mapping[str, str], length: int) -> bytes:
    lines = {
        "host": target.authority, "user-agent": "falaj-hooks", "accept": "*/*", "connection": "close",
        **headers, "content-length": str(length),
    }  # fmt: skip
    if any("\r" in text or "\n" in text for line in lines.items() for text in line):
        raise ValueError("a header of two lines")
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {target.path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")


def _read_status(connection: socket.socket, deadline: float) -> int:
    """The status of an answer that comes whole, small and in time; however slowly it drips."""
    response = HTTPResponse(_TimedConnection(connection, deadline), method="POST")  # type: ignore[arg-type]
    try:
        response.begin()
        return response.status
    finally:
        response.close()


class _TimedConnection:
    """A connection whose every read counts against one deadline and one bound."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline, self._remaining_bytes = connection, deadline, MAX_ANSWER_BYTES

    def makefile(self, mode: str) -> "_TimedConnection":
        """What HTTPResponse reads from."""
        del mode
        return self

    def readline(self, limit: int = -1) -> bytes:
        """One line, letter by letter: heads are short, and nothing after them is wanted."""
        line_bytes = bytearray()
        while not line_bytes.endswith(b"\n") and (limit < 0 or len(line_bytes) < limit):
            self._connection.settimeout(_remaining_s(self._deadline))
            received = self._connection.recv(1)
            self._remaining_bytes -= 1
            if not received or self._remaining_bytes < 0:
                break
            line_bytes += received
        return bytes(line_bytes)

    def close(self) -> None:
        """The connection is closed by whoever opened it."""

    def flush(self) -> None:
        """Nothing is written."""


def _remaining_s(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
