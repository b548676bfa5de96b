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

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORTS = frozenset({443, 8443})
TIMEOUT_S = 10.0
MOST_ANSWER, MOST_URL = 65_536, 2048
Resolve = Callable[[str, int], Iterable[str]]
Address = IPv4Address | IPv6Address
# What the world's lists of special addresses leave out of `is_global`, or libraries have had wrong at some time.
_NEVER = tuple(
    ip_network(text)
    for text in ("0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "169.254.0.0/16", "192.0.0.0/24", "192.88.99.0/24",
                 "198.18.0.0/15", "224.0.0.0/3", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16",
                 "fc00::/7", "fe80::/10", "ff00::/8")
)  # fmt: skip


class Target(NamedTuple):
    """Where a hook goes."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def usual(self) -> bool:
        """True when it is one that the open internet has: TLS, and a port of the web."""
        return self.secure and self.port in PORTS

    @property
    def authority(self) -> str:
        """As the Host header names it."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.secure else 80) else f"{name}:{self.port}"


def read_url(url: str, private: tuple[str, ...] = ()) -> Target:
    """Where an address leads, or Invalid. `private`: networks beside the open internet that the installation allows."""
    hint = "https://host/path; no user, no fragment, port 443 or 8443"
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
    except (ValueError, UnicodeError) as error:
        raise Invalid("that is no address of a hook", hint) from error
    plain = url.isascii() and url.isprintable() and len(url) <= MOST_URL and " " not in url and "\\" not in url
    if not plain or not host or "@" in parts.netloc or parts.fragment or parts.scheme not in ("https", "http"):
        raise Invalid("that is no address of a hook", hint)
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(secure, host, port or (443 if secure else 80), path)
    if not private and (not secure or target.port not in PORTS):
        raise Invalid(f"hooks go by https to the ports {sorted(PORTS)}", hint)
    if not secure and host not in ("127.0.0.1", "::1", "localhost"):
        raise Invalid(
            "hooks go by https", "plain http reaches this machine only, where the setting hooks.private is on"
        )
    return target


def open_to_all(address: str) -> bool:
    """True when an address is one of the open internet."""
    found = _read(address)
    return found is not None and found.is_global and not any(found in net for net in _NEVER)


def own(address: str, private: tuple[str, ...]) -> bool:
    """True when an address lies in a network that the installation says hooks may reach."""
    found = _read(address)
    return found is not None and any(found in one for one in networks(private))


@cache
def networks(private: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks that a setting names, or Invalid."""
    try:
        return tuple(ip_network(one, strict=False) for one in private)
    except ValueError as error:
        raise Invalid("the setting hooks.private names what is no network", "10.20.0.0/16, fd00:1::/32 …") from error


@cache
def trusted(ca: str) -> ssl.SSLContext:
    """Whose certificates receivers may have: the usual authorities, and those in a file; read when first needed."""
    made = ssl.create_default_context()
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        made.load_verify_locations(ca)
    return made


def _read(address: str) -> Address | None:
    try:
        found: Address = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    # An IPv4 address inside an IPv6 one is what it is.
    return getattr(found, "ipv4_mapped", None) or found


def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, as the machine's resolver says."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{host[:100]} has no address", "check the name") from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Post(NamedTuple):
    """How messages leave: which resolver, which networks beside the open internet, which authorities are trusted."""

    private: tuple[str, ...] = ()
    resolve: Resolve = resolve
    ca: str = ""
    timeout_s: float = TIMEOUT_S

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """POST, and the status that came back. Denied, before a byte is sent, when the place is not allowed."""
        deadline = time.monotonic() + self.timeout_s
        target = read_url(url, self.private)
        addresses = list(self.resolve(target.host, target.port))
        near = bool(addresses) and all(own(one, self.private) for one in addresses)
        far = bool(addresses) and target.usual and all(map(open_to_all, addresses))
        if not near and not far:
            raise Denied(f"{target.host} is not a place that hooks may go to", "addresses of the open internet, by TLS")
        try:
            with self._connected(addresses[0], target, deadline) as connection:
                connection.settimeout(_left(deadline))
                connection.sendall(_head(target, headers, len(body)) + body)
                return _status(connection, deadline)
        except (OSError, HTTPException, ValueError) as error:
            # The text of an error may hold what the other side chose to say; its kind is enough.
            raise Unavailable(
                f"no answer: {type(error).__name__}", "the receiver must answer in time, by TLS"
            ) from error

    def _connected(self, address: str, target: Target, deadline: float) -> socket.socket:
        plain = socket.create_connection((address, target.port), timeout=_left(deadline))
        if not target.secure:
            return plain
        try:
            plain.settimeout(_left(deadline))
            return trusted(self.ca).wrap_socket(plain, server_hostname=target.host)
        except OSError:
            plain.close()
            raise


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    lines = {
        "host": target.authority, "user-agent": "falaj-hooks", "accept": "*/*", "connection": "close",
        **headers, "content-length": str(length),
    }  # fmt: skip
    if any("\r" in text or "\n" in text for line in lines.items() for text in line):
        raise ValueError("a header of two lines")
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {target.path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")


def _status(connection: socket.socket, deadline: float) -> int:
    """The status of an answer that comes whole, small and in time; however slowly it drips."""
    answer = HTTPResponse(_Timed(connection, deadline), method="POST")  # type: ignore[arg-type]
    try:
        answer.begin()
        return answer.status
    finally:
        answer.close()


class _Timed:
    """A connection whose every read counts against one deadline and one bound."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline, self._room = connection, deadline, MOST_ANSWER

    def makefile(self, mode: str) -> "_Timed":
        """What HTTPResponse reads from."""
        del mode
        return self

    def readline(self, limit: int = -1) -> bytes:
        """One line, letter by letter: heads are short, and nothing after them is wanted."""
        line = bytearray()
        while not line.endswith(b"\n") and (limit < 0 or len(line) < limit):
            self._connection.settimeout(_left(self._deadline))
            got = self._connection.recv(1)
            self._room -= 1
            if not got or self._room < 0:
                break
            line += got
        return bytes(line)

    def close(self) -> None:
        """The connection is closed by whoever opened it."""

    def flush(self) -> None:
        """Nothing is written."""


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
