"""The connection broker of a sandboxed replica: a process outside its network that connects to declared services.

Replicas may not connect, since a socket that they accepted belongs to the machine's network and could be connected to
anything. They send the number of a service and a socket for the answer, and receive a connected socket.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Sequence

from falaj.core.connection_broker import READY

CONNECT_S = 5.0
_AT_ONCE = 64
_REQUEST_BYTES, _REQUEST_FILES = 8, 4


class ConnectionBroker:
    """Answers until every process of the replica has closed the channel."""

    def __init__(self, services: Sequence[tuple[str, int]]) -> None:
        self._services = tuple(services)
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def serve(self, channel: socket.socket) -> None:
        """Take requests, each answered by a thread of its own: a service that does not answer delays no other."""
        while True:
            text, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, _REQUEST_FILES, socket.MSG_CMSG_CLOEXEC)
            if not text and not files:
                return
            self._places.acquire()
            threading.Thread(target=self._answer, args=(text, files), daemon=True).start()

    def _answer(self, text: bytes, files: list[int]) -> None:
        try:
            # A request without a socket of the right kind, or with one that nobody reads, is not answered.
            with contextlib.suppress(OSError), _answer_socket(files) as answer:
                answer.settimeout(CONNECT_S)
                try:
                    connected = self._connect(text)
                except (OSError, ValueError) as error:
                    answer.send(str(error).encode()[:200])
                    return
                with connected:
                    socket.send_fds(answer, [READY], [connected.fileno()])
        finally:
            self._places.release()

    def _connect(self, text: bytes) -> socket.socket:
        if not text.isdigit() or int(text) >= len(self._services):
            raise ValueError("expected the number of a declared service")
        host, port = self._services[int(text)]
        if not host.startswith("/"):
            return socket.create_connection((host, port), CONNECT_S)
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(CONNECT_S)
        try:
            connected.connect(host)
        except BaseException:
            connected.close()
            raise
        return connected


def _answer_socket(files: list[int]) -> socket.socket:
    """The socket that came with a request; what else came is closed."""
    for file in files[1:]:
        os.close(file)
    if not files:
        raise OSError("a request without a socket for its answer")
    answer = _adopt(files[0])
    if answer.family != socket.AF_UNIX:
        answer.close()
        raise OSError("a request whose socket is not local")
    return answer


def _adopt(file: int) -> socket.socket:
    try:
        return socket.socket(fileno=file)
    except OSError:
        os.close(file)
        raise
