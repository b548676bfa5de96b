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
from falaj.oip.upstream_server import UpstreamClient
from falaj.serve.records import ReplicaAddress

BREAKER_FAILURES = 5
"""So many failures in a row, and the replica is left alone for a while."""
BREAKER_PAUSE_S, MAX_BREAKER_PAUSE_S, BREAKER_PROBE_S = 0.5, 30.0, 5.0
CONNECT_TIMEOUT_S = 5.0
RECONNECT_PAUSE_S, MAX_RECONNECT_PAUSE_S = 0.05, 2.0
_HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_log = logging.getLogger(__name__)


class UpstreamConnection:
    """A connection to one place, made anew when it is lost, until `leave`."""

    def __init__(
        self,
        replica_address: ReplicaAddress,
        key: str,
        on_changed: Callable[["UpstreamConnection"], Any],
        on_message: Callable[["UpstreamConnection", dict[str, Any]], Any] | None = None,
    ) -> None:
        self.place, self._key, self._on_changed, self._on_message = replica_address, key, on_changed, on_message
        self.client = UpstreamClient(key)
        """Not connected at first, so never ready."""
        self.fails, self.shut_until = 0, 0.0
        self._connect_attempts, self._is_leaving = 0, False
        self._loop = asyncio.get_running_loop()
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._start_connecting()

    def usable(self, now: float) -> bool:
        """It is connected, and its breaker is closed, or one request may try whether it is well again."""
        return self.client.ready and (self.fails < BREAKER_FAILURES or now >= self.shut_until)

    def chosen(self, now: float) -> None:
        """A request goes there; while the breaker is open no other one does until that is answered."""
        if self.fails >= BREAKER_FAILURES:
            self.shut_until = now + BREAKER_PROBE_S

    def failed(self, now: float) -> None:
        """A request was not answered, or the replica said that it cannot."""
        self.fails += 1
        if self.fails >= BREAKER_FAILURES:
            self.shut_until = now + min(
                MAX_BREAKER_PAUSE_S, BREAKER_PAUSE_S * 2.0 ** min(self.fails - BREAKER_FAILURES, 8)
            )

    def tell(self, control_message: Mapping[str, Any]) -> None:
        """A word to the replica itself."""
        if self.client.ready:
            self.client.tell(control_message)

    def leave(self) -> None:
        """Ask it no more; what it was asked is still answered."""
        self._is_leaving = True
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
        self.client.leave()

    def _start_connecting(self) -> None:
        if not self._is_leaving:
            self._connect_task = self._loop.create_task(self._connect_upstream())

    async def _connect_upstream(self) -> None:
        replica_address = self.place
        try:
            context = _create_tls_context(replica_address)
            client = _PinnedCertificateClient(
                self._key, replica_address.fingerprint, self._on_ready, self._on_drain, self._on_lost
            )
            if (on_message := self._on_message) is not None:
                client.on_control = lambda control_message: on_message(self, control_message)
            connecting = self._loop.create_connection(
                lambda: client, replica_address.host, replica_address.port, ssl=context
            )
            await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
        except Invalid as error:
            _log.error("a replica is not called", extra={"replica": replica_address.name, "why": error.message})
        except (OSError, TimeoutError, tls.SSLError):
            self._schedule_reconnect()

    def _on_ready(self, client: UpstreamClient) -> None:
        if self._is_leaving:
            client.leave()
            return
        self.client, self._connect_attempts, self.fails = client, 0, 0
        self._on_changed(self)

    def _on_drain(self) -> None:
        """It drains: whoever gave us its address will take it off the list; it is not called again."""
        self._is_leaving = True
        self._on_changed(self)

    def _on_lost(self) -> None:
        self._schedule_reconnect()
        self._on_changed(self)

    def _schedule_reconnect(self) -> None:
        if not self._is_leaving:
            self._connect_attempts += 1
            wait_s = min(MAX_RECONNECT_PAUSE_S, RECONNECT_PAUSE_S * 2.0 ** min(self._connect_attempts - 1, 8))
            self._reconnect_timer = self._loop.call_later(wait_s, self._start_connecting)


class _PinnedCertificateClient(UpstreamClient):
    """A connection that says nothing before it has seen the certificate it was told of."""

    def __init__(
        self,
        key: str,
        fingerprint: str,
        on_ready: Callable[[UpstreamClient], Any],
        on_drain: Callable[[], Any],
        on_lost: Callable[[], Any],
    ) -> None:
        super().__init__(key, on_ready=lambda: on_ready(self), on_drain=on_drain, on_lost=on_lost)
        self._fingerprint = fingerprint

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As the parent does, to the right one."""
        if self._fingerprint:
            ssl_object = transport.get_extra_info("ssl_object")
            certificate = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
            if not certificate or hashlib.sha256(certificate).hexdigest() != self._fingerprint.lower():
                transport.abort()  # type: ignore[attr-defined]
                return
        super().connection_made(transport)


def _create_tls_context(replica_address: ReplicaAddress) -> tls.SSLContext | None:
    """How a place is spoken to: in the clear on this machine, else by TLS to the very certificate that was named.

    What a replica told of itself is not trusted further than that: no other machine in the clear, and nothing that is
    no machine's address. A name is what a cluster calls the node; replicas themselves tell addresses only.
    """
    ip_address = _parse_ip_address(replica_address.host)
    if not replica_address.fingerprint:
        if ip_address is None or not ip_address.is_loopback:
            raise Invalid("a replica elsewhere has no certificate", "it must listen with TLS")
        return None
    if ip_address is not None and (ip_address.is_link_local or ip_address.is_multicast or ip_address.is_unspecified):
        raise Invalid("a replica's host is no address of a machine", "replicas tell their own address")
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.minimum_version = tls.TLSVersion.TLSv1_3
    # Names and authorities say nothing here: the certificate itself is known.
    context.check_hostname, context.verify_mode = False, tls.CERT_NONE
    return context


def _parse_ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, or nothing where it is a node's name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError as error:
        if not _HOST_NAME_PATTERN.fullmatch(host):
            raise Invalid("a replica's host is no address", "replicas tell their own address") from error
        return None
