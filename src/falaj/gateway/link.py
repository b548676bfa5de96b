"""One replica, as the gateway sees it: a connection that is kept, and a breaker before it."""

import asyncio
import hashlib
import ipaddress
import logging
import re
import ssl as tls
from collections.abc import Callable, Mapping
from typing import Any

from falaj.core.errors import Invalid
from falaj.oip.hop import HopClient
from falaj.serve.records import Place

TRIP = 5
"""So many failures in a row, and the replica is left alone for a while."""
SHUT_S, MOST_SHUT_S, PROBE_S = 0.5, 30.0, 5.0
CONNECT_S = 5.0
AGAIN_S, MOST_AGAIN_S = 0.05, 2.0
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_log = logging.getLogger(__name__)


class Link:
    """A connection to one place, made anew when it is lost, until `leave`."""

    def __init__(
        self,
        place: Place,
        key: str,
        changed: Callable[["Link"], Any],
        heard: Callable[["Link", dict[str, Any]], Any] | None = None,
    ) -> None:
        self.place, self._key, self._changed, self._heard = place, key, changed, heard
        self.client = HopClient(key)
        """Not connected at first, so never ready."""
        self.fails, self.shut_until = 0, 0.0
        self._tries, self._gone = 0, False
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._connect()

    def usable(self, now: float) -> bool:
        """It is connected, and its breaker is closed, or one request may try whether it is well again."""
        return self.client.ready and (self.fails < TRIP or now >= self.shut_until)

    def chosen(self, now: float) -> None:
        """A request goes there; while the breaker is open no other one does until that is answered."""
        if self.fails >= TRIP:
            self.shut_until = now + PROBE_S

    def failed(self, now: float) -> None:
        """A request was not answered, or the replica said that it cannot."""
        self.fails += 1
        if self.fails >= TRIP:
            self.shut_until = now + min(MOST_SHUT_S, SHUT_S * 2.0 ** min(self.fails - TRIP, 8))

    def tell(self, said: Mapping[str, Any]) -> None:
        """A word to the replica itself."""
        if self.client.ready:
            self.client.tell(said)

    def leave(self) -> None:
        """Ask it no more; what it was asked is still answered."""
        self._gone = True
        if self._again is not None:
            self._again.cancel()
        self.client.leave()

    def _connect(self) -> None:
        if not self._gone:
            self._task = self._loop.create_task(self._connected())

    async def _connected(self) -> None:
        place = self.place
        try:
            context = _context(place)
            client = _Pinned(self._key, place.fingerprint, self._ready, self._told, self._lost)
            if (heard := self._heard) is not None:
                client.on_control = lambda said: heard(self, said)
            made = self._loop.create_connection(lambda: client, place.host, place.port, ssl=context)
            await asyncio.wait_for(made, CONNECT_S)
        except Invalid as error:
            _log.error("a replica is not called", extra={"replica": place.name, "why": error.message})
        except (OSError, TimeoutError, tls.SSLError):
            self._retry()

    def _ready(self, client: HopClient) -> None:
        if self._gone:
            client.leave()
            return
        self.client, self._tries, self.fails = client, 0, 0
        self._changed(self)

    def _told(self) -> None:
        """It drains: whoever gave us its address will take it off the list; it is not called again."""
        self._gone = True
        self._changed(self)

    def _lost(self) -> None:
        self._retry()
        self._changed(self)

    def _retry(self) -> None:
        if not self._gone:
            self._tries += 1
            wait_s = min(MOST_AGAIN_S, AGAIN_S * 2.0 ** min(self._tries - 1, 8))
            self._again = self._loop.call_later(wait_s, self._connect)


class _Pinned(HopClient):
    """A connection that says nothing before it has seen the certificate it was told of."""

    def __init__(
        self,
        key: str,
        fingerprint: str,
        ready: Callable[[HopClient], Any],
        told: Callable[[], Any],
        lost: Callable[[], Any],
    ) -> None:
        super().__init__(key, on_ready=lambda: ready(self), on_drain=told, on_lost=lost)
        self._fingerprint = fingerprint

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As the parent does, to the right one."""
        if self._fingerprint:
            session = transport.get_extra_info("ssl_object")
            shown = session.getpeercert(binary_form=True) if session is not None else None
            if not shown or hashlib.sha256(shown).hexdigest() != self._fingerprint.lower():
                transport.abort()  # type: ignore[attr-defined]
                return
        super().connection_made(transport)


def _context(place: Place) -> tls.SSLContext | None:
    """How a place is spoken to: in the clear on this machine, else by TLS to the very certificate that was named.

    What a replica told of itself is not trusted further than that: no other machine in the clear, and nothing that is
    no machine's address. A name is what a cluster calls the node; replicas themselves tell addresses only.
    """
    address = _address(place.host)
    if not place.fingerprint:
        if address is None or not address.is_loopback:
            raise Invalid("a replica elsewhere has no certificate", "it must listen with TLS")
        return None
    if address is not None and (address.is_link_local or address.is_multicast or address.is_unspecified):
        raise Invalid("a replica's host is no address of a machine", "replicas tell their own address")
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.minimum_version = tls.TLSVersion.TLSv1_3
    # Names and authorities say nothing here: the certificate itself is known.
    context.check_hostname, context.verify_mode = False, tls.CERT_NONE
    return context


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, or nothing where it is a node's name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError as error:
        if not _NAME.fullmatch(host):
            raise Invalid("a replica's host is no address", "replicas tell their own address") from error
        return None
