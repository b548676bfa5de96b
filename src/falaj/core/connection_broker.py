"""Connections of a sandboxed process that may not connect: a broker outside the sandbox opens them (worker/broker.py).

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
READY = b"connected"
_ANSWER_BYTES = 256


def is_present(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process connects by a broker."""
    return FD_VARIABLE in (os.environ if environment is None else environment)


def open_connection(host: str, port: int, timeout_s: float | None) -> socket.socket:
    """A socket that is connected to a declared service; OSError for any other address. A path has the port 0."""
    number = _numbers().get((host, port))
    if number is None:
        raise PermissionError(f"{host}:{port} is not among the declared services; name it in the option `services`")
    answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with answer, theirs:
        socket.send_fds(_broker(), [b"%d" % number], [theirs.fileno()])
        theirs.close()
        answer.settimeout(timeout_s)
        text, files, _, _ = socket.recv_fds(answer, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    if text != READY or not files:
        raise ConnectionError(f"{host}:{port} cannot be reached: {text.decode(errors='replace')}")
    return socket.socket(fileno=files[0])


@cache
def _broker() -> socket.socket:
    broker = socket.socket(fileno=int(os.environ[FD_VARIABLE]))
    broker.set_inheritable(False)
    return broker


@cache
def _numbers() -> dict[tuple[str, int], int]:
    services = json.loads(os.environ.get(SERVICES_VARIABLE, "[]"))
    return {(str(host), int(port)): number for number, (host, port) in enumerate(services)}
