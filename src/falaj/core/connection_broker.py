"""Connections of a sandboxed process that may not connect: a broker outside the sandbox opens them
(worker/connection_broker.py).

The process names a declared service by its number, never a host, and receives the connected socket (SCM_RIGHTS). Each
request brings the socket on which it is answered, so that threads neither wait for each other nor mix up answers.
"""

import json
import os
import socket
from collections.abc import Mapping
from functools import cache

FD_VARIABLE, SERVICES_VARIABLE = "FALAJ_BROKER_FD", "FALAJ_BROKER_SERVICES"
"""Set by the launcher of a sandboxed replica: the socket to the broker, and the services that it connects to."""
CONNECTED_REPLY = b"connected"
_MAX_REPLY_BYTES = 256


def uses_broker(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process connects by a broker."""
    return FD_VARIABLE in (os.environ if environment is None else environment)


def open_connection(host: str, port: int, timeout_s: float | None) -> socket.socket:
    """A socket that is connected to a declared service; OSError for any other address. A path has the port 0."""
    service_number = _load_service_numbers().get((host, port))
    if service_number is None:
        raise PermissionError(f"{host}:{port} is not among the declared services; name it in the option `services`")
    reply_socket, broker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with reply_socket, broker_end:
        socket.send_fds(_open_broker_socket(), [b"%d" % service_number], [broker_end.fileno()])
        broker_end.close()
        reply_socket.settimeout(timeout_s)
        reply_text, received_fds, _, _ = socket.recv_fds(reply_socket, _MAX_REPLY_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    if reply_text != CONNECTED_REPLY or not received_fds:
        raise ConnectionError(f"{host}:{port} cannot be reached: {reply_text.decode(errors='replace')}")
    return socket.socket(fileno=received_fds[0])


@cache
def _open_broker_socket() -> socket.socket:
    broker_socket = socket.socket(fileno=int(os.environ[FD_VARIABLE]))
    broker_socket.set_inheritable(False)
    return broker_socket


@cache
def _load_service_numbers() -> dict[tuple[str, int], int]:
    services = json.loads(os.environ.get(SERVICES_VARIABLE, "[]"))
    return {(str(host), int(port)): service_number for service_number, (host, port) in enumerate(services)}
