"""The connection broker of a sandboxed replica: a process outside its network that connects to declared services.

Replicas may not connect, since a socket that they accepted belongs to the machine's network and could be connected to
anything. They send the number of a service and a socket for the answer, and receive a connected socket.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Sequence

from falaj.core.connection_broker import CONNECTED_REPLY

CONNECT_TIMEOUT_S = 5.0
_MAX_OPEN_REQUESTS = 64
_MAX_REQUEST_BYTES, _MAX_REQUEST_FILES = 8, 4


class ConnectionBroker:
    """Answers until every process of the replica has closed the channel."""

    def __init__(self, services: Sequence[tuple[str, int]]) -> None:
        self._services = tuple(services)
        self._request_slots = threading.BoundedSemaphore(_MAX_OPEN_REQUESTS)

    def serve(self, channel: socket.socket) -> None:
        """Take requests, each answered by a thread of its own: a service that does not answer delays no other."""
        while True:
            service_number, fds, _, _ = socket.recv_fds(
                channel, _MAX_REQUEST_BYTES, _MAX_REQUEST_FILES, socket.MSG_CMSG_CLOEXEC
            )
            if not service_number and not fds:
                return
            self._request_slots.acquire()
            threading.Thread(target=self._answer_request, args=(service_number, fds), daemon=True).start()

    def _answer_request(self, service_number: bytes, fds: list[int]) -> None:
        try:
            # A request without a socket of the right kind, or with one that nobody reads, is not answered.
            with contextlib.suppress(OSError), _take_reply_socket(fds) as reply_socket:
                reply_socket.settimeout(CONNECT_TIMEOUT_S)
                try:
                    connected = self._connect_service(service_number)
                except (OSError, ValueError) as error:
                    reply_socket.send(str(error).encode()[:200])
                    return
                with connected:
                    socket.send_fds(reply_socket, [CONNECTED_REPLY], [connected.fileno()])
        finally:
            self._request_slots.release()

    def _connect_service(self, service_number: bytes) -> socket.socket:
        if not service_number.isdigit() or int(service_number) >= len(self._services):
            raise ValueError("expected the number of a declared service")
        host, port = self._services[int(service_number)]
        if not host.startswith("/"):
            return socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(CONNECT_TIMEOUT_S)
        try:
            connected.connect(host)
        except BaseException:
            connected.close()
            raise
        return connected


def _take_reply_socket(fds: list[int]) -> socket.socket:
    """The socket that came with a request; what else came is closed."""
    for fd in fds[1:]:
        os.close(fd)
    if not fds:
        raise OSError("a request without a socket for its answer")
    reply_socket = _adopt_socket(fds[0])
    if reply_socket.family != socket.AF_UNIX:
        reply_socket.close()
        raise OSError("a request whose socket is not local")
    return reply_socket


def _adopt_socket(fd: int) -> socket.socket:
    try:
        return socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
