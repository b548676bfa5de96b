"""Decides which Host headers mean this gateway, so that a page of a rebound name cannot call it from a browser."""

import ipaddress
from collections.abc import Iterable


class HostNames:
    """Accepts the gateway's own names with any port, and every IP address: only names can be rebound."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_normalize_host(name) for name in names)

    def accept(self, host: bytes | None) -> bool:
        """Whether a request with this Host header is answered; HTTP/1.0 may have none, and no browser sends that."""
        if host is None:
            return True
        name = _normalize_host(host.decode("latin-1"))
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _normalize_host(host: str) -> str:
    """The name, or the address, without port and brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host.partition(":")[0] if host.count(":") == 1 else host
    return name.rstrip(".")
